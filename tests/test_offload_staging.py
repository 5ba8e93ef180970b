"""Training goes on however little staging memory there is, where gradients wait in the store."""

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("xxhash", reason="the store has an extra of its own")

from tensorjax import offload

WIDTH, DEPTH = 64, 10
LAYER = WIDTH * WIDTH * 4  # bytes of the parameters of a layer
OPTIMIZERS = {"sgd": optax.sgd(1e-2), "adam": optax.adamw(1e-3)}


def block(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
    x = batch["x"] if x is None else x
    return x + jnp.tanh(x @ params[0]["w"])


def loss(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
    return jnp.mean((x @ params[0]["w"]) ** 2)


LAYERS = [
    *(offload.Layer(name=f"block{n}", apply=block) for n in range(DEPTH)),
    offload.Layer(name="loss", apply=loss),
]


def train(folder: Path, optimizer: str, staging: float, options: dict[str, Any]) -> list[float]:
    rng = np.random.default_rng(0)
    params = {
        layer.name: {"w": (rng.standard_normal((WIDTH, WIDTH)) / 10).astype(np.float32)}
        for layer in LAYERS
    }
    size = int(staging * LAYER)
    with (
        offload.TensorStore(folder, 1 << 24, backend="memory", staging=size, block=4096) as store,
        offload.Trainer(
            LAYERS, params, OPTIMIZERS[optimizer], store=store, device_bytes=2 * LAYER,
            gradient_bytes=0, **options,
        ) as trainer,
    ):  # fmt: skip
        batch = {"x": np.ones((2, WIDTH), np.float32)}
        return [trainer.step(batch).loss for _ in range(3)]


def test_staging_that_cannot_do_is_named_and_more_helps(tmp_path: Path) -> None:
    """Reads have three quarters; parameters, a gradient and two states take four."""
    with pytest.raises(offload.CapacityError, match="'block0', with its gradient, take 69632"):
        train(tmp_path, "adam", 5, {})
    assert len(train(tmp_path, "adam", 8, {})) == 3


@pytest.mark.parametrize(
    ("optimizer", "staging"),
    [("sgd", 5), *(pytest.param("sgd", n, marks=pytest.mark.slow) for n in (7, 8, 9)),
     ("adam", 9), ("adam", 11.5), pytest.param("adam", 21, marks=pytest.mark.slow)],
)  # fmt: skip
@pytest.mark.parametrize(
    "options",
    [{}, {"clip": 1.0}, {"schedule": "after_backward"}],
    ids=["overlap", "clip", "after backward"],
)
def test_updates_never_hold_what_their_gradients_wait_for(
    tmp_path: Path, optimizer: str, staging: float, options: dict[str, Any]
) -> None:
    found: list[float] = []
    thread = threading.Thread(
        target=lambda: found.extend(train(tmp_path, optimizer, staging, options)), daemon=True
    )
    thread.start()
    thread.join(60)
    assert len(found) == 3, "the training does not go on"
    assert found[-1] < found[0]


@pytest.mark.parametrize("options", [{}, {"clip": 1.0}], ids=["overlap", "clip"])
@pytest.mark.parametrize("share", [1.05, 1.1, 1.3])
def test_layers_of_several_sizes_do_not_cut_staging_up(
    tmp_path: Path, share: float, options: dict[str, Any]
) -> None:
    """Reads have hardly more than the largest update needs."""
    rng = np.random.default_rng(0)
    widths = [64 * n for n in (9, 1, 1, 9, 1, 1)]
    params = {
        f"block{n}": {"w": (rng.standard_normal((WIDTH, width)) / 30).astype(np.float32)}
        for n, width in enumerate(widths)
    }

    def wide(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
        x = batch["x"] if x is None else x
        return x + jnp.tanh(x @ params[0]["w"]) @ params[0]["w"].T

    layers = [offload.Layer(name=name, apply=wide) for name in list(params)[:-1]]
    layers.append(offload.Layer(name="block5", apply=loss))
    found: list[float] = []

    def run() -> None:
        size = int(share * 3 * 9 * LAYER) * 4 // 3
        with (
            offload.TensorStore(
                tmp_path, 1 << 24, backend="memory", staging=size, block=4096
            ) as store,
            offload.Trainer(layers, params, OPTIMIZERS["adam"], store=store, **options) as trainer,
        ):
            batch = {"x": np.ones((2, WIDTH), np.float32)}
            found.extend(trainer.step(batch).loss for _ in range(4))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert len(found) == 4, "the training does not go on"
