"""Nodes of an integral in several dimensions as the modes of a train, with weights as trains."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores.contractions import einsum
from tensorjax.tt._quadrature.rules import gauss_kronrod, gauss_legendre
from tensorjax.tt.quantics.digit_trains import over_dimensions
from tensorjax.tt.quantics.grids import grid_places, quantics_grid
from tensorjax.tt.quantics.quadrature import coarse_rule, rule

# Dimensions up to which digits are interleaved: ranks of weights are powers of 3 there.
_INTERLEAVED = 3


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
    """Integrates a tensor train over all dimensions but one, for each, to estimate rule errors."""
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
    """Integrates a tensor train of values at quadrature nodes, by a train of weights."""
    held = np.ones((1, 1))
    for w, c in zip(weights, cores, strict=False):
        held = einsum("ab,ans,bnd->sd", held, w, c)
    if len(cores) > len(weights):
        return einsum("ab,bmd->m", held, cores[-1])
    return np.asarray(held[0, 0])
