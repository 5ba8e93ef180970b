"""Basis of the leading left singular subspace of a matrix, and the derivative of the subspace.

A sweep over a tensor network needs a basis of the subspace and no more; `left_basis` finds it by
the method that `choose` names, with a derivative of the subspace as a whole.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._typing import ArrayLike, JaxOrHost
from tensorjax.linalg._arrays import (
    Array,
    adjoint,
    check_matrices,
    energy,
    epsilon,
    is_host,
    matmul,
    root,
    scale_columns,
)
from tensorjax.linalg._arrays import namespace as _xp
from tensorjax.linalg._powers_of_two import normalized, scaled
from tensorjax.linalg._subspaces.method_choice import METHODS, Method
from tensorjax.linalg._subspaces.range_finder import OVERSAMPLE, range_finder
from tensorjax.linalg._subspaces.spectrum import (
    cut_spectrum,
    left_from_right,
    left_spectrum,
    reciprocals,
    spectrum,
)


class Basis(NamedTuple):
    """Truncated basis: the leading left singular subspace, energies inside and outside it.

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
      `Basis` of u, the energies kept and the energy discarded. NumPy arrays are scaled by powers of
      two where squares of entries are out of range, and energies are infinite or zero there; of
      JAX arrays these squares have to be in range, as in `truncated_svd` they need not.

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
    check_options(a, rank, share, method, key)
    shape = getattr(tail, "shape", () if isinstance(tail, int | float) else None)
    if tail is not None and (shape is None or len(shape) > a.ndim - 2):
        raise TypeError(f"tail: expected energies {a.shape[:-2]}, got {_check.short(tail)}")
    if rank is None and ((tail is None and share is None) or not is_host(a)):
        raise ValueError("rank: expected a static rank (a tail alone cuts NumPy arrays only)")
    if is_host(a):
        return _host_basis(a, tail, share, key, rank, method)
    return _differentiable_basis(a, tail, share, key, rank, method)


def _host_basis(a: Any, tail: Any, share: Any, key: Any, rank: int | None, method: Method) -> Basis:
    """Computes the truncated basis of a NumPy array, scaled if squares may be out of range."""
    found, failed = None, None
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            found = _basis(a, tail, share, key, rank, method)
            if _is_in_range(found, a):
                return found
    except (np.linalg.LinAlgError, ValueError) as error:  # LAPACK was given what is not finite
        failed = error
    x, exponent = normalized(a, axis=(-2, -1))
    if not np.any(x) or not np.isfinite(x).all():
        if found is None:
            raise failed or AssertionError
        return found
    e = exponent[..., 0]
    tail = None if tail is None else scaled(scaled(np.asarray(tail), -e[..., 0]), -e[..., 0])
    u, energies, discarded = _basis(x, tail, share, key, rank, method)
    discarded = scaled(scaled(np.asarray(discarded), e[..., 0]), e[..., 0])
    return Basis(u, scaled(scaled(energies, e), e), discarded)


def _is_in_range(found: Basis, a: np.ndarray) -> bool:
    """Whether the truncated basis came of squares in range, by its largest singular value."""
    if not found.energies.size:
        return True
    largest, info = found.energies[..., 0], jnp.finfo(a.dtype)
    return bool(np.all((largest > info.tiny / info.eps**2) & (largest < info.max * info.eps)))


def check_options(a: Any, rank: Any, share: Any, method: Any, key: Any = None) -> None:
    """Checks the arguments of `left_basis`, a truncated basis."""
    check_matrices("a", a)
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
    energies, vectors, right = spectrum(a, method, rank, tail, share)
    cut = cut_spectrum(energies, rank, tail, share, method)
    vectors, energies = vectors[..., :, : cut.rank], energies[..., : cut.rank]
    if right:
        vectors = left_from_right(a, vectors, energies)
    if cut.mask is not None:
        xp = _xp(a)
        vectors = xp.where(cut.mask[..., None, :], vectors, 0)
        energies = xp.where(cut.mask, energies, 0)
    return Basis(vectors, energies, cut.discarded)


_differentiable_basis = jax.custom_jvp(_basis, nondiff_argnums=(4, 5))


@_differentiable_basis.defjvp
def _basis_jvp(rank: Any, method: Method, primals: Any, tangents: Any) -> Any:
    """Differentiates a truncated basis as a whole subspace, not vector by vector.

    Kept directions move towards discarded ones and out of the range; among themselves they stay
    put, so repeated singular values do no harm. A vanishing or repeated one at the cut itself,
    where the subspace has no derivative, gets zero. A random basis has no derivative at low-rank
    data, so the exact one takes its place here.
    """
    (a, tail, share, _), (da, *_) = primals, tangents
    method = "svd" if method == "randomized" else method
    out = _differentiable_basis(a, tail, share, None, rank, method)
    u, energies = left_spectrum(a, rank, tail, share, method)
    cut = cut_spectrum(energies, rank, tail, share, method)
    kept = jnp.broadcast_to(jnp.arange(energies.shape[-1]) < cut.rank, energies.shape)
    if cut.mask is not None:
        padding = [(0, 0)] * (energies.ndim - 1) + [(0, energies.shape[-1] - cut.rank)]
        kept = kept & jnp.pad(cut.mask, padding)
    alive = reciprocals(energies, energies, method)
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
