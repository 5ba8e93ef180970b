"""Parts "offload-xl" and "offload-7b" of `bench/device`: training with weights on disk.

The models and their text are those of `experiments.offload.budgets`. Both rows of a part share one
store, so that it is written once: the second training goes on from what the first one committed.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments._process_settings import return_memory
from experiments.bench._solving import found
from experiments.bench.device.rows import Budget, Emit, LeftOut, reason, run_case

GB, MIB = 10**9, 2**20
# Memory of the device for parameters, and of the host for gradients that wait: both small beside
# what there is, so that what is told is the disk's doing.
_WEIGHTS, _GRADIENTS = 4 * GB, 8 * GB


@dataclass(frozen=True)
class Model:
    """Model size to be trained from disk; the ``warm`` first steps compile."""

    size: str
    dtype: Literal["float32", "bfloat16"]
    optimizer: Literal["adamw", "lion", "sgd"]
    batch: int
    microbatches: int
    length: int = 1024
    steps: int = 3
    warm: int = 2


MODELS = {  # of the parts
    "offload-xl": Model("xl", "float32", "adamw", 8, 3),
    "offload-7b": Model("7b", "bfloat16", "lion", 4, 12, steps=2, warm=1),
}
SMALL = Model("tiny", "float32", "adamw", 1, 2, length=16, steps=1, warm=1)


def run(budget: Budget, emit: Emit) -> None:
    """Trains the model of a part with a third of it on disk, then with all; emits the rows."""
    model = MODELS[emit.part]
    if found("xxhash") is None:
        emit.left_out(model.size, "'xxhash' is not installed, which the store needs")
        return
    from experiments.offload.variants import forgetting

    return_memory()
    folder = Path(tempfile.mkdtemp(prefix="offload-"))
    try:
        with forgetting():
            _rows(SMALL if budget.tiny else model, folder, budget, emit)
    except Exception as error:  # before the first step
        emit.left_out(model.size, reason(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _rows(model: Model, folder: Path, budget: Budget, emit: Emit) -> None:
    from experiments.offload import budgets
    from tensorjax import offload

    made = budgets.work(
        budgets.Config(
            size=model.size, batch=model.batch, microbatches=model.microbatches,
            length=model.length, dtype=model.dtype, optimizer=model.optimizer,
            steps=model.steps, warm=model.warm,
        )
    )  # fmt: skip
    specs = offload.tensors(made.params, made.optimizer)
    needed, free = offload.capacity(specs), shutil.disk_usage(folder).free
    if needed > 0.97 * free:
        emit.left_out(
            model.size, f"out of disk: {needed / GB:.0f} GB needed, {free / GB:.0f} GB free"
        )
        return
    largest = max(_bytes(specs, name) for name in made.params)
    with offload.TensorStore(folder / "store", needed, staging=8 * largest + 64 * MIB) as store:
        for label, in_memory in placements(list(made.params)):
            find = _row(made, store, model, in_memory, budget)
            run_case(f"{model.size}, {label}", find, budget, emit)


def _bytes(specs: Any, group: str) -> int:
    """Returns the bytes of a group's parameters."""
    found = (s for name, s in specs.items() if name.startswith(f"{group}/params"))
    return sum(s.size * s.dtype.itemsize for s in found)


def placements(groups: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields which groups are kept in memory: all but every third one, and none."""
    yield "a third on disk", tuple(name for n, name in enumerate(groups) if n % 3 != 1)
    yield "all on disk", ()


def _row(
    made: Any, store: Any, model: Model, in_memory: tuple[str, ...], budget: Budget
) -> Callable[[], dict[str, Any]]:
    from experiments.offload import budgets, variants
    from experiments.offload.memory import peak
    from tensorjax import offload

    def find() -> dict[str, Any]:
        took, losses, moved = [], [], []
        start = time.perf_counter()
        with (
            peak(0.05) as memory,
            offload.Trainer(
                made.layers, made.params, made.optimizer, store=store, in_memory=in_memory,
                device_bytes=_WEIGHTS, gradient_bytes=_GRADIENTS, gradient_overflow="wait",
                microbatches=model.microbatches,
            ) as trainer,
        ):  # fmt: skip
            ready = time.perf_counter() - start
            for batch in made.batches:
                if took and budget.left() < 1.5 * took[-1]:
                    break
                before = variants.traffic(store)
                start = time.perf_counter()
                losses.append(trainer.step(batch).loss)
                took.append(time.perf_counter() - start)
                after = variants.traffic(store)
                moved.append([(b - a) / GB for a, b in zip(before, after, strict=True)])
                print(f"step {len(took)}: {took[-1]:.3g} s, loss {losses[-1]:.4g}", flush=True)
        timed = took[model.warm :]
        if not timed:
            each = ", ".join(f"{s:.1f} s" for s in took)
            raise LeftOut(f"out of time after {len(took)} steps ({each}), none of them warm")
        seconds = statistics.median(timed)
        return {
            "tokens/s": made.tokens / seconds,
            "s per step": seconds,
            "steps": len(timed),
            "GB read": statistics.median(m[0] for m in moved[model.warm :]),
            "GB written": statistics.median(m[1] for m in moved[model.warm :]),
            "s before": ready,
            "first step s": took[0],
            "GB of the host": (memory.start + memory.grown) / GB,
            "GB of the device": budgets.on_device() / GB,
            "first loss": losses[0],
            "last loss": losses[-1],
        }

    return find
