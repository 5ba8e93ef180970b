"""One update of the rank-adaptive optimiser that cuts ranks down to a target size.

Nothing presses on the gates: most updates are those of the inner optimiser, with dead indices held
at zero. Only those that cut, change a basis or judge a cut do more, under one `jax.lax.cond`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax.optim._explicit_sharding import like
from tensorjax.optim._prune import Gates
from tensorjax.optim._rank_adaptive_options import Options, Schedule
from tensorjax.optim._size_polynomial import polynomial
from tensorjax.optim._state import RankAdaptiveState, unknown
from tensorjax.optim._target.basis_change import changed, moments_of
from tensorjax.optim._target.target_cuts import least_important
from tensorjax.optim._tensorised_leaves import Layout
from tensorjax.optim._update import (
    Decision,
    Step,
    applied,
    joined,
    observed,
    on_trial,
    parts_of,
    plus,
    recorded,
    same_dtype,
    seen_layout,
    staged,
    watched,
)

Descend = Callable[[Any], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class TargetStep(Step):
    """Update that may cut ranks to a target size; see `Step`."""

    schedule: Schedule
    tick: Any

    def _doomed(self, flat: jax.Array, limit: jax.Array, frozen: jax.Array) -> jax.Array:
        state, most = self.state, self._most()
        assert most is not None  # there is a late stage
        cuts = (self.tick > state.tick) & (self.tick % 2 == 1)
        worth = joined(self.layout, self.gates, state.worth)
        active = ~jnp.all(frozen)  # between the steps of optax.MultiSteps nothing is known of that
        return least_important(
            self.gates, self.polynomial, worth, self.live, frozen,
            budget=self.schedule.budget(state.count, state.full, state.size_target),
            gate_size=self.gate_size, most=jnp.where(cuts & active, most, 0.0),
        )  # fmt: skip

    @property
    def gate_size(self) -> float:
        """Size of one live gate: 1 where `compress_to` counts all parameters, else 0."""
        return float(self.options.compress_to is not None)

    def turns(self, decision: Decision) -> jax.Array:
        """Whether bases change after a decision; while a cut may be undone they stay."""
        even = (self.tick > self.state.tick) & (self.tick % 2 == 0)
        return even & (decision.watch.tried < 0)

    def progress(self, decision: Decision) -> tuple[jax.Array, jax.Array]:
        """Returns (whether the target is met after a decision, the tick that was reached)."""
        whole = decision.size + self.gate_size * jnp.sum(~decision.dead)
        met = (whole <= self.state.size_target) & (decision.watch.tried < 0)
        # What nothing has moved yet is not known to be free: the tick is then to come again.
        known = ~jnp.all(decision.rests)
        tick = jnp.where(known, jnp.maximum(self.tick, self.state.tick), self.state.tick)
        return met, tick


def towards_target(
    options: Options,
    updates: Any,
    params: Any,
    state: RankAdaptiveState,
    value: Any,
    descend: Descend,
) -> tuple[Any, RankAdaptiveState]:
    """Returns moves and state of one update towards the target size.

    Args:
      options: with a schedule.
      updates: gradients.
      params: parameters.
      state: before.
      value: the loss.
      descend: from gradients to moves and state of the inner transformation.
    """
    layout, leaves = seen_layout(updates, params)
    schedule = options.schedule
    assert schedule is not None
    seen, finite = observed(options, state, value)
    state = staged(options, seen, finite, state.size)
    began = state.late & unknown(state.best)
    pulls, structure = jax.tree.flatten(updates)
    watch = watched(options, layout, leaves, pulls, state, value, finite, state.late)
    state = state._replace(watch=watch, worth=_worth(layout, state.worth, leaves, pulls))
    moves, inner = descend(jax.tree.unflatten(structure, _of_living(layout, leaves, pulls)))
    tick = schedule.tick(state.count)
    due = state.late & ~state.met & (tick > state.tick) | (watch.tried >= 0)
    steps = jax.tree.leaves(moves)
    decision, turns, met, tick = _decided(
        due, options, layout, leaves, state, began, tick, steps, pulls
    )
    new = [plus(leaves[k], steps[k]) for k in layout.gates]
    zero = jnp.zeros((), Gates.of(layout).join(new).dtype)
    steps = applied(layout, leaves, steps, new, zero, decision, decided=due)
    steps, inner, worth = _turned(turns, layout, leaves, decision, steps, inner, state.worth)
    state = recorded(state, began, decision)._replace(worth=worth, met=met, tick=tick, inner=inner)
    return jax.tree.unflatten(structure, steps), state


def _decided(
    due: jax.Array, options: Options, layout: Layout, leaves: list[Any],
    state: RankAdaptiveState, began: jax.Array, tick: jax.Array, moves: list[Any],
    pulls: list[Any],
) -> tuple[Decision, jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """Decides what dies where an update is due for it; else what is dead stays so.

    The decision alone is under the condition, and not the arrays that it is applied to: XLA would
    else repeat the sums of the decision in the kernel of every array, which takes long to compile.

    Returns:
      (decision, whether bases change, whether the target is met, the tick that was reached).
    """
    gates = Gates.of(layout)

    def decide() -> tuple[Decision, jax.Array, jax.Array, jax.Array]:
        flat = gates.join([leaves[k] for k in layout.gates])
        trial, judged = on_trial(layout, gates, state, state.size)
        form = polynomial(layout, options.measure, options.rows)
        assert options.schedule is not None
        step = TargetStep(
            options, layout, gates, form, None, leaves, flat, flat != 0, began, judged, trial,
            options.schedule, tick,
        )  # fmt: skip
        _, decision = step.decide(moves, _of_living(layout, leaves, pulls))
        return decision, step.turns(decision), *step.progress(decision)

    def keep() -> tuple[Decision, jax.Array, jax.Array, jax.Array]:
        flat = gates.join([leaves[k] for k in layout.gates])
        still = jnp.zeros((len(parts_of(layout)),), bool)
        decision = Decision(
            flat == 0, jnp.zeros_like(flat), jnp.zeros_like(flat, bool), still, state.rests,
            state.watch, state.size, state.least, state.smallest,
        )  # fmt: skip
        return decision, jnp.zeros((), bool), state.met, state.tick

    return jax.lax.cond(due, decide, keep)


def _of_living(layout: Layout, leaves: list[Any], pulls: list[Any]) -> list[Any]:
    """Returns the gradients, zero at dead gates."""
    out = list(pulls)
    for k in layout.gates:
        out[k] = jnp.where(like(leaves[k] != 0, pulls[k]), pulls[k], jnp.zeros_like(pulls[k]))
    return out


def _turned(
    turns: jax.Array, layout: Layout, leaves: list[Any], decision: Decision, moves: list[Any],
    inner: Any, worth: Any,
) -> tuple[list[Any], Any, Any]:  # fmt: skip
    """Brings bonds into the basis of their singular vectors, where an update is due for it.

    Args:
      turns: whether it is.
      layout: of the parameters.
      leaves: the parameters.
      decision: of the update.
      moves: of parameters, after a cut.
      inner: state of the inner transformation; moments go along, as `moments_of` lists them.
      worth: importance of the gates, which is that of a basis and begins anew.

    Returns:
      (moves, inner, worth).
    """
    members, place = sorted(parts_of(layout)), parts_of(layout)
    arrays, structure = jax.tree.flatten(inner)
    moving = moments_of(layout, leaves, inner)
    stays = [
        jnp.any(decision.rests[place[layer.cores[0]] :][: len(layer.cores) + len(layer.gates)])
        for layer in layout.layers
    ]

    def change(given: Any) -> Any:
        own, moments, worth = given
        full = list(leaves)
        for k, move in zip(members, own, strict=True):
            full[k] = plus(leaves[k], move)
        new, moments = changed(layout, full, moving, moments, stays)
        out = []
        for k, move in zip(members, own, strict=True):
            x, value = same_dtype(leaves[k], new.get(k, full[k]))
            out.append(like((value - x).astype(move.dtype), move))
        return out, moments, jax.tree.map(jnp.zeros_like, worth)

    given = [moves[k] for k in members], [jnp.asarray(arrays[n]) for n, *_ in moving], worth
    own, moments, worth = jax.lax.cond(turns, change, lambda same: same, given)
    out = list(moves)
    for k, move in zip(members, own, strict=True):
        out[k] = move
    for (n, *_), moment in zip(moving, moments, strict=True):
        arrays[n] = moment
    return out, jax.tree.unflatten(structure, arrays), worth


def _worth(layout: Layout, old: Any, leaves: list[Any], pulls: list[Any]) -> Any:
    """Adds this update's squared first-order effects of the gates to their importance."""
    values, structure = jax.tree.flatten(old)
    out = []
    for k, x in zip(sorted(layout.gates), values, strict=True):
        effect = like((jnp.asarray(leaves[k]) * pulls[k]).astype(x.dtype), x)
        out.append(x + jnp.where(jnp.isfinite(effect), effect * effect, 0.0))
    return jax.tree.unflatten(structure, out)
