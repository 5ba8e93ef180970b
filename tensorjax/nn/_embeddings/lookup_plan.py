"""Plans of embedding lookups: their products and operation counts for a number of ids.

By compiled code a row is a chain of slices, one of each core, multiplied from both ends to the bond
at which that is cheapest. Merged cores make the chain shorter, and cost a product for all rows that
they hold: none are merged for a few ids, and for many there are two tables, or something between.
"""

import dataclasses
import functools
import math
from itertools import pairwise
from typing import NamedTuple

from tensorjax._symbolic import PLANNED
from tensorjax.nn._embeddings.contraction_tree import search
from tensorjax.nn._embeddings.table_networks import LookupNetwork
from tensorjax.nn._embeddings.xla_lookup import Request

# Fewer ids than this are looked up as they are: sorting them would cost more than it saves.
_FEW_IDS = 256


@dataclasses.dataclass(frozen=True)
class LookupPlan:
    """Plan of an embedding lookup for a number of ids, with its operation counts.

    Attributes:
      count: ids of the call.
      capacity: distinct ids that rows are made for at a time; None where ids are looked up as they
        are. More distinct ids take more rounds.
      dense: whether rows are gathered from the whole matrix, made for the purpose.
      compiled: whether the rows of a TT-matrix are made by compiled code, once for each distinct
        id, from slices of cores and of tables. So they are in programs for one CPU, whatever else
        is in this process; `plan` says it where one CPU is what programs are for by default.
      dense_above: if ``compiled``, number of distinct ids above which a call gathers rows from the
        whole matrix after all, made for the purpose: faster than many rows one by one where the
        matrix is narrow. None: no call does, as none does under `jax.vmap`.
      tables: for each table that rows are made from, products of cores if ``compiled``: the modes
        it holds, how many rows it has and how many elements each.
      flops: multiplications and additions of one call, for one round; if ``compiled``, for as many
        distinct ids as ``capacity`` is by default, of fewer than 256 too.
      grad_flops: the same for forward + backward, with respect to all parameters. Where ids are
        looked up distinct, the backward pass makes the rows' products once more.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> nn.TTEmbedding(90, 32, rank=3, order=2, rngs=nnx.Rngs(0)).plan(8).count
      8
    """

    count: int
    capacity: int | None
    dense: bool
    compiled: bool
    tables: tuple[tuple[tuple[int, ...], int, int], ...]
    flops: int
    grad_flops: int
    _request: Request = dataclasses.field(repr=False)
    dense_above: int | None = None

    def __str__(self) -> str:
        rows = "all ids" if self.capacity is None else f"{self.capacity} distinct ids at a time"
        rows = "each distinct id once, by compiled code" if self.compiled else rows
        lines = [f"{self.count} ids: {'the dense matrix' if self.dense else rows}"]
        if self.dense_above is not None:
            lines.append(f"of more than {self.dense_above} distinct ids: the dense matrix")
        for modes, count, size in self.tables:
            held = ", ".join(map(str, modes)) or "none"
            lines.append(f"table of modes {held}: {count} rows of {size}")
        lines.append(f"forward {self.flops:.3g} flops, with backward {self.grad_flops:.3g}")
        return "\n".join(lines)


def default_capacity(count: int) -> int:
    """Estimates how many distinct ids an embedding lookup gets, by Zipf's word frequencies.

    Distinct words grow like a power of the length of a text (Heaps' law). Twice its 3/4th power is
    enough for ids of a Zipf distribution; too small a capacity costs time, but all rows are
    correct.
    """
    return 8 * math.ceil(2 * count**0.75 / 8)


@functools.lru_cache(maxsize=1024)
def make_plan(
    network: LookupNetwork,
    features: int,
    count: int,
    capacity: int | None,
    rows: int,
    compiled: bool = False,
) -> LookupPlan:
    """Plans an embedding lookup: its contraction tree, and whether once per distinct id.

    Args:
      features: columns kept.
      count: ids.
      capacity: the user's, or None.
      rows: of the matrix, padding apart.
      compiled: whether C++ makes the rows, of the cores of a train; see `tensorjax._kernels`.
    """
    if compiled:
        distinct = min(count, default_capacity(count), rows)
        plan = _chained(network, features, count, max(1, distinct))
        above = _dense_above(network, features, count)
        request = plan._request._replace(capacity=capacity, rows=rows, dense_above=above)
        return dataclasses.replace(plan, _request=request, dense_above=above)
    wanted = capacity
    if wanted is None:
        wanted = count if count < _FEW_IDS else default_capacity(count)
    wanted = min(wanted, rows + 2)  # a padding id and one out of range count too
    distinct = wanted < count
    made = wanted if distinct else max(count, 1)
    tree = search(network, made)
    distinct = distinct and not tree.root.table
    sizes, tables = network.sizes, []
    for node in tree.root.tables():
        held = math.prod(sizes[k] for k in node.modes)
        tables.append((node.modes, held, math.prod(sizes[a] for a in node.axes)))
    again = tree.flops - tree.table_flops if distinct else 0
    return LookupPlan(
        count=count,
        capacity=made if distinct else None,
        dense=tree.root.table,
        compiled=False,
        tables=tuple(tables),
        flops=tree.flops,
        grad_flops=3 * tree.flops + again,
        _request=Request(network, features, made, distinct=distinct),
    )


def symbolic_plan(
    network: LookupNetwork, features: int, capacity: int | None, rows: int
) -> LookupPlan:
    """Plans an embedding lookup of a symbolic number of ids (`jax.export`), as for 1024.

    Every id gets its row, or, with a capacity given, distinct ids in rounds of that size: no
    default capacity suits an unknown number of ids. Compiled code takes no arrays of unknown size.
    """
    count = PLANNED
    if capacity is None:
        return make_plan(network, features, count, count, rows)
    return make_plan(network, features, max(count, capacity + 1), capacity, rows)


def _chained(network: LookupNetwork, features: int, count: int, distinct: int) -> LookupPlan:
    """Plans an embedding lookup by compiled CPU code for a number of distinct ids."""
    chain = plan_chain(network.shapes, distinct)
    tables = tuple(
        (tuple(range(j, k)), m, r * n * s)
        for (j, k), (r, m, n, s) in zip(pairwise(chain.cuts), chain.shapes, strict=True)
        if k > j + 1
    )
    # The backward pass makes all products of a row but the last once more, and two of each.
    return LookupPlan(
        count=count,
        capacity=None,
        dense=False,
        compiled=True,
        tables=tables,
        flops=chain.table_flops + chain.flops,
        grad_flops=3 * chain.table_flops + 4 * chain.flops - chain.meeting,
        _request=Request(network, features, max(count, 1), cuts=chain.cuts),
    )


_Shapes = tuple[tuple[int, ...], ...]

# What forward + backward cost beside the operations of large products, in such operations: fitted
# to times of lookups by all ways of merging, tables of order 3 to 6, on two cores of a Xeon.
_TABLE = 2**20  # a table of any size
_WRITTEN = 128  # an element written to a table
_READ = 48  # an element read of a slice, for each row; more than its multiplications
_FAST = 2**13  # elements of a slice that fits into the L1 cache; each beyond costs twice as much
_STEP = 50_000  # a product of a side of the chain, for each row


# Nanoseconds of a training step, by the whole matrix and by compiled code: fitted to times on one
# core of a Xeon, of uniform ids, in tables of 1,000 to 30,000 rows of 16 to 256, of ranks 8 to 64.
_MADE = 6.0  # an element of the matrix: made, and its gradient brought back to the cores
_COPIED = (
    3.0  # an element of a row: gathered and scattered by XLA, beyond what the copy takes in C++
)
_DISTINCT = 240.0  # a distinct id
_SLICE = 0.9  # an element of the slices that its row is a product of


def _dense_above(network: LookupNetwork, features: int, count: int) -> int | None:
    """Finds the ids above which a lookup plan gathers rows from the whole embedding matrix."""
    if count < _FEW_IDS:
        return None
    size = math.prod(network.rows)
    chain = plan_chain(network.shapes, count)
    whole = _MADE * size * math.prod(network.columns) + _COPIED * count * features
    slices = sum(r * n * s for r, _, n, s in chain.shapes)
    above = math.ceil(whole / (_DISTINCT + _SLICE * slices))
    return above if above < min(count, size) else None


class Chain(NamedTuple):
    """Plan that says which neighbouring TT-cores a compiled embedding lookup merges, with its cost.

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
    """Plans which neighbouring TT-cores to merge for an embedding lookup of ``count`` rows."""
    order = len(shapes)

    @functools.cache
    def best(j: int) -> tuple[int, tuple[int, ...]]:
        """Returns the least lookup cost of TT-cores from j on, and where merged cores begin."""
        if j == order:
            return 0, (order,)
        ends = range(j + 1, order + (j > 0))  # not all cores in one
        return min((_cost(shapes[j:k], count) + best(k)[0], (j, *best(k)[1])) for k in ends)

    cuts = best(0)[1]
    merged = tuple(merged_shape(shapes[j:k]) for j, k in pairwise(cuts))
    sides, meeting = _row_flops(merged)
    tables = sum(_merging_flops(shapes[j:k]) for j, k in pairwise(cuts))
    return Chain(cuts, merged, tables, count * (sides + meeting), count * meeting)


def _cost(shapes: _Shapes, count: int) -> int:
    """Estimates, for a lookup plan, the operations of merging TT-cores and looking up rows."""
    r, m, n, s = merged_shape(shapes)
    size = r * n * s
    rows = count * (_READ * (size + max(0, size - _FAST)) + _STEP)
    if len(shapes) == 1:
        return rows
    return rows + _TABLE + _WRITTEN * m * size + _merging_flops(shapes)


def _row_flops(shapes: _Shapes) -> tuple[int, int]:
    """Counts, for a lookup plan, the operations to look up one row in merged TT-cores."""
    columns = [math.prod(s[2] for s in shapes[:k]) for k in range(len(shapes) + 1)]
    left = [2 * columns[k + 1] * s[0] * s[3] for k, s in enumerate(shapes)]
    right = [2 * (columns[-1] // columns[k]) * s[0] * s[3] for k, s in enumerate(shapes)]
    ways = [
        (sum(left[1:meet]) + sum(right[meet:-1]), 2 * columns[-1] * shapes[meet][0])
        for meet in range(1, len(shapes))
    ]
    return min(ways, key=sum)


def merged_shape(shapes: _Shapes) -> tuple[int, int, int, int]:
    """Returns the shape (r, m, n, s) of TT-matrix cores that a lookup plan merges into one."""
    rows, columns = (math.prod(s[axis] for s in shapes) for axis in (1, 2))
    return shapes[0][0], rows, columns, shapes[-1][3]


@functools.lru_cache(maxsize=4096)
def _merging_flops(shapes: _Shapes) -> int:
    """Counts, for a lookup plan, the fewest operations that merge TT-cores into one."""
    if len(shapes) == 1:
        return 0
    size = 2 * math.prod(merged_shape(shapes))
    return min(
        _merging_flops(shapes[:k]) + _merging_flops(shapes[k:]) + size * shapes[k][0]
        for k in range(1, len(shapes))
    )
