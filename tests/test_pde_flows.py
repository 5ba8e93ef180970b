"""Nonlinear coordinates that flow: maps, their inverses and volumes, and problems in them."""

from typing import Any

import numpy as np
import pytest

from tensorjax import pde, tt

STILL = pde.AffineMap.identity(2)


def a_flow(dim: int = 2, degree: int = 2, size: float = 0.15) -> pde.FlowMap:
    fields = pde.Fields(dim, 5.0, degree=degree)
    rng = np.random.default_rng(0)
    pieces = [size * rng.standard_normal((k, len(fields.axes))) for k in (1, 3)]
    return pde.FlowMap(fields, (0.0, 0.3), tuple(pieces))


@pytest.mark.parametrize(("dim", "degree"), [(2, 3), (3, 2)])
def test_fields_and_their_derivatives(dim: int, degree: int):
    fields = pde.Fields(dim, 4.0, degree=degree)
    rng = np.random.default_rng(1)
    c, y = rng.standard_normal(len(fields.axes)), rng.uniform(-3, 3, (6, dim))
    g, slopes, rise = fields.values(c, y, second=True)
    one = [
        np.prod([fields.factor(m, k, y[:, k]) for k in range(dim)], axis=0)
        for m in range(len(c))
    ]  # fmt: skip
    for j in range(dim):
        total = sum(c[m] * one[m] for m in range(len(c)) if fields.axes[m] == j)
        assert np.allclose(g[:, j], total)
    assert np.all(fields.powers.sum(1) > fields.powers[np.arange(len(c)), fields.axes])
    h = 1e-5
    for k, e in enumerate(np.eye(dim)):
        up, down = (fields.values(c, y + s * h * e) for s in (1, -1))
        assert np.allclose((up[0] - down[0]) / (2 * h), slopes[:, :, k], atol=1e-7)
        spread = np.trace(up[1] - down[1], axis1=1, axis2=2) / (2 * h)
        assert rise is not None
        assert np.allclose(spread, rise[:, k], atol=1e-7)
    box = pde.Box.fourier(dim, 8, 4.0)
    mesh = np.stack(np.meshgrid(*box.points, indexing="ij"), -1).reshape(-1, dim)
    for j, cores in enumerate(fields.trains(c, box.points)):
        dense = np.asarray(tt.to_dense(tt.TT(cores))).ravel()
        assert np.allclose(dense, fields.values(c, mesh)[0][:, j], atol=1e-10)


def test_flows_are_diffeomorphisms_with_their_jacobians():
    flow, rng = a_flow(3), np.random.default_rng(2)
    x, t, h = rng.standard_normal((5, 3)), 0.7, 1e-5
    y, volume = flow.forward(t, x)
    assert np.linalg.norm(y - x) > 0.1
    back = flow.back(t, y, second=True)
    assert np.allclose(back.x, x, atol=1e-7)
    assert np.allclose(volume * np.linalg.det(back.inverse), 1, atol=1e-7)
    assert back.rise is not None
    for k, e in enumerate(np.eye(3)):
        up, down = (flow.back(t, y + s * h * e) for s in (1, -1))
        assert np.allclose((up.x - down.x) / (2 * h), back.inverse[:, :, k], atol=1e-7)
        logs = [-np.log(np.linalg.det(b.inverse)) for b in (up, down)]
        assert np.allclose((logs[0] - logs[1]) / (2 * h), back.rise[:, k], atol=1e-7)
    assert np.allclose(flow.rates(0.2), flow.pieces[0][0])


@pytest.mark.parametrize("diffusion", [None, np.array([[0.2, 0.05], [0.05, 0.1]])])
def test_flowed_problems_have_the_solutions_of_the_others(diffusion: Any):
    """The rate of the exact density in moving coordinates is the right side there."""
    start = pde.Gaussian(np.array([0.2, 0.0]), np.diag([0.5, 0.4]))
    matrix = np.array([[-0.2, 0.6], [-0.4, -0.1]])
    problem = pde.FokkerPlanck(None, diffusion, start, pde.Box.fourier(2, 48, 5.0), matrix=matrix)
    moving = pde.Flowed(problem, a_flow(size=0.3))
    grid = np.stack(np.meshgrid(*problem.box.points, indexing="ij"), 2).reshape(-1, 2)
    t, h = 0.5, 1e-4
    later, before, now = (np.asarray(moving.exact(t + s, grid)) for s in (h, -h, 0.0))
    rate = (later - before).reshape(problem.box.shape) / (2 * h)
    v = tt.from_dense(now.reshape(problem.box.shape), tol=1e-10)
    right = moving.right_side(STILL, t)
    total = sum(np.asarray(tt.to_dense(tt.matvec(o, v))) for o in right.operators)
    assert np.linalg.norm(total - rate) < 1e-5 * np.linalg.norm(rate)
    x = moving.flow.back(t, grid[:5]).x
    assert np.allclose(now[:5] * moving.flow.forward(t, x)[1], np.asarray(problem.exact(t, x)))


def banana() -> Any:
    """A density that bends and turns: neither linear maps nor shears undo it."""
    drift = [pde.Sin([0.0, 0.8], phase=np.pi / 2, amplitude=1.5), None]
    start = pde.Gaussian(np.zeros(2), np.diag([0.1, 0.5]))
    turn = np.array([[0.0, 0.5], [-0.5, 0.0]])
    return pde.FokkerPlanck(drift, None, start, pde.Box.fourier(2, 40, 5.0), matrix=turn)


def test_flows_keep_a_bent_density_of_lower_rank_than_linear_maps():
    problem, t1 = banana(), 0.4
    options: dict[str, Any] = {"t1": t1, "dt": 0.05, "tol": 1e-3}
    x = problem.sample(np.random.default_rng(0), t1, 300)
    exact = np.asarray(problem.exact(t1, x))
    affine = pde.integrate(problem, **options)
    flown = pde.flows.integrate(problem, pde.Fields(2, 5.0), **options)
    assert flown.solution.result == affine.result == pde.Result.successful
    assert flown.solution.stats["rank"][-1] < affine.stats["rank"][-1]
    found = flown.values(problem.box, x)
    assert np.linalg.norm(found - exact) < 1e-2 * np.linalg.norm(exact)
    assert np.allclose(flown.solution.stats["mass"], 1, atol=5e-3)


def test_flows_that_are_stopped_return_the_last_good_state():
    options: dict[str, Any] = {"t1": 0.3, "dt": 0.1, "tol": 1e-2, "saveat": pde.SaveAt(t0=True)}
    fields = pde.Fields(2, 5.0, degree=2)
    late = pde.flows.integrate(banana(), fields, progress=lambda row: row["t"] > 0.15, **options)
    assert late.solution.result == pde.Result.stopped
    assert late.solution.ts.tolist() == pytest.approx([0.0, 0.2])
    assert late.solution.stats["rates"].shape == (2, len(fields.axes))
    narrow = pde.flows.integrate(banana(), fields, max_rank=1, **{**options, "tol": 1e-6})
    assert narrow.solution.result == pde.Result.max_rank
    assert narrow.solution.final.t == 0.0


def test_flows_are_saved_when_asked_and_go_on_from_a_checkpoint(tmp_path: Any):
    problem, fields = banana(), pde.Fields(2, 5.0, degree=2)
    options: dict[str, Any] = {"dt": 0.05, "tol": 1e-2}
    at = pde.SaveAt(ts=(0.0, 0.1, 0.12, 0.2))
    whole = pde.flows.integrate(problem, fields, t1=0.2, saveat=at, **options)
    assert whole.solution.ts.tolist() == list(at.ts)
    assert len(whole.solution.stats["t"]) == 5
    x = np.array([[0.2, 0.3], [-0.4, 0.8]])
    values = [whole.values(problem.box, x, y) for y in whole.solution.ys]
    assert np.allclose(values[1], problem.exact(0.1, x), atol=0.05)
    pde.flows.integrate(
        problem, fields, t1=0.2, saveat=at, checkpoint=pde.Checkpoint(tmp_path, every=1),
        progress=lambda row: row["t"] > 0.11, **options,
    )  # fmt: skip
    saved = pde.load(tmp_path)
    assert saved.t == 0.12
    rest = pde.flows.integrate(problem, fields, t1=0.2, start=saved, **options)
    assert np.array_equal(rest.values(problem.box, x), values[-1])
    assert rest.flow.starts == whole.flow.starts
    with pytest.raises(ValueError, match="start: expected a state that"):
        pde.flows.integrate(problem, pde.Fields(2, 5.0), t1=0.2, start=saved, **options)
    with pytest.raises(ValueError, match="method: expected one of"):
        pde.flows.integrate(problem, fields, t1=0.2, start=saved, method="euler", **options)
    with pytest.raises(ValueError, match="checkpoint: expected a folder without"):
        pde.flows.integrate(problem, fields, t1=0.2, checkpoint=tmp_path, **options)


def test_bad_arguments_of_flows_are_refused():
    problem, fields = banana(), pde.Fields(2, 5.0, degree=2)
    with pytest.raises(ValueError, match="reach: expected a positive"):
        pde.Fields(2, 0.0)
    with pytest.raises(ValueError, match="moved: expected an integer"):
        pde.Fields(2, 1.0, moved=(2,))
    with pytest.raises(ValueError, match="moved: expected one axis"):
        pde.Fields(2, 1.0, moved=())
    with pytest.raises(ValueError, match="flow: expected 2 coordinates"):
        pde.Flowed(problem, a_flow(3))
    with pytest.raises(ValueError, match="map: expected the identity"):
        pde.Flowed(problem, a_flow()).right_side(pde.affine(2 * np.eye(2)), 0.0)
    with pytest.raises(ValueError, match="options: expected none of"):
        pde.flows.integrate(problem, fields, t1=1.0, dt=0.1, coordinates="fixed")
    with pytest.raises(ValueError, match="dt: expected a positive"):
        pde.flows.integrate(problem, fields, t1=1.0, dt=0.0)
    shears: Any = pde.Shears(2, (0,))
    with pytest.raises(ValueError, match=r"fields: expected pde\.Fields"):
        pde.flows.integrate(problem, shears, t1=1.0, dt=0.1)
    heat = pde.AdvectionDiffusionReaction(None, 0.1, problem.start, problem.box)
    with pytest.raises(ValueError, match="problem: expected one with a method velocity"):
        pde.flows.integrate(heat, fields, t1=1.0, dt=0.1)
