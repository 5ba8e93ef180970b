"""From tensors to transfers and back: staging, checksums, futures."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from tensorjax.offload._errors import CapacityError, CorruptError, StoreError
from tensorjax.offload._store import _extents
from tensorjax.offload._store._bell import Bell
from tensorjax.offload._store._checksums import copy, digest, gather
from tensorjax.offload._store._extents import Extent, Layouts, Piece, Run, Transfer
from tensorjax.offload._store._index import Content
from tensorjax.offload._store._lease import Lease, Leases, view
from tensorjax.offload._store._queue import Queue
from tensorjax.offload._store._requests import Op, ReadBatch, Request
from tensorjax.offload._store._tensors import Tensor


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
        if self._error is not None:
            self._drop()
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result())


def flat(extent: Extent, array: Any) -> np.ndarray:
    """The bytes of an array of the reserved shape and dtype."""
    if isinstance(array, jax.ShapeDtypeStruct):
        raise TypeError(f"{extent.name}: expected an array, got only its shape and dtype")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{extent.name}: expected an array without a mask; write its data and mask")
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if shape != extent.shape or dtype != extent.dtype:
        try:
            got = f"{dtype or type(array).__name__}{list(np.shape(array))}"
        except ValueError:  # of lists that are not of one length
            got = type(array).__name__
        raise ValueError(
            f"{extent.name}: expected {extent.dtype}{list(extent.shape)} as reserved, got {got}"
        )
    return np.asarray(array).ravel().view(np.uint8)


# What is written, by name: the tensor, its bytes, and what the index will say of them.
_Sources = dict[str, tuple[Tensor, np.ndarray, Content]]


class Writer:
    """Copies arrays into staging and hands the transfers to the queue."""

    queue: Queue

    def __init__(self, block: int, layouts: Layouts):
        self._block, self._layouts = block, layouts
        self._lock = threading.Lock()
        self._turn = Bell(self._lock)
        self._copying: dict[str, object] = {}  # by whom
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
        mine = dict.fromkeys((tensor.extent.name for tensor, _ in todo), me)
        try:
            return self._write_alone(todo, deadline, mine)
        finally:  # once more: a signal may have cut off the one in there
            if self._copying.get(next(iter(mine), "")) is me:
                self._leave(mine)

    def _write_alone(
        self, todo: Sequence[tuple[Tensor, np.ndarray]], deadline: float, mine: dict[str, object]
    ) -> Future[None]:
        try:
            # One write of a tensor at a time fills staging: the transfers of a later one, waiting
            # for those of an earlier one, could otherwise take all of it.
            self._turn.wait(lambda: self._may_copy(mine))
            return self._write(todo, deadline)
        finally:
            self._leave(mine)

    def _may_copy(self, mine: dict[str, object]) -> bool:
        """Whether a write may begin; if so, it has (the lock is held)."""
        if self._paused or not self._copying.keys().isdisjoint(mine):
            return False
        self._copying.update(mine)
        return True

    def _leave(self, mine: dict[str, object]) -> None:
        with self._lock:
            for name, me in reversed(mine.items()):  # the first one last: it tells
                if self._copying.get(name) is me:
                    del self._copying[name]
            self._turn.ring()

    def _write(self, todo: Sequence[tuple[Tensor, np.ndarray]], deadline: float) -> Future[None]:
        _check_there([tensor for tensor, _ in todo])
        queue, block = self.queue, self._block
        sources: _Sources = {}
        for tensor, array in todo:
            extent = tensor.extent
            content = Content(tensor.free, [""] * -(-extent.nbytes // block))
            sources[extent.name] = (tensor, array, content)
        contents = {name: content for name, (_, _, content) in sources.items()}
        found = self._layouts.runs([(t.extent, c.slot) for t, _, c in sources.values()])
        countdown = _Countdown(len(found), lambda: None, lambda: None)

        def resolve(request: Request) -> None:  # must not hold the arrays until then
            error = _named(request)
            if error is not None:
                for extent in request.run.members:
                    contents[extent.name].error = error
            countdown.down(error)

        requests: list[Request] = []
        for run in found:
            members = [sources[extent.name] for extent in run.members]
            slots = [tensor.slots[content.slot] for tensor, _, content in members]
            requests.append(Request(run, slots, write=True, deadline=deadline, resolve=resolve))
        try:
            with queue.lock:
                queue.enter(requests)
                queue.writes.tensors += len(sources)
                for tensor, _, content in sources.values():
                    tensor.newest = content
            for request in requests:
                queue.turn(request)
                self._fill(request, sources)
                queue.seal(request)
        except BaseException as error:
            queue.cut(requests, error)
            raise
        return countdown.future

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


def _join(pieces: Sequence[Piece], memory: np.ndarray, sources: _Sources) -> None:
    """Copies whole tensors that leave no space between them."""
    members = [sources[piece.extent.name] for piece in pieces]
    sums = gather([array for _, array, _ in members], memory)
    for (_, _, content), found in zip(members, sums, strict=True):
        content.sums[0] = found


def _place(transfer: Transfer, memory: np.ndarray, sources: _Sources) -> None:
    """Copies blocks of tensors to where they belong in a transfer, zeros behind them."""
    for extent, number, start, stop, place in transfer.pieces:
        at = place - transfer.position
        end = at + stop - start
        _, source, content = sources[extent.name]
        content.sums[number] = copy(source[start:stop], memory[at:end])
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

    def _read(self, tensors: Sequence[Tensor], deadline: float) -> Future[Leases]:
        queue, batch = self.queue, ReadBatch([])
        try:
            with queue.lock:
                contents = self._contents(tensors)
                places = [(t.extent, contents[t.extent.name].slot) for t in tensors]
                found = self._layouts.runs(places)
                total = sum(run.size for run in found)
                if total > queue.reading.size:
                    raise CapacityError(
                        f"read: {total} bytes at once, the staging pool for reads has "
                        f"{queue.reading.size}; read fewer at a time, or open the store with a "
                        "larger staging"
                    )
                countdown = self._requests(batch, tensors, contents, found, deadline)
                queue.reads.tensors += len(contents)
                if batch.requests:
                    queue.enter(batch.requests)
                    queue.read(batch)
        except BaseException as error:
            queue.cut(batch.requests, error)
            raise
        return countdown.future

    def _contents(self, tensors: Sequence[Tensor]) -> dict[str, Content]:
        """What was written last; the queue's lock is held."""
        contents = {t.extent.name: t.newest for t in tensors if t.newest is not None}
        absent = [t.extent.name for t in tensors if t.newest is None]
        if absent:
            raise StoreError(
                f"read: these tensors were reserved but never written, or not committed "
                f"before the store was closed: {_extents.listed(absent)}"
            )
        return contents

    def _requests(
        self,
        batch: ReadBatch,
        tensors: Sequence[Tensor],
        contents: dict[str, Content],
        found: Sequence[Run],
        deadline: float,
    ) -> _Countdown:
        queue = self.queue
        slots = {t.extent.name: t.slots[contents[t.extent.name].slot] for t in tensors}

        def check(op: Op) -> None:
            for piece in op.pieces:
                _verify(op, piece, contents[piece.extent.name])

        def result() -> Leases:
            leases = {t.extent.name: _empty(t.extent, queue) for t in tensors if not t.extent.size}
            for run, buffer in zip(found, batch.buffers, strict=True):
                # An array of its own: leases that are dropped can tell whether it is still viewed.
                memory = np.frombuffer(buffer.memory.data, np.uint8)
                for extent in run.members:
                    array = view(memory, extent.offsets[contents[extent.name].slot] - run.offset,
                                 extent)  # fmt: skip
                    leases[extent.name] = Lease(extent, array, buffer, queue)
            return Leases(leases)

        def drop() -> None:
            for buffer in batch.buffers:
                for name in [*buffer.held]:
                    queue.release(buffer, name)

        countdown = _Countdown(len(found), result, drop)
        requests = []
        for run in found:
            request = Request(
                run,
                [slots[extent.name] for extent in run.members],
                write=False,
                deadline=deadline,
                check=check,
                resolve=lambda request: countdown.down(_named(request)),
            )
            request.ops = [Op(request, transfer) for transfer in run.transfers]
            request.batch = batch
            requests.append(request)
        batch.requests = requests
        return countdown


def _check_there(tensors: Sequence[Tensor]) -> None:
    """Checks that no tensor was given up while a call waited."""
    for tensor in tensors:
        if tensor.forgotten:
            raise StoreError(f"{tensor.extent.name}: its place was given up meanwhile, by `forget`")


def _empty(extent: Extent, queue: Queue) -> Lease:
    array = np.empty(extent.shape, extent.dtype)
    array.flags.writeable = False
    return Lease(extent, array, None, queue)


def _verify(op: Op, piece: _extents.Piece, content: Content) -> None:
    name = piece.extent.name
    if content.error is not None:
        raise StoreError(f"{name}: its last write failed; write it again") from content.error
    assert op.memory is not None
    at = piece.position - op.position
    found = digest(op.memory[at : at + piece.stop - piece.start])
    if found != content.sums[piece.number]:
        raise CorruptError(
            f"{name}: bytes {piece.start} to {piece.stop} are not what was written (checksum "
            f"{found}, expected {content.sums[piece.number]}, at byte {op.offset + at} "
            "of the data file); the disk or another program changed them; restore the folder "
            "from a copy"
        )


def _named(request: Request) -> BaseException | None:
    """The error of a request, with the tensors named."""
    error = request.error
    members = [extent.name for extent in request.run.members]
    if error is None or any(str(error).startswith(f"{name}: ") for name in members):
        return error
    names = _extents.listed(members)
    what = "writing" if request.write else "reading"
    kind = CorruptError if isinstance(error, CorruptError) else StoreError
    named = kind(f"{what} {names} failed: {type(error).__name__}: {error}")
    named.__cause__ = error
    return named
