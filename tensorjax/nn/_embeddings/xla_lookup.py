"""Embedding lookup by XLA: rows of all ids, or of every distinct id once, from tables of products.

Distinct ids are sorted and numbered; rows are made for as many as the *capacity* says and copied to
where they are wanted. Where there are more distinct ids, a loop makes the rows of the next ones,
until all are done: exact for any ids, and without any more memory. (`jnp.unique(size=)` would drop
them silently.) The backward pass first sums the cotangents of equal ids, so its products are as few
as those of the forward pass, which it recomputes instead of storing them.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tensorjax import contract, linalg
from tensorjax._symbolic import is_static, planned
from tensorjax.nn._embeddings.contraction_tree import Node, Tree, in_place, search, spared_gates
from tensorjax.nn._embeddings.table_networks import IDS, LookupNetwork, gated, scaled

try:
    from jax.experimental.shard_alike import shard_alike
except ImportError:  # JAX 0.11.2 dropped this hint: same results, computed on every device

    def shard_alike(x: Any, y: Any) -> tuple[Any, Any]:
        """Returns both arrays of a distinct-id lookup unchanged, where JAX has no `shard_alike`."""
        return x, y


_Arrays = Sequence[jax.Array]


class Request(NamedTuple):
    """Request of a lookup by XLA as static, hashable data: network, columns, count and dtype.

    Attributes:
      network: of the layer's arrays, or of merged cores.
      features: columns that are kept.
      count: rows that products are planned for.
      distinct: whether so many distinct ids at a time get rows, in rounds; otherwise all ids do, as
        they are.
      dtype: of the rows and of all products but those with gates; None is that of the arrays.
      cuts: of `tensorjax.nn._embeddings.lookup_plan.Chain`, if in programs for a CPU
        `tensorjax._native` makes the rows, of merged cores; empty if XLA makes them of tables
        everywhere.
      capacity: with ``cuts``, the user's, for XLA's plan on other platforms.
      rows: with ``cuts``, those of the matrix, padding apart, for the same.
      dense_above: with ``cuts``, the number of distinct ids above which these programs gather rows
        from the whole matrix, but under `jax.vmap`; None: never.
      whole: whether rows are gathered from the whole matrix, whatever `search` finds cheapest.
    """

    network: LookupNetwork
    features: int
    count: int
    distinct: bool = False
    dtype: Any = None
    cuts: tuple[int, ...] = ()
    capacity: int | None = None
    rows: int = 0
    dense_above: int | None = None
    whole: bool = False

    @property
    def tree(self) -> Tree:
        """Cheapest contraction tree for the embedding rows that XLA looks up."""
        return search(self.network, self.count, self.whole)

    @property
    def size(self) -> int:
        """Number of rows that XLA looks up, padded; as an id it is a zero row, the next one NaN."""
        return math.prod(self.network.rows)


def make_rows(request: Request, operands: _Arrays, gates: _Arrays, ids: jax.Array) -> jax.Array:
    """Computes the embedding row of every id, repeated ones too, by XLA: (n,) to (n, features)."""
    tree, network = request.tree, request.network
    if tree.root.table:
        return _rows_of_whole(request, tables_of(request, operands, gates)[0], ids)
    count = planned(ids.shape[0])
    spared = spared_gates(tree, network, count)
    kept = in_place(tree, network, count)
    tables = tables_of(request, operands, gates, spared, kept)
    return marked_rows(request, tables, ids, {k: gates[k] for k in spared}, kept)


def _rows_of_whole(request: Request, table: jax.Array, ids: jax.Array) -> jax.Array:
    """Looks up, by XLA, embedding rows in the whole matrix; zero or NaN rows for other ids.

    The marks are added, not selected: in the backward pass a selection would be one more array of
    the size of all rows, and what stands outside is dropped by the scatter as it is.
    """
    table = table.reshape(request.size, -1)[:, : request.features]
    rows = table.at[ids].get(mode="fill", fill_value=0)
    zero, nan = jnp.zeros((), rows.dtype), jnp.full((), jnp.nan, rows.dtype)
    return rows + jnp.where(ids > request.size, nan, zero)[:, None]


def tables_of(
    request: Request,
    operands: _Arrays,
    gates: _Arrays,
    spared: Sequence[int] = (),
    kept: Sequence[int] = (),
) -> list[jax.Array]:
    """Computes, for lookups by XLA, tables of partial core products, gates included."""
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
    """Looks up rows in tables, by XLA; zero or NaN rows for padding and invalid ids.

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
    """Computes tables of partial core products, in which XLA looks up embedding rows.

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
    """Splits ids that XLA looks up into indices, one for each table's row mode, in mixed radix."""
    places = []
    for n in reversed(rows):
        size = jnp.asarray(n, ids.dtype)
        places.append(jax.lax.rem(ids, size))  # no id is negative, so these are the cheaper ones
        ids = jax.lax.div(ids, size)
    return places[::-1]


def lookup_by_xla(
    request: Request, operands: Sequence[jax.Array], gates: Sequence[jax.Array], ids: jax.Array
) -> jax.Array:
    """Looks up embedding rows (n, features) by XLA; of distinct ids only if so planned."""
    if not request.distinct:
        return make_rows(request, operands, gates, ids)
    return _distinct_rows(request, tables_of(request, operands, gates), ids)


class _Distinct(NamedTuple):
    """Distinct ids of a lookup by XLA, ascending, and the position of every id among them.

    Attributes:
      ids: (a multiple of the capacity,), filled up with ids of rows that are zero.
      slots: (n,) which of them each id is.
    """

    ids: jax.Array
    slots: jax.Array
    count: jax.Array


def _distinct(request: Request, ids: jax.Array) -> _Distinct:
    capacity = request.count
    (n,) = ids.shape
    room = -(-n // capacity) * capacity
    ordered, origin = _sorted(ids, request.size + 2)
    fresh = jnp.concatenate([jnp.zeros(1, bool), ordered[1:] != ordered[:-1]])
    number = jnp.cumsum(fresh, dtype=ids.dtype)
    filled = jnp.full(room, request.size, ids.dtype)
    slots = (
        jnp.zeros_like(ids).at[origin].set(number, mode="promise_in_bounds", unique_indices=True)
    )
    # A sort is not partitioned: without this all that follows would be done on every device.
    slots, _ = shard_alike(slots, ids)
    filled = filled.at[number].set(ordered, mode="promise_in_bounds")
    return _Distinct(filled, slots, number[-1] + 1)


def _sorted(ids: jax.Array, most: int) -> tuple[jax.Array, jax.Array]:
    """Sorts ids below ``most`` for a lookup by XLA; returns them and their original positions."""
    (count,) = ids.shape
    position = jnp.arange(count, dtype=ids.dtype)
    if not is_static(count) or most * count > jnp.iinfo(ids.dtype).max:
        ordered, origin = jax.lax.sort((ids, position), num_keys=1)
        return ordered, origin
    # Both in one number: sorting one array takes a fraction of the time of sorting two.
    n = jnp.asarray(count, ids.dtype)
    packed = jnp.sort(ids * n + position)
    return jax.lax.div(packed, n), jax.lax.rem(packed, n)


def _part(request: Request, found: _Distinct, k: Any) -> jax.Array:
    """Returns the k-th block of the distinct ids that XLA looks up."""
    capacity = request.count
    return jax.lax.dynamic_slice_in_dim(found.ids, k * capacity, capacity)


def _over_parts(
    request: Request,
    found: _Distinct,
    begin: Callable[[Any], Any],
    go_on: Callable[[Any, Any], Any],
) -> Any:
    """Runs an XLA lookup block by block: ``begin`` for the first, ``go_on`` after it."""
    first = jnp.zeros((), found.ids.dtype)
    return jax.lax.while_loop(
        lambda state: state[0] * request.count < found.count,
        lambda state: (state[0] + 1, go_on(*state)),
        (first + 1, begin(first)),
    )[1]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _distinct_rows(request: Request, tables: _Arrays, ids: jax.Array) -> jax.Array:
    return _forward(request, tables, ids)[0]


def _forward(request: Request, tables: _Arrays, ids: jax.Array) -> Any:
    found, capacity = _distinct(request, ids), request.count

    def rows_at(k: Any) -> jax.Array:
        rows = marked_rows(request, tables, _part(request, found, k))
        # Slots of other parts read some row of this one.
        inside = jnp.clip(found.slots - k * capacity, 0, capacity - 1)
        return rows.at[inside].get(mode="promise_in_bounds")

    def fill(k: Any, out: jax.Array) -> jax.Array:
        return jnp.where((found.slots // capacity == k)[:, None], rows_at(k), out)

    out = _over_parts(request, found, rows_at, fill)
    like = jnp.broadcast_to(ids[:, None], out.shape).astype(out.dtype)
    out, _ = shard_alike(out, like)
    return out, (tables, found)


def _backward(request: Request, kept: Any, cotangent: jax.Array) -> Any:
    tables, found = kept
    capacity = request.count
    # Long sums: in single precision at least.
    sums = linalg.factor_dtype(cotangent.dtype)

    def gradient(k: Any) -> list[jax.Array]:
        inside = jnp.where(found.slots // capacity == k, found.slots - k * capacity, capacity)
        summed = jnp.zeros((capacity, request.features), sums)
        summed = summed.at[inside].add(cotangent.astype(sums), mode="drop")
        part = _part(request, found, k)
        _, pull = jax.vjp(lambda t: marked_rows(request, t, part), tables)
        return pull(summed.astype(cotangent.dtype))[0]

    def add(k: Any, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, gradient(k))

    return _over_parts(request, found, gradient, add), None


_distinct_rows.defvjp(_forward, _backward)
