"""Error of an interpolation by functional trains: points where it is measured, and its report.

Random points of the box tell nothing of a function that is large in a small part of it. The train
itself says where that is: points drawn from its square are then looked at too, and each point is
weighted by the inverse of its probability under both ways of drawing (multiple importance sampling
with the balance heuristic: E. Veach, L. Guibas, SIGGRAPH 1995).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from tensorjax._cores.contractions import times_mode
from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._cross.cross_info import CrossInfo, told
from tensorjax.tt._cross.held_out_error import Estimate
from tensorjax.tt._cross.train_entries import Sampler
from tensorjax.tt.functions.bases import Basis
from tensorjax.tt.functions.degree_choice import uniform
from tensorjax.tt.functions.evaluation import host_values
from tensorjax.tt.functions.function_train import FunctionTrain
from tensorjax.tt.functions.interpolated_function import Values
from tensorjax.tt.functions.peaks import TELLING, standing_out, telling

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
_FAILED = "f raised an error or was interrupted, see message: mend f, and call again"
_EPS = float(np.finfo(np.float64).eps)
# Most test points of a box about a large error.
_IN_A_BOX = 500
# Most random points to look at while f is zero at all of them.
_MOST_ZEROS = 20_000


class ErrorPoints:
    """Points at which a functional train's error is measured: values of f that it is not fitted to.

    Attributes:
      x: points (m, d), random ones first.
      true: values of f there, (m, components).
    """

    def __init__(
        self, values: Values, bases: Sequence[Basis], count: int, rng: np.random.Generator
    ):
        self._values, self._rng = values, rng
        self.x = uniform(bases, count, rng)
        self.true = values(self.x)
        while not self.true.any() and len(self.x) < min(_MOST_ZEROS, values.left // 4):
            x = uniform(bases, len(self.x), rng)
            self.x = np.concatenate([self.x, x])
            self.true = np.concatenate([self.true, values(x)])
        self._count = len(self.x)
        self._boxes: list[tuple[np.ndarray, np.ndarray, int]] = []
        self._lengths = np.array([b.high - b.low for b in bases])
        self._weigh()

    @property
    def random(self) -> int:
        """Number of uniformly random points of the box at which an interpolation is tested."""
        return self._count

    @property
    def unseen(self) -> float:
        """Standard error of an interpolation that remains where f was the same at every point.

        As for `tt.cross`: n points miss a part of the box of 3 / n with probability 5 %, and what f
        does there, which nothing tells, is taken to be as large as f.
        """
        same = (self.true[: self._count] == self.true[0]).all()
        return math.sqrt(3 / self._count) / 2 if same else 0.0

    @property
    def blind(self) -> bool:
        """Whether too few random points see f: those drawn from a train miss what it lacks."""
        return telling(self._sizes[: self._count] ** 2) < TELLING

    @property
    def _sizes(self) -> np.ndarray:
        return np.linalg.norm(self.true, axis=1)

    @property
    def rms(self) -> float:
        """Root mean square of f over the box, estimated from an interpolation's test points."""
        top = float(self._sizes.max()) or 1.0
        parts = self._weights * (self._sizes / top) ** 2
        return top * float(np.sqrt(parts.sum() / self._weights.sum()))

    @property
    def _fixed(self) -> int:
        """Number of an interpolation's test points drawn independently of its tensor train."""
        return self._count + sum(count for _, _, count in self._boxes)

    def extend(self, bases: Sequence[Basis], count: int) -> None:
        """Adds uniformly random test points of the box, at which an interpolation is measured."""
        x, u = uniform(bases, count, self._rng), self._count
        true = self._values(x)
        self.x = np.concatenate([self.x[:u], x, self.x[u : self._fixed]])
        self.true = np.concatenate([self.true[:u], true, self.true[u : self._fixed]])
        self._count += count
        self._weigh()

    def look_at(self, low: np.ndarray, high: np.ndarray) -> None:
        """Adds random test points of a sub-box, at which an interpolation's error is measured."""
        count = int(min(self._count // 2, _IN_A_BOX, self._values.left // 4))
        if count < TELLING:
            return
        x, fixed = low + (high - low) * self._rng.random((count, len(low))), self._fixed
        true = np.concatenate([self.true[:fixed], self._values(x)])
        self.x, self.true = np.concatenate([self.x[:fixed], x]), true
        self._boxes.append((low, high, count))
        self._weigh()

    def _weigh(self, drawn: np.ndarray | float = 0.0) -> None:
        """Computes importance weights of test points of an interpolation, random and drawn."""
        density = self._count + drawn * np.ones(len(self.x))
        for low, high, count in self._boxes:
            part = np.exp(np.log((high - low) / self._lengths).sum())
            density += count * ((self.x >= low) & (self.x <= high)).all(axis=1) / part
        self._weights = 1 / density

    def follow(self, bases: Sequence[Basis], cores: Cores) -> None:
        """Draws test points with density |t|² of a functional train, if too few points see f."""
        count = int(min(self._count // 2, self._values.left // 4))
        if count < TELLING or telling(self._weights * self._sizes**2) >= TELLING:
            return
        source = _Density(bases, cores)
        if not source.proper:
            return
        x, fixed = source.draw(count, self._rng), self._fixed
        true = np.concatenate([self.true[:fixed], self._values(x)])
        self.x, self.true = np.concatenate([self.x[:fixed], x]), true
        self._weigh(count * np.exp(np.minimum(source.log_density(self.x), 600.0)))

    def worst(self, bases: Sequence[Basis], cores: Cores, *, far: bool = True) -> np.ndarray | None:
        """Returns the test point of a functional train's worst error; None if not far above all."""
        found = host_values(bases, cores, self.x).reshape(self.true.shape)
        wrong = np.linalg.norm(found - self.true, axis=1)
        place = standing_out(wrong) if far else int(wrong.argmax())
        return None if place is None else self.x[place]

    def error(self, bases: Sequence[Basis], cores: Cores) -> tuple[float, float, float]:
        """Measures a functional train's error: relative error, its deviation, largest error."""
        found = host_values(bases, cores, self.x).reshape(self.true.shape)
        difference, size = np.linalg.norm(found - self.true, axis=1), self._sizes
        top = size.max()
        if not difference.any():  # of a sample: 0 would say that the error is known
            return 0.0, _EPS, 0.0
        if not top:
            return math.inf, math.inf, math.inf
        parts = [self._weights * (d / top) ** 2 for d in (difference, size)]
        spread = [float(p.std() / p.mean()) / len(p) ** 0.5 for p in parts]
        error = float(np.sqrt(parts[0].mean() / parts[1].mean()))
        return error, error * math.hypot(*spread) / 2, float(difference.max() / top)


class _Density:
    """Density |t|² of a functional train, from which an interpolation's test points are drawn.

    Attributes:
      proper: whether the train is not zero.
    """

    def __init__(self, bases: Sequence[Basis], cores: Cores):
        self._edges = [_cells(b) for b in bases]
        widths = [np.diff(e) for e in self._edges]
        at_nodes = [
            b.values(b.nodes) * np.sqrt(w)[:, None] for b, w in zip(bases, widths, strict=True)
        ]
        weighted = [times_mode(c, m) for c, m in zip(cores, at_nodes, strict=False)]
        self._sampler = Sampler([*weighted, *cores[len(bases) :]])
        self._log_widths = [np.log(w / w.sum()) for w in widths]
        self.proper = self._sampler.log_norm > -math.inf

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draws test points (count, d) of an interpolation from the squared density |t|²."""
        index = self._sampler.draw(count, rng)[:, : len(self._edges)]
        u = rng.random(index.shape)
        ends = [(e[i], e[i + 1]) for e, i in zip(self._edges, index.T, strict=True)]
        return np.stack([a + (b - a) * v for (a, b), v in zip(ends, u.T, strict=True)], axis=1)

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Returns a log-density at test points of an interpolation, relative to uniform."""
        index = [np.searchsorted(e[1:-1], v) for e, v in zip(self._edges, x.T, strict=True)]
        cells = sum(w[i] for w, i in zip(self._log_widths, index, strict=True))
        return self._sampler.log_density(np.stack(index, axis=1)) - cells


def _cells(basis: Basis) -> np.ndarray:
    """Returns the ends (n + 1,) of cells about basis nodes, from which test points are drawn."""
    nodes = basis.nodes
    return np.concatenate([[basis.low], (nodes[1:] + nodes[:-1]) / 2, [basis.high]])


@dataclasses.dataclass(frozen=True)
class InterpolateInfo:
    """Report of an interpolation's error off the grid, with its status and evaluations.

    Attributes:
      status: "converged": the measured error is below the tolerance by two standard errors;
        "basis": f is not resolved by the bases given, or by the largest degree; "zero": every point
        seen is zero; or the status of `tensorjax.tt.cross` that kept the train from its accuracy,
        or, as "unseen", made the error unknown. "failed": with ``on_error="return"``, f raised an
        error, in a test of a train that meets the tolerance too, or there was an interrupt.
      error: root mean square of the difference over that of f, at points of the box to which the
        train was not fitted: random ones, and if few of these see f, ones drawn from the train.
      error_std: standard error of that estimate, never 0, as only a sample of points is seen; inf
        where the cross approximation cannot know, and, unless "converged", where few random points
        meet f, or one point has nearly all of the error. Of an f that is the same at all points,
        what they may have missed: as much as f itself in a small part of the box.
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
        the box than it says can escape any search, "converged" or not; if it is larger than said
        there too, the error may be above the tolerance.

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
    failure: str,
) -> InterpolateInfo:
    """Builds the report of a finished interpolation's error.

    Args:
      zero: whether f was zero everywhere.
      failure: error of f that ended it; empty if none did.
    """
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
    alone = Estimate(found.error, found.std).of_one and not tests.unseen
    unknown = status in ("unseen", "zero") or (status != "converged" and (tests.blind or alone))
    std = math.inf if unknown else max(found.std, tests.unseen)
    status = "failed" if failure else status
    advised = {"converged": "", "basis": basis, "zero": _ZERO, "failed": _FAILED}
    advice = advised.get(status, found.info.advice)
    said = f"failed: {failure}; " if failure else f"{status}: "
    return InterpolateInfo(
        status, found.error, std, found.largest, spent, out.bases, out.ranks, found.info,
        seconds, advice, len(tests.x), said + _message(found.error, std, tol, tests),
    )  # fmt: skip


def _message(error: float, std: float, tol: float, tests: ErrorPoints) -> str:
    """Describes in words an interpolation's error, and where f was searched for errors."""
    others, part = len(tests.x) - tests.random, 3 / tests.random
    return (
        f"error {error:.1e} with standard error {std:.1e}, {tol:.1e} asked{told(std)}; "
        f"searched, a sample: "
        f"{tests.random} random points of the box and {others} others; what f does in less than "
        f"{part:.1e} of the box may have escaped, and would matter if larger than "
        f"{tol * tests.rms / part**0.5:.1e}"
    )
