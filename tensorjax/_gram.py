"""Gram matrices, and the orthonormal bases and projections that go with them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax import _native
from tensorjax._factor import (
    Array,
    adjoint,
    epsilon,
    identity_like,
    is_host,
    matmul,
    where_positive,
)

# Columns of a short, wide matrix multiplied at a time: XLA's CPU product of such a matrix with its
# transpose is several times slower in one piece.
_GRAM_CHUNK = 16_384


def gram(a: Array) -> Array:
    """a @ aᴴ, (…, m, m); in column chunks where the matrix is short and wide.

    NumPy float32 and complex64 data are accumulated, and returned, in double precision, so that
    the √eps floor of the Gram matrix lies below anything a float32 tolerance can ask.
    """
    m, n = a.shape[-2:]
    if is_host(a):
        wide = np.result_type(a.dtype, np.float64)
        if wide == a.dtype:
            return _native.gram(a) if _native.is_wide(a) else a @ adjoint(a)
        out = np.zeros((*a.shape[:-1], m), wide)
        for start in range(0, n, _GRAM_CHUNK):
            chunk = a[..., start : start + _GRAM_CHUNK].astype(wide)
            out += chunk @ adjoint(chunk)
        return out
    if n < 2 * _GRAM_CHUNK or a.ndim > 2:
        return matmul(a, adjoint(a))
    whole = n // _GRAM_CHUNK

    def step(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        chunk = lax.dynamic_slice_in_dim(a, start, _GRAM_CHUNK, axis=1)
        return total + matmul(chunk, adjoint(chunk)), None

    rest = a[:, whole * _GRAM_CHUNK :]
    total, _ = lax.scan(step, matmul(rest, adjoint(rest)), _GRAM_CHUNK * jnp.arange(whole))
    return total


def project(u: Array, a: Array) -> Array:
    """uᴴ a, (…, r, n), in the precision of ``u``: host float32 data are widened piece by piece."""
    if is_host(a) and u.dtype == a.dtype and u.ndim == 2 and _native.is_wide(a):
        return _native.project(u, a)
    if not is_host(a) or a.dtype == u.dtype:
        return matmul(adjoint(u), a)
    out = np.empty((u.shape[-1], a.shape[-1]), u.dtype)
    for start in range(0, a.shape[-1], _GRAM_CHUNK):
        piece = slice(start, start + _GRAM_CHUNK)
        out[:, piece] = adjoint(u) @ a[:, piece].astype(u.dtype)
    return out


def orthonormal_rows(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Orthonormal basis w @ q of the space that the rows of a wide JAX array (…, n, m) span.

    Rows that add nothing are zero. q (…, n, m) is nearly orthonormal already and w (…, n, n) is the
    small correction: whoever multiplies by another small matrix next saves a pass over the wide
    one. Rows, not columns: XLA multiplies by a transposed right factor faster than by a left one.

    Cholesky-QR twice: matrix products, and so faster than Householder QR. The first pass is shifted
    by a few eps, so it never breaks down; it leaves the rows that lie deep in the spectrum short,
    and the second one, ours, scales them up before it looks at them.

    Source: Fukaya, Kannan, Nakatsukasa, Yamamoto, Yanagisawa, "Shifted Cholesky QR", SIAM J. Sci.
    Comput. 42 (2020).
    """
    eps = epsilon(a.dtype)
    g = matmul(a, adjoint(a))
    trace = jnp.trace(g, axis1=-2, axis2=-1).real
    w, _ = _inverse_factor(g, 8 * eps * where_positive(trace, 1.0)[..., None])
    q = matmul(w, a)
    g = matmul(q, adjoint(q))
    squares = jnp.diagonal(g, axis1=-2, axis2=-1).real
    scale = jnp.where(squares > 0, lax.rsqrt(where_positive(squares, 1.0)), 0).astype(a.dtype)
    # Long rows are nearly orthonormal; short ones may be parallel, and are kept from breaking.
    shift = jnp.where(squares > 0.5, 0, 64 * eps * a.shape[-2])
    shift = jnp.where(squares > 0, shift, 1)
    w, pivots = _inverse_factor(scale[..., :, None] * g * scale[..., None, :], shift)
    # A pivot is the squared sine of the angle to the rows before: of a row in their span, only
    # roundoff is left.
    return jnp.where((pivots > eps**0.5)[..., None], w * scale[..., None, :], 0), q


def _inverse_factor(g: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
    """L^{-1} for g + diag(shift) = L Lᴴ, and the squared pivots."""
    eye = identity_like(g.shape[-1], g)
    lower = lax.linalg.cholesky(g + shift.astype(g.dtype)[..., None] * eye, symmetrize_input=False)
    eye = jnp.broadcast_to(eye, g.shape)
    inverse = lax.linalg.triangular_solve(lower, eye, left_side=True, lower=True)
    return inverse, jnp.diagonal(lower, axis1=-2, axis2=-1).real ** 2
