"""Exact trains of functions on quantics grids: constants, polynomials, exponentials, waves."""

import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores.contractions import absorb, times_right
from tensorjax._formats.trains import TT
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike, DTypeLike, Scalar
from tensorjax.tt.quantics.digit_trains import like, over_dimensions, parameter, train
from tensorjax.tt.quantics.grids import QuanticsGrid, checked_grid, digits_of, grid_places


@placed
def constant(grid: QuanticsGrid, value: Scalar = 1.0, *, dtype: DTypeLike | None = None) -> TT:
    """Constructs the constant function on a quantics grid as a train of TT-ranks one.

    Args:
      grid: `tensorjax.tt.quantics_grid`.
      value: of the function, real or complex.
      dtype: of the train; that of ``value`` if None.

    Returns:
      TT of the grid's shape, TT-ranks one.

    Raises:
      TypeError: a complex value and a real dtype, or no grid. ValueError: a value that the dtype
        cannot hold.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.quantics.constant(tt.quantics_grid(0, 1, 2), 3.0)))
      [[3. 3.]
       [3. 3.]]

    Source: ours.
    """
    x, kind = parameter("value", value, dtype)
    if x.shape:
        raise ValueError(f"value: expected a scalar, got shape {x.shape}")
    _check.representable("value", x, kind)
    cores = [like(np.ones((1, grid.base, 1)), x) for _ in grid_places(checked_grid(grid))]
    return train(grid, [cores[0] * x, *cores[1:]], kind)


@placed
def polynomial(
    grid: QuanticsGrid, coefficients: ArrayLike, *, dtype: DTypeLike | None = None
) -> TT:
    """Constructs a polynomial of the coordinates of a quantics grid as an exact train.

    Args:
      grid: `tensorjax.tt.quantics_grid`.
      coefficients: one axis a dimension, as in `numpy.polynomial.polynomial.polyval2d`:
        ``coefficients[m, n]`` belongs to x^m y^n.
      dtype: of the train; that of ``coefficients`` if None.

    Returns:
      TT of the grid's shape. TT-ranks are at most ∏ (p_j + 1), with p_j the degrees: p + 1 in one
      dimension. Of digits in sequence those of later dimensions are not counted before they begin.
      `tensorjax.tt.round` finds lower ones where coefficients have structure.

    Raises:
      ValueError: another number of axes than of dimensions. TypeError: no grid.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid(0.0, 4.0, bits=2)
      >>> t = tt.quantics.polynomial(grid, [1.0, 0.0, 2.0])   # 1 + 2 x²
      >>> print(t.ranks, np.ravel(tt.to_dense(t)))
      (1, 3, 1) [ 1.  3.  9. 19.]

    Source: B. Khoromskij, Constr. Approx. 34 (2011), and I. Oseledets, "Constructive representation
    of functions in low-rank tensor formats", Constr. Approx. 37 (2013), Theorem 6. Ours: several
    dimensions.
    """
    checked_grid(grid)
    c, kind = parameter("coefficients", coefficients, dtype)
    if c.ndim != grid.dims or not c.size:
        raise ValueError(
            f"coefficients: expected {grid.dims} axes, one a dimension, got shape {c.shape}"
        )
    factors = [_powers(grid, dim, n - 1) for dim, n in enumerate(c.shape)]
    cores = [like(core, c) for core in over_dimensions(grid, factors)]
    cores[-1] = times_right(cores[-1], c.reshape(-1, 1))
    return train(grid, cores, kind)


def _powers(grid: QuanticsGrid, dim: int, degree: int) -> list[Any]:
    """Builds cores of the monomials x^0 … x^degree over a dimension's digits, for `polynomial`.

    A digit adds t to the sum s of those before it: (s + t)^m = Σ_k binom(m, k) s^k t^(m−k).
    """
    cores = []
    for values in _steps(grid, dim):
        core = np.zeros((degree + 1, grid.base, degree + 1))
        for m, k in itertools.product(range(degree + 1), repeat=2):
            if k <= m:
                core[k, :, m] = math.comb(m, k) * values ** (m - k)
        cores.append(core)
    cores[0] = absorb(grid.low[dim] ** np.arange(degree + 1.0)[None], cores[0])
    return cores


def _steps(grid: QuanticsGrid, dim: int) -> list[np.ndarray]:
    """Returns the addends of a quantics coordinate, (base,) per digit, for elementary functions."""
    bits, h = digits_of(grid)[dim], grid.spacing[dim]
    return [h * np.arange(grid.base) * float(grid.base) ** (bits - 1 - k) for k in range(bits)]


def _parts(grid: QuanticsGrid, dim: int) -> list[np.ndarray]:
    """Splits a coordinate of a quantics grid into one array per digit, for exponentials.

    Shares are those of the digits in the whole length, so that all partial products of
    exponentials are in range where the function is.
    """
    steps = _steps(grid, dim)
    total = sum(s[-1] for s in steps)
    return [s + grid.low[dim] * (s[-1] / total) for s in steps]


@placed
def exponential(grid: QuanticsGrid, rates: ArrayLike, *, dtype: DTypeLike | None = None) -> TT:
    """Constructs the exponential exp(Σ_j a_j x_j) on a quantics grid, a train of TT-ranks one.

    Args:
      grid: `tensorjax.tt.quantics_grid`.
      rates: a_j, one number for all dimensions or one a dimension; complex ones give plane waves.
      dtype: of the train; that of ``rates`` if None.

    Returns:
      TT of the grid's shape, TT-ranks one. Entries that the dtype cannot hold overflow.

    Raises:
      ValueError: another number of rates. TypeError: no grid, a real dtype for complex rates.
      OverflowError: the dtype cannot hold the function in the cores, outside transformations.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid(0.0, 1.0, bits=30)
      >>> t = tt.quantics.exponential(grid, -2.0)
      >>> max(t.ranks), bool(abs(tt.evaluate(t, grid.nearest([0.5])) - np.exp(-1)) < 1e-5)
      (1, True)

    Source: Khoromskij (2011), Lemma 2.3.
    """
    a, kind = _per_dimension("rates", grid, rates, dtype)
    cores = []
    xp = np if isinstance(a, np.ndarray) else jnp
    parts = [_parts(grid, dim) for dim in range(grid.dims)]
    for dim, level in grid_places(grid):
        cores.append(xp.exp(a[dim] * like(parts[dim][level], a))[None, :, None])
    return train(grid, cores, kind)


@placed
def cosine(
    grid: QuanticsGrid,
    frequencies: ArrayLike,
    phase: Scalar = 0.0,
    *,
    dtype: DTypeLike | None = None,
) -> TT:
    """Constructs the plane wave cos(Σ_j w_j x_j + φ) on a quantics grid, TT-ranks two.

    Args:
      grid: `tensorjax.tt.quantics_grid`.
      frequencies: angular frequencies w_j, one for all dimensions or one a dimension.
      phase: φ.
      dtype: of the train; that of ``frequencies`` if None.

    Returns:
      TT of the grid's shape, TT-ranks two.

    Raises:
      ValueError: another number of frequencies. TypeError: no grid.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid(0.0, 2 * np.pi, bits=40)
      >>> t = tt.quantics.cosine(grid, 1.0)
      >>> max(t.ranks), bool(abs(tt.evaluate(t, grid.nearest([np.pi])) + 1) < 1e-5)
      (2, True)

    Source: Khoromskij (2011), Lemma 2.3.
    """
    return _wave(grid, frequencies, phase, dtype, 0)


@placed
def sine(
    grid: QuanticsGrid,
    frequencies: ArrayLike,
    phase: Scalar = 0.0,
    *,
    dtype: DTypeLike | None = None,
) -> TT:
    """Constructs the plane wave sin(Σ_j w_j x_j + φ) on a quantics grid, TT-ranks two.

    Args:
      grid: `tensorjax.tt.quantics_grid`.
      frequencies: angular frequencies w_j, one for all dimensions or one a dimension.
      phase: φ.
      dtype: of the train; that of ``frequencies`` if None.

    Returns:
      TT of the grid's shape, TT-ranks two.

    Raises:
      ValueError: another number of frequencies. TypeError: no grid.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid([0.0, 0.0], [1.0, 1.0], bits=20)
      >>> t = tt.quantics.sine(grid, [3.0, 5.0])
      >>> bool(abs(tt.evaluate(t, grid.nearest([0.5, 0.25])) - np.sin(2.75)) < 1e-4)
      True

    Source: Khoromskij (2011), Lemma 2.3.
    """
    return _wave(grid, frequencies, phase, dtype, 1)


def _wave(grid: QuanticsGrid, frequencies: Any, phase: Any, dtype: Any, part: int) -> TT:
    """Builds a cosine (0) or sine (1) on a quantics grid from a rotation per digit."""
    w, kind = _per_dimension("frequencies", grid, frequencies, dtype)
    start, wide = parameter("phase", phase, dtype)
    if start.shape:
        raise ValueError(f"phase: expected a scalar, got shape {start.shape}")
    kind = kind if not jnp.issubdtype(wide, jnp.complexfloating) else jnp.promote_types(kind, wide)
    traced = not (isinstance(w, np.ndarray) and isinstance(start, np.ndarray))
    xp = jnp if traced else np
    if traced:
        w, start = jnp.asarray(w, kind), jnp.asarray(start, kind)
    cores = []
    parts = [_parts(grid, dim) for dim in range(grid.dims)]
    for dim, level in grid_places(grid):
        angles = w[dim] * like(parts[dim][level], w)
        angles = angles if cores else angles + start
        c, s = xp.cos(angles), xp.sin(angles)
        cores.append(xp.stack([xp.stack([c, s], -1), xp.stack([-s, c], -1)]))
    cores[0] = cores[0][:1]
    cores[-1] = cores[-1][..., part : part + 1]
    return train(grid, cores, kind)


def _per_dimension(name: str, grid: QuanticsGrid, value: Any, dtype: Any) -> tuple[Any, Any]:
    """Returns rates or frequencies of an exponential or wave, one per dimension, and dtype."""
    checked_grid(grid)
    x, kind = parameter(name, value, dtype)
    if x.shape not in ((), (1,), (grid.dims,)):
        raise ValueError(f"{name}: expected one number or {grid.dims}, got shape {x.shape}")
    xp = np if isinstance(x, np.ndarray) else jnp
    return xp.broadcast_to(x.reshape(-1), (grid.dims,)), kind
