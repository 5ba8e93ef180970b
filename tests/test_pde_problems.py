"""Problems: initial states, right sides against u_t in physical coordinates, exact solutions."""

import jax
import numpy as np
import pytest

from tensorjax import pde, tt
from tensorjax._formats.trains import TT
from tensorjax.pde._function_trains import cross_approximation
from tensorjax.pde._maps import characteristics
from tensorjax.pde._maps.characteristics import flow
from tensorjax.pde._problems import partial_derivatives
from tensorjax.pde._problems.reactions import polynomial
from tensorjax.pde._problems.user_functions import Remembered
from tests.oracles import dense, error, norm, tails

ROTATION = np.array([[0.0, 1.0], [-1.0, 0.0]])


def covariance(rng, d):
    a = rng.standard_normal((d, d))
    return a @ a.T / d + 0.3 * np.eye(d)


def shear(rng, d, size=0.3):
    return pde.affine(np.eye(d) + size * rng.standard_normal((d, d)), 0.2 * rng.standard_normal(d))


def mesh(box):
    return np.stack([m.ravel() for m in np.meshgrid(*box.points, indexing="ij")], 1)


def relative(found, exact):
    return error(found, exact) / norm(exact)


# Initial states ----------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-11])
def test_gaussians_are_trains_within_the_tolerance(rng, d, tol):
    box, map = pde.Box.fourier(d, 40, 6.0), shear(rng, d)
    start = pde.Gaussian(0.3 * rng.standard_normal(d), covariance(rng, d), amplitude=1.7)
    exact = start.values(map.inverse(mesh(box))).reshape(box.shape)
    found = start.train(box, map, tol)
    assert relative(dense(found), exact) <= tol
    assert relative(dense(found), exact) >= 1e-4 * tol or d == 1


@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-9])
def test_ranks_of_gaussians_have_a_closed_form(rng, tol):
    box = pde.Box.fourier(3, 48, 8.0)
    for _ in range(3):
        start = pde.Gaussian(np.zeros(3), np.eye(3) + 0.5 * covariance(rng, 3))
        map = shear(rng, 3, 0.1)
        x = start.values(map.inverse(mesh(box))).reshape(box.shape)
        for p, rank in enumerate(start.ranks(tol, map)[1:-1], start=1):
            s = np.linalg.svd(x.reshape(48**p, -1), compute_uv=False)
            assert rank == int((tails(s) > tol * norm(x)).sum())


def test_functions_start_at_the_default_tolerance_in_single_precision(rng):
    box, m = pde.Box.fourier(2, 32, 5.0), rng.uniform(-0.5, 0.5, 2)
    start = pde.Function(lambda x: np.exp(-np.square(x - m).sum(1)))
    with jax.enable_x64(False):
        cores = start.cores(box, pde.AffineMap.identity(2), 1e-6)
    exact = start.values(mesh(box)).reshape(box.shape)
    assert relative(np.einsum("aib,bjc->ij", *cores), exact) < 1e-5


def test_singular_values_at_a_bond_are_those_of_mehler():
    # exp(−½ (a² + 2c ab + b²)): σ_k ∝ qᵏ.
    c = 0.6
    q = c / (1 + np.sqrt(1 - c**2))
    axis = pde.Axis("fourier", 64, -9.0, 9.0)
    a, b = axis.points[:, None], axis.points[None]
    s = np.linalg.svd(np.exp(-0.5 * (a**2 + 2 * c * a * b + b**2)), compute_uv=False)
    assert np.allclose(s[:8] / s[0], q ** np.arange(8), rtol=1e-9)


def test_a_whitened_gaussian_has_rank_one(rng):
    start = pde.Gaussian(rng.standard_normal(5), covariance(rng, 5))
    map = start.whitening()
    train = start.train(pde.Box.fourier(5, 32), map, 1e-10)
    assert start.ranks(1e-10, map) == train.ranks == (1,) * 6
    assert np.allclose(map.matrix @ start.covariance @ map.matrix.T, np.eye(5))


def test_ten_dimensions_are_no_harder_than_their_ranks(rng):
    d = 10
    chain = np.eye(d) + 0.45 * (np.eye(d, k=1) + np.eye(d, k=-1))
    start = pde.Gaussian(np.zeros(d), np.linalg.inv(chain), amplitude=1.0)
    box = pde.Box.fourier(d, 48, 9.0)
    map = pde.AffineMap.identity(d)
    v = start.train(box, map, 1e-6)
    assert max(v.ranks) <= max(start.ranks(1e-7))
    index = rng.integers(18, 30, (500, d))
    x = np.stack([p[i] for p, i in zip(box.points, index.T, strict=True)], 1)
    exact = start.values(x)
    assert np.abs(np.asarray(tt.evaluate(v, index)) - exact).max() < 1e-5
    assert abs(pde.mass(v, map, box) / start.mass - 1) < 1e-5


def test_mixtures_are_sums(rng):
    parts = [pde.Gaussian(rng.standard_normal(2), 0.3 * covariance(rng, 2)) for _ in range(3)]
    mixture = pde.Mixture([0.5, 0.2, 0.3], parts)
    box, map = pde.Box.fourier(2, 64), shear(rng, 2)
    x = map.inverse(mesh(box))
    exact = sum(w * g.values(x) for w, g in zip(mixture.weights, parts, strict=True))
    assert np.allclose(mixture.values(x), exact)
    assert relative(dense(mixture.train(box, map, 1e-7)).ravel(), exact) <= 1e-7
    mass, mean, spread = mixture.moments()
    assert np.isclose(mass, 1)
    assert np.isclose(mixture.mass, 1)
    w = box.axes[0].weights[0] ** 2 / abs(map.det)
    assert np.allclose(w * exact @ x, mean)
    assert np.allclose(w * (x - mean).T @ (exact[:, None] * (x - mean)), spread)


def test_functions_come_by_cross(rng):
    box, map = pde.Box.fourier(3, 24, 3.0), shear(rng, 3, 0.1)

    def f(x):
        return np.exp(-np.square(x).sum(1)) * (1 + np.sin(x[:, 0] + x[:, 2]))

    near = pde.Gaussian(np.zeros(3), 0.5 * np.eye(3))
    pair = pde.Mixture([0.7, 0.3], [near, pde.Gaussian(np.ones(3), np.eye(3))])
    for start in (pde.Function(f), pde.Function(f, near), pde.Function(f, pair)):
        found = start.train(box, map, 1e-6)
        assert relative(dense(found).ravel(), f(map.inverse(mesh(box)))) < 2e-6


@pytest.mark.parametrize("d", [8, 20])
@pytest.mark.parametrize("tol", [1e-3, 1e-9])
def test_narrow_functions_in_many_dimensions_are_found_near_a_gaussian(d, tol):
    box, map = pde.Box.fourier(d, 48, 7.0), pde.AffineMap.identity(d)
    narrow = pde.Gaussian(np.zeros(d), 0.2 * np.eye(d), amplitude=1.0)

    def f(x):
        return narrow.values(x) * (1 + x[:, 0] * x[:, 1] + np.sin(x[:, 3] + x[:, -1]))

    start = pde.Function(f, pde.Gaussian(np.full(d, 0.1), 0.3 * np.eye(d)))
    v = start.train(box, map, tol)
    assert max(v.ranks) <= 3
    index = np.random.default_rng(0).integers(20, 29, (500, d))
    x = np.stack([p[i] for p, i in zip(box.points, index.T, strict=True)], 1)
    assert relative(np.asarray(tt.evaluate(v, index)), f(x)) < tol
    if d == 8 and tol > 1e-6:
        alone = pde.Function(f).train(box, map, tol)  # its tails lead to it
        assert relative(np.asarray(tt.evaluate(alone, index)), f(x)) < tol
        point = pde.Gaussian(np.zeros(d), 1e-4 * np.eye(d), amplitude=1.0)  # it has none
        with pytest.raises(ValueError, match=r"start: .* for a narrow function give near="):
            pde.Function(point.values).train(box, map, tol)


def test_points_are_drawn_from_powers_of_a_train(rng):
    v = tt.random(jax.random.key(0), (3, 4, 5), 3, np.float64)
    draw = cross_approximation.from_train([np.asarray(c) for c in v.cores], 1e-3)
    index, density, power = draw(rng, 60_000)
    exact = np.square(dense(v)) / norm(dense(v)) ** 2
    found, every = np.zeros((2, *v.shape))
    np.add.at(found, tuple(index[power == 1].T), 1 / np.sum(power == 1))
    assert np.abs(found - exact).max() < 5 * np.sqrt(exact.max() / np.sum(power == 1))
    np.add.at(every, tuple(index.T), 1 / len(index))
    known = np.zeros(v.shape)
    known[tuple(index.T)] = density / 3
    assert np.isclose(known.sum(), 1)
    assert np.abs(every - known).max() < 5 * np.sqrt(known.max() / len(index))


def test_functions_that_no_train_holds_are_refused(monkeypatch):
    box, map = pde.Box.fourier(2, 16), pde.AffineMap.identity(2)
    near = pde.Gaussian(np.zeros(2), np.eye(2))
    with pytest.raises(ValueError, match="start: expected finite"):
        pde.Function(lambda x: np.full(len(x), np.nan), near).train(box, map, 1e-3)
    zero = pde.Function(lambda x: np.zeros(len(x)), near).train(box, map, 1e-3)
    assert norm(dense(zero)) == 0
    monkeypatch.setattr(cross_approximation, "_MOST", 0)
    with pytest.raises(ValueError, match="start: expected a function of low TT-ranks"):
        pde.Function(near.values, near).train(box, map, 1e-3)


def test_samples_have_the_moments(rng):
    start = pde.Gaussian(np.array([1.0, -1.0]), covariance(rng, 2))
    x = start.sample(rng, 20_000)
    spread = np.sqrt(np.diag(start.covariance) / len(x))
    assert (np.abs(x.mean(0) - start.mean) < 5 * spread).all()
    assert np.allclose(np.cov(x.T), start.covariance, atol=0.05)
    negative = pde.Mixture([1.0, -0.1], [start, start])
    with pytest.raises(ValueError, match="weights: expected no negative part"):
        negative.sample(rng, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pde.Gaussian(np.zeros(2), np.eye(3)), "covariance: expected mean"),
        (lambda: pde.Gaussian(np.zeros(2), np.diag([1.0, -1.0])), "positive definite"),
        (lambda: pde.Gaussian(np.zeros(2), np.ones((2, 2))), "positive definite"),
        (lambda: pde.Gaussian(np.zeros(2), ROTATION + np.eye(2)), "symmetric"),
        (lambda: pde.Gaussian(np.full(2, np.nan), np.eye(2)), "mean: expected finite"),
        (lambda: pde.Mixture([1.0], []), "gaussians: expected one or more"),
        (
            lambda: pde.Mixture([1.0, 2.0], [pde.Gaussian(np.zeros(2), np.eye(2))]),
            "gaussians: expected one or more",
        ),
    ],
)
def test_bad_states_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_gaussians_of_too_high_ranks_say_what_to_do(rng):
    d = 14
    a = rng.standard_normal((d, d))
    start = pde.Gaussian(np.zeros(d), a @ a.T + 0.01 * np.eye(d))
    with pytest.raises(ValueError, match="whitening"):
        start.train(pde.Box.fourier(d), pde.AffineMap.identity(d), 1e-8)


# Right sides -------------------------------------------------------------------------------------


def applied(problem, map, v):
    right = problem.right_side(map, 0.0)
    out = sum(dense(tt.matvec(a, v)) for a in right.operators)
    out = out if right.source is None else out + dense(TT(right.source.cores))
    return out if right.reaction is None else out + dense(right.reaction(v, 1e-10))


def rate(problem, x, h=2e-4):
    """u_t at t = 0 from the exact solution."""
    u = [problem.exact(k * h, x) for k in (-2, -1, 1, 2)]
    return (u[0] - 8 * u[1] + 8 * u[2] - u[3]) / (12 * h)


def problems_without_diffusion(box, start):
    d = box.dim
    a = np.linspace(-0.5, 0.5, d * d).reshape(d, d)
    shift = np.linspace(-0.3, 0.4, d)
    drift = [
        [pde.Sin(np.eye(d)[k - 1], 0.3, 0.7), pde.Power(np.eye(d)[k], 0.1, 2, -0.2)]
        for k in range(d)
    ]
    drift[0].append(pde.Product([pde.Sin(np.eye(d)[1]), pde.Power(np.eye(d)[0], exponent=1)], 0.4))
    field = pde.FokkerPlanck(drift, None, start, box, matrix=a, offset=shift)
    return {
        "liouville": pde.Liouville(a, start, box, offset=shift),
        "terms": field,
        "separable": pde.FokkerPlanck(
            [None] * (d - 1) + [pde.Separable({0: np.tanh, 1: np.cos}, 0.7)], None, start, box
        ),
        "function": pde.FokkerPlanck(
            lambda x: np.stack([np.tanh(x[:, (k + 1) % d]) for k in range(d)], 1), None, start, box
        ),
        "advection": pde.AdvectionDiffusionReaction(
            drift,
            None,
            start,
            box,
            matrix=a,
            offset=shift,
            reaction=(0.0, 0.3, -0.5, 0.2),
            potential=pde.Sin(np.ones(d), 0.2),
        ),
        "reaction by cross": pde.AdvectionDiffusionReaction(
            None, None, start, box, matrix=a, reaction=np.sin
        ),
    }


@pytest.mark.parametrize(
    "name", ["liouville", "terms", "separable", "function", "advection", "reaction by cross"]
)
@pytest.mark.parametrize("moved", [False, True])
def test_right_sides_are_the_rates_of_exact_solutions(rng, name, moved):
    box = pde.Box.fourier(2, 72, 7.0)
    start = pde.Gaussian(np.array([0.2, -0.1]), np.array([[0.4, 0.1], [0.1, 0.3]]), amplitude=1.0)
    problem = problems_without_diffusion(box, start)[name]
    map = shear(rng, 2, 0.2) if moved else pde.AffineMap.identity(2)
    v = problem.initial(map, 1e-12)
    found = applied(problem, map, v).ravel()
    y = mesh(box)
    inside = np.abs(y).max(1) < 4.5  # far out, trajectories of polynomial drifts blow up
    exact = rate(problem, map.inverse(y[inside]))
    assert np.abs(found[inside] - exact).max() < 2e-6 * np.abs(exact).max()
    assert np.abs(exact).max() > 0.1


def test_diffusion_in_moved_coordinates_is_that_of_moved_gaussians(rng):
    box, map = pde.Box.fourier(2, 72, 8.0), shear(rng, 2, 0.2)
    start = pde.Gaussian(np.array([0.2, -0.1]), np.array([[0.6, 0.1], [0.1, 0.5]]))
    d = np.array([[0.3, 0.1], [0.1, 0.2]])
    a = np.array([[-0.4, 0.8], [-0.8, -0.3]])
    for problem in (
        pde.OrnsteinUhlenbeck(a, d, start, box, offset=np.array([0.3, -0.2])),
        pde.FokkerPlanck(None, d, start, box, matrix=a),
        pde.AdvectionDiffusionReaction(
            None, d, start, box, matrix=a, offset=np.ones(2), reaction=(0.0, -0.7)
        ),
    ):
        v = problem.initial(map, 1e-12)
        exact = rate(problem, map.inverse(mesh(box)))
        assert np.abs(applied(problem, map, v).ravel() - exact).max() < 1e-7


def test_variable_conductivity_is_the_dense_operator_in_both_coordinates(rng):
    # ∇·(σ ∇u) = ∇σ·∇u + σ Δu of a Gaussian, at the points themselves.
    box, map = pde.Box.fourier(2, 72, 8.0), shear(rng, 2, 0.2)
    start = pde.Gaussian(np.array([0.2, -0.1]), np.array([[0.6, 0.1], [0.1, 0.5]]), amplitude=1.0)
    wave = pde.Sin(np.array([0.5, 0.2]), 0.1, 0.3)
    tensor = np.array([[1.0, 0.2], [0.2, 0.7]])
    given = [(wave, tensor), (pde.Power(np.zeros(2), 1.0, 1), np.eye(2))]
    problem = pde.AdvectionDiffusionReaction(None, given, start, box)
    found = applied(problem, map, problem.initial(map, 1e-13)).ravel()
    x = map.inverse(mesh(box))
    p = np.linalg.inv(start.covariance)
    z = -(x - start.mean) @ p
    u = start.values(x)
    hessian = u[:, None, None] * (z[:, :, None] * z[:, None] - p)
    sigma = wave.values(x)[:, None, None] * tensor + np.eye(2)
    exact = np.einsum("mij,mij->m", sigma, hessian) + u * np.einsum(
        "mi,ij,mj->m", wave.gradient(x), tensor, z
    )
    assert np.abs(found - exact).max() < 1e-8
    one = pde.AdvectionDiffusionReaction(None, pde.Power(np.zeros(2), 1.0, 1, 0.4), start, box)
    same = pde.AdvectionDiffusionReaction(None, 0.4, start, box)
    v = one.initial(map, 1e-13)
    assert np.abs(applied(one, map, v) - applied(same, map, v)).max() < 1e-8
    assert problem.exact(0.1, x) is None


def test_sources_are_added_and_remembered(rng):
    box, map = pde.Box.fourier(2, 40), shear(rng, 2, 0.2)
    start = pde.Gaussian(np.zeros(2), 0.5 * np.eye(2))
    hill = pde.Gaussian(np.ones(2), 0.3 * np.eye(2))
    problem = pde.AdvectionDiffusionReaction(
        None, None, start, box, source=hill, reaction=(0.25, 0.0)
    )
    right = problem.right_side(map, 0.0)
    exact = hill.values(map.inverse(mesh(box))) + 0.25
    assert relative(dense(TT(right.source.cores)).ravel(), exact) < 1e-7
    assert problem.right_side(map, 1.0).source is right.source
    assert right.operators == ()
    assert problem.exact(0.1, np.zeros((1, 2))) is None
    constant = pde.AdvectionDiffusionReaction(None, None, start, box, reaction=(0.25,))
    assert np.allclose(dense(TT(constant.right_side(map, 0.0).source.cores)), 0.25)


def test_terms_are_those_of_a_linear_combination(rng):
    box, map = pde.Box.fourier(2, 40), shear(rng, 2, 0.2)
    start = pde.Gaussian(np.zeros(2), 0.5 * np.eye(2))
    problem = pde.AdvectionDiffusionReaction(
        [pde.Sin([0.0, 1.0]), None], 0.1, start, box, source=start
    )
    right, v = problem.right_side(map, 0.0), problem.initial(map, 1e-9)
    found = tt.linear_combination(right.terms(v), tol=1e-8)
    assert relative(dense(found), applied(problem, map, v)) < 1e-7
    sigma, beta = 0.3 * ROTATION, np.array([0.1, -0.2])
    moving = right.moving(sigma, beta)
    plain = pde.affine_generator(box, -sigma, -beta, None)
    both = applied(problem, map, v) + dense(tt.matvec(plain, v))
    assert relative(dense(tt.linear_combination(moving.terms(v), tol=1e-8)), both) < 1e-7
    assert len(moving.operators) == len(right.operators) == 2
    bare = pde.RightSide(box).moving(sigma, beta)
    assert error(dense(bare.operators[0]), dense(plain)) == 0


def test_right_sides_have_the_ranks_of_the_note():
    d = 6
    box = pde.Box.fourier(d, 8)
    start = pde.Gaussian(np.zeros(d), np.eye(d))
    process = pde.OrnsteinUhlenbeck(-np.eye(d), np.eye(d), start, box)
    map = pde.affine(np.eye(d) + 0.1)
    (generator,) = process.right_side(map, 0.0).moving(np.ones((d, d))).operators
    assert generator.ranks == (1, 4, 6, 8, 6, 4, 1)


def test_equal_and_opposite_terms_are_one_operator():
    # Three oscillators, each pulled by the others: three pairs, not six terms.
    d = 3
    box = pde.Box.fourier(d, 8, np.pi)
    pulls = [
        [pde.Sin(np.eye(d)[j] - np.eye(d)[i], 0.0, 0.5) for j in range(d) if j != i]
        for i in range(d)
    ]
    start = pde.Gaussian(np.zeros(d), 0.1 * np.eye(d))
    problem = pde.FokkerPlanck(pulls, 0.1, start, box)
    assert len(problem.right_side(pde.AffineMap.identity(d), 0.0).others) == 3
    x = np.random.default_rng(0).standard_normal((5, d))
    exact = 0.5 * np.sin(x[:, None] - x[:, :, None]).sum(2)
    assert np.allclose(problem.velocity(x), exact)


def test_right_sides_trace_through_coefficients_and_maps(rng):
    box = pde.Box.fourier(2, 16)
    start = pde.Gaussian(np.zeros(2), np.eye(2))
    map = shear(rng, 2, 0.2)
    v = tt.random(jax.random.key(0), box.shape, 2)

    def rate_of(strength, map):
        a = strength * ROTATION
        drift = [pde.Sin(np.array([0.0, 1.0]), 0.1, strength), None]
        problem = pde.FokkerPlanck(drift, strength, start, box, matrix=a)
        moving = problem.right_side(map, 0.0).moving(a)
        parts = [tt.to_dense(tt.matvec(op, v)) for op in moving.operators]
        assert len(parts) == 2
        return parts[0] + parts[1]

    exact = rate_of(0.7, map)
    traced = jax.jit(lambda s, m: jax.jvp(lambda s: rate_of(s, m), (s,), (1.0,)))
    value, slope = traced(0.7, map)
    assert error(value, exact) < 1e-12 * norm(exact)
    ends = [traced(s, map)[0] for s in (0.8, 0.6)]
    assert error(slope, (ends[0] - ends[1]) / 0.2) < 1e-10 * norm(exact)


# Exact solutions ---------------------------------------------------------------------------------


def test_flows_solve_their_equations(rng):
    d = 4
    a, b, q = rng.standard_normal((d, d)), rng.standard_normal(d), covariance(rng, d)
    for t in (0.0, 0.3, 3.0):
        f, g, c = flow(a, b, q, t)
        w, v = np.linalg.eig(a)
        exact = ((v * np.exp(w * t)) @ np.linalg.inv(v)).real
        assert np.allclose(f, exact, rtol=1e-11)
        assert np.allclose(a @ g + b, f @ b, rtol=1e-10)  # d/dt of ∫ exp(As) b ds
        lyapunov = a @ c + c @ a.T + 2 * q
        assert np.allclose(lyapunov, f @ (2 * q) @ f.T, rtol=1e-9)


def test_moments_of_a_stable_process_are_those_of_the_note():
    # C(t) = C∞ + e^{At} (C₀ − C∞) e^{Aᵀt} with A C∞ + C∞ Aᵀ + 2D = 0.
    d = 3
    one = np.eye(d, k=1)
    a, diffusion = -0.5 * np.eye(d) + 0.8 * (one - one.T), 0.1 * (np.eye(d) + 0.5 * (one + one.T))
    start = pde.Gaussian(np.zeros(d), np.diag([1.0, 0.25, 1.0]))
    problem = pde.OrnsteinUhlenbeck(a, diffusion, start, pde.Box.fourier(d))
    eye = np.eye(d)
    rest = np.linalg.solve(np.kron(a, eye) + np.kron(eye, a), -2 * diffusion.ravel())
    rest = rest.reshape(d, d)
    f = flow(a, np.zeros(d), 0 * diffusion, 1.3).matrix
    mass, mean, found = problem.moments(1.3)
    assert np.isclose(mass, 1)
    assert np.allclose(mean, 0)
    assert np.allclose(found, rest + f @ (start.covariance - rest) @ f.T)
    x = problem.sample(jax.random.key(0), 1.3, 20_000)
    assert np.allclose(np.cov(x.T), found, atol=0.05)
    assert np.array_equal(x, problem.sample(jax.random.key(0), 1.3, 20_000))


def test_linear_liouville_equations_turn_any_start():
    box = pde.Box.fourier(2)
    start = pde.Function(lambda x: np.exp(-(x**4).sum(1)))
    problem = pde.Liouville(ROTATION + 0.1 * np.eye(2), start, box, offset=np.ones(2))
    gaussian = pde.Gaussian(np.ones(2), np.diag([1.0, 0.3]), amplitude=2.0)
    same = pde.Liouville(ROTATION + 0.1 * np.eye(2), gaussian, box, offset=np.ones(2))
    other = pde.Liouville(
        ROTATION + 0.1 * np.eye(2), pde.Function(gaussian.values), box, offset=np.ones(2)
    )
    x = np.random.default_rng(0).standard_normal((20, 2))
    assert np.allclose(same.exact(0.8, x), other.exact(0.8, x), rtol=1e-10)
    assert problem.moments(1.0) is None
    assert problem.exact(0.0, x) == pytest.approx(start.values(x))
    with pytest.raises(ValueError, match="expected a problem with an exact density"):
        problem.sample(jax.random.key(0), 1.0, 3)
    noisy = pde.OrnsteinUhlenbeck(ROTATION, 0.1, start, box)
    assert noisy.exact(1.0, x) is None


def test_characteristics_agree_with_the_linear_solution_and_with_a_pendulum():
    box = pde.Box.fourier(2)
    start = pde.Gaussian(np.array([0.3, -0.2]), np.diag([0.5, 0.2]))
    linear = pde.Liouville(ROTATION - 0.2 * np.eye(2), start, box)
    terms = [
        [pde.Power([0.0, 1.0]), pde.Power([-0.2, 0.0])],
        pde.Power([-1.0, -0.2]),
    ]
    x = np.random.default_rng(0).standard_normal((20, 2))
    for drift in (terms, lambda x: x @ (ROTATION - 0.2 * np.eye(2)).T):
        found = pde.FokkerPlanck(drift, None, start, box).exact(1.5, x)
        assert np.allclose(found, linear.exact(1.5, x), rtol=1e-8)
    pendulum = pde.FokkerPlanck(
        [pde.Power([0.0, 1.0]), pde.Sin([1.0, 0.0], amplitude=-1.0)], None, start, box
    )
    moved = pendulum.sample(np.random.default_rng(1), 2.0, 50)
    first = start.sample(np.random.default_rng(1), 50)
    energy = [0.5 * p[:, 1] ** 2 - np.cos(p[:, 0]) for p in (moved, first)]
    assert np.allclose(*energy, atol=1e-9)
    assert np.allclose(pendulum.exact(2.0, moved), start.values(first), rtol=1e-8)


def test_reactions_without_diffusion_follow_their_own_equation():
    box = pde.Box.fourier(2)
    start = pde.Gaussian(np.zeros(2), np.eye(2), amplitude=0.4)
    logistic = pde.AdvectionDiffusionReaction(
        None, None, start, box, matrix=ROTATION, reaction=(0.0, 1.0, -1.0)
    )
    x = np.random.default_rng(0).standard_normal((20, 2))
    origin = x @ flow(ROTATION, np.zeros(2), 0 * ROTATION, 0.7).matrix.T
    u = start.values(origin)
    exact = u * np.exp(0.7) / (1 + u * (np.exp(0.7) - 1))
    assert np.allclose(logistic.exact(0.7, x), exact, rtol=1e-9)
    assert logistic.moments(0.7) is None


def test_reactions_of_any_kind_are_evaluated_where_the_solution_is(rng):
    d = 6
    box = pde.Box.fourier(d, 40, 7.0)
    start = pde.Gaussian(np.zeros(d), np.eye(d) + 0.3, amplitude=1.0)
    map = pde.affine((np.eye(d) + 0.1 * np.eye(d, k=1)) @ start.whitening().matrix)
    problem = pde.AdvectionDiffusionReaction(
        None, None, start, box, reaction=lambda u: 0.1 + u / (1 + u**2)
    )
    v = problem.initial(map, 1e-8)
    found = problem.right_side(map, 0.0).reaction(v, 1e-6)
    x = start.sample(rng, 300)
    u = start.values(x)
    exact = 0.1 + u / (1 + u**2)
    assert relative(pde.evaluate(found, map, box, x), exact) < 5e-6


@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("tol", [1e-3, 1e-10])
def test_polynomials_of_trains_are_within_the_tolerance(d, tol):
    v = tt.random(jax.random.key(0), (6, 5, 7, 4)[:d], 3, np.float64)
    found = polynomial([np.asarray(c) for c in v.cores], (0.0, 9.0, -0.5, 0.0, 0.3), tol)
    x = dense(v)
    assert relative(dense(TT(found)), -0.5 * x**2 + 0.3 * x**4) < 3 * tol
    square = polynomial([np.asarray(c) for c in v.cores], (0.0, 0.0, 2.0), tol)
    assert relative(dense(TT(square)), 2 * x**2) < 1.1 * tol


def test_linear_reactions_grow_the_moved_gaussian():
    box = pde.Box.fourier(2)
    start = pde.Gaussian(np.zeros(2), 0.5 * np.eye(2))
    problem = pde.AdvectionDiffusionReaction(None, 0.25, start, box, reaction=(0.0, 0.3))
    x = np.random.default_rng(0).standard_normal((20, 2))
    wide = pde.Gaussian(np.zeros(2), (0.5 + 2 * 0.25 * 2.0) * np.eye(2))
    assert np.allclose(problem.exact(2.0, x), np.exp(0.6) * wide.values(x))
    mass, _, spread = problem.moments(2.0)
    assert np.isclose(mass, np.exp(0.6))
    assert np.allclose(spread, 1.5 * np.eye(2))
    assert problem.sample(jax.random.key(0), 2.0, 7).shape == (7, 2)


def test_nonlinear_problems_with_diffusion_have_no_reference():
    start, box = pde.Gaussian(np.zeros(2), np.eye(2)), pde.Box.fourier(2)
    problem = pde.FokkerPlanck([pde.Sin([0.0, 1.0]), None], 0.1, start, box)
    assert problem.exact(1.0, np.zeros((1, 2))) is None
    assert problem.moments(1.0) is None
    with pytest.raises(ValueError, match="draw the points from a density of your own"):
        problem.sample(jax.random.key(0), 1.0, 3)


def test_a_double_well_is_reached_by_the_operator_and_by_paths():
    # dx = (x − x³) dt + √(2·0.3) dW in one dimension, against the exponential of the operator.
    box = pde.Box.fourier(1, 96, 4.0)
    start = pde.Gaussian(np.array([0.5]), np.array([[0.05]]))
    problem = pde.FokkerPlanck(
        [pde.Power([1.0], exponent=3, amplitude=-1.0)], 0.3, start, box, matrix=np.eye(1)
    )
    map = pde.AffineMap.identity(1)
    generator = sum(dense(a) for a in problem.right_side(map, 0.0).operators)
    step = np.eye(96) + generator / 2000 @ (np.eye(96) + generator / 4000)
    y, w = box.axes[0].points, box.axes[0].weights
    u = np.linalg.matrix_power(step, 2000) @ start.values(y[:, None])  # t = 1
    assert abs(w @ u - 1) < 1e-4
    x = problem.simulate(np.random.default_rng(0), 1.0, 20_000, steps=50)
    for power in (1, 2):
        spread = np.std(x**power) / len(x) ** 0.5
        assert abs(np.mean(x**power) - w @ (u * y**power)) < 5 * spread
    u = np.linalg.matrix_power(step, 300_000) @ u  # at rest: u ∝ exp(−V/0.3), V = x⁴/4 − x²/2
    rest = np.exp(-(y**4 / 4 - y**2 / 2) / 0.3)
    assert np.abs(u / (w @ u) - rest / (w @ rest)).max() < 1e-6


def test_paths_have_the_moments_of_linear_processes():
    start = pde.Gaussian(np.array([1.0, 0.0]), np.diag([0.5, 0.1]))
    d = np.array([[0.3, 0.1], [0.1, 0.2]])
    problem = pde.FokkerPlanck(
        None, d, start, pde.Box.fourier(2), matrix=ROTATION - 0.5 * np.eye(2), offset=[0.1, 0.0]
    )
    x = problem.simulate(jax.random.key(0), 1.0, 40_000, steps=40)
    _, mean, spread = problem.moments(1.0)
    assert np.abs(x.mean(0) - mean).max() < 5 * np.sqrt(spread.max() / len(x))
    assert np.abs(np.cov(x.T) - spread).max() < 0.02
    wild = pde.FokkerPlanck([pde.Power([1.0, 0.0], exponent=3), None], d, start, pde.Box.fourier(2))
    with pytest.raises(ValueError, match="paths that stay finite"):
        wild.simulate(jax.random.key(0), 9.0, 10, steps=90)


def test_what_is_crossed_in_a_map_is_remembered(rng):
    calls = []

    def drift(x):
        calls.append(len(x))
        return np.tanh(x[:, ::-1])

    start, box = pde.Gaussian(np.zeros(2), np.eye(2)), pde.Box.fourier(2, 24)
    problem = pde.FokkerPlanck(drift, None, start, box)
    first = problem.right_side(pde.AffineMap.identity(2), 0.0).others
    count = len(calls)
    again = problem.right_side(pde.AffineMap.identity(2), 0.5).others
    assert len(calls) == count > 0
    assert all(np.array_equal(a, b) for a, b in zip(first[0].cores, again[0].cores, strict=True))
    problem.right_side(shear(rng, 2), 0.0)
    assert len(calls) > count
    with pytest.raises(TypeError, match="drift: expected a concrete map"):
        jax.jit(lambda m: problem.right_side(m, 0.0).others[0].cores)(shear(rng, 2))
    memory = Remembered("x", 2)
    maps = [pde.affine(k * np.eye(2)) for k in (1.0, 2.0, 3.0)]
    found = [memory.get(m, box, 1e-8, lambda k=k: k) for k, m in enumerate([*maps, *maps])]
    assert found == [0, 1, 2, 3, 4, 5]
    assert memory.get(maps[2], box, 1e-8, lambda: -1) == 5
    assert memory.get(maps[2], box, 1e-4, lambda: -1) == -1


def test_a_term_is_made_anew_for_other_boxes_and_tolerances():
    at, term = pde.AffineMap.identity(2), pde.Separable({0: np.tanh})
    shapes = [pde.Box.fourier(2, 16), pde.Box.fourier(2, 24), pde.Box.fourier(2, 16, 3.0)]
    for box in shapes:
        found = term.cores(box, at, 1e-8)
        assert np.array_equal(found[0].ravel() * found[1][0, 0, 0], np.tanh(box.points[0]))
    tilted = pde.affine(np.array([[1.0, 0.5], [0.0, 1.0]]))
    coarse, fine = (term.cores(shapes[0], tilted, tol) for tol in (1e-2, 1e-6))
    assert len(coarse[1]) < len(fine[1])


def test_stiff_trajectories_are_reported():
    with pytest.raises(ValueError, match="trajectories"):
        characteristics.solve(np.square, np.ones((1, 1)), 1.5)


def test_terms_and_their_gradients(rng):
    x = rng.standard_normal((6, 3))
    w = rng.standard_normal(3)
    for term in (
        pde.Sin(w, 0.3, 1.2),
        pde.Power(w, 0.3, 3, -0.4),
        pde.Power(w, 0.3, 0),
        pde.Product([pde.Sin(w), pde.Power(w, exponent=2)], 0.5),
        pde.Separable({0: np.tanh, 2: np.square}, 2.0),
    ):
        exact = [partial_derivatives.partial_derivative(term.values, x, k) for k in range(3)]
        assert np.allclose(term.gradient(x), np.stack(exact, 1), atol=1e-10)
        box, map = pde.Box.fourier(3, 12, 2.0), shear(rng, 3, 0.1)
        exact = term.values(map.inverse(mesh(box)))
        assert relative(dense(TT(term.cores(box, map, 1e-9))).ravel(), exact) < 1e-8
    turned = pde.affine(np.diag([2.0, 1.0, 0.5]), np.array([0.1, 0.0, 0.3]))
    cores = term.cores(box, turned, 1e-9)
    assert TT(cores).ranks == (1, 1, 1, 1)
    assert relative(dense(TT(cores)).ravel(), term.values(turned.inverse(mesh(box)))) < 1e-12


START, BOX = pde.Gaussian(np.zeros(2), np.eye(2)), pde.Box.fourier(2, 16)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pde.Liouville(np.eye(3), START, BOX), r"matrix: expected shape \(2, 2\)"),
        (lambda: pde.Liouville(np.eye(2) * np.nan, START, BOX), "matrix: expected finite"),
        (lambda: pde.Liouville(np.eye(3), START, pde.Box.fourier(3)), "start: expected 3 coord"),
        (
            lambda: pde.OrnsteinUhlenbeck(np.eye(2), -0.1, START, BOX),
            "diffusion: expected a symmetric positive semidefinite .* negative diffusion",
        ),
        (lambda: pde.OrnsteinUhlenbeck(np.eye(2), ROTATION, START, BOX), "diffusion: expected"),
        (lambda: pde.FokkerPlanck([None], 0.1, START, BOX), "drift: expected 2 components, got 1"),
        (lambda: pde.FokkerPlanck(3.0, 0.1, START, BOX), "drift: expected 2 components, or a"),
        (lambda: pde.FokkerPlanck("sin", 0.1, START, BOX), "drift: expected 2 components, or a"),
        (
            lambda: pde.FokkerPlanck([lambda x: x, None], 0.1, START, BOX),
            "got a function; give one",
        ),
        (lambda: pde.FokkerPlanck(None, "one", START, BOX), "diffusion: expected a number or"),
        (
            lambda: pde.FokkerPlanck(lambda x: 1j * x, 0.1, START, BOX).right_side(
                pde.AffineMap.identity(2), 0.0
            ),
            "drift: expected real values, got complex",
        ),
        (lambda: pde.Box.fourier(2, 32, [(0.0, 3.0)] * 2), "half_width: expected numbers"),
        (lambda: pde.Box.chebyshev(2, 32, None), "half_width: expected one number or 2"),
        (lambda: pde.Box.fourier(2, 32, "3"), "half_width: expected one number or 2"),
        (lambda: pde.FokkerPlanck(pde.Sin([1.0, 0.0]), None, START, BOX), "got Sin alone"),
        (lambda: pde.FokkerPlanck([pde.Sin([1.0]), None], 0.1, START, BOX), "Sin.weights"),
        (
            lambda: pde.FokkerPlanck([pde.Power([1.0, 0.0], exponent=-1), None], 0.1, START, BOX),
            "Power.exponent",
        ),
        (
            lambda: pde.FokkerPlanck([pde.Separable({2: np.sin}), None], 0.1, START, BOX),
            r"\[0, 2\)",
        ),
        (lambda: pde.FokkerPlanck([pde.Product([]), None], 0.1, START, BOX), "Product.factors"),
        (
            lambda: pde.AdvectionDiffusionReaction(None, pde.Sin([1.0, 0.0]), START, BOX),
            "conductivity: .* negative diffusion",
        ),
        (
            lambda: pde.AdvectionDiffusionReaction(None, -1.0, START, BOX),
            "conductivity: expected a symmetric positive semidefinite",
        ),
        (
            lambda: pde.Liouville(np.eye(2), START, BOX).initial(pde.AffineMap.identity(3), 1e-3),
            "map: expected 2 coordinates, got 3",
        ),
    ],
)
def test_bad_problems_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_zero_diffusion_is_none():
    drift = [pde.Sin([0.0, 1.0]), None]
    for diffusion in (0.0, np.zeros((2, 2))):
        problem = pde.FokkerPlanck(drift, diffusion, START, BOX)
        assert problem.diffusion is None
        assert problem.exact(0.1, np.zeros((1, 2))) is not None


def test_wrong_kinds_are_refused():
    with pytest.raises(TypeError, match=r"drift\[0\]: expected terms"):
        pde.FokkerPlanck([[1.0], None], 0.1, START, BOX)
    with pytest.raises(TypeError, match="key: expected"):
        pde.Liouville(np.eye(2), START, BOX).sample(0, 1.0, 3)
    with pytest.raises(TypeError, match="mean, covariance: expected concrete"):
        jax.jit(lambda m: pde.Gaussian(m, np.eye(2)).mass)(np.zeros(2))
