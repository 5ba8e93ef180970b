"""Layers and GPT-2 in programs of `jax.export`: symbolic sizes, and platforms that are not here."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lowering import check_portable

pytest.importorskip("flax", reason="the layers have an extra of their own")

from flax import nnx

from tensorjax import contract, nn
from tensorjax.models.gpt2 import GPT2, GPT2Config

RNGS = nnx.Rngs(7)


def embedding(kind=nn.TTEmbedding, rows=1000, **options):
    return kind(rows, 24, rank=3, order=3, rngs=RNGS, **options)


def attending(layer, ids):
    """Lookups, logits and bags at once."""
    rows = layer(ids)
    return rows.sum() + layer.attend(rows).sum() + layer.bag(ids, mode="mean").sum()


# Layer, symbolic shape of its input, and what is called (the layer itself if None).
LINEAR = {
    "tt": (lambda: nn.TTLinear(64, 96, rank=4, rngs=RNGS), "b, 64"),
    "padded": (lambda: nn.TTLinear(60, 90, rank=4, in_shape=(8, 8), rngs=RNGS), "b, s, 60"),
    "full rank": (lambda: nn.TTLinear(4, 4, rank=16, in_shape=(2, 2), rngs=RNGS), "2*b + 1, 4"),
    "tt-matrix": (lambda: nn.TTMatrixLinear(60, 96, rank=4, rngs=RNGS), "b, s, 60"),
    "tucker": (lambda: nn.TuckerLinear(64, 96, rank=3, order=2, rngs=RNGS), "b, 64"),
    "cp": (lambda: nn.CPLinear(60, 96, rank=3, order=2, rngs=RNGS), "b, 3, s, 60"),
    "low rank": (lambda: nn.LowRank(4).linear(64, 96, rngs=RNGS), "b, 64"),
    "ranks": (lambda: nn.TTLinear(64, 64, rank=(8, 3, 5), use_bias=False, rngs=RNGS), "b, 64"),
}
EMBEDDINGS = {
    "tt": (embedding, "b, s", None),
    "capacity": (lambda: embedding(capacity=16, padding_idx=3), "b, s", None),
    "wide capacity": (lambda: embedding(capacity=5000, out_of_range="zero"), "2*b, s + 1", None),
    "dense": (lambda: embedding(rows=100, out_of_range="clip"), "b", None),
    "tucker": (lambda: embedding(nn.TuckerEmbedding), "b, s", None),
    "cp": (lambda: embedding(nn.CPEmbedding, rows=90), "b, s", attending),
    "all of tt": (lambda: embedding(rows=90, padding_idx=0), "b, s", attending),
}
FEW = ("tt", "padded", "capacity")


def cases(table):
    return [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in table]


def value_and_gradient(layer, call):
    """A function of arrays of the layer and an input: results, gradients of their squares."""
    graph, state = nnx.split(layer)
    leaves, tree = jax.tree.flatten(state)

    def both(leaves, x):
        def loss(leaves):
            made = nnx.merge(graph, jax.tree.unflatten(tree, leaves))
            y = call(made, x)
            return jnp.square(y).mean(), y

        (_, y), gradient = jax.value_and_grad(loss, has_aux=True)(leaves)
        return y, gradient

    return both, leaves


def check_sizes(layer, text, draw, call=None) -> None:
    """One exported program gives what programs of their own give, for drawn sizes."""
    both, leaves = value_and_gradient(layer, call or (lambda layer, x: layer(x)))
    shape = jax.export.symbolic_shape(text)
    rng = np.random.default_rng(len(text))
    like = draw(rng, (1,))
    exported = jax.export.export(jax.jit(both), platforms=["cpu", "cuda", "tpu"])(
        jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), leaves),
        jax.ShapeDtypeStruct(shape, like.dtype),
    )
    names = sorted({v for n in shape if not isinstance(n, int) for v in n._get_vars()})
    for high in (2, 8, 400):
        sizes = {name: int(rng.integers(1, high if name == names[0] else 5)) for name in names}
        x = draw(rng, [n if isinstance(n, int) else n._evaluate(sizes) for n in shape])
        for found, wanted in zip(
            jax.tree.leaves(exported.call(leaves, x)),
            jax.tree.leaves(jax.jit(both)(leaves, x)),
            strict=True,
        ):
            scale = np.abs(wanted).max() + 1e-6
            np.testing.assert_allclose(found / scale, wanted / scale, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", cases(LINEAR))
def test_linear_layers_take_any_number_of_rows(name) -> None:
    build, text = LINEAR[name]
    check_sizes(build(), text, lambda rng, s: rng.normal(size=s).astype(np.float32))


@pytest.mark.parametrize("name", cases(EMBEDDINGS))
def test_embeddings_take_any_number_of_ids(name) -> None:
    build, text, call = EMBEDDINGS[name]
    layer = build()
    draw = lambda rng, s: rng.integers(0, layer.num_embeddings, s).astype(np.int32)  # noqa: E731
    check_sizes(layer, text, draw, call)


def test_contractions_are_planned_as_for_1024_where_sizes_are_symbolic() -> None:
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 8"), jnp.float32)
    w = jnp.arange(24.0, dtype=jnp.float32).reshape(8, 3)
    run = jax.export.export(jax.jit(lambda x: contract.einsum("bi,ij,kj->bk", x, w, w)))(shape)
    x = jnp.ones((5, 8), jnp.float32)
    np.testing.assert_allclose(run.call(x), x @ w @ w.T)
    plan = contract.plan("bi,ij->bj", (7, 8), (8, 3))
    with pytest.raises(ValueError, match=r"operand 0: expected shape \(7, 8\)"):
        jax.export.export(jax.jit(lambda x: plan(x, w)))(shape)
    message = "memory_limit: expected sizes that are numbers"
    limited = functools.partial(contract.einsum, memory_limit=10**9)
    with pytest.raises(ValueError, match=message):
        jax.export.export(jax.jit(lambda x: limited("bi,ij->bj", x, w)))(shape)
    for limit in (300_000, 10**9):
        layer = nn.TTLinear(64, 64, rank=8, memory_limit=limit, rngs=RNGS)
        shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 64"), jnp.float32)
        with pytest.raises(ValueError, match=message):
            jax.export.export(jax.jit(layer))(shape)


PORTABLE = {
    "linear": lambda dtype: nn.TTLinear(64, 96, rank=4, param_dtype=dtype, rngs=RNGS),
    "tucker": lambda dtype: nn.TuckerLinear(16, 16, rank=2, param_dtype=dtype, rngs=RNGS),
    "cp": lambda dtype: nn.CPLinear(16, 16, rank=2, param_dtype=dtype, rngs=RNGS),
    "embedding": functools.partial(embedding),
    "capacity": functools.partial(embedding, capacity=16),
    "gpt2": lambda dtype: GPT2(
        GPT2Config.tiny(), linear=nn.TT(rank=2), dtype=dtype, param_dtype=dtype, rngs=RNGS
    ),
    "gpt2 dense": lambda dtype: GPT2(GPT2Config.tiny(), param_dtype=dtype, rngs=RNGS),
}
AT_ONCE = ("linear", "embedding")


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize(
    "name", [n if n in AT_ONCE else pytest.param(n, marks=pytest.mark.slow) for n in PORTABLE]
)
def test_layers_and_models_lower_for_platforms_that_are_not_here(name, dtype) -> None:
    options = {"dtype": dtype} if name not in ("embedding", "capacity") else {"param_dtype": dtype}
    graph, state = nnx.split(PORTABLE[name](**options))

    def run(state):
        layer = nnx.merge(graph, state)
        if name.startswith("gpt2"):
            total, _ = layer.loss(TOKENS, TOKENS)
            return total
        if name in ("embedding", "capacity"):
            return attending(layer, TOKENS)
        return layer(jnp.ones((5, layer.in_features), dtype))

    check_portable(run, state)


TOKENS = jnp.arange(12, dtype=jnp.int32).reshape(2, 6)


@pytest.mark.slow
def test_gpt2_takes_any_number_of_rows() -> None:
    graph, state = nnx.split(GPT2(GPT2Config.tiny(), rngs=nnx.Rngs(0)))
    leaves, tree = jax.tree.flatten(state)

    def loss(leaves, tokens):
        made = nnx.merge(graph, jax.tree.unflatten(tree, leaves))
        total, count = made.loss(tokens, tokens)
        return total / count

    step = jax.jit(jax.value_and_grad(loss))
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 8"), jnp.int32)
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), leaves)
    exported = jax.export.export(step, platforms=["cpu", "cuda"])(like, shape)
    for rows in (1, 3, 6):
        tokens = jnp.arange(8 * rows, dtype=jnp.int32).reshape(rows, 8)
        found, wanted = exported.call(leaves, tokens), step(leaves, tokens)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
