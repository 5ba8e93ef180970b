"""Matrices of collocation grids: derivatives, interpolation, modes, Galerkin products, quadrature.

Fourier and finite-difference grids are differentiated and interpolated by closed forms.

Chebyshev grids with walls: at a reflecting wall no probability passes: with u_t = −∂J tested as
∫ φ u_t = ∫ φ' J by all polynomials φ of the space, J = 0 there without any condition on u. At an
absorbing wall u = 0, and so φ = 0. Products with coefficients are projected, too, by integrals at
more points than the polynomials have: taken at the points themselves, products of polynomials
alias, and transport by a drift that varies has modes that grow. Projected, ‖u‖² changes by
−∫ u² ∇·f as it should.

Half-lines: functions x^a exp(−x/2) p(x), p a polynomial of degree below n, with values at the zeros
x_i of the generalised Laguerre polynomial of degree n and parameter 2a. They suit densities p ∼ x^a
of noise that vanishes at the end, D ∼ x, where there is no boundary condition: operators have rates
that grow with n only, not with its fourth power as on Chebyshev points.

Source: C. Canuto, M. Hussaini, A. Quarteroni, T. Zang, "Spectral Methods: Fundamentals in Single
Domains" (Springer, 2006), section 3.3 (natural boundary conditions); ours: the points, the interior
Chebyshev extrema, whatever the walls. J. Shen, T. Tang, L.-L. Wang, "Spectral Methods" (Springer,
2011), section 7.1, for Laguerre functions; ours: the power law in them.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from tensorjax import _chebyshev

# Central differences at offsets 1, 2, …: odd for the first derivative, even for the second, whose
# entry at offset 0 comes first.
FIRST_DIFFERENCES = {2: (1 / 2,), 4: (2 / 3, -1 / 12), 6: (3 / 4, -3 / 20, 1 / 60)}
SECOND_DIFFERENCES = {
    2: (-2.0, 1.0),
    4: (-5 / 2, 4 / 3, -1 / 12),
    6: (-49 / 18, 3 / 2, -3 / 20, 1 / 90),
}
# Beyond, exp(−x/2) of the last points is too small to be squared in double precision.
MOST_LAGUERRE = 160
# Relative errors of the first derivative of a wave of θ radians between neighbouring points, by
# finite differences of order p: C_p θ^p.
DISPERSION = {2: 1 / 6, 4: 1 / 30, 6: 1 / 140}


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
    """Computes finite-difference weights of ∂ at 0 from collocation points ``offsets``."""
    size = np.abs(offsets).max()
    powers = np.vander(offsets / size, increasing=True).T
    return np.linalg.solve(powers, np.eye(len(offsets))[1]) / size


def trigonometric_interpolation(xp: Any, y: Any, points: np.ndarray, length: float) -> Any:
    """Computes the matrix (m, n) of trigonometric interpolation from equidistant points to y."""
    n = len(points)
    turns = (y[:, None] - xp.asarray(points, y.dtype)[None]) / length
    half = np.pi * (turns - xp.round(turns))
    at = xp.abs(half) < 1e-14
    safe = xp.where(at, xp.ones_like(half), half)
    # The periodic sinc: of an even number of points the highest mode is a cosine alone, and its
    # kernel has a tangent (Trefethen, chapter 3).
    ratio = xp.tan(safe) if n % 2 == 0 else xp.sin(safe)
    return xp.where(at, xp.ones_like(half), xp.sin(n * safe) / (n * ratio))


def local_interpolation(xp: Any, y: Any, n: int, low: float, length: float, order: int) -> Any:
    """Computes the matrix (m, n) that interpolates by polynomials through ``order`` nearest points.

    Of n points inside of [low, low + length], at whose ends the function is zero, to y (m,).
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


def wall_nodes(n: int, free: tuple[bool, bool]) -> tuple[np.ndarray, np.ndarray]:
    """Returns Chebyshev collocation points that determine a polynomial, and barycentric weights.

    The n inner ones of n + 2 Chebyshev extrema, and the ends where it is not ``free`` but zero.
    """
    at, weights = _chebyshev.extrema(n + 2), _chebyshev.extremum_weights(n + 2)
    kept = np.array([not free[0], *[True] * n, not free[1]])
    for end, gone in zip((0, -1), free, strict=True):
        if gone:
            weights = weights * (at - at[end])
    return at[kept], weights[kept]


def cardinal(xp: Any, n: int, free: tuple[bool, bool], x: Any) -> Any:
    """Evaluates polynomials, 1 at one Chebyshev collocation point, 0 at the others, at x (m,)."""
    first = 0 if free[0] else 1
    return _chebyshev.lagrange(xp, *wall_nodes(n, free), x)[:, first : first + n]


@functools.lru_cache(maxsize=64)
def galerkin(n: int, free: tuple[bool, bool]) -> Galerkin:
    """Builds the `Galerkin` matrices of polynomials on n inner Chebyshev points of [−1, 1].

    Functions are ``free`` at −1 and at 1, or vanish there.
    """
    x, w = np.polynomial.legendre.leggauss(2 * n)
    value, slope = _at_points(n, free, x)
    mass, mixed = (value * w[:, None]).T @ value, (value * w[:, None]).T @ slope
    if not any(free):
        mixed = (mixed - mixed.T) / 2  # skew but for roundoff
    second = -(slope * w[:, None]).T @ slope
    quadrature = w @ value if any(free) else _chebyshev.clenshaw_curtis(n + 2)
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
        *_at_points(n, (True, True), x),
        _at_points(n, free, inner)[1],
    )


def _at_points(n: int, free: tuple[bool, bool], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Evaluates cardinal polynomials of collocation points and their derivatives at x (m,)."""
    at, weights = wall_nodes(n, free)
    if any(free):
        gap = np.subtract.outer(at, at)
        np.fill_diagonal(gap, 1)
        slopes = weights[None] / weights[:, None] / gap
        np.fill_diagonal(slopes, 0)
        slopes -= np.diag(slopes.sum(1))
    else:
        slopes = _chebyshev.differentiation(n + 2)
    value, first = _chebyshev.lagrange(np, at, weights, x), 0 if free[0] else 1
    return value[:, first : first + n], (value @ slopes)[:, first : first + n]


@functools.lru_cache(maxsize=64)
def laguerre_zeros(n: int, parameter: float) -> np.ndarray:
    """Computes the collocation points of a Laguerre grid, zeros of its polynomial, (n,)."""
    out = special.roots_genlaguerre(n, parameter)[0]
    out.flags.writeable = False
    return out


def laguerre_functions(xp: Any, x: Any, n: int, power: float) -> Any:
    """Computes the matrix (n, m) of orthonormal Laguerre functions x^a exp(−x/2) p_k at x > 0."""
    b = 2 * power
    safe = xp.maximum(x, 1e-300)
    out = [xp.exp(power * xp.log(safe) - x / 2 - math.lgamma(b + 1) / 2)]
    if n > 1:
        out.append((b + 1 - x) / math.sqrt(b + 1) * out[0])
    for k in range(1, n - 1):
        last = (2 * k + 1 + b - x) * out[k] - math.sqrt(k * (k + b)) * out[k - 1]
        out.append(last / math.sqrt((k + 1) * (k + 1 + b)))
    return xp.stack(out)


def laguerre_transform(n: int, power: float) -> np.ndarray:
    """Returns the matrix (n, n) from values at Laguerre grid points to Laguerre coefficients."""
    at = laguerre_functions(np, laguerre_zeros(n, 2 * power), n, power)
    return at / np.square(at).sum(0)


def laguerre_weights(n: int, power: float) -> np.ndarray:
    """Returns quadrature weights (n,) of Laguerre collocation points, exact for their functions."""
    r = laguerre_zeros(n, power)
    inner = 2 / np.square(laguerre_functions(np, r, n, power / 2)).sum(
        0
    )  # of x^a exp(−x/2) times polynomials
    return inner @ laguerre_functions(np, 2 * r, n, power).T @ laguerre_transform(n, power)


def laguerre_derivative(n: int, power: float) -> np.ndarray:
    """Returns the first-derivative matrix (n, n) of a Laguerre grid."""
    x = laguerre_zeros(n, 2 * power)
    gap = x[:, None] - x[None]
    np.fill_diagonal(gap, 1)
    size = np.log(np.abs(gap)).sum(1) + power * np.log(x) - x / 2
    sign = np.sign(gap).prod(1)
    out = sign[:, None] * sign[None] * np.exp(size[:, None] - size[None]) / gap
    np.fill_diagonal(gap, np.inf)
    np.fill_diagonal(out, (1 / gap).sum(1) + power / x - 0.5)
    return out


def modes(axis: Any) -> np.ndarray:
    """Computes the matrix (n, n) of a collocation grid's discrete modes, rows by rising frequency.

    They apply to values times the root of the quadrature weights.
    """
    n = axis.n
    k = np.arange(n)
    if axis.kind in ("fourier", "periodic", "log"):  # 1, cos, sin, cos, …
        wave = np.outer((k + 1) // 2, 2 * np.pi * k / n)
        rows = np.where(k[:, None] % 2 == 0, np.sin(wave), np.cos(wave))
        rows[0] = 1
    elif axis.kind == "chebyshev":
        rows = galerkin(n, axis.free).modes
    elif axis.kind == "laguerre":
        at = laguerre_functions(np, laguerre_zeros(n, 2 * axis.power), n, axis.power)
        rows = np.linalg.qr((at * axis.factor * np.sqrt(axis.weights)).T)[0].T
    else:
        rows = np.sin(np.outer(k + 1, np.pi * (k + 1) / (n + 1)))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def frequencies(axis: Any) -> np.ndarray:
    """Returns the frequencies (n,) of a collocation grid's modes, relative to the highest one."""
    k = np.arange(axis.n)
    if axis.kind in ("fourier", "periodic", "log"):
        return (k + 1) // 2 / (axis.n / 2)
    return (k + 1) / (axis.n + (axis.kind == "finite differences"))


def moment_weights(axis: Any, power: int) -> np.ndarray:
    """Computes quadrature weights (n,) of a collocation grid for the moment ∫ y^power v dy.

    On a periodic axis y jumps where a turn ends, and the quadrature of the grid would take all that
    lies there for one side of it: the weights are those of the interpolant, exactly. ``power`` is
    0, 1 or 2.
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
