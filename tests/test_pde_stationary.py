"""Stationary densities against Gaussians and Boltzmann densities; what has none says so."""

import numpy as np
import pytest
from scipy import linalg, stats

from tensorjax import pde
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
