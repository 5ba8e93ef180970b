"""Leading singular subspaces: from an SVD, a Gram matrix or a random sketch.

A sweep over a tensor network needs a basis of the subspace and no more; `left_basis` finds it by
the method that `choose` names, with a derivative of the subspace as a whole.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax import _check
from tensorjax._typing import AnyArray, ArrayLike, DTypeLike, JaxOrHost
from tensorjax.linalg._arrays import (
    Array,
    adjoint,
    energy,
    epsilon,
    is_host,
    matmul,
    random_like,
    root,
    scale_columns,
)
from tensorjax.linalg._arrays import namespace as _xp
from tensorjax.linalg._gram import gram
from tensorjax.linalg._qr import qr
from tensorjax.linalg._svd_eigh import eigh, svd

Method = Literal["auto", "svd", "gram", "randomized"]
METHODS = ("auto", "svd", "gram", "randomized")

# Energies of a Gram matrix are wrong by a few eps of the total (measured: at most 4 on matrices of
# 8 to 4096 rows); the factor leaves room.
GRAM_NOISE = 16
# Singular vectors recovered from the other side's are orthonormal to eps over this or better.
_CLEAN = 1e-8
# Extra columns of a random sketch: the error is then within a few per cent of the best, and the
# probability of worse falls with the factorial of this number (Halko, Martinsson, Tropp 2011, §10).
OVERSAMPLE = 10


class Basis(NamedTuple):
    """Leading left singular subspace of a matrix, and the energies inside and outside it.

    Attributes:
      u: (…, m, r) orthonormal columns (zero where ``tail`` discarded them).
      energies: (…, r) squared singular values, descending (zero likewise).
      discarded: (…,) energy ‖a − u uᴴ a‖_F².

    Example:
      >>> import numpy as np
      >>> from tensorjax import linalg
      >>> u, energies, discarded = linalg.left_basis(np.diag([3.0, 1.0]), rank=1)
      >>> print(energies, discarded)
      [9.] 1.0

    Source: ours.
    """

    u: Array
    energies: Array
    discarded: Array


def choose(method: Method, share: float | None, dtype: DTypeLike, *, levels: int = 2) -> Method:
    """Chooses the fastest accurate method for a leading subspace: SVD, Gram matrix or sketch.

    Args:
      method: what the caller asked for; "auto" is free to choose. "gram" and "randomized" are taken
        only where they reach the accuracy, and "svd" stands in for them elsewhere.
      share: the share of the total energy that may be discarded (a squared relative error); None
        when only a rank is asked, or when it is traced.
      dtype: of the matrix; host float32 is accumulated in float64, see `gram`.
      levels: Gram matrices in a row: 2 for a given matrix (floor eps^1.5 of the energy), 1 where
        only the Gram matrix is known (floor eps).

    Returns:
      "gram", "randomized" or "svd".

    Raises:
      ValueError: ``method`` is unknown, or ``levels`` is not 1 or 2. TypeError: ``share`` is no
        number, or ``dtype`` neither floating nor complex.

    Example:
      >>> from tensorjax import linalg
      >>> [linalg.choose("auto", tol**2, "float64") for tol in (1e-6, 1e-13)]
      ['gram', 'svd']

    Source: ours; the floors are roundoff of the Gram matrix, measured.
    """
    _check.choice("method", method, METHODS)
    if not isinstance(dtype, np.dtype):
        dtype = _check.dtype_of("dtype", dtype)
    if dtype.kind in "biuOSUmM":
        raise TypeError(f"dtype: expected a floating-point or complex dtype, got {dtype}")
    _check.integer("levels", levels, low=1, high=2)
    if share is None:
        return "svd" if method == "auto" else method
    if _check.number("share", share, finite=False) < 2 * GRAM_NOISE * gram_floor(dtype, levels):
        return "svd"
    return "gram" if method == "auto" else method


def left_basis(
    a: JaxOrHost,
    *,
    rank: int | None = None,
    tail: ArrayLike | None = None,
    share: float | None = None,
    method: Method = "svd",
    key: jax.Array | None = None,
) -> Basis:
    """Computes an orthonormal basis of a matrix's leading left singular subspace.

    This, not the full SVD, is what a sweep over a tensor network needs: the next factor is uᴴ a,
    which no division by small singular values spoils.

    Args:
      a: (…, m, n).
      rank: number of columns kept (at most min(m, n)); static.
      tail: (…,) energy that may be discarded.
      share: the same as a share of ‖a‖_F²; it spares a pass over the data.
      method: "svd", "gram" or "randomized"; see `choose`.
      key: for "randomized"; a fixed draw if None.

    Returns:
      `Basis` of u, the energies kept and the energy discarded.

    Raises:
      ValueError: without a rank, unless ``a`` is a NumPy array and tail or share is given; a rank
        below 0, an unknown method. TypeError: ``a`` is no array of numbers, tail or share is none.

    Example:
      >>> import numpy as np
      >>> from tensorjax import linalg
      >>> basis = linalg.left_basis(np.diag([3.0, 1.0, 1e-4]), share=1e-6)
      >>> print(basis.u.shape, basis.energies.round(3), f"{basis.discarded:.0e}")
      (3, 2) [9. 1.] 1e-08

    Source: Halko, Martinsson, Tropp, SIAM Rev. 53 (2011), algorithm 4.4 ("randomized"). Ours: the
    second Gram matrix for the weak directions ("gram"), and the derivative of the whole subspace.
    """
    _check_options(a, rank, share, method, key)
    shape = getattr(tail, "shape", () if isinstance(tail, int | float) else None)
    if tail is not None and (shape is None or len(shape) > a.ndim - 2):
        raise TypeError(f"tail: expected energies {a.shape[:-2]}, got {_check.short(tail)}")
    if rank is None and ((tail is None and share is None) or not is_host(a)):
        raise ValueError("rank: expected a static rank (a tail alone cuts NumPy arrays only)")
    if is_host(a):
        return _basis(a, tail, share, key, rank, method)
    return _differentiable_basis(a, tail, share, key, rank, method)


def _check_options(a: Any, rank: Any, share: Any, method: Any, key: Any = None) -> None:
    """Checks the arguments of a search for a leading subspace."""
    _check.matrices("a", a)
    if rank is not None:
        _check.integer("rank", rank, low=0)
    if share is not None and not _check.is_traced(share):
        _check.number("share", share, finite=False)
    _check.choice("method", method, METHODS)
    if key is not None:
        _check.key(key)


def _basis(
    a: Array, tail: Array | None, share: Any, key: Any, rank: int | None, method: Method
) -> Basis:
    if method == "randomized" and rank is not None and rank + OVERSAMPLE < min(a.shape[-2:]):
        q = range_finder(a, rank + OVERSAMPLE, key=key)
        if share is not None:
            tail = share * energy(a)
        small = _basis(matmul(adjoint(q), a), tail, None, None, rank, "svd")
        u = matmul(q, small.u)
        return Basis(u, small.energies, energy(a - matmul(u, matmul(adjoint(u), a))))
    method = "gram" if method == "randomized" else method  # a sketch would be no smaller
    energies, vectors, right = _spectrum(a, method, rank, tail, share)
    cut = _cut(energies, rank, tail, share, method)
    vectors, energies = vectors[..., :, : cut.rank], energies[..., : cut.rank]
    if right:
        vectors = _left_from_right(a, vectors, energies)
    if cut.mask is not None:
        xp = _xp(a)
        vectors = xp.where(cut.mask[..., None, :], vectors, 0)
        energies = xp.where(cut.mask, energies, 0)
    return Basis(vectors, energies, cut.discarded)


_differentiable_basis = jax.custom_jvp(_basis, nondiff_argnums=(4, 5))


@_differentiable_basis.defjvp
def _basis_jvp(rank: Any, method: Method, primals: Any, tangents: Any) -> Any:
    """Differentiates a leading subspace as a whole, not vector by vector.

    Kept directions move towards discarded ones and out of the range; among themselves they stay
    put, so repeated singular values do no harm. A vanishing or repeated one at the cut itself,
    where the subspace has no derivative, gets zero. A random basis has no derivative at low-rank
    data, so the exact one takes its place here.
    """
    (a, tail, share, _), (da, *_) = primals, tangents
    method = "svd" if method == "randomized" else method
    out = _differentiable_basis(a, tail, share, None, rank, method)
    u, energies = _left_spectrum(a, rank, tail, share, method)
    cut = _cut(energies, rank, tail, share, method)
    kept = jnp.broadcast_to(jnp.arange(energies.shape[-1]) < cut.rank, energies.shape)
    if cut.mask is not None:
        padding = [(0, 0)] * (energies.ndim - 1) + [(0, energies.shape[-1] - cut.rank)]
        kept = kept & jnp.pad(cut.mask, padding)
    alive = _inverse(energies, energies, method)
    moved = matmul(da, matmul(adjoint(a), u))
    inner = matmul(adjoint(u), moved)
    coupling = inner + adjoint(inner)
    s = root(energies)
    apart = (s[..., None, :] - s[..., :, None]) > energies.shape[-1] * epsilon(s.dtype) * s[
        ..., :1, None
    ]
    across = kept[..., None, :] & ~kept[..., :, None]
    gap = energies[..., None, :] - energies[..., :, None]
    turn = jnp.where(across & apart, 1 / jnp.where(across & apart, gap, 1), 0)
    outside = scale_columns(moved - matmul(u, inner), jnp.where(kept, alive, 0))
    du = (matmul(u, turn.astype(a.dtype) * coupling) + outside)[..., : cut.rank]
    change = jnp.diagonal(coupling, axis1=-2, axis2=-1).real
    return out, Basis(
        du,
        jnp.where(kept, change, 0)[..., : cut.rank],
        jnp.sum(jnp.where(kept, 0, change), -1),
    )


def square_factor(
    a: AnyArray, *, rank: int | None = None, share: float | None = None, method: Method = "svd"
) -> tuple[AnyArray, AnyArray]:
    """Computes a square factor f of a aᴴ, with the left singular subspaces of a at small size.

    The columns of f are the left singular vectors times the singular values, so f has all the left
    subspaces of ``a``, and those of its unfoldings, at the size of a square matrix.

    Args:
      a: (…, m, n).
      rank: how many singular values must be accurate beside the largest; all if None.
      share: the share of ‖a‖_F² below which they need not be accurate.
      method: "svd" or "gram" ("randomized" is taken as "gram").

    Returns:
      (f, squared singular values (…, k), descending), k = min(m, n).

    Raises:
      TypeError: ``a`` is no array of numbers, or share no number. ValueError: ``a`` has fewer than
        two axes, the rank is below 0, the method unknown.

    Example:
      >>> import numpy as np
      >>> from tensorjax import linalg
      >>> a = np.arange(12.0).reshape(2, 6)
      >>> f, energies = linalg.square_factor(a)
      >>> f.shape, bool(np.allclose(f @ f.T, a @ a.T))
      ((2, 2), True)

    Source: ours.
    """
    _check_options(a, rank, share, method)
    method = "gram" if method == "randomized" else method
    if is_host(a):
        return _square_factor(a, share, rank, method)
    return _differentiable_factor(a, share, rank, method)


def _square_factor(a: Array, share: Any, rank: int | None, method: Method) -> tuple[Array, Array]:
    u, energies = _left_spectrum(a, rank, None, share, method)
    return scale_columns(u, root(energies)), energies


_differentiable_factor = jax.custom_jvp(_square_factor, nondiff_argnums=(2, 3))


@_differentiable_factor.defjvp
def _square_factor_jvp(rank: Any, method: Method, primals: Any, tangents: Any) -> Any:
    """Differentiates a subspace's square-root factor, f fᴴ = a aᴴ, its directions held fixed."""
    (a, share), (da, _) = primals, tangents
    f, energies = _differentiable_factor(a, share, rank, method)
    moved = matmul(da, matmul(adjoint(a), f))
    inverse = _inverse(energies, energies, method)
    change = 2 * jnp.sum((f.conj() * moved).real, axis=-2) * inverse
    return (f, energies), (scale_columns(moved, inverse), change)


def _inverse(x: Array, energies: Array, method: Method) -> Array:
    """Computes reciprocals 1/x for the derivative of a leading subspace; 0 at roundoff."""
    size = energies.shape[-1]
    floor = gram_floor(energies.dtype, 2) if method == "gram" else epsilon(energies.dtype) ** 2
    alive = energies > size**2 * floor * energies[..., :1]
    return jnp.where(alive, 1 / jnp.where(alive, x, 1), 0)


def _left_spectrum(
    a: Array, rank: int | None, tail: Array | None, share: float | None, method: Method
) -> tuple[Array, Array]:
    """Computes all left singular vectors and energies, from which a leading subspace is cut."""
    energies, vectors, right = _spectrum(a, method, rank, tail, share)
    return (_left_from_right(a, vectors, energies) if right else vectors), energies


def _spectrum(
    a: Array, method: Method, rank: int | None, tail: Array | None, share: float | None
) -> tuple[Array, Array, bool]:
    """Computes squared singular values and vectors, left or right ones, for a subspace."""
    m, n = a.shape[-2:]
    if method == "gram":
        right = m > n
        return *_gram_spectrum(adjoint(a) if right else a, rank, tail, share), right
    if m > n:  # the small SVD of r is what LAPACK would do too, and XLA would not
        q, r = qr(a)
        u, s, _ = svd(r)
        return s**2, matmul(q, u), False
    if n > 2 * m:
        a = adjoint(qr(adjoint(a))[1])
    u, s, _ = svd(a)
    return s**2, u, False


def gram_floor(dtype: Any, levels: int) -> float:
    """Returns the share of energy that is roundoff in a subspace from Gram matrices."""
    return epsilon(dtype) ** (0.5 + 0.5 * levels)


def _gram_spectrum(
    a: Array, rank: int | None, tail: Array | None, share: float | None
) -> tuple[Array, Array]:
    """Computes the left singular subspace's vectors and energies by one or two Gram matrices.

    One Gram matrix resolves energies down to eps of the largest. If the cut lies near that floor,
    the weak rows of vᴴ a, rotated apart from the strong ones, get a Gram matrix of their own, which
    resolves them down to eps^1.5. (This second level is ours.)
    """
    xp = _xp(a)
    w, v = eigh(gram(a))
    w = xp.maximum(w, 0)
    floor = gram_floor(w.dtype, 1)
    if share is not None:
        near = xp.asarray(share < 2 * GRAM_NOISE * floor)
    elif tail is None:
        near = _near_floor(w, min(rank or w.shape[-1], w.shape[-1]))
    else:
        near = tail < 2 * GRAM_NOISE * floor * w.sum(-1)
    if is_host(a):
        return _second_level(a, w, v) if np.any(near) else (w, v)
    return lax.cond(xp.any(near), _second_level, lambda _, w, v: (w, v), a, w, v)


def _second_level(a: Array, w: Array, v: Array) -> tuple[Array, Array]:
    xp = _xp(a)
    weak = w < xp.sqrt(xp.asarray(gram_floor(w.dtype, 1), w.dtype)) * w[..., :1]
    rows = xp.where(weak[..., :, None], matmul(adjoint(v), a.astype(v.dtype)), 0)
    w_weak, rotation = eigh(gram(rows))
    # The strong rows were set to zero, so their share of the new eigenvectors is arbitrary and
    # sits last; shift the weak spectrum behind the strong one, and rotate the weak rows alone.
    count = xp.sum(weak, -1, keepdims=True)
    index = xp.broadcast_to(xp.arange(w.shape[-1]), w.shape) - (w.shape[-1] - count)
    source = xp.where(index >= 0, index, 0)
    w_out = xp.where(weak, xp.take_along_axis(xp.maximum(w_weak, 0), source, -1), w)
    rotated = matmul(v, rotation)
    columns = xp.take_along_axis(rotated, source[..., None, :], -1)
    return w_out, xp.where(weak[..., None, :], columns, v)


def _left_from_right(a: Array, v: Array, energies: Array) -> Array:
    """Computes a basis of left singular vectors from right ones, for a singular subspace."""
    xp = _xp(a)
    s = root(energies)
    alive = s > np.finfo(s.dtype).eps * max(a.shape[-2:]) * s[..., :1]
    u = scale_columns(matmul(a, v), xp.where(alive, 1 / xp.where(alive, s, 1), 0))
    if is_host(a) and a.ndim == 2 and energies[-1] > _CLEAN * energies[0]:
        lower = np.linalg.cholesky(gram(adjoint(u)))  # u is nearly orthonormal: one pass makes it
        return u @ np.linalg.inv(lower).T.conj()
    # Directions lost in roundoff are zero now: any orthonormal completion serves, and QR gives one.
    return qr(u)[0]


class _Cut(NamedTuple):
    rank: int
    mask: Array | None
    discarded: Array


def _cut(
    energies: Array, rank: int | None, tail: Array | None, share: float | None, method: Method
) -> _Cut:
    """Decides how many directions a leading subspace keeps, from a rank and an energy budget."""
    xp = _xp(energies)
    if share is not None:
        tail = share * energies.sum(-1)
    noise = GRAM_NOISE * gram_floor(energies.dtype, 2) if method == "gram" else 0.0
    suffix = xp.flip(xp.cumsum(xp.flip(energies, -1), -1), -1)
    size = energies.shape[-1]
    count = size if rank is None else min(rank, size)
    mask = None
    if tail is not None:
        allowed = xp.maximum(tail - noise * suffix[..., 0], 0)
        mask = suffix > xp.asarray(allowed)[..., None]
        if is_host(energies):
            count = min(count, int(mask.sum(-1).max(initial=1)))
        mask = mask[..., :count]
        if is_host(energies) and mask.all():
            mask = None
    zero = xp.zeros_like(suffix[..., :1])
    kept = count if mask is None else xp.sum(mask, -1)
    index = xp.broadcast_to(xp.asarray(kept), suffix.shape[:-1])[..., None]
    discarded = xp.take_along_axis(xp.concatenate([suffix, zero], -1), index, -1)[..., 0]
    return _Cut(count, mask, discarded)


def leading_eigenvectors(g: jax.Array, rank: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes a leading subspace from a Gram matrix: eigenvectors, eigenvalues, accuracy flag.

    Args:
      g: (m, m) JAX array, Hermitian and positive semidefinite.
      rank: number of eigenvectors; static.

    Returns:
      (v (m, rank), w (rank,) descending and at least 0, flag): the flag, a Boolean array (), says
      whether the cut lies so deep in the spectrum, below √eps, that `left_basis` would see more.

    Raises:
      TypeError: ``g`` is no array of numbers. ValueError: it is not square, or has no such rank.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import linalg
      >>> v, w, deep = linalg.leading_eigenvectors(jnp.diag(jnp.array([1.0, 4.0, 2.0])), 2)
      >>> print(v.shape, w, deep)
      (3, 2) [4. 2.] False

    Source: ours.
    """
    _check.matrices("g", g, square=True)
    rank = _check.integer("rank", rank, low=1, high=g.shape[-1])
    w, v = eigh(g)
    w = jnp.maximum(w, 0)
    return v[:, :rank], w[:rank], _near_floor(w, rank)


def _near_floor(energies: Array, rank: int) -> Array:
    """Whether a leading subspace's last eigenvalue is too small for one Gram matrix to resolve."""
    return energies[..., rank - 1] < 4 * gram_floor(energies.dtype, 1) * energies[..., 0]


def range_finder(
    a: AnyArray, rank: int, *, power: int = 1, key: jax.Array | None = None
) -> AnyArray:
    """Computes an orthonormal basis of a matrix's approximate range from a random sketch.

    Args:
      a: (…, m, n).
      rank: number of columns, oversampling included; at most min(m, n).
      power: subspace iterations, each a product with aᴴ and one with a.
      key: for the draw; a fixed one if None.

    Returns:
      (…, m, rank) orthonormal columns, in the dtype of ``a``.

    Raises:
      TypeError: ``a`` is no array of numbers, or a key that is none. ValueError: it has fewer than
        two axes, or no such rank; a negative power.

    Example:
      >>> import numpy as np
      >>> from tensorjax import linalg
      >>> a = np.outer(np.arange(6.0), np.ones(4))
      >>> q = linalg.range_finder(a, 2)
      >>> bool(np.allclose(q @ (q.T @ a), a))
      True

    Source: Halko, Martinsson, Tropp, SIAM Rev. 53 (2011), algorithm 4.4. Entries are uniform here.
    """
    _check.matrices("a", a)
    rank = _check.integer("rank", rank, low=1, high=min(a.shape[-2:]))
    power = _check.integer("power", power, low=0)
    q = qr(matmul(a, random_like(key, (a.shape[-1], rank), a)))[0]
    for _ in range(power):
        q = qr(matmul(adjoint(a), q))[0]
        q = qr(matmul(a, q))[0]
    return q
