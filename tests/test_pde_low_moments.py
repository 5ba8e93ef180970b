"""Means and covariances of densities: their correction, and runs against closed forms."""

from typing import Any

import jax
import numpy as np
import pytest
import scipy.linalg

from tensorjax import pde
from tensorjax.pde._integration.error_estimates import moments_lost
from tensorjax.pde._stepping import low_moments
from tensorjax.pde._stepping import mass as masses
from tensorjax.pde._stepping.outskirts import profiles
from tensorjax.pde._stepping.sketched_sums import Train, rounded
from tensorjax.pde._stepping.step_rounding import Trim

ONE = np.ones(1)
OF = {"fourier": 40, "finite differences": 60, "chebyshev": 40}


def spread(state: pde.State, box: pde.Box, known: np.ndarray) -> float:
    """Largest error of a covariance, in units of the standard deviations."""
    _, _, found = pde.moments(state.v, state.map, box)
    width = np.sqrt(np.diag(known))
    return float(np.abs((found - known) / np.outer(width, width)).max())


@pytest.mark.parametrize("kind", OF)
@pytest.mark.parametrize("d", [1, 2, 4])
def test_moments_are_corrected_at_the_same_ranks(kind: Any, d: int, rng: Any):
    box = pde.Box([pde.Axis(kind, OF[kind], -6.0, 5.0)] * d)
    a = rng.standard_normal((d, d))
    start = pde.Gaussian(rng.uniform(-0.5, 0.5, d), 0.1 * a @ a.T / d + 0.4 * np.eye(d))
    for tol, windowed in ((1e-3, False), (1e-5, False), (1e-4, True)):
        cores = start.cores(box, pde.AffineMap.identity(d), tol)
        cores = rounded([Train(cores)], [1.0], tol).cores
        if windowed:
            cores[0] = cores[0] * (np.abs(box.points[0]) < 4)[:, None]
        at = low_moments.low_moments(cores, box)
        assert at.count == 1 + 2 * d + d * (d - 1) // 2
        held = at.of(Train(cores))
        np.testing.assert_allclose(at.of_train(cores), held, atol=1e-13)
        assert np.abs(held[1 : 1 + 2 * d]).max() < 0.01 * held[0]  # of what is not at the ends
        target = held + tol * held[0] * rng.uniform(-1, 1, at.count)
        found = low_moments.corrected(cores, at, target, tol)
        assert np.abs(at.of_train(found.cores) - target).max() < 0.3 * tol
        np.testing.assert_allclose(at.of_train(found.cores), found.moments, atol=1e-13)
        assert [c.shape for c in found.cores] == [c.shape for c in cores]
        change = rounded([Train(cores), Train(found.cores)], [1.0, -1.0], 1e-3).norm
        assert change < 2 * tol * np.linalg.norm(cores[0])
        if windowed:
            outside = profiles(found.cores)[0][np.abs(box.points[0]) >= 4]
            assert outside.max() < 1e-30 * np.linalg.norm(cores[0]) ** 2


def test_corrections_of_trains_with_small_singular_values(rng: Any):
    tol = 1e-5
    for _ in range(30):
        d = int(rng.integers(2, 5))
        box = pde.Box([pde.Axis("fourier", 40, -6.0, 5.0)] * d)
        start = pde.Gaussian(rng.uniform(-0.5, 0.5, d), np.diag(rng.uniform(0.2, 0.6, d)))
        cores = start.cores(box, pde.AffineMap.identity(d), tol)
        size = np.linalg.norm(cores[0])
        noise = [profiles(cores)[k] ** 0.5 * rng.standard_normal(box.axes[k].n) for k in range(d)]
        noise = rounded([Train([v[None, :, None] for v in noise])], [1.0], tol)
        cores = rounded(  # its second singular values are from 1e-3 to 1e-8 of tol
            [Train(cores), Train(noise.cores)],
            [1.0, tol * 10 ** rng.uniform(-8, -3) * size / noise.norm], 1e-20,
        ).cores  # fmt: skip
        at = low_moments.low_moments(cores, box)
        held = at.of_train(cores)
        target = held + tol * held[0] * rng.uniform(-1, 1, at.count)
        found = low_moments.corrected(cores, at, target, tol)
        lacks = np.abs(target - at.of_train(found.cores)).max()
        assert lacks <= np.abs(target - held).max()
        np.testing.assert_allclose(at.of_train(found.cores), found.moments, atol=1e-12)
        change = rounded([Train(cores), Train(found.cores)], [1.0, -1.0], 1e-3).norm
        assert change < 3 * tol * size
        mass = masses.corrected(cores, masses.quadrature(box), target[0])
        assert mass is not None
        change = rounded([Train(cores), Train(mass.cores)], [1.0, -1.0], 1e-3).norm
        assert change < 2 * mass.norm + 1e-7 * size


def varying(seed: int, interpretation: Any) -> tuple[pde.FokkerPlanck, np.ndarray]:
    """A linear drift and noise a + b x²: tails of powers, moments in closed form."""
    rng = np.random.default_rng(seed)
    k, a, b = rng.uniform(0.5, 1.5), rng.uniform(0.05, 0.1), rng.uniform(0.05, 0.15)
    mean, start = rng.uniform(0.2, 0.6), 0.05
    noise = [(pde.Power(ONE, exponent=0), [[a]]), (pde.Power(ONE, exponent=2), [[b]])]
    box = pde.Box.fourier(1, 128, 6.0)
    problem = pde.FokkerPlanck(
        None, noise, pde.Gaussian([mean], [[start]]), box,
        matrix=[[-k]], interpretation=interpretation,
    )  # fmt: skip
    decay = k - 2 * b * {"ito": 0, "stratonovich": 0.5, "klimontovich": 1}[interpretation]
    rate = 2 * (decay - b)
    second = 2 * a / rate + (start + mean**2 - 2 * a / rate) * np.exp(-rate)
    return problem, np.array([[second - (mean * np.exp(-decay)) ** 2]])


@pytest.mark.parametrize("interpretation", ["ito", "stratonovich", "klimontovich"])
def test_variances_under_noise_that_varies(interpretation: Any):
    for seed in range(3):
        problem, known = varying(seed, interpretation)
        found = pde.integrate(problem, t1=1.0, tol=1e-5)
        assert found.result == pde.Result.successful, found.message
        assert spread(found.final, problem.box, known) < 1e-4


@pytest.mark.parametrize("coordinates", ["fixed", "adaptive"])
def test_covariances_of_drawn_linear_equations(coordinates: Any):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        a = rng.standard_normal((2, 2))
        a -= (np.linalg.eigvals(a).real.max() + 0.5) * np.eye(2)
        noise = np.diag(rng.uniform([0.05, 0.2], [0.1, 0.5]))
        start = pde.Gaussian(rng.uniform(-0.5, 0.5, 2), 0.15 * np.eye(2))
        problem = pde.OrnsteinUhlenbeck(a, noise, start, pde.Box.fourier(2, 64, 6.0))
        found = pde.integrate(problem, t1=1.0, tol=1e-5, coordinates=coordinates)
        assert found.result == pde.Result.successful, found.message
        assert spread(found.final, problem.box, problem.moments(1.0)[2]) < 1e-4


def test_the_variance_in_a_well_is_that_of_dense_collocation(rng: Any):
    a, noise, n, width = rng.uniform(0.5, 1.5), rng.uniform(0.05, 0.2), 160, 3.0
    x = 2 * width * np.arange(n) / n - width
    wave = 2j * np.pi * np.fft.fftfreq(n, 2 * width / n)
    wave[n // 2] = 0
    d1 = np.fft.ifft(wave[:, None] * np.fft.fft(np.eye(n), axis=0), axis=0).real
    start = pde.Gaussian([0.4], [[0.08]])
    dense = scipy.linalg.expm(-d1 * (a * x - x**3) + noise * d1 @ d1) @ start.values(x[:, None])
    mass, mean = dense.sum(), dense @ x / dense.sum()
    known = np.array([[dense @ (x - mean) ** 2 / mass]])
    drift = [pde.Power(ONE, exponent=3, amplitude=-1.0)]
    problem = pde.FokkerPlanck(drift, noise, start, pde.Box.fourier(1, 128, 4.0), matrix=[[a]])
    found = pde.integrate(problem, t1=1.0, tol=1e-5)
    assert found.result == pde.Result.successful, found.message
    assert spread(found.final, problem.box, known) < 1e-4


def test_a_variance_that_truncation_took_is_reported(monkeypatch: Any):
    """Where nothing is restored, what is lost is counted, over a restart as well."""
    problem, known = varying(0, "ito")
    monkeypatch.setattr(low_moments, "corrected", lambda cores, at, *_: (cores, at.of_train(cores)))
    found = pde.integrate(problem, t1=1.0, tol=1e-5)
    assert spread(found.final, problem.box, known) > 3e-5
    assert found.result == pde.Result.inaccurate
    assert "truncation has changed the variance along axis 0" in found.message
    half = pde.integrate(problem, t1=0.5, tol=1e-5)
    again = pde.integrate(problem, t1=1.0, tol=1e-5, start=half.final)
    assert half.final.memory is not None
    assert again.final.memory is not None
    lost = [abs(s.final.memory["lost moments"][-1]) for s in (half, again)]
    assert lost[1] > lost[0] > 0
    assert again.result == pde.Result.inaccurate
    loose = pde.integrate(problem, t1=1.0, tol=1e-5, accuracy=0.1)
    assert loose.result == pde.Result.successful


@pytest.mark.parametrize("d", [2, 3])
def test_ranks_rise_where_they_are_too_low_to_restore_a_covariance(d: int, rng: Any):
    """Of a product of densities nothing in the tangent space has a covariance."""
    tol = 1e-4
    box = pde.Box([pde.Axis("fourier", 40, -6.0, 5.0)] * d)
    for _ in range(5):
        j, k = sorted(rng.choice(d, 2, replace=False))
        covariance = np.eye(d)
        covariance[j, k] = covariance[k, j] = rng.uniform(1.2, 1.6) * tol
        width = np.sqrt(rng.uniform(0.2, 0.6, d))
        start = pde.Gaussian(rng.uniform(-0.5, 0.5, d), covariance * np.outer(width, width))
        cores = start.cores(box, pde.AffineMap.identity(d), 1e-12)
        at = low_moments.low_moments(cores, box)
        before = np.zeros(at.count)
        pair = at.powers[:, j] * at.powers[:, k] == 1
        before[pair] = 1.5 * tol  # of the steps before
        trim = Trim(tol, None, {}, box, moments=at, lost_moments=before)
        out = trim("v", [Train(cores)], [1.0])
        assert np.abs(trim.lost_moments[1:]).max() < tol
        lacks = at.of(Train(cores)) + before * at.of_train(cores)[0] - at.of_train(out.cores)
        assert np.abs(lacks).max() < 1.01 * tol * at.of_train(cores)[0]


@pytest.mark.parametrize("bound", ["cap", "limit"])
def test_ranks_that_rise_for_moments_are_no_failure_of_a_step(bound: str, rng: Any):
    """A largest rank that is enough for the tolerance is enough; what was lost is counted once."""
    tol = 1e-4
    box = pde.Box([pde.Axis("fourier", 40, -6.0, 5.0)] * 3)
    covariance = np.eye(3)
    covariance[0, 1] = covariance[1, 0] = rng.uniform(0.4, 0.6)
    covariance[1, 2] = covariance[2, 1] = rng.uniform(0.8, 1.0) * tol
    start = pde.Gaussian(rng.uniform(-0.5, 0.5, 3), 0.4 * covariance)
    terms = [Train(start.cores(box, pde.AffineMap.identity(3), 1e-12))]
    most = max(rounded(terms, [1.0], tol).ranks)
    at = low_moments.low_moments(terms[0].cores, box)
    before = np.where(at.powers[:, 1] * at.powers[:, 2] == 1, 1.5 * tol, 0.0)

    def trim(cap: int | None, limit: int | None) -> Trim:
        out = Trim(tol, cap, {}, box, moments=at, lost_moments=before)
        out.limit = limit
        return out

    free = trim(None, None)
    assert max(free("v", terms, [1.0]).ranks) > most  # it takes more to restore the covariance
    bounded = trim(most, None) if bound == "cap" else trim(None, most)
    out = bounded("v", terms, [1.0])
    assert not out.capped
    assert max(out.ranks) == max(bounded.guesses["v"]) == most
    lacks = at.of(terms[0]) + before * at.of(terms[0])[0] - at.of_train(out.cores)
    np.testing.assert_allclose(bounded.lost_moments, lacks / at.of(terms[0])[0], atol=1e-12)


def test_losses_of_moments_wait_and_are_shares_of_all_that_cancels():
    box = pde.Box.fourier(1, 24, 4.0)
    lost = np.array([0.0, 1e-3, 2e-3])
    trim = Trim(1e-4, None, {}, box, lost_moments=lost)  # of the mass alone
    np.testing.assert_array_equal(trim.lost_moments, lost)
    assert not Trim(1e-4, None, {}, box).lost_moments.any()
    assert "variance along axis 0" in moments_lost(lost, box, 1.0, 1e-3)
    assert not moments_lost(lost, box, 1.0, 1e-3, share=0.1)


def test_moments_of_many_or_periodic_coordinates_are_fewer():
    def count(box: pde.Box) -> int:
        start = pde.Gaussian(np.zeros(box.dim), 0.3 * np.eye(box.dim))
        return low_moments.low_moments(
            start.cores(box, pde.AffineMap.identity(box.dim), 1e-4), box
        ).count

    line = pde.Axis("fourier", 24, -4.0, 4.0)
    angle = pde.Axis("periodic", 24, -np.pi, np.pi)
    assert count(pde.Box([angle, line, line])) == 6
    assert count(pde.Box([angle])) == 1
    assert count(pde.Box([line] * 6)) == 28
    assert count(pde.Box([line] * 10)) == 66
    assert count(pde.Box([line] * 11)) == 1
    assert low_moments.largest(np.zeros(1), 12) == (0.0, (0, 0))
    assert low_moments.largest(np.array([0, 0, 0, 1, -2, 1.5]), 2) == (2.0, (1, 1))


def rotating(dim: int, seed: int) -> pde.OrnsteinUhlenbeck:
    """Drawn process of rotations and rates, from a start of other axes."""
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((dim, dim)) / np.sqrt(dim)
    matrix = matrix - matrix.T + 0.15 * (matrix + matrix.T)
    matrix -= (np.linalg.eigvals(matrix).real.max() + 0.3) * np.eye(dim)
    start = pde.Gaussian(np.zeros(dim), np.diag(rng.uniform(0.3, 1.0, dim)))
    box = pde.Box.fourier(dim, 48, 6.5)
    return pde.OrnsteinUhlenbeck(matrix, 0.2 * np.eye(dim), start, box)


@pytest.mark.parametrize(
    ("dim", "seed"),
    [
        (5, 1),
        (6, 3),
        *(pytest.param(d, s, marks=pytest.mark.slow) for d in (5, 6, 7) for s in (7, 8)),
    ],
)
def test_covariances_in_five_dimensions_and_more_are_restored(dim: int, seed: int):
    """In fixed coordinates, where ranks are high and every step is truncated."""
    problem = rotating(dim, seed)
    with jax.enable_x64(True):
        found = pde.integrate(problem, t1=0.5, tol=1e-4, coordinates="fixed")
        _, _, covariance = pde.moments(found.final.v, found.final.map, problem.box)
    assert found.result == pde.Result.successful, found.message
    exact = problem.moments(0.5)
    assert exact is not None
    known = exact[2]
    width = np.sqrt(np.diag(known))
    assert (np.abs(covariance - known) / np.outer(width, width)).max() < 1.2e-4
