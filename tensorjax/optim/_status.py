"""Status of rank-adaptive training: targets met or not, and what to change."""

import dataclasses
import types
from typing import Any, Literal

import jax
import numpy as np

from tensorjax import _check
from tensorjax._typing import PyTree
from tensorjax.optim._options_and_state import RankAdaptiveState, unknown
from tensorjax.optim._trial_cuts import GIVEN_UP, NUMBERS, limit

Verdict = Literal["running", "converged", "infeasible", "collapsed"]
# A fall of the smoothed loss by less than this share of itself is no progress.
PROGRESS = 1e-2
# A loss that fell by less than this share of chance, which is known to a few per cent, fell not.
UNLEARNT = 3e-2
# Fewer losses that are NaN or Inf than this are left out, with a word, whatever the share.
LOST = 10


@dataclasses.dataclass(frozen=True)
class Status:
    """Status of a rank-adaptive training: size, loss, targets met or not, and advice.

    Attributes:
      stage: "early" or "late"; of a run to a target size, "late" from its first cuts on.
      count: updates so far.
      size: of the tensorised layers, in the units of the measure.
      loss: moving average, without bias; NaN before the first finite loss.
      size_target: S₀; NaN where it is not known yet.
      loss_target: L₀; likewise.
      skipped: losses that were NaN or Inf, and were left out.
      status: "running"; "converged", both targets are met, or of a run to a target size this one
        (``advice`` says where the loss has stayed far above that of the first cut); "infeasible",
        they are not, and either the size of all ranks one is above S₀, or for ``patience`` updates
        neither loss nor size has made progress, or every smaller size that was tried brought the
        loss near chance and was undone; or "collapsed", the loss is near chance, where training
        began, or most losses were NaN or Inf.
      advice: what to do, or "".

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from tensorjax import optim
      >>> params = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": [jnp.ones(3)]}
      >>> optim.status(optim.rank_adaptive(optax.sgd(0.1)).init(params)).stage
      'early'
    """

    stage: Literal["early", "late"]
    count: int
    size: float
    loss: float
    size_target: float
    loss_target: float
    skipped: int
    status: Verdict
    advice: str

    def __str__(self) -> str:
        text = f"{self.stage} stage, {self.count} updates: loss {self.loss:.4g}"
        if self.stage == "late":
            text += f" (target {self.loss_target:.4g})"
        text += f", size {self.size:.6g}"
        if self.stage == "late":
            text += f" (target {self.size_target:.6g})"
        if self.skipped:
            text += f", {self.skipped} losses not finite"
        return f"{text}: {self.status}" + (f"; {self.advice}" if self.advice else "")


def status(state: PyTree, *, patience: int = 200) -> Status:
    """Reads status and advice from a rank-adaptive optimiser's state.

    Args:
      state: a state that holds that of `rank_adaptive` anywhere in it: of a chain, of
        `optax.MultiSteps`, or ``optimizer.opt_state`` of an nnx.Optimizer.
      patience: updates of the late stage without progress after which targets that are not met
        count as infeasible. Progress is a smaller size, or a moving average of the loss that fell
        by 1 %.

    Returns:
      `Status`; its text says the same in one line.

    Raises:
      ValueError: no such state, several, or one with a leading axis (of vmap).
      TypeError: traced states.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from tensorjax import optim
      >>> params = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": [jnp.ones(3)]}
      >>> print(optim.status(optim.rank_adaptive(optax.sgd(0.1)).init(params)))
      early stage, 0 updates: loss nan, size 27: running

    Source: ours.
    """
    found = _states(state)
    if len(found) != 1:
        raise ValueError(
            f"state: expected one state of optim.rank_adaptive, got {len(found)}; pass the state "
            "that its init or update returned, or one that holds it"
        )
    values = {name: _number(name, value) for name, value in found[0]._asdict().items()}
    loss = values["loss"] / values["mass"] if values["mass"] > 0 else float("nan")
    size_target, loss_target = (
        float("nan") if unknown(values[name]) else values[name]
        for name in ("size_target", "loss_target")
    )
    late, size = bool(values["late"]), values["size"]
    watch = found[0].watch
    lost = _not_finite(values)
    if lost:
        verdict, advice = "collapsed", lost
    elif values["by"]:
        verdict, advice = _towards(values, watch, loss, patience)
    elif late:
        verdict, advice = _late(values, watch, loss, patience)
    else:
        verdict, advice = "running", _unpruned(values, patience)
    if values["skipped"] and not advice:
        advice = "look for the steps whose loss is NaN or Inf"
    return Status(
        "late" if late else "early",
        int(values["count"]),
        size,
        loss,
        size_target,
        loss_target,
        int(values["skipped"]),
        verdict,
        advice,
    )


def _late(values: dict[str, float], watch: Any, loss: float, patience: int) -> tuple[Verdict, str]:
    """Derives status and advice in the late stage of CoMERA's two-stage rank-adaptive training."""
    fits = values["size"] <= values["size_target"]
    learnt = loss <= values["loss_target"]
    refused = _refused(watch)
    if _collapsed(watch, values, loss):
        return "collapsed", _collapse(values, watch, loss, "lower late_size_weight and "
                                      "late_threshold")  # fmt: skip
    if fits and learnt:
        return "converged", ""
    if refused:
        final, advice = refused
        return ("infeasible" if final else "running"), advice
    if values["size_target"] < values["least"] or values["stalled"] >= patience:
        return "infeasible", _advice(values, loss, fits, learnt)
    if fits and _risen(watch, values, loss):
        # Where training began with a trained model, chance is not known: no cut was undone.
        return "running", _high(values, loss)
    return "running", ""


def _towards(
    values: dict[str, float], watch: Any, loss: float, patience: int
) -> tuple[Verdict, str]:
    """Derives status and advice of a rank-adaptive training towards a target size."""
    refused = _refused(watch)
    size, target, by, count = (values[k] for k in ("size", "size_target", "by", "count"))
    if _collapsed(watch, values, loss):
        return "collapsed", _collapse(values, watch, loss, "give more updates (by)")
    if values["full"] <= target and values["met"]:
        return "converged", (
            f"nothing to prune: the layers began at size {values['full']:.6g}, within the target "
            f"{target:.6g}; begin with larger ranks, which leaves a choice, or compress more"
        )
    if values["met"]:
        if _risen(watch, values, loss):
            return "running", _high(values, loss)
        chance = _unlearnt(watch, loss)
        if count >= by and chance is not None:
            return "collapsed", (
                f"the loss is still {loss:.4g}, about that of a model that has learnt nothing, "
                f"{chance:.4g}, whatever its size: look at the learning rate and at what the inner "
                "optimiser does"
            )
        worse = count >= by and _lost(watch, values, loss)
        return ("converged" if count >= by else "running"), _high(values, loss) if worse else ""
    if values["least"] > target:
        return "infeasible", (
            f"the size target {target:.6g} is below {values['least']:.6g}, the size of all ranks "
            "one, of frozen layers as they are: let more layers train, or compress less "
            "(compress_to, size)"
        )
    if refused and (refused[0] or count >= by):
        late = values["count"] >= by + patience
        return ("infeasible" if refused[0] or late else "running"), (
            f"{refused[1]}, less compression (compress_to, size) or more updates (by); if training "
            "began with a trained model, give the loss of an untrained one as chance"
        )
    if count > by + patience:
        return "infeasible", (
            f"at size {size:.6g} after update {by:.6g}, above {target:.6g}: no update has moved "
            "the gates and cores of a layer that may be cut; look at the learning rate, and at "
            "what the inner optimiser freezes"
        )
    return "running", ""


def _not_finite(values: dict[str, float]) -> str:
    """Returns, for the status, a warning if most losses of a training were NaN or Inf, or ""."""
    skipped, count = int(values["skipped"]), int(values["count"])
    if skipped < LOST or 2 * skipped <= count:
        return ""
    return (
        f"{skipped} of {count} losses were NaN or Inf: go back to a checkpoint, and look at the "
        "learning rate and at what the inner optimiser does"
    )


def _unpruned(values: dict[str, float], patience: int) -> str:
    """Returns, for the status, advice if a training has pruned nothing so far, or ""."""
    if values["size"] < values["full"] or values["count"] < patience:
        return ""
    return (
        f"nothing was pruned: the smallest gate is {values['smallest']:.3g}, and gates die at "
        "threshold; give compress_to and by, which reach a size with any inner optimiser, or raise "
        "size_weight, or the learning rate of the gates (optax.partition with optim.labels)"
    )


def _collapse(values: dict[str, float], watch: Any, loss: float, less: str) -> str:
    begun = "" if _number("given", watch.given) else (
        "; if training began with a trained model, that is not chance: pass chance="
    )  # fmt: skip
    return (
        f"the loss {_number('last', watch.last):.4g} (average {loss:.4g}) is near that of the "
        f"beginning, from a best of {values['best']:.4g}: go back to a checkpoint, and allow a "
        f"larger size, or {less}{begun}"
    )


def _high(values: dict[str, float], loss: float) -> str:
    return (
        f"the size target is met at a loss of {loss:.4g}, above {values['loss_target']:.4g} and "
        f"{values['best']:.4g}, the best of this stage: if it does not fall again, go back "
        "to a checkpoint, and allow a larger size"
    )


def _collapsed(watch: Any, values: dict[str, float], loss: float) -> bool:
    seen = types.SimpleNamespace(**{k: _number(k, getattr(watch, k)) for k in NUMBERS})
    top = float(limit(seen))
    margin = 2 * (seen.noise / max(values["mass"], 1e-6)) ** 0.5
    # The average lags behind a cut, the last loss is noisy.
    return _recent(watch, loss) > top or seen.last - margin > top


def _recent(watch: Any, loss: float) -> float:
    """Returns, for the status, the average loss, or less where the training has left it behind."""
    return min(loss, max(_number(name, getattr(watch, name)) for name in ("quick", "last")))


def _risen(watch: Any, values: dict[str, float], loss: float) -> bool:
    """Whether, for the status, a training's average loss is above its target and best value."""
    noise = 4 * (_number("noise", watch.noise) / max(values["mass"], 1e-6)) ** 0.5
    return loss > max(values["loss_target"], values["best"]) + noise


def _lost(watch: Any, values: dict[str, float], loss: float) -> bool:
    """Whether, for the status, rank cuts have raised a training's loss by half or more.

    The noise is that of averages over some hundred updates, a tenth of that of single losses.
    """
    noise = 0.4 * (_number("noise", watch.noise) / max(values["mass"], 1e-6)) ** 0.5
    return loss > 1.5 * values["loss_target"] + noise


def _unlearnt(watch: Any, loss: float) -> float | None:
    """Returns, for the status, an untrained model's loss if training has not fallen below it."""
    chance = _number("first", watch.first)
    if not _number("given", watch.given):
        chance = min(chance, _number("start", watch.start))
    learnt = _recent(watch, loss) < chance - UNLEARNT * abs(chance)
    return None if unknown(chance) or learnt else chance


def _refused(watch: Any) -> tuple[bool, str] | None:
    """Returns, for the status, if pruning has given up, and a message on undone rank cuts."""
    if not _number("refused", watch.refused):
        return None
    count, size, loss, most = (
        _number(name, getattr(watch, name)) for name in ("refused", "size", "loss", "most")
    )
    return most < GIVEN_UP, (
        f"{int(count)} cuts were undone, the last to size {size:.6g}, for the loss rose to "
        f"{loss:.4g}, near that of the beginning: allow a larger size"
    )


def _advice(values: dict[str, float], loss: float, fits: bool, learnt: bool) -> str:
    if values["size_target"] < values["least"]:
        return (
            f"the size target {values['size_target']:.6g} is below {values['least']:.6g}, the size "
            "of all ranks one (of frozen layers as they are): allow a larger size, or whole layers "
            "to go (keep_one=False)"
        )
    stuck = f"for {int(values['stalled'])} updates"
    if fits:
        return (
            f"at size {values['size']:.6g} the loss has stayed at {loss:.4g} {stuck}, above "
            f"{values['loss_target']:.4g}: allow a higher loss or a larger size, or train faster"
        )
    if learnt:
        return (
            f"the size has stayed at {values['size']:.6g} {stuck}, above "
            f"{values['size_target']:.6g}: raise late_size_weight, or the learning rate of the "
            "gates"
        )
    return (
        f"neither target is met, and nothing has moved {stuck}: allow a higher loss or a larger "
        "size, or weigh one of them more (loss_weight, late_size_weight)"
    )


def _states(tree: Any) -> list[RankAdaptiveState]:
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, RankAdaptiveState))
    return [node for node in nodes if isinstance(node, RankAdaptiveState)]


def _number(name: str, value: Any) -> float:
    if name in ("inner", "rests", "watch", "worth", "saved"):
        return 0.0
    (leaf,) = jax.tree.leaves(value)  # a flax variable is a tree of one leaf
    if _check.is_traced(leaf):
        raise TypeError("status: expected a concrete state; call it between steps, outside jit")
    if np.ndim(leaf):
        raise ValueError(
            f"state: expected scalars, got {name} of shape {np.shape(leaf)}; of a vmapped state "
            "take one first, jax.tree.map(lambda x: x[0], state)"
        )
    return float(leaf)
