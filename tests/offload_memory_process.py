"""Trains blocks from disk in a process of its own; prints numbers, bytes allowed, bytes grown."""

import ctypes
import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
    mallopt(-3, 2**18)  # large arrays go back to the system at once

import jax.numpy as jnp
import numpy as np
import optax

from experiments.offload.memory import peak
from tensorjax import offload

WIDTH, STAGING = 512, 40 << 20
OPTIMIZER = optax.adam(1e-3)


def block(params, x, batch, key):
    """One matrix, and the batch where nothing came before it."""
    x = batch["x"] if x is None else x
    return x + jnp.tanh(x @ params[0]["w"])


def loss(params, x, batch, key):
    """Mean of squares."""
    return jnp.mean((x @ params[0]["w"]) ** 2)


def train(folder, depth, steps, engine):
    """Statistics of a training."""
    names = [f"block{n}" for n in range(depth)]
    layers = [offload.Layer(name=name, apply=block) for name in names[:-1]]
    layers.append(offload.Layer(name=names[-1], apply=loss))
    params = dict.fromkeys(names, lambda: {"w": jnp.full((WIDTH, WIDTH), 1e-3)})
    batch = {"x": np.ones((8, WIDTH), np.float32)}
    capacity = 2 * (4 * WIDTH * WIDTH * 4 + 65536) * depth + (1 << 20)
    with (
        offload.TensorStore(folder, capacity, staging=STAGING, backend="threads") as store,
        offload.Trainer(
            layers, params, OPTIMIZER, store=store, engine=engine,
            gradient_bytes=2 * WIDTH * WIDTH * 4,
        ) as trainer,
    ):  # fmt: skip
        for _ in range(steps):
            trainer.step(batch)
        return trainer.statistics()


def main(folder, depth):
    """Compiles with few blocks, then measures."""
    engine = offload.Engine()
    train(folder / "few", 4, 2, engine)
    with peak() as memory:
        found = train(folder / "all", depth, 3, engine)
    allowed = STAGING + 2 * 4 * WIDTH * WIDTH * 4 + found["activation_peak_bytes"]
    print(depth * WIDTH * WIDTH, allowed, memory.grown)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
