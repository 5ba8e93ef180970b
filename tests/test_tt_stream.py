"""Streamed sums against sums that are formed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt

SHAPE = (4, 5, 3, 4)


def terms(count: int, rank: int, dtype: Any = float) -> list[tt.TT]:
    keys = jax.random.split(jax.random.key(0), count)
    return [tt.random(k, SHAPE, rank, dtype) for k in keys]


def streamed(state: tt.Stream, parts: Any, weights: Any) -> tt.TT:
    for x, w in zip(parts, weights, strict=True):
        state = tt.stream_add(state, x, w)
    return tt.stream_train(state)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_a_sum_of_low_rank_is_exact_in_any_order(dtype: Any):
    parts, weights = terms(4, 1, dtype), [1.0, -2.0, 0.5, 3.0]
    exact = tt.linear_combination(parts, weights)
    state = tt.stream(jax.random.key(1), SHAPE, 5, dtype)
    found = streamed(state, parts, weights)
    assert found.ranks == (1, 4, 5, 4, 1)
    assert tt.distance(found, exact) < 1e-10 * tt.norm(exact)
    other = streamed(state, parts[::-1], weights[::-1])
    assert tt.distance(found, other) < 1e-10 * tt.norm(exact)


@pytest.mark.slow
def test_products_are_streamed_without_being_formed():
    x, y = terms(2, 2)
    a = tt.random_matrix(jax.random.key(3), SHAPE, SHAPE, 2, float)
    state = tt.stream(jax.random.key(1), SHAPE, 12, float)
    found = streamed(state, [(x, y), (a, x)], [1.0, -1.0])
    exact = tt.hadamard(x, y) - tt.matvec(a, x)
    assert tt.distance(found, exact) < 1e-9 * tt.norm(exact)


def test_what_does_not_fit_is_near_the_best():
    """Terms whose sizes decay, so that the sum has a best approximation worth the name."""
    parts = terms(12, 1)
    weights = [4.0**-i for i in range(12)]
    exact = tt.linear_combination(parts, weights)
    best = float(tt.distance(tt.round(exact, rank=5, method="svd"), exact))
    errors = [
        float(tt.distance(streamed(tt.stream(k, SHAPE, 5, float), parts, weights), exact))
        for k in jax.random.split(jax.random.key(2), 5)
    ]
    assert best < np.median(errors) < 6 * best


def test_under_scan_and_in_single_precision():
    parts = jax.tree.map(lambda *c: jnp.stack(c), *terms(6, 1, jnp.float32))
    state = tt.stream(jax.random.key(1), SHAPE, 6, jnp.float32)
    state, _ = jax.lax.scan(lambda s, x: (tt.stream_add(s, x), None), state, parts)
    exact = tt.linear_combination(terms(6, 1, jnp.float32))
    found = tt.stream_train(state)
    assert found.dtype == jnp.float32
    assert tt.distance(found, exact) < 1e-3 * tt.norm(exact)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_streams_in_half_precision(dtype: Any):
    """No LAPACK has it: factorisations are those of single precision."""
    one = tt.ones(SHAPE, dtype)
    found = streamed(tt.stream(jax.random.key(1), SHAPE, 3, dtype), [one, one], [0.5, 1.0])
    assert found.dtype == dtype
    assert np.abs(np.asarray(tt.to_dense(found), float) - 1.5).max() < 50 * jnp.finfo(dtype).eps


def test_nothing_and_one_mode():
    assert tt.norm(tt.stream_train(tt.stream(jax.random.key(0), SHAPE, 3, float))) == 0
    one = tt.random(jax.random.key(0), (7,), 1, float)
    found = streamed(tt.stream(jax.random.key(0), (7,), 1, float), [one, one], [1.0, 2.0])
    assert tt.distance(found, one * 3.0) < 1e-14 * tt.norm(one)


def test_bad_input_is_named():
    state = tt.stream(jax.random.key(0), SHAPE, 3, float)
    with pytest.raises(ValueError, match="term: expected shape"):
        tt.stream_add(state, tt.ones((4, 5), float))
    with pytest.raises(TypeError, match="term: expected a TT"):
        tt.stream_add(state, 1.0)
    with pytest.raises(TypeError, match="term: expected a real one"):
        tt.stream_add(state, tt.ones(SHAPE, complex))
    with pytest.raises(ValueError, match="term: expected finite"):
        tt.stream_add(state, tt.scale(tt.ones(SHAPE, float), jnp.nan))
    single = tt.stream(jax.random.key(0), SHAPE, 3, jnp.float32)
    for weight in (1e300, -(10**400), np.nan, jnp.asarray(1e300), np.float64(np.inf)):
        with pytest.raises(ValueError, match="weight: expected a finite number that float32"):
            tt.stream_add(single, tt.ones(SHAPE, jnp.float32), weight)


def test_sums_out_of_range_are_those_of_programs():
    """Infinite in the dtype of the stream; without warnings, which are errors here."""
    state, one = tt.stream(jax.random.key(0), (3, 4), 2, jnp.float32), tt.ones((3, 4), jnp.float32)
    full = tt.stream_add(tt.stream_add(state, one, 3e38), one, 3e38)
    again = jax.jit(tt.stream_add)(jax.jit(tt.stream_add)(state, one, 3e38), one, 3e38)
    assert not all(np.isfinite(x).all() for x in (*full.cores, *full.bonds))
    for x, e in zip(jax.tree.leaves(full), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(x, e, rtol=1e-3)
    for x, e in zip(tt.stream_train(full).cores, jax.jit(tt.stream_train)(full).cores, strict=True):
        np.testing.assert_array_equal(x, e)
