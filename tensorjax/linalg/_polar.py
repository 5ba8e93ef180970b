"""Polar decomposition of arrays."""

from tensorjax import _check
from tensorjax._placement import placed
from tensorjax._typing import AnyArray
from tensorjax.linalg._arrays import adjoint, matmul, scale_columns
from tensorjax.linalg._dtypes import wide
from tensorjax.linalg._svd_eigh import svd


@placed
def polar(a: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Computes the polar decomposition a = u @ p: u with orthonormal columns, p Hermitian ≥ 0.

    u is the matrix with orthonormal columns nearest to ``a``, the solution of the orthogonal
    Procrustes problem. For m < n, u has orthonormal rows instead.

    Args:
      a: (…, m, n), floating or complex; half precision is factored in single.

    Returns:
      (u (…, m, n), p (…, n, n)), in the dtype of ``a``.

    Raises:
      TypeError: ``a`` has an integer dtype. ValueError: it has fewer than two axes.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import linalg
      >>> u, p = linalg.polar(jnp.array([[0.0, -2.0], [2.0, 0.0]]))
      >>> print(jnp.round(u, 6) + 0.0)
      [[ 0. -1.]
       [ 1.  0.]]

    Source: N. Higham, "Functions of Matrices" (SIAM, 2008), chapter 8; by the SVD.
    """
    a = _check.inexact("a", a, stays=True)  # type: ignore[assignment]
    _check.matrices("a", a)
    u, s, vh = svd(wide(a))
    p = matmul(scale_columns(adjoint(vh), s), vh)
    return matmul(u, vh).astype(a.dtype), p.astype(a.dtype)
