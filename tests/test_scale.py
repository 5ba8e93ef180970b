"""Errors and ranks do not depend on the size of the numbers, also where squares are out of range.

All sizes are powers of two: data, errors and ranks are then those at size one, to the last bit.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import convert, linalg, tt, tucker

# About 1e±30 and 1e±36; 1e±200, 1e±300 and 1e-170.
SINGLE, DOUBLE = (-120, -100, 100, 120), (-996, -664, -565, 664, 996)
SIZES = [(d, k) for d in (np.float32, np.complex64) for k in SINGLE]
SIZES += [(d, k) for d in (np.float64, np.complex128) for k in DOUBLE]
METHODS = linalg.METHODS


def times_power(x, k):
    """x · 2^k, exact but for what leaves the range."""
    one = np.ones((), np.asarray(x).real.dtype)
    return np.asarray(x) * np.ldexp(one, k // 2) * np.ldexp(one, k - k // 2)


def sum_of_products(dtype, shape=(7, 8, 9)):
    """Three terms of sizes about 1, 1e-2 and 1e-4."""
    rng = np.random.default_rng(0)
    out = np.zeros(shape)
    for k in range(3):
        vectors = [rng.standard_normal(n) for n in shape]
        if np.issubdtype(dtype, np.complexfloating):
            vectors = [v + 1j * rng.standard_normal(v.shape) for v in vectors]
        out = out + 1e-2**k * np.einsum(vectors[0], [0], vectors[1], [1], vectors[2], [2])
    return (out / np.abs(out).max()).astype(dtype)


def tolerances(dtype):
    return (2e-5, 1e-3) if np.finfo(dtype).bits == 32 else (1e-12, 1e-3)


def near_one(arrays, k):
    """Arrays in double precision whose product is that of the given ones over 2^k."""
    out, left = [], -k
    for a in map(np.asarray, arrays):
        e = int(np.frexp(max(np.abs(a.real).max(), np.abs(a.imag).max()))[1])
        out.append(times_power(a.astype(np.result_type(a, np.float64)), -e))
        left += e
    return [*out[:-1], times_power(out[-1], left)]


def dense(t, k):
    """The train over 2^k."""
    out = np.ones((1, 1))
    for c in near_one(t.cores, k):
        out = (out @ c.reshape(len(c), -1)).reshape(-1, c.shape[-1])
    return out.reshape(t.shape)


def dense_tucker(t, k):
    *factors, core = near_one([*t.factors, t.core], k)
    for mode, u in enumerate(factors):
        core = np.moveaxis(np.tensordot(u, core, (1, mode)), 0, mode)
    return core


def relative(x, y):
    return np.linalg.norm(x - y) / np.linalg.norm(y)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("dtype", "k"), SIZES)
def test_dense_data_are_decomposed_to_the_tolerance(dtype, k, method):
    x = sum_of_products(dtype)
    for tol in tolerances(dtype):
        t = tt.from_dense(times_power(x, k), tol=tol, method=method)
        assert t.ranks == tt.from_dense(x, tol=tol, method=method).ranks
        assert t.dtype == dtype
        assert relative(dense(t, k), x) <= tol
        u = tucker.from_dense(times_power(x, k), tol=tol, method=method)
        assert u.ranks == tucker.from_dense(x, tol=tol, method=method).ranks
        assert relative(dense_tucker(u, k), x) <= tol


@pytest.mark.parametrize("f", [tt.from_dense, tucker.from_dense])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_zero_or_not_finite_is_seen_at_any_size(f, method):
    zero = f(np.zeros((4, 5, 6)), tol=1e-6, method=method)
    assert set(zero.ranks) == {1}
    assert all(np.all(np.isfinite(a)) for a in jax.tree.leaves(zero))
    assert tt.norm(zero) == 0 if isinstance(zero, tt.TT) else tucker.norm(zero) == 0
    for bad in (np.nan, np.inf):
        x = np.full((4, 5, 6), 1e200)
        x[1, 2, 3] = bad
        with pytest.raises(ValueError, match="finite"):
            f(x, tol=1e-6, method=method)


def spread(t, k, where):
    """The train times 2^k, in one core or in all."""
    shares = [k // t.order] * t.order if where == "all" else [0] * t.order
    shares[0 if where == "first" else -1] += k - sum(shares)
    return tt.TT([times_power(c, s) for c, s in zip(t.cores, shares, strict=True)])


@pytest.mark.parametrize("where", ["first", "last", "all"])
@pytest.mark.parametrize("method", ["auto", "svd", "gram"])
@pytest.mark.parametrize(("dtype", "k"), [s for s in SIZES if s[0] in (np.float64, np.complex128)])
def test_trains_are_rounded_to_the_tolerance(dtype, k, method, where):
    x = tt.from_dense(sum_of_products(dtype), tol=1e-13)
    doubled = x + x
    for tol in tolerances(dtype):
        t = tt.round(spread(doubled, k, where), tol=tol, method=method)
        assert t.ranks == tt.round(doubled, tol=tol, method=method).ranks
        assert relative(dense(t, k), dense(doubled, 0)) <= tol


@pytest.mark.parametrize("k", SINGLE)
def test_float32_trains_beyond_the_range_are_rounded(k):
    """The norm is 2^(3k), which no float32 and, squared, no float64 holds for the largest k."""
    x = tt.from_dense(sum_of_products(np.float32), tol=2e-6)
    cores = [times_power(c, k) for c in (x + x).cores]
    for method in ("svd", "gram"):
        t = tt.round(tt.TT(cores), tol=1e-5, method=method)
        assert t.ranks == x.ranks
        assert relative(dense(t, 3 * k), 2 * dense(x, 0)) <= 1e-5


@pytest.mark.parametrize("where", ["first", "last", "all"])
@pytest.mark.parametrize("k", DOUBLE)
def test_norms_and_distances_have_the_size_of_the_data(k, where):
    x = tt.from_dense(sum_of_products(np.float64), tol=1e-13)
    big = spread(x, k, where)
    expected = float(tt.norm(x))
    for y in (0 * x, 0 * big, tt.zeros(x.shape, dtype=x.dtype)):
        for f in (tt.distance, jax.jit(tt.distance)):
            for pair in ((big, y), (y, big)):
                assert times_power(f(*pair), -k) == pytest.approx(expected, rel=1e-12)
    # The same tensor, its size elsewhere.
    assert times_power(tt.distance(big, spread(x, k, "first")), -k) <= 1e-13 * expected
    assert times_power(tt.distance(big, 2.0 * big), -k) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("kind", "k"), [(kind, k) for kind in ("dense", "train") for k in DOUBLE])
def test_tucker_tensors_of_any_size_are_measured_and_rounded(kind, k):
    x = tucker.from_dense(sum_of_products(np.float64), tol=1e-13)
    if kind == "train":
        x = tucker.Tucker(tt.from_dense(x.core, tol=1e-13), x.factors)
    big = tucker.Tucker(x.core, [times_power(x.factors[0], k), *x.factors[1:]])
    expected = float(tucker.norm(x))
    assert times_power(tucker.norm(big), -k) == pytest.approx(expected, rel=1e-12)
    assert times_power(tucker.distance(big, 2.0 * big), -k) == pytest.approx(expected, rel=1e-12)
    for tol in (1e-12, 1e-3):
        small = tucker.round(big + big, tol=tol)
        assert small.ranks == tucker.round(x + x, tol=tol).ranks
        error = times_power(tucker.distance(small, big + big), -k - 1)
        assert error <= 1.001 * tol * expected


@pytest.mark.parametrize("k", DOUBLE)
def test_trains_of_any_size_become_tucker_tensors(k):
    x = tt.from_dense(sum_of_products(np.float64), tol=1e-13)
    for where in ("first", "last"):
        out = convert.tt_to_tucker(spread(x, k, where), tol=1e-3)[0]
        assert out.ranks == convert.tt_to_tucker(x, tol=1e-3)[0].ranks


def test_inner_products_are_right_where_their_factors_overflow():
    """2^1036 times what cancels to 1e-8."""
    eye, size = np.eye(2).reshape(1, 2, 2), 2.0**259
    x = tt.TT([eye * size, np.ones((2, 1, 1)) * size])
    y = tt.TT([eye * size, np.array([1.0, -1 + 1e-8]).reshape(2, 1, 1) * size])
    expected = 2.0**1012 * ((1 + (-1 + 1e-8)) * 2.0**24)
    assert float(tt.inner(x, y)) == pytest.approx(expected, rel=1e-7)


DIAGONAL = np.diag([3.0, 1.0, 1e-4])


@pytest.mark.parametrize("kind", [np.asarray, pytest.param(jnp.asarray, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("dtype", "k"), SIZES)
def test_singular_values_of_any_size(dtype, k, kind):
    a = kind(times_power(DIAGONAL.astype(dtype), k))
    options = [{"tol": 1e-3, "method": m} for m in METHODS]
    options += [{"rank": 3, "tol": 1e-3, "method": m} for m in METHODS]
    options += [{"rank": r, "method": m} for r in (1, 2) for m in METHODS]
    for o in options:
        out = linalg.truncated_svd(a, **o)
        s = times_power(out.s, -k)
        expected = [3.0, 1.0, 0.0][: len(s)]
        cut = "rank" not in o or ("tol" in o and kind is np.asarray)
        assert len(s) == (2 if cut else o["rank"])
        assert s == pytest.approx(expected, rel=1e-4, abs=1e-7)
        assert out.s.dtype == np.finfo(dtype).dtype


@pytest.mark.parametrize("method", ["svd", "gram"])
def test_singular_values_of_float32_batches_and_their_derivatives(rng, method):
    a = rng.standard_normal((3, 20, 8)).astype(np.float32)
    u, s, vh = np.linalg.svd(a.astype(np.float64), full_matrices=False)
    powers = np.array([0, -83, 83])  # a scale for each matrix
    big = jnp.asarray(times_power(a, powers[:, None, None]))

    def leading(a):
        s = linalg.truncated_svd(a, rank=3, method=method).s
        return s.sum(), s

    gradient, found = jax.jit(jax.grad(leading, has_aux=True))(big)
    assert times_power(found, -powers[:, None]) == pytest.approx(s[:, :3], rel=1e-4)
    assert np.asarray(gradient) == pytest.approx(u[..., :3] @ vh[:, :3], abs=1e-4)


@pytest.mark.parametrize("k", [-664, -565, 664])
def test_sums_by_gram_matrices_are_rounded_to_the_tolerance(k):
    x = tt.from_dense(sum_of_products(np.float64), tol=1e-13)
    big = spread(x, k, "first")
    with np.errstate(over="ignore", invalid="ignore"):
        t = tt.linear_combination([big, big], tol=1e-3, method="gram")
    assert relative(dense(t, k), 2 * dense(x, 0)) <= 1e-3


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_factors_that_no_core_can_hold_are_refused(rng, kind):
    """They are shared by all cores: the more of these, the larger they may be."""
    top = np.log10(float(np.finfo(kind).max))
    for count in (1, 2, 4):
        t = tt.ones((2,) * count, kind)
        for power in (0.9 * count * top, 1.1 * count * top):
            factor = 10 ** int(power)
            if power < count * top:
                log = float(tt.log_norm(t * factor))
                assert log == pytest.approx(int(power) * np.log(10) + float(tt.log_norm(t)), 1e-4)
            else:
                for call in (lambda t=t, f=factor: t * f, lambda t=t, f=factor: t + f):
                    with pytest.raises(OverflowError, match="out of the range of its"):
                        call()
