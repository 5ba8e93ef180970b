"""Orders of the integrators in moving coordinates, and the sums that they round."""

from typing import Any

import jax
import numpy as np
import pytest

from tensorjax import pde, tt
from tensorjax._cores import products
from tensorjax.pde._arguments import hosted_cores
from tensorjax.pde._discretization.affine_operators import (
    affine_generator,
    affine_states,
    differentiated,
)
from tensorjax.pde._maps.coordinate_path import Moment, Path, jumps, told
from tensorjax.pde._stepping.sketched_sums import Applied, Train, relative_norm, rounded
from tensorjax.pde.coords import Prescribed

T1 = 0.5
DRIFT = np.array([[-0.15, 0.45], [-0.35, -0.1]])
DIFFUSION = np.array([[0.1, 0.04], [0.04, 0.06]])


def turning(t: float) -> Any:
    sigma = 0.3 * np.array([[0.3 * t, np.cos(3 * t)], [-np.sin(2 * t + 0.3), -0.2]])
    return sigma, 3 * np.array([np.cos(6 * t), -np.sin(6 * t)])


def process() -> pde.OrnsteinUhlenbeck:
    start = pde.Gaussian(np.array([0.2, -0.1]), np.diag([0.8, 0.6]))
    box = pde.Box.fourier(2, 32, 8.0)
    return pde.OrnsteinUhlenbeck(DRIFT, DIFFUSION, start, box, offset=np.array([0.1, 0.1]))


def errors(method: Any, steps: list[int], finest: int, **options: Any) -> list[float]:
    """Errors in time alone: against many more steps on the same grid."""
    problem = process()
    x = problem.sample(np.random.default_rng(0), T1, 200)

    def values(count: int, method: Any) -> np.ndarray:
        solution = pde.integrate(
            problem, t1=T1, dt=T1 / count, method=method, coordinates=Prescribed(turning),
            accuracy=1e-3, **options,
        )  # fmt: skip
        assert solution.result == pde.Result.successful
        state = solution.final
        return pde.evaluate(state.v, state.map, problem.box, x)

    exact = values(finest, "rk4")
    return [np.linalg.norm(values(n, method) - exact) / np.linalg.norm(exact) for n in steps]


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_rk4_has_order_four_with_any_prescribed_motion(degree: int):
    e = errors("rk4", [20, 40], 160, tol=1e-14, extrapolate=degree)
    assert abs(np.log2(e[0] / e[1]) - 4) < 0.2


@pytest.mark.parametrize(
    ("method", "order", "steps"),
    [
        ("rk2", 2, [40, 80]),
        pytest.param("ab2", 2, [40, 80], marks=pytest.mark.slow),
        ("ab3", 3, [40, 80]),
        pytest.param("projector splitting", 2, [25, 50], marks=pytest.mark.slow),
        ("bug", 2, [25, 50]),
        ("imex", 2, [40, 80]),
    ],
)
def test_orders_of_the_other_methods(method: Any, order: int, steps: list[int]):
    e = errors(method, steps, 160, tol=1e-9 if method == "imex" else 1e-11)
    assert abs(np.log2(e[0] / e[1]) - order) < 0.1


def affine_sum() -> tuple[Any, Any, Any]:
    box = pde.Box.fourier(4, 12)
    rng = np.random.default_rng(0)
    given = pde.Coefficients(
        rng.normal(size=(4, 4)), rng.normal(size=4), rng.normal(size=(4, 4)), 0.3
    )
    cores = hosted_cores(tt.random(jax.random.key(0), box.shape, 3, float))
    states = affine_states(box, given)
    images = [differentiated(a, c) for a, c in zip(box.axes, cores, strict=True)]
    product = products.matvec(affine_generator(box, *given).cores, cores)
    return cores, Applied(states, images), product


@pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-6])
def test_sums_of_operators_are_rounded_within_the_tolerance(tol: float):
    cores, applied, product = affine_sum()
    exact = tt.to_dense(tt.TT(product)) * 0.2 + 1.5 * tt.to_dense(tt.TT(cores))
    out = rounded([applied, Train(cores)], [0.2, 1.5], tol)
    dense = tt.to_dense(tt.TT(out.cores))
    assert np.linalg.norm(dense - exact) <= tol * np.linalg.norm(exact)
    assert np.isclose(out.norm, np.linalg.norm(dense))
    best = tt.round(tt.TT(product) * 0.2 + tt.TT(cores) * 1.5, tol=tol).ranks[1:-1]
    assert all(r <= b + 1 for r, b in zip(out.ranks, best, strict=True))
    narrow = rounded([applied, Train(cores)], [0.2, 1.5], tol, [1, 1, 1])
    assert narrow.ranks == out.ranks


def test_norms_are_estimated():
    cores, applied, product = affine_sum()
    found = relative_norm([applied], [1.0], Train(cores))
    assert 0.6 < found * tt.norm(tt.TT(cores)) / tt.norm(tt.TT(product)) < 1.6


def test_caps_are_kept_and_reported():
    cores, applied, _ = affine_sum()
    out = rounded([applied, Train(cores)], [0.2, 1.5], 1e-6, cap=2)
    assert out.capped
    assert max(out.ranks) == 2


def test_paths_solve_the_equation_of_the_map():
    a, b = np.array([[0.1, 2.0], [-1.5, 0.2]]), np.array([0.3, -0.4])
    start = pde.affine([[1.0, 0.2], [0.0, 2.0]], [0.1, 0.2])
    path = Path(start, 0.0, 0.7, [Moment(0.0, a, b)])
    big = np.block([[a, b[:, None]], [np.zeros((1, 3))]]) * 0.7
    w, z = np.linalg.eig(big)
    flow = (z @ np.diag(np.exp(w)) @ np.linalg.inv(z)).real
    end = path.map(1.0)
    np.testing.assert_allclose(end.matrix, flow[:2, :2] @ start.matrix, atol=1e-14)
    np.testing.assert_allclose(end.shift, flow[:2, :2] @ start.shift + flow[:2, 2], atol=1e-14)
    # A polynomial Σ that commutes with itself: the exponential of its integral.
    moments = [Moment(t, (1 + t + t**2) * a, 0 * b) for t in (-0.6, -0.2, 0.0)]
    path = Path(pde.AffineMap.identity(2), 0.0, 0.5, moments)
    w, z = np.linalg.eig(a * (0.5 + 0.5**2 / 2 + 0.5**3 / 3))
    flow = (z @ np.diag(np.exp(w)) @ np.linalg.inv(z)).real
    np.testing.assert_allclose(path.map(1.0).matrix, flow, atol=1e-14)
    np.testing.assert_allclose(path.motion(1.0)[0], (1 + 0.5 + 0.25) * a, atol=1e-13)
    assert Path(start, 0.0, 1.0, []).map(1.0) is start


def test_motions_that_jump_are_not_extrapolated():
    def moments(values: list[float]) -> list[Moment]:
        one = np.array([[0.0, 1.0], [-1.0, 0.0]])
        return [Moment(0.1 * k, a * one, np.zeros(2)) for k, a in enumerate(values)]

    smooth, jumping = [1.0, 1.1, 1.21, 1.33], [0.3, 0.3, 0.3, 1.5]
    assert [len(told(moments(smooth[:k]), 2)) for k in range(5)] == [0, 1, 2, 3, 3]
    assert [len(told(moments(jumping), k)) for k in range(3)] == [1, 1, 1]
    assert told(moments(jumping), 2)[-1].t == pytest.approx(0.3)
    assert [jumps(moments(x), 2) for x in (smooth, jumping, jumping[:3])] == [False, True, False]
    # A parabola that meets the last jump by chance does not tell the next.
    assert len(told(moments([1.96, 2.74, 2.3, 0.0]), 2)) == 1


@pytest.mark.parametrize(("method", "most"), [("ab2", 3e-4), ("ab3", 3e-5), ("imex", 6e-4)])
def test_multistep_methods_begin_again_where_the_motion_jumps(method: Any, most: float):
    """With slopes of the motion before, all three would have an error of 4e-3."""
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    motion = Prescribed(lambda t: turn if t < 0.2499 else -turn)
    problem = process()
    state = pde.integrate(
        problem, t1=T1, dt=T1 / 20, tol=1e-10, method=method, coordinates=motion
    ).final
    x = problem.sample(np.random.default_rng(0), T1, 200)
    exact = problem.exact(T1, x)
    found = pde.evaluate(state.v, state.map, problem.box, x)
    assert np.linalg.norm(found - exact) < most * np.linalg.norm(exact)


def test_splitting_methods_start_from_a_product_state_and_follow_the_rank():
    problem = process()
    for method in ("bug", "projector splitting"):
        solution = pde.integrate(
            problem, t1=0.5, dt=0.025, tol=1e-6, coordinates="fixed", method=method
        )
        x = problem.sample(np.random.default_rng(0), 0.5, 200)
        state = solution.final
        exact = problem.exact(0.5, x)
        found = pde.evaluate(state.v, state.map, problem.box, x)
        assert np.linalg.norm(found - exact) < 2e-4 * np.linalg.norm(exact)
        assert 3 <= solution.stats["rank"][-1] <= 12


@pytest.mark.parametrize("method", ["rk4", "rk2", "ab2", "ab3", "bug", "projector splitting"])
def test_nothing_happens_where_the_right_side_is_zero(method: Any):
    start = pde.Gaussian(np.zeros(2), np.array([[1.0, 0.3], [0.3, 0.5]]))
    problem = pde.FokkerPlanck(None, None, start, pde.Box.fourier(2, 24))
    solution = pde.integrate(problem, t1=0.3, dt=0.1, tol=1e-8, method=method, accuracy=1e-2)
    assert solution.result == pde.Result.successful
    before = problem.initial(pde.AffineMap.identity(2), 1e-8)
    assert tt.distance(solution.final.v, before) < 1e-6 * tt.norm(before)


def growing() -> pde.AdvectionDiffusionReaction:
    """Logistic growth in a flow that turns, known along characteristics."""
    start = pde.Gaussian(np.zeros(2), np.diag([0.8, 0.5]), amplitude=0.5)
    turn = np.array([[0.0, 0.6], [-0.6, 0.0]])
    return pde.AdvectionDiffusionReaction(
        None, None, start, pde.Box.fourier(2, 32, 6.0), matrix=turn, reaction=(0, 1.5, -1.5)
    )


def end_error(problem: Any, solution: pde.Solution, t: float, points: Any) -> float:
    assert solution.result == pde.Result.successful
    state = solution.final
    exact = problem.exact(t, points)
    found = pde.evaluate(state.v, state.map, problem.box, points)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("method", ["bug", "projector splitting"])
def test_splitting_methods_take_reactions_at_order_two(method: Any):
    problem, x = growing(), np.random.default_rng(0).normal(size=(200, 2))
    e = [
        end_error(
            problem,
            pde.integrate(
                problem,
                t1=0.5,
                dt=0.5 / n,
                tol=1e-9,
                method=method,
                coordinates="fixed",
                accuracy=1e-3,
            ),
            0.5,
            x,
        )
        for n in (10, 20)
    ]
    assert abs(np.log2(e[0] / e[1]) - 2) < 0.2
    assert e[1] < 1e-3


@pytest.mark.parametrize("method", ["bug", "projector splitting"])
def test_splitting_methods_choose_their_steps(method: Any):
    """The estimate is of the size of the error of a step, of its order, and steps follow it."""
    problem, x = growing(), np.random.default_rng(0).normal(size=(200, 2))
    estimates = []
    for dt in (0.1, 0.05):
        only = pde.integrate(
            problem, t1=dt, dt=dt, tol=1e-9, method=method, coordinates="fixed", accuracy=1e-3,
            stepsize_controller=pde.PIDController(1.0),
        )  # fmt: skip
        estimates.append(only.stats["error"][0])
        assert 0.1 < estimates[-1] / end_error(problem, only, dt, x) < 10
    assert abs(np.log2(estimates[0] / estimates[1]) - 3) < 0.5
    errors, steps = [], []
    for rtol in (1e-3, 1e-5):
        found = pde.integrate(
            problem, t1=0.5, tol=1e-7, method=method, coordinates="fixed", accuracy=1e-3,
            stepsize_controller=pde.PIDController(rtol),
        )  # fmt: skip
        errors.append(end_error(problem, found, 0.5, x))
        steps.append(len(found.stats["t"]))
        assert errors[-1] < 10 * rtol
    assert errors[1] < errors[0] / 5
    assert steps[1] > 2 * steps[0]


def test_implicit_diffusion_takes_steps_that_explicit_methods_cannot():
    start = pde.Gaussian(np.zeros(3), 0.5 * np.eye(3))
    diffusion = np.array([[1.0, 0.4, 0.0], [0.4, 1.0, 0.4], [0.0, 0.4, 1.0]])
    problem = pde.OrnsteinUhlenbeck(-0.2 * np.eye(3), diffusion, start, pde.Box.fourier(3, 96, 9.0))
    options: dict[str, Any] = {"t1": 0.4, "dt": 0.02, "tol": 1e-5, "coordinates": "fixed"}
    implicit = pde.integrate(problem, method="imex", **options)
    assert implicit.result == pde.Result.successful
    x = problem.sample(np.random.default_rng(0), 0.4, 200)
    found = pde.evaluate(implicit.final.v, implicit.final.map, problem.box, x)
    exact = problem.exact(0.4, x)
    assert np.linalg.norm(found - exact) < 1e-3 * np.linalg.norm(exact)
    assert pde.integrate(problem, method="rk4", **options).result == pde.Result.cfl
    still = pde.Liouville(np.zeros((3, 3)), start, problem.box)
    with pytest.raises(ValueError, match="constant diffusion matrix"):
        pde.integrate(still, method="imex", **options)
