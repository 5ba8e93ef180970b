"""Reader of the store: queues reads, verifies checksums, and makes leases of what was read."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from tensorjax.offload._errors import CapacityError, CorruptError, StoreError, listed
from tensorjax.offload._store.disk.checksums import digest
from tensorjax.offload._store.disk.extents import Extent, Layouts, Run
from tensorjax.offload._store.lease import Lease, Leases, view
from tensorjax.offload._store.tensor_states import Content, Slots, Tensor, check_there
from tensorjax.offload._store.transfers.queue import Queue
from tensorjax.offload._store.transfers.requests import (
    Buffer,
    Countdown,
    Op,
    ReadBatch,
    Request,
    named,
    nothing,
)

# By the first byte of a slot: its content, and the tensors in it that are read.
_Asked = dict[int, tuple[Content, Sequence[Tensor]]]


class Reader:
    """Reader of a store: queues reads of tensors, verifies checksums, and returns leases."""

    queue: Queue

    def __init__(self, layouts: Layouts):
        self._layouts = layouts

    def read(self, tensors: Sequence[Tensor], deadline: float) -> Future[Leases]:
        """Starts, by the store's reader, reading tensors' newest state; returns a future of leases.

        It waits for nothing but `Queue.lock`.

        A caller may hold a lock that the callback of a future takes.
        """
        queue, batch, countdown = self.queue, ReadBatch([]), None
        try:
            with queue.lock:
                check_there(tensors)
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
            if countdown is not None:  # it may have been read before, and nobody gets its leases
                countdown.future.add_done_callback(_released)
            queue.cut(batch.requests, error)
            raise
        return countdown.future

    def remember(self, several: Iterable[Slots]) -> None:
        """Loads, by the reader, blocks that small tensors share, before one of them is rewritten.

        Packed extents whose bytes are in memory already are left out. Checksums are not verified.

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
            with queue.lock:
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
                    f"{named(request, error, request.names)}; they share blocks with what is to "
                    "be written: write all of them (`tensors` of this error)",
                    request.names,
                ) from error
        for run, buffer in zip(found, batch.buffers, strict=True):
            for extent, begin in zip(run.members, run.begins, strict=True):
                start = begin - run.offset
                at[begin][0].memory = buffer.memory[start : start + extent.size]

    def _asked(
        self, tensors: Sequence[Tensor]
    ) -> tuple[_Asked, list[tuple[Tensor, Content]], list[tuple[Extent, int]]]:
        """Splits tensors asked of a store's reader into those to read and those in memory already.

        Also returns the slots to read. The queue's lock is held.
        """
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
                f"before the store was closed: {listed(absent)}",
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
    ) -> Countdown:
        """Fills a batch with the reader's requests for runs of extents; returns a joint future."""
        pending = _Pending(self.queue, batch, asked, aside, found)

        def resolve(request: Request) -> None:
            error = request.error
            countdown.down(error and named(request, error, request.names))

        countdown = Countdown(len(found), pending.leases, pending.drop)
        there = ([asked[begin] for begin in run.begins] for run in found)
        batch.requests = [
            _reading(batch, run, of, deadline, resolve, pending.check)
            for run, of in zip(found, there, strict=True)
        ]
        return countdown


@dataclass(eq=False)
class _Pending:
    """Read in progress by the store's reader: verifies what arrives, and makes leases at the end.

    Attributes:
        aside: Tensors in memory already, with their contents.
        found: Runs of extents that are read.
        kept: Tensors that are in memory since their write failed meanwhile.
    """

    queue: Queue
    batch: ReadBatch
    asked: _Asked
    aside: Sequence[tuple[Tensor, Content]]
    found: Sequence[Run]
    kept: set[Tensor] = field(default_factory=set)

    def check(self, op: Op) -> None:
        """Reader's check of all tensors that one transfer read from disk, by their checksums."""
        assert op.memory is not None
        for piece in op.pieces:
            content, of = self.asked[piece.begin]
            at = piece.position - op.position
            if not piece.extent.packed:
                part = op.memory[at : at + piece.stop - piece.start]
                _verify(of[0], content, part, piece.number, piece.start)
                continue
            block = op.memory[at : at + piece.extent.size]
            if content.error is not None and content.memory is not None:
                self.kept.update(of)
                block = content.memory
            for tensor in of:
                _verify(tensor, content, block[tensor.part], tensor.number)

    def leases(self) -> Leases:
        """Makes the leases that a store's reader returns, once every transfer has ended."""
        leases = {}
        for tensor, content in self.aside:
            if content.memory is not None:
                _verify(tensor, content, content.memory[tensor.part], tensor.number)
        for tensor, content in self.aside:
            leases[tensor.place.name] = _kept(tensor, content, self.queue)
        for run, buffer in zip(self.found, self.batch.buffers, strict=True):
            leases.update(self._of_run(run, buffer))
        return Leases(leases)

    def _of_run(self, run: Run, buffer: Buffer) -> Iterator[tuple[str, Lease]]:
        # An array of its own: leases that are dropped can tell whether it is still viewed.
        memory = np.frombuffer(buffer.memory.data, np.uint8)
        memory.flags.writeable = False
        for content, of in (self.asked[begin] for begin in run.begins):
            for tensor in of:
                place = tensor.place
                if tensor in self.kept:
                    self.queue.release(buffer, place.name)
                    yield place.name, _kept(tensor, content, self.queue)
                    continue
                array = view(memory, place.offsets[content.slot] - run.offset, place)
                yield place.name, Lease(place, array, buffer, self.queue)

    def drop(self) -> None:
        """Frees the staging memory of a read that failed in the store's reader."""
        for buffer in self.batch.buffers:
            for name in [*buffer.held]:
                self.queue.release(buffer, name)


def _reading(
    batch: ReadBatch,
    run: Run,
    there: Sequence[tuple[Content, Sequence[Tensor]]],
    deadline: float,
    resolve: Callable[[Request], None],
    check: Callable[[Op], None] = nothing,
) -> Request:
    """Creates the reader's request for adjacent tensors, from disk into staging memory."""
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
    """Returns the reader's lease of a tensor not read from disk: empty, or its write failed."""
    memory = (np.empty(0, np.uint8) if content.memory is None else content.memory).view()
    memory.flags.writeable = False
    array = view(memory, tensor.part.start, tensor.place)
    return Lease(tensor.place, array, None, queue)


def _released(read: Future[Leases]) -> None:
    """Releases the leases of a read by the store's reader whose caller was interrupted."""
    if read.exception() is None:
        read.result().release()


def _verify(
    tensor: Tensor, content: Content, part: np.ndarray, number: int, start: int = 0
) -> None:
    """Reader's check of the bytes that it read against their checksum; raises CorruptError."""
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
