"""What is compiled from C++, held beside XLA and NumPy for the same work."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import _native, tt

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
        ((3,) * 9, 27, 5),
        ((1, 6, 1, 5, 4, 1), 9, 4),  # modes of size one
        ((10, 9, 8, 7, 6), 33, 17),
        ((2,) * 12, 40, 21),
    ],
)
@pytest.mark.parametrize("method", ["randomized", "svd"])
def test_the_error_is_within_five_per_cent_of_the_best(
    shape: tuple[int, ...], rank: int, kept: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = decaying(3, shape, rank, 0.75)
    if method == "svd" and not _native.serves(jnp.float64, exact=True, shape=shape, ranks=t.ranks):
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
@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 16_384), (7, 16_391), (64, 20_000), (301, 16_385)]
)
def test_passes_over_wide_matrices(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    a, u = rng.normal(size=(rows, columns)), rng.normal(size=(rows, min(rows, 5)))
    assert _native.is_wide(a)
    np.testing.assert_allclose(_native.gram(a), a @ a.T, rtol=0, atol=1e-12 * columns)
    np.testing.assert_allclose(_native.project(u, a), u.T @ a, rtol=0, atol=1e-12 * rows)
    a[rows // 2, columns - 1] = np.nan
    assert np.isnan(_native.gram(a)[rows // 2]).all()


@built
@pytest.mark.parametrize(("size", "rank"), [(1, 1), (9, 9), (40, 13), (40, 40)])
def test_factors_of_gram_matrices_have_their_rank(size: int, rank: int) -> None:
    a = np.random.default_rng(size).normal(size=(size, rank))
    g = a @ a.T
    roundoff = 2 * np.finfo(float).eps * np.trace(g)
    assert _native.factors(g)
    lower = _native.pivoted_cholesky(g, roundoff)
    assert lower.shape == (size, rank)
    np.testing.assert_allclose(lower @ lower.T, g, rtol=0, atol=10 * roundoff)
    nothing = _native.pivoted_cholesky(0 * g, 0.0)
    assert nothing.shape == (size, 1)
    assert not nothing.any()


@built
def test_passes_take_only_what_they_can() -> None:
    a = np.zeros((4, 40_000))
    assert _native.is_wide(a)
    assert not _native.is_wide(a.T)
    assert not _native.is_wide(a[:, ::2])
    assert not _native.is_wide(a.astype(np.float32))
    assert not _native.is_wide(a[:, :100])


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
