"""Toeplitz and circulant matrices of trains, and discrete Fourier transforms, as TT-matrices."""

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax import _chebyshev, _check
from tensorjax._cores.contractions import einsum
from tensorjax._cores.rounding import rounded
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._typing import DTypeLike
from tensorjax.tt.quantics.digit_trains import like, matrix, over_dimensions
from tensorjax.tt.quantics.grids import QuanticsGrid, checked_grid, digits_of

# Chebyshev nodes between which a Fourier transform interpolates.
_NODES = 32


@placed
def circulant(t: TT) -> TTMatrix:
    """Constructs the circulant matrix C[i, j] = t[(i − j) mod N] from its first column, a train.

    Args:
      t: TT of the N entries, most significant digits first, whose modes may have any sizes.

    Returns:
      TTMatrix with twice the TT-ranks of ``t``. Its product with a train is the cyclic convolution.

    Raises:
      TypeError: no TT.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> c = tt.quantics.circulant(tt.from_dense(jnp.arange(4.0).reshape(2, 2), rank=2))
      >>> print(c @ jnp.array([0.0, 1.0, 0.0, 0.0]))
      [3. 0. 1. 2.]

    Source: Kazeev, Khoromskij and Tyrtyshnikov (2013), see `shift`, Theorem 3.3.
    """
    single("t", t, TT)
    cores = [_with_carries(c) for c in _near(t)]
    # A carry out of the first digit is dropped: indices are modulo N. None comes into the last.
    return _closed(cores, like(np.ones((1, 2)), cores[0]))


@placed
def toeplitz(t: TT) -> TTMatrix:
    """Constructs the N × N Toeplitz matrix from its first column and row, one train of 2 N entries.

    Args:
      t: TT of shape (2, n_1, …, n_d), N = ∏ n_k: the first N entries are the column, entry 2 N − k
        is that of the first row at k = 1, …, N − 1; the entry N is not used. This is the first
        column of the circulant matrix of which the result is the first block.

    Returns:
      TTMatrix of row and column shape (n_1, …, n_d), with twice the TT-ranks of ``t``.

    Raises:
      ValueError: a first mode that is not of size 2, or no other. TypeError: no TT.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> both = jnp.array([1.0, 2.0, 3.0, 4.0, 0.0, 7.0, 6.0, 5.0])
      >>> t = tt.from_dense(both.reshape(2, 2, 2), rank=4)
      >>> print(tt.to_dense(tt.quantics.toeplitz(t)).reshape(4, 4).round())
      [[1. 5. 6. 7.]
       [2. 1. 5. 6.]
       [3. 2. 1. 5.]
       [4. 3. 2. 1.]]

    Source: Kazeev, Khoromskij and Tyrtyshnikov (2013), see `shift`, Theorem 3.3.
    """
    single("t", t, TT)
    if t.order < 2 or t.shape[0] != 2:
        raise ValueError(f"t: expected shape (2, n_1, …), got {t.shape}")
    first, *others = _near(t)
    cores = [_with_carries(c) for c in others]
    # Row and column have no digit before: the offset's first digit is minus the carry, mod 2.
    cores[0] = einsum("cr,rcmns->mns", first[0], cores[0].reshape(-1, 2, *cores[0].shape[1:]))[None]
    return _closed(cores, None)


def _near(t: TT) -> list[Any]:
    """Returns the cores of a train, in NumPy if they lie on one CPU."""
    on_host = choose_kernel("tt.quantics.toeplitz", (t,)) is NUMPY
    return [np.asarray(c) if on_host else c.astype(t.dtype) for c in t.cores]


def _with_carries(core: Any) -> Any:
    """Builds the core of a Toeplitz matrix over one digit, with carries on its bonds."""
    n = core.shape[1]
    add = np.zeros((2, n, n, n, 2))
    for offset in range(n):
        for j in range(n):
            for into in (0, 1):
                out, i = divmod(j + offset + into, n)
                add[out, i, j, offset, into] = 1
    both = einsum("rks,cijkd->rcijsd", core, like(add, core))
    (r, c, _, _, s, d) = both.shape
    return both.reshape(r * c, n, n, s * d)


def _closed(cores: list[Any], first: Any) -> TTMatrix:
    """Closes the outer bonds of a Toeplitz matrix's cores, and builds the TT-matrix."""
    if first is not None:
        cores[0] = einsum("ar,rmns->amns", first, cores[0])
    cores[-1] = cores[-1][..., :1]
    return TTMatrix._unchecked(tuple(map(jnp.asarray, cores)))


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
    dimension `tensorjax.tt.reverse` of a transformed train puts its digits in order.

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
