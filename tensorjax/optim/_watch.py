"""Cuts of the late stage on trial: a cut after which the loss is near chance again is undone."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Stands for what is found later. NaN or Inf would stop training in JAX's modes that look for them.
UNKNOWN = -1e30
# Chance is near the first loss of the training, or below where its first outputs were large. A cut
# that gives back so much of what was gained since is a collapse; less is for the training after it
# to make good, or for the targets to weigh.
GIVEN_BACK = 0.5
# A gain by less than this share of the loss says nothing of chance: the training may have begun
# with a trained model.
LEAST_GAIN = 0.2
TRIAL = 8  # losses, where those of minibatches are too noisy to tell at once


class Watch(NamedTuple):
    """Memory of the last cut, and of the cuts that were undone.

    Attributes:
      start: the first loss; −1e30 before.
      last: the last loss.
      noise: moving average of squared differences of successive losses, weighted by age.
      tried: losses seen since the cut that is on trial; −1 if there is none.
      total: their sum.
      most: gates that may die in one cut; 0 where no cut is tried any more.
      refused: cuts undone.
      size: of the layers after the cut that was undone last.
      loss: after that cut.
      saved: a tree like the parameters, of gates only: values of those on trial, else zero.
    """

    start: Any
    last: Any
    noise: Any
    tried: Any
    total: Any
    most: Any
    refused: Any
    size: Any
    loss: Any
    saved: Any


class Verdict(NamedTuple):
    """Whether a step undoes the cut on trial, waits for more losses, may cut, may press on size."""

    undo: jax.Array
    waits: jax.Array
    most: jax.Array
    presses: jax.Array


def fresh(saved: Any, gates: int) -> Watch:
    """Nothing seen yet; every field an array of its own, so that all can be donated."""

    def number(x: float) -> jax.Array:
        return jnp.array(x, jnp.float32)

    none = jnp.array(-1, jnp.int32)
    counts = number(float(gates)), jnp.zeros((), jnp.int32)
    return Watch(
        number(UNKNOWN), number(UNKNOWN), number(0.0), none, number(0.0), *counts, number(0.0),
        number(0.0), saved,
    )  # fmt: skip


def limit(watch: Any, best: Any) -> Any:
    """The loss above which the model has collapsed; 1e30 where chance is not known."""
    gain = watch.start - best
    known = (watch.start > UNKNOWN / 10) & (best > UNKNOWN / 10)
    known &= gain > LEAST_GAIN * jnp.abs(best)
    return jnp.where(known, best + GIVEN_BACK * gain, 1e30)


def seen(watch: Watch, loss: jax.Array, finite: jax.Array, decay: jax.Array) -> Watch:
    """The watch after one more loss."""
    first, tries = watch.start <= UNKNOWN / 10, finite & (watch.tried >= 0)
    change = jnp.where(first, 0.0, loss - watch.last)
    return watch._replace(
        start=jnp.where(first & finite, loss, watch.start),
        last=jnp.where(finite, loss, watch.last),
        noise=jnp.where(finite, decay * watch.noise + (1 - decay) * change**2 / 2, watch.noise),
        tried=watch.tried + tries.astype(jnp.int32),
        total=watch.total + jnp.where(tries, loss, 0.0),
    )


def judged(
    watch: Watch, best: Any, mass: Any, size: Any, count: jax.Array
) -> tuple[Watch, Verdict]:
    """Decides on the cut on trial.

    Args:
      watch: with this step's loss.
      best: least average loss of the late stage.
      mass: weight of the moving averages.
      size: of the layers, with the cut.
      count: gates on trial.
    """
    top = limit(watch, best)
    trial, number = watch.tried > 0, jnp.maximum(watch.tried, 1).astype(jnp.float32)
    mean = watch.total / number
    margin = 2 * jnp.sqrt(watch.noise / jnp.maximum(mass, 1e-6) / number)
    last = watch.tried >= TRIAL
    undo = trial & (jnp.where(last, mean, mean - margin) > top)
    waits = (watch.tried == 0) | (trial & ~undo & ~last & (mean + margin > top))
    most = jnp.where(undo, jnp.floor(count / 2), watch.most)
    watch = watch._replace(
        tried=jnp.where(waits, watch.tried, -1),
        most=most,
        refused=watch.refused + undo.astype(jnp.int32),
        size=jnp.where(undo, size, watch.size),
        loss=jnp.where(undo, mean, watch.loss),
    )
    # Nor is anything cut where the loss is that high already, whatever the reason.
    fine = ~undo & ~waits & (watch.last <= top)
    noise = 2 * jnp.sqrt(watch.noise / jnp.maximum(mass, 1e-6))
    presses = (most >= 1) & (watch.last - noise <= top)
    return watch, Verdict(undo, waits, jnp.where(fine, most, 0.0), presses)
