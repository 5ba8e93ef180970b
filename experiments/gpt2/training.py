"""Training of a GPT-2 in a parallel layout: compiled steps, evaluations, checkpoints."""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from experiments._process_settings import compiler_options
from experiments.gpt2.checkpoints import Checkpoints
from experiments.gpt2.progress import Clock, Leg, Record, check_finite
from tensorjax import parallel
from tensorjax.models.gpt2 import GPT2, GPT2Config

Rows = Callable[[slice], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Recipe of a training: steps, batch, learning rate, decay, clipping.

    Attributes:
        steps: Of the optimiser.
        batch: Sequences of a step.
        rate: Largest learning rate; a linear warm-up before it, a cosine to a tenth behind it.
        warmup: Steps of the warm-up.
        decay: Weight decay of matrices and tables.
        clip: Largest norm of the gradient.
        seed: Of the parameters, the batches and the dropout.
    """

    steps: int
    batch: int
    rate: float
    warmup: int
    decay: float
    clip: float
    seed: int

    def optimizer(self) -> optax.GradientTransformation:
        """Returns AdamW as is usual for GPT-2 (β₂ = 0.95), with clipping."""
        warmup = min(self.warmup, self.steps // 2)
        rate = optax.warmup_cosine_decay_schedule(
            self.rate / max(warmup, 1), self.rate, warmup, self.steps, self.rate / 10
        )
        return optax.chain(
            optax.clip_by_global_norm(self.clip),
            optax.adamw(rate, b2=0.95, weight_decay=self.decay, mask=_decayed),
        )


class Programs:
    """Compiled programs of a GPT-2 training in a layout.

    Args:
        config: Sizes of the model.
        layout: How it lies on the devices.
        recipe: How it is trained.
        hasty: Compile for a short training, where JAX runs on a CPU.
        **options: Of `GPT2`, such as ``dtype`` and ``linear``.
    """

    def __init__(
        self,
        config: GPT2Config,
        layout: parallel.Layout,
        recipe: Recipe,
        *,
        hasty: bool = False,
        **options: Any,
    ) -> None:
        def build(key: jax.Array) -> Any:
            return nnx.split(GPT2(config, rngs=nnx.Rngs(params=key), **options))[1]

        model = nnx.eval_shape(lambda: GPT2(config, rngs=nnx.Rngs(0), **options))
        self.config, self.layout, self.recipe = config, layout, recipe
        self.numbers = model.numbers
        self.graph, self.shapes = nnx.split(model)
        self.specs = jax.tree.map(lambda axes: layout.spec(tuple(axes)), model.axes())
        self.optimizer = recipe.optimizer()
        self.data = layout.data_spec()
        where = None
        if layout.mesh is not None:
            where = (
                parallel.shardings(self.specs, layout.mesh),
                parallel.state_shardings(self.optimizer, self.shapes, self.specs, layout.mesh),
            )

        def begin(key: jax.Array) -> tuple[Any, Any]:
            params = build(key)
            return params, self.optimizer.init(params)

        # Drawing by Threefry would take longer to compile than the steps.
        self.key = jax.random.key(recipe.seed, impl="unsafe_rbg")
        jit = functools.partial(
            jax.jit,
            compiler_options=compiler_options(hasty),
        )
        self._begin = jit(begin, out_shardings=where)
        self._step = jit(self._stepped, donate_argnums=(0, 1), out_shardings=_with(where, P()))
        self._sums = jit(self._summed)

    def begin(self) -> tuple[Any, Any]:
        """Draws initial parameters, and returns them with the optimiser state."""
        return self._begin(self.key)

    def compiled(self, params: Any, state: Any) -> tuple[Any, float]:
        """Compiles the program of a training step; returns it and the seconds taken."""
        start = time.perf_counter()
        rows = np.zeros((self.recipe.batch, self.config.length + 1), np.int32)
        batch = self.place(rows.__getitem__)
        program = self._step.lower(params, state, *batch, self._dropout(0)).compile()
        return program, time.perf_counter() - start

    def step(self, program: Any, params: Any, state: Any, rows: Rows, number: int) -> Any:
        """Runs one training step; returns parameters, optimiser state, and loss before it.

        The loss is NaN where the gradient is not finite: parameters are lost then.
        """
        return program(params, state, *self.place(rows), self._dropout(number))

    def loss(self, params: Any, rows: np.ndarray) -> float:
        """Computes the mean loss over rows of tokens (n, length + 1)."""
        size, total, count = self.recipe.batch, 0.0, 0.0
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            weights = np.zeros((size, self.config.length), np.float32)
            weights[: len(part)] = 1
            # One shape for all batches: rows are repeated, and weigh nothing.
            part = np.concatenate([part, part[:1].repeat(size - len(part), 0)])
            placed = self._placed(weights.shape, weights.__getitem__)
            sums = self._sums(params, *self.place(part.__getitem__), placed)
            total, count = total + float(sums[0]), count + float(sums[1])
        return total / count

    def place(self, rows: Rows) -> tuple[Any, Any]:
        """Places inputs and targets on the devices as the layout requires.

        Args:
            rows: Gives (n, length + 1) tokens of n rows of the batch. A process asks for those
                that its own devices work on, and for no others.
        """
        shape = (self.recipe.batch, self.config.length)
        return (
            self._placed(shape, lambda part: rows(part)[:, :-1]),
            self._placed(shape, lambda part: rows(part)[:, 1:]),
        )

    def _placed(self, shape: tuple[int, int], rows: Rows) -> Any:
        if self.layout.mesh is None:
            return np.ascontiguousarray(rows(slice(None)))
        where = NamedSharding(self.layout.mesh, self.data)

        def block(part: Any) -> np.ndarray:  # the length is never split
            return np.ascontiguousarray(rows(part[0]))

        return jax.make_array_from_callback(shape, where, block)

    def _dropout(self, number: int) -> jax.Array | None:
        return jax.random.fold_in(self.key, number) if self.config.dropout else None

    def _losses(self, params: Any, tokens: Any, targets: Any, weights: Any, key: Any) -> Any:
        """Computes the sums of losses and of weights over all devices."""

        def local(params: Any, tokens: Any, targets: Any, weights: Any, key: Any) -> Any:
            model = nnx.merge(self.graph, params)
            return model.loss(tokens, targets, weights, layout=self.layout, key=key)

        data = self.data
        run = self.layout.over(local, (self.specs, data, data, data, P()), (P(), P()))
        return run(params, tokens, targets, weights, key)

    def _summed(self, params: Any, tokens: Any, targets: Any, weights: Any) -> Any:
        return self._losses(params, tokens, targets, weights, None)

    def _stepped(self, params: Any, state: Any, tokens: Any, targets: Any, key: Any) -> Any:
        def mean(params: Any) -> jax.Array:
            weights = jnp.ones(tokens.shape, jnp.float32)
            total, count = self._losses(params, tokens, targets, weights, key)
            return total / count

        loss, gradient = jax.value_and_grad(mean)(params)
        # The clipping needs this norm too, so it is computed once.
        loss = jnp.where(jnp.isfinite(optax.tree.norm(gradient)), loss, jnp.nan)
        updates, state = self.optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss


def train(
    programs: Programs,
    stream: np.ndarray,
    valid: np.ndarray,
    *,
    evaluations: int,
    peak: float,
    checkpoints: Checkpoints,
    every: float,
    watch: Callable[[Record], None],
) -> tuple[Any, list[Record]]:
    """Trains a GPT-2 from its newest checkpoint, or from the beginning.

    Args:
        programs: Compiled ones.
        stream: Tokens to learn from.
        valid: (n, length + 1) rows to evaluate on.
        evaluations: How many, evenly spread; the last one is at the end.
        peak: Operations that the devices do in a second, for the utilisation.
        checkpoints: Where states are kept.
        every: Seconds between two of them, at whatever step they have passed; several processes,
            which have to write together, look at the clock every few steps.
        watch: Called with the record of every evaluation.

    Returns:
        The parameters, and all records.

    Raises:
        FloatingPointError: A loss or a gradient is not finite; a few steps later, for the device
            is not waited for. What is in the newest checkpoint is from before.
    """
    recipe = programs.recipe
    params, state = programs.begin()
    done, records, known = 0, [], {}
    found = checkpoints.restore((params, state))
    if found is not None:
        done, (params, state), records, known = found
    program, seconds = None, 0.0
    if done < recipe.steps:
        program, seconds = programs.compiled(params, state)
    clock = Clock(every)
    for stop in _stops(done, recipe.steps, evaluations):
        leg = Leg(checkpoints, **known)
        leg.compile_seconds += seconds
        for number, rows in _batches(stream, programs.config.length, recipe, done, stop):
            params, state, loss = programs.step(program, params, state, rows, number)
            leg.add(number, loss)
            if number + 1 < stop and clock.due(step=number + 1):
                checkpoints.save(number + 1, (params, state), records, leg.settled())
                clock.restart()
                leg.resume()
        tokens = recipe.batch * programs.config.length
        found = leg.record(tokens, programs.config.flops() / peak)
        train, score = found.pop("train"), programs.loss(params, valid)
        record = {"step": stop, "train": train, "valid": score, **found}
        check_finite(record["valid"], f"evaluation after step {stop}", checkpoints)
        records.append(record)
        watch(record)
        done, seconds, known = stop, 0.0, {}
        if clock.due(now=stop == recipe.steps):
            checkpoints.save(stop, (params, state), records)
            clock.restart()
    return params, records


def _stops(done: int, steps: int, evaluations: int) -> list[int]:
    stops = {round(steps * k / evaluations) for k in range(1, evaluations + 1)}
    return sorted(stop for stop in stops if stop > done)


def _batches(
    stream: np.ndarray, length: int, recipe: Recipe, start: int, stop: int
) -> Iterator[tuple[int, Rows]]:
    """Yields step numbers and functions that give their rows, drawn by the step's number.

    What a step sees follows from its number alone, so a training that was stopped goes on as if it
    had not been.
    """
    if len(stream) <= length:
        raise ValueError(
            f"length: expected less than the {len(stream)} tokens to learn from, got {length}"
        )
    for number in range(start, stop):
        drawn = np.random.default_rng([recipe.seed, number])
        first = drawn.integers(0, len(stream) - length, recipe.batch)
        # Bound now: the next step draws others.
        yield number, lambda part, f=first: stream[f[part][:, None] + np.arange(length + 1)]


def _decayed(params: Any) -> Any:
    """Returns which parameters have weight decay: all but biases, norms and gates."""

    def decays(path: Any, leaf: Any) -> bool:
        names = {str(entry.key) for entry in path if hasattr(entry, "key")}
        return not names & {"bias", "scale", "gates"}

    return jax.tree_util.tree_map_with_path(decays, params)


def _with(where: Any, last: P) -> Any:
    """Appends the sharding of one more array to those of parameters and optimiser state."""
    if where is None:
        return None
    mesh = jax.tree.leaves(where)[0].mesh
    return (*where, NamedSharding(mesh, last))
