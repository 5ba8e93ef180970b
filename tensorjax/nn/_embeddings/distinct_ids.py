"""Embedding lookup that computes the row of every distinct id only once, under jit too.

Ids are sorted and numbered; rows are made for as many distinct ids as the *capacity* says and
copied to where they are wanted. Where there are more distinct ids, a loop makes the rows of the
next ones, until all are done: exact for any ids, and without any more memory. (`jnp.unique(size=)`
would drop them silently.) The backward pass first sums the cotangents of equal ids, so its products
are as few as those of the forward pass, which it recomputes instead of storing them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tensorjax import linalg
from tensorjax._symbolic import is_static
from tensorjax.nn._embeddings.rows_from_tables import Request, make_rows, marked_rows, tables_of

try:
    from jax.experimental.shard_alike import shard_alike
except ImportError:  # JAX 0.11.2 dropped this hint: same results, computed on every device

    def shard_alike(x: Any, y: Any) -> tuple[Any, Any]:
        """Returns both arrays of a distinct-id lookup unchanged, where JAX has no `shard_alike`."""
        return x, y


_Tables = Sequence[jax.Array]


def lookup_by_xla(
    request: Request, operands: Sequence[jax.Array], gates: Sequence[jax.Array], ids: jax.Array
) -> jax.Array:
    """Looks up embedding rows (n, features) by XLA; of distinct ids only if so planned."""
    if not request.distinct:
        return make_rows(request, operands, gates, ids)
    return _distinct_rows(request, tables_of(request, operands, gates), ids)


class _Distinct(NamedTuple):
    """Distinct ids of an embedding lookup, ascending, and the position of every id among them.

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
    """Sorts embedding ids below ``most``; returns them and their original positions."""
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
    """Returns the k-th block of the distinct ids of an embedding lookup."""
    capacity = request.count
    return jax.lax.dynamic_slice_in_dim(found.ids, k * capacity, capacity)


def _over_parts(
    request: Request,
    found: _Distinct,
    begin: Callable[[Any], Any],
    go_on: Callable[[Any, Any], Any],
) -> Any:
    """Runs an embedding lookup block by block: ``begin`` for the first, ``go_on`` after it."""
    first = jnp.zeros((), found.ids.dtype)
    return jax.lax.while_loop(
        lambda state: state[0] * request.count < found.count,
        lambda state: (state[0] + 1, go_on(*state)),
        (first + 1, begin(first)),
    )[1]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _distinct_rows(request: Request, tables: _Tables, ids: jax.Array) -> jax.Array:
    return _forward(request, tables, ids)[0]


def _forward(request: Request, tables: _Tables, ids: jax.Array) -> Any:
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
