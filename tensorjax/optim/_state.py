"""State of the rank-adaptive optimiser."""

from typing import Any, NamedTuple

from tensorjax.optim._trial_cuts import UNKNOWN


def unknown(x: Any) -> Any:
    """Whether a loss or size target in the rank-adaptive optimiser's state is still unset."""
    return x <= UNKNOWN / 10


class RankAdaptiveState(NamedTuple):
    """State of the optimiser `rank_adaptive`: counters, targets, and the inner optimiser's state.

    Attributes:
      count: updates so far.
      late: whether the late stage has begun.
      loss: sum of losses, weighted by age.
      mass: sum of those weights; ``loss / mass`` is the moving average without bias.
      size: after the last update, in the units of the measure.
      least: size where every bond has rank one, or 0 if whole layers may go; frozen layers are
        counted as they are.
      loss_target: L₀; −1e30 before the late stage, if it is found then.
      size_target: S₀; likewise.
      scale: that S, S₀ and Ŝ are divided by.
      best: least moving average of the loss in the late stage, when it last made progress; −1e30
        before.
      stalled: updates since loss or size last made progress in the late stage.
      skipped: losses that were NaN or Inf.
      rests: for each core and gate, whether it stayed as it was when anything last moved.
      watch: the loss of a model that has learnt nothing, as estimated from the first losses, and
        cuts of the late stage on trial and undone.
      worth: with a target only, importance of every gate, in dicts by the keys of its path.
      full: size that the training began with.
      smallest: least gate that is not zero.
      by: update by which a target is met; 0 in the paper's two stages.
      tick: number of the last cut or change of basis on the way there.
      met: whether the target is met.
      inner: state of the optimiser inside.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from tensorjax import optim
      >>> params = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": [jnp.ones(3)]}
      >>> state = optim.rank_adaptive(optax.adam(1e-2), size=18, by=4).init(params)
      >>> int(state.count), float(state.full), int(state.by), bool(state.met)
      (0, 27.0, 4, False)
    """

    count: Any
    late: Any
    loss: Any
    mass: Any
    size: Any
    least: Any
    loss_target: Any
    size_target: Any
    scale: Any
    best: Any
    stalled: Any
    skipped: Any
    rests: Any
    watch: Any
    worth: Any
    full: Any
    smallest: Any
    by: Any
    tick: Any
    met: Any
    inner: Any
