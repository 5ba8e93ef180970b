"""From tensors to transfers and back: staging, checksums, futures."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from tensorjax.offload._errors import CapacityError, CorruptError, StoreError
from tensorjax.offload._store import _extents
from tensorjax.offload._store._bell import Bell
from tensorjax.offload._store._checksums import copy, digest, gather
from tensorjax.offload._store._extents import Extent, Layouts, Piece, Place, Run, Transfer
from tensorjax.offload._store._lease import Lease, Leases, view
from tensorjax.offload._store._queue import Queue
from tensorjax.offload._store._requests import Op, ReadBatch, Request, nothing
from tensorjax.offload._store._staging import aligned
from tensorjax.offload._store._tensors import Content, Slots, Tensor


class _Countdown:
    """Sets a future when so many requests are resolved, to the first error if there was one."""

    def __init__(self, count: int, result: Callable[[], Any], drop: Callable[[], Any]):
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()
        self._count, self._result, self._drop = count, result, drop
        self._lock, self._error = threading.Lock(), None
        if not count:
            self.future.set_result(result())

    def down(self, error: BaseException | None) -> None:
        """One request is resolved."""
        with self._lock:
            self._count -= 1
            self._error = self._error or error
            if self._count:
                return
        if self._error is None:
            try:
                result = self._result()
            except Exception as failure:
                self._error = failure
        if self._error is not None:
            self._drop()
            self.future.set_exception(self._error)
        else:
            self.future.set_result(result)


def flat(place: Place, array: Any) -> np.ndarray:
    """The bytes of an array of the reserved shape and dtype."""
    if isinstance(array, jax.ShapeDtypeStruct):
        raise TypeError(f"{place.name}: expected an array, got only its shape and dtype")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{place.name}: expected an array without a mask; write its data and mask")
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if shape != place.shape or dtype != place.dtype:
        try:
            got = f"{dtype or type(array).__name__}{list(np.shape(array))}"
        except ValueError:  # of lists that are not of one length
            got = type(array).__name__
        raise ValueError(
            f"{place.name}: expected {place.dtype}{list(place.shape)} as reserved, got {got}"
        )
    return np.asarray(array).ravel().view(np.uint8)


# What is written to extents: their bytes, and where the checksums of their blocks go.
_Sources = dict[Extent, tuple[np.ndarray, list[str]]]

# What is read, by where the slot of an extent begins; and of which of its tensors.
_Asked = dict[int, tuple[Content, Sequence[Tensor]]]


class Writer:
    """Copies arrays into staging and hands the transfers to the queue."""

    queue: Queue

    def __init__(self, block: int, layouts: Layouts, reader: "Reader"):
        self._block, self._layouts, self._reader = block, layouts, reader
        self._lock = threading.Lock()
        self._turn = Bell(self._lock)
        self._copying: dict[Slots, object] = {}  # by whom
        self._paused: set[object] = set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Lets no write begin, once those that are copying have ended."""
        me = object()
        try:
            with self._lock:
                self._paused.add(me)
            self._turn.wait(lambda: not self._copying)
            yield
        finally:
            with self._lock:
                self._paused.discard(me)
                self._turn.ring()

    def write(self, todo: Sequence[tuple[Tensor, np.ndarray]], deadline: float) -> Future[None]:
        """Writes arrays of bytes to the slots that are not committed."""
        me = object()
        mine = dict.fromkeys((tensor.slots for tensor, _ in todo), me)
        try:
            return self._write_alone(todo, deadline, mine)
        finally:  # once more: a signal may have cut off the one in there
            if mine and self._copying.get(next(iter(mine))) is me:
                self._leave(mine)

    def _write_alone(
        self, todo: Sequence[tuple[Tensor, np.ndarray]], deadline: float, mine: dict[Slots, object]
    ) -> Future[None]:
        try:
            # One write of an extent at a time fills staging: the transfers of a later one, waiting
            # for those of an earlier one, could otherwise take all of it.
            self._turn.wait(lambda: self._may_copy(mine))
            return self._write(todo, deadline)
        finally:
            self._leave(mine)

    def _may_copy(self, mine: dict[Slots, object]) -> bool:
        """Whether a write may begin; if so, it has (the lock is held)."""
        if self._paused or not self._copying.keys().isdisjoint(mine):
            return False
        self._copying.update(mine)
        return True

    def _leave(self, mine: dict[Slots, object]) -> None:
        with self._lock:
            for slots, me in reversed(mine.items()):  # the first one last: it tells
                if self._copying.get(slots) is me:
                    del self._copying[slots]
            self._turn.ring()

    def _write(self, todo: Sequence[tuple[Tensor, np.ndarray]], deadline: float) -> Future[None]:
        _check_there([tensor for tensor, _ in todo])
        queue, (sources, newest) = self.queue, self._prepared(todo)
        found = self._layouts.runs([(extent, c.slot) for extent, (_, c) in newest.items()])
        countdown = _Countdown(len(found), lambda: None, lambda: None)

        def resolve(request: Request) -> None:  # must not hold the arrays until then
            error = request.error
            if error is not None:
                of = [newest[extent] for extent in request.run.members]
                error = _named(request, error, [name for pair in of for name in _meant(*pair)])
                for _, content in of:
                    content.error = error
            countdown.down(error)

        requests: list[Request] = []
        for run in found:
            of = [newest[extent] for extent in run.members]
            users = [slots.users[content.slot] for slots, content in of]
            requests.append(Request(run, users, write=True, deadline=deadline, resolve=resolve))
        try:
            with queue.lock:
                queue.enter(requests)
                queue.writes.tensors += len(todo)
                for slots, content in newest.values():
                    slots.newest = content
            for request in requests:
                queue.turn(request)
                self._fill(request, sources)
                queue.seal(request)
        except BaseException as error:
            queue.cut(requests, error)
            raise
        return countdown.future

    def _prepared(
        self, todo: Sequence[tuple[Tensor, np.ndarray]]
    ) -> tuple[_Sources, dict[Extent, tuple[Slots, Content]]]:
        """What is to be written, and what the slots that are not committed will hold by it."""
        sources: _Sources = {}
        newest: dict[Extent, tuple[Slots, Content]] = {}
        packed: dict[Slots, list[tuple[Tensor, np.ndarray]]] = {}
        for tensor, array in todo:
            slots = tensor.slots
            extent = slots.extent
            if extent.packed:
                packed.setdefault(slots, []).append((tensor, array))
            else:
                content = Content(slots.free, [""] * -(-extent.nbytes // self._block))
                sources[extent], newest[extent] = (array, content.sums), (slots, content)
        self._reader.remember(slots for slots, arrays in packed.items() if _carries(slots, arrays))
        for slots, arrays in packed.items():
            extent, content = slots.extent, _packed(slots, arrays)
            assert content.memory is not None
            sources[extent] = content.memory, [""]  # its checksums are those of its tensors
            newest[extent] = slots, content
        return sources, newest

    def _fill(self, request: Request, sources: _Sources) -> None:
        for transfer in request.run.transfers:
            op = Op(request, transfer)
            self.queue.stage(op)
            assert op.memory is not None
            if transfer.dense and len(transfer.pieces) > 1:
                _join(transfer.pieces, op.memory, sources)
            else:
                _place(transfer, op.memory, sources)
            self.queue.add(op)


def _carries(slots: Slots, arrays: Sequence[tuple[Tensor, np.ndarray]]) -> bool:
    """Whether tensors of an extent that are not written move with those that are."""
    new = {tensor.number for tensor, _ in arrays}
    return any(tensor.written and tensor.number not in new for tensor in slots.tensors)


def _packed(slots: Slots, arrays: Sequence[tuple[Tensor, np.ndarray]]) -> Content:
    """What comes next in an extent of several tensors: new ones among those of before."""
    before, size = slots.newest, slots.extent.size
    memory = aligned(size)
    sums = [""] * len(slots.tensors) if before is None else [*before.sums]
    names = [tensor.place.name for tensor, _ in arrays]
    if before is not None and before.memory is not None:  # else nothing of before is kept
        memory[:] = before.memory
        if before.error is not None:
            names += before.names
    for tensor, array in arrays:
        sums[tensor.number] = copy(array, memory[tensor.part])
    return Content(slots.free, sums, memory=memory, names=tuple(names))


def _meant(slots: Slots, content: Content) -> Sequence[str]:
    """The names of the tensors of an extent that were to be written."""
    return content.names or [tensor.place.name for tensor in slots.tensors]


def _join(pieces: Sequence[Piece], memory: np.ndarray, sources: _Sources) -> None:
    """Copies whole extents that leave no space between them."""
    members = [sources[piece.extent] for piece in pieces]
    found = gather([array for array, _ in members], memory)
    for (_, sums), checksum in zip(members, found, strict=True):
        sums[0] = checksum


def _place(transfer: Transfer, memory: np.ndarray, sources: _Sources) -> None:
    """Copies blocks of extents to where they belong in a transfer, zeros behind them."""
    for extent, number, start, stop, place, _ in transfer.pieces:
        at = place - transfer.position
        end = at + stop - start
        source, sums = sources[extent]
        sums[number] = copy(source[start:stop], memory[at:end])
        if end % _extents.ALIGN:
            memory[end : _extents.padded(end)] = 0


class Reader:
    """Queues reads, checks what came, and makes leases of it."""

    queue: Queue

    def __init__(self, layouts: Layouts):
        self._layouts = layouts
        self._gate = threading.Lock()

    def paused(self) -> threading.Lock:
        """Lets no read begin: a context."""
        return self._gate

    def read(self, tensors: Sequence[Tensor], deadline: float) -> Future[Leases]:
        """Reads what was written last."""
        with self._gate:
            _check_there(tensors)
            return self._read(tensors, deadline)

    def remember(self, several: Iterable[Slots]) -> None:
        """Reads what extents of several tensors hold, as it is, where that is not known.

        A tensor that the disk has changed is found when it is read itself. The memory is not of the
        staging pool, which leases of the caller may fill.
        """
        unknown = {s: c for s in several if (c := s.newest) is not None and c.memory is None}
        if not unknown:
            return
        at: _Asked = {
            slots.extent.offsets[content.slot]: (content, [t for t in slots.tensors if t.written])
            for slots, content in unknown.items()
        }
        queue, batch, ended = self.queue, ReadBatch([]), []
        found = self._layouts.runs([(slots.extent, c.slot) for slots, c in unknown.items()])
        try:
            with self._gate, queue.lock:
                batch.requests = [
                    _reading(batch, run, [at[begin] for begin in run.begins], -math.inf,
                             ended.append)
                    for run in found
                ]  # fmt: skip
                queue.enter(batch.requests)
                queue.read(batch, beside=True)
            queue.until(lambda: len(ended) == len(found))
        except BaseException as error:
            queue.cut(batch.requests, error)
            raise
        for request in ended:
            if (error := request.error) is not None:
                raise StoreError(
                    f"{_named(request, error, request.names)}; they share blocks with what is to "
                    "be written: write all of them (`tensors` of this error)",
                    request.names,
                ) from error
        for run, buffer in zip(found, batch.buffers, strict=True):
            for extent, begin in zip(run.members, run.begins, strict=True):
                start = begin - run.offset
                at[begin][0].memory = buffer.memory[start : start + extent.size]

    def _read(self, tensors: Sequence[Tensor], deadline: float) -> Future[Leases]:
        queue, batch = self.queue, ReadBatch([])
        try:
            with queue.lock:
                asked, aside, places = self._asked(tensors)
                found = self._layouts.runs(places)
                total = sum(run.size for run in found)
                if total > queue.reading.size:
                    raise CapacityError(
                        f"read: {total} bytes at once, the staging pool for reads has "
                        f"{queue.reading.size}; read fewer at a time, or open the store with a "
                        "larger staging"
                    )
                countdown = self._requests(batch, asked, aside, found, deadline)
                queue.reads.tensors += len(tensors)
                if batch.requests:
                    queue.enter(batch.requests)
                    queue.read(batch)
        except BaseException as error:
            queue.cut(batch.requests, error)
            raise
        return countdown.future

    def _asked(
        self, tensors: Sequence[Tensor]
    ) -> tuple[_Asked, list[tuple[Tensor, Content]], list[tuple[Extent, int]]]:
        """What is to be read, what needs no disk, and the slots to use; the lock is held."""
        asked: _Asked = {}
        packed: dict[int, list[Tensor]] = {}
        aside, places, absent = [], [], []
        for tensor in tensors:
            slots = tensor.slots
            extent, content = slots.extent, slots.newest
            if content is None or (extent.packed and not content.sums[tensor.number]):
                absent.append(tensor.place.name)
            elif not extent.size or (content.error is not None and content.memory is not None):
                aside.append((tensor, content))  # the disk has not got the second ones
            elif (begin := extent.offsets[content.slot]) in packed:
                packed[begin].append(tensor)
            else:
                of: Sequence[Tensor] = slots.tensors
                if extent.packed:
                    of = packed[begin] = [tensor]
                asked[begin] = content, of
                places.append((extent, content.slot))
        if absent:
            raise StoreError(
                f"read: these tensors were reserved but never written, or not committed "
                f"before the store was closed: {_extents.listed(absent)}",
                absent,
            )
        return asked, aside, places

    def _requests(
        self,
        batch: ReadBatch,
        asked: _Asked,
        aside: Sequence[tuple[Tensor, Content]],
        found: Sequence[Run],
        deadline: float,
    ) -> _Countdown:
        queue = self.queue
        kept: set[Tensor] = set()  # whose write failed meanwhile, and that are in memory

        def check(op: Op) -> None:
            assert op.memory is not None
            for piece in op.pieces:
                content, of = asked[piece.begin]
                at = piece.position - op.position
                if not piece.extent.packed:
                    part = op.memory[at : at + piece.stop - piece.start]
                    _verify(of[0], content, part, piece.number, piece.start)
                    continue
                block = op.memory[at : at + piece.extent.size]
                if content.error is not None and content.memory is not None:
                    kept.update(of)
                    block = content.memory
                for tensor in of:
                    _verify(tensor, content, block[tensor.part], tensor.number)

        def result() -> Leases:
            leases = {}
            for tensor, content in aside:
                if content.memory is not None:
                    _verify(tensor, content, content.memory[tensor.part], tensor.number)
            for tensor, content in aside:
                leases[tensor.place.name] = _kept(tensor, content, queue)
            for run, buffer in zip(found, batch.buffers, strict=True):
                # An array of its own: leases that are dropped can tell whether it is still viewed.
                memory = np.frombuffer(buffer.memory.data, np.uint8)
                memory.flags.writeable = False
                for begin in run.begins:
                    content, of = asked[begin]
                    for tensor in of:
                        place = tensor.place
                        if tensor in kept:
                            queue.release(buffer, place.name)
                            leases[place.name] = _kept(tensor, content, queue)
                            continue
                        array = view(memory, place.offsets[content.slot] - run.offset, place)
                        leases[place.name] = Lease(place, array, buffer, queue)
            return Leases(leases)

        def drop() -> None:
            for buffer in batch.buffers:
                for name in [*buffer.held]:
                    queue.release(buffer, name)

        def resolve(request: Request) -> None:
            error = request.error
            countdown.down(error and _named(request, error, request.names))

        countdown = _Countdown(len(found), result, drop)
        batch.requests = [
            _reading(batch, run, [asked[begin] for begin in run.begins], deadline, resolve, check)
            for run in found
        ]
        return countdown


def _check_there(tensors: Sequence[Tensor]) -> None:
    """Checks that no tensor was given up while a call waited."""
    for tensor in tensors:
        if tensor.forgotten:
            raise StoreError(f"{tensor.place.name}: its place was given up meanwhile, by `forget`")


def _reading(
    batch: ReadBatch,
    run: Run,
    there: Sequence[tuple[Content, Sequence[Tensor]]],
    deadline: float,
    resolve: Callable[[Request], None],
    check: Callable[[Op], None] = nothing,
) -> Request:
    """A request to read a run, of whose extents these tensors are meant."""
    request = Request(
        run,
        [of[0].slots.users[content.slot] for content, of in there],
        names=[tensor.place.name for _, of in there for tensor in of],
        write=False,
        deadline=deadline,
        check=check,
        resolve=resolve,
    )
    request.ops = [Op(request, transfer) for transfer in run.transfers]
    request.batch = batch
    return request


def _kept(tensor: Tensor, content: Content, queue: Queue) -> Lease:
    """A tensor that needs no disk: an empty one, or one whose last write failed."""
    memory = (np.empty(0, np.uint8) if content.memory is None else content.memory).view()
    memory.flags.writeable = False
    array = view(memory, tensor.part.start, tensor.place)
    return Lease(tensor.place, array, None, queue)


def _verify(
    tensor: Tensor, content: Content, part: np.ndarray, number: int, start: int = 0
) -> None:
    """Compares what was read of a tensor, from a byte of it on, with its checksum."""
    name = tensor.place.name
    if content.error is not None and content.memory is None:
        said = f"{name}: its last write failed; write it again"
        raise StoreError(said, [name]) from content.error
    found = digest(part)
    if found != content.sums[number]:
        raise CorruptError(
            f"{name}: bytes {start} to {start + len(part)} are not what was written (checksum "
            f"{found}, expected {content.sums[number]}, at byte "
            f"{tensor.place.offsets[content.slot] + start} of the data file); the disk or another "
            "program changed them; restore the folder from a copy",
            [name],
        )


def _named(request: Request, error: BaseException, names: Sequence[str]) -> BaseException:
    """The error of a request, with the tensors named."""
    if any(str(error).startswith(f"{name}: ") for name in names):
        return error
    what = "writing" if request.write else "reading"
    kind = CorruptError if isinstance(error, CorruptError) else StoreError
    said = f"{what} {_extents.listed(names)} failed: {type(error).__name__}: {error}"
    named = kind(said, names)
    named.__cause__ = error
    return named
