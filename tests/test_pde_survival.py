"""Survival probabilities and first-passage time densities against series and closed forms."""

from typing import Any

import numpy as np
import pytest
from scipy import special

from tensorjax import pde
from tests.oracles import norm


def chebyshev(*axes: tuple[int, float, float]) -> pde.Box:
    return pde.Box(tuple(pde.Axis("chebyshev", n, low, high) for n, low, high in axes))


def planck(d: int, drift: Any, diffusion: Any, **options: Any) -> pde.FokkerPlanck:
    start = pde.Gaussian(np.zeros(d), 0.1 * np.eye(d))
    return pde.FokkerPlanck(drift, diffusion, start, pde.Box.fourier(d), **options)


def series(t: float, x: np.ndarray, noise: float, speed: float, length: float) -> Any:
    """Returns S and −∂S/∂t of Brownian motion with drift between walls at 0 and ``length``."""
    n, a = np.arange(1, 200), speed / (2 * noise)
    k = n * np.pi / length
    total = k * (1 - (-1.0) ** n * np.exp(a * length)) / (a**2 + k**2)
    rates = noise * k**2 + speed**2 / (4 * noise)
    parts = 2 / length * np.exp(-a * x)[:, None] * np.sin(np.outer(x, k)) * total
    return (parts * np.exp(-rates * t)).sum(1), (parts * rates * np.exp(-rates * t)).sum(1)


def test_of_brownian_motion_with_drift_between_two_walls(rng: np.random.Generator):
    noise, speed, length = rng.uniform([0.2, -1.5, 0.8], [1.0, 1.5, 2.0])
    motion = planck(1, None, noise, offset=[speed])
    times = length**2 / noise * np.array([0.005, 0.1, 1.0])
    found = pde.survival(motion, chebyshev((32, 0.0, length)), times)
    assert found.result == pde.Result.successful, found.message
    assert found.error < 1e-4
    x = rng.uniform(0, length, 20)
    for t, s, density in zip(times, found(x[:, None]), found.density(x[:, None]), strict=True):
        exact, rate = series(t, x, noise, speed, length)
        assert np.abs(s - exact).max() < 1e-6
        assert np.abs(density - rate).max() < 1e-5 / t
    assert np.isnan(found([[-0.1]])).all()
    # Ends that were computed otherwise: outside by roundoff.
    assert np.abs(found([[0.0], [np.nextafter(length, np.inf)]])).max() < 1e-8


def test_of_an_ornstein_uhlenbeck_process_that_reaches_its_mean(rng: np.random.Generator):
    rate, noise = rng.uniform([0.5, 0.2], [1.5, 0.8])
    width = np.sqrt(noise / rate)
    start = pde.Gaussian([0.0], [[0.1]])
    process = pde.OrnsteinUhlenbeck([[-rate]], [[noise]], start, pde.Box.fourier(1))
    times = np.array([0.1, 0.5, 2.0, 8.0]) / rate
    domain = chebyshev((48, 0.0, 6 * width))
    found = pde.survival(process, domain, times, walls=[("absorbing", "reflecting")])
    assert found.result == pde.Result.successful, found.message
    x = rng.uniform(0.2, 2.5, 10) * width
    decay = np.exp(-rate * times)[:, None]
    exact = special.erf(x / width * decay / np.sqrt(2 * (1 - decay**2)))
    assert np.abs(found(x[:, None]) - exact).max() < 1e-6


def test_of_two_dimensions_is_a_product_where_they_are_independent(rng: np.random.Generator):
    noise = rng.uniform(0.3, 0.8, 2)
    motion = planck(2, None, np.diag(noise), offset=[0.5, -0.3])
    found = pde.survival(motion, chebyshev((16, 0.0, 1.0), (14, 0.0, 1.4)), [0.2], tol=1e-5)
    assert found.result == pde.Result.successful, found.message
    x = rng.uniform(0.1, 0.9, (10, 2))
    parts = series(0.2, x[:, 0], noise[0], 0.5, 1.0), series(0.2, x[:, 1], noise[1], -0.3, 1.4)
    (a, da), (b, db) = parts
    assert np.abs(found(x)[0] - a * b).max() < 1e-5
    assert np.abs(found.density(x)[0] - (da * b + a * db)).max() < 1e-3


@pytest.mark.slow
def test_in_three_dimensions_by_amen(rng: np.random.Generator):
    motion = planck(3, None, 0.5, matrix=[[0.0, 0.4, 0.0], [-0.4, 0.0, 0.0], [0.0, 0.0, 0.0]])
    domain = chebyshev((14, -1.0, 1.0), (14, -1.0, 1.0), (14, 0.0, 1.0))
    walls = ["absorbing", "reflecting", "absorbing"]
    found = pde.survival(motion, domain, [0.3], walls=walls, tol=1e-4)
    assert found.result == pde.Result.successful, found.message
    plane = planck(2, None, 0.5, matrix=[[0.0, 0.4], [-0.4, 0.0]])
    two = chebyshev((16, -1.0, 1.0), (16, -1.0, 1.0))
    other = pde.survival(plane, two, [0.3], walls=walls[:2], tol=1e-6)
    x = rng.uniform(0.1, 0.9, (10, 3))
    exact = other(x[:, :2])[0] * series(0.3, x[:, 2], 0.5, 0.0, 1.0)[0]
    assert norm(found(x)[0] - exact) < 1e-3 * norm(exact)


def test_its_integral_is_the_mean_time_and_its_flow_ends(rng: np.random.Generator):
    speed = rng.uniform(-1, 1)
    motion = planck(1, [pde.Sin([2.0])], 0.4, offset=[speed])
    domain = chebyshev((24, -1.0, 1.0))
    times, weights = np.polynomial.legendre.leggauss(24)
    times, weights = 4 * (times + 1), 4 * weights
    found = pde.survival(motion, domain, times, tol=1e-5)
    mean = pde.first_passage(motion, domain)
    assert weights @ found([[0.2]])[:, 0] == pytest.approx(mean([[0.2]])[0], rel=1e-3)


def test_too_short_times_say_so():
    found = pde.survival(planck(1, None, 0.5), chebyshev((8, 0.0, 1.0)), [1e-5])
    assert found.result == pde.Result.unresolved
    assert "longer times" in found.message


@pytest.mark.parametrize("times", [[], [0.0], [-1.0], [np.inf]])
def test_wrong_times_are_refused(times: Any):
    with pytest.raises(ValueError, match="times"):
        pde.survival(planck(1, None, 0.5), chebyshev((8, 0.0, 1.0)), times)


def ornstein_uhlenbeck(rate: float, noise: float) -> pde.OrnsteinUhlenbeck:
    start = pde.Gaussian([0.0], [[0.1]])
    return pde.OrnsteinUhlenbeck([[-rate]], [[noise]], start, pde.Box.fourier(1))


def square_root(kappa: float, theta: float, sigma: float) -> pde.FokkerPlanck:
    noise = [(pde.Power([1.0]), [[sigma**2 / 2]])]
    start, box = pde.Gaussian([0.5], [[0.01]]), pde.Box((pde.Axis("fourier", 16, 0.0, 1.0),))
    matrix, offset = [[-kappa]], [kappa * theta]
    return pde.FokkerPlanck(None, noise, start, box, matrix=matrix, offset=offset)


@pytest.mark.parametrize("share", [0.3, 0.8, 1.5])
def test_bonds_of_square_root_processes_on_either_side_of_fellers_condition(
    rng: np.random.Generator, share: float
):
    kappa, theta, t = rng.uniform([0.5, 0.2, 0.3], [1.5, 0.6, 1.0])
    sigma = np.sqrt(2 * kappa * theta / share)
    domain = chebyshev((40, 0.0, 12 * sigma**2 / kappa + 4 * theta))
    found = pde.expectation(
        square_root(kappa, theta, sigma), domain, lambda x: np.exp(-x[:, 0]), [t],
        walls=[("open", "reflecting")],
    )  # fmt: skip
    assert found.result == pde.Result.successful, found.message
    c = 2 * kappa / (sigma**2 * (1 - np.exp(-kappa * t)))
    x = rng.uniform(0, 2 * theta, 20)
    exact = (c / (c + 1)) ** share * np.exp(-x * np.exp(-kappa * t) * c / (c + 1))
    assert np.abs(found(x[:, None])[0] - exact).max() < 1e-5


def test_moments_of_an_ornstein_uhlenbeck_process(rng: np.random.Generator):
    rate, noise = rng.uniform([0.5, 0.2], [1.5, 0.8])
    width, times = np.sqrt(noise / rate), np.array([0.1, 1.0]) / rate
    domain = chebyshev((48, -7 * width, 7 * width))
    found = pde.expectation(
        ornstein_uhlenbeck(rate, noise), domain, lambda x: np.cos(x[:, 0] / width), times
    )
    assert found.result == pde.Result.successful, found.message
    x, decay = rng.uniform(-1, 1, 10) * width, np.exp(-rate * times)[:, None]
    exact = np.cos(x / width * decay) * np.exp(-(1 - decay**2) / 2)
    assert np.abs(found(x[:, None]) - exact).max() < 1e-5


def test_a_least_cost_is_minus_the_logarithm_of_an_expectation(rng: np.random.Generator):
    noise, weight, heat = rng.uniform([0.2, 0.5, 0.5], [0.5, 1.0, 1.0])
    t = 0.4
    found = pde.expectation(
        planck(1, None, noise), chebyshev((48, -7.0, 7.0)),
        lambda x: np.exp(-weight * x[:, 0] ** 2 / 2 / heat), [t],
    )  # fmt: skip
    assert found.result == pde.Result.successful, found.message
    x = rng.uniform(-1, 1, 10)
    cost = -heat * np.log(found(x[:, None])[0])
    # The linear-quadratic regulator: V = p x²/2 + λ/2 log(1 + 2 D t k/λ), by its Riccati equation.
    growth = 1 + 2 * noise * t * weight / heat
    exact = weight / growth * x**2 / 2 + heat / 2 * np.log(growth)
    assert np.abs(cost - exact).max() < 1e-5


def test_absorbing_walls_make_barrier_options(rng: np.random.Generator):
    motion, domain = planck(1, None, 0.5, offset=[rng.uniform(-1, 1)]), chebyshev((24, 0.0, 1.0))
    one = pde.expectation(
        motion, domain, lambda x: np.ones(len(x)), [0.1, 0.4], walls=["absorbing"]
    )
    alive = pde.survival(motion, domain, [0.1, 0.4])
    x = rng.uniform(0, 1, (10, 1))
    assert np.abs(one(x) - alive(x)).max() < 1e-10


def test_expectations_that_are_not_resolved_or_not_asked_well_say_so():
    process, domain = ornstein_uhlenbeck(1.0, 0.5), chebyshev((12, -4.0, 4.0))
    steep = pde.expectation(process, domain, lambda x: np.maximum(x[:, 0], 0), [0.01])
    assert steep.result == pde.Result.unresolved
    assert "kink" in steep.message
    with pytest.raises(ValueError, match="open wall"):
        pde.expectation(process, domain, lambda x: x[:, 0], [1.0], walls=["open"])
    with pytest.raises(ValueError, match="payoff"):
        pde.expectation(process, domain, 1.0, [1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="payoff"):
        pde.expectation(process, domain, lambda x: np.nan * x[:, 0], [1.0])


def test_expectations_that_miss_turns_of_paths_are_no_successes(rng: np.random.Generator):
    """Payoffs carried around a circle: right where it is said, in drawn runs of any speed."""
    domain = pde.Box([pde.Axis("periodic", 16, 0.0, 2 * np.pi)])
    x, successes = rng.uniform(0, 6, 20), 0
    for speed in (0.0, 0.05, *10 ** rng.uniform(0, 3, 6)):
        motion = planck(1, None, 0.1, offset=[speed])
        found = pde.expectation(motion, domain, lambda y: 1 + 0.5 * np.cos(y[:, 0]), [1.0])
        exact = 1 + 0.5 * np.cos(x + speed) * np.exp(-0.1)
        if found.result == pde.Result.successful:
            successes += 1
            assert norm(found(x[:, None])[0] - exact) < 1e-3 * norm(exact)
    assert successes


@pytest.mark.parametrize(
    "payoff", [lambda x: np.exp(1j * x[:, 0]), lambda x: x[:, :1], lambda x: 1.0]
)
def test_payoffs_of_other_values_are_named(payoff: Any):
    domain = chebyshev((12, 0.0, 1.0))
    with pytest.raises(ValueError, match="payoff: expected real values of shape"):
        pde.expectation(planck(1, None, 0.5), domain, payoff, [0.5])


@pytest.mark.parametrize("seed", [0, 1])
def test_walls_reached_without_noise_are_judged_by_mean_squares(seed: int):
    """Survival jumps where the velocity turns at a wall: no number of points is enough there."""
    rng = np.random.default_rng(seed)
    friction, heat = rng.uniform([1.0, 0.5], [2.0, 0.8])
    start, noise = pde.Gaussian([0.0, 0.0], 0.1 * np.eye(2)), np.diag([0.0, friction * heat])
    matrix = [[0.0, 1.0], [0.0, -friction]]
    problem = pde.OrnsteinUhlenbeck(matrix, noise, start, pde.Box.fourier(2))
    domain, t = chebyshev((22, -1, 1), (22, -3.5, 3.5)), 1.0
    found = pde.survival(problem, domain, [t], walls=["absorbing", "reflecting"], tol=1e-3)
    assert found.result == pde.Result.successful, found.message
    assert found.error < 1e-2
    for x in ([0.0, 0.0], [-0.5, 0.4], [0.4, 0.8]):
        q, v, count, dt = np.full(4000, x[0]), np.full(4000, x[1]), 500, t / 500
        inside = np.ones(4000, bool)
        for _ in range(count):
            v = v - dt * friction * v
            v += np.sqrt(2 * friction * heat * dt) * rng.standard_normal(4000)
            q = q + dt * v
            inside &= np.abs(q) < 1
        share = inside.mean()
        assert abs(found([x])[0, 0] - share) < 5 * np.sqrt(share * (1 - share) / 4000) + 0.01
