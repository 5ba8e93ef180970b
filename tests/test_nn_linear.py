"""Tensorised linear layers: against dense oracles, under JAX's transformations, in Flax."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tensorjax import nn

LAYERS = [
    (nn.TTLinear, 5),
    (nn.TTMatrixLinear, 4),
    pytest.param(nn.TuckerLinear, 3, marks=pytest.mark.slow),
    pytest.param(nn.CPLinear, 6, marks=pytest.mark.slow),
]
IDS = ["tt", "tt-matrix", "tucker", "cp"]


def make(kind: Any, rank: Any, n: int = 24, m: int = 30, **options: Any) -> Any:
    options = {"order": 2, "param_dtype": jnp.float64} | options
    layer = kind(n, m, rank=rank, rngs=nnx.Rngs(1), **options)
    rng = np.random.default_rng(7)

    def moved(p: Any) -> jax.Array:  # gates and biases other than ones and zeros
        return jnp.asarray(np.asarray(p, float) + 0.1 * rng.standard_normal(p.shape), p.dtype)

    nnx.update(layer, jax.tree.map(moved, nnx.state(layer, nnx.Param)))
    return layer


def loss(state: Any, graph: Any, x: Any) -> jax.Array:
    return jnp.sum(jnp.sin(nnx.merge(graph, state)(x)))


def dense_loss(state: Any, graph: Any, x: Any) -> jax.Array:
    layer = nnx.merge(graph, state)
    return jnp.sum(jnp.sin(x @ layer.weight() + layer.bias[...][None, :]))


# The oracle --------------------------------------------------------------------------------------


def oracle(layer: Any) -> np.ndarray:
    """The weight by its formula."""
    gates = [np.asarray(g[...]) for g in layer.gates]
    if isinstance(layer, nn.TTLinear):
        cores = [np.asarray(c[...]) for c in layer.cores]
        w = cores[0]
        for gate, core in zip(gates, cores[1:], strict=True):
            w = np.tensordot(w * gate, core, 1)
    elif isinstance(layer, nn.TTMatrixLinear):
        cores, order = [np.asarray(c[...]) for c in layer.cores], len(layer.cores)
        w = cores[0][0]
        for gate, core in zip(gates, cores[1:], strict=True):
            w = np.tensordot(w * gate, core, 1)
        pairs = [2 * k + side for side in (0, 1) for k in range(order)]
        w = w[..., 0].transpose(pairs)
    elif isinstance(layer, nn.TuckerLinear):
        w = np.asarray(layer.core[...])
        for u, gate in zip(layer.factors, gates, strict=True):
            w = np.tensordot(w, (np.asarray(u[...]) * gate).T, (0, 0))
    else:
        w = np.zeros(layer.modes)
        for a, gate in enumerate(gates[0]):
            term = gate * np.ones(())
            for u in layer.factors:
                term = np.multiply.outer(term, np.asarray(u[...])[:, a])
            w = w + term
    w = w.reshape(math.prod(layer.in_shape), math.prod(layer.out_shape))
    return w[: layer.in_features, : layer.out_features]


@pytest.mark.parametrize(("kind", "rank"), LAYERS, ids=IDS)
@pytest.mark.parametrize(
    "sizes",
    [
        (7, 29),
        pytest.param((24, 30), marks=pytest.mark.slow),
        pytest.param((1, 5), marks=pytest.mark.slow),
    ],
)
def test_the_output_is_that_of_the_formula(kind: Any, rank: int, sizes: tuple[int, int]):
    for order in (2, 3) if kind is nn.TTMatrixLinear else (1, 2):
        layer = make(kind, rank, *sizes, order=order)
        w = oracle(layer)
        assert w.shape == sizes
        np.testing.assert_allclose(layer.weight(), w, atol=1e-12)
        x = np.random.default_rng(0).standard_normal((3, 2, sizes[0]))
        y = jax.jit(layer)(x)
        np.testing.assert_allclose(y, x @ w + np.asarray(layer.bias[...]), atol=1e-11)


@pytest.mark.parametrize("lead", [(), (1,), (5,), (2, 3), (2, 1, 3), (0,), (2, 0)])
def test_any_leading_axes(lead: tuple[int, ...]):
    layer = make(nn.TTLinear, 5)
    x = np.ones((*lead, 24))
    assert layer(x).shape == (*lead, 30)
    wanted = x @ np.asarray(layer.weight()) + np.asarray(layer.bias[...])
    np.testing.assert_allclose(layer(x), wanted, atol=1e-12)


@pytest.mark.parametrize("shapes", [((24,), (30,)), ((2, 3, 4), (30,)), ((4, 7), (2, 3, 6))])
def test_unequal_numbers_of_factors_and_padding(shapes: Any):
    layer = make(nn.TTLinear, 4, in_shape=shapes[0], out_shape=shapes[1], order=None)
    assert (layer.in_shape, layer.out_shape) == shapes
    assert len(layer.gates) == len(layer.cores) - 1 == len(layer.ranks)
    x = np.random.default_rng(0).standard_normal((9, 24))
    np.testing.assert_allclose(
        layer(x), x @ oracle(layer) + np.asarray(layer.bias[...]), atol=1e-11
    )


@pytest.mark.parametrize(("kind", "rank"), LAYERS, ids=IDS)
@pytest.mark.parametrize("rows", [1, 200, pytest.param(6, marks=pytest.mark.slow)])
def test_gradients_are_those_of_the_dense_weight(kind: Any, rank: int, rows: int):
    layer = make(kind, rank, 23, 30)
    x = jax.random.normal(jax.random.key(0), (rows, 23))
    graph, state = nnx.split(layer)
    found, wanted = (
        jax.jit(jax.grad(f, (0, 2)), static_argnums=1)(state, graph, x) for f in (loss, dense_loss)
    )
    assert len(jax.tree.leaves(found)) == len(jax.tree.leaves(state)) + 1
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert jnp.max(jnp.abs(a - b)) <= 1e-10 * max(1.0, float(jnp.max(jnp.abs(b))))


@pytest.mark.parametrize(("kind", "rank"), LAYERS, ids=IDS)
def test_transformations_agree_with_the_plain_call(kind: Any, rank: int):
    layer = make(kind, rank)
    graph, state = nnx.split(layer)
    x, dx = jax.random.normal(jax.random.key(0), (2, 5, 24))

    def apply(state: Any, x: Any) -> jax.Array:
        return nnx.merge(graph, state)(x)

    y = apply(state, x)
    assert jnp.allclose(jax.jit(apply)(state, x), y, atol=1e-12)
    assert jnp.allclose(jax.vmap(apply, (None, 0))(state, x), y, atol=1e-12)
    # Forward mode: the layer is linear in x.
    _, tangent = jax.jvp(lambda v: apply(state, v), (x,), (dx,))
    assert jnp.allclose(tangent, dx @ layer.weight(), atol=1e-12)
    _, rows = jax.lax.scan(lambda c, row: (c, apply(state, row)), 0, x)
    assert jnp.allclose(rows, y, atol=1e-12)
    plain = jax.jit(jax.grad(lambda s: jnp.sum(apply(s, x) ** 2)))(state)
    again = jax.jit(jax.grad(lambda s: jnp.sum(jax.checkpoint(apply)(s, x) ** 2)))(state)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        assert jnp.allclose(a, b, atol=1e-10)
    hessian = jax.jit(jax.hessian(lambda v: jnp.sum(jnp.sin(apply(state, v)))))(x[0])
    w = layer.weight()
    assert jnp.allclose(hessian, -(w * jnp.sin(y[0])[None, :]) @ w.T, atol=1e-10)


@pytest.mark.slow
def test_layers_stack_under_nnx_vmap_and_scan():
    @nnx.vmap(in_axes=0, out_axes=0)
    def create(key: Any) -> nn.TTLinear:
        return nn.TTLinear(16, 16, rank=3, order=2, rngs=nnx.Rngs(params=key))

    layers = create(jax.random.split(jax.random.key(0), 3))

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def through(layer: nn.TTLinear, x: jax.Array) -> jax.Array:
        return layer(x)

    x = jnp.ones((2, 16), jnp.float32)
    y = x
    graph, state = nnx.split(layers)
    for k in range(3):
        y = nnx.merge(graph, jax.tree.map(lambda p, k=k: p[k], state))(y)
    assert jnp.allclose(through(layers, x), y, rtol=1e-4)


# Initialisation ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "rank", "sizes"),
    [
        (nn.TTLinear, (3, 4, 3), (16, 25)),
        (nn.TTMatrixLinear, (5,), (16, 25)),
        (nn.TuckerLinear, (3, 2, 4, 2), (16, 25)),
        (nn.CPLinear, 7, (16, 25)),
    ],
    ids=IDS,
)
@pytest.mark.parametrize("variance", [None, 2.0])
def test_the_variance_of_the_weight_is_exact(kind: Any, rank: Any, sizes: Any, variance: Any):
    def draw(key: Any) -> jax.Array:
        layer = kind(
            *sizes, rank=rank, order=2, variance=variance, param_dtype=jnp.float64,
            rngs=nnx.Rngs(params=key),
        )  # fmt: skip
        return layer.weight()

    draws = 4000
    w = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(3), draws))
    wanted = 1 / sum(sizes) if variance is None else variance
    # Entries of one draw share factors: only draws are independent of each other.
    means = jnp.mean(w, (1, 2))
    squares = jnp.mean(w**2, (1, 2))
    assert abs(jnp.mean(means)) < 4 * jnp.std(means) / math.sqrt(draws)
    assert abs(jnp.mean(squares) - wanted) < 4 * jnp.std(squares) / math.sqrt(draws)


def test_fresh_parameters_are_named_as_the_optimiser_reads_them():
    layer = nn.TTLinear(12, 30, rank=4, order=2, rngs=nnx.Rngs(0))
    pure = nnx.to_pure_dict(nnx.state(layer))
    assert set(pure) == {"cores", "gates", "bias"}
    assert list(pure["cores"]) == [0, 1, 2, 3]
    assert [g.tolist() for g in pure["gates"].values()] == [[1] * r for r in layer.ranks]
    assert all(isinstance(p, nnx.Param) for _, p in nnx.to_flat_state(nnx.state(layer)))
    shapes = [layer.cores[k].shape for k in range(4)]
    assert shapes == [(1, 4, 4), (4, 3, 4), (4, 5, 4), (4, 6, 1)]
    assert layer.numbers == sum(map(math.prod, shapes)) + 12 + 30
    assert nn.TTLinear(12, 30, rank=4, use_bias=False, rngs=nnx.Rngs(0)).bias is None
    tucker = nn.TuckerLinear(12, 30, rank=2, order=2, rngs=nnx.Rngs(0))
    assert set(nnx.to_pure_dict(nnx.state(tucker))) == {"core", "factors", "gates", "bias"}
    cp = nn.CPLinear(12, 30, rank=2, order=2, rngs=nnx.Rngs(0))
    assert [g.shape for g in cp.gates] == [(2,)]


def test_int_ranks_are_cut_and_explicit_ones_checked():
    def shape_of(kind: Any, *sizes: int, **options: Any) -> Any:
        return nnx.eval_shape(lambda: kind(*sizes, rngs=nnx.Rngs(0), **options))

    layer = shape_of(nn.TTLinear, 768, 3072, rank=30)
    assert (layer.in_shape, layer.out_shape) == ((12, 8, 8), (12, 16, 16))
    assert layer.ranks == (12, 30, 30, 30, 16)
    layer = shape_of(nn.TTMatrixLinear, 300, 10, rank=99)
    assert (layer.in_shape, layer.out_shape, layer.ranks) == ((10, 6, 5), (1, 1, 10), (10, 50))
    layer = shape_of(nn.TTMatrixLinear, 16, 10, rank=2, out_shape=(5, 2))
    assert (layer.in_shape, layer.ranks) == ((4, 4), (2,))
    for given in ({"order": 1}, {"in_shape": (4, 4), "out_shape": (10,)}, {"in_shape": (16,)},
                  {"in_shape": 16}, {"out_shape": 10}):  # fmt: skip
        with pytest.raises(ValueError, match="expected as many factors of both, two or more"):
            shape_of(nn.TTMatrixLinear, 16, 10, rank=2, **given)
    for kind in (nn.TTLinear, nn.TTMatrixLinear):
        for name in ("in_shape", "out_shape"):
            for wrong in ((4.5, 4), "ab", (0, 16), ()):
                with pytest.raises((TypeError, ValueError), match=f"{name}: expected"):
                    shape_of(kind, 16, 16, rank=2, **{name: wrong})
    assert shape_of(nn.TuckerLinear, 64, 64, rank=9, order=2).ranks == (8,) * 4
    assert shape_of(nn.CPLinear, 4, 6, rank=100, order=1).ranks == (4,)


# dtypes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "rank"), LAYERS, ids=IDS)
def test_dtypes_are_those_of_a_flax_layer(kind: Any, rank: int):
    for dtype, param_dtype in [
        (None, jnp.float32),
        (jnp.bfloat16, jnp.float32),
        (None, jnp.bfloat16),
        (jnp.float32, jnp.bfloat16),
    ]:

        def outcome(make: Any, dtype: Any = dtype, param_dtype: Any = param_dtype) -> Any:
            layer = make(dtype=dtype, param_dtype=param_dtype, rngs=nnx.Rngs(0))
            x = jnp.ones((4, 24), jnp.float32 if dtype else param_dtype)
            return layer(x), nnx.grad(lambda m: m(x).astype(jnp.float32).sum())(layer)

        ours = functools.partial(kind, 24, 30, rank=rank, order=2)
        y, grads = nnx.eval_shape(functools.partial(outcome, ours))
        dense, _ = nnx.eval_shape(functools.partial(outcome, functools.partial(nnx.Linear, 24, 30)))
        assert (y.shape, y.dtype) == (dense.shape, dense.dtype)
        # Gates are never narrower than float32: small steps away from one would be lost.
        kinds = {
            getattr(path[0], "key", None): g.dtype
            for path, g in jax.tree_util.tree_flatten_with_path(grads)[0]
        }
        assert kinds.pop("gates") == jnp.float32
        assert set(kinds.values()) == {jnp.dtype(param_dtype)}
    half = make(kind, rank, dtype=jnp.bfloat16, param_dtype=jnp.float32)
    exact = np.ones((4, 24)) @ oracle(half) + np.asarray(half.bias[...])
    error = np.linalg.norm(np.asarray(half(jnp.ones((4, 24)))) - exact) / np.linalg.norm(exact)
    assert error < 0.05


def test_default_promotion_is_followed():
    with jax.numpy_dtype_promotion("standard"):
        layer = make(nn.TTLinear, 4, param_dtype=jnp.float32)
        assert layer(np.ones((2, 24), int)).dtype == jnp.float32
        assert layer(jnp.ones((2, 24), jnp.bfloat16)).dtype == jnp.float32


# In Flax and Optax -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "rank"), LAYERS, ids=IDS)
def test_it_trains_in_nnx(kind: Any, rank: int):
    x = jax.random.normal(jax.random.key(0), (64, 24), jnp.float32)
    y = x[:, :6] * 2
    layer = kind(24, 6, rank=rank, order=2, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(layer, optax.adam(3e-2), wrt=nnx.Param)

    @nnx.jit
    def step(layer: Any, optimizer: Any) -> jax.Array:
        value, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(layer)
        with jax.numpy_dtype_promotion("standard"):  # as Optax needs it
            optimizer.update(layer, grads)
        return value

    first = step(layer, optimizer)
    for _ in range(60):
        last = step(layer, optimizer)
    assert last < 0.6 * first


def test_a_linen_user_reaches_it_through_the_bridge():
    model = nnx.bridge.ToLinen(nn.TTLinear, args=(24, 30), kwargs={"rank": 4, "order": 2})
    x = jnp.ones((5, 24), jnp.float32)
    y, variables = model.init_with_output(jax.random.key(0), x)
    assert set(variables) == {"params"}
    assert set(variables["params"]) == {"cores", "gates", "bias"}
    assert y.shape == (5, 30)

    def objective(params: Any) -> jax.Array:
        return jnp.mean((model.apply({"params": params}, x) - 1) ** 2)

    transform = optax.adam(1e-2)
    params = variables["params"]
    state = transform.init(params)
    start = objective(params)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = transform.update(jax.grad(objective)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(20):
        with jax.numpy_dtype_promotion("standard"):  # as Optax needs it
            params, state = step(params, state)
    assert objective(params) < 0.5 * start


def test_parameters_of_other_shapes_are_taken_as_they_are():
    """As after a shrink: gates and the cores beside them lose the same indices."""
    layer = make(nn.TTLinear, 4)
    for core, axis in ((layer.cores[1], 2), (layer.cores[2], 0)):
        core.set_value(jnp.take(core[...], jnp.array([0, 2]), axis))
    layer.gates[1].set_value(layer.gates[1][...][jnp.array([0, 2])])
    assert layer.ranks == (4, 2, 4)
    x = np.ones((3, 24))
    np.testing.assert_allclose(
        layer(x), x @ oracle(layer) + np.asarray(layer.bias[...]), atol=1e-12
    )


def test_an_empty_bond_leaves_the_bias():
    layer = make(nn.TTLinear, 4)
    layer.cores[1].set_value(layer.cores[1][..., :0])
    layer.cores[2].set_value(layer.cores[2][:0])
    layer.gates[1].set_value(layer.gates[1][:0])
    x = jnp.ones((2, 3, 24))
    assert layer.ranks == (4, 0, 4)
    assert jnp.array_equal(layer(x), jnp.broadcast_to(layer.bias[...], (2, 3, 30)))
    assert jnp.array_equal(layer.weight(), jnp.zeros((24, 30)))
    grads = nnx.grad(lambda m: m(x).sum())(layer)
    assert jnp.array_equal(grads["bias"][...], jnp.full(30, 6.0))
    with pytest.raises(ValueError, match="plan: expected ranks of at least 1"):
        layer.plan(4)


# Factors -----------------------------------------------------------------------------------------


def test_factors_are_near_equal_and_padding_is_least():
    assert nn.factor(768) == (12, 8, 8)
    assert nn.factor(3072, 3) == (16, 16, 12)
    assert nn.factor(1000, 3) == (10, 10, 10)
    for n in (1, 2, 7, 10, 96, 97, 509, 768, 1021, 30522, 50257):
        for order in (1, 2, 3, 4):
            found = nn.factor(n, order)
            assert len(found) == order
            assert sorted(found, reverse=True) == list(found)
            assert math.prod(found) >= n
            assert order == 1 or found[0] <= 3 * found[-1]
            least = next(k for k in range(n, 2 * n + 2) if splits(k, order))
            assert math.prod(found) == least


def splits(n: int, order: int, low: int = 1, first: int | None = None) -> bool:
    """Whether n has so many factors, none above three times the smallest."""
    if order == 1:
        return low <= n and (first is None or n <= 3 * first)
    high = n if first is None else 3 * first
    sides = range(low, min(high, round(n ** (1 / order)) + 1) + 1)
    return any(n % m == 0 and splits(n // m, order - 1, m, first or m) for m in sides)


# Bad input ---------------------------------------------------------------------------------------


def test_bad_input_is_named():
    def build(**options: Any) -> Any:
        return nn.TTLinear(24, 30, rngs=nnx.Rngs(0), **({"rank": 3} | options))

    with pytest.raises(ValueError, match=r"in_shape: expected factors whose product is at least"):
        build(in_shape=(4, 5))
    with pytest.raises(ValueError, match="out_shape: expected factors"):
        build(out_shape=(29,))
    with pytest.raises(ValueError, match="in_shape: expected one or more positive"):
        build(in_shape=(0, 30))
    with pytest.raises(ValueError, match="order: expected the length of in_shape"):
        build(in_shape=(4, 6), order=3)
    with pytest.raises(ValueError, match="order: expected an integer >= 1"):
        build(order=0)
    with pytest.raises(ValueError, match=r"rank: expected at most \(6, 24, 6\)"):
        build(rank=(6, 25, 3), order=2)
    with pytest.raises(ValueError, match="rank: expected one int or 3"):
        build(rank=(3, 3), order=2)
    with pytest.raises(ValueError, match="rank: expected an integer >= 1"):
        build(rank=0)
    with pytest.raises(ValueError, match="variance: expected a positive number"):
        build(variance=0.0)
    with pytest.raises(ValueError, match="in_features: expected an integer >= 1"):
        nn.TTLinear(0, 30, rank=2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="rank: expected at most"):
        nn.TuckerLinear(24, 30, rank=(9, 2, 2, 2), order=2, rngs=nnx.Rngs(0))
    for options, match in (
        ({"param_dtype": jnp.int32}, "param_dtype: expected a floating-point type like"),
        ({"dtype": int}, "dtype: expected a floating-point type like jnp.float32, got"),
        ({"rngs": None}, "rngs: expected flax.nnx.Rngs, got None"),
    ):
        with pytest.raises(TypeError, match=match):
            nn.TTLinear(24, 30, **{"rank": 3, "rngs": nnx.Rngs(0), **options})
    with pytest.raises(ValueError, match=r"inputs: expected shape \(…, 24\), got \(2, 30\)"):
        build()(jnp.ones((2, 30)))
    with pytest.raises(ValueError, match="inputs: expected shape"):
        build()(jnp.ones(()))
    with pytest.raises(ValueError, match="batch: expected an integer >= 0"):
        build().plan(-1)
    with pytest.raises(ValueError, match="max_bytes: expected at least 2,880 bytes"):
        build(order=2).weight(max_bytes=2000)
