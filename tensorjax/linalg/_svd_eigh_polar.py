"""SVD, Hermitian eigendecomposition and polar factor with finite derivatives: by LAPACK or XLA."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax import lax

from tensorjax import _check
from tensorjax._placement import placed
from tensorjax._typing import AnyArray
from tensorjax.linalg._arrays import (
    adjoint,
    check_matrices,
    eye_like,
    is_host,
    masked_reciprocal,
    matmul,
    scale_columns,
    wide,
)

# Larger corrections are not taken: their first order would not hold, and many of them would leave
# vectors that the steps of `_unitary` do not make orthonormal to roundoff.
_SMALL_TURN = 0.003


def svd(a: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Computes the thin SVD a = u @ diag(s) @ vh, singular values descending.

    Derivatives are finite at repeated and at zero singular values: where two are equal, the
    Hermitian part of their coupling, which has no limit there, is dropped. It does not enter
    functions of whole singular subspaces (the projector u uᴴ, the polar factor u vh), nor symmetric
    functions of s. The product u s vh does need it: there, form u (uᴴ a) instead.

    On NVIDIA's GPUs XLA takes Jacobi's method, whose vectors are orthonormal to some hundred eps
    only; one step of refinement brings them to the accuracy of LAPACK's.

    Args:
      a: (…, m, n), floating or complex; a NumPy array is factored by LAPACK, a JAX array by XLA.

    Returns:
      (u (…, m, k), s (…, k), vh (…, k, n)), s real; arrays of the kind of ``a``.

    Raises:
      TypeError: ``a`` is no array of numbers, or of half precision. ValueError: fewer than two
        axes; NaN or Inf with which LAPACK fails in an array of NumPy (else the results are NaN).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import linalg
      >>> loss = lambda a: jnp.sum(jnp.prod(linalg.svd(a)[1]))
      >>> print(jax.grad(loss)(jnp.eye(2)))
      [[1. 0.]
       [0. 1.]]

    Source: LAPACK or XLA; derivatives and refinement are ours, the latter akin to T. Ogita,
    K. Aishima, J. Comput. Appl. Math. 382, 113085 (2021).
    """
    check_matrices("a", a, half=False)
    if is_host(a):
        return _lapack_svd(a)  # type: ignore[return-value]
    return placed(_svd)(a)  # type: ignore[return-value]


def _lapack_svd(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        u, s, vh = np.linalg.svd(a, full_matrices=False)
    except np.linalg.LinAlgError:
        _check.finite("a", a)
        # Divide and conquer gave up, which it does on rare finite matrices: QR iteration does not.
        u, s, vh = scipy.linalg.svd(a, full_matrices=False, lapack_driver="gesvd")
    return u, s, vh


@jax.custom_jvp
def _svd(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    if a.size == 0:
        return u, s, vh
    return _where_jacobi(refined, a, u, s, vh)


@jax.jit(static_argnums=0)
def _where_jacobi(refine: Callable[..., Any], a: jax.Array, *terms: jax.Array) -> Any:
    """Refines XLA's SVD or eigendecomposition on CUDA, where Jacobi's method is inaccurate."""
    return lax.platform_dependent(a, *terms, cuda=refine, default=lambda a, *terms: terms)


@_svd.defjvp
def _svd_jvp(primals: Any, tangents: Any) -> Any:
    (a,), (da,) = primals, tangents
    u, s, vh = _svd(a)
    v = adjoint(vh)
    dav = matmul(da, v)
    inner = matmul(adjoint(u), dav)
    ds = jnp.diagonal(inner, axis1=-2, axis2=-1).real
    alike, against = _turns(inner, s)
    inverse = masked_reciprocal(s, s[..., :1], max(a.shape[-2:]))[..., None, :].astype(a.dtype)
    du, dv = matmul(u, alike + against), matmul(v, alike - against)
    # What da v has outside the columns of u turns u out of their span, by 1/s; likewise for v.
    if a.shape[-2] > s.shape[-1]:
        du = du + (dav - matmul(u, inner)) * inverse
    if a.shape[-1] > s.shape[-1]:
        dau = matmul(adjoint(da), u)
        dv = dv + (dau - matmul(v, adjoint(inner))) * inverse
    return (u, s, vh), (du, ds, adjoint(dv))


def _turns(inner: jax.Array, s: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes first-order rotations of an SVD's u and v, for its derivative and refinement.

    A Hermitian coupling turns u and v alike, an anti-Hermitian one turns them against each other.
    """
    row, col = s[..., None, :], s[..., :, None]
    apart = masked_reciprocal(row - col, s[..., :1, None], s.shape[-1]).astype(inner.dtype)
    together = masked_reciprocal(row + col, s[..., :1, None], s.shape[-1]).astype(inner.dtype)
    return (
        apart * (inner + adjoint(inner)) / 2,
        together * (inner - adjoint(inner)) / 2,
    )


def refined(
    a: jax.Array, u: jax.Array, s: jax.Array, vh: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Refines an approximate SVD by one step that squares its errors.

    Vectors are made orthonormal by a step of Newton's and Schulz's iteration. What uᴴ a v then has
    outside of its diagonal is a change of the matrix whose singular vectors are known, and turns
    them as the derivative says; where values lie too close to tell, they are left.

    Source: T. Ogita, K. Aishima, J. Comput. Appl. Math. 382, 113085 (2021), has such a refinement;
    the formulas here are those of the derivative (`_turns`).
    """
    u, v = _nearly_unitary(u), _nearly_unitary(adjoint(vh))
    av, ahu = matmul(a, v), matmul(adjoint(a), u)
    inner = matmul(adjoint(u), av)
    s = _real_diagonal(inner)
    change = inner - eye_like(inner) * s[..., None, :].astype(a.dtype)
    alike, against = map(_small, _turns(change, s))
    inverse = masked_reciprocal(s, s[..., :1], max(a.shape[-2:]))[..., None, :].astype(a.dtype)
    du, dv = matmul(u, alike + against), matmul(v, alike - against)
    if a.shape[-2] > s.shape[-1]:
        du = du + _short(_outside(u, av) * inverse)
    if a.shape[-1] > s.shape[-1]:
        dv = dv + _short(_outside(v, ahu) * inverse)
    u, v = _unitary(u + du), _unitary(v + dv)
    s = jnp.maximum(_real_diagonal(matmul(adjoint(u), matmul(a, v))), 0)
    return u, s, adjoint(v)


def eigh(a: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Computes a Hermitian eigendecomposition a = v @ diag(w) @ vᴴ, eigenvalues descending.

    Derivatives are finite at repeated eigenvalues, and GPUs' results are refined, as for `svd`.

    Args:
      a: (…, m, m), Hermitian, floating or complex, of NumPy or JAX. One triangle is read.

    Returns:
      (w (…, m) real, v (…, m, m)); arrays of the kind of ``a``.

    Raises:
      TypeError: ``a`` is no array of numbers, or of half precision. ValueError: its last two axes
        differ, or there are fewer; NaN or Inf with which LAPACK fails in an array of NumPy (else
        the results are NaN).

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import linalg
      >>> w, v = linalg.eigh(jnp.diag(jnp.array([1.0, 3.0])))
      >>> print(w)
      [3. 1.]

    Source: LAPACK or XLA; derivatives and refinement are ours, as for `svd`.
    """
    check_matrices("a", a, square=True, half=False)
    if is_host(a):
        try:
            w, v = np.linalg.eigh(a)
        except np.linalg.LinAlgError:
            _check.finite("a", a)
            raise
    else:
        w, v = placed(_eigh)(a)
    return w[..., ::-1], v[..., ::-1]  # type: ignore[return-value]


@jax.custom_jvp
def _eigh(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    # Of a Hermitian matrix LAPACK reads one triangle; to average it with its adjoint would copy it.
    v, w = lax.linalg.eigh(a, symmetrize_input=False)
    return _where_jacobi(refined_eigh, a, w, v) if a.size else (w, v)


@_eigh.defjvp
def _eigh_jvp(primals: Any, tangents: Any) -> Any:
    (a,), (da,) = primals, tangents
    w, v = _eigh(a)
    inner = matmul(adjoint(v), matmul(da, v))
    scale = jnp.max(jnp.abs(w), axis=-1)[..., None, None]
    # dv = v (F ∘ vᴴ da v) with F_ij = 1/(w_j − w_i). Where eigenvalues coincide, every basis of
    # their space serves, and none is preferred: F is 0 there, as on the diagonal.
    f = masked_reciprocal(w[..., None, :] - w[..., :, None], scale, w.shape[-1])
    dw = jnp.diagonal(inner, axis1=-2, axis2=-1).real
    return (w, v), (dw, matmul(v, f.astype(a.dtype) * inner))


def refined_eigh(a: jax.Array, w: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Refines an approximate `eigh` of a JAX array by one step that squares its errors."""
    v = _nearly_unitary(v)
    inner = matmul(adjoint(v), matmul(a, v))
    w = _real_diagonal(inner)
    scale = jnp.max(jnp.abs(w), axis=-1)[..., None, None]
    apart = masked_reciprocal(w[..., None, :] - w[..., :, None], scale, w.shape[-1])
    v = v + matmul(v, _small(apart.astype(a.dtype) * inner))
    v = _unitary(v)
    return _real_diagonal(matmul(adjoint(v), matmul(a, v))), v


def _nearly_unitary(q: jax.Array) -> jax.Array:
    """Orthonormalises the singular vectors of a JAX SVD or eigh by one Newton–Schulz step."""
    return 1.5 * q - 0.5 * matmul(q, matmul(adjoint(q), q))


def _unitary(q: jax.Array) -> jax.Array:
    """Orthonormalises the singular vectors of a JAX SVD or eigh by three Newton–Schulz steps."""
    return _nearly_unitary(_nearly_unitary(_nearly_unitary(q)))


def _outside(q: jax.Array, x: jax.Array) -> jax.Array:
    """Projects columns on the complement of span(q), twice, in the refinement step of an SVD."""
    for _ in range(2):
        x = x - matmul(q, matmul(adjoint(q), x))
    return x


def _real_diagonal(a: jax.Array) -> jax.Array:
    return jnp.diagonal(a, axis1=-2, axis2=-1).real


def _small(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.abs(x) <= _SMALL_TURN, x, jnp.zeros((), x.dtype))


def _short(x: jax.Array) -> jax.Array:
    """Zeroes the columns of an SVD's refinement step that are too long to be trusted."""
    norm = jnp.linalg.norm(x, axis=-2, keepdims=True)
    return jnp.where(norm <= _SMALL_TURN, x, jnp.zeros((), x.dtype))


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
    check_matrices("a", a)
    u, s, vh = svd(wide(a))
    p = matmul(scale_columns(adjoint(vh), s), vh)
    return matmul(u, vh).astype(a.dtype), p.astype(a.dtype)
