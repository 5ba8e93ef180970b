"""Rounding of Tucker tensors to lower multilinear and TT-ranks, and orthogonalisation."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores import mode_truncation
from tensorjax._cores.orthogonalization import short
from tensorjax._cores.ranks import cut_ranks
from tensorjax._cores.rounding import compressed
from tensorjax._cores.scaling import balanced
from tensorjax._cores.unfoldings import unfold
from tensorjax._eager import evaluated_eagerly
from tensorjax._formats.trains import TT
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax.tucker._core_and_factors import (
    cast_in_range,
    finite_on_host,
    from_host,
    is_first_on_host,
    near_one_parts,
    on_host,
    orthonormalized,
    scaled_back,
    times,
    with_entries,
)
from tensorjax.tucker._decompositions.hosvd import feasible_ranks, st_hosvd
from tensorjax.tucker._norms_and_entries import agree
from tensorjax.tucker._sums_and_padding import pad
from tensorjax.tucker._types import Tucker, check_core_rank, one


@placed
@evaluated_eagerly
def round(
    t: Tucker,
    *,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
    core_rank: int | Sequence[int] | None = None,
) -> Tucker:
    """Rounds a Tucker tensor to lower ranks, within √d of the best error (√(2d−1) for train cores).

    The factors are orthogonalised, so that all errors are those of the core: its modes are
    truncated one after the other, then, if it is a train, its bonds.

    Args:
      t: Tucker; its factors need not be orthonormal.
      tol: ‖t − result‖ ≤ tol·‖t‖, guaranteed, for tol ≥ 10 eps. Alone it finds all ranks, on the
        host, outside jit. With ``rank`` or ``core_rank``, shapes are those of the ranks and what
        ``tol`` discards is zero.
      rank: one multilinear rank for all modes (cut where a mode cannot need as much) or one per
        mode; None leaves them. Static: jit, vmap and grad work.
      core_rank: the same for the TT-ranks of a train core, all bonds or one per interior bond.

    Returns:
      Tucker of the shape, dtype and kind of core of ``t``, with orthonormal factors.

    Raises:
      TypeError: ``tol`` alone under a JAX transformation.
      ValueError: nothing asked, tol < 10 eps, impossible ranks, ``core_rank`` for a dense core, NaN
        or Inf.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t = tucker.Tucker(jnp.ones((1, 1)), [jnp.ones((4, 1)), jnp.ones((9, 1))])
      >>> tucker.round(t + t, tol=1e-5).ranks
      (1, 1)

    Source: Vannieuwenhoven, Vandebril, Meerbergen (2012), algorithm 1, on the core; for a train
    core, K. Batselier, A. Cichocki, N. Wong, "MERACLE: constructive layer-wise conversion of a
    tensor train into a MERA" (2019), and `tensorjax.tt.round`. What the modes leave of the
    tolerance passes on to the bonds.
    """
    one("t", t)
    check_core_rank(t, core_rank)
    _check.tol_or_rank(tol, core_rank if rank is None else rank, t)
    tol = None if tol is None else _check.tolerance(tol, t.dtype)
    _check.finite("t", t)
    return _round(t, tol, rank, core_rank)


@with_entries
def _round(t: Tucker, tol: Any, rank: Any, core_rank: Any) -> Tucker:
    ranks, bonds = _feasible(t, rank, core_rank)
    if tol is not None and choose_kernel("tucker.round(tol=)", (t, tol)) is NUMPY:
        out = _dynamic(t, tol)
        if rank is None and core_rank is None:
            return out
        if _fits(out, ranks, bonds):
            return pad(out, *_padded(t, rank, core_rank, ranks, bonds))
    # Each choice of ranks is a program of its own.
    key = ("round", ranks, bonds, tol is None)
    if _check.is_traced(tol) or not is_first_on_host(key, lambda: _work(t), t):
        out = _static(t, tol, ranks, bonds)
    else:
        out = pad(from_host(_to_ranks_on_host(t, tol, ranks, bonds)), ranks, bonds)
    shape = _padded(t, rank, core_rank, ranks, bonds)
    return out if shape == (ranks, bonds) else pad(out, *shape)


def _padded(
    t: Tucker, rank: Any, core_rank: Any, ranks: tuple[int, ...], bonds: tuple[int, ...] | None
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Returns the ranks of a rounded Tucker tensor: feasible ones, or those of a padded operand.

    As in `tensorjax.tt.round`: of a tensor of exactly the ranks asked, these.
    """
    if rank is not None:
        wanted = _check.bond_ranks(rank, [2**62] * t.order, place="mode")
        over = any(s > n for s, n in zip(t.ranks, t.shape, strict=True))
        if over and tuple(t.ranks) == tuple(wanted):
            ranks = tuple(wanted)
    if core_rank is not None and bonds is not None:
        wanted = _check.bond_ranks(core_rank, [2**62] * len(bonds), name="core_rank")
        over = cut_ranks(t.core.ranks, t.core.shape) != t.core.ranks
        if over and tuple(t.core.ranks[1:-1]) == tuple(wanted):
            bonds = tuple(wanted)
    return ranks, bonds


def _feasible(t: Tucker, rank: Any, core_rank: Any) -> tuple[tuple[int, ...], Any]:
    """Returns the feasible multilinear ranks and core TT-ranks of a rounded Tucker tensor."""
    sizes = [min(n, s) for n, s in zip(t.shape, t.ranks, strict=True)]
    wanted = sizes if rank is None else _check.bond_ranks(rank, sizes, place="mode")
    if not isinstance(t.core, TT):
        return feasible_ranks(wanted, sizes), None
    ranks, bonds = mode_truncation.feasible_ranks(wanted, sizes, t.core.ranks)
    if core_rank is not None:
        bonds = _check.bond_ranks(core_rank, bonds, name="core_rank")
    return ranks, cut_ranks((1, *bonds, 1), ranks)[1:-1]


def _fits(t: Tucker, ranks: Sequence[int], bonds: Sequence[int] | None) -> bool:
    found = t.ranks if bonds is None else (*t.ranks, *t.core.ranks[1:-1])
    return all(r <= cap for r, cap in zip(found, (*ranks, *(bonds or ())), strict=True))


def _dynamic(t: Tucker, tol: float) -> Tucker:
    """Rounds a Tucker tensor to a tolerance on the host, by LAPACK in double precision."""
    eps = linalg.epsilon(t.dtype)
    # Part of the tolerance pays for rounding the arrays to a narrower dtype.
    budget = max(tol**2 - len(jax.tree.leaves(t)) * (eps / 2) ** 2, tol**2 / 4)
    given, exponent = near_one_parts(on_host(t))
    core, basis = orthonormalized(given)
    for share in (budget, budget / 100):
        if isinstance(t.core, TT):
            small, factors, e = _reduced_train(core, share, t.dtype)
        else:
            method = linalg.choose("auto", share / t.order, core.dtype)
            (small, factors), e = st_hosvd(core, None, share / t.order, method, None), 0
        factors = tuple(linalg.matmul(q, u) for q, u in zip(basis, factors, strict=True))
        out = _on_host_back(small, factors, exponent + e, t.dtype)
        out = jax.device_put(cast_in_range(out, t.dtype))
        # Where roundoff competes with what may be discarded, the result is measured, and a
        # second attempt leaves all of the tolerance to roundoff.
        if tol >= linalg.VERIFY_BELOW * eps or _holds(out, t, tol):
            return out
    return t  # exact: roundoff alone is larger than what may be discarded


def _holds(out: Tucker, t: Tucker, tol: float) -> bool:
    return agree(on_host(out), on_host(t), tol)


def _on_host_back(core: Any, factors: Sequence[Any], exponent: int, dtype: Any) -> Tucker:
    if isinstance(core, TT):
        cores = balanced([np.asarray(c) for c in core.cores], exponent)
        return Tucker._unchecked(TT._unchecked(tuple(cores)), tuple(factors))
    *factors, core = balanced([*factors, core], exponent, fit=linalg.exponents_held(dtype))
    return Tucker._unchecked(core, tuple(factors))


def _reduced_train(core: TT, share: float, dtype: Any) -> tuple[TT, list[Any], int]:
    cut = mode_truncation.truncate(list(core.cores), share=_part_of_modes(share, core.order))
    left = max(share - float(sum(cut.tails)), (10 * linalg.epsilon(dtype)) ** 2)
    small = jax.device_put(TT._unchecked(tuple(cut.cores)).astype(dtype))
    return small._namespace.round(small, tol=left**0.5), cut.factors, cut.exponent


def _part_of_modes(share: Any, order: int) -> Any:
    """Returns the part d / (2d − 1) of a Tucker rounding's squared error that its modes may use."""
    return None if share is None else share * order / (2 * order - 1)


def _work(t: Tucker) -> int:
    """Estimates the multiplications of rounding or orthogonalising a Tucker tensor."""
    columns = max((*t.ranks, *(t.core.ranks if isinstance(t.core, TT) else ())))
    return 4 * columns * sum(leaf.size for leaf in jax.tree.leaves(t)) * t.order


def _to_ranks_on_host(
    t: Tucker, tol: float | None, ranks: tuple[int, ...], bonds: tuple[int, ...] | None
) -> Tucker:
    """Rounds a Tucker tensor to ranks at most by NumPy, in double precision."""
    share = None if tol is None else tol**2
    given, exponent = near_one_parts(on_host(t))
    if not isinstance(given.core, TT):
        part = None if share is None else share / t.order
        core, factors = _static_dense(given.core, list(given.factors), ranks, part)
        return cast_in_range(scaled_back(core, factors, exponent), t.dtype)
    part = _part_of_modes(share, t.order)
    cores = list(given.core.cores)
    cut = mode_truncation.truncate(cores, ranks=ranks, share=part, factors=given.factors)
    left = None if share is None else max(share - float(sum(cut.tails)), _least(t.dtype))
    bounds = [min(r, len(c)) for r, c in zip(bonds or (), cut.cores[1:], strict=True)]
    small, exponent = cut.cores, exponent + cut.exponent
    if left is not None or bounds != [len(c) for c in cut.cores[1:]]:
        small, e = compressed(cut.cores, bounds, left, "svd", None)
        exponent += e
    core = TT._unchecked(tuple(small))
    return cast_in_range(scaled_back(core, cut.factors, exponent), t.dtype)


def _least(dtype: Any) -> float:
    """Returns the share of energy that a Tucker rounding may always discard: roundoff."""
    return float((10 * linalg.epsilon(dtype)) ** 2)


@jax.jit(static_argnums=(2, 3))
def _static(t: Tucker, tol: Any, ranks: tuple[int, ...], bonds: tuple[int, ...] | None) -> Tucker:
    dtype, share = t.dtype, None if tol is None else tol**2
    t, exponent = near_one_parts(t.astype(linalg.factor_dtype(dtype)))
    if isinstance(t.core, TT):
        core, factors, e = _static_train(t, share, ranks, bonds)
        exponent = exponent + e
    else:
        part = None if share is None else share / t.order
        core, factors = _static_dense(t.core, list(t.factors), ranks, part)
    return cast_in_range(scaled_back(core, factors, exponent), dtype)


def _static_train(t: Tucker, share: Any, ranks: Any, bonds: Any) -> tuple[TT, list[Any], Any]:
    part = _part_of_modes(share, t.order)
    cut = mode_truncation.truncate(list(t.core.cores), ranks=ranks, share=part, factors=t.factors)
    core = TT._unchecked(tuple(cut.cores))
    if share is not None:
        # Ranks may have cost more than the tolerance: the bonds then discard nothing but roundoff.
        left = jnp.maximum(share - sum(cut.tails), _least(core.dtype))
        core = core._namespace.round(core, tol=left**0.5, rank=bonds)
    elif core.ranks[1:-1] != bonds:
        core = core._namespace.round(core, rank=bonds)
    return core, cut.factors, cut.exponent


def _static_dense(core: Any, given: list[Any], ranks: Any, share: Any) -> tuple[Any, list[Any]]:
    """Rounds a Tucker tensor with a dense core to ranks, mode by mode, without its dense array.

    Not in bases of the factors: at factors of lower rank, as after `add`, those have no derivative.
    """
    to_core, factors, tail = [short(u) for u in given], [], None
    for k, u in enumerate(given):
        seen = unfold(times(core, [*to_core[:k], None, *to_core[k + 1 :]]), k)
        matrix = linalg.matmul(u, linalg.adjoint(short(linalg.adjoint(seen))))
        basis, energies, discarded = linalg.left_basis(
            matrix, rank=ranks[k], tail=tail, share=None if tail is not None else share
        )
        if share is not None and tail is None:
            tail = share * (energies.sum() + discarded)
        factors.append(basis)
        to_core[k] = linalg.matmul(linalg.adjoint(basis), u)
    return times(core, to_core), factors


@placed
def orthogonalize(t: Tucker) -> Tucker:
    """Orthonormalises the factors of a Tucker tensor; the core then carries the norm.

    Where a dense core cannot hold the norm in the dtype, all arrays share it by powers of two.

    Args:
      t: Tucker.

    Returns:
      Tucker whose multilinear ranks are those of ``t``, or n_k where they were larger.

    Raises:
      TypeError: ``t`` is no Tucker.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t = tucker.Tucker(jnp.ones((1, 1)), [jnp.ones((4, 1)), jnp.ones((9, 1))])
      >>> print(f"{abs(tucker.orthogonalize(t).core[0, 0]):.4f}")
      6.0000

    Source: ours; QR factorisations of the factors.
    """
    one("t", t)
    return _orthogonalized(t)


@with_entries
def _orthogonalized(t: Tucker) -> Tucker:
    found = None
    if is_first_on_host("orthogonalize", lambda: _work(t), t):
        found = finite_on_host(lambda: _orthogonalized_on_host(t))
    return _orthogonalize(t) if found is None else from_host(found)


def _orthogonalized_on_host(t: Tucker) -> Tucker:
    given, exponent = near_one_parts(on_host(t))
    core, factors = orthonormalized(given)
    return cast_in_range(scaled_back(core, factors, exponent), t.dtype)


@jax.jit
def _orthogonalize(t: Tucker) -> Tucker:
    dtype = t.dtype
    t, exponent = near_one_parts(t.astype(linalg.factor_dtype(dtype)))
    core, factors = orthonormalized(t)
    return cast_in_range(scaled_back(core, factors, exponent), dtype)
