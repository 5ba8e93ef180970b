"""GPT-2: its formula by NumPy, its published sizes, training, dropout, layouts of one device."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax", reason="the models have an extra of their own")

from flax import nnx
from jax.sharding import PartitionSpec

from tensorjax import nn, parallel
from tensorjax.models.gpt2 import GPT2, GPT2Config, batch, groups, layers, load_groups
from tensorjax.models.gpt2._attention import causal
from tensorjax.models.gpt2._blocks import dropped, gelu
from tests.oracles import compilations

CONFIG = GPT2Config.tiny()
TOKENS = jnp.array([[2, 17, 9, 4, 3, 0, 119], [2, 40, 3, 0, 7, 7, 7]], jnp.int32)
SPECS = {"dense": nn.Dense(), "low rank": nn.LowRank(3), "tt": nn.TT(rank=4)}
FEW = [pytest.param("low rank", marks=pytest.mark.slow), "dense", "tt"]  # what compiles for long


@functools.cache
def varied(name: str = "dense") -> GPT2:
    """A model whose parameters all matter: fresh ones are small, and biases zero."""
    rng = np.random.default_rng(3)
    graph, params = nnx.split(nnx.eval_shape(lambda: GPT2(CONFIG, linear=SPECS[name],
                                                          rngs=nnx.Rngs(0))))  # fmt: skip

    def drawn(path, x):
        names = [str(entry.key) for entry in path if hasattr(entry, "key")]
        spread = 0.5 if "cores" in names else 0.2
        value = spread * rng.standard_normal(x.shape) + ("scale" in names or "gates" in names)
        if names == ["tokens"]:
            value[CONFIG.vocabulary :] = 0
        return jnp.asarray(value, x.dtype)

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(drawn, params))


@functools.cache
def fresh(name: str) -> GPT2:
    """A model as it begins."""
    # Drawing by Threefry would take longer to compile than the steps.
    key = jax.random.key(1, impl="unsafe_rbg")
    return GPT2(CONFIG, linear=SPECS[name], rngs=nnx.Rngs(key))


@pytest.fixture(scope="module")
def model() -> GPT2:
    return varied()


@pytest.fixture(scope="module")
def logits(model) -> np.ndarray:
    return np.asarray(forward(model, TOKENS))


def forward(model: GPT2, tokens, key=None) -> jax.Array:
    """Logits by one compiled program."""
    return _forward(*nnx.split(model), tokens, key)


@functools.partial(jax.jit, static_argnums=0)
def _forward(graph, params, tokens, key):
    return nnx.merge(graph, params)(tokens, key=key)


def loss_and_gradient(model: GPT2):
    return _loss_and_gradient(*nnx.split(model))


@functools.partial(jax.jit, static_argnums=0)
def _loss_and_gradient(graph, params):
    def loss(params):
        total, count = nnx.merge(graph, params).loss(TOKENS[:, :-1], TOKENS[:, 1:])
        return total / count

    return jax.value_and_grad(loss)(params)


def with_config(model: GPT2, **changes) -> GPT2:
    """The same parameters in a model of another configuration."""
    config = dataclasses.replace(model.config, **changes)
    other = nnx.eval_shape(lambda: GPT2(config, dtype=model.dtype, rngs=nnx.Rngs(0)))
    return nnx.merge(nnx.split(other)[0], nnx.split(model)[1])


def reference(params: dict, tokens: np.ndarray, heads: int) -> np.ndarray:
    """Logits of GPT-2 in double precision, written down from its description alone.

    Args:
        params: By their published names; c_attn is (features, 3 · features).
        tokens: (length,).
        heads: How many.
    """

    def norm(x, name):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * params[f"{name}.weight"] + params[
            f"{name}.bias"
        ]

    def linear(x, name):
        return x @ params[f"{name}.weight"] + params[f"{name}.bias"]

    def attention(x, name):
        n, d = x.shape
        mixed = np.zeros((n, d))
        q, k, v = np.split(linear(x, f"{name}.c_attn"), 3, axis=-1)
        for h in range(heads):
            part = slice(h * (d // heads), (h + 1) * (d // heads))
            for i in range(n):
                scores = k[: i + 1, part] @ q[i, part] / np.sqrt(d // heads)
                weights = np.exp(scores - scores.max())
                mixed[i, part] = weights / weights.sum() @ v[: i + 1, part]
        return linear(mixed, f"{name}.c_proj")

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    params = {name: np.asarray(value, np.float64) for name, value in params.items()}
    layers = 1 + max(int(name.split(".")[1]) for name in params if name.startswith("h."))
    x = params["wte.weight"][tokens] + params["wpe.weight"][: len(tokens)]
    for i in range(layers):
        x = x + attention(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn")
        inner = gelu(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"))
        x = x + linear(inner, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ params["wte.weight"].T


def published(model: GPT2) -> dict:
    """The parameters of a model by their published names, by hand."""
    blocks, d = model.blocks, model.config.features
    found = {
        "wte.weight": model.tokens[: model.config.vocabulary],
        "wpe.weight": model.positions[...],
        "ln_f.weight": model.norm.scale[...],
        "ln_f.bias": model.norm.bias[...],
    }
    for i in range(model.config.layers):
        for ours, theirs in (("norm1", "ln_1"), ("norm2", "ln_2")):
            layer = getattr(blocks, ours)
            found[f"h.{i}.{theirs}.weight"] = layer.scale[i]
            found[f"h.{i}.{theirs}.bias"] = layer.bias[i]
        for ours, theirs in (
            ("qkv", "attn.c_attn"), ("out", "attn.c_proj"), ("up", "mlp.c_fc"),
            ("down", "mlp.c_proj"),
        ):  # fmt: skip
            layer = getattr(blocks, ours)
            kernel, bias = layer.kernel[i], layer.bias[i]
            if ours == "qkv":
                kernel = jnp.concatenate([kernel[:, part] for part in range(3)], axis=1)
                bias = jnp.concatenate(list(bias))
                assert kernel.shape == (d, 3 * d)
            found[f"h.{i}.{theirs}.weight"], found[f"h.{i}.{theirs}.bias"] = kernel, bias
    return {name: np.asarray(value) for name, value in found.items()}


def test_the_logits_are_those_of_the_formula(model, logits) -> None:
    assert logits.shape == (2, 7, 120)
    assert logits.dtype == np.float32
    for row, tokens in zip(logits, np.asarray(TOKENS), strict=True):
        wanted = reference(published(model), tokens, CONFIG.heads)
        np.testing.assert_allclose(row, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FEW)
def test_later_tokens_do_not_change_earlier_logits(name) -> None:
    model = varied(name)
    one, other = forward(model, TOKENS), forward(model, TOKENS.at[:, 4:].set(55))
    np.testing.assert_allclose(one[:, :4], other[:, :4], rtol=1e-5, atol=1e-5)
    assert float(jnp.abs(one[:, 4:] - other[:, 4:]).max()) > 1e-2
    # Earlier tokens do change later logits.
    other = forward(model, TOKENS.at[:, 0].set(55))
    assert float(jnp.abs(one[:, -1] - other[:, -1]).max()) > 1e-3


def test_the_loss_is_the_mean_over_weighted_targets(model) -> None:
    inputs, targets = TOKENS[:, :-1], TOKENS[:, 1:]
    weights = jnp.array([[1, 0, 1, 1, 0, 0.5], [0, 1, 1, 1, 1, 1]], jnp.float32)
    x = np.asarray(forward(model, inputs), np.float64)
    log_p = x - np.log(np.exp(x).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log_p, np.asarray(targets)[..., None], -1)[..., 0]
    call = jax.jit(lambda: (model.loss(inputs, targets, weights), model.loss(inputs, targets)))
    (total, count), (plain, every) = call()
    assert float(total) == pytest.approx(float((losses * np.asarray(weights)).sum()), rel=1e-5)
    assert float(count) == 8.5
    assert float(plain / every) == pytest.approx(float(losses.mean()), rel=1e-5)


@pytest.mark.parametrize("name", FEW)
def test_all_parameters_learn(name) -> None:
    model = varied(name)
    value, gradient = loss_and_gradient(model)
    assert bool(jnp.isfinite(value))
    for path, g in jax.tree_util.tree_leaves_with_path(gradient):
        assert bool(jnp.isfinite(g).all()), path
        assert bool((g != 0).any()), path
    # The padding of the vocabulary has no part in the loss.
    assert not bool(gradient["tokens"][CONFIG.vocabulary :].any())
    assert not bool(gradient["positions"][TOKENS.shape[1] - 1 :].any())


def test_a_few_steps_lower_the_loss() -> None:
    graph, params = nnx.split(fresh("dense"))
    move = jax.jit(lambda p, g: jax.tree.map(lambda p, g: p - np.float32(0.3) * g, p, g))
    losses = []
    for _ in range(30):
        value, gradient = _loss_and_gradient(graph, params)
        params = move(params, gradient)
        losses.append(float(value))
    assert losses[0] == pytest.approx(np.log(120), rel=0.05)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    "changes",
    [{"remat": "full", "unroll": 2}, pytest.param({"remat": "dots"}, marks=pytest.mark.slow)],
)
def test_recomputation_and_unrolling_change_no_number(model, changes) -> None:
    value, gradient = loss_and_gradient(model)
    other, again = loss_and_gradient(with_config(model, **changes))
    assert float(value) == pytest.approx(float(other), rel=1e-6)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_recomputation_keeps_less() -> None:
    """Full rematerialisation saves little but what goes from block to block."""

    def temporary(remat: str) -> int:
        config = dataclasses.replace(CONFIG, layers=6, length=64, remat=remat)
        shape = nnx.eval_shape(lambda: GPT2(config, rngs=nnx.Rngs(0)))
        graph, params = nnx.split(shape)
        tokens = jax.ShapeDtypeStruct((8, 64), jnp.int32)
        loss = jax.grad(lambda params, t: nnx.merge(graph, params).loss(t, t)[0])
        return jax.jit(loss).lower(params, tokens).compile().memory_analysis().temp_size_in_bytes

    assert temporary("full") < 0.6 * temporary("none")


def test_the_loop_over_layers_is_the_plain_loop(model, logits) -> None:
    layout = parallel.Single()
    x = model.tokens[...][TOKENS] + model.positions[: TOKENS.shape[1]][None]
    graph, params = nnx.split(model.blocks)
    for i in range(CONFIG.layers):
        block = nnx.merge(graph, jax.tree.map(lambda p, i=i: p[i], params))
        q, k, v = block.heads(x, layout)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = block.after(x, y, layout, lambda y, number: y)
    plain = jnp.einsum("bnd,vd->bnv", model.norm(x, layout), model.tokens[: CONFIG.vocabulary])
    np.testing.assert_allclose(plain, logits, rtol=1e-4, atol=1e-5)


def test_one_block_is_compiled_whatever_the_layers() -> None:
    def operations(layers: int) -> int:
        config = dataclasses.replace(CONFIG, layers=layers)
        graph, params = nnx.split(nnx.eval_shape(lambda: GPT2(config, rngs=nnx.Rngs(0))))
        text = jax.jit(lambda params: nnx.merge(graph, params)(TOKENS)).lower(params).as_text()
        return text.count("stablehlo.dot_general")

    assert operations(2) == operations(9)


def test_all_layers_at_once_where_it_is_said() -> None:
    def loops(**changes) -> int:
        config = dataclasses.replace(CONFIG, **{"unroll": None, **changes})
        graph, params = nnx.split(nnx.eval_shape(lambda: GPT2(config, rngs=nnx.Rngs(0))))
        text = jax.jit(lambda params: nnx.merge(graph, params)(TOKENS)).lower(params).as_text()
        return text.count("stablehlo.while")

    assert loops() == (jax.default_backend() != "cpu")
    assert loops(unroll=1) == loops(layers=13) == loops(remat="full") == 1


def test_gelu_and_its_slope_are_those_of_jax(rng) -> None:
    x, dx = (jnp.asarray(4 * rng.normal(size=300), jnp.float32) for _ in range(2))
    found = jax.jvp(gelu, (x,), (dx,))
    wanted = jax.jvp(functools.partial(jax.nn.gelu, approximate=True), (x,), (dx,))
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gelu(x), found[0], rtol=1e-5, atol=1e-6)


def test_half_precision_is_close_and_its_master_weights_single(model, logits) -> None:
    half = nnx.eval_shape(lambda: GPT2(CONFIG, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
    half = nnx.merge(nnx.split(half)[0], nnx.split(model)[1])
    assert {x.dtype for x in jax.tree.leaves(nnx.state(half, nnx.Param))} == {jnp.dtype("f4")}
    found = forward(half, TOKENS)
    assert found.dtype == jnp.float32
    assert jax.eval_shape(lambda: half.hidden(TOKENS)).dtype == jnp.bfloat16
    error = np.abs(found - logits).max() / np.abs(logits).max()
    assert 1e-5 < error < 0.05
    with jax.numpy_dtype_promotion("standard"):  # JAX's attention asks for it, going backwards
        value, gradient = loss_and_gradient(half)
    wanted, exact = loss_and_gradient(model)
    assert float(value) == pytest.approx(float(wanted), rel=0.02)
    for g, w in zip(jax.tree.leaves(gradient), jax.tree.leaves(exact), strict=True):
        assert g.dtype == jnp.float32
        assert float(jnp.linalg.norm((g - w).ravel())) < 0.1 * float(jnp.linalg.norm(w.ravel()))


@pytest.mark.parametrize("name", FEW)
def test_weights_begin_with_the_published_spread(name) -> None:
    model = fresh(name)
    blocks, narrow = model.blocks, 0.02 / (2 * CONFIG.layers) ** 0.5

    def spread(layer) -> float:
        if name == "dense":
            return float(layer.kernel[...].std())
        graph, params = nnx.split(layer.layer)
        weights = jax.vmap(lambda p: nnx.merge(graph, p).weight())(params)
        return float(jnp.sqrt(jnp.mean(weights**2)))

    rough = 0.06 if name == "dense" else 0.5  # few numbers, so heavy tails
    for layer in (blocks.qkv, blocks.up):
        assert spread(layer) == pytest.approx(0.02, rel=rough)
    for layer in (blocks.out, blocks.down):
        assert spread(layer) == pytest.approx(narrow, rel=rough)
    assert float(model.tokens[:120].std()) == pytest.approx(0.02, rel=0.06)
    assert float(model.positions[...].std()) == pytest.approx(0.02, rel=0.15)
    assert not bool(model.tokens[120:].any())
    for norm in (model.norm, blocks.norm1, blocks.norm2):
        assert bool((norm.scale[...] == 1).all())
        assert not bool(norm.bias[...].any())
    if name == "dense":  # every layer has a draw of its own
        kernels = blocks.up.kernel[...].reshape(CONFIG.layers, -1)
        assert float(np.abs(np.corrcoef(kernels) - np.eye(CONFIG.layers)).max()) < 0.08


def test_the_published_sizes_are_counted_without_being_built() -> None:
    counts = {"small": 124_439_808, "medium": 354_823_168, "large": 774_030_080,
              "xl": 1_557_611_200}  # fmt: skip
    for name, count in counts.items():
        config = getattr(GPT2Config, name)()
        assert config.numbers == count
        assert config.padded == 50304
        model = nnx.eval_shape(lambda config=config: GPT2(config, rngs=nnx.Rngs(0)))
        assert model.numbers == count


def test_tensorised_layers_are_small() -> None:
    config = GPT2Config.small()
    model = nnx.eval_shape(lambda: GPT2(config, linear=nn.TT(rank=30), rngs=nnx.Rngs(0)))
    table = (config.vocabulary + config.length) * config.features
    assert model.numbers - table < (config.numbers - table) / 30


def test_operations_are_those_of_the_compiled_products() -> None:
    """Counted in the program: forward once, backward twice, attention not causal."""
    config = GPT2Config.tiny(features=64, length=32, layers=1, vocabulary=128)
    graph, params = nnx.split(nnx.eval_shape(lambda: GPT2(config, rngs=nnx.Rngs(0))))
    tokens = jax.ShapeDtypeStruct((3, 32), jnp.int32)
    gradient = jax.grad(lambda params, t: nnx.merge(graph, params).loss(t, t)[0])
    jaxpr = jax.make_jaxpr(gradient)(params, tokens)

    def products(jaxpr) -> int:
        found = 0
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                (left, _), _ = equation.params["dimension_numbers"]
                a, out = equation.invars[0].aval, equation.outvars[0].aval
                found += 2 * out.size * int(np.prod([a.shape[axis] for axis in left]))
            for value in equation.params.values():
                inner = getattr(value, "jaxpr", value)
                found += products(inner) if hasattr(inner, "eqns") else 0
        return found

    assert products(jaxpr.jaxpr) == pytest.approx(3 * 32 * config.flops(), rel=1e-3)


def test_dropout_is_on_where_there_is_a_key(key) -> None:
    model = with_config(varied(), dropout=0.3)
    plain = forward(model, TOKENS)
    np.testing.assert_array_equal(plain, forward(model, TOKENS))
    one, again = (forward(model, TOKENS, key=key) for _ in range(2))
    np.testing.assert_array_equal(one, again)
    assert float(jnp.abs(one - plain).max()) > 1e-2
    other = forward(model, TOKENS, key=jax.random.fold_in(key, 5))
    assert float(jnp.abs(one - other).max()) > 1e-2
    # At rate zero a key changes nothing.
    still = with_config(model, dropout=0.0)
    np.testing.assert_allclose(forward(still, TOKENS, key=key), plain, rtol=1e-4, atol=1e-5)


def test_dropout_keeps_the_mean(key) -> None:
    x = dropped(jnp.ones((50, 40, 20), jnp.float32), key, 0.25)
    kept = float((x != 0).mean())
    assert kept == pytest.approx(0.75, abs=5 * (0.75 * 0.25 / x.size) ** 0.5)
    np.testing.assert_allclose(x[x != 0], 1 / 0.75, rtol=1e-6)


@pytest.mark.parametrize("name", SPECS)
def test_every_parameter_has_axes_of_its_rank(name) -> None:
    model = nnx.eval_shape(lambda: GPT2(CONFIG, linear=SPECS[name], rngs=nnx.Rngs(0)))
    params, axes = nnx.state(model, nnx.Param), model.axes()
    assert jax.tree.structure(params) == jax.tree.structure(axes)
    for (path, x), named in zip(
        jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(axes), strict=True
    ):
        assert isinstance(named, PartitionSpec), path
        assert len(named) == len(x.shape), path
        inside = str(getattr(path[0], "key", "")) == "blocks"
        assert (named[0] == "layer") == inside, path
        sizes = {"vocab": 128, "position": 16, "embed": 32, "heads": 32, "mlp": 128, "qkv": 3,
                 "layer": 2, None: None}  # fmt: skip
        assert all(sizes[axis] in (None, n) for axis, n in zip(named, x.shape, strict=True)), path


def test_one_compilation_for_each_shape(model) -> None:
    graph, params = nnx.split(model)
    traced = []

    @jax.jit
    def call(params, tokens):
        traced.append(tokens.shape)
        return nnx.merge(graph, params)(tokens)

    for tokens in (TOKENS, TOKENS + 0, TOKENS[:, :4], TOKENS):
        call(params, tokens)
    assert traced == [(2, 7), (2, 4)]


def tiny(**options) -> GPT2:
    return nnx.eval_shape(lambda: GPT2(CONFIG, rngs=nnx.Rngs(0), **options))


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "heads: expected a divisor of features = 768, got 7",
         lambda m: GPT2Config(heads=7)),
        (ValueError, "layers: expected an int of at least 1", lambda m: GPT2Config(layers=0)),
        (ValueError, "vocabulary: expected an int", lambda m: GPT2Config(vocabulary=1.5)),
        (ValueError, "dropout: expected a rate", lambda m: GPT2Config(dropout=1.0)),
        (ValueError, "remat: expected one of", lambda m: GPT2Config(remat="some")),
        (TypeError, "linear: expected a spec", lambda m: tiny(linear=nn.TT)),
        (TypeError, "dtype: expected a floating-point", lambda m: tiny(dtype=jnp.int32)),
        (ValueError, "attention: expected", lambda m: tiny(attention="flash")),
        (ValueError, "tokens: expected integers with 2 axes", lambda m: m(TOKENS[0])),
        (ValueError, "tokens: expected integers", lambda m: m(TOKENS.astype(jnp.float32))),
        (ValueError, r"tokens: expected ids in \[0, 120\), got 120 at \(0, 0\)",
         lambda m: m(TOKENS.at[0, 0].set(120))),
        (ValueError, "at most length = 16", lambda m: m(jnp.ones((1, 17), jnp.int32))),
        (ValueError, "at least one", lambda m: m(jnp.ones((1, 0), jnp.int32))),
        (ValueError, r"tokens: expected at least one row of them, got shape \(0, 2\)",
         lambda m: m.loss(np.zeros((0, 2), int), np.zeros((0, 2), int))),
        (ValueError, "dropout: expected a rate .* got 'a'", lambda m: GPT2Config(dropout="a")),
        (ValueError, "dropout: expected a rate .* got None", lambda m: GPT2Config(dropout=None)),
        (ValueError, "targets: expected the shape of tokens",
         lambda m: m.loss(TOKENS, TOKENS[:, 1:])),
        (ValueError, "weights: expected the shape of tokens",
         lambda m: m.loss(TOKENS, TOKENS, jnp.ones((2, 3)))),
        (ValueError, r"targets: expected ids in \[0, 120\)", lambda m: m.loss(TOKENS, TOKENS - 9)),
    ],
)  # fmt: skip
def test_bad_input_is_named(model, error, message, call) -> None:
    with pytest.raises(error, match=message):
        call(model)


def test_lists_and_integers_of_numpy_are_taken(model) -> None:
    rows = np.asarray(TOKENS).tolist()
    for ours, theirs in zip(model.loss(rows, rows), model.loss(TOKENS, TOKENS), strict=True):
        assert float(ours) == float(theirs)
    config = GPT2Config.tiny(heads=np.int64(4), layers=np.int32(2))
    assert config == GPT2Config.tiny()
    assert type(config.heads) is int


@pytest.mark.parametrize("length", [1, 63, 130])
def test_attention_on_cpus_is_that_of_jax(length: int) -> None:
    """In one block of queries, and in two."""
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (2 * jax.random.normal(key, (2, length, 3, 4)) for key in keys)

    def jax_own(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")

    def loss(f, *parts):
        return jnp.sum(jnp.sin(f(*parts)))

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        value, slopes = jax.value_and_grad(functools.partial(loss, jax_own), (0, 1, 2))(q, k, v)
    found, own = jax.jit(jax.value_and_grad(functools.partial(loss, causal), (0, 1, 2)))(q, k, v)
    np.testing.assert_allclose(found, value, rtol=1e-5)
    for a, b in zip(own, slopes, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    # Scores of any size: nothing overflows.
    assert np.isfinite(jax.jit(causal)(1e4 * q, k, v)).all()


def test_calls_outside_of_jit_are_compiled_once():
    model = varied()
    model(TOKENS)
    with compilations() as seen:
        model(TOKENS)
        model.hidden(TOKENS)
    assert not seen


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_slopes_of_gelu_are_finite_wherever_it_is(dtype):
    top = float(jnp.finfo(dtype).max)
    x = jnp.asarray([-top, -300, -20, -10, 10, 20, 300, top], dtype)
    np.testing.assert_array_equal(jax.vmap(jax.grad(gelu))(x), x > 0)


def test_groups_are_loaded_in_the_dtype_of_the_model():
    model = GPT2(CONFIG, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    held = jax.tree.map(lambda x: np.asarray(x, np.float32), groups(model))
    load_groups(model, held)
    assert {x.dtype.name for x in jax.tree.leaves(nnx.state(model, nnx.Param))} == {"bfloat16"}


def test_specifications_may_be_written_with_lists():
    listed = nn.TT(rank=[2, 2, 2], in_shape=[4, 8], out_shape=[8, 4])
    assert listed == nn.TT(rank=(2, 2, 2), in_shape=(4, 8), out_shape=(8, 4))
    assert len(layers(CONFIG, linear=nn.TT(rank=[2, 2, 2], order=2))) == CONFIG.layers + 2


def test_infinite_weights_of_a_batch_are_named():
    with pytest.raises(ValueError, match="weights: expected a positive, finite sum"):
        batch([[1, 2]], [[2, 3]], [[np.inf, 1.0]])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_dropout_divides_by_the_rest_as_well_as_its_dtype_can(dtype):
    x = jnp.asarray([1.0, 3.0, -7.0] * 20, dtype)
    found = dropped(x, jax.random.key(1), 0.1)
    exact = (np.asarray(x, float) / 0.9).astype(x.dtype)
    wanted = np.where(found == 0, 0, exact).astype(np.float32)
    np.testing.assert_allclose(found.astype(jnp.float32), wanted, rtol=1e-6, atol=0)
    assert 0 < int((found == 0).sum()) < 30
