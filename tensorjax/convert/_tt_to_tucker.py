"""Conversion of tensor trains to Tucker tensors whose cores are tensor trains."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg, tucker
from tensorjax._cores import mode_truncation, scaling
from tensorjax._cores.contractions import times_mode
from tensorjax._cores.overlaps import agree
from tensorjax._formats.trains import single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.convert._reports import TuckerInfo
from tensorjax.tt import TT
from tensorjax.tucker import Tucker


@placed
def tt_to_tucker(
    t: TT, *, tol: float | None = None, rank: int | Sequence[int] | None = None
) -> tuple[Tucker, TuckerInfo]:
    """Converts a tensor train to Tucker format with a train core, without dense tensors.

    t = core ×_1 U_1 … ×_d U_d with orthonormal U_k. It pays where the modes are larger than their
    multilinear ranks.

    Args:
      t: TT of order d.
      tol: ‖t − result‖ ≤ tol·‖t‖, guaranteed, for tol ≥ 10 eps. Alone it finds the ranks, on the
        host, outside jit. With ``rank``, shapes are those of ``rank`` and what ``tol`` discards is
        zero.
      rank: one multilinear rank for all modes (cut where a mode cannot need as much) or one per
        mode. Static: jit, vmap and grad work.

    Returns:
      The Tucker tensor, and `TuckerInfo`. The TT-ranks of its core are those of ``t``, or smaller
      where the multilinear ranks allow no more; `tensorjax.tucker.round` lowers them further.

    Raises:
      TypeError: ``t`` is no TT, or ``tol`` alone under a JAX transformation.
      ValueError: neither tol nor rank, tol < 10 eps, impossible ranks, NaN or Inf.
      OverflowError: ``t`` is too large, or too small, for the cores of the result, outside jit.

    Example:
      >>> from tensorjax import convert, tt
      >>> t, info = convert.tt_to_tucker(tt.ones((10,) * 50), tol=1e-5)
      >>> max(t.ranks), info.size
      (1, 550)

    Source: K. Batselier, A. Cichocki, N. Wong, "MERACLE: constructive layer-wise conversion of a
    tensor train into a MERA" (2019), its conversion to Tucker, with ‖t‖·tol/√d per mode.
    Departures, ours: the train is not orthogonalised, for factors of what lies left and right of a
    core, up to an isometry, tell the singular vectors too; what one mode leaves of its part of the
    tolerance passes on to those after it.
    """
    single("t", t, TT, entries=True)
    _check.tol_or_rank(tol, rank, t)
    tol = None if tol is None else _check.tolerance(tol, t.dtype)
    ranks, bonds = (), ()
    if rank is not None:
        wanted = _check.bond_ranks(rank, t.shape, place="mode")
        ranks, bonds = mode_truncation.feasible_ranks(wanted, t.shape, t.ranks)
    _check.finite("t", t)
    if tol is not None and choose_kernel("convert.tt_to_tucker(tol=)", (t, tol)) is NUMPY:
        out, tails = _dynamic(t, tol)
        if rank is None:
            return out, _info(t, out, tails)
        if all(r <= cap for r, cap in zip(out.ranks, ranks, strict=True)):
            return (out := tucker.pad(out, ranks, bonds)), _info(t, out, tails)
    facts = {
        "dtype": t.dtype,
        "rest": tol,
        "key": ("to_tucker", ranks, tol is None),
        "work": lambda: 4 * sum(c.size * (len(c) + c.shape[2]) for c in t.cores),
    }
    if choose_kernel("convert.tt_to_tucker(rank=)", t.cores, **facts) is NUMPY:
        out, tails = _to_ranks_on_host(t, tol, ranks)
        out = tucker.pad(out, ranks, bonds)
    else:
        out, tails = _static(t, tol, ranks)
    return out, _info(t, out, tails)


def _info(t: TT, out: Tucker, tails: Any) -> TuckerInfo:
    if _check.is_traced(tails) or isinstance(tails, jax.Array):
        error = linalg.root(tails.sum())
    else:
        tails, error = jax.device_put((tails, np.sqrt(tails.sum())))
    return TuckerInfo(tails, error, t.ranks, out.ranks, out.core.ranks, t.size, out.size)


def _dynamic(t: TT, tol: float) -> tuple[Tucker, np.ndarray]:
    """Converts a train to Tucker format to a tolerance, on the host, in double precision."""
    wide = np.result_type(linalg.factor_dtype(t.dtype), np.float64)
    cores = [np.asarray(c).astype(wide, copy=False) for c in t.cores]
    small, exponent = scaling.near_one(cores)
    eps = linalg.epsilon(t.dtype)
    # Part of the tolerance pays for rounding the arrays to a narrower dtype.
    budget = max(tol**2 - 2 * t.order * (eps / 2) ** 2, tol**2 / 4)
    real = jnp.finfo(linalg.factor_dtype(t.dtype)).dtype
    for share in (budget, budget / 100):
        cut = mode_truncation.truncate(small, share=share)
        out = _from_host(t, cut, exponent)
        # Where roundoff competes with what may be discarded, the result is measured, and a
        # second attempt leaves all of the tolerance to roundoff.
        if tol >= linalg.VERIFY_BELOW * eps or _holds(out, cores, tol):
            return out, np.asarray(cut.tails).astype(real)
    exact = Tucker(t, jax.device_put([np.eye(n, dtype=t.dtype) for n in t.shape]))
    return exact, np.zeros(t.order, real)


def _holds(out: Tucker, cores: list[np.ndarray], tol: float) -> bool:
    wide = cores[0].dtype
    pairs = zip(out.core.cores, out.factors, strict=True)
    found = [times_mode(np.asarray(c).astype(wide), np.asarray(u).astype(wide)) for c, u in pairs]
    return agree(found, cores, tol)


def _to_ranks_on_host(
    t: TT, tol: float | None, ranks: tuple[int, ...]
) -> tuple[Tucker, np.ndarray]:
    """Converts a train to Tucker format of ranks at most by NumPy, in double precision."""
    wide = np.result_type(linalg.factor_dtype(t.dtype), np.float64)
    cores, exponent = scaling.near_one([np.asarray(c).astype(wide, copy=False) for c in t.cores])
    cut = mode_truncation.truncate(cores, ranks=ranks, share=None if tol is None else tol**2)
    real = jnp.finfo(linalg.factor_dtype(t.dtype)).dtype
    return _from_host(t, cut, exponent), np.asarray(cut.tails).astype(real)


def _from_host(t: TT, cut: mode_truncation.Truncated, exponent: int) -> Tucker:
    """Builds the Tucker tensor of a train whose modes were truncated, times 2^exponent."""
    refused = (
        f"t: {t.dtype} cannot hold the cores of its Tucker tensor, whose factors are "
        "orthonormal; convert tt.normalize(t), or cast t to a wider dtype"
    )
    narrow = scaling.cast(cut.cores, exponent + int(cut.exponent), t.dtype, refused)
    factors = on_device([u.astype(t.dtype) for u in cut.factors])
    return Tucker._unchecked(TT._unchecked(tuple(on_device(narrow))), tuple(factors))


@jax.jit(static_argnums=2)
def _static(t: TT, tol: Any, ranks: tuple[int, ...]) -> tuple[Tucker, jax.Array]:
    dtype = linalg.factor_dtype(t.dtype)
    share = None if tol is None else tol**2
    cores, exponent = scaling.near_one([c.astype(dtype) for c in t.cores])
    cut = mode_truncation.truncate(cores, ranks=ranks, share=share)
    cores = scaling.cast_in_range(scaling.shared_out(cut.cores, exponent + cut.exponent), t.dtype)
    out = Tucker._unchecked(TT._unchecked(tuple(cores)), tuple(cut.factors))
    return out.astype(t.dtype), jnp.stack(cut.tails)
