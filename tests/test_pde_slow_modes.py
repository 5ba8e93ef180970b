"""Slow modes against eigenvalues of matrices and of dense operators; what has none says so."""

import jax
import numpy as np
import pytest
from scipy import linalg

from tensorjax import pde
from tensorjax.pde._long_times.stationary import operator_of
from tests.oracles import norm

E = np.eye(2)


def dense(problem):
    """Returns the eigenvalues of the operator of one or two coordinates, slowest first."""
    first, *more = operator_of(problem, pde.AffineMap.identity(problem.dim))
    matrix = first[0, ..., 0]
    for core in more:
        matrix = np.einsum("ija,akl->ikjl", first[0], core[..., 0])
    n = int(np.prod(problem.box.shape))
    values = np.linalg.eigvals(matrix.reshape(n, n))
    return values[np.argsort(-values.real)]


def sums(matrix, k):
    """Returns the k slowest eigenvalues of an Ornstein–Uhlenbeck process: sums of the matrix's."""
    a, b = np.linalg.eigvals(matrix).astype(complex)
    values = np.array([i * a + j * b for i in range(6) for j in range(6)])[1:]
    return values[np.argsort(-values.real, kind="stable")][:k]


@pytest.mark.parametrize("kind", ["rotating", "near-defective", "real"])
def test_of_ornstein_uhlenbeck_processes_are_sums_of_eigenvalues(rng, kind):
    rate, turn = rng.uniform(0.3, 1.0), rng.uniform(1.0, 3.0)
    matrix = {
        "rotating": -rate * E + turn * np.array([[0.0, 1.0], [-1.0, 0.0]]),
        "near-defective": np.array([[-rate, 1.0], [0.0, -rate * 1.001]]),
        "real": np.array([[-rate, 0.2], [0.1, -2.5 * rate]]),
    }[kind]
    covariance = linalg.solve_continuous_lyapunov(matrix, -E)
    half = 6 * np.sqrt(np.diag(covariance))
    # The density that is stationary is a start like any other.
    start = pde.Gaussian(np.zeros(2), covariance)
    problem = pde.OrnsteinUhlenbeck(matrix, 0.5 * E, start, pde.Box.fourier(2, 41, half))
    found = pde.slow_modes(problem, k=2)
    assert found.result == pde.Result.successful, found.message
    exact = sums(matrix, len(found.values))
    assert found.gap == pytest.approx(rate if kind != "real" else -exact[0].real, rel=1e-3)
    # An error ε of a matrix is one of √ε of eigenvalues that nearly coincide.
    close = 3e-3 if kind == "near-defective" else 1e-4
    for value in found.values:
        assert np.abs(value - exact).min() < close * abs(value)
    assert found.residuals.max() < 1e-6
    if kind == "rotating":
        assert np.iscomplexobj(found.modes[0].cores[0])
        assert len(found.values) == 2


@pytest.mark.parametrize("d", [5, pytest.param(8, marks=pytest.mark.slow)])
def test_of_full_drift_matrices_in_many_dimensions(rng, d):
    matrix = 0.6 * rng.standard_normal((d, d)) / np.sqrt(d) - np.eye(d)
    spread = rng.standard_normal((d, d))
    diffusion = 0.3 * np.eye(d) + 0.1 * spread @ spread.T / d
    covariance = linalg.solve_continuous_lyapunov(matrix, -2 * diffusion)
    box = pde.Box.fourier(d, 40, 6.5 * np.sqrt(np.diag(covariance)))
    problem = pde.OrnsteinUhlenbeck(matrix, diffusion, pde.Gaussian(np.zeros(d), np.eye(d)), box)
    found = pde.slow_modes(problem, k=4)
    assert found.result == pde.Result.successful, found.message
    a, v = np.linalg.eig(matrix)
    pairs = [a[i] + a[j] for i in range(d) for j in range(i, d)]
    exact = np.concatenate([a, pairs])
    exact = exact[np.argsort(-exact.real, kind="stable")][: len(found.values)]
    np.testing.assert_allclose(np.sort(found.values.real), np.sort(exact.real), rtol=1e-9)
    everything = np.concatenate([a, pairs])
    assert max(np.abs(everything - value).min() for value in found.values) < 1e-9
    assert found.residuals.max() < 1e-3
    # The slowest one is p times a linear function, of the left eigenvector's slopes.
    x = rng.multivariate_normal(np.zeros(d), covariance / 2, 100)
    first = v[:, np.abs(a - found.values[0]).argmin()]
    p = np.exp(-0.5 * np.vecdot(x, np.linalg.solve(covariance, x.T).T))
    wanted = p * (x @ np.linalg.solve(covariance, first))
    mode = found(x)[:, 0]
    factor = np.vdot(wanted, mode) / np.vdot(wanted, wanted)
    assert norm(mode - factor * wanted) < 1e-4 * norm(mode)


def test_of_affine_drift_in_single_precision_and_of_few_ranks(rng):
    matrix = 0.3 * rng.standard_normal((3, 3)) - np.eye(3)
    covariance = linalg.solve_continuous_lyapunov(matrix, -0.4 * np.eye(3))
    box = pde.Box.fourier(3, 40, 6.5 * np.sqrt(np.diag(covariance)))
    start = pde.Gaussian(np.zeros(3), 0.3 * np.eye(3))
    problem = pde.OrnsteinUhlenbeck(matrix, 0.2 * np.eye(3), start, box)
    a = np.linalg.eigvals(matrix)
    with jax.enable_x64(False):
        found = pde.slow_modes(problem, k=2)
    assert found.result == pde.Result.successful, found.message
    # Of the closed form, exact to roundoff.
    assert max(np.abs(a - value).min() for value in found.values) < 1e-12
    few = pde.slow_modes(problem, k=2, max_rank=1)
    assert few.result == pde.Result.max_rank
    assert max(max(mode.ranks) for mode in few.modes) <= 2  # complex ones of two parts


def test_of_critically_damped_drift_every_mode_is_listed_once():
    none, one = np.zeros((2, 2)), np.eye(2)
    matrix = np.block([[none, one], [-np.diag([1.0, 2.0]), -2 * np.diag([1.0, 2.0]) ** 0.5]])
    start = pde.Gaussian(np.zeros(4), 0.3 * np.eye(4))
    diffusion = np.diag([0.0, 0.0, 0.5, 0.5])
    covariance = linalg.solve_continuous_lyapunov(matrix, -2 * diffusion)
    box = pde.Box.fourier(4, 40, 6.5 * np.sqrt(np.diag(covariance)))
    found = pde.slow_modes(pde.OrnsteinUhlenbeck(matrix, diffusion, start, box), k=3)
    assert found.result == pde.Result.successful, found.message
    np.testing.assert_allclose(found.values, [-1, -(2**0.5), -2], atol=1e-6)


@pytest.mark.slow
def test_more_time_than_allowed_is_said():
    found = pde.slow_modes(pde.DoubleWell(dim=3, coupling=0.5), max_seconds=1e-3)
    assert found.result == pde.Result.max_steps
    assert "max_seconds" in found.message
    assert np.isnan(found.gap)


def test_of_double_wells_are_those_of_the_dense_operator(rng):
    problem = pde.DoubleWell(barrier=rng.uniform(0.8, 2.0), temperature=0.3)
    found = pde.slow_modes(problem, k=4, tol=1e-7)
    assert found.result == pde.Result.successful, found.message
    assert np.abs(found.values - dense(problem)[1:5]).max() < 1e-5
    assert np.abs(found.values.imag).max() == 0
    # The slowest one has opposite signs in the two wells, and moves in time as exp(λt).
    left, middle, right = found([[-1.0], [0.0], [1.0]])[:, 0].real
    assert abs(left + right) < 1e-6 * abs(left)
    assert abs(middle) < 1e-6 * abs(left)
    x = np.linspace(-1.5, 1.5, 50)[:, None]
    p = problem.stationary_density(x)
    shares = found(x)[:, 0].real / p
    assert norm(shares + shares[::-1]) < 1e-5 * norm(shares)


def test_of_kramers_are_those_of_the_dense_operator():
    problem = pde.Kramers((0.0, 0.0, 0.5, 0.0, 0.05), 1.2, 0.5, box=pde.Box.fourier(2, 31, 3.7))
    found = pde.slow_modes(problem, k=3, tol=1e-5)
    assert found.result == pde.Result.successful, found.message
    exact = dense(problem)[1 : 1 + len(found.values)]
    found_real, exact_real = np.sort(found.values.real), np.sort(exact.real)
    assert np.abs(found_real - exact_real).max() < 1e-4


def test_the_part_of_a_state_along_a_mode_decays_at_its_rate():
    problem = pde.DoubleWell(temperature=0.5, box=pde.Box.fourier(1, 41, 2.3))
    found = pde.slow_modes(problem)
    assert found.result == pde.Result.successful, found.message
    saveat = pde.SaveAt(ts=(1.0, 1.25))
    solution = pde.integrate(problem, t1=1.25, tol=1e-6, coordinates="fixed", saveat=saveat)
    means = [pde.moments(y.v, y.map, problem.box)[1][0] for y in solution.ys]
    assert means[1] / means[0] == pytest.approx(np.exp(-found.gap / 4), rel=2e-3)


def test_what_has_no_stationary_density_says_so():
    start = pde.Gaussian([0.0], [[0.5]])
    problem = pde.OrnsteinUhlenbeck([[0.5]], [[0.5]], start, pde.Box.fourier(1, 64, 6.0))
    found = pde.slow_modes(problem)
    assert found.result != pde.Result.successful
    assert "stationary" in found.message
    assert np.isnan(found.gap)
    assert not found.modes


def test_modes_wider_than_the_box_say_so():
    start = pde.Gaussian([0.0], [[0.5]])
    problem = pde.OrnsteinUhlenbeck([[-1.0]], [[0.5]], start, pde.Box.fourier(1, 64, 3.6))
    assert pde.slow_modes(problem).result == pde.Result.successful
    found = pde.slow_modes(problem, k=8)
    assert found.result == pde.Result.edge_mass
    assert "larger box" in found.message


@pytest.mark.parametrize("k", [0, 1.5, -1])
def test_wrong_numbers_of_modes_are_refused(k):
    with pytest.raises((ValueError, TypeError), match="k"):
        pde.slow_modes(pde.DoubleWell(), k=k)
