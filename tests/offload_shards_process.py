"""One of several processes that train from disk together, each its part; started by a test."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tensorjax import offload, parallel
from tests import offload_cases as cases

COMMON: dict[str, Any] = {"clip": 0.5, "microbatches": 2}


class Layers:
    """The model of the other tests: matrices in blocks, vectors in pieces over both axes."""

    def __init__(self, mesh: Mesh | None) -> None:
        self.layers, self.params, self.engine = cases.layers(), cases.params(), offload.Engine()
        if mesh is not None:
            matrix, vector, row, first = (
                NamedSharding(mesh, spec) for spec in (P("r", "c"), P(("c", "r")), P("r"), P())
            )
            blocks = {name: {"w": matrix, "b": vector} for name in cases.NAMES[2:]}
            self.engine = offload.Engine(
                # One of the blocks lies whole on all devices: it must not count more than once.
                shardings={
                    "table": {"w": matrix}, "block0": {"w": first, "b": vector}, **blocks
                },
                data=row,
            )  # fmt: skip

    def batch(self, number: int) -> Any:
        return cases.batch(number)


class GPT2:
    """A GPT-2 of one block, by SUMMA."""

    def __init__(self, mesh: Mesh | None) -> None:
        from tensorjax.models import gpt2

        self._module, self._config = gpt2, gpt2.GPT2Config.tiny(features=64, layers=1)
        layout = parallel.Single() if mesh is None else parallel.layout("2d", mesh)
        self.layers = gpt2.layers(self._config, layout=layout)
        self.params = gpt2.initial(self._config, jax.random.key(0))
        self.engine = gpt2.engine(self._config, layout)

    def batch(self, number: int) -> Any:
        rng, length = np.random.default_rng([5, number]), self._config.length
        tokens = rng.integers(0, self._config.vocabulary, (8, length + 1)).astype(np.int32)
        weights = rng.uniform(0.5, 1.5, (8, length))
        return self._module.batch(tokens[:, :-1], tokens[:, 1:], weights)


MODELS: dict[str, Any] = {"layers": Layers, "gpt2": GPT2}


@contextlib.contextmanager
def training(model: Any, folder: Path | None, **options: Any) -> Iterator[offload.Trainer]:
    """A trainer of a model, on a store in a folder or in memory."""
    with contextlib.ExitStack() as stack:
        store = None
        if folder is not None:
            capacity = room(model)
            store = stack.enter_context(
                offload.TensorStore(folder, capacity, backend="threads", staging=4 << 20)
            )
        yield stack.enter_context(
            offload.Trainer(
                model.layers, model.params, optimizer(), store=store, engine=model.engine,
                key=jax.random.key(4), **COMMON, **options,
            )
        )  # fmt: skip


def room(model: Any) -> int:
    """Bytes of the store of this process."""
    return offload.capacity(
        offload.tensors(model.params, optimizer(), gradients=True, shardings=model.engine.shardings)
    )


def optimizer() -> Any:
    return optax.adam(1e-3, eps=1e-6)


def follow(model: Any, folder: Path, steps: int, **options: Any) -> None:
    """Trains up to a step, says what each found, and commits the last."""
    with training(model, folder, **options) as trainer:
        print("begin", trainer.steps, flush=True)
        while trainer.steps < steps:
            found = trainer.step(model.batch(trainer.steps))
            assert found.norm is not None
            print("step", found.number, found.loss.hex(), found.norm.hex(), flush=True)
        trainer.commit()
        whole = trainer.params()
        total = sum(float(np.sum(np.abs(x), dtype=np.float64)) for x in jax.tree.leaves(whole))
        print("end", total.hex(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("port", "processes", "index", "rows", "columns"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--runs", nargs="+", required=True)  # folder:steps[:elsewhere]
    parser.add_argument("--commit-every", type=int)
    parser.add_argument("--lost-after", type=int, default=100)
    options = parser.parse_args()
    jax.distributed.initialize(
        coordinator_address=f"localhost:{options.port}",
        num_processes=options.processes,
        process_id=options.index,
        initialization_timeout=120,
        heartbeat_timeout_seconds=options.lost_after,
        shutdown_timeout_seconds=options.lost_after,
    )
    model = MODELS[options.model](parallel.mesh(options.rows, options.columns))
    for run in options.runs:
        folder, steps, *elsewhere = run.split(":")
        # Gradients wait on disk, a group lives in memory: that must not matter.
        more = {"gradient_bytes": 0, "in_memory": ("block2",)} if elsewhere else {}
        follow(model, Path(folder), int(steps), commit_every=options.commit_every, **more)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
