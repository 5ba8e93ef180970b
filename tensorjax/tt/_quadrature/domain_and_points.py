"""Arguments of integrals: bounded or unbounded domains, numbers of points, absolute errors."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check

# Points of the first try.
FIRST = {"gauss-kronrod": 15, "gauss-legendre": 16, "trapezoidal": 2**20}
# What is taken for 1 − u, or 1 − u², in place of zero; its square is in range of float32.
_AT_INFINITY = 2.0**-26


class Domain(NamedTuple):
    """Domain of an integral, and the substitutions that map unbounded dimensions to finite ones.

    A half-line is x = a + u / (1 − u) for u in (0, 1), or its mirror image; the whole line is
    x = u / (1 − u²) for u in (−1, 1).

    Attributes:
      ends: (low, high) of the variables u of the finite box, which are x where x is bounded.
      anchors: a of the half-lines, else 0.
      kinds: of each dimension: 0 bounded, 1 up to ∞, −1 down to −∞, 2 the whole line.
    """

    ends: list[tuple[float, float]]
    anchors: np.ndarray
    kinds: np.ndarray

    @property
    def finite(self) -> bool:
        """Whether the domain of an integral is bounded in all dimensions."""
        return not self.kinds.any()

    def mapped(self, u: Any) -> tuple[Any, Any]:
        """Maps points (batch, dims) of a finite box to an integral's domain; returns |dx/du| too.

        Trapezoidal rules have points at infinity: those are taken near it, so that what f dx/du
        tends to there counts.
        """
        xp: Any = jnp if isinstance(u, jax.Array) else np
        bounded, down, whole = self.kinds == 0, self.kinds == -1, self.kinds == 2
        v = xp.where(down, -u, u)
        rest = xp.where(whole, 1 - v * v, 1 - v)
        rest = xp.where(bounded, 1.0, xp.where(rest > 0, rest, _AT_INFINITY))
        x = xp.where(down, self.anchors - v / rest, self.anchors + v / rest)
        slope = xp.where(whole, 1 + v * v, 1.0) / rest**2
        return xp.where(bounded, u, x), xp.where(bounded, 1.0, slope).prod(axis=1)


def checked_domain(domain: Any) -> Domain:
    """Converts the domain of an integral to a `Domain`; ValueError for a wrong one."""
    if _check.is_traced(domain):
        raise TypeError("domain: expected numbers, got traced ones; integrate outside of jit")
    try:
        pairs: Any = np.asarray(domain, float)
    except (TypeError, ValueError):
        pairs = np.zeros(0)
    pairs = pairs[None] if pairs.shape == (2,) else pairs
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
        raise ValueError(f"domain: expected pairs (low, high), one a dimension, got {domain!r}")
    if np.isnan(pairs).any() or (pairs[:, 0] >= pairs[:, 1]).any():
        raise ValueError(
            f"domain: expected low < high in every dimension, got {domain!r}; for reversed ends "
            "change the sign of the integral"
        )
    low, high = np.isinf(pairs[:, 0]), np.isinf(pairs[:, 1])
    kinds = np.where(low & high, 2, np.where(low, -1, np.where(high, 1, 0)))
    anchors = np.where(kinds == 1, pairs[:, 0], np.where(kinds == -1, pairs[:, 1], 0.0))
    finite = {2: (-1.0, 1.0), 1: (0.0, 1.0), -1: (-1.0, 0.0)}
    ends = [
        finite.get(kind, (a, b))
        for kind, (a, b) in zip(kinds.tolist(), pairs.tolist(), strict=True)
    ]
    return Domain(ends, anchors, kinds)


def checked_atol(atol: float) -> float:
    if not 0 <= float(atol) < math.inf:
        raise ValueError(f"atol: expected a finite number of at least 0, got {atol!r}")
    return float(atol)


def checked_points(points: Any, rule: str, dims: int) -> tuple[tuple[int, ...], bool]:
    """Checks an integral's ``points``: returns the number per dimension, and whether it grows."""
    if rule not in FIRST:
        raise ValueError(f"rule: expected one of {tuple(FIRST)}, got {rule!r}")
    if points is None:
        return (FIRST[rule],) * dims, rule != "trapezoidal"
    given = [points] * dims if np.ndim(points) == 0 else list(points)
    if len(given) != dims:
        raise ValueError(f"points: expected one number or {dims}, got {points!r}")
    counts = tuple(_check.integer("points", n, low=2) for n in given)
    for n in counts:
        if rule == "gauss-kronrod" and (n < 3 or n % 2 == 0):
            raise ValueError(f"points: expected odd numbers of at least 3 for Kronrod, got {n}")
        if rule == "trapezoidal" and (n < 4 or n & (n - 1) or n > 2**53):
            raise ValueError(f"points: expected powers of 2 from 4 to 2**53, got {n}")
    return counts, False
