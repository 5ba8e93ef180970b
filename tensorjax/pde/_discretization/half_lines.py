"""Spectral grids on half-lines, for functions x^a exp(−x/2) times polynomials (Laguerre).

Functions x^a exp(−x/2) p(x), p a polynomial of degree below n, with values at the zeros x_i of the
generalised Laguerre polynomial of degree n and parameter 2a. They suit densities p ∼ x^a of noise
that vanishes at the end, D ∼ x, where there is no boundary condition: operators have rates that
grow with n only, not with its fourth power as on Chebyshev points.

Source: J. Shen, T. Tang, L.-L. Wang, "Spectral Methods" (Springer, 2011), section 7.1, for Laguerre
functions. Ours: the power law in them.
"""

import functools
import math
from typing import Any

import numpy as np
from scipy import special

# Beyond, exp(−x/2) of the last points is too small to be squared in double precision.
LARGEST = 160


@functools.lru_cache(maxsize=64)
def zeros(n: int, parameter: float) -> np.ndarray:
    """Computes the zeros of a generalised Laguerre polynomial, a read-only ascending array (n,)."""
    out = special.roots_genlaguerre(n, parameter)[0]
    out.flags.writeable = False
    return out


def modes(xp: Any, x: Any, n: int, power: float) -> Any:
    """Evaluates n orthonormal Laguerre functions x^a exp(−x/2) p_k(x) at points x > 0: (n, m)."""
    b = 2 * power
    safe = xp.maximum(x, 1e-300)
    out = [xp.exp(power * xp.log(safe) - x / 2 - math.lgamma(b + 1) / 2)]
    if n > 1:
        out.append((b + 1 - x) / math.sqrt(b + 1) * out[0])
    for k in range(1, n - 1):
        last = (2 * k + 1 + b - x) * out[k] - math.sqrt(k * (k + b)) * out[k - 1]
        out.append(last / math.sqrt((k + 1) * (k + 1 + b)))
    return xp.stack(out)


def transform(n: int, power: float) -> np.ndarray:
    """Returns the matrix (n, n) from values at Laguerre grid points to Laguerre coefficients."""
    at = modes(np, zeros(n, 2 * power), n, power)
    return at / np.square(at).sum(0)


def weights(n: int, power: float) -> np.ndarray:
    """Returns quadrature weights (n,) of a Laguerre grid, exact for its functions."""
    r = zeros(n, power)
    inner = 2 / np.square(modes(np, r, n, power / 2)).sum(0)  # of x^a exp(−x/2) times polynomials
    return inner @ modes(np, 2 * r, n, power).T @ transform(n, power)


def derivative(n: int, power: float) -> np.ndarray:
    """Returns the first-derivative matrix (n, n) of a Laguerre grid."""
    x = zeros(n, 2 * power)
    gap = x[:, None] - x[None]
    np.fill_diagonal(gap, 1)
    size = np.log(np.abs(gap)).sum(1) + power * np.log(x) - x / 2
    sign = np.sign(gap).prod(1)
    out = sign[:, None] * sign[None] * np.exp(size[:, None] - size[None]) / gap
    np.fill_diagonal(gap, np.inf)
    np.fill_diagonal(out, (1 / gap).sum(1) + power / x - 0.5)
    return out
