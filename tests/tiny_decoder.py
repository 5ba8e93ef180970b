"""A decoder of two blocks, written once on local blocks: for the tests of `parallel`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from tensorjax.models.gpt2._attention import attend
from tensorjax.models.gpt2._blocks import gelu
from tensorjax.parallel import Layout

# Programs run once: six times as quick to compile, and the collectives are the same.
QUICKLY: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
}

AXES: dict[str, Any] = {
    "tokens": ("vocab", "embed"),
    "positions": ("position", "embed"),
    "last": {"scale": ("embed",), "bias": ("embed",)},
    "blocks": {
        "scale1": ("layer", "embed"),
        "bias1": ("layer", "embed"),
        "qkv": ("layer", "embed", "qkv", "heads"),
        "qkv_bias": ("layer", "qkv", "heads"),
        "out": ("layer", "heads", "embed"),
        "out_bias": ("layer", "embed"),
        "scale2": ("layer", "embed"),
        "bias2": ("layer", "embed"),
        "up": ("layer", "embed", "mlp"),
        "up_bias": ("layer", "mlp"),
        "down": ("layer", "mlp", "embed"),
        "down_bias": ("layer", "embed"),
    },
}


def is_axes(node: Any) -> bool:
    return isinstance(node, tuple)


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes that fit all meshes of the tests; 61 words are padded."""

    layers: int = 2
    features: int = 32
    heads: int = 8
    vocabulary: int = 61
    padded: int = 64
    length: int = 8
    remat: bool = False


def init(config: Config, seed: int = 0) -> Any:
    """Random parameters, those of padding included: they must not matter."""
    rng = np.random.default_rng(seed)
    sizes = {
        "vocab": config.padded,
        "embed": config.features,
        "position": config.length,
        "layer": config.layers,
        "qkv": 3,
        "heads": config.features,
        "mlp": 4 * config.features,
    }

    def draw(axes: tuple[str, ...]) -> jax.Array:
        return jnp.asarray(0.3 * rng.normal(size=[sizes[a] for a in axes]), jnp.float32)

    return jax.tree.map(draw, AXES, is_leaf=is_axes)


def data(config: Config, batch: int, seed: int = 1) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens, targets and weights, some of them zero."""
    rng = np.random.default_rng(seed)
    ids, targets = (
        jnp.asarray(rng.integers(0, config.vocabulary, (batch, config.length)), jnp.int32)
        for _ in range(2)
    )
    weights = rng.random((batch, config.length)) * (rng.random((batch, config.length)) > 0.2)
    return ids, targets, jnp.asarray(weights, jnp.float32)


def specs(layout: Layout) -> Any:
    return jax.tree.map(layout.spec, AXES, is_leaf=is_axes)


def loss(layout: Layout, config: Config, *, parts: bool = False) -> Callable[..., Any]:
    """The mean loss as a function of global arrays; with ``parts``, also what leads to it."""

    def block(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        y = layout.norm(x, w["scale1"], w["bias1"], 1e-5)
        y = layout.column(y, w["qkv"], w["qkv_bias"])
        count = layout.local("heads", config.heads)
        q, k, v = (
            y[..., i, :].reshape(*y.shape[:2], count, config.features // config.heads)
            for i in range(3)
        )
        y = attend(q, k, v, None, is_causal=True)
        x = x + layout.row(y.reshape(*y.shape[:2], -1), w["out"], w["out_bias"])
        y = layout.norm(x, w["scale2"], w["bias2"], 1e-5)
        y = gelu(layout.column(y, w["up"], w["up_bias"]))
        return x + layout.row(y, w["down"], w["down_bias"]), None

    def local(params: Any, ids: jax.Array, targets: jax.Array, weights: jax.Array) -> Any:
        x = layout.embed(params["tokens"], ids)
        places = layout.positions(params["positions"], config.length)
        x = first = x + jnp.broadcast_to(places, x.shape)
        body = jax.checkpoint(block) if config.remat else block
        x, _ = jax.lax.scan(body, x, params["blocks"])
        x = layout.norm(x, params["last"]["scale"], params["last"]["bias"], 1e-5)
        logits = layout.logits(x, params["tokens"])
        total, count = layout.cross_entropy(logits, targets, weights, config.vocabulary)
        if not parts:
            return total / count
        words = layout.gather(logits, config.vocabulary)
        return total / count, {"first": first, "last": x, "logits": words}

    tokens, x, scalar = layout.data_spec(), layout.x_spec(), PartitionSpec()
    words = layout.data_spec("batch", "length", "words")
    out = (scalar, {"first": x, "last": x, "logits": words}) if parts else scalar
    return layout.over(local, (specs(layout), tokens, tokens, tokens), out)
