"""Options, progress and report of `cross`: status, error, where f was searched, advice in words."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

from tensorjax.tt._cross.function_calls import Evaluations

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
    """Progress information that `cross` passes to its callback after every sweep.

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


ADVICE: dict[str, str] = {
    "converged": "",
    "max_rank": "max_rank is too small for tol: raise it, or ask for less accuracy",
    "budget": "max_evaluations is too small for tol: raise it and go on with resume=, start from "
    "x0=, or ask for less",
    "max_sweeps": "ranks were still growing: raise max_sweeps",
    "stalled": "no entry was found whose fit would lower the error: f may be noisy at the level "
    "of the error, or vary too fast for low ranks; ask for less accuracy, reorder or refine the "
    "modes (see tt.quantics_grid), or start from x0=",
    "stopped": "the callback returned True",
    "unseen": "random entries meet too little of what was found for its error to be known: another "
    "part of f as small would have escaped; if there is none, or to look elsewhere too, give "
    "pivots=, multi-indices where f is large, or x0=; search= looks at more",
    "failed": "f raised an error or was interrupted, see message: mend f, and go on with resume=",
    "zero": "every entry seen is zero: if f is not, give pivots=, multi-indices where f is large, "
    "or an x0= that is large where f is",
}
ALL_ZERO = "f is zero: all entries were read"


def told(std: float) -> str:
    """Words for the message of `cross` on an error that its samples do not tell; else none."""
    return "; that is at the samples alone, elsewhere nothing is known" if math.isinf(std) else ""


@dataclasses.dataclass(frozen=True)
class CrossInfo:
    """Report of a cross approximation: status, error estimate, evaluations, ranks, advice.

    Attributes:
      status: "converged"; or "max_rank", "budget", "max_sweeps", "stalled", "stopped" (by the
        callback), "failed" (an error of f): the best train found is returned, with its error.
        "zero": every entry seen is zero, and the error is not known (inf). "unseen": the train fits
        f wherever it is large and wherever f was looked at, but that is so small a part of all
        entries that random ones would not have met another one like it; or its last errors were
        large and at few entries, as where f jumps, or a train within ``tol`` was found wrong at
        edges, and others like these may be left; or f jumps, the train is not exact, and what the
        random entries may have missed is above ``tol``.
        ``error_std`` is inf.
      error: estimated ‖f − t‖ / ‖f‖, from ``held_out`` entries that t was not fitted to: random
        ones, and entries drawn from |t|² where few random ones are large.
      error_std: standard error of that estimate; 0 only if all entries of the tensor were read;
        inf if the search did not converge, and the held-out entries show less than ``tol`` while
        it met others that are wrong; or random ones hardly meet f (unless x0 or pivots are given);
        or one of them has nearly all of the error.
        If f has few values, or one at most entries, it is what random entries may have missed:
        such a function jumps, and what is wrong is wrong by as much as f is large.
      held_out: number of those entries.
      evaluations: multi-indices at which f was evaluated: all different, held-out ones included,
        but for eight that tell whether f has a state, and where ``cache`` was too small.
      cache_hits: entries that were asked for again and taken from memory.
      sweeps: half-sweeps over the bonds.
      ranks: TT-ranks of the result.
      seconds: time taken.
      programs: programs compiled for a JAX function, one for each batch size of few.
      advice: what to do next, in words; empty if converged, unless f is zero everywhere.
      searched: entries at which errors were sought beside the fit, random and others.
      record: the values of f, for a search that goes on from here with ``resume``: those that
        ``cache`` held at the end.
      message: the status, the error and what was searched, in one sentence. A part of f at fewer
        entries than it says can escape any search, "converged" or not.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> f = lambda i: 1.0 * i.sum(axis=1)
      >>> t, info = tt.cross(f, (4, 4, 4), tol=1e-4, key=jax.random.key(0))
      >>> info.status, info.evaluations <= 64, info.advice
      ('converged', True, '')

    Source: ours.
    """

    status: Status
    error: float
    error_std: float
    held_out: int
    evaluations: int
    cache_hits: int
    sweeps: int
    ranks: tuple[int, ...]
    seconds: float
    programs: int
    advice: str
    searched: int = 0
    message: str = ""
    record: Evaluations | None = dataclasses.field(default=None, repr=False, compare=False)


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
