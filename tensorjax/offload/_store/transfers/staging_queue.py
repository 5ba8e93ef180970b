"""Hand-out of staging memory to the requests of a queue, the earliest deadline first.

A write waits for it in the caller's thread, before its transfers are queued; a read is queued
without it and gets it here. So a queue of any length needs only a small pool.
"""

import contextlib
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue

from tensorjax.offload._store.transfers.requests import Buffer, Op, ReadBatch, Request
from tensorjax.offload._store.transfers.staging import Pool
from tensorjax.offload._threads import InterruptibleCondition

_LOG = logging.getLogger("tensorjax.offload")
# Seconds without a transfer until a warning; and until the watching thread looks again. Dropped
# leases wake it at once, so that _TICK only bounds how late it sees that no read waits any more.
_PATIENCE, _TICK = 60.0, 0.5


class StagingQueue:
    """Queue for staging memory: hands it to disk requests; base class of the transfer queue.

    The lock is held in all methods but the thread's.

    Attributes:
        lock: Guards the queue, the requests, the slots and both pools.
        orphans: Gets what leases held that were dropped. The collector may do that anywhere, also
            where this thread holds a lock: `put` of a SimpleQueue may be called there.
    """

    def __init__(self, reading: Pool, writing: Pool):
        self.lock = threading.Lock()
        self.reading, self.writing = reading, writing
        self.overflow = self.staged = 0
        self.orphans: SimpleQueue[tuple[Buffer, str] | None] = SimpleQueue()
        self._pending: dict[Request, None] = {}  # writes, in their order
        self._space = InterruptibleCondition(self.lock)
        self._wanting: list[Op] = []  # staging memory for writes
        self._buffers: set[Buffer] = set()  # that have memory of the pool for reads
        self._waiting: list[tuple[float, int, ReadBatch]] = []
        self._numbers = itertools.count()
        self._dropped: deque[tuple[Buffer, str] | None] = deque()  # orphans to release
        self._watcher: threading.Thread | None = None
        self._closed = self._torn = False

    def _is_moving(self) -> bool:
        """Whether the staging queue has transfers under way, or ready to be."""
        raise TypeError("an abstract queue has no transfers")

    def _offer(self, op: Op) -> None:
        """Queues a disk transfer for which the staging queue has allocated memory."""
        raise TypeError("an abstract queue has no transfers")

    def _unblock(self, request: Request, leader: Request | None = None) -> None:
        """Ends a request's wait in the staging queue; `Queue` defines it."""
        raise TypeError("an abstract queue has no transfers")

    def _serve(self) -> None:
        """Hands out staging memory to writes in the staging queue, the earliest deadline first."""
        served = False
        while self._wanting:
            op = min(self._wanting, key=lambda op: op.request.deadline)
            if op.place < 0:  # else a call that was cut off has got so far
                start = self.writing.take(op.size)
                if start is None:
                    break
                op.place = start
            op.pool = self.writing
            op.memory = self.writing.memory[op.place : op.place + op.size]
            self._wanting.remove(op)
            served = True
        self._count()
        if served:
            self._space.ring()

    def _count(self) -> None:
        self.staged = max(self.staged, self.reading.used + self.writing.used)

    def _count_again(self) -> None:
        """Rebuilds the free ranges of the staging queue's pools after an interruption."""
        writes = (op for request in self._pending for op in request.ops)
        self.writing.reset([(op.place, op.size) for op in writes if op.place >= 0 and not op.ended])
        here = [buffer for buffer in self._buffers if buffer.pool is self.reading]
        self.reading.reset([(buffer.start, buffer.size) for buffer in here])

    def _admit(self) -> None:
        """Hands out staging memory to reads in the staging queue, the earliest deadline first.

        Where a call before was cut off, it goes on.
        """
        if self._torn:
            self._count_again()
        self._torn = True
        self._take_back()
        while self._waiting and self._admitted(self._waiting[0][-1]):
            heapq.heappop(self._waiting)
        self._torn = False

    def _admitted(self, batch: ReadBatch) -> bool:
        if batch.admitted:
            return True
        pool = self.reading
        todo = [r for r in batch.requests if not (self._has_memory(r) or r.complete)]
        sizes = [request.run.size for request in todo]
        starts = pool.take_all(sizes)
        if starts is None:
            return False
        for request, start, size in zip(todo, starts, sizes, strict=True):
            self._buffers.add(request.attach(pool, start, pool.memory[start : start + size]))
        self._begin(batch)
        self._count()
        return True

    def _has_memory(self, read: Request) -> bool:
        buffer = read.buffer
        return buffer is not None and (buffer.pool is None or buffer in self._buffers)

    def _take_back(self) -> None:
        """Returns to the staging queue the memory of leases that were dropped, not released."""
        if not self.orphans.empty():
            with contextlib.suppress(Empty):  # in one call of C: none is lost between two queues
                self._dropped.extend(iter(self.orphans.get_nowait, self))
        while self._dropped:
            if (orphan := self._dropped[0]) is not None:
                self._release(*orphan)
            self._dropped.popleft()

    def _keep_watch(self) -> None:
        """Starts the staging queue's thread that reclaims dropped leases, if reads wait."""
        watcher = self._watcher
        if self._waiting and (watcher is None or watcher.ident is None):
            self._watcher = threading.Thread(
                target=self._watch, name="tensorjax-store-watch", daemon=True
            )
            self._watcher.start()

    def _watch(self) -> None:
        """Reclaims dropped leases while reads wait in the staging queue; warns after 60 s."""
        since, told = time.monotonic(), False
        while True:
            orphan = None
            with contextlib.suppress(Empty):
                orphan = self.orphans.get(timeout=_TICK)
            with self.lock:
                self._dropped.append(orphan)
                self._take_back()
                if not self._waiting or self._closed:
                    self._watcher = None
                    return
                self._admit()
                if self._is_moving():
                    since = time.monotonic()
                held, size = self.reading.used, self.reading.size
            if not told and time.monotonic() - since > _PATIENCE:
                told = True
                _LOG.warning(
                    "reads have waited %g s for staging memory: %d of %d bytes are held by leases; "
                    "release leases, or open the store with a larger staging",
                    _PATIENCE, held, size,
                )  # fmt: skip

    def _overflow(self, batch: ReadBatch) -> None:
        """Allocates memory beside the staging queue's pool for reads that deadlock with a write."""
        if not batch.admitted:
            size = sum(request.run.size for request in batch.requests)
            before, self.overflow = self.overflow, self.overflow + size
            if before <= self.reading.size < self.overflow:
                _LOG.warning(
                    "%d bytes were read beside the staging memory of %d for reads, as writes wait "
                    "for them: release leases before you write, or open the store with a larger "
                    "staging", self.overflow, self.reading.size,
                )  # fmt: skip
            self._attach_beside(batch)

    def _attach_beside(self, batch: ReadBatch) -> None:
        for request in batch.requests:
            if not self._has_memory(request):
                request.attach(None, 0, Pool(request.run.size).memory)
        self._begin(batch)

    def _begin(self, batch: ReadBatch) -> None:
        """Starts reads to which the staging queue gave memory; may be called again."""
        for request in batch.requests:
            for op in request.ops:
                self._offer(op)  # what is offered twice is started once
            self._unblock(request)
        batch.admitted = True

    def _release(self, buffer: Buffer, name: str) -> None:
        buffer.held.discard(name)
        # Where it is not among them, a call was cut off before, and its memory is free already.
        if not buffer.held and buffer.pool is not None and buffer in self._buffers:
            self._buffers.discard(buffer)
            buffer.pool.give(buffer.start, buffer.size)
