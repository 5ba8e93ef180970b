"""The default way of compressing a training, beside other models of equal size.

A network of two hidden layers learns images. For each size, so many times fewer parameters than
dense, are trained:

- "narrow dense": dense layers of fewer neurons;
- "low rank": W = U D V, of one rank for all layers, as large as the size admits;
- "one rank": tensor trains, likewise;
- "one rank, TT-matrix": likewise, `nn.TTMatrix`;
- "default": the dense network by ``nn.tensorize(model, compress_to=fewer)``, under
  ``optim.rank_adaptive(inner, compress_to=fewer, by=…)``, with all else by default.

All have the same inner optimiser, AdamW with a warm-up and a cosine, images and order. The rate is
the best by test loss on the first seed, of the same rates for all methods; so every method is
favoured alike. Images are scikit-learn's digits, or a file of arrays x_train, y_train, x_test,
y_test: ``python -m experiments run comera/compress --data PATH.npz``.
"""

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments import Run
from experiments.comera import sizes
from tensorjax import nn, optim

Method = Literal["dense", "narrow dense", "low rank", "one rank", "one rank, TT-matrix", "default"]
METHODS: tuple[Method, ...] = get_args(Method)
CAPTION = (
    "{} images, dense {} parameters, {} updates: test accuracy [%], test and training loss, means "
    "over seeds {}; training loss of the last 50 updates; rate: best by test loss on the first seed"
    "; ms: processor time of an update, at the ranks that a training begins with, median"
)


@dataclass(frozen=True)
class Config:
    """Options of the compression comparison."""

    data: Path | None = None
    """File .npz with x_train, y_train, x_test and y_test; None: scikit-learn's digits."""
    methods: tuple[Method, ...] = METHODS
    """What is compared."""
    fewer: tuple[float, ...] = (5.0, 10.0, 20.0, 40.0)
    """How many times fewer parameters than dense, gates and biases included."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of weights and order of the images."""
    rates: tuple[float, ...] = (0.003, 0.01, 0.02)
    """Learning rates to choose from."""
    images: int = 20_000
    """Most images to train on."""
    steps: int = 1200
    """Updates."""
    batch: int = 128
    """Images of an update."""
    width: int = 256
    """Of the hidden layers."""
    by: float = 0.67
    """Share of the updates by which the size is met."""

    @classmethod
    def quick(cls) -> "Config":
        """Returns the options of a quick run: digits, one size, one seed and one rate."""
        return cls(fewer=(20.0,), seeds=(0,), rates=(0.02,), steps=240, batch=64, width=128)


class Images(NamedTuple):
    """Images and labels for training and test."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


class Network(nnx.Module):
    """Multilayer perceptron with ReLU between its linear layers."""

    def __init__(self, widths: tuple[int, ...], spec: Any, rngs: nnx.Rngs) -> None:
        pairs = itertools.pairwise(widths)
        self.layers = nnx.List([spec.linear(a, b, rngs=rngs) for a, b in pairs])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Computes the logits of a batch of images."""
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


def images(config: Config) -> Images:
    """Loads images with pixels in [0, 1], and labels."""
    if config.data is None:
        from sklearn.datasets import load_digits

        found: Any = load_digits()
        order = np.random.default_rng(0).permutation(len(found.data))
        x, y = found.data[order], found.target[order].astype(np.int32)
        parts = Images(x[:1200] / 16, y[:1200], x[1200:] / 16, y[1200:])
    else:
        with np.load(config.data) as file:
            x, y, tx, ty = (file[n] for n in ("x_train", "y_train", "x_test", "y_test"))
        x, tx = (a.reshape(len(a), -1) / 255 for a in (x, tx))
        parts = Images(x[: config.images], y[: config.images], tx, ty)
    return Images(*(a.astype(np.float32 if a.ndim == 2 else np.int32) for a in parts))


class Trainer:
    """Training of one method at one size: one program for all rates and seeds.

    Args:
      config: options of the comparison.
      data: images.
      method: what is trained.
      fewer: how many times fewer parameters than dense.
    """

    def __init__(self, config: Config, data: Images, method: Method, fewer: float) -> None:
        self.config, self.data, self.method, self.fewer = config, data, method, fewer
        self.widths = (data.x.shape[1], config.width, config.width, int(data.y.max()) + 1)
        self.spec, self.width = self._sized()
        self.run = jax.jit(self._run, static_argnums=0)
        self.programs: dict[Any, Any] = {}

    def _sized(self) -> tuple[Any, int]:
        """Returns the layer specification and the width of the hidden layers for the size."""
        width = self.widths[1]
        if self.method in ("dense", "default"):
            return nn.Dense(), width

        def count(spec: Any, width: int) -> int:
            return sizes.count(lambda rngs: Network(self._widths(width), spec, rngs))

        most = int(count(nn.Dense(), width) / self.fewer)
        if self.method == "narrow dense":
            return nn.Dense(), sizes.largest(lambda n: count(nn.Dense(), n), most, width)
        kind = {"low rank": nn.LowRank, "one rank": nn.TT}.get(self.method, nn.TTMatrix)
        return kind(rank=sizes.largest(lambda r: count(kind(rank=r), width), most, 256)), width

    def _widths(self, width: int) -> tuple[int, ...]:
        return self.widths[0], width, width, self.widths[-1]

    def _model(self, seed: int) -> Any:
        model = Network(self._widths(self.width), self.spec, nnx.Rngs(seed))
        return nn.tensorize(model, compress_to=self.fewer) if self.method == "default" else model

    def _optimizer(self, rate: Any) -> Any:
        steps = self.config.steps
        shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, steps // 20, steps)
        inner = optax.adamw(lambda count: rate * shape(count))
        if self.method != "default":
            return optax.with_extra_args_support(inner)
        by = int(self.config.by * steps)
        return optim.rank_adaptive(inner, compress_to=self.fewer, by=by)

    def _run(self, graph: Any, params: Any, rate: jax.Array, order: Any, x: Any, y: Any) -> Any:
        optimizer = self._optimizer(rate)

        def step(carry: Any, rows: jax.Array) -> Any:
            params, state = carry
            value, gradients = jax.value_and_grad(
                lambda p: _loss(nnx.merge(graph, p)(x[rows]), y[rows])
            )(params)
            updates, state = optimizer.update(gradients, state, params, value=value)
            return (optax.apply_updates(params, updates), state), value

        return jax.lax.scan(step, (params, optimizer.init(params)), order)

    def _order(self, seed: int) -> np.ndarray:
        """Draws the images of every update, epoch by epoch: (steps, batch)."""
        per_epoch = len(self.data.x) // self.config.batch
        used = per_epoch * self.config.batch
        drawn = [
            np.random.default_rng([seed, epoch]).permutation(len(self.data.x))[:used]
            for epoch in range(self.config.steps // per_epoch + 1)
        ]
        rows = np.concatenate([rows.reshape(per_epoch, -1) for rows in drawn])
        return rows[: self.config.steps]

    def __call__(self, rate: float, seed: int) -> dict[str, Any]:
        """Trains and shrinks one network; returns accuracy, losses, parameters and status."""
        graph, params = nnx.split(self._model(seed), nnx.Param)
        given = jnp.float32(rate), self._order(seed), self.data.x, self.data.y
        key = graph, tuple(x.shape for x in jax.tree.leaves(params))
        if key not in self.programs:
            self.programs[key] = self.run.lower(graph, params, *given).compile()
        begin = time.process_time()  # others may use the machine
        (params, state), values = jax.block_until_ready(self.programs[key](params, *given))
        seconds = time.process_time() - begin
        status = ""
        if self.method == "default":
            status = optim.status(state).status
            params, state = optim.shrink(params, state)
        out = nnx.merge(graph, params)(jnp.asarray(self.data.test_x))
        return {
            "parameters": optim.size(params, everything=True),
            "accuracy": 100 * float(np.mean(np.argmax(out, -1) == self.data.test_y)),
            "test loss": float(_loss(out, self.data.test_y)),
            "training loss": float(np.mean(values[-50:])),
            "ms": 1e3 * seconds / self.config.steps,
            "status": status,
        }


def _loss(out: jax.Array, labels: Any) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(out, labels).mean()


def measure(config: Config, data: Images, method: Method, fewer: float) -> dict[str, Any]:
    """Trains a method at a size over seeds; returns its table row."""
    row: dict[str, Any] = {"fewer": fewer, "method": method}
    try:
        once = Trainer(config, data, method, fewer)
    except sizes.TooLarge:
        return row | {"status": "no rank is small enough"}
    first = {rate: once(rate, config.seeds[0]) for rate in config.rates}
    rate = min(first, key=lambda rate: first[rate]["test loss"])
    runs = [first[rate], *(once(rate, seed) for seed in config.seeds[1:])]
    means = {
        name: float(np.mean([run[name] for run in runs]))
        for name in ("parameters", "accuracy", "test loss", "training loss")
    }
    spread = float(np.std([run["accuracy"] for run in runs]))
    states = ", ".join(sorted({run["status"] for run in runs} - {""}))
    times = float(np.median([run["ms"] for run in (*first.values(), *runs[1:])]))
    return row | means | {"± accuracy": spread, "rate": rate, "ms": times, "status": states}


def run(config: Config, run: Run) -> None:
    """Trains every method at every size, and writes the table."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        data = images(config)
        cells: list[tuple[Method, float]] = [
            (method, fewer)
            for fewer in (1.0, *config.fewer)
            for method in config.methods
            if (method == "dense") == (fewer == 1.0)
        ]
        rows = [measure(config, data, *cell) for cell in run.progress(cells, "methods and sizes")]
    widths = (data.x.shape[1], config.width, config.width, int(data.y.max()) + 1)
    dense = sizes.count(lambda rngs: Network(widths, nn.Dense(), rngs))
    run.table(
        "compress",
        rows,
        caption=CAPTION.format(len(data.x), dense, config.steps, config.seeds),
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
