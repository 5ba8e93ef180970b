"""Interpolation of functions of several variables by cross approximation of their values."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, overload

import jax
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import times_mode, times_right
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax._typing import Key
from tensorjax.tt._cross.cross import CrossInfo, cross
from tensorjax.tt.functions.bases import Basis
from tensorjax.tt.functions.chebyshev import checked_domain
from tensorjax.tt.functions.degree_choice import (
    first_bases,
    of_degree,
    slice_norms,
    without_tails,
)
from tensorjax.tt.functions.error_points import ErrorPoints
from tensorjax.tt.functions.function_train import FunctionTrain, times_modes
from tensorjax.tt.functions.function_values import CheckedValues, Values, times_power
from tensorjax.tt.functions.peaks import Peaks

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
# Points of the box at which the error is measured.
_TESTED = 1000
# Powers of two that the largest value may be off one, so that squares of small ones are in range.
_FAR = 200
# Part of the tolerance that is asked of the cross approximation, and that left-out degrees may use.
_CROSS, _TRIM = 1 / 3, 0.02
# Last coefficients above this part of the tolerance ask for a higher degree.
_TAIL = 0.03
# Two rounds in a row that lower the error by no more than this are the last ones.
_ROUNDS, _LOWER = 12, 0.9
# Statuses of a cross approximation that no other degree or tolerance changes.
_ENDED = ("budget", "stopped", "failed", "zero")


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


@overload
def interpolate(
    f: Callable[[Any], Any],
    domain: Sequence[Any],
    *,
    tol: float,
    key: Key | None = None,
    max_degree: int = 256,
    max_rank: int | None = None,
    max_evaluations: int | None = None,
    vectorized: bool = True,
    components: None = None,
    **options: Any,
) -> tuple[FunctionTrain, InterpolateInfo]: ...


@overload
def interpolate(
    f: Callable[[Any], Any],
    domain: Sequence[Any],
    *,
    tol: float,
    key: Key | None = None,
    max_degree: int = 256,
    max_rank: int | None = None,
    max_evaluations: int | None = None,
    vectorized: bool = True,
    components: int,
    **options: Any,
) -> tuple[tuple[FunctionTrain, ...], InterpolateInfo]: ...


def interpolate(
    f: Callable[[Any], Any],
    domain: Sequence[Any],
    *,
    tol: float,
    key: Key | None = None,
    max_degree: int = 256,
    max_rank: int | None = None,
    max_evaluations: int | None = None,
    vectorized: bool = True,
    components: int | None = None,
    **options: Any,
) -> tuple[FunctionTrain | tuple[FunctionTrain, ...], InterpolateInfo]:
    """Interpolates a function of d variables on a box by a functional train, from few evaluations.

    The values at a grid of nodes are a tensor, of which `tensorjax.tt.cross` makes a train, and the
    modes of which are then brought from values to coefficients. Chebyshev degrees are chosen for
    each variable by the coefficients along a few lines, through random points and through peaks of
    f, and raised while the error off the grid asks for it. Ascents along the lines lead to the
    peaks; if random points see little of f, there are several, and the cross starts from the peaks.

    Args:
      f: maps points (batch, d) to values (batch,), or with ``components`` to (batch, components),
        which cost no more; real or complex, of NumPy or JAX.
      domain: for each variable a pair (low, high), for Chebyshev polynomials of a degree that is
        chosen, or a basis, which is kept as it is.
      tol: relative error, of the root mean square over the box.
      key: `jax.random.key`; of seed 0 if None.
      max_degree: largest Chebyshev degree.
      max_rank: of the result; no limit if None.
      max_evaluations: of f, at least 20; no limit if None.
      vectorized: False if f takes one point (d,), and gives a scalar or (components,).
      components: number of components of a vector-valued f; None if its values are scalars.
      options: others of `tensorjax.tt.cross`, as ``pivots`` (points where f is large, which the
        lines go through too), ``search``, ``jit``, ``executor`` and ``dtype``.

    Returns:
      The `FunctionTrain`, or with ``components`` a tuple of one for each, and an `InterpolateInfo`
      with status and measured error, of all components together.

    Raises:
      ValueError: intervals that are infinite, empty or reversed; NaN, Inf or wrong shapes of values
        of f; a tolerance below 10 eps of their dtype.
      TypeError: a call under a JAX transformation.

    Example:
      >>> import jax, numpy as np
      >>> from tensorjax import tt
      >>> f, info = tt.functions.interpolate(
      ...     lambda x: 1 / (1 + (x**2).sum(axis=1)), [(-1, 1)] * 4, tol=1e-4
      ... )
      >>> info.status, info.error <= 1e-4, bool(abs(f([0.0, 0.0, 1.0, 1.0]) - 1 / 3) < 1e-3)
      ('converged', True, True)

    Source: Gorodetsky, Karaman, Marzouk (2019); Bigoni, Engsig-Karup, Marzouk (2016); B. Hashemi,
    L. N. Trefethen, "Chebfun in three dimensions", SIAM J. Sci. Comput. 39 (2017), the degrees from
    lines. Ours: lines through peaks; the measured error, which degrees and tolerances follow.
    """
    started = time.perf_counter()
    tol = _check.tolerance(tol, np.float64)
    key = jax.random.key(0) if key is None else key
    rng = _check.host_generator(key, "; interpolation calls f from the host and cannot be traced")
    bases, free = checked_domain(domain)
    most = _check.integer("max_degree", max_degree, low=1)
    budget = (
        math.inf
        if max_evaluations is None
        else _check.integer("max_evaluations", max_evaluations, low=20)
    )
    shape = () if components is None else (_check.integer("components", components, low=1),)
    checked = CheckedValues(f, shape, vectorized, options.get("executor"))
    values = Values(checked, budget, [0])
    count = int(min(_TESTED, budget // 5))
    options = {"key": key, "max_rank": max_rank, "vectorized": vectorized, **options}
    tests = ErrorPoints(values, bases, count, rng)
    power = linalg.exponent_of(tests.true)
    if abs(power) > _FAR and tests.true.any():  # squares of these values may be zero or infinite
        near = functools.partial(times_power, f, -power)
        left = None if max_evaluations is None else max(20, int(values.left))
        out, info = interpolate(
            near, domain, tol=tol, max_degree=most, max_evaluations=left, **options
        )
        parts = [t._shift(power) for t in (out if isinstance(out, tuple) else (out,))]
        info = dataclasses.replace(info, evaluations=info.evaluations + values.spent[0])
        return (tuple(parts) if isinstance(out, tuple) else parts[0]), info
    tol = _check.tolerance(tol, checked.dtype)
    options.setdefault("dtype", checked.dtype)  # of half precision none follows by itself
    least = 10 * linalg.epsilon(checked.dtype)
    given = _given(options.get("pivots"), len(bases))
    seen = np.concatenate([tests.true, values(given)]) if len(given) else tests.true
    peaks = Peaks(np.concatenate([tests.x, given]), seen, len(given), rng)
    first = first_bases(values, bases, free, tol, most, peaks, rng)
    if peaks.concentrated and len(peaks.points):
        options["pivots"] = peaks.points
    work = _Work(f, values, tests, tol, least, free, most, options)
    found = work.run(first)
    parts = [
        FunctionTrain._unchecked(tuple(found.bases), TT._unchecked(tuple(jax.device_put(cores))))
        for cores in _components(found.cast, len(bases))
    ]
    seconds = time.perf_counter() - started
    info = _info(found, tol, parts[0], values.spent[0], seconds, zero=checked.zero)
    return (parts[0] if components is None else tuple(parts)), info


def _given(pivots: Any, dims: int) -> np.ndarray:
    """Returns the points (m, d) given to an interpolation as ``pivots=``; none for indices."""
    rows = np.empty((0, dims)) if pivots is None else np.asarray(pivots)
    return rows if rows.dtype.kind == "f" and rows.shape[1:] == (dims,) else np.empty((0, dims))


def _components(cores: Cores, dims: int) -> list[Cores]:
    """Splits the train of an interpolation of components, its last mode, into one for each."""
    if len(cores) == dims:
        return [cores]
    *first, last, mode = cores
    return [[*first, times_right(last, mode[:, j])] for j in range(mode.shape[1])]


class _Fit(NamedTuple):
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
        return self.error + 2 * self.std


@dataclasses.dataclass
class _Work:
    """Interpolation by functional trains that is under way: values at test points, options."""

    f: Callable[[Any], Any]
    values: Values
    tests: ErrorPoints
    tol: float
    least: float  # tolerance of a cross approximation
    free: list[int]
    most: int
    options: dict[str, Any]

    def run(self, bases: list[Basis]) -> _Fit:
        """Interpolates with higher degrees, or more accurately, until the error is reached."""
        wanted, best, before, idle = _CROSS * self.tol, None, None, 0
        for _ in range(_ROUNDS):
            found = self.fit(bases, wanted, before)
            idle = idle + 1 if best is not None and found.bound > _LOWER * best.bound else 0
            best = found if best is None or found.bound < best.bound else best
            if (
                found.bound <= self.tol
                or found.info.status in _ENDED
                or self.values.left < 20
                or idle == 2
            ):
                break
            grown = self.grown(bases, found)
            if grown is not None:
                bases, before = grown, found
            elif _cross_error(found.info) > _CROSS * self.tol and wanted > self.tol / 100:
                break  # it cannot reach what it was asked for
            elif wanted / 4 >= 10 * float(np.finfo(found.cast[0].dtype).eps):
                wanted, before = wanted / 4, found
            else:
                break
        assert best is not None
        return best

    def fit(self, bases: list[Basis], tol: float, before: _Fit | None) -> _Fit:
        """Interpolates the function in given bases by one cross approximation."""
        options = dict(self.options)
        if before is not None:
            nodes = {
                k: b.values(n.nodes)
                for k, (b, n) in enumerate(zip(before.bases, bases, strict=True))
            }
            options["x0"] = times_modes(TT(before.cast), nodes)
        if math.isfinite(self.values.left):
            options["max_evaluations"] = int(max(self.values.left, 1))
        shape = tuple(b.size for b in bases)
        t, info = cross(
            self.f, shape, tol=max(tol, self.least), grid=[b.nodes for b in bases], **options
        )
        self.values.spent[0] += info.evaluations
        wide = np.result_type(t.dtype, np.float64)
        cores = [np.asarray(c).astype(wide) for c in t.cores]
        for k, b in enumerate(bases):
            cores[k] = times_mode(cores[k], b.from_values)
        norms = slice_norms(cores)[: len(bases)]
        tails = [float(_end(n) / (np.linalg.norm(n) or 1.0)) for n in norms]
        allowed = _TRIM * self.tol / len(bases) ** 0.5
        small, cores = without_tails(bases, self.free, cores, norms, allowed)
        cast = [c.astype(t.dtype) for c in cores]
        self.tests.follow(small, cast)
        return _Fit(small, cores, cast, tails, *self.tests.error(small, cast), info)

    def grown(self, bases: list[Basis], found: _Fit) -> list[Basis] | None:
        """Raises the degrees of variables that are not resolved; None if all are."""
        below = [k for k in self.free if bases[k].size <= self.most]
        long = [k for k in below if found.tails[k] > _TAIL * self.tol]
        if not long and _cross_error(found.info) <= self.tol / 2:
            long = below  # what is wrong lies between the nodes
        if not long:
            return None
        out = list(bases)
        for k in long:
            out[k] = of_degree(bases[k], min(self.most, 3 * bases[k].size // 2 + 2))
        return out


def _end(norms: np.ndarray) -> float:
    """Computes the norm of an interpolant's last coefficients in one variable, of two or more."""
    return float(np.linalg.norm(norms[-max(2, len(norms) // 8) :]))


def _cross_error(info: CrossInfo) -> float:
    return info.error + 2 * info.error_std


def _info(
    found: _Fit, tol: float, out: FunctionTrain, spent: int, seconds: float, *, zero: bool
) -> InterpolateInfo:
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
        seconds, advice,
    )  # fmt: skip
