"""Updates of parameters on the host, in the order in which the next step needs them."""

import logging
import math
import queue
import threading
from collections.abc import Callable, Collection
from typing import Any, Literal, get_args

from tensorjax.offload._ahead import Ahead
from tensorjax.offload._group import Group, Spare
from tensorjax.offload._homes import Home, Reading
from tensorjax.offload._jobs import Fetched, Output, Ready
from tensorjax.offload._optimizer import HostOptimizer
from tensorjax.offload._trace import Trace

_LOG = logging.getLogger("tensorjax.offload")
_TICK = 0.5  # seconds without anything new
_SOON = 3  # groups whose gradients come next; their states are read first

Schedule = Literal["overlap", "after_backward", "sequential", "one_step_stale"]


def check_schedule(schedule: Any) -> Schedule:
    """Returns a schedule, or says which there are."""
    if schedule not in get_args(Schedule):
        raise ValueError(f"schedule: expected one of {get_args(Schedule)}, got {schedule!r}")
    return schedule


class Updater:
    """Threads that read the state of the optimiser, update, and write.

    Of the groups whose gradient is there, that one is next whose parameters are needed first.
    States are read ahead, in the order in which gradients will come, as far as those are more
    urgent than what can be updated; then by deadline. Results of two updates of the largest group's
    size may be on their way home; where gradients are bounded, of one. Neither memory is given to
    what has its gradient and can wait while something more urgent is to come. Of gradients that do
    not fit, those wait in the store that are needed last.

    Args:
      groups: by name.
      optimizer: what updates.
      spill: home of gradients beyond ``gradient_bytes``, or None if there is none.
      gradient_bytes: host memory for gradients that wait; None for any.
      lookahead: how many of the largest states may be held; with 0, the next one is read only once
        the one before has been written.
      staging: bytes of memory that reads share, as of `Ahead`; None for any.
      together: whether that is tight: states are then read once they are used, with gradients.
      start: version that the homes have.
      due: deadline of the writes of a group's version. Parameters are handed to the device, and a
        read hastens the write that it waits for: so reads, which somebody waits for, go first.
      updated: called with group, version and new arrays for the device, before they are written.
      written: called with group and version once the home has them.
      failed: called with what ended a thread.
      trace: gains spans.

    Attributes:
      peak_gradient: the most bytes of gradients that waited in memory.
      peak_update: the most bytes of results on their way home, and of memory kept for the next.
      peak_host: the most bytes of both together, with gradients on their way to the store and those
        that another layer adds to.
    """

    def __init__(
        self,
        groups: dict[str, Group],
        optimizer: HostOptimizer,
        *,
        spill: Home | None,
        gradient_bytes: int | None,
        lookahead: int,
        staging: int | None,
        together: bool,
        start: int,
        due: Callable[[str, int], float],
        updated: Callable[[str, int, list[Any]], None],
        written: Callable[[str, int], None],
        failed: Callable[[BaseException], None],
        trace: Trace,
    ) -> None:
        self._groups, self._optimizer, self._trace = groups, optimizer, trace
        self._homes = {id(g.home): g.home for g in groups.values()}.values()
        self._spill, self._gradient_bytes = spill, gradient_bytes
        self._lookahead, self._together = lookahead, together
        self._ahead = Ahead(
            groups, lookahead=lookahead, staging=staging, spills=gradient_bytes is not None
        )
        self._due, self._updated, self._written, self._failed = due, updated, written, failed
        self._cond = threading.Condition()
        self._ready: dict[str, Ready] = {}
        self._expected: dict[str, tuple[int, float]] = {}
        self._fetched: dict[str, Fetched] = {}
        self._updating: list[str] = []  # whose state is still held
        self._version = dict.fromkeys(groups, start)  # that a home has
        self._unwritten = self._spilling = 0
        at_once = 2 if gradient_bytes is None else 1
        self._results_most = at_once * max(g.results for g in groups.values())
        self._open, self._gated, self._held_back = True, False, False
        self._scale: Any = None
        self._stalled = math.inf  # deadline of an update that waits for results to be written
        self._waiting_bytes = self._partial_bytes = self._results_bytes = 0
        self.peak_gradient = self.peak_update = self.peak_host = 0
        self._spare = Spare(groups.values(), bounded=gradient_bytes is not None)
        self._error: BaseException | None = None
        self._closed = False
        self._outputs: queue.Queue[Output | None] = queue.Queue()
        self._threads = [
            threading.Thread(
                target=self._guarded, args=(body,), name=f"offload {name}", daemon=True
            )
            for name, body in (
                ("read", self._read_all), ("update", self._update_all), ("write", self._write_all)
            )
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def expect(self, coming: dict[str, tuple[int, float]], *, gated: bool) -> None:
        """Says in which order gradients will come, for which versions and deadlines.

        Gated ones wait for `release`.
        """
        with self._cond:
            self._expected = dict(coming)
            self._gated = gated
            self._cond.notify_all()

    def gate(self) -> None:
        """Keeps what is offered from now on waiting until `release`."""
        with self._cond:
            self._open = False

    def release(self, scale: Any = None) -> None:
        """Lets updates begin, their gradients multiplied by ``scale`` if there is one."""
        with self._cond:
            self._scale, self._open = scale, True
            for ready in self._ready.values():
                ready.gated = False
            self._cond.notify_all()

    def hold_back(self, held: bool) -> None:
        """Keeps updates from beginning, whatever the gate: the homes are being committed."""
        with self._cond:
            self._held_back = held
            self._cond.notify_all()

    def offer(
        self, name: str, gradient: Any, version: int, deadline: float, partial: int = 0
    ) -> None:
        """Takes the gradient of a group, which makes its parameters those of ``version``.

        Its memory is used up. Where it does not fit, this or another one is written to the store.
        ``partial`` are bytes of gradients that are not whole yet: they are only counted.
        """
        with self._cond:
            self._raise()
            self._expected.pop(name, None)
            self._ready[name] = Ready(version, deadline, gradient, not self._open)
            del gradient
            self._waiting_bytes += self._groups[name].gradient.nbytes
            self._partial_bytes = partial
            self._count()
            self._cond.notify_all()
            while (victim := self._too_much()) is not None:
                self._move_out(victim)
            self.peak_gradient = max(self.peak_gradient, self._waiting_bytes)

    def _count(self) -> None:
        """Looks how much there is; the lock is held."""
        results = self._results_bytes + self._spare.nbytes
        self.peak_update = max(self.peak_update, results)
        held = self._waiting_bytes + self._partial_bytes + results
        self.peak_host = max(self.peak_host, held)

    def _too_much(self) -> str | None:
        """The gradient that should wait in the store, if one should; the lock is held."""
        if self._spill is None or self._gradient_bytes is None:
            return None
        if self._waiting_bytes <= self._gradient_bytes:
            return None
        held = (n for n, r in self._ready.items() if r.gradient is not None)
        # Better one that is not about to be updated: it would have to be read at once.
        return max(
            held, key=lambda n: (n not in self._fetched, self._ready[n].deadline), default=None
        )

    def _move_out(self, name: str) -> None:
        """Writes a gradient to the store; the lock is held, but for the writing."""
        assert self._spill is not None
        ready, bundle = self._ready.pop(name), self._groups[name].gradient
        if self._together and (fetched := self._fetched.pop(name, None)) is not None:
            fetched.release()  # to be read again, with the gradient
        self._spilling += 1
        self._cond.release()
        try:
            arrays, ready.gradient = bundle.flatten(ready.gradient), None
            self._spill.write((bundle, arrays), deadline=ready.deadline, step=ready.version - 1)
            del arrays
        finally:
            self._cond.acquire()
            self._spilling -= 1
        self._waiting_bytes -= bundle.nbytes
        self._ready[name] = ready
        self._cond.notify_all()

    def settle(self) -> None:
        """Waits until everything offered has been updated and written to its home."""
        with self._cond:
            while self._ready or self._unwritten or self._spilling:
                self._raise()
                self._cond.wait()
            self._raise()
        for home in self._homes:
            home.settle()

    def settle_written(self) -> None:
        """Waits until every update that has begun is written, while others are held back."""
        with self._cond:
            while self._unwritten:
                self._raise()
                self._cond.wait()
            self._raise()

    def fail(self, error: BaseException) -> None:
        """Makes everything that waits here raise."""
        with self._cond:
            self._error = self._error or error
            self._cond.notify_all()

    def close(self) -> None:
        """Ends the threads. What has not been updated is lost: `settle` first."""
        with self._cond:
            self._closed = True
            self._cond.notify_all()
        reads, updates, writes = self._threads
        reads.join()
        updates.join()
        self._outputs.put(None)
        writes.join()
        for fetched in self._fetched.values():
            fetched.release()
        self._fetched.clear()
        self._spare.clear()

    def _raise(self) -> None:
        if self._error is not None:
            raise RuntimeError("the training cannot go on: a thread of it failed") from self._error

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            self.fail(error)
            self._failed(error)

    def _read_all(self) -> None:
        """Thread: asks for states and for gradients in the store, also while an update goes on."""
        while (asked := self._ask()) is not None:
            asked.when_ready(self._look_again)

    def _ask(self) -> Reading | None:
        """Begins to read what is wanted next; None when there will be no more."""
        with self._cond:
            while not self._closed and self._error is None:
                if (name := self._lacking()) is not None:
                    ready = self._ready[name]
                    reading = self._reading(self._groups[name], ready.version, ready.deadline)
                    self._fetched[name].gradient = reading
                    return reading
                if (wanted := self._wanted()) is not None:
                    name, version, deadline = wanted
                    group = self._groups[name]
                    bundles = [group.params, group.state]
                    whole = self._whole(name)
                    if whole:
                        bundles.append(group.gradient)
                    reading = group.home.read(*bundles, deadline=deadline, step=version - 1)
                    self._fetched[name] = Fetched(reading, whole)
                    return reading
                if not self._cond.wait(_TICK):
                    self._give_way()
        return None

    def _give_way(self) -> None:
        """Gives a state back that is wanted later, where all wait for memory that all hold.

        Leases cut memory up, so what there is may be too small in every place. The state is asked
        for again at once, but what is more urgent waits before it. One that has no memory yet would
        free none. The lock is held.
        """
        busy = self._updating or self._unwritten or self._spilling or self._held_back
        if busy or not any(home.starved() for home in self._homes):
            return
        known = {n: (r.version, r.deadline) for n, r in self._ready.items()}
        order = self._in_turn(self._expected, known)
        held = [n for n in order if n in self._fetched and self._fetched[n].state.begun()]
        if held:
            self._fetched.pop(held[-1]).release()
            _LOG.info("the state of %s is read again: staging memory is cut up", held[-1])

    def _whole(self, name: str) -> bool:
        """Whether a gradient is read with the state: it must not wait for memory beside it."""
        here = self._groups[name].home is self._spill
        return self._together and here and self._ready[name].gradient is None

    def _lacking(self) -> str | None:
        """A group whose state was asked for, and whose gradient waits in the store."""
        for name in self._order():
            fetched = self._fetched.get(name)
            if fetched is None or fetched.whole or fetched.gradient is not None:
                continue
            if self._ready[name].gradient is None:
                return name
        return None

    def _update_all(self) -> None:
        """Thread: updates, one group at a time."""
        while (chosen := self._choose()) is not None:
            self._update(*chosen)
            if not self._lookahead:
                self._outputs.join()

    def _choose(self) -> tuple[str, Ready, Fetched] | None:
        """The next group to update, with its state; None when there will be no more."""
        with self._cond:
            while not self._closed and self._error is None:
                name, room = self._able()
                stalled = math.inf if name is None or room else self._ready[name].deadline
                sooner, self._stalled = stalled < self._stalled, stalled
                if name is not None and room:
                    self._updating.append(name)
                    return name, self._started(name), self._fetched.pop(name)
                if sooner:
                    self._hasten(stalled)
                else:
                    self._cond.wait()
            return None

    def _hasten(self, deadline: float) -> None:
        """Brings writes forward that an update waits for; the lock is held, but for that."""
        self._cond.release()
        try:
            for home in self._homes:
                home.hasten(deadline)
        finally:
            self._cond.acquire()

    def _update(self, name: str, ready: Ready, fetched: Fetched) -> None:
        group = self._groups[name]
        try:
            params, state, weights = self._results(group, ready, fetched)
        finally:
            fetched.release()
            with self._cond:
                self._updating.remove(name)
                self._cond.notify_all()
        device = params if group.weights is None else weights
        self._updated(name, ready.version, group.device.flatten(device))
        self._outputs.put(Output(group, ready, params, state, weights))

    def _results(self, group: Group, ready: Ready, fetched: Fetched) -> tuple[Any, Any, Any]:
        """New parameters, state, and parameters for the device if these are others."""
        held, state, *more = fetched.state.arrays()
        params, state = group.params.unflatten(held), group.state.unflatten(state)
        del held
        gradient, ready.gradient = ready.gradient, None
        if fetched.gradient is not None:
            more = fetched.gradient.arrays()
        if more:
            gradient = group.gradient.unflatten(more.pop())
        spare, ready.spare = ready.spare, None
        with self._trace.span("update", group.name, ready.version - 1):
            params, state = self._optimizer.update(params, state, gradient, self._scale, spare)
            weights = None if group.weights is None else self._optimizer.cast(params)
        return params, state, weights

    def _reading(self, group: Group, version: int, deadline: float) -> Reading:
        assert self._spill is not None
        return self._spill.read(group.gradient, deadline=deadline, step=version - 1)

    def _started(self, name: str) -> Ready:
        """Takes a gradient to update with, whose memory the results take; the lock is held."""
        group, ready = self._groups[name], self._ready.pop(name)
        self._unwritten += 1
        self._results_bytes += group.results
        if ready.gradient is not None:
            self._waiting_bytes -= group.gradient.nbytes
        ready.spare = self._spare.take(group)
        self._bound_spare()
        self._count()
        return ready

    def _bound_spare(self) -> None:
        """Where memory is bounded, results and what is spare take no more than the largest."""
        total = self._results_bytes + self._spare.nbytes
        if self._gradient_bytes is not None and total > self._results_most:
            self._spare.clear()

    def _able(self) -> tuple[str | None, bool]:
        """The most urgent group whose state and gradient are there; whether its results fit."""
        if self._held_back:
            return None, False
        let = self._let()
        there = [n for n in let if n in self._fetched and self._fetched[n].ready(self._ready[n])]
        if not there:
            return None, False
        name = self._first(there)
        ready = self._ready[name]
        # Room is left for what is more urgent: its state or its gradient is still on the way.
        before = [*self._to_come(ready.deadline), *let[: let.index(name)]]
        beside = max((self._groups[n].results for n in before), default=0)
        total = self._results_bytes + self._groups[name].results + beside
        return name, not self._unwritten or total <= self._results_most

    def _first(self, there: list[str]) -> str:
        """Which of the groups, the most urgent first, whose state and gradient are there."""
        if len(self._to_come(self._ready[there[0]].deadline)) <= _SOON:
            return there[0]
        # None is needed soon: the one that has held its memory longest, which others wait for.
        return next(name for name in self._fetched if name in there)

    def _look_again(self) -> None:
        with self._cond:
            self._cond.notify_all()

    def _order(self) -> list[str]:
        return sorted(self._ready, key=lambda n: self._ready[n].deadline)

    def _let(self) -> list[str]:
        """Groups with a gradient that may be updated, the gate notwithstanding."""
        return [n for n in self._order() if self._open or not self._ready[n].gated]

    def _wanted(self) -> tuple[str, int, float] | None:
        """A group whose state should be asked for now, its new version and its deadline."""
        if not self._lookahead and (not self._open or self._unwritten):
            return None
        coming = self._coming() if self._lookahead else {}
        known = {n: (r.version, r.deadline) for n, r in self._ready.items()}
        able = self._let()
        for name in self._in_turn(coming, known):
            version, deadline = known.get(name) or coming[name]
            if not self._askable(name, version):
                continue
            if name not in able and not self._early(name, able):
                continue
            # Early ones come in the order of their gradients: they keep nothing waiting.
            urgent = self._to_come(deadline) if name in known else []
            if self._ahead.fits(name, [*self._fetched, *self._updating], urgent):
                return name, version, deadline
            break
        else:
            return None
        # The next forward pass may be waiting for it, as long as none more urgent is to come.
        if able and not any(name in self._fetched for name in able):
            version, deadline = known[able[0]]
            if self._askable(able[0], version) and not self._to_come(deadline):
                return able[0], version, deadline
        return None

    def _in_turn(
        self, coming: dict[str, tuple[int, float]], known: dict[str, tuple[int, float]]
    ) -> list[str]:
        """Groups in the order in which their states are wanted."""
        if not self._open or self._gated:
            both = {**coming, **known}
            return sorted(both, key=lambda n: both[n][1])
        # Those whose gradients come next, if they are more urgent than what can be updated.
        urgent = min((deadline for _, deadline in known.values()), default=math.inf)
        soon = [n for n in list(coming)[:_SOON] if coming[n][1] < urgent]
        # First those whose parameters the backward pass is about to use: they are read only once.
        soon.sort(key=lambda n: not self._groups[n].home.holds(self._groups[n].params))
        return [*soon, *self._order(), *(n for n in coming if n not in soon)]

    def _askable(self, name: str, version: int) -> bool:
        """Not twice, and not before the update before it has been written."""
        return name not in self._fetched and self._version[name] == version - 1

    def _coming(self) -> dict[str, tuple[int, float]]:
        """Groups without a gradient yet, in its order, as far as their states can be read."""
        found = {}
        for name, (version, deadline) in self._expected.items():
            if name not in self._fetched and self._version[name] != version - 1:
                break  # what comes later would take the room that this one needs first
            found[name] = version, deadline
        return found

    def _to_come(self, deadline: float) -> list[str]:
        """Groups without a gradient yet that are more urgent."""
        return [name for name, (_, at) in self._expected.items() if at < deadline]

    def _early(self, name: str, able: Collection[str]) -> bool:
        """Whether a group's state may be read before its gradient is there, or the gate open."""
        early = {n for n in self._fetched if n not in able} | {name}
        return not self._together and self._ahead.fits_early(early)

    def _write_all(self) -> None:
        """Thread: hands results to their homes, and keeps the memory that comes back."""
        while (output := self._outputs.get()) is not None:
            try:
                if self._error is None:
                    self._write(output)
            except BaseException as error:
                self.fail(error)
                self._failed(error)
            finally:
                self._outputs.task_done()

    def _write(self, output: Output) -> None:
        group, ready = output.group, output.ready
        due = min(self._due(group.name, ready.version), self._stalled)
        back = group.home.write(*output.take(), deadline=due, step=ready.version - 1)
        if not self._lookahead:
            group.home.settle()
        state = None if back is None else back[1]
        del back  # before the next update begins
        with self._cond:
            self._results_bytes -= group.results
            if state is not None:
                self._spare.keep(group, state)
                self._bound_spare()
            del state
            self._version[group.name] = ready.version
            self._unwritten -= 1
            self._cond.notify_all()
        self._written(group.name, ready.version)
