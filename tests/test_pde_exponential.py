"""Exponential steps: exact along the axes, of order 4 beside them, and taken where they help."""

from typing import Any

import jax
import numpy as np
import pytest

from tensorjax import pde
from tensorjax.pde._integration import run as running


def error(problem: Any, solution: pde.Solution, rng: np.random.Generator, t: float) -> float:
    x = problem.sample(rng, t, 300)
    exact, end = problem.exact(t, x), solution.final
    found = pde.evaluate(end.v, end.map, problem.box, x)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("kind", ["fourier", "chebyshev", "finite differences"])
def test_what_acts_along_the_axes_is_exact_in_one_step(kind: Any, rng):
    matrix, noise = -np.diag(rng.uniform(0.3, 3, 2)), np.diag(rng.uniform(0.1, 1, 2))
    start = pde.Gaussian(rng.normal(0, 0.5, 2), np.diag(rng.uniform(0.3, 0.8, 2)))
    box = pde.Box([pde.Axis(kind, 80, -7.0, 7.0, order=6)] * 2)
    problem = pde.OrnsteinUhlenbeck(matrix, noise, start, box, offset=rng.normal(0, 0.3, 2))
    options: dict[str, Any] = {"t1": 1.0, "dt": 1.0, "tol": 1e-6, "coordinates": "fixed"}
    most = 1e-3 if kind == "finite differences" else None
    solution = pde.integrate(problem, method="exponential", accuracy=most, **options)
    assert solution.result == pde.Result.successful
    assert error(problem, solution, rng, 1.0) < (1e-3 if kind == "finite differences" else 1e-5)
    assert abs(solution.stats["mass"][-1] - 1) < 1e-5


@pytest.mark.parametrize("coordinates", ["fixed", "prescribed"])
def test_order_beside_the_axes(coordinates: Any, rng):
    matrix = np.array([[-0.5, 1.0], [-1.0, -0.5]]) * rng.uniform(0.8, 1.2)
    noise = np.array([[0.2, 0.05], [0.05, 0.1]])
    start = pde.Gaussian(np.zeros(2), np.diag([0.8, 0.4]))
    problem = pde.OrnsteinUhlenbeck(matrix, noise, start, pde.Box.fourier(2, 48, 6.0))
    if coordinates == "prescribed":
        turn = np.array([[0.1, 0.5], [-0.3, 0.0]])
        coordinates = pde.Prescribed(lambda t: (np.cos(t) * turn, np.zeros(2)))
    errors = []
    with jax.enable_x64(True):
        for dt in (0.1, 0.05):
            solution = pde.integrate(
                problem, t1=0.4, dt=dt, tol=1e-9, method="exponential", coordinates=coordinates
            )
            assert solution.result == pde.Result.successful
            errors.append(error(problem, solution, np.random.default_rng(0), 0.4))
    assert np.log2(errors[0] / errors[1]) > 3.5
    assert errors[1] < 1e-5


@pytest.mark.parametrize("coordinates", ["fixed", "adaptive"])
def test_the_default_goes_over_where_that_helps(coordinates: Any, rng):
    barrier, width = rng.uniform(1.5, 2.5), rng.uniform(0.9, 1.1)
    problem = pde.DoubleWell(barrier=barrier, minimum=width, temperature=0.5)
    options: dict[str, Any] = {"t1": 0.3, "tol": 1e-5, "coordinates": coordinates}
    solution = pde.integrate(problem, **options)
    assert solution.result == pde.Result.successful
    assert solution.stats["exponential"][-1]
    slow = pde.integrate(problem, method="rk4", **options)
    assert len(slow.stats["t"]) > 3 * len(solution.stats["t"])
    assert not slow.stats["exponential"].any()
    moments = [pde.moments(s.final.v, s.final.map, problem.box) for s in (solution, slow)]
    np.testing.assert_allclose(moments[0][2], moments[1][2], rtol=5e-3)
    # A run goes on from a saved state as it would have.
    first = pde.integrate(problem, **options, saveat=pde.SaveAt(steps=1))
    middle = first.ys[-2]
    again = pde.integrate(problem, **options, start=middle)
    assert again.stats["exponential"].all()
    pairs = zip(again.final.v.cores, first.final.v.cores, strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("seed", range(2))
def test_coordinates_rest_until_it_is_known_whether_an_equation_is_stiff(seed: int):
    """Coupled wells: exponential steps, which coordinates that have turned would rule out."""
    rng = np.random.default_rng(seed)
    problem = pde.DoubleWell(
        barrier=rng.uniform(1, 3), minimum=rng.uniform(0.8, 1.3), dim=3,
        temperature=rng.uniform(0.4, 0.8), coupling=rng.uniform(0.2, 0.8),
    )  # fmt: skip
    options: dict[str, Any] = {"t1": 0.25, "tol": 1e-3, "max_steps": 60}
    found = [pde.integrate(problem, coordinates=c, **options) for c in ("fixed", "adaptive")]
    assert found[0].stats["exponential"].any()
    assert found[0].result in (pde.Result.successful, pde.Result.inaccurate)
    assert found[1].result == found[0].result
    assert len(found[1].stats["t"]) == len(found[0].stats["t"])


def test_noise_at_the_edge_is_told_from_a_tail():
    """A process that contracts below the points, and one that leaves the box."""
    start = pde.Gaussian([0.5, 0.5], 0.1 * np.eye(2))
    fast, noise = np.array([[-60.0, 5.0], [5.0, -1.0]]), np.diag([2.0, 0.2])
    narrow = pde.OrnsteinUhlenbeck(fast, noise, start, pde.Box.fourier(2, 64, 4.0))
    found = pde.integrate(narrow, t1=0.2, method="rk4", coordinates="fixed")
    assert found.result == pde.Result.unresolved
    assert "more points" in found.message
    finer = pde.OrnsteinUhlenbeck(fast, noise, start, pde.Box.fourier(2, 128, 4.0))
    assert pde.integrate(finer, t1=0.1, tol=1e-5).result == pde.Result.successful
    leaves = pde.OrnsteinUhlenbeck(np.eye(2), 0.1, start, pde.Box.fourier(2, 64, 4.0))
    found = pde.integrate(leaves, t1=3.0, coordinates="fixed", tol=1e-5)
    assert found.result == pde.Result.edge_mass, found
    assert "larger box" in found.message


@pytest.mark.parametrize("stiff", [True, False])
def test_a_run_is_stiff_where_an_exponential_step_of_four_times_the_length_is_accepted(
    stiff: bool, rng: Any, monkeypatch: Any
):
    rate = rng.uniform(0.8, 1.2)
    start, box = pde.Gaussian(np.zeros(2), np.diag([0.5, 0.2])), pde.Box.fourier(2, 64, 5.0)
    turn = np.array([[0.0, 2.0], [-2.0, 0.0]])
    problem = (
        pde.OrnsteinUhlenbeck(-rate * np.eye(2), 0.3, start, box)
        if stiff else pde.Liouville(rate * turn, start, box)
    )  # fmt: skip
    seen: list[Any] = []
    asked = running.Run._is_stiff

    def recorded(self: Any, right: Any, clears: bool) -> bool:
        found = asked(self, right, clears)
        seen.append((self, right, found, self.memory.dt))
        return found

    monkeypatch.setattr(running.Run, "_is_stiff", recorded)
    monkeypatch.setattr(running.Run, "begin_stiff", lambda self, target: None)
    found = pde.integrate(problem, t1=1.5, tol=1e-6, coordinates="fixed")
    assert found.result == pde.Result.successful
    assert seen
    assert all(answer is stiff for _, _, answer, _ in seen)
    assert found.stats["exponential"].any() == stiff
    if stiff:  # at once, by four times the step
        first = int(np.argmax(found.stats["exponential"]))
        assert found.stats["dt"][first] == pytest.approx(4 * seen[-1][-1], rel=0.5)
        return
    # What fails within the trial step is no answer, but for what a shorter step would not show.
    run, right, *_ = seen[-1]
    for error, again in (
        (np.linalg.LinAlgError(), False),
        (FloatingPointError(), False),
        (ValueError("NaN in the drift"), False),
        (ValueError("the drift raised"), True),
    ):

        def fails(*_: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(running, "EXPONENTIAL", running.EXPONENTIAL._replace(step=fails))
        run._unanswered = False
        assert not asked(run, right, clears=False)
        assert run._unanswered == again


@pytest.mark.parametrize("seed", [9, 14])
def test_noise_far_out_takes_no_part_in_the_covariance(seed: int):
    """Two temperatures, and a tol at which tails of rounding would outweigh the density's."""
    rng = np.random.default_rng(seed)
    pull, cold, hot = rng.uniform(-0.6, 0.6), rng.uniform(0.05, 0.1), rng.uniform(0.2, 0.6)
    start, box = pde.Gaussian([0.3, -0.2], 0.1 * np.eye(2)), pde.Box.fourier(2, 64, 5.0)
    matrix = -np.array([[1.0, pull], [pull, 1.0]])
    problem = pde.OrnsteinUhlenbeck(matrix, np.diag([cold, hot]), start, box)
    with jax.enable_x64(True):
        found = pde.integrate(problem, t1=2.0, tol=1e-5)
        _, _, covariance = pde.moments(found.final.v, found.final.map, box)
    assert found.stats["exponential"].any()
    moments = problem.moments(2.0)
    assert moments is not None
    known = moments[2]
    width = np.sqrt(np.diag(known))
    assert np.abs((covariance - known) / np.outer(width, width)).max() < 3e-5
