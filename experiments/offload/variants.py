"""Ways of training that are compared, and measurement of their steps."""

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from experiments.offload.emulated import Emulated, emulated
from experiments.offload.memory import peak
from tensorjax import offload
from tensorjax.models import gpt2

MIB = 2**20
OURS, DEEPSPEED, BASELINE = "disk, overlap", "disk, as DeepSpeed", "disk, after backward"
BOUNDED, _AS_BOUNDED = (
    "disk, two layers",
    tuple(f"disk, two layers, {schedule}" for schedule in ("as DeepSpeed", "after backward")),
)
# What each of ours is compared with, the same memory first: from the same store, all of them.
BESIDE = {OURS: (DEEPSPEED, BASELINE), BOUNDED: (*_AS_BOUNDED, DEEPSPEED, BASELINE)}


@dataclasses.dataclass(frozen=True)
class Variant:
    """Way of training: in memory or from disk, schedule, backend, streaming.

    Attributes:
        name: For tables.
        disk: Whether parameters and states are in a store.
        schedule: Of the trainer.
        backend: Of the store.
        streamed: Whether the device holds two layers only, or all.
        bounded: Whether gradients take no more memory than those of the two largest layers, one on
            its way to the host included: where updates overlap the next one waits for room, else it
            goes to the store.
    """

    name: str
    disk: bool
    schedule: offload.Schedule
    backend: str = "auto"
    streamed: bool = True
    bounded: bool = False


VARIANTS = (
    Variant("in memory", False, "overlap", streamed=False),
    Variant("host offload", False, "overlap"),
    Variant("disk, naive", True, "sequential", "buffered"),
    Variant(DEEPSPEED, True, "pipelined"),
    Variant(BASELINE, True, "after_backward"),
    Variant(OURS, True, "overlap"),
    Variant(_AS_BOUNDED[0], True, "pipelined", bounded=True),
    Variant(_AS_BOUNDED[1], True, "after_backward", bounded=True),
    Variant(BOUNDED, True, "overlap", bounded=True),
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
    """Training setting: model size, batch, length, folder, staging memory.

    Attributes:
        name: Of the size.
        model: Its sizes.
        batch: Sequences in a batch.
        length: Tokens in a sequence.
        folder: Where stores are made; each is removed again.
        staging: Bytes of staging memory.
        few: Whether there is one block only: what its training compiles serves the others too.
    """

    name: str
    model: gpt2.GPT2Config
    batch: int
    length: int
    folder: Path
    staging: int
    few: bool = False

    def layers(self) -> list[offload.Layer]:
        """Returns the layers of the model."""
        found = _layers(self.model)
        return [found[0], found[1], found[-1]] if self.few else list(found)

    def params(self) -> dict[str, Any]:
        """Returns functions that draw the parameters of each group."""
        uses = {group for layer in self.layers() for group in layer.uses}
        return {name: draw for name, draw in _params(self.model).items() if name in uses}

    def optimizer(self) -> Any:
        """Returns Adam with decoupled weight decay."""
        return _OPTIMIZER

    def data(self) -> Any:
        """Draws a batch of random tokens."""
        rng = np.random.default_rng(0)
        tokens = rng.integers(0, self.model.vocabulary, (self.batch, self.length + 1))
        return gpt2.batch(tokens[:, :-1].astype(np.int32), tokens[:, 1:].astype(np.int32))

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of each group's parameters."""
        shapes = {name: jax.eval_shape(draw) for name, draw in self.params().items()}
        return {name: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
                for name, tree in shapes.items()}  # fmt: skip

    def two_layers(self, sizes: dict[str, int]) -> int:
        """Computes the bytes of the two largest layers together, from sizes of groups.

        A group that both use counts once.
        """
        pairs = itertools.combinations(self.layers(), 2)
        return max(sum(sizes[g] for g in {*a.uses, *b.uses}) for a, b in pairs)

    def training(self) -> dict[str, int]:
        """Returns the bytes of each group's parameters, gradient and optimiser state."""
        found = dict.fromkeys(self.sizes(), 0)
        for name, spec in self.specs().items():
            found[name.split("/")[0]] += int(np.prod(spec.shape)) * spec.dtype.itemsize
        return found

    def needs(self, variant: Variant, *, real: bool) -> int:
        """Computes the bytes of memory that a way of training needs.

        Those in memory have parameters and states there, and the parameters again on a device that
        is these cores; those with a store all gradients at once, or two layers'.
        """
        params, training = self.sizes(), self.training()
        gradients, most = sum(params.values()), max(training.values())
        if variant.disk:
            held = self.two_layers(params) if variant.bounded else gradients
            return held + self.staging + most
        on_device = gradients if real and not variant.streamed else 0
        return sum(training.values()) - gradients + on_device + 2 * most

    def specs(self) -> dict[str, Any]:
        """Returns shapes and dtypes of all tensors that a store may have to hold."""
        return offload.tensors(self.params(), self.optimizer(), gradients=True)

    def emulated(self, compute: float) -> Emulated:
        """Returns an emulated device that takes ``compute`` seconds a step."""
        return emulated(self.layers(), self.params(), compute)

    @contextlib.contextmanager
    def store(self, backend: str) -> Iterator[offload.TensorStore]:
        """Context manager that yields a new tensor store, which is removed at the end."""
        path = self.folder / f"offload-{os.getpid()}"
        capacity = offload.capacity(self.specs())
        try:
            with warnings.catch_warnings():
                if backend == "buffered":  # the naive way is there to be slow
                    warnings.simplefilter("ignore", offload.StoreWarning)
                store = offload.TensorStore(path, capacity, backend=backend, staging=self.staging)
            with store:
                yield store
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def trainer(self, variant: Variant, engine: offload.Engine) -> Iterator[Any]:
        """Context manager that yields a trainer of a variant, and its store or None."""
        options: dict[str, Any] = {"schedule": variant.schedule, "engine": engine}
        if variant.streamed:
            options["device_bytes"] = self.two_layers(self.sizes())
        if variant.bounded:
            options["gradient_bytes"] = self.two_layers(self.sizes())
            if engine.lends:  # the one on its way has memory of the host, too
                options["gradient_bytes"] -= max(self.sizes().values())
            overlaps = variant.schedule == "overlap"
            options["gradient_overflow"] = "wait" if overlaps else "store"
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
    """Trains a variant; returns seconds, memory and bytes of its steps, and the trace.

    A model of one block is trained before, so that compiled programs are not counted as memory of
    the training. The first two steps fill the pipeline; the others are timed together, from the
    beginning of one step to that of another, so that updates under way count in full.
    """
    _train(dataclasses.replace(setting, few=True), variant, engine, 2)
    if isinstance(engine, Emulated):
        engine.forget()
    with peak() as memory:
        took, held, trace = _train(setting, variant, engine, steps + 2)
    before, after = held["moved"][2], held["moved"][-1]
    store = held["store"]
    return {
        "took": took[2:],
        "read": (after[0] - before[0]) / steps,
        "written": (after[1] - before[1]) / steps,
        "resident": memory.grown,
        "process": memory.start,
        "device": held["device_peak_bytes"],
        "gradients": held["gradient_peak_bytes"],
        "updates": held["update_peak_bytes"],
        "host": held["host_peak_bytes"] + held["handed_peak_bytes"],
        "activations": held["activation_peak_bytes"],
        "staging": store.staging if store else 0,
    }, trace


def _train(
    setting: Setting, variant: Variant, engine: offload.Engine, steps: int
) -> tuple[list[float], dict[str, Any], offload.Trace]:
    """Trains some steps; returns the seconds of each, statistics, and the trace."""
    took, moved, batch = [], [], setting.data()
    with setting.trainer(variant, engine) as (trainer, store):
        for _ in range(steps):
            moved.append(traffic(store))
            start = time.perf_counter()
            trainer.step(batch)
            if variant.backend == "buffered":
                _flush(trainer, setting.folder)
            took.append(time.perf_counter() - start)
        moved.append(traffic(store))
        return took, {**trainer.statistics(), "moved": moved}, trainer.trace


def traffic(store: Any) -> tuple[int, int]:
    """Returns the bytes that a store has read and written."""
    if store is None:
        return 0, 0
    found = store.statistics()
    return found.reads.bytes, found.writes.bytes


def _flush(trainer: offload.Trainer, folder: Path) -> None:
    """Writes the page cache of a store to disk and drops it, so that reads come from disk."""
    trainer.commit()
    for path in folder.glob(f"offload-{os.getpid()}/**/*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


@contextlib.contextmanager
def forgetting() -> Iterator[None]:
    """Context manager that silences warnings about steps that were not committed."""
    log = logging.getLogger("tensorjax.offload")
    log.addFilter(_kept)
    try:
        yield
    finally:
        log.removeFilter(_kept)


def _kept(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("closed after step")
