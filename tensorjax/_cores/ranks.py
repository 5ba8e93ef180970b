"""Largest useful TT-ranks for given mode sizes, and reduction of requested ranks to these."""

import math
from collections.abc import Sequence

from tensorjax import _check


def rank_bounds(sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the largest useful TT-rank of each bond: the shorter side of its unfolding.

    One of an array without entries: TT-ranks are positive.
    """
    if 0 in sizes:
        return (1,) * (len(sizes) - 1)
    left = [math.prod(sizes[:k]) for k in range(1, len(sizes))]
    right = [math.prod(sizes[k:]) for k in range(1, len(sizes))]
    return tuple(map(min, left, right))


def feasible_ranks(
    rank: int | Sequence[int], sizes: Sequence[int], caps: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Returns the requested TT-ranks, reduced to what mode sizes, neighbours and caps allow."""
    ranks = _check.bond_ranks(rank, rank_bounds(sizes))
    return cut_ranks((1, *(ranks if caps is None else map(min, ranks, caps)), 1), sizes)[1:-1]


def cut_ranks(ranks: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Reduces TT-ranks r_0 … r_d to the largest that mode sizes and neighbours allow."""
    if 0 in sizes:
        return (1,) * len(ranks)
    out = list(ranks)
    for k in range(1, len(sizes)):
        out[k] = min(out[k], out[k - 1] * sizes[k - 1])
    for k in reversed(range(1, len(sizes))):
        out[k] = min(out[k], out[k + 1] * sizes[k])
    return tuple(out)
