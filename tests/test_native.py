"""What is compiled from C++, held beside XLA and NumPy for the same work."""

import ctypes
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.bench import _drawn, _plain
from tensorjax import _blas_threads, _native, sketch, tt
from tensorjax._kernels import conditions, first_calls
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import CALL, CPP, HOST, PROGRAM, TABLE, TRACE, Candidate
from tensorjax._native import loading
from tensorjax.sketch import _map_cores
from tensorjax.tt._eigen import dmrg_sweeps
from tensorjax.tt._linear import amen


@pytest.fixture(autouse=True)
def programs_to_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """First calls are programs here too; those by NumPy are tested in test_first_calls.py."""
    for name in ("tt.linear_combination(rank=)", "tt.round(rank=, tol=)"):
        monkeypatch.setitem(TABLE, name, {CALL: (Candidate(PROGRAM),)})


# The first thread is made, and the system refuses all others.
FEW_THREADS = """
#include <dlfcn.h>
#include <pthread.h>
#include <atomic>
#include <cerrno>
#include "team.h"

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  static int made = 0;
  if (made++) return EAGAIN;
  return reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"))(
      thread, attributes, start, argument);
}

int main() {
  tensorjax::Team few(4), none(4);
  std::atomic<long> sum{0};
  for (auto* team : {&few, &none}) team->run(100, [&](long piece, int) { sum += piece; });
  return few.size() == 2 && none.size() == 1 && sum == 9900 ? 0 : 1;
}
"""
ROOT = Path(__file__).resolve().parents[1]
built = pytest.mark.skipif(bool(_native.status()), reason=_native.status())


def train(key: int, shape: tuple[int, ...], rank: int, dtype: str = "float64") -> tt.TT:
    return tt.random(jax.random.key(key), shape, rank, dtype=jnp.dtype(dtype))


def decaying(key: int, shape: tuple[int, ...], rank: int, ratio: float) -> tt.TT:
    """Bonds weighted by a geometric sequence, so that the singular values fall."""
    cores = list(tt.orthogonalize(train(key, shape, rank), 0).cores)
    weighted = [np.asarray(c) * ratio ** np.arange(c.shape[2]) for c in cores[:-1]]
    return tt.TT((*map(jnp.asarray, weighted), cores[-1]))


def error(t: tt.TT, out: tt.TT) -> float:
    return float(tt.distance(t, out) / tt.norm(t))


def by_xla(t: tt.TT, rank: int, monkeypatch: pytest.MonkeyPatch) -> tt.TT:
    """The singular value decompositions of XLA's sweep."""
    with monkeypatch.context() as patch:
        patch.setattr(_native, "status", lambda: "off")
        jax.clear_caches()  # else the compiled program of the other kind is found
        out = tt.round(t, rank=rank, method="svd")
    jax.clear_caches()
    return out


def compiled(t: tt.TT, rank: int, **options: object) -> tt.TT:
    """Rounds, and asserts that the compiled sweep did it."""
    text = jax.jit(lambda t: tt.round(t, rank=rank, **options)).lower(t).as_text()
    assert "tensorjax_round" in text
    return tt.round(t, rank=rank, **options)


@built
@pytest.mark.parametrize(
    ("shape", "rank", "kept"),
    [
        ((4, 5, 3, 6), 12, 3),  # bonds that the modes limit on either side
        ((7, 3), 3, 1),
        pytest.param((3,) * 9, 27, 5, marks=pytest.mark.slow),
        ((1, 6, 1, 5, 4, 1), 9, 4),  # modes of size one
        pytest.param((10, 9, 8, 7, 6), 33, 17, marks=pytest.mark.slow),
        pytest.param((2,) * 12, 40, 21, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("method", ["randomized", "svd"])
def test_the_error_is_within_five_per_cent_of_the_best(
    shape: tuple[int, ...], rank: int, kept: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = decaying(3, shape, rank, 0.75)
    facts = {"static": True, "exact": True, "shape": shape, "ranks": t.ranks}
    by_cpp = choose_kernel("tt.round(rank=)", t.cores, TRACE, **facts) is CPP
    if method == "svd" and not by_cpp:
        pytest.skip("XLA's own: too many columns")
    out = compiled(t, kept, method=method)
    best = by_xla(t, kept, monkeypatch)
    assert out.ranks == best.ranks
    assert error(t, out) <= 1.05 * error(t, best) + 1e-14


@built
def test_what_has_the_rank_comes_back_to_roundoff() -> None:
    t = train(0, (6, 5, 4, 5, 6), 4)
    assert error(t + t, compiled(t + t, 4)) < 1e-13
    wide = train(1, (8,) * 6, 12)
    assert error(wide + wide, compiled(wide + wide, 12, method="randomized")) < 1e-9


@built
@pytest.mark.parametrize(
    "kept", [(4, 5, 5, 9, 4), (4, 5, 5, 6, 4), (3, 5, 9, 9, 4), (4, 3, 5, 9, 2), (4, 7, 5, 9, 4)]
)
def test_bonds_that_have_the_rank_stand_beside_bonds_that_are_cut(kept: tuple[int, ...]) -> None:
    few = tt.random(jax.random.key(5), (4, 6, 5, 6, 5, 4), (4, 5, 5, 9, 4), dtype=jnp.float64)
    t = few + few
    best = tt.round(t, rank=kept, method="svd")
    assert error(t, tt.round(t, rank=kept)) <= 1.2 * error(t, best) + 1e-13


@built
@pytest.mark.parametrize("tail", [1e-9, 1e-12])
def test_a_small_tail_is_not_taken_for_roundoff(tail: float) -> None:
    base = train(8, (6,) * 6, 8)
    t = base + base + tail * train(9, base.shape, 3)
    best = tt.round(t, rank=10, method="svd")  # one direction of the tail's three is discarded
    assert error(t, tt.round(t, rank=11)) < 0.1 * error(t, best)


@built
def test_deep_cuts_see_below_the_root_of_eps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Singular values down to 1e-13 of the largest: Gram matrices end at 1e-8."""
    t = decaying(5, (6,) * 5, 24, 10**-0.8)
    best = error(t, by_xla(t, 14, monkeypatch))
    assert best < 1e-9
    assert error(t, compiled(t, 14, method="svd")) <= 1.05 * best + 1e-14
    assert error(t, compiled(t, 13, method="randomized")) < 1e-9


@built
def test_single_precision_is_computed_in_double() -> None:
    t = train(2, (8,) * 6, 12, "float32")
    out = compiled(t + t, 12)
    assert out.dtype == jnp.float32
    assert error(t + t, out) < 1e-6


@built
@pytest.mark.parametrize("size", [0.0, 1e-250, 1e250])
def test_any_scale(size: float) -> None:
    t = train(4, (5,) * 4, 3)
    scaled = tt.TT((t.cores[0] * size, *t.cores[1:]))
    out = compiled(scaled + scaled, 3)
    want = tt.round(t + t, rank=3)
    np.testing.assert_allclose(tt.to_dense(out), size * tt.to_dense(want), rtol=1e-9, atol=0)


@built
def test_a_scale_that_no_core_could_hold() -> None:
    t = train(4, (5,) * 8, 3)
    huge = tt.TT(tuple(c * 1e120 for c in t.cores))
    out = compiled(huge + huge, 3)
    back = tt.TT(tuple(c / 1e120 for c in out.cores))
    assert error(t + t, back) < 1e-12


@built
def test_a_batch_is_its_trains_one_by_one() -> None:
    trains = [train(k, (4, 5, 6, 3), 6) for k in range(5)]
    stacked = jax.tree.map(lambda *c: jnp.stack(c), *trains)
    out = jax.vmap(lambda t: tt.round(t, rank=3))(stacked)
    for k, t in enumerate(trains):
        for many, one in zip(out.cores, tt.round(t, rank=3).cores, strict=True):
            np.testing.assert_array_equal(many[k], one)
    empty = jax.vmap(lambda t: tt.round(t, rank=3))(jax.tree.map(lambda c: c[:0], stacked))
    assert empty.cores[1].shape == (0, 3, 5, 3)


@built
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="CPUs cannot be taken away here")
def test_the_number_of_threads_changes_nothing() -> None:
    t = train(6, (10,) * 8, 64)
    cpus = os.sched_getaffinity(0)
    threads = Path("/proc/self/task")
    before = {int(x.name) for x in threads.iterdir()}
    many = compiled(t, 32)
    try:
        for x in before:
            os.sched_setaffinity(x, {min(cpus)})
        one = tt.round(t, rank=32)
    finally:
        for x in before:
            os.sched_setaffinity(x, cpus)
    for a, b in zip(many.cores, one.cores, strict=True):
        np.testing.assert_array_equal(a, b)


@built
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_what_is_not_finite_spoils_all_of_it(value: float, place: int) -> None:
    """Under jit, where it cannot be refused: never a finite train that is wrong."""
    t = train(7, (5,) * 5, 20)
    cores = list(t.cores)
    cores[place] = cores[place].at[0, 1, 0].set(value)
    for rank in (3, 18):
        out = jax.jit(lambda t, rank=rank: tt.round(t, rank=rank))(tt.TT(tuple(cores)))
        assert all(np.isnan(c).all() for c in out.cores)


@built
def test_gradients_are_those_of_the_exact_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    t = train(8, (3, 4, 3, 4), 4)

    def value(t: tt.TT) -> jax.Array:
        return tt.norm(tt.round(t, rank=2, method="svd"))

    got = jax.grad(value)(t)
    with monkeypatch.context() as patch:
        patch.setattr(_native, "status", lambda: "off")
        jax.clear_caches()
        want = jax.grad(value)(t)
    jax.clear_caches()
    for a, b in zip(got.cores, want.cores, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


@built
def test_a_program_for_new_shapes_is_small() -> None:
    """One call, whatever the order: compiling does not grow with it."""
    for order in (4, 40):
        t = train(9, (4,) * order, 20)
        text = jax.jit(lambda t: tt.round(t, rank=5)).lower(t).as_text()
        assert text.count("custom_call @tensorjax_round") == 1
        assert text.count("dot_general") <= 2  # of the draw of the sketch


@built
@pytest.mark.parametrize("off", [False, True])
def test_without_columns_to_spare_the_error_is_some_times_the_best(
    off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = decaying(3, (6,) * 6, 24, 0.7)
    best = error(t, tt.round(t, rank=9, method="svd"))
    with monkeypatch.context() as patch:
        if off:
            patch.setattr(_native, "status", lambda: "off")
            jax.clear_caches()
        out = tt.round(t, rank=9, method="randomized", oversample=0)
        same = tt.round(t + t, rank=24, method="randomized", oversample=0)
        wide = tt.round(t, rank=9, method="randomized", oversample=20)
    jax.clear_caches()
    assert out.ranks == (1, 6, 9, 9, 9, 6, 1)
    assert best < error(t, out) < 10 * best
    assert error(t, wide) < 1.02 * best
    assert error(t + t, same) < 1e-10
    with pytest.raises(ValueError, match="oversample"):
        tt.round(t, rank=9, oversample=-1)


def pair(
    key: int, rows: tuple[int, ...], columns: tuple[int, ...], left: int, right: int
) -> tuple[tt.TTMatrix, tt.TT]:
    keys = jax.random.split(jax.random.key(key))
    a = tt.random_matrix(keys[0], rows, columns, left, jnp.dtype("float64"))
    return a, decaying(key + 1, columns, right, 0.6)


@built
@pytest.mark.parametrize(
    ("rows", "columns", "left", "right", "kept"),
    [
        ((4, 4, 4, 4), (3, 3, 3, 3), 2, 5, 6),
        ((2,) * 7, (2,) * 7, 3, 8, 7),
        ((5, 1, 6, 2), (2, 4, 1, 3), 2, 4, 5),  # modes of size one on either side
        ((6, 6, 6), (7, 7, 7), 1, 7, 3),
        ((3, 8), (2, 9), 4, 9, 2),
    ],
)
def test_a_matrix_times_a_vector_is_not_formed(
    rows: tuple[int, ...], columns: tuple[int, ...], left: int, right: int, kept: int
) -> None:
    a, x = pair(11, rows, columns, left, right)
    exact = tt.matvec(a, x)
    text = jax.jit(lambda a, x: tt.matvec(a, x, rank=kept)).lower(a, x).as_text()
    assert "tensorjax_round" in text
    best = tt.round(exact, rank=kept, method="svd")
    out = tt.matvec(a, x, rank=kept)
    assert out.ranks == best.ranks
    assert error(exact, out) <= 1.05 * error(exact, best) + 1e-13
    rough = tt.matvec(a, x, rank=kept, oversample=0)
    assert error(exact, rough) <= 20 * error(exact, best) + 1e-13
    scaled = tt.linear_combination([(a, x)], [-3.0], rank=kept)
    assert error(-3.0 * exact, scaled) <= 1.05 * error(exact, best) + 1e-13


@built
def test_products_in_batches_in_single_precision_and_not_finite() -> None:
    pairs = [pair(20 + k, (3, 4, 3), (4, 3, 5), 2, 6) for k in range(3)]
    stacked = jax.tree.map(lambda *c: jnp.stack(c), *pairs)
    out = jax.vmap(lambda p: tt.matvec(*p, rank=3))(stacked)
    for k, (a, x) in enumerate(pairs):
        for many, one in zip(out.cores, tt.matvec(a, x, rank=3).cores, strict=True):
            np.testing.assert_array_equal(many[k], one)
    a, x = pairs[0]
    single = tt.matvec(a.astype(jnp.float32), x.astype(jnp.float32), rank=12)
    assert single.dtype == jnp.float32
    assert error(tt.matvec(a, x), single.astype(float)) < 1e-5
    broken = tt.TTMatrix((a.cores[0], a.cores[1].at[0, 1, 1, 0].set(np.nan), a.cores[2]))
    spoilt = jax.jit(lambda a, x: tt.matvec(a, x, rank=3))(broken, x)
    assert all(np.isnan(c).all() for c in spoilt.cores)


@built
def test_gradients_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    a, x = pair(30, (3, 3, 3), (3, 3, 3), 2, 2)

    def value(a: tt.TTMatrix, x: tt.TT) -> jax.Array:
        return tt.norm(tt.matvec(a, x, rank=2))

    got = jax.grad(value, argnums=(0, 1))(a, x)
    with monkeypatch.context() as patch:
        patch.setattr(_native, "status", lambda: "off")
        jax.clear_caches()
        want = jax.grad(value, argnums=(0, 1))(a, x)
    jax.clear_caches()
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-7)


@built
@pytest.mark.slow
def test_gradients_of_products_in_batches() -> None:
    """By operands that the batch shares, and by such that differ."""
    a, x = pair(34, (2, 2, 2), (2, 2, 2), 2, 2)

    def one(s: jax.Array, a: tt.TTMatrix, x: tt.TT) -> jax.Array:
        return tt.norm(tt.matvec(a * s, x, rank=1))

    every = [0.5, 2.0]
    found = jax.grad(lambda *of: jax.vmap(one, (0, None, None))(*of).sum(), (0, 1, 2))(
        jnp.array(every), a, x
    )
    slope = jax.jit(jax.grad(one, (0, 1, 2)))
    by, by_a, by_x = zip(*(slope(jnp.asarray(s), a, x) for s in every), strict=True)
    wanted = jnp.stack(by), *(jax.tree.map(jnp.add, *both) for both in (by_a, by_x))
    for g, w in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def host(t: tt.TT) -> list[np.ndarray]:
    return [np.asarray(c) for c in t.cores]


@built
@pytest.mark.parametrize("tol", [0.3, 1e-2, 1e-4, 1e-6])
def test_gram_matrices_keep_the_tolerance(tol: float) -> None:
    powers = (140, -140, 140, -70, -60)
    trains = [
        decaying(40, (5,) * 7, 25, 0.6),
        train(41, (3, 1, 7, 2, 6), 5) + train(42, (3, 1, 7, 2, 6), 4),
        train(43, (9, 8), 8),
        tt.TT(
            tuple(c * 10.0**e for c, e in zip(train(44, (4,) * 5, 6).cores, powers, strict=True))
        ),
    ]
    for t in trains:
        cores = _native.gram_round(host(t), tol**2)
        assert cores is not None
        out = tt.TT(tuple(jnp.asarray(c) for c in cores))
        assert error(t, out) <= tol
        exact = tt.round(t, tol=tol, method="svd")
        assert all(r <= s + 1 for r, s in zip(out.ranks, exact.ranks, strict=True))
        assert tt.round(t, tol=tol).ranks == out.ranks


@built
def test_gram_matrices_that_cannot_tell_give_the_train_back() -> None:
    t = train(45, (4,) * 5, 3)
    nothing = tt.TT(tuple(0 * c for c in t.cores))
    for given, tol in (
        (t - t * (1 + 1e-9), 1e-3),  # cancels to below √eps
        (t, 1e-9),
        (nothing, 1e-3),
        (tt.TT((t.cores[0] * np.nan, *t.cores[1:])), 1e-3),
    ):
        assert _native.gram_round(host(given), tol**2) is None
    tiny = t - t * (1 + 1e-9)  # `tt.norm` may not see it
    left = tt.distance(tiny, tt.round(tiny, tol=1e-3))
    assert float(left) <= 1e-3 * float(tt.distance(tiny, nothing))
    assert tt.round(nothing, tol=1e-3).ranks == (1,) * 6
    for unfit in ([c.astype(np.complex128) for c in host(t)], [c.T for c in host(t)]):
        assert choose_kernel("tt.round(tol=), Gram sweep", unfit, HOST) is not CPP


@built
def test_the_threads_of_lapack_come_back() -> None:
    get, put = loading.blas_threads()
    if not get.value:
        pytest.skip("this BLAS does not tell its threads")
    threads = ctypes.CFUNCTYPE(ctypes.c_int)(get.value)
    before = threads()
    compiled(train(46, (6,) * 5, 20), 4)
    assert threads() == before
    assert put.value


@built
@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 16_384), (7, 16_391), (64, 20_000), (301, 16_385)]
)
def test_passes_over_wide_matrices(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    a, u = rng.normal(size=(rows, columns)), rng.normal(size=(rows, min(rows, 5)))
    assert choose_kernel("linalg.project", (a,), HOST) is CPP
    np.testing.assert_allclose(_native.gram(a), a @ a.T, rtol=0, atol=1e-12 * columns)
    np.testing.assert_allclose(_native.project(u, a), u.T @ a, rtol=0, atol=1e-12 * rows)
    a[rows // 2, columns - 1] = np.nan
    assert np.isnan(_native.gram(a)[rows // 2]).all()


@built
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_gram_matrices_of_drawn_matrices(dtype: str) -> None:
    """Of any strides, wide and tall, summed in double precision."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        rows, columns = int(rng.integers(1, 70)), int(10 ** rng.uniform(0, 3.7))
        a = rng.normal(size=(2, 2 * rows, 2 * columns))
        a = (a[0] + 1j * a[1] if dtype[0] == "c" else a[0]).astype(dtype)
        a = a[:: rng.integers(1, 3), :: rng.integers(1, 3)]
        a = np.asfortranarray(a) if rng.random() < 0.3 else a
        wide = a.astype(np.result_type(dtype, np.float64))
        for right in (False, True):
            found = _native.gram(a.T if right else a, right)
            exact = wide.conj() @ wide.T if right else wide @ wide.conj().T
            assert found.dtype == wide.dtype
            np.testing.assert_allclose(found, exact, rtol=0, atol=1e-12 * wide.shape[1])
            np.testing.assert_allclose(found, found.conj().T, rtol=0, atol=0)


@built
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_gram_matrices_of_few_rows_over_several_strips(dtype: str) -> None:
    """The length of a strip depends on the number of rows; here every strip ends at its end."""
    rng = np.random.default_rng(11)
    for rows in range(1, 21):
        columns = int(rng.integers(4000, 6000))
        a = rng.normal(size=(2, rows, columns))
        a = (a[0] + 1j * a[1] if dtype[0] == "c" else a[0]).astype(dtype)
        wide = a.astype(np.result_type(dtype, np.float64))
        for right in (False, True):
            found = _native.gram(a.T if right else a, right)
            exact = wide.conj() @ wide.T if right else wide @ wide.conj().T
            np.testing.assert_allclose(found, exact, rtol=0, atol=1e-8, err_msg=f"{rows}")


@built
def test_gram_matrices_refuse_what_they_cannot_read() -> None:
    for a in (np.zeros(3), np.zeros((0, 3)), np.zeros((2, 2), int), np.zeros((2, 2), np.float16)):
        with pytest.raises(ValueError, match="real or complex matrix"):
            _native.gram(a)
    for a in (np.zeros((4, 40_000))[:, ::-1], np.zeros((4, 40_000), int)):
        assert choose_kernel("linalg.gram", (a,), HOST, right=False) is not CPP


@built
@pytest.mark.parametrize(("size", "rank"), [(1, 1), (9, 9), (40, 13), (40, 40)])
def test_factors_of_gram_matrices_have_their_rank(size: int, rank: int) -> None:
    a = np.random.default_rng(size).normal(size=(size, rank))
    g = a @ a.T
    roundoff = 2 * np.finfo(float).eps * np.trace(g)
    assert choose_kernel("tt.round(tol=), Gram factor", (g,), HOST) is CPP
    lower = _native.pivoted_cholesky(g, roundoff)
    assert lower.shape == (size, rank)
    np.testing.assert_allclose(lower @ lower.T, g, rtol=0, atol=10 * roundoff)
    nothing = _native.pivoted_cholesky(0 * g, 0.0)
    assert nothing.shape == (size, 1)
    assert not nothing.any()


@built
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("seed", range(2))
def test_small_arrays_become_the_trains_of_an_svd(seed: int, dtype: Any) -> None:
    rng = np.random.default_rng([seed, np.dtype(dtype).num])
    served = 0
    for case in _drawn.draw(rng, 12, 2e4):
        x, tol = case.array(), max(case.tol, 1e-6)
        if np.issubdtype(dtype, np.complexfloating):
            # Real data too, and those that one phase makes real.
            x = (x if rng.random() < 0.5 else x.real) * np.exp(1j * rng.choice([0, 0.7]))
        else:
            x = x.real + x.imag
        x = np.asfortranarray(x.astype(dtype))
        for a in (x, np.zeros_like(x)):
            cores = _native.tt_svd(a, tol**2 / (a.ndim - 1), 4e-15)
            if cores is None:  # a side is too long
                lefts = [math.prod(a.shape[:k]) for k in range(1, a.ndim)]
                assert max(min(n, a.size // n) for n in lefts) >= 96, case
                continue
            served += 1
            exact = _plain.svd_tt_svd(a.astype(np.result_type(dtype, np.float64)), tol)
            assert np.linalg.norm(_drawn.dense(cores) - a.reshape(-1)) <= tol * np.linalg.norm(a), (
                case
            )
            assert sum(c.size for c in cores) <= 1.05 * sum(c.size for c in exact) + 20, case
            for c in cores[:-1]:
                u = c.astype(np.result_type(dtype, np.float64)).reshape(-1, c.shape[-1])
                gap = np.linalg.norm(u.conj().T @ u - np.eye(u.shape[1]))
                assert gap <= 50 * np.finfo(dtype).eps * len(u.T), case
            assert {c.dtype for c in cores} == {a.dtype}
    assert served > 12


@built
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_tall_unfoldings_of_falling_energies_have_orthonormal_cores(dtype: Any) -> None:
    """Cholesky's factorisation serves while energies are alike, reflections where they fall."""
    rng = np.random.default_rng(7)
    for fall in (1.0, 1e-2, 1e-4, 1e-6):
        m, n, p = 12, int(rng.integers(20, 30)), int(rng.integers(5, 12))
        left, right = _drawn.normal(rng, (m * n, p), dtype), _drawn.normal(rng, (p, p), dtype)
        a = ((left * fall ** np.linspace(0, 1, p)) @ right).astype(dtype)
        for tol in (1e-3, 2e-7):
            cores = _native.tt_svd(a.reshape(m, n, p), tol**2 / 2, 4e-15)
            assert cores is not None
            error = np.linalg.norm(_drawn.dense(cores) - a.reshape(-1))
            assert error <= tol * np.linalg.norm(a), (fall, tol)
            for c in cores[:-1]:
                u = c.reshape(-1, c.shape[-1])
                gap = np.linalg.norm(u.conj().T @ u - np.eye(u.shape[1]))
                assert gap <= 50 * np.finfo(float).eps * len(u.T), (fall, tol)


@built
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_trains_of_low_rank_have_the_ranks_of_an_svd(dtype: Any) -> None:
    """Cholesky's factorisation with pivots replaces eigenvectors: ranks 1 to 20, and zeros."""
    rng = np.random.default_rng([9, np.dtype(dtype).num])
    for _ in range(12):
        shape = tuple(int(n) for n in rng.integers(20, 60, 3))
        rank, fall = int(rng.integers(1, 20)), rng.uniform(0, 4)
        left, right = (
            _drawn.normal(rng, (n, rank), dtype) for n in (shape[0], math.prod(shape[1:]))
        )
        a = (left * 10.0 ** -np.linspace(0, fall, rank)) @ right.T
        a = (a / np.linalg.norm(a)).astype(dtype).reshape(shape)
        tol = 10.0 ** rng.uniform(-4 if np.finfo(dtype).bits == 32 else -6, -1)
        cores = _native.tt_svd(a, tol**2 / 2, 4e-15)
        assert cores is not None
        assert np.linalg.norm(_drawn.dense(cores) - a.reshape(-1)) <= tol
        s = np.linalg.svd(a.reshape(shape[0], -1), compute_uv=False)
        best = int((np.cumsum(s[::-1] ** 2)[::-1] > tol**2 / 2).sum())
        assert cores[0].shape[2] <= best + 1
        for c in cores[:-1]:
            u = c.astype(np.result_type(dtype, np.float64)).reshape(-1, c.shape[-1])
            gap = np.linalg.norm(u.conj().T @ u - np.eye(u.shape[1]))
            assert gap <= 50 * np.finfo(dtype).eps * len(u.T)


@built
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_modes_of_small_arrays_are_split_off_on_the_right(dtype: Any) -> None:
    """Where the left has a side too long for C++; ranks of either end, and those of full rank."""
    rng = np.random.default_rng([11, np.dtype(dtype).num])
    for last in ((20, 5, 3), (30, 2, 2, 2), (9, 4, 7), (25, 1, 12)):
        shape = (int(rng.integers(200, 260)), *last)
        rank, tol = int(rng.integers(1, 7)), 10.0 ** rng.uniform(-4, -1)
        exact = _drawn.train(rng, shape, rank, dtype)
        a = _drawn.dense([c.astype(np.result_type(dtype, np.float64)) for c in exact])
        a = a.reshape(shape).astype(dtype)
        cores = _native.tt_svd(a, tol**2 / (a.ndim - 1), 4e-15)
        assert cores is not None
        assert np.linalg.norm(_drawn.dense(cores) - a.reshape(-1)) <= tol * np.linalg.norm(a)
        pairs = zip(cores, exact, strict=True)
        assert all(c.shape[2] <= e.shape[2] for c, e in pairs), (shape, rank)
        for c in cores[:-1]:
            u = c.astype(np.result_type(dtype, np.float64)).reshape(-1, c.shape[-1])
            gap = np.linalg.norm(u.conj().T @ u - np.eye(u.shape[1]))
            assert gap <= 50 * np.finfo(dtype).eps * len(u.T)


@built
@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
def test_small_arrays_that_are_not_finite_or_not_arrays_of_two_modes(dtype: Any) -> None:
    x = np.ones((3, 4, 5), dtype)
    x[1, 2, 3] = np.nan
    assert _native.tt_svd(x, 1e-6, 4e-15) is None
    full = np.random.default_rng(0).normal(size=(260, 260)).astype(dtype)
    assert _native.tt_svd(full, 1e-6, 4e-15) is None
    for bad in (np.ones(3, dtype), np.ones((0, 2), dtype), np.ones((2, 2), int)):
        with pytest.raises(ValueError, match="two modes or more of real or complex numbers"):
            _native.tt_svd(bad, 1e-6, 4e-15)


@built
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_entries_of_drawn_trains_are_in_range(dtype: Any) -> None:
    """Cores of any sizes whose products are in range, and those whose entries are not."""
    rng = np.random.default_rng(np.dtype(dtype).num)
    most = 30 if np.finfo(dtype).bits == 32 else 280
    for _ in range(12):
        order, far = int(rng.integers(1, 12)), most * rng.random()
        modes = rng.integers(1, 7, order).tolist()
        ranks = [1, *rng.integers(1, 30, order - 1).tolist(), 1]
        plain = [
            _drawn.normal(rng, (r, n, s), dtype)
            for r, n, s in zip(ranks[:-1], modes, ranks[1:], strict=True)
        ]
        powers = np.round(far * rng.uniform(-1, 1, order))
        powers = np.round(powers - powers.mean())
        powers[-1] -= powers.sum()
        if abs(powers).max() > most:
            continue
        cores = [(c * dtype(10.0**p)).astype(dtype) for c, p in zip(plain, powers, strict=True)]
        if rng.random() < 0.3:
            cores = [np.asfortranarray(c) for c in cores]
        ids = np.stack([rng.integers(-n, n, 40) for n in modes], -1)
        exact = _plain.evaluate([c.astype(np.complex128) for c in plain], ids)
        found = _native.entries(cores, ids)
        assert found.dtype == dtype
        np.testing.assert_allclose(
            found, exact, atol=(200 + 20 * most) * np.finfo(dtype).eps * abs(exact).max()
        )
        beyond = _native.entries(
            [c * dtype(10.0 ** (most // 2)) for c in plain * 3], ids[:, [*range(order)] * 3]
        )
        assert order < 3 or not np.isfinite(beyond).any()
        below = [c * dtype(10.0 ** -(most // 2)) for c in plain * 3]
        assert order < 3 or not _native.entries(below, ids[:, [*range(order)] * 3]).any()


@built
def test_entries_of_a_train_that_holds_nan_inf_or_zeros() -> None:
    core = np.array([[[1.0], [np.nan], [np.inf], [0.0], [-np.inf]]])
    ids = np.array([[0, 0], [1, 0], [2, 0], [3, 3], [0, 4]])
    np.testing.assert_array_equal(_native.entries([core] * 2, ids), [1, np.nan, np.inf, 0, -np.inf])


@built
def test_entries_are_refused_out_of_range() -> None:
    cores = [np.ones((1, 3, 2)), np.ones((2, 4, 1))]
    for bad in (
        [[3, 0]],
        [[0, -5]],
        [[0, 0], [0, 4]],
        [[0]],
        np.zeros((0, 2), int),
        [[0, 1 << 40]],
    ):
        with pytest.raises(ValueError, match="expected"):
            _native.entries(cores, np.array(bad))
    for bad in (cores[::-1], cores[:1], [cores[0], cores[1].astype(np.float32)]):
        with pytest.raises(ValueError, match="expected a train of one type"):
            _native.entries(bad, np.zeros((1, len(bad)), int))


def test_passes_take_only_what_they_can() -> None:
    a = np.zeros((4, 40_000))
    assert choose_kernel("linalg.project", (a,), HOST) is CPP
    assert choose_kernel("linalg.project", (a.T,), HOST) is not CPP
    assert choose_kernel("linalg.project", (a[:, ::2],), HOST) is not CPP
    assert choose_kernel("linalg.project", (a.astype(np.float32),), HOST) is not CPP
    assert choose_kernel("linalg.project", (a[:, :100],), HOST) is not CPP


def test_it_can_be_turned_off() -> None:
    code = (
        "import jax; from tensorjax import _native, tt\n"
        "t = tt.random(jax.random.key(0), (4, 5, 6), 4)\n"
        "print(_native.status())\n"
        "print('tensorjax_round' in jax.jit(lambda t: tt.round(t, rank=2)).lower(t).as_text())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, text=True, capture_output=True, cwd=ROOT,
        env={**os.environ, "TENSORJAX_NATIVE": "0", "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.stdout.split("\n")[:2] == ["turned off by TENSORJAX_NATIVE=0", "False"]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As without simulated devices; programs made for several are forgotten, and the other way."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    jax.clear_caches()
    yield
    jax.clear_caches()


@built
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("shape", "left", "right"),
    [((3,), 1, 1), ((4, 5), 3, 2), ((2,) * 9, 5, 11), ((1, 6, 1, 5), 4, 3), ((7, 3, 9, 4), 9, 20)],
)
def test_inner_products_are_those_of_the_dense_tensors(
    shape: tuple[int, ...], left: int, right: int
) -> None:
    x, y = train(1, shape, left), train(2, shape, right)
    assert "tensorjax_inner" in jax.jit(tt.inner).lower(x, y).as_text()
    a, b = (np.asarray(tt.to_dense(t)) for t in (x, y))
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    assert abs(tt.inner(x, y) - np.vdot(a, b)) < 1e-14 * lengths
    assert abs(tt.norm(x) - np.linalg.norm(a)) < 1e-14 * np.linalg.norm(a)


@built
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("size", [1e-250, 1e-160, 1e250])
def test_inner_products_of_cores_that_leave_the_range(size: float) -> None:
    x = train(1, (5,) * 6, 4)
    cores = [c * size if k % 2 else c / size for k, c in enumerate(x.cores)]
    scaled = tt.TT(tuple(cores))
    np.testing.assert_allclose(tt.norm(scaled), tt.norm(x), rtol=1e-13)
    np.testing.assert_allclose(tt.inner(scaled, x), tt.norm(x) ** 2, rtol=1e-13)
    assert tt.inner(0.0 * x, x) == 0.0
    assert np.isnan(tt.norm(tt.TT((jnp.nan * x.cores[0], *x.cores[1:]))))


@built
@pytest.mark.usefixtures("alone")
def test_inner_products_in_batches_and_their_gradients() -> None:
    x, y = train(1, (4, 5, 6), 3), train(2, (4, 5, 6), 2)
    batch = jax.tree.map(lambda c: jnp.stack([c, 2 * c, -c]), x)
    found = jax.vmap(tt.inner, (0, None))(batch, y)
    np.testing.assert_allclose(found, tt.inner(x, y) * np.array([1, 8, -1.0]), rtol=1e-12)
    np.testing.assert_allclose(jax.vmap(tt.norm)(batch), tt.norm(x) * np.array([1, 8, 1.0]))

    def dense(x: tt.TT, y: tt.TT) -> jax.Array:
        return jnp.vdot(tt.to_dense(x), tt.to_dense(y))

    for f, g in (
        (tt.inner, dense),
        (lambda x, _: tt.norm(x), lambda x, _: dense(x, x) ** 0.5),
    ):
        for a, b in zip(jax.grad(f)(x, y).cores, jax.grad(g)(x, y).cores, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(
    _blas_threads.controls("numpy.linalg._umath_linalg") is None, reason="no OpenBLAS"
)
def test_the_threads_of_numpy_come_back() -> None:
    get, put = _blas_threads.controls("numpy.linalg._umath_linalg")
    before = get()
    put(2)
    try:
        with _blas_threads.one_thread(True):
            with _blas_threads.one_thread(True):
                assert get() == 1
            assert get() == 1
        with _blas_threads.one_thread(False):
            assert get() == 2
        with pytest.raises(KeyError), _blas_threads.one_thread(True):
            raise KeyError
        assert get() == 2
    finally:
        put(before)


@built
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("modes", "rows", "rank"),
    [
        (((33, 17), (3, 4)), 5, 1),  # one number beyond a vector, and one row beyond a block
        (((100, 100), (6, 4)), 40, 1),
        (((4, 8, 5, 9), (3, 2, 1, 2)), 17, 2),
        (((70, 16), (9, 2)), 3, 2),  # more sums than registers
    ],
)
def test_one_pass_over_rows_is_the_map(
    modes: tuple[tuple[int, ...], ...], rows: int, rank: int, dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(conditions, "LARGE_INPUT", 1)
    p = sketch.ttrp(jax.random.key(0), *modes, rank=rank, dtype=dtype)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((rows, p.in_size)), dtype)
    assert "tensorjax_sketch" in jax.jit(sketch.apply).lower(p, x).as_text()
    dense = _map_cores.merge(_map_cores.scaled_cores(p))[0, ..., 0]
    np.testing.assert_allclose(
        sketch.apply(p, x), x @ dense.T, rtol=1e-10 if dtype == "float64" else 1e-3,
        atol=(1e-13 if dtype == "float64" else 1e-5) * np.sqrt(p.in_size),
    )  # fmt: skip


@built
@pytest.mark.usefixtures("alone")
def test_many_maps_of_the_same_rows_copy_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "LARGE_INPUT", 1)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 180)))

    def image(key: jax.Array, x: jax.Array) -> jax.Array:
        return sketch.apply(sketch.ttrp(key, (9, 20), (3, 2), rank=2, dtype="float64"), x)

    keys = jax.random.split(jax.random.key(0), 7)
    wanted = jnp.stack([image(key, x) for key in keys])
    many = jax.jit(jax.vmap(image, (0, None)))
    np.testing.assert_allclose(many(keys, x), wanted, rtol=1e-10, atol=1e-12)
    assert "tensorjax_sketch" not in many.lower(keys, x).as_text()
    slope = jax.grad(lambda x: jnp.sum(jnp.sin(many(keys, x))))(x)
    one_by_one = sum(jax.grad(lambda x, k=k: jnp.sum(jnp.sin(image(k, x))))(x) for k in keys)
    np.testing.assert_allclose(slope, one_by_one, rtol=1e-10, atol=1e-12)
    both = jax.vmap(image)(keys, jnp.stack([x] * 7))
    np.testing.assert_allclose(both, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("c++"), reason="no C++ on Linux")
def test_a_system_that_gives_few_threads(tmp_path: Path) -> None:
    source, program = tmp_path / "few.cc", tmp_path / "few"
    source.write_text(FEW_THREADS)
    command = ["c++", "-std=c++17", f"-I{ROOT / 'tensorjax' / '_native'}", str(source)]
    subprocess.run([*command, "-o", str(program), "-lpthread", "-ldl"], check=True, timeout=60)
    assert subprocess.run([str(program)], check=False, timeout=60).returncode == 0


@built
@pytest.mark.usefixtures("alone")
def test_one_pass_in_batches_not_finite_and_differentiated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "LARGE_INPUT", 1)
    p = sketch.ttrp(jax.random.key(0), (9, 20), (3, 2), rank=2, dtype="float64")
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 180)))
    y = sketch.apply(p, x)
    np.testing.assert_allclose(jax.vmap(sketch.apply, (None, 0))(p, x), y, rtol=1e-12)

    def loss(p: sketch.Kronecker, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(sketch.apply(p, x)))

    found = jax.grad(loss, (0, 1))(p, x)
    with monkeypatch.context() as patch:
        patch.setattr(_native, "status", lambda: "off")
        jax.clear_caches()
        np.testing.assert_allclose(sketch.apply(p, x), y, rtol=1e-12)
        wanted = jax.grad(loss, (0, 1))(p, x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    for place in (0, 19, 179):
        with pytest.raises(ValueError, match="NaN"):
            sketch.apply(p, x.at[1, 2, place].set(jnp.nan))


@built
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_entrywise_products_are_those_of_xla(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = train(1, (4, 1, 5, 3), 3, dtype), train(2, (4, 1, 5, 3), 5, dtype)
    assert "tensorjax_multiply" in jax.jit(tt.hadamard).lower(x, y).as_text()
    found = tt.hadamard(x, y)
    batch = jax.tree.map(lambda c: jnp.stack([c, 2 * c]), x)
    many = jax.vmap(tt.hadamard, (0, None))(batch, y)

    def loss(x: tt.TT, y: tt.TT) -> jax.Array:
        return sum((jnp.sum(jnp.sin(c)) for c in tt.hadamard(x, y).cores), jnp.zeros((), dtype))

    slopes = jax.grad(loss, (0, 1))(x, y)
    with monkeypatch.context() as patch:
        patch.setattr(_native, "status", lambda: "off")
        jax.clear_caches()
        wanted, steeper = tt.hadamard(x, y), jax.grad(loss, (0, 1))(x, y)
    for a, b, c in zip(found.cores, wanted.cores, many.cores, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(c, np.stack([a, 2 * a]))
    for a, b in zip(jax.tree.leaves(slopes), jax.tree.leaves(steeper), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4 if dtype == "float32" else 1e-12, atol=1e-6)


@built
@pytest.mark.usefixtures("alone")
def test_entrywise_products_of_large_trains() -> None:
    """As large as to be compiled without being told to, and to lie in huge pages."""
    x, y = train(1, (6,) * 5, 20), train(2, (6,) * 5, 25)
    assert "tensorjax_multiply" in jax.jit(tt.hadamard).lower(x, y).as_text()
    indices = np.random.default_rng(0).integers(0, 6, (50, 5))
    product = tt.evaluate(x, indices) * tt.evaluate(y, indices)
    np.testing.assert_allclose(tt.evaluate(tt.hadamard(x, y), indices), product, rtol=1e-10)


@built
@pytest.mark.parametrize("least", [1, 9])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_products_in_one_call_are_numpys(dtype: str, least: int) -> None:
    """Later calls of trains with values, and sizes of cores whose products leave the range.

    Few and many sums: these are made by tiles of several rows.
    """
    rng = np.random.default_rng([42, len(dtype), ord(dtype[0])])
    large = 1e30 if dtype in ("float32", "complex64") else 1e200
    m, n, k = rng.integers(least, least + 4, (3, 3)).tolist()
    sizes = [(large, 1 / large), (1 / large, large), (1.0, 1.0)]

    def train(modes: Any, of: int) -> Any:
        ranks = [1, *rng.integers(1, 5, 2).tolist(), 1]
        shapes = [(2, r, *n, s) for r, n, s in zip(ranks, modes, ranks[1:], strict=False)]
        drawn = [rng.standard_normal(shape) for shape in shapes]
        cores = [c[0] + 1j * c[1] if dtype[0] == "c" else c[0] for c in drawn]
        kind = tt.TTMatrix if len(modes[0]) == 2 else tt.TT
        return kind([(size[of] * c).astype(dtype) for size, c in zip(sizes, cores, strict=True)])

    x, y = (train([(i,) for i in n], of) for of in (0, 0))
    a, b = (train(list(zip(*modes, strict=True)), 0) for modes in ((m, n), (n, k)))
    v = train([(i,) for i in n], 1)
    cases = [(tt.hadamard, x, y), (tt.hadamard, a, a), (tt.matvec, a, v), (tt.matmul, a, b)]
    # Inner products of many terms cancel: their error is not relative to the result.
    cases += [] if dtype[0] == "c" or least > 1 else [(tt.inner, v, v), (tt.inner, x, v)]
    for operation, left, right in cases:
        first_calls.forget_first_calls()
        first = operation(left, right)
        for _ in range(10):
            later = operation(left, right)
        for wanted, found in zip(jax.tree.leaves(first), jax.tree.leaves(later), strict=True):
            assert (wanted.shape, wanted.dtype) == (found.shape, found.dtype)
            assert np.isfinite(found).all()
            close = 30 * float(np.finfo(dtype).eps) * float(np.abs(wanted).max())
            np.testing.assert_allclose(found, wanted, rtol=0, atol=close)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_no_operands_end_the_process(seed: int) -> None:
    """Whatever a call holds, it is served or refused."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.native_fuzz", str(seed), "150"],
        check=False, text=True, capture_output=True, cwd=ROOT, timeout=300,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    served = {line.split(":")[0]: line for line in done.stdout.splitlines()}
    for name in loading.CALLS:
        assert ": 0 served" not in served[name], served[name]
        assert " 0 refused" not in served[name], served[name]


@built
@pytest.mark.parametrize("seed", range(3))
def test_cores_of_several_dtypes_are_promoted(seed: int) -> None:
    """As the dense tensors would be, under jit, vmap and grad too."""
    rng = np.random.default_rng(seed)
    order = int(rng.integers(2, 5))
    modes, ranks = rng.integers(1, 5, order), [1, *rng.integers(1, 5, order - 1), 1]
    kinds = np.array(["float32", "float64", "float32", "float64"])[rng.permutation(order)]
    kinds[rng.integers(order)] = "float64"
    draws = [rng.standard_normal((ranks[k], n, ranks[k + 1])) for k, n in enumerate(modes)]
    x = tt.TT([d.astype(k) for d, k in zip(draws, kinds, strict=True)])
    wide = tt.TT([c.astype(float) for c in x.cores])
    dense, pairs = np.asarray(tt.to_dense(wide)), jax.tree.map(lambda c: jnp.stack([c, -c]), x)
    with jax.numpy_dtype_promotion("standard"):
        length = np.linalg.norm(dense)
        np.testing.assert_allclose(tt.norm(x), length, rtol=1e-12)
        np.testing.assert_allclose(jax.vmap(jax.jit(tt.norm))(pairs), length, rtol=1e-12)
        np.testing.assert_allclose(tt.inner(x, x), length**2, rtol=1e-12)
        assert tt.inner(x, x).dtype == tt.hadamard(x, x).dtype == jnp.float64
        np.testing.assert_allclose(tt.to_dense(tt.hadamard(x, x)), dense**2, atol=1e-12)
        for found, want in zip(
            jax.grad(tt.norm)(x).cores, jax.grad(tt.norm)(wide).cores, strict=True
        ):
            np.testing.assert_allclose(found, want.astype(found.dtype), rtol=1e-5, atol=1e-6)
        top = max(x.ranks)
        for out in (tt.round(x, rank=top), tt.round(x + x, rank=top) * 0.5, tt.round(x, tol=1e-9)):
            assert out.dtype == jnp.float64
            np.testing.assert_allclose(tt.to_dense(out), dense, atol=1e-9)


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        (amen, "_swept", lambda n: tt.solve(tt.identity((n,) * 3), tt.ones((n,) * 3), tol=1e-6)),
        (dmrg_sweeps, "_swept", lambda n: tt.eigsh(tt.identity((n,) * 3), tol=1e-4, max_sweeps=1)),
        (
            dmrg_sweeps,
            "_block_swept",
            lambda n: tt.eigsh(tt.identity((n,) * 3), k=2, tol=1e-4, max_sweeps=1),
        ),
    ],
)
def test_sweeps_over_small_cores_have_one_thread_of_the_blas(
    module: Any, name: str, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _blas_threads._numpy()
    if found is None:
        pytest.skip("the threads of this BLAS cannot be told")
    get, put = found
    before, seen, real = get(), [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *a: seen.append(get()) or real(*a))
    put(2)
    try:
        call(5)
        assert seen
        assert set(seen) == {1}
        assert get() == 2
        monkeypatch.setattr(_blas_threads, "_SMALL_CORE", 5)
        seen.clear()
        call(5)
        assert set(seen) == {2}
    finally:
        put(before)
