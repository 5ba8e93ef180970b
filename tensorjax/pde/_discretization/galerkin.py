"""Derivative matrices of polynomials that are free or zero at the ends: walls of an interval.

At a reflecting wall no probability passes: with u_t = −∂J tested as ∫ φ u_t = ∫ φ' J by all
polynomials φ of the space, J = 0 there without any condition on u. At an absorbing wall u = 0, and
so φ = 0.

Products with coefficients are projected, too, by integrals at more points than the polynomials
have: taken at the points themselves, products of polynomials alias, and transport by a drift that
varies has modes that grow. Projected, ‖u‖² changes by −∫ u² ∇·f as it should.

Source: C. Canuto, M. Hussaini, A. Quarteroni, T. Zang, "Spectral Methods: Fundamentals in Single
Domains" (Springer, 2006), section 3.3 (natural boundary conditions). Ours: the points, the interior
Chebyshev extrema, whatever the walls.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from tensorjax import _chebyshev


class Galerkin(NamedTuple):
    """Derivative and product matrices (n, n) of a polynomial Galerkin method on [−1, 1] with walls.

    Attributes:
      weights: quadrature weights (n,).
      divergence: −∫ φ' J, against φ: of fluxes, which vanish at reflecting walls.
      second: −∫ φ' u', against φ.
      modes: orthonormal polynomials by degree, times the roots of the weights, as rows.
      value: values at 2n Gauss points, (2n, n).
      slope: derivatives there, (2n, n).
      tested: integrals against φ of what is given there, (n, 2n).
      steep: integrals against φ', (n, 2n).
      filled: values there of coefficients that are given at the points and free at the ends.
      sloped: derivatives of those.
      collocated: ∂ at the points themselves, (n, n).
    """

    weights: np.ndarray
    divergence: np.ndarray
    second: np.ndarray
    modes: np.ndarray
    value: np.ndarray
    slope: np.ndarray
    tested: np.ndarray
    steep: np.ndarray
    filled: np.ndarray
    sloped: np.ndarray
    collocated: np.ndarray


def nodes(n: int, free: tuple[bool, bool]) -> tuple[np.ndarray, np.ndarray]:
    """Returns Chebyshev points in [−1, 1] that determine a polynomial, and barycentric weights.

    The inner ones of n + 2 Chebyshev extrema, and the ends where it is zero.

    Args:
      n: number of inner points.
      free: whether it is free at −1 and at 1.
    """
    at, weights = _chebyshev.extrema(n + 2), _chebyshev.extremum_weights(n + 2)
    kept = np.array([not free[0], *[True] * n, not free[1]])
    for end, gone in zip((0, -1), free, strict=True):
        if gone:
            weights = weights * (at - at[end])
    return at[kept], weights[kept]


def cardinal(xp: Any, n: int, free: tuple[bool, bool], x: Any) -> Any:
    """Evaluates polynomials that are 1 at one inner Chebyshev point, 0 at the others: (m, n).

    Args:
      xp: NumPy or `jax.numpy`.
      n: number of inner points.
      free: as in `nodes`.
      x: points (m,) in [−1, 1].
    """
    first = 0 if free[0] else 1
    return _chebyshev.lagrange(xp, *nodes(n, free), x)[:, first : first + n]


@functools.lru_cache(maxsize=64)
def galerkin(n: int, free: tuple[bool, bool]) -> Galerkin:
    """Builds the `Galerkin` matrices of polynomials on n inner Chebyshev points of [−1, 1].

    Args:
      n: number of points.
      free: whether functions are free at −1 and at 1; they vanish elsewhere.
    """
    x, w = np.polynomial.legendre.leggauss(2 * n)
    value, slope = _at(n, free, x)
    mass, mixed = (value * w[:, None]).T @ value, (value * w[:, None]).T @ slope
    second = -(slope * w[:, None]).T @ slope
    quadrature = w @ value
    vanish = np.ones(n)
    inner = _chebyshev.extrema(n + 2)[1:-1]
    for end, gone in zip((-1.0, 1.0), free, strict=True):
        vanish = vanish if gone else vanish * (inner - end)
    rows = (vanish * np.sqrt(quadrature))[:, None] * np.polynomial.legendre.legvander(inner, n - 1)
    return Galerkin(
        quadrature,
        -np.linalg.solve(mass, mixed.T),
        np.linalg.solve(mass, second),
        np.linalg.qr(rows)[0].T,
        value,
        slope,
        np.linalg.solve(mass, (value * w[:, None]).T),
        np.linalg.solve(mass, (slope * w[:, None]).T),
        *_at(n, (True, True), x),
        _at(n, free, inner)[1],
    )


def _at(n: int, free: tuple[bool, bool], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Evaluates cardinal polynomials of inner Chebyshev points and their derivatives at x (m,)."""
    at, weights = nodes(n, free)
    gap = np.subtract.outer(at, at)
    np.fill_diagonal(gap, 1)
    slopes = weights[None] / weights[:, None] / gap
    np.fill_diagonal(slopes, 0)
    slopes -= np.diag(slopes.sum(1))
    value, first = _chebyshev.lagrange(np, at, weights, x), 0 if free[0] else 1
    return value[:, first : first + n], (value @ slopes)[:, first : first + n]
