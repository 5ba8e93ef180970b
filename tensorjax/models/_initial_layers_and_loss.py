"""Initial layers of the models, from specs and of given spread, and their cross-entropy loss."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tensorjax.nn import Spec
from tensorjax.parallel import Single


def with_spread(layer: Any, spread: float) -> Any:
    """Rescales an initial embedding layer: entries of a given standard deviation.

    Dense and factorised tables are drawn with different variances; a model has to begin the same.
    All factors take an equal part, so that none of them is much smaller than the others.
    """
    dense = isinstance(layer, nnx.Embed)
    present = layer.features**-0.5 if dense else 1.0  # as flax and tensorjax.nn draw them
    return _rescaled(layer, spread / present)


def fresh_linear(spec: Spec, in_features: int, out_features: int, **options: Any) -> Any:
    """Builds a model's initial linear layer from a spec, weights of variance 1 / in_features."""
    layer = spec.linear(in_features, out_features, **options)
    return with_linear_spread(layer, in_features**-0.5)


def with_linear_spread(layer: Any, spread: float) -> Any:
    """Rescales an initial linear layer: weights of a given standard deviation."""
    return _rescaled(layer, spread * (layer.in_features + layer.out_features) ** 0.5)


def _rescaled(layer: Any, factor: float) -> Any:
    """Multiplies an initial layer's weight by a factor, spread evenly over its parameters."""
    parts = [getattr(layer, name, ()) for name in ("embedding", "cores", "core", "factors")]
    params = jax.tree.leaves(parts, is_leaf=lambda node: isinstance(node, nnx.Param))
    for param in params:
        value = param[...]
        param[...] = value * jnp.asarray(factor ** (1 / len(params)), value.dtype)
    return layer


def cross_entropy(
    logits: jax.Array, targets: jax.Array, weights: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Computes a model's cross-entropy loss, summed with weights, and the sum of the weights.

    Args:
      logits: (…, classes).
      targets: integers (…): −100 counts for none, others outside [0, classes) make the sum NaN.
      weights: (…), or None for all ones.
    """
    weights = checked_weights(targets, weights, "rows of logits", logits.shape[:-1])
    return Single().cross_entropy(logits, targets, weights, logits.shape[-1])


def checked_weights(
    targets: jax.Array, weights: jax.Array | None, name: str, shape: tuple[int, ...]
) -> jax.Array:
    """Returns the targets' weights in the loss, ones if None; ValueError for wrong shapes."""
    weights = jnp.ones(targets.shape, jnp.float32) if weights is None else jnp.asarray(weights)
    for what, value in (("targets", targets), ("weights", weights)):
        if value.shape != shape:
            raise ValueError(f"{what}: expected the shape of {name}, {shape}, got {value.shape}")
    return weights
