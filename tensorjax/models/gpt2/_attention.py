"""Attention of GPT-2: JAX's, a causal one that is faster on CPUs, and cuDNN's in `shard_map`."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

from tensorjax.parallel._collectives import vary, varying

# Least queries in a block, and most blocks: more of them save little and take longer to compile.
_QUERIES = 64
_BLOCKS = 2

_Call = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

# JAX's call of cuDNN (0.10.1) does not mark along which mesh axes its results vary, so that
# `shard_map`, which tracks these marks, refuses the backward pass. Here the call gets arrays
# without marks, and its results, gradients and residuals are marked afterwards.
_plain_p = Primitive("without_varying_axes")
_plain_p.def_impl(lambda x: x)
_plain_p.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype))
mlir.register_lowering(_plain_p, lambda ctx, x: [x])


def fused(q: jax.Array, k: jax.Array, v: jax.Array, **options: Any) -> jax.Array:
    """Computes GPT-2's attention (batch, length, heads, width) by cuDNN, on this device's block.

    Args:
      q, k, v: half precision.
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


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, implementation: Any, **options: Any
) -> jax.Array:
    """Computes GPT-2's attention (batch, length, heads, width) by JAX, cuDNN or `causal`.

    `causal` is used if no implementation is asked for and the mask is causal; in half precision
    only in programs for CPUs. The platform of a program is known when it is lowered, not when it is
    traced.
    """
    if implementation == "cudnn":
        return fused(q, k, v, **options)

    def by_jax(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        # In half precision it multiplies by float32 factors, on purpose. Backwards, where this
        # setting does not reach, it does so too: a caller under strict promotion has to relax it.
        with jax.numpy_dtype_promotion("standard"):
            found = jax.nn.dot_product_attention(q, k, v, implementation=implementation, **options)
        return found.astype(q.dtype)

    single = causal if implementation is None and options == {"is_causal": True} else by_jax
    if q.dtype.itemsize > 2:
        return single(q, k, v)

    def widened(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        # JAX's asks for a way of multiplying half precision that XLA does not have on CPUs for
        # small arrays (jaxlib 0.10.1); half precision is widened there in any case.
        return single(*(x.astype(jnp.float32) for x in (q, k, v))).astype(q.dtype)

    return jax.lax.platform_dependent(q, k, v, cpu=widened, default=by_jax)


def causal(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Computes GPT-2's causal attention in plain JAX by two blocks of queries, without later keys.

    The queries are cut into two blocks where they are many, and a block is not multiplied by keys
    that all come later. The head axis is moved before the length, and the softmax is normalised
    after the product with the values: on CPUs, XLA (0.10.1) takes less time for that than for
    `jax.nn.dot_product_attention`.

    Args:
      q, k, v: (batch, length, heads, width), floating.

    Returns:
      As q.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax.models.gpt2._attention import causal
      >>> x = jnp.arange(6.0).reshape(1, 3, 1, 2)
      >>> causal(jnp.zeros_like(x), x, x)[0, :, 0].tolist()        # means of what was seen
      [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]
    """
    length, width = q.shape[1], q.shape[-1]
    q = q * jnp.asarray(width**-0.5, q.dtype)
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    blocks = max(1, min(_BLOCKS, length // _QUERIES))
    edges = [length * n // blocks for n in range(blocks + 1)]
    found = []
    for first, last in itertools.pairwise(edges):
        past = slice(0, last)
        scores = jnp.einsum("bhqw,bhkw->bhqk", q[:, :, first:last], k[:, :, past])
        seen = jnp.tril(jnp.ones((last - first, last), bool), first)
        scores = jnp.where(seen[None, None], scores, jnp.asarray(-jnp.inf, scores.dtype))
        # Softmax does not depend on what is subtracted.
        top = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
        parts = jnp.exp(scores - top)
        sums = jnp.sum(parts, axis=-1, keepdims=True)
        found.append(jnp.einsum("bhqk,bhkw->bhqw", parts, v[:, :, past]) / sums)
    return jnp.swapaxes(jnp.concatenate(found, axis=2), 1, 2)
