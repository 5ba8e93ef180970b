"""Losses that are weighted means, and what of a model may be trained."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

pytest.importorskip("xxhash", reason="the store has an extra of its own")

from tensorjax import offload
from tensorjax.offload._training.passes.layers import LayerPrograms


def hidden(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
    return jnp.tanh(batch["x"] @ params[0])


def weighted(params: Any, x: jax.Array, batch: Any, key: Any) -> tuple[jax.Array, jax.Array]:
    """Squares of the rows that count."""
    rows = jnp.sum((x @ params[0] - batch["y"]) ** 2, axis=1)
    return jnp.sum(batch["weights"] * rows), jnp.sum(batch["weights"])


def layers(last: Any = weighted) -> list[offload.Layer]:
    return [offload.Layer(name="a", apply=hidden), offload.Layer(name="b", apply=last)]


def params(rng: np.random.Generator) -> Any:
    return {"a": rng.standard_normal((5, 4)), "b": rng.standard_normal((4, 2))}


def padded(rng: np.random.Generator, kind: str) -> Any:
    """A batch of eight rows, of which some are padding."""
    weights = {
        "at the end": np.arange(8) < 5,
        "anywhere": rng.random(8) < 0.5,
        "any weights": rng.random(8) * 3,
        "one row": np.arange(8) == 6,
        "none": np.zeros(8),
    }[kind]
    return {
        "x": rng.standard_normal((8, 5)),
        "y": rng.standard_normal((8, 2)),
        "weights": weights.astype(float),
    }


KINDS = ("at the end", "anywhere", "any weights", "one row", "none")


@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
def test_a_weighted_mean_does_not_depend_on_microbatches(
    rng: np.random.Generator, microbatches: int
) -> None:
    start = params(rng)
    with offload.Trainer(layers(), start, optax.sgd(0.1), microbatches=microbatches) as trainer:
        now = start
        for kind in KINDS:
            batch = padded(rng, kind)

            def loss(p: Any, batch: Any = batch) -> jax.Array:
                total, weight = weighted((p["b"],), hidden((p["a"],), None, batch, None), batch, 0)
                return total / jnp.where(weight == 0, 1.0, weight)

            value, gradient = jax.value_and_grad(loss)(now)
            now = jax.tree.map(lambda p, g: p - 0.1 * g, now, gradient)
            assert trainer.evaluate(batch) == pytest.approx(float(value), rel=1e-10)
            assert trainer.step(batch).loss == pytest.approx(float(value), rel=1e-10)
        got = trainer.params()
    for name, x in now.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (lambda s, w: (s, w, w), ValueError),
        (lambda s, w: (s[None], w), ValueError),
        (lambda s, w: (s, w[None]), ValueError),
        (lambda s, w: {"sum": s, "weight": w}, ValueError),
        (lambda s, w: (jnp.int32(1), w), TypeError),
    ],
)
def test_other_results_of_the_last_layer_are_named(
    rng: np.random.Generator, result: Any, error: type[Exception]
) -> None:
    def last(params: Any, x: jax.Array, batch: Any, key: Any) -> Any:
        return result(*weighted(params, x, batch, key))

    with offload.Trainer(layers(last), params(rng), optax.sgd(0.1)) as trainer:
        with pytest.raises(error, match="layers: expected the last one to return"):
            trainer.step(padded(rng, "anywhere"))
        with pytest.raises(error, match="layers: expected the last one to return"):
            trainer.evaluate(padded(rng, "anywhere"))


class Normed(nnx.Module):
    """A linear layer whose outputs are normalised by running statistics."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)


class Moments(NamedTuple):
    """Statistics under names of attributes."""

    mean: Any
    var: Any


class Holder(NamedTuple):
    """Arrays behind an attribute."""

    inner: Any


def linen_variables(*, collection: bool) -> Any:
    """As `flax.linen` has them."""
    statistics = {"BatchNorm_0": {"mean": jnp.zeros(4), "var": jnp.ones(4)}}
    if not collection:
        return {"inner": statistics}
    trained = {"BatchNorm_0": {"scale": jnp.ones(4), "bias": jnp.zeros(4)}}
    return {"params": trained, "batch_stats": statistics}


@pytest.mark.parametrize(
    "group",
    [
        lambda: nnx.split(Normed(nnx.Rngs(0)))[1],
        lambda: nnx.state(Normed(nnx.Rngs(0)), nnx.BatchStat),
        lambda: nnx.to_pure_dict(nnx.state(Normed(nnx.Rngs(0)))),
        lambda: linen_variables(collection=True),
        lambda: linen_variables(collection=False),
        lambda: {"deep": [{"w": jnp.ones(3)}, {"mean": jnp.ones(3), "var": jnp.ones(3)}]},
        lambda: {"w": jnp.ones(3), "running_mean": jnp.ones(3), "running_var": jnp.ones(3)},
        lambda: {"moving_mean": jnp.ones(3), "moving_variance": jnp.ones(3)},
        lambda: [Moments(jnp.ones(3), jnp.ones(3))],
        lambda: Holder({"mean": jnp.ones(3), "var": jnp.ones(3)}),
    ],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_what_is_not_trained_is_refused_by_name(group: Any, lazy: bool) -> None:
    one = [offload.Layer(name="a", apply=hidden)]
    with pytest.raises(ValueError, match=r"a.*(mean|var).*expected trainable parameters"):
        offload.Trainer(one, {"a": group if lazy else group()}, optax.adamw(1e-3))


@pytest.mark.parametrize(
    "group",
    [
        lambda: nnx.state(Normed(nnx.Rngs(0)), nnx.Param),
        lambda: nnx.to_pure_dict(nnx.state(Normed(nnx.Rngs(0)), nnx.Param)),
        lambda: linen_variables(collection=True)["params"],
        lambda: {"mean": {"w": jnp.ones((3, 3))}, "var": {"w": jnp.ones((3, 3))}},
        lambda: {"mean": jnp.ones(3), "scale": jnp.ones(3)},
        lambda: Holder({"mean": jnp.ones(3), "var": jnp.ones((3, 2))}),
        lambda: {"running_mean": jnp.ones(3), "moving_var": jnp.ones(3)},
    ],
)
def test_parameters_of_every_kind_are_taken(group: Any) -> None:
    one = [offload.Layer(name="a", apply=hidden)]
    offload.Trainer(one, {"a": group()}, optax.adamw(1e-3)).close()


@pytest.mark.parametrize("kind", ["sum", "share of the batch", "mean of what counts", "spread"])
def test_a_loss_that_depends_on_how_a_batch_is_cut_is_refused(
    rng: np.random.Generator, kind: str
) -> None:
    def last(params: Any, x: jax.Array, batch: Any, key: Any) -> jax.Array:
        rows = jnp.sum((x @ params[0] - batch["y"]) ** 2, axis=1)
        w = batch["weights"]
        return {
            "sum": rows.sum(),
            "share of the batch": rows.sum() / 8,
            "mean of what counts": (w * rows).sum() / w.sum(),
            "spread": jnp.sum((rows - rows.mean()) ** 2) + rows.mean(),
        }[kind]

    batch = padded(rng, "any weights")
    with offload.Trainer(layers(last), params(rng), optax.sgd(0.1), microbatches=2) as trainer:
        for _ in range(2):  # not only once
            with pytest.raises(ValueError, match="mean loss of the rows"):
                trainer.step(batch)
    with offload.Trainer(layers(last), params(rng), optax.sgd(0.1)) as trainer:
        trainer.step(batch)


@pytest.mark.parametrize("marked", ["weights", "padded", "targets", "zero"])
@pytest.mark.parametrize("guarded", [False, True])
def test_a_mean_of_rows_that_count_is_refused_before_rows_are_padded(
    rng: np.random.Generator, marked: str, guarded: bool
) -> None:
    """The rows that are looked at may all count, as in a first batch without padding."""

    def last(params: Any, x: jax.Array, batch: Any, key: Any) -> jax.Array:
        counted = {
            "weights": lambda: batch["weights"],
            "padded": lambda: ~batch["padded"],
            "targets": lambda: batch["targets"] != -100,
            "zero": lambda: batch["targets"] != 0,
        }[marked]()
        w = counted.astype(x.dtype)
        rows = jnp.sum((x @ params[0] - batch["y"]) ** 2, axis=1)
        return (w * rows).sum() / (jnp.maximum(w.sum(), 1) if guarded else w.sum())

    ends = int(rng.integers(5, 9))  # padding at the end, or none
    batch = padded(rng, "none") | {
        "weights": (np.arange(8) < ends).astype(float),
        "padded": np.arange(8) >= ends,
        "targets": np.where(np.arange(8) < ends, 7, -100 if marked == "targets" else 0),
    }
    trainer = offload.Trainer(layers(last), params(rng), optax.sgd(0.1), microbatches=2)
    with trainer, pytest.raises(ValueError, match="mean loss of the rows"):
        trainer.step(batch)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("weight", [1 / 3, 7e4, 3e7])
def test_a_weight_that_the_dtype_of_the_loss_has_not(dtype: str, weight: float) -> None:
    """Nor its reciprocal, which is 0 in float16, nor the sum of two weights."""

    def last(params: Any, x: Any, batch: Any, key: Any) -> Any:
        kind = jnp.bfloat16 if dtype == "float16" and weight > 3e4 else dtype  # to hold the weight
        return jnp.sum(batch[0] * params[0]), jnp.asarray(weight, kind)

    one = [offload.Layer(name="a", apply=last)]
    start = {"a": np.ones(4, jnp.dtype(dtype))}
    with offload.Trainer(one, start, optax.sgd(1.0), microbatches=2) as trainer:
        loss = trainer.step(np.full((2, 4), 5e3, jnp.dtype(dtype))).loss
        moved = 1 - trainer.params()["a"].astype(float)
    eps, held = float(jnp.finfo(dtype).eps), float(jnp.asarray(weight, "float32"))
    assert loss == pytest.approx(2e4 / held, rel=2 * max(eps, 4e-3 if held > 3e4 else 0))
    np.testing.assert_allclose(moved, 5e3 / held, rtol=4e-3, atol=2 * eps * max(1, 5e3 / held))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_a_half_precision_loss_with_any_share(
    rng: np.random.Generator, dtype: str
) -> None:
    """Of real and complex arrays; small and negative shares, which weights may give."""
    shares = [1.0, 1 / 3, -0.5, 0.0, *(rng.choice([-1, 1], 6) * 10 ** rng.uniform(-7, 3, 6))]
    scale = jnp.asarray(0.01, dtype)  # of the gradients, as half precision has them

    def apply(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
        return scale * jnp.sum(jnp.abs(x * params[0]) ** 2).astype(dtype)

    def plain(params: Any, x: Any) -> jax.Array:
        return 0.01 * jnp.sum(jnp.abs(x * params) ** 2)

    for kind in (jnp.float32, jnp.complex64):
        unit = 1j if kind == jnp.complex64 else 0.5
        x, w = (
            jnp.asarray(rng.standard_normal(5) + unit * rng.standard_normal(5), kind)
            for _ in range(2)
        )
        wanted = jax.grad(plain, argnums=(0, 1))(w, x)
        programs = LayerPrograms(apply, (None,))
        for share in shares:
            loss, dx, (dw,) = programs.last((w,), x, None, None, np.float32(share), None)
            assert float(loss) == pytest.approx(share * float(plain(w, x)), rel=0.02)
            for found, exact in ((dw, wanted[0]), (dx, wanted[1])):
                assert found.dtype == kind
                np.testing.assert_allclose(found, share * np.asarray(exact), rtol=0.02)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("microbatches", [2, 4, 8])
def test_means_of_rows_are_averaged_in_any_dtype(
    rng: np.random.Generator, microbatches: int, dtype: str
) -> None:
    def last(params: Any, x: jax.Array, batch: Any, key: Any) -> jax.Array:
        return jnp.mean((x @ params[0] - batch["y"]) ** 2) + 0.1 * jnp.sum(params[0] ** 2)

    batch = jax.tree.map(lambda a: jnp.asarray(a, dtype), padded(rng, "any weights"))
    start = jax.tree.map(lambda a: jnp.asarray(a, dtype), params(rng))
    options = {"microbatches": microbatches}
    with offload.Trainer(layers(last), start, optax.sgd(0.1), **options) as trainer:
        trainer.step(batch)
