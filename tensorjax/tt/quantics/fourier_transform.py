"""Discrete Fourier transform of a quantics grid, as a TT-matrix."""

import functools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from tensorjax import _chebyshev, _check
from tensorjax._cores.contractions import einsum
from tensorjax._cores.rounding import rounded
from tensorjax._formats.trains import TTMatrix
from tensorjax._typing import DTypeLike
from tensorjax.tt.quantics.digit_trains import matrix, over_dimensions
from tensorjax.tt.quantics.grids import QuanticsGrid, checked_grid, digits_of

# Chebyshev nodes between which a Fourier transform interpolates.
_NODES = 32


def fourier(
    grid: QuanticsGrid,
    dims: Sequence[int] | None = None,
    *,
    inverse: bool = False,
    tol: float = 1e-12,
    dtype: DTypeLike | None = None,
) -> TTMatrix:
    """Constructs the unitary discrete Fourier transform of a quantics grid, rows bit-reversed.

    F[k, j] = exp(−2πi k j / N)/√N in each dimension. Columns have the digits of j in the order of
    the grid. **Rows have the digits of k in reverse**: at the place of the most significant digit
    of j stands the least significant one of k. The ranks are low in this order alone. In one
    dimension `tensorjax.tt.reverse` of a transformed train puts its digits in order. Of several
    dimensions transform one at a time, ``tt.matvec(tt.quantics.fourier(grid, [k]), t, tol=...)``,
    as ranks multiply otherwise.

    Args:
      grid: `tensorjax.tt.quantics_grid`; only its digits count, not where it lies.
      dims: dimensions that are transformed; all if None.
      inverse: the adjoint instead: then **columns** are bit-reversed, and rows are in order.
      tol: relative error of the matrix of one dimension, in the Frobenius norm.
      dtype: complex dtype of the matrix; JAX's default complex dtype if None.

    Returns:
      TTMatrix. TT-ranks of a transformed dimension are at most 12 at ``tol`` = 1e-10, whatever the
      number of digits of base 2; those of several interleaved or fused dimensions multiply.

    Raises:
      ValueError: tol outside [1e-14, 1), dimensions out of range or given twice.
      TypeError: a real dtype, or no grid.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid(0.0, 1.0, bits=16)
      >>> f = tt.quantics.fourier(grid, tol=1e-7) @ tt.quantics.cosine(grid, 2 * np.pi * 5)
      >>> spectrum = tt.reverse(f)   # digits of the frequency, most significant first
      >>> at = tt.index_to_quantics([[5], [2**16 - 5], [7]], 16)
      >>> print(np.abs(tt.evaluate(spectrum, at)).round(3))
      [128. 128.   0.]

    Source: J. Chen, E. Stoudenmire, S. White, "Quantum Fourier transform has small entanglement",
    PRX Quantum 4 (2023), for the ranks; J. Chen, M. Lindsey, "Direct interpolative construction of
    the discrete Fourier transform as a matrix product operator", Appl. Comput. Harmon. Anal. 81
    (2026), for the construction. Departure: it is rounded to ``tol``.
    """
    checked_grid(grid)
    chosen = (
        range(grid.dims)
        if dims is None
        else [
            _check.integer("dims", k, low=-grid.dims, high=grid.dims - 1) % grid.dims for k in dims
        ]
    )
    if len(set(chosen)) < len(chosen) or not len(chosen):
        raise ValueError(f"dims: expected one or more dimensions, given once, got {dims}")
    kind = jnp.result_type(complex) if dtype is None else _check.inexact_dtype(dtype)
    if not jnp.issubdtype(kind, jnp.complexfloating):
        raise TypeError(f"dtype: expected a complex dtype, got {kind}")
    if not 1e-14 <= tol < 1:
        raise ValueError(f"tol: expected a number in [1e-14, 1), got {tol!r}")
    bits = digits_of(grid)
    factors = [
        list(_fourier_cores(grid.base, bits[k], float(tol))) if k in chosen else None
        for k in range(grid.dims)
    ]
    cores = over_dimensions(grid, factors)
    if inverse:
        cores = [c.transpose(0, 2, 1, 3).conj() for c in cores]
    return matrix(grid, cores, kind)


@functools.lru_cache(32)
def _fourier_cores(base: int, bits: int, tol: float) -> tuple[np.ndarray, ...]:
    """Builds NumPy cores of the Fourier transform of one dimension, rounded to ``tol``.

    After some digits of k, the least significant first, all that the rest depends on is the
    fraction y = 0.k k … in [0, 1), and smoothly so: Chebyshev interpolation in y at a few nodes.
    """
    nodes = (1 + _chebyshev.roots(_NODES)) / 2
    lagrange = _chebyshev.series(_NODES)

    def at(y: np.ndarray) -> np.ndarray:
        return _chebyshev.polynomials(2 * y - 1, _NODES) @ lagrange

    cores = []
    for _ in range(bits):
        k = np.arange(base)
        y = (nodes[:, None] + k) / base  # (r, k)
        waves = np.exp(-2j * np.pi * y[..., None] * k) / base**0.5
        cores.append(waves[..., None] * at(y)[:, :, None])
    ones = np.ones(len(nodes))
    cores[0] = einsum("r,rkjs->kjs", at(np.zeros(1))[0], cores[0])[None]
    cores[-1] = einsum("rkjs,s->rkj", cores[-1], ones)[..., None]
    flat = rounded([c.reshape(c.shape[0], -1, c.shape[-1]) for c in cores], tol / 2)
    return tuple(c.reshape(c.shape[0], base, base, c.shape[-1]) for c in flat)
