"""C++ kernels on matrices and large arrays: Gram matrix, projection, Cholesky, sketch."""

import jax
import numpy as np

from tensorjax._native.accepted_arrays import GRAM_DTYPES, check_arrays
from tensorjax._native.host_calls import call, contiguous


def gram(a: np.ndarray, right: bool = False) -> np.ndarray:
    """Computes the Gram matrix of a wide or tall matrix in one pass of a C++ kernel.

    A Aᴴ; with ``right``, Aᴴ A of a tall matrix.

    In double precision, whatever the precision of A.
    """
    if a.ndim != 2 or not a.size or a.dtype not in GRAM_DTYPES or not a.flags.aligned:
        raise ValueError(f"a: expected a real or complex matrix, got {a.shape} {a.dtype}")
    parts = 2 if a.dtype.kind == "c" else 1
    size = a.dtype.itemsize // parts
    if min(a.strides) < 0 or any(s % size for s in a.strides):
        a = np.ascontiguousarray(a)
    (rows, columns), (down, along) = a.shape, (s // size for s in a.strides)
    if right:
        rows, columns, down, along = columns, rows, along, down
    out = np.empty((rows, rows), GRAM_DTYPES[a.dtype])
    call("tensorjax_wide_gram", rows, columns, parts, int(size == 4), down, along, a, out)
    return out.conj() if right and parts == 2 else out


def project(u: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Computes the product Uᵀ A for a wide matrix A in one pass of a C++ kernel."""
    u, a = contiguous("u", u, 2), contiguous("a", a, 2)
    if len(u) != len(a):
        raise ValueError(f"u, a: expected as many rows, got {u.shape} and {a.shape}")
    out = np.empty((u.shape[1], a.shape[1]))
    call("tensorjax_project", *a.shape, u.shape[1], u, a, out)
    return out


def pivoted_cholesky(g: np.ndarray, roundoff: float) -> np.ndarray:
    """Computes a pivoted Cholesky factor of a Gram matrix by a C++ kernel, up to roundoff.

    L (n, m) with L Lᵀ = G but for entries of ``roundoff``.
    """
    g = contiguous("g", g, 2)
    if g.shape[0] != g.shape[1]:
        raise ValueError(f"g: expected a square matrix, got {g.shape}")
    lower = np.empty(g.shape)
    rank = call("tensorjax_factor", len(g), g, float(roundoff), lower)
    return lower[:rank].T


def sketch(x: jax.Array, a: jax.Array, c: jax.Array) -> jax.Array:
    """Sketches a large array: contracts it with two cores by the C++ kernel, called from XLA.

    y_bjk = Σ_nmr x_bnm a_njr c_rmk.

    Args:
      x: (batch, n, m), float32 or float64; large.
      a: (n, j, r).
      c: (r, m, k).
    """
    check_arrays(x.dtype, (a, c))
    ((batch, n, m), (_, j, r), (_, _, k)) = x.shape, a.shape, c.shape
    if a.shape[0] != n or c.shape[:2] != (r, m):
        raise ValueError(
            f"expected (b, n, m), (n, j, r), (r, m, k), got {x.shape, a.shape, c.shape}"
        )
    shape = jax.ShapeDtypeStruct((batch, j, k), x.dtype)
    call = jax.ffi.ffi_call("tensorjax_sketch", shape, vmap_method="broadcast_all")
    return call(x, a, c)
