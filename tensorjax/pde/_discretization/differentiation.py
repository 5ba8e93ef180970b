"""Differentiation matrices of Fourier and finite-difference grids."""

from collections.abc import Sequence

import numpy as np

# Central differences at offsets 1, 2, …: odd for the first derivative, even for the second, whose
# entry at offset 0 comes first.
FIRST = {2: (1 / 2,), 4: (2 / 3, -1 / 12), 6: (3 / 4, -3 / 20, 1 / 60)}
SECOND = {
    2: (-2.0, 1.0),
    4: (-5 / 2, 4 / 3, -1 / 12),
    6: (-49 / 18, 3 / 2, -3 / 20, 1 / 90),
}


def circulant(column: np.ndarray) -> np.ndarray:
    """Builds the circulant derivative matrix of a periodic grid from its first column."""
    n = len(column)
    return column[np.subtract.outer(np.arange(n), np.arange(n)) % n]


def fourier_first(n: int) -> np.ndarray:
    """Returns the first-derivative matrix of a Fourier grid of n 2π-periodic points.

    The derivative of the highest mode of an even n is zero.
    """
    j = np.arange(1, n)
    half = np.pi * j / n
    column = (-1.0) ** j / 2 / (np.tan(half) if n % 2 == 0 else np.sin(half))
    return circulant(np.concatenate([[0.0], column]))


def fourier_second(n: int) -> np.ndarray:
    """Returns the second-derivative matrix of a Fourier grid of n 2π-periodic points."""
    j = np.arange(1, n)
    half = np.pi * j / n
    even = n % 2 == 0
    column = -((-1.0) ** j) / (2 * np.sin(half) ** 2) * (1 if even else np.cos(half))
    corner = -(n**2) / 12 - 1 / 6 if even else -(n**2 - 1) / 12
    return circulant(np.concatenate([[corner], column]))


def banded(n: int, stencil: Sequence[float], parity: int) -> np.ndarray:
    """Builds a finite-difference matrix with entry stencil[k] at offset k, ±stencil[k] at −k."""
    out = stencil[0] * np.eye(n)
    for k, c in enumerate(stencil[1:], start=1):
        out = out + c * (np.eye(n, k=k) + parity * np.eye(n, k=-k))
    return out


def slope_weights(offsets: np.ndarray) -> np.ndarray:
    """Computes finite-difference weights of the first derivative at 0 from points ``offsets``."""
    size = np.abs(offsets).max()
    powers = np.vander(offsets / size, increasing=True).T
    return np.linalg.solve(powers, np.eye(len(offsets))[1]) / size
