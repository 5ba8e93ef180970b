"""Diffusion that depends on x and t: operators, interpretations, densities and moments."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, stats

from tensorjax import pde
from tests.oracles import dense, error, norm
from tests.test_pde_problems import mesh, shear

START = pde.Gaussian(np.array([0.2, -0.1]), np.array([[0.5, 0.1], [0.1, 0.4]]))
BOX = pde.Box.fourier(2, 64, 7.0)


def applied(problem, map, t=0.0):
    v = dense(problem.initial(map, 1e-13))
    n = problem.box.shape
    out = np.zeros(v.size)
    for operator in problem.right_side(map, t).operators:
        a, b = (np.asarray(c) for c in operator.cores)
        out += np.einsum("aij,akl,jl->ik", a[0].transpose(2, 0, 1), b[..., 0], v).ravel()
    return out.reshape(n)


def relative(found, exact):
    return error(found, exact) / norm(exact)


def smooth(rng):
    """Draws D = c 1 + Σ s_k(x) S_k: terms with matrices, the same as a function, and rows."""
    waves = [pde.Sin(rng.uniform(-0.6, 0.6, 2), rng.uniform(0, 6), 0.2) for _ in range(2)]
    a, b = rng.standard_normal((2, 2, 2))
    tensors = [a @ a.T / np.trace(a @ a.T), b @ b.T / np.trace(b @ b.T)]
    one = pde.Power(np.zeros(2), 1.0, 1)
    terms = [(one, 0.5 * np.eye(2)), *zip(waves, tensors, strict=True)]

    def function(x):
        out = 0.5 * jnp.eye(2)[None]
        for w, s in zip(waves, tensors, strict=True):
            rise = w.amplitude * jnp.sin(x @ w.weights + w.phase)
            out = out + rise[:, None, None] * jnp.asarray(s)[None]
        return out

    return terms, function, waves, tensors


@pytest.mark.parametrize("interpretation", ["ito", "stratonovich", "klimontovich"])
def test_variable_diffusion_is_the_operator_in_physical_coordinates(rng, interpretation):
    # Σ ∂_i ∂_j (D_ij u) − share Σ ∂_i (∂_j D_ij u) of a Gaussian, at the points themselves.
    terms, _, waves, tensors = smooth(rng)
    map = shear(rng, 2, 0.2)
    problem = pde.FokkerPlanck(None, terms, START, BOX, interpretation=interpretation)
    x = map.inverse(mesh(BOX))
    p = np.linalg.inv(START.covariance)
    z = -(x - START.mean) @ p
    u = START.values(x)
    hessian = u[:, None, None] * (z[:, :, None] * z[:, None] - p)
    share = {"ito": 0.0, "stratonovich": 0.5, "klimontovich": 1.0}[interpretation]
    exact = 0.5 * np.einsum("mii->m", hessian)
    for w, s in zip(waves, tensors, strict=True):
        g = w.gradient(x)
        bend = -w.values(x) * (w.weights @ s @ w.weights)  # ∂_i ∂_j D_ij
        exact += w.values(x) * np.einsum("ij,mij->m", s, hessian)
        exact += (2 - share) * u * np.einsum("mi,ij,mj->m", g, s, z) + (1 - share) * bend * u
    assert np.abs(applied(problem, map).ravel() - exact).max() < 1e-6


def test_diffusion_is_given_in_many_ways(rng):
    terms, function, waves, _ = smooth(rng)
    map = shear(rng, 2, 0.2)
    wanted = applied(pde.FokkerPlanck(None, terms, START, BOX), map)
    found = applied(pde.FokkerPlanck(None, function, START, BOX), map)
    assert relative(found, wanted) < 1e-3  # cross approximation in the precision of JAX
    waves = [pde.Product([w, w]) for w in waves]
    numbers = pde.FokkerPlanck(None, [waves[0], 0.3], START, BOX)
    rows = pde.FokkerPlanck(None, [[waves[0], None], [None, 0.3]], START, BOX)
    pairs = [(waves[0], np.diag([1.0, 0])), (pde.Power([0, 0], 0.3), np.diag([0, 1.0]))]
    pairs = pde.FokkerPlanck(None, pairs, START, BOX)
    vector = lambda x: np.stack([waves[0].values(x), 0.3 + 0 * x[:, 0]], 1)  # noqa: E731
    vector = pde.FokkerPlanck(None, vector, START, BOX)
    timed = pde.FokkerPlanck(
        lambda t, x: 0 * x, lambda t, x: t * jnp.asarray(vector.diffusion(x)), START, BOX
    )
    wanted = applied(numbers, map)
    for problem, t, tol in ((rows, 0, 1e-9), (pairs, 0, 1e-9), (vector, 0, 1e-3)):
        assert relative(applied(problem, map, t), wanted) < tol
    assert relative(applied(timed, map, 2.0), 2 * wanted) < 1e-3
    cross = pde.FokkerPlanck(None, [[0.5, waves[0]], [waves[0], 0.5]], START, BOX)
    x = rng.standard_normal((5, 2))
    assert np.allclose(cross.noise.values(x)[:, 0, 1], waves[0].values(x))
    operator = cross.right_side(pde.AffineMap.identity(2), 0.0).others
    assert [o.ranks for o in operator] == [(1, 4, 1)]  # one product: ∂_1 ∂_2 of the multiplier


def test_stratonovich_is_ito_with_another_drift(rng):
    # D_ii = (c_i + x_i / 10)²: the drift of the Itô equation has (c_i + x_i / 10) / 10 more.
    offset, map = rng.uniform(0.6, 1.2, 2), shear(rng, 2, 0.05)
    d = [pde.Power(0.1 * np.eye(2)[i], offset[i], 2) for i in range(2)]
    field = [pde.Sin([0.3, 0.5]), pde.Sin([0.5, -0.2])]
    given = pde.FokkerPlanck(field, d, START, BOX, interpretation="stratonovich")
    more = pde.FokkerPlanck(field, d, START, BOX, matrix=0.01 * np.eye(2), offset=0.1 * offset)
    assert relative(applied(given, map), applied(more, map)) < 1e-6
    assert (
        relative(applied(given, map), applied(pde.FokkerPlanck(field, d, START, BOX), map)) > 0.01
    )
    x = rng.standard_normal((4, 2))
    assert np.allclose(given.noise.spurious(x), 0.1 * (offset + 0.1 * x), atol=1e-9)


def along(axis, problem, solution):
    """Returns the density of a problem in one dimension, and its points."""
    x = solution.final.map.inverse(axis.points[:, None])[:, 0]
    return x, pde.evaluate(solution.final.v, solution.final.map, problem.box, x[:, None])


@pytest.mark.parametrize("draw", [0, *[pytest.param(k, marks=pytest.mark.slow) for k in (1, 2)]])
def test_geometric_brownian_motion_has_its_lognormal_density(draw):
    rng = np.random.default_rng(draw)
    rate, sigma, m, s = rng.uniform([-0.2, 0.1, 0.3, 0.1], [0.3, 0.3, 0.5, 0.2])
    axis = pde.Axis("fourier", 128, 0.0, 7.0)

    def density(t, x):
        wide = np.sqrt(s**2 + sigma**2 * t)
        scale = np.exp(m + (rate - sigma**2 / 2) * t)
        return stats.lognorm.pdf(np.asarray(x), wide, scale=scale)

    problem = pde.FokkerPlanck(
        None,
        [pde.Power([1.0], exponent=2, amplitude=sigma**2 / 2)],
        pde.Function(lambda x: density(0.0, x[:, 0])),
        pde.Box([axis]),
        matrix=[[rate]],
    )
    solution = pde.integrate(problem, t1=0.3, tol=1e-5)
    assert solution.result == pde.Result.successful
    x, found = along(axis, problem, solution)
    assert relative(found, density(0.3, x)) < 1e-4


@pytest.mark.parametrize("interpretation", ["ito", "stratonovich"])
@pytest.mark.parametrize("draw", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_square_root_process_has_its_density(draw, interpretation):
    rng = np.random.default_rng(draw)
    # Cox–Ingersoll–Ross dx = κ (θ − x) dt + σ √x dW: a noncentral χ² density.
    pull, mean, sigma, x0 = rng.uniform([0.5, 0.8, 0.25, 0.8], [2.0, 1.4, 0.45, 1.2])
    axis = pde.Axis("fourier", 96, 0.0, 4.0)

    def density(t, x):
        c = 2 * pull / (sigma**2 * -np.expm1(-pull * t))
        degrees = 4 * pull * mean / sigma**2
        return 2 * c * stats.ncx2.pdf(2 * c * x, degrees, 2 * c * x0 * np.exp(-pull * t))

    less = sigma**2 / 4 if interpretation == "stratonovich" else 0.0
    problem = pde.FokkerPlanck(
        None,
        [pde.Power([1.0], amplitude=sigma**2 / 2)],
        pde.Function(lambda x: density(0.3, x[:, 0])),
        pde.Box([axis]),
        matrix=[[-pull]],
        offset=[pull * mean - less],
        interpretation=interpretation,
    )
    solution = pde.integrate(problem, t0=0.3, t1=0.8, tol=1e-5)
    assert solution.result == pde.Result.successful
    x, found = along(axis, problem, solution)
    assert relative(found, density(0.8, x)) < 1e-4


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("coordinates", ["fixed", "adaptive"])
def test_second_moments_of_linear_equations_are_those_of_their_closed_equation(rng, d, coordinates):
    # dx = A x dt + √(2D) dW, D = 0.1 + Σ a (w·x)² S: second moments obey a linear equation.
    matrix = 0.3 * rng.standard_normal((d, d)) - 0.6 * np.eye(d)
    w, s = rng.standard_normal(d), rng.standard_normal((d, d))
    w, s = 0.15 * w / np.linalg.norm(w), s @ s.T / np.trace(s @ s.T)
    cov = 0.4 * np.eye(d)
    terms = [
        (pde.Power(np.zeros(d), 0.1), np.eye(d)),
        (pde.Power(w, 0.0, 2), s),
    ]
    box = pde.Box.fourier(d, 40, 6.0)
    problem = pde.FokkerPlanck(None, terms, pde.Gaussian(np.zeros(d), cov), box, matrix=matrix)
    solution = pde.integrate(problem, t1=0.3, tol=1e-5, coordinates=coordinates)
    assert solution.result == pde.Result.successful, solution.message
    final = solution.final
    _, mean, found = pde.moments(final.v, final.map, box)
    n, one = d * d, np.eye(d)
    flow = np.zeros((n + 1, n + 1))
    flow[:n, :n] = np.kron(matrix, one) + np.kron(one, matrix)
    flow[:n, :n] += 2 * np.outer(s.ravel(), np.outer(w, w).ravel())
    flow[:n, n] = 0.2 * one.ravel()
    exact = (linalg.expm(0.3 * flow) @ np.append(cov.ravel(), 1.0))[:n].reshape(d, d)
    assert np.abs(mean).max() < 1e-4
    assert np.abs(found - exact).max() < 2e-4


def test_drift_and_diffusion_of_time_are_followed(rng):
    # dx = (a cos t − k x) dt + √(2 c (1 + t)) dW, per axis: a Gaussian with a mean of its own.
    a, k, c = rng.uniform([0.5, 0.5, 0.05], [1.0, 1.0, 0.15])
    problem = pde.FokkerPlanck(
        lambda t, x: a * np.cos(t) - k * x,
        lambda t, x: c * (1 + t) + 0 * x,
        pde.Gaussian(np.zeros(2), 0.3 * np.eye(2)),
        pde.Box.fourier(2, 32, 5.0),
    )
    solution = pde.integrate(problem, t1=0.5, dt=0.05, tol=1e-5, coordinates="fixed")
    final = solution.final
    _, mean, covariance = pde.moments(final.v, final.map, problem.box)
    t, fall = 0.5, np.exp(-0.5 * k)
    center = a * (k * np.cos(t) + np.sin(t) - k * fall) / (1 + k**2)
    wide = 0.3 * fall**2 + c * ((1 - fall**2) / k + t / k - (1 - fall**2) / (2 * k**2))
    assert np.abs(mean - center).max() < 1e-4
    assert np.abs(covariance - wide * np.eye(2)).max() < 1e-4
    assert problem.exact(0.5, np.zeros((1, 2))) is None


def test_simulated_paths_have_the_moments_of_the_interpretation(rng):
    # dx = −k x dt + σ x ∘ dW: means fall as exp((σ² share − k) t).
    k, sigma, count = 0.5, 0.6, 10_000
    for share, name in ((0.0, "ito"), (0.5, "stratonovich"), (1.0, "klimontovich")):
        problem = pde.FokkerPlanck(
            None,
            [pde.Power([1.0], exponent=2, amplitude=sigma**2 / 2)],
            pde.Gaussian([2.0], [[0.01]]),
            pde.Box([pde.Axis("fourier", 32, 0.0, 8.0)]),
            matrix=[[-k]],
            interpretation=name,
        )
        found = problem.simulate(rng, 0.4, count, steps=40)[:, 0]
        exact = 2.0 * np.exp((sigma**2 * share - k) * 0.4)
        assert abs(found.mean() - exact) < 5 * found.std() / np.sqrt(count) + 0.01
        assert problem.moments(0.4) is None
        assert problem.exact(0.4, np.ones((1, 1))) is None


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (lambda x: x, {}, "diffusion: expected a positive semidefinite matrix in the box"),
        (pde.Power([1.0, 0.0]), {}, "negative diffusion has no solution"),
        (lambda x: np.ones(len(x)), {}, r"diffusion: expected values of shape \(1000, 2\)"),
        (lambda x: np.ones((len(x), 2, 2)) + np.eye(2, k=1), {}, "a symmetric matrix"),
        (lambda: 0.0, {}, "that takes neither"),
        ([pde.Sin([1.0, 0.0])], {}, "diffusion: expected 2 entries of a diagonal"),
        (
            lambda x: np.ones((len(x), 2, 2)) * np.cosh(x[:, :1, None]),
            {"interpretation": "stratonovich"},
            "interpretation: in the sense of Stratonovich",
        ),
        (0.1, {"interpretation": "Ito"}, "interpretation: expected one of"),
    ],
)
def test_bad_diffusions_are_refused(given, options, message):
    with pytest.raises(ValueError, match=message):
        pde.FokkerPlanck(None, given, START, BOX, **options)
