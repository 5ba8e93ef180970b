"""Orthonormal bases by Cholesky QR: of a row space in JAX, of columns of NumPy matrices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax.linalg._arrays import adjoint, identity_like, matmul, where_positive
from tensorjax.linalg._dtypes import epsilon
from tensorjax.linalg._gram import host_gram
from tensorjax.linalg._qr import qr

# Where no pivot of scaled columns is below this, one pass of Cholesky QR suffices.
_UPRIGHT = 0.5
# Smaller matrices go to Householder's QR.
_SHORT = 2**13


def orthonormal_rows(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes an orthonormal basis w @ q of a matrix's row space by Cholesky QR, in JAX.

    Linearly dependent rows become zero. q (…, n, m) is nearly orthonormal and w (…, n, n) a small
    correction, kept apart so that it can be merged with the next small factor without a pass over
    q. Rows, not columns: XLA multiplies by a transposed right factor faster than by a left one.

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
    """Inverts the Cholesky factor of g + diag(shift), for Cholesky QR; returns pivots too."""
    eye = identity_like(g.shape[-1], g)
    lower = lax.linalg.cholesky(g + shift.astype(g.dtype)[..., None] * eye, symmetrize_input=False)
    eye = jnp.broadcast_to(eye, g.shape)
    inverse = lax.linalg.triangular_solve(lower, eye, left_side=True, lower=True)
    return inverse, jnp.diagonal(lower, axis1=-2, axis2=-1).real ** 2


def orthonormalized(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factorises a NumPy matrix a = q r by Cholesky QR, or by LAPACK's QR if ill-conditioned.

    Source: Yamamoto, Nakatsukasa, Yanagisawa, Fukaya, "Roundoff error analysis of the CholeskyQR2
    algorithm", ETNA 44 (2015). Departure, ours: columns are scaled to length one first.
    """
    if a.size < _SHORT or a.shape[0] < 2 * a.shape[1]:
        return qr(a)
    sizes = np.sqrt(np.einsum("ij,ij->j", a.conj(), a).real)
    if not sizes.min() > 0:
        return qr(a)
    q, r = a, None
    for scale in (sizes, None):
        g = host_gram(q, right=True)
        if scale is not None:
            g /= np.outer(scale, scale)
        try:
            lower = np.linalg.cholesky(g)
        except np.linalg.LinAlgError:
            return qr(a)
        pivot = np.diagonal(lower).real.min()
        if pivot < 1e2 * epsilon(a.dtype) ** 0.5:
            return qr(a)
        inverse = adjoint(np.linalg.inv(lower))
        upper = adjoint(lower)
        if scale is not None:
            inverse, upper = inverse / scale[:, None], upper * scale
        q = q @ inverse.astype(a.dtype)
        r = upper if r is None else upper @ r
        if pivot > _UPRIGHT:  # the error of one pass grows with the squared condition number
            break
    assert r is not None
    return q, r.astype(a.dtype)
