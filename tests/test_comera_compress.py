"""The models of ``comera/compress``, and its trainings at toy sizes."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax", reason="the models have an extra of their own")

import optax
from flax import nnx

from experiments.comera import compress, models, sizes


@pytest.fixture(autouse=True)
def as_experiments_run() -> Iterator[None]:
    """Promotion as users have it, and single precision."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


def drawn(kind: models.Kind, seed: int = 0) -> models.Samples:
    """Images of 8 × 8 pixels, or rows of tokens, with labels."""
    rng = np.random.default_rng(seed)
    if kind == "gpt2":
        x = rng.integers(0, models.VOCABULARY, (40, models.LENGTH + 1), np.int32)
        x[0, 1] = models.VOCABULARY - 1
        return models.Samples(x[:32, :-1], x[:32, 1:], x[32:, :-1], x[32:, 1:])
    x = rng.random((40, 64)).astype(np.float32)
    y = np.arange(40, dtype=np.int32) % 10
    return models.Samples(x[:32], y[:32], x[32:], y[32:])


@pytest.mark.parametrize("kind", ["mlp", "vit", "gru", "gpt2"])
def test_models_have_a_width(kind: models.Kind) -> None:
    """Logits for every label, no state but parameters, and fewer of these at a smaller width."""
    data = drawn(kind)
    at = models.builder(kind, data)
    counts = [sizes.count(at(width)) for width in (4, 8, 16)]
    assert counts == sorted(set(counts))
    model = at(8)(nnx.Rngs(0))
    out = model(jnp.asarray(data.x))
    classes = models.VOCABULARY if kind == "gpt2" else 10
    assert out.shape == (*data.y.shape, classes)
    nnx.split(model, nnx.Param)  # raises for other state
    loss = optax.softmax_cross_entropy_with_integer_labels(out, data.y).mean()
    np.testing.assert_allclose(loss, np.log(classes), rtol=0.3)


@pytest.mark.parametrize("method", ["narrow dense", "low rank", "GaLore, truncated"])
def test_sizes_are_kept(method: compress.Method) -> None:
    """At most the share of dense parameters that was asked for, whatever the method."""
    config = compress.Config(model="gru", steps=4, batch=8, width=16, seeds=(0, 1), rates=(0.01,))
    data = drawn("gru")
    row = compress.measure(config, data, method, 3.0)
    dense = sizes.count(models.builder("gru", data)(config.width))
    assert 0 < row["parameters"] <= dense / 3
    assert np.isfinite(row["test loss"])
    assert compress.measure(config, data, "low rank", 1000.0)["status"]
