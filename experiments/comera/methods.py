"""Methods to compare: models and optimisers, by the names of the option ``--methods``."""

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments.comera import sizes
from experiments.comera.tasks import Task
from tensorjax import nn, optim

Method = Literal["dense", "shrunk", "lowrank", "galore", "fixed", "early", "late", "importance"]
NAMES = {
    "dense": "dense",
    "shrunk": "dense, equal size",
    "lowrank": "low rank, equal size",
    "galore": "GaLore",
    "fixed": "tensorised, fixed rank, equal size",
    "early": "CoMERA early",
    "late": "CoMERA late",
    "importance": "CoMERA late, by importance",
}
Init = Literal["normal", "orthogonal"]
EQUAL: tuple[Method, ...] = ("shrunk", "lowrank", "fixed")
LATE: tuple[Method, ...] = ("late", "importance")
ADAPTIVE: tuple[Method, ...] = ("early", *LATE)
# Options that only the methods that prune look at, and of these the ones of the late stage alone.
OF_PRUNING = {
    "head_start", "gate_rate", "size_weight", "core_weight", "size_unit", "threshold",
}  # fmt: skip
OF_LATE = {"late_gate_rate", "late_size_weight", "late_growth", "mix"}
HIGHEST = 256  # no rank above it is tried


@dataclass(frozen=True)
class Options:
    """Options that the methods of one task share.

    Attributes:
        compression: The models of equal size have at most the dense one's parameters over this.
        head_start: CoMERA begins with so many times the parameters of the models of equal size.
        warmup: Share of the steps in which the learning rate rises; then it falls by a cosine, but
            for gates that are pressed on.
        gate_rate: Learning rate of gates that are pruned, whatever that of the rest: gates begin
            at one, and Adam's steps are as long as the rate, so its inverse is the number of steps
            in which a gate can die.
        late_gate_rate: The same of the late stage; None for ``gate_rate``. Where ranks are cut by
            importance, the gates that are left go by the rate of the rest.
        early: Share of the steps that are the early stage.
        size_weight: γ of the early stage.
        core_weight: β of both stages.
        late_size_weight: w₂ of the late stage at its beginning; w₁ is 1.
        late_growth: By what w₂ has grown at the end, exponentially: indices that the loss does not
            miss go first, and S₀ is met all the same.
        mix: ρ of the late stage. While S > S₀ the loss weighs no more than this, so a small one has
            the cores stand still while gates die.
        size_unit: Sizes are weighed in so many times that of the tensorised layers at the start. As
            ρ weighs size as well as loss, this alone can have size weigh less than loss.
        threshold: τ, below which a gate is pruned.
        galore_rank: Rank of the projected gradients.
        galore_gap: Steps between two projections.
        galore_scale: α, of the projected updates.
        init: How factorised layers begin, those of low rank among them.
    """

    compression: float
    head_start: float = 1.25
    warmup: float = 0.1
    gate_rate: float = 0.01
    late_gate_rate: float | None = None
    early: float = 0.67
    size_weight: float = 0.1
    core_weight: float = 1e-4
    late_size_weight: float = 0.3
    late_growth: float = 30.0
    mix: float = 1.0
    size_unit: float = 1.0
    threshold: float = 1e-2
    galore_rank: int = 32
    galore_gap: int = 200
    galore_scale: float = 0.25
    init: Init = "orthogonal"

    def settings(self, method: Method) -> dict[str, Any]:
        """Returns the options that a method depends on, as JSON."""
        unused = {"early"}  # the stops of a training tell it
        if method not in ADAPTIVE:
            unused |= OF_PRUNING
        if method not in LATE:
            unused |= OF_LATE
        if method == "importance":
            unused.add("late_gate_rate")
        return {name: value for name, value in asdict(self).items() if name not in unused}


@dataclass(frozen=True, eq=False)
class Variant:
    """Model and optimiser of a method, with the model's number of parameters.

    Attributes:
        method: One of `NAMES`.
        build: Makes the model.
        optimizer: From the learning rate to the optimiser.
        numbers: Parameters of the model to begin with.
        note: What was chosen to reach the size.
    """

    method: Method
    build: Callable[[nnx.Rngs], nnx.Module]
    optimizer: Callable[[float], Any]
    numbers: int
    note: str


def variant(
    task: Task,
    method: Method,
    options: Options,
    *,
    switch: int | None = None,
    fraction: float | None = None,
) -> Variant:
    """Returns the model and the optimiser of a method on a task.

    Args:
        task: What is learnt.
        method: One of `NAMES`.
        options: Those of the task.
        switch: The step at which the late stage begins; of the methods in `LATE` only.
        fraction: S₀ of the late stage, as a share of the size at ``switch``.
    """
    dense = sizes.count(lambda rngs: task.make(task.config, rngs=rngs))
    budget = int(dense / options.compression)
    build, note = _model(task, "early" if method in LATE else method, budget, options)
    unit = options.size_unit * sizes.count(build, "core") if method in ADAPTIVE else None

    def optimizer(rate: float) -> Any:
        gates = options.gate_rate if method in ADAPTIVE else None
        if method == "importance":
            gates = None
        elif switch is not None and options.late_gate_rate is not None:
            gates = options.late_gate_rate
        inner = adam(rate, task.steps, options, gates=gates)
        if method == "galore":
            return galore(rate, task.steps, options)
        if method not in ADAPTIVE:
            return inner
        late = {} if switch is None else _late(options, switch, task.steps, fraction)
        return optim.rank_adaptive(
            inner, size_weight=options.size_weight, core_weight=options.core_weight,
            threshold=options.threshold, size_scale=unit, **late,
        )  # fmt: skip

    return Variant(method, build, optimizer, sizes.count(build), note)


def _late(options: Options, switch: int, steps: int, fraction: float | None) -> dict[str, Any]:
    """Returns the options of the optimiser's late stage."""
    weight = optax.schedules.exponential_decay(
        options.late_size_weight, steps - switch, options.late_growth, transition_begin=switch
    )
    return {
        "switch": switch, "size_fraction": fraction, "late_size_weight": weight, "mix": options.mix,
    }  # fmt: skip


@functools.lru_cache(maxsize=1)  # the late stage has the model of the early one
def _model(
    task: Task, method: Method, budget: int, options: Options
) -> tuple[Callable[[nnx.Rngs], nnx.Module], str]:
    """Returns a function that builds a method's model within its parameter budget, and a note.

    While a size is searched, factors begin normal: as many parameters, built several times faster.
    """

    def dense(config: Any) -> Callable[[nnx.Rngs], nnx.Module]:
        return lambda rngs: task.make(config, rngs=rngs)

    def factorised(spec: Any, config: Any) -> Callable[[nnx.Rngs], nnx.Module]:
        return lambda rngs: task.make(config, linear=spec, embedding=spec, rngs=rngs)

    def fitting(make: Callable[[int], Any], target: int, high: int) -> int:
        return sizes.largest(lambda k: sizes.count(make(k)), target, high)

    if method in ("dense", "galore"):
        return dense(task.config), ""
    if method == "shrunk":
        k = fitting(lambda k: dense(task.narrow(task.config, k)), budget, task.widest)
        return dense(task.narrow(task.config, k)), f"k = {k}"
    if method == "lowrank":
        return _low_rank(task, budget, factorised, fitting, options.init)
    target = budget if method == "fixed" else int(options.head_start * budget)

    def trains(rank: int, init: Init = "normal") -> Callable[[nnx.Rngs], nnx.Module]:
        return factorised(nn.TT(rank=rank, init=init), task.config)

    rank = fitting(trains, target, HIGHEST)
    return trains(rank, options.init), f"rank {rank}"


def _low_rank(
    task: Task, budget: int, factorised: Any, fitting: Any, init: Init
) -> tuple[Callable[[nnx.Rngs], nnx.Module], str]:
    """Chooses a low-rank model within a budget: by rank, else rank 4 of a narrower model."""

    def low_rank(rank: int, init: Init = "normal") -> Callable[[nnx.Rngs], nnx.Module]:
        return factorised(nn.LowRank(rank, init=init), task.config)

    if sizes.count(low_rank(1)) <= budget:
        rank = fitting(low_rank, budget, HIGHEST)
        return low_rank(rank, init), f"rank {rank}"

    def narrow(k: int, init: Init = "normal") -> Callable[[nnx.Rngs], nnx.Module]:
        return factorised(nn.LowRank(4, init=init), task.narrow(task.config, k))

    k = fitting(narrow, budget, task.widest)
    return narrow(k, init), f"rank 4, k = {k}"


class RateState(NamedTuple):
    """Learning rate kept as data, so that all rates share one compiled program."""

    rate: jax.Array
    count: jax.Array


def at_rate(
    rate: float, steps: int, options: Options, *, gates: float | None = None
) -> optax.GradientTransformation:
    """Returns a transformation that scales updates by a rate: linear warm-up, cosine decay.

    Gates go by a rate of their own if ``gates`` is one; it does not fall, and prunes to the end.
    """
    begin = max(1, round(options.warmup * steps))
    share = optax.schedules.warmup_cosine_decay_schedule(0.0, 1.0, begin, max(steps, begin + 1))

    def init(params: Any) -> RateState:
        return RateState(jnp.asarray(rate, jnp.float32), jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, RateState]:
        count = state.count + 1  # the schedule is zero at count 0: begin with the next
        other = -state.rate * share(count)
        gate = other
        if gates is not None:
            gate = -gates * jnp.minimum(count / begin, 1.0)

        def moved(label: str, u: jax.Array) -> jax.Array:
            return (gate if label == "gate" else other).astype(u.dtype) * u

        return jax.tree.map(moved, optim.labels(updates), updates), RateState(state.rate, count)

    return optax.GradientTransformation(init, update)


def adam(
    rate: float, steps: int, options: Options, *, gates: float | None = None
) -> optax.GradientTransformation:
    """Returns Adam without weight decay; ``gates`` is the gates' own rate, as in `at_rate`."""
    return optax.chain(optax.scale_by_adam(), at_rate(rate, steps, options, gates=gates))


def galore(rate: float, steps: int, options: Options) -> optax.GradientTransformation:
    """Returns GaLore for kernels of linear layers whose sides exceed its rank, and Adam elsewhere.

    Embeddings, biases and layer norms are not projected, as in the paper.
    """
    projected = scale_by_galore(options.galore_rank, options.galore_gap, options.galore_scale)
    return optax.chain(projected, at_rate(rate, steps, options))


def scale_by_galore(rank: int, gap: int, scale: float) -> optax.GradientTransformation:
    """Returns the steps of `galore` before they are multiplied by a learning rate.

    Args:
        rank: Of the projected gradients.
        gap: Steps between two projections.
        scale: Of the projected steps.
    """

    def projected(params: Any) -> Any:
        def one(path: Any, p: Any) -> Any:
            inside = "kernel" in jax.tree_util.keystr(path) and p.ndim == 2
            if inside and min(p.shape) > rank:
                return optax.contrib.GaLoreDimensionNumbers()
            return None

        return jax.tree_util.tree_map_with_path(one, params)

    # Its own learning rate is one: ours comes last, so that it may be data.
    return optax.contrib.galore(
        -1.0, rank=rank, update_proj_gap=gap, scale=scale, weight_dimension_numbers=projected
    )
