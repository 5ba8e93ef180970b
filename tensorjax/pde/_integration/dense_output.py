"""States of an integration at any time: a step of the method from the state before it."""

import bisect
from typing import Any

from tensorjax.pde._integration import run
from tensorjax.pde._integration.failure_diagnosis import Options
from tensorjax.pde._integration.solution import Result, State
from tensorjax.pde._stepping.step_sizes import ConstantStepSize


class DenseOutput:
    """Dense output of a time integration: the state at any time, by a partial step.

    From the state before a time the integrator takes the step that ends there, with the motion of
    the coordinates that it had: the error is that of one step shorter than the one that was
    accepted. No polynomial is fitted through trains of higher rank.

    Args:
      options: of the run.
      first: state at its beginning.
    """

    def __init__(self, options: Options, first: State):
        self.options = options._replace(controller=ConstantStepSize())
        self.states = [first]

    def append(self, state: State) -> None:
        """Appends the state after an accepted time step to the dense output."""
        self.states.append(state)

    def at(self, t: float) -> State:
        """Returns the dense output: the state at any time within a time integration.

        Raises:
          ValueError: a time outside the run, or a step that fails.
        """
        times = [s.t for s in self.states]
        if not times[0] <= t <= times[-1]:
            raise ValueError(f"t: expected a time in [{times[0]:g}, {times[-1]:g}], got {t!r}")
        k = bisect.bisect_right(times, t) - 1
        return self.states[k] if t == times[k] else partial(self.options, self.states[k], t).state()


def partial(options: Options, state: State, t: float) -> run.Run:
    """Computes the dense output at a time t, by a partial step from the saved state before it."""
    options = options._replace(controller=ConstantStepSize())
    work: Any = run.begin(options, state, state.map, state.t, t - state.t)
    work.memory.dt = t - state.t
    stop = work.advance(t)
    if stop is not None:
        raise ValueError(
            f"t: the step to {t:g} failed ({Result(stop.result).value}): {stop.message}"
        )
    return work
