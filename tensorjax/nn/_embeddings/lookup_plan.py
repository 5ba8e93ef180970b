"""Plans of embedding lookups for a number of ids, with their operation counts."""

import dataclasses
import functools
import math
from itertools import pairwise

from tensorjax._symbolic import PLANNED
from tensorjax.nn._embeddings.contraction_tree import search
from tensorjax.nn._embeddings.merged_cores import plan_chain
from tensorjax.nn._embeddings.rows_from_tables import Request
from tensorjax.nn._embeddings.table_networks import LookupNetwork

# Fewer ids than this are looked up as they are: sorting them would cost more than it saves.
_FEW = 256


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

    def __str__(self) -> str:
        rows = "all ids" if self.capacity is None else f"{self.capacity} distinct ids at a time"
        rows = "each distinct id once, by compiled code" if self.compiled else rows
        lines = [f"{self.count} ids: {'the dense matrix' if self.dense else rows}"]
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
        request = plan._request._replace(capacity=capacity, rows=rows)
        return dataclasses.replace(plan, _request=request)
    wanted = capacity
    if wanted is None:
        wanted = count if count < _FEW else default_capacity(count)
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
