"""Training in compiled chunks of steps, with evaluations, rank shrinking and checkpoints."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments._process_settings import compiler_options
from experiments.comera import checkpoint
from experiments.comera.tasks import Arrays, Task
from tensorjax import optim

Watch = Callable[[dict[str, Any]], None]
CHUNKS = 24  # calls of the compiled program in a training, about


class State(NamedTuple):
    """State of a training: parameters, optimiser, other variables, random key."""

    params: Any
    opt_state: Any
    rest: Any  # what the model keeps besides parameters: the streams of its dropout
    key: jax.Array


@dataclass(frozen=True)
class Plan:
    """Plan of a training: the steps of evaluations, of shrinking, and of the branch.

    Attributes:
        stops: After which steps the model is evaluated; the last one ends the training.
        shrinks: Stops at which pruned ranks are cut away.
        target: Live parameters that must be reached before an evaluation counts; None for all.
        branch: A stop whose state is kept for the trainings that go on from it, or None.
    """

    stops: tuple[int, ...]
    shrinks: tuple[int, ...] = ()
    target: float | None = None
    branch: int | None = None


@dataclass
class Programs:
    """Compiled programs of one method on one task, shared by its seeds and rates.

    Attributes:
        task: What is learnt.
        update: Of the optimiser.
        threshold: Gates at or below it count as pruned.
        hasty: Compile for short trainings.
        compiled: Step programs by the shapes they are for.
    """

    task: Task
    update: Callable[..., Any]
    threshold: float
    train_graph: Any
    eval_graph: Any
    hasty: bool = False
    compiled: dict[Any, Any] = field(default_factory=dict)
    forward: Any = None

    def steps(self, state: State, data: Any, rows: jax.Array) -> tuple[State, jax.Array, float]:
        """Runs one training step for each row of sample indices; returns state and losses.

        Returns:
            (state, losses, seconds that it took to compile for these shapes, if it had to).
        """
        arguments = (state, data, rows)
        shapes = tuple((x.shape, str(x.dtype)) for x in jax.tree.leaves(arguments))
        seconds = 0.0
        if shapes not in self.compiled:
            start = time.perf_counter()
            lowered = jax.jit(self._chunk, donate_argnums=0).lower(*arguments)
            program = lowered.compile(compiler_options(self.hasty, unoptimised=True))
            self.compiled[shapes], seconds = program, time.perf_counter() - start
        state, losses = self.compiled[shapes](*arguments)
        return state, losses, seconds

    def _chunk(self, state: State, data: Any, rows: jax.Array) -> tuple[State, jax.Array]:
        def step(state: State, chosen: jax.Array) -> tuple[State, jax.Array]:
            key, drawn = jax.random.split(state.key)
            batch = {name: array[chosen] for name, array in data.items()}

            def loss(params: Any) -> tuple[jax.Array, Any]:
                model = nnx.merge(self.train_graph, params, state.rest)
                value = self.task.loss(model, batch, drawn)
                return value, nnx.state(model, nnx.Not(nnx.Param))

            (value, rest), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
            updates, opt_state = self.update(gradient, state.opt_state, state.params, value=value)
            params = optax.apply_updates(state.params, updates)
            return State(params, opt_state, rest, key), value

        return jax.lax.scan(step, state, rows)

    def forget(self) -> None:
        """Drops compiled programs for shapes that will not come again, to free memory."""
        self.compiled = dict(list(self.compiled.items())[:1])
        self.forward = None
        jax.clear_caches()

    def score(self, state: State, arrays: Arrays) -> dict[str, float]:
        """Computes the task's metrics on a data split."""
        count = len(next(iter(arrays.values())))
        size = self.task.evaluated
        found = []
        for first in range(0, count, size):
            part = {name: array[first : first + size] for name, array in arrays.items()}
            short = size - len(next(iter(part.values())))
            if short:  # one shape for all batches: rows are repeated
                part = {name: np.concatenate([a, a[-1:].repeat(short, 0)])
                        for name, a in part.items()}  # fmt: skip
            out = self._outputs(state.params, state.rest, part)
            found.append(np.asarray(out)[: size - short])
        return self.task.score(np.concatenate(found), arrays)

    def _outputs(self, params: Any, rest: Any, batch: Any) -> jax.Array:
        if self.forward is None:
            self.forward = jax.jit(
                lambda params, rest, batch: self.task.outputs(
                    nnx.merge(self.eval_graph, params, rest), batch
                ),
                compiler_options=compiler_options(self.hasty, unoptimised=True),
            )
        return self.forward(params, rest, batch)


def prepare(
    task: Task,
    build: Callable[[nnx.Rngs], nnx.Module],
    optimizer: Callable[[float], Any],
    threshold: float,
    *,
    hasty: bool = False,
) -> tuple[Programs, Callable[..., State]]:
    """Returns a method's programs, and a function from (seed, rate) to the initial state.

    That state is not made, but described, where ``abstract`` is passed as true.
    """

    def drawn(seed: int, rate: float) -> State:
        # Drawing by Threefry would take longer to compile than the steps.
        keys = jax.random.split(jax.random.key(seed, impl="unsafe_rbg"), 3)
        model = build(nnx.Rngs(params=keys[0], dropout=keys[1]))
        _, params, rest = nnx.split(model, nnx.Param, ...)
        return State(params, optimizer(rate).init(params), rest, jax.random.key(seed))

    def begin(seed: int, rate: float, *, abstract: bool = False) -> State:
        if abstract:
            return jax.eval_shape(lambda: drawn(seed, rate))
        state = drawn(seed, rate)
        # Optimisers begin with one zero in many places; what is given up must be there once.
        moments = jax.tree.map(lambda x: jnp.array(np.array(x)), state.opt_state)
        return state._replace(opt_state=moments)

    model = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    model.train()
    train_graph = nnx.split(model, nnx.Param, ...)[0]
    model.eval()
    eval_graph = nnx.split(model, nnx.Param, ...)[0]
    update = optax.with_extra_args_support(optimizer(0.0)).update
    return Programs(task, update, threshold, train_graph, eval_graph, hasty), begin


def train(
    programs: Programs,
    state: State,
    plan: Plan,
    *,
    seed: int,
    watch: Watch,
    start: int = 0,
    saved: Path | None = None,
    every: float = 60.0,
    branch: Path | None = None,
) -> dict[str, Any]:
    """Trains by a plan of steps; returns the result as JSON.

    Args:
        programs: Those of the method.
        state: To begin with; its arrays are given up.
        plan: When what happens.
        seed: Of the order of the samples.
        watch: Called with the record of every evaluation.
        start: Steps that were done before.
        saved: Where the state is kept every so often, and taken from if it is there.
        every: Seconds between two checkpoints; they fall between two calls of the step program.
        branch: Where the state at ``plan.branch`` goes.

    Raises:
        FloatingPointError: A loss is not finite; the rest of the training would be for nothing.
    """
    records: list[dict[str, Any]] = []
    leg = _Leg(start)
    found = checkpoint.load(saved, state) if saved is not None else None
    if found is not None:
        state, records = found[0], found[1]["records"]
        leg = _Leg(**found[1]["leg"]) if "leg" in found[1] else _Leg(records[-1]["step"])
    data = {name: jnp.asarray(a) for name, a in programs.task.splits["train"].items()}
    last_saved = time.perf_counter()

    def keep(state: State) -> None:
        nonlocal last_saved
        if saved is not None and time.perf_counter() - last_saved > every:
            checkpoint.save(saved, state, {"records": records, "leg": dataclasses.asdict(leg)})
            last_saved = time.perf_counter()

    chunk = chunk_of(programs.task.steps)
    order = Order(len(next(iter(data.values()))), programs.task.batch, seed)
    for stop in plan.stops:
        if stop <= (records[-1]["step"] if records else start):
            continue
        while leg.done < stop:
            # Chunks are counted from the last evaluation, also behind a checkpoint.
            size = min(chunk, stop - leg.done)
            state = leg.go_on(programs, state, data, order(leg.done, leg.done + size))
            if leg.done < stop:
                keep(state)
        record = leg.record()
        state = _evaluated(programs, state, plan, record, records)
        records.append(record)
        watch(record)
        leg = _Leg(stop)
        if branch is not None and stop == plan.branch:
            checkpoint.save(branch, state, {"records": records})
        if stop < plan.stops[-1]:
            keep(state)
    if saved is not None:
        checkpoint.remove(saved)
    if plan.shrinks:
        programs.forget()
    found = {"records": records, "best": best(records)}
    if plan.target is not None:
        patience = max(1, (plan.stops[-1] - start) // 4)
        found["status"] = optim.status(state.opt_state, patience=patience).status
    return found


def chunk_of(steps: int) -> int:
    """Returns the number of steps in one call of a compiled program.

    All evaluations fall between two calls.
    """
    return max(1, steps // CHUNKS)


@dataclass
class _Leg:
    """Steps between two evaluations, with their losses and times so far.

    Attributes:
        done: Steps of the training.
        losses: Of these steps.
        seconds: Per step, of every call of the program.
        compilations: How many programs were compiled.
        compile_seconds: In how long.
    """

    done: int
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    compilations: int = 0
    compile_seconds: float = 0.0

    def go_on(self, programs: Programs, state: State, data: Any, rows: np.ndarray) -> State:
        """Runs training steps by one call of the program; returns the state."""
        begin = time.perf_counter()
        state, losses, fresh = programs.steps(state, data, jnp.asarray(rows))
        found = np.asarray(losses)  # waits for the steps
        self.seconds.append((time.perf_counter() - begin - fresh) / len(rows))
        self.compilations += fresh > 0
        self.compile_seconds += fresh
        lost = np.flatnonzero(~np.isfinite(found))
        if len(lost):
            raise FloatingPointError(
                f"step {self.done + int(lost[0])}: expected a finite loss, got "
                f"{found[lost[0]]}; take a lower learning rate"
            )
        self.losses += [float(x) for x in found]
        self.done += len(rows)
        return state

    def record(self) -> dict[str, Any]:
        """Returns the number of steps, mean loss and times since the last evaluation."""
        return {
            "step": self.done,
            "loss": float(np.mean(self.losses)),
            "seconds": float(np.median(self.seconds)),
            "compilations": self.compilations,
            "compile_seconds": self.compile_seconds,
        }


def _evaluated(
    programs: Programs, state: State, plan: Plan, record: dict[str, Any], past: Sequence[Any]
) -> State:
    """Evaluates a state into ``record``; returns it, shrunk if the plan says so."""
    params, task = state.params, programs.task
    record["numbers"] = optim.size(params, everything=True, threshold=programs.threshold)
    record["tensorised"] = optim.size(params, threshold=programs.threshold)
    record["ranks"] = optim.ranks(params, threshold=programs.threshold)
    record["valid"] = programs.score(state, task.splits["valid"])
    record["score"] = record["valid"][task.metric]
    record["counts"] = plan.target is None or record["tensorised"] <= plan.target
    before = best(past)
    if before is None or not before["counts"] or record["score"] > before["score"]:
        record["test"] = programs.score(state, task.splits["test"])
    if record["step"] in plan.shrinks:
        params, opt_state = optim.shrink(state.params, state.opt_state)
        state = state._replace(params=params, opt_state=opt_state)
    record["stored"] = sum(x.size for x in jax.tree.leaves(state.params))
    return state


def best(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Returns the evaluation to report: the best in validation of those that count.

    If none counts, the last one.
    """
    tested = [r for r in records if "test" in r]
    counting = [r for r in tested if r["counts"]]
    if counting:
        return max(counting, key=lambda r: r["score"])
    return tested[-1] if tested else None


class Order:
    """Order of samples in training: a new permutation every epoch, equal for all methods."""

    def __init__(self, count: int, batch: int, seed: int) -> None:
        if count < batch:
            raise ValueError(f"batch: expected at most the {count} training samples, got {batch}")
        self.count, self.batch, self.seed = count, batch, seed

    def __call__(self, start: int, stop: int) -> np.ndarray:
        """Returns the sample indices (stop − start, batch) of a range of steps."""
        per_epoch = self.count // self.batch
        rows = []
        for epoch in range(start // per_epoch, (stop - 1) // per_epoch + 1):
            first = epoch * per_epoch
            drawn = np.random.default_rng([self.seed, epoch]).permutation(self.count)
            drawn = drawn[: per_epoch * self.batch].reshape(per_epoch, self.batch)
            rows.append(drawn[max(start - first, 0) : stop - first])
        return np.concatenate(rows).astype(np.int32)
