"""Tucker format: the promises on the error, arithmetic, static shapes, types, bad input."""

import copy
import functools
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import linalg, tt, tucker
from tests.oracles import (
    DTYPES,
    check_gradient,
    compilations,
    cores,
    dense,
    eps,
    error,
    hilbert,
    infinite,
    mode_tails,
    norm,
    normal,
    tucker_dense,
)

SHAPES = [(4, 3, 5), (7,), (1, 1, 1), (1, 5, 1, 3), (40, 3), (3, 40)]


@pytest.mark.parametrize("tol", [1e-3, 1e-13])
def test_concrete_data_inside_jit(rng, tol):
    x = rng.standard_normal((3, 4, 5))
    t = tucker.from_dense(x, tol=1e-12)

    @jax.jit
    def f(s):
        return s * tucker.norm(tucker.from_dense(x, tol=tol)), s * tucker.norm(
            tucker.round(t, tol=tol)
        )

    np.testing.assert_allclose(f(2.0), 2 * norm(x), rtol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tol_is_kept_with_few_ranks(rng, shape, dtype):
    e = eps(dtype)
    noise = normal(rng, shape, dtype)
    smooth = np.sin(np.indices(shape).sum(0)).astype(dtype)
    for x in (hilbert(shape, dtype), noise, 0 * noise, smooth + e * noise):
        for tol in (10 * e, 1e3 * e, e**0.5, 1e-2):
            cut = tol * norm(x) / len(shape) ** 0.5
            bound = [max((mode_tails(x, k) > cut).sum(), 1) for k in range(len(shape))]
            for method in linalg.METHODS:
                t = tucker.from_dense(x, tol=tol, method=method)
                assert error(tucker_dense(t), x) <= tol * norm(x), (tol / e, method, t.ranks)
                assert t.dtype == dtype
                if tol > 20 * e:  # nearer to eps, roundoff is in the oracle's ranks too
                    assert all(r <= b + 1 for r, b in zip(t.ranks, bound, strict=True))


def test_factors_are_orthonormal_and_the_error_is_quasi_optimal():
    x = hilbert((4, 3, 5, 4))
    for rank in (1, 2, 3):
        for method in ("auto", "svd", "gram"):
            t = tucker.from_dense(x, rank=rank, method=method)
            assert t.ranks == (rank,) * 4
            best = [float(np.append(mode_tails(x, k), 0)[rank]) for k in range(4)]
            assert error(tucker_dense(t), x) <= math.hypot(*best) + 1e-12 * norm(x)
            for u in t.factors:
                assert error(np.asarray(u).T @ np.asarray(u), np.eye(rank)) <= 1e-13


@pytest.mark.parametrize("seed", range(4))
def test_data_of_full_rank_are_their_own_core(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(2, 9, rng.integers(2, 5)))
    dtype = DTYPES[seed % len(DTYPES)]
    x = normal(rng, shape, dtype)
    t = tucker.from_dense(x, tol=1e-4)
    whole = [n == r for n, r in zip(shape, t.ranks, strict=True)]
    assert whole == [n <= x.size // n for n in shape]
    for n, u in zip(shape, t.factors, strict=True):
        assert n > x.size // n or np.array_equal(u, np.eye(n))
    assert not all(whole) or np.array_equal(t.core, x)  # nothing is multiplied, nothing rounded


def test_rank_with_tol_has_the_shapes_of_rank_and_zeroes_the_rest():
    x = jnp.asarray(hilbert((4, 3, 5)))
    free = tucker.from_dense(x, tol=1e-2)
    for f in (tucker.from_dense, jax.jit(tucker.from_dense, static_argnames="rank")):
        t = f(x, tol=1e-2, rank=(4, 3, 4))
        assert t.ranks == (4, 3, 4)
        assert error(tucker_dense(t), x) <= 1e-2 * norm(x)
        kept = [int((np.abs(u).max(0) > 0).sum()) for u in t.factors]
        assert all(k <= r + 1 for k, r in zip(kept, free.ranks, strict=True))
    assert tucker.from_dense(x, rank=9).ranks == (4, 3, 5)


@pytest.mark.parametrize("dtype", [*DTYPES, jnp.bfloat16])
def test_to_dense_multiplies_out_a_core_that_is_dense_or_a_train(rng, dtype):
    train = tt.TT(cores(rng, (2, 3, 2), 2, dtype))
    factors = [
        normal(rng, (n, s)).astype(dtype) for n, s in zip((4, 3, 2), train.shape, strict=True)
    ]
    both = tucker.Tucker(train, factors), tucker.Tucker(dense(train).astype(dtype), factors)
    expected = tucker_dense(both[1])
    for t in both:
        assert (t.shape, t.ranks, t.order) == ((4, 3, 2), (2, 3, 2), 3)
        assert t.dtype == dtype
        out = tucker.to_dense(t)
        assert out.dtype == dtype
        assert error(out, expected) <= 50 * eps(dtype) * norm(expected)
    assert "core=dense" in repr(both[1])
    assert "core=TT(" in repr(both[0])
    assert both[1].size == 12 + 8 + 9 + 4


def test_bfloat16_by_rank_and_by_tol():
    x = jnp.asarray(hilbert((4, 3, 5)), jnp.bfloat16)
    for t in (tucker.from_dense(x, tol=0.1), tucker.from_dense(x, rank=3)):
        assert t.dtype == jnp.bfloat16
        assert error(tucker_dense(t), x) <= 0.1 * norm(x)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_data_of_any_size_are_decomposed(size):
    x = jnp.ones((3, 4, 5), np.float32) * np.float32(size)
    for options in ({"tol": 1e-3}, {"rank": 1}, {"rank": 2, "tol": 1e-3}):
        t = tucker.from_dense(x, **options)
        assert error(tucker_dense(t) / size, np.ones(x.shape)) <= 1e-4, options


def test_a_tucker_tensor_is_a_pytree(rng):
    t = tucker.from_dense(hilbert((4, 3, 5)), rank=2)
    leaves, tree = jax.tree.flatten(t)
    copies = [pickle.loads(pickle.dumps(t)), copy.deepcopy(t), tree.unflatten(leaves)]
    for other in [*copies, jax.device_put(t, jax.devices()[1])]:
        assert (other.shape, other.ranks) == (t.shape, t.ranks)
        assert (tucker_dense(other) == tucker_dense(t)).all()
    batch = jax.vmap(lambda x: tucker.from_dense(x, rank=2))(normal(rng, (3, 4, 3, 5)))
    assert (batch.shape, batch.ranks, batch.order) == ((4, 3, 5), (2, 2, 2), 3)
    assert jax.vmap(tucker.to_dense)(batch).shape == (3, 4, 3, 5)
    assert jax.tree.map(lambda _: None, t).core is None


@pytest.mark.parametrize("options", [{"rank": 2}, {"rank": 3, "tol": 1e-3}], ids=str)
@pytest.mark.parametrize("method", ["svd", "gram"])
def test_gradients_are_finite_on_degenerate_data(method, options):
    def loss(x):
        return jnp.sum(jnp.sin(tucker.to_dense(tucker.from_dense(x, method=method, **options))))

    gradient = jax.jit(jax.grad(loss))
    padded = np.zeros((3, 4, 3))
    padded[:2, :2, :2] = hilbert((2, 2, 2))
    for x in (0 * padded, padded, np.ones((3, 4, 3))):
        assert np.isfinite(gradient(jnp.asarray(x))).all()


# Arithmetic --------------------------------------------------------------------------------------


def pair(rng, shape, ranks, dtype=np.float64) -> dict[str, tucker.Tucker]:
    """One tensor with a train core and the same with a dense core; factors not orthonormal."""
    train = tt.TT(cores(rng, ranks, 2, dtype))
    factors = [normal(rng, (n, s)).astype(dtype) for n, s in zip(shape, ranks, strict=True)]
    return {
        "train": tucker.Tucker(train, factors),
        "dense": tucker.Tucker(dense(train).astype(dtype), factors),
    }


@pytest.mark.parametrize("kind", ["train", "dense"])
@pytest.mark.parametrize("other", ["train", "dense"])
def test_operators_are_numpys(rng, kind, other):
    x = pair(rng, (4, 3, 5), (2, 3, 2), np.complex128)[kind]
    y = pair(rng, (4, 3, 5), (1, 2, 3), np.complex128)[other]
    a, b = tucker_dense(x), tucker_dense(y)
    s = np.complex128(0.5)
    for out, expected in (
        (x + y, a + b), (x - y, a - b), (-x, -a), (2 * x, 2 * a), (x * 1j, a * 1j),
        (x / 4, a / 4), (s * x, s * a), (x + 1, a + 1), (1 - x, 1 - a), (x - jnp.asarray(s), a - s),
        (x * y, a * b),
    ):  # fmt: skip
        assert error(tucker_dense(out), expected) <= 1e-13 * norm(expected)
        assert out.dtype == np.complex128
    assert (x + y).ranks == (3, 5, 5)
    assert isinstance((x + y).core, tt.TT) == (kind == other == "train")
    if kind == other == "train":
        assert (x + y).core.ranks == (1, 4, 4, 1)
    for wrong in (lambda: x + a, lambda: x * a, lambda: "x" - x, lambda: x / y):
        with pytest.raises(TypeError):
            wrong()


@pytest.mark.parametrize("kind", ["train", "dense"])
@pytest.mark.parametrize("other", ["train", "dense"])
def test_inner_norm_and_distance_are_those_of_dense_arrays(rng, kind, other):
    x = pair(rng, (4, 3, 5), (2, 5, 2), np.complex128)[kind]
    y = pair(rng, (4, 3, 5), (1, 2, 3), np.complex128)[other]
    a, b = tucker_dense(x), tucker_dense(y)
    assert complex(tucker.inner(x, y)) == pytest.approx(complex(np.vdot(a, b)), rel=1e-12)
    assert float(tucker.norm(x)) == pytest.approx(norm(a), rel=1e-13)
    assert float(tucker.distance(x, y)) == pytest.approx(norm(a - b), rel=1e-13)


@pytest.mark.parametrize("kind", ["train", "dense"])
def test_norms_of_differences_are_accurate_below_root_eps(rng, kind):
    x = pair(rng, (4, 3, 5), (2, 3, 2))[kind]
    near = x + pair(rng, (4, 3, 5), (1, 1, 1))[kind] * 1e-12
    exact = norm(tucker_dense(near) - tucker_dense(x))
    for gap in (tucker.distance, jax.jit(tucker.distance)):
        assert float(gap(near, x)) == pytest.approx(exact, rel=1e-2)
    assert float(tucker.norm(near - x)) == pytest.approx(exact, rel=1e-2)
    assert float(tucker.norm(x * 0.0)) == 0


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("kind", ["train", "dense"])
def test_float32_norms_stay_in_range(rng, kind, size):
    x = pair(rng, (4, 3, 5), (2, 3, 2), np.float32)[kind]
    big, exact = x * np.float32(size), norm(tucker_dense(x))
    for length in (tucker.norm, jax.jit(tucker.norm)):
        assert float(length(big)) / size == pytest.approx(exact, rel=1e-5)
    half = tucker.inner(x * np.float32(1 / size), big)
    assert float(half) == pytest.approx(exact**2, rel=1e-5)


@pytest.mark.parametrize("kind", ["train", "dense"])
def test_orthogonalize_leaves_the_norm_in_the_core(rng, kind):
    for dtype in (np.float32, np.complex128):
        t = pair(rng, (4, 2, 5), (2, 3, 2), dtype)[kind]
        out = tucker.orthogonalize(t)
        assert (out.ranks, out.dtype) == ((2, 2, 2), dtype)
        assert error(tucker_dense(out), tucker_dense(t)) <= 50 * eps(dtype) * norm(tucker_dense(t))
        core = dense(out.core) if kind == "train" else out.core
        assert norm(core) == pytest.approx(norm(tucker_dense(t)), rel=50 * eps(dtype))


@pytest.mark.parametrize("kind", ["train", "dense"])
def test_entries_are_those_of_the_dense_array(rng, kind, monkeypatch):
    t = pair(rng, (4, 3, 5), (2, 3, 2))[kind]
    index = np.stack([rng.integers(-n, n, (7, 2)) for n in t.shape], axis=-1)
    expected = tucker_dense(t)[tuple(np.moveaxis(index, -1, 0))]
    assert error(tucker.evaluate(t, index), expected) <= 1e-13 * norm(expected)
    assert tucker.evaluate(t, np.zeros((0, 3), int)).shape == (0,)
    monkeypatch.setattr("tensorjax.tucker._norms_and_entries._PIECE", 20)  # a few entries at a time
    assert error(tucker.evaluate(t, index[1:]), expected[1:]) <= 1e-13 * norm(expected)


# Rounding ----------------------------------------------------------------------------------------


def check_orthonormal(t: tucker.Tucker) -> None:
    for u in t.factors:
        u = np.asarray(u, np.complex128)
        assert error(u.conj().T @ u, np.eye(u.shape[1])) <= 50 * eps(t.dtype)


@pytest.mark.parametrize("kind", ["train", "dense"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_keeps_tol_with_few_ranks(rng, kind, dtype):
    e, shape = eps(dtype), (5, 3, 6)
    x, y = pair(rng, shape, (2, 2, 2), dtype)[kind], pair(rng, shape, (1, 2, 2), dtype)[kind]
    hard = tucker.Tucker(tt.from_dense(hilbert((5, 3, 6), dtype), tol=10 * e),
                         [normal(rng, (n, n)).astype(dtype) for n in shape])  # fmt: skip
    hard = hard if kind == "train" else tucker.Tucker(dense(hard.core).astype(dtype), hard.factors)
    size = norm(tucker_dense(x))
    near = x + y * 1e-3 - x
    sums = {"sum": x + y, "twice": x + x, "difference": near, "decaying": hard, "zero": 0 * x}
    for name, t in sums.items():
        full = tucker_dense(t)
        for tol in (10 * e, 1e3 * e, e**0.5, 1e-2):
            out = tucker.round(t, tol=tol)
            where = name, tol / e, out
            assert error(tucker_dense(out), full) <= tol * norm(full) + 1e-14 * size, where
            assert (out.shape, out.dtype) == (t.shape, dtype)
            assert isinstance(out.core, tt.TT) == (kind == "train")
            if tol * norm(full) > 100 * e * size:
                check_orthonormal(out)
                cut = tol * norm(full) / (3 if kind == "dense" else 5) ** 0.5
                bound = [max((mode_tails(full, k) > cut).sum(), 1) for k in range(3)]
                assert all(a <= b for a, b in zip(out.ranks, bound, strict=True)), (where, bound)


def test_a_long_sum_is_rounded_to_the_ranks_of_its_terms(rng):
    d = 40
    factors = [np.linalg.qr(rng.standard_normal((8, 3)))[0] for _ in range(d)]
    x = tucker.Tucker(tt.TT(cores(rng, (3,) * d, 4, np.float64)), factors)
    out = tucker.round(x + x, tol=1e-9)
    assert (out.ranks, out.core.ranks) == (x.ranks, tt.round(x.core, tol=1e-9).ranks)
    assert float(tucker.distance(out, 2 * x)) <= 1e-9 * float(tucker.norm(out))
    with compilations() as programs:
        tucker.round(x + x, tol=1e-5)
    assert programs == []


def test_rounding_is_idempotent(rng):
    for t in pair(rng, (5, 3, 6), (4, 3, 4)).values():
        once = tucker.round(t, tol=0.3)
        twice = tucker.round(once, tol=1e-10)
        assert twice.ranks == once.ranks
        assert error(tucker_dense(twice), tucker_dense(once)) <= 1e-10 * norm(tucker_dense(t))


@pytest.mark.parametrize("kind", ["train", "dense"])
def test_rounding_to_ranks_under_jit_and_with_tol(rng, kind):
    x = pair(rng, (5, 3, 6), (2, 2, 2), np.complex128)[kind]
    full = 2 * tucker_dense(x)
    t = x + x
    bonds = {"core_rank": (2, 2)} if kind == "train" else {}
    for options in ({"rank": 2}, {"rank": (4, 3, 3), "tol": 1e-6}):
        rounded = functools.partial(tucker.round, **options, **bonds)
        eager, out = rounded(t), jax.jit(rounded)(t) if "tol" in options else None
        assert error(tucker_dense(eager), full) <= 1e-6 * norm(full)
    assert error(tucker_dense(out), full) <= 1e-6 * norm(full)
    shapes = [[leaf.shape for leaf in jax.tree.leaves(x)] for x in (eager, out)]
    assert shapes[0] == shapes[1]
    assert out.ranks == (4, 3, 3)
    kept = [int((np.abs(u).max(0) > 0).sum()) for u in out.factors]
    assert kept == [2, 2, 2]


def test_one_kind_of_rank_leaves_the_other(rng):
    t = pair(rng, (5, 3, 6), (2, 3, 2))["train"]
    by_bond = tucker.round(t, core_rank=1)
    assert (by_bond.ranks, by_bond.core.ranks) == ((2, 3, 2), (1, 1, 1, 1))
    by_mode = tucker.round(t, rank=(1, 3, 2))
    assert (by_mode.ranks, by_mode.core.ranks) == ((1, 2, 2), (1, 1, 2, 1))


@pytest.mark.parametrize("kind", ["train", "dense"])
def test_gradients_of_rounding_where_terms_share_factors(rng, kind):
    """At dependent factors the derivative exists where the rank kept is the rank there is."""

    def loss(t):
        return jnp.sum(jnp.sin(tucker.to_dense(tucker.round(t, rank=2))))

    t = pair(rng, (4, 3, 4), (2, 2, 2))[kind]
    t = tucker.orthogonalize(t)
    check_gradient(jax.jit(loss), t + t, rng, jax.jit(jax.grad(loss))(t + t))


@pytest.mark.parametrize("size", [1e-25, 1e25])
@pytest.mark.parametrize("kind", ["train", "dense"])
def test_tensors_of_any_size_are_rounded(rng, kind, size):
    t = pair(rng, (5, 3, 6), (2, 2, 2), np.float32)[kind] * np.float32(size)
    full = 2 * tucker_dense(t) / size
    for options in ({"tol": 1e-4}, {"rank": 2}):
        out = tucker.round(t + t, **options)
        assert out.ranks == (2, 2, 2)
        assert error(tucker_dense(out) / size, full) <= 1e-4 * norm(full), options


def test_pad_keeps_the_tensor(rng):
    for kind, t in pair(rng, (5, 3, 6), (2, 2, 2)).items():
        more = {"core_rank": 4} if kind == "train" else {}
        for f in (tucker.pad, jax.jit(tucker.pad, static_argnames=("rank", "core_rank"))):
            out = f(t, rank=(2, 3, 4), **more)
            assert out.ranks == (2, 3, 4)
            assert (tucker_dense(out) == tucker_dense(t)).all()
            assert kind == "dense" or out.core.ranks == (1, 4, 4, 1)


# Bad input ---------------------------------------------------------------------------------------


def test_a_rank_that_costs_more_than_the_tolerance_keeps_what_it_can(rng):
    core = tt.TT(cores(rng, (3, 3, 3), 3, np.float64))
    t = tucker.Tucker(core, [normal(rng, (4, 3)) for _ in range(3)])
    for rank in (1, 2):
        free = error(tucker_dense(tucker.round(t, rank=rank)), tucker_dense(t))
        both = error(tucker_dense(tucker.round(t, rank=rank, tol=1e-4)), tucker_dense(t))
        assert both <= 1.05 * free


X = np.ones((2, 3, 4))
T = tucker.Tucker(X, [np.ones((n, n)) for n in X.shape])
LONG = tucker.Tucker(tt.ones((2, 3, 4), np.float64), T.factors)
SMALL = tucker.Tucker(np.ones((2,)), [np.ones((2, 2))])


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (ValueError, "tol=.*rank=.*neither", lambda: tucker.from_dense(X)),
        (ValueError, "tol: .*got 0", lambda: tucker.from_dense(X, tol=0)),
        (ValueError, "tol: .*10 eps", lambda: tucker.from_dense(X, tol=1e-16)),
        (ValueError, "rank: .*got 0", lambda: tucker.from_dense(X, rank=0)),
        (ValueError, r"rank: .*3 of them \(one per mode\), got 2",
         lambda: tucker.from_dense(X, rank=[1, 2])),
        (ValueError, "rank: .*1.5", lambda: tucker.from_dense(X, rank=1.5)),  # type: ignore
        (ValueError, "x: .*NaN", lambda: tucker.from_dense(X * np.nan, tol=0.1)),
        (TypeError, "x: .*int64", lambda: tucker.from_dense(X.astype(int), tol=0.1)),
        (ValueError, "x: .*scalar", lambda: tucker.from_dense(np.float64(1), tol=0.1)),
        (ValueError, "x.shape.*0", lambda: tucker.hooi(np.ones((2, 0)), rank=1)),
        (ValueError, "method.*'fast'", lambda: tucker.from_dense(X, rank=1, method="fast")),  # type: ignore
        (TypeError, "rank=", lambda: jax.jit(lambda x: tucker.from_dense(x, tol=0.1))(X)),
        (ValueError, r"factors\[1\]: .*\(n, 2\).*\(3, 3\)",
         lambda: tucker.Tucker(np.ones((2, 2)), [np.ones((3, 2)), np.ones((3, 3))])),
        (ValueError, "factors: .*got 1", lambda: tucker.Tucker(np.ones((2, 2)), [np.ones((3, 2))])),
        (ValueError, r"factors\[1\]: .*no such mode",
         lambda: tucker.Tucker(np.ones(2), [np.ones((3, 2))] * 2)),
        (TypeError, r"factors\[0\]: .*int",
         lambda: tucker.Tucker(np.ones(2), [np.ones((3, 2), int)])),
        (TypeError, "core: .*int", lambda: tucker.Tucker(np.ones(2, int), [np.ones((3, 2))])),
        (TypeError, "core: .*list", lambda: tucker.Tucker([1.0], [np.ones((3, 1))])),
        (TypeError, "core: .*TTMatrix",
         lambda: tucker.Tucker(tt.identity((2,)), [np.ones((3, 2))])),
        (TypeError, "y: .*ndarray", lambda: tucker.add(T, X)),
        (TypeError, "x: .*TT;", lambda: tucker.inner(tt.ones((2, 3, 4)), T)),
        (ValueError, r"one shape.*\(2, 3, 4\).*\(2,\)", lambda: T + SMALL),
        (ValueError, "one shape", lambda: tucker.distance(T, SMALL)),
        (ValueError, "factor: .*scalar", lambda: tucker.scale(T, np.ones(2))),
        (TypeError, "t: .*ndarray", lambda: tucker.norm(X)),
        (ValueError, "t: .*batch.*vmap", lambda: tucker.norm(
            jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), T))),
        (TypeError, "indices: .*float", lambda: tucker.evaluate(T, np.zeros(3))),
        (ValueError, r"indices: .*\(…, 3\)", lambda: tucker.evaluate(T, [0, 0])),
        (ValueError, r"mode 1 in \[-3, 3\)", lambda: tucker.evaluate(T, [0, 3, 0])),
        (ValueError, "rank: .*at least the present", lambda: tucker.pad(T, 1)),
        (ValueError, "core_rank: .*dense", lambda: tucker.pad(T, 4, core_rank=2)),
        (ValueError, "tol=.*rank=.*neither", lambda: tucker.round(T)),
        (ValueError, "tol: .*10 eps", lambda: tucker.round(T, tol=1e-16)),
        (ValueError, "rank: .*got 0", lambda: tucker.round(T, rank=0)),
        (ValueError, "core_rank: .*got 0", lambda: tucker.round(LONG, core_rank=0)),
        (ValueError, "core_rank: .*2 of them.*bond", lambda: tucker.round(LONG, core_rank=[1])),
        (ValueError, "core_rank: .*dense", lambda: tucker.round(T, core_rank=1)),
        (ValueError, "t: .*NaN", lambda: tucker.round(T * np.nan, tol=0.1)),
        (ValueError, "t: .*Inf", lambda: tucker.round(infinite(LONG), rank=1)),
        (TypeError, "t: .*ndarray", lambda: tucker.round(X, rank=1)),
        (TypeError, "rank=", lambda: jax.jit(lambda t: tucker.round(t, tol=0.1))(T)),
    ],
)  # fmt: skip
def test_bad_input_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()
