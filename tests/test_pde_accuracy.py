"""Runs that the grid, the ranks or the steps do not resolve say so, and others do not."""

from typing import Any

import jax
import numpy as np
import pytest
import scipy.linalg

from tensorjax import pde
from tensorjax._cores.orthogonalization import right_orthogonal
from tensorjax.pde._discretization import variable_coefficients as multipliers
from tensorjax.pde._discretization.collocation_matrices import moment_weights
from tensorjax.pde._integration.error_estimates import inaccurate
from tensorjax.pde._stepping.low_moments import added_by_noise

KINDS = ("fourier", "chebyshev", "finite differences")
ASKED = {pde.Result.successful, pde.Result.inaccurate}


def drawn(seed: int) -> tuple[pde.OrnsteinUhlenbeck, float, float]:
    """A linear equation, its end and a tolerance: stable or nearly so, with noise or without."""
    rng = np.random.default_rng(seed)
    d, kind = int(rng.integers(1, 3)), KINDS[int(rng.integers(3))]
    n, width = int(rng.choice([24, 32, 48, 64])), float(rng.uniform(4, 8))
    box = pde.Box([pde.Axis(kind, n, -width, width, order=int(rng.choice([4, 6])))] * d)
    a = rng.standard_normal((d, d))
    a = (a - a.T) / 2 * rng.choice([0, 1, 2]) + 0.15 * (a + a.T)
    a -= (np.linalg.eigvals(a).real.max() + rng.uniform(-0.1, 1.5)) * np.eye(d)
    noise = np.diag(10 ** rng.uniform(-2.5, 0, d) * (rng.random(d) > 0.15))
    spread = np.diag((rng.uniform(0.06, 0.2, d) * width) ** 2)
    start = pde.Gaussian(rng.uniform(-0.25, 0.25, d) * width, spread)
    end, tol = float(10 ** rng.uniform(-0.5, 0.5)), float(rng.choice([1e-4, 1e-6]))
    return pde.OrnsteinUhlenbeck(a, noise, start, box), end, tol


def errors(problem: Any, state: pde.State) -> tuple[float, float]:
    """Of the density at points drawn from it, relative, and of the covariance."""
    x = problem.sample(np.random.default_rng(0), state.t, 500)
    exact, (_, _, known) = problem.exact(state.t, x), problem.moments(state.t)
    found = pde.evaluate(state.v, state.map, problem.box, x)
    _, _, covariance = pde.moments(state.v, state.map, problem.box)
    width = np.sqrt(np.diag(known))
    spread = np.abs((covariance - known) / np.outer(width, width)).max()
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact)), float(spread)


def told(seeds: Any) -> dict[pde.Result, int]:
    """Runs drawn equations, whose results have to fit their errors; counts the results."""
    count = dict.fromkeys(pde.Result, 0)
    with jax.enable_x64(True):
        for seed in seeds:
            problem, end, tol = drawn(seed)
            for coordinates in ("fixed", "adaptive"):
                try:
                    found = pde.integrate(problem, t1=end, tol=tol, coordinates=coordinates)
                except ValueError as refused:
                    assert str(refused).startswith("start: expected")  # noqa: PT017
                    continue
                count[found.result] += 1
                if found.result not in ASKED:
                    continue
                error, spread = errors(problem, found.final)
                if found.result == pde.Result.successful:
                    assert error < 25 * tol, (seed, coordinates)
                else:
                    # 10 tol of a covariance are told too, those that truncation has taken from it.
                    assert max(error, spread / 10) > tol, (seed, coordinates)
                    assert "axis" in found.message
    return count


def test_results_of_drawn_linear_equations_fit_their_errors():
    count = told(range(1000, 1010))
    assert min(count[r] for r in ASKED) >= 2


@pytest.mark.slow
def test_results_of_many_drawn_linear_equations_fit_their_errors():
    count = told(range(2000, 2040))
    assert min(count[r] for r in ASKED) >= 8


@pytest.mark.parametrize("kind", KINDS)
def test_what_contracts_until_the_points_do_not_hold_it_is_told(kind: Any, rng: Any):
    """Narrower and narrower stationary densities on one grid: first well, then with a word."""
    results = []
    for noise in (0.2, 0.02, 0.006, 0.002):
        start = pde.Gaussian(rng.uniform(-0.3, 0.3, 1), [[0.5]])
        rate = rng.uniform(0.8, 1.2)
        box = pde.Box([pde.Axis(kind, 64, -4.0, 4.0, order=6)])
        problem = pde.OrnsteinUhlenbeck([[-rate]], [[rate * noise]], start, box)
        found = pde.integrate(problem, t1=4.0 / rate, tol=1e-4)
        results.append(found.result)
        if found.result == pde.Result.successful:
            assert errors(problem, found.final)[0] < 1e-3
        else:
            assert "axis 0" in found.message
            assert "points" in found.message
    assert results[0] == pde.Result.successful
    assert results[-1] != pde.Result.successful


def well(seed: int, n: int) -> tuple[pde.FokkerPlanck, Any]:
    """A tilted double well on Fourier points, and its density at t = 1.5, by collocation."""
    rng = np.random.default_rng(seed)
    slope, tilt, noise = rng.uniform(0.5, 1.5), rng.uniform(-0.5, 0.5), rng.uniform(0.05, 0.2)
    start = pde.Gaussian([-0.5], [[0.06]])
    force = [pde.Power([1.0], exponent=3, amplitude=-1.0)]
    box = pde.Box.fourier(1, n, 4.0)
    problem = pde.FokkerPlanck([force], noise, start, box, matrix=[[slope]], offset=[tilt])
    axis = pde.Axis("fourier", 192, -3.0, 3.0)
    x, d1 = axis.points, np.asarray(axis.d1)
    inside = np.abs(x) < 2.6  # nothing lies outside; drift jumps at the ends
    rates = noise * d1 @ d1 - d1 * (tilt + slope * x - x**3)
    known = scipy.linalg.expm(1.5 * rates * np.outer(inside, inside)) @ start.values(x[:, None])
    return problem, (x[:, None], known)


@pytest.mark.parametrize("seed", [11, 12])
def test_drifts_that_jump_at_the_ends_are_told_where_points_are_few(seed: int):
    results = set()
    for n in (48, 64, 96):
        problem, (x, known) = well(seed, n)
        for tol in (1e-3, 1e-5):
            found = pde.integrate(problem, t1=1.5, tol=tol)
            results.add(found.result)
            values = pde.evaluate(found.final.v, found.final.map, problem.box, x)
            error = np.linalg.norm(np.asarray(values) - known) / np.linalg.norm(known)
            if found.result == pde.Result.successful:
                assert error < 25 * tol, (n, tol)
            else:
                assert error > tol, (n, tol)
    assert pde.Result.successful in results
    assert len(results) > 1


def test_noise_at_the_ends_is_told_for_what_it_does_to_covariances():
    matrix = np.array([[-0.3, 1.0, 0.0], [0.0, -4.0, 2.0], [0.0, 0.0, -25.0]])
    start = pde.Gaussian(np.zeros(3), np.diag([0.4, 0.2, 0.2]))
    problem = pde.OrnsteinUhlenbeck(
        matrix, np.diag([0.2, 0.3, 5.0]), start, pde.Box.fourier(3, 64, 6.0)
    )
    with jax.enable_x64(True):
        found = pde.integrate(problem, t1=0.5, coordinates="fixed")
        spread = errors(problem, found.final)[1]
    assert found.result == pde.Result.inaccurate
    assert "covariances" in found.message
    assert 0.5 < float(found.message.split("off by about ")[1].split(",")[0]) / spread < 2


def test_noise_at_the_ends_is_weighed_as_it_lies(rng: np.random.Generator):
    """White noise costs moments what it sums up to, not a fixed multiple of its norm."""
    ratios = []
    for _ in range(40):
        n, size = int(rng.choice([32, 48, 64])), float(10 ** rng.uniform(-7, -4))
        box = pde.Box.fourier(2, n, float(rng.uniform(5, 8)))
        (x, y), v = (a.points for a in box.axes), box.weights[0]
        clean, other = (np.exp(-(z**2) / rng.uniform(0.8, 1.6)) for z in (x, y))
        noise = size * rng.choice([-1, 1], n)
        scale = np.sqrt(v * x**2 @ clean / (v @ clean))
        off = max(abs(v * (x / scale) ** power @ noise) / (v @ clean) for power in range(3))
        cores = [(clean + noise)[None, :, None], other[None, :, None]]
        cores = right_orthogonal(cores, scale=False)[0]
        found = added_by_noise(cores, box, [0])
        ratios.append(found / off)
        if found > 20 * size:  # else the error on the grid is as large
            for share in (0.9, 1.1):
                message = inaccurate(cores, box, 1.0, 1e-9, share * found, density=True)
                assert ("covariances" in message) == (share < 1)
    # Noise where the density is larger is not seen, and may cancel what is.
    assert 0.8 < np.median(ratios) < 1.25
    assert np.mean(np.abs(np.log(ratios)) < np.log(3)) > 0.85


def test_drifts_that_jump_at_the_ends_are_told_at_fixed_ranks():
    problem, _ = well(11, 48)
    options: dict[str, Any] = {"rank": 1, "dt": 1.5 / 3000, "coordinates": "fixed"}
    with jax.enable_x64(True):
        found = pde.integrate(problem, t1=1.5, accuracy=1e-4, **options)
    assert found.result == pde.Result.inaccurate
    assert "the points of axis 0" in found.message


@pytest.mark.parametrize("kind", ["fourier", "chebyshev", "finite differences"])
def test_noise_along_one_axis_is_told_beside_a_tail_along_another(kind: Any, rng: Any):
    noisy = pde.Axis("fourier", 64, -6.0, 6.0)
    for variance in (0.6, 3.4):
        box = pde.Box([noisy, pde.Axis(kind, 48, -6.0, 6.0)])
        values = [
            np.exp(-(a.points**2) / v) for a, v in zip(box.axes, (0.6, variance), strict=True)
        ]
        values[0] += 3e-5 * rng.choice([-1, 1], noisy.n)
        cores = right_orthogonal([v[None, :, None] for v in values], scale=False)[0]
        assert inaccurate(cores, box, 1.0, 1e-5, 1e-4, density=True)


@pytest.mark.slow
def test_errors_at_fixed_ranks_are_told_by_axis_bond_or_steps():
    a, begin = np.array([[-0.2, 1.0], [-1.0, -0.2]]), pde.Gaussian(np.zeros(2), np.diag([1.5, 0.1]))
    fine = pde.OrnsteinUhlenbeck(a, 0.01, begin, pde.Box.fourier(2, 64, 6.0))
    begin = pde.Gaussian(np.zeros(2), np.diag([0.6, 0.4]))
    wide = pde.Box.finite_differences(2, 64, 20.0, order=2)
    coarse = pde.OrnsteinUhlenbeck(a, 0.01, begin, wide)
    fed = pde.AdvectionDiffusionReaction(
        None, 0.01, begin, pde.Box.fourier(2, 40, 6.0), reaction=(0.0, 12.0), matrix=0.1 * a
    )
    options: dict[str, Any] = {"t1": 0.8, "coordinates": "fixed"}
    for problem, more, words in (
        (fine, {"rank": 4, "dt": 0.04}, "the rank of bond 0"),
        (coarse, {"rank": 4, "dt": 0.04, "resolution_limit": 1.0}, "the points of axis"),
        (fed, {"rank": 6, "dt": 0.04, "method": "rk2"}, "the steps leave"),
    ):
        found = pde.integrate(problem, **options, **more)
        assert found.result == pde.Result.inaccurate
        assert words in found.message
        free = pde.integrate(problem, **options, **more, accuracy=np.inf)
        assert free.result == pde.Result.successful
        assert free.final.t == 0.8
    # The estimate is close to the error.
    found = pde.integrate(fine, **options, rank=4, dt=0.02, accuracy=np.inf)
    assert 0.5 < errors(fine, found.final)[0] / found.stats["rank_error"].max() < 2


@pytest.mark.slow
@pytest.mark.parametrize("turn", [0.0, 0.5, 2.0])
def test_bonds_of_rank_one_tell_their_error(turn: float):
    """What stays a product is a success; what turns is not, and the estimate is near the error."""
    matrix = np.array([[-0.3, turn], [-turn, -0.3]])
    start, box = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.4])), pde.Box.fourier(2, 40, 6.5)
    problem = pde.OrnsteinUhlenbeck(matrix, 0.1, start, box)
    with jax.enable_x64(True):
        found = pde.integrate(problem, t1=0.5, dt=0.05, rank=1, coordinates="fixed", accuracy=0.01)
        free = pde.integrate(problem, t1=0.5, dt=0.05, rank=1, coordinates="fixed", accuracy=np.inf)
        error, estimate = errors(problem, free.final)[0], float(free.stats["rank_error"][0])
    if turn:
        assert found.result == pde.Result.inaccurate
        assert "the rank of bond 0" in found.message
        assert 0.3 < estimate / error < 3
    else:
        assert found.result == pde.Result.successful
        assert max(error, estimate) < 1e-4


def test_the_bound_of_a_bond_of_rank_one_returns_no_earlier_state():
    """What rounding takes in every step adds up, though most of it decays."""
    matrix = np.array([[-1.0, 0.09], [0.0, -1.0]])
    start, box = pde.Gaussian(np.zeros(2), 0.5 * np.eye(2)), pde.Box.fourier(2, 24, 5.0)
    problem = pde.OrnsteinUhlenbeck(matrix, 0.5, start, box)
    found = pde.integrate(problem, t1=2.0, dt=0.05, rank=1, coordinates="fixed", accuracy=0.01)
    assert found.result == pde.Result.inaccurate
    assert "of at most about" in found.message
    assert found.final.t == 2.0


@pytest.mark.slow
def test_bonds_of_rank_one_tell_their_own_loss():
    """Of two pairs that are not coupled, the bond between them loses next to nothing."""
    matrix = np.kron(np.eye(2), [[-0.5, 1.0], [-1.0, -0.5]])
    start = pde.Gaussian(np.zeros(4), np.diag([1.0, 0.5, 1.0, 0.5]))
    problem = pde.OrnsteinUhlenbeck(matrix, 0.3, start, pde.Box.fourier(4, 24, 6.0))
    options: dict[str, Any] = {"t1": 0.32, "dt": 0.02, "coordinates": "fixed", "accuracy": np.inf}
    with jax.enable_x64(True):
        bonds = pde.integrate(problem, rank=[1, 1, 1], **options).stats["rank_error"]
    assert bonds[1] < 0.01 * min(bonds[0], bonds[2])


def test_a_mass_of_zero_is_kept_to_the_mass_of_its_parts():
    start = pde.Mixture(
        [1.0, -1.0], [pde.Gaussian([x, 0.0], 0.5 * np.eye(2)) for x in (-1.0, 1.0)]
    )  # fmt: skip
    problem = pde.OrnsteinUhlenbeck(-np.eye(2), 1.0, start, pde.Box.fourier(2, 40, 8.0))
    found = pde.integrate(problem, t1=0.3, tol=1e-5)
    assert found.result == pde.Result.successful, found.message


@pytest.mark.parametrize(("method", "most"), [("rk4", 2.5), ("exponential", 4.0)])
@pytest.mark.parametrize("kind", ["fourier", "chebyshev"])
def test_what_lies_at_the_ends_is_near_the_error_over_the_box(kind: Any, method: Any, most: float):
    """Though at points drawn from the density, none of which lie there, it is far smaller.

    Of what comes back from a periodic end, exponential steps carry less into the box.
    """
    box = pde.Box([pde.Axis(kind, 40, -5.0, 5.0)])
    problem = pde.OrnsteinUhlenbeck([[-1.0]], 1.0, pde.Gaussian([0.5], [[1.0]]), box)
    with jax.enable_x64(True):
        found = pde.integrate(problem, t1=0.2, tol=1e-6, coordinates="fixed", method=method)
        x = np.linspace(-4.999, 4.999, 400)[:, None]
        u = np.asarray(pde.evaluate(found.final.v, found.final.map, box, x))
    known: Any = problem.exact(0.2, x)
    assert found.result == pde.Result.inaccurate
    share = float(found.message.split(" a share ")[1].split()[0])
    assert 0.4 < share / (np.linalg.norm(u - known) / np.linalg.norm(known)) < most


@pytest.mark.parametrize("n", [16, 17])
def test_moments_on_a_periodic_axis_are_those_of_the_interpolant(n: int, rng: Any):
    axis = pde.Axis("periodic", n, -1.0, 3.0)
    y = np.linspace(-1, 3, 20001)
    waves = [(k, *rng.uniform(-1, 1, 2)) for k in range(4)]

    def u(y: Any) -> Any:
        return sum(
            a * np.cos(np.pi / 2 * k * y) + b * np.sin(np.pi / 2 * k * y) for k, a, b in waves
        )

    for power in range(3):
        exact = np.trapezoid(y**power * u(y), y)
        assert abs(moment_weights(axis, power) @ u(axis.points) - exact) < 1e-6


def test_noise_that_varies_along_an_axis_makes_no_growing_modes(rng: Any):
    """Of noise with unlike ends, ∂² m grows by many powers of e in the time of a step."""
    for n in (32, 33, 64):
        box = pde.Box([pde.Axis("fourier", n, -1.0, 4.0)])
        m = multipliers.power(box, np.ones(1), 1.0 + rng.uniform(0, 0.1), 3, 0.05)
        found = multipliers.second(box, np.ones((1, 1)), m).cores[0][0, :, :, 0]
        plain = box.axes[0].d2 @ np.diag(m[0][0, :, 0])
        growth = [float(np.linalg.eigvalsh((x + x.T) / 2).max()) for x in (found, plain)]
        assert growth[0] < 0.05 * growth[1]
        assert np.abs(found.sum(0)).max() < 1e-10 * np.abs(found).max()
        bump = np.exp(-4 * (box.points[0] - 1.5) ** 2)
        scale = np.linalg.norm(plain @ bump)
        assert np.linalg.norm((found - plain) @ bump) < 1e-3 * scale
        assert np.isfinite(scipy.linalg.expm(found)).all()


@pytest.mark.parametrize("seed", range(4))
def test_starts_given_as_functions_are_judged_as_gaussians(seed: int):
    rng = np.random.default_rng(seed)
    mean, variance = rng.uniform([-0.2, 0.036], [0.2, 0.06])
    exact = pde.Gaussian([mean], [[variance]])
    box, results = pde.Box([pde.Axis("chebyshev", 24, -1.4, 1.5, walls="reflecting")]), []
    for start in (exact, pde.Function(exact.values)):
        problem = pde.FokkerPlanck([[pde.Power([1.0], exponent=2)]], 0.2, start, box)
        found = pde.integrate(problem, t1=0.2)
        results.append((found.result, "initial state's" in found.message))
    assert results[0] == results[1]
    assert results[0] == (pde.Result.inaccurate, True)
