"""Exact arithmetic: laws, dense oracles, accuracy, range, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt
from tests.oracles import DTYPES, cores, dense, eps, error, norm, normal, wide


def train(rng, shape=(3, 2, 4), rank=2, dtype=np.float64) -> tt.TT:
    return tt.TT(cores(rng, shape, rank, dtype))


def matrix(rng, rows=(2, 1, 3), cols=(2, 3, 2), dtype=np.float64) -> tt.TTMatrix:
    flat = cores(rng, [m * n for m, n in zip(rows, cols, strict=True)], 2, dtype)
    return tt.TTMatrix(
        [c.reshape(len(c), m, n, -1) for c, m, n in zip(flat, rows, cols, strict=True)]
    )


# Laws --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_inner_is_sesquilinear_and_gives_the_norm(rng, dtype):
    x, y = train(rng, dtype=dtype), train(rng, rank=3, dtype=dtype)
    bound = 100 * eps(dtype) * norm(dense(x)) * norm(dense(y))
    assert abs(wide(tt.inner(x, y)) - np.vdot(dense(x), dense(y))) <= bound
    assert abs(tt.inner(y, x) - np.conj(tt.inner(x, y))) <= bound
    square = tt.inner(x, x)
    assert abs(np.imag(square)) <= 10 * eps(dtype) * abs(square)
    assert float(tt.norm(x)) ** 2 == pytest.approx(float(np.real(square)), rel=20 * eps(dtype))
    assert tt.norm(x).dtype == tt.distance(x, y).dtype == np.zeros((), dtype).real.dtype
    if np.iscomplexobj(np.zeros((), dtype)):
        number = np.dtype(dtype).type(2j)
        assert abs(tt.inner(number * x, y) - np.conj(number) * tt.inner(x, y)) <= 4 * bound
        assert abs(tt.inner(x, number * y) - number * tt.inner(x, y)) <= 4 * bound
        # `@` is NumPy's: no conjugation.
        assert abs(wide(x @ y) - dense(x).ravel() @ dense(y).ravel()) <= bound


def test_matrices_have_the_frobenius_inner_product(rng):
    a, b = matrix(rng, dtype=np.complex128), matrix(rng, dtype=np.complex128)
    assert abs(tt.inner(a, b) - np.vdot(dense(a), dense(b))) <= 1e-13 * norm(dense(a)) ** 2
    assert float(tt.norm(a)) == pytest.approx(norm(dense(a)), rel=1e-13)
    assert float(tt.distance(a, b)) == pytest.approx(error(dense(a), dense(b)), rel=1e-13)


def test_transpose_reverses_a_product_and_does_not_conjugate(rng):
    a = matrix(rng, dtype=np.complex128)
    b = matrix(rng, (2, 3, 2), (1, 2, 2), np.complex128)
    left, right = tt.transpose(a @ b), tt.transpose(b) @ tt.transpose(a)
    assert (left.row_shape, left.col_shape) == ((1, 2, 2), (2, 1, 3))
    assert error(dense(left), (dense(a) @ dense(b)).T) <= 1e-13 * norm(dense(left))
    assert float(tt.distance(left, right)) <= 1e-13 * float(tt.norm(left))


def test_rectangular_products_equal_dense_ones(rng):
    a, x = matrix(rng), train(rng, (2, 3, 2))
    y = tt.matvec(a, x)
    assert (y.shape, y.ranks) == ((2, 1, 3), (1, 4, 4, 1))
    assert error(dense(y).ravel(), dense(a) @ dense(x).ravel()) <= 1e-13 * norm(dense(y))


def test_kron_chains_trains_and_matrices(rng):
    x, y, a, b = train(rng), train(rng, (5,)), matrix(rng), matrix(rng, (2,), (3,))
    assert error(dense(tt.kron(x, y)), np.multiply.outer(dense(x), dense(y))) <= 1e-13
    assert error(dense(tt.kron(a, b)), np.kron(dense(a), dense(b))) <= 1e-12
    assert tt.kron(x, y).ranks == (1, 2, 2, 1, 1)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_concatenate_joins_along_every_axis(rng, axis):
    parts = [train(rng), train(rng, rank=1), train(rng)]
    joined = tt.concatenate(parts, axis=axis)
    assert error(dense(joined), np.concatenate([dense(p) for p in parts], axis=axis)) <= 1e-13
    assert tt.concatenate(parts[:1], axis=axis).ranks == parts[0].ranks


def test_concatenate_takes_unequal_sizes_and_matrices(rng):
    x, y = train(rng, (3, 2, 4)), train(rng, (3, 5, 4))
    expected = np.concatenate([dense(x), dense(y)], axis=1)
    assert error(dense(tt.concatenate([x, y], axis=1)), expected) <= 1e-13
    a, b = matrix(rng, (2, 3), (2, 2)), matrix(rng, (4, 3), (2, 2))
    rows = [dense(t).reshape(-1, 3, 4) for t in (a, b)]
    joined = tt.concatenate([a, b], axis=0)
    assert (joined.row_shape, joined.col_shape) == ((6, 3), (2, 2))
    assert error(dense(joined), np.concatenate(rows).reshape(18, 4)) <= 1e-12


# Entries and modes -------------------------------------------------------------------------------


def test_evaluate_takes_batches_and_negative_indices(rng):
    x = train(rng)
    every = np.stack(np.meshgrid(range(-3, 3), range(-2, 2), range(-4, 4), indexing="ij"), -1)
    expected = dense(x)[tuple(np.moveaxis(every, -1, 0))]
    for indices in (every, jnp.asarray(every), every.astype(np.int8), every.tolist()):
        out = tt.evaluate(x, indices)
        assert out.shape == (6, 4, 8)
        assert error(out, expected) <= 1e-13
    assert tt.evaluate(x, [0, 1, 2]).shape == ()
    assert tt.evaluate(x, np.zeros((0, 3), int)).shape == (0,)
    inside = jax.jit(tt.evaluate)(x, jnp.asarray(every))
    assert error(inside, expected) <= 1e-13


def test_long_batches_are_evaluated_in_pieces(rng, monkeypatch):
    monkeypatch.setattr("tensorjax.tt._entries._GATHER_LIMIT", 16)
    x = train(rng, (3, 3))
    indices = rng.integers(-3, 3, (11, 2))
    assert error(tt.evaluate(x, indices), dense(x)[tuple(indices.T)]) <= 1e-13


def test_contract_modes_equals_tensordot(rng):
    x = train(rng, (3, 2, 4, 2), dtype=np.complex128)
    v = {k: normal(rng, (n,), np.complex128) for k, n in enumerate(x.shape)}
    for modes in ([0], [1], [3], [0, 1], [1, 2], [0, 3], [0, 1, 3], [1, 2, 3], [0, 1, 2, 3], []):
        expected = dense(x)
        for k in reversed(modes):
            expected = np.tensordot(expected, v[k], (k, 0))
        for sign in (0, -4):
            out = tt.contract_modes(x, {k + sign: v[k] for k in modes})
            got = dense(out) if isinstance(out, tt.TT) else out
            assert error(got, expected) <= 1e-12, modes
        assert isinstance(out, tt.TT) == (len(modes) < 4)


# Accuracy and range ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_distance_is_accurate_below_root_eps(rng, dtype):
    x = train(rng, (4,) * 6, 3, dtype)
    for gap in (1e-2, eps(dtype) ** 0.5 * 0.1, 100 * eps(dtype)):
        y = tt.TT([*x.cores[:-1], x.cores[-1] * np.asarray(1 + gap, dtype)])
        exact = error(dense(x), dense(y))
        for distance in (tt.distance(x, y), jax.jit(tt.distance)(x, y)):
            assert abs(float(distance) - exact) <= 20 * eps(dtype) * norm(dense(x))
    assert float(tt.distance(x, x)) <= 20 * eps(dtype) * norm(dense(x))


def test_norm_and_inner_stay_in_range_in_float32():
    """10^40 entries: products of partial sums would leave float32 long before the end."""
    one = tt.ones((10,) * 30, np.float32)
    assert float(tt.norm(one)) == pytest.approx(1e15, rel=1e-5)
    assert float(tt.inner(one, 2 * one)) == pytest.approx(2e30, rel=1e-5)
    assert float(tt.norm(tt.ones((10,) * 40, np.float32))) == pytest.approx(1e20, rel=1e-5)
    small = tt.TT([np.full((1, 10, 1), 0.05, np.float32)] * 60)
    product = tt.inner(tt.ones((10,) * 60, np.float32), small)
    assert float(product) == pytest.approx(0.5**60, rel=1e-5)


def test_nan_and_zero_come_through_the_norm():
    for bad in (np.nan, np.inf):
        x = tt.TT([np.ones((1, 3, 1)), np.full((1, 3, 1), bad)])
        assert not np.isfinite(tt.norm(x))
        assert not np.isfinite(jax.jit(tt.norm)(x))
    zero = tt.zeros((3, 3))
    assert float(tt.norm(zero)) == 0
    assert all(not np.any(c) for c in jax.grad(tt.norm)(zero).cores)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_lengths_do_not_square_out_of_range(size):
    """‖x‖² is beyond float32 here, ‖x‖ is not."""
    x = tt.ones((4, 4), np.float32) * size
    for f in (tt.norm, jax.jit(tt.norm), lambda t: tt.distance(t, -t) / 2,
              jax.jit(lambda t: tt.distance(t, -t) / 2)):  # fmt: skip
        assert float(f(x)) == pytest.approx(4 * size, rel=1e-5)


def test_distance_stays_in_range_for_many_entries():
    x, y = tt.ones((10,) * 40, np.float32), tt.ones((10,) * 40, np.float32) * 1.5
    for f in (tt.distance, jax.jit(tt.distance)):
        assert float(f(x, y)) == pytest.approx(5e19, rel=1e-4)


def test_zero_trains_have_zero_gradients():
    zero = tt.zeros((2, 3), np.float64)
    for f in (tt.norm, lambda t: tt.distance(t, zero), lambda t: jnp.real(tt.inner(t, t))):
        gradient = jax.jit(jax.grad(f))(zero)
        assert all((g == 0).all() for g in gradient.cores)


# Bad input ---------------------------------------------------------------------------------------


X, A = tt.ones((2, 3)), tt.identity((2, 3))


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (ValueError, r"one shape, got.*\(3,\).*\(4,\)", lambda: tt.add(X, tt.ones((2, 4)))),
        (ValueError, "one shape", lambda: tt.hadamard(X, tt.ones((2, 3, 1)))),
        (ValueError, "one shape", lambda: tt.inner(X, tt.ones((6,)))),
        (ValueError, "one shape", lambda: tt.distance(X, tt.ones((6,)))),
        (TypeError, "TT and TTMatrix", lambda: tt.add(X, A)),
        (TypeError, "TT and ndarray", lambda: tt.add(X, np.ones((2, 3)))),
        (TypeError, "TT", lambda: tt.inner(X, A)),
        (TypeError, "ndarray", lambda: tt.norm(np.ones(3))),
        (TypeError, "TT, TT", lambda: tt.matvec(X, X)),
        (ValueError, r"x: .*\(2, 3\).*got \(3, 2\)", lambda: tt.matvec(A, tt.ones((3, 2)))),
        (TypeError, "TTMatrix, TT", lambda: tt.matmul(A, X)),
        (ValueError, "b: ", lambda: tt.matmul(A, tt.identity((3, 2)))),
        (TypeError, "a: .*TT", lambda: tt.transpose(X)),
        (TypeError, "TT and TTMatrix", lambda: tt.kron(X, A)),
        (ValueError, r"factor: .*\(2,\)", lambda: tt.scale(X, np.ones(2))),
        (ValueError, "axis.*got 2", lambda: tt.concatenate([X, X], axis=2)),
        (ValueError, "axis.*got -3", lambda: tt.concatenate([X, X], axis=-3)),
        (ValueError, "one shape", lambda: tt.concatenate([X, tt.ones((2, 4))], axis=0)),
        (TypeError, "trains", lambda: tt.concatenate([])),
        (TypeError, "trains", lambda: tt.concatenate([X, A])),
        (ValueError, r"mode 1 in \[-3, 3\).*3", lambda: tt.evaluate(X, [0, 3])),
        (ValueError, r"mode 0 in \[-2, 2\).*-3", lambda: tt.evaluate(X, [[1, 1], [-3, 0]])),
        (ValueError, r"\(…, 2\), got \(3,\)", lambda: tt.evaluate(X, [0, 0, 0])),
        (ValueError, r"indices.*got \(\)", lambda: tt.evaluate(X, 0)),
        (TypeError, "indices.*float", lambda: tt.evaluate(X, [0.0, 1.0])),
        (TypeError, "t: .*TTMatrix", lambda: tt.evaluate(A, [0, 0])),
        (ValueError, "mode.*got 2", lambda: tt.contract_modes(X, {2: np.ones(3)})),
        (ValueError, "twice", lambda: tt.contract_modes(X, {1: np.ones(3), -1: np.ones(3)})),
        (ValueError, r"vectors\[1\].*\(2,\)", lambda: tt.contract_modes(X, {1: np.ones(2)})),
        (TypeError, "t: .*TTMatrix", lambda: tt.contract_modes(A, {0: np.ones(2)})),
        (TypeError, "int", lambda: tt.contract_modes(X, {0: np.arange(2)})),
        (ValueError, "center.*got 2", lambda: tt.orthogonalize(X, 2)),
        (ValueError, "center.*1.0", lambda: tt.orthogonalize(X, 1.0)),  # type: ignore[arg-type]
        (TypeError, "ndarray", lambda: tt.orthogonalize(np.ones(3), 0)),
        (TypeError, "ndarray", lambda: tt.to_dense(np.ones(3))),
    ],
)
def test_bad_input_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


def test_dtypes_mix_as_in_numpy():
    """In JAX's default mode; the strict one refuses, as it does for arrays."""
    x, y = tt.ones((2, 3), np.float32), tt.ones((2, 3), np.complex128)
    a = tt.identity((2, 3), np.float64)
    with jax.numpy_dtype_promotion("standard"):
        mixed = [tt.add(x, y), tt.hadamard(x, y), tt.matvec(a, y), tt.kron(x, y), x - y]
        assert all(t.dtype == np.complex128 for t in mixed)
        assert tt.contract_modes(x, {0: np.ones(2)}).dtype == np.float64
        assert tt.matvec(a, x).dtype == np.float64
        assert wide(tt.inner(x, y)) == 6
    with pytest.raises(ValueError, match=r"float32.*complex128"):
        tt.add(x, y)


def test_programs_hold_no_identity_of_a_diagonal_matrix():
    program = jax.make_jaxpr(tt.diagonal_matrix)(tt.ones((300, 2)))
    assert max((np.size(c) for c in program.consts), default=0) <= 300
