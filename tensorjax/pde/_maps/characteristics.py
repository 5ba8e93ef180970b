"""Paths of points along a drift: exact flows of linear SDEs, characteristics of other drifts."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# Terms of Taylor series of arguments below a quarter: the first one left out is below roundoff.
_TERMS = 16
# Substeps of the midpoint rule that are extrapolated: order 12.
_SUBSTEPS = (2, 4, 6, 8, 10, 12)
# Times that the number of steps is doubled before a drift counts as stiff: 1024 times the first.
_DOUBLINGS = 10


class Flow(NamedTuple):
    """Characteristics of a linear SDE: x(t) = F x(0) + g + Gaussian noise of covariance Q."""

    matrix: np.ndarray
    shift: np.ndarray
    noise: np.ndarray

    def back(self, x: np.ndarray) -> np.ndarray:
        """Returns the starts x(0), (m, d), of the characteristics that reach x(t) without noise."""
        return np.linalg.solve(self.matrix, (x - self.shift).T).T


def flow(matrix: Any, shift: Any, diffusion: Any, t: float) -> Flow:
    """Computes the characteristics F, g, Q of a linear SDE dx = (A x + b) dt + √(2D) dW at time t.

    F = exp(A t), g = ∫ exp(A s) b ds, Q = ∫ exp(A s) 2D exp(Aᵀ s) ds from 0 to t: A may be singular
    or unstable. A negative t is for D = 0 only.
    """
    a, b, q0 = (np.asarray(v, np.float64) for v in (matrix, shift, diffusion))
    # Scaling and squaring: a Taylor series of a short time is accurate, and flows compose exactly,
    # so that the time is doubled without another error but roundoff.
    doublings = max(0, int(np.ceil(np.log2(4 * abs(t) * np.linalg.norm(a) + 1e-300))))
    h = t / 2**doublings
    f, g, q = np.eye(len(a)), np.zeros(len(a)), np.zeros_like(a)
    power, term = np.eye(len(a)), 2 * h * q0
    for k in range(1, _TERMS + 1):
        g = g + power @ b * (h / k)
        q = q + term
        power = power @ a * (h / k)
        f = f + power
        term = (a @ term + term @ a.T) * (h / (k + 1))
    for _ in range(doublings):
        f, g, q = f @ f, g + f @ g, q + f @ q @ f.T
    return Flow(f, g, q)


def solve(f: Callable[[np.ndarray], np.ndarray], y: Any, t: float, tol: float = 1e-11) -> Any:
    """Computes characteristics: solves ẏ = f(y) from many starting points, to a tolerance.

    Args:
      f: maps (m, k) to (m, k).
      y: the starting points.
      t: time, which may be negative.
      tol: relative to 1 + |y|.

    Raises:
      ValueError: no convergence, or NaN or Inf on the way.

    Source: Hairer, Nørsett, Wanner, "Solving Ordinary Differential Equations I", section II.9 (the
    extrapolated midpoint rule of Gragg, Bulirsch and Stoer).
    """
    y = np.asarray(y, np.float64)
    count = max(2, int(np.ceil(2 * abs(t))))
    before = None
    for _ in range(_DOUBLINGS):
        now = y
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            for _ in range(count):
                now = _step(f, now, t / count)
        if not np.isfinite(now).all():
            raise ValueError("drift: expected trajectories that stay finite, got NaN or Inf")
        if before is not None and np.all(np.abs(now - before) <= tol * (1 + np.abs(now))):
            return now
        before, count = now, 2 * count
    raise ValueError(
        f"drift: expected trajectories that {count // 2} steps resolve to {tol:.1g}, got more "
        "than that; the drift is stiff or not smooth"
    )


def _step(f: Callable[[np.ndarray], np.ndarray], y: np.ndarray, h: float) -> np.ndarray:
    start = f(y)
    rows: list[np.ndarray] = []
    for i, n in enumerate(_SUBSTEPS):
        entry = _midpoint(f, y, start, h, n)
        new = [entry]
        for j in range(i):
            ratio = (n / _SUBSTEPS[i - j - 1]) ** 2
            new.append(new[j] + (new[j] - rows[j]) / (ratio - 1))
        rows = new
    return rows[-1]


def _midpoint(f: Any, y: np.ndarray, start: np.ndarray, h: float, n: int) -> np.ndarray:
    s = h / n
    before, now = y, y + s * start
    for _ in range(n - 1):
        before, now = now, before + 2 * s * f(now)
    return (now + before + s * f(now)) / 2
