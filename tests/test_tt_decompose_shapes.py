"""TT-SVD and Tucker of drawn shapes: error, ranks, isometries, the work that is chosen."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.bench import _drawn, _plain
from tensorjax import linalg, tt, tucker
from tensorjax.linalg import _host_precision, _predicted_times
from tensorjax.linalg._subspaces import subspaces_on_host
from tensorjax.linalg._subspaces.subspaces_on_host import Asked, leading
from tensorjax.tt._tt_svd import tt_svd_on_host
from tests.oracles import compilations, dense, eps, error, norm


def drawn(seed: int, count: int, largest: float = 5e4):
    return _drawn.draw(np.random.default_rng(seed), count, largest)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_shapes_keep_the_error_with_the_parameters_of_an_svd(seed):
    for case in drawn(1000 + seed, 6):
        x = case.array()
        t = tt.from_dense(x, tol=case.tol)
        assert error(dense(t), x) <= case.tol * norm(x), case
        exact = _plain.svd_tt_svd(x.astype(np.result_type(x.dtype, np.float64)), case.tol)
        assert sum(c.size for c in t.cores) <= 1.1 * sum(c.size for c in exact) + 50, case
        for c in t.cores[:-1]:
            u = np.asarray(c).reshape(-1, c.shape[-1])
            assert error(u.conj().T @ u, np.eye(u.shape[1])) <= 50 * eps(x.dtype) * len(u.T), case


@pytest.mark.parametrize("seed", range(2))
def test_drawn_tucker_tensors_keep_the_error_too(seed):
    for case in (c for c in drawn(2000 + seed, 8) if len(c.shape) <= 6):
        x = case.array()
        t = tucker.from_dense(x, tol=case.tol)
        assert error(np.asarray(tucker.to_dense(t)), x) <= case.tol * norm(x), case
        for u in map(np.asarray, t.factors):
            assert error(u.conj().T @ u, np.eye(u.shape[1])) <= 50 * eps(x.dtype) * len(u.T), case
        if case.tol > 1e-7 and max(case.shape) < 300:
            largest = _plain.st_hosvd(x.astype(np.result_type(x.dtype, np.float64)), case.tol)[0]
            assert t.core.size <= 1.3 * largest.size + 20, case


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_arrays_of_many_small_modes_share_gram_matrices(dtype):
    """Several bonds from one Gram matrix, of low and of full ranks, of small and modest size."""
    rng = np.random.default_rng(17)
    for _ in range(12):
        order = int(rng.integers(4, 17))
        shape = tuple(int(n) for n in rng.integers(2, 2 + 24 // order, order))
        rank = int(rng.integers(1, 40))
        x = _drawn.dense(_drawn.train(rng, shape, rank, dtype)).reshape(shape)
        tol = 10.0 ** rng.uniform(-4 if dtype == np.complex64 else -7, -1)
        t = tt.from_dense(x, tol=tol)
        assert error(dense(t), x) <= tol * norm(x), (shape, rank, tol)
        exact = _plain.svd_tt_svd(x.astype(np.complex128), tol)
        assert sum(c.size for c in t.cores) <= 1.1 * sum(c.size for c in exact) + 50, (shape, rank)
        for c in t.cores[:-1]:
            u = np.asarray(c).reshape(-1, c.shape[-1])
            assert error(u.conj().T @ u, np.eye(u.shape[1])) <= 50 * eps(x.dtype) * len(u.T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_cores_from_the_right_are_orthonormal_however_fast_energies_fall(dtype):
    """A first-order correction serves where it is exact to roundoff, another way elsewhere."""
    rng = np.random.default_rng(23)
    for fall in (1.0, 1e-2, 1e-4, 1e-6):
        rows, columns = int(rng.integers(300, 400)), int(rng.integers(100, 200))
        u = np.linalg.qr(_drawn.normal(rng, (rows, columns), dtype))[0]
        v = np.linalg.qr(_drawn.normal(rng, (columns, columns), dtype))[0]
        x = ((u * fall ** np.linspace(0, 1, columns)) @ v).astype(dtype)
        asked = Asked(tail=1e-10 * float(norm(x)) ** 2)
        q, r = subspaces_on_host.columns_split(x, leading(x, asked, right=True), x.dtype)
        assert error(q.conj().T @ q, np.eye(q.shape[1])) <= 50 * eps(dtype) * columns, fall
        assert error(q @ r, x) <= (1e-5 + 50 * eps(dtype)) * norm(x), fall


def forecast(shape, guess: int) -> tuple[float, float]:
    """Work of the cuts that are chosen, and of those from left to right, at a constant rank."""

    def walk(choose) -> float:
        modes, left, right, spent = tuple(shape), 1, 1, 0.0
        while len(modes) > 1:
            cut = choose(left, modes, right)
            size = left * math.prod(modes) * right
            out = modes[-cut.modes :] if cut.right else modes[: cut.modes]
            side = math.prod(out) * (right if cut.right else left)
            side = min(side, size // side)
            rank = min(guess, side)
            spent += _predicted_times.cut(size, side, rank, cut.right)
            modes = modes[: -cut.modes] if cut.right else modes[cut.modes :]
            left, right = (left, rank) if cut.right else (rank, right)
        return spent

    first = tt_svd_on_host._Cut(1, False)
    chosen = walk(lambda a, modes, b: tt_svd_on_host._next_cut(a, modes, b, guess))
    return chosen, walk(lambda *_: first)


@pytest.mark.parametrize("guess", [3, 12, 50])
def test_no_shape_falls_off_a_cliff(guess):
    shapes = [c.shape for c in drawn(3000, 60, 3e7)]
    shapes += [
        (62, 64, 64, 64),
        (64,) * 4,
        (48,) * 4,
        (37, 53, 41, 29),
        (2,) * 22,
        (10, 1000, 1000),
    ]
    for shape in shapes:
        chosen, plain = forecast(shape, guess)
        assert chosen <= 1.3 * plain, shape


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_sketches_lose_no_more_than_asked(dtype, right, monkeypatch):
    rng = np.random.default_rng(5)
    seen = []
    real = subspaces_on_host.sketched
    monkeypatch.setattr(subspaces_on_host, "sketched", lambda *a: seen.append(real(*a)) or seen[-1])
    for rank, noise in ((4, 0), (4, 3e-4), (400, 0)):
        shape = (400, 500)
        a = _drawn.normal(rng, (400, rank), dtype) @ _drawn.normal(rng, (rank, 500), dtype)
        e = _drawn.normal(rng, shape, dtype)
        a = (a / norm(a) + noise * e / norm(e)).astype(dtype)
        found = leading(a, Asked(share=1e-6, guess=rank if rank < 50 else None), right=right)
        v = found.basis
        rest = a - a @ v @ v.conj().T if right else a - v @ (v.conj().T @ a)
        assert norm(rest) <= 1e-3 * norm(a) * (1 + 1e-3)
        assert found.basis.shape[1] == (rank if rank < 50 else found.basis.shape[1])
        np.testing.assert_allclose(norm(rest) ** 2, found.discarded, atol=1e-7)
    assert [s is not None for s in seen[:2]] == [True, True]


def test_ranks_above_the_first_sketch_take_a_wider_one(monkeypatch):
    """The rank of the mode before says little: a failed sample is cheap beside eigenvectors."""
    rng = np.random.default_rng(11)
    a = rng.standard_normal((900, 130)) @ rng.standard_normal((130, 6000))
    asked = Asked(share=1e-8, guess=8)
    monkeypatch.setattr(subspaces_on_host, "host_gram", _refused(subspaces_on_host.host_gram, 900))
    for matrix, right in ((a, False), (np.ascontiguousarray(a.T), True)):
        found = leading(matrix, asked, right=right)
        u = found.basis
        assert u.shape == (900, 130)
        assert norm(a - u @ (u.T @ a)) <= 1e-4 * norm(a)


def _refused(gram, rows):
    """Returns a function that makes Gram matrices as another does, but none of so many rows."""

    def checked(a, **options):
        g = gram(a, **options)
        assert len(g) < rows
        return g

    return checked


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_nearly_square_unfoldings_keep_error_and_ranks(dtype, seed):
    rng = np.random.default_rng([13, seed])
    columns = int(rng.integers(100, 260))
    x = _drawn.normal(rng, (columns + int(rng.integers(1, columns // 10)), columns), dtype)
    x = x @ np.diag(np.logspace(0, -rng.uniform(0, 3), columns)).astype(dtype)
    tol = 10.0 ** rng.uniform(-3, -2)
    t, k = tt.from_dense(x, tol=tol), tucker.from_dense(x, tol=tol)
    assert error(dense(t), x) <= tol * norm(x)
    assert error(np.asarray(tucker.to_dense(k)), x) <= tol * norm(x)
    exact = _plain.svd_tt_svd(x.astype(np.result_type(dtype, np.float64)), tol)
    assert t.ranks[1] <= 1.05 * exact[0].shape[2] + 1
    for u in (np.asarray(t.cores[0])[0], *map(np.asarray, k.factors)):
        assert u.shape[1] <= columns
        assert error(u.conj().T @ u, np.eye(u.shape[1])) <= 50 * eps(dtype) * len(u.T)


def test_a_sketch_that_sees_nothing_is_not_believed():
    """Energy in one column that no sample need hit."""
    a = np.full((300, 4000), 1e-9)
    a[:, 1234] = np.random.default_rng(0).standard_normal(300)
    found = leading(a, Asked(share=1e-6, guess=2))
    u = found.basis
    assert norm(a - u @ (u.T @ a)) <= 1e-3 * norm(a)


@pytest.mark.parametrize("tol", [1e-9, 1e-8, 1e-7])
def test_energies_below_the_floor_of_one_gram_matrix_are_kept(tol):
    rng = np.random.default_rng(3)
    for shape in ((40, 300), (300, 40)):
        u, v = (np.linalg.qr(rng.standard_normal((n, 40)))[0] for n in shape)
        s = 10.0 ** -np.linspace(0, 12, 40)
        a = u * s @ v.T
        for right in (False, True):
            if (shape[0] > shape[1]) != right:
                continue
            found = leading(a, Asked(share=tol**2, method="gram"), right=right)
            w = found.basis
            rest = a - a @ w @ w.T if right else a - w @ (w.T @ a)
            assert norm(rest) <= tol * norm(a)
            assert w.shape[1] <= np.count_nonzero(np.cumsum(s[::-1] ** 2)[::-1] > tol**2) + 2
            assert error(w.T @ w, np.eye(w.shape[1])) <= 1e-12


def test_single_precision_serves_only_where_it_suffices():
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.complex64):
        x = _drawn.normal(rng, (20, 30, 40), dtype)
        for tol in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
            assert error(dense(tt.from_dense(x, tol=tol)), x) <= tol * norm(x)
            assert error(np.asarray(tucker.to_dense(tucker.from_dense(x, tol=tol))), x) <= (
                tol * norm(x)
            )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_ranks_of_concrete_arrays_compile_nothing(dtype):
    rng = np.random.default_rng(1)
    x = _drawn.normal(rng, (11, 6, 13, 7), dtype)
    low = _drawn.dense(_drawn.train(rng, x.shape, 2, dtype)).reshape(x.shape)
    with compilations() as compiled:
        t, u = tt.from_dense(x, rank=3), tucker.from_dense(x, rank=3)
        padded = tt.from_dense(low, rank=4)
    assert compiled == []
    assert t.ranks == (1, 3, 3, 3, 1)
    assert u.ranks == (3,) * 4
    assert padded.ranks == (1, 4, 4, 4, 1)
    assert error(dense(padded), low) <= 100 * eps(dtype) * norm(low)
    jitted = jax.jit(lambda a: tt.from_dense(a, rank=3))(jnp.asarray(x))
    assert jitted.ranks == t.ranks
    assert abs(error(dense(t), x) - error(dense(jitted), x)) <= 1e-4 * norm(x)


def test_host_gram_matrices_agree_with_plain_ones():
    rng = np.random.default_rng(2)
    for dtype in (np.float32, np.float64, np.complex64, np.complex128):
        a = _drawn.normal(rng, (70, 3000), dtype)
        wide = a.astype(np.result_type(dtype, np.float64))
        for right in (False, True):
            b = a.T.copy() if right else a
            exact = wide.conj() @ wide.T if right else wide @ wide.conj().T
            for narrow in (False, True):
                g = subspaces_on_host.host_gram(b, right=right, narrow=narrow)
                single = narrow and np.finfo(dtype).bits == 32
                assert error(g, exact) <= (1e-6 if single else 1e-13) * norm(exact)
    assert linalg.gram(np.ones((2, 3, 4))).shape == (2, 3, 3)


@pytest.mark.parametrize("seed", range(8))
def test_data_of_full_rank_cost_no_eigenvectors(seed, monkeypatch):
    rng = np.random.default_rng(300 + seed)
    dtype = (np.float64, np.complex128)[seed % 2]
    shape = tuple(int(n) for n in rng.integers(33, 60, 3))
    x = _drawn.normal(rng, shape, dtype)
    asked = []
    monkeypatch.setattr(
        subspaces_on_host, "eigh", lambda g: asked.append(len(g)) or np.linalg.eigh(g)
    )
    t, u = tt.from_dense(x, tol=1e-5), tucker.from_dense(x, tol=1e-5)
    assert asked == []
    assert t.ranks == (1, shape[0], shape[2], 1)
    assert u.ranks == shape
    assert error(dense(t), x) <= 1e-5 * norm(x)
    assert error(np.asarray(tucker.to_dense(u)), x) <= 1e-5 * norm(x)
    for core in t.cores[:-1]:
        w = np.asarray(core).reshape(-1, core.shape[-1])
        assert error(w.conj().T @ w, np.eye(w.shape[1])) <= 1e-12


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_small_arrays_of_any_shape_and_scale(dtype):
    rng = np.random.default_rng(4000)
    top = 30 if np.finfo(dtype).bits == 32 else 200
    for trial in range(25):
        shape = tuple(int(n) for n in rng.integers(1, 7, rng.integers(1, 8)))
        tol = 10.0 ** rng.uniform(-5 if top == 30 else -6, -0.5)
        x = _drawn.train(rng, shape, int(rng.integers(1, 12)), np.complex128)
        x = _drawn.dense(x).reshape(shape)
        x = (x if np.dtype(dtype).kind == "c" else x.real) * 10.0 ** rng.uniform(-top, top)
        x = (0 * x if trial == 0 else x).astype(dtype)
        x = x.T if trial % 3 == 0 else x  # not contiguous
        shape = x.shape
        t = tt.from_dense(x, tol=tol)
        assert t.dtype == x.dtype
        found = _drawn.dense([np.asarray(c, np.complex128) for c in t.cores]).reshape(shape)
        wide = x.astype(np.complex128)
        scale = np.abs(wide).max() or 1
        assert error(found / scale, wide / scale) <= tol * norm(wide / scale), (shape, tol)
        for c in t.cores[:-1]:
            u = np.asarray(c).reshape(-1, c.shape[-1])
            assert error(u.conj().T @ u, np.eye(u.shape[1])) <= 50 * eps(x.dtype) * len(u.T)


def test_single_precision_is_not_tried_in_vain():
    """Where even an exact result would not pass the test, double precision comes at once."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        x = rng.normal(size=(6, 7)).astype(np.float32)
        bonds, share = int(rng.integers(1, 20)), 10.0 ** rng.uniform(-9, -4)
        tried = []

        def compress(a, asked, tried=tried):
            tried.append(asked.narrow)
            return [a]

        _host_precision.in_single(x, Asked(share=share), bonds, compress)
        assert len(tried) == 1, (bonds, share)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_eigenvectors_in_single_precision_only_where_their_errors_are_no_rank(dtype):
    rng = np.random.default_rng(3)
    a = _drawn.normal(rng, (280, 300), dtype)
    g = linalg.gram(a) * 1e30
    for share, single in ((1e-3, True), (1e-6, False)):
        asked = Asked(share=share, narrow=True, coarse=True)
        w, v = subspaces_on_host._eigenbasis(g, a.dtype, asked)
        assert (v.dtype == a.dtype) == single
        assert error(w, np.linalg.eigvalsh(g)[::-1]) <= 10 * eps(v.dtype) * norm(w)
        assert error(g @ v, v * w) <= 50 * eps(v.dtype) * norm(w)
