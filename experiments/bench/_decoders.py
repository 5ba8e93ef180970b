"""GPT-2 written in two further ways for `bench/gpt2`: in plain Flax, and as nanoGPT in JAX.

Both take the weights of a `tensorjax.models.gpt2.GPT2` and give its loss, in the same precision and
without dropout: what differs is how the program is written.

Source of the second: A. Karpathy, nanoGPT, model.py: a loop over blocks, one product for queries,
keys and values, attention by a masked softmax, logits tied to the token table.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from tensorjax.models.gpt2 import GPT2, GPT2Config

EPSILON = 1e-5  # of all layer norms


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Computes the mean cross-entropy of logits in single precision."""
    wide = logits.astype(jnp.float32)
    return optax.losses.softmax_cross_entropy_with_integer_labels(wide, targets).mean()


class FlaxBlock(nnx.Module):
    """Transformer block of `FlaxGPT2`."""

    def __init__(self, config: GPT2Config, dtype: Any, rngs: nnx.Rngs):
        d = config.features
        options = {"dtype": dtype, "rngs": rngs}
        self.heads = config.heads
        self.norm1 = nnx.LayerNorm(d, epsilon=EPSILON, **options)
        self.qkv = nnx.Linear(d, 3 * d, **options)
        self.out = nnx.Linear(d, d, **options)
        self.norm2 = nnx.LayerNorm(d, epsilon=EPSILON, **options)
        self.up = nnx.Linear(d, 4 * d, **options)
        self.down = nnx.Linear(4 * d, d, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        qkv = self.qkv(self.norm1(x))
        split = (*x.shape[:2], self.heads, -1)
        q, k, v = (part.reshape(split) for part in jnp.split(qkv, 3, axis=-1))
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.reshape(x.shape))
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x)), approximate=True))


class FlaxGPT2(nnx.Module):
    """GPT-2 from Flax's own layers, with a list of blocks."""

    def __init__(self, config: GPT2Config, dtype: Any, rngs: nnx.Rngs):
        d = config.features
        self.tokens = nnx.Embed(config.vocabulary, d, dtype=dtype, rngs=rngs)
        self.positions = nnx.Embed(config.length, d, dtype=dtype, rngs=rngs)
        self.blocks = nnx.List([FlaxBlock(config, dtype, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(d, epsilon=EPSILON, dtype=dtype, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        places = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        x = self.tokens(tokens) + self.positions(places)[None]
        for block in self.blocks:
            x = block(x)
        return self.tokens.attend(self.norm(x))


def flax_params(model: GPT2, dtype: Any) -> tuple[Any, Any]:
    """Returns the structure and the parameters of a `FlaxGPT2` with our model's weights."""
    config, weights = model.config, plain(model)
    graph, params = nnx.split(
        nnx.eval_shape(lambda: FlaxGPT2(config, dtype, nnx.Rngs(0))), nnx.Param, ...
    )[:2]
    names = {"norm1": "ln_1", "qkv": "attn", "out": "proj", "norm2": "ln_2", "up": "fc",
             "down": "fc_proj"}  # fmt: skip

    def filled(path: Any, leaf: Any) -> jax.Array:
        words = [str(getattr(entry, "key", "")) for entry in path]
        if words[0] == "tokens":
            value = weights["wte"][: config.vocabulary]
        elif words[0] == "positions":
            value = weights["wpe"]
        else:
            layer = weights["ln_f"] if words[0] == "norm" else (
                weights["h"][int(words[1])][names[words[2]]]
            )  # fmt: skip
            value = layer["b" if "bias" in words else "w"]
        assert value.shape == leaf.shape, (words, value.shape, leaf.shape)
        return jnp.asarray(value)

    return graph, jax.tree_util.tree_map_with_path(filled, params)


def plain(model: GPT2) -> dict[str, Any]:
    """Returns GPT-2's weights as NumPy arrays with nanoGPT's names, and a list of blocks."""
    state = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    blocks, d = state["blocks"], model.config.features

    def one(k: int) -> dict[str, Any]:
        def norm(name: str) -> dict[str, Any]:
            return {"w": blocks[name]["scale"][k], "b": blocks[name]["bias"][k]}

        def linear(name: str) -> dict[str, Any]:
            kernel, bias = blocks[name]["kernel"][k], blocks[name]["bias"][k]
            flat = kernel.reshape(d, -1) if name == "qkv" else kernel
            return {"w": flat, "b": bias.reshape(-1)}

        return {
            "ln_1": norm("norm1"), "attn": linear("qkv"), "proj": linear("out"),
            "ln_2": norm("norm2"), "fc": linear("up"), "fc_proj": linear("down"),
        }  # fmt: skip

    return {
        "wte": state["tokens"],
        "wpe": state["positions"],
        "h": [one(k) for k in range(model.config.layers)],
        "ln_f": {"w": state["norm"]["scale"], "b": state["norm"]["bias"]},
    }


def nano(params: Any, tokens: jax.Array, config: GPT2Config, dtype: Any) -> jax.Array:
    """Computes GPT-2's logits as nanoGPT does, (batch, length, rows of the token table).

    Its vocabulary is padded as ours is; the columns of the padding are cut off by `nano_loss`.
    """

    def linear(x: jax.Array, layer: Any) -> jax.Array:
        return x @ layer["w"].astype(dtype) + layer["b"].astype(dtype)

    def norm(x: jax.Array, layer: Any) -> jax.Array:
        y = x.astype(jnp.float32)
        mean = y.mean(-1, keepdims=True)
        y = (y - mean) * jax.lax.rsqrt(y.var(-1, keepdims=True) + EPSILON)
        return (y * layer["w"] + layer["b"]).astype(dtype)

    b, t = tokens.shape
    d, heads = config.features, config.heads
    causal = jnp.tril(jnp.ones((t, t), bool))
    x = (params["wte"][tokens] + params["wpe"][:t]).astype(dtype)
    for block in params["h"]:
        q, k, v = jnp.split(linear(norm(x, block["ln_1"]), block["attn"]), 3, axis=-1)
        q, k, v = (a.reshape(b, t, heads, d // heads).transpose(0, 2, 1, 3) for a in (q, k, v))
        scores = (q @ k.transpose(0, 1, 3, 2)) * (1 / (d // heads) ** 0.5)
        scores = jnp.where(causal, scores, -jnp.inf)
        y = jax.nn.softmax(scores, axis=-1) @ v
        x = x + linear(y.transpose(0, 2, 1, 3).reshape(b, t, d), block["proj"])
        inner = jax.nn.gelu(linear(norm(x, block["ln_2"]), block["fc"]), approximate=True)
        x = x + linear(inner, block["fc_proj"])
    return norm(x, params["ln_f"]) @ params["wte"].astype(dtype).T


def nano_loss(
    params: Any, tokens: jax.Array, targets: jax.Array, config: GPT2Config, dtype: Any
) -> jax.Array:
    """Computes the mean loss of GPT-2 as nanoGPT does."""
    logits = nano(params, tokens, config, dtype)[..., : config.vocabulary]
    return cross_entropy(logits, targets)
