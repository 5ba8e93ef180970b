"""Embedding lookup and its gradient: by compiled C++ code on a CPU, by XLA elsewhere.

Both take the arrays of the layer, since each plans its own products of them. The backward pass
merges the cores again; in one program with the forward pass, XLA removes the duplicate product.
"""

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax import _native, contract
from tensorjax._kernels.choice import cpp_or_xla
from tensorjax.nn._embeddings.lookup_plan import make_plan, merged_shape
from tensorjax.nn._embeddings.table_networks import bond, column, gated, train
from tensorjax.nn._embeddings.xla_lookup import Request, lookup_by_xla, make_rows

_Arrays = Sequence[jax.Array]


def lookup(request: Request, operands: _Arrays, gates: _Arrays, ids: jax.Array) -> jax.Array:
    """Looks up embedding rows (n, features) for ids (n,) by the compiled C++ kernel or XLA."""
    if request.cuts:
        return _rows(request, operands, gates, ids)
    return lookup_by_xla(request, operands, gates, ids)


def _by_xla(request: Request, operands: _Arrays, gates: _Arrays, ids: jax.Array) -> jax.Array:
    """Looks up embedding rows by XLA, for platforms without the compiled C++ code."""
    plan = make_plan(request.network, request.features, len(ids), request.capacity, request.rows)
    return lookup_by_xla(plan._request._replace(dtype=request.dtype), operands, gates, ids)


def merge(
    cuts: Sequence[int], cores: Sequence[jax.Array], gates: Sequence[jax.Array]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Merges TT-matrix cores (r, m, n, s) for a compiled lookup; returns them and other gates."""
    merged = [_product(cores[j:k], gates[j : k - 1]) for j, k in pairwise(cuts)]
    return merged, [gates[k - 1] for k in cuts[1:-1]]


def _product(cores: Sequence[jax.Array], gates: Sequence[jax.Array]) -> jax.Array:
    if len(cores) == 1:
        return cores[0]
    shapes, order = tuple(c.shape for c in cores), len(cores)
    network = train(shapes)
    interleaved: list[Any] = []
    for array, term in zip(gated(network, cores, gates), network.terms, strict=True):
        interleaved += [array, [*term]]
    axes = [bond(0), *range(order), *(column(k) for k in range(order)), bond(order)]
    return contract.einsum(*interleaved, axes).reshape(merged_shape(shapes))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rows(request: Request, operands: Any, gates: Any, ids: jax.Array) -> jax.Array:
    return _either_rows(request, operands, gates, ids)


def _forward(request: Request, operands: Any, gates: Any, ids: jax.Array) -> Any:
    return _either_rows(request, operands, gates, ids), (operands, gates, ids)


def _backward(request: Request, kept: Any, cotangent: jax.Array) -> Any:
    return *_either_gradient(request, *kept, cotangent), None


_rows.defvjp(_forward, _backward)


# Rows and their gradients have derivatives too, by XLA's programs of all ids as they are, for
# products with Hessians and the like.


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _either_rows(request: Request, operands: Any, gates: Any, ids: jax.Array) -> jax.Array:
    results = [jax.ShapeDtypeStruct((len(ids), request.features), operands[0].dtype)]
    kernels = "nn.TTEmbedding", functools.partial(_or_whole, _swept_rows), _by_xla
    return cpp_or_xla(*kernels, operands, gates, ids, static=(request,), results=results)[0]


def _or_whole(sweeps: Any, request: Request, *arguments: Any) -> Any:
    """Looks ids up by compiled sweeps, or in the whole table of more ids than the plan says.

    How many are distinct is known at run time only: a tenth of the ids where they are words, and
    nearly all of them where they are uniform. Under `jax.vmap`, sweeps look all of them up: a
    batch of conditions would compute both ways, and a batch of whole tables takes much memory.

    Args:
      sweeps: function of a request and the arguments.
      arguments: of both ways: operands, gates, ids, and the cotangent of a gradient.
    """
    above = request.dense_above
    if above is None:
        return sweeps(request, *arguments)
    whole = functools.partial(_by_table, request._replace(cuts=(), dense_above=None, whole=True))
    swept = functools.partial(sweeps, request)

    @jax.custom_batching.custom_vmap
    def either(ids: jax.Array, arguments: Any) -> Any:
        seen = jnp.zeros((request.size + 2,), bool).at[ids].set(True, mode="promise_in_bounds")
        many = jnp.sum(seen, dtype=jnp.int32) > above

        return jax.lax.cond(many, whole, swept, *arguments)

    @either.def_vmap
    def _(size: int, batched: Sequence[Any], _: jax.Array, arguments: Any) -> Any:
        axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, batched[1])
        found = jax.vmap(swept, axes, axis_size=size)(*arguments)
        return found, jax.tree.map(lambda _: True, found)

    return either(arguments[2], arguments)


def _by_table(request: Request, operands: Any, gates: Any, ids: jax.Array, *cotangent: Any) -> Any:
    """Looks up embedding rows, or their gradient, in the whole table in place of compiled code."""
    rows = functools.partial(make_rows, request, ids=ids)
    return jax.vjp(rows, operands, gates)[1](*cotangent) if cotangent else rows(operands, gates)


def _swept_rows(request: Request, operands: Any, gates: Any, ids: jax.Array) -> jax.Array:
    cores, between = merge(request.cuts, operands, gates)
    return _native.look_up(cores, between, ids.astype(jnp.int32), request.features)


@_either_rows.defjvp
def _either_rows_jvp(request: Request, primals: Any, tangents: Any) -> Any:
    operands, gates, ids = primals
    rows = functools.partial(make_rows, request, ids=ids)
    return jax.jvp(rows, (operands, gates), tangents[:2])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _either_gradient(
    request: Request, operands: Any, gates: Any, ids: jax.Array, cotangent: jax.Array
) -> Any:
    leaves, tree = jax.tree.flatten((operands, gates))
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    arguments = operands, gates, ids, cotangent
    sweeps = functools.partial(_or_whole, _swept_gradient)
    kernels = "nn.TTEmbedding", sweeps, _gradient_by_xla
    found = cpp_or_xla(*kernels, *arguments, static=(request,), results=results)
    return jax.tree.unflatten(tree, found)


def _swept_gradient(
    request: Request, operands: Any, gates: Any, ids: jax.Array, cotangent: jax.Array
) -> Any:
    merged, pull = jax.vjp(functools.partial(merge, request.cuts), operands, gates)
    return pull(_native.look_up_gradient(*merged, ids.astype(jnp.int32), cotangent))


def _gradient_by_xla(
    request: Request, operands: Any, gates: Any, ids: jax.Array, cotangent: jax.Array
) -> Any:
    rows = functools.partial(_by_xla, request, ids=ids)
    return jax.vjp(rows, operands, gates)[1](cotangent)


@_either_gradient.defjvp
def _either_gradient_jvp(request: Request, primals: Any, tangents: Any) -> Any:
    operands, gates, ids, cotangent = primals

    def gradient(operands: Any, gates: Any, cotangent: jax.Array) -> Any:
        rows = functools.partial(make_rows, request, ids=ids)
        return jax.vjp(rows, operands, gates)[1](cotangent)

    return jax.jvp(gradient, (operands, gates, cotangent), (*tangents[:2], tangents[3]))
