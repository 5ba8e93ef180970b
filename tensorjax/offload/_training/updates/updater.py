"""Optimiser updates on the host: threads that read states, update, and write the results."""

import logging
import math
import queue
import weakref
from collections.abc import Callable
from typing import Any

from tensorjax.offload._threads import WorkerThreads
from tensorjax.offload._training.storage.storage import Reading, Storage
from tensorjax.offload._training.trace import Trace
from tensorjax.offload._training.updates.parameter_groups import Group, Handed, Spare, not_handed
from tensorjax.offload._training.updates.read_budget import ReadBudget
from tensorjax.offload._training.updates.scheduler import Fetched, Output, Ready, UpdateScheduler

_LOG = logging.getLogger("tensorjax.offload")
_TICK = 0.5  # seconds without a change, after which staging memory may be given back


class Updater(WorkerThreads):
    """Updater of parameters on the host by threads: read optimiser states, update, write.

    `UpdateScheduler` says which is next. Of gradients that do not fit, those wait in the store that
    are needed last.

    Args:
      spill: storage of gradients beyond ``gradient_bytes``; None if these wait for room instead.
      gradient_bytes: host memory for gradients that wait; None for any.
      lookahead: how many of the largest states may be held; with 0, the next one is read only once
        the one before has been written.
      early: whether states may be read before gradients are there, as of `UpdateScheduler`.
      staging: bytes of memory that reads share, as of `ReadBudget`; None for any.
      together: whether that is tight: states are then read once they are used, with gradients.
      start: version that the storages have.
      due: deadline of the writes of a group's version. Parameters are handed to the device, and a
        read hastens the write that it waits for: so reads, which somebody waits for, go first.
      updated: called with group, version and new arrays for the device, before they are written.
      written: called with group and version once the storage has them.
      failed: called with what ended a thread.

    Attributes:
      peak_gradient: the most bytes of gradients that waited in memory.
      peak_update: the most bytes of results on their way to storage, and of memory kept for the
        next.
      peak_host: the most bytes of both together, with gradients on their way to the store and those
        that another layer adds to.
    """

    def __init__(
        self,
        groups: dict[str, Group],
        *,
        spill: Storage | None,
        gradient_bytes: int | None,
        lookahead: int,
        early: bool,
        staging: int | None,
        together: bool,
        start: int,
        due: Callable[[str, int], float],
        updated: Callable[[str, int, list[Any]], None],
        written: Callable[[str, int], None],
        failed: Callable[[BaseException], None],
        trace: Trace,
    ) -> None:
        super().__init__(failed)
        self._groups, self._trace = groups, trace
        self._storages = {id(g.storage): g.storage for g in groups.values()}.values()
        self._spill, self._gradient_bytes = spill, gradient_bytes
        spills = spill is not None and gradient_bytes is not None
        self._lookahead, self._together = lookahead, together
        # Results of two updates of the largest size may be under way; where memory is bounded, one.
        at_once = 2 if gradient_bytes is None else 1
        self._results_most = at_once * max(g.results for g in groups.values())
        self._scheduler = UpdateScheduler(
            groups,
            ReadBudget(groups, lookahead=lookahead, staging=staging, spills=spills),
            lookahead=lookahead,
            early=early,
            together=together,
            results_most=self._results_most,
            start=start,
        )
        self._due, self._updated, self._written = due, updated, written
        self._scale: Any = None
        self._stalled = math.inf  # deadline of an update that waits for results to be written
        self._spilling = self._waiting_bytes = self._partial_bytes = 0
        self.peak_gradient = self.peak_update = self.peak_host = 0
        self._spare = Spare(groups.values(), bounded=gradient_bytes is not None)
        self._outputs: queue.Queue[Output | None] = queue.Queue()
        self._start(read=self._read_all, update=self._update_all, write=self._write_all)

    def expect(self, coming: dict[str, tuple[int, float]], *, gated: bool) -> None:
        """Announces gradients to the optimiser updater, with deadlines; gated: until `release`."""
        with self._lock:
            self._scheduler.expected = dict(coming)
            self._scheduler.gated = gated
            self._cond.notify_all()

    def gate(self) -> None:
        """Makes the optimiser updater defer gradients offered from now on, until `release`."""
        with self._lock:
            self._scheduler.open = False

    def release(self, scale: Any = None) -> None:
        """Starts the updater's deferred updates, with gradients times ``scale`` if given."""
        with self._lock:
            self._scale, self._scheduler.open = scale, True
            for ready in self._scheduler.ready.values():
                if ready.gated:  # others were let go before, by a scale of their own
                    ready.gated, ready.scale = False, scale
            self._cond.notify_all()

    def ungate(self) -> None:
        """Ends a `gate` of the optimiser updater under which no gradient was offered."""
        with self._lock:
            self._scheduler.open, self._scheduler.gated = True, False
            self._cond.notify_all()

    def hold_back(self, version: float) -> None:
        """Makes the updater defer updates beyond a number during a commit; infinity ends that.

        The storages are about to be committed at that version: `settle_at` waits for it.
        """
        with self._lock:
            self._scheduler.newest = version
            self._cond.notify_all()

    def offer(
        self, name: str, gradient: Any, version: int, deadline: float, partial: int = 0
    ) -> None:
        """Hands a group's gradient to the updater, for the update that has the number ``version``.

        Its memory is used up. Where it does not fit, this or another one is written to the store,
        or, without one for them, this one waits here until there is room.
        ``partial`` are bytes of gradients that are not whole yet: they are only counted.
        """
        with self._lock:
            while not self._closed and self._error is None and self._full(name):
                self._scheduler.blocked = True
                self._partial_bytes = partial + self._groups[name].gradient.nbytes
                self._count()
                self._cond.notify_all()
                self._cond.wait()
            self._scheduler.blocked = False
            self._raise()
            self._scheduler.expected.pop(name, None)
            open_ = self._scheduler.open
            ready = Ready(version, deadline, gradient, not open_, self._scale if open_ else None)
            self._scheduler.ready[name] = ready
            del gradient
            self._waiting_bytes += self._groups[name].gradient.nbytes
            self._partial_bytes = partial
            self._count()
            self._cond.notify_all()
            while (victim := self._too_much()) is not None:
                self._move_out(victim)
            self.peak_gradient = max(self.peak_gradient, self._waiting_bytes)

    def _count(self) -> None:
        """Records the peak host memory of the updater; the lock is held."""
        results = self._scheduler.results_bytes + self._spare.nbytes
        self.peak_update = max(self.peak_update, results)
        held = self._waiting_bytes + self._partial_bytes + results
        self.peak_host = max(self.peak_host, held)

    def _full(self, name: str) -> bool:
        """Whether a gradient must wait until the updater has freed memory; the lock is held."""
        if self._spill is not None or self._gradient_bytes is None or not self._waiting_bytes:
            return False
        return self._waiting_bytes + self._groups[name].gradient.nbytes > self._gradient_bytes

    def _too_much(self) -> str | None:
        """Returns the gradient that the updater must write to the store to free memory, or None."""
        if self._spill is None or self._gradient_bytes is None:
            return None
        if self._waiting_bytes <= self._gradient_bytes:
            return None
        held = (n for n, r in self._scheduler.ready.items() if r.gradient is not None)
        # Better one that is not about to be updated: it would have to be read at once.
        return max(
            held,
            key=lambda n: (n not in self._scheduler.fetched, self._scheduler.ready[n].deadline),
            default=None,
        )

    def _move_out(self, name: str) -> None:
        """Writes a gradient that waits in the updater to the store; releases the lock."""
        assert self._spill is not None
        ready, packing = self._scheduler.ready.pop(name), self._groups[name].gradient
        if self._together and (fetched := self._scheduler.fetched.pop(name, None)) is not None:
            fetched.release()  # to be read again, with the gradient
        self._spilling += 1
        self._cond.release()
        try:
            arrays, ready.gradient = packing.flatten(ready.gradient), None
            self._spill.write((packing, arrays), deadline=ready.deadline, step=ready.version - 1)
            del arrays
        finally:
            self._cond.acquire()
            self._spilling -= 1
        self._waiting_bytes -= packing.nbytes
        self._scheduler.ready[name] = ready
        self._cond.notify_all()

    def settle(self) -> None:
        """Waits until the updater has used all gradients in updates, and written the results."""
        with self._lock:
            while self._scheduler.ready or self._scheduler.unwritten or self._spilling:
                self._raise()
                self._cond.wait()
            self._raise()
        for storage in self._storages:
            storage.settle()

    def settle_at(self, version: int) -> None:
        """Waits until the updater has written a given number of updates of all groups.

        Groups that only the last layers use may not have begun their updates to it by then.
        """
        with self._lock:
            while self._scheduler.behind(version):
                self._raise()
                self._cond.wait()
            self._raise()

    def close(self) -> None:
        """Ends the updater's threads; pending updates are lost without `settle`."""
        with self._lock:
            self._closed = True
            self._cond.notify_all()
        reads, updates, writes = self._threads
        reads.join()
        updates.join()
        self._outputs.put(None)
        writes.join()
        for fetched in self._scheduler.fetched.values():
            fetched.release()
        self._scheduler.fetched.clear()
        self._spare.clear()

    def _read_all(self) -> None:
        """Reads optimiser states and waiting gradients from storage, in the updater's thread."""
        while (asked := self._ask()) is not None:
            asked.when_ready(self._look_again)

    def _ask(self) -> Reading | None:
        """Waits for the updater's next state or gradient to read, and starts it; None if closed."""
        with self._lock:
            while not self._closed and self._error is None:
                if (name := self._scheduler.lacking()) is not None:
                    ready = self._scheduler.ready[name]
                    reading = self._reading(self._groups[name], ready.version, ready.deadline)
                    self._scheduler.fetched[name].gradient = reading
                    return reading
                if (wanted := self._scheduler.wanted()) is not None:
                    name, version, deadline = wanted
                    group = self._groups[name]
                    packings = [group.params, group.state]
                    whole = self._whole(name)
                    if whole:
                        packings.append(group.gradient)
                    reading = group.storage.read(*packings, deadline=deadline, step=version - 1)
                    self._scheduler.fetched[name] = Fetched(reading, whole)
                    return reading
                if not self._cond.wait(_TICK):
                    self._give_way()
        return None

    def _give_way(self) -> None:
        """Frees a state that the updater has read, if no read can get staging memory.

        Leases cut memory up, so what there is may be too small in every place. The state is asked
        for again at once, but what is more urgent waits before it. One that has no memory yet would
        free none. The lock is held.
        """
        busy = self._scheduler.updating or self._scheduler.unwritten or self._spilling
        # What a commit holds back waits for no memory.
        if busy or not self._scheduler.behind(self._scheduler.newest):
            return
        if not any(storage.starved() for storage in self._storages):
            return
        if (name := self._scheduler.idle() or self._scheduler.latest()) is not None:
            self._scheduler.fetched.pop(name).release()
            _LOG.info("the state of %s is read again: staging memory is cut up", name)

    def _whole(self, name: str) -> bool:
        """Whether the updater reads a gradient from the store together with its state."""
        here = self._groups[name].storage is self._spill
        return self._together and here and self._scheduler.ready[name].gradient is None

    def _update_all(self) -> None:
        """Computes optimiser updates in the updater's thread, one parameter group at a time."""
        while (chosen := self._choose()) is not None:
            self._update(*chosen)
            if not self._lookahead:
                self._outputs.join()

    def _choose(self) -> tuple[str, Ready, Fetched] | None:
        """Waits for the updater's next group; returns its gradient and state, None at the end."""
        with self._lock:
            while not self._closed and self._error is None:
                name, room = self._scheduler.able()
                stalled = math.inf if name is None or room else self._scheduler.ready[name].deadline
                sooner, self._stalled = stalled < self._stalled, stalled
                if name is not None and room:
                    self._scheduler.updating.append(name)
                    return name, self._started(name), self._scheduler.fetched.pop(name)
                if sooner:
                    self._hasten(stalled)
                else:
                    self._cond.wait()
            return None

    def _hasten(self, deadline: float) -> None:
        """Moves the disk writes that the updater waits for to an earlier deadline."""
        self._cond.release()
        try:
            for storage in self._storages:
                storage.hasten(deadline)
        finally:
            self._cond.acquire()

    def _update(self, name: str, ready: Ready, fetched: Fetched) -> None:
        group = self._groups[name]
        used = 0 if ready.gradient is None or group.into == "gradient" else group.gradient.nbytes
        try:
            params, state, weights = self._results(group, ready, fetched)
        finally:
            fetched.release()
            with self._lock:
                self._scheduler.updating.remove(name)
                self._waiting_bytes -= used
                self._cond.notify_all()
        device = params if group.weights is None else weights
        handed = Handed(group.device.flatten(device))
        # Where the device gets others, cast from the parameters, these are not handed on.
        seen = weakref.ref(handed) if group.weights is None else not_handed
        self._updated(name, ready.version, handed)
        del handed
        self._outputs.put(Output(group, ready, params, state, weights, seen))

    def _results(self, group: Group, ready: Ready, fetched: Fetched) -> tuple[Any, Any, Any]:
        """Computes, in the updater's thread, a group's new parameters, state and cast ones."""
        held, state, *more = fetched.state.arrays()
        params, state = group.params.unflatten(held), group.state.unflatten(state)
        del held
        gradient, ready.gradient = ready.gradient, None
        if fetched.gradient is not None:
            more = fetched.gradient.arrays()
        if more:
            gradient = group.gradient.unflatten(more.pop())
        spare, ready.spare = ready.spare, None
        optimizer = group.optimizer
        with self._trace.span("update", group.name, ready.version - 1):
            params, state = optimizer.update(
                params, state, gradient, ready.scale, spare, into=group.into
            )
            if not optimizer.sound(params):
                raise FloatingPointError(
                    f"{group.name}: the update of step {ready.version} made NaN or infinite "
                    "parameters, of a finite gradient; nothing of it is committed: go on from the "
                    "last commit, with a smaller learning rate, or with parameters in float32 if "
                    "they are of fewer bits (1e-8, as Adam adds it, is 0 in float16)"
                )
            weights = None if group.weights is None else optimizer.cast(params)
        return params, state, weights

    def _reading(self, group: Group, version: int, deadline: float) -> Reading:
        assert self._spill is not None
        return self._spill.read(group.gradient, deadline=deadline, step=version - 1)

    def _started(self, name: str) -> Ready:
        """Marks a group's update as begun in the updater; returns its gradient; lock held."""
        group, ready = self._groups[name], self._scheduler.ready.pop(name)
        self._scheduler.unwritten += 1
        self._scheduler.results_bytes += group.results
        if ready.gradient is not None and group.into == "gradient":
            self._waiting_bytes -= group.gradient.nbytes  # it becomes a result
        ready.spare = self._spare.take(group)
        self._bound_spare()
        self._count()
        self._cond.notify_all()  # a gradient may wait for this one's room
        return ready

    def _bound_spare(self) -> None:
        """Drops memory that the updater keeps for reuse if it exceeds its bound."""
        total = self._scheduler.results_bytes + self._spare.nbytes
        if self._gradient_bytes is not None and total > self._results_most:
            self._spare.clear()

    def _look_again(self) -> None:
        with self._lock:
            self._cond.notify_all()

    def _write_all(self) -> None:
        """Writes update results to storage, in the updater's thread; keeps memory to reuse."""
        while (output := self._outputs.get()) is not None:
            try:
                if self._error is None:
                    self._write(output)
            except BaseException as error:
                self._ended(error)
            finally:
                self._outputs.task_done()

    def _write(self, output: Output) -> None:
        group, ready = output.group, output.ready
        due = min(self._due(group.name, ready.version), self._stalled)
        back = group.storage.write(*output.take(), deadline=due, step=ready.version - 1)
        if not self._lookahead:
            group.storage.settle()
        with self._lock:
            self._scheduler.results_bytes -= group.results
            if back is not None:
                self._spare.keep(group, back[0], back[1], output.handed)
                self._bound_spare()
            del back  # before the next update begins
            self._scheduler.version[group.name] = ready.version
            self._scheduler.unwritten -= 1
            self._cond.notify_all()
        self._written(group.name, ready.version)
