"""Attention of GPT-2: JAX's implementations, and a causal one that is faster on CPUs."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax.models.gpt2._fused_attention import fused

# Least queries in a block, and most blocks: more of them save little and take longer to compile.
_QUERIES = 64
_BLOCKS = 2


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, implementation: Any, **options: Any
) -> jax.Array:
    """Computes attention of (batch, length, heads, width) by JAX, cuDNN or `causal`.

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
    """Computes causal attention by plain JAX in two blocks of queries, without later keys.

    The queries are cut into two blocks where they are many, and a block is not multiplied by keys
    that all come later. The head axis is moved before the length, and the softmax is normalised
    after the product with the values: on CPUs, XLA (0.10.1) takes less time for that than for
    `jax.nn.dot_product_attention`.

    Args:
      q: (batch, length, heads, width), floating.
      k: as q.
      v: as q.

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
