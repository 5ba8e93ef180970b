"""Text generation by GPT-2 with a key–value cache."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from tensorjax import _check
from tensorjax._typing import ArrayLike
from tensorjax.models.gpt2._attention import attend
from tensorjax.models.gpt2._model import GPT2
from tensorjax.parallel import Single


def generate(
    model: GPT2,
    prompts: ArrayLike,
    count: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    key: jax.Array | None = None,
) -> np.ndarray:
    """Generates GPT-2 tokens that continue each prompt, by sampling or greedily.

    The prompts go through the model once; every further token costs one position, which attends to
    the keys and values kept of those before it. One program is compiled for each batch size,
    longest prompt and count.

    Parameters that are split over a mesh (`tensorjax.parallel.shard`) stay split: XLA partitions
    the program after them, and all devices get the tokens. Where several processes share the mesh,
    all of them have to call this, with the same arguments.

    Args:
      model: `GPT2`, its parameters concrete.
      prompts: integers (batch, length), or a sequence of sequences of integers, of any lengths of
        at least one.
      count: how many tokens to draw; with the longest prompt at most ``config.length``.
      temperature: that logits are divided by; 0 takes the most likely token.
      top_k: how many of the most likely tokens are drawn from; None is all.
      key: of `jax.random`; needed where ``temperature`` is above 0.

    Returns:
      (batch, count) int32, the new tokens only.

    Raises:
      ValueError: prompts, counts or options that do not fit, by name; a draw without a key.
      TypeError: a prompt is a text, or the function is called inside `jax.jit`.
      FloatingPointError: the model's logits are not finite.

    Example:
      >>> from flax import nnx
      >>> from tensorjax.models.gpt2 import GPT2, GPT2Config, generate
      >>> model = GPT2(GPT2Config.tiny(), rngs=nnx.Rngs(0))
      >>> generate(model, [[5, 7, 2], [1]], 4).shape
      (2, 4)

    Source: A. Fan, M. Lewis, Y. Dauphin, "Hierarchical Neural Story Generation", arXiv 1805.04833,
    for drawing from the ``top_k`` most likely tokens, as Radford et al. (2019) do.
    """
    config = model.config
    rows = _rows(prompts, config.vocabulary)
    count = _check.integer("count", count, low=1)
    longest = max(map(len, rows))
    if longest + count > config.length:
        raise ValueError(
            f"count: expected at most {max(config.length - longest, 0)} tokens behind prompts of "
            f"up to {longest}, for length = {config.length}, got {count}; cut the prompts"
        )
    if not (np.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature: expected a number of at least 0, got {temperature!r}")
    if top_k is not None:
        top_k = _check.integer("top_k", top_k, low=1, high=config.vocabulary)
    if key is None:
        if temperature > 0:
            raise ValueError("key: expected a key of jax.random to draw tokens with, got None")
        key = jax.random.key(0)  # greedy: never used
    graph, params = nnx.split(model)
    if _check.is_traced(params):
        raise TypeError("model: expected concrete parameters; call generate outside jit and grad")
    tokens = np.zeros((len(rows), longest), np.int32)
    for line, row in zip(tokens, rows, strict=True):
        line[: len(row)] = row
    lengths = np.array([len(row) for row in rows], np.int32)
    drawn, finite = _generated(
        graph, params, tokens, lengths, np.float32(temperature), key,
        count=count, greedy=temperature == 0, top_k=top_k, everywhere=_everywhere(params),
    )  # fmt: skip
    if not finite:
        raise FloatingPointError(
            "model: expected finite logits, got NaN or Inf; look at its parameters"
        )
    return np.asarray(drawn)


def _rows(prompts: Any, vocabulary: int) -> list[np.ndarray]:
    if isinstance(prompts, str):
        raise TypeError("prompts: expected token ids, got a text; encode it first")
    rows = [np.asarray(row) for row in prompts] if isinstance(prompts, Sequence) else prompts
    if not isinstance(rows, list):
        rows = np.asarray(rows)
        if rows.ndim != 2:
            raise ValueError(f"prompts: expected shape (batch, length), got {rows.shape}")
        rows = list(rows)
    if not rows:
        raise ValueError("prompts: expected at least one, got none")
    for k, row in enumerate(rows):
        if row.ndim != 1 or not row.size or row.dtype.kind not in "iu":
            raise ValueError(
                f"prompts[{k}]: expected at least one integer, got {row.dtype} of shape {row.shape}"
            )
        if row.min() < 0 or row.max() >= vocabulary:
            outside = row[(row < 0) | (row >= vocabulary)][0]
            raise ValueError(f"prompts[{k}]: expected ids in [0, {vocabulary}), got {outside}")
    return rows


def _everywhere(params: Any) -> NamedSharding | None:
    """Returns the sharding that replicates generated tokens on the parameters' mesh, or None."""
    for leaf in jax.tree.leaves(params):
        where = getattr(leaf, "sharding", None)
        if isinstance(where, NamedSharding):
            return NamedSharding(where.mesh, PartitionSpec())
    return None


class _Carry(NamedTuple):
    """Loop state of text generation: last token, position, key–value cache, finiteness."""

    token: jax.Array  # (batch,)
    position: jax.Array  # (batch,), of that token
    cache: tuple[jax.Array, jax.Array]  # keys and values (layers, batch, total, heads, width)
    finite: jax.Array


@functools.partial(jax.jit, static_argnames=("graph", "count", "greedy", "top_k", "everywhere"))
def _generated(
    graph: Any,
    params: Any,
    tokens: jax.Array,
    lengths: jax.Array,
    temperature: jax.Array,
    key: jax.Array,
    *,
    count: int,
    greedy: bool,
    top_k: int | None,
    everywhere: NamedSharding | None,
) -> tuple[jax.Array, jax.Array]:
    model = nnx.merge(graph, params)

    def choose(logits: jax.Array, key: jax.Array) -> jax.Array:
        if greedy:
            return jnp.argmax(logits, -1).astype(jnp.int32)
        ids = None
        if top_k is not None:
            logits, ids = jax.lax.top_k(logits, top_k)
        # From the largest one on, and by no number that rounds to zero: what overflows is then −∞,
        # a token that is not drawn.
        divisor = jnp.maximum(temperature.astype(logits.dtype), jnp.finfo(logits.dtype).tiny)
        below = logits - logits.max(-1, keepdims=True)
        drawn = jax.random.categorical(key, below / divisor)
        if ids is not None:
            drawn = jnp.take_along_axis(ids, drawn[:, None], 1)[:, 0]
        return drawn.astype(jnp.int32)

    def step(carry: _Carry, key: jax.Array) -> tuple[_Carry, jax.Array]:
        logits, cache = _next(model, carry.token, carry.position, carry.cache)
        token = choose(logits, key)
        finite = carry.finite & jnp.isfinite(logits).all()
        return _Carry(token, carry.position + 1, cache, finite), token

    keys = jax.random.split(key, count)
    # What stands behind a shorter prompt is no token: nothing attends to its key and value before
    # the step at that position writes over them.
    logits, cache = _prefilled(model, tokens, lengths, tokens.shape[1] + count)
    first = choose(logits, keys[0])
    carry = _Carry(first, lengths, cache, jnp.isfinite(logits).all())
    carry, rest = jax.lax.scan(step, carry, keys[1:])
    found = jnp.concatenate([first[:, None], rest.T], 1), carry.finite
    return found if everywhere is None else jax.lax.with_sharding_constraint(found, everywhere)


def _prefilled(
    model: GPT2, tokens: jax.Array, lengths: jax.Array, total: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Runs prompts to be continued through GPT-2; returns next-token logits and the cache."""
    layout, x = (
        Single(),
        _embedded(model, tokens, jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]),
    )
    graph, params = nnx.split(model.blocks)

    def body(x: jax.Array, params: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        block = nnx.merge(graph, params)
        q, k, v = block.heads(x, layout)
        y = attend(q, k, v, model.attention, is_causal=True)
        return block.after(x, y, layout, _whole), (k, v)

    x, cache = jax.lax.scan(body, x, params)
    last = jnp.take_along_axis(x, (lengths - 1)[:, None, None], 1)
    room = [(0, 0), (0, 0), (0, total - tokens.shape[1]), (0, 0), (0, 0)]
    keys, values = (jnp.pad(part, room) for part in cache)
    return _logits(model, last), (keys, values)


def _next(
    model: GPT2, token: jax.Array, position: jax.Array, cache: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Runs one generated token per row through GPT-2; returns next logits and updated cache."""
    layout, x = Single(), _embedded(model, token[:, None], position[:, None])
    graph, params = nnx.split(model.blocks)
    rows = jnp.arange(token.shape[0], dtype=jnp.int32)
    seen = jnp.arange(cache[0].shape[2], dtype=jnp.int32)[None, :] <= position[:, None]

    # The cache is carried, not stacked: a loop updates what it carries in place.
    def body(carry: Any, inputs: Any) -> tuple[Any, None]:
        x, keys, values = carry
        params, layer = inputs
        block = nnx.merge(graph, params)
        q, k, v = block.heads(x, layout)
        keys = keys.at[layer, rows, position].set(k[:, 0])
        values = values.at[layer, rows, position].set(v[:, 0])
        y = attend(q, keys[layer], values[layer], "xla", mask=seen[:, None, None, :])
        return (block.after(x, y, layout, _whole), keys, values), None

    layers = jnp.arange(model.config.layers, dtype=jnp.int32)
    (x, keys, values), _ = jax.lax.scan(body, (x, *cache), (params, layers))
    return _logits(model, x), (keys, values)


def _embedded(model: GPT2, tokens: jax.Array, positions: jax.Array) -> jax.Array:
    # Cast before they are added, as in a call of the model.
    table, places = (part[...].astype(model.dtype) for part in (model.tokens, model.positions))
    return table[tokens] + places[positions]


def _logits(model: GPT2, x: jax.Array) -> jax.Array:
    """Computes next-token logits (batch, vocabulary) for generation, from hidden states."""
    layout = Single()
    logits = layout.logits(model.norm(x, layout), model.tokens[...].astype(model.dtype))
    return logits[:, 0, : model.config.vocabulary]


def _whole(x: jax.Array, number: int) -> jax.Array:
    """Returns x unchanged; stands in for dropout during generation."""
    return x
