"""Rounding: the promise on the error, the ranks, loops under jit, numerical traps, bad input."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import linalg, tt
from tensorjax._cores import randomized_rounding
from tensorjax._kernels.table import CALL, TABLE
from tests.oracles import (
    DTYPES,
    bond_tails,
    check_gradient,
    combined,
    compilations,
    cores,
    dense,
    eps,
    error,
    hard_trains,
    hilbert,
    infinite,
    norm,
    tt_svd,
)

SHAPES = [(4, 3, 5), (1, 5, 1, 3), (2,) * 7, (20, 2, 20), (6,)]

# The promise -------------------------------------------------------------------------------------


def check_promise(t: tt.TT, size: float, tol: float, out: tt.TT, where: tuple) -> None:
    e, x = eps(t.dtype), dense(t)
    # The dense arrays compared here carry a roundoff of their own, in double precision.
    assert error(dense(out), x) <= tol * norm(x) + 4 * eps(np.float64) * size, where
    assert out.dtype == t.dtype
    assert out.shape == t.shape
    if tol * norm(x) > 100 * e * size:  # above the roundoff in the data
        exact, _ = tt_svd(x, tol=tol)
        assert all(a <= b + 1 for a, b in zip(out.ranks, exact, strict=True)), (*where, exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [*SHAPES[:2], *(pytest.param(s, marks=pytest.mark.slow) for s in SHAPES[2:])], ids=str
)
def test_tol_is_kept_with_the_ranks_of_tt_svd(rng, shape, dtype):
    e = eps(dtype)
    for name, (x, size) in hard_trains(rng, shape, dtype).items():
        t = tt.TT(x)
        for tol in (10 * e, 1e3 * e, e**0.5, 1e-6, 1e-2):
            for method in linalg.METHODS if tol >= 10 * e else ():
                out = tt.round(t, tol=tol, method=method)
                check_promise(t, size, tol, out, (name, tol / e, method, out.ranks))


@pytest.fixture
def accelerator(monkeypatch):
    """Rounding with tol as on an accelerator: compiled, with bucketed ranks, trimmed after."""
    row = TABLE["tt.round(tol=)"]
    monkeypatch.setitem(row, CALL, row[CALL][1:])


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_tol_is_kept_on_an_accelerator(rng, accelerator, dtype):
    e = eps(dtype)
    for name, (x, size) in hard_trains(rng, (4, 3, 5), dtype).items():
        t = tt.TT(x)
        for tol in (10 * e, 1e3 * e, 1e-3, 0.1):
            if tol * norm(dense(t)) >= 10 * e * size:
                out = tt.round(t, tol=tol)
                check_promise(t, size, tol, out, (name, tol / e, out.ranks))


def test_the_difference_of_near_equals_is_rounded_relative_to_itself(rng):
    """‖a − b‖ = 1e-6 ‖a‖: Gram matrices of a and b see nothing of it, and must not be believed."""
    shape = (4,) * 8
    a, b = cores(rng, shape, 4, np.float64), cores(rng, shape, 2, np.float64)
    t = tt.TT(combined((1, a), (1e-6, b), (-1, a)))
    exact = tt.TT(b) * 1e-6
    for method in linalg.METHODS:
        out = tt.round(t, tol=1e-6, method=method)
        assert out.ranks == tt.round(exact, tol=1e-6).ranks
        assert float(tt.distance(out, exact)) <= 2e-6 * float(tt.norm(exact))


def test_matrices_are_rounded_as_trains(rng, key):
    a = tt.random_matrix(key, (2, 3, 2), (3, 1, 2), 2, np.float64)
    for out in (tt.round(a + a, tol=1e-12), tt.round(a + a, rank=2)):
        assert isinstance(out, tt.TTMatrix)
        assert (out.row_shape, out.col_shape, out.ranks) == (a.row_shape, a.col_shape, a.ranks)
        assert error(dense(out), 2 * dense(a)) <= 1e-12 * norm(dense(a))


def test_bfloat16_by_rank_and_by_tol():
    t = tt.from_dense(hilbert((4, 3, 5)), rank=3).astype(jnp.bfloat16)
    for out in (tt.round(t, tol=0.1), tt.round(t + t, rank=2), tt.round(t, tol=0.1, rank=2)):
        assert out.dtype == jnp.bfloat16
        assert max(out.ranks) <= 2
    assert error(dense(tt.round(t, tol=0.1)), dense(t)) <= 0.1 * norm(dense(t))
    assert error(dense(tt.round(t, rank=2)), dense(t)) <= 0.1 * norm(dense(t))


# Laws --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_rounding_is_idempotent(rng, dtype):
    t = tt.from_dense(hilbert((4, 3, 5, 4), dtype), tol=10 * eps(dtype))
    for options in ({"tol": 1e-3}, {"rank": 2}, {"rank": 3, "tol": 1e-3}):
        once = tt.round(t, **options)
        twice = tt.round(once, **options)
        assert tt.effective_ranks(twice) == tt.effective_ranks(once)
        assert error(dense(twice), dense(once)) <= 100 * eps(dtype) * norm(dense(t))


@pytest.mark.parametrize("method", linalg.METHODS)
def test_by_rank_the_error_is_near_the_tails(rng, method):
    x = hilbert((4, 3, 5, 4), np.complex128)
    t = tt.from_dense(x, tol=1e-14)
    for rank in (1, 2, [1, 3, 2]):
        out = tt.round(t, rank=rank, method=method)
        assert error(dense(out), x) <= 1.1 * math.hypot(*bond_tails(x, out.ranks)) + 1e-12
        assert out.ranks == (1, *(rank if isinstance(rank, list) else [rank] * 3), 1)


def test_enough_rank_changes_nothing(rng):
    t = tt.TT(cores(rng, (4, 3, 5), 3, np.float64))
    for rank in (3, 99, [3, 4], np.int32(5)):
        out = tt.round(t + t, rank=rank)
        assert error(dense(out), 2 * dense(t)) <= 1e-13 * norm(dense(t))
    assert tt.round(t, rank=99).ranks == t.ranks
    assert tt.round(tt.TT(cores(rng, (2, 9, 2), 8, np.float64)), rank=99).ranks == (1, 2, 2, 1)
    one = tt.TT(cores(rng, (5,), 1, np.float64))
    assert (dense(tt.round(one, rank=1)) == dense(one)).all()
    assert (dense(tt.round(one, tol=0.9)) == dense(one)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_orthogonalize_makes_isometries_around_the_center(rng, dtype):
    t = tt.TT(cores(rng, (2, 3, 4, 3), [5, 4, 2], dtype))
    for center in (0, 2, -1):
        out = tt.orthogonalize(t, center)
        assert error(dense(out), dense(t)) <= 100 * eps(dtype) * norm(dense(t))
        assert all(a <= b for a, b in zip(out.ranks, t.ranks, strict=True))
        for k, c in enumerate(map(np.asarray, out.cores)):
            if k == center % 4:
                assert norm(c) == pytest.approx(norm(dense(t)), rel=100 * eps(dtype))
                continue
            u = c.reshape(-1, c.shape[2]) if k < center % 4 else c.reshape(len(c), -1).conj().T
            assert error(u.conj().T @ u, np.eye(u.shape[1])) <= 50 * eps(dtype)
    a = tt.orthogonalize(tt.identity((2, 3)), 1)
    assert error(dense(a), np.eye(6)) <= 1e-13


# Static shapes and loops -------------------------------------------------------------------------


def test_rank_with_tol_has_the_shapes_of_rank_and_zeroes_the_rest(rng):
    t = tt.from_dense(hilbert((4, 3, 5, 4)), tol=1e-14)
    free = tt.round(t, tol=1e-3)
    eager = tt.round(t, rank=6, tol=1e-3)
    traced = jax.jit(lambda t, tol: tt.round(t, rank=6, tol=tol))(t, 1e-3)
    for out in (eager, traced):
        assert out.ranks == (1, 4, 6, 4, 1)
        assert error(dense(out), dense(t)) <= 1e-3 * norm(dense(t))
        counted = tt.effective_ranks(out)
        assert all(a <= b + 1 for a, b in zip(counted, free.ranks, strict=True)), counted
        assert tt.trim(out).ranks == counted
        assert (dense(tt.trim(out)) == dense(out)).all()


def padded_step(t: tt.TT, s: tt.TT) -> tt.TT:
    return tt.round(tt.add(t, s), rank=4, tol=1e-6)


def test_a_padded_loop_compiles_once_and_equals_the_eager_one(rng):
    shape = (4, 3, 4)
    s = tt.TT(cores(rng, shape, 2, np.float64))
    steps = 5

    def run(t: tt.TT, s: tt.TT) -> tt.TT:
        return jax.lax.fori_loop(0, steps, lambda _, t: padded_step(t, s), t)

    start = tt.pad(tt.TT(cores(rng, shape, 1, np.float64)), 4)
    compiled = jax.jit(run)
    out = compiled(start, s)
    with compilations() as programs:
        compiled(start * 2.0, s)
    # `*` may compile a small program of its own; the loop must not.
    assert len(programs) <= 1
    eager = start
    for _ in range(steps):
        eager = padded_step(eager, s)
    expected = dense(start) + steps * dense(s)
    assert out.ranks == start.ranks
    assert tt.effective_ranks(out) == (1, 3, 3, 1)
    assert error(dense(out), expected) <= steps * 1e-6 * norm(expected)
    assert error(dense(out), dense(eager)) <= 2 * steps * 1e-6 * norm(expected)


@pytest.mark.parametrize("tol", [1e-3, 1e-13])
def test_concrete_data_inside_jit(rng, tol):
    x = rng.standard_normal((3, 4, 5))
    t, w = tt.from_dense(x, tol=1e-12), tt.matrix_from_dense(np.eye(6), (2, 3), (2, 3), tol=1e-12)

    @jax.jit
    def f(s):
        size = [tt.norm(a) for a in (tt.from_dense(x, tol=tol), tt.round(t, tol=tol))]
        return s * jnp.stack([*size, tt.norm(tt.round(w, tol=tol))])

    np.testing.assert_allclose(f(2.0), 2 * np.array([norm(x), norm(x), 6**0.5]), rtol=1e-3)
    with pytest.raises(TypeError, match="rank="):
        jax.jit(lambda t: tt.round(t, tol=tol))(t)
    with pytest.raises(TypeError, match="x: expected a floating-point"):
        tt.from_dense(x.astype(int), tol=tol)


def test_tol_alone_compiles_nothing_on_a_cpu(rng):
    list_of = [tt.TT(cores(rng, (6, 5, 6), [1 + k % 6, 1 + k % 5], np.float64)) for k in range(30)]
    tt.round(list_of[0], tol=1e-3)
    with compilations() as programs:
        for k, t in enumerate(list_of):
            tt.round(t, tol=10.0 ** -(1 + k % 13))
    assert programs == []


def test_tol_alone_compiles_one_program_a_bucket_on_an_accelerator(rng, accelerator):
    list_of = [tt.TT(cores(rng, (6, 40, 6), [1 + k % 6, 1 + k % 5], np.float64)) for k in range(30)]
    with compilations() as programs:
        for k, t in enumerate(list_of):
            out = tt.round(t, tol=1e-3 * (1 + k))
            assert error(dense(out), dense(t)) <= 1e-3 * (1 + k) * norm(dense(t))
    assert len(programs) <= 4


def test_the_same_shapes_compile_nothing_again(rng):
    first, second = (tt.TT(cores(rng, (4, 3, 5), 3, np.float64)) for _ in range(2))
    for options in ({"rank": 2}, {"rank": 2, "tol": 1e-3}, {"rank": 1, "method": "randomized"}):
        tt.round(first, **options)
        with compilations() as programs:
            tt.round(second, **options)
        assert programs == [], options


def test_vmap_rounds_a_batch(rng):
    batch = [tt.TT(cores(rng, (4, 3, 4), 3, np.float64)) for _ in range(3)]
    stacked = jax.tree.map(lambda *c: jnp.stack(c), *batch)
    for options in ({"rank": 2}, {"rank": 3, "tol": 0.5}):
        out = jax.vmap(lambda t, o=options: tt.round(t, **o))(stacked)
        assert out.ranks == (1, options["rank"], options["rank"], 1)
        for k, t in enumerate(batch):
            one = tt.TT([c[k] for c in out.cores])
            assert error(dense(one), dense(tt.round(t, **options))) <= 1e-12 * norm(dense(t))


@pytest.mark.parametrize("options", [{"rank": 2}, {"rank": 4, "tol": 1e-6}], ids=str)
@pytest.mark.parametrize("method", ["svd", "randomized"])
def test_gradients_on_padded_and_duplicated_trains(rng, method, options):
    """At rank-deficient trains the derivative exists where the rank kept is the rank there is."""

    def loss(t):
        return jnp.sum(jnp.sin(tt.to_dense(tt.round(t, method=method, **options))))

    gradient = jax.jit(jax.grad(loss))
    t = tt.TT(cores(rng, (4, 3, 4), 2, np.float64))
    same = [tt.pad(t, 4), t + t, 0 * t + 0 * t, tt.pad(tt.TT(cores(rng, (4, 3, 4), 1, float)), 4)]
    gradients = [gradient(x) for x in same]
    assert all(np.isfinite(c).all() for g in gradients for c in g.cores)
    for x, g in zip(same[:2], gradients[:2], strict=True):
        if "tol" not in options:
            check_gradient(jax.jit(loss), x, rng, g)


def test_the_sketch_is_fixed_without_a_key_and_drawn_with_one(rng, key):
    t = tt.TT(cores(rng, (4,) * 4, 4, np.float64))
    once, again = (tt.round(t, rank=1, method="randomized") for _ in range(2))
    assert (dense(once) == dense(again)).all()
    drawn = tt.round(t, rank=1, method="randomized", key=key)
    best = tt_svd(dense(t), rank=1)[1]
    for out in (once, drawn):
        assert error(dense(out), dense(t)) <= 1.1 * best


# Traps -------------------------------------------------------------------------------------------


def orthogonal_terms(d: int, weights: np.ndarray, dtype) -> tt.TT:
    """Σ_j w_j e_j ∘ … ∘ e_j: orthogonal rank-one terms, so the weights are all singular values."""
    n = len(weights)
    middle = np.zeros((n, n, n), dtype)
    middle[np.arange(n), np.arange(n), np.arange(n)] = 1
    return tt.TT([np.eye(n, dtype=dtype)[None], *[middle] * (d - 2),
                  (np.eye(n) * weights).astype(dtype)[..., None]])  # fmt: skip


def test_a_sketch_of_many_orthogonal_terms_is_near_the_best():
    weights = 0.7 ** np.arange(24)
    t = orthogonal_terms(30, weights, np.float32)
    out = tt.round(t, rank=6, method="randomized")
    best = float(np.linalg.norm(weights[6:]))
    assert out.ranks == (1, *[6] * 29, 1)
    assert float(tt.distance(out, t)) <= 1.5 * best


def test_many_equal_orthogonal_terms_keep_the_promise():
    t = orthogonal_terms(30, np.r_[np.ones(5), np.full(15, 1e-6)], np.float64)
    for method in linalg.METHODS:
        assert tt.round(t, tol=1e-4, method=method).ranks == (1, *[5] * 29, 1)
        exact = tt.round(t + t, tol=1e-12, method=method)
        assert exact.ranks == t.ranks
        assert float(tt.distance(exact, 2 * t)) <= 1e-12 * float(tt.norm(exact))


def test_quantics_functions_of_a_fine_grid_have_few_ranks():
    """sin and exp on 2^30 points: TT-ranks 2 and 1."""
    d = 30
    exponent = [np.exp(1j * np.array([0.0, 2.0**-k]))[None, :, None] for k in range(1, d + 1)]
    wave = tt.TT(exponent)
    sine = (wave - tt.conj(wave)) * (-0.5j)
    noisy = sine + sine * 1e-9 + 1e-9 * wave
    out = tt.round(noisy, tol=1e-6)
    assert max(out.ranks) == 2
    points = np.array([[0] * d, [1] * d, [0, 1] * (d // 2)])
    grid = points @ 0.5 ** np.arange(1, d + 1)
    assert np.abs(np.asarray(tt.evaluate(out, points)) - np.sin(grid)).max() <= 1e-2
    assert float(tt.distance(out, sine)) <= 2e-6 * float(tt.norm(sine))


@pytest.mark.parametrize("options", [{"rank": 1}, {"rank": 2, "tol": 1e-3}], ids=str)
@pytest.mark.parametrize("method", ["svd", "randomized"])
def test_long_float32_trains_stay_in_range_under_jit(method, options):
    """10^40 ones: the norm, 1e20, is in range of float32; its square is not."""
    t = tt.ones((10,) * 40, np.float32)
    out = jax.jit(lambda t: tt.round(t + t * 0.5, method=method, **options))(t)
    assert float(tt.evaluate(out, [0] * 40)) == pytest.approx(1.5, rel=1e-3)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_small_and_large_float32_trains_are_rounded(rng, size):
    x = cores(rng, (4, 3, 5), 2, np.float32)
    t = tt.TT([*x[:-1], x[-1] * np.float32(size)])
    for f in (
        lambda t: tt.round(t + t, tol=1e-4),
        lambda t: tt.round(t + t, rank=2),
        jax.jit(lambda t: tt.round(t + t, rank=3, tol=1e-4)),
        jax.jit(lambda t: tt.round(t + t, rank=2, method="randomized")),
    ):
        out = f(t)
        assert tt.effective_ranks(out) == (1, 2, 2, 1)
        assert error(dense(out), 2 * dense(t)) <= 2e-4 * norm(dense(t))


# Bad input ---------------------------------------------------------------------------------------


T = tt.ones((2, 3, 4)) + tt.ones((2, 3, 4))
BAD = tt.TT([np.full((1, 3, 1), np.nan), np.ones((1, 2, 1))])


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (ValueError, "tol=.*rank=.*neither", lambda: tt.round(T)),
        (ValueError, "tol: .*got 0", lambda: tt.round(T, tol=0)),
        (ValueError, "tol: .*-1", lambda: tt.round(T, tol=-1)),
        (ValueError, "tol: .*nan", lambda: tt.round(T, tol=math.nan)),
        (ValueError, "tol: .*10 eps", lambda: tt.round(T, tol=1e-15)),
        (ValueError, "rank: .*got 0", lambda: tt.round(T, rank=0)),
        (ValueError, "rank: .*got 2.0", lambda: tt.round(T, rank=2.0)),  # type: ignore
        (ValueError, "rank: .*2 of them.*got 3", lambda: tt.round(T, rank=[1, 1, 1])),
        (ValueError, "rank: .*got 0", lambda: tt.round(T, rank=[0, 1], tol=0.1)),
        (ValueError, "t: .*NaN", lambda: tt.round(BAD, tol=0.1)),
        (ValueError, "t: .*NaN", lambda: tt.round(BAD, rank=1)),
        (ValueError, "t: .*Inf", lambda: tt.round(infinite(tt.ones((3,))), tol=0.1)),
        (ValueError, "method.*'fast'", lambda: tt.round(T, rank=1, method="fast")),  # type: ignore
        (ValueError, "method.*'fast'", lambda: tt.round(T, tol=0.1, method="fast")),  # type: ignore
        (ValueError, "method.*'fast'", lambda: tt.round(tt.ones((3,)), tol=0.1, method="fast")),  # type: ignore
        (TypeError, "t: .*ndarray", lambda: tt.round(np.ones((2, 3)), rank=1)),  # type: ignore
        (TypeError, "rank=", lambda: jax.jit(lambda t: tt.round(t, tol=0.1))(T)),
        (TypeError, "rank=", lambda: jax.jit(lambda tol: tt.round(T, tol=tol))(0.1)),
        (TypeError, "rank=", lambda: jax.grad(lambda t: tt.norm(tt.round(t, tol=0.1)))(T)),
    ],
)
def test_bad_input_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(
    ("ranks", "asked", "columns"),
    [
        ((32, 7), None, 48),
        ((50,), None, 64),
        ((1,), None, 16),
        ((22, 22), None, 32),
        ((32,), 3, 35),
    ],
)
def test_sketches_fill_whole_vectors_unless_told(
    ranks: tuple[int, ...], asked: int | None, columns: int
) -> None:
    assert max(ranks) + randomized_rounding.oversampled(ranks, asked) == columns
