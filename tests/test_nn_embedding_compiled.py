"""Rows of a TT-matrix by compiled code, held beside XLA's programs and the table."""

import itertools
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

from tensorjax import _native, nn
from tensorjax.nn._embeddings.contraction_tree import in_place
from tensorjax.nn._embeddings.lookup_plan import _cost, plan_chain

built = pytest.mark.skipif(bool(_native.status()), reason=_native.status())


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)


def make(rows: int = 300, features: int = 30, dtype: Any = jnp.float64, **options: Any) -> Any:
    options = {"rank": 4, "order": 3, "param_dtype": dtype, **options}
    layer = nn.TTEmbedding(rows, features, rngs=nnx.Rngs(1), **options)
    for k, gate in enumerate(layer.gates):  # no gate that the tests could overlook
        gate.set_value(jnp.asarray(np.linspace(-0.5, 1.5 + k, gate.size), gate.dtype))
    return layer


def ids_of(rows: int, count: int) -> np.ndarray:
    """The last row and a repeated one among them."""
    ids = np.random.default_rng(count).integers(0, rows, count)
    ids[0] = rows - 1
    ids[-1] = ids[count // 2]
    return ids


def rows_and_pull(layer: Any, lookup: Any, cotangent: np.ndarray) -> Any:
    graph, params = nnx.split(layer)
    rows, pull = jax.vjp(lambda p: lookup(nnx.merge(graph, p)), params)
    return rows, nnx.to_pure_dict(pull(jnp.asarray(cotangent, rows.dtype))[0])


def assert_same(found: Any, expected: Any, tol: float = 1e-11):
    def same(a: Any, b: Any):
        np.testing.assert_allclose(a, b, rtol=0, atol=tol * (1 + np.abs(b).max()))

    jax.tree.map(same, found, expected)


def program(layer: Any, count: int) -> str:
    graph, params = nnx.split(layer)
    ids = jnp.zeros(count, jnp.int32)
    step = jax.jit(lambda p, i: jax.vjp(lambda p: nnx.merge(graph, p)(i), p)[0])
    return step.lower(params, ids).as_text()


SHAPES = [
    {"num_shape": (16, 20, 10), "feature_shape": (4, 8, 6), "rank": 32},
    {"num_shape": (7, 5), "feature_shape": (3, 11), "rank": 5},
    {"num_shape": (3, 4, 5, 2), "feature_shape": (2, 3, 1, 13), "rank": (3, 9, 7)},
    {"num_shape": (4, 3, 2, 5, 3), "feature_shape": (5, 2, 3, 2, 1), "rank": (20, 17, 6, 3)},
    {"num_shape": (2, 30), "feature_shape": (24, 2), "rank": 40},
    {"num_shape": (5, 4, 3), "feature_shape": (1, 1, 1), "rank": (2, 3)},
]


@built
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("spare", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_rows_and_gradients_are_those_of_the_table(dtype: Any, shapes: Any, spare: int):
    rows, features = (int(np.prod(shapes[name])) for name in ("num_shape", "feature_shape"))
    layer = make(rows - spare, max(1, features - spare), dtype, order=None, **shapes)
    ids = ids_of(rows - spare, 9)
    assert layer.plan(ids.size).compiled
    cotangent = np.random.default_rng(2).standard_normal((9, layer.features))
    found = rows_and_pull(layer, lambda x: x(jnp.asarray(ids)), cotangent)
    expected = rows_and_pull(layer, lambda x: x.table()[ids], cotangent)
    assert_same(found, expected, 2e-5 if dtype == jnp.float32 else 1e-12)


@built
def test_the_program_calls_compiled_code_where_it_can(monkeypatch: pytest.MonkeyPatch):
    layer = make(dtype=jnp.float32)
    assert "tensorjax_lookup" in program(layer, 40)
    assert "tensorjax_lookup" in program(layer, 200)
    assert "tensorjax_lookup" in program(layer, 100_000)
    limited = make(dtype=jnp.float32, capacity=64)
    assert "tensorjax_lookup" in program(limited, 64)
    assert "tensorjax_lookup" not in program(limited, 65)
    for other in (
        make(dtype=jnp.bfloat16),
        nn.TTEmbedding(300, 30, rank=4, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)),
        nn.TTEmbedding(300, 30, rank=4, order=1, rngs=nnx.Rngs(0)),
        nn.CPEmbedding(300, 30, rank=4, order=4, rngs=nnx.Rngs(0)),
        nn.TuckerEmbedding(300, 30, rank=4, order=3, rngs=nnx.Rngs(0)),
    ):
        assert not other.plan(40).compiled
        assert "tensorjax_lookup" not in program(other, 40)
    monkeypatch.setattr(_native, "status", lambda: "off")
    assert not layer.plan(40).compiled
    assert "tensorjax_lookup" not in program(layer, 40)


@built
def test_the_plan_says_what_it_costs():
    layer = make(num_shape=(5, 10, 6), feature_shape=(2, 5, 3), order=None)
    plan = layer.plan(7)
    # The second core to the first, both to the third.
    side, meeting = 7 * 2 * 2 * 4 * 5 * 4, 7 * 2 * 10 * 4 * 3
    assert plan.flops == side + meeting
    assert plan.grad_flops == 4 * side + 3 * meeting
    assert plan.tables == ()
    assert "by compiled code" in str(plan)
    many = layer.plan(100_000)
    ((modes, rows, size),) = many.tables
    assert (modes, rows, size) == ((0, 1), 50, 10 * 4)
    merging = 50 * 2 * 2 * 4 * 5 * 4
    assert many.flops == merging + 300 * 2 * 10 * 4 * 3  # no more ids are distinct than there are
    assert many.grad_flops == 3 * many.flops


@pytest.mark.parametrize("count", [1, 30, 1000, 30_000])
@pytest.mark.parametrize(
    "shapes",
    [
        ((1, 16, 4, 32), (32, 20, 4, 32), (32, 10, 8, 32), (32, 10, 6, 1)),
        ((1, 10, 4, 16), *((16, 10, 2, 16),) * 4, (16, 10, 2, 1)),
        ((1, 5, 2, 3), (3, 7, 3, 1)),
    ],
)
def test_no_other_way_to_merge_cores_is_cheaper(shapes: Any, count: int):
    order = len(shapes)
    inner = (c for n in range(1, order) for c in itertools.combinations(range(1, order), n))
    ways = {
        (0, *cuts, order): sum(_cost(shapes[j:k], count) for j, k in pairwise((0, *cuts, order)))
        for cuts in inner
    }
    chain = plan_chain(shapes, count)
    assert ways[chain.cuts] == min(ways.values())
    assert len(chain.shapes) == len(chain.cuts) - 1


@built
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_many_distinct_ids_of_a_narrow_table_take_the_whole_of_it(dtype: Any):
    layer = make(1000, 7, dtype, padding_idx=3)
    above = layer.plan(1500).dense_above
    assert above is not None
    assert 100 < above < 1000
    assert f"more than {above} distinct" in str(layer.plan(1500))
    rng, tol = np.random.default_rng(0), 2e-5 if dtype == jnp.float32 else 1e-12
    graph, params = nnx.split(layer)

    @jax.jit
    def both(p: Any, ids: jax.Array, cotangent: jax.Array) -> Any:
        rows, pull = jax.vjp(lambda p: nnx.merge(graph, p)(ids), p)
        return rows, pull(cotangent)[0]

    for distinct in (above // 2, 1000):  # either way
        ids = rng.choice(rng.permutation(1000)[:distinct], 1500)
        ids[-20:-10], ids[-10:] = 3, 1000
        cotangent = rng.standard_normal((1500, 7))
        cotangent[-10:] = np.nan
        rows, gradient = both(params, jnp.asarray(ids), jnp.asarray(cotangent, dtype))
        assert np.isnan(rows[-10:]).all()
        assert not np.any(rows[-20:-10])
        cotangent[-10:], kept = 0, np.minimum(ids, 999)
        expected = rows_and_pull(layer, lambda x, i=kept: x.table()[i], cotangent)
        assert_same(rows[:-10], expected[0][:-10], tol)
        assert_same(nnx.to_pure_dict(gradient), expected[1], 30 * tol)


@built
@pytest.mark.parametrize("axes", [(None, 0), (0, None)])
def test_no_batch_of_lookups_makes_whole_tables(axes: Any):
    """A batch of conditions would compute both ways for each example."""
    layer = make(1000, 7, order=2)
    graph, params = nnx.split(layer)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 1000, (2, 1500)))
    above = layer.plan(1500).dense_above
    assert above is not None
    assert len(np.unique(ids[0])) > above

    def rows(p: Any, ids: jax.Array) -> jax.Array:
        return nnx.merge(graph, p)(ids)

    def whole(p: Any, ids: jax.Array) -> jax.Array:
        return nnx.merge(graph, p).table()[ids]

    def batches(rows: Any) -> Any:  # of rows, of gradients; and the gradient of a batch
        def loss(*x: Any) -> jax.Array:
            return jnp.sum(jnp.sin(rows(*x)))

        many = jax.vmap(rows, axes)
        of_many = jax.grad(lambda *x: jnp.sum(jnp.sin(many(*x))))
        return jax.jit(lambda *x: (many(*x), jax.vmap(jax.grad(loss), axes)(*x), of_many(*x)))

    assert "stablehlo.case" in jax.jit(rows).lower(params, ids[0]).as_text()
    if axes[0] is None:
        inputs = params, ids
    else:
        inputs = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params), ids[0]
    step = batches(rows).lower(*inputs)
    assert "stablehlo.case" not in step.as_text()
    assert_same(step.compile()(*inputs), batches(whole)(*inputs))


@built
def test_each_device_takes_the_whole_of_a_narrow_table_by_itself():
    layer = make(1000, 7, order=2)
    graph, params = nnx.split(layer)
    ids = np.random.default_rng(0).integers(0, 1000, (2, 1500))
    mesh, spec = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,)), PartitionSpec("d")

    def gradient(p: Any, ids: jax.Array) -> Any:
        p = jax.lax.pcast(p, "d", to="varying")
        found = jax.grad(lambda p: jnp.sum(jnp.sin(nnx.merge(graph, p)(ids[0]))))(p)
        return jax.lax.psum(found, "d")

    def whole(p: Any) -> jax.Array:
        return jnp.sum(jnp.sin(nnx.merge(graph, p).table()[ids]))

    specs = {"in_specs": (PartitionSpec(), spec), "out_specs": PartitionSpec()}
    step = jax.jit(jax.shard_map(gradient, mesh=mesh, **specs)).lower(params, ids)
    assert "stablehlo.case" in step.as_text()
    found = jax.device_get(step.compile()(params, ids))
    assert_same(found, jax.grad(whole)(params))


@built
def test_wide_tables_and_few_ids_do_without_the_whole_table():
    assert make(1000, 7).plan(255).dense_above is None
    wide = nn.TTEmbedding(10_000, 256, rank=16, rngs=nnx.Rngs(0))
    assert wide.plan(16_384).dense_above is None
    narrow = nn.TTEmbedding(10_000, 16, rank=16, rngs=nnx.Rngs(0))
    above = [narrow.plan(count).dense_above for count in (300, 4000, 30_000)]
    assert above[0] is None
    assert None not in above[1:]


@built
@pytest.mark.parametrize(("order", "count"), [(3, 20), (3, 256), (4, 256), (4, 600), (5, 5000)])
def test_cores_are_merged_for_many_ids(order: int, count: int):
    layer = make(3000, 40, rank=6, order=order, padding_idx=1)
    plan = layer.plan(count)
    assert plan.compiled
    assert bool(plan.tables) == (count > 20)
    ids = ids_of(3000, count)
    cotangent = np.random.default_rng(2).standard_normal((count, 40))
    found = rows_and_pull(layer, lambda x: x(jnp.asarray(ids)), cotangent)
    assert_same(found, rows_and_pull(layer, lambda x: x.table()[ids], cotangent))


@pytest.mark.parametrize("empty", [(0,), (1,), (0, 1)])
def test_bonds_of_rank_zero(empty: tuple[int, ...]):
    layer = make()
    for k in empty:
        layer.cores[k].set_value(layer.cores[k][..., :0])
        layer.gates[k].set_value(layer.gates[k][:0])
        layer.cores[k + 1].set_value(layer.cores[k + 1][:0])
    for count in (1, 300, 5000):
        assert not layer.plan(count).compiled
        assert not np.any(layer(np.zeros(count, int)))


@built
def test_compiled_code_refuses_operands_that_do_not_fit():
    cores = [jnp.ones((1, 3, 2, 4)), jnp.ones((4, 5, 2, 1))]
    gates, ids = [jnp.ones(4)], jnp.zeros(2, jnp.int32)
    assert _native.look_up(cores, gates, ids, 4).shape == (2, 4)
    for bad_cores, bad_gates, bad_ids, message in (
        (cores, gates, ids.astype(jnp.int64), "int32"),
        (cores, gates, ids + 17, "out of range: 17"),
        (cores, gates, ids - 1, "out of range: -1"),
        (cores, [jnp.ones(3)], ids, "gates"),
        ([cores[0], cores[1].astype(jnp.float32)], gates, ids, "one type"),
        ([c.astype(jnp.bfloat16) for c in cores], gates, ids, "float32 or float64"),
        ([cores[0], jnp.ones((3, 5, 2, 1))], gates, ids, "fit together"),
        ([cores[0], jnp.ones((4, 5, 2, 2))], gates, ids, "s = 1"),
    ):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=message):
            jax.block_until_ready(_native.look_up(bad_cores, bad_gates, bad_ids, 4))


@pytest.mark.parametrize("off", [False, True])
def test_ids_without_a_row(off: bool, monkeypatch: pytest.MonkeyPatch):
    """Nothing flows back from them, whatever their cotangents are."""
    if off:
        monkeypatch.setattr(_native, "status", lambda: "off")
    layer = make(padding_idx=3)
    ids = np.array([3, 7, 300, -1, 7, 3, 0])
    cotangent = np.ones((7, 30))
    cotangent[[0, 2, 3, 5]] = np.nan
    rows, found = rows_and_pull(layer, lambda x: nnx.jit(lambda x, i: x(i))(x, ids), cotangent)
    rows = np.asarray(rows)
    assert not np.any(rows[[0, 5]])
    assert np.all(np.isnan(rows[[2, 3]]))
    _, expected = rows_and_pull(layer, lambda x: x.table()[np.array([7, 7, 0])], np.ones((3, 30)))
    assert_same(found, expected)
    none = layer(np.array([3, 3]))
    assert none.shape == (2, 30)
    assert not np.any(none)


@built
def test_what_is_not_finite_stays_in_its_rows():
    layer = make()
    core = layer.cores[0]
    core.set_value(core[...].at[:, 0].set(jnp.nan))
    bad = 300 // core.shape[1]  # ids below have the first slice
    rows = layer(np.array([0, bad + 50, 299]))
    assert np.all(np.isnan(rows[0]))
    assert np.all(np.isfinite(rows[1:]))


@built
@pytest.mark.parametrize("count", [3, pytest.param(300, marks=pytest.mark.slow)])
def test_derivatives_of_gradients_and_batches(count: int):
    layer = make(600, 12, num_shape=(5, 12, 10), feature_shape=(2, 2, 3), order=None)
    graph, params = nnx.split(layer)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 600, (2, count)))
    assert layer.plan(count).compiled

    def loss(p: Any, ids: jax.Array, lookup: Any) -> jax.Array:
        return jnp.sum(jnp.sin(lookup(nnx.merge(graph, p), ids)))

    ours = lambda layer, ids: layer(ids)  # noqa: E731
    dense = lambda layer, ids: layer.table()[ids]  # noqa: E731

    def forward_over_reverse(lookup: Any) -> Any:
        gradient = jax.grad(lambda p: loss(p, ids[0], lookup))
        return nnx.to_pure_dict(jax.jvp(gradient, (params,), (params,))[1])

    def reverse_over_reverse(lookup: Any) -> Any:
        def size(p: Any) -> jax.Array:
            found = jax.grad(lambda p: loss(p, ids[0], lookup))(p)
            return sum(jnp.sum(g**2) for g in jax.tree.leaves(found))

        return nnx.to_pure_dict(jax.grad(size)(params))

    def batched(lookup: Any) -> Any:
        gradient = jax.vmap(jax.grad(lambda p, i: loss(p, i, lookup)), (None, 0))
        return nnx.to_pure_dict(gradient(params, ids))

    for derivative in (forward_over_reverse, reverse_over_reverse, batched):
        assert_same(derivative(ours), derivative(dense))


@built
def test_threads_change_nothing():
    """Ids are shared out among threads, and their gradients summed in parts."""
    layer = make(4000, 512, jnp.float32, rank=(16, 48))
    ids = ids_of(4000, 200)
    assert layer.plan(200).compiled
    together = layer(ids)
    others = layer(np.concatenate([ids[::2], np.arange(100)]))  # shared out otherwise
    np.testing.assert_array_equal(others[:100], together[::2])
    cotangent = np.random.default_rng(2).standard_normal((200, 512))
    found = rows_and_pull(layer, lambda x: x(jnp.asarray(ids)), cotangent)
    assert_same(found, rows_and_pull(layer, lambda x: x.table()[ids], cotangent), 1e-4)


@built
@pytest.mark.parametrize("count", [1, 20, 2000])
def test_ids_are_sorted_by_counting_or_not(count: int):
    layer = make(5000, 6, num_shape=(50, 100), feature_shape=(2, 3), order=None)
    ids = np.random.default_rng(4).integers(0, 5000, count)
    assert layer.plan(count).compiled
    np.testing.assert_allclose(layer(ids), layer.table()[ids], rtol=0, atol=1e-12)


@built
@pytest.mark.parametrize("seed", range(6))
def test_ids_that_fill_the_last_mode_are_those_of_the_table(seed: int):
    """Such ids get their rows, and their gradients, from one product for all of the last mode."""
    rng = np.random.default_rng(seed)
    order = int(rng.integers(2, 4))
    rows, columns = rng.integers(2, 9, order), rng.integers(1, 5, order)
    columns[-1] = (1, 2, 3, 8, 20, 32)[seed]  # a power of two or not, with and without zeros behind
    spare = int(rng.integers(0, 2))
    shapes = {"num_shape": [*map(int, rows)], "feature_shape": [*map(int, columns)]}
    layer = make(rows.prod(), columns.prod() - spare * (columns.prod() > 1), order=None, rank=3,
                 **shapes)  # fmt: skip
    ids = rng.integers(0, rows.prod(), 3 * rows.prod())
    ids = ids[(ids >= rows[-1]) | (ids % rows[-1] == 0)]  # a few of the first ones only
    assert layer.plan(ids.size).compiled
    cotangent = rng.standard_normal((ids.size, layer.features))
    found = rows_and_pull(layer, lambda x: x(jnp.asarray(ids)), cotangent)
    assert_same(found, rows_and_pull(layer, lambda x: x.table()[ids], cotangent))


@built
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_many_ids_with_some_that_have_no_row(dtype: Any):
    shapes = {"num_shape": (6, 10, 7), "feature_shape": (4, 2, 5), "rank": (9, 6), "order": None}
    layer = make(415, 37, dtype, padding_idx=2, **shapes)
    ids = np.random.default_rng(3).integers(0, 40, 300) * 10
    ids[::7], ids[::50] = 2, 415
    ids[1] = 414
    plan = layer.plan(300)
    assert plan.compiled
    assert plan.capacity is None
    assert len(plan.tables) == 1
    assert not make(415, 37, dtype, capacity=64, **shapes).plan(300).compiled
    cotangent = np.random.default_rng(2).standard_normal((300, 37))
    cotangent[::50] = np.nan  # of ids without a row
    graph, params = nnx.split(layer)
    rows, pull = jax.jit(lambda p, i: jax.vjp(lambda p: nnx.merge(graph, p)(i), p))(params, ids)
    table = np.asarray(layer.table())
    assert np.all(np.isnan(rows[::50]))
    inside = np.arange(300) % 50 > 0
    tol = 2e-5 if dtype == jnp.float32 else 1e-12
    assert_same(rows[inside], table[ids[inside]], tol)
    found = nnx.to_pure_dict(pull(jnp.asarray(cotangent, dtype))[0])
    _, expected = rows_and_pull(layer, lambda x: x.table()[ids[inside]], cotangent[inside])
    assert_same(found, expected, tol)


def test_without_compiled_code_few_ids_leave_the_cores_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(_native, "status", lambda: "off")
    layer = make(300, 30, num_shape=(4, 25, 3), feature_shape=(2, 5, 3), order=None)
    request = layer.plan(4)._request
    assert in_place(request.tree, request.network, 4) == (0, 1, 2)
    # Modes of 4, 25 and 3: only that of 25 has as many rows as a fourth of the ids.
    assert in_place(request.tree, request.network, 90) == (1,)
    assert in_place(request.tree, request.network, 101) == ()
    ids = np.array([7, 299, 7, 0])
    cotangent = np.random.default_rng(2).standard_normal((4, 30))
    found = rows_and_pull(layer, lambda x: x(jnp.asarray(ids)), cotangent)
    assert_same(found, rows_and_pull(layer, lambda x: x.table()[ids], cotangent))
