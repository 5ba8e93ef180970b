"""GPT-2 split over devices: the loss and every gradient of the whole model, by every layout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax", reason="the models have an extra of their own")

from flax import nnx
from jax.sharding import PartitionSpec as P

from tensorjax import nn, parallel
from tensorjax.models.gpt2 import GPT2, GPT2Config, generate
from tensorjax.parallel import _tt_linear

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 121, (4, 17)), jnp.int32)
WEIGHTS = jnp.asarray(np.random.default_rng(1).uniform(0, 1, (4, 16)), jnp.float32)
SPECS = {"dense": nn.Dense(), "tt": nn.TT(rank=4), "matrix": nn.TTMatrix(rank=4)}


@functools.cache
def made(name: str, dropout: float = 0.0, vocabulary: int = 121) -> GPT2:
    rng = np.random.default_rng(3)
    config = GPT2Config.tiny(vocabulary=vocabulary, heads=8, remat="full", dropout=dropout)
    # Trains are products of many cores: in single precision, roundoff alone comes to 1e-5.
    options = dict.fromkeys(
        ("dtype", "param_dtype"), jnp.float32 if name == "dense" else jnp.float64
    )
    graph, params = nnx.split(
        nnx.eval_shape(lambda: GPT2(config, linear=SPECS[name], rngs=nnx.Rngs(0), **options))
    )

    def drawn(path, x):
        names = [str(entry.key) for entry in path if hasattr(entry, "key")]
        spread = 0.5 if "cores" in names else 0.2
        value = spread * rng.standard_normal(x.shape) + ("scale" in names or "gates" in names)
        if names == ["tokens"]:
            value[config.vocabulary :] = 0
        return jnp.asarray(value, x.dtype)

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(drawn, params))


def loss_and_gradient(model: GPT2, layout: parallel.Layout, key=None):
    """Of the mean loss of weighted targets, by a layout."""
    graph, params = nnx.split(model)
    specs = jax.tree.map(lambda axes: layout.spec(tuple(axes)), model.axes())
    data = layout.data_spec()

    def local(params, tokens, targets, weights, key):
        return nnx.merge(graph, params).loss(tokens, targets, weights, layout=layout, key=key)

    run = layout.over(local, (specs, data, data, data, P()), (P(), P()))

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        total, count = run(params, TOKENS[:, :-1], TOKENS[:, 1:], WEIGHTS, key)
        return total / count

    return loss(parallel.shard(params, specs, layout.mesh))


@functools.cache
def whole(name: str):
    return loss_and_gradient(made(name), parallel.Single())


MESHES = [(1, 4), (2, 2), (4, 1), (2, 4)]
DEFAULT = [("1d", "dense", 1, 4), ("2d", "dense", 2, 2)]
ALL = [
    *((name, "dense", *mesh) for name in parallel.NAMES[1:-1] for mesh in MESHES),
    ("2d", "tt", 2, 2),
    ("1d", "tt", 1, 4),
    ("summa", "tt", 2, 4),
    ("2d", "matrix", 2, 2),
    ("summa", "matrix", 2, 4),
]


@pytest.mark.parametrize(
    ("name", "spec", "rows", "columns"),
    [*DEFAULT, *(pytest.param(*c, marks=pytest.mark.slow) for c in ALL if c not in DEFAULT)],
)
def test_a_layout_changes_no_number(name, spec, rows, columns) -> None:
    layout = parallel.layout(name, parallel.mesh(rows, columns))
    value, gradient = loss_and_gradient(made(spec), layout)
    wanted, exact = whole(spec)
    assert float(value) == pytest.approx(float(wanted), rel=1e-5)
    for (path, g), w in zip(
        jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(exact), strict=True
    ):
        error = np.linalg.norm(np.asarray(g) - np.asarray(w)) / np.linalg.norm(np.asarray(w))
        assert error <= 1e-5, (path, error)
        if spec == "dense":  # every device holds its part of every parameter, and no more
            assert g.addressable_shards[0].data.size * rows * columns == g.size, path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1d", "2d"])
def test_the_published_vocabulary_is_padded_and_changes_no_number(name) -> None:
    """50257 words split by no number of devices here; the padded table splits by 128."""
    model, layout = made("dense", vocabulary=50257), parallel.layout(name, parallel.mesh(2, 4))
    value, gradient = loss_and_gradient(model, layout)
    wanted, exact = loss_and_gradient(model, parallel.Single())
    assert float(value) == pytest.approx(float(wanted), rel=1e-5)
    assert gradient["tokens"].shape == (50304, 32)
    assert not np.asarray(gradient["tokens"][...])[50257:].any()
    for g, w in zip(jax.tree.leaves(gradient), jax.tree.leaves(exact), strict=True):
        a, b = np.asarray(g), np.asarray(w)
        assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


@pytest.mark.parametrize("name", [pytest.param("1d", marks=pytest.mark.slow), "2d"])
def test_tokens_are_generated_where_the_parameters_lie(name) -> None:
    model, layout = made("dense"), parallel.layout(name, parallel.mesh(2, 2))
    graph, params = nnx.split(model)
    specs = jax.tree.map(lambda axes: layout.spec(tuple(axes)), model.axes())
    split = nnx.merge(graph, parallel.shard(params, specs, layout.mesh))
    options = {"temperature": 0.8, "top_k": 40, "key": jax.random.key(0)}
    wanted = generate(model, [[3, 5], [7]], 6, **options)
    np.testing.assert_array_equal(generate(split, [[3, 5], [7]], 6, **options), wanted)


def test_matrices_of_trains_are_not_split() -> None:
    """Their cores have modes of inputs and outputs: the layer is applied as any other one."""
    for kind, answer in ((nn.TTLinear, True), (nn.TTMatrixLinear, False)):
        for bias in (False, True):
            layer = nnx.eval_shape(
                lambda kind=kind, bias=bias: kind(64, 64, rank=2, use_bias=bias, rngs=nnx.Rngs(0))
            )
            assert _tt_linear.splits(layer, 2, ()) is answer


def test_logits_in_half_precision_are_sums_in_single() -> None:
    rng = np.random.default_rng(0)
    x, table = (jnp.asarray(rng.normal(size=s), jnp.bfloat16) for s in ((2, 3, 64), (128, 64)))
    layout = parallel.layout("2d", parallel.mesh(2, 2), overlap=True)
    for where in (parallel.Single(), layout):
        run = where.over(
            where.logits,
            (where.x_spec(), where.spec(("vocab", "embed"))),
            where.data_spec("batch", "length", "vocab"),
        )
        found, slopes = jax.value_and_grad(lambda t, run=run: run(x, t).sum())(table)
        assert (run(x, table).dtype, slopes.dtype) == (jnp.float32, jnp.bfloat16)
        exact = np.asarray(x, np.float64) @ np.asarray(table, np.float64).T
        np.testing.assert_allclose(run(x, table), exact, rtol=1e-5, atol=1e-4)
        assert np.isfinite(float(found))


def test_logits_of_a_layout_are_those_of_the_whole_model() -> None:
    model, layout = made("dense"), parallel.layout("2d", parallel.mesh(2, 2))
    graph, params = nnx.split(model)
    specs = jax.tree.map(lambda axes: layout.spec(tuple(axes)), model.axes())

    def local(params, tokens):
        return nnx.merge(graph, params)(tokens, layout=layout)

    run = layout.over(local, (specs, layout.data_spec()), P("r"))
    found = jax.jit(run)(parallel.shard(params, specs, layout.mesh), TOKENS[:, :-1])
    assert found.shape == (4, 16, 121)
    wanted = jax.jit(lambda params: nnx.merge(graph, params)(TOKENS[:, :-1]))(params)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1d", "2d"])
def test_dropout_under_a_layout_draws_anew_and_is_finite(name) -> None:
    layout = parallel.layout(name, parallel.mesh(2, 2) if name == "2d" else parallel.mesh(1, 4))
    key = jax.random.key(0, impl="unsafe_rbg")
    value, gradient = loss_and_gradient(made("dense", dropout=0.2), layout, key)
    assert float(value) != pytest.approx(float(whole("dense")[0]), rel=1e-4)
    assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(gradient))


def test_heads_that_do_not_split_are_refused_with_the_numbers() -> None:
    config = GPT2Config.tiny(heads=5, features=40)
    model = nnx.eval_shape(lambda: GPT2(config, rngs=nnx.Rngs(0)))
    graph, params = nnx.split(model)
    layout = parallel.layout("2d", parallel.mesh(2, 2))
    specs = jax.tree.map(lambda axes: layout.spec(tuple(axes)), model.axes())
    data = layout.data_spec()
    run = layout.over(
        lambda p, t: nnx.merge(graph, p).loss(t, t, layout=layout), (specs, data), (P(), P())
    )
    tokens = jax.ShapeDtypeStruct((4, 16), jnp.int32)
    with pytest.raises(ValueError, match=r"heads: expected a multiple of 2 .* got 5"):
        jax.eval_shape(run, params, tokens)
