"""Tucker tensors beside arrays: products, indexing, random ones, fits, conversion to trains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt, tucker
from tests.oracles import cores, dense, error, norm, normal, tucker_dense

KEY = jax.random.key(0)
LONG = pytest.mark.slow  # compiling takes long


def pair(rng, shape, ranks, dtype=np.complex128):
    """One tensor with a train core and the same with a dense core."""
    train = tt.TT(cores(rng, ranks, 2, dtype))
    factors = [normal(rng, (n, s), dtype) for n, s in zip(shape, ranks, strict=True)]
    return tucker.Tucker(train, factors), tucker.Tucker(dense(train).astype(dtype), factors)


def close(out, expected, tol=1e-11):
    found = tucker_dense(out) if isinstance(out, tucker.Tucker) else np.asarray(out)
    assert found.shape == expected.shape
    assert error(found, expected) <= tol * max(norm(expected), 1)


@pytest.mark.parametrize(("shape", "ranks"), [((4, 3), (2, 3)), ((3,), (2,)),
                         pytest.param((4, 1, 3, 2), (2, 1, 3, 2), marks=LONG)])  # fmt: skip
def test_products_entry_by_entry_and_with_a_matrix(rng, shape, ranks):
    for x in pair(rng, shape, ranks):
        y = pair(rng, shape, ranks)[0]
        a, b = tucker_dense(x), tucker_dense(y)
        close(x * y, a * b)
        assert all(s <= n for s, n in zip((x * y).ranks, shape, strict=True))
        rounded = tucker.hadamard(x, y, tol=0.1)
        assert error(tucker_dense(rounded), a * b) <= 0.1 * norm(a * b)
        w = normal(rng, (5, shape[-1]), np.complex128)
        close(tucker.mode_product(x, w, -1), a @ w.T)
    far = x * 1e200
    close((far * (y * 1e-200)) * 1.0, a * b)
    with pytest.raises(ValueError, match="matrix"):
        tucker.mode_product(x, w.T, 0)


def test_indexing(rng):
    shape = (4, 3, 2)
    keys = [
        (0,), (slice(None), 1), (None, ..., -1), (..., [0, 1, 1], None), (slice(None, None, -1),),
        (-1, 2, 0), (0, 0, 0, None), (1, None, slice(1, 3)), (np.array([True, False, True, True]),),
        (1, [0, 2]), (), ...,
    ]  # fmt: skip
    for x in pair(rng, shape, (2, 3, 2)):
        for key in keys:
            close(x[key], tucker_dense(x)[key])
        for key, what in ((4, "indices"), ((0, 0, 0, 0), "at most 3"), ((0, ..., [1]), "beside")):
            with pytest.raises(IndexError, match=what):
                x[key]
    found = jax.jit(lambda x, i: (x[i, 1:], x[i, 0, i]))(x, -1)
    close(found[0], tucker_dense(x)[-1, 1:])
    close(found[1], tucker_dense(x)[-1, 0, -1])
    assert np.isnan(np.asarray(jax.jit(lambda x, i: x[i, 0, 0])(x, 4)))


def test_trains_of_tucker_tensors(rng):
    for x in pair(rng, (4, 3, 5), (2, 3, 2)):
        full = tucker_dense(x)
        assert error(dense(tucker.to_tt(x)), full) <= 1e-12 * norm(full)
        loose = tucker.to_tt(x, tol=0.2)
        assert error(dense(loose), full) <= 0.2 * norm(full)
        assert max(tucker.to_tt(x, rank=1).ranks) == 1
        assert error(dense(tucker.to_tt(x * 1e200)) * 1e-200, full) <= 1e-12 * norm(full)
    with pytest.raises(TypeError, match="rank="):
        jax.jit(lambda x: tucker.to_tt(x, tol=0.1))(x)


def test_random_tensors(key):
    for options in ({}, {"core_rank": 2}):
        t = tucker.random(key, (30, 40, 2), 5, np.float64, **options)
        assert t.ranks == (5, 5, 2)
        assert isinstance(t.core, tt.TT) == bool(options)
    many = [tucker_dense(tucker.random(k, (3, 4), 2)) for k in jax.random.split(key, 100)]
    assert np.var(many) == pytest.approx(1, abs=0.4)
    with pytest.raises(ValueError, match="rank"):
        tucker.random(key, (3, 4), [1, 2, 3])


def test_alternating_fits(rng):
    x = normal(rng, (5, 4, 3), np.complex128)
    fitted, info = tucker.hooi(x, rank=2)
    start = error(tucker_dense(tucker.from_dense(x, rank=2)), x) / norm(x)
    assert info.status == "converged"
    assert info.error == pytest.approx(error(tucker_dense(fitted), x) / norm(x), rel=1e-6)
    assert info.error <= start * (1 + 1e-12)
    low = tucker_dense(pair(rng, (6, 7, 5), (2, 2, 2), np.float64)[1])
    seen = rng.random(low.shape) < 0.8
    fitted, info = tucker.hooi(
        np.where(seen, low, np.nan), rank=2, mask=seen, tol=1e-9, max_sweeps=1000
    )
    assert error(tucker_dense(fitted), low) <= 1e-4 * norm(low)
    assert tucker.hooi(x, rank=2, max_sweeps=1, tol=1e-15)[1].status == "max_sweeps"


def test_fits_that_are_not_negative(rng, key):
    low = tucker_dense(tucker.Tucker(rng.random((2, 2)), [rng.random((n, 2)) for n in (6, 5)]))
    seen = rng.random(low.shape) < 0.9
    for mask in (None, seen):
        fitted, info = tucker.nonnegative(low, rank=2, key=key, mask=mask, tol=1e-8)
        assert all((np.asarray(leaf) >= 0).all() for leaf in jax.tree.leaves(fitted))
        assert error(tucker_dense(fitted), low) <= 0.1 * norm(low)
        assert info.error < 0.03
    far, _ = tucker.nonnegative(low * 1e200, rank=2, key=key)
    assert error(tucker_dense(far) * 1e-200, low) <= 0.1 * norm(low)
    assert norm(tucker_dense(tucker.nonnegative(0 * low, rank=1, key=key)[0])) == 0


def test_infinite_factors_give_in_first_calls_what_programs_give(rng):
    """Without warnings, which are errors here."""
    _, t = pair(rng, (4, 5, 3), (2, 3, 2), np.float32)
    core, factors = jnp.asarray(t.core), list(map(jnp.asarray, t.factors))
    factors[0] = factors[0].at[0, 0].set(jnp.inf)
    bad = tucker.Tucker(core, factors)
    entry = np.array([[0, 1, 1], [3, 2, 0]])
    for f, *given in (
        (tucker.to_dense, bad),
        (tucker.hadamard, bad, bad),
        (tucker.evaluate, bad, entry),
        (tucker.inner, bad, bad),
    ):
        found, expected = f(*given), jax.jit(f)(*given)
        for x, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(np.isnan(x), np.isnan(e))
            np.testing.assert_allclose(x, e, rtol=1e-5)
    assert np.isnan(tucker.to_dense(bad)).sum() < 20  # those of the one row
    assert np.isnan([tucker.norm(bad), tucker.distance(bad, t)]).all()


@pytest.mark.parametrize(
    ("kind", "what", "call"),
    [
        (TypeError, "concrete", lambda x: jax.jit(lambda x: tucker.hooi(x, rank=1)[0])(x)),
        (ValueError, "NaN", lambda x: tucker.hooi(x * np.nan, rank=1)),
        (TypeError, "mask: .*Booleans", lambda x: tucker.hooi(x, rank=1, mask=np.ones((2, 3)))),
        (ValueError, "mask: .*shape", lambda x: tucker.hooi(x, rank=1, mask=np.ones(2, bool))),
        (ValueError, "true", lambda x: tucker.hooi(x, rank=1, mask=np.zeros((2, 3), bool))),
        (ValueError, "rank", lambda x: tucker.hooi(x, rank=0)),
        (ValueError, "at least 0", lambda x: tucker.nonnegative(-x, rank=1, key=jax.random.key(0))),
        (
            TypeError,
            "real",
            lambda x: tucker.nonnegative(x.astype(complex), rank=1, key=jax.random.key(0)),
        ),
    ],
)
def test_bad_input_is_named(kind, what, call):
    with pytest.raises(kind, match=what):
        call(jnp.ones((2, 3)))
