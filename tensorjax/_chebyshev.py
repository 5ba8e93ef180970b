"""Chebyshev points, polynomials and barycentric interpolation on [−1, 1], for NumPy.

The one place for them: grids of `pde`, Fourier transforms of quantics trains, functional trains.
Points of the first kind are the roots of T_n, inside the interval; those of the second kind are its
extrema, with both ends (Gauss–Lobatto).
"""

from typing import Any

import numpy as np


def roots(count: int) -> np.ndarray:
    """Returns ``count`` Chebyshev points of the first kind in [−1, 1], as NumPy, ascending."""
    return -np.cos(np.pi * (2 * np.arange(count) + 1) / (2 * count))


def extrema(count: int) -> np.ndarray:
    """Returns the ``count`` Chebyshev points of the second kind, from −1 to 1, ascending."""
    return -np.cos(np.pi * np.arange(count) / (count - 1))


def extremum_weights(count: int) -> np.ndarray:
    """Returns the barycentric weights of Chebyshev points of the second kind, `extrema`.

    Signs alternate, and the ends count half.

    J.-P. Berrut, L. N. Trefethen, SIAM Rev. 46 (2004), section 5.
    """
    weights = (-1.0) ** np.arange(count)
    weights[[0, -1]] /= 2
    return weights


def lagrange(xp: Any, nodes: np.ndarray, weights: np.ndarray, x: Any) -> Any:
    """Evaluates Lagrange polynomials of Chebyshev points by the barycentric formula, (m, n).

    Of NumPy or JAX, by the module ``xp``.

    By the barycentric quotient, which is stable; ``weights`` are those of Chebyshev points, on any
    interval.
    """
    gap = x[:, None] - xp.asarray(nodes, x.dtype)[None]
    at = gap == 0
    part = xp.asarray(weights, x.dtype)[None] / xp.where(at, xp.ones_like(gap), gap)
    part = xp.where(at.any(axis=1)[:, None], at.astype(x.dtype), part)
    return part / part.sum(axis=1)[:, None]


def differentiation(count: int) -> np.ndarray:
    """Returns the differentiation matrix (n, n) at Chebyshev extrema of [−1, 1]."""
    t = np.pi * np.arange(count) / (count - 1)
    half = np.add.outer(t, t) / 2, np.subtract.outer(t, t) / 2
    gap = 2 * np.sin(half[0]) * np.sin(half[1])  # x_i − x_j without cancellation
    np.fill_diagonal(gap, 1)
    w = extremum_weights(count)
    out = w[None] / w[:, None] / gap
    np.fill_diagonal(out, 0)
    return out - np.diag(out.sum(1))


def clenshaw_curtis(count: int) -> np.ndarray:
    """Returns Clenshaw–Curtis weights of the inner Chebyshev extrema, (n − 2,), as NumPy."""
    intervals = count - 1
    angles = np.pi * np.arange(1, intervals) / intervals
    k = np.arange(1, intervals // 2 + 1)
    factor = np.where(2 * k == intervals, 1.0, 2.0) / (4 * k**2 - 1)
    return 2 / intervals * (1 - np.cos(2 * np.outer(angles, k)) @ factor)


def polynomials(x: np.ndarray, count: int) -> np.ndarray:
    """Evaluates Chebyshev polynomials T_0, … at NumPy points in [−1, 1], along a new last axis."""
    return np.cos(np.arccos(np.clip(x, -1, 1))[..., None] * np.arange(count))


def series(count: int) -> np.ndarray:
    """Returns the matrix (n, n) that maps values at `roots` to Chebyshev coefficients."""
    k = np.arange(count)
    return polynomials(roots(count), count).T * np.where(k == 0, 1, 2)[:, None] / count


def derivative_series(count: int) -> np.ndarray:
    """Returns the matrix (n − 1, n) that differentiates a Chebyshev series, on its coefficients.

    T_k' = 2k (T_{k−1} + T_{k−3} + …), and T_0 counts half.
    """
    j, k = np.arange(max(count - 1, 1))[:, None], np.arange(count)
    out = np.where((k > j) & ((k - j) % 2 == 1), 2.0 * k, 0.0)
    out[0] /= 2
    return out


def integrals(count: int) -> np.ndarray:
    """Returns ∫ T_k over [−1, 1] of the Chebyshev polynomials T_0, …, T_{n−1}, as a NumPy array."""
    k = np.arange(count)
    return np.where(k % 2 == 0, 2.0, 0.0) / (1.0 - k * k + (k == 1))


def gram(count: int) -> np.ndarray:
    """Returns the Gram matrix (n, n), ∫ T_j T_k over [−1, 1], of the Chebyshev polynomials."""
    of, k = integrals(2 * count), np.arange(count)
    return (of[np.add.outer(k, k)] + of[np.abs(np.subtract.outer(k, k))]) / 2
