"""Disentanglers of small Rényi entropy, by Riemannian conjugate gradients, on the host."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorjax import linalg
from tensorjax.convert._two_site_tensors import pairing, unfolded
from tensorjax.linalg._riemannian_optimization import cayley, line_search, skew


def least_entropy(x: np.ndarray, u: np.ndarray, iterations: int) -> tuple[np.ndarray, float]:
    """Minimises the Rényi entropy of a two-site tensor over unitaries; returns both.

    Conjugate gradients in the Lie algebra of skew-Hermitian matrices, with the Polak–Ribière rule.
    The entropy of order two needs matrix products only.

    Args:
      x: pair (r₁, n₁, n₂, r₂).
      u: unitary (n₁ n₂, n₁ n₂) to start from.
      iterations: steps taken.
    """
    r, n, second, s = x.shape
    x = (x / np.linalg.norm(x)).reshape(r, n * second, s)
    direction, past = np.zeros_like(u), np.zeros_like(u)
    length = np.float64(1)
    for _ in range(iterations):
        y = linalg.matmul(u, x)
        value, gradient = _entropy_and_gradient(y, n)
        g = skew(gradient)
        before = linalg.energy(past)
        turn = max(np.vdot(g, g - past).real, 0) / before if before > 0 else 0.0
        d = turn * direction - g
        slope = np.vdot(d, g).real
        if slope >= 0:
            d, slope = -g, -linalg.energy(g)
        t = line_search(_along(d, y, n), value, slope, length)
        u = linalg.matmul(cayley(t * d), u)
        direction, past, length = d, g, 2 * (t if t > 0 else np.float64(0.5))
    return u, float(_entropy(linalg.matmul(u, x), n))


def _along(d: np.ndarray, y: np.ndarray, n: int) -> Callable[[Any], Any]:
    return lambda t: _entropy(linalg.matmul(cayley(t * d), y), n)


def _entropy(y: np.ndarray, n: int) -> np.float64:
    return -np.log(linalg.energy(linalg.gram(_wide(unfolded(y, n)))))


def _entropy_and_gradient(y: np.ndarray, n: int) -> tuple[np.float64, np.ndarray]:
    """Computes a two-site tensor's Rényi entropy, and its gradient in a unitary's generator."""
    matrix = unfolded(y, n)
    rows = matrix.shape[0] <= matrix.shape[1]
    g = linalg.gram(matrix if rows else linalg.adjoint(matrix))
    size = linalg.energy(g)
    moved = linalg.matmul(g, matrix) if rows else linalg.matmul(matrix, g)
    return -np.log(size), pairing(y)(moved) * (-4 / size)


def _wide(matrix: np.ndarray) -> np.ndarray:
    return matrix if matrix.shape[0] <= matrix.shape[1] else linalg.adjoint(matrix)
