"""Quadrature rules: Gauss–Legendre and Gauss–Kronrod ones, and nodes of several dimensions."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import legendre

from tensorjax import _check
from tensorjax._cores.contractions import einsum
from tensorjax.tt.quantics.digit_trains import over_dimensions
from tensorjax.tt.quantics.grids import grid_places, quantics_grid
from tensorjax.tt.quantics.quadrature import coarse_rule, rule

# Coefficients below this part of the largest one are roundoff.
_ROUNDOFF = 1e-15
# Fewest nodes for an estimate by rules on fewer of them; the order of convergence of kinks and
# logarithms, a factor for safety, and one more where the errors of these rules show no order.
_LEAST_NODES, _ORDER, _SAFETY, _UNORDERED = 31, 2, 1.75, 8
# Least factors by which coefficients of a series that decays by a power fall: from one range of
# degrees to the next, each of twice the degrees, and to the last quarter of all degrees. Those of a
# logarithm fall by a factor of two, those of a jump by one and a half, those of noise grow.
_FALLS = (1.85, 1.85, 1.3)
# Dimensions up to which digits are interleaved: ranks of weights are powers of 3 there.
_INTERLEAVED = 3


class Rule(NamedTuple):
    """Quadrature rule on [−1, 1]: nodes, weights, and matrix to Legendre coefficients.

    Attributes:
      nodes: (n,) ascending.
      weights: (n,), positive.
      series: (n, n) from values at the nodes to coefficients of Legendre polynomials.
      degree: of polynomials for which it is exact.
      coarser: weights (3, n) of rules on about a half, a quarter and an eighth of the nodes, zero
        elsewhere; None if there are none.
    """

    nodes: np.ndarray
    weights: np.ndarray
    series: np.ndarray
    degree: int
    coarser: np.ndarray | None = None

    def error(self, values: np.ndarray) -> float:
        """Estimates the error of a quadrature rule from the values of a function at its nodes.

        That of a function with a Legendre series that decays by some factor from degree to degree:
        coefficients above the rule's degree are extrapolated from the last half of the known ones.
        It is far too much for a function with a kink or a logarithm, whose series decays by a
        power of the degree. Where the known coefficients do, up to the last, the estimate may be
        the lower one from rules on a half, a quarter and an eighth of the nodes, and the order of
        convergence that they show. Coefficients of what varies faster than the nodes do not decay:
        two rules may then agree by chance.
        """
        columns = (values[:, None] if values.ndim == 1 else values).T
        return max(min(self._by_series(v[:, None]), self._by_order(v[:, None])) for v in columns)

    def _by_power(self, columns: np.ndarray) -> bool:
        """Whether a quadrature rule's Legendre series decays at least by a power of the degree."""
        c, n = np.abs(self.series @ columns), len(self.nodes)
        if not c.any():
            return False
        c = c / c.max()
        edges = [n // 8, n // 4, n // 2, (3 * n) // 4, n]
        size = [math.sqrt(np.mean(c[a:b] ** 2)) for a, b in itertools.pairwise(edges)]
        falls = zip(size[:-1], size[1:], _FALLS, strict=True)
        return all(before >= fall * after for before, after, fall in falls)

    def _by_order(self, columns: np.ndarray) -> float:
        """Estimates a quadrature error as C n^−p from coarser rules; inf if there is none."""
        if self.coarser is None or not self._by_power(columns):
            return math.inf
        half, quarter, eighth = np.abs((self.coarser - self.weights) @ columns)
        # With order p these are by a factor of 2^p + 1 apart, and the error is half / (2^p − 1).
        rate = quarter - 2 * half
        ordered = half**2 / np.where(rate > 0, rate, 1.0)
        # One or two may be small by chance, as errors of kinks have changing signs.
        by = 2**_ORDER
        least = np.maximum(half, np.maximum(quarter / by, eighth / by**2))
        unordered = _UNORDERED * np.maximum(half, quarter)
        return _SAFETY * float(np.max(np.where(rate > 0, np.maximum(least, ordered), unordered)))

    def _by_series(self, columns: np.ndarray) -> float:
        """Estimates a quadrature error from the decay of a Legendre series."""
        c = np.abs(self.series @ columns).max(axis=1)
        largest, n = c.max(), len(c)
        if not largest:
            return 0.0
        tail = np.maximum.accumulate(c[::-1])[::-1]  # largest coefficient from a degree on
        # Two envelopes, not two coefficients: those of noise are small now and then by chance.
        middle, end = n // 2, (3 * n) // 4
        late = max(tail[end], _ROUNDOFF * largest)
        if late <= 10 * _ROUNDOFF * largest:
            return float(late)
        decay = min((late / tail[middle]) ** (1 / max(end - middle, 1)), 0.99)
        # At most twice the last one: slow series alternate, and their rules do not sum them up.
        return float(2 * late * min(1.0, decay ** (self.degree + 1 - end) / (1 - decay)))

    def interpolation(self, x: np.ndarray) -> np.ndarray:
        """Returns the matrix that interpolates values at quadrature nodes to points x."""
        return legendre.legvander(x, len(self.nodes) - 1) @ self.series


def _rule(nodes: np.ndarray, degree: int) -> Rule:
    series = np.linalg.inv(legendre.legvander(nodes, len(nodes) - 1))
    return Rule(nodes, 2 * series[0], series, degree)


def _coarser(nodes: np.ndarray) -> np.ndarray | None:
    """Returns weights of a Gauss–Kronrod rule's Gauss rule, and of every second and fourth node.

    None if there are too few, or if these would be off centre.
    """
    if len(nodes) < _LEAST_NODES or len(nodes) % 8 != 7:
        return None
    out = np.zeros((3, len(nodes)))
    for row, step in zip(out, (2, 4, 8), strict=True):
        some = slice(step - 1, None, step)
        row[some] = _rule(nodes[some], 0).weights
    return out


@functools.cache
def gauss_legendre(points: int) -> Rule:
    """Returns the Gauss–Legendre quadrature rule with a given number of points."""
    return _rule(legendre.leggauss(points)[0], 2 * points - 1)


@functools.cache
def gauss_kronrod(points: int) -> Rule:
    """Returns the Gauss–Kronrod rule of 2 n + 1 points, which contain the n Gauss points.

    The nodes added are the zeros of Stieltjes' polynomial E of degree n + 1, which with P_n is
    orthogonal to all polynomials of degree n. Its Legendre coefficients solve linear equations.
    """
    n = points // 2
    gauss = legendre.leggauss(n)[0]
    fine, w = legendre.leggauss((3 * n) // 2 + 3)  # exact for all products below
    p = legendre.legvander(fine, n + 1)
    products = p[:, : n + 1].T @ ((w * p[:, n])[:, None] * p)
    odd = np.arange(n + 2) % 2 == (n + 1) % 2  # E is even or odd
    unknown = np.flatnonzero(odd[: n + 1])
    c = np.zeros(n + 2)
    c[n + 1] = 1
    c[unknown] = np.linalg.lstsq(products[:, unknown], -products[:, n + 1], rcond=None)[0]
    added = np.sort(legendre.legroots(c).real)
    slope = legendre.legder(c)
    for _ in range(2):  # Newton steps: eigenvalues have lost a few digits
        added = added - legendre.legval(added, c) / legendre.legval(added, slope)
    nodes = np.empty(2 * n + 1)
    nodes[::2], nodes[1::2] = added, gauss
    nodes = (nodes - nodes[::-1]) / 2
    return _rule(nodes, 3 * n + 1)._replace(coarser=_coarser(nodes))


class NodeSet(NamedTuple):
    """Nodes of a quadrature rule in several dimensions, as entries of a tensor, with weights.

    Attributes:
      points: function from multi-indices (batch, modes), of NumPy or JAX, to points (batch, dims).
      weights: cores of the train of weights.
      rule_errors: function from the host cores of a train of values to the errors that the rule
        makes in every dimension.
      draw: function from a generator and a count to multi-indices drawn with the weights.
      interpolated: function from host cores and points of the domain, as shares of its lengths
        (batch, dims), to the values of the polynomial through the nodes; None if there is none.
    """

    shape: tuple[int, ...]
    points: Callable[[Any], Any]
    weights: list[np.ndarray]
    rule_errors: Callable[[Sequence[np.ndarray]], np.ndarray]
    draw: Callable[[np.random.Generator, int], np.ndarray]
    interpolated: Callable[[Sequence[np.ndarray], np.ndarray], np.ndarray] | None


def gauss_nodes(domain: Sequence[tuple[float, float]], name: str, counts: Sequence[int]) -> NodeSet:
    """Builds the `NodeSet` of Gauss rules: nodes and weights, one mode of a train per dimension."""
    make = gauss_kronrod if name == "gauss-kronrod" else gauss_legendre
    rules = [make(n) for n in counts]
    lengths = [b - a for a, b in domain]
    table = np.zeros((len(counts), max(counts)))
    for row, r, (a, b) in zip(table, rules, domain, strict=True):
        row[: len(r.nodes)] = a + (b - a) * (1 + r.nodes) / 2
    weights = [r.weights[None, :, None] * h / 2 for r, h in zip(rules, lengths, strict=True)]

    def points(index: Any) -> Any:
        if _check.is_traced(index) or isinstance(index, jax.Array):
            return jnp.asarray(table)[jnp.arange(len(counts)), index]
        return table[np.arange(len(counts)), index]

    def rule_errors(cores: Sequence[np.ndarray]) -> np.ndarray:
        others = _all_but_one(weights, cores)
        return np.array([h * r.error(g) for r, h, g in zip(rules, lengths, others, strict=True)])

    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        drawn = [rng.choice(len(r.nodes), count, p=r.weights / r.weights.sum()) for r in rules]
        return np.stack(drawn, axis=1)

    def interpolated(cores: Sequence[np.ndarray], shares: np.ndarray) -> np.ndarray:
        held = np.ones((len(shares), 1))
        for r, core, x in zip(rules, cores, shares.T, strict=False):
            held = einsum("ba,ans,bn->bs", held, core, r.interpolation(2 * x - 1))
        if len(cores) > len(rules):
            return einsum("ba,amc->bm", held, cores[-1])
        return held[:, 0]

    return NodeSet(tuple(counts), points, weights, rule_errors, draw, interpolated)


def _all_but_one(weights: Sequence[np.ndarray], cores: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Applies all rules but one dimension's to a train of values, to estimate that rule's error."""
    d = len(weights)
    sums = [einsum("anb,n->ab", c, w[0, :, 0]) for w, c in zip(weights, cores, strict=False)]
    after = [cores[d][..., 0] if len(cores) > d else np.ones((1, 1))]
    for matrix in sums[:0:-1]:
        after.append(matrix @ after[-1])
    out, before = [], np.ones((1, 1))
    for k, right in enumerate(after[::-1]):
        out.append(einsum("a,anb,bm->nm", before[0], cores[k], right))
        before = before @ sums[k]
    return out


def trapezoidal_nodes(domain: Sequence[tuple[float, float]], bits: Sequence[int]) -> NodeSet:
    """Builds the `NodeSet` of trapezoidal rules of 2^bits points, one mode per binary digit."""
    low, high = (list(ends) for ends in zip(*domain, strict=True))
    interleaved = len(domain) <= _INTERLEAVED
    grid = quantics_grid(low, high, bits, interleaved=interleaved, endpoint=True)
    places = grid_places(grid)
    parts = np.zeros((len(places), len(domain)))
    for k, (dim, level) in enumerate(places):
        parts[k, dim] = grid.spacing[dim] * 2.0 ** (bits[dim] - 1 - level)
    rules = [rule(grid, k) for k in range(grid.dims)]
    weights = over_dimensions(grid, rules)
    coarse = []
    for k in range(grid.dims):
        held = [*rules[:k], coarse_rule(grid, k), *rules[k + 1 :]]
        coarse.append(over_dimensions(grid, held))

    def points(digits: Any) -> Any:
        if _check.is_traced(digits) or isinstance(digits, jax.Array):
            kind = _check.inexact_dtype(None)
            steps = einsum("bk,kd->bd", digits.astype(kind), jnp.asarray(parts, kind))
            return jnp.asarray(low, kind) + steps
        return np.array(low) + digits.astype(float) @ parts

    def rule_errors(cores: Sequence[np.ndarray]) -> np.ndarray:
        value = weighted_sum(weights, cores)
        return np.array([np.max(np.abs(value - weighted_sum(w, cores))) for w in coarse])

    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        # Uniformly: weights are halves at the faces alone.
        return rng.integers(0, 2, (count, len(places)))

    return NodeSet(grid.shape, points, weights, rule_errors, draw, None)


def weighted_sum(weights: Sequence[np.ndarray], cores: Sequence[np.ndarray]) -> np.ndarray:
    """Sums a train of values at the nodes of a quadrature rule, by a train of its weights."""
    held = np.ones((1, 1))
    for w, c in zip(weights, cores, strict=False):
        held = einsum("ab,ans,bnd->sd", held, w, c)
    if len(cores) > len(weights):
        return einsum("ab,bmd->m", held, cores[-1])
    return np.asarray(held[0, 0])
