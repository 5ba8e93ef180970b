"""Runs at fixed ranks: what is compiled serves all of one structure; instability is a status."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import pde
from tensorjax.pde._stepping.compiled_once import separated
from tests.oracles import compilations

TURN = np.array([[0.0, 1.0], [-1.0, 0.0]])
BOX = pde.Box.fourier(2, 32, 6.0)
FAILURES = {pde.Result.cfl, pde.Result.not_finite}


def start(rng: Any) -> pde.Gaussian:
    return pde.Gaussian(rng.normal(0, 0.2, 2), np.diag(rng.uniform(0.6, 1.0, 2)))


def drawn(rng: Any, box: pde.Box = BOX) -> tuple[pde.OrnsteinUhlenbeck, float, float]:
    """A process, stable or not, an end, and a step that is too large about every other time."""
    speed = 10 ** rng.uniform(-0.5, 1.0)
    turn, pull = rng.uniform(-3, 3) * TURN, rng.uniform(-0.2, 0.6) * np.eye(2)
    matrix = turn - pull + rng.normal(0, 0.3, (2, 2))
    diffusion = speed * 10 ** rng.uniform(-2.5, 0.0) * np.eye(2)
    end = rng.uniform(0.3, 1.0) / speed
    dt = end / int(10 ** rng.choice([rng.uniform(0.3, 0.8), rng.uniform(1.3, 2.0)]))
    return pde.OrnsteinUhlenbeck(speed * matrix, diffusion, start(rng), box), end, dt


def error(problem: Any, state: pde.State) -> float:
    x = problem.sample(np.random.default_rng(0), state.t, 200)
    exact = problem.exact(state.t, x)
    found = pde.evaluate(state.v, state.map, problem.box, x)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def told_from_good_ones(rng: Any, count: int, **options: Any) -> dict[Any, int]:
    """Runs drawn problems; how often each result came. All but the first compile nothing.

    But for the norm of the initial train, which is a program once its shapes are a habit.
    """
    results: dict[Any, int] = {}
    later = 0
    for k in range(count):
        problem, end, dt = drawn(rng)
        with compilations() as programs:
            solution = pde.integrate(problem, t1=end, dt=dt, **options)
        later += len(programs) * (k > 0)
        assert error(problem, solution.final) < 0.3  # the last good state, if not the end
        results[solution.result] = results.get(solution.result, 0) + 1
        growth = np.max(solution.stats["norm"]) / solution.stats["norm"][0]
        assert growth < 100 or solution.result in FAILURES
        assert (solution.result == pde.Result.successful) == (solution.final.t == end)
        if solution.result == pde.Result.cfl:
            assert "admits dt of about" in solution.message
            assert solution.stats["stable_dt"] < dt
    assert later <= 1
    return results


def test_instability_is_told_from_what_grows_by_right(rng: Any):
    results = told_from_good_ones(rng, 24, rank=6, method="rk2", coordinates="fixed")
    assert min(results[pde.Result.successful], results[pde.Result.cfl]) >= 3


def advised(problem: Any, end: float, dt: float, **options: Any) -> int:
    """Whether the step is unstable; if so, the one advised is not, over the whole time."""
    solution = pde.integrate(problem, t1=end, dt=dt, rank=6, **options)
    if solution.result not in FAILURES:
        return 0
    step = float(solution.stats["stable_dt"])
    assert 0 < step < dt
    again = pde.integrate(problem, t1=end, dt=step, rank=6, **options)
    assert again.result not in FAILURES
    return 1


def test_the_step_advised_is_stable(rng: Any):
    """In runs too short, or too unstable, for their own steps to show what is fastest."""
    found = 0
    for _ in range(8):
        problem, end, _ = drawn(rng)
        dt = end / int(rng.integers(2, 6))
        found += advised(problem, end, dt, method="rk4", coordinates="fixed")
    assert found >= 4


@pytest.mark.slow
@pytest.mark.parametrize("box", [BOX, pde.Box.chebyshev(2, 24, 6.0)], ids=["fourier", "chebyshev"])
def test_the_step_advised_is_stable_for_all_families(rng: Any, box: Any):
    """Either method with every family, in either kind of coordinates and of box."""
    found, methods = {"rk2": 0, "rk4": 0}, itertools.cycle(["rk2", "rk4", "rk4", "rk2"])
    swing = pde.Prescribed(lambda t: 0.5 * TURN * np.cos(t))
    for coordinates in ("fixed", swing):
        a, b, c = rng.uniform(0.5, 1.5, 3)
        turning = TURN + rng.normal(0, 0.3, (2, 2))
        drift = [pde.Sin([a, b], c, a), [pde.Power([0.0, a], b, 2, c)]]
        for problem in (
            pde.OrnsteinUhlenbeck(4 * turning, a * np.eye(2), start(rng), box),
            pde.Liouville(8 * turning, start(rng), box, offset=rng.normal(size=2)),
            pde.FokkerPlanck(drift, b, start(rng), box, matrix=turning),
        ):
            method, dt = next(methods), 0.5 / int(rng.integers(2, 6))
            options = {"method": method, "coordinates": coordinates}
            found[method] += advised(problem, 0.5, dt, **options)
    assert min(found.values()) >= 1
    assert sum(found.values()) >= 3


@pytest.mark.slow
def test_instability_is_told_in_coordinates_that_move(rng: Any):
    swing = pde.Prescribed(lambda t: 0.5 * TURN * np.cos(t))
    results = told_from_good_ones(rng, 24, rank=6, method="rk4", coordinates=swing)
    assert min(results[pde.Result.successful], results[pde.Result.cfl]) >= 3


def test_what_contracts_or_is_fed_grows_by_right(rng: Any):
    """Norms grow a hundredfold and more, and nothing is wrong with that."""
    start = pde.Gaussian(np.zeros(2), np.diag([1.0, 1.2]))
    options: dict[str, Any] = {"rank": 4, "method": "rk2", "coordinates": "fixed"}
    shrinking = pde.Liouville(-np.eye(2), start, pde.Box.fourier(2, 40, 6.0))
    solution = pde.integrate(shrinking, t1=0.6, dt=0.01, **options)
    assert solution.result == pde.Result.successful
    assert error(shrinking, solution.final) < 1e-2
    fed = pde.AdvectionDiffusionReaction(
        None, 0.01, start, pde.Box.fourier(2, 40, 6.0), reaction=(0.0, 12.0), matrix=0.1 * TURN
    )
    solution = pde.integrate(fed, t1=0.6, dt=0.01, **options)
    assert solution.stats["norm"][-1] > 1000 * solution.stats["norm"][0]
    assert solution.result == pde.Result.successful


def test_statuses_are_there_under_jit_and_vmap():
    begin = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.7]))

    def run(speed: Any) -> pde.Solution:
        matrix = speed * jnp.asarray(TURN - 0.5 * np.eye(2))
        problem = pde.OrnsteinUhlenbeck(matrix, None, begin, BOX)
        solution = pde.integrate(
            problem, t1=0.4, dt=0.05, rank=6, method="rk2", coordinates="fixed"
        )
        assert solution.result == pde.Result.unknown
        assert "stats['status']" in solution.message
        return solution

    both = jax.jit(jax.vmap(run))(jnp.array([0.5, 20.0]))
    assert both.result in FAILURES
    assert "1 of 2 runs" in both.message
    np.testing.assert_array_equal(both.stats["status"] > 0, [False, True])
    assert np.isfinite(both.final.v.cores[0][0]).all()
    assert np.isnan(both.final.v.cores[0][1]).all()


@pytest.mark.slow
def test_growth_at_fixed_ranks_is_seen_in_one_run_and_under_jit():
    turn, spread = (
        np.array([[-0.5, 1.0], [-1.0, -0.5]]),
        pde.Gaussian(np.zeros(2), np.diag([1, 0.25])),
    )
    problem = pde.OrnsteinUhlenbeck(10 * turn, 0.1 * np.eye(2), spread, pde.Box.fourier(2, 32, 6.0))
    options: dict[str, Any] = {"t1": 0.4, "dt": 0.05, "rank": 8, "coordinates": "fixed"}
    solution = pde.integrate(problem, **options)
    assert solution.result in FAILURES
    assert solution.final.t == 0.0
    assert "admits dt of about" in solution.message
    assert jax.jit(lambda: pde.integrate(problem, **options))().result == solution.result
    # With the step advised it gets as far as 32 points can show what contracts.
    dt = float(solution.stats["stable_dt"])
    assert pde.integrate(problem, **{**options, "dt": dt}).result == pde.Result.unresolved


def test_what_reaches_the_edge_at_fixed_ranks_is_a_status(rng: Any):
    away = pde.Liouville(np.zeros((2, 2)), start(rng), BOX, offset=np.array([4.0, 0.0]))
    options: dict[str, Any] = {"rank": 6, "method": "rk2", "coordinates": "fixed", "dt": 0.02}
    solution = pde.integrate(away, t1=1.0, **options)
    assert solution.result == pde.Result.edge_mass
    assert "larger box" in solution.message
    assert 0 < solution.final.t < 1
    assert pde.edge_mass(solution.final.v, BOX) < 1e-3
    assert pde.integrate(away, t1=1.0, edge_limit=2.0, **options).result != pde.Result.edge_mass


def right_sides(rng: Any) -> list[pde.Problem]:
    """One problem of every family, with other coefficients at every call."""
    a, b, c = rng.uniform(0.5, 1.5, 3)
    begin = start(rng)
    drift = [pde.Sin([a, b], c, a), [pde.Power([0.0, a], b, 3, c), pde.Sin([b, 0.0])]]
    product = [pde.Product([pde.Sin([a, 0.0]), pde.Power([b, c])], a), None]
    return [
        pde.OrnsteinUhlenbeck(rng.normal(size=(2, 2)), a * np.eye(2), begin, BOX),
        pde.Liouville(rng.normal(size=(2, 2)), begin, BOX, offset=rng.normal(size=2)),
        pde.FokkerPlanck(drift, a, begin, BOX, matrix=rng.normal(size=(2, 2))),
        pde.FokkerPlanck(product, None, begin, BOX),
        pde.AdvectionDiffusionReaction(
            drift, b, begin, BOX, reaction=(0.0, a), potential=pde.Sin([a, b], c, b)
        ),
        pde.AdvectionDiffusionReaction(None, [(pde.Power([a, b], c, 2, a), np.eye(2))], begin, BOX),
    ]


def test_problems_that_differ_in_coefficients_are_one_program(rng: Any):
    """In coordinates that move, where the right side is traced, and at rest."""

    def traced(problem: pde.Problem) -> Any:
        def f(matrix: Any, shift: Any, t: Any) -> Any:
            return problem.right_side(pde.AffineMap(matrix, shift), t).operators

        return separated(f, np.eye(2), np.zeros(2), 0.0)

    def at_rest(problem: pde.Problem) -> Any:
        rest = pde.AffineMap.identity(2)
        return separated(lambda t: problem.right_side(rest, t).operators, 0.0)

    for way in (traced, at_rest):
        first, second = ([way(p) for p in right_sides(rng)] for _ in range(2))
        assert [p for p, _ in first] == [p for p, _ in second]
        # At rest a process and a flow without noise have operators of the same shapes.
        assert len({p for p, _ in first}) >= len(first) - (way is at_rest)
        for (_, old), (_, new) in zip(first, second, strict=True):
            assert any(not np.array_equal(x, y) for x, y in zip(old, new, strict=True))
    matrix = np.array([[1.0, 0.3], [0.2, 0.9]])
    problem = right_sides(rng)[2]
    program, constants = traced(problem)
    expected = problem.right_side(pde.AffineMap(matrix, np.ones(2)), 0.0).operators
    found = program(constants, matrix, np.ones(2), 0.0)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9 * np.abs(y).max())


def test_programs_differ_by_what_their_text_does_not_tell(rng: Any):
    def inner(table: np.ndarray) -> Any:
        return separated(lambda x: jax.jit(lambda y: y + table.astype(float))(x), np.ones(5))

    def indexed(order: np.ndarray) -> Any:
        return separated(lambda x: x[order], np.ones(5))

    for make in (inner, indexed):
        one, other = np.arange(5), np.array([4, 3, 2, 1, 0])
        (first, c), (again, _), (second, d) = make(one), make(one), make(other)
        assert first == again
        assert first != second
        x = rng.normal(size=5)
        assert not np.array_equal(first(c, x), second(d, x))


def test_steps_beyond_one_part_of_the_loop_compile_nothing_more(rng: Any):
    problem, _, _ = drawn(rng)
    calm = pde.OrnsteinUhlenbeck(0.3 * TURN, 0.01 * np.eye(2), problem.start, BOX)
    options: dict[str, Any] = {"rank": 6, "method": "rk2", "coordinates": "fixed"}
    pde.integrate(calm, t1=0.1, dt=0.05, **options)
    with compilations() as programs:
        long = pde.integrate(calm, t1=0.6, dt=0.001, **options)
    assert not programs
    assert long.result == pde.Result.successful
    assert len(long.stats["norm"]) == 600
    assert np.isfinite(long.stats["norm"]).all()
    assert error(calm, long.final) < 1e-3
