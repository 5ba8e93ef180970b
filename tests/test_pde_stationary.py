"""Stationary densities against Gaussians and Boltzmann densities; what has none says so."""

import dataclasses

import numpy as np
import pytest
from scipy import linalg, stats

from tensorjax import pde, tt
from tensorjax.pde._long_times import closed_forms, linear_systems, stationary
from tests.oracles import error, norm
from tests.test_pde_problems import mesh

E = np.eye(2)


def values(problem, found):
    x = mesh(problem.box)
    return x, np.asarray(pde.evaluate(found.final.v, found.final.map, problem.box, x))


def boltzmann(box, energy):
    """Returns exp(−energy) at the points of the box, of mass one."""
    density = np.exp(-energy(mesh(box)))
    weight = box.weights[0]
    for w in box.weights[1:]:
        weight = np.multiply.outer(weight, w)
    return density / (density @ weight.ravel())


def relative(found, exact):
    return error(found, exact) / norm(exact)


@pytest.mark.parametrize("d", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_of_an_ornstein_uhlenbeck_process_is_gaussian(rng, d):
    matrix = 0.2 * rng.standard_normal((d, d)) - np.eye(d)
    spread = rng.standard_normal((d, d))
    diffusion, center = 0.3 * np.eye(d) + 0.05 * spread @ spread.T / d, rng.uniform(-0.3, 0.3, d)
    covariance = linalg.solve_continuous_lyapunov(matrix, -2 * diffusion)
    box = pde.Box.fourier(d, 56 if d < 3 else 32, 5.0)
    start = pde.Gaussian(np.zeros(d), 0.5 * np.eye(d))
    problem = pde.OrnsteinUhlenbeck(matrix, diffusion, start, box, offset=-matrix @ center)
    found = pde.stationary(problem, tol=1e-6 if d < 3 else 1e-4)
    assert found.result == pde.Result.successful, found.message
    x, p = values(problem, found)
    exact = stats.multivariate_normal(center, covariance).pdf(x)
    assert relative(p, exact) < (1e-5 if d < 3 else 1e-3)
    assert abs(float(pde.mass(found.final.v, found.final.map, box)) - 1) < 1e-4
    assert found.residual < (1e-5 if d < 3 else 1e-3)


@pytest.mark.parametrize("mapped", [False, True])
def test_of_a_double_well_is_boltzmann(rng, mapped):
    temperature, coupling = rng.uniform(0.4, 0.6), rng.uniform(0.1, 0.4)
    box = pde.Box.fourier(2, 64, (2.8, 4.8))
    force = pde.Power(E[0], exponent=3, amplitude=-1.0)
    matrix = np.array([[1.0, coupling], [coupling, -1.0]])
    start = pde.Gaussian(np.zeros(2), 0.3 * E)
    problem = pde.FokkerPlanck([force, None], temperature, start, box, matrix=matrix)
    map = pde.affine(np.array([[1.0, 0.0], [-coupling, 1.0]])) if mapped else None
    found = pde.stationary(problem, tol=1e-6, map=map)
    assert found.result == pde.Result.successful, found.message

    def energy(x):
        return (x[:, 0] ** 4 / 4 - (x * (x @ matrix)).sum(1) / 2) / temperature

    if mapped:
        x = rng.uniform(-1, 1, (200, 2))
        p = pde.evaluate(found.final.v, found.final.map, box, x)
        exact = np.exp(-energy(x))
        exact *= norm(p) / norm(exact)
    else:
        _, p = values(problem, found)
        exact = boltzmann(box, energy)
    assert relative(p, exact) < (1e-4 if mapped else 1e-5)


@pytest.mark.parametrize("draw", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_of_kramers_is_boltzmann_in_the_energy(draw):
    rng = np.random.default_rng(draw)
    temperature, friction = rng.uniform([0.45, 0.8], [0.6, 1.5])
    box = pde.Box.fourier(2, 48, 4.0)
    force = pde.Power(E[0], exponent=3, amplitude=-1.0)
    problem = pde.FokkerPlanck(
        [None, force],
        np.diag([0.0, friction * temperature]),
        pde.Gaussian(np.zeros(2), 0.5 * E),
        box,
        matrix=np.array([[0.0, 1.0], [1.0, -friction]]),
    )
    found = pde.stationary(problem, tol=1e-6)
    assert found.result == pde.Result.successful, found.message
    _, p = values(problem, found)

    def energy(x):
        return (x[:, 0] ** 4 / 4 - x[:, 0] ** 2 / 2 + x[:, 1] ** 2 / 2) / temperature

    assert relative(p, boltzmann(box, energy)) < 1e-5


def test_of_multiplicative_noise_is_that_of_the_interpretation():
    # dx = −x dt + √(2 (1 + x²)/10) dW: p ∝ (1 + x²)^(−5 − 1 + share).
    axis = pde.Axis("fourier", 96, -3.5, 3.5)
    d = [[pde.Power([1.0], exponent=2, amplitude=0.1)], [pde.Power([0.0], 0.1)]]
    pairs = [(term, np.eye(1)) for (term,) in d]
    start = pde.Gaussian(np.zeros(1), 0.3 * np.eye(1))
    for share, name in ((0.0, "ito"), (0.5, "stratonovich"), (1.0, "klimontovich")):
        problem = pde.FokkerPlanck(
            None, pairs, start, pde.Box([axis]), matrix=-np.eye(1), interpretation=name
        )
        found = pde.stationary(problem)
        assert found.result == pde.Result.successful, found.message
        _, p = values(problem, found)
        exact = boltzmann(problem.box, lambda x, s=share: (6 - s) * np.log1p(x[:, 0] ** 2))
        assert relative(p, exact) < 1e-3  # the tail at the edge, 1e-6 of the top


def ornstein_uhlenbeck(rng, d):
    """Returns a process with full matrices, mean and covariance at rest."""
    matrix = 0.5 * rng.standard_normal((d, d)) / np.sqrt(d) - np.eye(d)
    spread, center = rng.standard_normal((d, d)), rng.uniform(-0.3, 0.3, d)
    diffusion = 0.3 * np.eye(d) + 0.1 * spread @ spread.T / d
    covariance = linalg.solve_continuous_lyapunov(matrix, -2 * diffusion)
    box = pde.Box.fourier(d, 32, 6.5 * np.sqrt(np.diag(covariance)))
    start = pde.Gaussian(np.zeros(d), 0.5 * np.eye(d))
    problem = pde.OrnsteinUhlenbeck(matrix, diffusion, start, box, offset=-matrix @ center)
    return problem, center, covariance


@pytest.mark.parametrize("d", [3, 4, 6, 8])
def test_full_drift_matrices_in_many_dimensions(rng, d):
    problem, center, covariance = ornstein_uhlenbeck(rng, d)
    if d == 4:  # the same equation, written otherwise
        problem = pde.FokkerPlanck(
            None, problem.diffusion, problem.start, problem.box,
            matrix=problem.matrix, offset=problem.offset,
        )  # fmt: skip
    found = pde.stationary(problem)
    assert found.result == pde.Result.successful, found.message
    assert set(found.final.v.ranks) == {1}
    _, mean, spread = pde.moments(found.final.v, found.final.map, problem.box)
    assert np.abs(mean - center).max() < 1e-4
    assert np.abs(spread - covariance).max() < 1e-4
    x = rng.multivariate_normal(center, covariance / 2, 200)
    p = pde.evaluate(found.final.v, found.final.map, problem.box, x)
    assert relative(p, stats.multivariate_normal(center, covariance).pdf(x)) < 1e-5


def particles(rng, count, gradient=True):
    """Returns coupled particles, quartic wells with momenta, one temperature or two; the energy."""
    springs = rng.uniform(0.1, 0.5) * (count * np.eye(count) - np.ones((count, count)))
    temperatures = np.full(count, rng.uniform(0.4, 0.6)) * (
        1.0 if gradient else 1 + 0.3 * np.arange(count)
    )
    friction, d = rng.uniform(0.5, 2.0), 2 * count
    matrix = np.zeros((d, d))
    matrix[:count, count:] = np.eye(count)
    matrix[count:, :count], matrix[count:, count:] = (
        0.5 * np.eye(count) - springs,
        -friction * np.eye(count),
    )
    force = [pde.Power(np.eye(d)[i], exponent=3, amplitude=-1.0) for i in range(count)]
    problem = pde.FokkerPlanck(
        [None] * count + force,
        np.diag(np.concatenate([np.zeros(count), friction * temperatures])),
        pde.Gaussian(np.zeros(d), 0.5 * np.eye(d)),
        pde.Box.fourier(d, 48, 4.0),
        matrix=matrix,
    )

    def energy(x):
        q, p = x[:, :count], x[:, count:]
        wells = (q**4 / 4 - q**2 / 4).sum(1) + (q * (q @ springs)).sum(1) / 2
        return (wells + (p**2).sum(1) / 2) / temperatures[0]

    return problem, energy


def chain(rng, dim):
    well = pde.DoubleWell(
        rng.uniform(0.5, 1.5), 1.0, rng.uniform(0.3, 0.5), dim=dim, coupling=rng.uniform(0.2, 0.8)
    )
    return well, lambda x: -np.log(well.stationary_density(x))


@pytest.mark.parametrize("case", ["particles 2", "chain 5"])
def test_detailed_balance_in_many_dimensions_is_boltzmann(rng, case):
    kind, count = case.split()
    problem, energy = {"particles": particles, "chain": chain}[kind](rng, int(count))
    found = pde.stationary(problem)
    assert found.result == pde.Result.successful, found.message
    x = rng.uniform(-1.5, 1.5, (500, problem.dim))
    p = pde.evaluate(found.final.v, found.final.map, problem.box, x)
    exact = np.exp(-energy(x))
    if kind == "particles":
        exact *= norm(p) / norm(exact)
    assert relative(p, exact) < 1e-5
    assert abs(float(pde.mass(found.final.v, found.final.map, problem.box)) - 1) < 1e-5


def test_closed_forms_are_found_only_in_detailed_balance(rng):
    for make in (chain, particles):
        problem, energy = make(rng, 3)
        found = closed_forms.equilibrium(problem)
        x = rng.uniform(-1.5, 1.5, (50, problem.dim))
        assert np.ptp(found.log_density(x) + energy(x)) < 1e-9 * np.ptp(energy(x))
        # A force that is no gradient, if small, and two temperatures.
        turned = np.array(problem.matrix)
        turned[-1, 0] += 1e-4
        parts = problem.drift, problem.diffusion, problem.start, problem.box
        assert closed_forms.equilibrium(pde.FokkerPlanck(*parts, matrix=turned)) is None
    assert closed_forms.equilibrium(particles(rng, 2, gradient=False)[0]) is None


def test_closed_forms_that_take_too_long_or_too_high_ranks_are_given_up(rng):
    well, _ = chain(rng, 4)
    found, at = closed_forms.equilibrium(well), pde.AffineMap.identity(4)
    assert found.cores(well.box, at, 1e-6, 300, 0.0) is None
    assert found.cores(well.box, at, 1e-6, 1, np.inf) is None


def test_a_closed_form_that_the_box_does_not_hold_says_so(rng):
    problem, _, covariance = ornstein_uhlenbeck(rng, 5)
    half = np.sqrt(np.diag(covariance))
    for scale, result in ((3.2, pde.Result.edge_mass), (30.0, pde.Result.unresolved)):
        other = dataclasses.replace(problem, box=pde.Box.fourier(5, 32, scale * half))
        assert pde.stationary(other).result == result


@pytest.mark.parametrize("temperature", [0.04, 0.025])
def test_the_density_of_one_of_two_wells_is_not_taken_for_stationary(temperature):
    # Wells at ±1 along the first axis, met once in exp(1/(4 T)) times of their width.
    start = pde.Gaussian([1.0, 0.0, 0.0], temperature * np.diag([0.5, 1.0, 1.0]))
    force = pde.Power(np.eye(3)[0], exponent=3, amplitude=-1.0)
    box = pde.Box.fourier(3, (72, 36, 36), (2.0, 1.4, 1.4))
    problem = pde.FokkerPlanck(
        [force, None, None], temperature * np.eye(3), start, box, matrix=np.diag([1.0, -1.0, -1.0])
    )
    identity = pde.AffineMap.identity(3)
    operator, p = stationary.operator_of(problem, identity), problem.initial_cores(identity, 1e-4)
    whole = stationary._iterated(operator, p, box, 1e-6, None, linear_systems.Timer(5.0)).p
    step = 1 / (1 + np.exp(-box.points[0] / 0.08))
    one = [whole[0] * step[:, None], *whole[1:]]
    one[0] = 2 * one[0]
    for tol, first in ((1e-2, p), (1e-2, one), (1e-3, one), (1e-6, one)):
        found = stationary._iterated(operator, first, box, tol, None, linear_systems.Timer(5.0))
        train = tt.TT([c.astype(np.float32) for c in found.p])
        _, mean, _ = pde.moments(train, identity, box)
        assert found.steady
        assert abs(mean[0]) < 0.05


def test_more_time_than_allowed_is_said(rng):
    problem, _ = particles(rng, 2, gradient=False)
    coarse = dataclasses.replace(problem, box=pde.Box.fourier(4, 24, 4.0))
    found = pde.stationary(coarse, max_seconds=1e-3)
    assert found.result == pde.Result.max_steps
    assert "TT-ranks" in found.message
    assert "max_seconds" in found.message
    for bad in (0.0, -1.0, np.nan, None, "60", True):
        with pytest.raises(ValueError, match="max_seconds"):
            pde.stationary(coarse, max_seconds=bad)


def test_what_has_no_stationary_density_says_so():
    box, start = pde.Box.fourier(2, 32, 4.0), pde.Gaussian(np.zeros(2), 0.3 * E)
    spreads = pde.stationary(pde.FokkerPlanck(None, 0.1, start, box))
    assert spreads.result == pde.Result.edge_mass
    assert "does not confine" in spreads.message
    leaves = pde.stationary(pde.FokkerPlanck(None, 0.1, start, box, matrix=np.diag([1.0, -1.0])))
    assert leaves.result in (pde.Result.edge_mass, pde.Result.unresolved)
    narrow = pde.stationary(pde.FokkerPlanck(None, 0.01, start, box, matrix=-E))
    assert narrow.result == pde.Result.unresolved
    tilted = np.array([[-1.0, 0.8], [0.8, -1.0]])
    problem = pde.FokkerPlanck(None, 0.2, start, box, matrix=tilted)
    assert pde.stationary(problem, max_rank=2).result == pde.Result.max_rank


def test_bad_arguments_of_stationary_are_refused():
    box, start = pde.Box.fourier(2, 16, 4.0), pde.Gaussian(np.zeros(2), E)
    with pytest.raises(ValueError, match=r"problem: expected a pde.Problem"):
        pde.stationary(start)
    timed = pde.FokkerPlanck(lambda t, x: -t * x, 0.1, start, box)
    growing = pde.AdvectionDiffusionReaction(None, 0.1, start, box, reaction=(0.0, 1.0, -1.0))
    for problem in (timed, growing):
        with pytest.raises(ValueError, match="problem: expected a linear equation"):
            pde.stationary(problem)
    with pytest.raises(ValueError, match="got neither"):
        pde.stationary(pde.FokkerPlanck(None, None, start, box))
    minus = pde.FokkerPlanck(None, 0.1, pde.Gaussian(np.zeros(2), E, amplitude=-1.0), box)
    with pytest.raises(ValueError, match="start: expected a density"):
        pde.stationary(minus)


@pytest.mark.parametrize("draw", [20, 21, 22])
def test_points_that_are_too_few_for_the_density_are_told(draw):
    """Wells on more and more points: a success is near Boltzmann's density, and the last one is."""
    rng = np.random.default_rng(draw)
    noise, slope, tilt = rng.uniform([0.2, 0.4, -0.15], [0.4, 1.0, 0.15])
    results = []
    for n in (36, 40, 44, 64, 96):
        box = pde.Box.fourier(1, n, 3.5)
        force = [[pde.Power([1.0], exponent=3, amplitude=-1.0)]]
        start = pde.Gaussian([0.0], [[0.5]])
        well = pde.FokkerPlanck(force, noise, start, box, matrix=[[slope]], offset=[tilt])
        found = pde.stationary(well)
        results.append(found.result)
        if found.result == pde.Result.successful:

            def energy(x, at=(slope, tilt, noise)):
                x = x[:, 0]
                return (x**4 / 4 - at[0] * x**2 / 2 - at[1] * x) / at[2]

            _, p = values(well, found)
            assert relative(p, boltzmann(box, energy)) < 3e-5
        elif found.result == pde.Result.inaccurate:
            assert "points of axis 0" in found.message
            assert pde.stationary(well, accuracy=np.inf).result == pde.Result.successful
    assert pde.Result.inaccurate in results
    assert results[-1] == pde.Result.successful
