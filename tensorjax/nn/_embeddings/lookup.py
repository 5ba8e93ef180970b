"""Embedding lookup in a TT, Tucker or CP matrix: its cheapest contraction order, and rows.

The matrix has rows i = (i_1 … i_D) and columns j = (j_1 … j_D), both folded into modes, and is a
network of arrays: the cores of a TT-matrix, the factors of a CP or Tucker tensor. A row is that
network with the row modes fixed. Every partial product of it can be made in one of two ways:

- as a *table*, for all values of the row modes it holds; a lookup then gathers from it;
- *by id*, for the ids looked up only.

`search` finds the cheapest tree of such products for a number of ids, exactly, by dynamic
programming over the connected parts of the network. One core at a time (few ids), the two
pre-contracted halves (many), and the dense matrix (more ids than rows) are three of its trees.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tensorjax import contract
from tensorjax._placement import placed_by, spec_like
from tensorjax.nn._weight_networks import absorbing

# Cost of moving an element, in operations. One that is gathered is scattered in the backward pass,
# and the products by id that it goes into are small ones, far from the speed of large products.
_MOVE = 32


class LookupNetwork(NamedTuple):
    """Structure of an embedding's table as a tensor network of row and column modes. Hashable.

    Attributes:
      terms: for each array the labels of its axes: row mode k is k, and the axes that stay are
        `column` k and `bond` k.
      shapes: of the arrays.
      gates: for each gate the array it is multiplied into, and along which of its axes.
    """

    terms: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    gates: tuple[tuple[int, int], ...] = ()

    @property
    def order(self) -> int:
        """Number of the row modes of an embedding's table."""
        return len({axis for term in self.terms for axis in term if axis < _ROWS})

    @property
    def sizes(self) -> dict[int, int]:
        """Sizes of all axes of an embedding's tensor network, by their labels."""
        pairs = zip(self.terms, self.shapes, strict=True)
        return {a: n for term, shape in pairs for a, n in zip(term, shape, strict=True)}

    @property
    def rows(self) -> tuple[int, ...]:
        """Sizes of the row modes of an embedding's table."""
        return tuple(self.sizes[k] for k in range(self.order))

    @property
    def columns(self) -> tuple[int, ...]:
        """Sizes of the column modes of an embedding's table."""
        return tuple(self.sizes[column(k)] for k in range(self.order))


# Row modes have the numbers below this one; ids have it. Sorted, the other axes come in the order
# in which a train has them, so that the halves are (rows, columns, bond) and (rows, bond, columns).
_ROWS = 64
_IDS = _ROWS


def bond(k: int) -> int:
    """Returns the label of the bond left of mode k in an embedding's tensor network."""
    return _ROWS + 1 + 2 * k


def column(k: int) -> int:
    """Returns the label of column mode k in an embedding's tensor network."""
    return _ROWS + 2 + 2 * k


def train(shapes: Sequence[tuple[int, ...]]) -> LookupNetwork:
    """Builds the network structure of a TT-matrix E[i, j] = G_1[i_1, j_1] … G_D[i_D, j_D].

    The shapes are of the cores (r, m, n, s).
    """
    terms = tuple((bond(k), k, column(k), bond(k + 1)) for k in range(len(shapes)))
    gates = tuple((taker, bond(k + 1)) for k, taker in enumerate(absorbing(shapes)))
    return LookupNetwork(terms, tuple(shapes), gates)


def is_train(network: LookupNetwork) -> bool:
    """Whether an embedding's tensor network is that of a TT-matrix."""
    return all(len(s) == 4 for s in network.shapes) and network == train(network.shapes)


def canonical(shapes: Sequence[tuple[int, ...]]) -> LookupNetwork:
    """Builds the network structure of a CP matrix E[i, j] = Σ_a Π_k U_k[i_k, j_k, a].

    The shapes are of the factors, of three axes.
    """
    shared = bond(len(shapes))
    terms = tuple((k, column(k), shared) for k in range(len(shapes)))
    return LookupNetwork(terms, tuple(shapes), ((0, shared),))


def tucker(shapes: Sequence[tuple[int, ...]]) -> LookupNetwork:
    """Builds the network structure of a Tucker matrix Σ_a C[a_1 … a_D] Π_k U_k[i_k, j_k, a_k].

    The shapes are of the core, and then of the factors.
    """
    order = len(shapes) - 1
    factors = tuple((k, column(k), bond(k)) for k in range(order))
    terms = (tuple(bond(k) for k in range(order)), *factors)
    return LookupNetwork(terms, tuple(shapes), tuple((k + 1, bond(k)) for k in range(order)))


def _as_given(out: list[jax.Array], arguments: Any) -> list[Any]:
    """Returns shardings that keep an embedding's arrays, multiplied by gates, placed as before."""
    arrays = arguments[0][1]
    return [spec_like(x, given) for x, given in zip(out, arrays, strict=True)]


@placed_by(_as_given)
def gated(
    network: LookupNetwork,
    arrays: Sequence[jax.Array],
    gates: Sequence[jax.Array],
    spared: Sequence[int] = (),
) -> list[jax.Array]:
    """Multiplies the gates of an embedding into its arrays, except for the gates in ``spared``."""
    out = list(arrays)
    for number, ((k, axis), gate) in enumerate(zip(network.gates, gates, strict=True)):
        if number not in spared:
            out[k] = scaled(out[k], network.terms[k], axis, gate)
    return out


def scaled(array: jax.Array, axes: Sequence[int], axis: int, gate: jax.Array) -> jax.Array:
    """Multiplies an array by a gate along the axis with the given label."""
    shape = [gate.shape[0] if a == axis else 1 for a in axes]
    return array * gate.astype(array.dtype).reshape(shape)


def spared_gates(tree: "Tree", network: LookupNetwork, count: int) -> tuple[int, ...]:
    """Selects the gates that are multiplied into looked-up slices more cheaply than into arrays."""
    rows = {
        node.operands[0]: math.prod(network.sizes[k] for k in node.modes)
        for node in tree.root.tables()
        if node.modes and not node.parts and not tree.root.table
    }
    return tuple(n for n, (k, _) in enumerate(network.gates) if count < rows.get(k, 0))


def in_place(tree: "Tree", network: LookupNetwork, count: int) -> tuple[int, ...]:
    """Selects the arrays from which slices are looked up without a transpose.

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
        """Yields the largest subtrees of a lookup's tree that are precomputed tables."""
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
def search(network: LookupNetwork, count: int) -> Tree:
    """Finds the cheapest contraction tree for the lookup of ``count`` ids in an embedding."""
    found = _Search(network, count)
    root = found.node(found.full, is_table=found.by_id(found.full)[1] is None)
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
        """Returns the row modes and the open axes of a partial product of the arrays ``mask``."""
        modes, others = [], []
        for axis, held in self.holders.items():
            if not held & mask:
                continue
            if axis < _ROWS:
                modes.append(axis)
            elif axis in self.kept or held & ~mask:
                others.append(axis)
        return tuple(sorted(modes)), tuple(sorted(others))

    def _splits(self, mask: int) -> tuple[tuple[int, int], ...]:
        """Lists the pairs of connected sets of arrays into which the set ``mask`` splits.

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
        """Counts the elements of a partial product for one combination of row indices."""
        return math.prod(self.sizes[a] for a in self.axes(mask)[1])

    def rows(self, mask: int) -> int:
        """Counts the combinations of row indices of a partial product."""
        return math.prod(self.sizes[k] for k in self.axes(mask)[0])

    def product(self, left: int, right: int, rows: int) -> int:
        """Counts the operations that multiply two partial products, for ``rows`` rows."""
        union = {*self.axes(left)[1], *self.axes(right)[1]}
        summed = union.difference(self.axes(left | right)[1])
        return rows * math.prod(self.sizes[a] for a in union) * (2 if summed else 1)

    def _table(self, mask: int) -> tuple[int, tuple[int, int] | None]:
        """Returns the least cost of a partial product for all row indices, and its two parts."""
        if not mask & (mask - 1):
            return 0, None
        rows = self.rows(mask)
        made, parts = min(
            (self.table(a)[0] + self.table(b)[0] + self.product(a, b, rows), (a, b))
            for a, b in self.splits(mask)
        )
        return made + _MOVE * rows * self.size(mask), parts

    def _by_id(self, mask: int) -> tuple[int, tuple[int, int] | None]:
        """Returns the least cost of a partial product for the looked-up ids, and its two parts."""
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
        """Builds the cheapest contraction tree of the arrays ``mask``."""
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


def make_tables(
    tree: Tree, network: LookupNetwork, operands: Sequence[jax.Array], kept: Sequence[int] = ()
) -> list[jax.Array]:
    """Computes the tables from which an embedding lookup gathers its rows.

    Args:
      tree: of `search`.
      network: the network.
      operands: its arrays.
      kept: arrays that are tables as they are, with the axes in their own order: of `in_place`.
    """

    def make(node: Node) -> jax.Array:
        axes = [*node.modes, *node.axes]
        if not node.parts:
            (k,) = node.operands
            return contract.einsum(operands[k], [*network.terms[k]], axes)
        left, right = node.parts
        return contract.einsum(
            make(left), [*left.modes, *left.axes], make(right), [*right.modes, *right.axes], axes
        )

    sizes = network.sizes
    tables = []
    for node in tree.root.tables():
        if node.operands[0] in kept:
            tables.append(operands[node.operands[0]])
            continue
        rest = [sizes[a] for a in node.axes]
        rows = [math.prod(sizes[k] for k in node.modes)] if node.modes else []
        tables.append(make(node).reshape(*rows, *rest))
    return tables


def rows_of(
    tree: Tree,
    network: LookupNetwork,
    tables: Sequence[jax.Array],
    ids: jax.Array,
    spared: Mapping[int, jax.Array] | None = None,
    kept: Sequence[int] = (),
) -> jax.Array:
    """Computes the embedding rows of ids from tables: gathers slices and multiplies them.

    Args:
      tree: of `search`.
      network: the network.
      tables: of `make_tables`.
      ids: all within the matrix.
      spared: gates, by their positions, that the tables lack.
      kept: as `make_tables` got it.
    """
    sizes, places = network.sizes, _places(network.rows, ids)
    left_over = iter(tables)

    def gather(node: Node) -> tuple[jax.Array, list[int]]:
        table = next(left_over)
        if not node.modes:
            return table, [*node.axes]
        where = places[node.modes[0]]
        if node.operands[0] in kept:
            axes = [*network.terms[node.operands[0]]]
            axis = axes.index(node.modes[0])
            axes[axis] = _IDS
            index = (*(slice(None),) * axis, where)
            rows = table.at[index].get(mode="promise_in_bounds")
        else:
            for k in node.modes[1:]:
                where = where * sizes[k] + places[k]
            # As a matrix: with more axes the gradient's scatter would first copy its updates.
            rest = table.shape[1:]
            rows = table.reshape(table.shape[0], -1).at[where].get(mode="promise_in_bounds")
            rows, axes = rows.reshape(-1, *rest), [_IDS, *node.axes]
        for number, gate in (spared or {}).items():
            k, axis = network.gates[number]
            if node.operands == (k,):
                rows = scaled(rows, axes, axis, gate)
        return rows, axes

    def make(node: Node) -> tuple[jax.Array, list[int]]:
        if node.table:
            return gather(node)
        (left, left_axes), (right, right_axes) = (make(part) for part in node.parts)
        axes = [_IDS, *node.axes]
        return contract.einsum(left, left_axes, right, right_axes, axes), axes

    rows, _ = make(tree.root)
    return rows.reshape(ids.shape[0], math.prod(network.columns))


def _places(rows: Sequence[int], ids: jax.Array) -> list[jax.Array]:
    """Splits embedding ids into indices of the row modes, the first changing slowest."""
    places = []
    for n in reversed(rows):
        size = jnp.asarray(n, ids.dtype)
        places.append(jax.lax.rem(ids, size))  # no id is negative, so these are the cheaper ones
        ids = jax.lax.div(ids, size)
    return places[::-1]


def dense(network: LookupNetwork, operands: Sequence[Any]) -> jax.Array:
    """Contracts an embedding's tensor network to its dense table (rows, columns)."""
    interleaved: list[Any] = []
    for array, term in zip(operands, network.terms, strict=True):
        interleaved += [array, [*term]]
    axes = [*range(network.order), *(column(k) for k in range(network.order))]
    whole = contract.einsum(*interleaved, axes, precision="highest")
    return whole.reshape(math.prod(network.rows), math.prod(network.columns))
