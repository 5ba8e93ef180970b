"""Queue of disk transfers: earliest deadline first, conflicting requests in order of arrival.

A `Request` moves one run of extents and is cut into `Op`s of at most one block. Requests on the
same slot of an extent wait for each other unless both read. A request that others wait for takes
over the earliest of their deadlines (priority inheritance).
"""

import heapq
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable

from tensorjax.offload._errors import StoreError
from tensorjax.offload._store.statistics import Counter
from tensorjax.offload._store.transfers.requests import Buffer, Op, ReadBatch, Request, nothing
from tensorjax.offload._store.transfers.staging import Pool
from tensorjax.offload._store.transfers.staging_queue import StagingQueue
from tensorjax.offload._threads import InterruptibleCondition

_LOG = logging.getLogger("tensorjax.offload")


class Queue(StagingQueue):
    """Priority queue of a tensor store's reads and writes on disk, the earliest deadline first.

    Attributes:
        wake: Called when transfers become ready, by backends that sleep elsewhere.
    """

    def __init__(self, reading: Pool, writing: Pool):
        super().__init__(reading, writing)
        self.reads, self.writes = Counter(), Counter()
        self.wake: Callable[[], None] | None = None
        self.depth = self.deepest = 0
        self.blocked = 0.0
        self._ready = threading.Condition(self.lock)
        self._idle = InterruptibleCondition(self.lock)
        self._heap: list[tuple[float, int, Op]] = []

    # Called by the store.

    def enter(self, requests: Iterable[Request]) -> None:
        """Registers requests in the queue behind earlier ones on their blocks; the lock is held."""
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
        """Queues one disk transfer of a write, whose staging memory has been filled."""
        with self.lock:
            op.request.left += 1
            self._offer(op)

    def seal(self, request: Request) -> None:
        """Marks a write in the disk queue as complete: no further transfers will be added to it."""
        with self.lock:
            request.sealed = True
            complete = self._completed(request)
        if complete:
            self.finish(request)

    def cut(self, requests: Collection[Request], error: BaseException) -> None:
        """Ends requests in the disk queue whose caller was interrupted, as by Ctrl-C."""
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
        """Queues read requests with all their disk transfers; the caller holds the lock.

        Args:
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
        """Waits in the disk queue for the staging memory of one transfer of a registered write."""
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
        """Waits until no earlier request in the queue blocks a write from filling staging memory.

        Else writes that wait for others could hold all of it, and these wait for them.
        """
        if request.waits:  # it never waits for others again
            self.until(lambda: not request.waits)

    def release(self, buffer: Buffer, name: str) -> None:
        """Returns a tensor's share of staging memory to the queue; may be called twice."""
        with self.lock:
            try:
                self._release(buffer, name)
                self._admit()
            except BaseException:  # raised by a signal's handler
                self._torn = True
                self._admit()
                raise

    def hasten_writes(self, deadline: float) -> None:
        """Moves all writes in the queue, and what they wait for, to an earlier deadline."""
        with self.lock:
            for request in self._pending:
                self.hasten(request, deadline)

    def until(self, holds: Callable[[], bool]) -> None:
        """Waits for a condition that becomes true when a request in the disk queue ends."""
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
        """Gives the disk queue a larger staging pool for later reads; waits for the lock alone.

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
        """Closes the queue, which ends backend threads; returns the reads that never got memory."""
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
        """Whether reads in the disk queue wait for memory while the backend has nothing to do."""
        with self.lock:
            waiting = any(not batch.admitted for *_, batch in self._waiting)
            return waiting and not self.depth and not self._heap

    @property
    def queued(self) -> int:
        """Number of queued disk transfers that wait for the I/O backend; the lock is held."""
        return len({id(op) for *_, op in self._heap if not op.started})  # without earlier copies

    # Called by backends.

    def take(self, most: int = 1, *, wait: bool = True) -> list[Op] | None:
        """Removes up to ``most`` disk transfers from the queue to run them; None if closed."""
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
        """Records in the disk queue the end of a disk transfer, with its error if it failed."""
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
        """Completes a request in the queue, and unblocks those that waited for it; lock not held.

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

    def _is_moving(self) -> bool:
        return bool(self.depth or self._heap)

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
        """Ends a queued disk request's wait for an earlier request or for staging memory."""
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
        """Moves a request in the disk queue, and all that it waits for, to an earlier deadline."""
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
