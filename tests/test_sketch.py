"""Random projections against dense matrices, exhaustive enumeration and published values."""

import dataclasses
import functools
import itertools
import math
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse as jsparse

from tensorjax import sketch, tt
from tensorjax.sketch import (
    _apply,
    _fourth_moments,
    _mode_groups,
    _mode_sizes,
    _variance_and_bounds,
)

KEY = jax.random.key(7)
N3 = (3, 4, 5)
FAMILIES = {
    "ttrp": lambda k: sketch.ttrp(k, N3, (2, 3, 2)),
    "ttrp ranks": lambda k: sketch.ttrp(k, N3, (2, 3, 2), rank=(2, 3)),
    "ttrp one mode": lambda k: sketch.ttrp(k, (60,), (7,), distribution="sparse", s=2.0),
    "ttrp padded": lambda k: sketch.ttrp(k, 59, 23),
    "ttrp surplus rows": lambda k: sketch.ttrp(k, N3, 11, rank=2, distribution="gaussian"),
    "gaussian": lambda k: sketch.gaussian(k, N3, 7),
    "sparse": lambda k: sketch.sparse(k, N3, 7),
    "khatri_rao": lambda k: sketch.khatri_rao(k, N3, 7, distribution="rademacher"),
    "khatri_rao padded": lambda k: sketch.khatri_rao(k, 61, 7, averages=3),
    "tt_rows": lambda k: sketch.tt_rows(k, N3, 7, rank=(2, 3)),
    "tt_rows one mode": lambda k: sketch.tt_rows(k, (60,), 7),
}


@functools.cache
def drawn(name: str) -> Any:
    return FAMILIES[name](KEY)


@pytest.fixture(params=FAMILIES)
def p(request: pytest.FixtureRequest) -> Any:
    return drawn(request.param)


def matrix(p: Any) -> np.ndarray:
    """The map as a dense (M, ∏ n_k) matrix."""
    size = math.prod(p.in_shape)
    return np.asarray(sketch.apply(p, np.eye(size))).T


def written_out(p: Any) -> np.ndarray:
    """The same from the stored numbers, by loops that share nothing with the library."""
    columns = list(np.ndindex(*p.in_shape))
    if isinstance(p, sketch.Kronecker):
        rows = list(np.ndindex(*p.out_shape))[: p.out_size]
        out = np.zeros((len(rows), len(columns)))
        for a, i in enumerate(rows):
            for b, j in enumerate(columns):
                chain = np.eye(1)
                for core, ik, jk in zip(p.cores, i, j, strict=True):
                    chain = chain @ np.asarray(core[:, ik, jk])
                out[a, b] = chain[0, 0]
        return out / math.sqrt(p.out_size * math.prod(p.ranks))
    out = np.zeros((p.out_size, len(columns)))
    if isinstance(p, sketch.Dense):
        return np.asarray(p.matrix) / math.sqrt(p.out_size)
    if isinstance(p, sketch.Sparse):
        for place, sign in zip(np.asarray(p.index), np.asarray(p.sign), strict=True):
            if place < out.size:
                out.flat[place] += sign
        return out * math.sqrt(p.law.fourth_moment / p.out_size)
    for i in range(p.out_size):
        for b, j in enumerate(columns):
            if isinstance(p, sketch.CPRows):
                terms = [np.asarray(f[i, :, jk]) for f, jk in zip(p.factors, j, strict=True)]
                out[i, b] = np.prod(terms, axis=0).sum() / math.sqrt(p.terms)
            else:
                chain = np.eye(1)
                for core, jk in zip(p.cores, j, strict=True):
                    chain = chain @ np.asarray(core[i, :, jk])
                out[i, b] = chain[0, 0] / math.sqrt(math.prod(p.ranks))
    return out / math.sqrt(p.out_size)


# ---------------------------------------------------------------------------- factorisation


def test_factors_are_balanced_and_padded_only_if_they_must() -> None:
    assert _mode_sizes.shapes(784, 24) == ((28, 28), (6, 4), 784, 24)
    assert _mode_sizes.shapes(10**4, 24, order=3) == ((20, 20, 25), (4, 3, 2), 10**4, 24)
    assert _mode_sizes.shapes((25, 25, 16), 24).out_shape == (3, 2, 4)  # large m with small n
    assert _mode_sizes.shapes(10**4, (2, 3, 4)).in_shape == (25, 20, 20)
    assert _mode_sizes.shapes((3, 5), (2, 2)) == ((3, 5), (2, 2), 15, 4)
    assert _mode_sizes.shapes(1, 1) == ((1, 1), (1, 1), 1, 1)
    for prime in (7, 101, 10007, 999983):
        n, m, in_size, out_size = _mode_sizes.shapes(prime, 23)
        assert in_size == prime <= math.prod(n) <= 1.3 * prime
        assert max(n) <= 2 * min(n)
        assert out_size == 23 <= math.prod(m)
        assert m == (5, 5)


def test_huge_sizes_are_factored_at_once() -> None:
    n, m, in_size, _ = _mode_sizes.shapes(10**30, 24)
    assert math.prod(n) == in_size == 10**30
    assert max(n) <= 4096
    assert math.prod(m) >= 24
    n = _mode_sizes.columns(10**18 + 9, 5)  # a prime
    assert 10**18 < math.prod(n) <= 1.01 * 10**18
    assert max(n) < 1.3 * min(n)
    assert max(_mode_sizes.rows(1000003, 3)) <= 102


def test_row_cuts_have_nearly_the_least_worst_variance() -> None:
    for size in (6, 23, 24, 26, 60, 97):
        for order in (2, 3):
            chosen = _fourth_moments.total(_mode_sizes.rows(size, order), size, (1, 1), 3.0)
            every = itertools.product(range(1, size + 1), repeat=order)
            shapes = [m for m in every if size <= math.prod(m) <= 1.5 * size + 2]
            least = min(_fourth_moments.total(m, size, (1, 1), 3.0) for m in shapes)
            assert chosen <= 1.25 * least * (1 + 1e-12)


def test_rows_of_many_modes_are_cut_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _mode_sizes.rows(2**60, 60) == (2,) * 60
    assert _mode_sizes.rows(9 * 2**98, 100) == (3, 3, *(2,) * 98)
    cuts = _mode_sizes._near_equal(10**9 + 7, 30)
    assert 0 < len(cuts) <= 8
    assert all(10**9 < math.prod(m) <= 1.5 * 10**9 + 13 for m in cuts)
    for size in (23, 59, 1000, 1021, 10**5 + 3):  # few modes, by both ways
        wanted = _fourth_moments.total(_mode_sizes.rows(size, 5), size, (1,) * 4, 3.0)
        with monkeypatch.context() as patch:
            patch.setattr(_mode_sizes, "_FEW_MODES", 1)
            found = _fourth_moments.total(
                _mode_sizes.rows.__wrapped__(size, 5), size, (1,) * 4, 3.0
            )
        assert found <= 1.05 * wanted


def test_contradicting_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="one number of modes"):
        sketch.ttrp(KEY, (3, 4), (2, 2, 2))
    with pytest.raises(ValueError, match="one number of modes"):
        sketch.tt_rows(KEY, (3, 4), 5, order=3)
    with pytest.raises(ValueError, match="in_shape"):
        sketch.ttrp(KEY, 0, 4)
    with pytest.raises(ValueError, match="out_shape"):
        sketch.gaussian(KEY, 4, -1)


# ---------------------------------------------------------------------------- the maps


def test_the_map_is_the_one_defined(p: Any) -> None:
    np.testing.assert_allclose(matrix(p), written_out(p), atol=1e-12)


def test_the_protocol(p: Any) -> None:
    assert p.in_size <= math.prod(p.in_shape)
    assert p.out_size <= math.prod(p.out_shape)
    assert p.dtype == jnp.float64
    assert str(p.law.name) in repr(p)
    stored = sum(np.count_nonzero(a) for a in jax.tree.leaves(p) if a.dtype == p.dtype)
    if p.law.name != "sparse" or isinstance(p, sketch.Sparse):
        assert p.size == stored
    copy = pickle.loads(pickle.dumps(p))
    assert jax.tree.structure(copy) == jax.tree.structure(p)
    np.testing.assert_array_equal(matrix(copy), matrix(p))


def test_storage_is_that_of_the_paper() -> None:
    n = (25, 25, 16)
    assert sketch.ttrp(KEY, n, (4, 3, 2)).size == 207
    assert sketch.gaussian(KEY, 10**4, 24).size == 240_000
    assert sketch.khatri_rao(KEY, n, 24).size == 1584
    very_sparse = sketch.sparse(KEY, 10**4, 24, s="sqrt").size
    assert abs(very_sparse - 2400) < 5 * math.sqrt(2400)


@pytest.mark.parametrize("name", ["ttrp surplus rows", "sparse", "khatri_rao padded"])
def test_a_map_comes_back_from_its_key(name: str) -> None:
    make = FAMILIES[name]
    for a, b, c in zip(
        *map(jax.tree.leaves, (drawn(name), make(KEY), jax.jit(make)(KEY))), strict=False
    ):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-12)
    other = make(jax.random.key(8))
    assert not np.array_equal(matrix(other), matrix(drawn(name)))


def test_signs_do_not_depend_on_the_dtype_or_mode() -> None:
    wide = sketch.ttrp(KEY, N3, (2, 2, 2), dtype=jnp.float64)
    half = sketch.ttrp(KEY, N3, (2, 2, 2), dtype=jnp.bfloat16)
    with jax.enable_x64(False):
        single = sketch.ttrp(KEY, N3, (2, 2, 2))
        assert single.dtype == jnp.float32
    for a, b, c in zip(wide.cores, half.cores, single.cores, strict=True):
        np.testing.assert_array_equal(a, b.astype(jnp.float64))
        np.testing.assert_array_equal(a, np.asarray(c, np.float64))
        assert set(np.unique(a)) <= {-1.0, 1.0}


@pytest.mark.parametrize("law", ["rademacher", "gaussian", "sparse"])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.bfloat16])
def test_entries_have_the_moments_of_their_law(law: str, dtype: Any) -> None:
    count = 400_000
    p = sketch.ttrp(KEY, (count,), (1,), distribution=law, s=4.0, dtype=dtype)
    x = np.asarray(p.cores[0]).astype(np.float64).ravel()
    delta = p.law.fourth_moment
    assert delta == {"rademacher": 1, "gaussian": 3, "sparse": 4}[law]
    rounding = 10 * float(jnp.finfo(dtype).eps)
    eighth = {"rademacher": 1, "gaussian": 105, "sparse": 4.0**3}[law]
    for power, mean, second in ((1, 0, 1), (2, 1, delta), (3, 0, 15), (4, delta, eighth)):
        sigma = math.sqrt((second - mean**2) / count)
        assert abs(np.mean(x**power) - mean) <= 4.5 * sigma + rounding * max(mean, 0.01)


@pytest.mark.parametrize("s", [1.0, 3.0, 40.0])
def test_every_entry_of_a_sparse_map_has_its_probability(s: float) -> None:
    draws = 4000
    keys = jax.random.split(KEY, draws)
    ps = jax.vmap(lambda k: sketch.sparse(k, 9, 5, s=s))(keys)
    index = np.asarray(ps.index)
    assert np.all(np.diff(index, axis=1)[index[:, 1:] < 45] > 0)  # distinct, ascending
    entries = np.zeros((draws, 46))
    np.put_along_axis(entries, index, np.asarray(ps.sign), axis=1)
    entries = entries[:, :45]
    sigma = math.sqrt((1 - 1 / s) / s / draws)
    share = (entries != 0).mean(0)
    assert np.all(np.abs(share - 1 / s) <= 4.5 * sigma)
    assert np.all(np.abs(entries.mean(0)) <= 4.5 / math.sqrt(s * draws))
    pairs = (entries[:, 1:] != 0) & (entries[:, :-1] != 0)  # neighbours are independent
    assert abs(pairs.mean() - s**-2) <= 4.5 * math.sqrt(s**-2 / pairs.size) + 1e-12


def test_a_map_too_large_to_store_is_refused() -> None:
    with pytest.raises(ValueError, match="2\\^30 entries"):
        sketch.gaussian(KEY, 10**30, 24)
    with pytest.raises(ValueError, match="2\\^30 entries"):
        sketch.sparse(KEY, 10**9, 24, s="sqrt")


def test_constructors_check_their_arguments() -> None:
    with pytest.raises(ValueError, match="distribution"):
        sketch.ttrp(KEY, 10, 4, distribution="uniform")
    with pytest.raises(ValueError, match="s: expected"):
        sketch.sparse(KEY, 10, 4, s=0.5)
    with pytest.raises(ValueError, match="rank"):
        sketch.ttrp(KEY, 10, 4, rank=0)
    with pytest.raises(ValueError, match="rank"):
        sketch.tt_rows(KEY, N3, 4, rank=(1, 2, 3))
    with pytest.raises(ValueError, match="averages"):
        sketch.khatri_rao(KEY, 10, 4, averages=0)
    with pytest.raises(TypeError, match="key"):
        sketch.ttrp(0, 10, 4)
    with pytest.raises(TypeError, match="dtype"):
        sketch.ttrp(KEY, 10, 4, dtype=jnp.int32)
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        sketch.ttrp(KEY, 10, 4, dtype=jnp.float64)


# ---------------------------------------------------------------------------- apply


def test_dense_input(p: Any, rng: np.random.Generator) -> None:
    a, x = matrix(p), rng.standard_normal((2, 3, p.in_size))
    y = sketch.apply(p, x)
    assert y.shape == (2, 3, p.out_size)
    assert y.dtype == jnp.float64
    expected = x @ a[:, : p.in_size].T
    np.testing.assert_allclose(y, expected, atol=1e-12)
    np.testing.assert_allclose(sketch.apply(p, x[0, 0]), expected[0, 0], atol=1e-12)
    full = rng.standard_normal((2, *p.in_shape))
    np.testing.assert_allclose(sketch.apply(p, full), full.reshape(2, -1) @ a.T, atol=1e-12)


def test_transformations_and_complex_input(p: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, p.in_size)) + 1j * rng.standard_normal((2, p.in_size))
    a = matrix(p)[:, : p.in_size]
    y = jax.jit(jax.vmap(sketch.apply, (None, 0)))(p, x)
    assert y.dtype == jnp.complex128
    np.testing.assert_allclose(y, x @ a.T, atol=1e-12)
    gradient = jax.grad(lambda x: jnp.sum(sketch.apply(p, x) ** 2))(x.real)
    np.testing.assert_allclose(gradient, 2 * x.real @ a.T @ a, atol=1e-11)


def test_no_rows_give_no_rows() -> None:
    p = drawn("ttrp")
    assert sketch.apply(p, np.zeros((0, 60))).shape == (0, 12)
    assert sketch.apply(p, np.zeros((3, 0, 60))).shape == (3, 0, 12)


def test_train_input(p: Any) -> None:
    x = tt.random(KEY, p.in_shape, 2)
    expected = matrix(p) @ np.asarray(tt.to_dense(x)).ravel()
    y = jax.jit(sketch.apply)(p, x)
    if isinstance(p, sketch.Kronecker):
        assert y.shape == p.out_shape
        y = np.asarray(tt.to_dense(y)).ravel()
        assert np.all(y[p.out_size :] == 0)
        y = y[: p.out_size]
    np.testing.assert_allclose(y, expected, atol=1e-12)


def test_tt_matrix_input_is_projected_column_by_column(p: Any) -> None:
    columns = (2, 3, 2)[: len(p.in_shape)]
    a = tt.random_matrix(KEY, p.in_shape, columns, 2)
    dense = np.asarray(tt.to_dense(a)).reshape(math.prod(p.in_shape), -1)
    y = sketch.apply(p, a)
    if isinstance(p, sketch.Kronecker):
        assert (y.row_shape, y.col_shape) == (p.out_shape, columns)
        y = np.asarray(tt.to_dense(y)).reshape(-1, dense.shape[1])[: p.out_size]
    np.testing.assert_allclose(y, matrix(p) @ dense, atol=1e-12)


def sparse_block(p: Any, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((6, p.in_size)) * (rng.random((6, p.in_size)) < 0.3)


def test_sparse_input(p: Any, rng: np.random.Generator) -> None:
    x = sparse_block(p, rng)
    expected = x @ matrix(p)[:, : p.in_size].T
    np.testing.assert_allclose(sketch.apply(p, scipy.sparse.csr_array(x)), expected, atol=1e-12)
    # As many places as entries: the surplus ones lie outside the array.
    bcoo = jsparse.BCOO.fromdense(x, nse=x.size)
    np.testing.assert_allclose(sketch.apply(p, bcoo), expected, atol=1e-12)


def test_forms_of_sparse_input(rng: np.random.Generator) -> None:
    p = drawn("ttrp padded")
    x = sparse_block(p, rng)
    expected = x @ matrix(p)[:, :59].T
    for form in ("csc_matrix", "coo_array", "dok_array", "lil_matrix"):
        y = sketch.apply(p, getattr(scipy.sparse, form)(x))
        np.testing.assert_allclose(y, expected, atol=1e-12)
    for options in ({"n_batch": 1}, {"n_dense": 1}):
        bcoo = jsparse.BCOO.fromdense(x.reshape(2, 3, 59), **options)
        y = jax.jit(sketch.apply)(p, bcoo)
        np.testing.assert_allclose(y, expected.reshape(2, 3, -1), atol=1e-12)
    full = np.zeros((2, *p.in_shape))
    full[1, ..., -1] = 3.0
    folded = sketch.apply(p, jsparse.BCOO.fromdense(full))
    np.testing.assert_allclose(folded, full.reshape(2, -1) @ matrix(p).T, atol=1e-12)
    gradient = jax.grad(lambda v: jnp.sum(sketch.apply(p, _with_data(bcoo, v)) ** 2))(bcoo.data)
    assert gradient.shape == bcoo.data.shape


def _with_data(x: jsparse.BCOO, data: Any) -> jsparse.BCOO:
    return jsparse.BCOO((data, x.indices), shape=x.shape)


@pytest.mark.parametrize(
    ("shape", "index", "dtype"),
    [((10**4,) * 3, 2**31 - 1, "int32"), ((10, 100), 127, "int8"), ((5, 200), 127, "int8")],
)
def test_indices_narrower_than_the_shape(shape: tuple[int, ...], index: int, dtype: str) -> None:
    p = sketch.ttrp(KEY, shape, (3,) * len(shape))
    values = jnp.array([1.0, 2.0])

    def image(dtype: str) -> jax.Array:
        places = jnp.array([[0, 5], [1, index]], dtype)
        return sketch.apply(p, jsparse.BCOO((values, places), shape=(2, math.prod(shape))))

    np.testing.assert_array_equal(image(dtype), image("int64"))


def test_edges_of_sparse_input() -> None:
    p = drawn("ttrp")
    assert not np.any(sketch.apply(p, scipy.sparse.csr_array((4, 60))))
    assert sketch.apply(p, scipy.sparse.csr_array((0, 60))).shape == (0, 12)
    vector = scipy.sparse.coo_array(np.arange(60.0))
    np.testing.assert_allclose(sketch.apply(p, vector), matrix(p) @ np.arange(60.0), atol=1e-12)
    twice = scipy.sparse.coo_array(([1.0, 2.0], ([0, 0], [5, 5])), shape=(1, 60))
    np.testing.assert_allclose(sketch.apply(p, twice)[0], 3 * matrix(p)[:, 5], atol=1e-12)
    image = scipy.sparse.csr_array(np.eye(4, 5))  # axes of the modes, not rows
    q = sketch.ttrp(KEY, (4, 5), (2, 2))
    np.testing.assert_allclose(sketch.apply(q, image), matrix(q) @ np.eye(4, 5).ravel())


def test_ten_million_sparse_columns(rng: np.random.Generator) -> None:
    size, rows, nnz = 10**7, 50, 3000
    where = rng.integers(0, rows, nnz), rng.choice(size, nnz, replace=False)
    x = scipy.sparse.coo_array((rng.standard_normal(nnz), where), shape=(rows, size)).tocsr()
    p = sketch.ttrp(KEY, size, 24)
    n = p.in_shape[1]
    r, s = (np.asarray(c[0, :, :, 0]) for c in p.cores)
    coo = x.tocoo()
    columns = r[:, None, coo.col // n] * s[None, :, coo.col % n]
    expected = np.zeros((rows, 24))
    np.add.at(expected, coo.row, (columns.reshape(24, -1) * coo.data).T / math.sqrt(24))
    np.testing.assert_allclose(sketch.apply(p, x), expected, atol=1e-12)


def test_sparse_columns_beyond_32_bits() -> None:
    size = 10**12
    p = sketch.ttrp(KEY, size, 24)
    x = scipy.sparse.csr_array(([1.0, 1.0], ([0, 1], [size - 1, 0])), shape=(2, size))
    y = np.asarray(sketch.apply(p, x))
    np.testing.assert_allclose(np.abs(y), 1 / math.sqrt(24))
    last = np.array([1.0])
    for core in p.cores:
        last = np.kron(last, np.asarray(core[0, :, -1, 0]))
    np.testing.assert_allclose(y[0], last[:24] / math.sqrt(24))


def test_a_train_of_ten_to_the_thirty() -> None:
    n = (10,) * 30
    p = sketch.ttrp(KEY, n, (2,) * 30)
    x = tt.random(KEY, n, 3)
    y = sketch.apply(p, x)
    assert y.shape == (2,) * 30
    assert y.ranks == x.ranks
    # A rank-one train is projected factor by factor.
    v = np.asarray(jax.random.normal(KEY, (30, 10)))
    y = sketch.apply(p, tt.rank_one(list(v)))
    for u, core, out in zip(v, p.cores, y.cores, strict=True):
        expected = np.asarray(core)[0, :, :, 0] @ u / math.sqrt(2)
        np.testing.assert_allclose(out[0, :, 0], expected, atol=1e-12)


@pytest.mark.parametrize("name", ["tt_rows", "cp_rows"])
def test_independent_rows_take_a_train_of_ten_to_the_thirty(name: str) -> None:
    n = (1000,) * 10
    p = getattr(sketch, name)(KEY, n, 5, rank=2)
    v = np.asarray(jax.random.normal(KEY, (10, 1000)))
    y = sketch.apply(p, tt.rank_one(list(v)))
    if name == "cp_rows":
        parts = [np.asarray(f) @ u for f, u in zip(p.factors, v, strict=True)]
        expected = np.prod(parts, axis=0).sum(1) / math.sqrt(5 * 2)
    else:
        state = np.ones((5, 1, 1))
        for core, u in zip(p.cores, v, strict=True):
            state = state @ np.einsum("mrns,n->mrs", np.asarray(core), u)
        expected = state[:, 0, 0] / math.sqrt(5 * 2**9)
    np.testing.assert_allclose(y, expected, rtol=1e-10)


def test_ranks_multiply() -> None:
    p = sketch.ttrp(KEY, N3, (2, 3, 2), rank=3)
    assert sketch.apply(p, tt.random(KEY, N3, 2)).ranks == (1, 6, 6, 1)
    surplus = sketch.ttrp(KEY, N3, 11, rank=3)
    assert sketch.apply(surplus, tt.random(KEY, N3, 2)).ranks == (1, 12, 12, 1)
    a = sketch.to_tt_matrix(surplus)
    np.testing.assert_allclose(
        np.asarray(tt.to_dense(a)).reshape(math.prod(a.row_shape), -1)[:11], matrix(surplus)
    )


def test_batches_of_maps_and_trains(rng: np.random.Generator) -> None:
    keys = jax.random.split(KEY, 5)
    ps = jax.vmap(FAMILIES["ttrp"])(keys)
    x = rng.standard_normal((4, 60))
    ys = jax.vmap(sketch.apply, (0, None))(ps, x)
    for k, y in zip(keys, ys, strict=True):
        np.testing.assert_allclose(y, sketch.apply(FAMILIES["ttrp"](k), x), atol=1e-12)
    with pytest.raises(ValueError, match=r"jax\.vmap"):
        sketch.apply(ps, x)
    p = drawn("ttrp")
    trains = jax.vmap(lambda k: tt.random(k, N3, 2))(keys)
    out = jax.vmap(sketch.apply, (None, 0))(p, trains)
    one = jax.tree.map(lambda a: a[3], trains)
    np.testing.assert_allclose(out.cores[1][3], sketch.apply(p, one).cores[1], atol=1e-12)
    with pytest.raises(ValueError, match=r"jax\.vmap"):
        sketch.apply(p, trains)


def test_gradients_reach_the_map(rng: np.random.Generator) -> None:
    p, x = drawn("ttrp ranks"), rng.standard_normal(60)
    gradient = jax.grad(lambda p: jnp.sum(sketch.apply(p, x) ** 2))(p)
    # Homogeneous of degree two in every core (Euler).
    total = jnp.sum(sketch.apply(p, x) ** 2)
    for g, c in zip(gradient.cores, p.cores, strict=True):
        np.testing.assert_allclose(jnp.sum(g * c), 2 * total, rtol=1e-10)


@pytest.mark.parametrize(
    ("p_dtype", "x_dtype", "expected"),
    [
        ("float32", "float32", "float32"),
        ("float32", "float64", "float64"),
        ("float64", "float32", "float64"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "float32"),
        ("float16", "bfloat16", "float32"),
        ("float32", "complex64", "complex64"),
    ],
)
def test_dtypes_promote_and_nothing_else(p_dtype: str, x_dtype: str, expected: str) -> None:
    p = sketch.ttrp(KEY, N3, (2, 2, 2), dtype=p_dtype)
    x = jnp.ones((2, 60), x_dtype)
    y = sketch.apply(p, x)
    assert y.dtype == jnp.dtype(expected)
    eps = float(jnp.finfo(y.dtype).eps)
    exact = np.ones(60) @ matrix(p.astype(jnp.float64)).T
    actual = np.asarray(y[0]).astype(complex).real
    np.testing.assert_allclose(actual, exact, rtol=8 * eps, atol=8 * eps)
    if expected != "complex64":
        assert sketch.variance(p, x).dtype == jnp.dtype(expected)
    train = sketch.apply(p, tt.rank_one([jnp.ones(n, x_dtype) for n in N3]))
    assert train.dtype == jnp.dtype(expected)


def test_bad_input_is_named() -> None:
    p = sketch.ttrp(KEY, 59, 12)
    with pytest.raises(ValueError, match=r"x: expected a last axis of 59 or \d+, or last axes"):
        sketch.apply(p, np.ones((3, 58)))
    with pytest.raises(TypeError, match="floating-point"):
        sketch.apply(p, np.ones((3, 59), int))
    with pytest.raises(TypeError, match="floating-point"):
        sketch.apply(p, scipy.sparse.eye_array(59, dtype=int))
    with pytest.raises(TypeError, match="random map"):
        sketch.apply(np.ones((3, 59)), p)
    with pytest.raises(ValueError, match="in_shape"):
        sketch.apply(p, tt.ones((7, 8)))
    wide = tt.ones((3, 4, 5))
    wide = tt.TTMatrix([jnp.ones((1, n, 1000, 1)) for n in wide.shape])
    with pytest.raises(ValueError, match="columns"):
        sketch.apply(drawn("gaussian"), wide)


def test_nan_and_inf_are_refused(p: Any) -> None:
    for column, bad in ((7, np.nan), (0, np.inf), (p.in_size - 1, -np.inf)):
        x = np.zeros((2, 3, p.in_size))
        x[1, 1, column] = bad
        with pytest.raises(ValueError, match="x: expected finite"):
            sketch.apply(p, x)
    with pytest.raises(ValueError, match="x: expected finite"):
        sketch.variance(p, x)
    for sparse in (scipy.sparse.csr_array(x[1]), jsparse.BCOO.fromdense(x)):
        with pytest.raises(ValueError, match="x: expected finite"):
            sketch.apply(p, sparse)
    train = tt.TT([jnp.full((1, n, 1), np.nan) for n in p.in_shape])
    with pytest.raises(ValueError, match="x: expected finite"):
        sketch.apply(p, train)


def test_the_last_axis_decides_an_ambiguous_shape() -> None:
    p = sketch.ttrp(KEY, (1, 6), (1, 2))
    assert sketch.apply(p, np.ones((4, 1, 6))).shape == (4, 1, 2)
    q = sketch.ttrp(KEY, (4, 6), (2, 2))
    assert sketch.apply(q, np.ones((4, 6))).shape == (4,)


def test_a_large_numpy_array_goes_piece_by_piece(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_apply, "_HOST_CHUNK", 200)
    p, x = drawn("ttrp"), rng.standard_normal((5, 3, 60))
    np.testing.assert_allclose(sketch.apply(p, x), x @ matrix(p).T, atol=1e-12)
    x[4, 2, 59] = np.nan
    with pytest.raises(ValueError, match="finite"):
        sketch.apply(p, x)


def test_a_large_numpy_array_inside_jit(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_apply, "_HOST_CHUNK", 200)
    p, x = drawn("ttrp"), rng.standard_normal((15, 60))
    y = sketch.apply(p, x)
    np.testing.assert_allclose(jax.jit(lambda s: s * sketch.apply(p, x))(2.0), 2 * y, atol=1e-12)
    slope = jax.jit(jax.grad(lambda s: jnp.sum(s * sketch.apply(p, x))))(2.0)
    np.testing.assert_allclose(slope, np.sum(y), atol=1e-12)


def test_a_sparse_map_sees_what_it_does_not_touch() -> None:
    p = sketch.sparse(KEY, 10_000, 4, s="sqrt")
    x = np.zeros((2, 10_000))
    x[1, np.setdiff1d(np.arange(10_000), np.asarray(p.index) % 10_000)[0]] = np.nan
    with pytest.raises(ValueError, match="x: expected finite"):
        sketch.apply(p, x)


def test_numbers_that_jax_does_not_have(rng: np.random.Generator) -> None:
    p, x = drawn("ttrp"), rng.standard_normal((2, 60))
    np.testing.assert_array_equal(sketch.apply(p, x.astype(">f8")), sketch.apply(p, x))
    np.testing.assert_array_equal(sketch.variance(p, x.astype(">f8")), sketch.variance(p, x))
    long = scipy.sparse.csr_array(x).astype(np.longdouble)
    for wide in (x.astype(np.longdouble), x.astype(np.clongdouble), long):
        with pytest.raises(TypeError, match="that JAX can hold"):
            sketch.apply(p, wide)


def test_equal_shapes_compile_once(rng: np.random.Generator) -> None:
    make = FAMILIES["ttrp"]
    sketch.apply(make(KEY), rng.standard_normal((9, 60)))
    before = _apply._project._cache_size()
    for seed in range(3):
        sketch.apply(make(jax.random.key(seed)), rng.standard_normal((9, 60)))
    assert _apply._project._cache_size() == before


# ---------------------------------------------------------------------------- speed, by model


def test_groups_read_the_input_about_once() -> None:
    floor = 1000 * 250_000
    plan = _mode_groups.choose(1000, 250_000, (25, 25, 20, 20), (4, 3, 2, 1), (1,) * 5)
    assert plan.cuts == (0, 2, 4)  # measured best too
    assert plan.cost < 1.25 * floor
    assert _mode_groups.choose(1000, 250_000, (500, 500), (6, 4), (1,) * 3).cost < 1.25 * floor
    single = _mode_groups._group_cost(1000, (500, 500), (6, 4), (1,) * 3, 0, 2)
    assert single > 1.9 * floor
    small = _mode_groups.choose(1000, 10_000, (25, 25, 16), (4, 3, 2), (1,) * 4)
    assert small.cuts == (0, 1, 3)


def test_groups_are_few_however_many_modes() -> None:
    plan = _mode_groups.choose(64, 2**20, (2,) * 20, (2,) * 4 + (1,) * 16, (1,) * 21)
    assert len(plan.cuts) - 1 <= 4
    assert plan.cost < 2 * 64 * 2**20


def test_a_short_input_is_padded_only_if_that_is_cheaper() -> None:
    large = _mode_groups.choose(1000, 10_007, (91, 110), (6, 4), (1, 1, 1))
    assert large == (large.cuts, False, large.cost)
    many_rows = _mode_groups.choose(1000, 10_007, (91, 110), (60, 40), (1, 1, 1))
    assert many_rows.pads_input


@pytest.mark.parametrize("cuts", [(0, 3), (0, 1, 3), (0, 2, 3), (0, 1, 2, 3)])
def test_every_grouping_gives_the_same(
    cuts: tuple[int, ...], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = drawn("ttrp ranks")
    x = rng.standard_normal((11, 60))
    expected = x @ written_out(p).T
    monkeypatch.setattr(_mode_groups, "choose", lambda *_: _mode_groups.Groups(cuts, False, 0.0))
    np.testing.assert_allclose(_apply.project(p, jnp.asarray(x)), expected, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["khatri_rao", "tt_rows"])
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_every_cut_of_the_rows_gives_the_same(
    name: str, cut: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = drawn(name)
    x = rng.standard_normal((11, 60))
    monkeypatch.setattr(_mode_groups, "split_rows", lambda *_: cut)
    np.testing.assert_allclose(_apply.project(p, jnp.asarray(x)), x @ written_out(p).T, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 400])
def test_a_sparse_map_gathers_or_multiplies(rows: int, rng: np.random.Generator) -> None:
    p = sketch.sparse(KEY, 5000, 6, s=200.0)
    x = rng.standard_normal((rows, 5000))
    np.testing.assert_allclose(sketch.apply(p, x), x @ written_out(p).T, atol=1e-11)


# ---------------------------------------------------------------------------- moments


def enumerated(p: Any, x: np.ndarray, s: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of ‖f(x)‖² over every value of the entries: ±√s w.p. 1/(2s), else 0.

    Three-point entries with s = 3 share the moments of Gaussian ones up to the fifth.
    """
    leaves, tree = jax.tree.flatten(p)
    count = sum(a.size for a in leaves)
    values = np.array([-1.0, 1.0] if s == 1 else [-math.sqrt(s), 0, math.sqrt(s)])
    odds = np.array([0.5, 0.5] if s == 1 else [0.5 / s, 1 - 1 / s, 0.5 / s])
    states = np.array(list(itertools.product(range(len(values)), repeat=count)))
    weights = np.prod(odds[states], axis=1)
    drawn = np.split(values[states], np.cumsum([a.size for a in leaves])[:-1], axis=1)
    shaped = [jnp.asarray(d.reshape(-1, *a.shape)) for d, a in zip(drawn, leaves, strict=True)]
    y = jax.vmap(sketch.apply, (0, None))(jax.tree.unflatten(tree, shaped), x)
    squares = np.sum(np.abs(np.asarray(y)) ** 2, axis=-1)
    mean = weights @ squares
    return mean, weights @ (squares - mean) ** 2


def surplus(p: Any, rows: int) -> Any:
    return dataclasses.replace(p, out_size=rows)


SIGN_CASES = {
    "ttrp": lambda: sketch.ttrp(KEY, (3, 2), (2, 2)),
    "ttrp three modes": lambda: sketch.ttrp(KEY, (2, 2, 2), (2, 2, 1)),
    "ttrp rank 2": lambda: sketch.ttrp(KEY, (2, 2), (1, 2), rank=2),
    "ttrp ranks 2, 2": lambda: sketch.ttrp(KEY, (2, 2, 1), (1, 1, 2), rank=2),
    "ttrp padded": lambda: sketch.ttrp(KEY, 5, 3, order=2),
    "ttrp 3 of 4 rows": lambda: surplus(sketch.ttrp(KEY, (3, 2), (2, 2)), 3),
    "ttrp 3 of 4 rows, rank 2": lambda: surplus(sketch.ttrp(KEY, (2, 2), (2, 2), rank=2), 3),
    "ttrp 5 of 8 rows": lambda: surplus(sketch.ttrp(KEY, (2, 2, 2), (2, 2, 2)), 5),
    "khatri_rao": lambda: sketch.khatri_rao(KEY, (2, 2), 2, distribution="rademacher"),
    "khatri_rao T = 3": lambda: sketch.khatri_rao(
        KEY, (2, 2), 1, distribution="rademacher", averages=3
    ),
    "tt_rows": lambda: sketch.tt_rows(KEY, (2, 2, 1), 1, rank=2, distribution="rademacher"),
    "cp_rows": lambda: sketch.cp_rows(KEY, (2, 1, 2), 1, rank=2, distribution="rademacher"),
}
THREE_POINT_CASES = {
    "ttrp": lambda law, s: sketch.ttrp(KEY, (2, 2), (2, 2), distribution=law, s=s),
    "ttrp rank 2": lambda law, s: sketch.ttrp(KEY, (2, 2), (1, 1), rank=2, distribution=law, s=s),
    "khatri_rao": lambda law, s: sketch.khatri_rao(KEY, (2, 2), 2, distribution=law, s=s),
    "tt_rows": lambda law, s: sketch.tt_rows(KEY, (2, 1), 1, rank=2, distribution=law, s=s),
    "cp_rows": lambda law, s: sketch.cp_rows(KEY, (2, 2), 1, rank=2, distribution=law, s=s),
}


def check_moments(p: Any, x: np.ndarray, mean: np.ndarray, var: np.ndarray) -> None:
    """Unbiased, and of the variance that `variance` gives for a dense x and for its train."""
    square = np.sum(np.abs(x) ** 2, axis=-1)
    np.testing.assert_allclose(mean, square, rtol=1e-12)
    np.testing.assert_allclose(sketch.variance(p, x), var, rtol=1e-11)
    relative = np.asarray(sketch.variance(p, x, relative=True))
    np.testing.assert_allclose(relative, var / square**2, rtol=1e-11)
    assert np.all(relative <= sketch.variance_bound(p) * (1 + 1e-12))
    for row, value in zip(x, var, strict=True):
        full = np.pad(row, (0, math.prod(p.in_shape) - len(row))).reshape(p.in_shape)
        train = tt.from_dense(jnp.asarray(full), rank=max(p.in_shape) ** 2)
        np.testing.assert_allclose(sketch.variance(p, train), value, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "complex") for name in SIGN_CASES), *((name, "real") for name in [*SIGN_CASES][::4])],
)
def test_moments_are_exact_for_signs(name: str, kind: str, rng: np.random.Generator) -> None:
    p = SIGN_CASES[name]()
    x = rng.standard_normal((2, p.in_size))
    if kind == "complex":
        x = x + 1j * rng.standard_normal(x.shape)
    check_moments(p, x, *enumerated(p, x))


@pytest.mark.slow
@pytest.mark.parametrize("name", THREE_POINT_CASES)
@pytest.mark.parametrize(("law", "s"), [("gaussian", 3.0), ("sparse", 5.0)])
def test_moments_are_exact_for_three_point_entries(
    name: str, law: str, s: float, rng: np.random.Generator
) -> None:
    p = THREE_POINT_CASES[name](law, s)
    x = rng.standard_normal((2, p.in_size))
    check_moments(p, x, *enumerated(p, x, s))


@pytest.mark.parametrize("s", [1.0, 3.0, 5.0])
def test_moments_are_exact_without_structure(s: float, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 4))
    p = sketch.sparse(KEY, (2, 2), 2, s=s)
    stored = sketch.gaussian(KEY, (2, 2), 2)  # a matrix whose entries to enumerate
    check_moments(p, x, *enumerated(stored, x, s))
    if s == 3:
        check_moments(stored, x, *enumerated(stored, x, s))


def test_variance_is_the_published_closed_form_on_rank_one(rng: np.random.Generator) -> None:
    vectors = [rng.standard_normal(n) for n in N3]
    x = np.einsum("a,b,c->abc", *vectors)
    kappa = [np.sum(v**4) / np.sum(v**2) ** 2 for v in vectors]
    for law, delta in (("rademacher", 1), ("gaussian", 3), ("sparse", 6)):
        m = (2, 3, 2)
        p = sketch.ttrp(KEY, N3, m, distribution=law, s=6.0)
        factors = [1 + (2 + (delta - 3) * k) / mk for k, mk in zip(kappa, m, strict=True)]
        value = sketch.variance(p, x, relative=True)
        np.testing.assert_allclose(value, np.prod(factors) - 1, rtol=1e-12)
    for r in (1, 5):
        value = sketch.variance(sketch.tt_rows(KEY, N3, 7, rank=r), x, relative=True)
        np.testing.assert_allclose(value, (3 * (1 + 2 / r) ** 2 - 1) / 7, rtol=1e-12)
        value = sketch.variance(sketch.cp_rows(KEY, N3, 7, rank=r), x, relative=True)
        np.testing.assert_allclose(value, (27 / r + 2 - 3 / r) / 7, rtol=1e-12)
        averaged = sketch.khatri_rao(KEY, N3, 7, averages=r)
        np.testing.assert_allclose(sketch.variance(averaged, x, relative=True), value)


@pytest.mark.slow
def test_variance_obeys_the_bounds_of_the_note(rng: np.random.Generator) -> None:
    """The paper's bound, and the one that says where a Kronecker map is worse than a dense one."""
    for _ in range(2):
        n, m = rng.integers(2, 6, 3), rng.integers(1, 4, 3)
        x = rng.standard_normal(n) * rng.random(n) ** rng.integers(0, 4)
        for law, delta in (("rademacher", 1.0), ("gaussian", 3.0)):
            p = sketch.ttrp(KEY, n.tolist(), m.tolist(), distribution=law)
            value, norm4 = sketch.variance(p, x), np.sum(x**2) ** 2
            top = (delta + n.max() * (m.max() + 2) - 3) ** 3 * x.size * np.abs(x).max() ** 4
            assert value <= top / m.prod() - norm4
            assert value <= (np.prod(1 + 2 / m) - 1) * norm4 * (1 + 1e-12)
    assert sketch.variance_bound(sketch.ttrp(KEY, (4,) * 10, (2,) * 10)) == pytest.approx(1023)


def test_dense_and_train_routes_agree(rng: np.random.Generator) -> None:
    """Four modes take patterns; six a train without truncation; both against a given train."""
    for p in (
        sketch.ttrp(KEY, (2,) * 6, 5, rank=2),
        sketch.tt_rows(KEY, (2,) * 4, 5, rank=3, distribution="rademacher"),
    ):
        x = rng.standard_normal(p.in_shape)
        train = tt.from_dense(jnp.asarray(x), rank=8)
        np.testing.assert_allclose(sketch.variance(p, x), sketch.variance(p, train), rtol=1e-10)


def test_one_nonzero_entry_is_mapped_without_variance() -> None:
    """Rademacher signs keep the norm of a coordinate vector; three-point entries do worst there."""
    x = np.zeros((2, 60))
    x[0, 17], x[1] = 3.0, 0.0
    np.testing.assert_array_equal(sketch.variance(drawn("ttrp"), x), 0)
    p = sketch.ttrp(KEY, N3, (2, 3, 2), distribution="sparse", s=9.0)
    value = sketch.variance(p, x, relative=True)
    np.testing.assert_allclose(value[0], sketch.variance_bound(p), rtol=1e-12)
    assert value[1] == 0


@pytest.mark.slow
def test_variance_of_a_train_of_ten_to_the_thirty() -> None:
    v = jax.random.normal(KEY, (30, 10))
    x = tt.rank_one(list(v))
    p = sketch.ttrp(KEY, (10,) * 30, (16,) * 30)
    kappa = jnp.sum(v**4, 1) / jnp.sum(v**2, 1) ** 2
    exact = jnp.prod(1 + (2 - 2 * kappa) / 16) - 1
    np.testing.assert_allclose(sketch.variance(p, x, relative=True), exact, rtol=1e-10)
    norm4 = jnp.prod(jnp.sum(v**2, 1)) ** 2
    np.testing.assert_allclose(sketch.variance(p, x), exact * norm4, rtol=1e-9)
    single = sketch.variance(p.astype(jnp.float32), x.astype(jnp.float32), relative=True)
    np.testing.assert_allclose(single, exact, rtol=1e-4)  # ‖x‖⁴ is past float32


def test_variance_is_differentiable(rng: np.random.Generator) -> None:
    x = rng.standard_normal(60)
    p = drawn("ttrp")
    gradient = jax.jit(jax.grad(lambda x: sketch.variance(p, x)))(x)
    np.testing.assert_allclose(gradient @ x, 4 * sketch.variance(p, x), rtol=1e-10)  # Euler
    step = 1e-6 * rng.standard_normal(60)
    change = sketch.variance(p, x + step) - sketch.variance(p, x - step)
    np.testing.assert_allclose(change, 2 * gradient @ step, rtol=1e-6)
    train = tt.random(KEY, N3, 2)
    by_core = jax.grad(lambda t: sketch.variance(p, t))(train)
    for g, c in zip(by_core.cores, train.cores, strict=True):
        np.testing.assert_allclose(jnp.sum(g * c), 4 * sketch.variance(p, train), rtol=1e-9)


@pytest.mark.parametrize("size", [5e37, 1e-30])
@pytest.mark.parametrize("name", ["ttrp", "gaussian", "six modes"])
def test_variance_of_numbers_near_the_limits(
    name: str, size: float, rng: np.random.Generator
) -> None:
    six = sketch.ttrp(KEY, (2,) * 6, (1,) * 6, dtype="float32")
    p = six if name == "six modes" else drawn(name).astype("float32")
    x = rng.standard_normal(p.in_size).astype(np.float32)
    wanted = sketch.variance(p, x, relative=True)
    for scaled in (size * x, size * x.astype(np.complex64)):
        found = sketch.variance(p, scaled.astype(np.result_type(x, scaled.dtype)), relative=True)
        if not np.iscomplexobj(scaled):
            np.testing.assert_allclose(found, wanted, rtol=1e-4)
        assert np.isfinite(found)
        assert found > 0
    np.testing.assert_allclose(
        sketch.variance(p, 1e-7 * x), 1e-28 * sketch.variance(p, x), rtol=1e-4
    )


@pytest.mark.parametrize(
    ("left", "right"), [(1e200, 1e-200), (1e-200, 1e-50), (1e-200, 1e160), (1e-80, 1e130)]
)
def test_variance_of_cores_that_leave_the_range(left: float, right: float) -> None:
    p = sketch.ttrp(KEY, (8, 9), (2, 3))
    x = tt.random(jax.random.key(1), (8, 9), 2)
    far = tt.TT([left * x.cores[0], right * x.cores[1]])
    wanted = sketch.variance(p, x, relative=True)
    np.testing.assert_allclose(sketch.variance(p, far, relative=True), wanted, rtol=1e-12)
    factor = (left * right) ** 2
    expected = factor * sketch.variance(p, x) * factor
    np.testing.assert_allclose(sketch.variance(p, far), expected, rtol=1e-12)


def test_variance_checks_its_arguments() -> None:
    p = drawn("ttrp")
    with pytest.raises(ValueError, match="one TT of shape"):
        sketch.variance(p, tt.ones((5, 12)))
    with pytest.raises(TypeError, match="array or a TT"):
        sketch.variance(p, scipy.sparse.eye_array(60))
    with pytest.raises(TypeError, match="random map"):
        sketch.variance(np.ones(60), np.ones(60))
    many = sketch.ttrp(KEY, (2,) * 16, (2,) * 16)
    with pytest.raises(ValueError, match="TT-ranks"):
        sketch.variance(many, np.ones(2**16))
    assert sketch.variance(p, np.ones((0, 60))).shape == (0,)


@pytest.mark.parametrize("name", ["ttrp surplus rows", "sparse", "khatri_rao padded"])
def test_monte_carlo_agrees(name: str, rng: np.random.Generator) -> None:
    """The library's own draws, in thousands, have the mean and variance computed."""
    draws = 20_000
    p = drawn(name)
    x = rng.standard_normal(p.in_size)
    x /= np.linalg.norm(x)
    ps = jax.vmap(FAMILIES[name])(jax.random.split(KEY, draws))
    squares = np.sum(np.asarray(jax.vmap(sketch.apply, (0, None))(ps, x)) ** 2, axis=1)
    variance = float(sketch.variance(p, x))
    assert abs(squares.mean() - 1) <= 4.5 * math.sqrt(variance / draws)
    fourth = np.mean((squares - squares.mean()) ** 4)
    assert abs(squares.var() - variance) <= 5 * math.sqrt((fourth - variance**2) / draws)


# ---------------------------------------------------------------------------- guarantees


def test_the_tail_bound_of_one_factor_holds() -> None:
    """Achlioptas' lower tail needs min_t E exp(−tQ) e^{t(1−η)} ≤ e^{−(η²/4 − η³/6)} if E Q² ≤ 3."""
    eta = np.linspace(1e-3, 1, 2000)
    t = eta / (2 * (1 + eta))
    exponent = eta**2 / 4 - eta**3 / 6
    assert np.all(np.log1p(-t + 1.5 * t**2) + t * (1 - eta) <= -exponent)
    assert np.all((np.log1p(eta) - eta) / 2 <= -exponent)


def test_minimal_dimensions() -> None:
    assert sketch.johnson_lindenstrauss_min_dim(1000, 0.5, order=1) == 387
    assert _variance_and_bounds.guaranteed_shape(1000, 0.5) == (1566, 1566)
    assert _variance_and_bounds.guaranteed_shape(1000, 0.5, rank=100) == (1566, 16)
    assert sketch.johnson_lindenstrauss_min_dim(1000, 0.5, rank=100) == 1566 * 16
    assert sketch.johnson_lindenstrauss_min_dim(1, 0.5) > 0
    sizes = [
        sketch.johnson_lindenstrauss_min_dim(n, e) for n, e in ((9, 0.9), (99, 0.9), (99, 0.2))
    ]
    assert sizes == sorted(sizes)
    for bad in ({"eps": 0.0}, {"eps": 1.0}, {"delta": 0.0}, {"order": 0}, {"rank": 0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            sketch.johnson_lindenstrauss_min_dim(10, **{"eps": 0.5, **bad})


@pytest.mark.parametrize("rank", [1, 8])
@pytest.mark.parametrize("law", ["rademacher", "gaussian"])
def test_distances_are_kept_at_the_minimal_dimension(rank: int, law: str) -> None:
    """Structured points, on which a Kronecker map is at its worst, and none too many failures."""
    points, draws, eps, delta = 4, 100, 0.9, 0.4
    n = (24, 24)
    m = _variance_and_bounds.guaranteed_shape(points, eps, delta=delta, rank=rank)
    u, v = jax.random.normal(KEY, (2, points, 24))
    x = (u[:, :, None] * v[:, None, :]).reshape(points, -1)
    i, j = np.triu_indices(points, 1)
    differences = x[i] - x[j]
    exact = jnp.sum(differences**2, axis=1)

    def worst(key: Any) -> jax.Array:
        p = sketch.ttrp(key, n, m, distribution=law, rank=rank, dtype=jnp.float64)
        ratio = jnp.sum(sketch.apply(p, differences) ** 2, axis=1) / exact
        return jnp.max(jnp.abs(ratio - 1))

    distortion = jax.jit(lambda keys: jax.lax.map(worst, keys))(jax.random.split(KEY, draws))
    failures = np.sum(np.asarray(distortion) > eps)
    assert failures <= delta * draws + 3 * math.sqrt(draws * delta * (1 - delta))
    assert np.median(distortion) < eps
