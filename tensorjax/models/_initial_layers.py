"""Initial layers of the models: linear ones from specs, and the spread of their weights."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tensorjax.nn import Spec


def with_spread(layer: Any, spread: float) -> Any:
    """Rescales a new embedding layer so that its entries have a given standard deviation.

    Dense and factorised tables are drawn with different variances; a model has to begin the same.
    All factors take an equal part, so that none of them is much smaller than the others.
    """
    dense = isinstance(layer, nnx.Embed)
    present = layer.features**-0.5 if dense else 1.0  # as flax and tensorjax.nn draw them
    return _rescaled(layer, spread / present)


def fresh_linear(spec: Spec, in_features: int, out_features: int, **options: Any) -> Any:
    """Builds a model's new linear layer from a spec, with weights of variance 1 / in_features."""
    layer = spec.linear(in_features, out_features, **options)
    return with_linear_spread(layer, in_features**-0.5)


def with_linear_spread(layer: Any, spread: float) -> Any:
    """Rescales a new linear layer so that its weights have a given standard deviation."""
    return _rescaled(layer, spread * (layer.in_features + layer.out_features) ** 0.5)


def _rescaled(layer: Any, factor: float) -> Any:
    """Multiplies a layer's weight by a factor, spread evenly over its parameters."""
    parts = [getattr(layer, name, ()) for name in ("embedding", "cores", "core", "factors")]
    params = jax.tree.leaves(parts, is_leaf=lambda node: isinstance(node, nnx.Param))
    for param in params:
        value = param[...]
        param[...] = value * jnp.asarray(factor ** (1 / len(params)), value.dtype)
    return layer
