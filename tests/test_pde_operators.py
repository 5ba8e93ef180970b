"""Operators as TT-matrices, against dense ones made of Kronecker products."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import pde, tt
from tensorjax._formats.trains import TT
from tensorjax.pde._discretization import affine_operators as operators
from tensorjax.pde._discretization import variable_coefficients as multipliers
from tests.oracles import dense, error, norm


def box_of(d, kind="fourier"):
    return getattr(pde.Box, kind)(d, range(5, 5 + d) if d < 4 else 5, 3.0)


def mesh(box):
    return np.stack([m.ravel() for m in np.meshgrid(*box.points, indexing="ij")], 1)


def along(box, k, matrix):
    """A matrix on one axis, as one on the whole grid."""
    parts = [matrix if i == k else np.eye(n) for i, n in enumerate(box.shape)]
    return functools.reduce(np.kron, parts)


def partial(box, k):
    return along(box, k, box.axes[k].d1)


def expected(box, m, b, s, c):
    """(M y + b)·∇ + S:∇∇ + c on the whole grid."""
    y, d = mesh(box), box.dim
    out = c * np.eye(len(y))
    for i in range(d):
        out += (y @ m[i] + b[i])[:, None] * partial(box, i) + s[i, i] * along(
            box, i, box.axes[i].d2
        )
        for j in range(d):
            if i != j:
                out += s[i, j] * partial(box, i) @ partial(box, j)
    return out


def coefficients(rng, d):
    s = rng.standard_normal((d, d))
    return rng.standard_normal((d, d)), rng.standard_normal(d), s + s.T, 0.7


# Affine coefficients -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fourier", "chebyshev", "finite_differences"])
@pytest.mark.parametrize("d", [1, 2, 3, 4])
@pytest.mark.parametrize("given", list(itertools.product([True, False], repeat=3)))
def test_an_affine_generator_is_the_dense_one(rng, kind, d, given):
    if kind != "fourier" and d > 2:
        return
    box = box_of(d, kind)
    m, b, s, c = coefficients(rng, d)
    options = [x if keep else None for x, keep in zip((m, b, s), given, strict=True)]
    zeros = [x if keep else 0 * x for x, keep in zip((m, b, s), given, strict=True)]
    found = pde.affine_generator(box, *options, c)
    assert all(isinstance(core, np.ndarray) for core in found.cores)
    exact = expected(box, *zeros, c)
    assert error(dense(found), exact) <= 1e-13 * norm(exact)


@pytest.mark.parametrize("d", [1, 2, 5, 6, 10])
def test_ranks_of_generators_are_those_of_the_note(rng, d):
    m, b, s, c = coefficients(rng, d)
    box = pde.Box.fourier(d, 5)
    cuts = [min(p, d - p) for p in range(1, d)]
    for diffusion in (s, None):
        ranks = pde.affine_generator(box, m, b, diffusion, c).ranks
        assert ranks == (1, *(2 * p + 2 for p in cuts), 1)
    assert pde.affine_generator(box, None, b, s, c).ranks == (1, *(p + 2 for p in cuts), 1)
    assert pde.affine_generator(box, None, b, None, c).ranks == (1, *(2 for _ in cuts), 1)


def test_ranks_of_generators_are_the_least(rng):
    m, b, s, c = coefficients(rng, 4)
    full = pde.affine_generator(pde.Box.fourier(4, 7), m, b, s, c)
    assert tt.round(tt.TTMatrix(full.cores), tol=1e-12).ranks == full.ranks == (1, 4, 6, 4, 1)


def test_only_the_symmetric_part_of_the_diffusion_counts(rng):
    s = rng.standard_normal((3, 3))
    a, b = (pde.affine_generator(box_of(3), None, None, x) for x in (s, (s + s.T) / 2))
    assert all(np.allclose(x, y) for x, y in zip(a.cores, b.cores, strict=True))


def test_generators_trace_and_differentiate(rng):
    box = box_of(3)
    given = coefficients(rng, 3)
    v = TT([rng.standard_normal((1, n, 1)) for n in box.shape])

    def applied(m, b, s, c):
        return tt.to_dense(tt.matvec(pde.affine_generator(box, m, b, s, c), v))

    exact = expected(box, *given) @ dense(v).ravel()
    assert error(jax.jit(applied)(*given), exact.reshape(box.shape)) < 1e-12 * norm(exact)
    many = jax.jit(jax.vmap(applied, (0, None, None, None)))(
        np.stack([0 * given[0], given[0]]), *given[1:]
    )
    assert error(many[1], exact.reshape(box.shape)) < 1e-12 * norm(exact)
    # Linear in its coefficients: derivatives are differences.
    weight = rng.standard_normal(box.shape)
    slope = jax.jit(jax.grad(lambda *x: jnp.vdot(applied(*x), weight), (0, 1, 2, 3)))
    gradients = slope(*given)
    for k, (g, x) in enumerate(zip(gradients, given, strict=True)):
        step = rng.standard_normal(np.shape(x))
        moved = [*given]
        moved[k] = x + step
        difference = np.vdot(np.asarray(applied(*moved)) - np.asarray(applied(*given)), weight)
        assert abs(np.sum(np.asarray(g) * step) - difference) < 1e-10 * norm(exact)


def test_states_are_the_operator_in_terms_of_its_basis(rng):
    box = box_of(4)
    given = coefficients(rng, 4)
    states = operators.affine_states(box, pde.Coefficients(*given))
    cores = pde.affine_generator(box, *given).cores
    for state, axis, core in zip(states, box.axes, cores, strict=True):
        assert error(np.einsum("apb,pij->aijb", state, axis.basis), core) < 1e-13 * norm(core)
    v = rng.standard_normal((2, axis.n, 3))
    found = operators.differentiated(axis, v)
    assert error(found, np.einsum("pij,ajb->paib", axis.basis, v)) < 1e-13 * norm(found)


def test_motion_joins_the_affine_part(rng):
    m, b, s, c = coefficients(rng, 3)
    sigma, beta = rng.standard_normal((3, 3)), rng.standard_normal(3)
    for given in (pde.Coefficients(m, b, s, c), pde.Coefficients(None, None, s, c)):
        moved = given.moving(sigma, beta)
        zero = pde.Coefficients(np.zeros((3, 3)), np.zeros(3))
        before = [z if x is None else x for x, z in zip(given[:2], zero, strict=False)]
        assert np.allclose(moved.matrix, before[0] - sigma)
        assert np.allclose(moved.shift, before[1] - beta)
        assert moved.diffusion is s
    assert pde.Coefficients().moving(sigma).shift.shape == (3,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.eye(3), None, None), r"matrix: expected shape \(2, 2\), got \(3, 3\)"),
        ((None, np.zeros(3), None), r"shift: expected shape \(2,\), got \(3,\)"),
        ((None, None, np.ones(2)), r"diffusion: expected shape \(2, 2\), got \(2,\)"),
        ((np.full((2, 2), np.nan), None, None), "matrix: expected finite"),
        ((None, None, None, np.inf), "constant: expected finite"),
    ],
)
def test_bad_coefficients_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        pde.affine_generator(pde.Box.fourier(2), *arguments)


# Variable coefficients ---------------------------------------------------------------------------


def on_grid(cores):
    return dense(TT(cores)).ravel()


@pytest.mark.parametrize("d", [1, 2, 4])
def test_trigonometric_multipliers_have_rank_two(rng, d):
    box, w = box_of(d), rng.standard_normal(d)
    cores = multipliers.sine(box, w, 0.3, 1.7)
    assert error(on_grid(cores), 1.7 * np.sin(mesh(box) @ w + 0.3)) < 1e-12
    assert TT(cores).ranks == (1, *[2] * (d - 1), 1)


@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("m", [0, 1, 2, 5])
def test_polynomial_multipliers_have_rank_of_the_degree_and_one(rng, d, m):
    box, w = box_of(d), rng.standard_normal(d)
    cores = multipliers.power(box, w, 0.4, m, -0.6)
    exact = -0.6 * (mesh(box) @ w + 0.4) ** m
    assert error(on_grid(cores), exact) < 1e-12 * norm(exact)
    assert TT(cores).ranks == (1, *[m + 1] * (d - 1), 1)


def test_axes_without_weight_cost_no_rank():
    box, w = box_of(4), np.array([0.0, 1.3, 0.0, 0.0])
    for cores, exact in (
        (multipliers.sine(box, w, 0.3), np.sin(mesh(box) @ w + 0.3)),
        (multipliers.power(box, w, 0.3, 3), (mesh(box) @ w + 0.3) ** 3),
    ):
        assert TT(cores).ranks == (1,) * 5
        assert error(on_grid(cores), exact) < 1e-12 * norm(exact)
    apart = multipliers.sine(box, np.array([0.0, 1.3, -0.2, 0.0]), 0.0)
    assert TT(apart).ranks == (1, 1, 2, 1, 1)
    nothing = multipliers.sine(box, np.zeros(4), 0.3)
    assert error(on_grid(nothing), np.full(len(mesh(box)), np.sin(0.3))) < 1e-12


@pytest.mark.parametrize("direction", [[0.3, -1.0, 0.7], [0.0, 2.0, 0.0], [0.0, 1.0, -1.0]])
def test_derivatives_with_variable_coefficients_are_the_dense_ones(rng, direction):
    box, a = box_of(3), np.asarray(direction)
    cores = multipliers.sine(box, rng.standard_normal(3), 0.2)
    m = np.diag(on_grid(cores))
    derivative = sum(x * partial(box, k) for k, x in enumerate(a))
    for found, exact in (
        (multipliers.flux(box, a, cores), derivative @ m),
        (multipliers.advection(box, a, cores), m @ derivative),
        (multipliers.multiplication(cores), m),
    ):
        assert error(dense(found), exact) < 1e-13 * norm(exact)
    ranks = multipliers.flux(box, a, cores).ranks
    assert max(ranks) <= (2 if np.count_nonzero(a) == 1 else 4)


def test_conduction_is_the_dense_operator_and_as_narrow_as_a_generator(rng):
    box, s = box_of(4), rng.standard_normal((4, 4))
    s = s + s.T
    cores = multipliers.power(box, rng.standard_normal(4), 0.2, 2)
    found = multipliers.conduction(box, s, cores)
    m = np.diag(on_grid(cores))
    d = [partial(box, k) for k in range(4)]
    exact = sum(s[i, j] * d[i] @ m @ d[j] for i in range(4) for j in range(4))
    assert error(dense(found), exact) < 1e-12 * norm(exact)
    assert found.ranks == (1, 12, 18, 12, 1)


def test_a_flux_loses_no_mass(rng):
    box = box_of(3)
    flux = multipliers.flux(
        box, rng.standard_normal(3), multipliers.power(box, rng.standard_normal(3), 0.1, 3)
    )
    assert np.abs(dense(flux).sum(0)).max() < 1e-11 * norm(dense(flux))


def test_variable_coefficients_trace(rng):
    box, w, a = box_of(3), rng.standard_normal(3), rng.standard_normal(3)

    def operators(w, a):
        sine, power = multipliers.sine(box, w, 0.3), multipliers.power(box, w, 0.3, 2)
        both = multipliers.times(sine, power)
        return [
            tt.to_dense(x)
            for x in (
                multipliers.flux(box, a, sine),
                multipliers.advection(box, a, power),
                multipliers.conduction(box, a[:, None] * a[None], both),
            )
        ]

    for x, y in zip(jax.jit(operators)(w, a), operators(w, a), strict=True):
        assert error(x, y) < 1e-12 * norm(y)
