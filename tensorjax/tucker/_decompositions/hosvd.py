"""Tucker decomposition of dense arrays by the sequentially truncated higher-order SVD."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.dense_decompositions import Decomposition, decomposed, dense_input
from tensorjax._cores.scaling import shared_out
from tensorjax._cores.unfoldings import unfold
from tensorjax._eager import evaluated_eagerly
from tensorjax._formats.random_arrays import split_keys
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import HOST, SMALL
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike
from tensorjax.linalg import Method, _predicted_times
from tensorjax.linalg._subspaces.subspaces_on_host import (
    Asked,
    Subspace,
    columns_split,
    is_tall,
    leading,
    least_share,
    small_leading,
    times,
)
from tensorjax.tucker._core_and_factors import cut_modes
from tensorjax.tucker._core_and_factors import times as multiplied
from tensorjax.tucker._sums_and_padding import pad
from tensorjax.tucker._types import Tucker

# Assumed rank in the cost forecast, where nothing is known of the data.
_GUESS = 12


@placed
@evaluated_eagerly
def from_dense(
    x: ArrayLike,
    *,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
    method: Method = "auto",
    key: jax.Array | None = None,
) -> Tucker:
    """Decomposes a dense array by the sequentially truncated higher-order SVD (ST-HOSVD).

    Args:
      x: (n_1, …, n_d), d ≥ 1, floating or complex.
      tol: ‖x − result‖_F ≤ tol·‖x‖_F, guaranteed, for tol ≥ 10 eps. Alone it picks the ranks,
        outside jit. With ``rank``, shapes are those of ``rank`` and what ``tol`` discards is zero.
      rank: one int for all modes (cut at n_k) or one per mode. Static: jit, vmap, grad work.
      method: "auto", "svd", "gram" or "randomized" for the truncated SVDs; see
        `tensorjax.linalg.choose`.
      key: for "randomized"; a fixed draw if None. Without a key, small concrete arrays with
        ``rank`` are served by Gram matrices instead, without a draw.

    Returns:
      Tucker with a dense core and orthonormal factors; a norm that the core cannot hold in the
      dtype is shared with them. The squared error is the sum of the energies discarded mode by
      mode.

    Raises:
      TypeError: integer data, or ``tol`` alone under a JAX transformation.
      ValueError: neither tol nor rank, tol < 10 eps, impossible ranks, NaN or Inf.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> tucker.from_dense(jnp.ones((3, 4, 5)), rank=2).ranks
      (2, 2, 2)

    Source: N. Vannieuwenhoven, R. Vandebril, K. Meerbergen, "A new truncation strategy for the
    higher-order singular value decomposition", SIAM J. Sci. Comput. 34 (2012), algorithm 1.
    Departures, ours: on a CPU concrete arrays are served by LAPACK, with nothing compiled; there
    modes are compressed from the first to the last or back, whichever is forecast to be faster, and
    a mode that is kept whole has the identity for a factor.
    """
    array, dtype, tol = dense_input(x, tol, rank)
    ranks = None if rank is None else feasible_ranks(rank, array.shape)
    return decomposed(_ST_HOSVD, array, dtype, tol, ranks, method, key)


def feasible_ranks(rank: int | Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Reduces multilinear ranks to the largest that each step of an ST-HOSVD can use."""
    sizes = [max(n, 1) for n in shape]  # ranks are positive, of modes of size 0 too
    for k, r in enumerate(_check.bond_ranks(rank, sizes, place="mode")):
        sizes[k] = min(r, math.prod(sizes[:k]) * math.prod(sizes[k + 1 :]))
    return tuple(sizes)


@jax.jit(static_argnums=(3, 4))
def _static(x: jax.Array, tol: Any, key: Any, ranks: tuple[int, ...], method: Method) -> Tucker:
    share = None if tol is None else tol**2 / x.ndim
    dtype = x.dtype
    x, exponent = linalg.normalized(x.astype(linalg.factor_dtype(dtype)))
    core, factors = st_hosvd(x, ranks, share, method, key)
    parts = [u.astype(dtype) for u in (*factors, core)]
    *factors, core = shared_out(parts, exponent)
    return Tucker._unchecked(core, tuple(factors))


def host_hosvd(x: np.ndarray, asked: Asked, caps: Sequence[int] | None = None) -> list[Any]:
    """Computes an ST-HOSVD on the host, from the first mode or the last, as predicted faster.

    The mode that is compressed moves to the other end, so that the next one comes first: the
    product that compresses puts it there, and no unfolding is copied. One that is kept whole stays
    where it is, and the next is copied in front of it.
    """
    parts = 2 if x.dtype.kind == "c" else 1
    backwards = _seconds(x.shape[::-1], parts) < _seconds(x.shape, parts)
    core, asked = np.ascontiguousarray(x), asked._replace(whole=True)
    factors: dict[int, Any] = {}
    axes = list(range(x.ndim))  # the modes, as they lie in the core
    for k in axes[::-1] if backwards else axes[:]:
        n, at = x.shape[k], axes.index(k)
        if 0 < at < x.ndim - 1:
            core = np.ascontiguousarray(np.moveaxis(core, at, 0))
            axes.insert(0, axes.pop(at))
            at = 0
        last = at == x.ndim - 1 and (backwards or at > 0)
        sizes = core.shape[:-1] if last else core.shape[1:]
        matrix = core.reshape(-1, n) if last else core.reshape(n, -1)
        asked = asked._replace(cap=None if caps is None else min(caps[k], core.size // n))
        u, image, found = (_last_mode if last else _first_mode)(matrix, asked)
        if asked.share is not None:
            asked = asked._replace(share=None, tail=asked.share * found.total)
        asked = asked._replace(guess=u.shape[1] + 2)
        factors[k] = u
        if image is not None:
            core = image.reshape((-1, *sizes) if last else (*sizes, -1))
            axes.remove(k)
            axes.insert(0 if last else x.ndim, k)
    core = np.ascontiguousarray(core.transpose([axes.index(k) for k in range(x.ndim)]))
    return [*(factors[k] for k in range(x.ndim)), core]


def _at_once(x: np.ndarray, asked: Asked) -> list[Any] | None:
    """Decomposes a small array by HOSVD by Gram matrices, if chosen; None for other arrays."""
    if asked.share is None:
        return None
    facts = {"method": asked.method, "share": asked.share, "floor": lambda: least_share(x.dtype)}
    if choose_kernel("tucker.from_dense(tol=)", (x,), HOST, **facts) is not SMALL:
        return None
    return small_hosvd(x, asked.share)


def small_hosvd(x: np.ndarray, share: float) -> list[Any]:
    """Computes the ST-HOSVD of a small array by one Gram matrix a mode, in double precision.

    Args:
      x: (n_1, …, n_d).
      share: of the energy that every mode may discard.
    """
    core: Any = np.ascontiguousarray(x, np.result_type(x.dtype, np.float64))
    asked = Asked(tail=share * float(np.vdot(core, core).real), whole=True)
    factors: list[Any] = []
    for n in x.shape:  # the mode that is compressed moves to the end: the next one comes first
        sizes = core.shape[1:]
        a = core.reshape(n, -1)
        if n > a.shape[1]:
            u, r = columns_split(a, small_leading(a, asked, right=True), core.dtype)
            core = r.T
        else:
            found = small_leading(a, asked)
            u, core = found.basis, a.T
            core = core if found.energies is None else core @ u.conj()
        core = core.reshape(*sizes, -1)
        factors.append(u)
    return [*factors, core]


def _first_mode(a: Any, asked: Asked) -> tuple[Any, Any, Subspace]:
    """Compresses the first mode in a host ST-HOSVD, of a (n, m): returns factor u and (uᴴ a)ᵀ.

    Of a mode that is kept whole the factor is the identity, and there is no product (None).
    """
    if is_tall(a):
        found = leading(a, asked, right=True)
        u, r = columns_split(a, found, a.dtype if asked.narrow else found.basis.dtype)
        return u, np.ascontiguousarray(r.T), found
    found = leading(a, _capped(a, asked))
    u = _fit(found.basis, a, asked)
    if u.shape[1] == len(u):
        return np.eye(len(u), dtype=u.dtype), None, found
    image = a.T @ u.conj() if a.dtype == u.dtype else linalg.project(u, a).T
    return u, np.ascontiguousarray(image), found


def _last_mode(b: Any, asked: Asked) -> tuple[Any, Any, Subspace]:
    """Compresses the last mode in a host ST-HOSVD, of b (m, n): returns factor u and uᴴ bᵀ."""
    if is_tall(b.T):
        found = leading(b, asked)
        found = found._replace(basis=found.basis.conj())
        return *columns_split(b.T, found, b.dtype if asked.narrow else found.basis.dtype), found
    found = leading(b, _capped(b, asked), right=True)
    v = _fit(found.basis, b, asked)
    if v.shape[1] == len(v):
        return np.eye(len(v), dtype=v.dtype), None, found
    image = v.T @ b.T if b.dtype == v.dtype else np.ascontiguousarray(times(b, v).T)
    return v.conj(), image, found


def _capped(a: Any, asked: Asked) -> Asked:
    """Limits the rank that an ST-HOSVD asks of an unfolding to that of a matrix of its shape."""
    least = min(a.shape)
    return asked if asked.cap is not None or least == max(a.shape) else asked._replace(cap=least)


def _fit(basis: Any, a: Any, asked: Asked) -> Any:
    return basis.astype(a.dtype, copy=False) if asked.narrow else basis


def _seconds(shape: Sequence[int], parts: int) -> float:
    """Predicts the seconds of an HOSVD that compresses modes in the order of ``shape``."""
    size, seconds = float(math.prod(shape)), 0.0
    for n in shape:
        side = min(n, size / n)
        rank = min(side, _GUESS)
        seconds += _predicted_times.cut(size, side, rank, parts=parts)
        size *= rank / n
    return seconds


def _holds(t: Tucker, x: np.ndarray, exponent: int, tol: float) -> bool:
    """Whether the ST-HOSVD of an array x · 2^exponent approximates it to a relative error."""
    x = x.astype(np.result_type(x.dtype, np.float64))
    leaves = [linalg.normalized(np.asarray(leaf).astype(x.dtype)) for leaf in jax.tree.leaves(t)]
    core, *factors = (leaf for leaf, _ in leaves)
    core = linalg.scaled(core, sum(e for _, e in leaves) - exponent)
    return bool(np.linalg.norm(multiplied(core, factors) - x) <= tol * np.linalg.norm(x))


_ST_HOSVD = Decomposition(
    kernel=lambda x, tol: choose_kernel("tucker.from_dense(tol=)", (x, tol)),
    kernel_to_ranks=lambda x, tol, method: choose_kernel(
        "tucker.from_dense(rank=)", (x, tol), method=method
    ),
    cuts=lambda order: order,
    arrays=lambda order: order + 1,
    compress=host_hosvd,
    at_once=_at_once,
    wrap=lambda parts: Tucker._unchecked(parts[-1], tuple(parts[:-1])),
    pad=pad,
    cut=cut_modes,
    ranks=lambda t: t.ranks,
    holds=_holds,
    lossless=lambda x: Tucker(jnp.asarray(x), [jnp.eye(n, dtype=x.dtype) for n in x.shape]),
    program=lambda *given: _static(*given),
)


def st_hosvd(
    x: Any, ranks: Sequence[int] | None, share: Any, method: Method, key: Any
) -> tuple[Any, list[Any]]:
    """Computes a Tucker core and factors by ST-HOSVD, to ranks or to a share of energy per mode."""
    keys = [None] * x.ndim if key is None else split_keys(key, x.ndim)
    tail, factors, core = None, [], x
    for k in range(x.ndim):
        matrix = unfold(core, k)
        allowed = {"share": share} if tail is None else {"tail": tail}
        rank = None if ranks is None else ranks[k]
        u, energies, discarded = linalg.left_basis(
            matrix, rank=rank, method=method, key=keys[k], **allowed
        )
        if tail is None and share is not None:
            tail = share * (energies.sum() + discarded)
        factors.append(u)
        rest = core.shape[:k] + core.shape[k + 1 :]
        xp = np if linalg.is_host(x) else jnp
        core = xp.moveaxis(linalg.project(u, matrix).reshape(-1, *rest), 0, k)
    return core, factors
