"""Convolutions in TT, Tucker, CP and low-rank format against dense ones, drawn at random."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tensorjax import nn, optim
from tests.lowering import check_portable

KINDS: dict[str, Any] = {
    "tt": nn.TTConv, "tucker": nn.TuckerConv, "cp": nn.CPConv, "low rank": nn.LowRankConv,
}  # fmt: skip
PADDINGS: tuple[Any, ...] = ("SAME", "VALID", "CIRCULAR", "REFLECT", 1, "pairs")


def drawn(seed: int) -> tuple[dict[str, Any], jax.Array]:
    """Options of a convolution, drawn, and an input for it."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 4))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(map(int, rng.integers(low, high, count)))

    padding = PADDINGS[seed % len(PADDINGS)]
    if padding == "pairs":
        padding = [tuple(map(int, rng.integers(0, 3, 2))) for _ in range(count)]
    options = {
        "in_features": int(rng.integers(2, 6)),
        "out_features": int(rng.integers(2, 6)),
        "kernel_size": each(1, 4),
        "strides": each(1, 3),
        "kernel_dilation": each(1, 3),
        "input_dilation": each(1, 3) if not isinstance(padding, str) else 1,
        "padding": padding,
        "use_bias": bool(seed % 2),
    }
    lead = tuple(map(int, rng.integers(1, 3, int(rng.integers(0, 3)))))
    shape = (*lead, *map(int, rng.integers(6, 9, count)), options["in_features"])
    return options, jnp.asarray(rng.normal(size=shape), jnp.float32)


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=pytest.mark.slow if s > 3 else ()) for s in range(18)]
)
def test_outputs_are_those_of_the_dense_convolution(seed: int):
    options, x = drawn(seed)
    layer = [*KINDS.values()][seed % 4](**options, rank=2, rngs=nnx.Rngs(seed))
    if layer.bias is not None:
        layer.bias.set_value(jnp.arange(layer.out_features, dtype=jnp.float32))
    expected = nn.to_conv(layer)(x)
    for forced in ("sequence", "dense"):  # both ways, whichever is planned
        layer.plan = lambda shape, kind=forced: nn.ConvPlan(kind, 0, 0, 0)  # type: ignore
        found = layer(x)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("format", KINDS)
def test_conversions_measure_their_error(format: Any):
    rng = np.random.default_rng(1)
    dense = nnx.Conv(6, 8, (3, 2), strides=(2, 1), rngs=nnx.Rngs(0))
    target = {"rank": 30} if format == "cp" else {"tol": 0.2}
    layer, certificate = nn.from_conv(dense, format=format, **target)
    assert type(layer) is KINDS[format]
    w, wanted = np.asarray(layer.weight()), np.asarray(dense.kernel[...])
    error = np.linalg.norm(w - wanted) / np.linalg.norm(wanted)
    assert certificate.error == pytest.approx(error, abs=1e-6)
    assert certificate is layer.certificate
    if format == "cp":
        assert error < 0.5
        planted = nn.to_conv(nn.CPConv(6, 8, (3, 2), rank=2, rngs=nnx.Rngs(3)))
        assert nn.from_conv(planted, rank=3, format="cp")[1].error < 1e-2
    else:
        assert error <= 0.2 == certificate.bound
        assert certificate.least <= error
    assert layer.strides == (2, 1)
    exact, _ = nn.from_conv(dense, format=format, rank=200)
    x = jnp.asarray(rng.normal(size=(2, 7, 9, 6)), jnp.float32)
    np.testing.assert_allclose(exact(x), dense(x), rtol=1e-3, atol=1e-3)


class Net(nnx.Module):
    def __init__(self, dtype: Any = None):
        rngs = nnx.Rngs(0)
        self.first = nnx.Conv(3, 8, (3, 3), dtype=dtype, rngs=rngs)
        self.depthwise = nnx.Conv(8, 8, (3, 3), feature_group_count=8, dtype=dtype, rngs=rngs)
        self.last = nnx.Conv(8, 4, (3, 3), strides=2, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(nnx.relu(self.depthwise(self.first(x))))


@pytest.mark.parametrize(
    "spec", [nn.TT(40), nn.Tucker(40), nn.LowRank(40)], ids=["tt", "tucker", "low rank"]
)
def test_models_are_tensorised_and_exported(spec: Any):
    model = Net()
    x = jax.random.normal(jax.random.key(0), (2, 8, 8, 3), "f")
    small = nn.tensorize(model, {"*": spec})
    assert type(small.depthwise) is nnx.Conv  # groups are left as they are
    assert small.first.certificate.error < 1e-5
    np.testing.assert_allclose(small(x), model(x), rtol=1e-3, atol=1e-4)
    dense = nn.detensorize(small)
    assert jax.tree.structure(nnx.state(dense)) == jax.tree.structure(nnx.state(model))
    np.testing.assert_allclose(dense(x), model(x), rtol=1e-3, atol=1e-4)
    assert "first" in nn.summary(small)


def test_fresh_ones_train_under_jit_and_find_ranks():
    model = Net(jnp.bfloat16)
    x = jax.random.normal(jax.random.key(0), (2, 8, 8, 3), "f")
    small = nn.tensorize(model, {"first": nn.CP(3), "*": nn.TT(3)}, init="random", rngs=nnx.Rngs(1))
    assert small.first(x).dtype == jnp.bfloat16
    grads = nnx.jit(nnx.grad(lambda m, x: (m(x).astype("f") ** 2).mean()))(small, x)
    assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(grads))
    params = nnx.state(small, nnx.Param)
    assert optim.ranks(params) == {"first": (3,), "last": (3, 3, 3)}
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), params)
    assert optim.size(stacked) == 2 * optim.size(params)


@pytest.mark.parametrize("format", KINDS)
def test_they_are_lowered_for_accelerators(format: str):
    layer = KINDS[format](6, 8, (3, 3), rank=2, rngs=nnx.Rngs(0))
    graph, state = nnx.split(layer)
    x = jnp.ones((2, 8, 8, 6), jnp.float32)
    check_portable(lambda leaves, x: nnx.merge(graph, leaves)(x), state, x)


def test_the_plan_takes_the_dense_kernel_where_that_is_cheaper():
    wide = nn.TuckerConv(64, 64, (3, 3), rank=8, rngs=nnx.Rngs(0))
    plan = wide.plan((8, 32, 32, 64))
    assert plan.kind == "sequence"
    assert plan.flops == plan.sequence_flops < plan.dense_flops / 5
    full = nn.TTConv(4, 4, (3, 3), rank=100, rngs=nnx.Rngs(0))
    assert full.plan((8, 32, 32, 4)).kind == "dense"
    text = str(jax.make_jaxpr(wide)(jnp.ones((8, 32, 32, 64), jnp.float32)))
    assert "3,3,64,64" not in text  # no dense kernel


def test_bad_arguments_are_named():
    conv = nnx.Conv(4, 6, (3, 3), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="expected None and a rank"):
        nn.from_conv(conv, tol=0.1, format="cp")
    with pytest.raises(ValueError, match="format: expected one of"):
        nn.from_conv(conv, tol=0.1, format="mera")  # type: ignore
    with pytest.raises(TypeError, match=r"expected a flax\.nnx\.Conv, got Linear"):
        nn.from_conv(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), tol=0.1)  # type: ignore
    grouped = nnx.Conv(4, 6, (3, 3), feature_group_count=2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"layer\.feature_group_count: expected"):
        nn.from_conv(grouped, tol=0.1)
    with pytest.raises(TypeError, match="expected a tensorised convolution"):
        nn.to_conv(conv)  # type: ignore
    layer = nn.TTConv(4, 6, (3, 3), rank=2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="2 spatial axes and 4 channels last"):
        layer(jnp.ones((8, 8, 5), jnp.float32))
    with pytest.raises(ValueError, match="strides: expected 2 values"):
        nn.TTConv(4, 6, (3, 3), (1, 2, 1), rank=2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="first: rank: expected a rank"):
        nn.tensorize(Net(), {"first": nn.TT()}, init="random", rngs=nnx.Rngs(0))
