"""Writer of the store: copies arrays to staging memory, makes checksums, and queues transfers."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from tensorjax.offload._store.disk import extents as _extents
from tensorjax.offload._store.disk.checksums import copy, gather
from tensorjax.offload._store.disk.extents import Extent, Layouts, Piece, Place, Transfer
from tensorjax.offload._store.reader import Reader
from tensorjax.offload._store.tensor_states import Content, Slots, Tensor, check_there
from tensorjax.offload._store.transfers.queue import Queue
from tensorjax.offload._store.transfers.requests import Countdown, Op, Request, named
from tensorjax.offload._store.transfers.staging import aligned
from tensorjax.offload._threads import InterruptibleCondition

# By extent: the bytes to write, and the list that gets the checksums of its blocks.
_Sources = dict[Extent, tuple[np.ndarray, list[str]]]


def flat(place: Place, array: Any) -> np.ndarray:
    """Returns the bytes of an array that a `Writer` copies; ValueError if they do not fit."""
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


class Writer:
    """Writer of a tensor store: copies arrays to staging memory and queues their transfers."""

    queue: Queue

    def __init__(self, block: int, layouts: Layouts, reader: Reader):
        self._block, self._layouts, self._reader = block, layouts, reader
        self._lock = threading.Lock()
        self._turn = InterruptibleCondition(self._lock)
        self._copying: dict[Slots, object] = {}  # slots that a write copies to, and which write
        self._paused: set[object] = set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context manager that blocks a store's writer and waits for what it is copying."""
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
        """Starts, by the store's writer, writing tensors to uncommitted slots; returns a future."""
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
            # One write of an extent at a time fills staging memory: the transfers of a later write,
            # which wait for those of an earlier one, could otherwise take all of it (a deadlock).
            self._turn.wait(lambda: self._may_copy(mine))
            return self._write(todo, deadline)
        finally:
            self._leave(mine)

    def _may_copy(self, mine: dict[Slots, object]) -> bool:
        """Registers a write of the writer; False if paused or blocks in use; the lock is held."""
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
        check_there([tensor for tensor, _ in todo])
        queue, (sources, newest) = self.queue, self._prepared(todo)
        found = self._layouts.runs([(extent, c.slot) for extent, (_, c) in newest.items()])
        countdown = Countdown(len(found), lambda: None, lambda: None)

        def resolve(request: Request) -> None:  # must not hold the arrays until then
            error = request.error
            if error is not None:
                of = [newest[extent] for extent in request.run.members]
                meant = (c.names or [t.place.name for t in slots.tensors] for slots, c in of)
                error = named(request, error, [name for names in meant for name in names])
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
        """Returns the bytes that the writer copies to every extent, and its copy's state then."""
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
    """Whether the writer must also copy other tensors that share the disk blocks of an extent."""
    new = {tensor.number for tensor, _ in arrays}
    return any(tensor.written and tensor.number not in new for tensor in slots.tensors)


def _packed(slots: Slots, arrays: Sequence[tuple[Tensor, np.ndarray]]) -> Content:
    """Builds, for the writer, disk blocks that small tensors share: new ones beside old ones."""
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


def _join(pieces: Sequence[Piece], memory: np.ndarray, sources: _Sources) -> None:
    """Copies, for the writer, whole tensors, unpadded, to staging memory; notes checksums."""
    members = [sources[piece.extent] for piece in pieces]
    found = gather([array for array, _ in members], memory)
    for (_, sums), checksum in zip(members, found, strict=True):
        sums[0] = checksum


def _place(transfer: Transfer, memory: np.ndarray, sources: _Sources) -> None:
    """Copies, for the writer, tensors padded to blocks to staging memory; notes checksums."""
    for extent, number, start, stop, place, _ in transfer.pieces:
        at = place - transfer.position
        end = at + stop - start
        source, sums = sources[extent]
        sums[number] = copy(source[start:stop], memory[at:end])
        if end % _extents.ALIGN:
            memory[end : _extents.padded(end)] = 0
