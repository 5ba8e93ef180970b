"""What `tt.cross` says of functions that are hard to see: no "converged" where f is not known."""

import re

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
