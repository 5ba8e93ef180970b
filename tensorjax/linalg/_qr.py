"""QR factorisations of JAX and NumPy arrays: with finite derivatives, and Cholesky QR.

A NumPy array goes to the host's LAPACK and a JAX array to XLA. JAX's own derivatives of these
factorisations divide by differences of singular values and by the diagonal of r, and so give NaN on
repeated values and on zero-padded arrays; here such terms are left out.

On the host it is NumPy's LAPACK, not SciPy's: each brings threads of its own, which go on spinning
for a while after every call. Taken in turn on two cores they slow a sweep many times over.

Cholesky QR serves tall NumPy matrices, and a row space in JAX: matrix products, which are faster.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax._placement import placed
from tensorjax._typing import AnyArray
from tensorjax.linalg._arrays import (
    Array,
    adjoint,
    check_matrices,
    epsilon,
    eye_like,
    identity_like,
    is_host,
    matmul,
    where_positive,
)
from tensorjax.linalg._gram import host_gram

# Where no pivot of scaled columns is below this, one pass of Cholesky QR suffices.
_UPRIGHT = 0.5
# Smaller matrices go to Householder's QR.
_SHORT = 2**13
# Entries of a matrix that LAPACK on a CPU factors within one thread: OpenBLAS starts its others
# from 8192 (of a rank-one update) or 9216 (of a product with a vector) on.
_ONE_THREAD = 2**13


def _floor(magnitude: jax.Array, size: int) -> jax.Array:
    """Returns the magnitude below which entries on the diagonal of a QR triangle are roundoff."""
    return size * jnp.finfo(magnitude.dtype).eps * jnp.max(magnitude, axis=-1, keepdims=True)


def qr(a: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Computes the reduced QR decomposition a = q @ r, whose derivative is finite at any rank.

    Derivatives are finite for rank-deficient ``a``: directions whose diagonal entry of r vanishes
    get none. Wide matrices are differentiable too.

    Args:
      a: (…, m, n), floating or complex; a NumPy array is factored by LAPACK, a JAX array by XLA.

    Returns:
      (q (…, m, k), r (…, k, n)), k = min(m, n); arrays of the kind of ``a``.

    Raises:
      TypeError: ``a`` is no array of numbers, or of half precision. ValueError: it has fewer than
        two axes.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import linalg
      >>> q, r = linalg.qr(jnp.ones((3, 2)))
      >>> q.shape, r.shape
      ((3, 2), (2, 2))

    Source: LAPACK or XLA; the derivative where pivots vanish is ours.
    """
    check_matrices("a", a, half=False)
    return tuple(np.linalg.qr(a)) if is_host(a) else _qr(a)  # type: ignore[return-value]


@placed
def _qr(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    m, n = a.shape[-2:]
    if m >= n:
        return _qr_tall(a)
    q, left = _qr_tall(a[..., :m])
    return q, jnp.concatenate([left, matmul(adjoint(q), a[..., m:])], axis=-1)


@jax.custom_jvp
def _qr_tall(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    q, r = jnp.linalg.qr(a)
    return q, after(r, q)  # r is there before q is, and whoever factors r must wait


def after(x: Array, *done: Array) -> Array:
    """Makes XLA compute an array only after others, so that QR factorisations run in turn.

    XLA cannot prove that what is added is zero.

    Factorisations of batches (as `jax.vmap` makes them) must not run side by side on a CPU. Each
    holds a thread of XLA's pool while it waits for others to do the work: on two cores two of them
    hold both, and the program stands still for ever (seen with jaxlib 0.10.1).
    """
    for y in (y for y in done if y.size):
        zero = 0 * y.ravel()[:1].real
        x = x + zero.reshape((1,) * x.ndim).astype(x.dtype)
    return x


@_qr_tall.defjvp
def _qr_tall_jvp(primals: Any, tangents: Any) -> Any:
    (a,), (da,) = primals, tangents
    q, r = _qr_tall(a)
    c = _right_solve(da, r)
    # With c = da r⁻¹: qᴴ dq is skew and dr r⁻¹ upper triangular, and their sum is qᴴ c. So the
    # entries below the diagonal are those of qᴴ dq alone.
    qc = matmul(adjoint(q), c)
    lower = jnp.tril(qc, -1)
    omega = lower - adjoint(lower)
    if jnp.iscomplexobj(qc):  # r has a real diagonal, so the phase moves into q
        omega = omega + (qc - qc.conj()) / 2 * eye_like(qc)
    dq = c - matmul(q, qc) + matmul(q, omega)
    dr = matmul(adjoint(q), da) - matmul(omega, r)
    return (q, r), (dq, dr)


def _right_solve(b: jax.Array, r: jax.Array) -> jax.Array:
    """Solves c r = b with a QR's triangular r, for its derivative; zero at vanishing pivots."""
    diagonal = jnp.abs(jnp.diagonal(r, axis1=-2, axis2=-1))
    alive = diagonal > _floor(diagonal, max(b.shape[-2:]))
    # Dead directions get a unit pivot for the solve.
    pivots = jnp.where(alive, 0, 1).astype(r.dtype)
    solvable = r + pivots[..., None, :] * eye_like(r)
    c = lax.linalg.triangular_solve(solvable, b, left_side=False, lower=False)
    return jnp.where(alive[..., None, :], c, 0)


def triangle(a: Array) -> Array:
    """Computes only the triangular factor of a QR decomposition, for tall matrices."""
    if is_host(a):
        return np.linalg.qr(a, mode="r")
    return placed(_triangle)(a)


@jax.custom_jvp
def _triangle(a: jax.Array) -> jax.Array:
    m, n = a.shape[-2:]
    exact = isinstance(m, int) and isinstance(n, int)  # and not symbolic
    if not exact or m * n <= _ONE_THREAD or 2 * n * n > _ONE_THREAD:
        return _householder_triangle(a)
    return lax.platform_dependent(a, cpu=_triangle_by_blocks, default=_householder_triangle)


def _householder_triangle(a: jax.Array) -> jax.Array:
    return jnp.linalg.qr(a, mode="r")


def _triangle_by_blocks(a: jax.Array) -> jax.Array:
    """Computes the triangle of a tall matrix by QR of blocks of rows, then of their triangles.

    XLA takes LAPACK from SciPy, whose threads go on spinning for 30 ms after every call: on two
    cores the triangle of 1472 × 23 took 31 ms of processor time and 2.7 ms, by blocks 0.6 ms.

    Source: Demmel, Grigori, Hoemmen, Langou, "Communication-optimal parallel and sequential QR and
    LU factorizations", SIAM J. Sci. Comput. 34 (2012).
    """
    *batch, _, n = a.shape
    rows = _ONE_THREAD // n
    while (m := a.shape[-2]) > rows:
        blocks = -(-m // rows)
        a = jnp.pad(a, [(0, 0)] * len(batch) + [(0, blocks * rows - m), (0, 0)])
        a = _householder_triangle(a.reshape(*batch, blocks, rows, n))
        a = a.reshape(*batch, blocks * n, n)
    return _householder_triangle(a)


@_triangle.defjvp
def _triangle_jvp(primals: Any, tangents: Any) -> Any:
    (_, r), (_, dr) = jax.jvp(_qr_tall, primals, tangents)
    return r, dr


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


def orthonormalized(a: np.ndarray, gram: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Factorises a NumPy matrix a = q r by Cholesky QR, or by LAPACK's QR if ill-conditioned.

    Args:
      a: (m, n).
      gram: its Gram matrix aᴴ a in double precision, if it is known.

    Source: Yamamoto, Nakatsukasa, Yanagisawa, Fukaya, "Roundoff error analysis of the CholeskyQR2
    algorithm", ETNA 44 (2015). Departure, ours: columns are scaled to length one first.
    """
    if a.size < _SHORT or a.shape[0] < 2 * a.shape[1]:
        return qr(a)
    if gram is None:
        sizes = np.sqrt(np.einsum("ij,ij->j", a.conj(), a).real)
    else:
        sizes = np.sqrt(np.real(np.diag(gram)))
    if not sizes.min() > 0:
        return qr(a)
    q, r = a, None
    for scale in (sizes, None):
        known = scale is not None and gram is not None
        g = np.array(gram) if known else host_gram(q, right=True)
        if scale is not None:
            g /= np.outer(scale, scale)
        try:
            lower = np.linalg.cholesky(g)
        except np.linalg.LinAlgError:
            return qr(a)
        pivot = np.real(np.diag(lower)).min()
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
