"""Requests in the queue of a store: reads and writes of runs of extents, and their futures."""

import threading
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from tensorjax.offload._errors import CorruptError, StoreError, listed
from tensorjax.offload._store.disk.extents import Run, Transfer
from tensorjax.offload._store.transfers.staging import Pool


class Slot:
    """Requests pending on one of a tensor's two copies on disk: a writer at most, and readers."""

    __slots__ = ("readers", "writer")

    def __init__(self) -> None:
        self.writer: Request | None = None
        self.readers: list[Request] = []


class Op:
    """Transfer of adjacent bytes between the data file and memory, part of a disk `Request`.

    Attributes:
        write: Whether to the file.
        size: In bytes.
        memory: What to move; of reads set when they get their staging memory.
        pieces: The blocks of extents in it.
        position: First byte within the run.
        place: First byte within the pool, or -1 if the memory is not of a pool.
        pool: That the memory is of, if any. That of reads may be another one than before, larger.
        started: Whether the backend has it.
        ended: Whether it is done, well or not.
    """

    __slots__ = ("begun", "ended", "memory", "offset", "pieces", "place", "pool", "position",
                 "queued", "request", "size", "started", "write")  # fmt: skip

    def __init__(self, request: "Request", transfer: Transfer):
        self.request, self.write = request, request.write
        self.position, self.size, self.pieces, _ = transfer
        self.offset, self.place = request.run.offset + self.position, -1
        self.memory: np.ndarray | None = None
        self.pool: Pool | None = None
        self.started, self.ended, self.queued, self.begun = False, False, 0.0, 0.0


def nothing(_: object) -> None:
    """Does nothing: the default callback of a disk request."""


class Request:
    """Request to read or write adjacent tensors on disk, with the requests that it waits for.

    The queue's lock guards it.

    Attributes:
        write: Whether to the file.
        names: Of the tensors in them that are read.
        deadline: The earliest of its own and its followers'.
        ops: Its transfers; of writes they come one by one.
        leaders: Those it had to wait for.
        followers: Those that wait for it.
        buffer: Staging memory of a read, once it has some.
        memory: Whether it has memory; of writes always, as theirs comes before their transfers.
        waits: How many requests it waits for, and its memory.
        check: Called with each transfer that went well, outside the lock, in the thread that
            moved it: raises where what was read is not what was written.
        by: The thread that completed it, and has to finish it.
        resolve: Called once, outside the lock, when all is done or has failed.
    """

    __slots__ = ("batch", "buffer", "by", "check", "complete", "deadline", "error", "followers",
                 "held", "leaders", "left", "memory", "names", "ops", "resolve", "run", "sealed",
                 "slots", "waits", "write")  # fmt: skip

    def __init__(
        self,
        run: Run,
        slots: Sequence[Slot],
        *,
        names: Sequence[str] = (),
        write: bool,
        deadline: float,
        resolve: Callable[["Request"], None],
        check: Callable[[Op], None] = nothing,
    ):
        self.run, self.names, self.slots = run, names, slots
        self.write, self.deadline = write, deadline
        self.check, self.resolve = check, resolve
        self.ops: list[Op] = []
        self.held: list[Op] = []
        self.followers: list[Request] = []
        self.leaders: list[Request] = []
        self.batch: ReadBatch | None = None
        self.buffer: Buffer | None = None
        self.waits = self.left = 0
        self.sealed = self.complete = False
        self.memory = True
        self.by = 0
        self.error: BaseException | None = None

    def enter(self) -> list["Request"]:
        """Registers a request for its disk blocks; returns earlier requests that it must wait for.

        Requests on one slot wait for each other unless both read.
        """
        before: dict[int, Request] = {}
        for slot in self.slots:
            if slot.writer is not None:
                before[id(slot.writer)] = slot.writer
            if self.write:
                before.update((id(r), r) for r in slot.readers)
                slot.writer, slot.readers = self, []
            else:
                slot.readers.append(self)
        return [*before.values()]

    def count_waits(self) -> None:
        """Counts what a disk request still waits for: earlier requests, and staging memory."""
        self.waits = len(self.leaders) + (not self.memory)

    def leave(self) -> None:
        """Removes an ended read or write request from the extents that it held."""
        for slot in self.slots:
            if slot.writer is self:
                slot.writer = None
            elif self in slot.readers:
                slot.readers.remove(self)

    def attach(self, pool: Pool | None, start: int, memory: np.ndarray) -> "Buffer":
        """Assigns staging memory to the transfers of a read request; returns the buffer of it."""
        for op in self.ops:
            op.memory = memory[op.position : op.position + op.size]
            op.pool, op.place = pool, op.position + start if pool is not None else -1
        self.buffer = Buffer(pool, start, self.run.size, memory, {*self.names})
        return self.buffer

    def cut(self, queued: Container[int], error: BaseException) -> None:
        """Ends an interrupted disk request, except for transfers that are queued or begun.

        Args:
            queued: ``id`` of the transfers in the queue.
            error: That interrupted the caller.
        """
        self.error = self.error or error
        if self.batch is not None:  # which needs no memory, and waits for no one
            self.held, self.leaders, self.memory, self.waits = [], [], True, 0
            self.batch.admitted = True
        held = {id(op) for op in self.held}
        for op in self.ops:
            op.ended = op.ended or not (op.started or id(op) in queued or id(op) in held)
        self.left = sum(not op.ended for op in self.ops)
        self.sealed = True

    def forget(self) -> None:
        """Drops a request's transfers and callbacks, to break cycles and free arrays."""
        self.ops, self.resolve, self.check, self.batch = [], nothing, nothing, None


class Buffer:
    """Staging memory of a read request for a run of extents, shared by its tensors' leases.

    Attributes:
        pool: Whose it is; None if of none.
        start: First byte within the pool.
        size: In bytes.
        held: Names of the tensors whose leases have not been released.
    """

    __slots__ = ("held", "memory", "pool", "size", "start")

    def __init__(
        self, pool: Pool | None, start: int, size: int, memory: np.ndarray, held: set[str]
    ):
        self.pool, self.start, self.size = pool, start, size
        self.memory, self.held = memory, held


class ReadBatch:
    """Batch of read requests that get their staging memory together or not at all."""

    __slots__ = ("admitted", "requests")

    def __init__(self, requests: Sequence[Request]):
        self.requests, self.admitted = requests, False

    @property
    def buffers(self) -> list[Buffer]:
        """Staging buffers of those read requests in a batch that have been given one."""
        return [request.buffer for request in self.requests if request.buffer is not None]


class Countdown:
    """Joint future of several store requests: done once all have ended, with the first error."""

    def __init__(self, count: int, result: Callable[[], Any], drop: Callable[[], Any]):
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()
        self._count, self._result, self._drop = count, result, drop
        self._lock, self._error = threading.Lock(), None
        if not count:
            self.future.set_result(result())

    def down(self, error: BaseException | None) -> None:
        """Records the end of one of several requests; at the last, completes their joint future."""
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


def item_of(several: Future[Any], name: str) -> Future[Any]:
    """Returns the future of one tensor from a future of requests for several, by name."""
    single: Future[Any] = Future()
    single.set_running_or_notify_cancel()

    def pass_on(done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            single.set_result(done.result()[name])
        else:
            single.set_exception(error)

    several.add_done_callback(pass_on)
    return single


def named(request: Request, error: BaseException, names: Sequence[str]) -> BaseException:
    """Converts the error of a failed disk request to a StoreError that names its tensors."""
    if any(str(error).startswith(f"{name}: ") for name in names):
        return error
    what = "writing" if request.write else "reading"
    kind = CorruptError if isinstance(error, CorruptError) else StoreError
    said = f"{what} {listed(names)} failed: {type(error).__name__}: {error}"
    named = kind(said, names)
    named.__cause__ = error
    return named
