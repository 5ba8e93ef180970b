"""Times up to roundoff: ends, times to save at, restarts; and steps that a controller takes."""

from typing import Any

import jax
import numpy as np
import pytest

from tensorjax import pde
from tensorjax.pde._integration.solution import save_times
from tensorjax.pde._stepping.times import reaches, snapped, step_count


def resting(n: int = 16) -> pde.OrnsteinUhlenbeck:
    start = pde.Gaussian(np.zeros(2), np.eye(2))
    return pde.OrnsteinUhlenbeck(
        np.zeros((2, 2)), 1e-3 * np.eye(2), start, pde.Box.fourier(2, n, 6.0)
    )


def sums(begin: float, dt: float, count: int) -> list[float]:
    """An end by three arithmetics that differ by roundoff."""
    total = begin
    for _ in range(count):
        total += dt
    return [begin + count * dt, total, float(np.linspace(begin, begin + count * dt, count + 1)[-1])]


@pytest.mark.parametrize("seed", range(4))
def test_steps_are_as_many_as_meant_and_none_is_roundoff(seed: int):
    rng = np.random.default_rng(seed)
    for _ in range(60):
        begin = rng.choice([0.0, 1.0, -1.0]) * 10 ** rng.uniform(-3, 4)
        begin, dt = float(np.round(begin, 3)), float(np.round(10 ** rng.uniform(-3, 1), 3))
        count = int(rng.integers(1, 600))
        for end in sums(begin, dt, count):
            assert step_count(begin, end, dt) == count
            t, made = begin, 0
            while t < end:
                t = end if reaches(dt, t, end) else t + dt
                made += 1
            assert made == count
        assert step_count(begin, begin + (count + 0.01) * dt, dt) == count + 1


def test_times_that_roundoff_parts_are_one():
    assert save_times(pde.SaveAt(ts=(0.1, 0.2, 3 * 0.1)), 0.0, 0.3) == [0.1, 0.2, 0.3]
    assert snapped([0.3, 3 * 0.1], 0.0, 1.0) == [0.3, 0.3]
    for begin in (-0.3, 0.3, 1e5):
        below, above = np.nextafter(begin, -np.inf), np.nextafter(begin + 0.4, np.inf)
        assert save_times(pde.SaveAt(ts=(below, above)), begin, begin + 0.4) == [begin, begin + 0.4]
    for wrong in ((0.1, 0.3 + 1e-9), (-1e-9, 0.1), (0.1, 0.1)):
        with pytest.raises(ValueError, match="saveat: expected"):
            save_times(pde.SaveAt(ts=wrong), 0.0, 0.3)


@pytest.mark.parametrize("method", ["rk2", "ab3"])
@pytest.mark.parametrize("controlled", [False, True])
def test_runs_take_no_step_of_roundoff(method: Any, controlled: bool, rng: Any):
    """Ends and times to save at by sums and by products, from any start."""
    problem = resting()
    for _ in range(3):
        begin = float(np.round(rng.uniform(-1, 1), 1))
        count, dt = int(rng.integers(2, 6)), float(rng.choice([0.1, 0.7, 0.01]))
        ends = sums(begin, dt, count)
        ts = [begin + k * dt for k in range(1, count)] + [float(rng.choice(ends))]
        options: dict[str, Any] = {"saveat": pde.SaveAt(ts=ts, t1=True)}
        if controlled:
            options["stepsize_controller"] = pde.PIDController(1e-2)
        solution = pde.integrate(
            problem, t0=begin, t1=float(rng.choice(ends)), dt=dt, tol=1e-3, method=method,
            coordinates="fixed", **options,
        )  # fmt: skip
        assert solution.result == pde.Result.successful
        assert solution.stats["dt"].min() > 1e-3 * dt
        np.testing.assert_allclose(solution.ts, ts, rtol=0, atol=1e-12)
        assert len(solution.ys) == count
        still = pde.integrate(
            problem, t1=max(ends), dt=dt, start=solution.final, coordinates="fixed"
        )
        assert still.result == pde.Result.successful
        assert still.final.t == solution.final.t
        assert not still.stats["t"].size
        with pytest.raises(ValueError, match="t1: expected a time at"):
            pde.integrate(problem, t1=begin, dt=dt, start=solution.final, coordinates="fixed")


@pytest.mark.parametrize("rank", [None, 3])
def test_a_run_of_no_length_returns_its_start(rank: int | None, rng: Any):
    problem = resting()
    options: dict[str, Any] = {"dt": 0.1, "coordinates": "fixed", "rank": rank}
    for _ in range(2):
        begin = float(rng.uniform(-1, 1))
        map = pde.affine(np.eye(2) + rng.normal(0, 0.1, (2, 2)))
        still = pde.integrate(problem, t0=begin, t1=begin, map=map, **options)
        assert still.result == pde.Result.successful
        assert still.ts.tolist() == [begin]
        x = problem.sample(rng, 0.0, 50)
        found = pde.evaluate(still.final.v, still.final.map, problem.box, x)
        np.testing.assert_allclose(found, problem.exact(0.0, x), atol=1e-3)
        assert len(still.stats["rank"]) == len(still.stats["dt"]) == 0
    if rank is None:
        both = pde.integrate(problem, t1=0.0, saveat=pde.SaveAt(t0=True, ts=(0.0,)), **options)
        assert len(both.ys) >= 1
    else:
        traced = jax.jit(
            lambda v: pde.integrate(
                problem, t1=0.0, start=pde.State(v, pde.AffineMap.identity(2), 0.0), **options
            ).final.v.cores[0]
        )(problem.initial(pde.AffineMap.identity(2), 1e-3))
        assert np.isfinite(traced).all()


def test_a_controller_goes_back_from_a_step_that_is_unstable(rng: Any):
    """Drawn processes: whatever ends a run, it is not a step that the controller chose."""
    for _ in range(12):
        speed = 10 ** rng.uniform(-0.5, 0.7)
        matrix = speed * (rng.normal(0, 0.6, (2, 2)) - rng.uniform(0, 0.7) * np.eye(2))
        diffusion = speed * 10 ** rng.uniform(-2.5, 0.0)
        start = pde.Gaussian(rng.normal(0, 0.3, 2), np.diag(rng.uniform(0.4, 1.2, 2)))
        problem = pde.OrnsteinUhlenbeck(
            matrix, diffusion * np.eye(2), start, pde.Box.fourier(2, 32, 6.0)
        )
        solution = pde.integrate(
            problem, t1=0.6 / speed, tol=1e-3, coordinates="fixed",
            method=rng.choice(["rk4", "rk2", "ab2"]), stepsize_controller=pde.PIDController(3e-3),
        )  # fmt: skip
        # What truncation takes from a variance ends no run, but is told at its end.
        ends = {pde.Result.successful, pde.Result.inaccurate}
        assert solution.result in ends | {pde.Result.edge_mass, pde.Result.unresolved}, solution
    turn = pde.OrnsteinUhlenbeck(
        np.array([[-0.5, 1.0], [-1.0, -0.5]]), 0.1 * np.eye(2),
        pde.Gaussian(np.zeros(2), np.diag([1.0, 0.25])), pde.Box.fourier(2, 32, 6.0),
    )  # fmt: skip
    solution = pde.integrate(
        turn, t1=1.0, dt=0.5, tol=1e-3, coordinates="fixed", method="rk4",
        stepsize_controller=pde.PIDController(1e-3),
    )  # fmt: skip
    assert solution.result == pde.Result.successful
    assert solution.stats["rejected"] > 0


def test_what_a_function_makes_of_states_is_saved_in_place_of_them(rng: Any):
    rate, noise = rng.uniform([0.5, 0.1], [1.5, 0.4])
    start = pde.Gaussian([0.5], [[0.2]])
    problem = pde.OrnsteinUhlenbeck([[-rate]], [[noise]], start, pde.Box.fourier(1, 40, 5.0))

    def mean(state: pde.State) -> float:
        return float(pde.moments(state.v, state.map, problem.box)[1][0])

    times = [0.0, 0.1, 0.25]
    found = pde.integrate(problem, t1=0.25, saveat=pde.SaveAt(ts=times, fn=mean))
    np.testing.assert_allclose(found.ys, 0.5 * np.exp(-rate * np.array(times)), rtol=1e-4)
    assert found.ts.tolist() == times
    assert found.final.t == 0.25
    assert "t=0.25" in repr(found)
    stopped = pde.integrate(problem, t1=1.0, max_steps=2, saveat=pde.SaveAt(t1=True, fn=mean))
    assert stopped.result == pde.Result.max_steps
    assert stopped.ys == [mean(stopped.final)]
    leaves = jax.tree.leaves(found)
    assert any(leaf is found.final.v.cores[0] for leaf in leaves)
    with pytest.raises(ValueError, match="fn"):
        pde.integrate(problem, t1=0.25, saveat=pde.SaveAt(t1=True, fn=3))  # type: ignore[arg-type]
