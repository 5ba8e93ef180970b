"""Affine maps; quadrature, derivatives and interpolation of the axes of a box."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import pde

KINDS = ("fourier", "chebyshev", "finite differences")


def bump(y):
    return np.exp(-(y**2)) * (1 + y)


def slope(y):
    return np.exp(-(y**2)) * (1 - 2 * y * (1 + y))


def curvature(y):
    return np.exp(-(y**2)) * (4 * y**2 * (1 + y) - 2 * (1 + y) - 4 * y)


# Maps --------------------------------------------------------------------------------------------


def test_a_map_goes_there_and_back(rng):
    map = pde.affine(rng.standard_normal((3, 3)), rng.standard_normal(3))
    x = rng.standard_normal((7, 3))
    y = map.forward(x)
    assert np.allclose(y, x @ map.matrix.T + map.shift)
    assert np.allclose(map.inverse(y), x)
    assert np.isclose(map.det, np.linalg.det(map.matrix))
    assert np.isclose(map.cond, np.linalg.cond(map.matrix))
    assert map.dim == 3


def test_maps_are_pytrees_and_trace(rng):
    map = pde.affine(rng.standard_normal((3, 3)), rng.standard_normal(3))
    x = rng.standard_normal((7, 3))
    there = jax.jit(lambda m, x: m.inverse(m.forward(x)))(map, x)
    assert np.allclose(there, x)
    slope = jax.grad(lambda m: jnp.sum(m.forward(x)))(map)
    assert np.allclose(slope.matrix, np.tile(x.sum(0), (3, 1)))
    assert np.allclose(slope.shift, 7)
    assert np.allclose(jax.jit(lambda m: m.det)(map), map.det)


def test_the_identity_is_one():
    map = pde.AffineMap.identity(4)
    assert map.det == map.cond == 1
    assert np.array_equal(map.forward(np.eye(4)), np.eye(4))


@pytest.mark.parametrize(
    ("matrix", "shift", "message"),
    [
        (np.ones((2, 3)), None, r"expected shape \(d, d\), got \(2, 3\)"),
        (np.eye(2), np.zeros(3), r"shift: expected shape \(2,\), got \(3,\)"),
        (np.ones((2, 2)), None, "expected an invertible matrix"),
        ([[1.0, 1.0], [1.0, 1.0 + 1e-16]], None, "expected an invertible matrix"),
        ([[np.nan, 0.0], [0.0, 1.0]], None, "matrix: expected finite"),
        (np.eye(2), [np.inf, 0.0], "shift: expected finite"),
    ],
)
def test_bad_maps_are_refused(matrix, shift, message):
    with pytest.raises(ValueError, match=message):
        pde.affine(matrix, shift)


# Axes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [62, 63])
@pytest.mark.parametrize(
    ("kind", "tol"), [("fourier", 1e-10), ("chebyshev", 1e-8), ("finite differences", 1e-2)]
)
def test_derivatives_integrals_and_interpolants_of_a_bump(kind, tol, n):
    axis = pde.Axis(kind, n, -7.0, 6.0)
    y = axis.points
    assert y.shape == axis.weights.shape == (n,)
    assert (np.diff(y) > 0).all()
    v = bump(y)
    assert np.abs(axis.d1 @ v - slope(y)).max() < tol
    assert np.abs(axis.d2 @ v - curvature(y)).max() < 100 * tol
    assert abs(axis.weights @ v - np.pi**0.5) < 1e-12
    between = np.linspace(-7, 6, 101)
    assert np.abs(axis.interpolate(between) @ v - bump(between)).max() < tol
    assert np.abs(axis.interpolate(y) - np.eye(n)).max() < 1e-12
    assert np.array_equal(axis.basis[0], np.eye(n))
    assert np.allclose(axis.basis[3] @ v, y * (axis.d1 @ v))


@pytest.mark.parametrize("kind", KINDS)
def test_the_interpolant_is_zero_outside(kind):
    axis = pde.Axis(kind, 16, -1.0, 2.0)
    rows = axis.interpolate(np.array([-1.0001, 2.0001, -50.0, 99.0]))
    assert np.array_equal(rows, np.zeros((4, 16)))
    assert np.abs(axis.interpolate(np.array([0.3]))).sum() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_interpolation_traces(kind):
    axis = pde.Axis(kind, 16, -1.0, 2.0)
    y = np.array([-2.0, -1.0, 0.123, float(axis.points[3]), 2.0, 2.5])
    assert np.allclose(jax.jit(axis.interpolate)(y), axis.interpolate(y))
    v = bump(axis.points)
    slope = jax.jit(jax.grad(lambda z: (axis.interpolate(z[None]) @ v)[0]))(0.123)
    h = 1e-6
    ends = axis.interpolate(np.array([0.123 + h, 0.123 - h])) @ v
    assert abs(slope - (ends[0] - ends[1]) / (2 * h)) < 1e-6


@pytest.mark.parametrize("order", [2, 4, 6])
def test_finite_differences_converge_at_their_order(order):
    errors = []
    for n in (99, 199):
        axis = pde.Axis("finite differences", n, -6.0, 6.0, order)
        v, between = bump(axis.points), np.linspace(-3, 3, 50)
        errors.append(
            [
                np.abs(axis.d1 @ v - slope(axis.points)).max(),
                np.abs(axis.d2 @ v - curvature(axis.points)).max(),
                np.abs(axis.interpolate(between) @ v - bump(between)).max(),
            ]
        )
    rates = np.log2(np.divide(*errors))
    assert np.all(np.abs(rates[:2] - order) < 0.2)
    assert rates[2] > order - 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [16, 17])
def test_transport_and_diffusion_have_no_growing_modes(kind, n):
    axis = pde.Axis(kind, n, -2.0, 1.0)
    first, second = np.linalg.eigvals(axis.d1), np.linalg.eigvals(axis.d2)
    assert np.abs(first.real).max() < 1e-10
    assert second.real.max() < 1e-10
    assert np.abs(second.imag).max() < 1e-6 * np.abs(second).max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [24, 25])
def test_the_highest_modes_see_what_is_too_narrow_and_noise(kind, n):
    axis = pde.Axis(kind, n, -2.0, 4.0)
    np.testing.assert_allclose(axis.fine @ axis.fine.T, np.eye(n - 2 * n // 3), atol=1e-12)

    def share(v):
        v = v * np.sqrt(axis.weights)
        return np.linalg.norm(axis.fine @ v) / np.linalg.norm(v)

    found = [share(np.exp(-(((axis.points - 1.1) / s) ** 2))) for s in (0.9, 0.6, 0.4, 0.1)]
    assert np.all(np.diff(found) > 0)
    assert found[0] < 2e-3 < 0.2 < found[3]
    noise = [share(v) for v in np.random.default_rng(0).normal(size=(200, n))]
    assert 0.4 < np.mean(noise) < 0.7


def test_fourier_derivatives_are_exact_on_modes():
    axis = pde.Axis("fourier", 16, 0.0, 2 * np.pi)
    for k in range(8):
        mode = np.exp(1j * k * axis.points)
        assert np.abs(axis.d1 @ mode - 1j * k * mode).max() < 1e-12
        assert np.abs(axis.d2 @ mode + k**2 * mode).max() < 1e-11
    saw = np.cos(8 * axis.points)
    assert np.abs(axis.d1 @ saw).max() < 1e-11
    assert np.abs(axis.d2 @ saw + 64 * saw).max() < 1e-11


def test_chebyshev_weights_integrate_polynomials():
    for n in (8, 9):
        axis = pde.Axis("chebyshev", n, -1.0, 1.0)
        for k in range(0, n, 2):
            p = (1 - axis.points**2) * axis.points**k
            assert abs(axis.weights @ p - (2 / (k + 1) - 2 / (k + 3))) < 1e-13


@pytest.mark.parametrize("kind", ["fourier", "chebyshev"])
def test_waves_have_the_integrals_of_the_interpolant(kind):
    axis = pde.Axis(kind, 40, -6.0, 5.0)
    kappa = np.linspace(-0.5, 0.5, 9) * np.pi / np.diff(axis.points).max()
    y, sigma = 0.3, 0.6
    v = np.exp(-((axis.points - y) ** 2) / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi))
    exact = np.exp(1j * kappa * y - (kappa * sigma) ** 2 / 2)
    assert np.abs(axis.waves(kappa) @ v - exact).max() < 1e-8
    x, w = np.polynomial.legendre.leggauss(400)
    x, w = axis.low + axis.length * (x + 1) / 2, axis.length / 2 * w
    dense = (w * np.exp(1j * np.outer(kappa, x))) @ axis.interpolate(x)
    assert kind == "fourier" or np.abs(axis.waves(kappa) - dense).max() < 1e-12


def test_arrays_of_an_axis_are_read_only():
    axis = pde.Axis("fourier", 8, 0.0, 1.0)
    for x in (axis.points, axis.weights, axis.d1, axis.d2, axis.basis):
        with pytest.raises(ValueError, match="read-only"):
            x[0] = 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hermite", 8, 0.0, 1.0), "kind: expected one of"),
        (("fourier", 2, 0.0, 1.0), "n: expected an integer >= 5"),
        (("fourier", 8, 1.0, 1.0), "low, high: expected finite low < high"),
        (("fourier", 8, 0.0, np.inf), "low, high: expected finite low < high"),
        (("finite differences", 8, 0.0, 1.0, 3), "order: expected 2, 4 or 6"),
    ],
)
def test_bad_axes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        pde.Axis(*arguments)


# Boxes -------------------------------------------------------------------------------------------


def test_boxes_take_one_number_or_one_for_each_axis():
    box = pde.Box.fourier(3, n=(8, 9, 10), half_width=(1.0, 2.0, 3.0))
    assert box.shape == (8, 9, 10)
    assert [a.low for a in box.axes] == [-1.0, -2.0, -3.0]
    assert box == pde.Box.fourier(3, n=(8, 9, 10), half_width=(1.0, 2.0, 3.0))
    assert hash(box) == hash(pde.Box(list(box.axes)))
    assert pde.Box.chebyshev(2, 12, 4).axes[1].kind == "chebyshev"
    assert pde.Box.finite_differences(2, 12, 4, order=6).axes[0].order == 6
    assert [len(p) for p in box.points] == [len(w) for w in box.weights] == [8, 9, 10]
    with pytest.raises(ValueError, match="n: expected one number or 3 of them, got 2"):
        pde.Box.fourier(3, n=(8, 9))
    with pytest.raises(ValueError, match="axes: expected one or more"):
        pde.Box(())
