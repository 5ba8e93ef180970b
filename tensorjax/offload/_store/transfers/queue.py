"""Queue of disk transfers: earliest deadline first, conflicting requests in order of arrival.

A `Request` moves one run of extents and is cut into `Op`s of at most one block. Requests on the
same slot of an extent wait for each other unless both read. A request that others wait for takes
over the earliest of their deadlines (priority inheritance). Staging memory goes to the earliest
deadline too: a write waits for it in the caller's thread, before its transfers are queued; a read
is queued without it and gets it here. So a queue of any length needs only a small pool.
"""

import contextlib
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from queue import Empty, SimpleQueue

from tensorjax.offload._errors import StoreError
from tensorjax.offload._store.interruptible_wait import InterruptibleCondition
from tensorjax.offload._store.statistics import Counter
from tensorjax.offload._store.transfers.requests import Buffer, Op, ReadBatch, Request, nothing
from tensorjax.offload._store.transfers.staging import Pool

_LOG = logging.getLogger("tensorjax.offload")
# Seconds without a transfer until a warning; and until the watching thread looks again. Dropped
# leases wake it at once, so that _TICK only bounds how late it sees that no read waits any more.
_PATIENCE, _TICK = 60.0, 0.5


class Queue:
    """Priority queue of disk transfers, which also hands out the staging memory.

    Attributes:
        lock: Guards the queue, the requests, the slots and both pools.
        wake: Called when transfers become ready, by backends that sleep elsewhere.
        orphans: Gets what leases held that were dropped. The collector may do that anywhere, also
            where this thread holds a lock: `put` of a SimpleQueue may be called there.
    """

    def __init__(self, reading: Pool, writing: Pool):
        self.lock = threading.Lock()
        self.reading, self.writing = reading, writing
        self.reads, self.writes = Counter(), Counter()
        self.wake: Callable[[], None] | None = None
        self.depth = self.deepest = self.overflow = self.staged = 0
        self._pending: dict[Request, None] = {}  # writes, in their order
        self.blocked = 0.0
        self.orphans: SimpleQueue[tuple[Buffer, str] | None] = SimpleQueue()
        self._ready = threading.Condition(self.lock)
        self._space, self._idle = (
            InterruptibleCondition(self.lock),
            InterruptibleCondition(self.lock),
        )
        self._wanting: list[Op] = []  # staging memory for writes
        self._buffers: set[Buffer] = set()  # that have memory of the pool for reads
        self._heap: list[tuple[float, int, Op]] = []
        self._waiting: list[tuple[float, int, ReadBatch]] = []
        self._numbers = itertools.count()
        self._dropped: deque[tuple[Buffer, str] | None] = deque()  # orphans to release
        self._watcher: threading.Thread | None = None
        self._closed = self._torn = False

    # Called by the store.

    def enter(self, requests: Iterable[Request]) -> None:
        """Registers requests in the queue behind earlier ones on the same blocks; lock held."""
        if self._closed:
            raise StoreError("the store was closed")
        for request in requests:
            for other in request.enter():
                other.followers.append(request)
                request.leaders.append(other)
                request.count_waits()
                self.hasten(other, request.deadline)
                if request.write and not other.write and other.batch is not None:
                    self._overflow(other.batch)
            if request.write:
                self._pending[request] = None

    def add(self, op: Op) -> None:
        """Queues one transfer of a registered write, whose staging memory has been filled."""
        with self.lock:
            op.request.left += 1
            self._offer(op)

    def seal(self, request: Request) -> None:
        """Marks a write in the queue as complete: no further transfers will be added to it."""
        with self.lock:
            request.sealed = True
            complete = self._completed(request)
        if complete:
            self.finish(request)

    def cut(self, requests: Collection[Request], error: BaseException) -> None:
        """Ends requests in the queue whose caller was interrupted, as by Ctrl-C."""
        with self.lock:
            queued = {id(op) for *_, op in self._heap}
            self._wanting = [op for op in self._wanting if op.request not in requests]
            for request in requests:
                if not (request.complete or (request.sealed and request.write)):
                    request.cut(queued, error)
                self._completed(request)
            self._count_again()
            self._serve()
            self._admit()
            self._keep_watch()
            self._ready.notify_all()
            self._idle.ring()
            if self.wake:
                self.wake()
            # Those that the call was to finish too: its writes, and what waited for them.
            me = threading.get_ident()
            concerned = dict.fromkeys([*requests, *self._pending])
            complete = [r for r in concerned if r.complete and r.by == me]
        for request in complete:
            self.finish(request)

    def read(self, batch: ReadBatch, *, beside: bool = False) -> None:
        """Queues registered read requests with all their transfers; the caller holds the lock.

        Args:
            batch: The reads.
            beside: Whether they get memory outside the pool, at once.
        """
        for request in batch.requests:
            request.batch, request.sealed, request.left = batch, True, len(request.ops)
            request.memory = False
            request.count_waits()
        if beside:
            self._attach_beside(batch)
            return
        deadline = min(request.deadline for request in batch.requests)
        heapq.heappush(self._waiting, (deadline, next(self._numbers), batch))
        self._admit()
        self._keep_watch()

    def stage(self, op: Op) -> None:
        """Waits in the queue for the staging memory of one transfer of a registered write."""
        with self.lock:
            op.request.ops.append(op)
            self._wanting.append(op)
            self._serve()
            if op.memory is not None:
                return
        began = time.perf_counter()
        self._space.wait(lambda: op.memory is not None)
        with self.lock:
            self.blocked += time.perf_counter() - began

    def turn(self, request: Request) -> None:
        """Waits in the queue until no earlier request blocks a write, so that it may stage.

        Else writes that wait for others could hold all of it, and these wait for them.
        """
        if request.waits:  # it never waits for others again
            self.until(lambda: not request.waits)

    def release(self, buffer: Buffer, name: str) -> None:
        """Releases one tensor's hold on staging memory, to the queue; may be called twice."""
        with self.lock:
            try:
                self._release(buffer, name)
                self._admit()
            except BaseException:  # raised by a signal's handler
                self._torn = True
                self._admit()
                raise

    def hasten_writes(self, deadline: float) -> None:
        """Moves all pending writes, and the requests they wait for, to an earlier deadline."""
        with self.lock:
            for request in self._pending:
                self.hasten(request, deadline)

    def until(self, holds: Callable[[], bool]) -> None:
        """Waits for a condition that becomes true when a request in the queue ends."""
        self._idle.wait(holds)

    def drain_writes(self) -> None:
        """Waits until no write is pending in the queue of disk transfers."""
        self.until(lambda: not self._pending)

    def drain(self, *, everything: bool = False) -> None:
        """Waits until no write is pending, and no transfer is queued or in the backend.

        Args:
            everything: Also give memory to the reads that wait for some, and wait for them.
        """
        with self.lock:
            for *_, batch in self._waiting if everything else ():
                self._overflow(batch)
        self._idle.wait(lambda: not (self._pending or self.depth or self._heap))

    def enlarge(self, pool: Pool) -> None:
        """Replaces the queue's staging pool of further reads by a larger one.

        It waits for nothing but the lock.

        What has memory of the pool before keeps it: reads under way, and leases.
        """
        with self.lock:
            self.reading = pool
            # Reads that wait get it from the watching thread, which no Ctrl-C can cut off half-way.
            if self._watcher is not None:
                self.orphans.put(None)
            if self.wake:
                self.wake()

    def close(self) -> list[Request]:
        """Closes the queue of disk transfers; returns the reads that never got staging memory.

        Backend threads end.
        """
        with self.lock:
            self._closed = True
            self.orphans.put(None)  # for the thread that waits for some
            self._ready.notify_all()
            left = [r for *_, batch in self._waiting if not batch.admitted for r in batch.requests]
            self._waiting.clear()
        if self.wake:
            self.wake()
        return left

    def starved(self) -> bool:
        """Whether reads in the queue wait for memory while the backend has nothing to do."""
        with self.lock:
            waiting = any(not batch.admitted for *_, batch in self._waiting)
            return waiting and not self.depth and not self._heap

    @property
    def queued(self) -> int:
        """Number of disk transfers that wait for the backend; the lock is held."""
        return len({id(op) for *_, op in self._heap if not op.started})  # without earlier copies

    # Called by backends.

    def take(self, most: int = 1, *, wait: bool = True) -> list[Op] | None:
        """Removes up to ``most`` transfers from the queue to run them; None if closed and empty."""
        with self.lock:
            while True:
                ops: list[Op] = []
                while self._heap and len(ops) < most:
                    _, _, op = heapq.heappop(self._heap)
                    if not op.started:  # else a copy whose deadline was brought forward
                        op.started, op.begun = True, time.perf_counter()
                        ops.append(op)
                if ops:
                    self.depth += len(ops)
                    self.deepest = max(self.deepest, self.depth)
                    return ops
                if self._closed:
                    return None
                if not self.depth:  # copies of what has started may have been all there was
                    self._idle.ring()
                if not wait:
                    return []
                self._ready.wait()

    def done(self, op: Op, error: BaseException | None = None) -> None:
        """Records in the queue the end of a disk transfer, with its error if it failed."""
        request, ended = op.request, time.perf_counter()
        if error is None:
            try:
                request.check(op)
            except Exception as failure:
                error = failure
        with self.lock:
            self.depth -= 1
            counter = self.writes if op.write else self.reads
            counter.add(op.size, ended - op.begun, op.begun - op.queued, failed=error is not None)
            request.error = request.error or error
            request.left -= 1
            op.ended = True
            if op.write and op.place >= 0:
                self.writing.give(op.place, op.size)
                self._serve()
            op.memory = None
            complete = self._completed(request)
            if not self._heap and not self.depth:
                self._idle.ring()
        if complete:
            self.finish(request)

    def finish(self, request: Request) -> None:
        """Completes a request in the queue and unblocks those that waited; lock not held.

        Where a signal cuts it off, it may be called again: nothing is left half-done for ever.
        """
        todo, cut = [request], None
        while todo:
            request = todo.pop()
            resolve, request.resolve = request.resolve, nothing  # once, also if this is cut off
            try:
                resolve(request)
            except BaseException as error:
                # SystemExit, of a future's callback, must not end a backend; no Ctrl-C may be lost.
                if threading.current_thread() is threading.main_thread():
                    cut = error
                else:
                    _LOG.exception("a callback of a future raised")
            with self.lock:
                request.leave()
                request.forget()
                request.leaders = []
                for follower in request.followers:
                    self._unblock(follower, request)
                    if self._completed(follower):  # its transfers were never made
                        todo.append(follower)
                request.followers = []
                self._pending.pop(request, None)
                self._idle.ring()
        if cut is not None:
            raise cut

    # The lock is held in all that follows.

    def _serve(self) -> None:
        """Hands out staging memory to writes in the queue, the earliest deadline first."""
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
        """Rebuilds the free ranges of the queue's staging pools after an interruption."""
        writes = (op for request in self._pending for op in request.ops)
        self.writing.reset([(op.place, op.size) for op in writes if op.place >= 0 and not op.ended])
        here = [buffer for buffer in self._buffers if buffer.pool is self.reading]
        self.reading.reset([(buffer.start, buffer.size) for buffer in here])

    def _offer(self, op: Op) -> None:
        if op.request.waits:
            op.request.held.append(op)
            return
        op.queued = time.perf_counter()
        heapq.heappush(self._heap, (op.request.deadline, next(self._numbers), op))
        self._ready.notify()
        if self.wake:
            self.wake()

    def _unblock(self, request: Request, leader: Request | None = None) -> None:
        """Ends the wait of a request in the queue for another one or for memory."""
        if leader is None:
            request.memory = True
        elif leader in request.leaders:
            request.leaders.remove(leader)
        request.count_waits()
        if not request.waits:
            for op in request.held:  # an operation that is offered twice is started once
                self._offer(op)
            request.held = []

    def _completed(self, request: Request) -> bool:
        if request.sealed and not request.left and not request.waits and not request.complete:
            request.by, request.complete = threading.get_ident(), True
            return True
        return False

    def hasten(self, request: Request, deadline: float) -> None:
        """Moves a request in the queue, and all that it waits for, to an earlier deadline."""
        todo = [request]
        while todo:
            request = todo.pop()
            if request.complete or request.deadline <= deadline:
                continue
            request.deadline = deadline
            batch = request.batch
            if batch is not None and not batch.admitted:
                heapq.heappush(self._waiting, (deadline, next(self._numbers), batch))
            for op in request.ops:
                if op.queued and not op.started:
                    heapq.heappush(self._heap, (deadline, next(self._numbers), op))
            todo += request.leaders

    def _admit(self) -> None:
        """Hands out staging memory to reads in the queue, the earliest deadline first.

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
        """Returns to the queue the staging memory of leases that were garbage-collected."""
        if not self.orphans.empty():
            with contextlib.suppress(Empty):  # in one call of C: none is lost between two queues
                self._dropped.extend(iter(self.orphans.get_nowait, self))
        while self._dropped:
            if (orphan := self._dropped[0]) is not None:
                self._release(*orphan)
            self._dropped.popleft()

    def _keep_watch(self) -> None:
        """Starts the queue's thread that reclaims dropped leases, if reads wait for memory."""
        watcher = self._watcher
        if self._waiting and (watcher is None or watcher.ident is None):
            self._watcher = threading.Thread(
                target=self._watch, name="tensorjax-store-watch", daemon=True
            )
            self._watcher.start()

    def _watch(self) -> None:
        """Reclaims dropped leases while reads in the queue wait for memory; warns after 60 s."""
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
                if self.depth or self._heap:
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
        """Allocates memory beside the staging pool for reads in the queue that block a write.

        Else they would wait for each other: a deadlock.
        """
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
        """Puts the transfers of reads that have memory into the queue; may be repeated."""
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
