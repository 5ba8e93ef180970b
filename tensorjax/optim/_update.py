"""One update of the rank-adaptive optimiser: gradients of the objective, then pruning."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tensorjax.optim._gate_updates import Decision, Gates, applied, gates_moved, plus
from tensorjax.optim._options_and_state import Options, RankAdaptiveState, at, is_zero, unknown
from tensorjax.optim._packed_arrays import like, picked
from tensorjax.optim._pruning import doomed
from tensorjax.optim._sizes_and_ranks import Polynomial, polynomial
from tensorjax.optim._status import PROGRESS
from tensorjax.optim._tensorised_layers import Layout, gated
from tensorjax.optim._trial_cuts import Verdict, Watch, judged
from tensorjax.optim._trial_cuts import seen as seen_by


@dataclasses.dataclass(frozen=True)
class Step:
    """One update of the rank-adaptive optimiser: gradients, parameter updates, gates to prune."""

    options: Options
    layout: Layout
    gates: Gates
    polynomial: Polynomial
    updates: Any
    leaves: list[Any]
    flat: jax.Array
    live: jax.Array
    began: jax.Array
    state: RankAdaptiveState  # with this step's loss, count and stage
    trial: tuple[Verdict, jax.Array] | None  # and the gates' values from before the last cut

    @classmethod
    def of(
        cls, options: Options, updates: Any, params: Any, state: RankAdaptiveState, value: Any
    ) -> "Step":
        layout, leaves = seen_layout(updates, params)
        gates = Gates.of(layout)
        form = polynomial(layout, options.measure, options.rows)
        flat = gates.join([leaves[k] for k in layout.gates])
        size = form.of_living(gates.per_bond(flat > _threshold(options, flat)))
        seen, finite = _observed(options, state, value)
        following = _staged(options, seen, finite, size)
        began = following.late & unknown(state.best)
        places = layout.gates
        pulls = gates.join([jax.tree.leaves(updates)[k] for k in places])
        # The early stage watches too: chance is known from its first losses.
        excess = jnp.max(gates.per_bond(flat * pulls), initial=-jnp.inf) / 2
        ones = jnp.all((flat == 0) | (flat == 1))
        watch = _watched(options, state, value, excess, ones, finite, following.late)
        trial = None
        if options.switch is not None:
            saved = gates.join([*layout.of_gates(watch.saved).values()])
            counts = jnp.sum(saved != 0).astype(jnp.float32)
            watch, verdict = judged(watch, following.mass, size, counts, flat.size)
            trial = (verdict, saved)
        following = following._replace(watch=watch)
        return cls(
            options, layout, gates, form, updates, leaves, flat, flat != 0, began, following, trial
        )

    def pressures(self) -> tuple[Any, Any]:
        """Returns an update's weights of loss and model size in the objective; None for 1 and 0."""
        options, state = self.options, self.state
        if options.schedule is not None:
            return None, None
        count = state.count - 1  # schedules see the number of updates before this one
        early = None if is_zero(options.size_weight) else at(options.size_weight, count)
        if options.switch is None:
            return None, early
        before = jnp.zeros((), jnp.float32) if early is None else early
        # Under a condition for what `_decided` says: all gradients have these weights.
        return jax.lax.cond(
            state.late, self._late_pressures, lambda: (jnp.ones((), jnp.float32), before)
        )

    def _late_pressures(self) -> tuple[jax.Array, jax.Array]:
        """Returns an update's weights of loss and size in CoMERA's late stage."""
        options, state = self.options, self.state
        count = state.count - 1
        excess = (state.size - state.size_target) / state.scale
        short = at(options.loss_weight, count) * (_average(state) - state.loss_target)
        # Where every bond has rank one, pressing on would not end.
        fits = state.size <= jnp.maximum(state.size_target, state.least)
        if self.trial is not None:  # nor where no cut is left to try, or the loss is near chance
            fits |= ~self.trial[0].presses
        mix = at(options.mix, count)
        worse = fits | (short > at(options.late_size_weight, count) * excess)
        on_loss = jnp.where(worse, at(options.loss_weight, count) + mix, mix)
        on_size = jnp.where(worse, mix, at(options.late_size_weight, count) + mix)
        return on_loss, jnp.where(fits, 0.0, on_size)

    def slopes(self, on_size: jax.Array) -> list[jax.Array]:
        """Computes the part of an update's gradient that comes from model size, in the gates."""
        norms = self.gates.per_bond(jnp.abs(self.flat))
        each = on_size / self.state.scale * self.polynomial.slopes(norms)
        return self.gates.split(jnp.where(self.live, picked(each, self.gates.bonds), 0.0))

    def gradients(self) -> Any:
        """Computes an update's gradients of loss, model size and core norms; 0 for pruned gates."""
        on_loss, on_size = self.pressures()
        leaves, structure = jax.tree.flatten(self.updates)
        if on_loss is not None:
            # Of integers, as of counters, the gradients are float0.
            leaves = [
                on_loss.astype(g.dtype) * g if jnp.issubdtype(g.dtype, jnp.inexact) else g
                for g in leaves
            ]
        if not is_zero(self.options.core_weight):
            decay = 2 * at(self.options.core_weight, self.state.count - 1)
            for k in (k for layer in self.layout.layers for k in layer.cores):
                dtype = jnp.result_type(leaves[k])
                leaves[k] = leaves[k] + decay.astype(dtype) * self.leaves[k].astype(dtype)
        slopes = None
        if on_size is not None and self.options.proximal is None:
            slopes = self.slopes(on_size)
        for n, (k, live) in enumerate(
            zip(self.layout.gates, self.gates.split(self.live), strict=True)
        ):
            total = leaves[k]
            if slopes is not None:
                signs = jnp.sign(self.leaves[k]).astype(total.dtype)
                total = total + like(slopes[n].astype(total.dtype), signs) * signs
            leaves[k] = jnp.where(like(live, total), total, jnp.zeros_like(total))
        return jax.tree.unflatten(structure, leaves)

    def finish(self, moves: Any, gradients: Any) -> tuple[Any, jax.Array, dict[str, jax.Array]]:
        """Completes a rank-adaptive update: prunes rank gates, and zeroes their core slices.

        Args:
          moves: of the inner transformation.
          gradients: which it was given.

        Returns:
          (moves, the size, what the state is to know of frozen parameters).
        """
        leaves, structure = jax.tree.flatten(moves)
        decision, size, learnt = self.decide(leaves, jax.tree.leaves(gradients))
        applied(self.layout, self.leaves, leaves, decision, self.trial is not None)
        return jax.tree.unflatten(structure, leaves), size, learnt

    def decide(
        self, leaves: list[Any], gradients: list[Any]
    ) -> tuple[Decision, jax.Array, dict[str, Any]]:
        """Decides which rank gates this optimiser update prunes; returns size and new state too."""
        still, rests = self._frozen(leaves, gradients)
        frozen = picked(still, self._gate_parts()[self.gates.bonds])
        new = self._moved(leaves, still)
        decision, watch = self._decided(new, leaves, frozen)
        dead = decision.dead
        size = self.polynomial.of_living(self.gates.per_bond(~dead))
        lengths = np.minimum(self.gates.lengths, 1) * self.options.keep_one
        stay = self.gates.per_bond(~dead & frozen)
        least = self.polynomial.of_living(jnp.where(stay > 0, stay, lengths.astype(np.float32)))
        least = jnp.where(jnp.all(rests), self.state.least, least)
        smallest = jnp.min(jnp.where(dead, jnp.inf, new), initial=1e30)
        learnt = {
            "least": least, "rests": rests, "watch": watch,
            "smallest": smallest.astype(jnp.float32),
        }  # fmt: skip
        return decision._replace(still=still), size, learnt

    def _decided(
        self, new: jax.Array, leaves: list[Any], frozen: jax.Array
    ) -> tuple[Decision, Any]:
        """Decides which rank gates are zero after this optimiser update, and if the last cut stays.

        What a branch returns is held in memory. Else XLA would compute all of the decision once
        more in the update of every core and gate, which takes most of the compilation.

        Args:
          new: gates after the inner optimiser's move, joined.
          leaves: moves of the inner optimiser.
          frozen: which of the gates are frozen.

        Returns:
          (the decision, the watch).
        """
        limit = _threshold(self.options, new)
        move = self.gates.join([leaves[k] for k in self.layout.gates])

        def of(dead: jax.Array, back: Any, waiting: Any, watch: Any) -> tuple[Decision, Any]:
            held = ~dead & ~frozen & (new <= limit)
            fate = dead.astype(jnp.int8)
            fate = fate if waiting is None else jnp.where(waiting, jnp.int8(2), fate)
            pruned = move if self.options.proximal is None else new - self.flat.astype(new.dtype)
            pruned = gates_moved(self.flat, pruned, dead, held, limit, self._epsilons())
            if back is not None:
                pruned = pruned + back.astype(pruned.dtype)
            pruned = jnp.where(frozen, move, pruned.astype(move.dtype))
            return Decision(pruned, dead, fate, jnp.zeros((0,), bool)), watch

        def decided() -> tuple[Decision, Any]:
            dead = ~self.live | self._doomed(new, limit, frozen)
            return of(*self._tried(dead))

        def unchanged() -> tuple[Decision, Any]:
            if self.trial is None:
                return of(~self.live, None, None, self.state.watch)
            back = jnp.zeros_like(self.trial[1])
            return of(~self.live, back, back != 0, self.state.watch)

        if not self.options.keep_one:  # layers that have become empty die without a low gate
            return decided()
        return jax.lax.cond(self._may_change(new, limit, frozen), decided, unchanged)

    def _epsilons(self) -> np.ndarray:
        """Returns the rounding error of each gate's dtype for one optimiser update, a vector."""
        dtypes = [jnp.result_type(self.leaves[k]) for k in self.layout.gates]
        return np.array([float(jnp.finfo(dtype).eps) for dtype in dtypes])[self.gates.bonds]

    def _may_change(self, flat: jax.Array, limit: jax.Array, frozen: jax.Array) -> jax.Array:
        """Whether this optimiser update may prune a rank gate or undo the last rank cut."""
        low = jnp.any(self.live & ~frozen & (flat <= self._deadly(limit)))
        return low if self.trial is None else low | self._tries()

    def _tries(self) -> jax.Array:
        """Whether the last rank cut is undone, or may still be undone, in this optimiser update."""
        assert self.trial is not None
        (undo, waits, *_), saved = self.trial
        return undo | waits | jnp.any(saved != 0)

    def _deadly(self, limit: jax.Array) -> jax.Array:
        """Returns the threshold at or below which this optimiser update may prune rank gates."""
        options, state = self.options, self.state
        if options.switch is None or options.late_threshold is None:
            return limit
        late = at(options.late_threshold, state.count - 1).astype(limit.dtype)
        return jnp.where(state.late, jnp.maximum(late, limit), limit)

    def _doomed(self, flat: jax.Array, limit: jax.Array, frozen: jax.Array) -> jax.Array:
        """Marks the rank gates that this optimiser update prunes."""
        options, state, most = self.options, self.state, self._most()
        target = None
        if options.switch is not None:
            target = jnp.where(state.late, state.size_target, -jnp.inf)
        return doomed(
            self.gates, self.polynomial, flat, self.live, self._deadly(limit),
            keep_one=options.keep_one, target=target, frozen=frozen, most=most,
        )  # fmt: skip

    def joined(self, tree: Any) -> jax.Array:
        """Concatenates all rank gates in a tree, for one optimiser update, to one vector."""
        return self.gates.join([*self.layout.of_gates(tree).values()])

    def _most(self) -> jax.Array | None:
        """Returns how many rank gates this optimiser update may prune; in the early stage all."""
        if self.trial is None:
            return None
        return jnp.where(self.state.late, self.trial[0].most, float(self.flat.size))

    def _tried(self, dead: jax.Array) -> tuple[jax.Array, Any, Any, Any]:
        """Applies, in one optimiser update, the verdict on the last rank cut: undoes or keeps it.

        Returns:
          (dead, values to give back, bonds on which the cores wait for the verdict, the watch).
        """
        if self.trial is None:
            return dead, None, None, self.state.watch
        (undo, waits, *_), saved = self.trial
        back = jnp.where(undo, saved, 0.0)
        dead &= back == 0
        cut = dead & self.live & self.state.late
        kept = jnp.where(waits, saved, jnp.where(cut, self.flat, 0.0))
        watch = self.state.watch
        old = self.layout.of_gates(watch.saved)
        new = {
            k: like(part.astype(old[k].dtype), old[k])
            for k, part in zip(self.layout.gates, self._split(kept), strict=True)
        }
        watch = watch._replace(
            saved=self.layout.by_path(new),
            tried=jnp.where(jnp.any(cut), 0, watch.tried),
            total=jnp.where(jnp.any(cut), 0.0, watch.total),
        )
        return dead, back, (kept != 0) | (back != 0), watch

    def _split(self, flat: jax.Array) -> list[jax.Array]:
        """Splits the vector of all rank gates, in one optimiser update, into one per bond."""
        return self.gates.split(flat)

    def _gate_parts(self) -> np.ndarray:
        """Returns each gate's index among cores and gates, for one optimiser update."""
        parts = [k for layer in self.layout.layers for k in (*layer.cores, *layer.gates)]
        known = {k: n for n, k in enumerate(parts)}
        return np.array([known[k] for k in self.layout.gates], int)

    def _moved(self, leaves: list[Any], still: jax.Array) -> jax.Array:
        """Computes all rank gates after one optimiser update and the proximal step."""
        new = [plus(self.leaves[k], leaves[k]) for k in self.layout.gates]
        on_size = self.pressures()[1]
        if self.options.proximal is None or on_size is None:
            return self.gates.join(new)
        step = at(self.options.proximal, self.state.count - 1)
        pushed = [
            jnp.maximum(gate - like(slope.astype(gate.dtype), gate), jnp.zeros_like(gate))
            for gate, slope in zip(new, self.slopes(step * on_size), strict=True)
        ]
        trio = zip(self._gate_parts(), new, pushed, strict=True)
        return self.gates.join([jnp.where(still[k], gate, low) for k, gate, low in trio])

    def _frozen(self, moves: list[Any], gradients: list[Any]) -> tuple[jax.Array, jax.Array]:
        """Detects cores and gates that optimiser updates leave frozen, as the updates are zero.

        Optax transformations do not report what they freeze. A leaf with a nonzero gradient that
        does not move, while another one does, counts as frozen; it stays so in steps in which
        nothing moves, as between those of `optax.MultiSteps`. Where nothing has ever moved, gates
        may be set to zero in the late stage only. A zero gradient leaves the flag of a leaf as it
        was: at first frozen, for a frozen layer below one that starts at zero gets no gradient for
        some steps.
        """
        parts = [k for layer in self.layout.layers for k in (*layer.cores, *layer.gates)]
        rests, own = self.state.rests, set(parts)
        flags = self._any_nonzero([moves[k] for k in parts])
        others = [x for k, x in enumerate(moves) if k not in own]

        def seen(moved: jax.Array) -> tuple[jax.Array, jax.Array]:
            driven = self._any_nonzero([gradients[k] for k in parts])
            still = ~moved & (driven | rests)
            return still, still

        def unseen(_: jax.Array) -> tuple[jax.Array, jax.Array]:
            return rests & ~(jnp.all(rests) & self.state.late), rests

        # Under a condition for what `_decided` says: flags of all leaves would else be computed
        # once more in the update of each.
        active = jnp.any(jnp.append(flags, self._any_nonzero(others)))
        return jax.lax.cond(active, seen, unseen, flags)

    def _any_nonzero(self, arrays: list[Any]) -> jax.Array:
        """Marks arrays of one optimiser update, updates or gradients, with a nonzero entry."""
        flags = [
            jnp.any(x != 0) if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.array(False)
            for x in arrays
        ]
        return jnp.stack(flags) if flags else jnp.zeros((0,), bool)

    def record(self, size: jax.Array, **learnt: Any) -> RankAdaptiveState:
        """Returns the rank-adaptive optimiser's state after the update, with size and counters."""
        state, loss = self.state, _average(self.state)
        best = jnp.where(self.began, loss, state.best)
        better = loss < best - PROGRESS * jnp.abs(best)
        moved = better | (size < state.size) | self.began | ~state.late
        return state._replace(
            size=size,
            best=jnp.where(better, loss, best),
            stalled=jnp.where(moved, 0, state.stalled + 1).astype(jnp.int32),
            **learnt,
        )


def seen_layout(updates: Any, params: Any) -> tuple[Layout, list[Any]]:
    """Returns the tensorised layers and parameter leaves of an update; checks the gradients."""
    if params is None:
        raise ValueError(
            "params: expected the parameters, got none; call update(gradients, state, params, "
            "value=loss)"
        )
    layout, leaves = gated(params), jax.tree.leaves(params)
    shapes = [jnp.shape(x) for x in jax.tree.leaves(updates)]
    if shapes != [jnp.shape(x) for x in leaves]:
        raise ValueError(
            "updates: expected gradients of the same structure and shapes as the parameters; "
            "after a shrink both, and the state, have to be new"
        )
    return layout, leaves


def _threshold(options: Options, flat: jax.Array) -> jax.Array:
    return jnp.asarray(options.threshold).astype(flat.dtype)


def _average(state: RankAdaptiveState) -> jax.Array:
    return state.loss / jnp.where(state.mass > 0, state.mass, 1.0)


def _observed(
    options: Options, state: RankAdaptiveState, value: Any
) -> tuple[RankAdaptiveState, jax.Array]:
    """Adds this update's loss, if finite, to the moving average in the optimiser's state."""
    loss = jnp.asarray(value).astype(jnp.float32)
    finite = jnp.isfinite(loss)
    decay = jnp.asarray(options.loss_decay).astype(jnp.float32)
    state = state._replace(
        count=optax.safe_increment(state.count),
        loss=jnp.where(finite, decay * state.loss + (1 - decay) * loss, state.loss),
        mass=jnp.where(finite, decay * state.mass + (1 - decay), state.mass),
        skipped=state.skipped + (~finite).astype(jnp.int32),
    )
    return state, finite


def _watched(
    options: Options,
    state: RankAdaptiveState,
    value: Any,
    excess: Any,
    ones: Any,
    finite: Any,
    late: Any,
) -> Watch:
    loss, decay = (jnp.asarray(x).astype(jnp.float32) for x in (value, options.loss_decay))
    return seen_by(state.watch, loss, excess, ones, finite, decay, late)


def _staged(
    options: Options, state: RankAdaptiveState, finite: jax.Array, size: jax.Array
) -> RankAdaptiveState:
    """Completes an optimiser update's new state: size, training stage, late-stage targets."""
    state = state._replace(size=size)
    if options.switch is None:
        return state
    loss, count = _average(state), state.count - 1
    asked = options.switch(count, loss, size) if callable(options.switch) else (
        count >= jnp.asarray(options.switch)
    )  # fmt: skip
    late = state.late | (finite & jnp.asarray(asked, bool))
    if options.loss_target is None:
        found = late & unknown(state.loss_target)
        state = state._replace(loss_target=jnp.where(found, loss, state.loss_target))
    if options.size_fraction is not None:
        share = jnp.asarray(options.size_fraction).astype(jnp.float32)
        found = late & unknown(state.size_target)
        state = state._replace(size_target=jnp.where(found, share * size, state.size_target))
    return state._replace(late=late)
