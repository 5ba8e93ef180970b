"""Truncated singular value decompositions of arrays."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._placement import placed
from tensorjax._typing import JaxOrHost
from tensorjax.linalg._arrays import (
    Array,
    adjoint,
    energy,
    epsilon,
    is_host,
    matmul,
    scale_columns,
    wide,
)
from tensorjax.linalg._host_precision import VERIFY_BELOW
from tensorjax.linalg._powers_of_two import normalized, scaled
from tensorjax.linalg._subspaces.method_choice import Method, choose
from tensorjax.linalg._subspaces.truncated_basis import left_basis
from tensorjax.linalg._svd_eigh_polar import svd


class SVD(NamedTuple):
    """Truncated singular value decomposition a ≈ u @ diag(s) @ vh, with the energy discarded.

    Attributes:
      u: (…, m, r) orthonormal columns (zero where ``tail`` discarded them).
      s: (…, r) singular values in descending order.
      vh: (…, r, n) orthonormal rows (zero likewise).
      discarded: (…,) energy ‖a − u s vh‖_F²; infinite or zero where that is out of range.

    Example:
      >>> import numpy as np
      >>> from tensorjax import linalg
      >>> u, s, vh, discarded = linalg.truncated_svd(np.diag([3.0, 1.0]), rank=1)
      >>> print(s, discarded)
      [3.] 1.0

    Source: ours.
    """

    u: Array
    s: Array
    vh: Array
    discarded: Array


@placed
def truncated_svd(
    a: JaxOrHost,
    *,
    rank: int | None = None,
    tol: float | None = None,
    method: Method = "auto",
    key: jax.Array | None = None,
) -> SVD:
    """Computes an SVD truncated to a rank, to a relative error, or to both.

    Args:
      a: (…, m, n), floating or complex.
      rank: number of terms kept; static, so jit, vmap and grad work.
      tol: allowed ‖a − u s vh‖_F / ‖a‖_F. Alone it needs concrete data; with ``rank`` the shapes
        are those of ``rank`` and what ``tol`` discards is zero. Near 10 eps the result is measured
        and mended, but the roundoff of k factors, about eps·√k, cannot be undercut.
      method: "auto", "svd", "gram" or "randomized"; see `choose`.
      key: for "randomized"; a fixed draw if None.

    Returns:
      `SVD` (u, s, vh, discarded), in the dtype of ``a``; half precision is factored in single.

    Raises:
      TypeError: ``tol`` alone under a JAX transformation, or an integer dtype.
      ValueError: neither given, rank < 1, tol below 10 eps, or m or n is 0.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import linalg
      >>> linalg.truncated_svd(jnp.diag(jnp.array([3.0, 1.0, 1e-4])), tol=1e-3).s
      Array([3., 1.], dtype=float32)

    Source: C. Eckart, G. Young, "The approximation of one matrix by another of lower rank",
    Psychometrika 1 (1936); the subspace is that of `left_basis`.
    """
    a = _check.inexact("a", a, stays=True)
    if a.ndim < 2:
        raise ValueError(f"a: expected a matrix (…, m, n), got shape {a.shape}")
    if 0 in a.shape[-2:]:
        raise ValueError(f"a: expected matrices with rows and columns, got shape {a.shape}")
    _check.tol_or_rank(tol, rank, a)
    if key is not None:
        _check.key(key)
    _check.finite("a", a)
    rank = None if rank is None else min(_check.integer("rank", rank, low=1), *a.shape[-2:])
    share: float | None = None
    checked: Any = None
    if tol is not None:
        checked = _check.tolerance(tol, a.dtype)
        share = None if _check.is_traced(checked) else checked**2
    method = choose(method, share, a.dtype)
    if tol is not None and share is None:
        method = "svd"  # a traced tolerance may be anything
    # Squares of the entries may overflow or underflow: each matrix is scaled to be near 1.
    x, exponent = normalized(wide(np.asarray(a) if rank is None else a), axis=(-2, -1))
    tail = None if tol is None else tol**2 * energy(x)
    out = _truncated_svd(x, rank, tail, method, key)
    if rank is None and checked < VERIFY_BELOW * epsilon(a.dtype):
        # Roundoff competes with the tolerance: keep more terms until the error is below it.
        while np.any(energy(x - matmul(scale_columns(out.u, out.s), out.vh)) > tail):
            if out.s.shape[-1] == min(x.shape[-2:]):
                out = SVD(*_polished(x, out.u, out.vh), out.discarded)
                break
            out = _truncated_svd(x, out.s.shape[-1] + 1, None, "svd", key)
    real = a.real.dtype  # type: ignore[union-attr]
    s = scaled(out.s, exponent[..., 0])
    discarded = scaled(scaled(out.discarded, exponent[..., 0, 0]), exponent[..., 0, 0])
    parts = (out.u, a.dtype), (s, real), (out.vh, a.dtype), (discarded, real)
    with np.errstate(over="ignore"):  # the energy discarded may be out of range
        cast = [part.astype(dtype) for part, dtype in parts]
    return SVD(*(cast if is_host(a) else map(jnp.asarray, cast)))


def _polished(a: Array, u: Array, vh: Array) -> tuple[Array, Array, Array]:
    """Refines NumPy's full SVD to a few eps for `truncated_svd`, before it is truncated.

    LAPACK's QR iteration neglects couplings of up to 90 unit roundoffs; a symmetric eigenproblem is
    solved to one. So uᴴ a v, diagonal but for those, goes into polar form to first order, (1 + k) p
    with k skew, and p is diagonalised; 1 + k is replaced by its Cayley transform, which is unitary.
    """
    t = matmul(matmul(adjoint(u), a), adjoint(vh))
    symmetric, skew = (t + adjoint(t)) / 2, (t - adjoint(t)) / 2
    d = np.maximum(np.real(np.diagonal(symmetric, axis1=-2, axis2=-1)), 0)
    rows, columns = d[..., :, None], d[..., None, :]
    total = rows + columns
    known = total > epsilon(a.dtype) * d.max(-1)[..., None, None]
    k = np.divide(skew, total, out=np.zeros_like(skew), where=known)
    w, z = np.linalg.eigh(symmetric - k * (columns - rows))
    w, z = w[..., ::-1], z[..., :, ::-1]
    eye = np.eye(d.shape[-1], dtype=a.dtype)
    turned = matmul(matmul(u, np.linalg.solve(eye - k, eye + k)), z)
    return scale_columns(turned, np.where(w < 0, -1, 1)), np.abs(w), matmul(adjoint(z), vh)


def _truncated_svd(
    x: Array, rank: int | None, tail: Array | None, method: Method, key: jax.Array | None
) -> SVD:
    u, _, discarded = left_basis(x, rank=rank, tail=tail, method=method, key=key)
    small_u, s, vh = svd(matmul(adjoint(u), x))
    # Masked columns of u have rows of zeros below them, so their singular values come last.
    return SVD(matmul(u, small_u), s, vh, discarded)
