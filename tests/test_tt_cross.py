"""Cross approximation against the functions themselves, and quantics grids against arithmetic."""

import concurrent.futures
import itertools
import math
import re
from decimal import Decimal
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt
from tensorjax.tt._cross import jumps, maxvol, train_entries
from tensorjax.tt._cross.error_search import GlobalSearch
from tests.oracles import DTYPES, compilations, cores, dense, eps, error, norm


def fractions(x):
    return 1 / (1.0 + x.sum(axis=1))


def ackley(x):
    root = np.sqrt((x**2).mean(axis=1))
    return 20 + math.e - 20 * np.exp(-0.2 * root) - np.exp(np.cos(2 * np.pi * x).mean(axis=1))


def oscillatory(x):
    return np.cos(x.sum(axis=1) + 2 * (x[:, 1:] * x[:, :-1]).sum(axis=1))


def peak(x):
    return 1 / (0.01 + ((x - 0.5) ** 2).sum(axis=1))


def grid_of(low, high, d, n=20):
    return [np.linspace(low, high, n)] * d


def true_error(t, f, shape, grid=None, count=4000):
    """Relative error at random entries that the search knows nothing of."""
    index = np.random.default_rng(7).integers(0, shape, (count, len(shape)))
    points = (
        index
        if grid is None
        else np.stack([g[i] for g, i in zip(grid, index.T, strict=True)], axis=1)
    )
    values = np.asarray(f(points))
    return error(tt.evaluate(t, index), values) / norm(values)


class Counted:
    """A function that remembers what it was asked."""

    def __init__(self, f):
        self.f, self.seen = f, []

    def __call__(self, x):
        self.seen += [tuple(row) for row in np.asarray(x).tolist()]
        return self.f(x)


# Accuracy and cost -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "low", "high", "fewest"),
    [
        # Evaluations of the best of tntorch, teneva and torchTT on the same functions.
        (fractions, 0.0, 1.0, 17_480),
        (ackley, -32.768, 32.768, 36_140),
        (oscillatory, 0.0, 1.0, 72_340),
        (peak, 0.0, 1.0, 72_340),
    ],
    ids=lambda p: getattr(p, "__name__", None),
)
def test_ten_dimensional_functions_to_1e_6_in_few_evaluations(key, f, low, high, fewest):
    grid = grid_of(low, high, 10)
    counted = Counted(f)
    t, info = tt.cross(counted, (20,) * 10, grid=grid, tol=1e-6, key=key)
    assert info.status == "converged", info
    assert info.advice == ""
    assert true_error(t, f, t.shape, grid) <= 1e-6
    assert info.error + 2 * info.error_std <= 1e-6
    assert info.error_std > 0
    assert info.evaluations == len(counted.seen) == len(set(counted.seen))
    assert info.evaluations < fewest / 1.5
    assert info.ranks == t.ranks
    assert info.seconds > 0
    assert info.sweeps > 0


@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-9, 1e-12])
def test_the_error_is_below_the_tolerance_and_well_estimated(key, tol):
    f = fractions
    t, info = tt.cross(f, (12,) * 6, tol=tol, key=key)
    exact = true_error(t, f, t.shape)
    assert info.status == "converged"
    assert exact <= tol
    assert abs(exact - info.error) <= 8 * info.error_std + 1e-14


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_a_train_of_known_ranks_is_found_exactly(rng, key, dtype):
    shape, ranks = (5, 4, 6, 3, 5), (3, 5, 4, 2)
    x = dense(tt.TT(cores(rng, shape, ranks, dtype))).astype(dtype)
    tol = 1e3 * eps(dtype)
    # With search=0, for a tensor as small as this is read entirely otherwise.
    t, info = tt.cross(lambda i: x[tuple(i.T)], shape, tol=tol, key=key, search=0)
    assert info.status == "converged"
    assert t.dtype == dtype
    assert t.ranks == (1, *ranks, 1)
    assert error(dense(t), x) <= 10 * tol * norm(x)
    assert info.evaluations < x.size


@pytest.mark.parametrize("shape", [(7,), (1,), (1, 5, 1, 4, 1), (40, 30), (2,) * 10])
def test_orders_and_small_modes(key, shape):
    t, info = tt.cross(fractions, shape, tol=1e-8, key=key)
    x = fractions(np.argwhere(np.ones(shape))).reshape(shape)
    assert info.status == "converged"
    assert error(dense(t), x) <= 2e-8 * norm(x)
    assert info.evaluations <= x.size


def test_constants_zero_and_integers(key):
    t, info = tt.cross(lambda i: np.full(len(i), 3), (4,) * 6, tol=1e-8, key=key)
    assert t.ranks == (1,) * 7
    assert np.allclose(dense(t), 3)
    assert info.status == "converged"
    t, info = tt.cross(lambda i: np.zeros(len(i)), (4,) * 6, tol=1e-8, key=key)
    assert not dense(t).any()
    assert "zero" in info.advice
    t, info = tt.cross(lambda i: i.sum(axis=1), (4,) * 6, tol=1e-8, key=key)
    assert max(t.ranks) == 2
    assert np.allclose(dense(t), np.indices((4,) * 6).sum(0))


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_very_small_and_large_values(key, size):
    t, info = tt.cross(lambda i: size * fractions(i), (8,) * 5, tol=1e-6, key=key)
    x = fractions(np.argwhere(np.ones((8,) * 5))).reshape((8,) * 5)
    assert info.status == "converged"
    assert error(dense(t) / size, x) <= 1.5e-6 * norm(x)


def test_structure_that_blocks_hide_is_found_by_wrong_held_out_entries(key):
    """Zero unless the first and the last index agree: neighbouring modes know nothing of it."""

    def f(i):
        return 0.1 + (i[:, 0] == i[:, -1])

    t, info = tt.cross(f, (5,) * 8, tol=1e-8, key=key)
    assert info.status == "converged"
    assert true_error(t, f, t.shape) <= 1e-8


def test_shapes_beyond_64_bits(key):
    shape = (50,) * 20
    t, info = tt.cross(lambda i: 1 / (1 + i.sum(axis=1) / 100), shape, tol=1e-6, key=key)
    assert info.status == "converged"
    assert true_error(t, lambda i: 1 / (1 + i.sum(axis=1) / 100), shape) <= 1e-6


# The function's ways -----------------------------------------------------------------------------


def test_components_are_a_last_mode_and_cost_nothing(key):
    def f(x):
        return np.stack([fractions(x), np.cos(x.sum(axis=1)), x[:, 0] * x[:, -1]], axis=1)

    grid = grid_of(0, 1, 6)
    counted = Counted(f)
    t, info = tt.cross(counted, (20,) * 6, grid=grid, tol=1e-6, key=key)
    assert info.status == "converged"
    assert t.shape == (20,) * 6 + (3,)
    assert info.evaluations == len(set(counted.seen)) == len(counted.seen)
    for c in range(3):
        part = tt.contract_modes(t, {-1: jnp.eye(3)[c]})
        index = np.random.default_rng(0).integers(0, 20, (2000, 6))
        points = np.linspace(0, 1, 20)[index]
        assert error(tt.evaluate(part, index), f(points)[:, c]) <= 3e-6 * norm(f(points))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3))])
def test_components_that_differ_by_distant_modes(seed):
    """Components f and g(i_1) f: no block of two neighbouring modes sees how they differ."""
    rng = np.random.default_rng(seed)
    d, n = int(rng.integers(3, 7)), 20
    at, width = rng.integers(3, n - 3, d), rng.uniform(2, 5)
    factor = rng.uniform(0, 1, (n, 2))

    def f(i):
        peak = np.exp(-(((i - at) / width) ** 2).sum(axis=1))
        return np.stack([peak, *(peak * factor[i[:, 0], c] for c in (0, 1))], axis=1)

    t, info = tt.cross(f, (n,) * d, tol=1e-6, key=jax.random.key(seed))
    assert info.status == "converged"
    near = np.clip(at + rng.integers(-4, 5, (300, d)), 0, n - 1)
    found = np.stack([tt.evaluate(t, np.insert(near, d, c, axis=1)) for c in range(3)], axis=1)
    np.testing.assert_allclose(found, f(near), atol=1e-5)


def test_one_component_is_still_a_mode(key):
    t, info = tt.cross(lambda i: fractions(i)[:, None], (5,) * 4, tol=1e-6, key=key)
    assert t.shape == (5, 5, 5, 5, 1)
    assert info.status == "converged"


def test_functions_of_one_multi_index(key):
    batch, _ = tt.cross(fractions, (6,) * 4, tol=1e-8, key=key)
    for f in (lambda i: 1 / (1.0 + i.sum()), lambda i: 1 / (1 + jnp.sum(i).astype(float))):
        t, info = tt.cross(f, (6,) * 4, tol=1e-8, key=key, vectorized=False)
        assert info.status == "converged"
        assert error(dense(t), dense(batch)) <= 2e-8 * norm(dense(batch))
    t, _ = tt.cross(
        lambda i: np.array([1.0, i.sum()]), (6,) * 4, tol=1e-8, key=key, vectorized=False
    )
    assert t.shape == (6, 6, 6, 6, 2)


def test_jax_functions_are_compiled_for_few_batch_sizes(key):
    def f(x):
        return 1 / (1 + jnp.sum(x, axis=1))

    grid = grid_of(0, 1, 6)
    t, info = tt.cross(f, (20,) * 6, grid=grid, tol=1e-6, key=key)
    assert info.status == "converged"
    assert true_error(t, fractions, t.shape, grid) <= 1e-6
    assert 1 <= info.programs <= 7
    with compilations() as programs:
        again, _ = tt.cross(f, (20,) * 6, grid=grid, tol=1e-6, key=key)
    assert programs == []
    assert all(
        (np.asarray(a) == np.asarray(b)).all() for a, b in zip(t.cores, again.cores, strict=True)
    )
    plain, other = tt.cross(f, (20,) * 6, grid=grid, tol=1e-6, key=key, jit=False)
    assert other.programs == 0
    assert other.evaluations == pytest.approx(info.evaluations, rel=0.3)
    assert float(tt.distance(plain, t)) <= 3e-6 * float(tt.norm(t))


def test_functions_that_jax_cannot_trace_run_as_they_are(key):
    def f(i):
        x = fractions(np.asarray(i))  # a tracer cannot be turned into an array
        return jnp.asarray(x)

    t, info = tt.cross(f, (6,) * 4, tol=1e-8, key=key)
    assert info.status == "converged"
    assert info.programs == 0
    assert true_error(t, fractions, t.shape) <= 1e-8
    with pytest.raises(jax.errors.TracerArrayConversionError):
        tt.cross(f, (6,) * 4, tol=1e-8, key=key, jit=True)


def test_single_precision_values_and_results(key):
    t, info = tt.cross(lambda i: fractions(i).astype(np.float32), (8,) * 5, tol=1e-5, key=key)
    assert t.dtype == np.float32
    assert info.status == "converged"
    t, info = tt.cross(fractions, (8,) * 5, tol=1e-5, key=key, dtype=jnp.float32)
    assert t.dtype == np.float32
    assert true_error(t, fractions, t.shape) <= 1e-5
    t, _ = tt.cross(fractions, (8,) * 5, tol=1e-8, key=key, dtype=complex)
    assert t.dtype == np.complex128


# Limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 2, 3, 10, 60, 400, 2000, 8000])
def test_the_budget_is_never_exceeded_and_the_best_train_returned(key, budget):
    grid = grid_of(0, 1, 10)
    counted = Counted(oscillatory)
    t, info = tt.cross(counted, (20,) * 10, grid=grid, tol=1e-6, key=key, max_evaluations=budget)
    assert info.status == "budget"
    assert "max_evaluations" in info.advice
    assert len(counted.seen) == info.evaluations <= budget
    exact = true_error(t, oscillatory, t.shape, grid)
    assert exact <= 1.2
    assert abs(exact - info.error) <= 0.2 * exact + 8 * info.error_std
    if budget >= 8000:
        assert exact <= 0.1


def test_a_larger_budget_gives_a_smaller_error(key):
    errors = [
        tt.cross(oscillatory, (20,) * 6, grid=grid_of(0, 1, 6), tol=1e-9, key=key,
                 max_evaluations=b)[1].error
        for b in (500, 2000, 5000)
    ]  # fmt: skip
    assert errors[0] > errors[1] > errors[2]


def test_max_rank_is_kept_and_reported(key):
    grid = grid_of(0, 1, 6)
    t, info = tt.cross(oscillatory, (20,) * 6, grid=grid, tol=1e-8, key=key, max_rank=5)
    assert max(t.ranks) == 5
    assert info.status == "max_rank"
    assert "max_rank" in info.advice
    assert true_error(t, oscillatory, t.shape, grid) == pytest.approx(info.error, rel=0.3)
    full = tt.cross(oscillatory, t.shape, grid=grid, tol=1e-5, key=key)[0]
    best = tt.round(full, tol=info.error / 5)
    assert max(best.ranks) > 5  # not far from the best of this rank


def test_max_sweeps_and_noise_are_reported(key):
    _, info = tt.cross(oscillatory, (20,) * 8, tol=1e-8, key=key, max_sweeps=2)
    assert info.status == "max_sweeps"
    assert info.sweeps == 2

    def noise(i):
        return np.sin(1e5 * np.sin(i @ 7.3 ** np.arange(8)))

    t, info = tt.cross(noise, (8,) * 8, tol=1e-6, key=key)
    assert info.status == "stalled"
    assert "noisy" in info.advice
    assert info.error <= 1.1
    assert np.isfinite(np.asarray(tt.norm(t)))


def test_the_callback_sees_every_sweep_and_may_stop(key):
    told = []
    _, info = tt.cross(fractions, (10,) * 6, tol=1e-6, key=key, callback=told.append)
    assert [p.sweep for p in told] == list(range(1, info.sweeps + 1))
    assert told[-1].error <= 1e-6
    assert all(a.evaluations <= b.evaluations for a, b in itertools.pairwise(told))
    assert len(told[0].ranks) == 7
    t, info = tt.cross(fractions, (10,) * 6, tol=1e-6, key=key, callback=lambda p: p.sweep == 2)
    assert info.status == "stopped"
    assert info.sweeps == 2
    assert true_error(t, fractions, t.shape) < 0.5


def test_the_key_determines_the_result(key):
    first, again, other = (
        tt.cross(peak, (20,) * 6, grid=grid_of(0, 1, 6), tol=1e-6, key=k)
        for k in (key, key, jax.random.key(1))
    )
    for a, b in zip(first[0].cores, again[0].cores, strict=True):
        assert (np.asarray(a) == np.asarray(b)).all()
    assert first[1].evaluations == again[1].evaluations
    assert first[1].error == again[1].error
    assert first[1].error != other[1].error


def test_a_warm_start_spares_sweeps(key):
    grid = grid_of(0, 1, 8)
    near, cold = tt.cross(oscillatory, (20,) * 8, grid=grid, tol=1e-6, key=key)

    def f(x):
        return oscillatory(1.01 * x)

    t, warm = tt.cross(f, (20,) * 8, grid=grid, tol=1e-6, key=key, x0=near)
    assert warm.status == "converged"
    assert true_error(t, f, t.shape, grid) <= 1e-6
    assert warm.sweeps < cold.sweeps
    assert warm.evaluations < 1.1 * cold.evaluations


def test_a_start_finds_what_no_random_entry_shows(key):
    """A peak of one entry in 10^10; a train that is large there leads to it."""
    place = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]

    def f(i):
        return np.all(i == place, axis=1).astype(float)

    _, blind = tt.cross(f, (10,) * 10, tol=1e-6, key=key)
    assert "zero" in blind.advice
    x0 = tt.rank_one([jnp.exp(-((jnp.arange(10.0) - p) ** 2)) for p in place])
    t, _ = tt.cross(f, (10,) * 10, tol=1e-6, key=key, x0=x0)
    assert float(tt.evaluate(t, place)) == pytest.approx(1)
    assert float(tt.norm(t)) == pytest.approx(1)


# No exception of LAPACK, nothing certified that was not seen --------------------------------------


def drawn_gaussian(rng):
    dims = int(rng.integers(1, 3))
    base = int(rng.choice([2, 2, 4]))
    bits = int(rng.integers(4, 21 if dims == 1 else 12)) // (base // 2)
    low, high = [-12.0] * dims, [12.0] * dims
    grid = tt.quantics_grid(low, high, bits, base=base, interleaved=bool(rng.integers(2)))
    center, width = rng.uniform(-11, 11, dims), 10 ** rng.uniform(-2, 1.3, dims)
    return grid.shape, lambda i: np.exp(-((grid.coordinates(i) - center) ** 2 * width).sum(axis=1))


def drawn_indicator(rng):
    dims, bits = int(rng.integers(1, 3)), int(rng.integers(4, 11))
    grid = tt.quantics_grid([0.0] * dims, [1.0] * dims, bits, interleaved=bool(rng.integers(2)))
    low = rng.uniform(0, 0.9, dims)
    high = low + 10 ** rng.uniform(-2, 0, dims)
    if dims == 2 and rng.integers(2):
        return grid.shape, lambda i: (grid.index(i)[:, 0] == grid.index(i)[:, 1]) * 1.0

    def f(i):
        x = grid.coordinates(i)
        return ((x >= low) & (x < high)).all(axis=1) * 1.0

    return grid.shape, f


def drawn_sparse(rng):
    """In a tensor that is read as a whole where the search cannot be sure."""
    shape = tuple(int(n) for n in rng.integers(2, 9, int(rng.integers(2, 5))))
    x = rng.standard_normal(shape) * (rng.random(shape) < 10 ** rng.uniform(-3, -1))
    kind = rng.integers(4)
    x = x if kind == 0 else np.round(3 * x).astype(int) if kind == 1 else x != 0
    x = x * 1j if kind == 3 else x
    return shape, lambda i: x[tuple(i.T)]


def drawn_singular(rng):
    d, n = int(rng.integers(2, 8)), int(rng.integers(4, 25))
    center, width = rng.uniform(-0.2, 1.2, d), 10 ** rng.uniform(-4, 0)
    x = np.linspace(0, 1, n)
    return (n,) * d, lambda i: np.prod(1 / (np.abs(x[i] - center) + width), axis=1)


def drawn_rank(rng):
    """Few ranks, many scales."""
    shape = tuple(int(n) for n in rng.integers(1, 8, int(rng.integers(1, 6))))
    ranks, scale = int(rng.integers(1, 4)), 10.0 ** int(rng.integers(-290, 290))
    factors = [rng.standard_normal((ranks, n)) for n in shape]

    def f(i):
        parts = [u[:, j] for u, j in zip(factors, i.T, strict=True)]
        return scale * np.prod(parts, axis=0).sum(axis=0)

    return shape, f


KINDS = [drawn_gaussian, drawn_indicator, drawn_sparse, drawn_singular, drawn_rank]


def relative_error(t, f, shape):
    """Of all entries, or of many random ones; of values of any scale."""
    if math.prod(shape) <= 2**16:
        index = np.indices(shape).reshape(len(shape), -1).T
    else:
        index = np.random.default_rng(5).integers(0, shape, (20_000, len(shape)))
    exact = np.asarray(f(index))
    size = float(np.abs(exact).max()) or 1.0
    found = np.asarray(tt.evaluate(t, index))
    return norm(found / size - exact / size) / (norm(exact / size) or 1.0)


def check_drawn(draw, seed):
    rng = np.random.default_rng(seed)
    shape, f = draw(rng)
    tol, options = 10 ** rng.uniform(-12, -3), {}
    if rng.random() < 0.2:
        options["max_rank"] = int(rng.integers(1, 8))
    if rng.random() < 0.2:
        options["max_evaluations"] = int(10 ** rng.uniform(0, 4))
    t, info = tt.cross(f, shape, tol=tol, key=jax.random.key(seed), **options)
    assert all(np.isfinite(np.asarray(c)).all() for c in t.cores)
    assert info.evaluations <= options.get("max_evaluations", math.inf)
    assert max(t.ranks) <= options.get("max_rank", math.inf)
    assert info.error_std > 0 or info.held_out == math.prod(shape) or info.status == "budget"
    wrong = relative_error(t, f, shape)
    if info.status == "converged":
        # Indicators may be wrong at fewer entries than any sample shows: the error's bound says so.
        assert wrong <= max(3 * tol, 2 * (info.error + 2 * info.error_std)), (seed, wrong, info)
    elif info.status == "zero":
        assert info.error == math.inf


@pytest.mark.parametrize("draw", KINDS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_drawn_functions_raise_nothing_and_are_certified_rightly(draw, seed):
    check_drawn(draw, seed)


@pytest.mark.slow
@pytest.mark.parametrize("draw", KINDS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("seed", range(110, 118))
def test_many_drawn_functions(draw, seed):
    check_drawn(draw, seed)


def comb(bits, period):
    weights = 2 ** np.arange(bits - 1, -1, -1)
    return (2,) * bits, lambda i: (i @ weights % period == 0) * 1.0


@pytest.mark.parametrize(
    "seed", [0, 2, 7, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 3, 4, 5, 6, 8))]
)
def test_the_error_is_not_below_what_the_search_met(seed):
    """Whatever the status: combs, whose ranks are high and of which random entries see little."""
    rng = np.random.default_rng([42, seed])
    bits, period, number = 16, 182, 11
    if seed:
        bits, period = int(rng.integers(12, 17)), int(rng.integers(20, 400))
        number = int(rng.integers(100))
    shape, f = comb(bits, period)
    t, info = tt.cross(
        f, shape, tol=1e-10, key=jax.random.key(number), max_rank=100, max_evaluations=60_000
    )
    assert relative_error(t, f, shape) <= info.error + 4 * info.error_std + 1e-12, info


@pytest.mark.parametrize("seed", range(3))
def test_gaussians_on_interleaved_digits_converge(seed):
    """Pivots were offered twice here, bonds grew beyond their modes, or the search stalled."""
    rng = np.random.default_rng(seed)
    grid = tt.quantics_grid([-12.0] * 2, [12.0] * 2, 10)
    center, width = rng.uniform(-8, 8, 2), rng.uniform(0.5, 2)

    def f(i):
        return np.exp(-width * ((grid.coordinates(i) - center) ** 2).sum(axis=1))

    t, info = tt.cross(f, grid.shape, tol=1e-8, key=jax.random.key(seed))
    assert info.status == "converged", info
    points = grid.nearest(center + rng.standard_normal((2000, 2)) / math.sqrt(width))
    assert error(tt.evaluate(t, points), f(points)) <= 3e-8 * norm(f(points))


def narrow(i):
    return np.exp(-2.0 * ((i - 13) ** 2).sum(axis=1))


@pytest.mark.parametrize("shape", [(30,) * 20, (2,) * 70, (4000, 500)])
def test_nothing_seen_is_a_status_and_not_a_certificate(key, shape):
    _, info = tt.cross(lambda i: np.zeros(len(i)), shape, tol=1e-6, key=key)
    assert info.status == "zero"
    assert info.error == info.error_std == math.inf
    assert "pivots" in info.advice
    _, info = tt.cross(lambda i: np.zeros((len(i), 2)), shape, tol=1e-6, key=key, max_evaluations=9)
    assert info.status == "zero"
    assert info.evaluations <= 9


def test_pivots_lead_to_a_peak_that_random_entries_do_not_meet(key):
    shape = (30,) * 20
    _, blind = tt.cross(narrow, shape, tol=1e-6, key=key)
    assert blind.status == "zero"

    def two(i):
        return narrow(i) + 0.5 * narrow(i - 9)

    tops = np.array([[13] * 20, [22] * 20])
    t, info = tt.cross(two, shape, tol=1e-6, key=key, pivots=tops - 30)  # counted from the end
    assert info.status == "converged"
    assert info.error_std > 0
    assert error(tt.evaluate(t, tops), [1, 0.5]) <= 1e-9
    again, _ = tt.cross(narrow, shape, tol=1e-6, key=key, pivots=tops[:1] + 1)  # near is enough
    assert float(tt.evaluate(again, tops[0])) == pytest.approx(1)
    _, lost = tt.cross(narrow, shape, tol=1e-6, key=key, pivots=[[0] * 20])
    assert lost.status == "zero"


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3))])
def test_a_lucky_find_is_not_taken_for_all_there_is(seed):
    """Few nonzero entries among 10^6: one is found, and no sample would meet another."""
    rng = np.random.default_rng(3)
    x = np.zeros(10**6)
    x[rng.choice(x.size, 150, replace=False)] = rng.standard_normal(150)
    x = x.reshape((10,) * 6)
    t, info = tt.cross(lambda i: x[tuple(i.T)], x.shape, tol=1e-6, key=jax.random.key(seed))
    assert info.status != "converged"
    assert norm(dense(t) - x) > 0.1 * norm(x)  # as is right
    assert info.error + 2 * info.error_std > 0.1


def test_small_tensors_are_read_as_a_whole_where_samples_cannot_tell(rng, key):
    for shape in [(16, 16, 16), (2,) * 12, (64, 64), (4096,)]:
        x = rng.standard_normal(shape) * (rng.random(shape) < 0.03)
        t, info = tt.cross(lambda i, x=x: x[tuple(i.T)], shape, tol=1e-8, key=key)
        assert info.status == "converged"
        assert info.error_std == 0
        assert info.evaluations == x.size
        assert error(dense(t), x) <= 1e-8 * norm(x)
        t, info = tt.cross(lambda i: np.zeros(len(i)), shape, tol=1e-8, key=key)
        assert (info.status, info.error, info.error_std) == ("converged", 0, 0)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_escapes_in_a_small_tensor(seed):
    """Needles in smooth backgrounds, at up to 20 000 entries: the error told is the true one."""
    rng = np.random.default_rng([43, seed])
    shape = ((3,) * 8, (2,) * 14, (20,) * 3, (9, 1, 700), (141, 141), (3, 5, 7, 11, 13), (27,) * 3,
             (4,) * 7)[seed]  # fmt: skip
    x = fractions(np.argwhere(np.ones(shape)) * rng.uniform(0, 2, len(shape))).reshape(shape)
    if seed % 3 == 2:
        x = x + 1j * x**2
    for _ in range(rng.integers(1, 4)):
        x[tuple(rng.integers(0, shape))] += 10.0 ** rng.uniform(-6, 1)
    tol = 10.0 ** rng.uniform(-9, -3)
    limits = [{}, {"max_rank": 2}, {"max_sweeps": 1}, {"x0": tt.ones(shape)}][rng.integers(0, 4)]
    t, info = tt.cross(lambda i: x[tuple(i.T)], shape, tol=tol, key=jax.random.key(seed), **limits)
    wrong = error(dense(t), x) / norm(x)
    assert info.error_std == 0
    assert info.evaluations == x.size
    assert abs(info.error - wrong) <= 1e-6 * wrong + 1e-14
    assert info.status == ("converged" if wrong <= tol else "max_rank")


def test_no_small_tensor_is_read_against_the_users_will(key):
    def f(i):
        return fractions(i)

    for limits in ({"search": 0}, {"max_evaluations": 3000}):
        info = tt.cross(f, (8,) * 4, tol=1e-3, key=key, **limits)[1]
        assert info.status == "converged"
        assert info.evaluations < 3000
        assert "may have escaped" in info.message
    many = tt.cross(lambda i: np.outer(f(i), np.ones(2000)), (8,) * 4, tol=1e-3, key=key)[1]
    assert many.evaluations < 3000


def test_functions_whose_scale_is_seen_late(key):
    """From 1e-300 to 1e186: what was seen first is nothing beside what comes later."""

    def f(i):
        return 10.0 ** (-300 + 6.0 * i.sum(axis=1))

    t, info = tt.cross(f, (10,) * 9, tol=1e-6, key=key)
    assert info.status == "converged"
    top = np.full((1, 9), 9)
    assert float(tt.evaluate(t, top)[0]) == pytest.approx(1e186, rel=1e-6)


def test_a_narrow_function_is_measured_where_it_is(key):
    """A correlated Gaussian in eight dimensions: random entries see its tails alone."""
    x = np.linspace(-4, 4, 20)

    def f(i):
        y = x[i]
        return np.exp(-(y**2).sum(axis=1) - 0.3 * (y[:, 1:] * y[:, :-1]).sum(axis=1))

    t, info = tt.cross(f, (20,) * 8, tol=1e-6, key=key)
    assert info.status == "converged"
    index = np.asarray(tt.sample(jax.random.key(1), t, 2000))
    assert error(tt.evaluate(t, index), f(index)) <= 3e-6 * norm(f(index))


# Global search, and what is said of it ------------------------------------------------------------


def two_peaks(rng):
    """A broad peak, and one that few random entries meet."""
    x = np.linspace(0, 1, 64)
    center, top = rng.uniform(0.2, 0.8, (2, 4))
    height, sharp = rng.uniform(2, 6), rng.uniform(900, 2000)

    def f(i):
        far, near = (((x[i] - c) ** 2).sum(axis=1) for c in (center, top))
        return np.exp(-20 * far) + height * np.exp(-sharp * near)

    return f, np.round(63 * top).astype(int)


@pytest.mark.parametrize("seed", range(3))
def test_a_share_for_global_search_finds_a_narrow_peak(seed):
    f, top = two_peaks(np.random.default_rng([47, seed]))
    key = jax.random.key(seed)
    _, none = tt.cross(f, (64,) * 4, tol=1e-6, key=key, search=0)
    t, info = tt.cross(f, (64,) * 4, tol=1e-6, key=key, search=0.9)
    assert info.status == "converged"
    assert float(tt.evaluate(t, top)) == pytest.approx(f(top[None])[0], rel=1e-6)
    assert info.searched > 5 * none.searched
    assert "random entries" in none.message
    assert "may have escaped" in none.message


@pytest.mark.parametrize("seed", range(4))
def test_a_tail_that_one_entry_meets_leads_to_a_narrow_peak(seed):
    """A tail far below the roundoff of the largest values, above that of the values around it."""
    x = np.linspace(0, 1, 64)

    def f(i):
        far, near = (((x[i] - c) ** 2).sum(axis=1) for c in (0.25, 0.8))
        return np.exp(-20 * far) + 5 * np.exp(-2000 * near)

    t, info = tt.cross(f, (64,) * 4, tol=1e-6, key=jax.random.key(seed))
    assert info.status == "converged"
    assert info.evaluations < 6000
    around = np.stack(np.meshgrid(*[np.arange(47, 54)] * 4), axis=-1).reshape(-1, 4)
    assert error(tt.evaluate(t, around), f(around)) <= 1e-6 * norm(f(around))


def test_a_tensor_is_read_where_a_search_does_not_know(rng, key):
    """Few entries among 10^5: no sample finds all of them."""
    x = np.zeros(10**5)
    x[rng.choice(x.size, 40, replace=False)] = rng.standard_normal(40)
    x = x.reshape((10,) * 5)
    t, info = tt.cross(lambda i: x[tuple(i.T)], x.shape, tol=1e-6, key=key)
    assert (info.status, info.error_std) == ("converged", 0)
    assert error(dense(t), x) <= 1e-6 * norm(x)
    info = tt.cross(lambda i: x[tuple(i.T)], x.shape, tol=1e-6, key=key, max_evaluations=99_999)[1]
    assert info.error_std > 0
    assert info.evaluations <= 99_999


def drawn_steps(rng):
    """Boxes on a plane of digits, on a smooth background or none."""
    number = int(rng.integers(1, 4))
    low = rng.uniform(0, 0.8, (number, 2))
    high = low + 10 ** rng.uniform(-1, -0.2, (number, 2))
    height, smooth = rng.uniform(0.3, 2, number), int(rng.integers(2))
    grid = tt.quantics_grid([0.0] * 2, [1.0] * 2, 10, interleaved=bool(rng.integers(2)))

    def f(i):
        x = grid.coordinates(i)
        boxes = ((x[:, None] >= low) & (x[:, None] < high)).all(axis=2) @ height
        return boxes + smooth * 0.5 * np.cos(3 * x.sum(axis=1))

    return grid.shape, f


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 8))]
)
def test_functions_that_jump_are_not_certified_wrongly(seed):
    """Boxes of 1 % of the plane or more, which random entries meet; edges are seen by few."""
    shape, f = drawn_steps(np.random.default_rng([48, seed]))
    t, info = tt.cross(f, shape, tol=1e-6, key=jax.random.key(seed))
    index = np.indices(shape).reshape(len(shape), -1).T
    exact = f(index)
    wrong = error(tt.evaluate(t, index), exact) / norm(exact)
    assert wrong <= 0.1
    if info.status == "converged":
        assert wrong <= 1e-5
    else:
        assert info.error_std > 0


def drawn_cuts(rng):
    """Waves on 2^20 points, with three jumps along each coordinate."""
    dims = int(rng.integers(1, 3))
    grid = tt.quantics_grid([0.0] * dims, [1.0] * dims, 20 // dims)
    cuts, width = rng.uniform(0.1, 0.9, (3, dims)), rng.uniform(1, 9, dims)
    height = rng.uniform(0.3, 1, (3, dims)) * rng.choice([-1, 1], (3, dims))

    def f(i):
        x = grid.coordinates(i)
        return np.cos(x @ width) + ((x[:, None] > cuts) * height).sum(axis=(1, 2))

    return grid.shape, f


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 4))]
)
def test_jumps_are_found_to_the_cell(seed):
    """One cell of a million is wrong where a jump is misplaced by one; no random entry sees it."""
    shape, f = drawn_cuts(np.random.default_rng([50, seed]))
    t, info = tt.cross(f, shape, tol=1e-6, key=jax.random.key(seed))
    index = np.indices(shape).reshape(len(shape), -1).T
    exact = f(index)
    assert error(tt.evaluate(t, index), exact) <= 1e-5 * norm(exact), info
    assert max(t.ranks) <= 12
    assert info.evaluations < 60_000


def drawn_triangle(rng, points):
    """Indicator of a triangle (points, points)."""
    corners = (np.arange(3) / 3 + rng.uniform(0, 0.2, 3)) * 2 * np.pi
    at = 0.5 + rng.uniform(0.2, 0.45, (3, 1)) * np.stack([np.cos(corners), np.sin(corners)], 1)

    def f(index):
        x = (index[:, None] + 0.5) / points - at
        side = np.roll(at, -1, axis=0) - at
        return (side[:, 0] * x[:, :, 1] > side[:, 1] * x[:, :, 0]).all(axis=1) * 1.0

    return f


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_polygons_in_fused_digits_are_exact_in_nearly_all_cells(seed):
    """Digits of both coordinates in one mode: 12 to 60 cells at the sides were left wrong."""
    grid = tt.quantics_grid([0.0] * 2, [1.0] * 2, 10, fused=True)
    f = drawn_triangle(np.random.default_rng([47, seed]), 1024)
    call = lambda i: f(grid.index(i))  # noqa: E731
    t, info = tt.cross(call, grid.shape, tol=1e-3, key=jax.random.key(seed))
    assert info.status in ("converged", "unseen")
    assert info.evaluations < 200_000  # of 1 048 576
    index = np.indices(grid.shape).reshape(10, -1).T
    exact = call(index)
    assert error(tt.evaluate(t, index), exact) <= 3e-3 * norm(exact), info


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_few_steps_along_digits_are_not_followed(seed, monkeypatch):
    """A train of few parameters that was right at more entries beside its jumps is known."""
    cut = np.sort(np.random.default_rng([49, seed]).uniform(0.05, 0.95, 2))
    grid = tt.quantics_grid(0.0, 1.0, 25)
    followed = []
    monkeypatch.setattr(GlobalSearch, "along", lambda _, *args: followed.append(1) or args[1][:0])

    def f(i):
        return 1.0 * (grid.coordinates(i) > cut).sum(axis=1)

    t, info = tt.cross(f, grid.shape, tol=1e-6, key=jax.random.key(seed))
    assert info.status in ("converged", "unseen")
    assert not followed
    at = grid.digits(np.random.default_rng(seed).integers(0, 2**25, (5000, 1)))
    assert error(tt.evaluate(t, at), f(at)) <= 1e-6 * norm(f(at))


@pytest.mark.parametrize("base", [2, 4])
def test_edges_of_a_train_are_followed(base):
    """From one cell at a step along digits of two coordinates, to most cells at it."""
    bits = 6
    grid = tt.quantics_grid([0.0] * 2, [1.0] * 2, bits, fused=base == 4)
    index = np.indices(grid.shape).reshape(len(grid.shape), -1).T
    sum_above = grid.index(index).sum(axis=1) >= 70
    cores = [
        np.asarray(c) for c in tt.from_dense(sum_above.reshape(grid.shape) * 1.0, tol=1e-12).cores
    ]
    found, rng = grid.digits(np.array([[35, 35]])), np.random.default_rng(0)
    sizes = np.array(grid.shape)
    for _ in range(25):
        found = np.unique(
            np.concatenate([found, jumps.along(cores, found, sizes, 0.5, rng)]), axis=0
        )
    at = grid.index(found).sum(axis=1)
    beside = np.isin(at, (69, 70)).sum()
    assert beside > 0.9 * np.isin(grid.index(index).sum(axis=1), (69, 70)).sum()


@pytest.mark.parametrize("base", [2, 4])
def test_edges_of_a_train_are_found_by_bisection(rng, base):
    """A step along digits, and the exact train of it: bisection ends on both sides of the step."""
    bits = 12 // int(math.log2(base))
    sizes = np.full(bits, base)
    place = int(rng.integers(1, base**bits - 1))
    weights = base ** np.arange(bits - 1, -1, -1)
    x = np.arange(base**bits) >= place
    step = [np.asarray(c) for c in tt.from_dense(x.reshape(sizes) * 1.0, tol=1e-12).cores]
    starts = rng.integers(0, base, (200, bits))
    found, sharp = jumps.edges(step, starts, sizes, 1e-3, np.random.default_rng(0))
    before, behind = (found @ weights).reshape(2, -1)
    assert sharp.any()
    assert before.size >= 20
    assert (before < place).all()
    assert (behind >= place).all()
    assert ((before == place - 1) & (behind == place)).any()
    flat = [np.ones((1, base, 1))] * bits
    assert not len(jumps.edges(flat, starts, sizes, 0.0, np.random.default_rng(0))[0])


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 6))]
)
def test_no_pivot_is_roundoff(seed):
    """Where a train is exact nearly everywhere, what is left there must not become pivots."""
    rng = np.random.default_rng([49, seed])
    centers, widths = rng.uniform(-9, 9, (3, 2)), 10 ** rng.uniform(-1, 1, 3)
    grid = tt.quantics_grid([-12.0] * 2, [12.0] * 2, 10, base=2)

    def f(i):
        far = ((grid.coordinates(i)[:, None] - centers) ** 2).sum(axis=2)
        return np.exp(-widths * far).sum(axis=1)

    t, info = tt.cross(f, grid.shape, tol=1e-8, key=jax.random.key(seed))
    points = np.concatenate([c + rng.standard_normal((2000, 2)) for c in centers])
    index = grid.nearest(np.clip(points, -12, 11.9))
    assert info.status == "converged"
    assert error(tt.evaluate(t, index), f(index)) <= 5e-8 * norm(f(index))


def test_a_tensor_of_jumps_is_read_where_that_is_affordable(key):
    x = np.linspace(0, 1, 12)
    t, info = tt.cross(lambda i: (x[i].sum(axis=1) > 1.9) * 1.0, (12,) * 4, tol=1e-3, key=key)
    index = np.indices((12,) * 4).reshape(4, -1).T
    assert info.status == "converged"
    assert "all 20736 entries were read" in info.message
    assert error(tt.evaluate(t, index), (x[index].sum(axis=1) > 1.9) * 1.0) <= 1e-6


def test_points_of_a_grid_are_pivots(key):
    x = np.linspace(-3, 3, 40)

    def f(y):
        return np.exp(-40 * ((y - 1.3) ** 2).sum(axis=1))

    t, info = tt.cross(f, (40,) * 8, grid=[x] * 8, tol=1e-6, key=key, pivots=[[1.3] * 8])
    near = [int(np.abs(x - 1.3).argmin())] * 8
    assert float(tt.evaluate(t, near)) == pytest.approx(float(f(x[[near]])[0]))
    assert info.status == "converged"


# How the function is called -----------------------------------------------------------------------


def same(a, b):
    return all(
        (np.asarray(x) == np.asarray(y)).all() for x, y in zip(a.cores, b.cores, strict=True)
    )


@pytest.mark.parametrize("cache", [0, 1, 37, 1000])
def test_a_small_cache_costs_evaluations_and_changes_nothing_else(key, cache):
    t, whole = tt.cross(fractions, (8,) * 5, tol=1e-8, key=key)
    u, info = tt.cross(fractions, (8,) * 5, tol=1e-8, key=key, cache=cache)
    assert same(t, u)
    assert info.evaluations >= whole.evaluations
    _, few = tt.cross(fractions, (8,) * 5, tol=1e-8, key=key, cache=cache, max_evaluations=900)
    assert few.status == "budget"
    assert few.evaluations <= 900


class OnlyMap:
    def map(self, f, parts):
        return map(f, parts)


@pytest.mark.parametrize("vectorized", [True, False])
def test_executors_evaluate_in_parallel(key, vectorized):
    f = fractions if vectorized else lambda i: 1 / (1.0 + i.sum())
    t, _ = tt.cross(f, (6,) * 4, tol=1e-8, key=key, vectorized=vectorized)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for executor in (pool, OnlyMap()):
            u, info = tt.cross(
                f, (6,) * 4, tol=1e-8, key=key, executor=executor, vectorized=vectorized
            )
            assert same(t, u)
            assert info.programs == 0


def test_functions_that_change_their_argument_or_give_out_one_array(key):
    t, _ = tt.cross(fractions, (6,) * 4, tol=1e-8, key=key)
    kept = np.zeros(10_000)

    def changes(i):
        values = fractions(i)
        i[:] = 0
        return values

    def reuses(i):
        kept[: len(i)] = fractions(i)
        return kept[: len(i)]

    for f in (changes, reuses):
        assert same(t, tt.cross(f, (6,) * 4, tol=1e-8, key=key)[0])


@pytest.mark.parametrize("number", [Fraction, Decimal, complex, np.float64])
def test_objects_that_are_numbers_are_converted(key, number):
    def f(i):
        return np.array([number(1) / number(1 + int(s)) for s in i.sum(axis=1)] + [None])[:-1]

    t, _ = tt.cross(fractions, (6,) * 4, tol=1e-8, key=key)
    u, _ = tt.cross(f, (6,) * 4, tol=1e-8, key=key)
    assert u.dtype == (np.complex128 if number is complex else np.float64)
    assert error(dense(u), dense(t)) <= 2e-8 * norm(dense(t))


@pytest.mark.parametrize("grid", [None, [np.arange(6) / 2] * 4])
@pytest.mark.parametrize("vectorized", [True, False])
def test_the_entry_where_a_function_raises_is_named(key, vectorized, grid):
    def f(x):
        i = np.atleast_2d(x * (1 if grid is None else 2))
        if ((i[:, 0] == 5) & (i[:, 2] == 1)).any():
            raise KeyError("no license")
        return fractions(i) if vectorized else fractions(i)[0]

    options = {"tol": 1e-8, "key": key, "vectorized": vectorized, "grid": grid}
    with pytest.raises(KeyError) as caught:
        tt.cross(f, (6,) * 4, **options)
    note = "".join(caught.value.__notes__)
    assert re.search(r"multi-index \(5, \d, 1, \d\)", note)
    assert ("coordinates (2.5" in note) == (grid is not None)


def test_the_best_train_is_returned_after_an_error_if_asked_for(key):
    calls = []

    def f(i):
        calls.append(len(i))
        if sum(calls) > 2500:
            raise RuntimeError("no license")
        return oscillatory(i / 10)

    t, info = tt.cross(f, (8,) * 6, tol=1e-9, key=key, on_error="return")
    assert info.status == "failed"
    assert "no license" in info.message
    assert len(info.advice) > 0
    assert info.evaluations <= 2500
    assert true_error(t, lambda i: oscillatory(i / 10), (8,) * 6) <= 1.2


def test_a_jitted_function_is_compiled_at_most_eight_times(key):
    traced = []

    @jax.jit
    def f(i):
        traced.append(i.shape)
        return 1 / (1 + jnp.sum(i, axis=1).astype(float))

    _, info = tt.cross(f, (9,) * 7, tol=1e-7, key=key)
    assert info.status == "converged"
    assert len(set(traced)) <= 8


# Rows of large volume ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_maxvol_rows_bound_all_coefficients(rng, dtype):
    a = rng.standard_normal((60, 6)).astype(dtype)
    if dtype == np.complex128:
        a = a + 1j * rng.standard_normal((60, 6))
    rows = maxvol.maxvol(a)
    assert len(set(rows.tolist())) == 6
    assert np.abs(np.linalg.solve(a[rows].T, a.T)).max() <= 1.05 + 1e-9
    random = [abs(np.linalg.det(a[rng.choice(60, 6, replace=False)])) for _ in range(200)]
    assert abs(np.linalg.det(a[rows])) >= max(random)


def test_right_sets_of_a_train_span_its_unfoldings(rng):
    x = cores(rng, (4, 5, 3, 6), 3, np.float64)
    sets = maxvol.right_sets(x)
    whole = dense(tt.TT(x))
    for k, right in enumerate(sets, start=1):
        unfolding = whole.reshape(math.prod(whole.shape[:k]), -1)
        columns = np.ravel_multi_index(tuple(right.T), whole.shape[k:])
        chosen = unfolding[:, columns]
        fitted = chosen @ np.linalg.lstsq(chosen, unfolding, rcond=None)[0]
        assert error(fitted, unfolding) <= 1e-10 * norm(unfolding)


# Quantics ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("base", "bits", "dims"), [(2, 5, 1), (2, 4, 3), (3, 3, 2)])
def test_digits_and_indices_are_inverse(base, bits, dims, interleaved):
    index = np.random.default_rng(0).integers(0, base**bits, (4, 7, dims))
    digits = tt.index_to_quantics(index, bits, base=base, interleaved=interleaved)
    assert digits.shape == (4, 7, dims * bits)
    back = tt.quantics_to_index(digits, dims=dims, base=base, interleaved=interleaved)
    assert (back == index).all()
    first = digits[0, 0, :dims] if interleaved else digits[0, 0, ::bits]
    assert (first == index[0, 0] // base ** (bits - 1)).all()


def test_a_grid_has_the_points_it_says():
    grid = tt.quantics_grid([0.0, -1.0], [1.0, 1.0], 3)
    assert grid.shape == (2,) * 6
    assert grid.points == 8
    assert grid.spacing == (0.125, 0.25)
    digits = grid.digits([[0, 0], [7, 3]])
    assert np.allclose(grid.coordinates(digits), [[0, -1], [0.875, -0.25]])
    assert (grid.index(grid.nearest([0.5, 0.3])) == [4, 5]).all()
    closed = tt.quantics_grid(0, 1, 3, endpoint=True)
    assert closed.coordinates([[1, 1, 1]])[0, 0] == 1


def test_cross_on_two_to_the_thirty_points(key):
    grid = tt.quantics_grid(0, 1, 30)

    def f(digits):
        x = grid.coordinates(digits)[:, 0]
        return np.sin(30 * x) * np.exp(-x)

    t, info = tt.cross(f, grid.shape, tol=1e-8, key=key)
    assert info.status == "converged"
    assert max(t.ranks) == 2
    assert info.evaluations < 6000
    x = np.random.default_rng(0).uniform(0, 1, (1000, 1))
    digits = grid.nearest(x)
    assert error(tt.evaluate(t, digits), f(digits)) <= 1e-8 * norm(f(digits))


def test_cross_on_an_interleaved_plane(key):
    grid = tt.quantics_grid([-1, -1], [1, 1], 10)

    def f(digits):
        x, y = grid.coordinates(digits).T
        return np.exp(-3 * (x**2 + y**2) + x * y)

    t, info = tt.cross(f, grid.shape, tol=1e-6, key=key)
    assert info.status == "converged"
    assert true_error(t, f, grid.shape) <= 1e-6


# Many entries ------------------------------------------------------------------------------------


def test_evaluate_takes_long_batches_by_tables(rng):
    t = tt.TT(cores(rng, (3, 4, 5, 4, 3, 6), (3, 8, 20, 9, 4), np.float64))
    index = np.stack([rng.integers(-n, n, 20_000) for n in t.shape], axis=1)
    exact = dense(t)[tuple(index.T)]
    assert error(tt.evaluate(t, index), exact) <= 1e-13 * norm(exact)
    assert error(tt.evaluate(t, index[:3].astype(np.int8)), exact[:3]) <= 1e-13 * norm(exact)
    weights = rng.standard_normal(len(index))
    gradient = jax.grad(lambda t: jnp.sum(tt.evaluate(t, index) * weights))(t)
    step = tt.TT(cores(rng, t.shape, (3, 8, 20, 9, 4), np.float64))
    h = 1e-6
    moved = [
        tt.TT([c + s * h * e for c, e in zip(t.cores, step.cores, strict=True)]) for s in (1, -1)
    ]
    slope = sum(
        s * float(jnp.sum(tt.evaluate(m, index) * weights))
        for s, m in zip((1, -1), moved, strict=True)
    ) / (2 * h)
    exact_slope = sum(
        float(jnp.sum(g * e)) for g, e in zip(gradient.cores, step.cores, strict=True)
    )
    assert slope == pytest.approx(exact_slope, rel=1e-5)


@pytest.mark.slow
def test_a_million_entries_in_bounded_memory(key):
    t = tt.random(key, (20,) * 10, 16)
    index = np.random.default_rng(0).integers(0, 20, (10**6, 10))
    out = np.asarray(tt.evaluate(t, index))
    assert out.shape == (10**6,)
    some = slice(None, None, 997)
    assert error(out[some], tt.evaluate(t, index[some])) <= 1e-12 * norm(out[some])


# Bad input ---------------------------------------------------------------------------------------


K = jax.random.key(0)
SHAPE = (4,) * 5


def bad_at(value):
    def f(i):
        x = fractions(i)
        x[i[:, 0] == 2] = value
        return x

    return f


def call(f=fractions, shape=SHAPE, **options):
    return lambda: tt.cross(f, shape, **{"tol": 1e-6, "key": K, **options})


@pytest.mark.parametrize(
    ("kind", "message", "run"),
    [
        (ValueError, r"f: .*NaN or Inf at .*first \(2, ", call(bad_at(np.nan))),
        (ValueError, r"f: .*NaN or Inf at .*first \(2, ", call(bad_at(np.inf))),
        (ValueError, r"coordinates \(0.5, ", call(
            lambda x: np.where(x[:, 0] == 0.5, np.nan, 1.0), grid=[np.arange(4) / 4] * 5)),
        (ValueError, r"f: .*\(batch,\).*got shape \(\).*vectorized", call(lambda i: 1.0)),
        (ValueError, r"f: .*\(batch,\).*got shape \(5,\)", call(lambda i: i[0])),
        (ValueError, r"f: .*got shape \(.*, 1, 1\)", call(lambda i: fractions(i)[:, None, None])),
        (ValueError, "f: .*numbers", call(lambda i: np.array(["a"] * len(i)))),
        (ValueError, r"f: .*\(2,\).*first batch", call(
            lambda i: np.ones((len(i), 2 if len(i) <= 100 else 3)))),
        (ValueError, r"f: .*one shape", call(lambda i: np.ones(1 + i[0]), vectorized=False)),
        (ValueError, "tol: .*got 0", call(tol=0)),
        (ValueError, "tol: .*10 eps", call(tol=1e-16)),
        (ValueError, "tol: .*float32", call(tol=1e-8, dtype=jnp.float32)),
        (ValueError, "shape: ", call(shape=(3, 0))),
        (ValueError, "shape: .*digits", call(shape=(10**18, 10**18))),
        (ValueError, "max_rank: .*got 0", call(max_rank=0)),
        (ValueError, "max_evaluations: .*got 0", call(max_evaluations=0)),
        (ValueError, "max_sweeps: .*got 0", call(max_sweeps=0)),
        (ValueError, "held_out: .*got 1", call(held_out=1)),
        (ValueError, r"pivots: .*shape \(4, .*\(9, ", call(pivots=[[9] * 5])),
        (ValueError, r"pivots: .*integers \(m, 5\).*\(5,\)", call(pivots=[1] * 5)),
        (ValueError, r"pivots: .*integers .*float64", call(pivots=[[0.5] * 5])),
        (ValueError, r"f: .*range of float32", call(lambda i: 1e200 * fractions(i),
                                                    dtype=jnp.float32, tol=1e-4)),
        (ValueError, r"f: .*range of float64", call(lambda i: 1e-310 * fractions(i))),
        (ValueError, "search: .*got 1", call(search=1)),
        (ValueError, "search: .*got -0.1", call(search=-0.1)),
        (ValueError, "cache: .*got -1", call(cache=-1)),
        (ValueError, "on_error: .*'stop'", call(on_error="stop")),
        (TypeError, "executor: .*got int", call(executor=3)),
        (ValueError, "executor: .*jit", call(executor=OnlyMap(), jit=True)),
        (ValueError, "f: .*numbers.*object", call(lambda i: np.array(["a", *i[1:, 0]], object))),
        (ValueError, "f: .*numbers.*<U", call(lambda i: fractions(i).astype(str))),
        (ValueError, "f: .*numbers.*timedelta", call(lambda i: i.sum(axis=1).astype("m8[s]"))),
        (ValueError, "pivots: .*NaN", call(grid=[np.arange(4.0)] * 5, pivots=[[np.nan] * 5])),
        (ValueError, "jit: .*'yes'", call(jit="yes")),
        (ValueError, "grid: .*one array", call(grid=[np.arange(4.0)] * 4)),
        (ValueError, "grid: .*one array", call(grid=[np.arange(3.0)] * 5)),
        (ValueError, "grid: .*NaN", call(grid=[np.full(4, np.nan)] * 5)),
        (ValueError, "dtype: .*complex", call(lambda i: 1j * fractions(i), dtype=float)),
        (TypeError, "dtype: .*int", call(dtype=int)),
        (TypeError, "key: .*got 0", call(key=0)),
        (TypeError, "x0: .*ndarray", call(x0=np.ones(SHAPE))),
        (ValueError, "x0: .*shape", call(x0=tt.ones((4, 4)))),
        (ValueError, "low, high", lambda: tt.quantics_grid(1, 0, 4)),
        (ValueError, "low, high", lambda: tt.quantics_grid(0, np.inf, 4)),
        (ValueError, "low, high", lambda: tt.quantics_grid([0, 0], [1], 4)),
        (ValueError, "bits", lambda: tt.quantics_grid(0, [1, 1, 1], [4, 3])),
        (ValueError, "low, high", lambda: tt.quantics_grid([], [], 4)),
        (ValueError, "bits: .*2\\*\\*53", lambda: tt.quantics_grid(0, 1, 60)),
        (ValueError, "bits: .*got 0", lambda: tt.quantics_grid(0, 1, 0)),
        (ValueError, r"index: .*\[0, 8\).*8", lambda: tt.index_to_quantics([[8]], 3)),
        (ValueError, "digits: .*dims", lambda: tt.quantics_to_index([[0, 1, 1]], dims=2)),
        (ValueError, r"digits: .*\[0, 2\)", lambda: tt.quantics_to_index([[0, 2]])),
        (ValueError, "index: .*integers", lambda: tt.index_to_quantics([[0.5]], 3)),
    ],
)  # fmt: skip
def test_bad_input_is_named(kind, message, run):
    with pytest.raises(kind, match=message):
        run()


def test_an_error_of_the_function_passes_through(key):
    def f(i):
        raise RuntimeError("no license")

    with pytest.raises(RuntimeError, match="no license"):
        tt.cross(f, (3, 3), tol=1e-6, key=key)


def test_under_jit_there_is_a_clear_error(key):
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda k: tt.cross(fractions, (3, 3), tol=1e-6, key=k)[0])(key)


@pytest.mark.parametrize("seed", range(4))
def test_held_out_entries_are_those_of_the_train(seed):
    """However many they are: few by a product per core, many by merged cores; with components."""
    rng = np.random.default_rng([9, seed])
    shape = tuple(rng.integers(1, 5, int(rng.integers(2, 7))))
    ranks = [1, *rng.integers(1, 6, len(shape) - 1), 1]
    cores = [rng.standard_normal(s) for s in zip(ranks, shape, ranks[1:], strict=False)]
    full = dense(tt.TT(cores))
    for number in (1, 50, 5000):
        index = np.column_stack([rng.integers(0, n, number) for n in shape])
        found = train_entries.entries(cores, index)
        np.testing.assert_allclose(found[:, 0], full[tuple(index.T)], rtol=1e-9, atol=1e-12)
        found = train_entries.entries(cores, index[:, :-1])
        np.testing.assert_allclose(found, full[tuple(index[:, :-1].T)], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("number", [1, 50, 5000])
def test_held_out_entries_of_cores_far_from_one(rng, number):
    """Products of neighbouring cores leave the range, those of all do not."""
    shape, powers = (2, 3, 2, 1, 4, 2), np.array([600, 900, -700, -800, 500, -500])
    ranks = [1, 3, 4, 4, 3, 2, 1]
    plain = [rng.standard_normal(s) for s in zip(ranks, shape, ranks[1:], strict=False)]
    cores = [np.ldexp(c, p) for c, p in zip(plain, powers, strict=True)]
    index = np.column_stack([rng.integers(0, n, number) for n in shape])
    for modes in (6, 5):
        found = train_entries.entries(cores, index[:, :modes])
        wanted = train_entries.entries(plain, index[:, :modes])
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    long = [np.full((1, 2, 1), (3.0, 1 / 3)[k % 2]) for k in range(1000)]
    index = rng.integers(0, 2, (number, 1000))
    assert train_entries.entries(sorted(long, key=np.max), index) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_many_held_out_entries_take_few_products(seed, monkeypatch):
    """Of binary digits by far fewer than one per core: the first and the last ones are tables."""
    rng = np.random.default_rng([10, seed])
    order, rank, number = int(rng.integers(12, 20)), int(rng.integers(20, 60)), 4000
    ranks = [1, *(min(rank, 2**k, 2 ** (order - k)) for k in range(1, order)), 1]
    cores = [rng.standard_normal((a, 2, b)) for a, b in itertools.pairwise(ranks)]
    products = []
    plain = train_entries.times_slices
    monkeypatch.setattr(train_entries, "times_slices", lambda *a: products.append(0) or plain(*a))
    train_entries.entries(cores, rng.integers(0, 2, (number, order)))
    assert len(products) <= order // 4


def test_a_small_tensor_is_read_at_any_tolerance_of_single_precision(rng, key):
    shape = tuple(int(n) for n in rng.integers(3, 12, 4))
    with jax.enable_x64(False):
        for tol in rng.uniform(1.2e-6, 2.5e-6, 3):
            _, info = tt.cross(lambda i: 1 / (1.0 + i.sum(1)), shape, tol=float(tol), key=key)
            assert info.status == "converged"


def test_a_small_tensor_is_searched_where_f_fails_at_an_entry(rng, key):
    shape = (20, 10, 10, 9)
    bad = np.array([rng.integers(1, n) for n in shape])

    def fails(i):
        if (i == bad).all(axis=1).any():
            raise RuntimeError("no value here")
        return 1 / (1.0 + i.sum(1))

    _, info = tt.cross(fails, shape, tol=1e-4, key=key, on_error="return")
    assert info.status == "converged"
    with pytest.raises(RuntimeError, match="no value here"):
        tt.cross(fails, shape, tol=1e-4, key=key)


# Searches that go on ------------------------------------------------------------------------------


class Breaking:
    """A function that counts multi-indices asked for again, and breaks once after so many."""

    def __init__(self, error, most):
        self.seen, self.again, self.error, self.most = set(), 0, error, most

    def __call__(self, i):
        rows = set(map(tuple, np.atleast_2d(i).tolist()))
        if self.error is not None and len(self.seen) + len(rows) > self.most:
            error, self.error = self.error, None
            raise error
        self.again += len(rows & self.seen)
        self.seen |= rows
        values = np.exp(np.sin(np.atleast_2d(i).sum(axis=1) / 9.0))
        return values if i.ndim == 2 else values[0]


@pytest.mark.parametrize("how", ["interrupt", "error at a point", "callback", "budget", "NaN"])
def test_a_search_that_was_ended_goes_on(how):
    shape, key = (9,) * 7, jax.random.key(3)
    whole, without = tt.cross(Breaking(None, 0), shape, tol=1e-7, key=key)
    most = without.evaluations // 2
    one = how == "error at a point"
    f = Breaking({"interrupt": KeyboardInterrupt(), "error at a point": OSError()}.get(how), most)
    options = {"key": key, "tol": 1e-7, "vectorized": not one}
    first = {"callback": lambda p: p.evaluations > most} if how == "callback" else {}
    if how == "budget":
        first = {"max_evaluations": 400}

    def broken(i):
        values = f(i)
        return np.where(len(f.seen) > most, np.nan, values) if how == "NaN" else values

    _, info = tt.cross(broken, shape, **options, **first, on_error="return")
    status = {"callback": "stopped", "budget": "budget"}.get(how, "failed")
    assert info.status == status
    assert "resume" in info.advice or how == "callback"
    f.again = 0
    t, info = tt.cross(f, shape, **options, resume=info)
    assert info.status == "converged"
    assert info.evaluations == len(f.seen) or how == "NaN"
    assert f.again == 0 or how == "NaN"  # of a batch with NaN only finite values are known
    assert info.held_out >= 1000
    if how != "budget":
        assert all(np.array_equal(a, b) for a, b in zip(t.cores, whole.cores, strict=True))


def test_a_search_goes_on_where_it_fits_only(key):
    _, info = tt.cross(fractions, (8,) * 6, tol=1e-3, key=key)
    finer, again = tt.cross(fractions, (8,) * 6, tol=1e-8, key=key, resume=info)
    assert again.status == "converged"
    assert true_error(finer, fractions, (8,) * 6) <= 3e-8
    with pytest.raises(ValueError, match=r"resume: .*shape"):
        tt.cross(fractions, (8,) * 5, tol=1e-3, key=key, resume=info)
    with pytest.raises(TypeError, match=r"resume: .*CrossInfo"):
        tt.cross(fractions, (8,) * 6, tol=1e-3, key=key, resume=finer)
