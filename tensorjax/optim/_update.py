"""One update of the rank-adaptive optimiser: gradient of the objective, then gate pruning."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tensorjax.optim._explicit_sharding import _whole, like, widest
from tensorjax.optim._prune import Gates, doomed
from tensorjax.optim._rank_adaptive_options import Options, at, is_zero
from tensorjax.optim._size_polynomial import Polynomial, polynomial
from tensorjax.optim._state import PROGRESS, RankAdaptiveState, unknown
from tensorjax.optim._tensorised_leaves import Layout, gated
from tensorjax.optim._trial_cuts import Verdict, Watch, judged
from tensorjax.optim._trial_cuts import seen as seen_by


class Decision(NamedTuple):
    """Decision of an update on the gates, apart from the arrays that it is applied to.

    Attributes:
      dead: which gates are zero after the update; like the next two, of all bonds in one vector.
      back: values that gates of an undone cut get back, else zero; None without a late stage.
      waits: gates whose core slices keep their values until the verdict on a cut; likewise.
      still: for each core and gate, whether the inner optimiser keeps it frozen.
      rests: the same when anything last moved.
      watch: record of losses and cuts.
      size: of the tensorised layers.
      least: that they may come to.
      smallest: least gate that is not zero.
    """

    dead: jax.Array
    back: jax.Array | None
    waits: jax.Array | None
    still: jax.Array
    rests: jax.Array
    watch: Watch
    size: jax.Array
    least: jax.Array
    smallest: jax.Array


@dataclasses.dataclass(frozen=True)
class Step:
    """One update of the rank-adaptive optimiser, between gradients and parameter moves."""

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
        seen, finite = observed(options, state, value)
        following = staged(options, seen, finite, size)
        began = following.late & unknown(state.best)
        pulls = jax.tree.leaves(updates)
        watch = watched(options, layout, leaves, pulls, state, value, finite, following.late)
        following = following._replace(watch=watch)
        trial = None
        if options.switch is not None:
            trial, following = on_trial(layout, gates, following, size)
        return cls(
            options, layout, gates, form, updates, leaves, flat, flat != 0, began, following, trial
        )

    def pressures(self) -> tuple[Any, Any]:
        """Returns the weights of loss and size surrogate in the objective; None for 1 and 0."""
        options, state = self.options, self.state
        if options.schedule is not None:
            return None, None
        # Schedules see the number of updates before this one.
        early = None if is_zero(options.size_weight) else at(options.size_weight, state.count - 1)
        if options.switch is None:
            return None, early
        before = jnp.zeros((), jnp.float32) if early is None else early
        # Not `jnp.where`: XLA would repeat the sums below in the kernel of every gradient.
        return jax.lax.cond(
            state.late, self._late_pressures, lambda: (jnp.ones_like(before), before)
        )

    def _late_pressures(self) -> tuple[jax.Array, jax.Array]:
        """Returns the weights of loss and size surrogate in the late stage."""
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
        """Returns the gradient of the weighted size surrogate in the gates; 0 for dead gates."""
        norms = self.gates.per_bond(jnp.abs(self.flat))
        each = on_size / self.state.scale * jax.grad(self.polynomial)(norms)
        return self.gates.split(jnp.where(self.live, each[self.gates.bonds], 0.0))

    def gradients(self) -> Any:
        """Returns the update's gradients of the whole objective, zero at dead gates."""
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

    def finish(self, moves: Any, gradients: Any) -> tuple[Any, Decision]:
        """Returns the moves of the update, which set dying gates and their core slices to zero.

        Args:
          moves: of the inner transformation.
          gradients: which it was given.

        Returns:
          (moves, the decision by which they were made).
        """
        leaves, structure = jax.tree.flatten(moves)
        new, decision = self.decide(leaves, jax.tree.leaves(gradients))
        leaves = applied(
            self.layout, self.leaves, leaves, new, _threshold(self.options, self.flat), decision,
            replaces=self.options.proximal is not None,
        )  # fmt: skip
        return jax.tree.unflatten(structure, leaves), decision

    def decide(self, moves: list[Any], gradients: list[Any]) -> tuple[list[jax.Array], Decision]:
        """Decides which gates die in the update; returns gates before that, and the decision."""
        still, rests = self._frozen(moves, gradients)
        place = parts_of(self.layout)
        frozen = self.gates.spread([still[place[k]] for k in self.layout.gates])
        new = self._moved(moves, still)
        flat = self.gates.join(new)
        limit = _threshold(self.options, flat)
        busy = self.state.late | jnp.any(self.live & (flat <= limit))
        if not self.options.keep_one:
            busy |= ~jnp.all(self.polynomial.living(self.gates.per_bond(self.live)))

        def cut() -> tuple[jax.Array, Any, Any, Any]:
            return self._tried(~self.live | self._doomed(flat, limit, frozen))

        def same() -> tuple[jax.Array, Any, Any, Any]:
            none = None if self.trial is None else jnp.zeros_like(self.live)
            back = None if self.trial is None else jnp.zeros_like(self.flat)
            return ~self.live, back, none, self.state.watch

        dead, back, waits, watch = jax.lax.cond(busy, cut, same)
        size = self.polynomial.of_living(self.gates.per_bond(~dead))
        lengths = np.minimum(self.gates.lengths, 1) * self.options.keep_one
        stay = self.gates.per_bond(~dead & frozen)
        least = self.polynomial.of_living(jnp.where(stay > 0, stay, lengths.astype(np.float32)))
        least = jnp.where(jnp.all(rests), self.state.least, least)
        smallest = jnp.min(jnp.where(dead, jnp.inf, flat), initial=1e30).astype(jnp.float32)
        return new, Decision(dead, back, waits, still, rests, watch, size, least, smallest)

    def _doomed(self, flat: jax.Array, limit: jax.Array, frozen: jax.Array) -> jax.Array:
        """Marks the gates to prune in this update."""
        options, state, most = self.options, self.state, self._most()
        target, deadly = None, limit
        if options.switch is not None:
            target = jnp.where(state.late, state.size_target, -jnp.inf)
        if options.switch is not None and options.late_threshold is not None:
            late = at(options.late_threshold, state.count - 1).astype(flat.dtype)
            deadly = jnp.where(state.late, jnp.maximum(late, limit), limit)
        return doomed(
            self.gates, self.polynomial, flat, self.live, deadly,
            keep_one=options.keep_one, target=target, frozen=frozen, most=most,
        )  # fmt: skip

    def _most(self) -> jax.Array | None:
        """Returns how many gates the update may set to zero; all in the early stage."""
        if self.trial is None:
            return None
        return jnp.where(self.state.late, self.trial[0].most, float(self.flat.size))

    def _tried(self, dead: jax.Array) -> tuple[jax.Array, Any, Any, Any]:
        """Applies, in the update, the verdict on the last cut: undone, kept, or still on trial.

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
        parts = dict(zip(self.layout.gates, self.gates.split(kept), strict=True))
        old, structure = jax.tree.flatten(watch.saved)
        new = [
            like(parts[k].astype(x.dtype), x)
            for k, x in zip(sorted(self.layout.gates), old, strict=True)
        ]
        watch = watch._replace(
            saved=jax.tree.unflatten(structure, new),
            tried=jnp.where(jnp.any(cut), 0, watch.tried),
            total=jnp.where(jnp.any(cut), 0.0, watch.total),
        )
        return dead, back, (kept != 0) | (back != 0), watch

    def _moved(self, leaves: list[Any], still: jax.Array) -> list[jax.Array]:
        """Returns the gates after the update's inner move and its proximal step."""
        new = [plus(self.leaves[k], leaves[k]) for k in self.layout.gates]
        on_size = self.pressures()[1]
        if self.options.proximal is None or on_size is None:
            return new
        step = at(self.options.proximal, self.state.count - 1)
        pushed = [
            jnp.maximum(gate - like(slope.astype(gate.dtype), gate), jnp.zeros_like(gate))
            for gate, slope in zip(new, self.slopes(step * on_size), strict=True)
        ]
        place = parts_of(self.layout)
        trio = zip(self.layout.gates, new, pushed, strict=True)
        return [jnp.where(still[place[k]], gate, low) for k, gate, low in trio]

    def _frozen(self, moves: list[Any], gradients: list[Any]) -> tuple[jax.Array, jax.Array]:
        """Detects, by an update's moves, cores and gates that the inner optimiser keeps frozen.

        Optax transformations do not report what they freeze. A leaf with a nonzero gradient that
        does not move, while another one does, counts as frozen; it stays so in steps in which
        nothing moves, as between those of `optax.MultiSteps`. Where nothing has ever moved, gates
        may be set to zero in the late stage only. A zero gradient leaves the flag of a leaf as it
        was: at first frozen, for a frozen layer below one that starts at zero gets no gradient for
        some steps.

        Returns:
          (which parts are frozen in this update, which were when anything last moved).
        """
        rests = self.state.rests
        moved = jnp.stack([_is_any(x) for x in moves])

        def seen() -> tuple[jax.Array, jax.Array]:
            parts = parts_of(self.layout)
            driven = jnp.stack([_is_any(gradients[k]) for k in parts])
            still = ~moved[np.array([*parts])] & (driven | rests)
            return still, still

        def unseen() -> tuple[jax.Array, jax.Array]:
            return rests & ~(jnp.all(rests) & self.state.late), rests

        return jax.lax.cond(jnp.any(moved), seen, unseen)


def recorded(state: RankAdaptiveState, began: jax.Array, decision: Decision) -> RankAdaptiveState:
    """Returns the state after the update: its size, and the count of steps without progress."""
    loss, size = _average(state), decision.size
    best = jnp.where(began, loss, state.best)
    better = loss < best - PROGRESS * jnp.abs(best)
    moved = better | (size < state.size) | began | ~state.late
    return state._replace(
        size=size,
        best=jnp.where(better, loss, best),
        stalled=jnp.where(moved, 0, state.stalled + 1).astype(jnp.int32),
        least=decision.least,
        rests=decision.rests,
        watch=decision.watch,
        smallest=decision.smallest,
    )


def seen_layout(updates: Any, params: Any) -> tuple[Layout, list[Any]]:
    """Returns layout and leaves of the parameters of an update, checked against its gradients."""
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


def _is_any(x: jax.Array) -> jax.Array:
    """Checks whether an array of the update has a nonzero entry; False for integer arrays."""
    return jnp.any(x != 0) if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.array(False)


def _threshold(options: Options, flat: jax.Array) -> jax.Array:
    return jnp.asarray(options.threshold).astype(flat.dtype)


def _average(state: RankAdaptiveState) -> jax.Array:
    return state.loss / jnp.where(state.mass > 0, state.mass, 1.0)


def observed(
    options: Options, state: RankAdaptiveState, value: Any
) -> tuple[RankAdaptiveState, jax.Array]:
    """Adds the loss of this update, if finite, to the moving average in the state."""
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


def watched(
    options: Options,
    layout: Layout,
    leaves: list[Any],
    pulls: list[Any],
    state: RankAdaptiveState,
    value: Any,
    finite: jax.Array,
    late: jax.Array,
) -> Watch:
    """Adds the loss to the record of losses; until chance is known, the first gradients too."""

    def first() -> tuple[jax.Array, jax.Array]:
        pairs = [(_whole(jnp.asarray(leaves[k])), _whole(pulls[k])) for k in layout.gates]
        with jax.numpy_dtype_promotion("standard"):
            sums = [jnp.sum((gate * pull).astype(jnp.float32)) for gate, pull in pairs]
        ones = [jnp.all((gate == 0) | (gate == 1)) for gate, _ in pairs]
        return jnp.max(jnp.stack(sums)) / 2, jnp.all(jnp.stack(ones))

    def later() -> tuple[jax.Array, jax.Array]:
        return jnp.zeros((), jnp.float32), jnp.zeros((), bool)

    excess, ones = jax.lax.cond(state.watch.sure, later, first)
    loss, decay = (jnp.asarray(x).astype(jnp.float32) for x in (value, options.loss_decay))
    return seen_by(state.watch, loss, excess, ones, finite, decay, late)


def on_trial(
    layout: Layout, gates: Gates, state: RankAdaptiveState, size: jax.Array
) -> tuple[tuple[Verdict, jax.Array], RankAdaptiveState]:
    """Judges the last cut, if one is on trial; returns verdict, values before it, and the state."""
    saved = joined(layout, gates, state.watch.saved)
    counts = jnp.sum(saved != 0).astype(jnp.float32)
    watch, verdict = judged(state.watch, state.mass, size, counts, gates.bonds.size)
    return (verdict, saved), state._replace(watch=watch)


def joined(layout: Layout, gates: Gates, tree: Any) -> jax.Array:
    """Joins a state's tree of gates into one vector, for pruning."""
    kept = dict(zip(sorted(layout.gates), jax.tree.leaves(tree), strict=True))
    return gates.join([kept[k] for k in layout.gates])


def parts_of(layout: Layout) -> dict[int, int]:
    """Numbers cores and gates, layer by layer, by their positions among the leaves."""
    parts = [k for layer in layout.layers for k in (*layer.cores, *layer.gates)]
    return {k: n for n, k in enumerate(parts)}


def applied(
    layout: Layout, leaves: list[Any], moves: list[Any], new: list[Any], limit: jax.Array,
    decision: Decision, *, replaces: bool = False, decided: jax.Array | None = None,
) -> list[Any]:  # fmt: skip
    """Applies a decision to an update's moves: dead gates and their core slices become zero.

    Slices of a cut on trial keep their values, as the cut may be undone. Parts that the inner
    optimiser holds frozen stay as they are.

    Args:
      layout: of the parameters.
      leaves: the parameters.
      moves: of the inner transformation.
      new: gates after them.
      limit: gates at or below it die; others stay above.
      decision: of the update.
      replaces: whether ``new`` is to be reached by other moves of the gates than those.
      decided: whether the update decided at all; if not, dead entries that do not move stay as
        they are, since then it is not known what is frozen. None: it did.
    """
    gates, place, out = Gates.of(layout), parts_of(layout), list(moves)
    alive = gates.split(~decision.dead)

    def stays(k: int, move: jax.Array) -> jax.Array:
        still = decision.still[place[k]]
        return still if decided is None else still | (~decided & (move == 0))

    for k, lives, gate in zip(layout.gates, alive, new, strict=True):
        gone = like(~lives, gate)
        held = ~gone & ~decision.still[place[k]] & (gate.astype(limit.dtype) <= limit)
        move = gate_move(leaves[k], moves[k], gone, held, limit, gate if replaces else None)
        out[k] = jnp.where(stays(k, moves[k]), moves[k].astype(move.dtype), move)
    if decision.back is not None:
        for k, returns in zip(layout.gates, gates.split(decision.back), strict=True):
            out[k] = out[k] + like(returns.astype(out[k].dtype), out[k])
    waits = alive if decision.waits is None else gates.split(decision.waits)
    bonds = [(layer, bond) for layer in layout.layers for bond in layer.bonds]
    for (layer, bond), lives, waiting in zip(bonds, alive, waits, strict=True):
        for core, axis in bond:
            k = layer.cores[core]
            shape = [1] * len(layer.shapes[core])
            shape[axis] = lives.size
            x, move = same_dtype(leaves[k], out[k])
            kept = like(jnp.broadcast_to(lives.reshape(shape), x.shape), x)
            cleared = jnp.where(kept | stays(k, move), move, -x)
            if decision.waits is not None:
                rest = like(jnp.broadcast_to(waiting.reshape(shape), x.shape), x)
                cleared = jnp.where(rest, jnp.zeros_like(cleared), cleared)
            out[k] = cleared
    return out


def staged(
    options: Options, state: RankAdaptiveState, finite: jax.Array, size: jax.Array
) -> RankAdaptiveState:
    """Updates size and stage for an update; fixes the targets when the late stage begins."""
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


def plus(x: Any, move: Any) -> jax.Array:
    """Adds the update's move to a parameter as `optax.apply_updates` does."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.asarray(x + move).astype(jnp.result_type(x))


def same_dtype(x: Any, move: Any) -> tuple[jax.Array, jax.Array]:
    """Casts a parameter and its move to one dtype that holds the parameter exactly."""
    dtype = widest(x, move)
    return jnp.asarray(x).astype(dtype), jnp.asarray(move).astype(dtype)


def gate_move(
    gate: Any, move: Any, dead: jax.Array, held: jax.Array, limit: jax.Array, new: Any
) -> jax.Array:
    """Returns the update's gate moves: to zero for dead gates, just above τ for held ones."""
    eps = float(jnp.finfo(jnp.result_type(gate)).eps)
    x, move = same_dtype(gate, move)
    dead, held = like(dead, x), like(held, x)
    if new is not None:
        move = new.astype(x.dtype) - x
    # A sum of parameter and move is rounded: the second term covers that.
    least = (limit * (1 + 4 * eps)).astype(x.dtype) + eps * jnp.abs(x)
    return jnp.where(dead, -x, jnp.where(held, least - x, move))
