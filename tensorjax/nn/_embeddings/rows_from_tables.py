"""Embedding rows by XLA for all ids, gathered from tables of partial products."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tensorjax import contract
from tensorjax._symbolic import planned
from tensorjax.nn._embeddings.contraction_tree import Node, Tree, in_place, search, spared_gates
from tensorjax.nn._embeddings.table_networks import IDS, LookupNetwork, gated, scaled

_Arrays = Sequence[jax.Array]


class Request(NamedTuple):
    """Request for embedding rows as static, hashable data: network, columns, count and dtype.

    Attributes:
      network: of the layer's arrays, or of merged cores.
      features: columns that are kept.
      count: rows that products are planned for.
      distinct: whether so many distinct ids at a time get rows, in rounds; otherwise all ids do, as
        they are.
      dtype: of the rows and of all products but those with gates; None is that of the arrays.
      cuts: of `tensorjax.nn._embeddings.merged_cores.Chain`, if in programs for a CPU
        `tensorjax._native` makes the rows, of merged cores; empty if XLA makes them of tables
        everywhere.
      capacity: with ``cuts``, the user's, for XLA's plan on other platforms.
      rows: with ``cuts``, those of the matrix, padding apart, for the same.
    """

    network: LookupNetwork
    features: int
    count: int
    distinct: bool = False
    dtype: Any = None
    cuts: tuple[int, ...] = ()
    capacity: int | None = None
    rows: int = 0

    @property
    def tree(self) -> Tree:
        """Cheapest contraction tree for the embedding rows."""
        return search(self.network, self.count)

    @property
    def size(self) -> int:
        """Number of embedding rows with padding; as an id it means a zero row, the next one NaN."""
        return math.prod(self.network.rows)


def make_rows(request: Request, operands: _Arrays, gates: _Arrays, ids: jax.Array) -> jax.Array:
    """Computes the embedding row of every id, repeated ones too, by XLA: (n,) to (n, features)."""
    tree, network = request.tree, request.network
    count = planned(ids.shape[0])
    spared = spared_gates(tree, network, count)
    kept = in_place(tree, network, count)
    tables = tables_of(request, operands, gates, spared, kept)
    return marked_rows(request, tables, ids, {k: gates[k] for k in spared}, kept)


def tables_of(
    request: Request,
    operands: _Arrays,
    gates: _Arrays,
    spared: Sequence[int] = (),
    kept: Sequence[int] = (),
) -> list[jax.Array]:
    """Computes tables of partial core products, gates included, to gather embedding rows from."""
    arrays = gated(request.network, operands, gates, spared)
    arrays = [x.astype(request.dtype or x.dtype) for x in arrays]
    return make_tables(request.tree, request.network, arrays, kept)


def marked_rows(
    request: Request,
    tables: _Arrays,
    ids: jax.Array,
    spared: Mapping[int, jax.Array] | None = None,
    kept: Sequence[int] = (),
) -> jax.Array:
    """Gathers embedding rows from tables; zero or NaN rows for padding and invalid ids.

    The mask also keeps NaN and Inf of the sentinel rows' cotangents out of row 0.
    """
    inside = ids < request.size
    within = jnp.where(inside, ids, 0)
    rows = rows_of(request.tree, request.network, tables, within, spared, kept)
    rows = rows[:, : request.features]
    zero, nan = jnp.zeros((), rows.dtype), jnp.full((), jnp.nan, rows.dtype)
    return jnp.where(inside[:, None], rows, jnp.where(ids == request.size, zero, nan)[:, None])


def make_tables(
    tree: Tree, network: LookupNetwork, operands: Sequence[jax.Array], kept: Sequence[int] = ()
) -> list[jax.Array]:
    """Computes tables of partial core products, from which embedding rows are gathered.

    Args:
      tree: of `search`.
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
    """Gathers partial core products from tables and multiplies them to embedding rows, by XLA.

    Args:
      tree: of `search`.
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
            axes[axis] = IDS
            index = (*(slice(None),) * axis, where)
            rows = table.at[index].get(mode="promise_in_bounds")
        else:
            for k in node.modes[1:]:
                where = where * sizes[k] + places[k]
            # As a matrix: with more axes the gradient's scatter would first copy its updates.
            rest = table.shape[1:]
            rows = table.reshape(table.shape[0], -1).at[where].get(mode="promise_in_bounds")
            rows, axes = rows.reshape(-1, *rest), [IDS, *node.axes]
        for number, gate in (spared or {}).items():
            k, axis = network.gates[number]
            if node.operands == (k,):
                rows = scaled(rows, axes, axis, gate)
        return rows, axes

    def make(node: Node) -> tuple[jax.Array, list[int]]:
        if node.table:
            return gather(node)
        (left, left_axes), (right, right_axes) = (make(part) for part in node.parts)
        axes = [IDS, *node.axes]
        return contract.einsum(left, left_axes, right, right_axes, axes), axes

    rows, _ = make(tree.root)
    return rows.reshape(ids.shape[0], math.prod(network.columns))


def _places(rows: Sequence[int], ids: jax.Array) -> list[jax.Array]:
    """Splits ids of embedding rows into indices, one for each table's row mode, in mixed radix."""
    places = []
    for n in reversed(rows):
        size = jnp.asarray(n, ids.dtype)
        places.append(jax.lax.rem(ids, size))  # no id is negative, so these are the cheaper ones
        ids = jax.lax.div(ids, size)
    return places[::-1]
