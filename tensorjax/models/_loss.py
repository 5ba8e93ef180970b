"""Cross entropy of logits and integer targets, of which -100 are ignored."""

import jax
import jax.numpy as jnp

from tensorjax.parallel import Single


def cross_entropy(
    logits: jax.Array, targets: jax.Array, weights: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Returns a model's weighted sum of cross-entropy losses, and the sum of the weights.

    Args:
      logits: (…, classes).
      targets: integers (…): −100 counts for none, others outside [0, classes) make the sum NaN.
      weights: (…), or None for all ones.
    """
    weights = jnp.ones(targets.shape, jnp.float32) if weights is None else jnp.asarray(weights)
    for name, value in (("targets", targets), ("weights", weights)):
        if value.shape != logits.shape[:-1]:
            raise ValueError(
                f"{name}: expected shape {logits.shape[:-1]}, one for every row of logits, got "
                f"{value.shape}"
            )
    return Single().cross_entropy(logits, targets, weights, logits.shape[-1])
