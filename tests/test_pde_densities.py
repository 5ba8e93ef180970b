"""Points, moments and marginals of trains in moved coordinates, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import pde, tt
from tensorjax.pde._observables import marginals, values_and_moments

KINDS = ("fourier", "chebyshev", "finite_differences")


def density(points, mean, spread):
    """A normal density at points (…, k)."""
    z = points - mean
    inside = np.einsum("...i,ij,...j->...", z, np.linalg.inv(spread), z)
    return np.exp(-0.5 * inside) / np.sqrt(np.linalg.det(2 * np.pi * spread))


def example(rng, d, kind="fourier", n=64, tol=1e-12, tilt=0.15, half_width=8.0):
    """A correlated Gaussian, and its train in a map that fits it roughly."""
    a = rng.standard_normal((d, d))
    start = pde.Gaussian(0.4 * rng.standard_normal(d), np.eye(d) + 0.3 * a @ a.T / d)
    white = start.whitening()
    turned = 0.9 * np.eye(d) + tilt * rng.standard_normal((d, d))
    map = pde.affine(turned @ white.matrix, turned @ white.shift + 0.2)
    box = getattr(pde.Box, kind)(d, n, half_width)
    return start, map, box, start.train(box, map, tol)


@pytest.mark.parametrize(("kind", "tol"), [(KINDS[0], 1e-9), (KINDS[1], 1e-7), (KINDS[2], 1e-2)])
def test_points_are_those_of_the_function_and_zero_outside(rng, kind, tol):
    start, map, box, v = example(rng, 3, kind)
    x = start.sample(rng, 200)
    exact = start.values(x)
    assert np.abs(pde.evaluate(v, map, box, x) - exact).max() < tol * exact.max()
    outside = map.inverse(np.array([[8.1, 0.0, 0.0], [0.0, -8.1, 0.0], [0.0, 0.0, 30.0]]))
    assert np.array_equal(pde.evaluate(v, map, box, outside), np.zeros(3))


def test_evaluation_goes_through_points_in_parts(rng, monkeypatch):
    start, map, box, v = example(rng, 3)
    x = start.sample(rng, 100)
    whole = pde.evaluate(v, map, box, x)
    monkeypatch.setattr(values_and_moments, "_CHUNK", 1000)
    assert np.allclose(pde.evaluate(v, map, box, x), whole, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("kind", "tol"), [(KINDS[0], 1e-9), (KINDS[1], 1e-9), (KINDS[2], 1e-6)])
@pytest.mark.parametrize("d", [1, 2, 4])
def test_mass_and_moments_are_those_of_the_function(rng, kind, tol, d):
    start, map, box, v = example(rng, d, kind)
    assert abs(pde.mass(v, map, box) - 1) < tol
    mass, mean, spread = pde.moments(v, map, box)
    assert abs(mass - 1) < tol
    assert np.abs(mean - start.mean).max() < 10 * tol
    assert np.abs(spread - start.covariance).max() < 10 * tol
    _, mean, spread = pde.moments(-2.0 * v, map, box)  # of any sign and size
    assert np.abs(mean - start.mean).max() < 10 * tol
    assert np.abs(spread - start.covariance).max() < 10 * tol


def test_statistics_trace_and_differentiate(rng):
    start, map, box, v = example(rng, 2, n=32, tol=1e-8)
    x = start.sample(rng, 5)

    def statistics(scale):
        w = tt.TT([v.cores[0] * scale, *v.cores[1:]])
        return pde.mass(w, map, box), *pde.moments(w, map, box), pde.evaluate(w, map, box, x)

    (mass, again, mean, spread, values), slopes = jax.jit(
        lambda s: jax.jvp(statistics, (s,), (jnp.ones(()),))
    )(jnp.asarray(2.0))
    assert np.allclose([mass, again], 2)
    assert np.allclose(mean, start.mean)
    assert np.allclose(spread, start.covariance)
    assert np.allclose(values, 2 * start.values(x))
    assert np.allclose(slopes[-1], start.values(x))
    assert np.allclose(slopes[2], 0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_marginals_of_one_coordinate_are_exact(rng, kind):
    start, map, box, v = example(rng, 4, kind, n=80 if kind == "chebyshev" else 64)
    for axis in (0, 2):
        (x,), found = pde.marginal(v, map, box, axes=(axis,))
        exact = density(x[:, None], start.mean[[axis]], start.covariance[np.ix_([axis], [axis])])
        assert np.abs(found - exact).max() < 1e-8
        assert len(x) == 128
        assert abs(x.mean() - start.mean[axis]) < 1e-6


@pytest.mark.parametrize("tilt", [0.0, 0.15, 0.4])
def test_marginals_of_two_coordinates_are_exact(rng, tilt):
    size = {"n": 96, "half_width": 12.0} if tilt == 0.4 else {}
    start, map, box, v = example(rng, 3, tilt=tilt, **size)
    axes = (2, 0)
    (x, y), found = pde.marginal(v, map, box, axes=axes, points=(40, 30))
    assert found.shape == (40, 30)
    points = np.stack(np.meshgrid(x, y, indexing="ij"), -1)
    exact = density(points, start.mean[list(axes)], start.covariance[np.ix_(axes, axes)])
    assert np.abs(found - exact).max() < 1e-8


def test_marginals_are_those_of_the_train_in_the_identity_map(rng):
    # Not of a Gaussian: sums over the other axes, at the grid's own points.
    box, map = pde.Box.fourier(3, 48, 5.5), pde.AffineMap.identity(3)
    parts = [pde.Gaussian(rng.uniform(-1, 1, 3), 0.3 * np.eye(3)) for _ in range(3)]
    v = pde.Mixture([0.3, 0.3, 0.4], parts).train(box, map, 1e-11)
    x = np.asarray(tt.to_dense(v)) * box.axes[0].weights[0] ** 2
    (points,), found = pde.marginal(v, map, box, axes=(1,), points=box.axes[1].points)
    assert np.array_equal(points, box.axes[1].points)
    assert np.abs(found - x.sum((0, 2))).max() < 1e-9
    _, both = pde.marginal(v, map, box, axes=(0, 2), points=(box.points[0], box.points[2]))
    assert np.abs(both - x.sum(1) / box.axes[0].weights[0]).max() < 1e-9


def test_frequencies_beyond_the_grid_are_left_out(rng, monkeypatch):
    # A long, narrow Gaussian across the axes: without the mask the sums give others' values there.
    turn = np.array([[1.0, 1.0], [-1.0, 1.0]]) / 2**0.5
    start = pde.Gaussian(np.zeros(2), turn @ np.diag([4.0, 0.02]) @ turn.T)
    map, box = start.whitening(), pde.Box.fourier(2, 32)
    v = start.train(box, map, 1e-12)
    (x,), found = pde.marginal(v, map, box, axes=(0,))
    exact = density(x[:, None], np.zeros(1), start.covariance[:1, :1])
    assert np.abs(found - exact).max() < 1e-8
    limits = marginals._limits
    monkeypatch.setattr(marginals, "_limits", lambda box: 4 * limits(box))
    _, aliased = pde.marginal(v, map, box, axes=(0,))
    assert np.abs(aliased - exact).max() > 1e-4


def test_marginals_are_zero_outside_their_window(rng):
    _, map, box, v = example(rng, 2)
    _, found = pde.marginal(v, map, box, axes=(0,), points=np.array([0.0, 100.0, -100.0]))
    assert found[0] > 0.1
    assert np.array_equal(found[1:], [0, 0])


def test_edge_mass_sees_what_leaves_the_box():
    box, map = pde.Box.fourier(3, 32, 4.0), pde.AffineMap.identity(3)
    shares = []
    for shift in (0.0, 2.0, 3.5):
        v = pde.Gaussian(np.array([0.0, shift, 0.0]), 0.2 * np.eye(3)).train(box, map, 1e-12)
        x = np.asarray(tt.to_dense(v))
        ends = [0, 1, -2, -1]
        exact = max(np.linalg.norm(x.take(ends, axis=k)) / np.linalg.norm(x) for k in range(3))
        shares.append(pde.edge_mass(v, box))
        assert shares[-1] == pytest.approx(exact, rel=1e-6)
    assert shares[0] < 1e-12 < 1e-5 < shares[1] < 0.3 < shares[2]
    assert pde.edge_mass(tt.zeros(box.shape), box) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v, m, b: pde.evaluate(v, m, b, np.zeros((3, 3))), r"x: expected points of shape"),
        (lambda v, m, b: pde.mass(v, m, pde.Box.fourier(2, 9)), r"v: expected shape \(9, 9\)"),
        (lambda v, m, b: pde.mass(v, pde.AffineMap.identity(3), b), "map: expected 2 coordinates"),
        (lambda v, m, b: pde.mass(v * np.nan, m, b), "v: expected finite"),
        (lambda v, m, b: pde.moments(0 * v, m, b), "v: expected a density, got a function of mass"),
        (lambda v, m, b: pde.marginal(v, m, b, 0), r"axes: expected one or two coordinates such"),
        (lambda v, m, b: pde.marginal(v, m, b, axes=(0, 1, 1)), "axes: expected one or two"),
        (
            lambda v, m, b: pde.marginal(v, m, b, axes=(2,)),
            r"axes: expected an integer in \[0, 1\]",
        ),
        (lambda v, m, b: pde.marginal(v, m, b, axes=(0,), points=(4, 4)), "points: expected one"),
    ],
)
def test_bad_arguments_are_refused(rng, call, message):
    _, map, box, v = example(rng, 2, n=32, tol=1e-6)
    with pytest.raises(ValueError, match=message):
        call(v, map, box)


def test_marginals_do_not_trace(rng):
    _, map, box, v = example(rng, 2, n=32, tol=1e-6)
    with pytest.raises(TypeError, match="expected concrete arrays, got traced"):
        jax.jit(lambda v: pde.marginal(v, map, box, axes=(0,)))(v)
