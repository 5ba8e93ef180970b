"""Times a training step of our GPT-2 beside plain Flax, nanoGPT in JAX and in PyTorch.

Source: none; our own measurement. Run it on a quiet machine::

    python -m experiments run bench/gpt2

One device; PyTorch where it is installed, by torch.compile on a GPU only. There JAX takes most of
the memory first: set XLA_PYTHON_CLIENT_PREALLOCATE=false.

All start from the same weights, see the same tokens and run in one process, by turns, warm: loss,
gradient and an update of AdamW. The loss after the same number of steps is compared. README.md in
this folder says what is measured and how.
"""

import functools
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments import Run
from experiments._peak import measured_peak
from experiments._process_settings import keep_memory
from experiments.bench import _decoders, _timing
from experiments.bench._solving import found
from experiments.bench._timing import Sized
from experiments.bench._torch_decoder import TorchTraining
from tensorjax.models.gpt2 import GPT2, GPT2Config

# Ours is to take no longer than the plain Flax implementation.
_GOAL = 1.0


@dataclass(frozen=True)
class Case:
    """Size of a GPT-2 training step: configuration and batch.

    Attributes:
        name: How the tables call it.
        config: Of the model.
        batch: Sequences.
    """

    name: str
    config: GPT2Config
    batch: int


_TINY = GPT2Config.tiny(vocabulary=120, length=16)
_SMALL = GPT2Config.small(length=256, dropout=0.0)
CASES = (
    Case("3 × 96", GPT2Config(vocabulary=1024, length=128, layers=3, heads=3, features=96,
                              dropout=0.0), 16),
    Case("6 × 384", GPT2Config(vocabulary=8192, length=256, layers=6, heads=6, features=384,
                               dropout=0.0), 4),
    Case("124M", _SMALL, 1),
)  # fmt: skip


@dataclass(frozen=True)
class Config(Sized):
    """Options of the benchmark `bench/gpt2`."""

    cases: tuple[str, ...] = tuple(case.name for case in CASES)
    """Sizes to run."""

    peak: float | None = None
    """TFLOP/s that the device does, for the utilisation; by default, products of 1024 × 1024."""

    keep_memory: bool = True
    """Have glibc's malloc keep what is freed, as `gpt2` trains, for all competitors alike."""

    small: bool = False
    """Use a size that takes seconds: for trying out, the times mean nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.peak is not None and self.peak <= 0:
            raise ValueError(f"peak: expected positive TFLOP/s, got {self.peak}")
        known = [case.name for case in CASES]
        for name in self.cases:
            if name not in known:
                raise ValueError(f"cases: expected names among {', '.join(known)}, got {name!r}")

    @classmethod
    def quick(cls) -> "Config":
        return cls(repeats=2, small=True)


def run(config: Config, run: Run) -> None:
    """Times GPT-2 training steps of all sizes; writes the table and the ratios beside the goal."""
    if config.keep_memory:
        keep_memory()
    gpu = jax.default_backend() == "gpu"
    dtype = jnp.bfloat16 if gpu else jnp.float32
    cases = [case for case in CASES if case.name in config.cases]
    if config.small:
        cases = [Case("tiny", _TINY, 2)]
    elif gpu:
        cases = [Case("124M", GPT2Config.small(dropout=0.0), 8)]
    rows, ratios = [], []
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        peak = measured_peak(dtype) if config.peak is None else config.peak * 1e12
        run.metric("peak GFLOP/s", peak / 1e9)
        for case in run.progress(cases, "sizes"):
            timed = measure(case, dtype, config.repeats, peak)
            rows += timed
            ratios.append(verdict(case, timed))
    if not gpu:
        note = "not run: no GPU at hand; torch.compile neither"
        rows.append({"size": "124M, bfloat16", "library": "all", "variant": "on a GPU",
                     "note": note})  # fmt: skip
    run.table("steps", rows, key=["size", "library", "variant"], caption=STEPS)
    run.table("ratios", ratios, key=["size"], caption=RATIOS)
    over = ", ".join(f"{row['flax']:.2g} ({row['size']})" for row in ratios)
    run.compare(f"speed-up over plain Flax: {over}")
    for row in ratios:
        run.metric(f"flax / ours, {row['size']}", row["flax"])
        run.metric(f"flax / ours, {row['size']}, CPU time", row["flax, CPU time"])
        run.metric(f"nanoGPT / ours, {row['size']}", row["nanoGPT"])


class Training:
    """Training of GPT-2 written in one way, with its parameters and state."""

    def __init__(self, data: Any, loss: Callable[..., jax.Array], params: Any) -> None:
        self.optimizer = optax.adamw(3e-4, b2=0.95, weight_decay=0.1)
        self.data, self.loss = data, loss
        leaves, self.tree = jax.tree.flatten(params)  # no container of a framework is timed
        leaves = [jnp.array(leaf) for leaf in leaves]
        self.state = leaves, self.optimizer.init(leaves)
        self.losses: list[float] = []
        self.processor: list[float] = []  # seconds that all cores worked, for every step
        self.program = jax.jit(self.step, donate_argnums=(0, 1))

    def step(self, leaves: Any, state: Any, tokens: jax.Array, targets: jax.Array) -> Any:
        """Computes one step of AdamW; returns parameters, state and the loss before it."""

        def loss(leaves: Any) -> jax.Array:
            return self.loss(jax.tree.unflatten(self.tree, leaves), tokens, targets)

        value, gradient = jax.value_and_grad(loss)(leaves)
        updates, state = self.optimizer.update(gradient, state, leaves)
        return optax.apply_updates(leaves, updates), state, value

    def __call__(self) -> None:
        start = time.process_time()
        *self.state, value = jax.block_until_ready(self.program(*self.state, *self.data))
        self.processor.append(time.process_time() - start)
        self.losses.append(float(value))


def ways(case: Case, dtype: Any) -> dict[tuple[str, str], Any]:
    """Creates the trainings of all ways to write GPT-2, ours first."""
    return {name: make() for name, make in makers(case, dtype).items()}


def makers(case: Case, dtype: Any) -> dict[tuple[str, str], Callable[[], Any]]:
    """Returns a function for each way to write GPT-2, which creates it with the same weights."""
    model = GPT2(case.config, dtype=dtype, rngs=nnx.Rngs(0))
    data = tokens_and_targets(case)

    def ours(attention: str | None = None, unroll: int | None = None) -> Training:
        config = replace(case.config, unroll=unroll)
        graph, params = nnx.split(
            nnx.eval_shape(lambda: GPT2(config, dtype=dtype, attention=attention, rngs=nnx.Rngs(0)))
        )
        params = jax.tree.map(lambda _, x: x, params, nnx.split(model)[1])
        return Training(data, functools.partial(_ours, graph), params)

    def flax() -> Training:
        graph, params = _decoders.flax_params(model, dtype)
        return Training(data, functools.partial(_flax, graph), params)

    def nano() -> Training:
        loss = functools.partial(_decoders.nano_loss, config=case.config, dtype=dtype)
        return Training(data, loss, _decoders.plain(model))

    gpu = jax.default_backend() == "gpu"
    out: dict[tuple[str, str], Callable[[], Any]] = {
        ("tensorjax", ""): ours,
        ("tensorjax", "one layer at a time"): functools.partial(ours, unroll=1),
        ("flax", ""): flax,
        ("nanoGPT", ""): nano,
    }
    if gpu and jnp.dtype(dtype).itemsize == 2:
        out["tensorjax", "attention by cuDNN"] = functools.partial(ours, attention="cudnn")
    if (torch := found("torch")) is not None:
        half = jnp.dtype(dtype).itemsize == 2
        for compiled in (False, True) if gpu else (False,):
            out["torch", f"nanoGPT, {'torch.compile' if compiled else 'eager'}"] = (
                functools.partial(TorchTraining, torch, model, data, half=half, compiled=compiled)
            )
    return out


def tokens_and_targets(case: Case) -> tuple[jax.Array, jax.Array]:
    """Draws the tokens and targets on which every way is trained."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, case.config.vocabulary, (case.batch, case.config.length + 1), np.int32)
    return jnp.asarray(drawn[:, :-1]), jnp.asarray(drawn[:, 1:])


def _ours(graph: Any, params: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
    total, count = nnx.merge(graph, params).loss(tokens, targets)
    return total / count


def _flax(graph: Any, params: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
    return _decoders.cross_entropy(nnx.merge(graph, params)(tokens), targets)


def measure(case: Case, dtype: Any, repeats: int, peak: float) -> list[dict[str, Any]]:
    """Times all ways by turns; returns a row each. ``peak`` is in operations per second."""
    trainings = ways(case, dtype)
    timings = []
    for (library, variant), training in trainings.items():
        timing, _ = _timing.first_call(_timing.Lane(library, variant, training))
        if timing.failure:
            raise RuntimeError(f"{case.name}, {library}: {timing.failure}")
        training()  # so that all have two losses, however often they are timed
        timings.append(timing)
    _timing.interleave(timings, repeats)
    first = trainings["tensorjax", ""].losses
    tokens = case.batch * case.config.length
    rows = []
    for timing, training in zip(timings, trainings.values(), strict=True):
        rows.append(
            {
                "size": case.name,
                "library": timing.lane.library,
                "variant": timing.lane.variant,
                "ms": 1e3 * timing.median,
                # Without what another program on the same cores takes; the first one compiles.
                "CPU ms": 1e3 * statistics.median(training.processor[1:]),
                "tokens/s": tokens / timing.median,
                "utilisation": tokens * case.config.flops() / timing.median / peak,
                "first call s": timing.first,
                "loss error": max(
                    abs(a / b - 1) for a, b in zip(training.losses[:2], first[:2], strict=True)
                ),
                "note": f"{case.batch} × {case.config.length} tokens, {jnp.dtype(dtype).name}",
            }
        )
    gc.collect()
    return rows


def verdict(case: Case, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the ratios of the other ways' times to ours."""
    by_default = ("tensorjax", "")
    others = {
        ("flax", ""): "flax",
        ("nanoGPT", ""): "nanoGPT",
        ("torch", "nanoGPT, eager"): "torch",
        ("torch", "nanoGPT, torch.compile"): "torch.compile",
        ("tensorjax", "one layer at a time"): "one layer at a time",
    }
    row: dict[str, Any] = {"size": case.name}
    for clock, suffix in (("ms", ""), ("CPU ms", ", CPU time")):
        ms = {(row["library"], row["variant"]): row[clock] for row in rows}
        row |= {
            name + suffix: ms[way] / ms[by_default] for way, name in others.items() if way in ms
        }
    return {**row, "goal": _GOAL, "met": row["flax"] >= _GOAL}


STEPS = (
    "One training step (loss, gradient, AdamW), warm medians by turns; loss error: of the first "
    "two steps, relative to ours; CPU ms: of all cores, which other programs disturb less"
)
RATIOS = "Speed-up over the others; the goal is for plain Flax"
