"""Ready-made problems on their defaults, at drawn parameters: densities, moments, Monte Carlo."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import special

from tensorjax import pde
from tests.oracles import error, norm
from tests.test_pde_problems import mesh

HALF_LINES = (
    pde.Axis("log", 81, 0.002, 40.0),
    pde.Axis("laguerre", 48, 0.0, 40.0, power=0.6),
)


def values(problem: Any, state: pde.State) -> np.ndarray:
    return np.asarray(pde.evaluate(state.v, state.map, problem.box, mesh(problem.box)))


def relative(found: Any, exact: Any) -> float:
    return error(found, exact) / norm(exact)


def brownian(rng: np.random.Generator) -> Any:
    rate, volatility, time = rng.uniform([-0.2, 0.1, 0.5], [0.3, 0.5, 2.0])
    x0 = rng.uniform(0.3, 50)
    return pde.GeometricBrownianMotion(rate, volatility, x0, horizon=time), time


def correlated(rng: np.random.Generator) -> Any:
    ties = np.array([[1.0, 0.0], [0.0, 1.0]])
    ties[0, 1] = ties[1, 0] = rng.uniform(-0.6, 0.6)
    rates, volatilities = rng.uniform([[-0.1] * 2, [0.1] * 2], [[0.2] * 2, [0.3] * 2])
    return pde.GeometricBrownianMotion(rates, volatilities, 2.0, correlation=ties), 0.5


def square_root(rng: np.random.Generator) -> Any:
    rate, level, excess, x0 = rng.uniform([0.3, 0.03, 1.0, 0.5], [3.0, 2.0, 12.0, 1.5])
    sigma = np.sqrt(2 * rate * level / excess)
    return pde.CIR(rate, level, sigma, x0=x0 * level), rng.uniform(0.5, 2.0)


@pytest.mark.parametrize("make", [brownian, correlated, square_root])
@pytest.mark.parametrize("draw", [0, *[pytest.param(k, marks=pytest.mark.slow) for k in (1,)]])
def test_processes_on_half_lines_have_their_densities(make: Any, draw: int):
    problem, time = make(np.random.default_rng(draw))
    solution = pde.integrate(problem, t1=time)
    assert solution.result == pde.Result.successful, solution.message
    final = solution.final
    exact = problem.exact(time, mesh(problem.box))
    assert relative(values(problem, final), exact) < 1e-4
    mass, mean, covariance = pde.moments(final.v, final.map, problem.box)
    _, wanted, spread = problem.moments(time)
    assert abs(mass - 1) < 1e-4
    assert np.abs(mean / wanted - 1).max() < 1e-3
    assert np.abs(covariance - spread).max() < 1e-2 * np.abs(spread).max()
    drawn = problem.sample(np.random.default_rng(3), time, 20_000)
    assert np.abs(drawn.mean(0) / wanted - 1).max() < 0.05


def test_heston_has_the_moments_of_its_closed_equation(rng: np.random.Generator):
    rate, excess, tie, trend = rng.uniform([1.0, 1.2, -0.8, -0.1], [3.0, 4.0, 0.5, 0.2])
    level = rng.uniform(0.03, 0.1)
    sigma = np.sqrt(2 * rate * level / excess)
    model = pde.Heston(rate, level, sigma, tie, drift_rate=trend, v0=0.8 * level)
    solution = pde.integrate(model, t1=0.1, tol=1e-4)
    assert solution.result == pde.Result.successful, solution.message
    final = solution.final
    _, mean, covariance = pde.moments(final.v, final.map, model.box)
    found = model.moments(0.1)
    assert found is not None
    assert np.abs(mean - found[1]).max() < 0.01 * np.sqrt(found[2][0, 0])
    scale = np.sqrt(np.outer(np.diag(found[2]), np.diag(found[2])))
    assert np.abs((covariance - found[2]) / scale).max() < 0.02
    alike = pde.Gaussian(*model.moments(0.0)[1:])  # type: ignore[index]
    for start in (alike, pde.Mixture([0.3, 0.7], [alike, alike])):
        again = dataclasses.replace(model, start=start).moments(0.1)
        assert all(np.allclose(a, b) for a, b in zip(again, found, strict=True))  # type: ignore
    (points,), marginal = pde.marginal(final.v, final.map, model.box, axes=(1,))
    exact = model.start.parts[1].later(0.1).values(points)
    assert np.abs(marginal - exact).max() < 2e-3 * exact.max()


@pytest.mark.slow
@pytest.mark.parametrize("draw", range(2))
def test_kramers_is_boltzmann_on_its_defaults(draw: int):
    friction, temperature = np.random.default_rng([5, draw]).uniform([0.3, 0.15], [3.0, 0.8])
    problem = pde.Kramers(friction=friction, temperature=temperature)
    found = pde.stationary(problem)
    assert found.result == pde.Result.successful, found.message
    exact = problem.stationary_density(mesh(problem.box))
    assert relative(values(problem, found.final), exact) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("draw", range(4))
def test_kramers_is_boltzmann_on_grids_where_amen_stalls(draw: int):
    """Cold or weakly damped wells on 3645 points: systems above those factored at once."""
    rng = np.random.default_rng([9, draw])
    friction, temperature = rng.uniform([0.4, 0.13], [0.9, 0.26])
    known = pde.Kramers((0, rng.uniform(-0.05, 0.05), -0.5, 0, 0.25), friction=friction,
                        temperature=temperature)  # fmt: skip
    sizes = zip((81, 45), (1.03 * a.high for a in known.box.axes), strict=True)
    box = pde.Box([pde.Axis("fourier", n, -high, high) for n, high in sizes])
    problem = pde.Kramers(known.potential, friction=friction, temperature=temperature, box=box,
                          start=known.start)  # fmt: skip
    found = pde.stationary(problem)
    assert found.result == pde.Result.successful, found.message
    exact = problem.stationary_density(mesh(problem.box))
    assert relative(values(problem, found.final), exact) < 1e-5


@pytest.mark.parametrize(
    ("problem", "times"),
    [
        pytest.param(pde.DoubleWell(), [0.3, 10.0]),
        pytest.param(pde.DoubleWell(0.7, 1.1, 0.3), [1.0, 3.0], marks=pytest.mark.slow),
        pytest.param(
            pde.DoubleWell(dim=2, coupling=0.5), [0.3], marks=pytest.mark.slow, id="chain"
        ),
        pytest.param(pde.Kramers(), [0.3, 1.0], marks=pytest.mark.slow),
        pytest.param(pde.Duffing(), [0.3, 1.0], marks=pytest.mark.slow),
    ],
    ids=lambda p: type(p).__name__,
)
def test_runs_in_potentials_are_accurate_on_their_defaults(problem: Any, times: list[float]):
    """What the grid adds at the ends of the box would show in the variances."""
    for t1 in times:
        found = pde.integrate(problem, t1=t1)
        assert found.result == pde.Result.successful, found.message


@pytest.mark.parametrize(
    "problem",
    [
        pde.DoubleWell(0.8, 1.2, 0.5),
        pde.DoubleWell(temperature=0.5, dim=2, coupling=0.4),
        pde.CIR(1.5, 0.5, 0.6),
        pytest.param(pde.Kramers((0, 0.1, 0.5, 0.2, 0.1)), marks=pytest.mark.slow),
    ],
    ids=lambda p: type(p).__name__,
)
def test_stationary_densities_are_the_closed_forms(problem: Any):
    x = mesh(problem.box)
    exact = problem.stationary_density(x)
    found = pde.stationary(problem)
    assert found.result == pde.Result.successful, found.message
    assert relative(values(problem, found.final), exact) < 2e-5


def drawn_oscillators() -> list[Any]:
    rng = np.random.default_rng(8)
    a, b, c = rng.uniform([0.5, 0.3, 0.5], [1.5, 1.0, 2.0])
    noise = rng.uniform(0.1, 0.3, 3)
    return [
        pde.LotkaVolterra(a, 1.2, 0.8, c, (0.2, 0.3), x0=(0.8, 0.7)),
        pytest.param(pde.VanDerPol(a, noise[0]), marks=pytest.mark.slow),
        pytest.param(pde.Duffing(b, intensity=noise[1]), marks=pytest.mark.slow),
        pytest.param(pde.Kramers(friction=c, temperature=noise[2]), marks=pytest.mark.slow),
    ]


@pytest.mark.parametrize("problem", drawn_oscillators(), ids=lambda p: type(p).__name__)
def test_oscillators_have_the_covariances_of_their_paths(problem: Any):
    solution = pde.integrate(problem, t1=0.5, tol=1e-4, coordinates="fixed")
    assert solution.result == pde.Result.successful, solution.message
    final = solution.final
    _, _, found = pde.moments(final.v, final.map, problem.box)
    rng = np.random.default_rng(1)
    if isinstance(problem, pde.LotkaVolterra):
        paths = populations(problem, rng, 0.5)
    else:
        paths = problem.simulate(rng, 0.5, 100_000, steps=50)
    sampled = np.cov(paths.T)
    assert np.abs(found - sampled).max() < 0.02 * np.diag(sampled).max()


def populations(problem: pde.LotkaVolterra, rng: np.random.Generator, time: float) -> np.ndarray:
    """Simulates paths of log x, whose noise is constant, by Heun's method."""
    sigma = np.broadcast_to(np.asarray(problem.volatility), 2)
    rates = np.array([problem.birth, -problem.death]) - sigma**2 / 2
    ties = np.array([[0.0, -problem.predation], [problem.growth, 0.0]])
    z, h = np.log(problem.start.sample(rng, 50_000)), time / 50
    for _ in range(50):
        kick = np.sqrt(h) * sigma * rng.standard_normal(z.shape)
        first = rates + np.exp(z) @ ties.T
        z = z + h / 2 * (first + rates + np.exp(z + h * first + kick) @ ties.T) + kick
    return np.exp(z)


@pytest.mark.parametrize("axis", HALF_LINES, ids=lambda a: a.kind)
def test_axes_of_half_lines_differentiate_and_integrate(axis: pde.Axis):
    y = axis.points

    def density(x: np.ndarray) -> np.ndarray:
        return x**3.6 * np.exp(-1.7 * x)

    u, v = density(y), axis.factor * density(y)
    slope, rate = 3.6 / y - 1.7, 3.6 / y**2
    scale = np.abs(v).max()
    for matrix, exact in ((axis.d1, slope * u), (axis.d2, (slope**2 - rate) * u)):
        assert np.abs(matrix @ v - axis.factor * exact).max() < 1e-4 * scale
    _, d, multiply, moved, _ = axis.basis
    assert np.abs(moved @ v - multiply @ (d @ v)).max() < 1e-4 * scale
    assert abs(axis.weights @ v / (special.gamma(4.6) / 1.7**4.6) - 1) < 1e-5
    grid = np.linspace(0.2, 6.0, 50)
    assert np.abs(axis.interpolate(grid) @ v - density(grid)).max() < 1e-5
    assert not axis.interpolate(np.array([-1.0, 50.0])).any()
    np.testing.assert_allclose(axis.fine @ axis.fine.T, np.eye(len(axis.fine)), atol=1e-10)
    assert not axis.movable
    assert pde.Axis("fourier", 8, 0.0, 1.0).movable


def test_coordinates_rest_on_half_lines():
    problem = pde.CIR()
    adaptive, fixed = (
        pde.integrate(problem, t1=0.2, tol=1e-4, coordinates=c) for c in ("adaptive", "fixed")
    )
    assert not adaptive.stats["asked"].any()
    for a, b in zip(adaptive.final.v.cores, fixed.final.v.cores, strict=True):
        assert np.array_equal(a, b)
    with pytest.raises(ValueError, match="where coordinates stay at rest"):
        pde.integrate(problem, t1=0.1, coordinates=pde.MultiLevel())
    turned = pde.affine([[2.0]])
    with pytest.raises(ValueError, match="map: expected the identity"):
        pde.integrate(problem, t1=0.1, map=turned)
    with pytest.raises(ValueError, match="map: expected the identity"):
        pde.stationary(problem, map=turned)


def test_runs_beyond_the_horizon_are_advised_to_take_a_longer_one():
    found = pde.integrate(pde.GeometricBrownianMotion(volatility=0.5), t1=3.0, tol=1e-3)
    assert found.result == pde.Result.edge_mass
    assert "horizon=" in found.message
    assert "follow the solution" not in found.message


@pytest.mark.parametrize("ratio", [61.0, 90.0, 300.0, 1000.0])
def test_square_root_processes_far_from_zero_are_resolved(ratio: float, rng: Any):
    """2κθ/σ² is large: the start has no expansion in few Laguerre functions of that exponent."""
    rate, level = rng.uniform(0.3, 4), np.exp(rng.uniform(-4, 1))
    volatility = np.sqrt(2 * rate * level / ratio)
    process = pde.CIR(rate, level, volatility, x0=level * rng.uniform(0.7, 1.4))
    time = float(rng.uniform(0.2, 1.0))
    final = pde.integrate(process, t1=time).final
    x = mesh(process.box)
    exact = process.exact(time, x)
    assert exact is not None
    assert np.isfinite(exact).all()
    values = np.asarray(pde.evaluate(final.v, final.map, process.box, x))
    assert np.linalg.norm(values - exact) < 1e-5 * np.linalg.norm(exact)


@pytest.mark.parametrize("seed", range(4))
def test_starts_of_steep_wells_ask_for_no_wider_box_than_the_density_at_rest(seed: int):
    """The tails of a Gaussian of the curvature at the bottom would be at energies far above."""
    rng = np.random.default_rng(seed)
    mass, temperature = rng.uniform(0.5, 2), rng.uniform(0.1, 0.8)
    steep = [0, 0, rng.uniform(0.3, 1), 0, rng.uniform(0.05, 0.5), 0, rng.uniform(0.02, 0.2)]
    problem = pde.Kramers(steep, 1.0, temperature, mass=mass)
    momenta = problem.box.axes[1]
    assert momenta.high <= 1.1 * np.sqrt(2 * mass * 28 * temperature)
    # A parabola keeps the start that is at rest in it.
    parabola = pde.Kramers([0, 0, rng.uniform(0.3, 1)], 1.0, temperature, mass=mass)
    assert parabola.start.covariance[0, 0] == pytest.approx(
        temperature / (2 * parabola.potential[2])
    )


def test_other_starts_have_no_closed_form_and_need_a_box():
    start = pde.Gaussian([1.0], [[0.04]])
    for problem in (pde.CIR(), pde.GeometricBrownianMotion()):
        with pytest.raises(ValueError, match=r"box: expected a pde\.Box"):
            type(problem)(start=start)
        other = dataclasses.replace(problem, start=start)
        assert other.exact(0.1, np.ones((1, 1))) is None
        assert other.moments(0.1) is None
    slower = dataclasses.replace(pde.CIR(), rate=0.5)
    assert slower.exact(0.1, np.ones((1, 1))) is None  # its start is that of the other process


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pde.CIR(1.0, 0.04, 0.3), "Feller"),
        (lambda: pde.Heston(1.0, 0.04, 0.3), "Feller"),
        (lambda: pde.Heston(correlation=1.0), "correlation: expected a number within"),
        (lambda: pde.Kramers(friction=0.0), "friction: expected a positive number"),
        (lambda: pde.Kramers((0, 0, 0, 1.0)), "potential: expected coefficients"),
        (lambda: pde.Duffing(cubic=-1.0), "potential: expected coefficients"),
        (lambda: pde.DoubleWell(coupling=-1.0), "coupling: expected a number >= 0"),
        (lambda: pde.VanDerPol(intensity=np.nan), "intensity: expected a finite number"),
        (lambda: pde.LotkaVolterra(x0=(0.0, 1.0)), "prey: expected a positive number"),
        (lambda: pde.GeometricBrownianMotion([0.1, 0.2], [0.1] * 3), "rate: expected shape"),
        (
            lambda: pde.GeometricBrownianMotion(volatility=-0.1),
            "volatility: expected positive numbers, got -0.1",
        ),
        (lambda: pde.GeometricBrownianMotion(correlation=2 * np.eye(2)), "ones on its diagonal"),
        (lambda: pde.Axis("log", 32, 0.0, 1.0), "low: expected a positive end"),
        (lambda: pde.Axis("laguerre", 200, 0.0, 1.0), "n: expected"),
        (lambda: pde.Axis("laguerre", 20, 0.0, 1.0, power=-0.5), "power: expected"),
    ],
)
def test_parameters_out_of_range_are_refused(make: Any, message: str):
    with pytest.raises(ValueError, match=message):
        make()
