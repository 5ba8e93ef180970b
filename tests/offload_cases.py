"""What the tests of the trainer share: a small model with a tied table, its batches, its stores."""

import contextlib
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tensorjax import offload

WIDTH = 160  # its matrices are above what is packed, its biases below
DEPTH = 4
NAMES = ("table", *(f"block{n}" for n in range(DEPTH)))


def first(params: Any, x: None, batch: Any, key: Any) -> jax.Array:
    (table,) = params
    return batch["x"].astype(table["w"].dtype) @ table["w"]


def block(params: Any, x: jax.Array, batch: Any, key: Any) -> jax.Array:
    (mine,) = params
    y = jnp.tanh(x @ mine["w"] + mine["b"][None])
    if key is not None:
        y = jnp.where(jax.random.bernoulli(key, 0.9, y.shape), y, jnp.zeros_like(y))
    return x + y


def last(params: Any, x: jax.Array, batch: Any, key: Any) -> jax.Array:
    (table,) = params
    error = (x @ table["w"].T).astype(jnp.float32) - batch["y"]
    return jnp.mean(error**2)


def headed(params: Any, x: jax.Array, batch: Any, key: Any) -> jax.Array:
    table, head = params
    y = (x @ table["w"].T) * head["scale"][None] + head["b"][:, :24].sum(0)[None]
    return jnp.mean((y.astype(jnp.float32) - batch["y"]) ** 2)


def layers(*, head: bool = False) -> list[offload.Layer]:
    """With a head, the last layer has parameters that no other one uses, as GPT-2 does."""
    uses = ("table", "head") if head else ("table",)
    return [
        offload.Layer(name="first", apply=first, uses=("table",)),
        *(offload.Layer(name=f"block{n}", apply=block) for n in range(DEPTH)),
        offload.Layer(name="last", apply=headed if head else last, uses=uses),
    ]


def params(*, head: bool = False, dtype: Any = np.float32) -> dict[str, Any]:
    rng = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / 12).astype(np.float32)

    made: dict[str, Any] = {"table": {"w": normal(24, WIDTH)}}
    for n in range(DEPTH):
        made[f"block{n}"] = {"w": normal(WIDTH, WIDTH), "b": normal(WIDTH)}
    if head:  # large: it is updated late, while the next step is under way
        made["head"] = {"scale": np.ones(24, np.float32), "b": normal(320, WIDTH)}
    return jax.tree.map(lambda x: x.astype(dtype), made)


def batch(number: int, rows: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([11, number])
    return {"x": rng.standard_normal((rows, 24)).astype(np.float32),
            "y": rng.standard_normal((rows, 24)).astype(np.float32)}  # fmt: skip


@functools.cache  # one transformation is compiled once
def optimizer() -> Any:
    return optax.adamw(3e-3)


def store(path: Path, **options: Any) -> offload.TensorStore:
    settings = {"backend": "threads", "staging": 4 << 20, **options}
    return offload.TensorStore(path, 64 << 20, **settings)


def train(
    steps: int, make: Any = None, *, dtype: Any = np.float32, **options: Any
) -> tuple[list[float], Any]:
    """Losses and all parameters after some steps; ``make`` opens a store."""
    with (
        contextlib.nullcontext() if make is None else make() as held,
        offload.Trainer(
            layers(), params(dtype=dtype), optimizer(), store=held, **options
        ) as trainer,
    ):
        losses = [trainer.step(batch(n)).loss for n in range(steps)]
        return losses, trainer.params()


def equal(a: Any, b: Any) -> bool:
    """Whether two pytrees are the same, bit for bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in pairs
    )
