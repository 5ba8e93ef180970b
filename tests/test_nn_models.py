"""Whole models: exported dense, adapted and merged, with stacked and with tied layers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax import lax

from tensorjax import nn, optim


class Model(nnx.Module):
    """Embedding, attention, stacked blocks, and two heads that share a kernel."""

    def __init__(self, rngs: nnx.Rngs, width: int = 12, dtype: Any = jnp.float32):
        options = {"param_dtype": dtype, "rngs": rngs}
        self.embed = nnx.Embed(30, width, **options)
        self.attention = nnx.MultiHeadAttention(2, width, decode=False, **options)
        self.blocks = stack(width, width, 3, dtype)
        self.heads = nnx.List([nnx.Linear(width, 10, **options) for _ in range(2)])
        self.heads[1].kernel = self.heads[0].kernel
        self.heads[1].bias.set_value(jnp.ones(10, dtype))

    def __call__(self, ids: jax.Array) -> Any:
        x = self.attention(self.embed(ids))
        x = through(self.blocks, x)
        return self.heads[0](x), self.heads[1](x), self.embed.attend(x)


def stack(n: int, m: int, copies: int, dtype: Any = jnp.float32, **options: Any) -> nnx.Linear:
    return nnx.vmap(lambda key: nnx.Linear(n, m, param_dtype=dtype, rngs=nnx.Rngs(key), **options))(
        jax.random.split(jax.random.key(1), copies)
    )


@nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
def through(block: Any, x: jax.Array) -> jax.Array:
    return x + block(x)


IDS = jnp.array([[1, 2, 29], [4, 0, 7]])


def close(found: Any, expected: Any, tol: float = 1e-4) -> None:
    for a, b in zip(found, expected, strict=True):
        scale = 1 + float(jnp.abs(b).max())
        assert float(jnp.abs(a.astype("f") - b.astype("f")).max()) <= tol * scale


@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)])
def test_a_model_goes_to_trains_and_back(dtype: Any):
    with jax.numpy_dtype_promotion("standard"):  # JAX's own attention needs it in half precision
        goes_to_trains_and_back(dtype)


def goes_to_trains_and_back(dtype: Any) -> None:
    model = Model(nnx.Rngs(0), dtype=dtype)
    eps = float(jnp.finfo(dtype).eps)
    small = nn.tensorize(model, {"embed": nn.LowRank(), "*": nn.TT()}, rank=200)
    assert small.heads[0].cores[0] is small.heads[1].cores[0]
    assert isinstance(small.blocks, nn.TTLinear)
    expected = model(IDS)
    close(small(IDS), expected, 200 * eps)
    dense = nn.detensorize(small)
    close(dense(IDS), small(IDS), 200 * eps)
    assert dense.heads[0].kernel is dense.heads[1].kernel
    assert jax.tree.structure(nnx.state(dense)) == jax.tree.structure(nnx.state(model))
    assert nnx.graphdef(dense.blocks) == nnx.graphdef(model.blocks)
    errors = nn.certificates(dense)
    assert {path.removesuffix("/layer") for path in nn.certificates(small)} == set(errors)
    assert all(0 <= certificate.error <= eps for certificate in errors.values())
    exact = np.asarray(small.blocks.cores[0][...][0])  # a copy is the layer that it was
    assert exact.shape == small.blocks.cores[0].shape[1:]


@pytest.mark.parametrize("kind", [nn.TT, nn.Tucker, nn.CP])
def test_every_format_is_exported(kind: Any):
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        kind(3, order=2).embedding(23, 8, padding_idx=2, rngs=rngs),
        kind(3, order=2).linear(8, 11, use_bias=False, rngs=rngs),
    )
    dense = nn.detensorize(model)
    assert [type(layer).__name__ for layer in dense.layers] == ["PaddedEmbed", "Linear"]
    ids = jnp.arange(23)
    np.testing.assert_allclose(dense(ids), model(ids), rtol=1e-4, atol=1e-6)
    assert dense.layers[1].bias is None
    assert nn.certificates(nn.detensorize(model.layers[1]))[""].error < 1e-7
    with pytest.raises(ValueError, match="layers/0: max_bytes"):
        nn.detensorize(model, max_bytes=100)
    with pytest.raises(TypeError, match="expected an NNX module"):
        nn.detensorize([model])


def test_stacked_layers_keep_their_own_ranks_or_share_them():
    rng, drawn = np.random.default_rng(0), stack(12, 20, 3)
    ranks = (2, 5, 3)
    planted = [rng.normal(size=(12, r)) @ rng.normal(size=(r, 20)) for r in ranks]
    drawn.kernel.set_value(jnp.asarray(np.stack(planted), jnp.float32))
    own = nn.tensorize(drawn, {"*": nn.LowRank()}, tol=1e-3)
    assert own.ranks == (5,)
    assert [int(n) for n in (own.gates[0][...] > 0).sum(-1)] == [*ranks]
    assert own.certificate.bound == 1e-3
    assert own.certificate.error < 1e-3
    params = nnx.state(own, nnx.Param)
    assert [*optim.ranks(params).values()] == [(r,) for r in ranks]
    drawn.kernel.set_value(drawn.kernel[...] + 1e-4 * rng.normal(size=(3, 12, 20)).astype("f"))
    shared = nn.tensorize(drawn, {"*": nn.LowRank()}, tol=1e-3, stacked="shared")
    assert (shared.gates[0][...] > 0).all()
    x = jnp.asarray(rng.normal(size=(2, 12)), jnp.float32)
    back = nn.detensorize(shared)
    assert back.kernel.shape == (3, 12, 20)
    np.testing.assert_allclose(back.kernel[...], drawn.kernel[...], atol=1e-2)
    fresh = nn.tensorize(drawn, {"*": nn.TT(2)}, init="random", rngs=nnx.Rngs(1))
    each = nnx.vmap(lambda layer, x: layer(x), in_axes=(0, None))
    assert each(fresh, x).shape == (3, 2, 20)
    w = fresh.cores[0][...]
    assert not jnp.allclose(w[0], w[1])
    assert "5,760" not in nn.summary(fresh)


def test_layers_stacked_over_other_axes_are_named():
    wrong = nnx.vmap(lambda key: nnx.Linear(8, 12, rngs=nnx.Rngs(key)), out_axes=1)(
        jax.random.split(jax.random.key(1), 3)
    )
    with pytest.raises(ValueError, match=r"first axes \(8,\).*out_axes=0"):
        nn.tensorize(nnx.Sequential(wrong), {"*": nn.TT(2)})
    with pytest.raises(ValueError, match="stacked: expected"):
        nn.tensorize(nnx.Sequential(wrong), {"*": nn.TT(2)}, stacked="all")  # type: ignore


def test_tied_layers_need_one_spec():
    model = Model(nnx.Rngs(0))
    with pytest.raises(ValueError, match="heads/0/kernel and heads/1/kernel are one; replace all"):
        nn.tensorize(model, {"heads/0": nn.TT(2), "heads/1": nn.TT(3)})
    new = nn.tensorize(model, {"heads/*": nn.TT(2)}, init="random", rngs=nnx.Rngs(1))
    assert new.heads[0].gates[0] is new.heads[1].gates[0]
    assert new.heads[0].bias is not new.heads[1].bias
    optim.shrink_model(new)  # whose second head has no parameters of its own but the bias


# Adapters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rules",
    [
        None,
        pytest.param({"*": nn.LowRank()}, marks=pytest.mark.slow),
        {"heads/*": nn.Tucker(), "blocks": nn.CP(3)},
    ],
)
def test_adapters_start_at_zero_train_alone_and_merge(rules: Any):
    model = Model(nnx.Rngs(0))
    before = jax.tree.leaves(nnx.state(model))
    adapted = nn.adapt(model, 3, rules=rules, scale=0.5)
    expected = model(IDS)
    assert all(bool((a == b).all()) for a, b in zip(adapted(IDS), expected, strict=True))

    def loss(model: Any) -> jax.Array:
        return sum(((y - 1) ** 2).mean() for y in model(IDS))

    optimizer = nnx.Optimizer(adapted, optax.sgd(0.05), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any) -> jax.Array:
        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    losses = [float(step(adapted, optimizer)) for _ in range(8)]
    assert losses[-1] < losses[0]
    paths = {
        "/".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(adapted, nnx.Param))
    }
    assert all("/delta/" in path for path in paths)
    frozen = jax.tree.leaves(nnx.state(adapted, nn.Frozen))
    assert len(frozen) == len(before)
    for merged in (nn.merge_adapters(adapted), nn.detensorize(adapted)):
        close(merged(IDS), adapted(IDS))
        assert jax.tree.structure(nnx.state(merged)) == jax.tree.structure(nnx.state(model))
        assert type(merged.blocks.kernel) is nnx.Param
        assert nnx.graphdef(merged) == nnx.graphdef(model)
        assert merged.heads[0].kernel is merged.heads[1].kernel
    assert max(float(jnp.abs(a - b).max()) for a, b in zip(adapted(IDS), expected)) > 1e-3  # noqa: B905


def test_ranks_of_adapters_are_found_as_of_layers():
    model = nnx.Sequential(nnx.Linear(8, 8, rngs=nnx.Rngs(0)))
    adapted = nn.adapt(model, 4)
    optimizer = nnx.Optimizer(adapted, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    x = jnp.ones((2, 8), jnp.float32)
    value, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(adapted)
    assert value > 0
    optimizer.update(adapted, grads)
    adapted.layers[0].delta.gates[0].set_value(jnp.array([1.0, 0, 0, 0.5], jnp.float32))
    y = adapted(x)
    optim.shrink_model(adapted, optimizer)
    assert adapted.layers[0].delta.ranks == (2,)
    np.testing.assert_allclose(adapted(x), y, rtol=1e-6)


def test_bad_arguments_of_adapters_are_named():
    model = nnx.Sequential(nnx.Linear(8, 8, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="layers/0: rank: expected a rank"):
        nn.adapt(model)
    with pytest.raises(ValueError, match="matches none of"):
        nn.adapt(model, 2, rules={"heads": nn.TT()})
    with pytest.raises(ValueError, match="expected adapters"):
        nn.merge_adapters(model)
    with pytest.raises(TypeError, match="expected an NNX module"):
        nn.adapt([model], 2)
    with pytest.raises(TypeError, match="expected an NNX module"):
        nn.merge_adapters([model])
    with pytest.raises(ValueError, match="scale: expected"):
        nn.adapt(model, 2, scale=float("nan"))
    custom = nnx.Linear(8, 8, preferred_element_type=jnp.float32, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"layers/0: layer\.preferred_element_type"):
        nn.adapt(nnx.Sequential(custom), 2)


KEPT = {
    "in a WeightNorm": lambda r: nnx.WeightNorm(nnx.Linear(8, 6, rngs=r), use_scale=False, rngs=r),
    "in a SpectralNorm": lambda r: nnx.SpectralNorm(nnx.Linear(8, 6, rngs=r), rngs=r),
    "a Conv with 2 groups": lambda r: nnx.Conv(8, 6, (3,), feature_group_count=2, rngs=r),
    "a Conv with a mask": lambda r: nnx.Conv(8, 6, (3,), mask=jnp.ones((3, 8, 6), "f"), rngs=r),
    "a subclass of Linear, LoRALinear": lambda r: nnx.LoRALinear(8, 6, lora_rank=2, rngs=r),
    "of another kind, ConvTranspose": lambda r: nnx.ConvTranspose(8, 6, (3,), rngs=r),
}


@pytest.mark.parametrize("why", KEPT)
def test_layers_that_are_not_replaced_stay_and_are_named(why: str, rng) -> None:
    rngs = nnx.Rngs(int(rng.integers(100)))
    kept = KEPT[why](rngs)
    model = nnx.Sequential(kept, nnx.Linear(6, 5, rngs=rngs))
    x = rng.standard_normal((2, 4, 8)).astype("f")
    # A spectral norm has a state: every model is called from the same one.
    wanted = nnx.clone(model)(x)
    exact = nn.tensorize(model, nn.TT(rank=100))
    assert type(exact.layers[1]) is nn.TTLinear
    np.testing.assert_allclose(exact(x), wanted, rtol=1e-4, atol=1e-5)
    rules = {"layers/0*": nn.TT(rank=2)}
    conversions = [lambda: nn.tensorize(model, rules), lambda: nn.adapt(model, rules=rules)]
    if isinstance(kept, nnx.SpectralNorm):
        with pytest.raises(ValueError, match="layers/0: expected no SpectralNorm"):
            nn.adapt(model, 2)
        conversions.pop()
    else:
        np.testing.assert_allclose(nn.adapt(model, 2)(x), wanted, rtol=1e-6)
    for convert in conversions:
        with pytest.raises(ValueError, match=f"matches none of.* is {why}.*: such layers"):
            convert()
    as_it_is = nn.tensorize(model, {"layers/0*": None, "*": nn.TT(rank=2)})
    assert type(as_it_is.layers[0]) is type(kept)


def test_linen_models_are_tensorised_through_the_bridge(rng) -> None:
    class Net(linen.Module):
        @linen.compact
        def __call__(self, ids: jax.Array) -> jax.Array:
            table = linen.Embed(50, 16, name="table")
            x = linen.LayerNorm()(table(ids))
            x = x + linen.Dense(16, name="down")(linen.gelu(linen.Dense(64, name="up")(x)))
            return table.attend(x)

    ids = jnp.asarray(rng.integers(0, 50, (3, 5)))
    bridged = nnx.bridge.ToNNX(Net(), rngs=nnx.Rngs(int(rng.integers(100)))).lazy_init(ids)
    model = nn.from_linen(bridged)
    np.testing.assert_allclose(model(ids), bridged(ids), atol=1e-5)
    exact = nn.tensorize(model, {"*": nn.TT()}, tol=1e-7)
    np.testing.assert_allclose(exact(ids), bridged(ids), atol=1e-3)
    small = nn.tensorize(model, {"layers/table": None, "*": nn.TT(rank=3)})
    assert type(small.layers["up"]).__name__ == "TTLinear"

    def loss(m: Any) -> jax.Array:
        return jnp.mean(m(ids) ** 2)

    gradients = nnx.jit(nnx.grad(loss))(small)
    assert all(bool(jnp.any(g != 0)) for g in jax.tree.leaves(gradients["layers"]["up"]["cores"]))
    with pytest.raises(TypeError, match="expected a flax"):
        nn.from_linen(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"call model\.lazy_init"):
        nn.from_linen(nnx.bridge.ToNNX(Net(), rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("scale", [1e-30, 1e-25, 1.0, 1e25, 1e30])
def test_random_weights_of_any_range_keep_their_norm(scale) -> None:
    dense = nnx.Sequential(nnx.Linear(64, 64, rngs=nnx.Rngs(0)))
    dense.layers[0].kernel[...] *= jnp.asarray(scale, jnp.float32)
    weight = nn.tensorize(dense, compress_to=4).layers[0].weight()
    norms = [np.linalg.norm(np.asarray(w, float)) for w in (weight, dense.layers[0].kernel[...])]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_tied_weights_count_once_in_a_summary() -> None:
    one, other = (nnx.Linear(64, 64, rngs=nnx.Rngs(s)) for s in (0, 1))
    other.kernel = one.kernel
    model = nnx.Sequential(one, other)
    dense, tensorised = nn.summary(model), nn.summary(nn.tensorize(model, {"*": nn.TT(rank=4)}))
    assert dense.splitlines()[-1].split()[1:] == ["4,224", "4,224", "1"]
    assert tensorised.splitlines()[-1].split()[1] == "4,224"


@pytest.mark.parametrize("precision", ["highest", lax.Precision.HIGH, None])
def test_layers_from_linen_keep_their_precision(precision) -> None:
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(4, precision=precision, name="d")(x)

    x = jnp.ones((1, 3), jnp.float32)
    model = nn.from_linen(nnx.bridge.ToNNX(Model(), rngs=nnx.Rngs(0)).lazy_init(x))
    graph, state = nnx.split(model)
    text = str(jax.make_jaxpr(lambda s, x: nnx.merge(graph, s)(x))(state, x))
    name = getattr(precision, "name", precision)
    assert (str(name).upper() in text) == (precision is not None)
