"""Report of an integral by cross approximation: status, error and its parts, advice."""

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np

from tensorjax._formats.trains import TT
from tensorjax.tt._cross.cross import CrossInfo

IntegrateStatus = Literal[
    "converged", "quadrature", "precision", "jumps", "max_rank", "budget", "max_sweeps", "stalled",
    "stopped", "zero", "unseen",
]  # fmt: skip
_ADVICE: dict[str, str] = {
    "converged": "",
    "quadrature": "the rule has too few points for f: raise points=, split the domain where f or a "
    'derivative jumps, or take rule="trapezoidal" with points=2**30',
    "precision": "the integral is so small beside f that roundoff hides it: give atol=, an "
    "absolute error to reach, or ask for less accuracy",
    "jumps": "f has few values, so what random points missed would be wrong by as much as f is "
    "large: ask for less accuracy, or split the domain where f jumps",
    "max_rank": "max_rank is too small for tol: raise it, or ask for less accuracy",
    "budget": "max_evaluations is too small for tol: raise it, or ask for less accuracy",
    "max_sweeps": "ranks were still growing: ask for less accuracy, or split the domain",
    "stalled": "f may be noisy at the level of the error, or vary too fast for low ranks: ask for "
    "less accuracy, reorder the variables, or split the domain where f jumps",
    "unseen": "f is large in so small a part of the domain that another part of it as small would "
    "have escaped: give a smaller domain about it",
    "zero": "every point seen is zero: if f is not, give a smaller domain about the part where it "
    "is large",
}
_UNBOUNDED = (
    "; on an unbounded domain shift and scale the variables, so that f varies at distances of "
    "about one from 0 or the end"
)
_OF_SCALE = ("quadrature", "unseen", "zero", "stalled")
_ROUNDOFF = 1e-12  # relative to f, for which no refinement helps


@dataclasses.dataclass(frozen=True)
class IntegrateInfo:
    """Report of an integral by cross approximation: status, error and its parts, evaluations.

    Attributes:
      status: "converged"; "quadrature": the rule's own error is above the tolerance; "precision":
        the integral is too small beside f for roundoff; "jumps": f has few values, and random
        points tell no more about its integral; or the status of `tensorjax.tt.cross` that kept
        the train from its accuracy.
      error: estimated absolute error, the sum of the two below; of the largest component if f has
        several. It is above the tolerance, if "converged", where f is the same at all points and
        not zero: as large as f may be in the part that these may have missed. inf where the cross
        approximation cannot know its error.
      quadrature_error: estimated one dimension at a time: for Gauss rules from the decay of the
        Legendre series of the integral over all others, and from f at random points between the
        nodes if that differs from the polynomial through them by a tenth; for trapezoidal ones from
        the rule on half of the points. For Kronrod rules with 31, 63, 127, … points, and a series
        that decays steadily by a power of the degree, as at a kink or a logarithm, it may be the
        lower one from rules on a half, a quarter and an eighth of the points; else, as at jumps, it
        may be far too large. Structure between nodes that no random point meets escapes.
      cross_error: from f at points drawn with the weights, to which the train was not fitted: mean
        of the difference and two of its standard errors.
      evaluations: points at which f was evaluated, all tries together.
      points: of the rule, one number a dimension.
      ranks: TT-ranks of the train of f.
      cross: `CrossInfo` of the last cross approximation.
      seconds: time taken.
      advice: what to do next, in words; empty if converged.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> f = lambda x: np.exp(-x.sum(axis=1))
      >>> value, info = tt.integrate(f, [(0, 1)] * 5, tol=1e-4)
      >>> info.status, info.error <= 1e-4 * value, info.points
      ('converged', True, (15, 15, 15, 15, 15))

    Source: ours.
    """

    status: IntegrateStatus
    error: float
    quadrature_error: float
    cross_error: float
    evaluations: int
    points: tuple[int, ...]
    ranks: tuple[int, ...]
    cross: CrossInfo
    seconds: float
    advice: str


class Try(NamedTuple):
    """Report of one attempt at an integral by cross approximation: value, errors, points."""

    value: Any
    size: float
    by_dimension: np.ndarray
    unresolved: float
    unseen: float  # what an f that was the same everywhere may do where no random point was
    cross_error: float
    jumps: bool
    info: CrossInfo
    points: tuple[int, ...]
    train: TT

    @property
    def quadrature_error(self) -> float:
        return max(float(self.by_dimension.sum()), self.unresolved)

    @property
    def error(self) -> float:
        return self.quadrature_error + self.cross_error


def reported(
    found: Try, wanted: float, evaluations: int, seconds: float, *, finite: bool
) -> IntegrateInfo:
    """Builds the report of a finished integral; ``finite``: whether the domain is bounded."""
    status: Any = "converged"
    if found.error > wanted:
        status = found.info.status
        if status == "converged" or (status == "unseen" and found.jumps):
            rule = found.quadrature_error >= found.cross_error
            status = "quadrature" if rule else "jumps" if found.jumps else "precision"
            status = "precision" if found.error <= _ROUNDOFF * found.size else status
    return IntegrateInfo(
        status=status,
        error=found.error + found.unseen,
        quadrature_error=found.quadrature_error,
        cross_error=found.cross_error + found.unseen,
        evaluations=evaluations,
        points=found.points,
        ranks=found.info.ranks,
        cross=found.info,
        seconds=seconds,
        advice=_ADVICE.get(status, found.info.advice)
        + ("" if finite or status not in _OF_SCALE else _UNBOUNDED),
    )
