"""Cross-entropy of logits and integer targets, of which −100 are ignored."""

import jax
import jax.numpy as jnp

from tensorjax.parallel import Single


def cross_entropy(
    logits: jax.Array, targets: jax.Array, weights: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Computes the weighted sum of cross-entropy losses, and the sum of the weights.

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
    """Returns the loss weights of targets, ones if None; ValueError for wrong shapes."""
    weights = jnp.ones(targets.shape, jnp.float32) if weights is None else jnp.asarray(weights)
    for what, value in (("targets", targets), ("weights", weights)):
        if value.shape != shape:
            raise ValueError(f"{what}: expected the shape of {name}, {shape}, got {value.shape}")
    return weights
