"""Models: dense, low-rank and tensorised from one definition; masks, sizes, compilations."""

import math
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax", reason="the models have an extra of their own")

from flax import nnx

from tensorjax import nn
from tensorjax.models import encoder as encoder_module
from tensorjax.models._initial_layers_and_loss import with_spread
from tensorjax.models.code import CodeModel
from tensorjax.models.dlrm import DLRM, DLRMConfig
from tensorjax.models.encoder import Encoder, EncoderConfig

SPECS = {"dense": nn.Dense(), "low rank": nn.LowRank(3), "tt": nn.TT(rank=4)}
TOKENS = jnp.array([[2, 17, 9, 4, 3, 0], [2, 40, 3, 0, 0, 0]], jnp.int32)


@pytest.fixture(params=SPECS, scope="module")
def spec(request):
    return SPECS[request.param]


def forward(model, *arguments, **named):
    """The model's outputs by one compiled program: faster than operation by operation."""
    graph, state = nnx.split(model)
    return jax.jit(lambda state, a, n: nnx.merge(graph, state)(*a, **n))(state, arguments, named)


def encoder(spec=SPECS["dense"], **changes):
    config = EncoderConfig.tiny(vocabulary=60, features=16, heads=2, hidden=24, **changes)
    model = Encoder(config, linear=spec, embedding=spec, rngs=nnx.Rngs(0))
    model.eval()
    return model


def count(model) -> int:
    return sum(math.prod(x.shape) for x in jax.tree.leaves(nnx.state(model, nnx.Param)))


def abstract(build) -> int:
    """Numbers of a model that is never built."""
    return count(nnx.eval_shape(build))


def test_one_definition_makes_all_encoders(spec) -> None:
    model = encoder(spec, layers=1)
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params):
        logits = nnx.merge(graph, params, rest)(TOKENS)
        assert logits.shape == (2, 3)
        return jnp.sum(jnp.square(logits))

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    assert bool(jnp.isfinite(value))
    assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(gradient))
    used = [k for k, g in jax.tree_util.tree_leaves_with_path(gradient) if bool((g != 0).any())]
    assert len(used) >= len(jax.tree.leaves(params)) - 1  # all but what only padding would use


@pytest.mark.parametrize("norm_first", [False, True])
def test_padding_does_not_change_the_outputs(norm_first: bool) -> None:
    model = encoder(norm_first=norm_first)
    alone = forward(model, TOKENS[1:, :3])
    np.testing.assert_allclose(forward(model, TOKENS)[1:], alone, rtol=1e-5, atol=1e-6)
    # The same by a mask, whatever stands where it is false.
    other = jnp.where(TOKENS == 0, 33, TOKENS)
    same = forward(model, other, mask=TOKENS != 0)[1:]
    np.testing.assert_allclose(same, alone, rtol=1e-5, atol=1e-6)
    assert float(jnp.abs(forward(model, other)[1:] - alone).max()) > 1e-4
    rows = jnp.zeros_like(TOKENS)
    assert bool(jnp.isfinite(forward(model, rows)).all())  # nothing to attend to


def test_segments_and_order_count() -> None:
    model = encoder()
    first = forward(model, TOKENS)
    other = forward(model, TOKENS, jnp.ones_like(TOKENS))
    assert float(jnp.abs(other - first).max()) > 1e-4
    assert float(jnp.abs(forward(model, TOKENS[:, ::-1]) - first).max()) > 1e-4


def test_linear_biases_fall_with_the_distance() -> None:
    bias = encoder_module._linear_biases(4, 2, jnp.float32)
    far = np.array([[0, 1, 2, 3], [1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]])
    np.testing.assert_array_equal(bias[0], [-far / 2**4, -far / 2**8])
    near, plain = encoder(linear_biases=True), encoder()
    assert count(near) == count(plain)
    assert float(jnp.abs(forward(near, TOKENS) - forward(plain, TOKENS)).max()) > 1e-6
    alone = forward(near, TOKENS[1:, :3])
    np.testing.assert_allclose(forward(near, TOKENS)[1:], alone, rtol=1e-5, atol=1e-6)


def test_dropout_follows_train_and_eval() -> None:
    model = encoder(dropout=0.5, layers=1)
    call = nnx.jit(lambda model: model(TOKENS))
    np.testing.assert_array_equal(call(model), call(model))
    model.train()
    assert float(jnp.abs(call(model) - call(model)).max()) > 1e-3


def test_one_compilation_for_each_shape() -> None:
    graph, state = nnx.split(encoder(SPECS["tt"], layers=1))
    traced = []

    @jax.jit
    def forward(state, tokens):
        traced.append(tokens.shape)
        return nnx.merge(graph, state)(tokens)

    for tokens in (TOKENS, TOKENS + 1, TOKENS[:, :4], TOKENS):
        forward(state, tokens)
    assert traced == [(2, 6), (2, 4)]


def test_the_code_model_is_tied_to_its_embedding(spec) -> None:
    config = EncoderConfig.tiny(vocabulary=60, features=16, heads=2, hidden=24, layers=1)
    model = CodeModel(config, linear=spec, embedding=spec, rngs=nnx.Rngs(0))
    positions = jnp.array([[1, 3], [1, 0]])
    some, every = forward(model, TOKENS, positions), forward(model, TOKENS)
    assert some.shape == (2, 2, 60)
    assert every.shape == (2, 6, 60)
    chosen = jnp.take_along_axis(every, positions[:, :, None], axis=1)
    np.testing.assert_allclose(some, chosen, rtol=1e-4, atol=1e-5)

    @nnx.jit
    def last(model):
        x = model.transform(model.trunk(TOKENS))
        return model.norm(jax.nn.gelu(x, approximate=False)), model.trunk.tokens(jnp.arange(60))

    hidden, table = map(np.asarray, last(model))
    np.testing.assert_allclose(every, hidden @ table.T, rtol=1e-4, atol=1e-4)


def test_half_precision_computes_in_it() -> None:
    config = EncoderConfig.tiny(features=16, heads=2, hidden=24, layers=1)
    spec = SPECS["tt"]
    model = Encoder(config, linear=spec, embedding=spec, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    with jax.numpy_dtype_promotion("standard"):  # flax's layer norm asks for it
        assert jax.eval_shape(lambda: model(TOKENS)).dtype == jnp.bfloat16
    assert {x.dtype for x in jax.tree.leaves(nnx.state(model, nnx.Param))} == {jnp.dtype("f4")}


def test_dlrm_is_its_formula(spec) -> None:
    config = DLRMConfig.tiny()
    model = DLRM(config, linear=spec, embedding=spec, rngs=nnx.Rngs(0))
    dense = jnp.linspace(-1, 1, 12, dtype=jnp.float32).reshape(3, 4)
    ids = jnp.array([[0, 59, 2999], [4, 1, 17], [2, 0, 0]], jnp.int32)

    @nnx.jit
    def by_hand(model):
        z = [model.bottom(dense)] + [table(ids[:, k]) for k, table in enumerate(model.tables)]
        dots = [jnp.sum(z[i] * z[j], 1) for i in range(4) for j in range(i)]
        return model.top(jnp.concatenate([z[0], jnp.stack(dots, 1)], 1))[:, 0]

    np.testing.assert_allclose(forward(model, dense, ids), by_hand(model), rtol=1e-4, atol=1e-5)
    # The small table stays dense, and the layer that ends in one logit.
    assert isinstance(model.tables[0], nnx.Embed)
    assert isinstance(model.top.layers[-1], nnx.Linear)
    assert isinstance(model.tables[2], nnx.Embed) == (spec == SPECS["dense"])
    gradient = nnx.jit(nnx.grad(lambda model: jnp.sum(model(dense, ids))))(model)
    assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(gradient))


def test_the_published_encoder_has_the_size_of_the_note() -> None:
    """Six encoders: 255.4 MiB dense, 5.67 MiB as trains of rank 30 (embedding 32)."""
    config = EncoderConfig()
    dense = abstract(lambda: Encoder(config, rngs=nnx.Rngs(0)))
    assert dense == 66_957_315
    assert dense * 4 / 2**20 == pytest.approx(255.4, abs=0.05)
    small = abstract(
        lambda: Encoder(config, linear=nn.TT(rank=30), embedding=nn.TT(rank=32), rngs=nnx.Rngs(0))
    )
    assert small * 4 / 2**20 == pytest.approx(5.67, rel=0.02)


def test_the_published_dlrm_is_counted_without_being_built() -> None:
    config = DLRMConfig.criteo()
    assert sum(config.tables) == 33_762_577
    dense = abstract(lambda: DLRM(config, rngs=nnx.Rngs(0)))
    small = abstract(lambda: DLRM(config, linear=nn.TT(rank=16), embedding=nn.TT(rank=16),
                                  rngs=nnx.Rngs(0)))  # fmt: skip
    assert dense > 540_000_000
    assert dense / small > 100


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "heads: expected a divisor", lambda: EncoderConfig(heads=7)),
        (ValueError, "layers: expected an int", lambda: EncoderConfig(layers=0)),
        (ValueError, "dropout: expected a rate", lambda: EncoderConfig(dropout=1.0)),
        (ValueError, "tables: expected at least one", lambda: DLRMConfig(dense=1, tables=())),
        (ValueError, "tables: expected ints", lambda: DLRMConfig(dense=1, tables=(0,))),
        (
            ValueError,
            r"positions: expected shape \(2, count\)",
            lambda: CodeModel(EncoderConfig.tiny(), rngs=nnx.Rngs(0))(
                jnp.ones((2, 4), jnp.int32), jnp.ones((1, 3), jnp.int32)
            ),
        ),
        (ValueError, "at most length = 16", lambda: encoder()(jnp.ones((1, 17), jnp.int32))),
        (ValueError, "tokens: expected integers", lambda: encoder()(jnp.ones((1, 4)))),
        (ValueError, r"tokens: expected ids in \[0, 60\)", lambda: encoder()(TOKENS + 200)),
        (
            ValueError,
            r"tokens: expected ids in \[0, 60\), got 4294967",
            lambda: encoder()(np.asarray(TOKENS, np.int64) + 2**32),
        ),
        (ValueError, "segments: expected ids", lambda: encoder()(TOKENS, TOKENS * 0 - 1)),
        (ValueError, "mask: expected the shape", lambda: encoder()(TOKENS, mask=TOKENS[0] > 0)),
        (TypeError, "linear: expected a spec", lambda: encoder(nn.TT)),
    ],
)
def test_bad_input_is_named(error, message, call) -> None:
    with pytest.raises(error, match=message):
        call()


def test_dlrm_names_bad_shapes() -> None:
    model = DLRM(DLRMConfig.tiny(), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"categories: expected shape \(batch, 3\)"):
        model(jnp.ones((2, 4)), jnp.zeros((2, 2), jnp.int32))
    with pytest.raises(ValueError, match=r"categories: .* in \[0, 60\), got 60 at \(1, 1\)"):
        model(jnp.ones((2, 4)), jnp.array([[0, 59, 17], [4, 60, 2999]]))


def test_sizes_may_be_integers_of_numpy() -> None:
    config = DLRMConfig.tiny(tables=tuple(np.array([5, 60, 3000])))
    assert config == DLRMConfig.tiny()
    assert hash(config) == hash(DLRMConfig.tiny())


def test_integers_are_masks_too() -> None:
    model = encoder()
    mask = TOKENS != 0
    given = model(TOKENS, mask=mask.astype(jnp.int32))
    np.testing.assert_array_equal(given, model(TOKENS, mask=mask))


@pytest.mark.parametrize("name", [*SPECS, "tucker", "cp"])
def test_all_embeddings_begin_with_the_same_spread(name) -> None:
    spec = {"tucker": nn.Tucker(rank=4), "cp": nn.CP(rank=9), **SPECS}[name]
    rows = []
    for seed in range(12):
        options = {"dtype": None, "param_dtype": jnp.float32, "rngs": nnx.Rngs(seed)}
        rows.append(with_spread(spec.embedding(64, 16, **options), 0.02)(jnp.arange(64)))
    assert float(jnp.sqrt(jnp.mean(jnp.square(jnp.stack(rows))))) == pytest.approx(0.02, rel=0.35)


WITHOUT_XXHASH = """
import sys
sys.modules["xxhash"] = None
from pathlib import Path
import jax.numpy as jnp
from flax import nnx
from tensorjax.models import encoder, gpt2
from tensorjax import offload
tokens = jnp.zeros((1, 4), jnp.int32)
print(gpt2.GPT2(gpt2.GPT2Config.tiny(), rngs=nnx.Rngs(0))(tokens).shape)
try:
    offload.TensorStore(sys.argv[1], 2**20)
except ImportError as error:
    print(error)
print(Path(sys.argv[1]).exists())
"""


def test_models_need_nothing_of_the_store(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_XXHASH, str(tmp_path / "store")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    shape, error, left = done.stdout.splitlines()
    assert shape == "(1, 4, 120)"
    assert "pip install 'tensorjax[offload]'" in error
    assert left == "False"
