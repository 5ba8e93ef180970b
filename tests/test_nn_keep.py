"""What conversions keep of a dense layer, and what they refuse because they cannot."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tensorjax import nn, optim


def linear(**options: Any) -> nnx.Linear:
    return nnx.Linear(16, 24, rngs=nnx.Rngs(0), **options)


def test_subclasses_are_not_taken_for_their_kernel():
    lora = nnx.LoRALinear(16, 16, lora_rank=2, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"expected a flax\.nnx\.Linear, got LoRALinear"):
        nn.from_linear(lora, rank=2)

    class Scaled(nnx.Embed):
        pass

    with pytest.raises(TypeError, match=r"expected a flax\.nnx\.Embed, got Scaled"):
        nn.from_embedding(Scaled(9, 4, rngs=nnx.Rngs(0)), rank=2)


def test_the_padding_id_of_a_dense_embedding_is_kept():
    dense = nn.PaddedEmbed(30, 8, padding_idx=2, rngs=nnx.Rngs(0))
    layer, _ = nn.from_embedding(dense, rank=8, order=2)
    assert layer.padding_idx == 2


def test_the_padding_id_has_neither_a_logit_nor_a_gradient():
    dense = nn.PaddedEmbed(30, 8, padding_idx=2, rngs=nnx.Rngs(0))
    query = jnp.ones((3, 5, 8), jnp.float32)
    logits = dense.attend(query)
    assert not logits[..., 2].any()
    assert logits[..., 3].all()
    grads = nnx.grad(lambda m: m.attend(query).sum())(dense)
    assert not grads.embedding[2].any()


def test_converted_layers_stack_and_share_a_program():
    layers = [
        nn.from_linear(nnx.Linear(16, 24, rngs=nnx.Rngs(k)), rank=2, order=2)[0] for k in range(2)
    ]
    assert layers[0].certificate.error != layers[1].certificate.error
    fresh = nn.TTLinear(16, 24, rank=2, order=2, param_dtype="float32", rngs=nnx.Rngs(0))
    assert nnx.graphdef(layers[0]) == nnx.graphdef(layers[1]) == nnx.graphdef(fresh)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *layers)
    assert stacked.ranks == layers[0].ranks


def test_options_that_cannot_be_kept_are_named():
    for name, value in (
        ("preferred_element_type", jnp.float32),
        ("promote_dtype", lambda x, **_: x),
        ("dot_general", lambda *x, **_: x),
    ):
        with pytest.raises(ValueError, match=rf"layer\.{name}: expected the default"):
            nn.from_linear(linear(**{name: value}), rank=2)

    class Frozen(nnx.Param):
        pass

    layer = linear()
    layer.kernel = Frozen(layer.kernel[...])
    with pytest.raises(ValueError, match=r"expected its weight to be an nnx\.Param, got Frozen"):
        nn.from_linear(layer, rank=2)


def test_the_bias_keeps_its_metadata_and_is_a_copy():
    layer = linear(bias_metadata={"note": "kept"})
    new, _ = nn.from_linear(layer, rank=2)
    assert new.bias.get_metadata()["note"] == "kept"
    assert new.bias is not layer.bias


def test_stacked_layers_are_named():
    stacked = nnx.vmap(lambda key: nnx.Linear(16, 24, rngs=nnx.Rngs(key)))(
        jax.random.split(jax.random.key(0), 3)
    )
    with pytest.raises(ValueError, match=r"layer\.kernel: expected shape \(16, 24\), got \(3, 16"):
        nn.from_linear(stacked, rank=2)


@pytest.mark.parametrize("kind", [nn.TuckerLinear, nn.CPLinear])
def test_many_factors_are_planned_without_an_exact_search(kind: Any):
    plan = kind(64, 64, rank=2, order=6, rngs=nnx.Rngs(0)).plan(8)
    assert plan.cost == min(c.cost for c in plan.candidates)


# Whole models ------------------------------------------------------------------------------------


def test_tied_parameters_are_named():
    model = nnx.Sequential(linear(), nnx.relu, linear())
    model.layers[2].kernel = model.layers[0].kernel
    with pytest.raises(ValueError, match="layers/0/kernel and layers/2/kernel are one"):
        nn.tensorize(model, {"layers/0": nn.TT(rank=2)})


def test_random_weights_keep_precision_and_refuse_what_they_cannot_keep():
    model = nnx.Sequential(linear(precision="highest"))
    new = nn.tensorize(model, {"*": nn.CP(rank=2)}, init="random", rngs=nnx.Rngs(1))
    assert new.layers[0].precision == "highest"
    model = nnx.Sequential(linear(preferred_element_type=jnp.float32))
    with pytest.raises(ValueError, match=r"layers/0: layer\.preferred_element_type"):
        nn.tensorize(model, {"*": nn.TT(rank=2)}, init="random", rngs=nnx.Rngs(1))


def test_models_of_shapes_alone_get_random_weights_only():
    model = nnx.eval_shape(lambda: nnx.Sequential(linear()))
    new = nn.tensorize(model, {"*": nn.TT(rank=2)}, init="random", rngs=nnx.Rngs(1))
    assert new.layers[0](jnp.ones((2, 16), jnp.float32)).shape == (2, 24)
    with pytest.raises(TypeError, match="layers/0: layer: expected concrete parameters, got"):
        nn.tensorize(model, {"*": nn.TT(rank=2)})


class Holder(nnx.Pytree):
    def __init__(self):
        self.inner = linear()


class Outer(nnx.Module):
    def __init__(self):
        self.holder = Holder()
        self.attention = nnx.MultiHeadAttention(2, 16, decode=False, rngs=nnx.Rngs(0))
        self.heads = nnx.LinearGeneral(4, 5, axis=-1, batch_axis={0: 3}, rngs=nnx.Rngs(0))


def test_layers_in_any_pytree_are_reached_and_the_others_listed():
    new = nn.tensorize(Outer(), {"*": nn.TT(rank=2)})
    assert isinstance(new.holder.inner, nn.TTLinear)
    assert isinstance(new.attention.query.layer, nn.TTLinear)
    lines = nn.summary(new).splitlines()
    assert any("attention/out/layer" in line and "TTLinear" in line for line in lines)
    assert any("heads" in line and "as it is" in line for line in lines)


def test_attention_is_tensorised_as_a_whole():
    attention = nnx.MultiHeadAttention(4, 24, 32, decode=False, rngs=nnx.Rngs(0))
    attention.query.bias[...] = jnp.arange(32.0, dtype="f").reshape(4, 8)
    x = jax.random.normal(jax.random.key(0), (2, 5, 24), "f")
    rules = {"out": None, "*": nn.TT()}
    new = nn.tensorize(attention, rules, tol=1e-6)
    np.testing.assert_allclose(new(x), attention(x), rtol=1e-4, atol=1e-4)
    assert isinstance(new.out, nnx.LinearGeneral)
    assert new.query.layer.certificate.error <= 1e-6
    assert new.query(x).shape == attention.query(x).shape == (2, 5, 4, 8)
    new = nn.tensorize(attention, {"*": nn.TT(rank=2)}, init="random", rngs=nnx.Rngs(1))
    np.testing.assert_array_equal(new.query.layer.bias[...], jnp.arange(32.0))
    found = optim.ranks(nnx.state(new, nnx.Param))
    assert set(found) == {f"{name}/layer" for name in ("key", "out", "query", "value")}
    with pytest.raises(ValueError, match=r"query: rank: expected"):
        nn.tensorize(attention, {"query": nn.TT(rank=(1, 2, 3, 4, 5, 6, 7, 8))})
    with pytest.raises(ValueError, match="the model itself: rank: expected"):
        nn.tensorize(attention.query, {"*": nn.TT(rank=(1, 2, 3, 4, 5, 6, 7, 8))})


def test_any_axes_of_a_general_layer_are_contracted():
    layer = nnx.LinearGeneral((6, 4), (3, 2), axis=(1, -1), dtype=jnp.float32, rngs=nnx.Rngs(0))
    new = nn.tensorize(layer, {"*": nn.TT(order=2)}, tol=1e-6)
    x = jax.random.normal(jax.random.key(0), (5, 6, 7, 4), "f")
    assert new(x).shape == (5, 7, 3, 2)
    np.testing.assert_allclose(new(x), layer(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"inputs: expected sizes \(6, 4\) at the axes \(1, -1\)"):
        new(x[0])
    layer = nnx.LinearGeneral(6, 4, preferred_element_type=jnp.float32, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"layer\.preferred_element_type: expected"):
        nn.tensorize(layer, {"*": nn.TT(rank=2)})


def test_bad_arguments_are_named():
    model = nnx.Sequential(linear())
    for rules in ("*", {}, [], None, {3: nn.TT(rank=2)}, [nn.TT(rank=2)]):
        with pytest.raises(ValueError, match="rules: expected patterns and specs"):
            nn.tensorize(model, rules)  # type: ignore
    for wrong in ([linear()], {"a": linear()}, jnp.ones(3)):
        with pytest.raises(TypeError, match="model: expected an NNX module"):
            nn.tensorize(wrong, {"*": nn.TT(rank=2)})
    with pytest.raises(TypeError, match="param_dtype: expected a floating-point type"):
        nn.TTLinear(16, 24, rank=2, param_dtype=jnp.int32, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="memory_limit: expected"):
        nn.TTLinear(16, 24, rank=2, memory_limit=-1, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="batch: expected"):
        nn.TTLinear(16, 24, rank=2, rngs=nnx.Rngs(0)).plan((2, -3, -1))


def test_no_ids_may_be_an_empty_list():
    layer = nn.CPEmbedding(30, 8, rank=10**6, order=2, rngs=nnx.Rngs(0))
    assert layer([]).shape == (0, 8)
    assert layer.ranks[0] <= 240
