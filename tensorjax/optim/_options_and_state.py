"""Options of the rank-adaptive optimiser, with their checks, and its state."""

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tensorjax import _check
from tensorjax.optim._gate_updates import Gates
from tensorjax.optim._sizes_and_ranks import Measure, polynomial, sizes_of_all, total
from tensorjax.optim._tensorised_layers import Layout, trainable
from tensorjax.optim._trial_cuts import UNKNOWN
from tensorjax.optim._trial_cuts import fresh as fresh_watch

Weight = float | jax.Array | Callable[[Any], Any]
Switch = int | Callable[[Any, Any, Any], Any] | None
_NUMBERS = ("threshold", "size_scale", "loss_target", "size_target", "size_fraction", "loss_decay",
            "compress_to", "size", "chance")  # fmt: skip
_WEIGHTS = ("size_weight", "core_weight", "loss_weight", "late_size_weight", "late_threshold",
            "mix", "proximal")  # fmt: skip
_FUNCTIONS = (*_WEIGHTS, "switch")
_OPTIONAL = ("size_scale", "loss_target", "size_target", "size_fraction", "late_threshold",
             "proximal", "switch", "compress_to", "size", "chance")  # fmt: skip
_PAPER = (*_WEIGHTS, "threshold", "size_scale", "keep_one", "switch", "loss_target", "size_target",
          "size_fraction")  # fmt: skip
# First choices, not tuned: on scikit-learn's digits and on MNIST they were the only ones tried.
CUTS = 20  # about so many cuts: more leave too few gradients between two to tell indices apart
POWER = 3  # the excess of size falls as (1 − share of the time)^POWER: Zhu and Gupta, 1710.01878
START = 10  # the first cut comes at this share of `by`, 1/START


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Schedule of rank cuts that the options give: which updates cut, and to what size.

    Attributes:
      by: update at which the target is met.
    """

    by: int

    @property
    def start(self) -> int:
        """Number of the optimiser update from which on the options allow to cut ranks."""
        return self.by // START

    @property
    def half(self) -> int:
        """Number of updates from a change of bond bases to the next rank cut, and vice versa."""
        return max(1, (self.by - self.start) // (2 * CUTS))

    def budget(self, count: jax.Array, full: jax.Array, target: jax.Array) -> jax.Array:
        """Returns the largest size of tensorised layers that the options allow after an update."""
        share = (count - self.start).astype(jnp.float32) / max(self.by - self.start, 1)
        return target + jnp.maximum(full - target, 0.0) * (1 - jnp.clip(share, 0, 1)) ** POWER

    def tick(self, count: jax.Array) -> jax.Array:
        """Returns the last event's number in the options' schedule: odd for a rank cut.

        They go on after ``by``, for what was undone.
        """
        before = -(-self.by // self.half)  # so many more, that division need not round down
        number = jax.lax.div(
            count + (before * self.half - self.by), jnp.full_like(count, self.half)
        )
        return (number + (2 * CUTS + 1 - before)).astype(jnp.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the rank-adaptive optimiser, as the user gave them."""

    size_weight: Weight
    core_weight: Weight
    threshold: float
    measure: Measure
    rows: int
    size_scale: float | None
    keep_one: bool
    proximal: Weight | None
    switch: Switch
    loss_target: float | None
    size_target: float | None
    size_fraction: float | None
    loss_weight: Weight
    late_size_weight: Weight
    late_threshold: Weight | None
    mix: Weight
    loss_decay: float
    compress_to: float | None = None
    size: float | None = None
    by: int | None = None
    chance: float | None = None

    @property
    def schedule(self) -> Schedule | None:
        """Schedule of rank cuts to a target size; None for CoMERA's training in two stages."""
        return None if self.by is None else Schedule(self.by)

    @property
    def presses(self) -> bool:
        """Whether these options ever add the model's size to the loss that is minimised."""
        late = self.switch is not None
        return not is_zero(self.size_weight) or (
            late and not (is_zero(self.late_size_weight) and is_zero(self.mix))
        )

    @property
    def passive(self) -> bool:
        """Whether these options leave the wrapped optimiser's updates unchanged."""
        if self.schedule is not None:
            return False
        return not self.presses and is_zero(self.core_weight) and self.late_threshold is None

    def towards_target(self, defaults: "Options") -> "Options":
        """Returns the optimiser's options for a target size, without those of the CoMERA paper.

        Raises:
          ValueError: options of the paper's stages that are not as by default; options of the
            target that are missing, out of range, or both given.
        """
        both = self.compress_to is not None and self.size is not None
        if both or (self.compress_to is None and self.size is None):
            raise ValueError(
                "compress_to, size: expected one of them with by, the update by which the size is "
                f"met, got {'both' if both else 'none'}"
            )
        if self.by is None:
            raise ValueError(
                "by: expected the update by which the size is met, got None; two thirds of the "
                "training leave the rest for what is left to adapt"
            )
        _check.integer("by", self.by, low=1)
        if known(self.compress_to) and not 1 <= self.compress_to < math.inf:  # type: ignore[operator]
            raise ValueError(
                "compress_to: expected a number >= 1, how many times fewer parameters than dense, "
                f"got {self.compress_to!r}"
            )
        if self.compress_to is not None and self.measure != "numbers":
            raise ValueError(
                'compress_to: expected measure "numbers", as it counts parameters, got '
                f"{self.measure!r}; give size in that measure"
            )
        for name in _PAPER:
            value, usual = getattr(self, name), getattr(defaults, name)
            # Traced numbers, as of optax.inject_hyperparams, cannot be told from the defaults.
            plain = isinstance(value, bool) or known(value) or value is None or callable(value)
            if plain and value != usual:
                raise ValueError(
                    f"{name}: expected the default with compress_to or size, where nothing presses "
                    f"on the gates, got {value!r}; it belongs to the paper's two stages"
                )
        return dataclasses.replace(
            self, size_weight=0.0, core_weight=0.0, threshold=0.0, switch=Schedule(self.by).start
        )

    def check(self) -> None:
        """Raises ValueError for invalid or contradictory options of the rank-adaptive optimiser."""
        for name in (*_NUMBERS, *_FUNCTIONS):
            value = getattr(self, name)
            fits = known(value) or hasattr(value, "dtype")  # the latter may be traced
            fits |= value is None and name in _OPTIONAL
            fits |= callable(value) and name in _FUNCTIONS
            if not fits or (known(value) and math.isnan(value)):  # type: ignore[arg-type]
                or_function = " or a function" if name in _FUNCTIONS else ""
                raise ValueError(f"{name}: expected a number{or_function}, got {value!r}")
        for name in ("loss_target", "chance"):
            value = getattr(self, name)
            if known(value) and not math.isfinite(value):
                raise ValueError(f"{name}: expected a finite number, got {value!r}")
        for name in ("threshold", *_WEIGHTS):
            value = getattr(self, name)
            if known(value) and not 0 <= value < math.inf:
                raise ValueError(f"{name}: expected a number >= 0 or a schedule, got {value!r}")
        for name in ("size_scale", "size_target", "size"):
            value = getattr(self, name)
            if known(value) and not 0 < value < math.inf:
                raise ValueError(f"{name}: expected a positive number, got {value!r}")
        if known(self.loss_decay) and not 0 <= self.loss_decay < 1:
            raise ValueError(f"loss_decay: expected a number in [0, 1), got {self.loss_decay!r}")
        if known(self.size_fraction) and not 0 < self.size_fraction <= 1:  # type: ignore[operator]
            raise ValueError(
                f"size_fraction: expected a share in (0, 1], got {self.size_fraction!r}; a target "
                "in the units of the measure is size_target"
            )
        for name in ("late_threshold", "loss_target"):
            if self.switch is None and getattr(self, name) is not None:
                raise ValueError(
                    f"{name}: expected None without switch, for there is no late stage; give "
                    "switch= too"
                )
        given = (self.size_target is not None) + (self.size_fraction is not None)
        if given != (self.switch is not None):
            raise ValueError(
                "size_target, size_fraction: expected one of them with switch, and none without "
                f"it, got switch={self.switch!r} and {given} of them"
            )


def known(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_zero(weight: Any) -> bool:
    return known(weight) and weight == 0


def at(weight: Any, count: jax.Array) -> jax.Array:
    """Evaluates an optimiser option, a number or a schedule, at a step count."""
    with jax.numpy_dtype_promotion("standard"):  # Optax's schedules mix integers and floats
        return jnp.asarray(weight(count) if callable(weight) else weight).astype(jnp.float32)


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


def initial(
    options: Options, inner: optax.GradientTransformationExtraArgs, params: Any
) -> RankAdaptiveState:
    """Checks the options of `rank_adaptive` for given parameters, and builds its initial state."""
    measure, rows, by = options.measure, options.rows, options.by
    check_lookahead(params)
    layout = trainable(params, options.keep_one)
    full = total(layout, [layer.ranks for layer in layout.layers], measure, rows)
    leaves = jax.tree.leaves(params)
    if not _check.is_traced(leaves):
        _check_reachable(layout, full, options)
    gates = Gates.of(layout)
    flat = gates.join([leaves[k] for k in layout.gates])
    form = polynomial(layout, measure, rows)
    live = form.of_living(gates.per_bond(flat > options.threshold))
    zeros = {k: jnp.zeros_like(leaves[k]) for k in layout.gates}
    saved, worth = layout.by_path(zeros), {}
    if by is not None:
        worth = layout.by_path({k: jnp.zeros_like(x, jnp.float32) for k, x in zeros.items()})
    own = inner.init(params)
    if _holds(own, optax.LookaheadState):
        raise ValueError(_LOOKAHEAD)
    state = fresh(float(full), options, own, saved, worth, flat.size)
    if by is not None:
        ranks = jnp.sum(flat != 0).astype(jnp.float32)
        whole = live + ranks if options.compress_to is not None else live
        target = jnp.asarray(_target(layout, leaves, options)).astype(jnp.float32)
        state = state._replace(size_target=target, met=whole <= target)
    _check_proximal(state.inner, options.proximal)
    if options.keep_one:
        ones = np.minimum(gates.lengths, 1).astype(np.float32)
        state = state._replace(least=form.of_living(jnp.array(ones)))
    parts = sum(len(layer.cores) + len(layer.gates) for layer in layout.layers)
    smallest = jnp.min(flat, where=flat != 0, initial=jnp.inf).astype(jnp.float32)
    return state._replace(
        size=live, full=live + 0, smallest=smallest, rests=jnp.ones((parts,), bool)
    )


def fresh(
    full: float, options: Options, inner: Any, saved: Any, worth: Any, gates: int
) -> RankAdaptiveState:
    """Builds the state of `rank_adaptive` at the beginning of a training.

    Args:
      full: size of the layers.
      saved: zeros for all gates, in dicts by the keys of their paths.
      worth: likewise, or none.
      gates: how many there are.
    """

    # Every field an array of its own: buffers that are shared cannot be donated.
    def number(x: Any) -> jax.Array:
        return jnp.array(UNKNOWN if x is None else x).astype(jnp.float32)

    def count() -> jax.Array:
        return jnp.zeros((), jnp.int32)

    return RankAdaptiveState(
        count=count(),
        late=jnp.zeros((), bool),
        loss=number(0.0),
        mass=number(0.0),
        size=number(full),
        least=number(0.0),
        loss_target=number(options.loss_target),
        size_target=number(options.size_target),
        scale=number(full if options.size_scale is None else options.size_scale),
        best=number(None),
        stalled=count(),
        skipped=count(),
        rests=jnp.ones((0,), bool),
        watch=fresh_watch(saved, gates, options.chance),
        worth=worth,
        full=number(full),
        smallest=number(1.0),
        by=jnp.array(options.by or 0, jnp.int32),
        tick=jnp.array(-1, jnp.int32),
        met=jnp.zeros((), bool),
        inner=inner,
    )


def _target(layout: Layout, leaves: list[Any], options: Options) -> Any:
    """Returns the target size by the options; ValueError if too small even with all ranks one."""
    ones = [(1,) * len(layer.gates) for layer in layout.layers]
    least = total(layout, ones, options.measure, options.rows)
    if options.size is not None:
        if known(options.size) and options.size < least:
            raise ValueError(
                f"size: expected at least {least}, that of all ranks one, got {options.size!r}"
            )
        return options.size
    dense, outside = sizes_of_all(layout, leaves)
    left = (dense + outside) / options.compress_to - outside  # type: ignore[operator]
    need = least + sum(len(layer.gates) for layer in layout.layers)
    if known(options.compress_to) and left < need:
        raise ValueError(
            f"compress_to: expected at most {(dense + outside) / (outside + need):.4g}, where all "
            f"ranks are one, got {options.compress_to!r}: of {dense + outside} parameters of the "
            f"dense model, {outside} are outside the tensorised layers and stay; tensorise more of "
            f"the model, as nn.tensorize(model, compress_to={options.compress_to!r}) does for this "
            "target, or give size, of the tensorised layers alone"
        )
    return left


_LOOKAHEAD = (
    "inner: expected an optimiser of one set of parameters, got optax.lookahead, which does not "
    "hand the loss on either; average the parameters outside, from update `by` on, or take "
    "optax.contrib.schedule_free_adamw"
)


def check_lookahead(params: Any) -> None:
    """Raises ValueError for parameters of `optax.lookahead`, which does not hand the loss on."""
    if isinstance(params, optax.LookaheadParams):
        raise ValueError(_LOOKAHEAD)


def _check_proximal(inner: Any, proximal: Any) -> None:
    if proximal is not None and _holds(inner, optax.MultiStepsState):
        raise ValueError(
            "proximal: expected None with optax.MultiSteps inside, where it would act in every "
            "mini-step; put optax.MultiSteps around rank_adaptive"
        )


def _holds(state: Any, kind: type) -> bool:
    """Whether an optimiser state contains a state of a given Optax type."""
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
    return any(isinstance(node, kind) for node in nodes)


def _check_reachable(layout: Layout, full: int, options: Options) -> None:
    """Raises ValueError if the option of the target size is below that of ranks one."""
    if not options.keep_one or options.switch is None:
        return
    ones = [tuple(min(r, 1) for r in layer.ranks) for layer in layout.layers]
    least = total(layout, ones, options.measure, options.rows)
    if known(options.size_target) and options.size_target < least:  # type: ignore[operator]
        raise ValueError(
            f"size_target: expected at least {least}, the size of all ranks one, got "
            f"{options.size_target!r}; keep_one=False lets whole layers go"
        )
    if known(options.size_fraction) and options.size_fraction * full < least:  # type: ignore[operator]
        raise ValueError(
            f"size_fraction: expected at least {least / full:.4g}, the share that all ranks one "
            f"have of {full}, got {options.size_fraction!r}; keep_one=False lets whole layers go"
        )
