"""Padding of TT-ranks with zeros (pad) for loops of static shapes, and its removal (trim)."""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores.ranks import cut_ranks
from tensorjax._formats.trains import TT, Train, TTMatrix, single
from tensorjax._formats.zero_padding import zero_padded
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import copied


def padded_ranks(
    rank: int | Sequence[int], ranks: tuple[int, ...], trains: Sequence[TT | TTMatrix]
) -> tuple[int, ...]:
    """Returns the TT-ranks of a rounded train: feasible ones, or those of a zero-padded operand.

    It is ``rank`` itself if a train that goes in has exactly these ranks, and more than its modes
    allow, as `pad` makes it: loops over padded trains keep their shapes. Larger ranks do not count:
    a sum of trains has those too.
    """
    for t in trains:
        sizes = [math.prod(c.shape[1:-1]) for c in t.cores]
        if cut_ranks(t.ranks, sizes) == t.ranks:  # it has no padding: most have none
            continue
        wanted = _check.bond_ranks(rank, [np.iinfo(np.int64).max] * len(ranks))
        if t.ranks[1:-1] == tuple(wanted):
            return tuple(wanted)
    return ranks


@placed
def pad(t: Train, rank: int | Sequence[int]) -> Train:
    """Zero-pads the bonds of a train to given TT-ranks; the represented tensor is unchanged.

    Loops under jit need shapes that do not change: pad once before, and give `round`, or the
    rounded products and sums, the same ``rank=`` inside, with or without ``tol=``. A train of
    exactly these ranks keeps them there, also where its modes allow fewer; a sum by ``+`` has
    larger ones: round it by `linear_combination`, or pad what `round` makes of it.

    Args:
      t: TT or TTMatrix.
      rank: one int for all interior bonds, or one per bond; not below the present ranks.

    Returns:
      Train of the kind, shape and dtype of ``t``, and of exactly these TT-ranks.

    Raises:
      ValueError: a rank is below the present one.

    Example:
      >>> from tensorjax import tt
      >>> tt.pad(tt.ones((2, 3, 4)), 5).ranks
      (1, 5, 5, 1)

    Source: ours.
    """
    single("t", t)
    present = t.ranks[1:-1]
    wanted = _check.bond_ranks(rank, [np.iinfo(np.int64).max] * len(present))
    if any(w < p for w, p in zip(wanted, present, strict=True)):
        raise ValueError(
            f"rank: expected at least the present ranks {present}, got {wanted}; "
            "use tt.round to lower ranks"
        )
    return padded_to(t, wanted)


def padded_to(t: Train, interior: Sequence[int]) -> Train:
    """Zero-pads the bonds of a train to given TT-ranks, without argument checks."""
    ranks = (1, *interior, 1)
    cores = []
    for k, c in enumerate(t.cores):
        widths = [(0, 0)] * c.ndim
        widths[0] = (0, ranks[k] - c.shape[0])
        widths[-1] = (0, ranks[k + 1] - c.shape[-1])
        cores.append(zero_padded(c, widths))
    return type(t)._unchecked(tuple(cores))


def _alive(t: TT | TTMatrix) -> list[Any]:
    """Finds a train's bond indices that are not zero-padding: chains of nonzeros reach them."""
    hosted = choose_kernel("tt.effective_ranks", (t,)) is NUMPY
    cores = [np.asarray(c) for c in t.cores] if hosted else t.cores
    steps: list[Any] = [(c != 0).any(axis=tuple(range(1, c.ndim - 1))) for c in cores]
    from_left, from_right = [], []
    reached: Any = np.ones(1, bool)
    for step in steps[:-1]:
        reached = (reached[:, None] & step).any(axis=0)
        from_left.append(reached)
    reached = np.ones(1, bool)
    for step in reversed(steps[1:]):
        reached = (step & reached[None, :]).any(axis=1)
        from_right.append(reached)
    return [a & b for a, b in zip(from_left, reversed(from_right), strict=True)]


@placed
def effective_ranks(t: TT | TTMatrix) -> tuple[Any, ...]:
    """Returns the TT-ranks of a train without its zero-padding, as `trim` would leave them.

    Args:
      t: TT or TTMatrix.

    Returns:
      (1, r_1, …, r_{d−1}, 1): Python ints, or traced integers under jit.

    Raises:
      TypeError: ``t`` is no train. ValueError: it is a batch of them.

    Example:
      >>> from tensorjax import tt
      >>> tt.effective_ranks(tt.pad(tt.ones((2, 3)), 4))
      (1, 1, 1)

    Source: ours.
    """
    single("t", t)
    counts = [a.sum() for a in _alive(t)]
    return (1, *(jnp.maximum(c, 1) if _check.is_traced(c) else max(int(c), 1) for c in counts), 1)


@placed
def trim(t: Train) -> Train:
    """Removes zero-padded bond indices of a train; not under jit, as shapes change.

    Args:
      t: TT or TTMatrix, as `pad` or rounding with both ``tol`` and ``rank`` make them.

    Returns:
      Train of the same entries, whose TT-ranks are those of `effective_ranks`.

    Raises:
      TypeError: under a JAX transformation.

    Example:
      >>> from tensorjax import tt
      >>> tt.trim(tt.pad(tt.ones((2, 3)), 4)).ranks
      (1, 1, 1)

    Source: ours; a bond index stays if a path of non-zero entries through all cores meets it.
    """
    single("t", t)
    if _check.is_traced(t):
        raise TypeError(
            "tt.trim changes shapes by the data, which jit, vmap and grad cannot trace; "
            "call it outside the transformation"
        )
    first = np.array([0])
    keep = [np.flatnonzero(a) for a in _alive(t)]
    bonds = [first, *(k if k.size else first for k in keep), first]
    cores = (np.asarray(c)[bonds[k]][..., bonds[k + 1]] for k, c in enumerate(t.cores))
    return type(t)._unchecked(tuple(copied(cores)))
