"""Tensor trains end to end: the promise of tol, the laws of the arithmetic, clear errors."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tensorjax import tt, tucker
from tensorjax.tt import _round

DTYPES = (jnp.float32, jnp.float64, jnp.complex64, jnp.complex128)
METHODS = ("auto", "svd", "gram", "randomized")
SHAPES = ((4, 3, 5), (7,), (1, 4, 1, 3), (2,) * 7)


def eps(dtype):
    return float(jnp.finfo(dtype).eps)


def error(train, x):
    x = np.asarray(x)
    return np.linalg.norm(np.asarray(tt.to_dense(train)) - x) / np.linalg.norm(x)


def tt_svd_ranks(x, tol):
    """Ranks of Oseledets' algorithm 1, written plainly."""
    delta = tol * np.linalg.norm(x) / np.sqrt(max(x.ndim - 1, 1))
    ranks, rest = [1], x
    for n in x.shape[:-1]:
        _, s, vh = np.linalg.svd(rest.reshape(ranks[-1] * n, -1), full_matrices=False)
        tails = np.sqrt(np.cumsum(s[::-1] ** 2)[::-1])
        r = max(1, int((tails > delta).sum()))
        rest = s[:r, None] * vh[:r]
        ranks.append(r)
    return (*ranks, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_tol_is_a_promise_and_ranks_are_those_of_tt_svd(shape, dtype, rng):
    exact = tt.random(jax.random.key(1), shape, 2, dtype)
    x = np.asarray(tt.to_dense(exact)) + 1e-4 * rng.standard_normal(shape).astype(dtype)
    wide = x.astype(np.result_type(x.dtype, np.float64))
    for tol in (0.3, 1e-3, 3e-5, 10 * eps(dtype)):
        for method in METHODS:
            t = tt.from_dense(x, tol=tol, method=method)
            assert t.dtype == dtype
            assert error(t, wide) <= tol
            wanted = tt_svd_ranks(wide, tol)
            assert all(r <= w + 1 for r, w in zip(t.ranks, wanted, strict=True))
            doubled = t + t
            back = tt.round(doubled, tol=tol, method=method)
            assert tt.distance(back, doubled) <= tol * tt.norm(doubled)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic_is_that_of_the_dense_arrays(dtype):
    shape = (3, 1, 4)
    keys = jax.random.split(jax.random.key(0), 3)
    x, y = (tt.random(k, shape, 2, dtype) for k in keys[:2])
    a = tt.random_matrix(keys[2], (2, 5, 3), shape, 2, dtype)
    b = tt.random_matrix(keys[1], shape, (2, 2, 2), 2, dtype)
    dx, dy, da, db = map(tt.to_dense, (x, y, a, b))
    v = jnp.arange(1.0, 4.0).astype(dtype)
    pairs = [
        (tt.to_dense(x + y), dx + dy),
        (tt.to_dense(2 - x), 2 - dx),
        (tt.to_dense(np.float32(2) * x if dtype == jnp.float32 else 2.0 * x), 2 * dx),
        (tt.to_dense(x * y), dx * dy),
        (tt.to_dense(-x / 2), -dx / 2),
        (tt.to_dense(a @ x).ravel(), da @ dx.ravel()),
        (tt.to_dense(a @ b), da @ db),
        (tt.to_dense(x @ b).ravel(), dx.ravel() @ db),
        (x @ y, dx.ravel() @ dy.ravel()),
        (tt.inner(x, y), jnp.vdot(dx, dy)),
        (tt.norm(x), jnp.linalg.norm(dx.ravel())),
        (tt.distance(x, y), jnp.linalg.norm((dx - dy).ravel())),
        (tt.to_dense(tt.transpose(a)), da.T),
        (tt.to_dense(tt.kron(x, y)), jnp.multiply.outer(dx, dy)),
        (tt.to_dense(tt.concatenate([x, y], axis=2)), jnp.concatenate([dx, dy], axis=2)),
        (tt.to_dense(tt.contract_modes(x, {0: v})), jnp.einsum("ijk,i->jk", dx, v)),
        (tt.evaluate(x, [[1, 0, -1], [2, 0, 3]]), dx[jnp.array([1, 2]), 0, jnp.array([3, 3])]),
        (tt.to_dense(tt.orthogonalize(x, 1)), dx),
    ]
    for got, wanted in pairs:
        scale = np.linalg.norm(np.asarray(wanted).ravel())
        assert np.linalg.norm(np.asarray(got - wanted).ravel()) <= 100 * eps(dtype) * scale
        assert jnp.asarray(got).shape == jnp.asarray(wanted).shape


@pytest.mark.parametrize("method", METHODS)
def test_rank_is_static_under_jit_vmap_and_grad(method):
    shape, keys = (4, 5, 6), jax.random.split(jax.random.key(0), 3)
    trains = jax.vmap(lambda k: tt.random(k, shape, 3))(keys)
    halved = jax.jit(jax.vmap(lambda t: tt.round(t + t, rank=3, method=method)))(trains)
    assert halved.shape == shape
    assert halved.ranks == (1, 3, 3, 1)
    for k in range(3):
        one = jax.tree.map(lambda c, k=k: c[k], trains)
        got = jax.tree.map(lambda c, k=k: c[k], halved)
        assert tt.distance(got, 2 * one) < 1e-12 * tt.norm(one)

    def energy(t):
        return jnp.sum(tt.to_dense(tt.round(t + t, rank=3, method=method)) ** 2)

    first = jax.tree.map(lambda c: c[0], trains)
    got = jax.grad(energy)(first)
    wanted = jax.grad(lambda t: jnp.sum(tt.to_dense(t + t) ** 2))(first)
    for g, w in zip(got.cores, wanted.cores, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-8, atol=1e-8 * float(jnp.abs(w).max()))


@pytest.mark.parametrize("method", ["svd", "gram"])
def test_from_dense_by_rank_transforms_and_its_derivative_is_right(method):
    x = tt.to_dense(tt.random(jax.random.key(0), (4, 5, 6), 3))

    def f(x):
        return jnp.sum(tt.to_dense(tt.from_dense(x, rank=3, method=method)) ** 2)

    np.testing.assert_allclose(jax.jit(jax.grad(f))(x), 2 * x, atol=1e-9)
    assert jax.vmap(lambda s: tt.from_dense(s * x, rank=3))(jnp.ones(2)).ranks == (1, 3, 3, 1)


def test_randomised_rounding_is_within_a_few_per_cent_of_the_best():
    t = tt.random(jax.random.key(0), (8,) * 8, 40)
    decay = 0.7 ** jnp.arange(40.0)
    t = tt.TT([c * decay[: c.shape[2]][None, None] for c in t.cores[:-1]] + [t.cores[-1]])
    best = tt.distance(t, tt.round(t, rank=15, method="svd"))
    got = tt.distance(t, tt.round(t, rank=15, method="randomized"))
    assert best * (1 - 1e-9) <= got <= 1.1 * best
    assert best > 1e-4 * tt.norm(t)  # there is something to lose


def test_randomised_rounding_keeps_many_orthogonal_rank_one_terms():
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((10, 10)))[0]
    terms = [tt.rank_one([basis[(j * k + j) % 10] for k in range(30)]) for j in range(6)]
    t = sum(terms[1:], terms[0])
    wide = sum([t] * 3, t)
    assert tt.distance(tt.round(wide, rank=6), 4 * t) < 1e-11 * tt.norm(wide)


def test_rank_and_tol_together_zero_what_tol_discards():
    t = tt.random(jax.random.key(0), (4, 5, 6), 2)
    out = jax.jit(lambda t: tt.round(t + t, rank=4, tol=1e-8))(t)
    assert out.ranks == (1, 4, 4, 1)
    assert tt.effective_ranks(out) == (1, 2, 2, 1)
    assert tt.trim(out).ranks == (1, 2, 2, 1)
    assert tt.distance(out, 2 * t) < 1e-8 * tt.norm(out)
    eager = tt.round(t + t, rank=4, tol=1e-8)
    assert eager.ranks == out.ranks
    assert tt.effective_ranks(eager) == (1, 2, 2, 1)


def test_a_padded_loop_compiles_once_and_equals_the_eager_one():
    t, s = (tt.random(jax.random.key(k), (4, 5, 4), 1) for k in range(2))

    def body(_, u):
        return tt.pad(tt.round(u + s, rank=3, tol=1e-10), 3)

    looped = jax.jit(lambda t: lax.fori_loop(0, 4, body, tt.pad(t, 3)))(t)
    assert tt.distance(looped, t + 4 * s) < 1e-9 * tt.norm(looped)
    assert tt.effective_ranks(looped) == (1, 2, 2, 1)
    gradient = jax.grad(lambda t: tt.norm(body(0, tt.pad(t, 3))))(t)
    assert all(bool(jnp.isfinite(c).all()) for c in gradient.cores)


def test_changing_ranks_compile_nothing():
    trains = [tt.random(jax.random.key(r), (5,) * 6, r) for r in range(2, 12)]
    compiled = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for t in trains:
            tt.round(t, tol=1e-6)
        assert compiled == []
        jax.jit(lambda x: x + 17)(1.0)
        assert compiled  # the listener does hear compilations
    finally:
        jax.monitoring.clear_event_listeners()


def test_the_path_of_an_accelerator_keeps_the_promise(monkeypatch):
    monkeypatch.setattr(_round, "_on_host", lambda *_: False)
    t = tt.random(jax.random.key(0), (4, 5, 6, 4), 3)
    out = tt.round(t + t, tol=1e-9)
    assert out.ranks == (1, 3, 3, 3, 1)
    assert tt.distance(out, 2 * t) <= 1e-9 * tt.norm(out)


def test_distance_is_accurate_below_the_root_of_eps():
    x = tt.random(jax.random.key(0), (6,) * 8, 4)
    y = tt.random(jax.random.key(1), (6,) * 8, 2)
    for size in (1e-6, 1e-10, 1e-13):
        z = y * (size * float(tt.norm(x) / tt.norm(y)))
        np.testing.assert_allclose(tt.distance(x + z, x), tt.norm(z), rtol=1e-14 / size + 1e-9)


def test_cancellation_is_seen_at_the_size_that_is_left():
    x, y = (tt.random(jax.random.key(k), (6,) * 5, 3) for k in range(2))
    t = (x + 1e-5 * y) - x
    for method in METHODS:
        out = tt.round(t, tol=1e-6, method=method)
        assert tt.distance(out, 1e-5 * y) <= 1e-5 * tt.norm(1e-5 * y)
        assert max(out.ranks) <= 4


def test_long_trains_stay_in_range():
    t = tt.ones((10,) * 80, jnp.float32)
    assert tt.evaluate(tt.round(t + t, rank=1), [0] * 80) == pytest.approx(2, rel=1e-4)
    assert tt.norm(tt.ones((10,) * 60, jnp.float32)) == pytest.approx(1e30, rel=1e-4)


def test_zero_trains_and_bfloat16():
    zero = tt.zeros((3, 4, 5))
    assert tt.round(zero + zero, tol=1e-6).ranks == (1, 1, 1, 1)
    assert tt.norm(tt.round(zero + zero, rank=1)) == 0
    assert tt.from_dense(jnp.zeros((3, 4)), tol=1e-6).ranks == (1, 1, 1)
    assert jax.grad(lambda t: tt.norm(t))(zero).cores[0].sum() == 0
    half = tt.random(jax.random.key(0), (4, 5, 6), 2, jnp.bfloat16)
    for out in (half + half, half * half, tt.round(half + half, rank=2)):
        assert out.dtype == jnp.bfloat16
    assert tt.round(half + half, tol=0.1).dtype == jnp.bfloat16


def test_trains_are_frozen_pytrees():
    t = tt.random(jax.random.key(0), (3, 4), 2)
    again = pickle.loads(pickle.dumps(t))
    assert tt.distance(t, again) == 0 or tt.distance(t, again) < 1e-15
    with pytest.raises(AttributeError):
        t.cores = ()  # type: ignore[misc]
    assert next(str(p) for p, _ in jax.tree_util.tree_flatten_with_path(t)[0]).count("cores")


X = jnp.ones((3, 4))
T = tt.ones((3, 4))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: tt.TT([jnp.ones((1, 3, 2)), jnp.ones((3, 4, 1))]), ValueError, "one rank"),
        (lambda: tt.TT([jnp.ones((2, 3, 1))]), ValueError, "first and last rank"),
        (lambda: tt.TT([jnp.ones((1, 3, 1), int)]), TypeError, "int64"),
        (lambda: tt.from_dense(X), ValueError, "neither"),
        (lambda: tt.from_dense(X, tol=0.0), ValueError, "tol"),
        (lambda: tt.from_dense(X, tol=-1.0), ValueError, "tol"),
        (lambda: tt.from_dense(X, tol=1e-16), ValueError, "10 eps"),
        (lambda: tt.from_dense(X, rank=0), ValueError, "rank"),
        (lambda: tt.from_dense(X, rank=(2, 2)), ValueError, "one per interior bond"),
        (lambda: tt.from_dense(X.astype(int), tol=0.1), TypeError, "int64"),
        (lambda: tt.from_dense(X.at[0, 0].set(jnp.nan), tol=0.1), ValueError, "NaN or Inf"),
        (lambda: tt.from_dense(X.at[0, 0].set(jnp.inf), rank=1), ValueError, "NaN or Inf"),
        (lambda: tt.round(T * jnp.nan, tol=0.1), ValueError, "NaN or Inf"),
        (lambda: jax.jit(lambda x: tt.from_dense(x, tol=0.1))(X), TypeError, "rank="),
        (lambda: jax.vmap(lambda s: tt.round(T * s, tol=0.1))(jnp.ones(2)), TypeError, "rank="),
        (lambda: tt.round(T, tol=0.1, method="fast"), ValueError, "method"),
        (lambda: tt.add(T, tt.ones((4, 3))), ValueError, "one shape"),
        (lambda: tt.matvec(tt.identity((3, 5)), T), ValueError, "columns"),
        (lambda: tt.evaluate(T, [[3, 0]]), ValueError, "mode 0"),
        (lambda: tt.evaluate(T, [[0.0, 0.0]]), TypeError, "integers"),
        (lambda: tt.random(jax.random.key(0), (), 2), ValueError, "shape"),
        (lambda: tt.random(jax.random.key(0), (3, 4), -1), ValueError, "rank"),
        (lambda: tt.matrix_from_dense(X, (3,), (5,), tol=0.1), ValueError, "expected shape"),
        (lambda: tt.contract_modes(T, {0: jnp.ones(5)}), ValueError, "vectors"),
        (lambda: jax.jit(tt.trim)(T), TypeError, "outside"),
        (lambda: tt.pad(tt.random(jax.random.key(0), (3, 4), 3), 2), ValueError, "present ranks"),
        (lambda: tucker.from_dense(X, rank=(1,)), ValueError, "one per mode"),
        (lambda: tucker.Tucker(X, [jnp.ones((5, 3))]), ValueError, "one per mode"),
    ],
)
def test_bad_input_is_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("dtype", DTYPES)
def test_tucker_keeps_its_promise(dtype, rng):
    core = rng.standard_normal((2, 3, 2))
    x = np.einsum(
        "abc,ia,jb,kc->ijk",
        core,
        *(rng.standard_normal((n, r)) for n, r in zip((5, 6, 7), (2, 3, 2), strict=True)),
    )
    x = (x + 1e-4 * rng.standard_normal(x.shape)).astype(dtype)
    for tol in (0.3, 1e-2, 10 * eps(dtype)):
        t = tucker.from_dense(x, tol=tol)
        dense = np.asarray(tucker.to_dense(t))
        assert np.linalg.norm(dense - x) <= tol * np.linalg.norm(x) * (1 + 50 * eps(dtype))
        if tol == 1e-2:
            assert t.ranks == (2, 3, 2)
    with_train = tucker.Tucker(tt.from_dense(t.core, rank=10), t.factors)
    np.testing.assert_allclose(tucker.to_dense(with_train), dense, atol=1e3 * eps(dtype))
    f = jax.jit(lambda x: tucker.to_dense(tucker.from_dense(x, rank=(2, 3, 2))))
    assert np.linalg.norm(np.asarray(f(x)) - x) < 1e-2 * np.linalg.norm(x)
