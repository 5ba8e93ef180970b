"""Interpolation matrices of equidistant grids: trigonometric, and by local polynomials."""

from typing import Any

import numpy as np


def trigonometric(xp: Any, y: Any, points: np.ndarray, length: float) -> Any:
    """Computes the matrix (m, n) of trigonometric interpolation from equidistant points.

    Args:
      xp: NumPy or `jax.numpy`.
      y: where it is evaluated, (m,).
      points: (n,), of one period.
      length: of the period.
    """
    n = len(points)
    turns = (y[:, None] - xp.asarray(points, y.dtype)[None]) / length
    half = np.pi * (turns - xp.round(turns))
    at = xp.abs(half) < 1e-14
    safe = xp.where(at, xp.ones_like(half), half)
    # The periodic sinc: of an even number of points the highest mode is a cosine alone, and its
    # kernel has a tangent (Trefethen, chapter 3).
    ratio = xp.tan(safe) if n % 2 == 0 else xp.sin(safe)
    return xp.where(at, xp.ones_like(half), xp.sin(n * safe) / (n * ratio))


def local(xp: Any, y: Any, n: int, low: float, length: float, order: int) -> Any:
    """Computes the matrix (m, n) that interpolates by polynomials through ``order`` nearest points.

    Args:
      xp: NumPy or `jax.numpy`.
      y: where they are evaluated, (m,).
      n: number of points, inside of [low, low + length], at whose ends the function is zero.
      low: left end.
      length: of the interval.
      order: number of points, even.
    """
    place = (y - low) / (length / (n + 1)) - 1
    first = xp.floor(place) - (order // 2 - 1)
    rows = xp.zeros((y.shape[0], n), y.dtype)
    for j in range(order):
        value = xp.ones_like(y)
        for i in set(range(order)) - {j}:
            value = value * (place - first - i) / (j - i)
        hit = first[:, None] + j == xp.arange(n, dtype=y.dtype)[None]
        rows = rows + xp.where(hit, value[:, None], xp.zeros_like(rows))
    return rows
