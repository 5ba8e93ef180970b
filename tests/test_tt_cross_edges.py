"""Sets on digits by `tt.cross`: their edges and tips to the cell, and what verification costs."""

import math

import jax
import numpy as np
import pytest

from tensorjax import tt
from tensorjax.tt._cross import edge_patterns
from tensorjax.tt._cross.held_out_error import HeldOut
from tensorjax.tt._cross.sampled_function import Oracle
from tests.oracles import norm

slow = pytest.mark.slow


def unit_square(bits, **layout):
    return tt.quantics_grid([0.0] * 2, [1.0] * 2, bits, **layout)


def drawn_solid(rng, layout):
    """A box or a prism with an oblique side, in digits of two or three coordinates."""
    dims = int(rng.integers(2, 4))
    bits = {2: 9, 3: 6}[dims]
    grid = tt.quantics_grid([0.0] * dims, [1.0] * dims, bits, **layout)
    low, normal = rng.uniform(0.1, 0.4, dims), rng.standard_normal(2)

    def f(i):
        x = grid.coordinates(i)
        inside = ((x > low) & (x < low + 0.5)).all(axis=1)
        return 1.0 * (inside & ((x[:, :2] - low[:2] - 0.25) @ normal < 0.1))

    return grid, f


@pytest.mark.parametrize("layout", [{"fused": True}, {"interleaved": True}, {"interleaved": False}])
def test_one_wrong_cell_at_an_edge_is_among_the_rarest_patterns(layout, rng):
    """No random line meets it; all other cells at the edges look like many others."""
    grid, f = drawn_solid(rng, layout)
    index = np.indices(grid.shape).reshape(len(grid.shape), -1).T
    values = f(index).reshape(grid.shape)
    sides = grid.index(index)[values.ravel() > 0]
    side = sides[:, 0] == sides[:, 0].min()
    wrong = grid.digits(sides[side][[side.sum() // 2]])
    values[tuple(wrong.T)] = 0
    train = [np.asarray(c) for c in tt.from_dense(values, tol=1e-10).cores]
    cells = edge_patterns.rare_cells(train, np.array(grid.shape), 0.5, 1)[0]
    place = np.flatnonzero((cells == wrong).all(axis=1))
    assert place.size == 1
    assert place[0] < 200
    assert len(np.unique(cells, axis=0)) == len(cells)
    assert not len(edge_patterns.rare_cells(train, np.array(grid.shape), 2.0, 1)[0])


def test_few_patterns_are_looked_at_in_large_trains_or_other_modes():
    ones = [np.ones((1, 2, 1))] * 24
    assert edge_patterns.rare_cells(ones, np.full(24, 2), 0.5, 9)[0].shape == (0, 24)
    step = [np.arange(5.0).reshape(1, 5, 1)]
    assert edge_patterns.rare_cells(step, np.array([5]), 0.5, 9)[1].shape == (0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_zeros_at_a_part_of_the_held_out_entries_are_no_estimate(seed):
    """A set of 1 % of all entries: a quarter of the held-out ones may meet nothing of it."""
    f = lambda i: 1.0 * (i[:, 0] == 7)  # noqa: E731
    rng = np.random.default_rng([53, seed])
    oracle = Oracle(f, (100,) * 3, grid=None, vectorized=True, jit=False, budget=None)
    held = HeldOut(oracle, 500, rng)
    order = np.argsort(held.values[:, 0], kind="stable")  # zeros first
    held.index, held.values = held.index[order], held.values[order]
    near_zero = [np.full((1, 100, 1), 1e-6)] * 3
    estimate = held.glance(near_zero, 1e-3)
    assert estimate.error == pytest.approx(1)
    assert math.isfinite(estimate.std)


@slow
@pytest.mark.parametrize("seed", range(6))
def test_boxes_in_fused_digits_are_exact(seed):
    """4 % of 2^21 cells: the search stalled at rank 1, or left part of an edge wrong."""
    rng = np.random.default_rng([54, seed])
    grid = tt.quantics_grid([0.0] * 3, [1.0] * 3, 7, fused=True)
    low = rng.uniform(0.1, 0.4, 3)
    f = lambda i: 1.0 * (abs(grid.coordinates(i) - low - 0.17) < 0.17).all(axis=1)  # noqa: E731
    t, info = tt.cross(f, grid.shape, tol=1e-3, key=jax.random.key(seed))
    index = np.indices(grid.shape).reshape(7, -1).T
    exact = f(index)
    assert norm(tt.evaluate(t, index) - exact) <= 3e-3 * norm(exact), info
    assert info.evaluations < 120_000


@pytest.mark.parametrize("seed", range(3))
def test_products_cost_little_more_than_their_held_out_entries(seed):
    """Rank one, exact at all random entries: a few drawn entries are enough beside these."""
    centre = np.random.default_rng([55, seed]).uniform(0.2, 0.8, 5)
    f = lambda i: (1 / (1 + 400 * ((i + 0.5) / 50 - centre) ** 2)).prod(axis=1)  # noqa: E731
    t, info = tt.cross(f, (50,) * 5, tol=1e-6, key=jax.random.key(seed))
    at = np.random.default_rng(seed).integers(0, 50, (2000, 5))
    at[:1000] = np.clip(np.round(centre * 50 + at[:1000] / 25 - 1), 0, 49)
    assert info.status == "converged"
    assert info.evaluations < 1500
    assert norm(tt.evaluate(t, at) - f(at)) <= 1e-6 * norm(f(at))


def test_cells_around_tips_are_found():
    """A triangle of a few degrees ends in single cells, apart from the others."""
    grid = unit_square(8, fused=True)
    index = np.indices(grid.shape).reshape(8, -1).T
    x, y = grid.index(index).T
    inside = (2 * abs(y - x / 3 - 60) < (230 - x) / 9) & (x > 40)
    shown = inside & (x < 210)
    train = [np.asarray(c) for c in tt.from_dense(1.0 * shown.reshape(grid.shape), tol=1e-9).cores]
    around = edge_patterns.rare_cells(train, np.array(grid.shape), 0.5, 20)[1]
    at = grid.index(around)
    next_ones = index[inside & (x >= 210) & (x < 213)]
    assert len(next_ones)
    found = {tuple(cell) for cell in around.tolist()}
    assert all(tuple(cell) in found for cell in next_ones.tolist())
    assert len(at) < 0.1 * len(index)


@slow
@pytest.mark.parametrize("seed", [21, 22, 23])
def test_acute_corners_are_exact_to_the_tip(seed):
    """The last cell at the tip of a triangle touches no other one."""
    corner = np.random.default_rng([31337, seed]).uniform(0.1, 0.9, (3, 2))
    grid = unit_square(10, fused=True)

    def f(i):
        x = (grid.index(i) + 0.5) / 1024
        p, q = corner, np.roll(corner, -1, axis=0)
        a, b = p - x[:, None], q - x[:, None]
        left = a[..., 0] * b[..., 1] > a[..., 1] * b[..., 0]
        return 1.0 * (left.all(axis=1) | ~left.any(axis=1))

    t, info = tt.cross(f, grid.shape, tol=1e-3, key=jax.random.key(0))
    index = np.indices(grid.shape).reshape(10, -1).T
    exact = f(index)
    assert norm(tt.evaluate(t, index) - exact) <= 3e-3 * norm(exact), info
