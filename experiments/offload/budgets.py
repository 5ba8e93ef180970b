"""GPT-2 trained under memory budgets of device and host, by the planner's placement.

``python -m experiments run offload/budgets`` measures the machine and the layers, lets
`offload.plan` decide what lives on the device, in the memory of the host and on disk, and trains by
that plan, its updates overlapping; with updates after the backward pass; and with everything on the
device, where that fits. Predictions stand beside what was measured. README.md in this folder says
what came out.

Source: HiTrain, Journal of Computer Research and Development, DOI 10.7544/issn1000-1239.202550478,
of which only the abstract was at hand. Ours: the budgets, and these ways.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import SingleDeviceSharding

from experiments import Run
from experiments._process_settings import return_memory
from experiments.offload.emulated import Emulated, emulated
from experiments.offload.main import SIZES
from experiments.offload.memory import peak, resident
from experiments.offload.resident import Resident
from experiments.offload.variants import forgetting, traffic
from tensorjax import offload
from tensorjax.models import gpt2

GB, MIB = 10**9, 2**20
LOSSES = ("first step", "first loss", "last loss")
Way = Literal["overlap", "after backward", "in memory"]
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: optax.adamw(1e-4),
    "lion": lambda: optax.lion(1e-6),  # moves every number by that much
    "sgd": lambda: optax.sgd(1e-2),
}


@dataclass(frozen=True)
class Config:
    """Options of the experiment; the defaults are for a GPU."""

    size: str = "xl"
    """Model, of those of the experiment "offload"."""
    device: float = 24.0
    """GB that the device may hold, for everything."""
    host: float = 32.0
    """GB that the process may have on the host, for everything."""
    process: bool = True
    """Whether what the process has before it trains counts as the host's."""
    batch: int = 8
    """Sequences in a microbatch."""
    microbatches: int = 3
    """Microbatches in a step."""
    length: int = 1024
    """Tokens in a sequence."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of parameters, and so of states and of gradients, which are summed in float32."""
    optimizer: Literal["adamw", "lion", "sgd"] = "adamw"
    """What updates; with "lion" a number has one state, with "sgd" none."""
    steps: int = 3
    """Steps that are timed."""
    warm: int = 3
    """Steps before them, which compile and fill the pipeline."""
    emulated: float = 0.0
    """Seconds a step of a device that waits in the place of computing; with 0 it computes."""
    ways: tuple[Way, ...] = get_args(Way)
    """What is compared, in this order; an emulated device has nothing in memory."""
    staging: int = 0
    """MiB of staging memory, if there is a store; 0 takes 8 times the largest group, and 64."""
    folder: str = ""
    """Where the store is made: a disk, not memory; the system's folder for such if empty."""

    def __post_init__(self) -> None:
        """Raises ValueError for options that would fail late in a run."""
        if self.size not in SIZES:
            raise ValueError(f"size: expected one of {', '.join(SIZES)}, got {self.size!r}")
        for name in ("device", "host", "batch", "microbatches", "length", "steps", "warm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected more than 0, got {getattr(self, name)}")
        if not 0 <= self.emulated < float("inf"):
            raise ValueError(f"emulated: expected at least 0 seconds, got {self.emulated}")
        if self.emulated and set(self.ways) == {"in memory"}:
            raise ValueError(f"emulated: a device that is none has no {self.ways}")
        if not self.ways or not set(self.ways) <= set(get_args(Way)):
            raise ValueError(f"ways: expected some of {get_args(Way)}, got {self.ways}")

    @classmethod
    def quick(cls) -> "Config":
        """Returns the options of a quick run: 11 million parameters, most of them on disk."""
        return cls(
            size="tiny", device=0.1, host=0.1, process=False, batch=1, length=32, steps=2,
            staging=40,
        )  # fmt: skip


@dataclass(frozen=True)
class Work:
    """Model, optimiser and batches to be trained."""

    name: str
    layers: list[offload.Layer]
    params: dict[str, Any]
    optimizer: Any
    batches: list[Any]
    microbatches: int
    emulated: Emulated | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens in a training step."""
        return self.batches[0]["tokens"].size

    def micro(self) -> Any:
        """Returns the first microbatch of the first batch."""
        return jax.tree.map(lambda x: x[: len(x) // self.microbatches], self.batches[0])

    def seconds(self) -> Mapping[str, tuple[float, float]]:
        """Returns the seconds of each layer's passes for a microbatch."""
        if self.emulated is not None:
            return self.emulated.seconds
        engine = offload.Engine()
        return offload.layer_seconds(self.layers, self.params, self.micro(), engine)


@forgetting()
def run(config: Config, run: Run) -> None:
    """Measures the machine, plans the placement, and trains in every way."""
    return_memory()
    if config.folder:
        Path(config.folder).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="offload-", dir=config.folder or None))
    try:
        made = work(config)
        machine = offload.measure(folder, made.optimizer, dtype=config.dtype)
        run.console.print(str(machine))
        plan = planned(made, machine, config)
        run.console.print(f"staging memory {(plan.staging or 0) / GB:.2f} GB")
        run.console.print(str(plan))
        (run.folder / "plan.txt").write_text(f"{machine}\n{plan}\n")
        rows = []
        with plan.store(folder / "store") if plan.needs_store else nullcontext() as store:
            for way in run.progress(config.ways, made.name):
                if made.emulated is not None and way == "in memory":
                    continue
                if (row := tried(made, way, plan, store, config, run)) is not None:
                    rows.append(row)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    baseline = next((r["s"] for r in rows if r["way"] == "after backward"), None)
    losses = [
        {"size": r["size"], "way": r["way"], **{name: r.pop(name) for name in LOSSES}} for r in rows
    ]
    for row in rows:
        row["speed"] = baseline / row["s"] if baseline else None
    device = "emulated" if config.emulated else jax.devices()[0].device_kind
    run.table(
        "budgets",
        rows,
        key=["size", "way"],
        caption=f"{device}, {config.device:g} GB of it and {config.host:g} GB of the host: seconds "
        "per step beside the prediction, share of the bound P*, speed over updating after the "
        "backward pass, GB",
    )
    run.table("losses", losses, key=["size", "way"], caption="What the first step took, compiling, "
              "and losses of the first and the last step")  # fmt: skip
    speeds = {row["way"]: row["speed"] for row in rows if row["speed"] is not None}
    if "overlap" in speeds:
        run.compare(
            f"{speeds['overlap']:.2f} × the speed of updates after the backward pass, {device}"
        )


def work(config: Config) -> Work:
    """Builds layers, parameters and batches; texts are Python's sources, a byte per token."""
    model = gpt2.GPT2Config(**{**SIZES[config.size], "dropout": 0.0})
    length, dtype = min(config.length, model.length), jnp.dtype(config.dtype)
    params = {
        name: lambda draw=draw: jax.tree.map(lambda x: x.astype(dtype), draw())
        for name, draw in gpt2.initial(model, jax.random.key(0)).items()
    }
    rows, count = config.batch * config.microbatches, config.steps + config.warm
    text = text_bytes(rows * count * (length + 1)).reshape(count, rows, length + 1)
    layers, device = gpt2.layers(model), None
    if config.emulated:
        device = emulated(layers, params, config.emulated / config.microbatches)
    return Work(
        name=config.size,
        layers=layers,
        params=params,
        optimizer=OPTIMIZERS[config.optimizer](),
        batches=[gpt2.batch(x[:, :-1], x[:, 1:]) for x in text.astype(np.int32)],
        microbatches=config.microbatches,
        emulated=device,
    )


def text_bytes(count: int) -> np.ndarray:
    """Returns ``count`` bytes of Python's sources, repeated if they are fewer."""
    folder = Path(os.__file__).parent
    found = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return np.resize(np.frombuffer(found, np.uint8), count)


def planned(made: Work, machine: offload.Machine, config: Config) -> offload.Plan:
    """Plans the memory of a training within the budgets of device and host.

    What the programs of the layers take on the device is found by running them, and what the
    process has already counts as the host's, pinned memory for two gradients included.
    """
    seconds = made.seconds()
    if made.emulated is None:
        pinned(made.params)
    kinds = get_args(offload.Activations) if made.emulated is None else ("recompute",)
    scratch, before = on_device(), resident() if config.process else 0
    return offload.plan(
        made.layers, made.params, made.optimizer, made.micro(), machine=machine,
        device_bytes=max(0, int(config.device * GB) - scratch),
        host_bytes=max(0, int(config.host * GB) - before), microbatches=made.microbatches,
        staging=config.staging * MIB or "auto", activations=kinds, seconds=seconds,
    )  # fmt: skip


def pinned(params: Mapping[str, Any]) -> None:
    """Makes JAX allocate the pinned memory it will keep, of the size of two groups."""
    largest = max((jax.eval_shape(draw) for draw in params.values()), key=nbytes)
    arrays = [jnp.zeros(x.shape, x.dtype) for x in jax.tree.leaves([largest, largest])]
    where = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    jax.block_until_ready(jax.device_put(arrays, where))


def nbytes(shapes: Any) -> int:
    """Computes the bytes of all arrays in a pytree of shapes."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))


def on_device() -> int:
    """Returns the peak bytes in use on the device; 0 where JAX does not know."""
    found = jax.devices()[0].memory_stats()
    return 0 if found is None else int(found["peak_bytes_in_use"])


def tried(
    made: Work, way: Way, plan: offload.Plan, store: Any, config: Config, run: Run
) -> dict[str, Any] | None:
    """Trains in one way; returns its table row, or None if the device's memory is too small."""
    try:
        with peak() as memory:
            row = measured(made, way, plan, store, config, run)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        run.console.print(f"{made.name}: left out: {way} does not fit the device")
        run.metric(f"left out: {made.name}, {way}", str(error).splitlines()[0])
        return None
    return {**row, "host": (memory.start + memory.grown) / GB, "device": on_device() / GB}


def measured(
    made: Work, way: Way, plan: offload.Plan, store: Any, config: Config, run: Run
) -> dict[str, Any]:
    """Trains in one way; returns seconds and losses of its steps as a row."""
    predicted = {"overlap": plan.seconds, "after backward": plan.chosen.times.after_backward,
                 "in memory": plan.chosen.times.compute}[way]  # fmt: skip
    with ExitStack() as stack:
        if way == "in memory":
            step = Resident(made.layers, made.params, made.optimizer, made.microbatches).step
        else:
            options = plan.options(store)
            if made.emulated is not None:
                options["engine"] = made.emulated
            if way == "after backward":  # its updates begin once all gradients are there
                options.update(schedule="after_backward", gradient_bytes=None,
                               gradient_overflow="store")  # fmt: skip
            trainer = stack.enter_context(
                offload.Trainer(made.layers, made.params, made.optimizer, **options)
            )

            def step(batch: Any) -> float:
                return trainer.step(batch).loss

        took, losses = [], []
        moved = [traffic(store)]
        for batch in made.batches:
            start = time.perf_counter()
            losses.append(step(batch))
            took.append(time.perf_counter() - start)
            moved.append(traffic(store))
            run.console.print(f"{way}, step {len(took)}: {took[-1]:.3g} s, loss {losses[-1]:.4g}")
        if way != "in memory":
            trace = trainer.trace
            name = f"trace-{made.name}-{way.replace(' ', '-')}"
            trace.save(run.folder / f"{name}.json")
            run.figure(name, trace.picture(), caption=f"{made.name}, {way}: the last two steps")
    seconds = statistics.median(took[config.warm :])
    read, written = (
        (after - before) / config.steps / GB
        for before, after in zip(moved[config.warm], moved[-1], strict=True)
    )
    return {
        "size": made.name,
        "way": way,
        "tokens/s": made.tokens / seconds,
        "s": seconds,
        "predicted": predicted,
        "of P*": plan.bound / seconds,
        "speed": None,
        "first step": took[0],
        "read": read,
        "written": written,
        "first loss": losses[0],
        "last loss": losses[-1],
    }
