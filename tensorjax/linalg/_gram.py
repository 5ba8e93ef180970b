"""Gram matrices a aᴴ, projections uᴴ a on a basis, and energies, on the host or in JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax import _native
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import CPP, HOST
from tensorjax._typing import AnyArray
from tensorjax.linalg._arrays import Array, adjoint, check_matrices, is_host, matmul

# Columns of a short, wide matrix multiplied at a time: XLA's CPU product of such a matrix with its
# transpose is several times slower in one piece.
_GRAM_CHUNK = 16_384
# Host matrices are multiplied at once up to this many entries, otherwise in pieces of the second
# number of entries and at least the third of columns: they fit a cache and suit a BLAS. Those that
# are not converted need no cache, and are longer.
_SMALL, _IN_CACHE, _STRIP = 2**14, 2**16, 256
_NARROW = 2**18
# Squares added up in single precision, before they are in double.
_ROW = 256
# Mean of such sums below which squares may be too small for single precision.
_LEAST_SUM = 1e-25


def gram(a: AnyArray) -> AnyArray:
    """Computes the Gram matrix a aᴴ of an array's rows; JAX arrays with many columns in chunks.

    NumPy float32 and complex64 data are accumulated, and returned, in double precision, so that
    the √eps floor of the Gram matrix lies below anything a float32 tolerance can ask.

    Args:
      a: (…, m, n), floating or complex, of NumPy or JAX.

    Returns:
      (…, m, m) Hermitian, of the kind of ``a``.

    Raises:
      TypeError: ``a`` is no array of numbers. ValueError: it has fewer than two axes.

    Example:
      >>> import numpy as np
      >>> from tensorjax import linalg
      >>> print(linalg.gram(np.ones((2, 3), np.float32)))
      [[3. 3.]
       [3. 3.]]

    Source: ours.
    """
    check_matrices("a", a)
    n = a.shape[-1]
    if is_host(a):
        return host_gram(a) if a.ndim == 2 else _wide(a) @ adjoint(_wide(a))  # type: ignore[return-value]
    if n < 2 * _GRAM_CHUNK or a.ndim > 2:
        return matmul(a, adjoint(a))
    whole = n // _GRAM_CHUNK

    def step(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        chunk = lax.dynamic_slice_in_dim(a, start, _GRAM_CHUNK, axis=1)
        return total + matmul(chunk, adjoint(chunk)), None

    rest = a[:, whole * _GRAM_CHUNK :]
    total, _ = lax.scan(step, matmul(rest, adjoint(rest)), _GRAM_CHUNK * jnp.arange(whole))
    return total  # type: ignore[return-value]


def _wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.result_type(a.dtype, np.float64), copy=False)


def host_gram(a: np.ndarray, *, right: bool = False, narrow: bool = False) -> np.ndarray:
    """Computes the Gram matrix of a host matrix's rows (or columns), summed in double precision.

    Args:
      a: (m, n), real or complex.
      right: the Gram matrix of the columns.
      narrow: multiply float32 and complex64 as they are, and only add up in double precision.
    """
    wide = np.result_type(a.dtype, np.float64)
    if choose_kernel("linalg.gram", (a,), HOST, right=right, narrow=narrow) is CPP:
        return _native.gram(a, right)
    if a.dtype == np.float64:
        return a.T @ a if right else a @ a.T
    if a.size < _SMALL:
        a = a.astype(wide, copy=False)
        return adjoint(a) @ a if right else a @ adjoint(a)
    rows, columns = a.shape[::-1] if right else a.shape
    out: Any = np.zeros((rows, rows), wide)
    step = max(_STRIP, (_NARROW if narrow else _IN_CACHE) // rows)
    for start in range(0, columns, step):
        piece: Any = a[start : start + step].T if right else a[:, start : start + step]
        if not narrow:
            piece = piece.astype(wide, copy=False)
        if piece.dtype.kind == "f":
            out += piece @ piece.T
            continue
        # Two products for the real part, one for the imaginary: half the work of a complex one.
        x, y = np.ascontiguousarray(piece.real), np.ascontiguousarray(piece.imag)
        cross = y @ x.T
        out.real += x @ x.T + y @ y.T
        out.imag += cross.T - cross if right else cross - cross.T
    return out


def host_energy(a: np.ndarray) -> float:
    """Computes ‖a‖_F² of a NumPy array in double precision, the trace of its Gram matrix.

    Of single precision, sums of 256 squares are rounded to it, where they are in its range: half
    the time of a conversion, and errors of a few 1e-9.
    """
    flat = a.reshape(-1)
    if flat.dtype.itemsize == np.result_type(flat.dtype, np.float64).itemsize:
        return float(np.vdot(flat, flat).real)
    if flat.dtype in (np.float32, np.complex64):
        reals = flat.view(np.float32)
        whole = len(reals) // _ROW * _ROW
        rows, rest = reals[:whole].reshape(-1, _ROW), _wide(reals[whole:])
        with np.errstate(over="ignore", under="ignore"):
            sums = np.einsum("ij,ij->i", rows, rows)
        total = float(sums.sum(dtype=np.float64) + rest @ rest)
        # Sums at the ends of the range have lost entries: those are added up in double precision.
        if len(rows) * _LEAST_SUM < total < np.inf:
            return total
    pieces = (flat[k : k + _IN_CACHE] for k in range(0, flat.size, _IN_CACHE))
    return float(sum(np.vdot(w, w).real for w in map(_wide, pieces)))


def project(u: Array, a: Array) -> Array:
    """Computes uᴴ a, the coordinates of a matrix in a basis u, in the precision of u."""
    if not is_host(a):
        return matmul(adjoint(u), a)
    if a.dtype == u.dtype:
        native = u.ndim == 2 and choose_kernel("linalg.project", (a,), HOST) is CPP
        return _native.project(u, a) if native else matmul(adjoint(u), a)
    out = np.empty((u.shape[-1], a.shape[-1]), u.dtype)
    for start in range(0, a.shape[-1], _GRAM_CHUNK):
        piece = slice(start, start + _GRAM_CHUNK)
        out[:, piece] = adjoint(u) @ a[:, piece].astype(u.dtype)
    return out
