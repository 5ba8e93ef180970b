"""Exact flows of linear stochastic differential equations."""

from typing import Any, NamedTuple

import numpy as np

# Terms of Taylor series of arguments below a quarter: the first one left out is below roundoff.
_TERMS = 16


class Flow(NamedTuple):
    """Solution of a linear SDE at time t: x(t) = F x(0) + g + Gaussian noise of covariance Q."""

    matrix: np.ndarray
    shift: np.ndarray
    noise: np.ndarray

    def back(self, x: np.ndarray) -> np.ndarray:
        """Returns the starts x(0), (m, d), from which a linear SDE without noise reaches x(t)."""
        return np.linalg.solve(self.matrix, (x - self.shift).T).T


def flow(matrix: Any, shift: Any, diffusion: Any, t: float) -> Flow:
    """Computes F, g, Q of the solution of a linear SDE dx = (A x + b) dt + √(2D) dW at time t.

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
