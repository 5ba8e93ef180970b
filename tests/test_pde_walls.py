"""Absorbing and reflecting walls of densities, beside axes on which coordinates move."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from tensorjax import pde, tt
from tensorjax.pde._function_trains import initial_states
from tensorjax.pde._integration.initial_checks import start_errors

PAIRS = [
    ("absorbing", "absorbing"),
    ("reflecting", "reflecting"),
    ("absorbing", "reflecting"),
    ("reflecting", "absorbing"),
]


def dense(problem: Any) -> np.ndarray:
    """Matrix of the right side in coordinates at rest."""
    out: Any = 0.0
    for operator in problem.right_side(pde.AffineMap.identity(problem.dim), 0.0).operators:
        cores = [np.asarray(c) for c in operator.cores]
        total = cores[0]
        for core in cores[1:]:
            total = np.einsum("aijb,bklc->aikjlc", total, core).reshape(
                1, total.shape[1] * core.shape[1], -1, core.shape[-1]
            )
        out = out + total[0, :, :, 0]
    return out


@pytest.mark.parametrize("pair", PAIRS)
def test_heat_between_walls_decays_as_its_modes(rng: Any, pair: Any):
    low, length, noise = rng.uniform(-2, 2), rng.uniform(0.5, 3), rng.uniform(0.1, 2)
    axis = pde.Axis("chebyshev", 24, low, low + length, walls=pair)
    start = pde.Gaussian([low + length / 2], [[0.01 * length**2]])
    matrix = dense(pde.OrnsteinUhlenbeck([[0.0]], noise, start, pde.Box([axis])))
    shift = {"absorbing": 1, "reflecting": 0}[pair[0]] if pair[0] == pair[1] else 0.5
    exact = noise * (np.pi * (np.arange(4) + shift) / length) ** 2
    found = np.sort(-np.linalg.eigvals(matrix).real)
    assert found[0] > -1e-9 * found[-1]
    np.testing.assert_allclose(found[:4], exact, rtol=1e-7, atol=1e-9 * found[-1])
    assert (axis.weights > 0).all()
    assert axis.weights.sum() == pytest.approx(length) or pair != PAIRS[1]
    x = low + length * rng.uniform(size=7)
    power = np.ones(24)
    for end, wall in zip((low, low + length), pair, strict=True):
        power = power * ((axis.points - end) if wall == "absorbing" else 1)
    values = power * np.cos(axis.points)
    there = np.cos(x)
    for end, wall in zip((low, low + length), pair, strict=True):
        there = there * ((x - end) if wall == "absorbing" else 1)
    np.testing.assert_allclose(axis.interpolate(x) @ values, there, atol=1e-9)


def mixed(rng: Any, walls: Any, coupled: float) -> pde.FokkerPlanck:
    """Drawn process in three dimensions: the first axis has walls, two others none."""
    matrix = np.zeros((3, 3))
    turn = rng.uniform(0.5, 2)
    matrix[1:, 1:] = [[-0.3, turn], [-turn, -0.3]]
    matrix[0, 0], matrix[1, 0] = rng.uniform(-1, 0.5), coupled
    noise = np.diag(rng.uniform(0.1, 0.4, 3))
    noise[1, 2] = noise[2, 1] = 0.05
    axis = pde.Axis("chebyshev", 24, -1.0, 1.2, walls=walls)
    free = [pde.Axis("fourier", 56, -5.0, 5.0)] * 2
    start = pde.Gaussian([0.1, 0.2, 0.0], np.diag([0.04, 0.5, 0.12]))
    return pde.FokkerPlanck(None, noise, start, pde.Box([axis, *free]), matrix=matrix)


@pytest.mark.parametrize(
    ("walls", "coupled"),
    [
        ("reflecting", 0.0),
        ("absorbing", 0.4),
        pytest.param(("reflecting", "absorbing"), 0.4, marks=pytest.mark.slow),
        pytest.param(("absorbing", "reflecting"), 0.0, marks=pytest.mark.slow),
    ],
)
def test_coordinates_move_beside_walls_and_not_through_them(rng: Any, walls: Any, coupled: float):
    problem = mixed(rng, walls, coupled)
    fixed, moving = (
        pde.integrate(problem, t1=0.6, tol=1e-5, coordinates=c)
        for c in ("adaptive", pde.MultiLevel())  # by default they rest beside walls
    )
    for solution in (fixed, moving):
        assert solution.result == pde.Result.successful, solution.message
        assert list(solution.stats["resting"][-1]) == [True, False, False]
    assert not np.any(fixed.stats["sigma"])
    assert np.any(moving.stats["sigma"][:, 1, 2])
    assert not np.any(moving.stats["sigma"][:, 0])
    assert not np.any(moving.stats["sigma"][:, :, 0])
    assert np.array_equal(moving.final.map.matrix[0], [1, 0, 0])
    known, found = (pde.moments(s.final.v, s.final.map, problem.box) for s in (fixed, moving))
    for a, b in zip(known, found, strict=True):
        np.testing.assert_allclose(b, a, atol=2e-4)
    if walls == "reflecting":
        assert found[0] == pytest.approx(1, abs=1e-4)
    else:
        assert found[0] < 0.97
    if coupled:
        return
    # What happens along the first axis does not see the others, nor they it.
    alone = pde.FokkerPlanck(
        None, np.diag(problem.diffusion)[:1, None], pde.Gaussian([0.1], [[0.04]]),
        pde.Box(problem.box.axes[:1]), matrix=[[problem.matrix[0, 0]]],
    )  # fmt: skip
    axis = problem.box.axes[0]
    v = scipy.linalg.expm(0.6 * dense(alone)) @ alone.start.values(axis.points[:, None])
    assert found[0] == pytest.approx(axis.weights @ v, abs=1e-4)
    (x,), density = pde.marginal(moving.final.v, moving.final.map, problem.box, (0,), points=9)
    np.testing.assert_allclose(density, axis.interpolate(x) @ v, atol=1e-3)
    _, both = pde.marginal(moving.final.v, moving.final.map, problem.box, (2, 0), points=9)
    _, other = pde.marginal(fixed.final.v, fixed.final.map, problem.box, (2, 0), points=9)
    np.testing.assert_allclose(both, other, atol=1e-3)
    _, one = pde.marginal(moving.final.v, moving.final.map, problem.box, (1,), points=9)
    _, two = pde.marginal(fixed.final.v, fixed.final.map, problem.box, (1,), points=9)
    np.testing.assert_allclose(one, two, atol=1e-3)


def boxed(rng: Any, walls: Any) -> pde.OrnsteinUhlenbeck:
    """Drawn drift in a plane with walls all round, that would leave it soon."""
    drift, start = rng.standard_normal((2, 2)), pde.Gaussian([0.1, 0.0], 0.05 * np.eye(2))
    # On 16 points the variance of the start would be off by seven times the accuracy.
    box = pde.Box([pde.Axis("chebyshev", 20, -1.0, 1.0, walls=walls)] * 2)
    return pde.OrnsteinUhlenbeck(drift, 0.4, start, box)


@pytest.mark.parametrize("walls", ["absorbing", pytest.param("reflecting", marks=pytest.mark.slow)])
def test_adaptive_coordinates_respect_walls_all_round(rng: Any, walls: Any):
    problem = boxed(rng, walls)
    found = pde.integrate(problem, t1=0.4, tol=1e-5)
    assert found.result == pde.Result.successful, found.message
    assert not np.any(found.stats["sigma"])
    assert found.stats["resting"].all()
    axis = problem.box.axes[0]
    x = np.stack(np.meshgrid(axis.points, axis.points, indexing="ij"), -1).reshape(-1, 2)
    v = scipy.linalg.expm(0.4 * dense(problem)) @ problem.start.values(x)
    exact = v.reshape(20, 20)
    v = np.einsum("aib,bjc->ij", *map(np.asarray, found.final.v.cores))
    assert np.linalg.norm(v - exact) < 2e-4 * np.linalg.norm(exact)
    mass = axis.weights @ v @ axis.weights
    first = axis.weights @ problem.start.values(x).reshape(20, 20) @ axis.weights
    if walls == "reflecting":
        assert mass == pytest.approx(first, abs=1e-4)
    else:
        assert mass < 0.9
    assert problem.exact(0.4, x) is None
    assert problem.moments(0.4) is None
    assert problem.stationary_density(x) is None


@pytest.mark.slow
@pytest.mark.parametrize("walls", ["absorbing", "reflecting"])
def test_walls_beside_paths(rng: Any, walls: str):
    """Euler–Maruyama paths that end at, or are mirrored by, walls."""
    problem, steps = boxed(rng, walls), 1000
    found = pde.integrate(problem, t1=0.4, tol=1e-4)
    assert isinstance(problem.start, pde.Gaussian)
    x, alive = problem.start.sample(rng, 4_000), np.ones(4_000, bool)
    for _ in range(steps):
        h = 0.4 / steps
        x = x + h * x @ problem.matrix.T + np.sqrt(0.8 * h) * rng.standard_normal(x.shape)
        if walls == "reflecting":
            x = np.where(np.abs(x) > 1, np.sign(x) * 2 - x, x)
        else:  # walls nearer by 0.5826 standard deviations of a step (Broadie, Glasserman, Kou)
            alive &= (np.abs(x) < 1 - 0.5826 * np.sqrt(0.8 * h)).all(1)
    mass, mean, covariance = pde.moments(found.final.v, found.final.map, problem.box)
    assert mass == pytest.approx(alive.mean(), abs=0.03)
    np.testing.assert_allclose(mean, x[alive].mean(0), atol=0.04)
    np.testing.assert_allclose(covariance, np.cov(x[alive].T), atol=0.03)


def test_a_reflecting_box_has_the_boltzmann_density_cut_off():
    rate, temperature = 1.0, 0.4
    box = pde.Box([pde.Axis("chebyshev", 20, -0.5, 1.0, walls="reflecting")] * 2)
    start = pde.Gaussian([0.2, 0.2], 0.02 * np.eye(2))
    process = pde.OrnsteinUhlenbeck(-rate * np.eye(2), rate * temperature, start, box)
    found = pde.stationary(process)
    assert found.result == pde.Result.successful, found.message
    x = np.random.default_rng(0).uniform(-0.5, 1.0, (20, 2))
    values = np.asarray(pde.evaluate(found.final.v, found.final.map, box, x))
    shape = np.exp(-np.square(x).sum(1) / (2 * temperature))
    np.testing.assert_allclose(values / values[0], shape / shape[0], rtol=1e-5)


def test_arguments_of_walls():
    with pytest.raises(ValueError, match='walls: expected "absorbing"'):
        pde.Axis("chebyshev", 12, 0, 1, walls="open")
    with pytest.raises(ValueError, match="walls: expected None"):
        pde.Axis("fourier", 12, 0, 1, walls="absorbing")
    reflecting, free = (
        pde.Axis("chebyshev", 20, -1, 1, walls="reflecting"),
        pde.Axis("fourier", 40, -5, 5),
    )
    start = pde.Gaussian([0.0, 0.0], 0.1 * np.eye(2))
    box = pde.Box([reflecting, free])
    oblique = pde.OrnsteinUhlenbeck(np.zeros((2, 2)), [[0.4, 0.1], [0.1, 0.4]], start, box)
    with pytest.raises(ValueError, match="not correlated"):
        pde.integrate(oblique, t1=0.1)
    with pytest.raises(ValueError, match="noise along every axis with walls"):
        pde.integrate(pde.Liouville(-np.eye(2), start, box), t1=0.1)
    flow = pde.AdvectionDiffusionReaction(
        None, 0.1, start, box, offset=[1.0, 0.0], reaction=[0.0, -1.0]
    )
    with pytest.raises(ValueError, match="no velocity along"):
        pde.integrate(flow, t1=0.1)
    process = pde.OrnsteinUhlenbeck(-np.eye(2), 0.3, start, box)
    with pytest.raises(ValueError, match="map: expected the identity"):
        pde.integrate(process, t1=0.1, map=pde.affine([[1.0, 0.1], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="no two others"):
        pde.integrate(process, t1=0.1, coordinates=pde.MultiLevel())
    three = pde.OrnsteinUhlenbeck(
        -np.eye(3), 0.3, pde.Gaussian(np.zeros(3), 0.1 * np.eye(3)), pde.Box([*box.axes, free])
    )
    turn = np.zeros((3, 3))
    turn[0, 1] = 1.0
    with pytest.raises(ValueError, match="expected a motion that is zero"):
        pde.integrate(three, t1=0.1, coordinates=pde.Prescribed(lambda t: turn))
    absorbing = pde.Box([pde.Axis("chebyshev", 20, -1, 1, walls="absorbing"), free])
    with pytest.raises(ValueError, match="no stationary density"):
        pde.stationary(pde.OrnsteinUhlenbeck(-np.eye(2), 0.3, start, absorbing))


def norms(box: pde.Box) -> np.ndarray:
    """Cholesky factor of the Gram matrix of the polynomials of a box, in L²."""
    out = np.ones((1, 1))
    for axis in box.axes:
        x, w = np.polynomial.legendre.leggauss(2 * axis.n)
        values = axis.interpolate(axis.low + axis.length * (x + 1) / 2)
        out = np.kron(out, (values * (w * axis.length / 2)[:, None]).T @ values)
    return np.linalg.cholesky(out)


@pytest.mark.parametrize(
    ("kind", "walls"),
    [
        ("epidemic", "absorbing"),
        ("turning", "absorbing"),
        ("drawn", "absorbing"),
    ],
)
def test_transport_between_walls_grows_no_faster_than_it_contracts(rng: Any, kind: str, walls: Any):
    """‖u‖² changes by −∫ u² ∇·f; products at the points grow many times as fast."""
    e, low = np.eye(2), rng.uniform(-1, 0, 2)
    both = [pde.Power(e[0]), pde.Power(e[1])]
    drift, matrix = {
        "epidemic": ([[pde.Product(both, amplitude=-a)] for a in (1.5, -1.5)], -0.5 * e * [0, 1]),
        "turning": (None, rng.standard_normal((2, 2))),
        "drawn": (
            [[pde.Power(rng.uniform(-1, 1, 2), exponent=k, amplitude=1.5)] for k in (3, 2)], None
        ),
    }[kind]  # fmt: skip
    for n in (9, 14):
        axes = [pde.Axis("chebyshev", n, a, a + 1.8, walls=walls) for a in low]
        start = pde.Gaussian(low + 0.9, 0.02 * e)
        problem = pde.FokkerPlanck(drift, 1e-9, start, pde.Box(axes), matrix=matrix)
        factor = norms(problem.box)
        whole = np.linalg.solve(factor, (factor.T @ dense(problem)).T).T
        x = np.stack(np.meshgrid(*[np.linspace(a.low, a.high, 33) for a in axes]), -1)
        x, h = x.reshape(-1, 2), 1e-5
        divergence = sum(
            (problem.velocity(x + h * e[k]) - problem.velocity(x - h * e[k]))[:, k] / (2 * h)
            for k in range(2)
        )
        most = max(float(np.max(-divergence / 2)), 0.0)
        assert np.linalg.eigvalsh((whole + whole.T) / 2)[-1] < most + 1e-4


def test_what_is_lost_through_the_ends_of_chebyshev_axes_is_said(rng: Any):
    """Densities are zero next to the ends whatever leaves: points there alone tell nothing."""
    box = pde.Box.chebyshev(1, 24, 1.0)
    for t in (0.02, 0.3):
        noise, start = rng.uniform(0.3, 0.5), pde.Gaussian([rng.uniform(-0.2, 0.2)], [[0.02]])
        process = pde.OrnsteinUhlenbeck([[0.0]], noise, start, box)
        found = pde.integrate(process, t1=t, tol=1e-4)
        lost = 1 - pde.mass(found.final.v, found.final.map, box)
        if found.result == pde.Result.successful:
            assert abs(lost) < 1e-3
        else:
            assert "axis 0" in found.message
    assert found.result != pde.Result.successful


def test_mass_that_a_density_loses_is_said():
    start = pde.Gaussian([0.0], [[0.3]])
    process = pde.OrnsteinUhlenbeck([[-1.0]], 0.3, start, pde.Box.fourier(1, 64, 5.0))
    assert pde.integrate(process, t1=0.3).result == pde.Result.successful
    # A right side that loses mass, as an unstable edge would.
    leaky = type("Leaky", (pde.OrnsteinUhlenbeck,), {"right_side": _leaking})
    found = pde.integrate(
        leaky([[-1.0]], 0.3, start, pde.Box.fourier(1, 64, 5.0)), t1=0.3, tol=1e-6
    )
    assert found.result == pde.Result.inaccurate
    assert "the mass is 0.997" in found.message
    more = pde.integrate(
        leaky([[-1.0]], 0.3, start, pde.Box.fourier(1, 64, 5.0)), t1=0.3, accuracy=4e-3
    )
    assert more.result == pde.Result.successful
    # Decay by a reaction is no loss.
    decay = pde.AdvectionDiffusionReaction(
        None, 0.3, start, pde.Box.fourier(1, 64, 5.0), reaction=(0.0, -0.01)
    )
    assert pde.integrate(decay, t1=0.3).result == pde.Result.successful


def _leaking(self: Any, map: Any, t: float) -> pde.RightSide:
    right = pde.OrnsteinUhlenbeck.right_side(self, map, t)
    assert right.affine is not None
    return dataclasses.replace(
        right, affine=right.affine._replace(constant=right.affine.constant - 0.01)
    )


def test_coordinates_move_beside_an_angle(rng: Any):
    """A process that turns, and a rotor: closed forms of both, which are not coupled."""
    turn = rng.uniform(0.8, 1.5)
    matrix = np.zeros((3, 3))
    matrix[:2, :2] = [[-0.3, turn], [-turn, -0.3]]
    box = pde.Box(
        [*[pde.Axis("fourier", 56, -6.0, 6.0)] * 2, pde.Axis("periodic", 24, -np.pi, np.pi)]
    )
    start = pde.Gaussian([0.2, 0.0, 0.3], np.diag([0.7, 0.2, 0.4]))
    problem = pde.FokkerPlanck(
        None, np.diag([0.1, 0.1, 0.2]), start, box, matrix=matrix, offset=[0.0, 0.0, 0.5]
    )
    found = pde.integrate(problem, t1=0.5, tol=1e-5, coordinates=pde.MultiLevel())
    assert found.result == pde.Result.successful, found.message
    assert list(found.stats["resting"][-1]) == [False, False, True]
    assert np.any(found.stats["sigma"][:, 0, 1])
    assert not np.any(found.stats["sigma"][:, 2])
    assert found.stats["rank"][-1] <= 3
    end = found.final
    mass, mean, covariance = pde.moments(end.v, end.map, box)
    alone = pde.OrnsteinUhlenbeck(
        matrix[:2, :2], 0.1 * np.eye(2), pde.Gaussian(start.mean[:2], start.covariance[:2, :2]),
        pde.Box(box.axes[:2]),
    )  # fmt: skip
    _, first, second = alone.moments(0.5) or (0, 0, 0)
    assert mass == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(mean[:2], first, atol=1e-4)
    np.testing.assert_allclose(covariance[:2, :2], second, atol=1e-4)
    (x,), density = pde.marginal(end.v, end.map, box, (2,), points=9)
    wave = sum(
        np.exp(-np.square(x - 0.55 + 2 * np.pi * k) / (2 * 0.6)) / np.sqrt(2 * np.pi * 0.6)
        for k in range(-3, 4)
    )
    np.testing.assert_allclose(density, wave, atol=1e-4)


def in_a_square(walls: Any, n: int = 16) -> pde.OrnsteinUhlenbeck:
    """Process in a square with walls all round, whose noise has a stationary density there."""
    box = pde.Box([pde.Axis("chebyshev", n, -1.0, 1.0, walls=walls)] * 2)
    return pde.OrnsteinUhlenbeck(-np.eye(2), 0.5, pde.Gaussian([0.1, 0.0], 0.1 * np.eye(2)), box)


def test_no_flux_passes_a_reflecting_wall(rng: Any):
    problem = in_a_square("reflecting", 20)
    found = pde.stationary(problem)
    x = rng.uniform(-1, 1, (6, 2))
    x[:4, 0] = [1.0, -1.0, 0.9999, 0.99]
    flux = pde.flux(problem, found.final.v, found.final.map, x)
    np.testing.assert_allclose(flux, 0, atol=1e-6)
    x[:, 0] = 1.1
    assert not np.any(pde.flux(problem, found.final.v, found.final.map, x))


def test_the_flux_at_an_absorbing_wall_is_the_slope_there():
    axis = pde.Axis("chebyshev", 20, 0.0, np.pi, walls="absorbing")
    start = pde.Gaussian([1.5], [[0.1]])
    heat = pde.OrnsteinUhlenbeck([[0.0]], 0.5, start, pde.Box([axis]))
    train = tt.TT((jnp.asarray(np.sin(axis.points)[None, :, None]),))
    ends = pde.flux(heat, train, pde.AffineMap.identity(1), [[0.0], [np.pi]])
    np.testing.assert_allclose(ends[:, 0], [-0.5, 0.5], atol=1e-7)


def test_what_a_run_loses_is_its_own_loss():
    """Not that of the run before it, which had absorbing walls."""
    first = pde.integrate(in_a_square("absorbing"), t1=0.1, tol=1e-4)
    second = pde.integrate(in_a_square("reflecting"), t1=0.15, tol=1e-4, start=first.final)
    assert pde.mass(first.final.v, first.final.map, in_a_square("absorbing").box) < 0.95
    assert second.result == pde.Result.successful, second.message


def test_traced_noise_between_walls():
    def spread(a: Any) -> Any:
        box = pde.Box([pde.Axis("chebyshev", 24, -2.0, 2.0, walls="reflecting")] * 2)
        start = pde.Gaussian([0.2, 0.1], 0.1 * np.eye(2))
        process = pde.OrnsteinUhlenbeck(-np.eye(2), a * jnp.eye(2), start, box)
        found = pde.integrate(process, t1=0.005, rank=1, dt=0.0005)
        return pde.moments(found.final.v, found.final.map, box)[2][0, 0]

    with jax.enable_x64(True):
        found = jax.jit(jax.grad(spread))(0.3)
    # Derivatives of singular vectors next to zero ones are rough, with walls or without.
    assert found == pytest.approx(1 - np.exp(-0.01), rel=0.5)


def test_noise_between_walls_may_begin_later():
    box = pde.Box([pde.Axis("chebyshev", 16, -1.0, 1.0, walls="absorbing")])
    start = pde.Gaussian([0.0], [[0.05]])
    for factor in (1.0, 0.0):
        problem = pde.FokkerPlanck(
            None, lambda t, x, a=factor: a * t * np.ones_like(x), start, box
        )  # fmt: skip
        if factor:
            found = pde.integrate(problem, t1=0.1, tol=1e-4)
            assert found.result in {pde.Result.successful, pde.Result.inaccurate}
        else:
            with pytest.raises(ValueError, match="noise along every axis with walls"):
                pde.integrate(problem, t1=0.1)


def test_arguments_that_walls_do_not_admit():
    for walls in (3, [1, 2], ("absorbing",), [["absorbing"], "absorbing"]):
        with pytest.raises(ValueError, match="walls: expected"):
            pde.Axis("chebyshev", 12, 0, 1, walls=walls)
    assert pde.Axis("chebyshev", 12, 0, 1, walls=["absorbing"] * 2).free == (False, False)
    with pytest.raises(ValueError, match="conserve: expected None in a box with absorbing walls"):
        pde.integrate(in_a_square("absorbing"), t1=0.1, conserve="rescale")


def test_backward_equations_take_the_walls_of_axes(rng: Any):
    """Also those along an axis without noise, by which paths leave."""
    problem = pde.Kramers((0, -0.5, 0.5), friction=1.0, temperature=1.0)
    given: Any = ("absorbing", "reflecting")

    def domain(walls: Any) -> pde.Box:
        pairs = zip((1.0, 4.0), walls, strict=True)
        return pde.Box([pde.Axis("chebyshev", 12, -a, a, walls=w) for a, w in pairs])

    def payoff(x: Any) -> Any:
        return np.cos(x[:, 0])

    x = rng.uniform(-1, 1, (4, 2))
    own, bare = domain(given), domain((None, None))
    for found, known in (
        (pde.first_passage(problem, own), pde.first_passage(problem, bare, walls=given)),
        (
            pde.expectation(problem, own, payoff, [0.5], tol=1e-3),
            pde.expectation(problem, bare, payoff, [0.5], walls=given, tol=1e-3),
        ),
    ):
        np.testing.assert_allclose(found(x), known(x), rtol=1e-9)


@pytest.mark.parametrize(
    "seed", [2, 3, *(pytest.param(s, marks=pytest.mark.slow) for s in range(20, 28))]
)
def test_an_initial_state_that_the_points_miss_is_told_though_the_end_is_smooth(seed: int):
    """Galerkin products fold what the points miss into the mass and the mean, where it stays."""
    rng = np.random.default_rng(seed)
    rate, noise, push = -rng.uniform(0.2, 3.0), rng.uniform(0.05, 0.4), rng.uniform(-1, 0)
    start, t1 = pde.Gaussian([0.3], [[0.04]]), rng.uniform(0.4, 1.0)

    def found(points: int) -> tuple[pde.Solution, np.ndarray]:
        box = pde.Box([pde.Axis("chebyshev", points, -1.6, 1.6, walls="reflecting")])
        problem = pde.FokkerPlanck(None, noise, start, box, matrix=[[rate]], offset=[push])
        solution = pde.integrate(problem, t1=t1)
        mass, mean, variance = pde.moments(solution.final.v, solution.final.map, box)
        return solution, np.array([mass, mean[0], variance[0, 0]])

    def error(moments: np.ndarray) -> float:
        return float((np.abs(moments - known) / [1, known[2] ** 0.5, known[2]]).max())

    points, told = 26, 0
    with jax.enable_x64(True):
        _, known = found(64)
        solution, moments = found(points)
        assert error(moments) > 1e-4  # of an accuracy of 1e-5
        while solution.result == pde.Result.inaccurate and told < 5:
            assert "initial state" in solution.message
            assert "axis 0" in solution.message
            points, told = int(re.findall(r"about (\d+) points", solution.message)[0]), told + 1
            solution, moments = found(points)
    assert told > 0
    assert solution.result == pde.Result.successful
    assert error(moments) < 5e-5


def test_what_the_points_miss_of_a_start_is_measured_without_rounding(rng: Any, monkeypatch: Any):
    """Rounding correlated Gaussians took most of the time of short runs in five dimensions."""
    axis = pde.Axis("chebyshev", 9, -1.5, 1.5)
    box = pde.Box([axis, pde.Axis("periodic", 16, 0.0, 2.0), dataclasses.replace(axis, n=24)])
    a = rng.standard_normal((2, 3, 3))
    parts = [
        pde.Gaussian(rng.uniform(-0.2, 0.2, 3), 0.06 * (np.eye(3) + 0.2 * m @ m.T), amplitude=2.0)
        for m in a
    ]
    problem = pde.FokkerPlanck(None, 0.05, pde.Mixture([1.0, 0.5], parts), box)
    at = pde.AffineMap.identity(3)

    def found(box: pde.Box) -> Any:
        train = dataclasses.replace(problem, box=box).initial(at, 1e-11)
        return pde.moments(train, at, box)

    with jax.enable_x64(True):
        given, known = found(box), []
        for k in (0, 2):
            axes = list(box.axes)
            axes[k] = dataclasses.replace(axes[k], n=2 * axes[k].n)
            true = found(pde.Box(axes))
            width = np.sqrt(np.diag(true[2]))
            errors = [
                given[0] / true[0] - 1,
                (given[1] - true[1]) / width,
                (given[2] - true[2]) / np.outer(width, width),
            ]
            known.append(max(np.abs(e).max() for e in errors))
    monkeypatch.setattr(initial_states.rounding, "rounded", None)
    errors = start_errors(problem, at, 1e-5)
    assert errors is not None
    np.testing.assert_allclose(errors[[0, 2]], known, rtol=1e-3)
    assert errors[1] == 0
    assert errors[0] > 1e-4
    assert start_errors(problem, at, np.inf) is None
