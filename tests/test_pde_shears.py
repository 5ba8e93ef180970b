"""Nonlinear coordinates: shears as a group, their motion beside dense tensors, a bent density."""

from typing import Any

import numpy as np
import pytest

from tensorjax import pde, tt

CASES = [
    pde.Shears(2, (0,), degree=3),
    pde.Shears(3, (1,), degree=2),
    pde.Shears(3, (0, 2), degree=3),
    pde.Shears(4, (1, 2), degree=2),
]


@pytest.mark.parametrize("shears", CASES)
def test_shears_are_a_commuting_group_that_keeps_volumes(shears: pde.Shears):
    rng = np.random.default_rng(0)
    c, e = rng.standard_normal((2, len(shears.axes)))
    x = rng.standard_normal((7, shears.dim))
    assert np.allclose(shears.inverse(c, shears.forward(c, x)), x, atol=1e-12)
    both = shears.forward(c, shears.forward(e, x))
    assert np.allclose(both, shears.forward(e, shears.forward(c, x)))
    assert np.allclose(both, shears.forward(c + e, x))
    assert np.all(shears.powers[:, list(shears.moved)] == 0)
    assert len({(j, *p) for j, p in zip(shears.axes, shears.powers, strict=True)}) == len(c)
    step = 1e-5
    jacobian = np.stack(
        [
            (shears.forward(c, x + step * u) - shears.forward(c, x - step * u)) / (2 * step)
            for u in np.eye(shears.dim)
        ],
        axis=2,
    )
    assert np.allclose(np.linalg.det(jacobian), 1, atol=1e-8)
    field = rng.standard_normal(x.shape)
    assert np.allclose(
        shears.push(c, x, field), np.einsum("mij,mj->mi", jacobian, field), atol=1e-7
    )


def test_the_motion_is_the_least_squares_solution():
    rng = np.random.default_rng(1)
    box = pde.Box.fourier(3, [7, 6, 8], 1.3)
    shears = pde.Shears(3, (0, 2), degree=2)
    cores = [rng.standard_normal(s) for s in ((1, 7, 2), (2, 6, 3), (3, 8, 1))]
    v = tt.TT(cores)
    source = tt.TT([rng.standard_normal(s) for s in ((1, 7, 2), (2, 6, 2), (2, 8, 1))])
    affine = pde.Coefficients(rng.standard_normal((3, 3)), None, None, 0.2)
    right = pde.RightSide(box, affine, (), source)
    x = np.asarray(tt.to_dense(v))
    # The tangent space, from the derivatives by all entries of the cores.
    a, b, c = cores
    parts = [
        np.einsum("mn,bjc,ck->mjknb", np.eye(7), b, c[..., 0]),
        np.einsum("ia,mn,ck->imkanc", a[0], np.eye(6), c[..., 0]),
        np.einsum("ia,ajc,mn->ijmcn", a[0], b, np.eye(8)),
    ]
    basis = np.linalg.svd(np.concatenate([p.reshape(x.size, -1) for p in parts], axis=1))
    q = basis[0][:, : int((basis[1] > 1e-11 * basis[1][0]).sum())]

    def normal(z: np.ndarray) -> np.ndarray:
        return z.ravel() - q @ (q.T @ z.ravel())

    points = np.stack(np.meshgrid(*box.points, indexing="ij"), axis=3)
    first = [np.moveaxis(np.tensordot(box.axes[k].d1, x, (1, k)), 0, k) for k in range(3)]
    fields = np.stack(
        [
            normal(np.prod(points**p, axis=3) * first[j])
            for p, j in zip(shears.powers, shears.axes, strict=True)
        ]
    )
    rates = np.einsum("ijkm,nm->ijkn", points, affine.matrix)
    total = sum(rates[..., k] * first[k] for k in range(3)) + 0.2 * x
    target = normal(total + np.asarray(tt.to_dense(source)))
    motion = pde.field_motion(v, right, shears, box, 1e-10, regularization=0.0)
    best = np.linalg.lstsq(fields.T, target, rcond=1e-12)[0]
    assert np.allclose(motion.rates, best, rtol=1e-8)
    size = np.linalg.norm(x)
    assert np.isclose(motion.cost_without, np.linalg.norm(target) / size, rtol=1e-10)
    assert np.isclose(motion.cost, np.linalg.norm(target - best @ fields) / size, rtol=1e-9)


def bent(n: int = 64) -> Any:
    """Points at x₂ are carried along x₁ by x₂² − x₂³/2: the density bends like a banana."""
    drift = [[pde.Power([0.0, 1.0], 0.0, 2), pde.Power([0.0, 1.0], 0.0, 3, -0.5)], None]
    start = pde.Gaussian(np.zeros(2), np.diag([0.3, 0.4]), amplitude=1.0)
    return pde.FokkerPlanck(drift, None, start, pde.Box.fourier(2, n, 6.0))


@pytest.mark.parametrize("matrix", [np.eye(2), np.array([[0.9, 0.3], [-0.2, 1.0]])])
def test_sheared_problems_have_the_solutions_of_the_others(matrix: np.ndarray):
    """The rate of the exact solution in moving sheared coordinates is the right side there."""
    at = pde.affine(matrix)
    problem = bent(96)
    shears = pde.Shears(2, (0,), degree=2)
    moving = pde.Sheared(problem, shears, np.array([0.1, -0.2]), np.array([0.3, -0.4]), 0.2)
    grid = np.stack(np.meshgrid(*problem.box.points, indexing="ij"), axis=2).reshape(-1, 2)
    step = 1e-4
    z = at.inverse(grid)
    later, before, now = (moving.exact(0.3 + h, z) for h in (step, -step, 0.0))
    rate = (later - before).reshape(problem.box.shape) / (2 * step)
    v = tt.from_dense(now.reshape(problem.box.shape), tol=1e-9)
    right = moving.right_side(at, 0.3)
    terms = [np.asarray(tt.to_dense(tt.matvec(o, v))) for o in right.operators]
    assert np.linalg.norm(sum(terms) - rate) < 1e-3 * np.linalg.norm(rate)
    at_rest = pde.Sheared(problem, shears, moving.at(0.3))
    assert np.allclose(at_rest.inverse(0.0, grid), moving.inverse(0.3, grid))
    assert np.allclose(at_rest.start.values(grid), problem.start.values(at_rest.inverse(0.0, grid)))


def test_a_bent_density_keeps_rank_one():
    """Shears undo what no linear map can; one step of the integrator at a time."""
    problem, end, steps, tol = bent(), 1.0, 20, 1e-6
    shears = pde.Shears(2, (0,), degree=3)
    at, dt, c = pde.AffineMap.identity(2), end / steps, np.zeros(3)
    v = problem.initial(at, tol)
    for k in range(steps):
        here = pde.Sheared(problem, shears, c)
        right = here.right_side(at, k * dt)
        motion = pde.field_motion(v, right, shears, problem.box, tol)
        assert motion.cost <= motion.cost_without * (1 + 1e-6)
        moving = pde.Sheared(problem, shears, c, motion.rates, k * dt)

        def rate(t: float, x: Any, moving: Any = moving) -> Any:
            terms = [(o, x) for o in moving.right_side(at, t).operators]
            return tt.linear_combination(terms, tol=1e-8) if terms else 0.0 * x

        k1 = rate(k * dt, v)
        k2 = rate((k + 0.5) * dt, tt.linear_combination([v, k1], [1.0, dt / 2], tol=1e-8))
        v = tt.linear_combination([v, k2], [1.0, dt], tol=tol)
        c = moving.at((k + 1) * dt)
    assert max(v.ranks) == 1
    assert np.allclose(c, [0, -1, 0.5], atol=1e-4)
    grid = np.stack(np.meshgrid(*problem.box.points, indexing="ij"), axis=2).reshape(-1, 2)
    exact = pde.Sheared(problem, shears, c).inverse(0.0, grid)
    exact = problem.exact(end, exact).reshape(problem.box.shape)
    assert np.linalg.norm(np.asarray(tt.to_dense(v)) - exact) < 1e-4 * np.linalg.norm(exact)
    # In linear coordinates the exact solution has many more singular values of this size.
    still = problem.exact(end, grid).reshape(problem.box.shape)
    s = np.linalg.svd(still, compute_uv=False)
    assert int((s > tol * s[0]).sum()) > 10


def test_bad_arguments_are_refused():
    problem, shears = bent(16), pde.Shears(2, (0,), degree=2)
    with pytest.raises(ValueError, match="moved: expected one axis or more"):
        pde.Shears(2, (0, 1))
    with pytest.raises(ValueError, match="degree: expected"):
        pde.Shears(2, (0,), degree=0)
    with pytest.raises(ValueError, match="moved: expected an integer"):
        pde.Shears(2, (2,))
    with pytest.raises(ValueError, match="coefficients: expected shape"):
        pde.Sheared(problem, shears, np.zeros(3))
    with pytest.raises(ValueError, match="rates: expected finite"):
        pde.Sheared(problem, shears, np.zeros(2), np.array([np.nan, 0.0]))
    with pytest.raises(ValueError, match="shears: expected 2 coordinates"):
        pde.Sheared(problem, pde.Shears(3, (0,), degree=1), np.zeros(2))
    noisy = pde.FokkerPlanck([None, None], 0.1, problem.start, problem.box)
    with pytest.raises(ValueError, match="without diffusion"):
        pde.Sheared(noisy, shears, np.zeros(2))
    at = pde.AffineMap.identity(2)
    v = problem.initial(at, 1e-4)
    with pytest.raises(ValueError, match="fields: expected 2 coordinates"):
        pde.field_motion(v, problem.right_side(at, 0.0), CASES[1], problem.box, 1e-4)
