"""Rows of ids as they are: by XLA from tables, or by compiled code from merged cores."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tensorjax import _native
from tensorjax.nn._embedding_chain import merge
from tensorjax.nn._lookup import (
    Network,
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
    """What a lookup depends on, the arrays apart. Hashable.

    Attributes:
      network: of the layer's arrays, or of merged cores.
      features: columns that are kept.
      count: rows that products are planned for.
      distinct: whether so many distinct ids at a time get rows, in rounds; otherwise all ids do, as
        they are.
      cuts: of `tensorjax.nn._embedding_chain.Chain`, where `tensorjax._native` makes the rows of
        merged cores; empty where XLA makes them of tables.
      dtype: of the rows and of all products but those with gates; None is that of the arrays.
    """

    network: Network
    features: int
    count: int
    distinct: bool = False
    cuts: tuple[int, ...] = ()
    dtype: Any = None

    @property
    def tree(self) -> Tree:
        """Of products by XLA."""
        return search(self.network, self.count)

    @property
    def size(self) -> int:
        """Rows of the matrix; this number stands for an id whose row is zero, the next for NaN."""
        return math.prod(self.network.rows)


def make_rows(request: Request, operands: _Arrays, gates: _Arrays, ids: jax.Array) -> jax.Array:
    """Rows (n, features) for ids (n,) in [0, size + 1]."""
    if not request.cuts:
        return _by_xla(request, operands, gates, ids)
    cores, between = merge(request.cuts, operands, gates)
    return _rows(request, cores, between, ids.astype(jnp.int32))


def _by_xla(request: Request, operands: _Arrays, gates: _Arrays, ids: jax.Array) -> jax.Array:
    tree, network = request.tree, request.network
    spared = spared_gates(tree, network, len(ids))
    kept = in_place(tree, network, len(ids))
    tables = tables_of(request, operands, gates, spared, kept)
    return marked_rows(request, tables, ids, {k: gates[k] for k in spared}, kept)


def tables_of(
    request: Request,
    operands: _Arrays,
    gates: _Arrays,
    spared: Sequence[int] = (),
    kept: Sequence[int] = (),
) -> list[jax.Array]:
    """The tables of a lookup with the gates that are not spared, of the dtype of the rows."""
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
    """The rows of ids, those that stand for no row among them. Nothing flows back from the latter.

    The mask also keeps what is not finite in other rows' cotangents out of row 0.
    """
    inside = ids < request.size
    within = jnp.where(inside, ids, 0)
    rows = rows_of(request.tree, request.network, tables, within, spared, kept)
    rows = rows[:, : request.features]
    zero, nan = jnp.zeros((), rows.dtype), jnp.full((), jnp.nan, rows.dtype)
    return jnp.where(inside[:, None], rows, jnp.where(ids == request.size, zero, nan)[:, None])


# Compiled code knows rows and their gradients. Both have derivatives too, by XLA's programs of all
# ids as they are, for products with Hessians and the like.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rows(request: Request, operands: Any, gates: Any, ids: jax.Array) -> jax.Array:
    return _compiled_rows(request, operands, gates, ids)


def _forward(request: Request, operands: Any, gates: Any, ids: jax.Array) -> Any:
    return _compiled_rows(request, operands, gates, ids), (operands, gates, ids)


def _backward(request: Request, kept: Any, cotangent: jax.Array) -> Any:
    return *_compiled_gradient(request, *kept, cotangent), None


_rows.defvjp(_forward, _backward)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _compiled_rows(request: Request, operands: Any, gates: Any, ids: jax.Array) -> jax.Array:
    return _native.look_up(operands, gates, ids, request.features)


@_compiled_rows.defjvp
def _(request: Request, primals: Any, tangents: Any) -> Any:
    operands, gates, ids = primals
    return jax.jvp(lambda x, g: _by_xla(request, x, g, ids), (operands, gates), tangents[:2])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _compiled_gradient(
    request: Request, operands: Any, gates: Any, ids: jax.Array, cotangent: jax.Array
) -> Any:
    return _native.look_up_gradient(operands, gates, ids, cotangent)


@_compiled_gradient.defjvp
def _(request: Request, primals: Any, tangents: Any) -> Any:
    ids = primals[2]

    def gradient(operands: Any, gates: Any, cotangent: jax.Array) -> Any:
        return jax.vjp(lambda x, g: _by_xla(request, x, g, ids), operands, gates)[1](cotangent)

    return jax.jvp(gradient, (*primals[:2], primals[3]), (*tangents[:2], tangents[3]))
