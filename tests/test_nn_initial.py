"""Fresh layers with orthogonal factors: equal singular values, exact variance."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tensorjax import nn
from tensorjax.nn import _initializers

LINEAR = {
    "tt": nn.TT(rank=7, init="orthogonal", order=2),
    "tucker": nn.Tucker(rank=3, init="orthogonal", order=2),
    "low rank": nn.LowRank(rank=5, init="orthogonal"),
}


def spectrum(x: Any) -> np.ndarray:
    s = np.linalg.svd(np.asarray(x), compute_uv=False)
    return s[s > 1e-8 * s[0]]


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.complex128])
@pytest.mark.parametrize("name", LINEAR)
def test_all_singular_values_of_a_weight_are_equal(name: str, dtype: Any):
    layer = LINEAR[name].linear(16, 25, param_dtype=dtype, rngs=nnx.Rngs(0))
    s = spectrum(layer.weight())
    assert len(s) == {"tt": 7, "tucker": 9, "low rank": 5}[name]
    np.testing.assert_allclose(s, s[0], rtol=1e-12)
    np.testing.assert_allclose((s**2).sum(), 16 * 25 / (16 + 25), rtol=1e-12)
    normal = type(layer)(16, 25, rank=layer.ranks, in_shape=layer.in_shape,
                         out_shape=layer.out_shape, rngs=nnx.Rngs(0))  # fmt: skip
    assert spectrum(normal.weight())[0] > 2 * spectrum(normal.weight())[-1]


@pytest.mark.parametrize("variance", [1.0, 4e-4])
def test_the_table_of_an_embedding_has_them_between_its_halves(variance: float):
    options = {"num_shape": (2, 2, 3, 2), "init": "orthogonal", "param_dtype": jnp.float64}
    layer = nn.TTEmbedding(24, 32, rank=(3, 4, 2), variance=variance, rngs=nnx.Rngs(1), **options)
    columns = layer.feature_shape
    table = np.asarray(layer.table()).reshape(*layer.num_shape, *columns)
    halves = np.moveaxis(table, (4, 5), (2, 3)).reshape(4 * math.prod(columns[:2]), -1)
    s = spectrum(halves)
    assert len(s) == 4
    np.testing.assert_allclose(s, s[0], rtol=1e-12)
    np.testing.assert_allclose(np.mean(table**2), variance, rtol=1e-12)


@pytest.mark.parametrize("make", [
    lambda **o: nn.TTLinear(16, 25, rank=(2, 12, 3), order=2, **o),  # grows faster than 2 · 4
    lambda **o: nn.TTLinear(14, 25, rank=3, order=2, **o),  # padded
    lambda **o: nn.TuckerLinear(16, 25, rank=(2, 3, 4, 2), order=2, **o),
])  # fmt: skip
def test_the_variance_of_the_entries_is_exact(make: Any):
    def draw(key: Any) -> jax.Array:
        layer = make(variance=0.5, init="orthogonal", rngs=nnx.Rngs(params=key))
        return layer.weight()

    draws = 500
    w = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(3), draws))
    means, squares = jnp.mean(w, (1, 2)), jnp.mean(w**2, (1, 2))
    assert abs(jnp.mean(means)) < 4 * jnp.std(means) / math.sqrt(draws)
    assert abs(jnp.mean(squares) - 0.5) < 4 * jnp.std(squares) / math.sqrt(draws) + 1e-5
    every = jnp.mean(w**2, 0)  # no entry is favoured
    assert jnp.all(abs(every - 0.5) < 6 * jnp.std(w**2, 0) / math.sqrt(draws))


def test_half_precision_is_drawn_in_single():
    layer = nn.TTLinear(64, 64, rank=8, init="orthogonal", param_dtype=jnp.bfloat16,
                        rngs=nnx.Rngs(0))  # fmt: skip
    assert {c.dtype for c in layer.cores} == {jnp.dtype(jnp.bfloat16)}
    core = np.asarray(layer.cores[0][...], np.float32).reshape(-1, layer.ranks[0])
    gram = core.T @ core
    np.testing.assert_allclose(gram / gram[0, 0], np.eye(len(gram)), atol=0.03)


def test_what_there_is_not_is_said():
    with pytest.raises(ValueError, match=r"init: expected one of .*'orthogonal'.* got 'haar'"):
        nn.TTLinear(8, 8, rank=2, init="haar", rngs=nnx.Rngs(0))  # type: ignore
    for build in (nn.CPLinear, nn.CPEmbedding):
        with pytest.raises(ValueError, match='init: expected "normal"'):
            build(8, 8, rank=2, init="orthogonal", rngs=nnx.Rngs(0))


def test_conversions_take_no_notice_of_it():
    dense = nnx.Linear(12, 10, rngs=nnx.Rngs(0))
    spec = nn.TT(rank=9, init="orthogonal", order=2)
    layer, _ = spec.from_linear(dense)
    other, _ = nn.TT(rank=9, order=2).from_linear(dense)
    np.testing.assert_array_equal(layer.weight(), other.weight())
    table = nnx.Embed(12, 10, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(
        spec.from_embedding(table)[0].table(),
        nn.TT(rank=9, order=2).from_embedding(table)[0].table(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
def test_initial_arrays_of_the_host_are_those_of_a_program(dtype: Any):
    shapes = ((1, 4, 3), (3, 5, 1))
    found = _initializers.normals(nnx.Rngs(3), shapes, 0.3, 3, dtype)
    key, scale = nnx.Rngs(3).params(), (0.3 / 3) ** 0.25
    expected = _initializers._drawn(key, scale, shapes, None, jnp.dtype(dtype))
    for x, e in zip(found, expected, strict=True):
        assert x[...].dtype == e.dtype
        # Draws agree bit by bit; products of complex numbers are rounded in another order.
        atol = float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.complexfloating) else 0
        np.testing.assert_allclose(x[...], e, rtol=0, atol=atol)
