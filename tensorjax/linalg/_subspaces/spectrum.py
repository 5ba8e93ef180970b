"""Spectrum of a matrix, by SVD or by Gram matrices, and its truncation to a leading subspace."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax import _check
from tensorjax.linalg._arrays import (
    Array,
    adjoint,
    check_matrices,
    epsilon,
    is_host,
    matmul,
    root,
    scale_columns,
)
from tensorjax.linalg._arrays import namespace as _xp
from tensorjax.linalg._gram import gram
from tensorjax.linalg._qr import qr
from tensorjax.linalg._subspaces.method_choice import GRAM_NOISE, Method, gram_floor
from tensorjax.linalg._svd_eigh_polar import eigh, svd


class Cut(NamedTuple):
    """Truncation of a spectrum: directions kept, which of these are nonzero, discarded energy."""

    rank: int
    mask: Array | None
    discarded: Array


def cut_spectrum(
    energies: Array, rank: int | None, tail: Array | None, share: float | None, method: Method
) -> Cut:
    """Cuts a spectrum: decides how many directions to keep, by a rank and an energy budget."""
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
    return Cut(count, mask, discarded)


# Singular vectors recovered from the other side's are orthonormal to eps over this or better.
_CLEAN = 1e-8


def left_spectrum(
    a: Array, rank: int | None, tail: Array | None, share: float | None, method: Method
) -> tuple[Array, Array]:
    """Computes the full spectrum, all left singular vectors and energies, to be truncated."""
    energies, vectors, right = spectrum(a, method, rank, tail, share)
    return (left_from_right(a, vectors, energies) if right else vectors), energies


def spectrum(
    a: Array, method: Method, rank: int | None, tail: Array | None, share: float | None
) -> tuple[Array, Array, bool]:
    """Computes squared singular values and left or right singular vectors of a matrix."""
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


def _gram_spectrum(
    a: Array, rank: int | None, tail: Array | None, share: float | None
) -> tuple[Array, Array]:
    """Computes the left spectrum, vectors and energies, by one or two Gram matrices.

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


def left_from_right(a: Array, v: Array, energies: Array) -> Array:
    """Computes left singular vectors of a matrix from the right ones of its spectrum."""
    xp = _xp(a)
    s = root(energies)
    alive = s > np.finfo(s.dtype).eps * max(a.shape[-2:]) * s[..., :1]
    u = scale_columns(matmul(a, v), xp.where(alive, 1 / xp.where(alive, s, 1), 0))
    if is_host(a) and a.ndim == 2 and energies[-1] > _CLEAN * energies[0]:
        lower = np.linalg.cholesky(gram(adjoint(u)))  # u is nearly orthonormal: one pass makes it
        return u @ np.linalg.inv(lower).T.conj()
    # Directions lost in roundoff are zero now: any orthonormal completion serves, and QR gives one.
    return qr(u)[0]


def leading_eigenvectors(g: jax.Array, rank: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes a Gram matrix's leading spectrum: eigenvectors, values, accuracy flag.

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
    check_matrices("g", g, square=True)
    rank = _check.integer("rank", rank, low=1, high=g.shape[-1])
    w, v = eigh(g)
    w = jnp.maximum(w, 0)
    return v[:, :rank], w[:rank], _near_floor(w, rank)


def _near_floor(energies: Array, rank: int) -> Array:
    """Whether a spectrum's last leading eigenvalue is too small for one Gram matrix to resolve."""
    return energies[..., rank - 1] < 4 * gram_floor(energies.dtype, 1) * energies[..., 0]


def reciprocals(x: Array, energies: Array, method: Method) -> Array:
    """Computes 1/x for a spectrum of singular values, for derivatives; 0 where x is roundoff."""
    size = energies.shape[-1]
    floor = gram_floor(energies.dtype, 2) if method == "gram" else epsilon(energies.dtype) ** 2
    alive = energies > size**2 * floor * energies[..., :1]
    return jnp.where(alive, 1 / jnp.where(alive, x, 1), 0)
