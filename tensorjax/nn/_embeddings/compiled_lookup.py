"""Embedding lookup and its gradient: by compiled C++ code on a CPU, by XLA elsewhere.

Both take the arrays of the layer, since each plans its own products of them. The backward pass
merges the cores again; in one program with the forward pass, XLA removes the duplicate product.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax import _native
from tensorjax._kernels.choice import cpp_or_xla
from tensorjax.nn._embeddings.distinct_ids import lookup_by_xla
from tensorjax.nn._embeddings.lookup_plan import make_plan
from tensorjax.nn._embeddings.merged_cores import merge
from tensorjax.nn._embeddings.rows_from_tables import Request, make_rows

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
    kernels = "nn.TTEmbedding", _rows_by_sweeps, _by_xla
    return cpp_or_xla(*kernels, operands, gates, ids, static=(request,), results=results)[0]


def _rows_by_sweeps(request: Request, operands: Any, gates: Any, ids: jax.Array) -> jax.Array:
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
    kernels = "nn.TTEmbedding", _gradient_by_sweeps, _gradient_by_xla
    found = cpp_or_xla(*kernels, *arguments, static=(request,), results=results)
    return jax.tree.unflatten(tree, found)


def _gradient_by_sweeps(
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
