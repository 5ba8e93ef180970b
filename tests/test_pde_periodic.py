"""Periodic axes: angles that drift and diffuse around turns, against series and closed forms."""

import numpy as np
import pytest

from tensorjax import pde
from tensorjax.pde._long_times import linear_systems
from tensorjax.pde._long_times.stationary import operator_of
from tests.oracles import norm

COARSE = pde.Axis("periodic", 20, -np.pi, np.pi)
TURN = pde.Axis("periodic", 32, -np.pi, np.pi)


def series(angle, mean, variance):
    """Evaluates the wrapped normal density."""
    turns = 2 * np.pi * np.arange(-6, 7)
    z = np.subtract.outer(angle - mean, turns)
    return (np.exp(-(z**2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)).sum(-1)


@pytest.mark.parametrize("options", [{}, {"rank": 1, "dt": 0.02}, {"method": "imex"}])
def test_a_free_rotor_is_the_wrapped_normal_density_however_far_it_turns(rng, options):
    mean, speed, noise = rng.uniform([-3, 2.0, 0.1], [3, 6.0, 0.4])
    start = pde.Gaussian([mean], [[0.15]])
    free = pde.FokkerPlanck(None, noise, start, pde.Box([TURN]), offset=[speed])
    tol = 1e-3 if "method" in options else 1e-6
    found = pde.integrate(free, t1=1.0, tol=tol, **options)
    assert found.result == pde.Result.successful, found.message
    x = rng.uniform(-7, 7, 40)
    exact = series(x, mean + speed, 0.15 + 2 * noise)
    v = np.asarray(pde.evaluate(found.final.v, found.final.map, free.box, x[:, None]))
    assert norm(v - exact) < (1e-2 if "method" in options else 1e-4) * norm(exact)


def test_a_start_over_the_end_of_a_turn_is_wrapped(rng):
    covariance = np.array([[0.2, 0.1], [0.1, 0.3]])
    start = pde.Gaussian([3.0, 0.2], covariance)
    box = pde.Box([TURN, pde.Axis("fourier", 48, -4.0, 4.0)])
    v = pde.OrnsteinUhlenbeck(np.zeros((2, 2)), 0.1, start, box).initial(
        pde.AffineMap.identity(2), 1e-8
    )
    assert abs(float(pde.mass(v, pde.AffineMap.identity(2), box)) - 1) < 1e-6
    x = rng.uniform(-3, 3, (50, 2))
    exact = sum(start.values(x + np.array([2 * np.pi * k, 0])) for k in (-1, 0, 1))
    found = np.asarray(pde.evaluate(v, pde.AffineMap.identity(2), box, x))
    assert norm(found - exact) < 1e-4 * norm(exact)


def test_a_pendulum_in_a_bath_comes_to_rest_in_boltzmanns_density(rng):
    friction, temperature = rng.uniform([0.5, 0.8], [1.0, 1.2])
    box = pde.Box([TURN, pde.Axis("fourier", 33, -5.5, 5.5)])
    start = pde.Gaussian([0.5, 0.0], np.diag([0.3, temperature]))
    swing = pde.FokkerPlanck(
        [None, pde.Sin([1.0, 0.0], amplitude=-1.0)], np.diag([0.0, friction * temperature]),
        start, box, matrix=[[0.0, 1.0], [0.0, -friction]],
    )  # fmt: skip
    found = pde.stationary(swing, tol=1e-5)
    assert found.result == pde.Result.successful, found.message
    assert found.edge_mass < 1e-3
    angle, p = (g.ravel() for g in np.meshgrid(*box.points, indexing="ij"))
    x = np.stack([angle, p], 1)
    exact = np.exp((np.cos(angle) - p**2 / 2) / temperature)
    v = np.asarray(pde.evaluate(found.final.v, found.final.map, box, x))
    assert norm(v / norm(v) - exact / norm(exact)) < 1e-4
    solution = pde.integrate(swing, t1=0.5, tol=1e-4)
    assert solution.result == pde.Result.successful, solution.message
    assert not solution.stats["sigma"].any()
    rotated = pde.AffineMap(np.array([[1.0, 0.1], [0.0, 1.0]]), np.zeros(2))
    with pytest.raises(ValueError, match="periodic"):
        pde.integrate(swing, t1=0.5, map=rotated)
    with pytest.raises(ValueError, match="periodic"):
        pde.integrate(swing, t1=0.5, coordinates=pde.MultiLevel())


def test_coupled_rotors_fill_their_turns_without_an_edge(rng):
    coupling = rng.uniform(0.5, 1.0)
    e = np.eye(2)
    drift = [
        pde.Sin(e[1] - e[0], amplitude=coupling),
        pde.Sin(e[0] - e[1], amplitude=coupling),
    ]
    rotors = pde.FokkerPlanck(
        drift, 0.5, pde.Gaussian([2.5, -2.5], 0.3 * e), pde.Box([COARSE] * 2), offset=[0.4, 0.4]
    )
    found = pde.integrate(rotors, t1=4.0, tol=1e-4)
    assert found.result == pde.Result.successful, found.message
    assert abs(float(pde.mass(found.final.v, found.final.map, rotors.box)) - 1) < 1e-3
    # Their difference comes to rest in a von Mises density.
    angle = np.array([0.3, 1.0, 2.8])
    low, high = (g.ravel() for g in np.meshgrid(angle, TURN.points, indexing="ij"))
    x = np.stack([low + high, high], 1)
    v = np.asarray(pde.evaluate(found.final.v, found.final.map, rotors.box, x))
    shares = v.reshape(len(angle), -1).mean(1)
    exact = np.exp(coupling / 0.5 * np.cos(angle))
    assert np.abs(shares / shares[0] / (exact / exact[0]) - 1).max() < 0.05


def test_a_drift_linear_in_an_angle_is_refused():
    start = pde.Gaussian([0.0], [[0.1]])
    for make in (
        lambda: pde.OrnsteinUhlenbeck([[-1.0]], [[0.1]], start, pde.Box([TURN])),
        lambda: pde.FokkerPlanck(None, 0.1, start, pde.Box([TURN]), matrix=[[-1.0]]),
    ):
        with pytest.raises(ValueError, match="periodic"):
            make()


def test_a_start_of_any_width_keeps_its_mass(rng):
    for variance in 10 ** rng.uniform(-1, 2.5, 4):
        start = pde.Gaussian([rng.uniform(-3, 3)], [[variance]])
        problem = pde.FokkerPlanck(None, 0.5, start, pde.Box([TURN]))
        assert pde.integrate(problem, t1=0.01).stats["mass"][0] == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("field", ["drift", "diffusion"])
def test_fields_that_jump_where_a_turn_ends_are_refused(rng, field):
    start, rate = pde.Gaussian([0.5], [[0.1]]), rng.uniform(0.5, 2.0)

    def problem(f):
        given = (f, 0.5) if field == "drift" else (None, lambda x: 1 + 0.1 * f(x)[:, :, None])
        return pde.FokkerPlanck(*given, start, pde.Box([TURN]))

    problem(lambda x: rate * np.sin(x))
    with pytest.raises(ValueError, match=f"{field}: expected the same values at both ends"):
        problem(lambda x: rate * x)


@pytest.mark.parametrize("draw", range(3))
def test_a_pendulum_is_boltzmann_on_even_and_odd_numbers_of_points(draw):
    """No derivative sees the highest mode of an even number of points: it has to be damped."""
    rng = np.random.default_rng([9, draw])
    even, damping, heat = 2 * rng.integers(13, 20), rng.uniform(0.3, 1.0), rng.uniform(0.7, 1.0)
    width, start = 6.5 * np.sqrt(heat), pde.Gaussian([0.5, 0.0], np.diag([0.15, 0.5]))
    for n in (int(even), int(even) + 1):
        box = pde.Box(
            [pde.Axis("periodic", n, -np.pi, np.pi), pde.Axis("fourier", 40, -width, width)]
        )
        problem = pde.FokkerPlanck(
            [None, pde.Sin([1.0, 0.0], amplitude=-1.0)], np.diag([0, damping * heat]), start, box,
            matrix=[[0, 1.0], [0, -damping]],
        )  # fmt: skip
        found = pde.stationary(problem)
        assert found.result == pde.Result.successful, found.message
        x, y = np.meshgrid(*(a.points for a in box.axes), indexing="ij")
        exact = np.exp((np.cos(x) - y**2 / 2) / heat)
        exact /= np.einsum("ij,i,j->", exact, *box.weights)
        points = np.stack([x.ravel(), y.ravel()], 1)
        p = np.asarray(pde.evaluate(found.final.v, found.final.map, box, points))
        assert norm(p - exact.ravel()) < 1e-6 * norm(exact)
        # One eigenvalue is zero, that of the density.
        matrix = linear_systems._dense(operator_of(problem, pde.AffineMap.identity(2)))
        assert (np.abs(np.linalg.eigvals(matrix)) < 1e-6).sum() == 1
