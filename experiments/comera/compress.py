"""Compression to a given size, beside tensor trains of one rank and low rank.

A network of two hidden layers learns images; every layer is tensorised. For each size, so many
times fewer parameters than dense, are trained:

- "one rank": tensor trains of the largest rank within the size, the same for all bonds;
- "low rank": W = U D V, likewise;
- "compress_to": trains that begin at ``start`` times the size, under
  ``optim.rank_adaptive(inner, compress_to=fewer, by=…)`` with all else by default.

All have the same inner optimiser, AdamW with a warm-up and a cosine, images and order. The rate is
the best by test loss on the first seed, of the same rates for all methods; so every method is
favoured alike. Images are scikit-learn's digits, or a file of arrays x_train, y_train, x_test,
y_test: ``python -m experiments run comera/compress --data PATH.npz``.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments import Run
from experiments.comera import sizes
from tensorjax import nn, optim

Method = Literal["dense", "one rank", "low rank", "compress_to"]
METHODS: tuple[Method, ...] = ("dense", "one rank", "low rank", "compress_to")
CAPTION = (
    "{} images, dense {} parameters, {} updates: test accuracy [%], test and training loss, means "
    "over seeds {}; training loss of the last 50 updates; rate: best by test loss on the first seed"
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
    start: float = 2.0
    """Size at which "compress_to" begins, over that at which it ends."""
    by: float = 0.67
    """Share of the updates by which the size is met."""

    @classmethod
    def quick(cls) -> "Config":
        """Returns the options of a quick run: digits, one size, one seed and one rate."""
        return cls(fewer=(20.0,), seeds=(0,), rates=(0.01,), steps=300, batch=64, width=128)


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


def train(config: Config, data: Images, widths: tuple[int, ...], spec: Any, optimizer: Any,
          seed: int) -> dict[str, Any]:  # fmt: skip
    """Trains and shrinks one network; returns accuracy, losses, parameters and status."""
    model = Network(widths, spec, nnx.Rngs(seed))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = optax.with_extra_args_support(optimizer)

    def loss(params: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = nnx.merge(graph, params, rest)(x)
        return optax.softmax_cross_entropy_with_integer_labels(out, y).mean(), out

    def run(carry: Any, order: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def step(carry: Any, rows: jax.Array) -> Any:
            params, state = carry
            gradient = jax.value_and_grad(loss, has_aux=True)
            (value, _), gradients = gradient(params, x[rows], y[rows])
            updates, state = optimizer.update(gradients, state, params, value=value)
            return (optax.apply_updates(params, updates), state), value

        return jax.lax.scan(step, carry, order)

    per_epoch = len(data.x) // config.batch
    drawn = [
        np.random.default_rng([seed, epoch]).permutation(len(data.x))[: per_epoch * config.batch]
        for epoch in range(config.steps // per_epoch + 1)
    ]
    order = np.concatenate([rows.reshape(per_epoch, -1) for rows in drawn])[: config.steps]
    start = params, optimizer.init(params)
    (params, state), values = jax.jit(run)(start, order, data.x, data.y)
    status = ""
    if any(isinstance(x, optim.RankAdaptiveState) for x in [state]):
        status = optim.status(state).status
        params, state = optim.shrink(params, state)
    value, out = loss(params, jnp.asarray(data.test_x), jnp.asarray(data.test_y))
    return {
        "parameters": optim.size(params, everything=True),
        "accuracy": 100 * float(np.mean(np.argmax(out, -1) == data.test_y)),
        "test loss": float(value),
        "training loss": float(np.mean(values[-50:])),
        "status": status,
    }


def prepared(config: Config, widths: tuple[int, ...], method: Method, fewer: float,
             rate: float) -> tuple[Any, Any]:  # fmt: skip
    """Returns the layer specification and the optimiser of a method at a size."""
    inner = optax.adamw(
        optax.warmup_cosine_decay_schedule(0.0, rate, config.steps // 20, config.steps)
    )

    def count(spec: Any) -> int:
        return sizes.count(lambda rngs: Network(widths, spec, rngs))

    if method == "dense":
        return nn.Dense(), inner
    kind = nn.LowRank if method == "low rank" else nn.TT
    more = config.start if method == "compress_to" else 1.0
    rank = sizes.largest(lambda r: count(kind(rank=r)), int(more * count(nn.Dense()) / fewer), 256)
    if method == "compress_to":
        by = int(config.by * config.steps)
        return kind(rank=rank), optim.rank_adaptive(inner, compress_to=fewer, by=by)
    return kind(rank=rank), inner


def measure(config: Config, data: Images, method: Method, fewer: float) -> dict[str, Any]:
    """Trains a method at a size over seeds; returns its table row."""
    widths = (data.x.shape[1], config.width, config.width, int(data.y.max()) + 1)

    def once(rate: float, seed: int) -> dict[str, Any]:
        return train(config, data, widths, *prepared(config, widths, method, fewer, rate), seed)

    first = {rate: once(rate, config.seeds[0]) for rate in config.rates}
    rate = min(first, key=lambda rate: first[rate]["test loss"])
    runs = [first[rate], *(once(rate, seed) for seed in config.seeds[1:])]
    means = {
        name: float(np.mean([run[name] for run in runs]))
        for name in ("parameters", "accuracy", "test loss", "training loss")
    }
    spread = float(np.std([run["accuracy"] for run in runs]))
    states = ", ".join(sorted({run["status"] for run in runs} - {""}))
    return {"fewer": fewer, "method": method, **means, "± accuracy": spread, "rate": rate,
            "status": states}  # fmt: skip


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
        run.metric(f"accuracy, {row['method']}, {row['fewer']:g}", row["accuracy"])
    run.compare(*outcome(rows))


def outcome(rows: list[dict[str, Any]]) -> tuple[str, bool | None]:
    """Compares `compress_to` with the best other method of equal size, in accuracy points.

    Returns a sentence, and whether no difference is negative.
    """
    ahead = {}
    for fewer in dict.fromkeys(row["fewer"] for row in rows):
        scores = {row["method"]: row["accuracy"] for row in rows if row["fewer"] == fewer}
        ours = scores.pop("compress_to", None)
        if ours is not None and scores:
            ahead[fewer] = ours - max(scores.values())
    if not ahead:
        return "no other method of equal size was run", None
    said = ", ".join(
        f"{points:+.2f} points at {fewer:g} × fewer" for fewer, points in ahead.items()
    )
    return said, bool(min(ahead.values()) >= 0)
