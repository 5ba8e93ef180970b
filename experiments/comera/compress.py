"""The default way of compressing a training, beside other models of equal size.

A dense model learns images, or texts. For each size, so many times fewer parameters than dense,
are trained:

- "narrow dense": the same model of smaller width;
- "low rank": W = U D V, of one rank for all layers, as large as the size admits;
- "one rank": tensor trains, likewise;
- "one rank, TT-matrix": likewise, `nn.TTMatrix`;
- "GaLore, truncated": the dense model, trained by `optax.contrib.galore`, then cut to low rank;
- "default": the dense model by ``nn.tensorize(model, compress_to=fewer)``, under
  ``optim.rank_adaptive(inner, compress_to=fewer, by=…)``, with all else by default.

All have the same inner optimiser, AdamW with a warm-up and a cosine, samples and order. The rate is
the best by test loss on the first seed, of the same rates for all methods; so every method is
favoured alike. Images are scikit-learn's digits, or a file of arrays x_train, y_train, x_test,
y_test: ``python -m experiments run comera/compress --data PATH.npz``. The models, ``--model``, are
a perceptron of two hidden layers, a vision transformer and a GRU over the rows of an image, and
GPT-2 on Python's standard library.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments import Run
from experiments.comera import methods, models, sizes
from experiments.comera.models import Samples
from tensorjax import nn, optim

Method = Literal[
    "dense", "narrow dense", "low rank", "one rank", "one rank, TT-matrix", "GaLore, truncated",
    "default",
]  # fmt: skip
METHODS: tuple[Method, ...] = get_args(Method)
# Methods that train the same dense model whatever the size.
WHOLE: tuple[Method, ...] = ("dense", "GaLore, truncated")
# Rank, steps between projections and scale of GaLore, as in the other experiments here.
GALORE = (32, 200, 0.25)
CAPTION = (
    "{}, {} samples, dense {} parameters, {} updates: test accuracy [%], test and training loss, "
    "means over seeds {}; training loss of the last 50 updates; rate: best by test loss on the "
    "first seed; ms: processor time of an update, at the ranks that a training begins with, median"
)


@dataclass(frozen=True)
class Config:
    """Options of the compression comparison."""

    model: models.Kind = "mlp"
    """What is trained; "gpt2" learns texts, the others images."""
    data: Path | None = None
    """File .npz with x_train, y_train, x_test and y_test; None: scikit-learn's digits."""
    methods: tuple[Method, ...] = METHODS
    """What is compared."""
    fewer: tuple[float, ...] = (5.0, 10.0, 20.0, 40.0)
    """How many times fewer parameters than dense, gates and biases included."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of weights and order of the samples."""
    rates: tuple[float, ...] = (0.003, 0.01, 0.02)
    """Learning rates to choose from."""
    images: int = 20_000
    """Most images, or rows of texts, to train on."""
    steps: int = 1200
    """Updates."""
    batch: int = 128
    """Samples of an update."""
    width: int = 256
    """Of the hidden layers."""
    by: float = 0.67
    """Share of the updates by which the size is met."""

    @classmethod
    def quick(cls) -> "Config":
        """Returns the options of a quick run: digits, one size, one seed and one rate."""
        return cls(fewer=(20.0,), seeds=(0,), rates=(0.02,), steps=240, batch=64, width=128)


def samples(config: Config) -> Samples:
    """Loads the samples that the model of the options learns."""
    if config.model == "gpt2":
        return models.texts(config.images)
    return models.digits() if config.data is None else models.images(config.data, config.images)


class Trainer:
    """Training of one method at one size: one program for all rates and seeds.

    Args:
      config: options of the comparison.
      data: samples.
      method: what is trained.
      fewer: how many times fewer parameters than dense; a method in `WHOLE` does not look at it.
    """

    def __init__(self, config: Config, data: Samples, method: Method, fewer: float) -> None:
        self.config, self.data, self.method, self.fewer = config, data, method, fewer
        self.dense = models.builder(config.model, data)
        self.spec, self.width = self._sized()
        self.run = jax.jit(self._run, static_argnums=0)
        self.programs: dict[Any, Any] = {}
        self.trained: dict[tuple[float, int], Any] = {}

    def _sized(self) -> tuple[Any, int]:
        """Returns the spec of all layers, None for dense ones, and the width for the size."""
        width = self.config.width
        if self.method in (*WHOLE, "default"):
            return None, width
        most = self.most(self.fewer)
        if self.method == "narrow dense":
            return None, sizes.largest(lambda n: sizes.count(self.dense(n)), most, width)
        kind = {"low rank": nn.LowRank, "one rank": nn.TT}.get(self.method, nn.TTMatrix)

        def count(rank: int) -> int:
            return sizes.count(lambda rngs: _all(self.dense(width)(rngs), kind(rank=rank), rngs))

        return kind(rank=sizes.largest(count, most, 256)), width

    def most(self, fewer: float) -> int:
        """Returns the parameters that a model of so many times fewer than dense may have."""
        return int(sizes.count(self.dense(self.config.width)) / fewer)

    def _model(self, seed: int) -> Any:
        rngs = nnx.Rngs(seed)
        model = self.dense(self.width)(rngs)
        if self.method == "default":
            return nn.tensorize(model, compress_to=self.fewer)
        return model if self.spec is None else _all(model, self.spec, rngs)

    def _optimizer(self, rate: Any) -> Any:
        steps = self.config.steps
        shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, steps // 20, steps)
        if self.method == "GaLore, truncated":
            steps_of = methods.scale_by_galore(*GALORE)
            return optax.chain(steps_of, optax.scale_by_learning_rate(lambda n: rate * shape(n)))
        inner = optax.adamw(lambda count: rate * shape(count))
        if self.method != "default":
            return inner
        by = int(self.config.by * steps)
        return optim.rank_adaptive(inner, compress_to=self.fewer, by=by)

    def _run(self, graph: Any, params: Any, rate: jax.Array, order: Any, x: Any, y: Any) -> Any:
        optimizer = optax.with_extra_args_support(self._optimizer(rate))

        def step(carry: Any, rows: jax.Array) -> Any:
            params, state = carry
            value, gradients = jax.value_and_grad(
                lambda p: _loss(nnx.merge(graph, p)(x[rows]), y[rows])
            )(params)
            updates, state = optimizer.update(gradients, state, params, value=value)
            return (optax.apply_updates(params, updates), state), value

        return jax.lax.scan(step, (params, optimizer.init(params)), order)

    def _order(self, seed: int) -> np.ndarray:
        """Draws the samples of every update, epoch by epoch: (steps, batch)."""
        per_epoch = len(self.data.x) // self.config.batch
        used = per_epoch * self.config.batch
        drawn = [
            np.random.default_rng([seed, epoch]).permutation(len(self.data.x))[:used]
            for epoch in range(self.config.steps // per_epoch + 1)
        ]
        rows = np.concatenate([rows.reshape(per_epoch, -1) for rows in drawn])
        return rows[: self.config.steps]

    def _train(self, rate: float, seed: int) -> tuple[Any, Any, Any, Any, float]:
        """Trains one model: its graph, parameters, optimiser state, losses and seconds."""
        graph, params = nnx.split(self._model(seed), nnx.Param)
        given = jnp.float32(rate), self._order(seed), self.data.x, self.data.y
        key = graph, tuple(x.shape for x in jax.tree.leaves(params))
        if key not in self.programs:
            self.programs[key] = self.run.lower(graph, params, *given).compile()
        begin = time.process_time()  # others may use the machine
        (params, state), values = jax.block_until_ready(self.programs[key](params, *given))
        return graph, params, state, values, time.process_time() - begin

    def __call__(self, rate: float, seed: int, fewer: float) -> dict[str, Any]:
        """Trains and shrinks one model; returns accuracy, losses, parameters and status."""
        if (rate, seed) not in self.trained:
            self.trained[rate, seed] = self._train(rate, seed)
        graph, params, state, values, seconds = self.trained[rate, seed]
        status = ""
        if self.method == "default":
            status = optim.status(state).status
            params, state = optim.shrink(params, state)
        if self.method == "GaLore, truncated":
            graph, params = _truncated(nnx.merge(graph, params), self.most(fewer))
        out = _outputs(graph, params, self.data.test_x)
        return {
            "parameters": optim.size(params, everything=True),
            "accuracy": 100 * float(np.mean(np.argmax(out, -1) == self.data.test_y)),
            "test loss": float(_loss(out, self.data.test_y)),
            "training loss": float(np.mean(values[-50:])),
            "ms": 1e3 * seconds / self.config.steps,
            "status": status,
        }


def _all(model: Any, spec: Any, rngs: nnx.Rngs) -> Any:
    """Replaces all dense layers of a model by new ones of a spec."""
    return nn.tensorize(model, spec, init="random", rngs=rngs)


def _truncated(model: Any, most: int) -> Any:
    """Truncates all layers of a trained model to low rank; returns its graph and parameters."""

    def cut(rank: int) -> Any:
        return nnx.split(nn.tensorize(model, nn.LowRank(rank=rank)), nnx.Param)

    def count(rank: int) -> int:
        return int(optim.size(cut(rank)[1], everything=True))

    return cut(sizes.largest(count, most, 256))


@jax.jit(static_argnums=0)
def _outputs(graph: Any, params: Any, x: Any) -> jax.Array:
    def one(x: jax.Array) -> jax.Array:
        return nnx.merge(graph, params)(x[None])[0]

    return jax.lax.map(one, jnp.asarray(x), batch_size=500)


def _loss(out: jax.Array, labels: Any) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(out, labels).mean()


def measure(
    config: Config, data: Samples, method: Method, fewer: float, trainer: Trainer | None = None
) -> dict[str, Any]:
    """Trains a method at a size over seeds, by a given trainer or one of its own; returns its row.

    The learning rate of GaLore is the best for the truncated model.
    """
    row: dict[str, Any] = {"fewer": fewer, "method": method}
    try:
        once = trainer or Trainer(config, data, method, fewer)
        first = {rate: once(rate, config.seeds[0], fewer) for rate in config.rates}
    except sizes.TooLarge:
        return row | {"status": "no rank is small enough"}
    except ValueError as error:
        if method != "default" or "compress_to" not in str(error):
            raise
        return row | {"status": "no rank is small enough"}
    rate = min(first, key=lambda rate: _or_infinite(first[rate]["test loss"]))
    runs = [first[rate], *(once(rate, seed, fewer) for seed in config.seeds[1:])]
    means = {
        name: float(np.mean([run[name] for run in runs]))
        for name in ("parameters", "accuracy", "test loss", "training loss")
    }
    spread = float(np.std([run["accuracy"] for run in runs]))
    states = ", ".join(sorted({run["status"] for run in runs} - {""}))
    times = float(np.median([run["ms"] for run in (*first.values(), *runs[1:])]))
    return row | means | {"± accuracy": spread, "rate": rate, "ms": times, "status": states}


def _or_infinite(loss: float) -> float:
    return loss if np.isfinite(loss) else np.inf


def run(config: Config, run: Run) -> None:
    """Trains every method at every size, and writes the table."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        data = samples(config)
        cells: list[tuple[Method, float]] = [
            (method, fewer)
            for fewer in (1.0, *config.fewer)
            for method in config.methods
            if (method == "dense") == (fewer == 1.0)
        ]
        whole = {m: Trainer(config, data, m, 1.0) for m in WHOLE if m in config.methods}
        rows = [
            measure(config, data, method, fewer, whole.get(method))
            for method, fewer in run.progress(cells, "methods and sizes")
        ]
    dense = sizes.count(models.builder(config.model, data)(config.width))
    run.table(
        "compress",
        rows,
        caption=CAPTION.format(config.model, len(data.x), dense, config.steps, config.seeds),
        key=["fewer", "method"],
    )
    for row in rows:
        if "accuracy" in row:
            run.metric(f"accuracy, {row['method']}, {row['fewer']:g}", row["accuracy"])
    run.compare(*outcome(rows))


def outcome(rows: list[dict[str, Any]]) -> tuple[str, bool | None]:
    """Compares the default way with the best other method of equal size, in accuracy points.

    Returns a sentence, and whether no difference is negative.
    """
    ahead = {}
    for fewer in dict.fromkeys(row["fewer"] for row in rows):
        scores = {
            row["method"]: row["accuracy"]
            for row in rows
            if row["fewer"] == fewer and "accuracy" in row
        }
        ours = scores.pop("default", None)
        if ours is not None and scores:
            ahead[fewer] = ours - max(scores.values())
    if not ahead:
        return "no other method of equal size was run", None
    said = ", ".join(
        f"{points:+.2f} points at {fewer:g} × fewer" for fewer, points in ahead.items()
    )
    return said, bool(min(ahead.values()) >= 0)
