"""Partial derivatives of functions of points, by finite differences."""

from collections.abc import Callable
from typing import Any

import numpy as np

# Central differences of order 6: step, where truncation h⁶ meets roundoff eps/h; offsets, weights.
_STEP = 2e-3
_STENCIL = ((1, 3 / 4), (2, -3 / 20), (3, 1 / 60))


def partial_derivative(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, k: int) -> np.ndarray:
    """Computes a partial derivative ∂_k of a function at points (m, d), by central differences."""
    step = np.zeros(x.shape[1])
    step[k] = _STEP
    parts = [w / _STEP * (f(x + i * step) - f(x - i * step)) for i, w in _STENCIL]
    return np.sum(parts, axis=0)


def partial_derivative_inside(
    f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, k: int, low: float, high: float
) -> np.ndarray:
    """Computes a partial derivative ∂_k of a function, one-sided at the ends of [low, high].

    By the polynomials through 7 points, which are next to x, and around it where there is room. It
    is zero where x is not between low and high.
    """
    reach = len(_STENCIL)
    step = min(_STEP, (high - low) / (2 * reach))
    offsets = np.arange(-reach, reach + 1)
    middle = np.clip(x[:, k], low + reach * step, high - reach * step)
    # Values of the derivative of the polynomials, that are 1 at one of the points, at x.
    place = np.clip((x[:, k] - middle) / step, -reach, reach)
    powers = np.arange(1, 2 * reach + 1)
    slopes = np.zeros((len(x), 2 * reach + 1))
    slopes[:, 1:] = powers * place[:, None] ** (powers - 1)
    weights = slopes @ np.linalg.inv(np.vander(offsets.astype(float), increasing=True)) / step
    weights[(x[:, k] < low) | (x[:, k] > high)] = 0
    out: Any = 0.0
    for i, w in zip(offsets, weights.T, strict=True):
        moved = x.copy()
        moved[:, k] = np.clip(middle + i * step, low, high)
        values = f(moved)
        out = out + w.reshape(-1, *[1] * (values.ndim - 1)) * values
    return out
