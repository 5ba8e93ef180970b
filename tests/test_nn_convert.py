"""Dense layers into tensorised ones and back, one by one and in whole models."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tensorjax import nn


def planted(rank: Any = 3, n: int = 64, m: int = 96, **options: Any) -> nnx.Linear:
    """A dense layer whose weight is a train of low TT-ranks."""
    options = {"order": 2, "param_dtype": jnp.float64} | options
    layer = nn.to_linear(nn.TTLinear(n, m, rank=rank, rngs=nnx.Rngs(1), **options))
    if layer.bias is not None:
        layer.bias.set_value(jnp.arange(m, dtype=layer.bias.dtype))
    return layer


def decaying(n: int = 64, m: int = 96, seed: int = 0, dtype: Any = np.float64) -> nnx.Linear:
    """A dense layer whose unfoldings have singular values that fall."""
    rng = np.random.default_rng(seed)
    decay = 0.7 ** np.arange(min(n, m))
    u, v = (np.linalg.qr(rng.standard_normal((k, len(decay))))[0] for k in (n, m))
    layer = nnx.Linear(n, m, param_dtype=dtype, rngs=nnx.Rngs(0))
    layer.kernel.set_value(jnp.asarray((u * decay) @ v.T, dtype))
    return layer


def error(layer: Any, dense: nnx.Linear) -> float:
    w, wanted = np.asarray(layer.weight()), np.asarray(dense.kernel[...])
    return float(np.linalg.norm(w - wanted) / np.linalg.norm(wanted))


# One layer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["tt", "tt-matrix", "tucker"])
@pytest.mark.parametrize("sizes", [(61, 96), pytest.param((64, 96), marks=pytest.mark.slow)])
@pytest.mark.parametrize("tol", [0.3, 1e-3])
def test_the_tolerance_is_kept_and_certified(format: Any, sizes: Any, tol: float):
    dense = decaying(*sizes)
    layer, certificate = nn.from_linear(dense, tol=tol, format=format, order=2)
    measured = error(layer, dense)
    assert measured <= tol
    assert certificate.error == pytest.approx(measured, abs=1e-12)
    assert certificate.bound == tol
    assert certificate.least <= certificate.error
    assert certificate.ranks == layer.ranks
    assert certificate.numbers_before == math.prod(sizes) + sizes[1]
    assert certificate.numbers == layer.numbers
    assert certificate is layer.certificate
    assert certificate.compression == certificate.numbers_before / certificate.numbers
    assert f"{certificate.numbers:,} numbers" in str(certificate)
    x = np.random.default_rng(0).standard_normal((5, sizes[0]))
    bound = tol * np.linalg.norm(np.asarray(dense.kernel[...])) * np.linalg.norm(x)
    assert np.linalg.norm(layer(x) - dense(x)) <= bound


@pytest.mark.parametrize("format", ["tt", "tucker"])
def test_no_truncation_at_these_ranks_is_closer_than_certified(format: Any):
    dense = decaying()
    _, certificate = nn.from_linear(dense, rank=4, format=format, order=2)
    # The best of all: the middle bond alone has this error.
    values = np.linalg.svd(np.asarray(dense.kernel[...]), compute_uv=False)
    rank = 4 if format == "tt" else 16
    assert certificate.error >= np.linalg.norm(values[rank:]) / np.linalg.norm(values) - 1e-12
    assert 0 < certificate.least < certificate.error
    assert certificate.bound is None


def test_planted_ranks_are_found_and_the_round_trip_is_exact():
    dense = planted(3)
    layer, certificate = nn.from_linear(dense, tol=1e-8, order=2)
    assert layer.ranks == (3, 3, 3)
    assert certificate.error < 1e-12
    again = nn.to_linear(layer)
    assert jnp.allclose(again.kernel[...], dense.kernel[...], atol=1e-12)
    assert jnp.array_equal(again.bias[...], dense.bias[...])
    # Ranks above what W has: directions without weight are left out.
    layer, certificate = nn.from_linear(dense, rank=7, order=2)
    assert layer.ranks == (3, 3, 3)
    assert certificate.error < 1e-7
    layer, certificate = nn.from_linear(decaying(), tol=1e-3, rank=5, order=2)
    assert layer.ranks == (5, 5, 5)
    assert certificate.bound is None


def test_gates_are_the_singular_values_of_their_bonds():
    dense = decaying()
    layer, _ = nn.from_linear(dense, rank=6, order=2)
    w = np.asarray(layer.weight()).reshape(layer.modes)
    for k, gate in enumerate(layer.gates):
        values = np.linalg.svd(w.reshape(math.prod(w.shape[: k + 1]), -1), compute_uv=False)[:6]
        np.testing.assert_allclose(gate[...], values / values[0], rtol=1e-8)
    norms = [float(jnp.linalg.norm(c[...].ravel())) for c in layer.cores]
    np.testing.assert_allclose(norms, norms[0])
    # Pruning a gate is the best truncation of its bond: the error is the singular value dropped.
    before, size = layer.weight(), float(np.linalg.norm(w))
    gate = layer.gates[1][...]
    layer.gates[1].set_value(gate.at[-1].set(0))
    change = float(jnp.linalg.norm(layer.weight() - before))
    largest = size / float(jnp.linalg.norm(gate))
    assert change == pytest.approx(float(gate[-1]) * largest, rel=1e-6)


@pytest.mark.parametrize("gates", ["singular values", "ones"])
def test_gates_of_ones_give_the_same_weight(gates: Any):
    dense = decaying()
    layer, certificate = nn.from_linear(dense, rank=6, order=2, gates=gates)
    assert certificate.error == pytest.approx(error(layer, dense), abs=1e-12)
    assert all(bool((g[...] == 1).all()) for g in layer.gates) == (gates == "ones")
    tucker, _ = nn.from_linear(dense, rank=6, order=2, format="tucker")
    assert all(bool((g[...] == 1).all()) for g in tucker.gates)


@pytest.mark.parametrize("format", ["tt", "tt-matrix", "tucker"])
def test_a_zero_weight_becomes_a_layer_that_can_train(format: Any):
    dense = nnx.Linear(64, 96, kernel_init=nnx.initializers.zeros_init(), rngs=nnx.Rngs(0))
    layer, certificate = nn.from_linear(dense, rank=4, order=2, format=format)
    assert set(layer.ranks) == {4}
    assert certificate.error == 0.0
    assert not layer.weight().any()
    layer.bias = None
    grads = nnx.grad(lambda m: m(jnp.ones((3, 64), jnp.float32)).sum())(layer)
    assert max(float(abs(g).max()) for g in jax.tree.leaves(grads)) > 0
    assert nn.from_linear(dense, tol=0.1, order=2)[0].ranks == (1, 1, 1)
    # A tolerance that allows zero may give it, but never NaN.
    layer, certificate = nn.from_linear(decaying(), tol=2.0, order=2, format=format)
    assert layer.weight().any() == (certificate.error != 1.0)
    assert certificate.error <= 1.0 + 1e-6


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_keeps_directions_that_are_small(dtype: Any):
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.standard_normal((64, 64)))[0] for _ in range(2))
    for values, tol in ((np.r_[1.0, np.full(63, 0.1)], 0.1), (0.5 ** np.arange(64), 0.02)):
        dense = nnx.Linear(64, 64, param_dtype=dtype, rngs=nnx.Rngs(0))
        dense.kernel.set_value(jnp.asarray((u * values) @ v, dtype))
        layer, certificate = nn.from_linear(dense, rank=64, order=1)
        assert layer.ranks[0] >= 48  # rounding may bring the smallest ones to zero
        assert certificate.error < 4 * float(jnp.finfo(dtype).eps)
        assert {gate.dtype for gate in layer.gates} == {jnp.dtype(jnp.float32)}
        layer, certificate = nn.from_linear(dense, tol=tol, order=1)
        assert certificate.error <= tol + 4 * float(jnp.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("dtype", "param_dtype", "bias"),
    [(None, jnp.float32, True), (jnp.bfloat16, jnp.float32, False), (None, jnp.bfloat16, True)],
)
def test_dtypes_and_biases_are_kept(dtype: Any, param_dtype: Any, bias: bool):
    dense = planted(3, dtype=dtype, param_dtype=param_dtype, use_bias=bias, precision="highest")
    layer, certificate = nn.from_linear(dense, rank=3, order=2)
    assert (layer.dtype, layer.param_dtype, layer.precision) == (dtype, param_dtype, "highest")
    stored = [*layer.cores, *([layer.bias] if bias else [])]
    assert {p.dtype for p in stored} == {jnp.dtype(param_dtype)}
    assert {g.dtype for g in layer.gates} == {jnp.dtype(jnp.float32)}
    assert (layer.bias is None) == (not bias)
    assert certificate.error < 100 * float(jnp.finfo(param_dtype).eps)
    again = nn.to_linear(layer)
    assert again.kernel.dtype == param_dtype
    assert (again.bias is None) == (not bias)


@pytest.mark.parametrize("kind", [nn.TTLinear, nn.TTMatrixLinear, nn.TuckerLinear, nn.CPLinear])
def test_every_format_exports_the_same_outputs(kind: Any):
    layer = kind(23, 30, rank=3, order=2, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (4, 23))
    assert jnp.allclose(nn.to_linear(layer)(x), layer(x), atol=1e-12)


def test_bad_input_of_conversions_is_named():
    dense = decaying()
    with pytest.raises(TypeError, match=r"layer: expected a flax\.nnx\.Linear, got Embed"):
        nn.from_linear(nnx.Embed(3, 4, rngs=nnx.Rngs(0)), tol=0.1)
    with pytest.raises(ValueError, match="expected tol="):
        nn.from_linear(dense)
    with pytest.raises(ValueError, match="tol: expected a positive"):
        nn.from_linear(dense, tol=-1.0)
    with pytest.raises(ValueError, match="format: expected"):
        nn.from_linear(dense, tol=0.1, format="cp")  # type: ignore
    with pytest.raises(ValueError, match="gates: expected"):
        nn.from_linear(dense, tol=0.1, gates="one")  # type: ignore
    with pytest.raises(ValueError, match="rank: expected at most"):
        nn.from_linear(dense, rank=(9, 8, 8), order=2)
    with pytest.raises(ValueError, match="max_bytes: expected at least 49,152 bytes"):
        nn.from_linear(dense, tol=0.1, max_bytes=1000)
    with pytest.raises(ValueError, match="max_bytes: expected at least"):
        nn.to_linear(nn.TTLinear(10**6, 10**6, rank=2, rngs=nnx.Rngs(0)))
    with pytest.raises(TypeError, match="layer: expected a tensorised linear layer"):
        nn.to_linear(dense)  # type: ignore
    with pytest.raises(TypeError, match="expected concrete parameters"):
        nnx.jit(lambda m: nn.from_linear(m, rank=3)[0])(dense)
    dense.kernel.set_value(dense.kernel[...].at[3, 4].set(jnp.nan))
    with pytest.raises(ValueError, match=r"layer\.kernel: expected finite numbers"):
        nn.from_linear(dense, tol=0.1)
    custom = nnx.Linear(4, 6, dot_general=lambda *a, **k: jax.lax.dot_general(*a, **k),
                        rngs=nnx.Rngs(0))  # fmt: skip
    with pytest.raises(ValueError, match=r"layer\.dot_general: expected the default"):
        nn.from_linear(custom, tol=0.1)


# Whole models ------------------------------------------------------------------------------------


class Block(nnx.Module):
    def __init__(self, shared: nnx.Linear, rngs: nnx.Rngs):
        self.up = nnx.Linear(16, 24, rngs=rngs)
        self.down = nnx.Linear(24, 16, use_bias=False, rngs=rngs)
        self.shared = shared
        self.norm = nnx.LayerNorm(16, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(x + self.shared(self.down(nnx.relu(self.up(x)))))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        shared = nnx.Linear(16, 16, rngs=rngs)
        self.layers = nnx.List([Block(shared, rngs) for _ in range(2)])
        self.heads = nnx.data(
            {"a": nnx.Linear(16, 4, rngs=rngs), "b": [nnx.Linear(16, 6, rngs=rngs)]}
        )
        self.name = "model"

    def __call__(self, x: jax.Array) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.heads["a"](x), self.heads["b"][0](x)


@pytest.fixture
def model() -> Model:
    return Model(nnx.Rngs(0))


def kinds(model: Model) -> list[str]:
    found = [m for block in model.layers for m in (block.up, block.down, block.shared)]
    return [type(m).__name__ for m in (*found, model.heads["a"], model.heads["b"][0])]


@pytest.mark.slow
def test_rules_choose_layers_first_match_first(model: Model):
    x = jnp.ones((3, 16), jnp.float32)
    before = model(x)
    rules = {
        "layers/0/down": None,
        "layers/1/down": nn.Dense(),
        "*/up": nn.TT(rank=24, order=2),
        "heads/b/*": nn.Tucker(rank=6, order=2),
        "*/shared": nn.LowRank(16),
    }
    new = nn.tensorize(model, rules)
    low = ["TTLinear", "Linear", "TTLinear"]
    assert kinds(new) == [*low, *low, "Linear", "TuckerLinear"]
    assert kinds(model) == ["Linear"] * 8
    # Full ranks: the same function, and the model it came from is untouched.
    for a, b, c in zip(new(x), before, model(x), strict=True):
        assert jnp.allclose(a, b, atol=1e-4)
        assert jnp.array_equal(b, c)
    assert new.layers[0].up.certificate.error < 1e-5
    assert new.layers[0].shared.modes == (16, 16)
    new.layers[0].norm.scale.set_value(jnp.zeros(16))
    assert model.layers[0].norm.scale[...].all()


def test_shared_layers_stay_shared_and_match_by_any_path(model: Model):
    new = nn.tensorize(model, [("layers/1/shared", nn.TT(rank=2))], tol=0.9)
    assert new.layers[0].shared is new.layers[1].shared
    assert isinstance(new.layers[0].shared, nn.TTLinear)
    assert new.layers[0].up is not model.layers[0].up
    graph, state = nnx.split(new)
    assert nnx.merge(graph, state).layers[0].shared.ranks == new.layers[0].shared.ranks


@pytest.mark.slow
def test_random_weights_keep_biases_and_train(model: Model):
    model.layers[0].up.bias.set_value(jnp.arange(24.0, dtype=jnp.float32))
    new = nn.tensorize(model, {"*/up": nn.CP(4), "*": nn.TT(3)}, init="random", rngs=nnx.Rngs(3))
    assert kinds(new)[0] == "CPLinear"
    assert jnp.array_equal(new.layers[0].up.bias[...], jnp.arange(24.0, dtype=jnp.float32))
    assert new.layers[0].down.bias is None
    assert new.layers[0].up.certificate is None
    grads = nnx.grad(lambda m: m(jnp.ones((2, 16), jnp.float32))[0].sum())(new)
    assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(grads))


def test_embeddings_are_replaced_with_the_rest():
    rngs = nnx.Rngs(0)
    padded = nn.Dense().embedding(60, 12, padding_idx=3, rngs=rngs)
    model = nnx.Sequential(padded, nnx.Linear(12, 20, rngs=rngs))
    ids = jnp.array([[0, 3], [59, 7]])
    assert not padded(ids)[0, 1].any()
    assert not nnx.grad(lambda m: m(ids).sum())(padded)["embedding"][3].any()
    new = nn.tensorize(model, {"*": nn.TT(rank=64, order=2)})
    assert [type(m).__name__ for m in new.layers] == ["TTEmbedding", "TTLinear"]
    assert new.layers[0].padding_idx == 3
    assert new.layers[0].certificate.error < 1e-5
    assert jnp.allclose(new(ids), model(ids), atol=1e-4)
    low = nn.tensorize(model, {"layers/0": nn.LowRank(12), "layers/1": None})
    assert jnp.allclose(low(ids), model(ids), atol=1e-4)
    assert "60 → 12" in nn.summary(low)
    fresh = nn.tensorize(model, {"layers/0": nn.CP(4)}, init="random", rngs=rngs)
    assert type(fresh.layers[0]).__name__ == "CPEmbedding"
    assert not fresh.layers[0](ids)[0, 1].any()
    with pytest.raises(ValueError, match="layers/0: spec: expected TT or LowRank"):
        nn.tensorize(model, {"layers/0": nn.Tucker(4)})


def test_a_model_that_is_one_layer():
    new = nn.tensorize(planted(3), {"*": nn.TT(order=2)}, tol=1e-6)
    assert isinstance(new, nn.TTLinear)
    assert new.ranks == (3, 3, 3)


def test_the_summary_lists_layers_and_counts(model: Model):
    new = nn.tensorize(model, {"*/up": nn.TT(3)}, init="random", rngs=nnx.Rngs(0))
    lines = nn.summary(new).splitlines()
    paths = [line.split()[0] for line in lines[1:]]
    assert len(lines) == 1 + 7 + 1  # head, seven layers, shared ones once, and the total
    assert paths[-1] == "all"
    assert {"layers/0/up", "layers/1/down", "heads/b/0"} <= set(paths)
    total = sum(math.prod(p.shape) for p in jax.tree.leaves(nnx.state(new, nnx.Param)))
    dense = sum(math.prod(p.shape) for p in jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert lines[-1].split()[1:3] == [f"{dense:,}", f"{total:,}"]
    (up,) = (line for line in lines if line.startswith("layers/0/up"))
    assert "16 → 24" in up


def test_one_spec_alone_is_for_all_layers(model: Model):
    for spec in (nn.TT(3), nn.LowRank(2)):
        alone, mapped = (nn.tensorize(model, rules) for rules in (spec, {"*": spec}))
        assert kinds(alone) == kinds(mapped) != kinds(model)
        jax.tree.map(np.testing.assert_array_equal, nnx.state(alone), nnx.state(mapped))


def test_bad_rules_are_named(model: Model):
    with pytest.raises(ValueError, match=r"'encoder/\*' matches none of: .*layers/0/up"):
        nn.tensorize(model, {"encoder/*": nn.TT(3)})
    with pytest.raises(TypeError, match=r"rules\['\*'\]: expected a spec"):
        nn.tensorize(model, {"*": nn.TTLinear})  # type: ignore
    with pytest.raises(ValueError, match="rngs: expected"):
        nn.tensorize(model, {"*": nn.TT(3)}, init="random")
    with pytest.raises(ValueError, match="init: expected"):
        nn.tensorize(model, {"*": nn.TT(3)}, init="zeros")  # type: ignore
    with pytest.raises(ValueError, match="tol: expected None"):
        nn.tensorize(model, {"*": nn.TT(3)}, init="random", tol=0.1, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="heads/a: spec: expected TT, TTMatrix, LowRank or Tucker"):
        nn.tensorize(model, {"heads/a": nn.CP(3)})
    with pytest.raises(ValueError, match="heads/a: expected tol="):
        nn.tensorize(model, {"heads/a": nn.TT()})
    with pytest.raises(ValueError, match="heads/a: rank: expected a rank to make a fresh layer"):
        nn.tensorize(model, {"heads/a": nn.TT()}, init="random", rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("spec", "name"),
    [(nn.Dense(), "Linear"), (nn.LowRank(3), "TTLinear"), (nn.TT(3), "TTLinear"),
     (nn.TTMatrix(3), "TTMatrixLinear"),
     (nn.Tucker(3), "TuckerLinear"), (nn.CP(3), "CPLinear")],
)  # fmt: skip
def test_specs_build_layers(spec: nn.Spec, name: str):
    layer = spec.linear(
        12, 20, use_bias=False, dtype=jnp.bfloat16, param_dtype=jnp.float32, rngs=nnx.Rngs(0)
    )
    assert type(layer).__name__ == name
    assert layer.bias is None
    assert layer(jnp.ones((2, 12), jnp.float32)).dtype == jnp.bfloat16
    assert hash(spec) == hash(type(spec)(**vars(spec)))
