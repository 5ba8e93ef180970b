"""Orthogonalisation of a train around a core, which then carries the norm."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import _blas_threads, _check, linalg
from tensorjax._cores import scaling
from tensorjax._cores.contractions import absorb, times_right
from tensorjax._cores.orthogonalization import left_qr, right_lq
from tensorjax._formats.trains import TT, Train, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import PROGRAM
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.tt._folding import folded

# TT-ranks up to which one thread of a BLAS factorises cores as fast as more.
_ONE_THREAD = 64


@placed
def orthogonalize(t: Train, center: int) -> Train:
    """Orthogonalises a TT or TTMatrix around core ``center``, which then carries the norm.

    Args:
      t: TT or TTMatrix.
      center: 0 … d−1 (negative counts from the end); its core carries the norm, or, where it cannot
        hold that in the dtype, all share it by powers of two.

    Returns:
      Train whose ranks are those of ``t``, or smaller where a bond could not need as much.

    Raises:
      TypeError: ``t`` is no train. ValueError: ``center`` is out of range.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> t = tt.orthogonalize(tt.random(jax.random.key(0), (4, 5, 6), 3), 0)
      >>> bool(abs(tt.norm(t) - (t.cores[0] ** 2).sum() ** 0.5) < 1e-3)
      True

    Source: Oseledets (2011), section 3.
    """
    single("t", t)
    center = _check.integer("center", center, low=-t.order, high=t.order - 1) % t.order
    return _orthogonalize(t, center)


@folded
def _orthogonalize(t: Any, center: int) -> Any:
    return _orthogonalized(t, center)


def _orthogonalized(t: TT, center: int) -> TT:
    if choose_kernel("tt.orthogonalize", t.cores) is PROGRAM:
        return _orthogonalized_by_program(t, center)
    dtype = linalg.factor_dtype(t.dtype)
    host: Any = tuple(np.asarray(c).astype(dtype, copy=False) for c in t.cores)
    with np.errstate(all="ignore"), _blas_threads.one_thread(are_small(host)):
        cores = _orthogonal_in_range(TT._unchecked(host), center)
    return TT._unchecked(tuple(on_device(scaling.cast_in_range(cores, t.dtype, copy=False))))


def are_small(cores: Sequence[Any]) -> bool:
    """Whether a train's cores are so small that a second thread slows orthogonalisation."""
    return max(max(c.shape[0], c.shape[-1]) for c in cores) <= _ONE_THREAD


@jax.jit(static_argnums=1)
def _orthogonalized_by_program(t: TT, center: int) -> TT:
    return TT._unchecked(tuple(scaling.cast_in_range(_orthogonal_in_range(t, center), t.dtype)))


def _orthogonal_in_range(t: TT, center: int) -> list[Any]:
    """Orthogonalises a train's cores around a centre, which takes the norm, or all."""
    cores, exponent = orthogonal_cores(t, center)
    on_host = linalg.is_host(cores[0])
    exponent = exponent if on_host else scaling.computed_once(exponent)
    low, high = linalg.exponents_held(cores[center].dtype)
    held = (exponent > low) & (exponent < high)
    if not on_host:
        moves = scaling.shared_exponents(exponent, t.order, center, held)
    elif held:
        moves = [exponent if k == center else 0 for k in range(t.order)]
    else:
        moves = scaling.evenly(int(exponent), t.order)
    return [linalg.scaled(c, moves[k]) for k, c in enumerate(cores)]


def orthogonal_cores(t: TT, center: int) -> tuple[list[jax.Array], Any]:
    """Orthogonalises a train's cores around core ``center``, for rounding; returns exponent too.

    What is carried from core to core is kept near one: the norm of the cores that were passed may
    leave the range of the dtype where that of the train does not.
    """
    dtype = linalg.factor_dtype(t.dtype)
    cores, exponent = [c.astype(dtype) for c in t.cores], 0
    for k in range(center):
        cores[k], r = left_qr(cores[k])
        r, e = linalg.normalized(r)
        cores[k + 1], exponent = absorb(r, cores[k + 1]), exponent + e
    if 0 < center < t.order - 1:
        cores[-1] = linalg.after(cores[-1], cores[center])
    for k in range(t.order - 1, center, -1):
        left, cores[k] = right_lq(cores[k])
        left, e = linalg.normalized(left)
        cores[k - 1], exponent = times_right(cores[k - 1], left), exponent + e
    cores[center], e = linalg.normalized(cores[center])
    return cores, exponent + e
