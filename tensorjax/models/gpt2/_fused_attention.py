"""Fused cuDNN attention that also works inside `jax.shard_map`.

JAX's call (0.10.1) does not mark along which mesh axes its results vary, so that `shard_map`, which
tracks these marks, refuses the backward pass. Here the call gets arrays without marks, and its
results, gradients and residuals are marked afterwards.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

from tensorjax.parallel._collectives import vary, varying

_Call = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

_plain_p = Primitive("without_varying_axes")
_plain_p.def_impl(lambda x: x)
_plain_p.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype))
mlir.register_lowering(_plain_p, lambda ctx, x: [x])


def fused(q: jax.Array, k: jax.Array, v: jax.Array, **options: Any) -> jax.Array:
    """Computes attention of (batch, length, heads, width) by cuDNN, on this device's block.

    Args:
      q: half precision.
      k: as q.
      v: as q.
      **options: of `jax.nn.dot_product_attention`.
    """

    def call(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn", **options)

    axes = tuple(varying(q) | varying(k) | varying(v))
    if not axes:
        return call(q, k, v)
    return _fused(call, axes, *(vary(x, axes) for x in (q, k, v)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _fused(call: _Call, axes: Any, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return vary(call(*map(_plain_p.bind, (q, k, v))), axes)


def _forward(call: _Call, axes: Any, q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[Any, Any]:
    out, pull = jax.vjp(call, *map(_plain_p.bind, (q, k, v)))
    # What is kept leaves `shard_map` if the gradient is taken around it: as it differs.
    return vary(out, axes), jax.tree.map(lambda x: vary(x, axes), pull)


def _backward(call: _Call, axes: Any, pull: Any, cotangent: jax.Array) -> Any:
    found = jax.tree.map(_plain_p.bind, pull)(_plain_p.bind(cotangent))
    return tuple(vary(x, axes) for x in found)


_fused.defvjp(_forward, _backward)
