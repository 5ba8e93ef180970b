"""Compressed embeddings against the dense table: values, gradients, ids of all kinds, programs."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tensorjax import nn
from tensorjax.nn._embeddings.contraction_tree import in_place

FORMATS = {"tt": nn.TTEmbedding, "tucker": nn.TuckerEmbedding, "cp": nn.CPEmbedding}


def make(kind: str = "tt", rows: int = 300, features: int = 30, **options: Any) -> Any:
    options = {"rank": 4, "order": 3, "param_dtype": jnp.float64, **options}
    layer = FORMATS[kind](rows, features, rngs=nnx.Rngs(1), **options)
    for k, gate in enumerate(layer.gates):  # no gate that the tests could overlook
        gate.set_value(jnp.asarray(np.linspace(0.5, 1.5 + k, gate.size), gate.dtype))
    return layer


def zipf(count: int, rows: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.permutation(rows)[np.minimum(rng.zipf(1.3, count) - 1, rows - 1)]


def loss_of(values: jax.Array) -> jax.Array:
    weights = jnp.cos(jnp.arange(values.size, dtype=values.dtype)).reshape(values.shape)
    return jnp.sum(weights * values**2)


def table_of(layer: Any) -> np.ndarray:
    return np.asarray(nnx.jit(lambda x: x.table())(layer))


def gradients(layer: Any, lookup: Any) -> tuple[Any, Any]:
    """Value and gradient of a loss of a lookup, as pure trees."""
    graph, params = nnx.split(layer)
    value, found = jax.jit(jax.value_and_grad(lambda p: loss_of(lookup(nnx.merge(graph, p)))))(
        params
    )
    return value, nnx.to_pure_dict(found)


def assert_same(found: Any, expected: Any, **tolerance: float):
    options = {"rtol": 1e-10, "atol": 1e-10, **tolerance}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **options), found, expected)


# No sorting; one round; many.
@pytest.mark.parametrize(
    ("kind", "capacity"),
    [pytest.param("tt", 1000, marks=pytest.mark.slow), ("tt", 64), ("tt", 7),
     pytest.param("tucker", 7, marks=pytest.mark.slow),
     pytest.param("cp", 7, marks=pytest.mark.slow)],
)  # fmt: skip
def test_rows_and_gradients_are_those_of_the_table(kind: str, capacity: int):
    layer = make(kind, padding_idx=3, capacity=capacity)
    ids = zipf(200, 300).reshape(4, 50)
    ids[0, :3] = 3
    assert 7 < len(np.unique(ids)) < 64
    plan = layer.plan(ids.size)
    assert plan.capacity == (None if capacity == 1000 else capacity)
    assert layer(ids).shape == (4, 50, 30)
    np.testing.assert_allclose(layer(ids), table_of(layer)[ids], rtol=1e-12, atol=1e-12)
    assert not np.any(layer(ids)[0, :3])
    assert_same(
        gradients(layer, lambda x: x(jnp.asarray(ids))), gradients(layer, lambda x: x.table()[ids])
    )


@pytest.mark.parametrize(
    ("kind", "order", "count"),
    [("tt", 1, 400), ("tt", 2, 1), ("tt", 4, 400), ("tucker", 1, 40),
     pytest.param("tucker", 3, 400, marks=pytest.mark.slow),
     ("cp", 1, 40), ("cp", 4, 1)],
)  # fmt: skip
def test_orders_counts_and_sizes_that_are_prime(kind: str, order: int, count: int):
    layer = make(kind, 211, 13, order=order, rank=3)
    ids = zipf(count, 211)
    table = table_of(layer)
    assert table.shape == (211, 13)
    np.testing.assert_allclose(layer(ids), table[ids], rtol=1e-12, atol=1e-12)
    assert_same(
        gradients(layer, lambda x: x(jnp.asarray(ids))), gradients(layer, lambda x: x.table()[ids])
    )


def test_few_ids_leave_the_factors_in_their_order():
    layer = make("tucker", 300, 30, num_shape=(4, 25, 3), feature_shape=(2, 5, 3), order=None)
    request = layer.plan(4)._request
    assert set(in_place(request.tree, request.network, 4)) == {1, 2, 3}
    # Modes of 4, 25 and 3: only that of 25 has as many rows as a fourth of the ids.
    assert in_place(request.tree, request.network, 90) == (2,)
    assert in_place(request.tree, request.network, 101) == ()
    ids = np.array([7, 299, 7, 0])
    table = table_of(layer)
    np.testing.assert_allclose(layer(ids), table[ids], rtol=1e-12, atol=1e-12)
    assert_same(
        gradients(layer, lambda x: x(jnp.asarray(ids))), gradients(layer, lambda x: x.table()[ids])
    )


def test_the_table_is_the_product_of_cores_and_gates():
    layer = make("tt", 24, 8, num_shape=(2, 3, 4), feature_shape=(2, 2, 2), order=None)
    cores = [np.asarray(c[...]) for c in layer.cores]
    gates = [np.asarray(g[...]) for g in layer.gates]
    expected = np.einsum("aixb,b,bjyc,c,ckzd->ijkxyz", cores[0], gates[0], cores[1], gates[1],
                         cores[2]).reshape(24, 8)  # fmt: skip
    np.testing.assert_allclose(layer.table(), expected, rtol=1e-12)
    tucker = make("tucker", 24, 8, num_shape=(4, 6), feature_shape=(2, 4), order=None)
    u, v = (np.asarray(f[...]) * np.asarray(g[...]) for f, g in
            zip(tucker.factors, tucker.gates, strict=True))  # fmt: skip
    expected = np.einsum("ab,ixa,jyb->ijxy", np.asarray(tucker.core[...]), u, v).reshape(24, 8)
    np.testing.assert_allclose(tucker.table(), expected, rtol=1e-12)
    cp = make("cp", 24, 8, num_shape=(4, 6), feature_shape=(2, 4), order=None)
    u, v = (np.asarray(f[...]) for f in cp.factors)
    expected = np.einsum("a,ixa,jya->ijxy", np.asarray(cp.gates[0][...]), u, v).reshape(24, 8)
    np.testing.assert_allclose(cp.table(), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint64])
def test_ids_of_any_integer_type(dtype: Any):
    layer = make(capacity=4, out_of_range="zero", padding_idx=2)
    ids = np.array([[0, 5, 5, 2], [99, 100, 7, 5], [1, 3, 4, 6]], dtype)
    table = table_of(layer)
    expected = table[ids.astype(int)]
    np.testing.assert_allclose(layer(ids), expected, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(layer.__call__)(jnp.asarray(ids)), expected, rtol=1e-12)


def test_ids_of_any_shape():
    layer = make()
    table = table_of(layer)
    np.testing.assert_allclose(layer(7), table[7], rtol=1e-12)
    np.testing.assert_allclose(layer(np.int8(7)), table[7], rtol=1e-12)
    np.testing.assert_allclose(layer(jnp.asarray(7)), table[7], rtol=1e-12)
    np.testing.assert_allclose(layer([[1, 2], [3, 1]]), table[np.array([[1, 2], [3, 1]])])
    for shape in [(0,), (2, 0, 3)]:
        empty = jnp.zeros(shape, jnp.int32)
        assert layer(empty).shape == (*shape, 30)
        _, found = gradients(layer, lambda x, empty=empty: x(empty))
        assert not any(np.any(g) for g in jax.tree.leaves(found))
    assert layer.plan(0).flops >= 0


def test_ids_out_of_range():
    outside = np.array([3, -1, 300, 5, 2**31 - 1])
    layer = make(padding_idx=3)
    table = table_of(layer)
    with pytest.raises(ValueError, match=r"ids: expected integers in \[0, 300\), got -1 at \(1,\)"):
        layer(outside)
    with pytest.raises(ValueError, match=r"got 300 \(1 of 1"):
        layer(jnp.asarray(300))
    with pytest.raises(ValueError, match="got 4294967301"):
        layer(np.int64(2**32 + 5))  # not wrapped to 5
    with pytest.raises(TypeError, match="ids: expected integers, got dtype float64"):
        layer(np.array([1.0]))
    with pytest.raises(TypeError, match="got dtype bool"):
        layer(np.array([True]))
    for capacity in (2, 100):
        graph, params = nnx.split(make(padding_idx=3, capacity=capacity))
        rows = jax.jit(lambda p, i, g=graph: nnx.merge(g, p)(i))(params, jnp.asarray(outside))
        assert np.array_equal(np.isnan(rows).all(-1), [False, True, True, False, True])
        np.testing.assert_allclose(rows[3], table[5], rtol=1e-12)
        clip = make(padding_idx=3, capacity=capacity, out_of_range="clip")
        expected = table[np.array([3, 0, 299, 5, 299])]
        np.testing.assert_allclose(clip(outside), expected, rtol=1e-12)
        np.testing.assert_allclose(nnx.jit(clip)(jnp.asarray(outside)), expected, rtol=1e-12)
        zero = make(padding_idx=3, capacity=capacity, out_of_range="zero")
        assert np.array_equal(np.any(zero(outside), -1), [False, False, False, True, False])


@pytest.mark.parametrize("capacity", [2, 100])
def test_nothing_flows_back_from_ids_without_a_row(capacity: int):
    layer = make(padding_idx=3, capacity=capacity)
    graph, params = nnx.split(layer)
    ids = jnp.array([3, 3, 300, 5, -1, 6])

    def loss(p: Any, ids: jax.Array, weights: jax.Array) -> jax.Array:
        return jnp.sum(nnx.merge(graph, p)(ids) * weights[:, None])

    # Cotangents of padding that are not finite stay where they are.
    poisoned = jnp.array([jnp.nan, jnp.inf, jnp.nan, 2.0, jnp.inf, 1.0])
    found = jax.jit(jax.grad(loss))(params, ids, poisoned)
    expected = jax.grad(loss)(params, jnp.array([5, 6]), jnp.array([2.0, 1.0]))
    assert_same(nnx.to_pure_dict(found), nnx.to_pure_dict(expected))


def test_nan_in_a_core_shows_in_the_rows_that_use_it():
    layer = make("tt", 24, 8, num_shape=(4, 6), feature_shape=(2, 4), order=None)
    layer.cores[0][...] = layer.cores[0][...].at[:, 2].set(jnp.nan)
    rows = layer(np.arange(24))
    assert np.array_equal(np.isnan(rows).all(-1), np.arange(24) // 6 == 2)


@pytest.mark.parametrize("kind", FORMATS)
def test_an_empty_bond_leaves_zeros(kind: str):
    layer = make(kind, padding_idx=1)
    if kind == "tt":
        cut = [(layer.cores[0], (..., slice(0))), (layer.cores[1], slice(0))]
    elif kind == "cp":
        cut = [(factor, (..., slice(0))) for factor in layer.factors]
    else:
        cut = [(layer.core, slice(0)), (layer.factors[0], (..., slice(0)))]
    for param, index in [*cut, (layer.gates[0], slice(0))]:
        param.set_value(param[...][index])
    assert 0 in layer.ranks
    assert np.array_equal(layer(np.arange(5)), np.zeros((5, 30)))
    assert not np.any(layer.table())
    assert np.array_equal(layer.attend(np.ones((2, 30))), np.zeros((2, 300)))
    _, found = gradients(layer, lambda x: x(jnp.arange(400) % 300))
    assert not any(np.any(g) for g in jax.tree.leaves(found))


@pytest.mark.parametrize("kind", FORMATS)
def test_the_variance_is_exact(kind: str):
    """Over 400 layers, the mean of E² is within 5 standard errors of what was asked."""

    @jax.jit
    @jax.vmap
    def mean_square(key: jax.Array) -> jax.Array:
        layer = FORMATS[kind](6, 6, rank=3, order=2, variance=0.5, rngs=nnx.Rngs(key))
        return jnp.mean(layer.table() ** 2)

    squares = np.asarray(mean_square(jax.random.split(jax.random.key(5), 400)))
    assert abs(squares.mean() - 0.5) < 5 * squares.std() / math.sqrt(400)
    assert squares.std() / math.sqrt(400) < 0.05


@pytest.mark.slow
def test_half_precision_is_computed_in_the_type_asked_for():
    layer = nn.TTEmbedding(500, 40, rank=4, dtype=jnp.bfloat16, capacity=64, rngs=nnx.Rngs(0))
    ids = zipf(300, 500)
    assert layer(ids).dtype == jnp.bfloat16
    table = table_of(layer)
    assert table.dtype == jnp.float32
    np.testing.assert_allclose(layer(ids).astype(jnp.float32), table[ids], rtol=0.1, atol=0.06)
    _, found = gradients(layer, lambda x: x(jnp.asarray(ids)).astype(jnp.float32))
    _, expected = gradients(layer, lambda x: x.table()[ids])
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == jnp.float32
        assert np.linalg.norm(a - b) < 0.03 * np.linalg.norm(b)
    assert nn.TTEmbedding(50, 4, rank=2, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))(3).dtype == (
        jnp.bfloat16
    )


def test_tables_of_too_many_rows_for_32_bit_ids():
    layer = nn.TTEmbedding(2**33, 4, rank=2, rngs=nnx.Rngs(0))
    assert layer(np.array([2**33 - 1, 0])).shape == (2, 4)
    with jax.enable_x64(False), pytest.raises(ValueError, match="num_embeddings: expected at most"):
        layer(7)


@pytest.mark.slow
def test_vmap_scan_and_derivatives_of_gradients():
    layer = make(capacity=8)
    graph, params = nnx.split(layer)
    table = table_of(layer)
    ids = jnp.asarray(zipf(60, 300).reshape(3, 20))
    assert max(len(np.unique(row)) for row in ids) > 8 > min(len(np.unique(r)) for r in ids) - 8

    def look(p: Any, ids: jax.Array) -> jax.Array:
        return nnx.merge(graph, p)(ids)

    rows = jax.jit(jax.vmap(look, (None, 0)))(params, ids)
    np.testing.assert_allclose(rows, table[ids], rtol=1e-12)

    def loss(p: Any, ids: jax.Array) -> jax.Array:
        return loss_of(look(p, ids))

    each = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, ids)
    gradient = jax.jit(jax.grad(loss))
    for k in range(3):
        one = gradient(params, ids[k])
        assert_same(nnx.to_pure_dict(jax.tree.map(lambda g, k=k: g[k], each)),
                    nnx.to_pure_dict(one))  # fmt: skip

    @jax.jit
    def step(p: Any, ids: jax.Array) -> tuple[Any, jax.Array]:
        value, g = jax.value_and_grad(loss)(p, ids)
        return jax.tree.map(lambda a, b: a - 1e-3 * b, p, g), value

    scanned, values = jax.lax.scan(step, params, ids)
    looped = params
    for k in range(3):
        looped, value = step(looped, ids[k])
        np.testing.assert_allclose(values[k], value, rtol=1e-12)
    assert_same(nnx.to_pure_dict(scanned), nnx.to_pure_dict(looped))

    # Forward over reverse, through the rounds of the backward pass.
    def dense_loss(p: Any, ids: jax.Array) -> jax.Array:
        return loss_of(nnx.merge(graph, p).table()[ids])

    along, expected = (
        jax.jit(lambda p, f=f: jax.jvp(lambda q: jax.grad(f)(q, ids[0]), (p,), (p,))[1])(params)
        for f in (loss, dense_loss)
    )
    assert_same(nnx.to_pure_dict(along), nnx.to_pure_dict(expected), rtol=1e-9)


def test_one_compilation_for_each_shape():
    traces = 0
    layer = make()

    @nnx.jit
    def look(layer: Any, ids: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1
        return layer(ids)

    for seed in range(3):
        look(layer, jnp.asarray(zipf(64, 300, seed)))
        look(layer, jnp.asarray(zipf(32, 300, seed)))
    assert traces == 2


def buffers(text: str) -> list[int]:
    """Numbers in the largest arrays of a compiled program, largest first."""
    shapes = re.findall(r"[a-z]+[0-9]+\[([0-9,]+)\]", text)
    return sorted((math.prod(map(int, s.split(","))) for s in set(shapes)), reverse=True)


@pytest.mark.parametrize("count", [64, 2048])
def test_no_program_holds_the_table(count: int):
    layer = nn.TTEmbedding(8000, 96, rank=8, num_shape=(20, 20, 20), feature_shape=(4, 4, 6),
                           rngs=nnx.Rngs(0))  # fmt: skip
    graph, params = nnx.split(layer)

    def both(p: Any, ids: jax.Array) -> Any:
        return jax.value_and_grad(lambda p: loss_of(nnx.merge(graph, p)(ids)))(p)

    program = jax.jit(both).lower(params, jax.ShapeDtypeStruct((count,), jnp.int32)).compile()
    assert not layer.plan(count).dense
    assert buffers(program.as_text())[0] < 8000 * 96 / 2


def test_the_dense_plan_says_so_and_is_exact():
    layer = make("tt", 60, 8, order=2)
    plan = layer.plan(5000)
    assert plan.dense
    assert plan.capacity is None
    assert "the dense matrix" in str(plan)
    ids = zipf(5000, 60)
    np.testing.assert_allclose(layer(ids), table_of(layer)[ids], rtol=1e-12, atol=1e-12)


def test_plans_are_the_cheapest_and_change_with_the_number_of_ids():
    layer = nn.TTEmbedding(30522, 768, rank=32, num_shape=(16, 20, 10, 10),
                           feature_shape=(4, 4, 8, 6), rngs=nnx.Rngs(0))  # fmt: skip
    assert layer.ranks == (32, 32, 32)
    cores = [(1, 16, 4, 32), (32, 20, 4, 32), (32, 10, 8, 32), (32, 10, 6, 1)]
    assert [core.shape for core in layer.cores] == cores
    assert layer.numbers == sum(map(math.prod, cores)) + 3 * 32
    few, many = layer.plan(1), layer.plan(4096)
    assert [modes for modes, _, _ in few.tables] == [(0,), (1,), (2,), (3,)]
    # ((G₁ G₂) (G₃ G₄)) by id: counted by hand.
    assert few.flops == 2 * (4 * 32 * 4 * 32 + 32 * 8 * 32 * 6 + 16 * 32 * 48)
    assert few.grad_flops == 3 * few.flops
    assert many.tables == (((0, 1), 320, 16 * 32), ((2, 3), 100, 32 * 48))
    assert many.capacity == 1024
    halves = 2 * (320 * 4 * 32 * 4 * 32 + 100 * 32 * 8 * 32 * 6)
    assert many.flops == halves + 2 * 1024 * 16 * 32 * 48
    assert many.grad_flops == 3 * many.flops + 2 * 1024 * 16 * 32 * 48
    assert str(many).startswith("4096 ids: 1024 distinct ids at a time\ntable of modes 0, 1")


def test_default_capacity_holds_the_distinct_ids_of_zipf_distributions():
    layer = nn.TTEmbedding(30522, 64, rank=2, rngs=nnx.Rngs(0))
    for count in (256, 1024, 4096, 16384):
        distinct = len(np.unique(zipf(count, 30522)))
        capacity = layer.plan(count).capacity
        assert capacity is not None
        assert distinct <= capacity < count
    assert layer.plan(255).capacity is None


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("tt", (30,)), ("tt", (2, 3, 30)), ("tt", (0, 30)), ("tucker", (5, 30)), ("cp", (5, 30))],
)
def test_logits_are_those_of_the_table(kind: str, shape: tuple[int, ...], rng: Any):
    layer = make(kind, padding_idx=3)
    query = rng.standard_normal(shape)
    found = layer.attend(query)
    assert found.shape == (*shape[:-1], 300)
    np.testing.assert_allclose(found, query @ table_of(layer).T, rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match=r"query: expected shape \(…, 30\)"):
        layer.attend(query[..., :-1])


def test_logits_have_gradients(rng: Any):
    layer = make("tt", 211, 13, order=2)
    query = jnp.asarray(rng.standard_normal((4, 13)))
    assert_same(
        gradients(layer, lambda x: x.attend(query)),
        gradients(layer, lambda x: query @ x.table().T),
    )


def test_bags(rng: Any):
    layer = make(padding_idx=0, capacity=8)
    table = np.asarray(layer.table())
    ids = zipf(24, 300).reshape(4, 6)
    ids[1, 3:] = 0
    ids[2] = 0
    weights = rng.uniform(0.5, 2, ids.shape)
    rows, kept = table[ids], (ids != 0)[..., None]
    np.testing.assert_allclose(layer.bag(ids), rows.sum(1), rtol=1e-10, atol=1e-12)
    shares = weights[..., None] * kept
    expected = (rows * shares).sum(1) / np.where(shares.sum(1) == 0, 1, shares.sum(1))
    found = layer.bag(ids, weights=weights, mode="mean")
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert not np.any(found[2])
    flat, bags = ids.reshape(-1), np.repeat(np.arange(4), 6)
    order = rng.permutation(24)
    found = layer.bag(flat[order], segments=bags[order], num_bags=4,
                      weights=weights.reshape(-1)[order], mode="mean")  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    found = layer.bag(flat, segments=np.where(bags == 1, -1, bags), num_bags=3)
    assert found.shape == (3, 30)
    assert not np.any(found[1])
    np.testing.assert_allclose(found[0], rows[0].sum(0), rtol=1e-10, atol=1e-12)
    gradients(layer, lambda x: x.bag(jnp.asarray(ids), mode="mean"))
    for bad, options in {
        "num_bags: expected": {"segments": bags},
        "segments: expected the shape": {"segments": bags[:-1], "num_bags": 4},
        "weights: expected the shape": {"weights": weights},
        "mode: expected": {"mode": "max"},
    }.items():
        with pytest.raises(ValueError, match=bad):
            layer.bag(flat, **options)
    with pytest.raises(ValueError, match=r"ids: expected shape \(n,\) with segments"):
        layer.bag(ids, segments=bags, num_bags=4)
    with pytest.raises(ValueError, match="num_bags: expected None without segments, got 4"):
        layer.bag(ids, num_bags=4)
    with pytest.raises(TypeError, match="segments: expected integers, got dtype float64"):
        layer.bag(flat, segments=bags / 1, num_bags=4)


def test_bad_options_are_named():
    def wrong(match: str, *sizes: int, kind: str = "tt", **options: Any):
        sizes = sizes or (300, 30)
        with pytest.raises(ValueError, match=match):
            FORMATS[kind](*sizes, rngs=nnx.Rngs(0), **{"rank": 4, **options})

    wrong("num_embeddings: expected an integer >= 1", 0, 5)
    wrong("features: expected an integer >= 1", 5, 0)
    wrong("num_shape: expected factors whose product is at least 300", num_shape=(10, 20))
    wrong("feature_shape: expected 2 factors", num_shape=(20, 20), feature_shape=(5, 2, 3))
    wrong("order: expected the length", num_shape=(20, 20), order=3)
    wrong("rank: expected", rank=0)
    wrong("rank: expected", rank=0, kind="cp")
    wrong("rank: expected at most", rank=(9999, 2), num_shape=(7, 7, 7), feature_shape=(5, 3, 2))
    wrong("padding_idx: expected", padding_idx=300)
    wrong("padding_idx: expected", padding_idx=-1)
    wrong("capacity: expected", capacity=0)
    wrong("out_of_range: expected", out_of_range="wrap")
    wrong("variance: expected", variance=0.0)
    for options, match in (
        ({"param_dtype": jnp.int32}, "param_dtype: expected a floating-point type like"),
        ({"param_dtype": jnp.complex64}, "param_dtype: expected a real floating-point type"),
        ({"dtype": jnp.int32}, "dtype: expected a floating-point type like jnp.float32, got"),
        ({"dtype": "double precision"}, "dtype: expected a floating-point type"),
        ({"rngs": None}, "rngs: expected flax.nnx.Rngs, got None"),
    ):
        with pytest.raises(TypeError, match=match):
            nn.TTEmbedding(300, 30, **{"rank": 4, "rngs": nnx.Rngs(0), **options})
    layer = nn.TTEmbedding(300, 30, rank=4, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="ids: expected rows of one length, got a ragged list"):
        layer([[1], [1, 2]])


def test_a_linen_model_holds_one():
    layer = nnx.bridge.ToLinen(nn.TTEmbedding, args=(300, 30), kwargs={"rank": 4, "capacity": 8})
    ids = jnp.asarray(zipf(40, 300))
    variables = layer.init(jax.random.key(0), ids)
    assert set(variables["params"]) == {"cores", "gates"}
    assert [int(k) for k in variables["params"]["cores"]] == list(
        range(len(variables["params"]["cores"]))
    )
    rows = layer.apply(variables, ids)
    assert rows.shape == (40, 30)
    found = jax.grad(lambda v: jnp.sum(layer.apply(v, ids) ** 2))(variables)
    assert jax.tree.structure(found) == jax.tree.structure(variables)
    assert all(np.any(g) for g in jax.tree.leaves(found["params"]))


def test_bags_of_half_precision_are_summed_in_single():
    layer = nn.TTEmbedding(10, 2, rank=1, num_shape=(10,), feature_shape=(2,),
                           param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))  # fmt: skip
    layer.cores[0].set_value(jnp.ones_like(layer.cores[0][...]))
    ids, segments = np.ones(1000, int), np.zeros(1000, int)
    for mode, expected in (("sum", 1000), ("mean", 1)):
        bag = layer.bag(ids, segments=segments, num_bags=1, mode=mode)
        assert bag.dtype == jnp.bfloat16
        np.testing.assert_array_equal(np.asarray(bag, np.float32), expected)
        np.testing.assert_array_equal(np.asarray(layer.bag(ids, mode=mode), np.float32), expected)


def test_the_mean_of_a_bag_is_over_ids_that_have_a_row():
    layer = nn.TTEmbedding(10, 4, rank=2, order=2, out_of_range="zero", rngs=nnx.Rngs(0))
    mean = layer.bag(np.array([[3, 99, -1]]), mode="mean")
    np.testing.assert_allclose(mean, layer(np.array([3])), rtol=1e-6)
    layer = nn.TTEmbedding(
        10, 4, rank=2, order=2, padding_idx=0, out_of_range="clip", rngs=nnx.Rngs(0)
    )
    mean = layer.bag(np.array([[-1, 3]]), mode="mean")  # −1 becomes the padding id
    np.testing.assert_allclose(mean, layer(np.array([3])), rtol=1e-6)


@pytest.mark.parametrize("mode", ["Auto", "Explicit"])
def test_rows_stay_on_the_devices_of_their_ids(mode: str):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType[mode],))
    sharded = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    layer = nn.TTEmbedding(300, 32, rank=4, order=2, capacity=64, rngs=nnx.Rngs(0))
    graph, state = nnx.split(layer)
    ids = np.random.default_rng(0).integers(0, 300, (8, 64))
    expected = layer(ids)
    state = jax.device_put(state, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    placed = jax.device_put(ids, sharded)
    compiled = jax.jit(lambda s, i: nnx.merge(graph, s)(i)).lower(state, placed).compile()
    assert compiled.output_shardings.is_equivalent_to(sharded, 3)
    np.testing.assert_allclose(compiled(state, placed), expected, rtol=1e-5)
    mapped = jax.shard_map(
        lambda s, i: nnx.merge(graph, s)(i),
        mesh=mesh, in_specs=(jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("d")),
        out_specs=jax.sharding.PartitionSpec("d"),
    )  # fmt: skip
    np.testing.assert_allclose(jax.jit(mapped)(state, placed), expected, rtol=1e-5)
