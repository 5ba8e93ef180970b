"""Generation by GPT-2: the cache against the whole forward pass, draws, padding, bad input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax", reason="the models have an extra of their own")

from flax import nnx

from tensorjax import nn
from tensorjax.models.gpt2 import GPT2, GPT2Config, generate
from tensorjax.models.gpt2 import _generate as module

CONFIG = GPT2Config.tiny(vocabulary=50)
PROMPTS = [[3, 41, 5, 9, 2], [7, 7, 7], [49]]


@functools.cache
def made(name: str = "dense", dtype=jnp.float32) -> GPT2:
    """A model far from its beginning, so that its choices vary."""
    rng = np.random.default_rng(5)
    spec = {"dense": nn.Dense(), "tt": nn.TT(rank=4)}[name]
    graph, params = nnx.split(
        nnx.eval_shape(lambda: GPT2(CONFIG, linear=spec, dtype=dtype, rngs=nnx.Rngs(0)))
    )

    def drawn(path, x):
        names = {str(entry.key) for entry in path if hasattr(entry, "key")}
        spread = 1.0 if "positions" in names else 0.5 if "cores" in names else 0.3
        value = spread * rng.standard_normal(x.shape) + bool(names & {"scale", "gates"})
        return jnp.asarray(value, x.dtype)

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(drawn, params))


@functools.partial(jax.jit, static_argnums=0)
def last_logits(graph, params, tokens, length):
    return jax.lax.dynamic_index_in_dim(
        nnx.merge(graph, params)(tokens), length - 1, axis=1, keepdims=False
    )


def slowly(model: GPT2, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens by the whole forward pass for every one."""
    row = np.zeros((1, CONFIG.length), np.int32)
    row[0, : len(prompt)] = prompt
    graph, params = nnx.split(model)
    for length in range(len(prompt), len(prompt) + count):
        logits = last_logits(graph, params, jnp.asarray(row), length)
        row[0, length] = int(jnp.argmax(logits[0]))
    return row[0, len(prompt) : len(prompt) + count].tolist()


def test_half_precision_begins_as_a_call_does() -> None:
    """Tokens and positions are cast, then added."""
    model = made(dtype=jnp.bfloat16)
    tokens, places = jnp.asarray(PROMPTS[:1], jnp.int32), jnp.arange(5, dtype=jnp.int32)[None]
    wanted = model.tokens[...].astype(model.dtype)[tokens]
    wanted += model.positions[...].astype(model.dtype)[places]
    np.testing.assert_array_equal(module._embedded(model, tokens, places), wanted)


@pytest.mark.parametrize("name", ["dense", "tt"])
def test_the_cache_gives_what_the_whole_forward_pass_gives(name) -> None:
    model = made(name)
    found = generate(model, PROMPTS, 9)
    assert found.shape == (3, 9)
    assert found.dtype == np.int32
    wanted = [slowly(model, prompt, 9) for prompt in PROMPTS]
    assert found.tolist() == wanted
    assert len({tuple(row) for row in wanted}) == 3
    assert len({token for row in wanted for token in row}) >= 3  # a constant would prove little


def test_logits_of_the_cache_are_those_of_the_whole_forward_pass() -> None:
    """Token by token, at whatever place each row is."""
    model = made()
    tokens = np.random.default_rng(0).integers(0, 50, (2, 12)).astype(np.int32)
    lengths = np.array([6, 3])
    whole = np.asarray(jax.jit(lambda t: model(t))(jnp.asarray(tokens)))
    first = jnp.asarray(np.where(np.arange(6)[None] < lengths[:, None], tokens[:, :6], 0))
    logits, cache = jax.jit(module._prefilled, static_argnums=(0, 3))(
        _Held(model), first, jnp.asarray(lengths, jnp.int32), 12
    )
    step = jax.jit(module._next, static_argnums=0)
    for place in range(5):
        at = lengths - 1 + place
        wanted = whole[np.arange(2), at]
        np.testing.assert_allclose(logits, wanted, rtol=2e-4, atol=2e-4)
        token = jnp.asarray(tokens[np.arange(2), at + 1])
        logits, cache = step(_Held(model), token, jnp.asarray(at + 1, jnp.int32), cache)


class _Held:
    """A model as a static argument: what is read of it is constant in the program."""

    def __init__(self, model: GPT2) -> None:
        self.model = model

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __hash__(self) -> int:
        return id(self.model)

    def __eq__(self, other) -> bool:
        return self.model is other.model


def test_rows_do_not_know_of_each_other() -> None:
    together = generate(made(), PROMPTS, 9)
    np.testing.assert_array_equal(together[1], generate(made(), PROMPTS[1:2], 9)[0])
    equal = np.array([[3, 41, 5], [9, 2, 7]])
    np.testing.assert_array_equal(generate(made(), equal, 4), generate(made(), equal.tolist(), 4))


def test_draws_follow_the_key_and_the_options(key) -> None:
    prompts = [[3, 41, 5, 9, 2]] * 3
    draw = functools.partial(generate, made(), prompts, 8)
    one = draw(temperature=1.0, key=key)
    np.testing.assert_array_equal(one, draw(temperature=1.0, key=key))
    other = draw(temperature=1.0, key=jax.random.fold_in(key, 1))
    assert (one != other).any()
    assert len({tuple(row) for row in one}) > 1  # rows of one prompt are drawn apart
    greedy = draw()
    np.testing.assert_array_equal(draw(temperature=2.0, top_k=1, key=key), greedy)
    for cold in (1e-6, 1e-38, 1e-45, 1e-300):
        np.testing.assert_array_equal(draw(temperature=cold, key=key), greedy)


def test_draws_have_the_probabilities_of_the_logits(key) -> None:
    """The first token of many equal prompts, against the softmax of the k largest logits."""
    model, count, temperature, k = made(), 4000, 2.5, 6
    prompt = [3, 41, 5]
    graph, params = nnx.split(model)
    row = jnp.zeros((1, CONFIG.length), jnp.int32).at[0, :3].set(jnp.array(prompt, jnp.int32))
    logits = np.asarray(last_logits(graph, params, row, 3), np.float64)[0] / temperature
    chosen = np.argsort(-logits)[:k]
    p = np.exp(logits[chosen] - logits[chosen].max())
    p /= p.sum()
    drawn = generate(model, [prompt] * count, 1, temperature=temperature, top_k=k, key=key)[:, 0]
    assert set(drawn) <= set(chosen)
    found = np.array([(drawn == token).mean() for token in chosen])
    assert (np.abs(found - p) < 5 * np.sqrt(p * (1 - p) / count) + 1e-9).all()


def test_the_padded_vocabulary_is_never_predicted(key) -> None:
    """Not even by a model whose padding has the largest logits."""
    graph, params = nnx.split(made())
    params = nnx.clone(params)
    table = params["tokens"][...]
    params["tokens"][...] = table.at[50:].set(jnp.asarray(40.0, table.dtype))
    model = nnx.merge(graph, params)
    assert model(jnp.array([[1, 2]])).shape == (1, 2, 50)
    for options in ({}, {"temperature": 5.0, "key": key, "top_k": 50}):
        assert generate(model, PROMPTS, 10, **options).max() < 50
    # Nor does it take a part of the probability.
    tokens = jnp.array([[1, 2, 3]])
    sums = model.loss(tokens, tokens)
    np.testing.assert_allclose(sums[0], made().loss(tokens, tokens)[0], rtol=1e-6)


def test_half_precision_generates() -> None:
    model = made(dtype=jnp.bfloat16)
    found = generate(model, PROMPTS, 5)
    assert found.shape == (3, 5)
    cache = jax.eval_shape(
        lambda: module._prefilled(model, jnp.ones((1, 3), jnp.int32), jnp.array([3]), 5)
    )[1]
    assert {part.dtype for part in cache} == {jnp.dtype(jnp.bfloat16)}


def test_one_program_for_prompts_of_one_shape() -> None:
    before = module._generated._cache_size()
    for seed in range(3):
        prompts = np.random.default_rng(seed).integers(0, 50, (2, 4))
        generate(made(), prompts, 7, temperature=0.5 + seed, key=jax.random.key(seed))
    assert module._generated._cache_size() == before + 1


@pytest.mark.parametrize(
    ("error", "message", "arguments", "options"),
    [
        (ValueError, "count: expected at most 13 tokens", ([[1, 2, 3]], 14), {}),
        (ValueError, "count: expected at most 0 tokens", ([[1] * 16], 1), {}),
        (ValueError, "count: expected an integer >= 1", ([[1]], 0), {}),
        (ValueError, "prompts: expected at least one", ([], 2), {}),
        (ValueError, r"prompts\[1\]: expected at least one integer", ([[1], []], 2), {}),
        (ValueError, r"prompts\[0\]: expected ids in \[0, 50\), got 50", ([[50]], 2), {}),
        (ValueError, r"prompts\[0\]: expected at least one integer", ([[0.5]], 2), {}),
        (ValueError, "prompts: expected shape", (np.zeros((3,), int), 2), {}),
        (TypeError, "prompts: expected token ids, got a text", ("def", 2), {}),
        (ValueError, "temperature: expected", ([[1]], 2), {"temperature": -1.0}),
        (ValueError, "temperature: expected", ([[1]], 2), {"temperature": np.nan}),
        (ValueError, "key: expected a key", ([[1]], 2), {"temperature": 1.0}),
        (ValueError, "top_k: expected an integer in", ([[1]], 2), {"top_k": 51}),
    ],
)
def test_bad_input_is_named(error, message, arguments, options) -> None:
    with pytest.raises(error, match=message):
        generate(made(), *arguments, **options)


def test_what_is_not_finite_is_reported() -> None:
    graph, params = nnx.split(made())
    params = nnx.clone(params)
    params["norm"]["bias"][...] = params["norm"]["bias"][...].at[3].set(np.float32(np.nan))
    with pytest.raises(FloatingPointError, match="model: expected finite logits"):
        generate(nnx.merge(graph, params), [[1]], 2)


def test_a_traced_model_is_refused() -> None:
    graph, params = nnx.split(made())
    with pytest.raises(TypeError, match="call generate outside jit"):
        jax.jit(lambda params: generate(nnx.merge(graph, params), [[1]], 2))(params)
