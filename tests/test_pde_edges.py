"""Drifts that flow in from the edge of the box: operators, clearing, runs against Monte Carlo."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from tensorjax import pde
from tensorjax.pde._discretization import variable_coefficients as multipliers
from tensorjax.pde._integration import integrate as integration
from tensorjax.pde._integration.memory import Gate
from tensorjax.pde._integration.progress_and_statistics import Compilations
from tensorjax.pde._problems.user_functions import InFewSizes
from tensorjax.pde._stepping.outskirts import cleared, window
from tensorjax.pde._stepping.sketched_sums import Train, rounded

E = np.eye(2)


def power(k: int, exponent: int, amplitude: float = 1.0) -> pde.Power:
    return pde.Power(E[k], exponent=exponent, amplitude=amplitude)


def cubic(name: str, a: float, diffusion: float, mean: Any, box: Any) -> pde.FokkerPlanck:
    """Textbook drifts of degree three, whose inflow at the edge is many times that inside."""
    both = [pde.Product([power(j, 2), power(i, 1)], amplitude=-1.0) for i in (0, 1) for j in (0, 1)]
    drift, noise, matrix = {
        "van der Pol": (
            [None, pde.Product([power(0, 2), power(1, 1)], amplitude=-a)],
            np.diag([0.0, diffusion]),
            [[0.0, 1.0], [-1.0, a]],
        ),
        "Duffing": (
            [None, power(0, 3, -1.0)],
            np.diag([0.0, diffusion]),
            [[0.0, 1.0], [1.0, -a]],
        ),
        "double well": (
            [power(0, 3, -1.0), power(1, 3, -1.0)],
            diffusion * E,
            [[1.0 - a, a], [a, 1.0 - a]],
        ),
        "limit cycle": ([both[:2], both[2:]], diffusion * E, [[1.0, a], [-a, 1.0]]),
    }[name]
    return pde.FokkerPlanck(
        drift, noise, pde.Gaussian(np.asarray(mean), 0.1 * E), box, matrix=np.array(matrix)
    )


def check_covariance(problem: pde.FokkerPlanck, state: pde.State, paths: int, most: float) -> None:
    x = problem.simulate(np.random.default_rng(1), state.t, paths, steps=round(100 * state.t))
    sampled = np.cov(x.T)
    _, _, found = pde.moments(state.v, state.map, problem.box)
    assert np.abs(found - sampled).max() < most * np.diag(sampled).max()


@pytest.mark.parametrize("name", ["van der Pol", "Duffing", "double well", "limit cycle"])
def test_inflow_at_the_edge_amplifies_nothing(name: str):
    rng = np.random.default_rng([7, len(name)])
    width = rng.uniform(4, 7)
    # With 14 points a unit of length the variance of the limit cycle is off by 50 tol.
    box = pde.Box.fourier(2, int((20 if name == "limit cycle" else 14) * width), width)
    problem = cubic(name, rng.uniform(0.3, 1), rng.uniform(0.05, 0.2), rng.uniform(-1, 1, 2), box)
    solution = pde.integrate(problem, t1=1.0, tol=1e-4, coordinates="fixed")
    assert solution.result == pde.Result.successful, solution.message
    check_covariance(problem, solution.final, 40_000, 0.025)


@pytest.mark.parametrize("width", [5.0, 8.0])
def test_steps_of_the_controller_do_not_end_a_run_in_a_large_box(width: float):
    box = pde.Box.fourier(2, int(16 * width), width)
    problem = cubic("van der Pol", 1.0, 0.1, [1.0, 0.0], box)
    solution = pde.integrate(problem, t1=2.0, tol=1e-3, coordinates="fixed")
    assert solution.result == pde.Result.successful, solution.message
    check_covariance(problem, solution.final, 40_000, 0.03)


@pytest.mark.slow
@pytest.mark.parametrize("coordinates", ["fixed", "adaptive"])
def test_van_der_pol_reaches_its_end(coordinates: Any):
    problem = cubic("van der Pol", 1.0, 0.1, [1.0, 0.0], pde.Box.fourier(2, 64, 4.0))
    solution = pde.integrate(problem, t1=2.0, tol=1e-5, coordinates=coordinates, accuracy=1e-2)
    assert solution.result == pde.Result.successful, solution.message
    check_covariance(problem, solution.final, 200_000, 0.02)


@pytest.mark.parametrize("kind", ["fourier", "finite differences", "chebyshev"])
def test_transport_is_the_flux_of_what_vanishes_at_the_edge(rng: Any, kind: Any):
    box = pde.Box(tuple(pde.Axis(kind, n, -4.0, 5.0, 6) for n in (30, 31)))
    w, a = rng.standard_normal((2, 2))
    cores = multipliers.power(box, w, 0.3, 3)
    found, plain = (
        np.einsum("aijb,bklc->ikjl", *x.cores).reshape(930, 930)
        for x in (multipliers.transport(box, a, cores), multipliers.flux(box, a, cores))
    )
    bump = np.exp(-2 * np.add.outer(*((p - 0.5) ** 2 for p in box.points))).ravel()
    assert np.linalg.norm((found - plain) @ bump) < 1e-4 * np.linalg.norm(plain @ bump)
    if kind != "fourier":
        assert np.array_equal(found, plain)
        return
    assert np.abs(found.sum(0)).max() < 1e-11 * np.linalg.norm(found)


@pytest.mark.parametrize("exponent", [1, 3])
def test_transport_inwards_grows_no_faster_than_it_contracts(exponent: int):
    """The flux ∂ m grows many times as fast, out of what lies at the seam of the periodic axis."""
    for n, width in ((40, 4.0), (41, 3.0), (64, 5.0)):
        box = pde.Box.fourier(1, n, width)
        cores = multipliers.power(box, np.ones(1), 0.0, exponent)
        t = 2 / (exponent * width ** (exponent - 1))  # in which v² grows by e² at the edge
        found, plain = (
            np.linalg.norm(scipy.linalg.expm(t * f(box, np.ones(1), cores).cores[0][0, :, :, 0]), 2)
            for f in (multipliers.transport, multipliers.flux)
        )
        assert found < 2 * np.e
        assert plain > 3 * found


def test_clearing_takes_no_more_than_allowed(rng: Any):
    box = pde.Box.fourier(3, 40, 6.0)
    start = pde.Gaussian(rng.uniform(-0.5, 0.5, 3), 0.3 * np.eye(3) + 0.05)
    cores = start.cores(box, pde.AffineMap.identity(3), 1e-10)
    cores = rounded([Train(cores)], [1.0], 1e-10).cores
    for allowed in (1e-8, 1e-5, 1e-2):
        found = cleared(cores, box, allowed)
        lost = rounded([Train(cores), Train(found)], [1.0, -1.0], 1e-3).norm
        assert 0 < lost < allowed * np.linalg.norm(cores[0]) * 6**0.5
        for core in found[1:]:
            flat = core.reshape(len(core), -1)
            assert np.allclose(flat @ flat.T, np.eye(len(core)), atol=1e-12)
        assert not found[0][:, 0].any()
        masks = window(found, box, allowed)
        assert masks is not None
        assert masks[0][0] == 0 < masks[0][20] == 1
    assert window([np.ones((1, 40, 1)) / 40**0.5] * 3, box, 1e-2) is None
    assert cleared([0 * c for c in cores], box, 1e-2)[0].any() == False  # noqa: E712


def test_adaptive_coordinates_are_never_worse_than_fixed_ones(monkeypatch: Any):
    """Where moving coordinates stop the run it is made again in fixed ones, and says so."""
    start = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.3]))
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    problem = pde.Liouville(turn, start, pde.Box.fourier(2, 48, 6.0))
    options: dict[str, Any] = {"t1": 0.4, "dt": 0.02, "tol": 1e-5}
    fixed = pde.integrate(problem, coordinates="fixed", **options)
    assert not fixed.stats["fallback"].any()
    for rate in (6.0, -6.0):  # into the edge; finer than the points
        bad = pde.Prescribed(lambda t, r=rate: r * E)
        monkeypatch.setattr(integration, "MultiLevel", lambda bad=bad: bad)
        alone = pde.integrate(problem, coordinates=bad, **options)
        assert alone.result in (pde.Result.edge_mass, pde.Result.unresolved, pde.Result.cfl)
        found = pde.integrate(problem, **options)
        assert found.result == pde.Result.successful
        assert alone.message in found.message
        assert found.stats["fallback"].all()
        for a, b in zip(found.final.v.cores, fixed.final.v.cores, strict=True):
            assert np.array_equal(a, b)


def test_pauses_grow_where_motion_does_not_pay_and_end_near_the_edge():
    gate, asked = Gate(), []
    for step in range(200):
        if gate.asks((0.0, 0.0), 1e-4):
            asked.append(step)
            gate = gate.judged(guarded=True)
        else:
            gate = gate.waited()
    gaps = np.diff(asked)
    assert gaps[0] == 2
    assert (np.diff(gaps) >= 0).all()
    assert gaps.max() <= 33
    assert gate.asks((1e-3, 0.0), 1e-4)
    assert not gate._replace(wait=3).asks((1e-3, 2e-3), 1e-4)  # waves, no edge
    assert gate.gain is not None
    moving = gate.judged(guarded=False)
    assert moving.gain is None
    for _ in range(40):
        moving = moving.judged(guarded=False)
    assert moving.judged(guarded=True).pause == 1
    assert gate.judged(guarded=False).judged(guarded=True).pause == 32


@pytest.mark.parametrize("name", ["van der Pol", "Duffing", "limit cycle"])
def test_motion_that_does_not_pay_costs_no_steps(name: str, rng: Any):
    """Drawn cubic drifts: as many steps and ranks as in fixed coordinates, few questions."""
    a, diffusion = rng.uniform(0.3, 1.0), rng.uniform(0.05, 0.2)
    problem = cubic(name, a, diffusion, rng.uniform(-0.5, 0.5, 2), pde.Box.fourier(2, 48, 4.0))
    options: dict[str, Any] = {"t1": 0.4, "tol": 1e-3}
    fixed = pde.integrate(problem, coordinates="fixed", **options)
    found = pde.integrate(problem, saveat=pde.SaveAt(steps=1, t1=True), **options)
    assert found.result == fixed.result == pde.Result.successful
    assert len(found.stats["t"]) <= 1.5 * len(fixed.stats["t"]) + 2
    assert found.stats["rank"].max() <= fixed.stats["rank"].max() + 2
    still = ~found.stats["asked"]
    assert not found.stats["sigma"][still].any()
    assert np.isnan(found.stats["cost"][still]).all()
    middle = found.ys[len(found.ys) // 2]
    again = pde.integrate(problem, start=middle, **options)
    for one, two in zip(again.final.v.cores, found.final.v.cores, strict=True):
        assert np.array_equal(one, two)


def test_black_box_drifts_are_compiled_for_few_sizes():
    f = InFewSizes(lambda x: jnp.sin(x[:, ::-1]) * 1.25)
    with Compilations() as compiled:
        for m in range(1, 200):
            x = np.full((m, 3), 0.1 * m)
            np.testing.assert_allclose(f(x), 1.25 * np.sin(x), rtol=1e-5)
    assert compiled.count < 15
    sizes = []
    g = InFewSizes(lambda x: sizes.append(len(x)) or np.sum(x, 1))
    assert [len(g(np.ones((m, 2)))) for m in (3, 7, 5)] == sizes == [3, 7, 5]
    drift = pde.FokkerPlanck(
        lambda x: jnp.stack([jnp.sin(x[:, 1]), -jnp.sin(x[:, 0])], 1),
        None,
        pde.Gaussian(np.zeros(2), 0.3 * E),
        pde.Box.fourier(2, 24, 4.0),
        cross_tol=1e-4,
    )
    drift.right_side(pde.AffineMap.identity(2), 0.0)
    with Compilations() as compiled:
        for turn in (0.1, 0.2, 0.3):
            drift.right_side(pde.affine([[1.0, turn], [0.0, 1.0]]), 0.0)
    assert compiled.count < 30


def test_coefficients_of_a_wrong_kind_are_told_from_the_start():
    start, box = pde.Gaussian(np.zeros(2), 0.3 * E), pde.Box.fourier(2, 24, 5.0)

    def run(drift: Any, diffusion: Any = 0.1) -> Any:
        return pde.integrate(pde.FokkerPlanck(drift, diffusion, start, box), t1=0.1)

    for drift, message in (
        (lambda t, x: x[:, 0], "a function of one point"),
        (lambda: 0.0, "one that takes neither"),
        (lambda s, t, x: x, "one that takes neither"),
        (lambda x: np.array([x[1], -x[0]]), "a function of one point"),
        (lambda x: x[:, 0], "a function of one point"),
        (lambda x: 1.0, "a function of one point"),
    ):
        with pytest.raises(ValueError, match=f"drift: expected.*{message}"):
            run(drift)
    with pytest.raises(ValueError, match="diffusion: expected a positive semidefinite matrix"):
        run(None, lambda x: x)
    with pytest.raises(ValueError, match="diffusion: expected a number or a constant matrix"):
        pde.OrnsteinUhlenbeck(E, lambda x: x, start, box)
    for width in ((0.0, 3.0), -1.0, (float("nan"), 1.0)):
        with pytest.raises(ValueError, match="half_width: expected L > 0"):
            pde.Box.fourier(2, 32, width)
