"""What a lookup of a number of ids will do, and what it costs."""

import dataclasses
import functools
import math

from tensorjax.nn._embedding_few import Request
from tensorjax.nn._lookup import Network, Tree, chain_flops, search, train

# Fewer ids than this are looked up as they are: sorting them would cost more than it saves.
_FEW = 256


@dataclasses.dataclass(frozen=True)
class LookupPlan:
    """How an embedding looks up a number of ids.

    Attributes:
      count: ids of the call.
      capacity: distinct ids that rows are made for at a time; None where ids are looked up as they
        are. More distinct ids take more rounds.
      dense: whether rows are gathered from the whole matrix, made for the purpose.
      compiled: whether the rows of a TT-matrix are made by compiled code, on a CPU, once for each
        distinct id: from slices of cores, if there is no table, or of two tables.
      tables: for each table that is gathered from: the modes it holds, how many rows it has and
        how many numbers each.
      flops: multiplications and additions of one call, for one round.
      grad_flops: the same for forward + backward, with respect to all parameters. Where ids are
        looked up distinct, the backward pass makes the rows' products once more.
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
    """Room for the distinct ones of so many ids, if their frequencies fall as words' do.

    Distinct words grow like a power of the length of a text (Heaps' law). Twice its 3/4th power
    is enough for ids of a Zipf distribution; too little costs time, never a wrong row.
    """
    return 8 * math.ceil(2 * count**0.75 / 8)


@functools.lru_cache(maxsize=1024)
def make_plan(
    network: Network,
    features: int,
    count: int,
    capacity: int | None,
    rows: int,
    compiled: bool = False,
) -> LookupPlan:
    """Plans a lookup.

    Args:
      network: of the layer.
      features: columns kept.
      count: ids.
      capacity: the user's, or None.
      rows: of the matrix, padding apart.
      compiled: whether `tensorjax._native` takes the arrays, if they are those of a train.
    """
    wanted = default_capacity(count) if capacity is None and count >= _FEW else capacity
    if wanted is not None:
        wanted = min(wanted, rows + 2)  # a padding id and one out of range count too
    if wanted is None or wanted >= count:
        wanted = None
    tree = search(network, wanted or max(count, 1))
    if tree.root.table:
        wanted = None
    one_by_one = count * chain_flops(network)
    if compiled and wanted is None and not tree.root.table and 0 < one_by_one <= tree.cost:
        return LookupPlan(
            count=count,
            capacity=None,
            dense=False,
            compiled=True,
            tables=(),
            flops=one_by_one,
            grad_flops=4 * one_by_one,
            _request=Request(tree, network, features, None, compiled=True),
        )
    sizes, tables = network.sizes, []
    for node in tree.root.tables():
        held = math.prod(sizes[k] for k in node.modes)
        tables.append((node.modes, held, math.prod(sizes[a] for a in node.axes)))
    halves = None
    if compiled and capacity is None and wanted is not None:
        halves = _halves(tree, network, features, wanted)
    if halves is not None:
        wanted = None
    again = 0 if wanted is None else tree.flops - tree.table_flops
    return LookupPlan(
        count=count,
        capacity=wanted,
        dense=tree.root.table,
        compiled=halves is not None,
        tables=tuple(tables),
        flops=tree.flops,
        grad_flops=3 * tree.flops + again,
        _request=Request(tree, network, features, wanted, halves=halves),
    )


def _halves(tree: Tree, network: Network, features: int, count: int) -> Request | None:
    """How to look up in two tables, if these are what the tree of a train gathers from."""
    parts = tree.root.parts
    if not chain_flops(network) or tree.root.table or not all(part.table for part in parts):
        return None
    sizes, shapes = network.sizes, []
    (shared,) = {*parts[0].axes} & {*parts[1].axes}
    r = sizes[shared]
    for part, ends in zip(parts, ((1, r), (r, 1)), strict=True):
        rows = math.prod(sizes[k] for k in part.modes)
        columns = math.prod(sizes[a] for a in part.axes) // r
        shapes.append((ends[0], rows, columns, ends[1]))
    pair = train(shapes)
    return Request(search(pair, count), pair, features, None, compiled=True)
