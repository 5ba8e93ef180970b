"""Entries and contracted modes of concrete trains on a CPU: values, range, and no compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt, tucker
from tensorjax._kernels import conditions, first_calls
from tensorjax.tt import _entries
from tensorjax.tt._arrays import mode_products
from tests import oracles


def drawn(rng, dtype, orders=(1, 9)):
    shape = tuple(int(n) for n in rng.integers(1, 7, rng.integers(*orders)))
    ranks = [int(r) for r in rng.integers(1, 6, len(shape) - 1)]
    return tt.TT(oracles.cores(rng, shape, ranks, dtype))


@pytest.mark.parametrize("dtype", oracles.DTYPES)
@pytest.mark.parametrize("seed", range(4))
def test_drawn_trains_and_batches_agree_with_the_dense_tensor(seed, dtype, monkeypatch):
    if seed % 2:  # NumPy serves few entries too
        monkeypatch.setattr(conditions, "FEW_OPERATIONS", 0)
    rng = np.random.default_rng(seed)
    t = drawn(rng, dtype)
    dense = oracles.dense(t)
    scale = np.abs(dense).max()
    for lead in ((), (1,), (7,), (3, 50), (2000,), (0,)):
        i = rng.integers([-n for n in t.shape], t.shape, (*lead, t.order))
        with oracles.compilations() as compiled:
            found = tt.evaluate(t, i)
        assert compiled == []
        assert found.shape == lead
        assert found.dtype == dtype
        np.testing.assert_allclose(
            found, dense[tuple(np.moveaxis(i, -1, 0))], atol=200 * oracles.eps(dtype) * scale
        )


def test_every_way_to_multiply_agrees_with_programs(monkeypatch):
    """Sorted rows, few indices, gathered pieces, many pieces of a batch."""
    monkeypatch.setattr(conditions, "FEW_OPERATIONS", 0)
    rng = np.random.default_rng(5)
    for shape, rank, count in [
        ((3, 5, 3), 33, 3000), ((2,) * 12, 6, 500), ((50, 40, 60), 20, 70), ((9,) * 5, 4, 70_000),
    ]:  # fmt: skip
        t = tt.TT(oracles.cores(rng, shape, rank, np.float64))
        i = rng.integers(0, shape, (count, len(shape)))
        expected = _entries._evaluate(t, jnp.asarray(i))
        found = _entries.entries(t, i, _entries._groups(t, count))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize("few", [0, conditions.FEW_OPERATIONS])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_out_of_range_on_the_way_only_has_its_value(dtype, few, monkeypatch):
    monkeypatch.setattr(conditions, "FEW_OPERATIONS", few)
    big = 10.0 ** (np.log10(np.finfo(dtype).max) * 0.6)
    for vectors in ([1 / big] * 3 + [big] * 3, [big] * 3 + [1 / big] * 3, [big, 1 / big] * 20):
        t = tt.rank_one([jnp.full((2,), v, dtype) for v in vectors])
        found = tt.evaluate(t, np.zeros((3, t.order), int))
        np.testing.assert_allclose(found, 1, rtol=1e-5)
        whole = {k: jnp.full(2, 0.5, dtype) for k in range(t.order)}
        np.testing.assert_allclose(tt.contract_modes(t, whole), 1, rtol=1e-5)
        del whole[t.order // 2]
        np.testing.assert_allclose(oracles.dense(tt.contract_modes(t, whole)), 1, rtol=1e-5)


def test_half_precision_stays_and_overflow_is_infinite():
    t = tt.rank_one([jnp.full((2,), 3, jnp.bfloat16)] * 4)
    assert tt.evaluate(t, [[0, 0, 0, 0]]).dtype == jnp.bfloat16
    assert float(tt.evaluate(t, [0, 0, 0, 0])) == 81
    t = tt.rank_one([jnp.full((2,), 1e30, jnp.float32)] * 2)
    assert np.isposinf(tt.evaluate(t, [0, 1]))


def test_batches_compile_nothing_until_one_is_a_habit():
    rng = np.random.default_rng(1)
    t = tt.TT(oracles.cores(rng, (4,) * 40, 7, np.float32))
    with oracles.compilations() as compiled:
        for count in rng.integers(1, 500, 25):
            tt.evaluate(t, rng.integers(0, 4, (count, 40)))
            tt.evaluate(t, jax.device_put(rng.integers(0, 4, (count, 40), np.int32)))
    assert compiled == []
    t = tt.TT(oracles.cores(rng, (3, 4), 2, np.float32))
    i = rng.integers(0, 3, (6, 2))
    values = [np.asarray(tt.evaluate(t, i)) for _ in range(first_calls.CALLS_OF_EVALUATE + 2)]
    assert np.ptp(values, axis=0).max() <= 1e-5


@pytest.mark.parametrize("dtype", oracles.DTYPES)
def test_first_entries_rows_and_blocks_compile_nothing(rng, dtype):
    """From the constructor on, of arrays of NumPy, whatever the shapes are."""
    order = int(rng.integers(2, 9))
    rows, columns = rng.integers(2, 5, (2, order))
    with oracles.compilations() as compiled:
        t = tt.TT(oracles.cores(rng, [int(n) for n in rows], 3, dtype))
        flat = oracles.cores(
            rng, [int(m * n) for m, n in zip(rows, columns, strict=True)], 2, dtype
        )
        sizes = zip(flat, rows, columns, strict=True)
        a = tt.TTMatrix([c.reshape(len(c), m, n, -1) for c, m, n in sizes])
        found = [
            t[(0,) * order], t[1, ..., None], t[..., [1, 0, 1]], t[0:0], t[::-1, 0],
            a[3, 5], a[-1], a[:, 2], a[(0, slice(None, 1), ...), :],
            tt.evaluate(t, rng.integers(0, rows, (int(rng.integers(1, 99)), order))),
            tt.contract_modes(t, {0: np.ones(rows[0], dtype)}),
        ]  # fmt: skip
    assert compiled == []
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(found))


def test_cores_are_copied_from_arrays_of_numpy():
    """What the caller does to them later does not reach the train."""
    for size in (8, 1000, 30_000):
        memory = np.zeros(4 * size + 64, np.uint8)
        start = -memory.ctypes.data % 64  # aligned as JAX's own, which it would share
        core = memory[start : start + 4 * size].view(np.float32).reshape(1, size, 1)
        t = tt.TT([core])
        core[:] = 1
        assert float(tt.norm(t)) == 0


def test_under_transformations_programs_serve():
    rng = np.random.default_rng(2)
    t = drawn(rng, np.float64, (4, 5))
    i = rng.integers(0, t.shape, (20, t.order))
    expected = tt.evaluate(t, i)
    np.testing.assert_allclose(jax.jit(tt.evaluate)(t, i), expected, rtol=1e-10)
    np.testing.assert_allclose(jax.jit(lambda: tt.evaluate(t, i))(), expected, rtol=1e-10)
    np.testing.assert_allclose(
        jax.vmap(lambda j: tt.evaluate(t, j))(jnp.asarray(i)), expected, rtol=1e-10
    )
    oracles.check_gradient(lambda t: tt.evaluate(t, i).sum(), t, rng)


@pytest.mark.parametrize("dtype", oracles.DTYPES)
@pytest.mark.parametrize("seed", range(3))
def test_contracted_modes_agree_with_programs_and_compile_nothing(seed, dtype):
    rng = np.random.default_rng(seed)
    t = drawn(rng, dtype, (2, 9))
    for count in {1, t.order // 2, t.order}:
        modes = rng.choice(t.order, count, replace=False)
        vectors = {int(k): oracles.normal(rng, (t.shape[k],), dtype) for k in modes}
        with oracles.compilations() as compiled:
            found = tt.contract_modes(t, vectors)
        assert compiled == []
        arrays = {k: jnp.asarray(v) for k, v in vectors.items()}
        expected = mode_products._contract_modes(t, arrays)
        leaves = [jax.tree.leaves(x) for x in (found, expected)]
        assert [(x.shape, x.dtype) for x in leaves[0]] == [(x.shape, x.dtype) for x in leaves[1]]
        a, b = (x if count == t.order else oracles.dense(x) for x in (found, expected))
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(1e-3, np.abs(b).max()))


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint8, np.uint64])
def test_traced_indices_out_of_range_give_nan(rng, kind):
    shape = (3, 200, 4)
    x = tt.TT(oracles.cores(rng, shape, 2, np.float32))
    boxed = tucker.Tucker(x, [np.eye(n, dtype=np.float32) for n in shape])
    full = oracles.dense(x)
    low = 0 if np.iinfo(kind).min == 0 else -1
    inside = np.array([[0, 100, 3], [low, 5, low], [2, low, 0]], kind)
    outside = np.array([[3, 0, 0], [0, 0, 4], [np.iinfo(kind).max, 1, 1]], kind)
    for evaluate, t in ((tt.evaluate, x), (tucker.evaluate, boxed)):
        run = jax.jit(evaluate)
        expected = full[tuple(inside.astype(np.int64).T)]
        np.testing.assert_allclose(run(t, inside), expected, rtol=1e-4, atol=1e-5)
        assert np.isnan(run(t, outside)).all()
        if low:
            assert np.isnan(run(t, np.array([[-4, 0, 0], [0, 0, -5]], kind))).all()
