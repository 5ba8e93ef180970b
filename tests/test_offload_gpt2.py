"""GPT-2 by layers, from disk: the model as a whole, its tied table, half precision."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("flax", reason="the models have an extra of their own")
pytest.importorskip("xxhash", reason="the store has an extra of its own")

from flax import nnx

from tensorjax import nn, offload, parallel
from tensorjax.models import gpt2

CONFIG = gpt2.GPT2Config.tiny()


def batches(count: int) -> list[Any]:
    """Random tokens, the weights of some targets zero."""
    rng, found = np.random.default_rng(7), []
    for _ in range(count):
        tokens = rng.integers(0, CONFIG.vocabulary, (4, CONFIG.length + 1)).astype(np.int32)
        weights = rng.uniform(0, 2, (4, CONFIG.length)) * (rng.random((4, 1)) < 0.8)
        weights[0] += 0.1
        found.append(gpt2.batch(tokens[:, :-1], tokens[:, 1:], weights))
    return found


def test_steps_equal_those_of_the_model(tmp_path: Path) -> None:
    """Loss by `GPT2.loss` under one jit; microbatches of unequal weight, from disk."""
    optimizer, clip = optax.sgd(0.1, momentum=0.9), 0.5
    model = gpt2.GPT2(CONFIG, rngs=nnx.Rngs(0))
    groups = gpt2.groups(model)
    graph, params = nnx.split(model, nnx.Param)
    whole = optax.chain(optax.clip_by_global_norm(clip), optimizer)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            total, count = nnx.merge(graph, params).loss(
                batch["tokens"], batch["targets"], batch["weights"]
            )
            return total / count

        value, gradient = jax.value_and_grad(loss)(params)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = whole.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    state = whole.init(params)
    with (
        offload.TensorStore(tmp_path, 32 << 20, backend="threads", staging=4 << 20) as store,
        offload.Trainer(
            gpt2.layers(CONFIG), groups, optimizer, store=store, clip=clip, microbatches=2
        ) as trainer,
    ):
        for batch in batches(3):
            params, state, value = step(params, state, batch)
            assert trainer.step(batch).loss == pytest.approx(float(value), rel=1e-6)
        got = trainer.params()
    wanted = gpt2.groups(nnx.merge(graph, params))
    for name in wanted:
        pairs = zip(jax.tree.leaves(wanted[name]), jax.tree.leaves(got[name]), strict=True)
        for x, y in pairs:
            np.testing.assert_allclose(y, x, rtol=0, atol=1e-6 * max(np.max(np.abs(x)), 0.1))
    # And back into a model.
    gpt2.load_groups(model, got)
    again = gpt2.groups(model)
    assert all(np.array_equal(a, b) for a, b in zip(
        jax.tree.leaves(again), jax.tree.leaves(got), strict=True))  # fmt: skip


def test_what_is_drawn_has_the_shapes_and_spread_of_the_model() -> None:
    drawn = {name: draw() for name, draw in gpt2.initial(CONFIG, jax.random.key(1)).items()}
    made = gpt2.groups(gpt2.GPT2(CONFIG, rngs=nnx.Rngs(0)))
    assert jax.tree.map(jnp.shape, drawn) == jax.tree.map(np.shape, made)
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(drawn), jax.tree.leaves(made), strict=True
    ):
        # Standard deviations of the same distribution, from at least 512 numbers or all equal.
        assert float(jnp.std(x)) == pytest.approx(float(np.std(y)), rel=0.2, abs=1e-6), path


@pytest.mark.slow
def test_dropout_keeps_the_mean_in_half_precision() -> None:
    """Its factor is no number of bfloat16."""
    config = gpt2.GPT2Config.tiny(dropout=0.1)
    embedding = gpt2.layers(config)[0]
    held = gpt2.initial(config, jax.random.key(0), param_dtype=jnp.bfloat16)
    params, (batch,) = tuple(held[name]() for name in embedding.uses), batches(1)
    plain, dropped = (
        np.asarray(embedding.apply(params, None, batch, key), np.float64)
        for key in (None, jax.random.key(1))
    )
    kept = (dropped != 0) & (plain != 0)
    assert np.mean(dropped[kept] / plain[kept]) == pytest.approx(1 / 0.9, rel=3e-4)


def test_half_precision_and_dropout_from_disk(tmp_path: Path) -> None:
    config = gpt2.GPT2Config.tiny(dropout=0.1)
    key, options = jax.random.key(3), {"compute_dtype": jnp.bfloat16}

    def losses(**more: Any) -> list[float]:
        # JAX's attention asks for it, going backwards in half precision.
        with (
            jax.numpy_dtype_promotion("standard"),
            offload.Trainer(
                gpt2.layers(config),
                gpt2.initial(config, key),
                optax.adam(1e-3),
                key=key,
                **options,
                **more,
            ) as trainer,
        ):
            return [trainer.step(batch).loss for batch in batches(3)]

    wanted = losses()
    with offload.TensorStore(tmp_path, 32 << 20, backend="threads", staging=4 << 20) as store:
        assert losses(store=store) == wanted
    assert wanted[0] == pytest.approx(np.log(CONFIG.vocabulary), rel=0.05)


def split(name: str) -> parallel.Layout:
    return parallel.layout(name, parallel.mesh(2, 2, depth=2 if name == "2.5d" else 1))


def check_layout(layout: parallel.Layout, linear: Any) -> None:
    """Losses and norms as without a layout; parameters end where it places them."""

    def steps(layout: parallel.Layout) -> Any:
        with offload.Trainer(
            gpt2.layers(CONFIG, linear=linear, layout=layout),
            gpt2.initial(CONFIG, jax.random.key(1), linear=linear),
            optax.sgd(0.1, momentum=0.9),
            engine=gpt2.engine(CONFIG, layout, linear=linear),
            clip=0.5,
        ) as trainer:
            found = [trainer.step(batch) for batch in batches(2)]
            return [(s.loss, s.norm) for s in found], trainer.params()

    (wanted, params), (got, after) = steps(parallel.Single()), steps(layout)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    for x, y in zip(jax.tree.leaves(params), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(y, x, rtol=0, atol=1e-5 * max(np.max(np.abs(x)), 0.1))


def test_2d_layers_equal_those_on_one_device() -> None:
    check_layout(split("2d"), nn.Dense())


@pytest.mark.slow
@pytest.mark.parametrize("linear", [nn.Dense(), nn.TT(rank=4)], ids=["dense", "trains"])
@pytest.mark.parametrize("name", ["1d", "1d+sequence", "fsdp+tp", "summa", "2d", "2.5d"])
def test_every_layout_equals_one_device(name: str, linear: Any) -> None:
    check_layout(split(name), linear)


@pytest.mark.slow
def test_dropout_by_a_layout() -> None:
    """Other numbers are drawn on every mesh, as by `GPT2`; a key draws them again."""
    config, layout = gpt2.GPT2Config.tiny(dropout=0.2, layers=1), split("2d")

    def loss(key: Any) -> float:
        with offload.Trainer(
            gpt2.layers(config, layout=layout),
            gpt2.initial(config, jax.random.key(1)),
            optax.sgd(0.1),
            engine=gpt2.engine(config, layout),
            key=key,
        ) as trainer:
            return trainer.step(batches(1)[0]).loss

    first, again, other = (loss(jax.random.key(n)) for n in (0, 0, 1))
    assert first == again != other


def test_a_layout_that_does_not_fit_is_named() -> None:
    layout = parallel.layout("2d", parallel.mesh(1, 3))
    for make in (gpt2.engine, lambda config, layout: gpt2.layers(config, layout=layout)):
        with pytest.raises(ValueError, match="heads: expected a multiple of 3"):
            make(CONFIG, layout)
    config = gpt2.GPT2Config.tiny(features=48, heads=3)
    with pytest.raises(ValueError, match="128 rows of the padded vocabulary"):
        gpt2.engine(config, layout)


def test_what_does_not_fit_is_named() -> None:
    tokens = np.zeros((2, 4), np.int32)
    with pytest.raises(ValueError, match="targets"):
        gpt2.batch(tokens, tokens[:1])
    with pytest.raises(ValueError, match="weights"):
        gpt2.batch(tokens, tokens, np.zeros((2, 4)))
    model = gpt2.GPT2(CONFIG, rngs=nnx.Rngs(0))
    groups = gpt2.groups(model)
    with pytest.raises(ValueError, match="block001"):
        gpt2.load_groups(model, {n: p for n, p in groups.items() if n != "block001"})
    with pytest.raises(ValueError, match="positions"):
        gpt2.load_groups(model, {**groups, "positions": {"positions": np.zeros((3, 32))}})


@pytest.mark.parametrize(("dtype", "large"), [("float16", 7e4), ("bfloat16", 3.4e38)])
def test_numbers_that_the_model_cannot_hold_are_not_loaded(dtype: str, large: float) -> None:
    model = gpt2.GPT2(CONFIG, param_dtype=dtype, rngs=nnx.Rngs(0))
    held = gpt2.groups(model)
    groups = jax.tree.map(lambda x: np.asarray(x, np.float32), held)
    norm = groups["block001"]["norm2"]["scale"]
    norm[3] = -large
    message = rf"blocks.norm2.scale: expected numbers that {dtype} holds, got up to {large:.3g}"
    with pytest.raises(ValueError, match=message.replace("+", r"\+")):
        gpt2.load_groups(model, groups)
    assert jax.tree.all(jax.tree.map(np.array_equal, gpt2.groups(model), held))
    norm[3] = np.inf  # it is infinite already
    gpt2.load_groups(model, groups)
    assert gpt2.groups(model)["block001"]["norm2"]["scale"][3] == np.inf
