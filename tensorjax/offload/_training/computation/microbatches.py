"""Microbatches of a batch, and the mean of their losses, which may have weights."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def cut(batch: Any, parts: int) -> list[Any]:
    """Splits a batch into equal microbatches along the first axis of every array."""
    leaves = jax.tree.leaves(batch)
    wrong = [x for x in leaves if not hasattr(x, "shape")]
    if wrong:
        raise TypeError(
            f"batch: expected arrays, got {type(wrong[0]).__name__}; turn lists into arrays with "
            "np.asarray"
        )
    sizes = {np.shape(x)[:1] for x in leaves}
    if len(sizes) != 1 or sizes & {(), (0,)} or next(iter(sizes))[0] % parts:
        raise ValueError(
            f"batch: expected arrays whose first axes agree and divide by {parts} microbatches, "
            f"not empty, got shapes {[np.shape(x) for x in leaves]}"
        )
    size = next(iter(sizes))[0] // parts
    return [jax.tree.map(lambda x, m=m: x[m * size : (m + 1) * size], batch) for m in range(parts)]


def split_loss(result: Any) -> tuple[jax.Array, jax.Array | None]:
    """Splits the last layer's result for a microbatch into loss and weight (None for a mean).

    Raises:
      TypeError: another kind, or not floating.
      ValueError: not one number.
    """
    loss: Any = result
    weight: Any = None
    if isinstance(result, tuple) and len(result) == 2:
        loss, weight = result
    if isinstance(weight, int | float):
        weight = jnp.asarray(weight)
    for x in (loss,) if weight is None else (loss, weight):
        if not isinstance(x, jax.Array) or jnp.shape(x) != ():
            got = f"shape {x.shape}" if isinstance(x, jax.Array) else type(x).__name__
            raise ValueError(
                f"layers: expected the last one to return a scalar, got {got}; a weighted loss is "
                "a pair of scalars, its sum and its weight"
            )
    if not jnp.issubdtype(loss.dtype, jnp.floating):
        raise TypeError(
            f"layers: expected the last one to return a floating number, got {loss.dtype}"
        )
    return loss, weight


def mean_loss(results: Sequence[Any]) -> float:
    """Computes the loss of a batch from the last layer's results for the microbatches."""
    losses = [split_loss(result) for result in results]
    total = sum(float(loss) for loss, _ in losses)
    weight = sum(1.0 if weight is None else float(weight) for _, weight in losses)
    return total / weight if weight else 0.0
