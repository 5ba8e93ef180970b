"""Conversions: the promise on the error, its exact account, static shapes, traps, bad input."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import convert, mera, tt, tucker
from tests.oracles import (
    DTYPES,
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
    mode_tails,
    multiplied,
    norm,
    tucker_dense,
)

SHAPES = [(4, 3, 5), (1, 5, 1, 3), (20, 2, 20), (6,)]


def planted(rng, shape, ranks, bond, dtype=np.float64) -> tt.TT:
    """A train of small multilinear ranks, whose modes do not show them."""
    factors = [np.linalg.qr(rng.standard_normal((n, s)))[0]
               for n, s in zip(shape, ranks, strict=True)]  # fmt: skip
    small = cores(rng, ranks, bond, np.float64)
    return tt.TT([(u @ c).astype(dtype) for u, c in zip(factors, small, strict=True)])


def check_orthonormal(t: tucker.Tucker) -> None:
    for u in t.factors:
        u = np.asarray(u, np.complex128)
        assert error(u.conj().T @ u, np.eye(u.shape[1])) <= 50 * eps(t.dtype)


# TT → Tucker: the promise ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tol_is_kept_with_few_ranks(rng, shape, dtype):
    e = eps(dtype)
    for name, (x, size) in hard_trains(rng, shape, dtype).items():
        t, full = tt.TT(x), dense(tt.TT(x))
        for tol in (10 * e, 1e3 * e, e**0.5, 1e-6, 1e-2):
            if tol < 10 * e:
                continue
            out, info = convert.tt_to_tucker(t, tol=tol)
            where = name, tol / e, out.ranks
            # The dense arrays compared here carry a roundoff of their own, in double precision.
            roundoff = 4 * eps(np.float64) * size
            assert error(tucker_dense(out), full) <= tol * norm(full) + roundoff, where
            assert (out.shape, out.dtype, info.ranks) == (t.shape, t.dtype, out.ranks)
            assert float(info.error) <= tol, where
            assert all(a <= b for a, b in zip(out.core.ranks, t.ranks, strict=True))
            check_orthonormal(out)
            if tol * norm(full) > 100 * e * size:  # above the roundoff in the data
                cut = tol * norm(full) / len(shape) ** 0.5
                bound = [max((mode_tails(full, k) > cut).sum(), 1) for k in range(len(shape))]
                assert all(a <= b for a, b in zip(out.ranks, bound, strict=True)), (where, bound)


@pytest.mark.parametrize("tol", [0.3, 1e-3, 1e-9])
def test_the_squared_error_is_the_sum_of_the_tails(tol):
    x = hilbert((5, 4, 6), np.complex128)
    t = tt.from_dense(x, tol=1e-14)
    for options in ({"tol": tol}, {"rank": 2} if tol > 0.1 else {"rank": 9, "tol": tol}):
        out, info = convert.tt_to_tucker(t, **options)
        exact = error(tucker_dense(out), dense(t)) / norm(x)
        assert float(info.error) == pytest.approx(exact, rel=1e-3, abs=1e-13)
        assert float(info.error) ** 2 == pytest.approx(float(info.tails.sum()))


def test_what_a_mode_leaves_of_the_tolerance_passes_on():
    """Three modes of multilinear rank one leave all of it to the fourth."""
    s = 0.5 ** np.arange(8)
    pair = np.diag(s)[None, :, :], np.eye(8)[:, :, None]
    one = np.ones((1, 3, 1))
    t = tt.TT([one, one, *pair])
    out, info = convert.tt_to_tucker(t, tol=0.1)
    tails = np.sqrt(np.cumsum(s[::-1] ** 2)[::-1]) / norm(s)
    assert out.ranks == (1, 1, (tails > 0.1 / 2**0.5).sum(), (tails > 0.1 / 2**0.5).sum())
    assert float(info.error) <= 0.1


def test_a_long_train_is_converted_without_a_dense_core(rng):
    shape, ranks = (9,) * 30, tuple(1 + k % 4 for k in range(30))
    exact = planted(rng, shape, ranks, 6)
    noise = tt.TT(cores(rng, shape, 2, np.float64))
    t = exact + noise * (1e-5 * tt.norm(exact) / tt.norm(noise))
    for tol in (1e-3, 2e-5):
        out, info = convert.tt_to_tucker(t, tol=tol)
        expanded = tt.TT([np.einsum("ni,aib->anb", u, c) for u, c
                          in zip(out.factors, out.core.cores, strict=True)])  # fmt: skip
        distance = float(tt.distance(expanded, t)) / float(tt.norm(t))
        assert distance <= tol
        assert distance == pytest.approx(float(info.error), rel=1e-3)
        if tol == 1e-3:
            assert all(s <= r for s, r in zip(out.ranks, ranks, strict=True))
            assert info.size < info.size_before / 2
            assert "pays" in str(info)
            assert "not" not in str(info)


def test_a_larger_train_is_not_said_to_pay(rng):
    t = tt.TT(cores(rng, (4, 4), 4, np.float64))
    out, info = convert.tt_to_tucker(t, tol=1e-10)
    assert (info.size_before, info.size) == (t.size, out.size)
    assert info.size == 2 * 16 + out.core.size
    assert (info.ranks_before, info.core_ranks) == (t.ranks, out.core.ranks)
    assert "does not pay" in str(info)


def test_bonds_shrink_to_what_the_modes_allow(rng):
    t = planted(rng, (6,) * 5, (2, 1, 3, 1, 2), 6)
    by_tol, _ = convert.tt_to_tucker(t, tol=1e-10)
    by_rank, _ = convert.tt_to_tucker(t, rank=(2, 1, 3, 1, 2))
    for out in (by_tol, by_rank):
        assert out.core.ranks == (1, 2, 2, 2, 2, 1)
        assert error(tucker_dense(out), dense(t)) <= 1e-10 * norm(dense(t))


def test_tol_alone_compiles_nothing(rng):
    trains = [tt.TT(cores(rng, (6, 5, 6), [1 + k % 6, 1 + k % 5], np.float64)) for k in range(20)]
    with compilations() as programs:
        for k, t in enumerate(trains):
            convert.tt_to_tucker(t, tol=10.0 ** -(1 + k % 13))
    assert programs == []


# TT → Tucker: static shapes ----------------------------------------------------------------------


def test_by_rank_the_error_is_quasi_optimal():
    x = hilbert((5, 4, 6), np.complex64)
    t = tt.from_dense(x, tol=2e-6)
    for rank in (2, [3, 1, 2]):
        out, _ = convert.tt_to_tucker(t, rank=rank)
        best = [np.append(mode_tails(x, k), 0)[r] for k, r in enumerate(out.ranks)]
        assert error(tucker_dense(out), x) <= np.linalg.norm(best) + 1e-5 * norm(x)
        check_orthonormal(out)


def test_rank_with_tol_has_the_shapes_of_rank_and_zeroes_the_rest():
    t = tt.from_dense(hilbert((5, 4, 6)), tol=1e-14)
    free, _ = convert.tt_to_tucker(t, tol=1e-3)
    compiled = jax.jit(convert.tt_to_tucker, static_argnames="rank")
    shapes = []
    for f in (convert.tt_to_tucker, compiled):
        out, info = f(t, tol=1e-3, rank=(5, 4, 4))
        shapes.append(jax.tree.map(jnp.shape, out))
        assert error(tucker_dense(out), dense(t)) <= 1e-3 * norm(dense(t))
        kept = [int((np.abs(u).max(0) > 0).sum()) for u in out.factors]
        assert all(a <= b + 1 for a, b in zip(kept, free.ranks, strict=True)), kept
        assert str(info)
    assert jax.tree.leaves(shapes[0]) == jax.tree.leaves(shapes[1])
    # What the tolerance asks does not fit these ranks: they are what counts.
    out, _ = convert.tt_to_tucker(t, tol=1e-10, rank=2)
    assert out.ranks == (2, 2, 2)


def test_eager_and_compiled_shapes_agree_where_ranks_bound_each_other(rng):
    for shape, bond, rank in (
        ((7, 1, 2), 3, 9),
        ((2, 9, 2), 2, 9),
        ((3, 3, 3, 3), 8, (1, 3, 1, 2)),
    ):
        t = tt.TT(cores(rng, shape, bond, np.float64))
        traced = jax.eval_shape(lambda t, r=rank: convert.tt_to_tucker(t, rank=r)[0], t)
        padded, _ = convert.tt_to_tucker(t * 0.0, rank=rank, tol=0.1)
        assert (padded.ranks, padded.core.ranks) == (traced.ranks, traced.core.ranks)


def test_vmap_converts_a_batch(rng):
    batch = [tt.TT(cores(rng, (4, 3, 4), 3, np.float64)) for _ in range(3)]
    stacked = jax.tree.map(lambda *c: jnp.stack(c), *batch)
    out, info = jax.vmap(lambda t: convert.tt_to_tucker(t, rank=2))(stacked)
    assert (out.shape, out.ranks, info.error.shape) == ((4, 3, 4), (2, 2, 2), (3,))
    assert str(info)
    for k, t in enumerate(batch):
        picked = jax.tree.map(lambda leaf, k=k: leaf[k], out)
        exact = error(tucker_dense(picked), dense(t)) / norm(dense(t))
        assert float(info.error[k]) == pytest.approx(exact, rel=1e-9)


def test_gradients_on_padded_and_duplicated_trains(rng):
    """At rank-deficient trains the derivative exists where the rank kept is the rank there is."""

    def loss(t):
        return jnp.sum(jnp.sin(tucker.to_dense(convert.tt_to_tucker(t, rank=2)[0])))

    gradient = jax.jit(jax.grad(loss))
    t = planted(rng, (4, 3, 4), (2, 2, 2), 2)
    for x in (tt.pad(t, 4), t + t):
        check_gradient(jax.jit(loss), x, rng, gradient(x))
    assert all(np.isfinite(c).all() for c in gradient(0 * t + 0 * t).cores)


# TT → Tucker: traps ------------------------------------------------------------------------------


def test_the_difference_of_near_equals_is_converted_relative_to_itself(rng):
    """‖a − b‖ = 1e-6 ‖a‖: Gram matrices of a and b see nothing of it, and must not be believed."""
    shape = (6,) * 6
    a, b = cores(rng, shape, 4, np.float64), planted(rng, shape, (2,) * 6, 2)
    t = tt.TT(combined((1, a), (1e-6, [np.asarray(c) for c in b.cores]), (-1, a)))
    out, info = convert.tt_to_tucker(t, tol=1e-4)
    assert out.ranks == (2,) * 6
    assert error(tucker_dense(out), dense(t)) <= 1e-4 * norm(dense(t))
    assert float(info.error) <= 1e-4


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_small_and_large_float32_trains_are_converted(rng, size):
    x = cores(rng, (4, 3, 5), 2, np.float32)
    t = tt.TT([*x[:-1], x[-1] * np.float32(size)])
    x = dense(t) / size
    for f in (
        lambda t: convert.tt_to_tucker(t, tol=1e-4),
        jax.jit(lambda t: convert.tt_to_tucker(t, rank=4, tol=1e-4)),
    ):
        out, info = f(t)
        assert error(tucker_dense(out) / size, x) <= 1e-4 * norm(x)
        assert float(info.error) <= 1e-4


@pytest.mark.parametrize("d", [40, 400])
def test_long_trains_stay_in_range(d):
    """10^400 ones: neither the square of the norm, 1e400, nor that of a float32 is in range."""
    t = tt.ones((10,) * d, np.float32 if d == 40 else np.float64)
    out, _ = convert.tt_to_tucker(t * 2.0, tol=1e-3)
    assert out.ranks == (1,) * d
    pairs = zip(out.core.cores, out.factors, strict=True)
    entry = multiplied([np.asarray(c) * np.asarray(u)[0, 0] for c, u in pairs])
    assert float(entry[0, 0]) == pytest.approx(2, rel=1e-3)


def test_a_long_train_stays_in_range_under_jit():
    t = tt.ones((1000,) * 8, np.float32) * 1e25
    out, info = jax.jit(lambda t: convert.tt_to_tucker(t, rank=1))(t)
    assert float(tucker.evaluate(out, [0] * 8)) == pytest.approx(1e25, rel=1e-3)
    assert float(info.error) <= 1e-3


def test_bfloat16_by_rank_and_by_tol():
    t = tt.from_dense(hilbert((5, 4, 6)), rank=3).astype(jnp.bfloat16)
    for options in ({"tol": 0.1}, {"rank": 2}):
        out, info = convert.tt_to_tucker(t, **options)
        assert out.dtype == jnp.bfloat16
        assert info.error.dtype == np.float32
        assert error(tucker_dense(out), dense(t)) <= 0.1 * norm(dense(t))


T = tt.ones((2, 3, 4), np.float64)


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (ValueError, "tol=.*rank=.*neither", lambda: convert.tt_to_tucker(T)),
        (ValueError, "tol: .*got 0", lambda: convert.tt_to_tucker(T, tol=0)),
        (ValueError, "tol: .*10 eps", lambda: convert.tt_to_tucker(T, tol=1e-16)),
        (ValueError, "rank: .*got 0", lambda: convert.tt_to_tucker(T, rank=0)),
        (ValueError, r"rank: .*3 of them \(one per mode\), got 2",
         lambda: convert.tt_to_tucker(T, rank=[1, 2])),
        (ValueError, "t: .*NaN", lambda: convert.tt_to_tucker(T * np.nan, tol=0.1)),
        (ValueError, "t: .*NaN", lambda: convert.tt_to_tucker(T * np.nan, rank=1)),
        (ValueError, "t: .*Inf", lambda: convert.tt_to_tucker(infinite(T), tol=0.1)),
        (TypeError, "t: .*ndarray", lambda: convert.tt_to_tucker(np.ones((2, 3)), rank=1)),
        (TypeError, "t: .*TTMatrix", lambda: convert.tt_to_tucker(tt.identity((2,)), rank=1)),
        (ValueError, "t: .*batch.*vmap", lambda: convert.tt_to_tucker(
            jax.tree.map(lambda c: jnp.stack([c, c]), T), rank=1)),
        (TypeError, "rank=", lambda: jax.jit(lambda t: convert.tt_to_tucker(t, tol=0.1))(T)),
        (TypeError, "rank=", lambda: jax.jit(lambda e: convert.tt_to_tucker(T, tol=e))(0.1)),
    ],
)  # fmt: skip
def test_bad_input_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


# TT → MERA ---------------------------------------------------------------------------------------


def measured(m, t):
    """‖t − m‖ / ‖t‖ of dense arrays."""
    return error(mera.to_dense(m), dense(t)) / norm(dense(t))


def hidden_mera(key, n, modes, rank, dtype=np.float64, **options):
    m = mera.random(jax.random.key(key), (n,) * modes, rank, dtype=dtype, **options)
    return m, tt.round(mera.to_tt(m), tol=100 * eps(dtype))


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_a_planted_mera_is_found_again(dtype):
    hidden, t = hidden_mera(0, 4, 6, 2, dtype, layers=1)
    m, info = convert.tt_to_mera(3 * t, tol=1e-8)
    assert m.size <= hidden.size < t.size
    assert info.error <= 1e-8
    assert measured(m, 3 * t) <= 1e-8
    assert mera.MERA(m.layers, m.top).dtype == dtype  # orthonormal, and of the train's dtype
    assert info.layers[0].tops == (2, 2, 2)
    assert all(c.rank == c.bound < c.plain for c in info.layers[0].cuts)
    assert info.layers[0].ranks_before == t.ranks
    assert info.pays
    assert "the MERA pays" in str(info)
    assert not info.fell_back
    assert (info.size, info.size_tt) == (m.size, tt.round(t, tol=1e-8).size)


@pytest.mark.parametrize("disentangle", ["procrustes", "entropy", "identity", "qr"])
@pytest.mark.parametrize(("n", "modes", "arity"), [(3, 5, 2), (2, 7, 3), (2, 6, (3, 2))], ids=str)
def test_the_error_is_within_the_tolerance(n, modes, arity, disentangle):
    t = tt.random(jax.random.key(1), (n,) * modes, 4, np.float64)
    plain, _ = convert.tt_to_mera(t, tol=0.2, arity=arity, disentangle="identity")
    for tol in (0.2, 1e-12):
        m, info = convert.tt_to_mera(
            t, tol=tol, arity=arity, disentangle=disentangle, restarts=1, iterations=8
        )
        assert measured(m, t) <= tol
        assert info.error == pytest.approx(measured(m, t), rel=1e-6, abs=1e-13)
        assert m.shape == t.shape
        if tol == 0.2:
            assert m.size <= plain.size  # never worse than no disentangler
    wiring = m.layers[0].wiring.arities
    assert wiring == mera.wirings(modes, arity)[0].arities


def test_random_trains_gain_nothing_and_that_is_said():
    t = tt.random(jax.random.key(0), (3,) * 6, 3, np.float64)
    m, info = convert.tt_to_mera(t, tol=1e-6, restarts=2)
    assert not info.pays
    assert "the MERA does not pay" in str(info)
    assert all(len(layer.disentanglers) == 0 for layer in m.layers)
    assert all(c.how == "identity" for layer in info.layers for c in layer.cuts)


def test_noise_up_to_the_tolerance_hides_nothing():
    hidden, t = hidden_mera(2, 4, 6, 2, layers=1)
    noise = tt.random(jax.random.key(5), t.shape, 3, np.float64)
    noisy = t + noise * float(1e-5 * tt.norm(t) / tt.norm(noise))
    m, info = convert.tt_to_mera(noisy, tol=1e-4)
    assert m.size <= 1.1 * hidden.size
    assert measured(m, noisy) <= 1e-4
    assert any(c.iterations > 0 for c in info.layers[0].cuts)


def test_the_plain_conversion_inflates_and_falls_back():
    _, t = hidden_mera(0, 4, 6, 2, layers=1)
    bare, kept = convert.tt_to_mera(t, tol=1e-6, disentangle="qr", fallback=False)
    safe, fallen = convert.tt_to_mera(t, tol=1e-6, disentangle="qr")
    assert [c.how for c in kept.layers[0].cuts] == ["QR"] * 2
    assert not kept.fell_back
    assert safe.size <= bare.size
    assert fallen.fell_back == (safe.size < bare.size)
    assert max(measured(bare, t), measured(safe, t)) <= 1e-6


@pytest.mark.parametrize("gauge", ["left", "right"])
def test_any_gauge_keeps_the_tolerance(gauge):
    _, t = hidden_mera(3, 3, 6, 2, layers=1)
    said = []
    m, _ = convert.tt_to_mera(t, tol=1e-5, gauge=gauge, restarts=2, progress=said.append)
    assert measured(m, t) <= 1e-5
    assert len(said) >= 2
    assert said[0].startswith("layer 0, cut 0: ")


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
def test_float32_trains_of_any_size_become_meras(size):
    _, t = hidden_mera(0, 3, 6, 2, np.float32, layers=1)
    m, info = convert.tt_to_mera(t * np.float32(size), tol=1e-4)
    assert m.dtype == np.float32
    assert info.error <= 1e-4
    assert float(mera.norm(m)) == pytest.approx(float(tt.norm(t)) * size, rel=1e-3)


def test_a_fallback_that_cannot_be_built_leaves_what_was_found(monkeypatch):
    hidden, t = hidden_mera(0, 4, 6, 2, layers=1)
    module = sys.modules["tensorjax.convert._tt_to_mera"]
    monkeypatch.setattr(module, "_LARGEST_TOP", 20)
    m, info = convert.tt_to_mera(t, tol=1e-6, layers=1)
    assert m.size == hidden.size
    assert not info.fell_back


def test_the_zero_train_becomes_the_zero_mera():
    m, info = convert.tt_to_mera(tt.zeros((2,) * 6, np.float64), tol=1e-6)
    assert float(mera.norm(m)) == 0
    assert info.error == 0


ONES = tt.ones((2,) * 6, np.float64)


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (ValueError, "tol: .*10 eps", lambda: convert.tt_to_mera(ONES, tol=1e-16)),
        (ValueError, "tol: .*positive", lambda: convert.tt_to_mera(ONES, tol=0)),
        (ValueError, r"arity: .*blocks of 7 for the 6 sites",
         lambda: convert.tt_to_mera(ONES, tol=0.1, arity=7)),
        (ValueError, r"arity: .*layer 1 \(6 at the bottom\)",
         lambda: convert.tt_to_mera(ONES, tol=0.1, arity=(3, 4))),
        (ValueError, "arity: .*blocks of 2 for the 1 sites",
         lambda: convert.tt_to_mera(tt.ones((4,)), tol=0.1)),
        (ValueError, "disentangle: .*'best'",
         lambda: convert.tt_to_mera(ONES, tol=0.1, disentangle="best")),  # type: ignore
        (ValueError, "gauge: .*'top'",
         lambda: convert.tt_to_mera(ONES, tol=0.1, gauge="top")),  # type: ignore
        (ValueError, "t: expected a norm that float32 can hold, got 8e.38",
         lambda: convert.tt_to_mera(tt.ones((2,) * 6, np.float32) * np.float32(1e38), tol=0.1)),
        (ValueError, "restarts: ", lambda: convert.tt_to_mera(ONES, tol=0.1, restarts=-1)),
        (ValueError, "t: .*NaN", lambda: convert.tt_to_mera(np.nan * ONES, tol=0.1)),
        (TypeError, "t: expected a TT", lambda: convert.tt_to_mera(np.ones(4), tol=0.1)),  # type: ignore
        (TypeError, "tol= alone",
         lambda: jax.jit(lambda t: convert.tt_to_mera(t, tol=0.1)[0])(ONES)),
        (ValueError, "layers: got 1, whose dense top.*more layers",
         lambda: convert.tt_to_mera(tt.random(jax.random.key(0), (2,) * 60, 2), tol=0.1, layers=1,
                                    disentangle="identity")),
    ],
)  # fmt: skip
def test_bad_input_of_tt_to_mera_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()
