"""Dense arrays into trains: the promise on the error, the ranks, static shapes, bad input."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import linalg, tt
from tests.oracles import (
    DTYPES,
    REAL,
    bond_tails,
    compilations,
    cores,
    dense,
    eps,
    error,
    hilbert,
    norm,
    normal,
    tt_svd,
)

SHAPES = [(4, 3, 5), (7,), (1,), (1, 1, 1), (1, 5, 1, 3), (2,) * 8, (40, 3, 2), (2, 3, 40), (70, 6)]


def tensors(rng: np.random.Generator, shape, dtype) -> dict[str, np.ndarray]:
    noise = normal(rng, shape, dtype)
    corners = np.zeros(shape, dtype)
    corners[(0,) * len(shape)], corners[(-1,) * len(shape)] = 1, 1e-3
    smooth = np.sin(np.indices(shape).sum(0)).astype(dtype)
    return {
        "decaying": hilbert(shape, dtype),
        "random": noise,
        "zero": 0 * noise,
        "ones": np.ones(shape, dtype),
        "corners": corners,
        "noise of roundoff": smooth + eps(dtype) * noise,
        "small": hilbert(shape, dtype) * np.asarray(1e-17, dtype),
        "large": hilbert(shape, dtype) * np.asarray(1e17, dtype),
    }


# The promise -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tol_is_kept_with_the_ranks_of_tt_svd(rng, shape, dtype):
    e = eps(dtype)
    for name, x in tensors(rng, shape, dtype).items():
        for tol in (10 * e, 1e3 * e, e**0.5, 1e-2):
            exact, _ = tt_svd(x, tol=tol)
            for method in linalg.METHODS:
                t = tt.from_dense(x, tol=tol, method=method)
                where = (name, tol / e, method, t.ranks, exact)
                assert error(dense(t), x) <= tol * norm(x), where
                assert t.dtype == dtype
                # Roundoff shows in the ranks of the compared algorithm too, near eps.
                if tol > 20 * e:
                    assert all(a <= b + 1 for a, b in zip(t.ranks, exact, strict=True)), where


@pytest.mark.parametrize("level", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("shape", [(10, 10, 10), (8,) * 4, (3,) * 7, (2,) * 12, (4,) * 8], ids=str)
def test_noise_under_tol_costs_no_rank(rng, shape, level):
    """Rank 3 plus noise of ``level`` times the tolerance: no unfolding order may keep the noise."""
    tol = 1e-4
    x, noise = dense(tt.TT(cores(rng, shape, 3, np.float64))), normal(rng, shape)
    x = x / norm(x) + level * tol * noise / norm(noise)
    t = tt.from_dense(x, tol=tol)
    exact, _ = tt_svd(x, tol=tol)
    assert error(dense(t), x) <= tol * norm(x)
    assert all(a <= b + 1 for a, b in zip(t.ranks, exact, strict=True)), (t.ranks, exact)


def test_a_million_entries_match_the_oracle():
    x = hilbert((4,) * 10)
    t = tt.from_dense(x, tol=1e-6)
    exact, _ = tt_svd(x, tol=1e-6)
    assert error(dense(t), x) <= 1e-6 * norm(x)
    assert all(abs(a - b) <= 1 for a, b in zip(t.ranks, exact, strict=True)), (t.ranks, exact)


def test_the_error_is_at_most_the_sum_of_the_tails(rng):
    """And, the other way, no train of these ranks is nearer than the largest single tail."""
    for x in (hilbert((4, 3, 5, 4)), normal(rng, (4, 3, 5, 4), np.complex128)):
        for rank in (1, 2, 3):
            for method in ("auto", "svd", "gram"):
                t = tt.from_dense(x, rank=rank, method=method)
                best = bond_tails(x, t.ranks)
                roundoff = 1e-12 * norm(x)
                assert error(dense(t), x) <= math.hypot(*best) + roundoff
                assert error(dense(t), x) >= best.max() - roundoff
        # A sketch is within a few per cent of that.
        t = tt.from_dense(x, rank=2, method="randomized")
        assert error(dense(t), x) <= 1.1 * math.hypot(*bond_tails(x, t.ranks))


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_cores_but_the_last_are_isometries(rng, dtype):
    x = hilbert((4, 3, 5, 4), dtype)
    trains = [tt.from_dense(x, tol=1e-3), tt.from_dense(x, rank=2), tt.from_dense(x, rank=3)]
    for t in trains:
        for c in t.cores[:-1]:
            u = np.asarray(c).reshape(-1, c.shape[-1])
            assert error(u.conj().T @ u, np.eye(u.shape[1])) <= 50 * eps(dtype)


def test_jax_arrays_and_other_orders_of_memory_are_welcome(rng):
    x = hilbert((4, 3, 5))
    for same in (jnp.asarray(x), np.asfortranarray(x), x[::-1][::-1], np.ma.asarray(x).data):
        t = tt.from_dense(same, tol=1e-8)
        assert error(dense(t), x) <= 1e-8 * norm(x)
    x.setflags(write=False)
    before = x.copy()
    tt.from_dense(x, tol=1e-8)
    assert (x == before).all()


def test_bfloat16_by_rank_and_by_tol():
    x = jnp.asarray(hilbert((4, 3, 5)), jnp.bfloat16)
    for t in (
        tt.from_dense(x, tol=0.1),
        tt.from_dense(x, rank=3),
        tt.from_dense(x, tol=0.1, rank=3),
    ):
        assert t.dtype == jnp.bfloat16
        assert error(dense(t), x) <= 0.1 * norm(x)
    assert tt.from_dense(x, tol=0.1).ranks == (1, 2, 2, 1)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_by_rank_data_of_any_size_are_decomposed(dtype, size):
    """Squares of these numbers are out of float32's range."""
    x = np.ones((3, 4, 5), dtype) * dtype(size)
    options = [{"rank": 1}, {"rank": 2, "tol": 1e-3}, {"tol": 1e-3}]
    for f in [lambda x, o=o: tt.from_dense(x, **o) for o in options] + [
        jax.jit(lambda x, o=o: tt.from_dense(x, **o)) for o in options[:2]
    ]:
        assert error(dense(f(jnp.asarray(x))) / size, np.ones(x.shape)) <= 1e-4


# Static shapes -----------------------------------------------------------------------------------


def test_rank_with_tol_has_the_shapes_of_rank_and_zeroes_the_rest():
    x = hilbert((4, 3, 5, 4))
    free = tt.from_dense(x, tol=1e-3)
    for f in (tt.from_dense, jax.jit(tt.from_dense, static_argnames="rank")):
        t = f(jnp.asarray(x), tol=1e-3, rank=6)
        assert t.ranks == (1, 4, 6, 4, 1)
        assert error(dense(t), x) <= 1e-3 * norm(x)
        counted = tt.effective_ranks(t)
        assert all(a <= b + 1 for a, b in zip(counted, free.ranks, strict=True)), counted
        assert tt.trim(t).ranks == counted
        low = f(jnp.asarray(x), tol=1e-9, rank=2)  # rank does not allow this tolerance
        assert low.ranks == (1, 2, 2, 2, 1)
        assert error(dense(low), x) <= 1.01 * math.hypot(*bond_tails(x, low.ranks))


def test_one_rank_is_cut_where_the_bond_is_small(rng):
    x = normal(rng, (2, 3, 4, 2))
    assert tt.from_dense(x, rank=100).ranks == (1, 2, 6, 2, 1)
    assert tt.from_dense(x, rank=np.int64(3)).ranks == (1, 2, 3, 2, 1)
    assert tt.from_dense(x, rank=[1, 5, 2]).ranks == (1, 1, 3, 2, 1)
    assert tt.from_dense(x, rank=(2, 6, 2)).ranks == (1, 2, 6, 2, 1)


def test_vmap_decomposes_a_batch(rng):
    x = normal(rng, (3, 2, 3, 4))
    batch = jax.jit(jax.vmap(lambda x: tt.from_dense(x, rank=2)))(x)
    assert (batch.shape, batch.ranks) == ((2, 3, 4), (1, 2, 2, 1))
    for k in range(3):
        one = tt.TT([c[k] for c in batch.cores])
        assert error(dense(one), dense(tt.from_dense(x[k], rank=2))) <= 1e-12


def test_tol_alone_compiles_nothing(rng):
    x = [normal(rng, shape) for shape in ((3, 4, 5), (4, 4, 2, 2), (9, 2))]
    tt.from_dense(x[0], tol=0.1)
    with compilations() as programs:
        for k in range(9):
            tt.from_dense(x[k % 3], tol=10.0 ** -(1 + k))
    assert programs == []
    tt.from_dense(x[0], rank=2)
    with compilations() as programs:
        tt.from_dense(x[0] + 1, rank=2)
    assert programs == []


@pytest.mark.parametrize("options", [{"rank": 2}, {"rank": 3, "tol": 1e-3}], ids=str)
@pytest.mark.parametrize("method", linalg.METHODS)
def test_gradients_are_finite_on_degenerate_data(method, options):
    def loss(x):
        return jnp.sum(jnp.sin(tt.to_dense(tt.from_dense(x, method=method, **options))))

    gradient = jax.jit(jax.grad(loss))
    padded = np.zeros((3, 4, 3))
    padded[:2, :2, :2] = hilbert((2, 2, 2))
    twice = np.concatenate([hilbert((3, 2, 3))] * 2, axis=1)
    unit = np.zeros((3, 4, 3))
    unit[np.arange(3), np.arange(3), np.arange(3)] = 1.0
    for x in (0 * padded, padded, twice, unit, np.ones((3, 4, 3))):
        assert np.isfinite(gradient(jnp.asarray(x))).all()


# Matrices ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_from_dense_keeps_tol_and_folds_rows_and_columns(rng, dtype):
    w = np.kron(normal(rng, (2, 3), dtype), normal(rng, (4, 1), dtype)).astype(dtype)
    t = tt.matrix_from_dense(w, (2, 4), (3, 1), tol=100 * eps(dtype))
    assert (t.row_shape, t.col_shape, t.ranks) == ((2, 4), (3, 1), (1, 1, 1))
    assert error(dense(t), w) <= 100 * eps(dtype) * norm(w)
    full = normal(rng, (8, 3), dtype)
    for options in ({"tol": 0.3}, {"rank": 4}):
        t = tt.matrix_from_dense(full, (2, 4), (3, 1), **options)
        assert error(dense(t), full) <= (0.3 if "tol" in options else 1e-5) * norm(full)


# Bad input ---------------------------------------------------------------------------------------


X = np.ones((2, 3, 4))


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (ValueError, "tol=.*rank=.*neither", lambda: tt.from_dense(X)),
        (ValueError, "tol: .*got 0", lambda: tt.from_dense(X, tol=0)),
        (ValueError, "tol: .*-0.1", lambda: tt.from_dense(X, tol=-0.1)),
        (ValueError, "tol: .*nan", lambda: tt.from_dense(X, tol=math.nan)),
        (ValueError, "tol: .*inf", lambda: tt.from_dense(X, tol=math.inf)),
        (ValueError, "tol: .*10 eps.*float64", lambda: tt.from_dense(X, tol=1e-15)),
        (ValueError, "10 eps.*float32", lambda: tt.from_dense(X.astype(np.float32), tol=1e-7)),
        (ValueError, "rank: .*got 0", lambda: tt.from_dense(X, rank=0)),
        (ValueError, "rank: .*got -2", lambda: tt.from_dense(X, rank=[1, -2])),
        (ValueError, "rank: .*1.5", lambda: tt.from_dense(X, rank=1.5)),  # type: ignore
        (ValueError, "rank: .*2 of them.*got 3", lambda: tt.from_dense(X, rank=[1, 2, 3])),
        (ValueError, "rank: .*True", lambda: tt.from_dense(X, rank=True)),
        (ValueError, "x: .*NaN", lambda: tt.from_dense(X * np.nan, tol=0.1)),
        (ValueError, "x: .*NaN", lambda: tt.from_dense(X * np.nan, rank=1)),
        (ValueError, "x: .*NaN", lambda: tt.from_dense(X[0, 0] * np.nan, tol=0.1)),
        (ValueError, "x: .*Inf", lambda: tt.from_dense(X / (X.cumsum(2) < 4), tol=0.1)),
        (ValueError, "x: .*Inf", lambda: tt.from_dense(jnp.full((2, 2), jnp.inf), tol=0.1)),
        (TypeError, "x: .*int64", lambda: tt.from_dense(X.astype(int), tol=0.1)),
        (TypeError, "x: .*bool", lambda: tt.from_dense(X > 0, rank=1)),
        (TypeError, "x: .*object", lambda: tt.from_dense(tt.ones((2, 3)), rank=1)),
        (ValueError, "x: .*scalar", lambda: tt.from_dense(np.float64(1), tol=0.1)),
        (ValueError, "method.*'fast'", lambda: tt.from_dense(X, rank=1, method="fast")),  # type: ignore
        (ValueError, "method.*'fast'", lambda: tt.from_dense(X, tol=0.1, method="fast")),  # type: ignore
        (TypeError, "rank=", lambda: jax.jit(lambda x: tt.from_dense(x, tol=0.1))(X)),
        (TypeError, "rank=", lambda: jax.vmap(lambda x: tt.from_dense(x, tol=0.1))(X)),
        (TypeError, "rank=", lambda: jax.jit(lambda e: tt.from_dense(X, tol=e))(0.1)),
        (TypeError, "rank=", lambda: jax.grad(lambda x: tt.norm(tt.from_dense(x, tol=0.1)))(X)),
        (ValueError, r"w: .*\(6, 4\).*\(2, 3, 4\)",
         lambda: tt.matrix_from_dense(X, (2, 3), (2, 2), rank=1)),
        (ValueError, "col_shape", lambda: tt.matrix_from_dense(X[0], (3,), (2, 2), rank=1)),
        (ValueError, "row_shape", lambda: tt.matrix_from_dense(X[0], (), (), rank=1)),
    ],
)  # fmt: skip
def test_bad_input_is_named(kind, message, call):
    with np.errstate(divide="ignore"), pytest.raises(kind, match=message):
        call()
