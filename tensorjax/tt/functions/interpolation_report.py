"""Report of an interpolation by functional trains: status, errors, what was searched, advice."""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._cross.cross import CrossInfo
from tensorjax.tt.functions.bases import Basis
from tensorjax.tt.functions.error_points import ErrorPoints
from tensorjax.tt.functions.function_train import FunctionTrain

InterpolateStatus = Literal[
    "converged", "basis", "max_rank", "budget", "max_sweeps", "stalled", "stopped", "unseen",
    "failed", "zero",
]  # fmt: skip
_HARDLY = 0.9
_MISSED = (
    "next to nothing of f was found: random points do not meet what is concentrated in a small "
    "part of the box; give a smaller box about it, and zero elsewhere"
)
_ZERO = (
    "every point seen is zero: if f is not, give a smaller box, or pivots=, points where f is large"
)
_BASIS = (
    "the bases do not resolve f: raise max_degree or give larger bases, split the domain where f "
    "or a derivative jumps, take tt.functions.BSpline there, or ask for less accuracy"
)


@dataclasses.dataclass(frozen=True)
class InterpolateInfo:
    """Report of an interpolation by a functional train: status, errors off the grid, evaluations.

    Attributes:
      status: "converged": the measured error is below the tolerance by two standard errors;
        "basis": f is not resolved by the bases given, or by the largest degree; "zero": every point
        seen is zero; or the status of `tensorjax.tt.cross` that kept the train from its accuracy,
        or, as "unseen", made the error unknown.
      error: root mean square of the difference over that of f, at points of the box to which the
        train was not fitted: random ones, and if few of these see f, ones drawn from the train.
      error_std: standard error of that estimate; inf where the cross approximation cannot know.
      max_error: largest difference over the largest |f| at these points.
      evaluations: points at which f was evaluated, all tries and tests together.
      bases: of the result, one a variable.
      ranks: TT-ranks of the result.
      cross: `CrossInfo` of the last cross approximation.
      seconds: time taken.
      advice: what to do next, in words; empty if converged.
      searched: points at which errors were sought: random ones of the box, those of boxes about
        parts of f that were found late, and those drawn from the train.
      message: the status, the error and what was searched, in one sentence. A part of f in less of
        the box than it says can escape any search, "converged" or not.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> f, info = tt.functions.interpolate(lambda x: np.abs(x[:, 0]), [(-1, 1)], tol=1e-5)
      >>> info.status, info.advice.split(":")[0]
      ('basis', 'the bases do not resolve f')

    Source: ours.
    """

    status: InterpolateStatus
    error: float
    error_std: float
    max_error: float
    evaluations: int
    bases: tuple[Basis, ...]
    ranks: tuple[int, ...]
    cross: CrossInfo
    seconds: float
    advice: str
    searched: int = 0
    message: str = ""


class Fit(NamedTuple):
    """Functional train interpolated by one cross approximation, with its error at random points."""

    bases: list[Basis]
    cores: Cores
    cast: Cores
    tails: list[float]
    error: float
    std: float
    largest: float
    info: CrossInfo

    @property
    def bound(self) -> float:
        """Upper bound of an interpolation's error: two standard errors above the estimate."""
        return self.error + 2 * self.std


def reported(
    found: Fit,
    tol: float,
    tests: ErrorPoints,
    out: FunctionTrain,
    spent: int,
    seconds: float,
    *,
    zero: bool,
) -> InterpolateInfo:
    """Builds the report of a finished interpolation; ``zero``: whether all values of f were."""
    status: Any = "converged" if found.bound <= tol else "basis"
    unknown = found.info.status in ("unseen", "zero", "failed", "stopped")
    if unknown or (status == "basis" and found.info.status != "converged"):
        status = found.info.status
    if found.error == 0 and not all(c.any() for c in found.cast):
        if zero:
            status = "zero"
        else:  # nothing of it is in the train, nor did random points meet it
            status, found = "basis", found._replace(error=math.inf, std=math.inf)
    # An error of one says that next to nothing of f is in the train.
    basis = _MISSED if found.error > _HARDLY else _BASIS
    advice = {"converged": "", "basis": basis, "zero": _ZERO}.get(status, found.info.advice)
    std = found.std if status != "unseen" and status != "zero" else math.inf
    return InterpolateInfo(
        status, found.error, std, found.largest, spent, out.bases, out.ranks, found.info,
        seconds, advice, len(tests.x), _message(status, found.error, std, tol, tests),
    )  # fmt: skip


def _message(status: str, error: float, std: float, tol: float, tests: ErrorPoints) -> str:
    """Describes in words how an interpolation ended, and where f was searched for errors."""
    others = len(tests.x) - tests.random
    return (
        f"{status}: error {error:.1e} with standard error {std:.1e}, {tol:.1e} asked; searched: "
        f"{tests.random} random points of the box and {others} others; what f does in less than "
        f"{3 / tests.random:.1e} of the box may have escaped"
    )
