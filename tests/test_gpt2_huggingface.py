"""GPT-2's weights as published: there and back, Hugging Face's own model, damaged folders."""

import dataclasses
import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax", reason="the models have an extra of their own")
pytest.importorskip("safetensors", reason="published weights have an extra of their own")

from flax import nnx
from safetensors.numpy import load_file, save_file

from tensorjax import nn, offload
from tensorjax.models import gpt2
from tensorjax.models.gpt2 import GPT2, GPT2Config, from_huggingface, to_huggingface

CONFIG = GPT2Config.tiny(vocabulary=50, dropout=0.1)
TOKENS = jnp.array([[3, 41, 5, 9, 2, 49, 0]], jnp.int32)


@functools.cache
def made() -> GPT2:
    rng = np.random.default_rng(5)
    graph, params = nnx.split(nnx.eval_shape(lambda: GPT2(CONFIG, rngs=nnx.Rngs(0))))

    def drawn(path, x):
        value = 0.3 * rng.standard_normal(x.shape)
        if path[0].key == "tokens":
            value[CONFIG.vocabulary :] = 0
        return jnp.asarray(value, x.dtype)

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(drawn, params))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2") / "written"
    to_huggingface(made(), folder)
    return folder


@pytest.fixture
def copy(written, tmp_path):
    return shutil.copytree(written, tmp_path / "copy")


def same(model: GPT2) -> None:
    for a, b in zip(
        jax.tree.leaves(nnx.state(model)), jax.tree.leaves(nnx.state(made())), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def change(folder, names=lambda name: name, drop=(), **more) -> None:
    """Rewrites the weights of a folder."""
    held = load_file(folder / "model.safetensors")
    held = {names(name): value for name, value in held.items() if name not in drop}
    save_file({**held, **more}, folder / "model.safetensors")


def configure(folder, drop=(), **changes) -> None:
    path = folder / "config.json"
    held = {k: v for k, v in json.loads(path.read_text()).items() if k not in drop}
    path.write_text(json.dumps({**held, **changes}))


def test_what_is_written_has_the_published_names_and_shapes(written) -> None:
    held = load_file(written / "model.safetensors")
    assert len(held) == 4 + 12 * CONFIG.layers
    assert held["wte.weight"].shape == (50, 32)
    assert held["wpe.weight"].shape == (16, 32)
    assert held["h.1.attn.c_attn.weight"].shape == (32, 96)
    assert held["h.1.attn.c_attn.bias"].shape == (96,)
    assert held["h.0.mlp.c_fc.weight"].shape == (32, 128)
    assert held["h.0.mlp.c_proj.weight"].shape == (128, 32)
    # Columns of c_attn: queries, keys, values, each of all heads.
    kernel = np.asarray(made().blocks.qkv.kernel[1])
    np.testing.assert_array_equal(held["h.1.attn.c_attn.weight"][:, 32:64], kernel[:, 1])
    config = json.loads((written / "config.json").read_text())
    assert (config["n_embd"], config["n_layer"], config["n_head"]) == (32, 2, 4)
    assert sorted(path.name for path in written.iterdir()) == ["config.json", "model.safetensors"]


def test_there_and_back(written) -> None:
    model = from_huggingface(written)
    # How its loop runs is not written down.
    assert model.config == dataclasses.replace(CONFIG, unroll=None)
    same(model)
    other = from_huggingface(written, dropout=0.0, remat="full", dtype=jnp.bfloat16)
    assert (other.config.dropout, other.config.remat) == (0.0, "full")
    assert other.dtype == jnp.bfloat16
    same(other)


def test_names_may_have_a_prefix_masks_and_a_tied_head(copy) -> None:
    held = load_file(copy / "model.safetensors")
    change(copy, names=lambda name: f"transformer.{name}",
           **{"lm_head.weight": held["wte.weight"],
              "transformer.h.0.attn.bias": np.tril(np.ones((1, 1, 16, 16), np.float32)),
              "h.1.attn.masked_bias": np.float32([-1e4])})  # fmt: skip
    same(from_huggingface(copy))


def test_other_words_for_the_same_model_are_read(copy) -> None:
    held = load_file(copy / "model.safetensors")
    change(copy, **{"lm_head.weight": held["wte.weight"]})
    configure(copy, tie_word_embeddings=False, activation_function="gelu_pytorch_tanh")
    same(from_huggingface(copy))


def test_weights_may_lie_in_parts(copy) -> None:
    held = load_file(copy / "model.safetensors")
    names = sorted(held)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for part, chosen in parts.items():
        save_file({name: held[name] for name in chosen}, copy / part)
    where = {name: part for part, chosen in parts.items() for name in chosen}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (copy / "model.safetensors").unlink()
    same(from_huggingface(copy))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_weights_may_be_in_half_precision(copy, dtype) -> None:
    held = load_file(copy / "model.safetensors")
    save_file({k: np.asarray(v, dtype) for k, v in held.items()}, copy / "model.safetensors")
    model = from_huggingface(copy)
    assert model.tokens[...].dtype == jnp.float32
    wanted = np.asarray(np.asarray(made().positions[...], dtype), np.float32)
    np.testing.assert_array_equal(model.positions[...], wanted)


@pytest.mark.parametrize(
    ("error", "message", "damage"),
    [
        (ValueError, r"1 missing \(h\.1\.ln_2\.bias\) and 0 unknown",
         lambda f: change(f, drop=["h.1.ln_2.bias"])),
        (ValueError, r"0 missing and 1 unknown \(h\.0\.attn\.rotary\)",
         lambda f: change(f, **{"h.0.attn.rotary": np.ones(3, np.float32)})),
        (ValueError, r"12 missing \(h\.2\.attn\.c_attn\.bias.*and 4 more",
         lambda f: configure(f, n_layer=3)),
        (ValueError, r"wpe\.weight: expected shape \(17, 32\).*got \(16, 32\)",
         lambda f: configure(f, n_positions=17)),
        (ValueError, r"c_attn\.weight: expected shape \(32, 96\).*got \(96, 32\)",
         lambda f: change(f, **{"h.0.attn.c_attn.weight": np.ones((96, 32), np.float32)})),
        (ValueError, r"ln_f\.bias: expected finite numbers",
         lambda f: change(f, **{"ln_f.bias": np.full(32, np.nan, np.float32)})),
        (ValueError, "lm_head.weight: expected the table wte.weight",
         lambda f: change(f, **{"lm_head.weight": np.ones((50, 32), np.float32)})),
        (ValueError, "activation_function: expected 'gelu_new', got 'relu'",
         lambda f: configure(f, activation_function="relu")),
        (ValueError, "model_type: expected 'gpt2', got 'llama'",
         lambda f: configure(f, model_type="llama")),
        (ValueError, "n_inner: expected 4 n_embd = 128, got 64",
         lambda f: configure(f, n_inner=64)),
        (ValueError, "config.json: expected n_head", lambda f: configure(f, drop=["n_head"])),
        (ValueError, "heads: expected a divisor", lambda f: configure(f, n_head=5)),
        (ValueError, "expected JSON", lambda f: (f / "config.json").write_text("{")),
        (FileNotFoundError, "config.json: expected a folder",
         lambda f: (f / "config.json").unlink()),
        (FileNotFoundError, "expected weights as safetensors",
         lambda f: (f / "model.safetensors").unlink()),
        (FileNotFoundError, r"found pytorch_model\.bin; convert it",
         lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin")),
        (ValueError, r"index\.json: expected a weight_map",
         lambda f: (f / "model.safetensors").rename(f / "model.safetensors.index.json")
         .write_text("{}")),
        (ValueError, "tie_word_embeddings: expected True, or an lm_head",
         lambda f: configure(f, tie_word_embeddings=False)),
        (ValueError, "expected a whole safetensors file",
         lambda f: (f / "model.safetensors").write_bytes(
             (f / "model.safetensors").read_bytes()[:-100])),
    ],
)  # fmt: skip
def test_damaged_folders_are_named(copy, error, message, damage) -> None:
    damage(copy)
    with pytest.raises(error, match=message):
        from_huggingface(copy)


def test_sizes_are_those_of_the_files(written) -> None:
    with pytest.raises(ValueError, match="layers: expected no such option"):
        from_huggingface(written, layers=1)


def test_what_cannot_be_written_leaves_nothing(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "precious").write_text("x")
    with pytest.raises(FileExistsError, match="expected no such folder"):
        to_huggingface(made(), folder)
    model = nnx.eval_shape(lambda: GPT2(CONFIG, linear=nn.TT(rank=3), rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="expected dense linear layers"):
        to_huggingface(model, tmp_path / "new")

    def fail(*arguments, **options):
        raise OSError("no space left")

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    with pytest.raises(OSError, match="no space"):
        to_huggingface(made(), tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert [path.name for path in folder.iterdir()] == ["precious"]


@pytest.mark.parametrize("head", [True, False])
def test_hugging_face_has_the_same_logits(tmp_path, head) -> None:
    """Both ways: their random weights here, and ours there."""
    transformers = pytest.importorskip("transformers", reason="its own GPT-2 is compared with")
    torch = pytest.importorskip("torch", reason="its own GPT-2 is compared with")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3
    )
    kind = transformers.GPT2LMHeadModel if head else transformers.GPT2Model
    theirs = kind(config).eval()
    with torch.no_grad():
        for value in theirs.parameters():  # biases and norms begin as zeros and ones
            value += 0.2 * torch.randn_like(value)
    theirs.save_pretrained(tmp_path / "theirs", safe_serialization=True)
    ours = from_huggingface(tmp_path / "theirs")
    full = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "theirs").eval()
    tokens = np.array(TOKENS)
    with torch.no_grad():
        wanted = full(torch.from_numpy(tokens.astype(np.int64))).logits.numpy()
    np.testing.assert_allclose(ours(jnp.asarray(tokens)), wanted, rtol=1e-4, atol=1e-4)
    assert np.abs(wanted).max() > 1
    to_huggingface(made(), tmp_path / "ours")
    full = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        found = full(torch.from_numpy(tokens.astype(np.int64))).logits.numpy()
    np.testing.assert_allclose(made()(TOKENS), found, rtol=1e-4, atol=1e-4)


def test_published_weights_are_tuned_a_layer_at_a_time(written, tmp_path) -> None:
    """From the published folder through a trainer to a published folder; the padding stays zero."""
    optax = pytest.importorskip("optax", reason="the trainer needs an optimiser")
    pytest.importorskip("xxhash", reason="the store has an extra of its own")
    config, params = gpt2.read_groups(written, dropout=0.0)
    batch = gpt2.batch(np.asarray(TOKENS[:, :-1]), np.asarray(TOKENS[:, 1:]))
    capacity = offload.capacity(offload.tensors(params, optax.sgd(0.1)))
    with (
        offload.TensorStore(tmp_path / "store", capacity, backend="threads") as store,
        offload.Trainer(gpt2.layers(config), params, optax.sgd(0.1), store=store) as trainer,
    ):
        gpt2.write_groups(config, trainer.groups(), tmp_path / "before")
        first = trainer.step(batch).loss
        gpt2.write_groups(config, trainer.groups(), tmp_path / "after")
        second = trainer.step(batch).loss
        trainer.commit()
    same(from_huggingface(tmp_path / "before"))
    model = from_huggingface(tmp_path / "after", dropout=0.0)
    total, count = model.loss(TOKENS[:, :-1], TOKENS[:, 1:])
    assert float(total / count) == pytest.approx(second, rel=1e-5)
    assert second < first
    _, again = gpt2.read_groups(tmp_path / "after")
    trained = dict(gpt2.groups(model))
    for name, read in again.items():
        jax.tree.map(np.testing.assert_array_equal, read(), trained[name])


def test_groups_that_are_no_gpt2_leave_nothing(written, tmp_path) -> None:
    config, params = gpt2.read_groups(written, param_dtype=jnp.bfloat16)
    held = {name: read() for name, read in params.items()}
    assert {x.dtype for x in jax.tree.leaves(held)} == {jnp.dtype(jnp.bfloat16)}
    few = {name: group for name, group in held.items() if name != "block001"}
    with pytest.raises(ValueError, match=r"12 missing \(h.1.attn.c_attn.bias"):
        gpt2.write_groups(config, few, tmp_path / "new")
    with pytest.raises(ValueError, match=r"expected those of a dense GPT-2, got norm.core"):
        gpt2.write_groups(config, {**held, "norm": {"core": np.ones(3)}}, tmp_path / "new")
    assert not [*tmp_path.iterdir()]


def test_damaged_groups_are_named_when_they_are_read(copy) -> None:
    change(copy, **{"h.1.mlp.c_fc.bias": np.full(4 * CONFIG.features, np.nan, np.float32)})
    _, params = gpt2.read_groups(copy)
    params["block000"]()
    with pytest.raises(ValueError, match=r"h.1.mlp.c_fc.bias: expected finite numbers"):
        params["block001"]()
