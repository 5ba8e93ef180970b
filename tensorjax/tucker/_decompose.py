"""Dense arrays into Tucker format: the sequentially truncated higher-order SVD."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores import balanced
from tensorjax._placement import placed
from tensorjax.linalg import Method
from tensorjax.tucker._algebra import pad
from tensorjax.tucker._types import Tucker, times, unfold


@placed
@_check.at_once
def from_dense(
    x: Any,
    *,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
    method: Method = "auto",
    key: jax.Array | None = None,
) -> Tucker:
    """Sequentially truncated higher-order SVD of a dense array.

    Args:
      x: (n_1, …, n_d), d ≥ 1, floating or complex.
      tol: ‖x − result‖_F ≤ tol·‖x‖_F, guaranteed, for tol ≥ 10 eps. Alone it picks the ranks,
        outside jit. With ``rank``, shapes are those of ``rank`` and what ``tol`` discards is zero.
      rank: one int for all modes (cut at n_k) or one per mode. Static: jit, vmap, grad work.
      method: "auto", "svd", "gram" or "randomized"; see `tensorjax.linalg.choose`.
      key: for "randomized"; a fixed draw if None.

    Returns:
      Tucker with a dense core and orthonormal factors; a norm that the core cannot hold in the
      dtype is shared with them. The squared error is the sum of the energies discarded mode by
      mode.

    Raises:
      TypeError: integer data, or ``tol`` alone under a JAX transformation.
      ValueError: neither tol nor rank, tol < 10 eps, impossible ranks, NaN or Inf.

    Example:
      >>> import jax.numpy as jnp
      >>> from_dense(jnp.ones((3, 4, 5)), rank=2).ranks
      (2, 2, 2)

    Source: N. Vannieuwenhoven, R. Vandebril, K. Meerbergen, "A new truncation strategy for the
    higher-order singular value decomposition", SIAM J. Sci. Comput. 34 (2012), algorithm 1.
    """
    x = _check.inexact("x", x)
    if x.ndim == 0:
        raise ValueError("x: expected at least one axis, got a scalar")
    _check.shape("x.shape", x.shape)
    _check.tol_or_rank(tol, rank, x)
    _check.finite("x", x)
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    tol = None if tol is None else _check.tolerance(tol, dtype)
    ranks = None if rank is None else feasible_ranks(rank, x.shape)
    if tol is not None and not _check.is_traced(x, tol):
        t = _dynamic(np.asarray(x), tol, method, key, dtype)
        if ranks is None:
            return t
        if all(r <= cap for r, cap in zip(t.ranks, ranks, strict=True)):
            return pad(t, ranks)
    share = None if tol is None or _check.is_traced(tol) else tol**2 / x.ndim
    if method == "auto" and tol is None and x.size > 2**16:
        method = "gram"  # as in tt.from_dense: an exact SVD would take many times longer
    chosen = linalg.choose(method, share, linalg.factor_dtype(dtype))
    if tol is not None and share is None:
        chosen = "svd"  # a traced tolerance may be anything
    assert ranks is not None
    return _static(jnp.asarray(x), tol, key, ranks, chosen)


def feasible_ranks(rank: int | Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """``rank`` mode by mode, cut where the sizes at that step of `st_hosvd` leave no use for it."""
    sizes = list(shape)
    for k, r in enumerate(_check.bond_ranks(rank, shape, place="mode")):
        sizes[k] = min(r, math.prod(sizes[:k]) * math.prod(sizes[k + 1 :]))
    return tuple(sizes)


@jax.jit(static_argnums=(3, 4))
def _static(x: jax.Array, tol: Any, key: Any, ranks: tuple[int, ...], method: Method) -> Tucker:
    share = None if tol is None else tol**2 / x.ndim
    dtype = x.dtype
    x, exponent = linalg.normalized(x.astype(linalg.factor_dtype(dtype)))
    core, factors = st_hosvd(x, ranks, share, method, key)
    core = linalg.scaled(core, exponent).astype(dtype)
    return Tucker._unchecked(core, tuple(u.astype(dtype) for u in factors))


def _dynamic(x: np.ndarray, tol: float, method: Method, key: Any, dtype: Any) -> Tucker:
    """On the host: LAPACK in double precision, exact ranks, no compilation."""
    if x.dtype.kind not in "fc" or x.dtype.itemsize < 4:
        x = x.astype(np.float32)
    wide = np.result_type(x.dtype, np.float64)
    eps = linalg.epsilon(dtype)
    budget = max(tol**2 - (x.ndim + 1) * (eps / 2) ** 2, tol**2 / 4)
    chosen = linalg.choose(method, budget / x.ndim, wide)
    at_hand, exponent, (core, factors) = _in_range(x, budget / x.ndim, chosen, key)
    *factors, core = balanced([*factors, core], exponent, fit=linalg.exponents_held(dtype))
    out = Tucker(*jax.device_put((core.astype(dtype), [u.astype(dtype) for u in factors])))
    if tol < linalg.VERIFY_BELOW * eps and not _holds(out, at_hand.astype(wide), exponent, tol):
        return Tucker(jnp.asarray(x, dtype), [jnp.eye(n, dtype=dtype) for n in x.shape])
    return out


def _in_range(
    x: np.ndarray, share: float, method: Method, key: Any
) -> tuple[np.ndarray, int, tuple[Any, list[Any]]]:
    """x over a power of two, 1 if squares are in range as it is; its exponent; core and factors."""
    try:
        with np.errstate(invalid="ignore", over="ignore"):
            found = st_hosvd(x, None, share, method, key)
        if linalg.squares_fit(found[0]):
            return x, 0, found
    except (np.linalg.LinAlgError, ValueError):
        pass
    small, exponent = linalg.normalized(x)
    return small, exponent, st_hosvd(small, None, share, method, key)


def _holds(t: Tucker, x: np.ndarray, exponent: int, tol: float) -> bool:
    """Whether ``t`` is near x · 2^exponent."""
    leaves = [linalg.normalized(np.asarray(leaf).astype(x.dtype)) for leaf in jax.tree.leaves(t)]
    core, *factors = (leaf for leaf, _ in leaves)
    core = linalg.scaled(core, sum(e for _, e in leaves) - exponent)
    return bool(np.linalg.norm(times(core, factors) - x) <= tol * np.linalg.norm(x))


def st_hosvd(
    x: Any, ranks: Sequence[int] | None, share: Any, method: Method, key: Any
) -> tuple[Any, list[Any]]:
    """Core and factors of ``ranks``, of at most a ``share`` of the energy lost a mode, or both."""
    keys = [None] * x.ndim if key is None else jax.random.split(key, x.ndim)
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
