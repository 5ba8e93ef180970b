"""Patched trains against dense arrays, and patched cross approximation against the functions."""

import copy
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt
from tests.oracles import compilations

patches = tt.patches


def drawn(seed: int, dtype: Any = float) -> tt.patches.PatchedTT:
    """Patches of random lengths, equal ones and nested ones among them."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 4, rng.integers(2, 6)).tolist())
    out: Any = None
    for k in range(int(rng.integers(1, 6))):
        lead = tuple(int(rng.integers(n)) for n in shape[: rng.integers(len(shape))])
        key = jax.random.key(100 * seed + k)
        train = tt.random(key, shape[len(lead) :], int(rng.integers(1, 3)), dtype)
        term = patches.PatchedTT(shape, [lead], [train])
        out = term if out is None else out + term
    return out


def by_hand(p: tt.patches.PatchedTT) -> np.ndarray:
    out = np.zeros(p.shape, p.dtype)
    for lead, train in zip(p.prefixes, p.trains, strict=True):
        out[lead] += np.asarray(tt.to_dense(train))
    return out


@pytest.mark.parametrize("dtype", [np.float32, float, complex])
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
def test_functions_are_those_of_the_dense_array(seed: int, dtype: Any):
    p, rtol = drawn(seed, dtype), 1e-4 if dtype is np.float32 else 1e-11
    x = by_hand(p)
    scale = np.linalg.norm(x)
    np.testing.assert_allclose(patches.to_dense(p), x, atol=rtol * scale)
    index = np.random.default_rng(seed).integers(-np.array(x.shape), x.shape, (20, x.ndim))
    found = patches.evaluate(p, index)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, x[tuple(index.T)], atol=rtol * scale)
    compiled = jax.jit(patches.evaluate)(p, jnp.asarray(index))
    np.testing.assert_allclose(compiled, x[tuple(index.T)], atol=rtol * scale)
    np.testing.assert_allclose(patches.sum(p), x.sum(), atol=rtol * scale * math.sqrt(x.size))
    np.testing.assert_allclose(patches.norm(p), scale, rtol=10 * math.sqrt(rtol))
    other = tt.random(jax.random.key(seed), x.shape, 2, dtype)
    y = np.asarray(tt.to_dense(other))
    bound = rtol * scale * np.linalg.norm(y)
    np.testing.assert_allclose(patches.inner(p, other), (x.conj() * y).sum(), atol=bound)
    np.testing.assert_allclose(patches.inner(other, p), (y.conj() * x).sum(), atol=bound)
    np.testing.assert_allclose(patches.inner(p, p), scale**2, atol=rtol * scale**2)
    np.testing.assert_allclose(patches.to_dense(2 * p - 1.5), 2 * x - 1.5, atol=9 * rtol * scale)
    np.testing.assert_allclose(tt.to_dense(patches.to_tt(p)), x, atol=rtol * scale)
    rounded = patches.to_tt(p, tol=1e-2)
    assert np.linalg.norm(np.asarray(tt.to_dense(rounded)) - x) <= 1.1e-2 * scale
    assert jax.tree.structure(copy.deepcopy(p)) == jax.tree.structure(p)


def test_indices_out_of_range_are_refused_or_nan():
    p = drawn(2)
    beyond = np.array([p.shape])
    with pytest.raises(ValueError, match="indices: expected mode 0"):
        patches.evaluate(p, beyond)
    assert np.isnan(jax.jit(patches.evaluate)(p, jnp.asarray(beyond))).all()


def test_norms_of_disjoint_patches_are_not_sums_of_squares():
    tiny = tt.ones((4,)) * 1e-200
    p = patches.PatchedTT((2, 4), [(0,), (1,)], [tiny, tiny])
    np.testing.assert_allclose(patches.norm(p), math.sqrt(8) * 1e-200, rtol=1e-12)


def test_trains_of_many_ranks_are_not_compiled_each():
    rng, shape = np.random.default_rng(8), (3,) * 5
    trains, leads = [], []
    for k in range(12):  # some prefixes come twice
        ranks = (1, k // 3 + 1, k % 3 + 1, 1)
        trains.append(
            tt.TT([rng.standard_normal((*ranks[m : m + 2], 3)).swapaxes(1, 2) for m in range(3)])
        )
        leads.append((k % 3, k // 3 % 3))
    p = patches.PatchedTT(shape, leads, trains)
    with compilations() as programs:
        value, total, size = patches.inner(p, p), patches.sum(p), patches.norm(p)
        dense = patches.to_dense(p)
    assert programs == []
    np.testing.assert_allclose(total, np.sum(dense), rtol=1e-10)
    np.testing.assert_allclose([value, size**2], np.vdot(dense, dense), rtol=1e-10)
    few = patches.PatchedTT(shape, leads[:2], trains[:2])
    compiled = jax.jit(lambda p: (patches.inner(p, p), patches.sum(p), patches.to_dense(p)))(few)
    for x, y in zip(
        compiled, (patches.inner(few, few), patches.sum(few), by_hand(few)), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-10)


LEADS = {"apart": [(0,), (1, 2)], "nested": [(0,), (), (1, 1)], "equal": [(1,), (1,)]}


@pytest.mark.parametrize("dtype", [np.float32, float, np.complex64])
@pytest.mark.parametrize("leads", LEADS.values(), ids=LEADS)
def test_scalars_are_right_or_refused_where_the_dtype_cannot_hold_them(leads: Any, dtype: Any):
    shape, info = (2, 3, 2, 2), jnp.finfo(dtype)
    rng = np.random.default_rng(len(leads))

    def core(*sizes: int) -> np.ndarray:
        return rng.standard_normal(sizes) + (1j if dtype is np.complex64 else 1)

    cores = [
        [
            core(1 if k == len(lead) else 2, shape[k], 1 if k == 3 else 2)
            for k in range(len(lead), 4)
        ]
        for lead in leads
    ]

    def patched(first: float, last: float) -> tt.patches.PatchedTT:
        scaled = [[first * c[0], *c[1:-1], last * c[-1]] for c in cores]
        trains = [tt.TT([np.asarray(c, dtype) for c in each]) for each in scaled]
        return patches.PatchedTT(shape, leads, trains)

    x = by_hand(patched(1, 1)).astype(complex)
    cases = [
        (patches.norm, np.linalg.norm(x), 1),
        (patches.sum, x.sum(), 1),
        (lambda p: patches.inner(p, p), np.vdot(x, x), 2),
    ]
    most = (30, 200) if dtype is float else (15, 30)
    low, top = math.log10(2) * (info.minexp - info.nmant), math.log10(float(info.max))
    for first, last in [(0, e) for e in most] + [(e, 0) for e in most] + [(most[1], -most[0])]:
        for sign in (1, -1):
            p = patched(10.0 ** (sign * first), 10.0 ** (sign * last))
            for f, value, times in cases:
                e = sign * times * (first + last)
                if low < math.log10(abs(value)) + e < top:
                    found = np.asarray(f(p), complex) / 10.0**e
                    np.testing.assert_allclose(found, value, rtol=1e3 * float(info.eps))
                else:
                    with pytest.raises(OverflowError, match=r"of the patched trains, about 1e"):
                        f(p)


@pytest.mark.parametrize("dtype", [np.float32, float, np.complex64])
@pytest.mark.parametrize("leads", LEADS.values(), ids=LEADS)
def test_inf_and_nan_in_cores_are_no_overflow(leads: Any, dtype: Any):
    shape = (2, 3, 2, 2)
    trains = [tt.ones(shape[len(lead) :], dtype) for lead in leads]
    for bad in (np.nan, np.inf):
        first = [np.full(trains[0].cores[0].shape, bad, dtype), *trains[0].cores[1:]]
        p = patches.PatchedTT(shape, leads, [tt.TT(first), *trains[1:]])
        for value in (patches.norm(p), patches.sum(p), patches.inner(p, p)):
            # Products of complex numbers make NaN of Inf.
            assert np.isnan(value) or (np.isinf(value) and bad == np.inf)
            assert dtype is np.complex64 or np.isnan(value) == np.isnan(bad)


def test_zero_and_roundoff_are_no_underflow():
    small = 1e-30 * tt.ones((3,), np.float32)
    one, other = (patches.PatchedTT((2, 3), [(k,)], [small]) for k in range(2))
    assert patches.inner(one, other) == 0
    whole = patches.PatchedTT((2, 3), [()], [1e-30 * tt.ones((2, 3), np.float32)])
    rest = whole - one - other
    assert patches.norm(rest) <= 1e-36
    assert abs(patches.sum(rest)) <= 1e-36
    assert patches.inner(rest, rest) == 0


def ridge(seed: int) -> tuple[Any, Any]:
    """Sharp ridge along a circle on a fine grid of two or three dimensions."""
    rng = np.random.default_rng([7, seed])
    dims = 2
    center, radius = rng.uniform(-0.5, 0.5, dims), rng.uniform(0.8, 1.6)
    sharp = 10 ** rng.uniform(1.5, 2.5)
    grid = tt.quantics_grid([-3.0] * dims, [3.0] * dims, 9, fused=bool(seed % 2))

    def f(i: Any) -> Any:
        far = np.sqrt(((grid.coordinates(i) - center) ** 2).sum(axis=1))
        return np.exp(-sharp * (far - radius) ** 2)

    return grid, f


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
def test_ridges_are_found_within_the_tolerance_and_the_rank(seed: int):
    grid, f = ridge(seed)
    tol, bound = 1e-2, 12
    p, info = patches.cross(f, grid.shape, tol=tol, key=jax.random.key(seed), max_rank=bound)
    assert info.status in ("converged", "unseen")
    assert max(r for t in p.trains for r in t.ranks) == info.largest_rank <= bound
    assert info.patches == len(p.trains) > 1
    index = grid.nearest(np.random.default_rng(seed).uniform(-2.9, 2.9, (20_000, 2)))
    wrong = np.asarray(patches.evaluate(p, index)) - f(index)
    assert np.linalg.norm(wrong) <= 2 * tol * np.linalg.norm(f(index))
    assert np.abs(patches.sum(p) - tt.sum(patches.to_tt(p, tol=1e-4))) <= 1e-2 * patches.sum(p)


@pytest.mark.parametrize("seed", range(3))
def test_small_tensors_are_read_and_certain(seed: int):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((6, 3, 4, 5)) * (rng.random((6, 1, 1, 1)) < 0.6)
    p, info = patches.cross(
        lambda i: x[tuple(i.T)], x.shape, tol=1e-6, key=jax.random.key(0), max_rank=4
    )
    assert (info.status, info.error_std, info.evaluations) == ("converged", 0, x.size)
    assert info.largest_rank <= 4
    np.testing.assert_allclose(patches.to_dense(p), x, atol=1e-6 * np.linalg.norm(x))


def test_a_function_of_low_rank_is_one_patch(key: jax.Array):
    p, info = patches.cross(lambda i: 1 / (1.0 + i.sum(axis=1)), (20,) * 6, tol=1e-5, key=key)
    assert (info.status, info.patches, p.prefixes) == ("converged", 1, ((),))


def test_limits_are_kept_and_said(key: jax.Array):
    def noise(i: np.ndarray) -> np.ndarray:
        return np.sin(1e4 * (i @ np.arange(1.0, 13.0)) ** 2)

    shape = (4,) * 12
    p, info = patches.cross(noise, shape, tol=1e-3, key=key, max_rank=5, max_patches=8)
    assert info.status == "max_patches"
    assert len(p.trains) <= 8
    assert "max_patches" in info.advice
    assert info.error > 0.3
    for budget in (1, 1000, 20_000):
        _, info = patches.cross(noise, shape, tol=1e-3, key=key, max_evaluations=budget)
        assert info.status == "budget"
        assert info.evaluations <= budget
        assert info.error + info.error_std > 0.3


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
def test_ranks_and_patches_stay_within_bounds_that_are_too_small(seed: int):
    """Of patches that were read whole, and of trains with a mode of components."""
    rng = np.random.default_rng([61, seed])
    shape, count = tuple(rng.integers(2, 5, 4)), int(rng.integers(0, 4))
    x = rng.standard_normal(shape + (count,) * (count > 0))
    bound, most = int(rng.integers(1, 3)), int(rng.integers(1, 30))
    for limit in (1000, most):
        p, info = patches.cross(
            lambda i: x[tuple(i.T)], shape, tol=1e-3, key=jax.random.key(seed), max_rank=bound,
            max_patches=limit,
        )  # fmt: skip
        assert max(r for t in p.trains for r in t.ranks) == info.largest_rank <= bound
        assert len(p.trains) <= limit
        assert limit == most or info.status == "converged"
        wrong = np.linalg.norm(np.asarray(patches.to_dense(p)) - x) / np.linalg.norm(x)
        assert wrong <= 1.01 * info.error
        assert info.error <= 1.5 * wrong + 1e-3  # relative to f, not to what is left of it
        assert info.status == "max_patches" or wrong <= 1e-3


def test_zero_and_pivots(key: jax.Array):
    shape = (2,) * 30
    p, info = patches.cross(lambda i: 0.0 * i[:, 0], shape, tol=1e-6, key=key)
    assert (info.status, float(patches.norm(p))) == ("unseen", 0.0)
    assert math.isinf(info.error_std)
    at = np.random.default_rng(0).integers(2, size=(1, 30))

    def peak(i: np.ndarray) -> np.ndarray:
        return 1.0 * (i == at).all(axis=1)

    p, info = patches.cross(peak, shape, tol=1e-6, key=key, pivots=at)
    np.testing.assert_allclose(patches.norm(p), 1, rtol=1e-6)


def test_functions_of_jax_and_of_several_components(key: jax.Array):
    sizes = set()

    def f(i: jax.Array) -> jax.Array:
        sizes.add(i.shape[0])
        x = i.astype(float) / 16.0
        return jnp.stack([jnp.exp(-40 * (x[:, 0] ** 2 - x[:, 1]) ** 2 + 0 * x[:, 2]), x[:, 2]], 1)

    p, info = patches.cross(f, (16, 16, 16), tol=1e-4, key=key, max_rank=5)
    assert p.shape == (16, 16, 16, 2)
    assert info.status == "converged"
    assert len(sizes) <= 8
    index = np.indices((16, 16, 16)).reshape(3, -1).T
    exact = np.asarray(f(jnp.asarray(index))).reshape(p.shape)
    error = np.linalg.norm(np.asarray(patches.to_dense(p)) - exact)
    assert error <= 2e-4 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (ValueError, "prefixes", lambda: patches.PatchedTT((2, 3), [], [])),
        (ValueError, "prefixes", lambda: patches.PatchedTT((2, 3), [(2,)], [tt.ones((3,))])),
        (ValueError, "prefixes", lambda: patches.PatchedTT((2,), [(1,)], [tt.ones((2,))])),
        (ValueError, "trains", lambda: patches.PatchedTT((2, 3), [(1,)], [tt.ones((2,))])),
        (ValueError, "y: expected shape", lambda: patches.inner(drawn(0), tt.ones((2, 5)))),
        (TypeError, "PatchedTT", lambda: patches.norm(tt.ones((2,)))),  # type: ignore[arg-type]
        (TypeError, "PatchedTT", lambda: patches.to_tt(tt.ones((2,)))),  # type: ignore[arg-type]
        (ValueError, "max_rank", lambda: found(max_rank=0)),
        (ValueError, "max_patches", lambda: found(max_patches=0)),
        (ValueError, "max_evaluations", lambda: found(max_evaluations=0)),
        (ValueError, "tol", lambda: found(tol=1e-20)),
        (ZeroDivisionError, "zero", lambda: found(f=lambda i: 1 / 0)),
        (ValueError, "NaN", lambda: found(f=lambda i: np.nan * i[:, 0])),
    ],
)
def test_wrong_arguments_are_named(error: Any, match: str, call: Any):
    with pytest.raises(error, match=match):
        call()


def found(f: Any = lambda i: 1.0 * i[:, 0], tol: float = 1e-3, **options: Any) -> Any:
    return patches.cross(f, (9, 9, 9, 9), tol=tol, key=jax.random.key(0), **options)
