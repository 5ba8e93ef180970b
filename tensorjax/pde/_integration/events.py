"""Events that stop an integration: a function of the state changes sign, or the state rests."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from tensorjax import _check
from tensorjax.pde._arguments import hosted_cores
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.cross_approximation import from_train
from tensorjax.pde._integration import run
from tensorjax.pde._integration.dense_output import partial
from tensorjax.pde._integration.failure_diagnosis import Options, Stopped
from tensorjax.pde._integration.solution import Result, State
from tensorjax.pde._observables.values_and_moments import evaluate

# Points at which two states are compared.
_POINTS = 512
# Error of the time of an event, relative to the step in which it happens.
_LOCATED = 1e-6


class Event(NamedTuple):
    """Event that stops a time integration: a function of the state changes sign.

    Attributes:
      fn: maps a `State` to a number, continuous in time.
      direction: 1 for events at which it grows through zero, −1 for those at which it falls, 0 for
        both.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> process = pde.OrnsteinUhlenbeck(
      ...     [[-1.0]], 0.1, pde.Gaussian([2.0], [[0.1]]), pde.Box.fourier(1, 64, 5.0)
      ... )
      >>> def mean_less_one(state):
      ...     return pde.moments(state.v, state.map, process.box)[1][0] - 1.0
      >>> solution = pde.integrate(process, t1=5.0, event=pde.Event(mean_less_one))
      >>> solution.result.value, bool(abs(solution.final.t - np.log(2)) < 1e-4)
      ('stopped by an event', True)

    The name is diffrax's.
    """

    fn: Callable[[State], float]
    direction: int = 0


class SteadyState(NamedTuple):
    """Event that stops a time integration: the solution has become steady.

    u at the end of a time span is compared with u at its beginning, in the relative l2 norm,
    estimated from 512 points drawn where u is large: coordinates may move. It is noticed at the
    first step that ends a span at rest, and not located more closely: steps near rest may be long.

    Attributes:
      over: length of the span, about the time in which the slowest mode decays.
      change: largest relative change of u over the span; well above the tolerance of the run, whose
        truncation moves u a little in every step.

    Example:
      >>> from tensorjax import pde
      >>> process = pde.OrnsteinUhlenbeck(
      ...     [[-1.0]], 0.5, pde.Gaussian([1.0], [[0.2]]), pde.Box.fourier(1, 48, 5.0)
      ... )
      >>> solution = pde.integrate(process, t1=1e4, tol=1e-5, event=pde.SteadyState(over=1.0))
      >>> solution.result.value, bool(5 < solution.final.t < 200)
      ('stopped by an event', True)
    """

    over: float
    change: float = 1e-3


Events = Event | SteadyState | Sequence[Event | SteadyState] | None


class Watch:
    """Monitor of a time integration that detects when one of its events happens.

    Args:
      events: of the run.
      options: of the run.
      first: state at its beginning.
    """

    def __init__(self, events: Sequence[Event | SteadyState], options: Options, first: State):
        self.events = events
        self.options = options
        self._before = first
        self._values = [self._value(e, first) for e in events]
        self._marks = [first] * len(events)

    def after(self, work: run.Run) -> tuple[run.Run, Stopped] | None:
        """Checks an accepted time step; returns the run at the first event within it, or None.

        A function that is not finite ends the run with the state after the step.
        """
        state, hits = work.state(), []
        for k, event in enumerate(self.events):
            if isinstance(event, SteadyState):
                if self._rests(k, event, state):
                    hits.append((state.t, k, work))
                continue
            old, new = self._values[k], self._value(event, state)
            if not math.isfinite(new):
                text = f"event {k} is {new} at t = {state.t:g}: expected a finite number"
                return work, Stopped(Result.failed, text)
            if _crosses(old, new, event.direction):
                at = self._located(event, old, new, state.t)
                hits.append((work.t if at is None else at.t, k, at or work))
            self._values[k] = new if new else old
        self._before = state
        if not hits:
            return None
        t, k, at = min(hits, key=lambda h: h[:2])
        return at, Stopped(Result.event, f"event {k} at t = {t:.8g}")

    @staticmethod
    def _value(event: Event | SteadyState, state: State) -> float:
        return math.nan if isinstance(event, SteadyState) else float(event.fn(state))

    def _located(self, event: Event, old: float, new: float, end: float) -> run.Run | None:
        """Finds the zero of an event's function within the last time step by Brent's method."""
        begin, runs = self._before.t, {}

        def value(t: float) -> float:
            if t in (begin, end):
                return old if t == begin else new
            runs[t] = partial(self.options, self._before, t)
            return float(event.fn(runs[t].state()))

        if not new:
            return None
        root: Any = optimize.brentq(value, begin, end, xtol=_LOCATED * (end - begin))
        t = float(root)
        if t in (begin, end):
            return None
        return runs[t] if t in runs else partial(self.options, self._before, t)

    def _rests(self, k: int, event: SteadyState, state: State) -> bool:
        """Whether the solution changed less over a time span than a steady-state event allows."""
        mark = self._marks[k]
        if state.t - mark.t < event.over:
            return False
        self._marks[k] = state
        return change(mark, state, self.options.problem.box, self.options.tol) < event.change


def _crosses(old: float, new: float, direction: int) -> bool:
    if direction:
        old, new = direction * old, direction * new
        return old < 0 <= new
    return old * new <= 0 and old != 0


def change(before: State, after: State, box: Box, tol: float) -> float:
    """Estimates the relative change of u between two states, for the steady-state event."""
    draw = from_train(hosted_cores(after.v), tol)
    points = draw(np.random.default_rng(0), _POINTS)
    y = np.stack([p[i] for p, i in zip(box.points, points.index.T, strict=True)], 1)
    x = np.asarray(after.map.inverse(y))
    one, two = (np.asarray(evaluate(s.v, s.map, box, x)) for s in (before, after))
    weight = 1 / np.maximum(points.density, 1e-300)
    size = weight @ np.square(two)
    return float(np.sqrt(weight @ np.square(two - one) / size)) if size > 0 else 0.0


def checked_events(event: Events) -> tuple[Event | SteadyState, ...]:
    """Checks the events that stop a time integration; returns them as a tuple.

    Raises:
      ValueError: other objects, a span or change that is not positive, another direction.
    """
    given: Any = () if event is None else event
    given = (given,) if isinstance(given, Event | SteadyState) else tuple(given)
    for e in given:
        if isinstance(e, SteadyState):
            _check.number("over", e.over, low=0, open=True)
            _check.number("change", e.change, low=0, open=True)
        elif not isinstance(e, Event) or not callable(e.fn):
            raise ValueError(f"event: expected pde.Event(fn) or pde.SteadyState(over), got {e!r}")
        elif e.direction not in (-1, 0, 1):
            raise ValueError(f"event: expected a direction of -1, 0 or 1, got {e.direction!r}")
    return given
