"""Which methods dense arrays are decomposed and projected by, over drawn shapes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.bench import _drawn, _plain
from tensorjax import _native, sketch, tt, tucker
from tensorjax.linalg import _qr
from tensorjax.linalg._subspaces import subspaces_on_host
from tensorjax.sketch import _apply
from tensorjax.tt._tt_svd import tt_svd_on_host
from tensorjax.tt._tt_svd.small_arrays import compiled_tt_svd

built = pytest.mark.skipif(bool(_native.status()), reason="C++ is not built")


def _refused(*_):
    raise AssertionError("a second Gram matrix, of the residual")


def _low_rank(rng, order, size, rank, dtype):
    shape = tuple(rng.permutation([int(size ** (1 / order)) + k for k in range(order)]).tolist())
    return _drawn.dense(_drawn.train(rng, shape, rank, dtype)).reshape(shape)


def _distance(x, dense):
    return np.linalg.norm(np.asarray(dense).reshape(-1) - x.reshape(-1)) / np.linalg.norm(x)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("size", [3e3, 2e5])
def test_one_gram_matrix_serves_near_its_roundoff_where_the_spectrum_has_gaps(
    dtype, size, monkeypatch
):
    monkeypatch.setattr(subspaces_on_host, "_refined", _refused)
    rng = np.random.default_rng([int(size), np.dtype(dtype).num])
    for _ in range(4):
        order = int(rng.integers(3, 6))
        x = _low_rank(rng, order, size, int(rng.integers(1, 4)), dtype)
        tol = float(rng.uniform(1.1, 3)) * 1e-7
        train, found = tt.from_dense(x, tol=tol), tucker.from_dense(x, tol=tol)
        assert train.ranks == tt.from_dense(x, tol=1e-9, method="svd").ranks
        assert _distance(x, _drawn.dense([np.asarray(c) for c in train.cores])) <= tol
        assert found.ranks == tucker.from_dense(x, tol=1e-9, method="svd").ranks
        assert _distance(x, tucker.to_dense(found)) <= tol


def test_errors_and_ranks_hold_near_roundoff_of_gram_matrices_for_any_spectrum():
    rng = np.random.default_rng(77)
    for _ in range(10):
        order = int(rng.integers(2, 5))
        shape = tuple(rng.integers(3, 14, order).tolist())
        tol = 10.0 ** rng.uniform(-7.5, -6.4)
        x = _drawn.normal(rng, shape, np.float64) * 3e-8 + _drawn._smooth(shape)
        train, found = tt.from_dense(x, tol=tol), tucker.from_dense(x, tol=tol)
        exact = [c.shape[2] for c in _plain.svd_tt_svd(x, tol)]
        assert _distance(x, _drawn.dense([np.asarray(c) for c in train.cores])) <= tol, shape
        assert all(r <= s + 1 for r, s in zip(train.ranks[1:], exact, strict=True)), shape
        assert _distance(x, tucker.to_dense(found)) <= tol, shape


@built
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_a_long_mode_beside_short_ones_is_left_to_the_end(dtype):
    rng = np.random.default_rng(5)
    for long, shape in [(302, (302, 11, 17, 2)), (260, (260, 3, 40, 2, 3)), (401, (401, 2, 2, 60))]:
        x = _drawn.dense(_drawn.train(rng, shape, 3, dtype)).reshape(shape)
        cores = compiled_tt_svd(x, 1e-6 / 3)
        assert cores is not None, long
        assert _distance(x, _drawn.dense(list(cores))) <= 1e-3
        assert max(c.shape[2] for c in cores) <= 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_modes_kept_whole_keep_their_place_in_a_tucker_decomposition(dtype):
    rng = np.random.default_rng(np.dtype(dtype).num)
    tol = 1e-4
    for shape in [(70, 9, 8, 30), (8, 70, 9, 30), (6, 5, 80, 70), (66, 67, 12), (9, 8, 7, 90, 4)]:
        sizes = [n if rng.random() < 0.5 else max(n // 3, 1) for n in shape]
        x: Any = _drawn.normal(rng, tuple(sizes), np.complex128)
        for n, r in zip(shape, sizes, strict=True):  # every axis goes to the end, once
            basis = np.eye(n) if n == r else np.linalg.qr(rng.standard_normal((n, r)))[0]
            x = np.tensordot(x, basis, (0, 1))
        x = (x if np.dtype(dtype).kind == "c" else x.real).astype(dtype)
        found = tucker.from_dense(x, tol=tol)
        assert found.ranks == tuple(sizes), shape
        assert _distance(x, tucker.to_dense(found)) <= tol, shape
        for u, n, r in zip(found.factors, shape, sizes, strict=True):
            if n == r:
                assert np.array_equal(np.asarray(u), np.eye(n)), shape


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_few_long_rows_are_projected_strip_by_strip(dtype):
    rng = np.random.default_rng(3)
    for _ in range(6):
        rows, features = int(rng.integers(1, 40)), int(rng.integers(1, 6000))
        p = sketch.gaussian(jax.random.key(0), features, int(rng.integers(1, 200)), dtype=dtype)
        x = _drawn.normal(rng, (rows, features), dtype)
        got = np.asarray(sketch.apply(p, jnp.asarray(x)))
        wide = np.result_type(dtype, np.float64)
        want = x.astype(wide) @ np.asarray(p.matrix).astype(wide).T / np.sqrt(p.out_size)
        gap = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert gap <= 10 * np.finfo(dtype).eps, (rows, features)


def test_strips_add_up_to_the_product_of_all_columns():
    rng = np.random.default_rng(4)
    for rows, features in [(2, 2047), (2, 2048), (31, 5000), (32, 4096), (33, 4096), (1, 9000)]:
        x, w = (_drawn.normal(rng, (n, features), np.float32) for n in (rows, 24))
        out = np.full((rows, 24), np.nan, np.float32)
        _apply._times_transpose(x, w, out)
        want = x.astype(float) @ w.astype(float).T
        assert np.linalg.norm(out - want) <= 1e-6 * np.linalg.norm(want), (rows, features)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_columns_of_full_rank_are_orthonormalised_by_the_gram_matrix_at_hand(dtype, monkeypatch):
    rng = np.random.default_rng(np.dtype(dtype).num)
    for _ in range(3):
        n = int(rng.integers(40, 90))
        a = _drawn.normal(rng, (n * int(rng.integers(10, 30)), n), dtype)
        calls = []
        gram = _qr.host_gram
        monkeypatch.setattr(_qr, "host_gram", lambda *x, **y: calls.append(1) or gram(*x, **y))  # noqa: B023
        asked = subspaces_on_host.Asked(share=1e-8, whole=True)
        found = subspaces_on_host.leading(a, asked, right=True)
        assert found.energies is None
        q, r = subspaces_on_host.columns_split(a, found, dtype)
        assert not calls
        monkeypatch.undo()
        assert np.linalg.norm(q.conj().T @ q - np.eye(n)) <= 50 * np.finfo(dtype).eps * n
        assert np.linalg.norm(q @ r - a) <= 50 * np.finfo(dtype).eps * np.linalg.norm(a)


def test_nearly_square_unfoldings_of_several_modes_are_cut_on_the_left():
    """What is cut on the right is made orthonormal once more, which takes as long as the cut."""
    rng = np.random.default_rng(5)
    for _ in range(10):
        m = int(rng.integers(25, 40))
        shape = (m, m + int(rng.integers(3)), m, m)
        cut = tt_svd_on_host._next_cut(1, shape, 1, 2 * m)
        assert not cut.right, shape


@built
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_real_arrays_of_sides_up_to_256_take_one_call_of_cpp(dtype):
    rng = np.random.default_rng(np.dtype(dtype).num)
    for _ in range(3):
        shape = (int(rng.integers(100, 250)), int(rng.integers(150, 250)), int(rng.integers(6, 9)))
        x, tol = _drawn.normal(rng, shape, dtype), 1e-3
        cores = compiled_tt_svd(x, tol**2 / 2)
        assert cores is not None, shape
        assert _distance(x, _drawn.dense(cores)) <= tol
