"""Contractions of operators that are a few matrices per mode, Σ_p C[a, p, b] O_p, with host cores.

They are given C (a, P, b), the operator's core over those matrices, and the images O_p x of a core
x of a train, (P, r, n, s). A flat bond is a pair (rank of the train, rank of the operator).

The orders of the products are fixed: ranks and modes here are so small that finding an order, or
the axes of a general product, takes longer than the products themselves.
"""

from typing import Any

import numpy as np

Array = Any


def functionals(core: Array, f: Array, weights: Array) -> Array:
    """Contracts a core (r, n, s) with m weights (n, m) and m vectors (m, s) at its right: (m, r).

    Each row of ``f`` meets its own column of the weights, so that rank-one trains of m columns, as
    random sketches and moments are, pass the core at once.
    """
    return (np.matmul(core, f.T) * weights).sum(1).T


def applied_functionals(coefficients: Array, images: Array, f: Array, weights: Array) -> Array:
    """Contracts a product's core with m weights (n, m) and m vectors (m, s b): (m, r a)."""
    a, p, b = coefficients.shape
    _, r, _, s = images.shape
    m = len(f)
    seen = np.matmul(weights.T, images).transpose(2, 1, 3, 0).reshape(m, r, s * p)
    after = f.reshape(m * s, b) @ coefficients.reshape(a * p, b).T
    after = after.reshape(m, s, a, p).swapaxes(2, 3).reshape(m, s * p, a)
    return np.matmul(seen, after).reshape(m, r * a)


def applied_from_left(coefficients: Array, images: Array, rows: Array) -> Array:
    """Multiplies rows (f, r a) by a product's core: (f n, s b)."""
    a, p, b = coefficients.shape
    _, r, n, s = images.shape
    f = len(rows)
    ahead = rows.reshape(f * r, a) @ coefficients.reshape(a, p * b)
    ahead = ahead.reshape(f, r, p, b).transpose(0, 3, 2, 1).reshape(f * b, p * r)
    out = ahead @ images.reshape(p * r, n * s)
    return out.reshape(f, b, n, s).transpose(0, 2, 3, 1).reshape(f * n, s * b)
