"""Status, options and progress report of a search of `cross`."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

# A train this much more accurate than asked for seems to be exact.
_LIKE_ZERO = 0.01

Status = Literal[
    "converged",
    "max_rank",
    "budget",
    "max_sweeps",
    "stalled",
    "stopped",
    "unseen",
    "zero",
    "failed",
]


@dataclasses.dataclass(frozen=True)
class CrossProgress:
    """Progress report that `cross` passes to its callback after every sweep.

    Attributes:
      sweep: 1, 2, …; odd ones go from left to right.
      error: relative error at the held-out entries.
      error_std: standard error of that.
      evaluations: multi-indices evaluated so far.
      ranks: TT-ranks so far, before rounding.
      seconds: since the start.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> seen = []
      >>> f = lambda i: 1.0 * i.sum(axis=1)
      >>> _ = tt.cross(f, (10,) * 6, tol=1e-4, key=jax.random.key(0), callback=seen.append)
      >>> seen[0].sweep, seen[0].evaluations < 10**4
      (1, True)

    Source: ours.
    """

    sweep: int
    error: float
    error_std: float
    evaluations: int
    ranks: tuple[int, ...]
    seconds: float


@dataclasses.dataclass
class Options:
    """Checked options of `cross`: tolerance, caps, budgets of evaluations, held-out entries.

    ``held_out`` entries are held out first, ``wanted`` before a train counts as converged.
    """

    tol: float
    max_rank: int
    max_sweeps: int
    held_out: int
    wanted: int
    asked: int
    budget: float
    most_random: int
    search: float
    callback: Callable[[CrossProgress], Any] | None

    def like_exact(self, error: float) -> bool:
        """Whether an error of `cross` is so far below tolerance that its train seems exact."""
        return error <= _LIKE_ZERO * self.tol
