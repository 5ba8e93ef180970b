"""Main loop of a run on the host: steps, saved states, events, and what is said of the end."""

from collections.abc import Callable
from typing import Any, Generic

import numpy as np

from tensorjax.pde._integration.dense_output import DenseOutput
from tensorjax.pde._integration.error_estimates import (
    absolute_mass,
    inaccurate,
    lossy,
    moments_lost,
    start_missed,
)
from tensorjax.pde._integration.events import Watch
from tensorjax.pde._integration.failure_diagnosis import Stopped
from tensorjax.pde._integration.initial_checks import conserves, is_density
from tensorjax.pde._integration.run import Run
from tensorjax.pde._integration.solution import Result, SaveAt, Solution, State, Y, save_times
from tensorjax.pde._stepping.step_rounding import unrestored


def loop(
    work: Run, t1: float, saveat: SaveAt[Y], progress: Any, save: Any, events: Any = ()
) -> Solution[Y]:
    """Runs the main loop: takes time steps until t1 or a reason to stop; returns the `Solution`.

    Args:
      work: the run at its beginning.
      t1: time at the end.
      saveat: states to be saved.
      progress: called with the statistics of each step; stops the run if it returns True.
      save: writer of checkpoints.
      events: that stop the run.
    """
    saved = _Saved(saveat, work, t1)
    first = _Masses(work)
    count, stop = 0, None
    dense = DenseOutput(work.options, work.state()) if saveat.dense else None
    watch = Watch(events, work.options, work.state()) if events else None
    while work.t < t1 and stop is None:
        if count >= work.options.max_steps:
            stop = Stopped(Result.max_steps, f"t = {work.t:g} after {count} steps")
            break
        stop = work.advance(saved.target)
        if stop is not None:
            break
        count += 1
        happened = None if watch is None else watch.after(work)
        if happened is not None:
            work.resume(happened[0])
            stop = happened[1]
        if dense is not None:
            dense.append(work.state())
        saved.after(work, count)
        save.after(work)
        if progress(work.rows[-1]) and stop is None:
            stop = Stopped(Result.stopped, f"at t = {work.t:g}")
    saved.at_end(work, stop)
    save.close(work)
    result, message = _said(work, first, count, stop)
    final = None if saveat.fn is None else work.state()
    at = dense.at if dense else None
    return Solution(np.array(saved.ts), saved.ys, work.stats(), result, message, final, at)


class _Saved(Generic[Y]):
    """States that the main loop saves, with their times, as `SaveAt` asks.

    Attributes:
      ts: times so far.
      ys: states at these times, or what the function of `SaveAt` makes of them.
      target: time that the next step must not pass.
    """

    def __init__(self, saveat: SaveAt[Y], work: Run, t1: float):
        times = save_times(saveat, work.t, t1)
        self.ts: list[float] = []
        self.ys: list[Any] = []
        self._saveat = saveat
        self._taken: Callable[[State], Any] = saveat.fn or (lambda state: state)
        if saveat.t0 or (times and times[0] <= work.t):
            self._add(work, max(1, sum(t <= work.t for t in times)))
        self._times = [t for t in times if t > work.t]
        self._end = t1

    @property
    def target(self) -> float:
        return self._times[0] if self._times else self._end

    def after(self, work: Run, count: int) -> None:
        """Saves the state of the main loop after an accepted step, the ``count``-th, if asked."""
        every = int(self._saveat.steps)
        if self._times and work.t >= self._times[0]:
            met = sum(t <= work.t for t in self._times)  # more than one where roundoff parts them
            self._add(work, met)
            del self._times[:met]
        elif every and count % every == 0:
            self._add(work)

    def at_end(self, work: Run, stop: Stopped | None) -> None:
        """Saves the last state of the main loop, unless it is saved or not asked for."""
        asked = self._saveat.t1 or stop is not None
        if not self.ys or (asked and self.ts[-1] != work.t):
            self._add(work)

    def _add(self, work: Run, count: int = 1) -> None:
        y = self._taken(work.state())
        self.ts.extend([work.t] * count)
        self.ys.extend([y] * count)


class _Masses:
    """Main loop's mass at its beginning, with and without its sign.

    A run that goes on from another one may have another equation: its loss is its own, unless the
    mass of the first one is to be kept.
    """

    def __init__(self, work: Run):
        kept = work.options.conserve is not None
        self.signed = work.memory.mass if kept else work.mass()
        box, volume = work.options.problem.box, abs(float(work.map.det))
        self.absolute = absolute_mass(work.memory.v, box) / volume

    @property
    def share(self) -> float:
        """Share of the mass in ∫ |u| dx at the beginning of the main loop."""
        return abs(self.signed) / max(abs(self.signed), self.absolute, 1e-300)


def _said(work: Run, first: _Masses, count: int, stop: Stopped | None) -> Stopped:
    """Returns result and message of the main loop after ``count`` steps, with its accuracy."""
    result, message = (Result.successful, "") if stop is None else stop
    if count and result in (Result.successful, Result.event):  # else v is the start
        found = _inaccurate(work, first)
        message = "; ".join(filter(None, (message, found)))
        result = Result.inaccurate if found and stop is None else result
    return Stopped(result, message)


def _inaccurate(work: Run, first: _Masses) -> str:
    """Explains why the main loop ends less accurately than asked; else "".

    Moments that v lacks since before the run count: rounding took them, whatever the equation was.
    """
    options, memory = work.options, work.memory
    problem, box, v = options.problem, options.problem.box, memory.v
    at = work.t, options.accuracy
    equations, errors = work.equations, work.moment_errors()
    off = equations.told(errors, v, work.map, *at, first.share)
    # Where the error of the covariance is known, nothing is inferred from noise at the ends.
    density = is_density(problem) and (bool(off) or not equations.exact)
    missed = start_missed(memory.start_errors, box, options.accuracy)
    if missed:
        return missed
    found = inaccurate(v, box, work.t, options.tol, options.accuracy, work.varies, density)
    if not found and conserves(problem):
        found = lossy(first.signed, work.mass(), first.absolute, *at)
    if found or equations.exact:
        return found or off
    # Less than is restored is no failure to restore it.
    most = max(options.accuracy, unrestored(options.tol))
    return moments_lost(memory.lost_moments, box, work.t, most, first.share) or off
