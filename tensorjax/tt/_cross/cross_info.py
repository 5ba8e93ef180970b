"""Report of `cross`: status, error, where f was searched for errors, and advice in words."""

import dataclasses

from tensorjax._formats.trains import TT
from tensorjax.tt._cross.function_calls import Evaluations
from tensorjax.tt._cross.held_out_error import Estimate
from tensorjax.tt._cross.options_and_progress import Status
from tensorjax.tt._cross.sampled_function import Oracle
from tensorjax.tt._cross.sweeps import Search

_ADVICE: dict[str, str] = {
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
_ALL_ZERO = "f is zero: all entries were read"


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
        inf if the held-out entries show less than ``tol`` while the search, which did not converge,
        met others that are wrong.
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


def reported(
    status: Status, estimate: Estimate, search: Search, oracle: Oracle, train: TT
) -> CrossInfo:
    """Builds the report of a finished cross approximation."""
    return CrossInfo(
        status=status,
        error=estimate.error,
        error_std=estimate.std,
        held_out=len(search.held.index),
        evaluations=oracle.evaluations,
        cache_hits=oracle.hits,
        sweeps=search.sweeps,
        ranks=train.ranks,
        seconds=search.seconds,
        programs=len(oracle.programs),
        advice=_advice(status, search, oracle),
        searched=search.held.uniform + search.globally.spent,
        message=_message(status, estimate, search, oracle),
        record=oracle.record(search.fit.options.held_out),
    )


def _advice(status: Status, search: Search, oracle: Oracle) -> str:
    """Returns the advice in the report of `cross`: what to do next, in words."""
    if search.held.all and oracle.largest == 0:
        return _ALL_ZERO
    if search.unsteady:
        return (
            f"f gave other values when it was asked for the same entries again, by "
            f"{search.unsteady:.0e} of its root mean square: it is noisy or has a state; make it "
            f"depend on its argument alone, or ask for a tol above its noise"
        )
    return _ADVICE[status]


def _message(status: Status, estimate: Estimate, search: Search, oracle: Oracle) -> str:
    """Describes in words how a cross approximation ended, and where f was searched for errors."""
    held, globally = search.held, search.globally
    said = search.failure or (
        f"{status}: error {estimate.error:.1e} with standard error {estimate.std:.1e}, "
        f"{search.tol:.1e} asked"
    )
    if held.all:
        return f"{said}; all {held.size} entries were read"
    part = 3 / max(1, held.uniform)
    return (
        f"{said}; searched, a sample of {oracle.evaluations} of {held.size:.3g} entries: "
        f"{held.uniform} random entries, {globally.spent} others and {globally.climbs} ascents of "
        f"the error; what f does at less than {part:.1e} of all entries may have escaped"
    )
