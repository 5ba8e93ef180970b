"""Samples, entropies, divergences, fluxes and square roots of densities, over drawn Gaussians."""

import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import pde, tt


def gaussian(rng: np.random.Generator, d: int) -> pde.Gaussian:
    q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return pde.Gaussian(rng.normal(0, 0.3, d), q @ np.diag(rng.uniform(0.4, 1.2, d)) @ q.T)


def drawn_map(rng: np.random.Generator, d: int) -> pde.AffineMap:
    return pde.affine(np.eye(d) + 0.15 * rng.standard_normal((d, d)), rng.normal(0, 0.2, d))


KINDS = ("fourier", "chebyshev", "finite differences")


@pytest.mark.parametrize(("d", "kind"), [(1, "fourier"), (2, "chebyshev"), (3, KINDS[2])])
def test_samples_have_the_moments_and_entropies_of_gaussians(d, kind, rng):
    start, map = gaussian(rng, d), drawn_map(rng, d)
    box = pde.Box([pde.Axis(kind, 56, -7.0, 7.0)] * d)
    v = start.train(box, map, 1e-5)
    v = v * 3.0  # densities of any mass
    x = pde.sample(rng, v, map, box, 4000)
    spread = np.sqrt(np.diag(start.covariance))
    assert np.abs((x.mean(0) - start.mean) / spread).max() < 5 / np.sqrt(4000)
    error = (np.cov(x.T).reshape(d, d) - start.covariance) / np.outer(spread, spread)
    assert np.abs(error).max() < 5 * np.sqrt(2 / 4000)
    found = pde.entropy(v, map, box, count=500, key=rng)
    exact = np.linalg.slogdet(2 * np.pi * np.e * start.covariance)[1] / 2
    assert abs(found.value - exact) < 3e-3
    assert found.error < 1e-3
    other = pde.Gaussian(start.mean + 0.2, 1.3 * start.covariance)
    found = pde.kullback_leibler(v, map, box, other.values, count=4000, key=rng)
    moved = 0.2 * np.ones(d) @ np.linalg.solve(1.3 * start.covariance, 0.2 * np.ones(d))
    exact = (d / 1.3 - d + d * np.log(1.3) + moved) / 2
    assert abs(found.value - exact) < 5 * found.error
    nothing = pde.kullback_leibler(v, map, box, lambda x: np.zeros(len(x)), count=10)
    assert nothing.value == np.inf
    with pytest.raises(ValueError, match=r"got NaN at 4 of 10 points, first \(-?\d"):
        pde.kullback_leibler(v, map, box, lambda x: np.repeat([1.0, np.nan], [6, 4]), count=10)


def test_samples_of_angles_and_half_lines(rng):
    box = pde.Box([pde.Axis("periodic", 32, 0.0, 2 * np.pi), pde.Axis("log", 48, 0.2, 12.0)])
    axes = np.meshgrid(*box.points, indexing="ij")
    dense = (1 + 0.8 * np.cos(axes[0])) * np.exp(-2 * np.log(axes[1]) ** 2)  # of log y
    x = pde.sample(
        rng, tt.from_dense(jnp.asarray(dense), tol=1e-5), pde.AffineMap.identity(2), box, 6000
    )
    assert abs(np.cos(x[:, 0]).mean() - 0.4) < 0.05
    assert abs(np.log(x[:, 1]).mean()) < 0.05
    assert abs(np.log(x[:, 1]).std() - 0.5) < 0.03


@pytest.mark.parametrize("interpretation", ["ito", "klimontovich"])
def test_the_divergence_of_the_flux_is_the_right_side(interpretation, rng):
    box, map = pde.Box.fourier(2, 64, 6.0), pde.affine([[1.0, 0.2], [0.0, 1.0]])
    drift = [pde.Sin([0.0, 1.0]), pde.Power([1.0, 0.0], exponent=2, amplitude=-0.2)]
    noise = [pde.Separable({0: lambda x: 0.3 + 0.1 * np.cos(x)}), 0.2]
    problem = pde.FokkerPlanck(
        drift, noise, gaussian(rng, 2), box, matrix=rng.standard_normal((2, 2)) / 2,
        interpretation=interpretation,
    )  # fmt: skip
    v = problem.initial(map, 1e-7 if jnp.zeros(1).dtype == jnp.float64 else 1e-5)
    right, x, h = problem.right_side(map, 0.0), rng.normal(0, 0.5, (20, 2)), 1e-2
    rate = tt.linear_combination(right.terms(v), [1.0] * len(right.terms(v)), tol=1e-5)
    rate = pde.evaluate(rate, map, box, x)
    out = np.zeros(20)
    for k, e in enumerate(h * np.eye(2)):
        ahead, behind = (pde.flux(problem, v, map, x + s * e)[:, k] for s in (1, -1))
        out -= (ahead - behind) / (2 * h)
    np.testing.assert_allclose(out, rate, atol=2e-2 * np.abs(rate).max())


@pytest.mark.parametrize("d", [1, 2, 3])
def test_squares_of_roots_are_densities(d, rng):
    start, box, map = gaussian(rng, d), pde.Box.fourier(d, 48, 7.0), pde.AffineMap.identity(d)
    v = start.train(box, map, 1e-4)
    found = pde.square_root(v, box)
    assert found.change < 1e-2
    x = rng.uniform(-7, 7, (2000, d))
    near = start.sample(rng, 100)
    assert (pde.evaluate(found.root, map, box, x) ** 2).min() >= 0
    exact = start.values(near)
    error = pde.evaluate(found.root, map, box, near) ** 2 - exact
    assert np.linalg.norm(error) < 1e-2 * np.linalg.norm(exact)
    square = found.root * found.root
    assert abs(float(pde.mass(square, map, box)) - float(pde.mass(v, map, box))) < 1e-4


def test_what_is_no_density_is_refused():
    box, map = pde.Box.fourier(2, 16, 5.0), pde.AffineMap.identity(2)
    v = pde.Gaussian(np.zeros(2), np.eye(2)).train(box, map, 1e-3)
    for wrong in (
        lambda: pde.sample(np.random.default_rng(0), v * -1.0, map, box, 3),
        lambda: pde.entropy(v * 0.0, map, box),
        lambda: pde.square_root(v * -1.0, box),
        lambda: pde.square_root(v, pde.Box.fourier(2, 18, 5.0)),
        lambda: pde.kullback_leibler(v, map, box, lambda x: np.ones(3)),
        lambda: pde.flux(object(), v, map, np.zeros((1, 2))),  # pyright: ignore
    ):
        with pytest.raises(ValueError, match="expected"):
            wrong()
