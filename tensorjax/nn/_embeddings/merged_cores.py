"""Planner of TT-matrix lookups by compiled code: chooses which neighbouring cores to merge.

A row is a chain of slices, one of each core, multiplied from both ends to the bond at which that is
cheapest. Merged cores make the chain shorter, and cost a product for all rows that they hold: none
are merged for a few ids, and for many there are two tables, or something between.
"""

import functools
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax

from tensorjax import contract
from tensorjax.nn._embeddings.table_networks import bond, column, gated, train

_Shapes = tuple[tuple[int, ...], ...]

# What forward + backward cost beside the operations of large products, in such operations: fitted
# to times of lookups by all ways of merging, tables of order 3 to 6, on two cores of a Xeon.
_TABLE = 2**20  # a table of any size
_WRITTEN = 128  # an element written to a table
_READ = 48  # an element read of a slice, for each row; more than its multiplications
_FAST = 2**13  # elements of a slice that fits into the L1 cache; each beyond costs twice as much
_STEP = 50_000  # a product of a side of the chain, for each row


class Chain(NamedTuple):
    """Choice of which neighbouring TT-cores a compiled embedding lookup merges, with its cost.

    Attributes:
      cuts: merged core g has the cores from cuts[g] up to cuts[g + 1], that one excluded.
      shapes: (r, m, n, s) of the merged cores.
      table_flops: multiplications and additions that merge them.
      flops: those of all rows.
      meeting: what the last product of every row has in ``flops``.
    """

    cuts: tuple[int, ...]
    shapes: _Shapes
    table_flops: int
    flops: int
    meeting: int


@functools.lru_cache(maxsize=1024)
def plan_chain(shapes: _Shapes, count: int) -> Chain:
    """Chooses which neighbouring TT-cores to merge for an embedding lookup of ``count`` rows."""
    order = len(shapes)

    @functools.cache
    def best(j: int) -> tuple[int, tuple[int, ...]]:
        """Returns the least lookup cost of TT-cores from j on, and where merged cores begin."""
        if j == order:
            return 0, (order,)
        ends = range(j + 1, order + (j > 0))  # not all cores in one
        return min((_cost(shapes[j:k], count) + best(k)[0], (j, *best(k)[1])) for k in ends)

    cuts = best(0)[1]
    merged = tuple(_merged_shape(shapes[j:k]) for j, k in pairwise(cuts))
    sides, meeting = _row_flops(merged)
    tables = sum(_merging_flops(shapes[j:k]) for j, k in pairwise(cuts))
    return Chain(cuts, merged, tables, count * (sides + meeting), count * meeting)


def _cost(shapes: _Shapes, count: int) -> int:
    """Estimates the operations of merging TT-cores and looking up ``count`` rows in the result."""
    r, m, n, s = _merged_shape(shapes)
    size = r * n * s
    rows = count * (_READ * (size + max(0, size - _FAST)) + _STEP)
    if len(shapes) == 1:
        return rows
    return rows + _TABLE + _WRITTEN * m * size + _merging_flops(shapes)


def _row_flops(shapes: _Shapes) -> tuple[int, int]:
    """Counts the operations to look up one row in an embedding of merged TT-cores."""
    columns = [math.prod(s[2] for s in shapes[:k]) for k in range(len(shapes) + 1)]
    left = [2 * columns[k + 1] * s[0] * s[3] for k, s in enumerate(shapes)]
    right = [2 * (columns[-1] // columns[k]) * s[0] * s[3] for k, s in enumerate(shapes)]
    ways = [
        (sum(left[1:meet]) + sum(right[meet:-1]), 2 * columns[-1] * shapes[meet][0])
        for meet in range(1, len(shapes))
    ]
    return min(ways, key=sum)


def _merged_shape(shapes: _Shapes) -> tuple[int, int, int, int]:
    rows, columns = (math.prod(s[axis] for s in shapes) for axis in (1, 2))
    return shapes[0][0], rows, columns, shapes[-1][3]


@functools.lru_cache(maxsize=4096)
def _merging_flops(shapes: _Shapes) -> int:
    """Counts the fewest operations that merge neighbouring TT-cores of an embedding into one."""
    if len(shapes) == 1:
        return 0
    size = 2 * math.prod(_merged_shape(shapes))
    return min(
        _merging_flops(shapes[:k]) + _merging_flops(shapes[k:]) + size * shapes[k][0]
        for k in range(1, len(shapes))
    )


def merge(
    cuts: Sequence[int], cores: Sequence[jax.Array], gates: Sequence[jax.Array]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Merges neighbouring TT-matrix cores (r, m, n, s); returns them and the remaining gates."""
    merged = [_product(cores[j:k], gates[j : k - 1]) for j, k in pairwise(cuts)]
    return merged, [gates[k - 1] for k in cuts[1:-1]]


def _product(cores: Sequence[jax.Array], gates: Sequence[jax.Array]) -> jax.Array:
    if len(cores) == 1:
        return cores[0]
    shapes, order = tuple(c.shape for c in cores), len(cores)
    network = train(shapes)
    interleaved: list[Any] = []
    for array, term in zip(gated(network, cores, gates), network.terms, strict=True):
        interleaved += [array, [*term]]
    axes = [bond(0), *range(order), *(column(k) for k in range(order)), bond(order)]
    return contract.einsum(*interleaved, axes).reshape(_merged_shape(shapes))
