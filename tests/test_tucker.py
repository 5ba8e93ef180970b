"""Tucker format: the promise on the error, static shapes, types, bad input."""

import copy
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import linalg, tt, tucker
from tests.oracles import (
    DTYPES,
    cores,
    dense,
    eps,
    error,
    hilbert,
    norm,
    normal,
    tails,
    tucker_dense,
)

SHAPES = [(4, 3, 5), (7,), (1, 1, 1), (1, 5, 1, 3), (40, 3), (3, 40)]


def mode_values(x: np.ndarray, k: int) -> np.ndarray:
    return np.linalg.svd(np.moveaxis(x, k, 0).reshape(x.shape[k], -1), compute_uv=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tol_is_kept_with_few_ranks(rng, shape, dtype):
    e = eps(dtype)
    noise = normal(rng, shape, dtype)
    smooth = np.sin(np.indices(shape).sum(0)).astype(dtype)
    for x in (hilbert(shape, dtype), noise, 0 * noise, smooth + e * noise):
        for tol in (10 * e, 1e3 * e, e**0.5, 1e-2):
            cut = tol * norm(x) / len(shape) ** 0.5
            bound = [max((tails(mode_values(x, k)) > cut).sum(), 1) for k in range(len(shape))]
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
            best = [float(np.append(tails(mode_values(x, k)), 0)[rank]) for k in range(4)]
            assert error(tucker_dense(t), x) <= math.hypot(*best) + 1e-12 * norm(x)
            for u in t.factors:
                assert error(np.asarray(u).T @ np.asarray(u), np.eye(rank)) <= 1e-13


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


X = np.ones((2, 3, 4))


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (ValueError, "tol=.*rank=.*neither", lambda: tucker.from_dense(X)),
        (ValueError, "tol: .*got 0", lambda: tucker.from_dense(X, tol=0)),
        (ValueError, "tol: .*10 eps", lambda: tucker.from_dense(X, tol=1e-16)),
        (ValueError, "rank: .*got 0", lambda: tucker.from_dense(X, rank=0)),
        (ValueError, "rank: .*3, one per mode, got 2", lambda: tucker.from_dense(X, rank=[1, 2])),
        (ValueError, "rank: .*1.5", lambda: tucker.from_dense(X, rank=1.5)),  # type: ignore
        (ValueError, "x: .*NaN", lambda: tucker.from_dense(X * np.nan, tol=0.1)),
        (TypeError, "x: .*int64", lambda: tucker.from_dense(X.astype(int), tol=0.1)),
        (ValueError, "x: .*scalar", lambda: tucker.from_dense(np.float64(1), tol=0.1)),
        (ValueError, "x.shape.*0", lambda: tucker.from_dense(np.ones((2, 0)), tol=0.1)),
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
    ],
)  # fmt: skip
def test_bad_input_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()
