"""Orthonormal modes of grid axes, ordered by frequency, to judge how well a grid resolves v."""

from typing import Any

import numpy as np

from tensorjax.pde._discretization import half_lines
from tensorjax.pde._discretization.galerkin import galerkin

# Relative errors of the first derivative of a wave of θ radians between neighbouring points, by
# finite differences of order p: C_p θ^p.
DISPERSION = {2: 1 / 6, 4: 1 / 30, 6: 1 / 140}


def modes(axis: Any) -> np.ndarray:
    """Computes the discrete modes of a grid axis as orthonormal rows (n, n), by rising frequency.

    They apply to values times the root of the quadrature weights.

    Args:
      axis: `Axis` of n points.
    """
    n = axis.n
    k = np.arange(n)
    if axis.kind in ("fourier", "periodic", "log"):  # 1, cos, sin, cos, …
        wave = np.outer((k + 1) // 2, 2 * np.pi * k / n)
        rows = np.where(k[:, None] % 2 == 0, np.sin(wave), np.cos(wave))
        rows[0] = 1
    elif any(axis.free):
        rows = galerkin(n, axis.free).modes
    elif axis.kind == "chebyshev":  # polynomials that vanish at both ends, by degree
        t = np.pi * np.arange(1, n + 1) / (n + 1)
        rows = np.sin(t) ** 2 * np.cos(np.outer(k, t)) * np.sqrt(axis.weights)
        rows = np.linalg.qr(rows.T)[0].T
    elif axis.kind == "laguerre":
        at = half_lines.modes(np, half_lines.zeros(n, 2 * axis.power), n, axis.power)
        rows = np.linalg.qr((at * axis.factor * np.sqrt(axis.weights)).T)[0].T
    else:
        rows = np.sin(np.outer(k + 1, np.pi * (k + 1) / (n + 1)))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def frequencies(axis: Any) -> np.ndarray:
    """Returns the frequencies (n,) of a grid axis's modes, relative to the highest frequency."""
    k = np.arange(axis.n)
    if axis.kind in ("fourier", "periodic", "log"):
        return (k + 1) // 2 / (axis.n / 2)
    return (k + 1) / (axis.n + (axis.kind == "finite differences"))


def moment_weights(axis: Any, power: int) -> np.ndarray:
    """Computes weights (n,) with which values on a grid axis give ∫ y^power v dy.

    On a periodic axis y jumps where a turn ends, and the quadrature of the grid would take all that
    lies there for one side of it: the weights are those of the interpolant, exactly.

    Args:
      axis: `Axis` of n points.
      power: 0, 1 or 2.
    """
    if axis.kind != "periodic" or power == 0:
        return axis.weights * axis.points**power
    n, low, high = axis.n, axis.low, axis.high
    k = np.arange(1, n // 2 + 1)
    kappa = 1j * 2 * np.pi * k / axis.length
    # Integrals of y e^{iκy} and of y² e^{iκy}, over e^{iκ low}.
    one = axis.length / kappa
    waves = one if power == 1 else (high**2 - low**2) / kappa - 2 * one / kappa
    twice = np.where(2 * k == n, 1.0, 2.0)  # of an even number of points the last is a cosine alone
    phase = np.exp(np.multiply.outer(low - axis.points, kappa))
    constant = (high ** (power + 1) - low ** (power + 1)) / (power + 1)
    return (constant + (phase @ (twice * waves)).real) / n
