"""What `tt.cross` says of functions that are hard to see: no "converged" where f is not known."""

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
