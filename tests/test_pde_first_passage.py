"""Mean first-passage times and committors against closed forms, quadrature and series."""

from typing import Any

import numpy as np
import pytest
from scipy import integrate, special

from tensorjax import pde


def chebyshev(*axes: tuple[int, float, float]) -> pde.Box:
    return pde.Box(tuple(pde.Axis("chebyshev", n, low, high) for n, low, high in axes))


def planck(d: int, drift: Any, diffusion: Any, **options: Any) -> pde.FokkerPlanck:
    start = pde.Gaussian(np.zeros(d), 0.1 * np.eye(d))
    return pde.FokkerPlanck(drift, diffusion, start, pde.Box.fourier(d), **options)


def scale_function(drift: Any, diffusion: Any, low: float, x: float) -> float:
    """Returns ∫ exp(−∫ a/D) from a wall to x, of which committors are quotients."""

    def inner(y: float) -> float:
        return np.exp(-integrate.quad(lambda z: drift(z) / diffusion(z), low, y)[0])

    return integrate.quad(inner, low, x)[0]


def test_brownian_motion_with_drift_leaves_an_interval(rng: np.random.Generator):
    v, noise, low, high = rng.uniform([0.3, 0.2, -2.0, 0.5], [1.5, 1.0, -0.5, 2.0])
    motion = planck(1, None, noise, offset=[v])
    found = pde.first_passage(motion, chebyshev((40, low, high)))
    assert found.result == pde.Result.successful, found.message
    x = rng.uniform(low, high, 20)
    share = np.expm1(-v * (x - low) / noise) / np.expm1(-v * (high - low) / noise)
    exact = ((high - low) * share - (x - low)) / v
    np.testing.assert_allclose(found(x[:, None]), exact, atol=1e-6)
    q = pde.committor(motion, chebyshev((40, low, high)))
    np.testing.assert_allclose(q(x[:, None]), share, atol=1e-6)
    assert np.isnan(found([[high + 0.1]])).all()
    assert abs(found([[low], [high]])).max() < 1e-12
    # Ends that were computed otherwise, as from a grid of steps.
    for k in (1, 3):
        beside = np.array([[low - k * np.spacing(abs(low))], [high + k * np.spacing(high)]])
        assert abs(found(beside)).max() < 1e-12
        np.testing.assert_allclose(q(beside), [0, 1], atol=1e-12)
    assert np.isnan(found([[high + 1e-12]])).all()


def test_an_ornstein_uhlenbeck_process_reaches_a_level(rng: np.random.Generator):
    rate, noise, level = rng.uniform([0.5, 0.3, 0.3], [1.5, 0.8, 1.2])
    start = pde.Gaussian([0.0], [[0.1]])
    process = pde.OrnsteinUhlenbeck([[-rate]], [[noise]], start, pde.Box.fourier(1))
    domain = chebyshev((48, -6 * np.sqrt(noise / rate), level))
    found = pde.first_passage(process, domain, walls=[("reflecting", "absorbing")])
    assert found.result == pde.Result.successful, found.message
    root = np.sqrt(rate / (2 * noise))

    def inner(y: float) -> float:
        return np.sqrt(np.pi) / rate * root * special.erfcx(-root * y)

    for x in (-0.5, 0.0):
        exact = integrate.quad(inner, x, level)[0]
        assert abs(found([[x]])[0] / exact - 1) < 1e-5


@pytest.mark.parametrize(("d", "n"), [(2, 24), (3, 18)])
def test_brownian_motion_leaves_boxes(rng: np.random.Generator, d: int, n: int):
    sides, noise = rng.uniform(0.7, 1.5, d), rng.uniform(0.3, 1.0)
    found = pde.first_passage(planck(d, None, noise), chebyshev(*((n, 0.0, s) for s in sides)))
    assert found.result == pde.Result.successful, found.message
    x = rng.uniform(0.2, 0.8, (5, d)) * sides
    odd = np.arange(1, 80, 2)
    waves = np.stack(np.meshgrid(*[odd] * d, indexing="ij"), -1).reshape(-1, d)
    rates = noise * np.square(np.pi * waves / sides).sum(1)
    modes = np.prod(4 / (np.pi * waves) * np.sin(np.pi * waves * (x / sides)[:, None]), axis=2)
    np.testing.assert_allclose(found(x), modes @ (1 / rates), rtol=2e-4)


def test_committors_of_drawn_wells_and_noise_are_quadratures(rng: np.random.Generator):
    barrier, temperature = rng.uniform([0.5, 0.2], [1.0, 0.5])
    well = pde.DoubleWell(barrier, 1.0, temperature)
    rate = pde.CIR(1.2, 0.8, 0.6)
    cases = [
        (well, -1.0, 1.0, lambda x: -4 * barrier * x * (x * x - 1), lambda x: temperature),
        (rate, 0.3, 1.5, lambda x: 1.2 * (0.8 - x), lambda x: 0.18 * x),
    ]
    for problem, low, high, drift, diffusion in cases:
        found = pde.committor(problem, chebyshev((40, low, high)))
        assert found.result == pde.Result.successful, found.message
        x = low + np.array([0.3, 0.6]) * (high - low)
        parts = [scale_function(drift, diffusion, low, y) for y in (*x, high)]
        np.testing.assert_allclose(found(x[:, None]), np.array(parts[:2]) / parts[2], atol=1e-6)


def test_axes_beside_change_a_committor_only_where_they_are_coupled(rng: np.random.Generator):
    temperature = rng.uniform(0.3, 0.5)
    domain = chebyshev((28, -1.0, 1.0), (24, -2.0, 2.0))
    alone = pde.committor(pde.DoubleWell(0.5, 1.0, temperature), chebyshev((28, -1.0, 1.0)))
    free = pde.committor(pde.DoubleWell(0.5, 1.0, temperature, dim=2), domain)
    x = rng.uniform(-0.9, 0.9, (10, 2))
    np.testing.assert_allclose(free(x), alone(x[:, :1]), atol=1e-6)
    tied = pde.committor(pde.DoubleWell(0.5, 1.0, temperature, dim=2, coupling=0.4), domain)
    assert tied.result == pde.Result.successful, tied.message
    np.testing.assert_allclose(tied(x) + tied(-x), 1, atol=1e-6)  # by symmetry
    assert (tied([[0.0, 0.8]]) > tied([[0.0, -0.8]]) + 0.01).all()


def test_periodic_axes_and_correlated_noise(rng: np.random.Generator):
    # Noise along the wall, correlated with that across, does not matter; nor does a drift there.
    tie = rng.uniform(-0.3, 0.3)
    problem = planck(2, None, [[0.5, tie], [tie, 0.6]], offset=[0.4, 1.0])
    circle = pde.Axis("fourier", 15, 0.0, 2.0)
    domain = pde.Box((pde.Axis("chebyshev", 24, 0.0, 1.0), circle))
    found = pde.first_passage(problem, domain)
    assert found.result == pde.Result.successful, found.message
    plain = pde.first_passage(planck(1, None, 0.5, offset=[0.4]), chebyshev((24, 0.0, 1.0)))
    x = rng.uniform([0.0, -3.0], [1.0, 5.0], (10, 2))
    np.testing.assert_allclose(found(x), plain(x[:, :1]), atol=1e-6)


def test_what_is_not_resolved_says_so():
    steep = planck(1, None, 1e-4, offset=[1.0])
    found = pde.first_passage(steep, chebyshev((16, 0.0, 1.0)))
    assert found.result == pde.Result.unresolved
    assert "more points" in found.message
    boxed = pde.first_passage(planck(2, None, 0.5), chebyshev((20, 0, 1), (20, 0, 1)), max_rank=1)
    assert boxed.result == pde.Result.max_rank


@pytest.mark.parametrize(
    ("problem", "domain", "options", "message"),
    [
        (planck(1, None, 0.5), pde.Box.fourier(1), {}, "walls: expected an absorbing one"),
        (planck(1, None, 0.5), pde.Box.finite_differences(1), {}, "domain: expected axes of kind"),
        (planck(1, None, 0.5), pde.Box.chebyshev(2), {}, "domain: expected a pde.Box of 1 axes"),
        (planck(1, None, 0.5), pde.Box.chebyshev(1), {"walls": ["open"]}, "walls: expected"),
        (
            planck(1, None, 0.5),
            pde.Box.chebyshev(1),
            {"walls": "absorbing"},
            "walls: .* a sequence of 1",
        ),
        (pde.Kramers(), pde.Box.chebyshev(2), {}, "walls: expected noise along every axis"),
        (planck(1, lambda t, x: -t * x, 0.5), pde.Box.chebyshev(1), {}, "do not depend on time"),
        (
            planck(
                1,
                None,
                [pde.Power([1.0], 9.0, 2)],
                interpretation="stratonovich",
            ),
            pde.Box.chebyshev(1),
            {},
            "expected the Itô equation",
        ),
    ],
)
def test_bad_first_passages_are_refused(problem: Any, domain: Any, options: Any, message: str):
    with pytest.raises(ValueError, match=message):
        pde.first_passage(problem, domain, **options)


def test_bad_committors_are_refused():
    given: Any = (["absorbing", "absorbing"], ["reflecting", "absorbing"])
    for walls in given:
        with pytest.raises(ValueError, match="walls: expected absorbing walls at both ends"):
            pde.committor(planck(2, None, 0.5), pde.Box.chebyshev(2), walls=walls)
    with pytest.raises(ValueError, match=r"problem: expected a pde\.FokkerPlanck"):
        pde.committor(planck(1, None, 0.5).start, pde.Box.chebyshev(1))  # type: ignore
    found = pde.committor(planck(1, None, 0.5), pde.Box.chebyshev(1, 16, 1.0))
    with pytest.raises(ValueError, match="x: expected points of shape"):
        found(np.zeros(3))


def test_times_over_drawn_barriers_are_right_or_said_not_to_be() -> None:
    rng = np.random.default_rng(12)
    right = wrong = 0
    for _ in range(40):
        height, temperature = rng.uniform(0.5, 2.5), rng.uniform(0.08, 0.6)
        n, low = int(rng.integers(12, 65)), -rng.uniform(1.6, 3.0)
        domain = chebyshev((n, low, 1.0))
        well = pde.DoubleWell(height, 1.0, temperature)
        found = pde.first_passage(well, domain, walls=[("reflecting", "absorbing")])
        x = np.linspace(low, 1.0, 100_001)
        potential = height * (x**2 - 1) ** 2 / temperature
        weights = np.cumsum(np.exp(-potential)) * (x[1] - x[0])
        slopes = np.where(x > -1, np.exp(potential) * weights, 0)
        exact = slopes.sum() * (x[1] - x[0]) / temperature
        off = abs(found([[-1.0]])[0] / exact - 1)
        if found.result == pde.Result.successful:
            assert off < 1e-3, (height, temperature, n, low)
            right += 1
        else:
            assert found.message
            wrong += off > 1e-3
    assert right > 5
    assert wrong > 5


def crossing(problem: Any, start: Any, count: int, steps: int, end: float, rng: Any) -> float:
    """Mean time until paths of a Kramers equation leave 0 < q < 1, by a step of weak order 2."""
    x, h = np.tile(np.asarray(start, float), (count, 1)), end / steps
    alive, time = np.ones(count, bool), np.zeros(count)
    kick = np.sqrt(2 * problem.friction * problem.temperature * h)
    for _ in range(steps):
        noise = np.zeros_like(x)
        noise[:, 1] = kick * rng.standard_normal(len(x))
        rate = problem.velocity(x)
        new = x + h / 2 * (rate + problem.velocity(x + h * rate + noise)) + noise
        out = (new[:, 0] <= 0) | (new[:, 0] >= 1)
        place = np.where(new[:, 0] >= 1, 1 - x[:, 0], x[:, 0])
        part = np.clip(place / np.maximum(np.abs(new[:, 0] - x[:, 0]), 1e-300), 0, 1)
        time[alive] += h * np.where(out, part, 1.0)
        alive[np.flatnonzero(alive)[out]] = False
        x = new[~out]
        if not len(x):
            break
    return float(time.mean())


@pytest.mark.parametrize("friction", [0.4, pytest.param(2.0, marks=pytest.mark.slow)])
def test_a_particle_leaves_an_interval_of_positions(friction: float, rng: Any):
    """Walls for the position alone, which has no noise: paths arrive with their momentum."""
    problem = pde.Kramers((0, -0.5, 0.5), friction=friction, temperature=1.0)
    times, points = [], [[0.5, 0.0], [0.3, 0.7], [0.6, -1.0]]
    for n, m in ((20, 36), (28, 50)):
        found = pde.first_passage(
            problem, chebyshev((n, 0, 1), (m, -4.5, 4.5)), walls=["absorbing", "reflecting"],
            tol=5e-4,
        )  # fmt: skip
        times.append(found(points))
    assert found.result == pde.Result.successful, found.message
    assert found.error < 5e-3
    np.testing.assert_allclose(times[0], times[1], rtol=5e-3)
    sampled = crossing(problem, points[0], 20_000, 3000, 15.0, rng)
    assert times[1][0] == pytest.approx(sampled, rel=0.03)
    q = pde.committor(
        problem, chebyshev((24, 0, 1), (40, -4.5, 4.5)), walls=["absorbing", "reflecting"],
        tol=1e-3,
    )  # fmt: skip
    assert q.result == pde.Result.successful, q.message
    even = pde.Kramers((0, 0.0, 0.5), friction=friction, temperature=1.0)
    q = pde.committor(
        even, chebyshev((24, -1, 1), (40, -4.5, 4.5)), walls=["absorbing", "reflecting"], tol=1e-3
    )
    np.testing.assert_allclose(q([[0.0, 0.0]]), 0.5, atol=1e-6)
    with pytest.raises(ValueError, match="walls: expected noise along every axis"):
        pde.first_passage(
            problem, chebyshev((20, 0, 1), (20, -4, 4)),
            walls=[("absorbing", "reflecting"), "reflecting"],
        )  # fmt: skip


def slopes(x: np.ndarray) -> np.ndarray:
    """First-derivative matrix of the polynomial through points x."""
    gap = np.subtract.outer(x, x)
    np.fill_diagonal(gap, 1)
    weights = 1 / np.prod(2 * gap, axis=1)
    out = weights[None] / weights[:, None] / gap
    np.fill_diagonal(out, 0)
    return out - np.diag(out.sum(1))


def by_panels(n: int, m: int, friction: float, width: float) -> np.ndarray:
    """Mean exit times of q from (0, 1) at (½, 0) for V = (q² − q)/2, T = 1, by dense collocation.

    Momenta have a panel of Chebyshev points for either sign, with one slope where they meet.
    """
    q, p = (-np.cos(np.pi * np.arange(k + 2) / (k + 1)) for k in (n, m))
    up, down = slopes(q[1:])[:-1, :-1] * 2, slopes(q[:-1])[1:, 1:] * 2
    q, half = (q[1:-1] + 1) / 2, width * (p + 1) / 2
    p, first = np.concatenate([-half[:0:-1], half]), np.zeros((2 * m + 3,) * 2)
    low, high = slopes(p[: m + 2]), slopes(p[m + 1 :])
    first[: m + 2, : m + 2], first[m + 2 :, m + 1 :] = low, high[1:]
    second = first.copy()
    second[: m + 2, : m + 2], second[m + 2 :, m + 1 :] = low @ low, (high @ high)[1:]
    ends, jump = first[[0, -1]], np.zeros((1, 2 * m + 3))
    jump[0, : m + 2] = low[-1]
    jump[0, m + 1 :] -= high[0]
    rows, bound = np.concatenate([ends, jump]), np.array([0, 2 * m + 2, m + 1])
    inner = np.setdiff1d(np.arange(2 * m + 3), bound)
    whole = np.zeros((2 * m + 3, 2 * m))
    whole[inner] = np.eye(2 * m)
    whole[bound] = -np.linalg.solve(rows[:, bound], rows[:, inner])
    first, second, p = (first @ whole)[inner], (second @ whole)[inner], p[inner]
    operator = np.kron(up, np.diag(np.maximum(p, 0))) + np.kron(down, np.diag(np.minimum(p, 0)))
    operator += np.kron(np.diag(0.5 - q), first)
    operator += np.kron(np.eye(n), friction * (second - p[:, None] * first))
    found = np.linalg.solve(operator, -np.ones(len(operator))).reshape(n, 2 * m)
    assert n % 2 == 1  # the middle point is ½
    return np.asarray(whole[m + 1] @ found[n // 2])


@pytest.mark.parametrize("friction", [0.6, 1.7])
def test_a_first_passage_time_of_a_particle_to_one_part_in_a_thousand(friction: float):
    problem = pde.Kramers((0, -0.5, 0.5), friction=friction, temperature=1.0)
    found = pde.first_passage(
        problem, chebyshev((28, 0, 1), (50, -4, 4)), walls=["absorbing", "reflecting"], tol=5e-4
    )
    assert found.result == pde.Result.successful, found.message
    exact = by_panels(27, 26, friction, 4.0)
    assert exact == pytest.approx(by_panels(23, 22, friction, 4.0), rel=3e-4)
    assert found([[0.5, 0.0]])[0] == pytest.approx(exact, rel=1e-3)
