"""Cores in eight bits: rounding without bias, gradients straight through, training, export."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tensorjax import nn, optim

KINDS = ("int8", "float8_e4m3fn", "float8_e5m2")


def layer(rng: np.random.Generator, lead: tuple[int, ...] = ()) -> dict[str, Any]:
    shapes = [(1, 4, 3), (3, 5, 2), (2, 6, 1)]
    cores = [jnp.asarray(rng.standard_normal((*lead, *s)), jnp.float32) for s in shapes]
    cores[0] = cores[0].at[..., 1].set(0.0)
    scales = 10.0 ** rng.uniform(-6, 6, len(cores))
    return {
        "cores": [c * jnp.float32(s) for c, s in zip(cores, scales, strict=True)],
        "gates": [jnp.ones((*lead, 3)).at[..., 1].set(0.0), jnp.ones((*lead, 2))],
        "bias": jnp.ones((*lead, 30)),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_is_to_neighbours_and_without_bias(kind: Any, rng) -> None:
    params = layer(rng)
    draws = 2000
    keys = jax.random.split(jax.random.key(int(rng.integers(10**6))), draws)

    @jax.jit
    @jax.vmap
    def drawn(key: jax.Array) -> Any:
        return optim.dequantize(optim.quantize(params, kind, key=key))["cores"]

    neighbours = np.arange(-127, 128.0) if kind == "int8" else np.arange(256, dtype=np.uint8).view(
        jnp.dtype(kind)).astype(np.float64)  # fmt: skip
    neighbours = np.unique(neighbours[np.isfinite(neighbours)])
    for core, found in zip(params["cores"], drawn(keys), strict=True):
        core, found = np.asarray(core, np.float64), np.asarray(found, np.float64)
        scale = np.abs(core).max() / neighbours.max()
        above = np.searchsorted(neighbours, core / scale * (1 - 1e-6 * np.sign(core)))
        high = neighbours[np.minimum(above, neighbours.size - 1)] * scale
        low = neighbours[np.maximum(above - 1, 0)] * scale
        width = high - low
        assert (found >= low - 1e-5 * scale - 1e-5 * abs(core)).all()
        assert (found <= high + 1e-5 * scale + 1e-5 * abs(core)).all()
        # Of draws from two values the mean deviates by less than five standard errors.
        error = np.abs(found.mean(0) - core)
        assert (error <= 5 * width / 2 / np.sqrt(draws) + 1e-5 * np.abs(core)).all()
        np.testing.assert_array_equal(found[:, core == 0], 0)
    nearest = optim.dequantize(optim.quantize(params, kind, key=None))["cores"]
    spread = {"int8": 1 / 254, "float8_e4m3fn": 1 / 16, "float8_e5m2": 1 / 8}[kind]
    for core, found in zip(params["cores"], nearest, strict=True):
        bound = np.abs(core).max() if kind == "int8" else np.abs(core)
        np.testing.assert_array_less(np.abs(found - core), 1.01 * spread * bound + 1e-30 + (
            0 if kind == "int8" else 1e-4 * np.abs(core).max()))  # fmt: skip


def test_every_copy_of_a_stack_has_its_own_scale_and_the_rest_stays(rng) -> None:
    params = layer(rng, (2,))
    params["cores"][1] = params["cores"][1].at[1].multiply(1e-3)
    stored = optim.quantize(params, key=jax.random.key(0))
    assert stored["cores"][1].scale.shape == (2, 1, 1, 1)
    back = optim.dequantize(stored)
    for copy in range(2):
        for a, b in zip(back["cores"], params["cores"], strict=True):
            assert np.abs(a[copy] - b[copy]).max() <= 1.01 * np.abs(b[copy]).max() / 127
    for name in ("gates", "bias"):
        jax.tree.map(np.testing.assert_array_equal, back[name], params[name])
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    assert optim.dequantize(optim.quantize(half, key=None))["cores"][0].dtype == jnp.bfloat16
    assert sum(core.nbytes for core in stored["cores"]) < 0.3 * sum(
        core.nbytes for core in params["cores"]) + 24  # fmt: skip


def test_gradients_pass_straight_through(rng) -> None:
    params = layer(rng)
    weights = [jnp.asarray(rng.standard_normal(c.shape), c.dtype) for c in params["cores"]]

    def loss(p: Any) -> jax.Array:
        rounded = optim.straight_through(p, key=jax.random.key(1))
        pairs = zip(rounded["cores"], weights, strict=True)
        return jnp.stack([jnp.vdot(a, b) for a, b in pairs]).sum()

    value, gradients = jax.value_and_grad(loss)(params)
    rounded = optim.dequantize(optim.quantize(params, key=jax.random.key(1)))
    wanted = sum(jnp.vdot(a, b) for a, b in zip(rounded["cores"], weights, strict=True))
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, gradients["cores"], weights)


def test_a_model_trains_and_is_exported_from_eight_bits(rng, tmp_path) -> None:
    dense = nnx.Sequential(nnx.Linear(16, 32, rngs=nnx.Rngs(0)), nnx.relu,
                           nnx.Linear(32, 4, rngs=nnx.Rngs(1)))  # fmt: skip
    model = nn.tensorize(dense, {"layers/0": nn.TT(rank=6), "*": None})
    graph, params = nnx.split(model)
    x = jnp.asarray(rng.standard_normal((64, 16)), jnp.float32)
    y = jnp.stack([x[:, 0] * x[:, 1], x[:, 2], jnp.abs(x[:, 3]), x[:, 4]], 1)
    # Steps of 1e-3 of the largest entry of a core at most: an eighth of the distance of neighbours.
    optimizer = optim.rank_adaptive(optax.adam(1e-3), size=250, by=60)

    def loss(params: Any) -> jax.Array:
        return jnp.mean((nnx.merge(graph, params)(x) - y) ** 2)

    def step(carry: Any, key: jax.Array) -> Any:
        stored, state = carry
        params = optim.dequantize(stored)
        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params, value=value)
        return (optim.quantize(optax.apply_updates(params, updates), key=key), state), value

    start = optim.quantize(params, key=jax.random.key(0)), optimizer.init(params)
    (stored, state), values = jax.jit(lambda c, k: jax.lax.scan(step, c, k))(
        start, jax.random.split(jax.random.key(1), 150)
    )
    assert float(values[-1]) < 0.7 * float(values[0])
    small, _ = optim.shrink(optim.dequantize(stored), state)
    assert optim.size(small) <= 250
    optim.save(tmp_path / "x", optim.quantize(small, key=None))
    (found,) = (optim.load(tmp_path / "x", stored),)
    exported = nn.detensorize(nnx.merge(graph, optim.dequantize(found)))
    np.testing.assert_allclose(exported(x), nnx.merge(graph, small)(x), atol=1e-5)


def test_what_cannot_be_stored_is_named(rng) -> None:
    params = layer(rng)
    with pytest.raises(ValueError, match="dtype: expected"):
        optim.quantize(params, "int4", key=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"key: expected a jax\.random\.key"):
        optim.quantize(params, key=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one tensorised layer"):
        optim.quantize({"w": jnp.ones(3)}, key=None)
    params["cores"][0] = params["cores"][0].astype(jnp.complex64)
    with pytest.raises(TypeError, match="cores of real floating numbers"):
        optim.quantize(params, key=None)
    params["cores"][0] = jnp.ones((1, 4, 3)).at[0, 0, 0].set(jnp.inf)
    assert np.isnan(optim.dequantize(optim.quantize(params, key=None))["cores"][0]).all()


@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn"])
def test_tiny_cores_are_not_stored_as_zeros(rng, kind):
    """A share of them is below the normal numbers of single precision, which XLA takes for zero."""
    size = np.float32(10.0 ** -rng.uniform(35.8, 37.5))
    params = {"cores": [jnp.full((1, 4, 3), size), jnp.ones((3, 5, 1))], "gates": [jnp.ones(3)]}
    stored = optim.dequantize(optim.quantize(params, kind, key=None))
    np.testing.assert_allclose(stored["cores"][0], size, rtol=0.2)


@pytest.mark.parametrize("scale", [1e-300, 1e-39, 1e39, 1e300])
def test_cores_in_double_precision_keep_their_range(scale, rng) -> None:
    params = {"cores": [jnp.asarray(rng.normal(size=s) * scale) for s in ((1, 4, 3), (3, 5, 1))]}
    found = optim.dequantize(optim.quantize({**params, "gates": [jnp.ones(3)]}, key=None))
    for x, y in zip(params["cores"], found["cores"], strict=True):
        np.testing.assert_allclose(y, x, rtol=0, atol=float(jnp.abs(x).max()) / 250)


def test_layers_without_ranks_are_stored() -> None:
    params = {"cores": [jnp.ones((1, 4, 0)), jnp.ones((0, 5, 1))], "gates": [jnp.ones(0)]}
    found = optim.dequantize(optim.quantize(params, key=None))
    assert [x.shape for x in found["cores"]] == [(1, 4, 0), (0, 5, 1)]
