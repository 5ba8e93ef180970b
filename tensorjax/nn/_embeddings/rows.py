"""Embedding rows by XLA for all ids, gathered from tables of partial products."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tensorjax._symbolic import planned
from tensorjax.nn._embeddings.lookup import (
    LookupNetwork,
    Tree,
    gated,
    in_place,
    make_tables,
    rows_of,
    search,
    spared_gates,
)

_Arrays = Sequence[jax.Array]


class Request(NamedTuple):
    """Static description of an embedding lookup, without the arrays. Hashable.

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
        """Number of embedding rows with padding; this id means a zero row, the next a NaN row."""
        return math.prod(self.network.rows)


def make_rows(request: Request, operands: _Arrays, gates: _Arrays, ids: jax.Array) -> jax.Array:
    """Computes embedding rows (n, features) by XLA, one for each of the ids (n,)."""
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
    """Computes the tables that embedding rows are gathered from, multiplied by gates."""
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
