"""One update of the rank-adaptive optimiser that cuts ranks down to a target size.

Nothing presses on the gates: most updates are those of the inner optimiser, with dead indices held
at zero. Only those that cut, change a basis or judge a cut do more, under one `jax.lax.cond`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax.optim._gate_updates import Decision, Gates, core_masks, gates_moved, plus, same_dtype
from tensorjax.optim._options_and_state import Options, RankAdaptiveState, Schedule, unknown
from tensorjax.optim._packed_arrays import (
    Counters,
    _explicit,
    any_nonzero,
    like,
    padded,
    picked,
    widest,
)
from tensorjax.optim._pruning import least_important
from tensorjax.optim._sizes_and_ranks import polynomial
from tensorjax.optim._stacked_layers import Stacks
from tensorjax.optim._target.basis_change import counters_of, cut_and_changed
from tensorjax.optim._target.optimizer_moments import by_gradient, curvature_of, moments_of
from tensorjax.optim._tensorised_layers import Layout
from tensorjax.optim._trial_cuts import judged
from tensorjax.optim._update import Step, _observed, _staged, _watched, seen_layout

Descend = Callable[[Any], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class TargetStep(Step):
    """One rank-adaptive update that may cut ranks towards a target model size."""

    schedule: Schedule
    tick: Any
    stacks: Stacks | None
    counters: Counters

    def _any_nonzero(self, arrays: list[Any]) -> jax.Array:
        return any_nonzero(arrays)

    def _split(self, flat: jax.Array) -> list[jax.Array]:
        gates = self.gates
        places = [(n,) for n in range(len(gates.lengths))]
        return self.counters.pieces(gates.rows(flat, 0), places, [(n,) for n in gates.lengths])

    def _moved(self, leaves: list[Any], still: jax.Array) -> jax.Array:
        places = self.layout.gates
        dtypes = {(jnp.result_type(self.leaves[k]), jnp.result_type(leaves[k])) for k in places}
        if len(dtypes) > 1:
            return super()._moved(leaves, still)
        ((own, other),) = dtypes  # once for all gates, rounded as one by one
        move = self.gates.join([leaves[k] for k in places]).astype(other)
        return plus(self.flat.astype(own), move).astype(self.flat.dtype)

    def _doomed(self, flat: jax.Array, limit: jax.Array, frozen: jax.Array) -> jax.Array:
        state, most = self.state, self._most()
        assert most is not None  # there is a late stage
        active = ~jnp.all(frozen)  # between the steps of optax.MultiSteps nothing is known of that
        return least_important(
            self.gates, self.polynomial, self.joined(state.worth), self.live, frozen,
            budget=self.schedule.budget(state.count, state.full, state.size_target),
            gate_size=self.gate_size, most=jnp.where(self._cuts() & active, most, 0.0),
            together=self._together(),
        )  # fmt: skip

    def _together(self) -> np.ndarray:
        """Numbers all bonds for an update to a target; copies of a stacked layer share numbers."""
        starts = np.cumsum([0, *(len(layer.gates) for layer in self.layout.layers)])
        numbers = np.arange(starts[-1])
        for copies in self.stacks.siblings(self.layout) if self.stacks is not None else ():
            for copy in copies:
                own = slice(starts[copy], starts[copy + 1])
                numbers[own] = np.arange(starts[copies[0]], starts[copies[0] + 1])
        return np.unique(numbers, return_inverse=True)[1]

    def _may_change(self, flat: jax.Array, limit: jax.Array, frozen: jax.Array) -> jax.Array:
        return self._cuts() | self._tries()

    def _cuts(self) -> jax.Array:
        """Whether the schedule makes this update to a target cut ranks."""
        return (self.tick > self.state.tick) & (self.tick % 2 == 1)

    @property
    def gate_size(self) -> float:
        """Parameters that a nonzero gate adds to the size in an update to a target: 1 or 0."""
        return float(self.options.compress_to is not None)


def towards_target(
    options: Options,
    updates: Any,
    params: Any,
    state: RankAdaptiveState,
    value: Any,
    descend: Descend,
    stacks: Stacks | None = None,
) -> tuple[Any, RankAdaptiveState]:
    """Computes one update of the optimiser that cuts ranks down to a target model size.

    Args:
      options: with a schedule.
      updates: gradients.
      params: parameters.
      state: before.
      value: the loss.
      descend: from gradients to moves and state of the inner transformation.
      stacks: which of the layers are copies of a stacked one.
    """
    layout, leaves = seen_layout(updates, params)
    schedule = options.schedule
    assert schedule is not None
    seen, finite = _observed(options, state, value)
    following = _staged(options, seen, finite, state.size)
    began = following.late & unknown(state.best)
    pulls = jax.tree.leaves(updates)
    slopes = {k: pulls[k] for k in layout.gates}

    def first() -> tuple[jax.Array, jax.Array]:
        gates = Gates.of(layout)
        flat = gates.join([leaves[k] for k in layout.gates])
        effects = gates.join([leaves[k] * slopes[k] for k in layout.gates])
        return jnp.max(gates.per_bond(effects)) / 2, jnp.all((flat == 0) | (flat == 1))

    def later() -> tuple[jax.Array, jax.Array]:
        return jnp.zeros((), jnp.float32), jnp.zeros((), bool)

    above, ones = jax.lax.cond(state.watch.sure, later, first)
    watch = _watched(options, state, value, above, ones, finite, following.late)
    following = following._replace(watch=watch, worth=_worth(layout, state.worth, leaves, slopes))
    for k in layout.gates:
        pulls[k] = jnp.where(like(leaves[k] != 0, pulls[k]), pulls[k], jnp.zeros_like(pulls[k]))
    gradients = jax.tree.unflatten(jax.tree.structure(updates), pulls)
    moves, inner = descend(gradients)
    tick = schedule.tick(following.count)
    due = following.late & ~state.met & (tick > state.tick) | (watch.tried >= 0)
    given = (due, leaves, following, began, tick, moves, gradients, inner)
    moves, inner, size, learnt = _cuts_of(options, layout, stacks, given)(*given)
    step = Step(options, layout, None, None, updates, leaves, None, None, began, following, None)  # type: ignore[arg-type]
    return moves, step.record(size, **learnt)._replace(inner=inner)


def _cuts_of(options: Options, layout: Layout, stacks: Stacks | None, given: Any) -> Any:
    """Returns `_cut_if`, the update to a target, with options bound; jitted if not traced.

    Operation by operation, its conditions would be compiled anew in every update. The inner
    optimiser is not in it: it may be one that reads its arrays.
    """
    leaves = jax.tree.leaves(given)
    if all(isinstance(x, jax.Array) for x in leaves) and not _check.is_traced(leaves):
        try:
            return _compiled(options, layout, stacks)
        except TypeError:  # options that are arrays
            pass
    return functools.partial(_cut_if, options, layout, stacks)


@functools.lru_cache(64)
def _compiled(options: Options, layout: Layout, stacks: Stacks | None) -> Any:
    return jax.jit(functools.partial(_cut_if, options, layout, stacks))


# Fields of the state that an update to a target renews.
_LEARNT = ("watch", "worth", "least", "rests", "smallest", "met", "tick")


def _cut_if(
    options: Options, layout: Layout, stacks: Stacks | None, due: jax.Array, leaves: list[Any],
    state: RankAdaptiveState, began: jax.Array, tick: jax.Array, moves: Any, gradients: Any,
    inner: Any,
) -> tuple[Any, Any, jax.Array, dict[str, Any]]:  # fmt: skip
    """Judges the last rank cut, then cuts towards the target and changes bases if scheduled."""
    members = sorted(k for layer in layout.layers for k in (*layer.cores, *layer.gates))
    steps, structure = jax.tree.flatten(moves)
    arrays, inner_structure = jax.tree.flatten(inner)
    moving = moments_of(layout, leaves, inner)
    even = by_gradient(layout, inner)
    counters = Counters.below(counters_of(layout, leaves, moving))
    # Before the condition, so that XLA makes it one loop with the step of the inner optimiser.
    held = _held(layout, leaves, {k: jnp.asarray(steps[k]) for k in members})
    for k in members:
        steps[k] = held[k].astype(jnp.result_type(steps[k]))
    pulls = jax.tree.leaves(gradients)
    curved = curvature_of(inner)

    def changed(given: Any) -> Any:
        own, moments, memory, size, kept = given
        # Nothing of that is taken from outside too: XLA would have to copy it.
        known = state._replace(size=size, **kept)
        full = list(steps)
        _write(full, members, own)

        def decide() -> Any:
            step = _step(options, layout, leaves, known, began, tick, stacks, counters)
            return _decided(step, *step.decide(list(full), pulls))

        def wait() -> Any:
            return _undecided(layout, full), (jnp.zeros((), bool),) * 2, size, kept

        # What a condition returns is held in memory, and is not computed once more for every core.
        decision, (turns, jumps), size, learnt = jax.lax.cond(due, decide, wait)
        stays = _stays(layout, learnt["rests"])
        moments = cut_and_changed(
            layout, leaves, full, decision, moving, moments, stays, turns, even, counters
        )
        own = [like(full[k].astype(old.dtype), old) for k, old in zip(members, own, strict=True)]
        memory = [jnp.where(jumps, jnp.zeros_like(x), x) for x in memory]
        return [*map(_laid_out, own)], [*map(_laid_out, moments)], memory, size, learnt

    own = [steps[k] for k in members]
    moments = [jnp.asarray(arrays[n]) for n, *_ in moving]
    memory = [jnp.asarray(arrays[n]) for n in curved]
    kept = {name: getattr(state, name) for name in _LEARNT}
    own, moments, memory, size, learnt = jax.lax.cond(
        due, changed, lambda same: same, (own, moments, memory, state.size, kept)
    )
    _write(steps, members, own)
    _write(arrays, [n for n, *_ in moving], moments)
    _write(arrays, curved, memory)
    moves = jax.tree.unflatten(structure, steps)
    return moves, jax.tree.unflatten(inner_structure, arrays), size, learnt


def _write(arrays: list[Any], at: list[int], new: list[Any]) -> None:
    for k, array in zip(at, new, strict=True):
        arrays[k] = array


def _laid_out(x: jax.Array) -> jax.Array:
    """Restores an array's layout after the condition in which an update to a target may change it.

    XLA puts a last axis of one entry first, and would copy such arrays in every update.
    """
    if x.ndim < 2 or x.shape[-1] != 1 or _explicit(jax.typeof(x).sharding):
        return x
    return jax.lax.optimization_barrier(x.ravel()).reshape(x.shape)


def _step(
    options: Options, layout: Layout, leaves: list[Any], state: RankAdaptiveState,
    began: jax.Array, tick: jax.Array, stacks: Stacks | None, counters: Counters,
) -> TargetStep:  # fmt: skip
    gates = Gates.of(layout)
    flat = gates.join([leaves[k] for k in layout.gates])
    saved = gates.join([*layout.of_gates(state.watch.saved).values()])
    counts = jnp.sum(saved != 0).astype(jnp.float32)
    watch, verdict = judged(state.watch, state.mass, state.size, counts, flat.size)
    form = polynomial(layout, options.measure, options.rows)
    assert options.schedule is not None
    return TargetStep(
        options, layout, gates, form, None, leaves, flat, flat != 0, began,
        state._replace(watch=watch), (verdict, saved), options.schedule, tick, stacks,
        counters,
    )  # fmt: skip


def _decided(
    step: TargetStep, decision: Decision, size: jax.Array, learnt: dict[str, Any],
) -> tuple[Decision, tuple[jax.Array, jax.Array], jax.Array, dict[str, Any]]:  # fmt: skip
    """Completes the decision of an update to a target: whether bond bases change; new state.

    Returns:
      (the decision, whether bases change and whether parameters jump, be it by that or by a cut or
      its undoing, the size, what the state is to know).
    """
    state = step.state
    pending = learnt["watch"].tried >= 0  # while a cut may be undone the basis stays
    turns = (step.tick > state.tick) & (step.tick % 2 == 0) & ~pending
    # Importance is that of a basis; and what nothing has moved yet is not known to be free.
    worth = jax.tree.map(lambda x: jnp.where(turns, jnp.zeros_like(x), x), state.worth)
    known = ~jnp.all(learnt["rests"])
    live = jnp.sum(~decision.dead).astype(jnp.float32)
    met = (size + step.gate_size * live <= state.size_target) & ~pending
    tick = jnp.where(known, jnp.maximum(step.tick, state.tick), state.tick)
    learnt = learnt | {"worth": worth, "met": met, "tick": tick}
    jumps = turns | jnp.any(decision.dead == step.live)
    return decision, (turns, jumps), size, {name: learnt[name] for name in _LEARNT}


def _undecided(layout: Layout, moves: list[Any]) -> Decision:
    """Returns the decision of an update to a target that cuts no rank and changes no gate."""
    joined = [jnp.asarray(moves[k]) for k in layout.gates]
    none = jnp.zeros((sum(x.size for x in joined),), bool)
    parts = sum(len(layer.cores) + len(layer.gates) for layer in layout.layers)
    zero = none.astype(widest(jnp.float32, *joined))
    return Decision(zero, none, none.astype(jnp.int8), jnp.zeros((parts,), bool))


def _parts(layout: Layout) -> np.ndarray:
    """Numbers cores and gates of all layers for an update to a target, padded: (layers, parts)."""
    rows, start = [], 0
    for layer in layout.layers:
        parts = len(layer.cores) + len(layer.gates)
        rows.append(tuple(range(start, start + parts)))
        start += parts
    return padded(rows, start)


def _stays(layout: Layout, rests: jax.Array) -> jax.Array:
    """Marks layers whose bond bases stay in an update to a target, as a parameter is frozen."""
    held = jnp.append(rests, jnp.zeros((), bool))
    return jnp.any(picked(held, _parts(layout)), 1)


def _worth(layout: Layout, old: Any, gates: list[Any], slopes: dict[int, jax.Array]) -> Any:
    """Adds (gate · gradient)² to the importance of every rank gate, in an update to a target."""
    out = {}
    for k, x in layout.of_gates(old).items():
        effect = like((gates[k] * slopes[k]).astype(x.dtype), x)
        out[k] = x + jnp.where(jnp.isfinite(effect), effect * effect, 0.0)
    return layout.by_path(out)


def _held(layout: Layout, leaves: list[Any], moves: dict[int, Any]) -> dict[int, jax.Array]:
    """Corrects gate updates on the way to a target: zero gates stay zero, others positive.

    Entries that the inner optimiser leaves as they are, as where it holds them fixed, stay.
    """
    out = dict(moves)
    dead = {k: jnp.asarray(leaves[k]) == 0 for k in layout.gates}
    for k in layout.gates:
        gate, eps = jnp.asarray(leaves[k]), float(jnp.finfo(jnp.result_type(leaves[k])).eps)
        low = ~dead[k] & (plus(gate, moves[k]) <= 0)
        held = gates_moved(gate, moves[k], dead[k], low, jnp.zeros((), gate.dtype), eps)
        out[k] = jnp.where(moves[k] == 0, moves[k], held.astype(moves[k].dtype))
    for layer in layout.layers:
        for core, gone in core_masks(layer, dead, jnp.logical_or):
            place = layer.cores[core]
            x, move = same_dtype(leaves[place], moves[place])
            gone = like(jnp.broadcast_to(gone, x.shape), x)
            out[place] = jnp.where(gone & (move != 0), -x, move)
    return out
