"""Integrals of functions of many variables by cross approximation on the nodes of a rule."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from tensorjax import _check
from tensorjax._formats.random_arrays import folded_key
from tensorjax._formats.trains import TT
from tensorjax._typing import HostArray, Key
from tensorjax.tt._cross.cross import cross
from tensorjax.tt._cross.function_calls import double, numbers, unmasked
from tensorjax.tt._entries import evaluate
from tensorjax.tt._quadrature.domain_and_points import (
    Domain,
    checked_atol,
    checked_domain,
    checked_points,
)
from tensorjax.tt._quadrature.integral_info import IntegrateInfo, Try, reported
from tensorjax.tt._quadrature.rules import (
    NodeSet,
    gauss_nodes,
    trapezoidal_nodes,
    weighted_sum,
)

QuadratureRule = Literal["gauss-kronrod", "gauss-legendre", "trapezoidal"]
# Most points to which a rule is refined.
_MOST_POINTS = 255
_CHECKED = 500  # points at which the train is compared with f, at nodes and between them
_UNRESOLVED = 0.1  # relative error between the nodes from which on the series is not believed
_EPS = 4 * float(np.finfo(float).eps)
_TRIES = 12
_LEAST_EVALUATIONS = 20  # evaluations worth a try
# n random points miss a part of the domain that is larger than 3 / n with probability 5 %.
_MISSED = 3.0
_LEVELS, _MET = 8, 5  # values of a function that jumps, each met so often at the checked points


def integrate(
    f: Callable[[Any], Any],
    domain: Sequence[Any],
    *,
    tol: float,
    atol: float = 0.0,
    key: Key | None = None,
    rule: QuadratureRule = "gauss-kronrod",
    points: int | Sequence[int] | None = None,
    max_rank: int | None = None,
    max_evaluations: int | None = None,
    vectorized: bool = True,
    jit: bool | Literal["auto"] = "auto",
) -> tuple[float | complex | HostArray, IntegrateInfo]:
    """Integrates a function over a box by cross approximation at the nodes of a product rule.

    The values of f at all nodes are a tensor, of which `tensorjax.tt.cross` makes a train from few
    evaluations; the integral is its inner product with the weights. Tolerances of the cross
    approximation and numbers of nodes follow the measured errors.

    Args:
      f: maps points (batch, d) to values (batch,), or to (batch, m) for m integrals at once; real
        or complex, of NumPy or JAX.
      domain: d pairs (low, high); or one pair, of one dimension. Half-lines and the whole line, of
        ends ±inf, are substituted: x = a + u/(1 − u) from a on, x = u/(1 − u²) on the line. There f
        should vary at distances of about one from a or 0: scale its variables if it does not. The
        errors are those of the substituted integral.
      tol: relative error of the integral (of the largest one of several).
      atol: absolute error that suffices, for integrals that may be zero.
      key: `jax.random.key` of the cross approximation; of seed 0 if None.
      rule: "gauss-kronrod" or "gauss-legendre", for smooth functions; "trapezoidal" on a quantics
        grid, for functions that vary on many scales.
      points: nodes a dimension, one number or one a dimension: odd ones of at least 3 for
        "gauss-kronrod", powers of 2 from 4 to 2^53 for "trapezoidal". If None, as many as the
        measured error asks for, up to 255 (2^20 for "trapezoidal").
      max_rank: of the train; no limit if None.
      max_evaluations: of f, at least 20; no limit if None.
      vectorized: False if f takes one point (d,).
      jit: whether to compile f; see `tensorjax.tt.cross`.

    Returns:
      The integral, a number or NumPy array (m,), and an `IntegrateInfo` with status and error.

    Raises:
      ValueError: a domain that is empty or reversed, numbers of points that the rule does
        not have, NaN or Inf in values of f, a tolerance below 10 eps of their dtype.
      TypeError: a call under a JAX transformation.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> f = lambda x: 2.0**5 / (1 + 2 * x.sum(axis=1))
      >>> value, info = tt.integrate(f, [(0, 1)] * 5, tol=1e-5)
      >>> exact = -65205 * np.log(3) - 6250 * np.log(5) + 24010 * np.log(7) + 14641 * np.log(11)
      >>> info.status, bool(abs(value - exact / 24) < 1e-4)
      ('converged', True)

      ∫ exp(−|x|²) over the plane is π:

      >>> f = lambda x: np.exp(-(x**2).sum(axis=1))
      >>> value, info = tt.integrate(f, [(-np.inf, np.inf)] * 2, tol=1e-5)
      >>> info.status, bool(abs(value - np.pi) < 1e-4)
      ('converged', True)

    Source: S. Dolgov, D. Savostyanov, "Parallel cross interpolation for high-precision calculation
    of high-dimensional integrals", Comput. Phys. Commun. 246 (2020); Y. Núñez Fernández et al.,
    "Learning Feynman diagrams with tensor trains", Phys. Rev. X 12, 041018 (2022).
    Ours: the errors, and that tolerances and nodes follow them.
    """
    started = time.perf_counter()
    box = checked_domain(domain)
    ends = box.ends
    goal = _Goal(_check.tolerance(tol, np.float64), checked_atol(atol))
    counts, adapted = checked_points(points, rule, len(ends))
    key = jax.random.key(0) if key is None else key
    budget = (
        None
        if max_evaluations is None
        else _check.integer("max_evaluations", max_evaluations, low=20)
    )
    options = {"key": key, "max_rank": max_rank, "vectorized": vectorized, "jit": jit}
    used, fit_tol, best, before = 0, goal.tol, None, None
    for _ in range(_TRIES):
        left = None if budget is None else budget - used
        problem = _Problem(f, box, _nodes(rule, ends, counts), counts, vectorized)
        found, spent = _tried(problem, fit_tol, left, before, options)
        used += spent
        if best is None or found.points != best.points or found.error <= best.error:
            best = found
        wanted = goal(found.value)
        spent_all = budget is not None and budget - used < _LEAST_EVALUATIONS
        if found.error <= wanted or found.info.status != "converged" or found.jumps or spent_all:
            break
        finer = _refined(counts, found, wanted, rule) if adapted else counts
        lower = _fit_tolerance(fit_tol, found, wanted)
        if finer != counts:
            counts, before = finer, None
        elif lower is not None:
            fit_tol, before = lower, found.train
        else:
            break
    assert best is not None
    value = best.value.item() if best.value.ndim == 0 else best.value
    seconds = time.perf_counter() - started
    return value, reported(best, goal(best.value), used, seconds, finite=box.finite)


class _Goal(NamedTuple):
    """Callable that returns the absolute error to which to integrate, from the integral's value."""

    tol: float
    atol: float

    def __call__(self, value: Any) -> float:
        return max(self.tol * float(np.max(np.abs(value))), self.atol)


class _Problem(NamedTuple):
    """Integrand of `tt.integrate` on the nodes of its quadrature rule, with the domain."""

    f: Callable[[Any], Any]
    domain: Domain
    nodes: NodeSet
    counts: tuple[int, ...]
    vectorized: bool

    @property
    def ends(self) -> list[tuple[float, float]]:
        """Ends of the finite box over which the quadrature rule integrates, one pair a variable."""
        return self.domain.ends

    def of_index(self, index: Any) -> Any:
        """Evaluates the integrand at quadrature nodes: at one multi-index, or at a batch."""
        if self.vectorized:
            return self._at(self.nodes.points(index))[0]
        return self._at(self.nodes.points(index[None]), one=True)[0]

    def values(self, points: np.ndarray) -> np.ndarray:
        """Evaluates the integrand of `tt.integrate` at points; ValueError at NaN or Inf."""
        if self.vectorized:
            found, x = self._at(points)
        else:
            found = [self._at(u[None], one=True)[0] for u in points]
            x = self.domain.mapped(points)[0]
        values = double(numbers(np.asarray(unmasked(found))))
        bad = ~np.isfinite(values.reshape(len(points), -1)).all(axis=1)
        if bad.any():
            raise ValueError(
                f"f: expected finite values, got NaN or Inf at {int(bad.sum())} of {len(points)} "
                f"points, first {tuple(x[bad.argmax()].tolist())}"
            )
        return values

    def _at(self, points: Any, *, one: bool = False) -> tuple[Any, Any]:
        """Evaluates what `tt.integrate` integrates: f times the slope |dx/du|; returns x too."""
        if self.domain.finite:
            return self.f(points[0] if one else points), points
        x, slope = self.domain.mapped(points)
        found = self.f(x[0] if one else x)
        slope = slope[0] if one else slope
        found = found if isinstance(found, jax.Array) else np.asarray(unmasked(found))
        return (found.T * slope).T, x  # components, if there are any, come last


def _tried(
    problem: _Problem, tol: float, budget: int | None, x0: TT | None, options: dict[str, Any]
) -> tuple[Try, int]:
    """Integrates a function by one cross approximation; returns the number of evaluations too."""
    nodes = problem.nodes
    check = _CHECKED if budget is None else min(_CHECKED, budget // 6)
    checks = check * (1 if nodes.interpolated is None else 2)
    limit = None if budget is None else budget - checks
    t, info = cross(problem.of_index, nodes.shape, tol=tol, max_evaluations=limit, x0=x0, **options)
    cores = [np.asarray(c, np.result_type(c.dtype, np.float64)) for c in t.cores]
    value = weighted_sum(nodes.weights, cores)
    volume = math.prod(b - a for a, b in problem.ends)
    rng = _check.host_generator(folded_key(options["key"], 1))
    drawn = nodes.draw(rng, check)
    true = problem.values(nodes.points(drawn))
    size = volume * float(np.max(_rms(true)))
    error = volume * _mean_error(true - _fitted(t, drawn, true)) + _EPS * size
    known = math.isfinite(info.error + info.error_std)
    if known:  # the share of f's norm that random entries may have missed
        missed = info.error_std**2 * size
        several = bool(np.any(true != true[:1]))
        jumps = several and missed > error and info.error_std > 2 * max(tol, info.error)
    else:
        missed, jumps = volume * _between_levels(true), True
        if not math.isfinite(missed):
            error, jumps = math.inf, False
    unresolved, between = _between(problem, cores, rng, check)
    seen = np.concatenate([true, *between])
    same = not bool(np.any(seen != seen[:1]))
    found = Try(
        value=value,
        size=size,
        by_dimension=nodes.rule_errors(cores),
        unresolved=unresolved * volume,
        unseen=_MISSED / len(seen) * size if same else 0.0,
        cross_error=error + (missed if jumps else 0.0),
        jumps=jumps,
        info=info,
        points=problem.counts,
        train=t,
    )
    return found, info.evaluations + checks


def _between_levels(values: np.ndarray) -> float:
    """Bounds the error of an integral's Monte Carlo check if the function has few values, else inf.

    What random points miss of the domain is then wrong by the distance of the values.
    """
    levels, counts = np.unique(values, axis=0, return_counts=True)
    if not 1 < len(levels) <= _LEVELS or counts.min() < _MET:
        return math.inf
    return _MISSED / len(values) * float(np.max(np.abs(levels - levels[:1])))


def _between(
    problem: _Problem, cores: Any, rng: np.random.Generator, count: int
) -> tuple[float, list[np.ndarray]]:
    """Estimates an integral's error from random points between the quadrature nodes.

    Returns:
      The error, and an array of the integrand at these points, or none on a quantics grid.
    """
    if problem.nodes.interpolated is None:
        return 0.0, []
    shares = rng.random((count, len(problem.ends)))
    low, high = np.array(problem.ends).T
    true = problem.values(low + (high - low) * shares)
    off = true - problem.nodes.interpolated(cores, shares)
    far = np.abs(off).max() > _UNRESOLVED * _rms(true.ravel())
    return (_mean_error(off) if far else 0.0), [true]


def _mean_error(off: np.ndarray) -> float:
    """Bounds an integral's error from differences at random points: |mean| + 2 standard errors."""
    spread = 2 * _rms(off - off.mean(axis=0)) / math.sqrt(max(len(off) - 1, 1))
    return float(np.max(np.abs(off.mean(axis=0)) + spread))


def _rms(values: np.ndarray) -> Any:
    """Computes the root mean square of each component of `tt.integrate`'s integrand, in range."""
    sizes = np.abs(values)
    top = sizes.max() or 1.0
    return top * np.sqrt(np.mean((sizes / top) ** 2, axis=0))


def _fitted(t: TT, drawn: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Evaluates `tt.integrate`'s cross approximation of all components at quadrature nodes."""
    if true.ndim == 1:
        return np.asarray(evaluate(t, drawn))
    count = true.shape[1]
    last = np.tile(np.arange(count), len(drawn))[:, None]
    index = np.concatenate([np.repeat(drawn, count, axis=0), last], axis=1)
    return np.asarray(evaluate(t, index)).reshape(-1, count)


def _refined(counts: tuple[int, ...], found: Try, wanted: float, rule: str) -> tuple[int, ...]:
    """Doubles the quadrature nodes of an integral in dimensions that are not accurate enough."""
    share = wanted / (2 * len(counts))
    errors = found.by_dimension
    if found.unresolved > wanted / 2 and not (errors > share).any():
        errors = np.full(len(counts), math.inf)  # which dimension it is, is not known
    finer = [2 * n + (rule == "gauss-kronrod") for n in counts]
    return tuple(
        m if error > share and m <= _MOST_POINTS else n
        for n, m, error in zip(counts, finer, errors, strict=True)
    )


def _fit_tolerance(tol: float, found: Try, wanted: float) -> float | None:
    """Returns a smaller cross tolerance for the next try at an integral; None if useless."""
    if found.cross_error <= wanted / 2:
        return None  # the rule is at fault
    least = 20 * float(np.finfo(np.asarray(found.train.cores[0]).dtype).eps)
    if tol <= least:
        return None
    return max(least, tol * min(0.1, wanted / (4 * found.cross_error)))


def _nodes(rule: str, ends: list[tuple[float, float]], counts: tuple[int, ...]) -> NodeSet:
    if rule == "trapezoidal":
        return trapezoidal_nodes(ends, [n.bit_length() - 1 for n in counts])
    return gauss_nodes(ends, rule, counts)
