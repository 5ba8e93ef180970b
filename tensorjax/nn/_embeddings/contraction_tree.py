"""Contraction trees of embedding lookups: the cheapest one, found by dynamic programming.

Every partial product of the network of a table can be made in one of two ways:

- as a *table*, for all values of the row modes it holds; a lookup then gathers from it;
- *by id*, for the ids looked up only.

`search` finds the cheapest tree of such products for a number of ids, exactly, over the connected
parts of the network. One core at a time (few ids), the two pre-contracted halves (many), and the
dense matrix (more ids than rows) are three of its trees.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

from tensorjax.nn._embeddings.table_networks import ROWS, LookupNetwork, column

# Cost of moving an element, in operations. One that is gathered is scattered in the backward pass,
# and the products by id that it goes into are small ones, far from the speed of large products.
_MOVE = 32


def spared_gates(tree: "Tree", network: LookupNetwork, count: int) -> tuple[int, ...]:
    """Selects gates that a contraction tree multiplies into gathered slices, not whole cores."""
    rows = {
        node.operands[0]: math.prod(network.sizes[k] for k in node.modes)
        for node in tree.root.tables()
        if node.modes and not node.parts and not tree.root.table
    }
    return tuple(n for n, (k, _) in enumerate(network.gates) if count < rows.get(k, 0))


def in_place(tree: "Tree", network: LookupNetwork, count: int) -> tuple[int, ...]:
    """Selects an embedding's arrays from which a contraction tree gathers without a transpose.

    As tables, the whole arrays and their gradients would be transposed.
    """
    if tree.root.table:
        return ()
    leaves = [node for node in tree.root.tables() if node.modes and not node.parts]
    return tuple(
        node.operands[0]
        for node in leaves
        if network.terms[node.operands[0]] != (*node.modes, *node.axes)
        and count <= 4 * network.sizes[node.modes[0]]
    )


@dataclasses.dataclass(frozen=True)
class Node:
    """Node of an embedding lookup's contraction tree: a partial product of its arrays.

    Attributes:
      operands: the arrays that it holds.
      modes: the row modes that it holds, ascending.
      axes: its other axes, ascending.
      parts: the two products it is made of; none for an array.
      table: whether it is made for all values of its row modes.
    """

    operands: tuple[int, ...]
    modes: tuple[int, ...]
    axes: tuple[int, ...]
    parts: "tuple[Node, ...]"
    table: bool

    def tables(self) -> "Iterator[Node]":
        """Yields a contraction tree's nodes that an embedding lookup precomputes as tables."""
        if self.table:
            yield self
        else:
            for part in self.parts:
                yield from part.tables()


@dataclasses.dataclass(frozen=True)
class Tree:
    """Cheapest contraction tree of an embedding lookup, with its operation counts.

    Attributes:
      root: the whole product.
      flops: multiplications and additions.
      table_flops: those of the tables.
    """

    root: Node
    flops: int
    table_flops: int


@functools.lru_cache(maxsize=4096)
def search(network: LookupNetwork, count: int, whole: bool = False) -> Tree:
    """Finds the cheapest contraction tree for the lookup of ``count`` ids in an embedding.

    With ``whole`` it is that of the whole dense matrix, of which rows are gathered.
    """
    found = _Search(network, count)
    root = found.node(found.full, is_table=whole or found.by_id(found.full)[1] is None)
    return Tree(root, found.flops(root), sum(map(found.flops, root.tables())))


class _Search:
    """Dynamic programming for the cheapest contraction tree of an embedding lookup."""

    def __init__(self, network: LookupNetwork, count: int):
        self.network, self.count, self.sizes = network, count, network.sizes
        self.full = (1 << len(network.terms)) - 1
        kept = {column(k) for k in range(network.order)}
        holders: dict[int, int] = {}
        for position, term in enumerate(network.terms):
            for axis in term:
                holders[axis] = holders.get(axis, 0) | 1 << position
        self.kept, self.holders = kept, holders
        self.table = functools.cache(self._table)
        self.by_id = functools.cache(self._by_id)
        self.axes = functools.cache(self._axes)
        self.splits = functools.cache(self._splits)

    def _axes(self, mask: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns row modes and open axes of a product of arrays ``mask`` in a contraction tree."""
        modes, others = [], []
        for axis, held in self.holders.items():
            if not held & mask:
                continue
            if axis < ROWS:
                modes.append(axis)
            elif axis in self.kept or held & ~mask:
                others.append(axis)
        return tuple(sorted(modes)), tuple(sorted(others))

    def _splits(self, mask: int) -> tuple[tuple[int, int], ...]:
        """Lists ways to split arrays ``mask`` into two connected sets, nodes of a contraction tree.

        Pairs that share no axis are left out: their outer product is never the cheapest.
        """
        lowest = mask & -mask
        found, part = [], (mask - 1) & mask
        while part:
            rest = mask ^ part
            if part & lowest and self._connected(part) and self._connected(rest):
                found.append((part, rest))
            part = (part - 1) & mask
        return tuple(found)

    @functools.cached_property
    def _neighbours(self) -> list[int]:
        return [
            functools.reduce(int.__or__, (self.holders[a] for a in term), 0)
            for term in self.network.terms
        ]

    def _connected(self, mask: int) -> bool:
        reached = mask & -mask
        while True:
            wider = reached
            for position, around in enumerate(self._neighbours):
                if reached >> position & 1:
                    wider |= around & mask
            if wider == reached:
                return reached == mask
            reached = wider

    def size(self, mask: int) -> int:
        """Counts the elements of a contraction tree's product for one tuple of row indices."""
        return math.prod(self.sizes[a] for a in self.axes(mask)[1])

    def rows(self, mask: int) -> int:
        """Counts the combinations of row indices of a product in a contraction tree."""
        return math.prod(self.sizes[k] for k in self.axes(mask)[0])

    def product(self, left: int, right: int, rows: int) -> int:
        """Counts the operations of one product in a contraction tree for ``rows`` rows."""
        union = {*self.axes(left)[1], *self.axes(right)[1]}
        summed = union.difference(self.axes(left | right)[1])
        return rows * math.prod(self.sizes[a] for a in union) * (2 if summed else 1)

    def _table(self, mask: int) -> tuple[int, tuple[int, int] | None]:
        """Returns the least cost of precomputing a contraction tree's product for all rows."""
        if not mask & (mask - 1):
            return 0, None
        rows = self.rows(mask)
        made, parts = min(
            (self.table(a)[0] + self.table(b)[0] + self.product(a, b, rows), (a, b))
            for a, b in self.splits(mask)
        )
        return made + _MOVE * rows * self.size(mask), parts

    def _by_id(self, mask: int) -> tuple[int, tuple[int, int] | None]:
        """Returns the least cost of a contraction tree's product for given ids, and its parts."""
        gathered = self.count * self.size(mask) if self.axes(mask)[0] else 0
        best, parts = self.table(mask)[0] + _MOVE * gathered, None
        if mask & (mask - 1):
            made, pair = min(
                (self.by_id(a)[0] + self.by_id(b)[0] + self.product(a, b, self.count), (a, b))
                for a, b in self.splits(mask)
            )
            if made < best:
                best, parts = made, pair
        return best, parts

    def node(self, mask: int, *, is_table: bool) -> Node:
        """Builds the cheapest contraction tree of an embedding's arrays ``mask``."""
        pair = self.table(mask)[1] if is_table else self.by_id(mask)[1]
        parts: tuple[Node, ...] = ()
        if pair is not None:
            parts = tuple(self.node(m, is_table=is_table or self.by_id(m)[1] is None) for m in pair)
        operands = tuple(k for k in range(len(self.network.terms)) if mask >> k & 1)
        return Node(operands, *self.axes(mask), parts, is_table)

    def flops(self, node: Node) -> int:
        """Counts the operations of a contraction tree of an embedding lookup."""
        if not node.parts:
            return 0
        rows = math.prod(self.sizes[k] for k in node.modes) if node.table else self.count
        left, right = (sum(1 << k for k in part.operands) for part in node.parts)
        return self.product(left, right, rows) + sum(map(self.flops, node.parts))
