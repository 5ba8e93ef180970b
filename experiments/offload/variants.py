"""The ways of training that are compared, and what one step of each takes."""

import contextlib
import dataclasses
import functools
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.offload.emulated import Emulated
from experiments.offload.memory import peak
from tensorjax import offload
from tensorjax.models import gpt2

MIB = 2**20
OURS, BASELINE = "disk, overlap", "disk, after backward"


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way of training.

    Attributes:
        name: For tables.
        disk: Whether parameters and states are in a store.
        schedule: Of the trainer.
        backend: Of the store.
        streamed: Whether the device holds two layers only, or all.
    """

    name: str
    disk: bool
    schedule: offload.Schedule
    backend: str = "auto"
    streamed: bool = True


VARIANTS = (
    Variant("in memory", False, "overlap", streamed=False),
    Variant("host offload", False, "overlap"),
    Variant("disk, naive", True, "sequential", "buffered"),
    Variant(BASELINE, True, "after_backward"),
    Variant(OURS, True, "overlap"),
)


# One of each for all ways: programs are compiled once.
_OPTIMIZER = optax.adamw(1e-4)


@functools.lru_cache(maxsize=4)
def _layers(model: gpt2.GPT2Config) -> tuple[offload.Layer, ...]:
    return tuple(gpt2.layers(model))


@functools.lru_cache(maxsize=4)
def _params(model: gpt2.GPT2Config) -> dict[str, Any]:
    return gpt2.initial(model, jax.random.key(0))


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is trained.

    Attributes:
        name: Of the size.
        model: Its sizes.
        batch: Sequences in a batch.
        length: Tokens in a sequence.
        folder: Where stores are made; each is removed again.
        staging: Bytes of staging memory.
    """

    name: str
    model: gpt2.GPT2Config
    batch: int
    length: int
    folder: Path
    staging: int

    def layers(self) -> list[offload.Layer]:
        """Of the model."""
        return list(_layers(self.model))

    def params(self) -> dict[str, Any]:
        """What draws them."""
        return _params(self.model)

    def optimizer(self) -> Any:
        """Adam with decoupled decay, as is usual."""
        return _OPTIMIZER

    def data(self) -> Any:
        """Random tokens."""
        rng = np.random.default_rng(0)
        tokens = rng.integers(0, self.model.vocabulary, (self.batch, self.length + 1))
        return gpt2.batch(tokens[:, :-1].astype(np.int32), tokens[:, 1:].astype(np.int32))

    def sizes(self) -> dict[str, int]:
        """Bytes of each group's parameters."""
        shapes = {name: jax.eval_shape(draw) for name, draw in self.params().items()}
        return {name: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
                for name, tree in shapes.items()}  # fmt: skip

    def two_layers(self) -> int:
        """Bytes of parameters of the two largest layers."""
        sizes = self.sizes()
        return sum(sorted(sum(sizes[g] for g in layer.uses) for layer in self.layers())[-2:])

    def emulated(self, compute: float) -> Emulated:
        """A device that takes ``compute`` seconds a step, layers in proportion to their work."""
        shapes = {name: jax.eval_shape(draw) for name, draw in self.params().items()}
        # Views of one array; off by one number, so that the host copies them as it would a device's.
        most = max(x.size for x in jax.tree.leaves(shapes))
        numbers = np.full(most + 17, 1e-3, np.float32)
        start = (1 - numbers.ctypes.data // 4) % 16
        gradients = jax.tree.map(
            lambda x: numbers[start : start + x.size].reshape(x.shape), shapes
        )
        work = {layer.name: 1.0 for layer in self.layers()}
        work["embedding"] = 0.05  # a look-up
        unit = compute / sum(work.values())
        return Emulated(
            gradients,
            {name: unit * share / 3 for name, share in work.items()},
            {name: unit * share * 2 / 3 for name, share in work.items()},
        )

    def warm(self, engine: offload.Engine) -> None:
        """Compiles all programs, with a model of one block of the same sizes, in memory."""
        layers = self.layers()
        layers = [layers[0], layers[1], layers[-1]]
        uses = {group for layer in layers for group in layer.uses}
        params = {name: draw for name, draw in self.params().items() if name in uses}
        with offload.Trainer(layers, params, self.optimizer(), engine=engine) as trainer:
            for _ in range(2):
                trainer.step(self.data())

    @contextlib.contextmanager
    def store(self, backend: str) -> Iterator[offload.TensorStore]:
        """A new store, removed at the end."""
        path = self.folder / f"offload-{os.getpid()}"
        specs = offload.tensors(self.params(), self.optimizer(), gradients=True)
        held = sum(int(np.prod(s.shape)) * jnp.dtype(s.dtype).itemsize for s in specs.values())
        capacity = 2 * held + 2 * 4096 * (len(specs) + 1) + MIB
        try:
            with offload.TensorStore(
                path, capacity, backend=backend, staging=self.staging
            ) as store:
                yield store
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def trainer(self, variant: Variant, engine: offload.Engine) -> Iterator[Any]:
        """A trainer of a variant, and its store or None."""
        options: dict[str, Any] = {"schedule": variant.schedule, "engine": engine}
        if variant.streamed:
            options["device_bytes"] = self.two_layers()
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(self.store(variant.backend)) if variant.disk else None
            yield stack.enter_context(
                offload.Trainer(
                    self.layers(), self.params(), self.optimizer(), store=store, **options
                )
            ), store  # fmt: skip


def measure(
    setting: Setting, variant: Variant, engine: offload.Engine, steps: int
) -> tuple[dict[str, Any], offload.Trace]:
    """Seconds of a step, memory and bytes of a variant, and its trace.

    The first two steps compile and fill the pipeline; the others are timed together, from the
    beginning of one step to that of another, so that updates under way count in full.
    """
    with peak() as memory, setting.trainer(variant, engine) as (trainer, store):
        batch, took = setting.data(), []
        before = None
        for number in range(steps + 2):
            if number == 2:
                before = _moved(store)
            start = time.perf_counter()
            trainer.step(batch)
            if variant.backend == "buffered":
                _flush(trainer, setting.folder)
            took.append(time.perf_counter() - start)
        after = _moved(store)
        held = trainer.statistics()
        trace = trainer.trace
    seconds = statistics.median(took[2:])
    read, written = (b - a for a, b in zip(before or (0, 0), after, strict=True))
    return {
        "seconds": seconds,
        "read": read / steps,
        "written": written / steps,
        "resident": memory[0],
        "device": held["device_peak_bytes"],
        "gradients": held["gradient_peak_bytes"],
        "activations": held["activation_peak_bytes"],
        "staging": 0 if store is None else store.statistics().staging_peak,
    }, trace


def _moved(store: Any) -> tuple[int, int]:
    if store is None:
        return 0, 0
    found = store.statistics()
    return found.reads.bytes, found.writes.bytes


def _flush(trainer: offload.Trainer, folder: Path) -> None:
    """Writes what is only in the page cache, and forgets it: reads shall come from the disk."""
    trainer.commit()
    for path in folder.glob(f"offload-{os.getpid()}/**/*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
