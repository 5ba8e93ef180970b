"""Optimal contraction order of a few terms: vectorised dynamic programming over all subsets.

The dynamic programme over subsets costs each subset as its cheapest split into two, which takes
3ᵏ / 2 splits for k terms. They are the same for all problems of k terms, so NumPy evaluates all of
their costs at once, some twenty times as fast as a loop.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Share of the secondary cost that is added to the primary one, to break ties.
_TIE = 1e-9


class _Splits(NamedTuple):
    """All splits of the subsets of k tensors into two parts, as bit masks, small subsets first.

    Attributes:
      left, right: the parts, as bit masks.
      levels: of each number of terms: the subsets, and where their splits begin and end; every
        subset of a level has as many splits.
    """

    left: np.ndarray
    right: np.ndarray
    levels: list[tuple[np.ndarray, int, int]]


@functools.cache
def _splits(count: int) -> _Splits:
    left: list[int] = []
    levels = []
    by_size: dict[int, list[int]] = {}
    for subset in range(3, 1 << count):
        if subset & (subset - 1):
            by_size.setdefault(subset.bit_count(), []).append(subset)
    whole: list[int] = []
    for subsets in (by_size[size] for size in sorted(by_size)):
        begin = len(left)
        for subset in subsets:
            part = (subset - 1) & subset
            while part > subset ^ part:
                left.append(part)
                whole.append(subset)
                part = (part - 1) & subset
        levels.append((np.array(subsets), begin, len(left)))
    lefts = np.array(left)
    return _Splits(lefts, np.array(whole) ^ lefts, levels)


def cheapest(
    members: Sequence[int], needed: Sequence[bool], sizes: Sequence[int], count: int, *, flops: bool
) -> dict[int, tuple[int, int]]:
    """Finds the cheapest contraction tree of ``count`` tensors by all their subsets.

    Args:
      members: of each group of labels, the terms that carry it, as a bit mask.
      needed: whether the result carries the group.
      sizes: product of the sizes of its labels.
      count: of terms.
      flops: what comes first, operations or entries moved.

    Returns:
      {subset: its two parts} from the set of all terms downwards, by bit masks of terms; empty if
      the sizes are beyond the range of floating point.
    """
    splits, subsets = _splits(count), np.arange(1 << count)[:, None]
    carriers, wanted = np.array(members)[None], np.array(needed)[None]
    present = ((subsets & carriers) != 0) & (((carriers & ~subsets) != 0) | wanted)
    logs = np.log2(np.array(sizes, float))
    with np.errstate(over="ignore", invalid="ignore"):
        volume = np.exp2(present @ logs)
        union = present[splits.left] | present[splits.right]
        subset = splits.left | splits.right
        summed = union.sum(1) > present[subset].sum(1)
        operations = np.exp2(union @ logs) * np.where(summed, 2, 1)
        moved = volume[splits.left] + volume[splits.right] + volume[subset]
        cost = operations + _TIE * moved if flops else moved + _TIE * operations
        best, choice = np.zeros(1 << count), np.zeros(1 << count, int)
        for found, begin, end in splits.levels:
            part = slice(begin, end)
            total = best[splits.left[part]] + best[splits.right[part]] + cost[part]
            total = total.reshape(len(found), -1)
            chosen = np.argmin(total, 1)
            best[found] = np.take_along_axis(total, chosen[:, None], 1)[:, 0]
            choice[found] = begin + chosen + np.arange(len(found)) * total.shape[1]
    if not np.isfinite(best[-1]):
        return {}
    tree, todo = {}, [(1 << count) - 1]
    while todo:
        node = todo.pop()
        if node & (node - 1):
            tree[node] = int(splits.left[choice[node]]), int(splits.right[choice[node]])
            todo.extend(tree[node])
    return tree
