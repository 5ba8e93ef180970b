"""What `tt.cross` says of functions that are hard to see: no "converged" where f is not known."""

import re
from typing import Any

import jax
import numpy as np
import pytest

from tensorjax import tt
from tests.oracles import norm

slow = pytest.mark.slow


def unit_square(bits, **layout):
    return tt.quantics_grid([0.0] * 2, [1.0] * 2, bits, **layout)


def drawn_ellipse(rng):
    """A wave in an ellipse, zero elsewhere: ranks grow with the digits."""
    grid = unit_square(10, fused=True)
    center, form, k = (
        rng.uniform(0.3, 0.7, 2),
        3 * rng.standard_normal((2, 2)),
        rng.uniform(1, 9, 2),
    )

    def f(i):
        x = grid.coordinates(i)
        inside = (((x - center) @ form) ** 2).sum(axis=1) < 1
        return (1 + 0.5 * np.cos(x @ k)) * inside

    return grid.shape, f


def drawn_shock(rng):
    """A front a few cells wide, between two constants."""
    grid = unit_square(10, fused=True)
    width, slope = 10 ** rng.uniform(-3, -2), rng.uniform(0.3, 1.5)
    return grid.shape, lambda i: np.tanh((grid.coordinates(i) @ [1, -slope] - 0.1) / width)


@pytest.mark.parametrize(
    ("draw", "seed"),
    [(drawn_shock, 0), pytest.param(drawn_ellipse, 2, marks=slow)],
)
def test_edges_at_a_coarse_tolerance_are_not_certified_wrongly(draw, seed):
    """Errors as large as f at few entries: a tolerance of 1e-3 made them too small to count."""
    shape, f = draw(np.random.default_rng([60, seed]))
    t, info = tt.cross(f, shape, tol=1e-3, key=jax.random.key(seed), max_evaluations=250_000)
    index = np.indices(shape).reshape(len(shape), -1).T
    exact = f(index)
    wrong = norm(tt.evaluate(t, index) - exact) / norm(exact)
    assert wrong <= 0.05
    if info.status == "converged":
        assert wrong <= 1e-2
        assert info.error + 2 * info.error_std <= 1e-3 or info.error <= 1e-5
    else:
        assert info.error_std > 1e-3


@slow
def test_a_search_goes_on_where_the_error_falls_only_at_the_end():
    """Poles along a curve: the error is about one until ranks are nearly those of f."""
    rng = np.random.default_rng([61, 0])
    grid = tt.quantics_grid([0.0] * 2, [2 * np.pi] * 2, 12, fused=True)
    broadening, level = rng.uniform(0.03, 0.05), rng.uniform(-1, 1)

    def f(i):
        return 1 / (level + 1j * broadening + 2 * np.cos(grid.coordinates(i)).sum(axis=1))

    t, info = tt.cross(f, grid.shape, tol=1e-4, key=jax.random.key(0))
    assert info.status == "converged"
    index = rng.integers(0, grid.shape, (20_000, len(grid.shape)))
    exact = f(index)
    assert norm(tt.evaluate(t, index) - exact) <= 3e-4 * norm(exact)


@slow
def test_sweeps_do_not_end_a_search_that_still_finds_pivots():
    """A chequered plane on digits: few pivots in each sweep, for many sweeps."""
    rng = np.random.default_rng([62, 0])
    grid = tt.quantics_grid([0.0] * 2, [1.0] * 2, 11)
    k = rng.uniform(5, 30, 2)

    def f(i):
        return np.sign(np.sin(k * grid.coordinates(i) + 0.3)).prod(axis=1)

    t, info = tt.cross(f, grid.shape, tol=1e-5, key=jax.random.key(0))
    assert info.status in ("converged", "unseen")
    index = rng.integers(0, grid.shape, (50_000, len(grid.shape)))
    assert norm(tt.evaluate(t, index) - f(index)) <= 0.05 * norm(f(index))


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=slow) for s in (1, 2, 3))])
def test_a_small_tail_among_small_errors_leads_to_a_peak(seed):
    """A held-out error ten times the others is the tail of a peak, be it below the tolerance."""
    rng = np.random.default_rng([63, seed])
    n, d = 40, 5
    slope, center = rng.uniform(0.5, 2, d), rng.uniform(0.3, 0.7, d)

    def f(i):
        x = (i + 0.5) / n
        far = ((x - center) ** 2).sum(axis=1)
        return 1 / (1 + x @ slope) + 20 * np.exp(-far / 0.08**2)

    t, info = tt.cross(f, (n,) * d, tol=1e-5, key=jax.random.key(seed))
    index = np.rint(center * n - 0.5 + 2 * rng.standard_normal((5000, d))).astype(int)
    exact = f(index)
    assert norm(tt.evaluate(t, index) - exact) <= 1e-3 * norm(exact), info


def drawn_product(rng):
    k = rng.uniform(1, 4, 30)
    return (12,) * 30, lambda i: np.prod(np.sin(k * (i + 0.5) / 12 + 0.4), axis=1), 1708


def drawn_box(rng):
    low = rng.integers(1, 8, 5)
    high = low + rng.integers(7, 11, 5)
    return (20,) * 5, lambda i: 0.5 + ((i >= low) & (i < high)).all(axis=1), 3490


def drawn_complex_wave(rng):
    k = rng.uniform(-6, 6, 8)

    def f(i):
        x = (i + 0.5) / 24
        return np.exp(1j * (x @ k)) / (2 + x[:, 0] + x[:, 3])

    return (24,) * 8, f, 6256


@pytest.mark.parametrize("draw", [drawn_product, drawn_box, drawn_complex_wave])
def test_verification_costs_no_more_than_the_fits_of_peers(draw):
    """Evaluations of the best peer, which verifies nothing, on one function of each kind."""
    for seed in range(2):
        rng = np.random.default_rng([64, seed])
        shape, f, fewest = draw(rng)
        t, info = tt.cross(f, shape, tol=1e-6, key=jax.random.key(seed))
        assert info.status == "converged"
        assert info.held_out >= 1000
        assert info.evaluations <= fewest
        index = rng.integers(0, shape, (5000, len(shape)))
        assert norm(tt.evaluate(t, index) - f(index)) <= 1e-6 * norm(f(index))


def drawn_adversary(rng):
    """A function of rank one or two, and a part of its own in 1 to 20 % of the entries."""
    d = int(rng.choice([3, 4, 6, 10, 20, 30]))
    n = {3: 64, 4: 32, 6: 20, 10: 16, 20: 12, 30: 12}[d]
    k = rng.uniform(1, 4, d)
    smooth = (
        lambda x: np.prod(np.sin(k * x + 0.4), axis=1),
        lambda x: np.exp(-x @ k),
        lambda x: np.exp(1j * (x @ k)),
        lambda x: np.full(len(x), 0.5),
    )[rng.integers(4)]
    size = norm(smooth(rng.random((4000, d)))) / 4000**0.5
    if rng.integers(3) == 0:  # a peak, which has a tail everywhere
        center, width = rng.uniform(0.2, 0.8, d), rng.uniform(0.1, 0.3) * d**0.5
        part = lambda x: np.exp(-((x - center) ** 2).sum(axis=1) / width**2)  # noqa: E731
    else:  # a box in some of the modes
        at = rng.permutation(d)[: rng.integers(1, 4)]
        width = (10 ** rng.uniform(-2, -0.7)) ** (1 / len(at))
        low = rng.uniform(0, 1 - width, len(at))
        part = lambda x: 1.0 * ((x[:, at] >= low) & (x[:, at] < low + width)).all(axis=1)  # noqa: E731
    return (n,) * d, lambda i: smooth((i + 0.5) / n) + size * part((i + 0.5) / n)


@pytest.mark.parametrize("first", [0, *(pytest.param(s, marks=slow) for s in (8, 16, 24))])
def test_no_part_of_one_percent_escapes_a_cheap_verification(first):
    for seed in range(first, first + 8):
        rng = np.random.default_rng([65, seed])
        shape, f = drawn_adversary(rng)
        tol = 10 ** rng.uniform(-8, -3)
        t, info = tt.cross(f, shape, tol=tol, key=jax.random.key(seed), max_evaluations=60_000)
        index = rng.integers(0, shape, (20_000, len(shape)))
        wrong = norm(tt.evaluate(t, index) - f(index)) / norm(f(index))
        if info.status == "converged":
            assert wrong <= 10 * tol, seed
        else:
            assert wrong <= info.error + 4 * info.error_std + tol, seed


def test_a_constant_is_looked_at_more_often(key):
    """A box in 0.3 % of all entries, which three of 1000 held-out ones would meet."""
    found = 0
    for seed in range(8):
        low = np.random.default_rng([68, seed]).integers(0, 9, 4)
        t, _ = tt.cross(
            lambda i, low=low: 1.0 + ((i[:, 2:6] >= low) & (i[:, 2:6] < low + 3)).all(axis=1),
            (13,) * 10, tol=1e-6, key=jax.random.key(seed),
        )  # fmt: skip
        found += float(tt.evaluate(t, [0, 0, *(low + 1), 0, 0, 0, 0])) == pytest.approx(2)
    assert found >= 7


def test_a_peak_beside_an_exact_product_of_many_variables_is_found():
    """The train through the first pivot is right at all entries, but for the tail of a peak."""
    rng = np.random.default_rng(66)
    k, center = rng.uniform(1, 4, 20), rng.integers(3, 9, 20)

    def f(i):
        far = ((i - center) ** 2).sum(axis=1)
        return np.prod(np.sin(k * (i + 0.5) / 12 + 0.4), axis=1) + np.exp(-far / 9.0)

    t, info = tt.cross(f, (12,) * 20, tol=1e-6, key=jax.random.key(0))
    near = np.clip(center + rng.integers(-2, 3, (500, 20)), 0, 11)
    assert norm(tt.evaluate(t, near) - f(near)) <= 1e-5 * norm(f(near)), info


@slow
def test_a_function_that_was_seen_to_jump_is_known_only_if_its_train_is_exact():
    """Pulses in as little as 1e-4 of all points: one may escape, but not without a word."""
    rng = np.random.default_rng([67, 0])
    low, width = rng.random(5), 10 ** rng.uniform(-4, -2, 5)
    for bits in (18, 19):  # read, or told of
        grid = tt.quantics_grid(0, 1, bits)

        def f(i, grid=grid):
            x = grid.coordinates(i)
            return ((x >= low) & (x < low + width)) @ np.arange(1.0, 6) + np.cos(9 * x[:, 0])

        t, info = tt.cross(f, grid.shape, tol=1e-5, key=jax.random.key(2))
        x = (np.arange(2**bits) / 2**bits)[:, None]
        wrong = norm(tt.evaluate(t, grid.nearest(x)) - f(grid.nearest(x)))
        good = wrong <= 3e-5 * norm(f(grid.nearest(x)))
        assert good if bits == 18 else good or info.error_std > 1e-2


def test_a_function_with_a_state_is_told_of(key):
    """Not of a function that only cannot be fitted."""
    state = np.random.default_rng(0)

    def noisy(i):
        return 1 / (1.0 + i.sum(axis=1)) * (1 + 1e-3 * state.standard_normal(len(i)))

    def odd(i):
        return np.sin(1e3 * (i @ 1.7 ** np.arange(6)) ** 2)

    told = []
    for f in (noisy, odd):
        _, info = tt.cross(f, (9,) * 6, tol=1e-6, key=key, search=0)
        assert info.status == "stalled"
        told.append("noisy or has a state" in info.advice)
    assert told == [True, False]
    # Read whole, it is fitted exactly, but not met.
    _, info = tt.cross(noisy, (9,) * 5, tol=1e-6, key=key, max_evaluations=10**5)
    assert (info.status, "has a state" in info.advice) == ("stalled", True)
    assert 1e-4 < info.error < 1e-2
    for shape in ((400,), (20, 20), (31, 31), (2, 200), (8, 8, 8), (5, 5, 5, 5), (2,) * 8):
        for tol in (0.1, 1e-6):
            _, info = tt.cross(lambda i: state.standard_normal(len(i)), shape, tol=tol, key=key)
            assert (info.status, "has a state" in info.advice) == ("stalled", True)
            _, info = tt.cross(lambda i: state.integers(0, 2, len(i)), shape, tol=tol, key=key)
            assert (info.status, "has a state" in info.advice) == ("stalled", True)
            _, info = tt.cross(lambda i: 1 / (1.0 + i.sum(axis=1)), shape, tol=tol, key=key)
            assert info.status == "converged"


@pytest.mark.parametrize("key", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 3))])
def test_few_held_out_entries_of_a_small_tensor_are_more_where_large_errors_were_left(key):
    """Residuals of the last sweep were 60 times the tolerance, at 1 % of all entries."""
    index = np.indices((200, 200)).reshape(2, -1).T
    for seed, tol in ((137, 1e-4), (137, 3e-4), (112, 1e-4), (112, 1e-3)):
        a = np.random.default_rng([4711, seed]).uniform(-1.5, 1.5, (2, 2))

        def f(i: Any, a: Any = a) -> Any:
            return np.max((i + 0.5) / 200 @ a.T, axis=1)

        t, info = tt.cross(f, (200, 200), tol=tol, key=jax.random.key(key))
        wrong = norm(np.asarray(tt.to_dense(t)).ravel() - f(index)) / norm(f(index))
        assert info.status == "converged"
        assert wrong <= 3 * tol


@pytest.mark.parametrize(
    "call",
    [
        lambda f: tt.cross(f, (9,) * 6, tol=1e-6, key=jax.random.key(0)),
        lambda f: tt.integrate(f, [(0, 1)] * 6, tol=1e-6),
        lambda f: tt.functions.interpolate(f, [(0, 1)] * 6, tol=1e-6, key=jax.random.key(0)),
        lambda f: tt.patches.cross(f, (9,) * 6, tol=1e-6, key=jax.random.key(0)),
    ],
)
def test_functions_that_take_other_arguments_are_told_what_they_get(call):
    for f, said in [
        (lambda a, b, c, d, e, g: a + b, r"lambda x: f\(\*x.T\)"),
        (lambda x: x @ np.ones((6, 6)) @ x, "vectorized=False"),
    ]:
        with pytest.raises((TypeError, ValueError)) as caught:
            call(f)
        notes = "".join(caught.value.__notes__)
        assert re.search(said, notes), notes


def test_map_tells_of_its_own_arguments(key):
    with pytest.raises(TypeError) as caught:
        tt.map(lambda a, b: a + b, tt.ones((3, 3)), tol=1e-6, key=key)
    notes = "".join(caught.value.__notes__)
    assert "gets 1 arrays" in notes
    assert "lambda x" not in notes


def test_patches_of_a_small_budget(key):
    """All of it is used, and a train that is zero for want of entries has no known error."""
    f = lambda i: np.sin(1.3 * i[:, 0] * i[:, 1])  # noqa: E731
    for budget in (2, 60, 700):
        _, info = tt.patches.cross(f, (40,) * 3, tol=1e-6, key=key, max_evaluations=budget)
        assert info.status == "budget"
        assert info.error > 0.5
        assert budget // 2 <= info.evaluations <= budget


def test_coordinates_of_another_number_of_dimensions_are_refused():
    for dims, x in [(1, [[0.2, 0.3]]), (2, [[0.2]]), (2, 0.5), (1, [[np.nan]])]:
        with pytest.raises(ValueError, match=rf"x: expected coordinates \(…, {dims}\)"):
            tt.quantics_grid([0.0] * dims, [1.0] * dims, 4).nearest(x)


@pytest.mark.parametrize("key", [0, *(pytest.param(k, marks=slow) for k in range(1, 12))])
def test_a_kink_is_not_certified_wrongly(key):
    """Errors at a few hundred of many entries: along a line, between rows that are pivots."""
    rng = np.random.default_rng([61, key])
    n, slope, tol = (
        int(rng.integers(150, 260)),
        rng.uniform(0.5, 1.5, 2),
        10 ** rng.uniform(-4.5, -3),
    )
    f = [
        lambda i: np.abs(i @ [slope[0], -slope[1]] / n),
        lambda i: np.maximum(0, i @ slope / n - 0.8),
        lambda i: np.maximum(*(i / n).T) + 0.1,
    ][key % 3]
    t, info = tt.cross(f, (n, n), tol=tol, key=jax.random.key(key))
    exact = f(np.indices((n, n)).reshape(2, -1).T)
    wrong = norm(np.asarray(tt.to_dense(t)).ravel() - exact) / norm(exact)
    assert info.status == "converged"
    assert wrong <= 3 * tol


@pytest.mark.parametrize("key", range(3))
def test_complex_values_that_come_late_keep_their_imaginary_parts(key):
    """The first batch is real, as f gives real arrays where no entry has an imaginary part."""
    calls = []

    def f(i):
        calls.append(len(i))
        values = np.cos(i.sum(axis=1) / 50) / (1 + i[:, 0]) + 1j * (i == 0).all(axis=1)
        return values if len(calls) > 1 else values.real

    t, info = tt.cross(
        f, (30,) * 4, tol=1e-6, key=jax.random.key(key), pivots=[[0] * 4, [1] * 4], held_out=200
    )
    assert info.status == "converged"
    i = np.random.default_rng(key).integers(0, 30, (300, 4))
    i[0] = 0
    np.testing.assert_allclose(tt.evaluate(t, i), f(i), atol=1e-4)


@pytest.mark.parametrize("cache", [0, 4000, 30_000, 1 << 30])
def test_a_larger_budget_is_no_worse_with_any_cache(cache):
    """What the cache forgot is not known: to read all entries costs it again."""

    def f(i):
        return np.abs(i[:, 0] - 0.7 * i[:, 1] - 3.3)

    right = f(np.indices((160, 160)).reshape(2, -1).T)
    for budget in (13_000, 26_000, 30_000, 60_000):
        t, info = tt.cross(
            f, (160, 160), tol=1e-3, cache=cache, max_evaluations=budget, key=jax.random.key(0)
        )
        wrong = norm(np.asarray(tt.to_dense(t)).ravel() - right) / norm(right)
        assert info.evaluations <= budget
        assert info.status != "converged" or wrong <= 3e-3
        assert wrong <= 3 * (info.error + 2 * info.error_std)
        assert (info.status == "budget") <= (info.evaluations > 0.9 * budget)
        if cache > 25_600 and budget > 25_600:
            assert info.status == "converged"


def test_jumps_of_values_whose_squares_underflow():
    """A peak at a pivot is so large that all values at random entries have squares of zero."""

    def f(i):
        n = i.sum(axis=1)
        return np.where(n == 0, 1.0, 1e-180 * (1 + n) * (n % 3 == 0))

    t, info = tt.cross(
        f, (40,) * 3, tol=1e-6, pivots=[[0] * 3], max_evaluations=20_000, key=jax.random.key(0)
    )
    assert info.status in ("converged", "unseen")
    assert float(tt.evaluate(t, [0] * 3)) == pytest.approx(1)
