"""Checks of the arguments of integrals: domains, numbers of points, absolute errors."""

import math
from typing import Any

import numpy as np

from tensorjax import _check

# Points of the first try.
FIRST = {"gauss-kronrod": 15, "gauss-legendre": 16, "trapezoidal": 2**20}


def checked_domain(domain: Any) -> list[tuple[float, float]]:
    """Converts the domain of an integral to (low, high) pairs; ValueError for a wrong one."""
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
    if np.isinf(pairs).any():
        raise ValueError(
            f"domain: expected finite ends, got {domain!r}; cut the domain where f is negligible, "
            "or substitute x = u/(1 - u**2), dx = (1 + u**2)/(1 - u**2)**2 du with u in (-1, 1)"
        )
    return [(a, b) for a, b in pairs.tolist()]


def checked_atol(atol: float) -> float:
    if not 0 <= float(atol) < math.inf:
        raise ValueError(f"atol: expected a finite number of at least 0, got {atol!r}")
    return float(atol)


def checked_points(points: Any, rule: str, dims: int) -> tuple[tuple[int, ...], bool]:
    """Returns the number of points per dimension of a quadrature rule, and if it may grow."""
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
