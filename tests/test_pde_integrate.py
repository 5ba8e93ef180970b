"""Runs from beginning to end: ranks and errors, mass, restarts, step sizes, statuses."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import pde, tt
from tensorjax.pde._maps.coordinate_path import Moment, missed
from tensorjax.pde._stepping import step_rounding
from tensorjax.pde._stepping.mass import corrected, mass_of, quadrature
from tensorjax.pde._stepping.sketched_sums import Train, rounded

NOTHING = tt.TT([np.full((1, 24, 1), np.nan)] * 2)
TURN = np.array([[0.0, 1.0], [-1.0, 0.0]])


def chain(d: int, n: int = 48) -> pde.OrnsteinUhlenbeck:
    """P2 of the prototype: an Ornstein–Uhlenbeck process that couples neighbours."""
    up, down = np.eye(d, k=1), np.eye(d, k=-1)
    start = pde.Gaussian(np.zeros(d), np.diag([1.0, 0.25] * d)[:d, :d])
    drift, diffusion = -0.5 * np.eye(d) + 0.8 * (up - down), 0.1 * (np.eye(d) + 0.5 * (up + down))
    return pde.OrnsteinUhlenbeck(drift, diffusion, start, pde.Box.fourier(d, n, 7.0))


def turning(n: int = 48, width: float = 6.0) -> pde.Liouville:
    start = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.3]))
    return pde.Liouville(TURN, start, pde.Box.fourier(2, n, width))


def error(problem: Any, state: pde.State) -> float:
    x = problem.sample(np.random.default_rng(0), state.t, 300)
    exact = problem.exact(state.t, x)
    found = pde.evaluate(state.v, state.map, problem.box, x)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def same(a: pde.State, b: pde.State) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def test_moving_coordinates_keep_the_ranks_low():
    problem = chain(3)
    moving = pde.integrate(problem, t1=1.0, dt=1 / 60, tol=1e-6)
    fixed = pde.integrate(problem, t1=1.0, dt=1 / 60, tol=1e-6, coordinates="fixed")
    assert moving.result == fixed.result == pde.Result.successful
    assert moving.message == ""
    assert moving.stats["rank"][-1] <= 2
    assert fixed.stats["rank"][-1] >= 7
    assert error(problem, moving.final) < 1e-6
    assert error(problem, fixed.final) < 5e-6
    stats = moving.stats
    assert {len(a) for name, a in stats.items() if name != "rejected"} == {60}
    assert stats["ranks"].shape == (60, 2)
    assert (stats["cost"] <= stats["cost_without"]).all()
    assert stats["compilations"].sum() == 0
    np.testing.assert_allclose(stats["mass"], 1, atol=1e-5)


def test_coordinates_do_not_change_the_solution_where_nothing_is_cut():
    problem = turning()
    x = problem.sample(np.random.default_rng(0), 0.4, 200)

    def values(coordinates: Any) -> np.ndarray:
        s = pde.integrate(problem, t1=0.4, dt=0.01, tol=1e-13, coordinates=coordinates).final
        return np.asarray(pde.evaluate(s.v, s.map, problem.box, x))

    fixed, moving = values("fixed"), values(pde.MultiLevel())
    swung = values(pde.Prescribed(lambda t: 0.5 * np.array([[0.0, np.cos(5 * t)], [t, 0.0]])))
    assert np.abs(moving - fixed).max() < 1e-6 * np.abs(fixed).max()
    assert np.abs(swung - fixed).max() < 1e-6 * np.abs(fixed).max()


def test_rotation_of_a_round_gaussian_needs_no_motion():
    start = pde.Gaussian(np.zeros(2), 0.5 * np.eye(2))
    problem = pde.Liouville(TURN, start, pde.Box.fourier(2, 48, 6.0))
    solution = pde.integrate(problem, t1=1.0, dt=0.025, tol=1e-8)
    assert solution.result == pde.Result.successful
    assert solution.stats["rank"].max() == 1
    np.testing.assert_allclose(solution.final.map.matrix, np.eye(2), atol=1e-3)


@pytest.mark.parametrize("method", ["rk4", "ab2", "bug", "imex"])
def test_truncation_takes_little_of_the_mass(monkeypatch: Any, method: Any):
    problem = chain(3)
    options: dict[str, Any] = {"t1": 0.5, "dt": 1 / 80, "tol": 1e-3, "coordinates": "fixed"}
    drifts, errors = [], []
    for most in (np.inf, 1.0, 0.0):  # in units of the tolerance
        monkeypatch.setattr(step_rounding, "_LOST", most)
        solution = pde.integrate(problem, method=method, **options)
        assert solution.result == pde.Result.successful
        assert solution.stats["edge_mass"].max() < 1e-5
        drifts.append(np.abs(solution.stats["mass"] - 1).max())
        errors.append(error(problem, solution.final))
    assert drifts[0] > 2e-3
    assert drifts[1] < 1.6e-3  # the start has been truncated as well
    # What is left goes over the edge of the box; "bug" also loses mass in its bases.
    assert np.ptp(solution.stats["mass"]) < (1e-5 if method == "bug" else 1e-6)
    assert max(errors) < 1.2 * errors[0]


def test_a_restart_knows_what_mass_was_lost(monkeypatch: Any):
    monkeypatch.setattr(step_rounding, "_LOST", 1.0)
    problem = chain(3)
    options: dict[str, Any] = {"dt": 1 / 80, "tol": 1e-3, "coordinates": "fixed"}
    whole = pde.integrate(problem, t1=0.5, saveat=pde.SaveAt(ts=[0.25], t1=True), **options)
    assert whole.ys[0].memory is not None
    assert 0 < abs(whole.ys[0].memory["lost"]) <= 1e-3 * (1 + 1e-12)
    assert same(pde.integrate(problem, t1=0.5, start=whole.ys[0], **options).final, whole.final)


@pytest.mark.parametrize("axis", ["fourier", "chebyshev", "finite differences"])
def test_mass_put_right_costs_little_and_no_rank(rng: Any, axis: Any):
    box = pde.Box(tuple(pde.Axis(axis, 40, -6.0, 5.0) for _ in range(4)))
    start = pde.Mixture(
        [0.5, 0.5],
        [
            pde.Gaussian(np.array([0.4, 0.0, -0.3, 0.2]), 0.15 * np.eye(4)),
            pde.Gaussian(np.array([-0.4, 0.1, 0.3, 0.0]), np.diag([0.1, 0.2, 0.3, 0.2])),
        ],
    )
    cores = rounded([Train(start.cores(box, pde.AffineMap.identity(4), 1e-12))], [1.0], 1e-12).cores
    at, norm = quadrature(box), float(np.linalg.norm(cores[0]))
    target = mass_of(cores, at.weights) * (1 + 1e-6)
    found = corrected(cores, at, target)
    assert found is not None
    assert abs(mass_of(found.cores, at.weights) / target - 1) < 1e-14
    assert [c.shape for c in found.cores] == [c.shape for c in cores]
    for c in found.cores[1:]:
        flat = c.reshape(len(c), -1)
        np.testing.assert_allclose(flat @ flat.T, np.eye(len(c)), atol=1e-13)
    change = rounded([Train(found.cores), Train(cores)], [1.0, -1.0], 1e-3).norm
    assert 0.5 * change < found.norm < 2 * change
    # Rescaling would cost 1e-6.
    assert change < 0.3e-6 * norm
    assert pde.edge_mass(tt.TT(found.cores), box) < 1e-9
    nothing = [np.zeros_like(c) for c in cores]
    assert corrected(nothing, at, 0.0) is not None


@pytest.mark.parametrize("how", ["rescale", "project"])
@pytest.mark.parametrize("method", ["rk4", "bug"])
def test_mass_is_conserved_if_asked(how: Any, method: Any):
    problem = chain(3, 48)
    options: dict[str, Any] = {"t1": 0.5, "dt": 1 / 80, "tol": 1e-3, "method": method}
    kept = pde.integrate(problem, conserve=how, coordinates="fixed", **options)
    free = pde.integrate(problem, coordinates="fixed", **options)
    assert kept.result == free.result == pde.Result.successful
    assert np.abs(kept.stats["mass"] - kept.stats["mass"][0]).max() < 1e-12
    assert np.ptp(free.stats["mass"]) > 1e-12
    assert error(problem, kept.final) < 1.2 * error(problem, free.final)
    assert (kept.stats["ranks"] <= free.stats["ranks"] + 1).all()


def test_mass_is_conserved_in_coordinates_that_stretch():
    problem = chain(3, 48)
    stretch = pde.Prescribed(lambda t: -0.4 * np.diag([1.0, -1.0, 0.5]))
    kept = pde.integrate(
        problem, t1=0.5, dt=1 / 80, tol=1e-3, coordinates=stretch, conserve="project"
    )
    assert kept.result == pde.Result.successful
    assert abs(kept.final.map.det - 1) > 0.09
    assert np.abs(kept.stats["mass"] - kept.stats["mass"][0]).max() < 1e-12


def test_conservation_is_refused_where_mass_changes():
    start, box = pde.Gaussian(np.zeros(2), 0.3 * np.eye(2)), pde.Box.fourier(2, 32, 6.0)

    def equation(**parts: Any) -> pde.Problem:
        return pde.AdvectionDiffusionReaction(None, 0.1, start, box, **parts)

    options: dict[str, Any] = {"t1": 0.2, "dt": 0.02, "tol": 1e-4, "coordinates": "fixed"}
    for how in ("rescale", "project"):
        for parts, words in (
            ({"reaction": (0.0, -1.0)}, "rate -1"),
            ({"reaction": (0.0, 0.0, -1.0)}, "a reaction"),
            ({"source": start}, "a source"),
            ({"potential": pde.Power([1.0, 0.0], exponent=2, amplitude=-1.0)}, "rate -0.3"),
            ({"matrix": 0.5 * np.eye(2)}, "rate -1"),
        ):
            with pytest.raises(ValueError, match=f"conserve: expected an equation .*{words}"):
                pde.integrate(equation(**parts), conserve=how, **options)
        balanced = equation(matrix=0.5 * np.eye(2), reaction=(0.0, 1.0))
        good = pde.integrate(balanced, conserve=how, **options)
        assert good.result == pde.Result.successful
        assert np.ptp(good.stats["mass"]) < 1e-12

    class Late(pde.Problem):
        """Decays only after some time."""

        def right_side(self, map: pde.AffineMap, t: Any) -> pde.RightSide:
            return pde.RightSide(self.box, pde.Coefficients(constant=-2.0 * (t > 0.05)))

    stopped = pde.integrate(Late(start, box), conserve="rescale", **options)
    assert stopped.result == pde.Result.mass
    assert "take conserve=None" in stopped.message
    assert 0.03 < stopped.final.t < 0.07


def test_a_solution_that_the_points_do_not_resolve_stops_the_run():
    """A saddle presses a density until it is narrower than the points are apart."""
    start, box = pde.Gaussian(np.zeros(2), np.diag([0.3, 0.5])), pde.Box.fourier(2, 40, 6.0)
    problem = pde.Liouville(np.diag([0.0, -2.0]), start, box)
    options: dict[str, Any] = {"dt": 0.01, "tol": 1e-6, "coordinates": "fixed"}
    solution = pde.integrate(problem, t1=2.0, **options)
    assert solution.result == pde.Result.unresolved
    assert "take more points" in solution.message
    seen = solution.stats["resolution"]
    assert seen[0] < 1e-3 < 1e-2 < seen[-1] <= 0.05
    assert abs(seen[-1] - pde.resolution(solution.final.v, box)) < 1e-12
    assert error(problem, solution.final) < 1e-2
    # It says more than the error that has come about so far, and later is too late.
    blind = pde.integrate(problem, t1=2.0, resolution_limit=1.0, edge_limit=1.0, **options)
    assert error(problem, blind.final) > 0.1
    wide = pde.Prescribed(lambda t: np.diag([0.0, 2.0]))
    assert pde.integrate(problem, t1=2.0, **{**options, "coordinates": wide}).message == ""
    there = pde.affine(np.diag([1.0, 0.4]))
    with pytest.raises(ValueError, match="start: expected an initial state that the points"):
        pde.integrate(problem, t1=1.0, map=there, **options)


@pytest.mark.parametrize("method", ["rk4", "ab3"])
def test_a_saved_state_goes_on_to_the_last_bit(method: Any):
    problem = chain(3, 32)
    options: dict[str, Any] = {"dt": 1 / 60, "tol": 1e-5, "method": method}
    saveat = pde.SaveAt(ts=[0.1, 0.2], t1=True)
    whole = pde.integrate(problem, t1=0.4, saveat=saveat, **options)
    assert whole.ts.tolist() == [0.1, 0.2, 0.4]
    again = pde.integrate(problem, t1=0.4, start=whole.ys[1], **options)
    assert same(again.final, whole.final)
    fresh = pde.integrate(problem, t1=0.4, start=whole.ys[1]._replace(memory=None), **options)
    assert not same(fresh.final, whole.final)
    assert abs(error(problem, fresh.final) - error(problem, whole.final)) < 1e-4
    other = whole.ys[1]._replace(v=tt.scale(whole.ys[1].v, 2.0))  # its memory is another's
    doubled = pde.integrate(problem, t1=0.4, start=other, **options)
    np.testing.assert_allclose(doubled.stats["mass"], 2, atol=5e-3)


def test_a_run_with_a_controller_restarts_from_a_checkpoint(tmp_path: Any):
    pytest.importorskip("orbax.checkpoint")
    problem = turning(32)
    options: dict[str, Any] = {
        "t1": 0.5,
        "tol": 1e-6,
        "stepsize_controller": pde.PIDController(1e-5, pcoeff=0.2, icoeff=0.5),
    }
    whole = pde.integrate(problem, **options)
    count = len(whole.stats["t"])
    rows: list[Any] = []
    checkpoint = pde.Checkpoint(tmp_path / "run", every=2)
    cut = pde.integrate(
        problem,
        checkpoint=checkpoint,
        progress=lambda row: rows.append(row) or len(rows) == count // 2,
        **options,
    )
    assert cut.result == pde.Result.stopped
    assert len(list((tmp_path / "run").iterdir())) <= 2
    state = pde.load(tmp_path / "run")
    assert same(state, cut.final)
    assert same(pde.integrate(problem, start=state, **options).final, whole.final)
    with pytest.raises(FileNotFoundError, match="step_N"):
        pde.load(tmp_path / "nothing")


def test_a_folder_with_states_of_another_run_is_refused(tmp_path: Any):
    pytest.importorskip("orbax.checkpoint")
    problem, folder = turning(24), tmp_path / "run"
    options: dict[str, Any] = {"dt": 0.05, "tol": 1e-4, "coordinates": "fixed"}
    first = pde.integrate(problem, t1=0.2, checkpoint=folder, **options)
    with pytest.raises(ValueError, match="checkpoint: expected a folder without"):
        pde.integrate(problem, t1=0.1, checkpoint=folder, **options)
    other = pde.integrate(problem, t1=0.2, **{**options, "tol": 1e-5})
    with pytest.raises(ValueError, match="states of another run"):
        pde.integrate(problem, t1=0.3, start=other.final, checkpoint=folder, **options)
    assert same(pde.load(folder), first.final)
    onward = pde.Checkpoint(folder, every=1, keep=1)
    last = pde.integrate(problem, t1=0.3, start=pde.load(folder), checkpoint=onward, **options)
    assert [p.name for p in folder.iterdir()] == ["step_6"]
    assert same(pde.load(folder), last.final)
    for state in (first.final, last.final):
        pde.save(tmp_path / "bare", state._replace(memory=None))
    assert len(list((tmp_path / "bare").iterdir())) == 2
    assert pde.load(tmp_path / "bare").t == last.final.t


def test_an_interrupted_save_loses_no_state(tmp_path: Any, monkeypatch: Any):
    pytest.importorskip("orbax.checkpoint")
    memory = {"steps": np.asarray(3)}
    first = pde.State(tt.ones((8, 8)), pde.AffineMap.identity(2), 0.5, memory)
    path, rename = pde.save(tmp_path, first), pathlib.Path.rename

    def interrupted(self: pathlib.Path, target: Any) -> Any:
        if self.name.endswith(".new"):
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(pathlib.Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pde.save(tmp_path, first._replace(t=0.7))
    assert pde.load(tmp_path).t == pde.load(path).t == 0.5
    pde.save(tmp_path, first._replace(t=0.7))
    assert pde.load(tmp_path).t == 0.7
    assert [p.name for p in tmp_path.iterdir()] == ["step_3"]


def test_an_initial_state_that_the_box_does_not_hold_is_refused():
    box = pde.Box.fourier(2, 32, 4.0)
    for center, message in ((50.0, "got 0 of its mass 1"), (3.2, "share .* of its norm")):
        start = pde.Gaussian(np.array([center, 0.0]), 0.2 * np.eye(2))
        problem = pde.Liouville(0 * TURN, start, box)
        with pytest.raises(ValueError, match=message):
            pde.integrate(problem, t1=0.1, dt=0.01)
        with pytest.raises(ValueError, match=message):
            pde.integrate(problem, t1=0.1, dt=0.01, rank=2, coordinates="fixed")
        there = pde.affine(np.eye(2), [-center, 0.0])
        moved = pde.integrate(problem, t1=0.1, dt=0.05, map=there)
        assert moved.result == pde.Result.successful
    near = [pde.Gaussian(np.array([c, 0.0]), 0.3 * np.eye(2)) for c in (-0.5, 0.5)]
    odd = pde.Liouville(0 * TURN, pde.Mixture([1.0, -1.0], near), box)  # its mass is zero
    assert pde.integrate(odd, t1=0.1, dt=0.1).result == pde.Result.successful


def test_states_are_saved_when_asked():
    options: dict[str, Any] = {"t1": 0.2, "dt": 0.02, "tol": 1e-4, "coordinates": "fixed"}
    every = pde.integrate(turning(24), saveat=pde.SaveAt(t0=True, steps=4), **options)
    np.testing.assert_allclose(every.ts, [0, 0.08, 0.16])
    assert [s.t for s in every.ys] == every.ts.tolist()
    odd = pde.integrate(turning(24), saveat=pde.SaveAt(ts=(0.0, 0.05, 0.2)), **options)
    assert odd.ts.tolist() == [0.0, 0.05, 0.2]
    assert len(odd.stats["t"]) == 11
    for ts in ((0.1, 0.05), (0.1, 0.3)):
        with pytest.raises(ValueError, match="saveat: expected"):
            pde.integrate(turning(24), saveat=pde.SaveAt(ts=ts), **options)


@pytest.mark.parametrize("method", ["rk4", "rk2", "ab2", "ab3"])
def test_the_controller_meets_its_tolerance(method: Any):
    problem = turning(40)
    found = []
    for rtol in (1e-3, 1e-5):
        solution = pde.integrate(
            problem, t1=0.5, tol=1e-8, coordinates="fixed", method=method, accuracy=rtol,
            stepsize_controller=pde.PIDController(rtol, dtmax=0.1),
        )  # fmt: skip
        assert solution.result == pde.Result.successful
        assert (solution.stats["error"][3:] <= rtol).all()
        assert error(problem, solution.final) < 200 * rtol
        found.append(len(solution.stats["t"]))
    assert found[1] > found[0]


@pytest.mark.parametrize("tol", [1e-5, 1e-9])
def test_an_unstable_step_is_reported_with_one_that_works(tol: float):
    problem = turning(64)
    options: dict[str, Any] = {"t1": 1.0, "tol": tol, "coordinates": "fixed"}
    solution = pde.integrate(problem, dt=0.2, **options)
    assert solution.result == pde.Result.cfl
    assert np.isfinite(tt.norm(solution.final.v))
    assert solution.final.t == solution.ts[-1] < 1
    advised = float(solution.message.split("admits dt of about ")[1])
    better = pde.integrate(problem, dt=advised, **options)
    assert better.result == pde.Result.successful
    assert error(problem, better.final) < 1e-2


@pytest.mark.parametrize("method", ["rk4", "bug"])
def test_an_unstable_step_is_told_from_too_few_points(method: Any):
    """On Chebyshev points what grows is seen at the edge first, with little of the fastest."""
    matrix, spread = np.array([[-0.3, 0.9], [-0.6, -0.2]]), np.array([[0.7, 0.2], [0.2, 0.3]])
    start = pde.Gaussian(np.array([0.4, -0.3]), spread)
    box = pde.Box((pde.Axis("fourier", 48, -6.0, 6.0), pde.Axis("chebyshev", 56, -5.0, 7.0)))
    diffusion = np.array([[0.1, 0.03], [0.03, 0.05]])
    problem = pde.OrnsteinUhlenbeck(matrix, diffusion, start, box, offset=np.array([0.2, 0.0]))
    options: dict[str, Any] = {"t1": 0.4, "tol": 1e-6, "method": method, "accuracy": 1e-3}
    solution = pde.integrate(problem, dt=0.01, **options)
    assert solution.result == pde.Result.cfl
    advised = float(solution.message.split("admits dt of about ")[1])
    better = pde.integrate(problem, dt=advised, **options)
    assert better.result == pde.Result.successful
    assert error(problem, better.final) < 1e-3


def test_mass_at_the_edge_stops_the_run():
    start = pde.Gaussian(np.zeros(2), 0.3 * np.eye(2))
    away = pde.Liouville(
        np.zeros((2, 2)), start, pde.Box.fourier(2, 32, 5.0), offset=np.array([4.0, 0.0])
    )
    solution = pde.integrate(away, t1=2.0, dt=0.02, tol=1e-6, coordinates="fixed")
    assert solution.result == pde.Result.edge_mass
    assert "larger box" in solution.message
    assert 0.3 < solution.final.t < 1
    assert pde.edge_mass(solution.final.v, away.box) < 1e-3
    following = pde.Prescribed(lambda t: (np.zeros((2, 2)), np.array([-4.0, 0.0])))
    moving = pde.integrate(away, t1=2.0, dt=0.02, tol=1e-6, coordinates=following)
    assert moving.result == pde.Result.successful
    assert moving.stats["rank"].max() == 1


def test_what_spreads_over_the_box_is_told_from_what_is_not_resolved():
    """What is cut off at the edge of a periodic box is rough, too."""
    start = pde.Gaussian(np.array([0.4, -0.3]), np.array([[0.7, 0.2], [0.2, 0.3]]))
    options: dict[str, Any] = {"t1": 3.0, "dt": 0.01, "tol": 1e-4, "coordinates": "fixed"}
    for n in (48, 64):
        spreading = pde.Liouville(np.eye(2), start, pde.Box.fourier(2, n, 6.0))
        assert pde.integrate(spreading, **options).result == pde.Result.edge_mass
    following = {**options, "t1": 1.0, "coordinates": "adaptive"}
    assert pde.integrate(spreading, **following).message == ""


def test_coordinates_that_collapse_stop_the_run():
    start = pde.Gaussian(np.zeros(2), 0.3 * np.eye(2))
    still = pde.Liouville(np.zeros((2, 2)), start, pde.Box.fourier(2, 32, 5.0))
    v = still.initial(pde.AffineMap.identity(2), 1e-6)
    near = pde.State(v, pde.affine(np.diag([1.0, 1.5e-10])), 0.0)
    squeeze = pde.Prescribed(lambda t: np.diag([0.05, -0.05]))
    solution = pde.integrate(still, t1=9.0, dt=0.1, tol=1e-6, start=near, coordinates=squeeze)
    assert solution.result == pde.Result.singular_map
    assert np.linalg.cond(solution.final.map.matrix) < 1e10
    assert solution.final.t > 1
    with pytest.raises(ValueError, match="matrix: expected an invertible"):
        pde.integrate(still, t1=1.0, dt=0.1, map=pde.AffineMap(np.ones((2, 2)), np.zeros(2)))


def test_a_cap_on_the_ranks_stops_the_run():
    solution = pde.integrate(
        chain(3, 32), t1=1.0, dt=1 / 60, tol=1e-6, coordinates="fixed", max_rank=5
    )
    assert solution.result == pde.Result.max_rank
    assert "raise max_rank" in solution.message
    assert solution.stats["rank"].max() <= 5
    assert 0 < solution.final.t < 1


class Broken(pde.Liouville):
    """Its right side is NaN from a time on."""

    def right_side(self, map: Any, t: Any) -> Any:
        out = super().right_side(map, t)
        if t < 0.25:
            return out
        return pde.RightSide(self.box, source=NOTHING)


def test_nan_stops_the_run_with_the_last_good_state():
    start = pde.Gaussian(np.zeros(2), 0.3 * np.eye(2))
    problem = Broken(TURN, start, pde.Box.fourier(2, 24, 5.0))
    for method in ("rk4", "ab2"):
        solution = pde.integrate(
            problem, t1=1.0, dt=0.05, tol=1e-5, coordinates="fixed", method=method
        )
        assert solution.result == pde.Result.not_finite
        assert 0.19 < solution.final.t < 0.26
        assert np.isfinite(tt.norm(solution.final.v))
    adaptive = pde.integrate(problem, t1=1.0, tol=1e-5, coordinates="fixed")
    assert adaptive.result == pde.Result.dtmin
    assert "NaN" in adaptive.message


class Fails(pde.Liouville):
    """Its right side cannot be made from a time on."""

    fault: Any = ValueError("u: expected low TT-ranks, got high ones")

    def right_side(self, map: Any, t: Any) -> Any:
        if t > 0.25:
            raise self.fault
        return super().right_side(map, t)


def test_errors_on_the_way_leave_the_last_good_state(monkeypatch: Any):
    start = pde.Gaussian(np.zeros(2), 0.3 * np.eye(2))
    problem = Fails(TURN, start, pde.Box.fourier(2, 24, 5.0))
    options: dict[str, Any] = {"t1": 1.0, "dt": 0.05, "tol": 1e-5, "coordinates": "fixed"}
    solution = pde.integrate(problem, **options)
    assert solution.result == pde.Result.failed
    assert "expected low TT-ranks" in solution.message
    assert 0.19 < solution.final.t < 0.26
    with pytest.raises(ValueError, match="low TT-ranks"):
        pde.integrate(problem, t0=0.5, **options)
    moved = pde.integrate(problem, **{**options, "coordinates": pde.MultiLevel(guard=False)})
    onward = pde.Liouville(TURN, start, problem.box)
    again = pde.integrate(onward, start=moved.final, **{**options, "coordinates": "adaptive"})
    assert moved.result == pde.Result.failed
    assert again.result == pde.Result.successful
    monkeypatch.setattr(Fails, "fault", ZeroDivisionError())
    assert pde.integrate(problem, **options).result == pde.Result.not_finite

    def gets_lost(v: Any, right: Any, map: Any, box: Any, tol: float, t: float) -> pde.Motion:
        return pde.Motion(np.full((2, 2), np.nan if t > 0.1 else 0.0), np.zeros(2))

    solution = pde.integrate(turning(24), **{**options, "coordinates": gets_lost})
    assert solution.result == pde.Result.not_finite
    assert 0.1 < solution.final.t < 0.2
    for wrong in (np.zeros((2, 2)), pde.Motion(np.zeros(2), np.zeros(2))):
        with pytest.raises(ValueError, match="coordinates: expected a "):
            pde.integrate(turning(24), **{**options, "coordinates": lambda *_, wrong=wrong: wrong})


def test_sources_are_no_instability():
    start = pde.Gaussian(np.zeros(2), 0.3 * np.eye(2), amplitude=1e-3)
    source = pde.Gaussian(np.ones(2), 0.3 * np.eye(2), amplitude=1.0)
    box = pde.Box.fourier(2, 32, 6.0)
    problem = pde.AdvectionDiffusionReaction(None, None, start, box, source=source)
    solution = pde.integrate(problem, t1=0.2, dt=0.05, coordinates="fixed", accuracy=1e-4)
    assert solution.result == pde.Result.successful
    x = np.random.default_rng(0).normal(size=(100, 2))
    found = pde.evaluate(solution.final.v, solution.final.map, box, x)
    np.testing.assert_allclose(found, start.values(x) + 0.2 * source.values(x), atol=1e-4)


class Concentrating(pde.Problem):
    """u_t = −Δu."""

    def right_side(self, map: Any, t: Any) -> Any:
        spread = map.matrix @ map.matrix.T
        return pde.RightSide(self.box, pde.Coefficients(diffusion=-spread))


def test_negative_diffusion_is_refused():
    start = pde.Gaussian(np.zeros(2), np.eye(2))
    with pytest.raises(ValueError, match="negative diffusion"):
        pde.integrate(Concentrating(start, pde.Box.fourier(2, 24)), t1=0.1, dt=0.01)
    with pytest.raises(ValueError, match="expected a symmetric matrix"):
        pde.OrnsteinUhlenbeck(-np.eye(2), [[1.0, 0.5], [0.0, 1.0]], start, pde.Box.fourier(2, 24))


class Turning(pde.Problem):
    """u_t = D(t) Δu, D negative from t = 0.05 on."""

    def right_side(self, map: Any, t: Any) -> Any:
        spread = (0.05 - t) * map.matrix @ map.matrix.T
        return pde.RightSide(self.box, pde.Coefficients(diffusion=spread))


def test_diffusion_that_turns_negative_ends_the_run_with_the_last_good_state():
    start = pde.Gaussian(np.zeros(2), 0.5 * np.eye(2))
    problem = Turning(start, pde.Box.fourier(2, 24))
    solution = pde.integrate(problem, t1=0.2, dt=0.01, tol=1e-6, coordinates="fixed")
    assert solution.result == pde.Result.failed
    assert "negative diffusion" in solution.message
    assert 0.03 < solution.final.t <= 0.05
    assert np.isfinite(tt.norm(solution.final.v))


def test_runs_end_early_by_callback_or_by_their_number_of_steps(capsys: Any):
    problem = turning(24)
    options: dict[str, Any] = {"t1": 0.2, "dt": 0.02, "tol": 1e-4, "coordinates": "fixed"}
    solution = pde.integrate(problem, progress=lambda row: row["t"] > 0.1, **options)
    assert solution.result == pde.Result.stopped
    assert len(solution.stats["t"]) == 6
    short = pde.integrate(problem, max_steps=3, **options)
    assert short.result == pde.Result.max_steps
    assert len(short.stats["t"]) == 3
    assert capsys.readouterr().err == ""
    pde.integrate(problem, progress=True, **options)
    assert "rank" in capsys.readouterr().err
    assert "out of steps" in repr(short)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dt": None, "stepsize_controller": pde.ConstantStepSize()}, "dt: expected a time step"),
        ({"dt": -0.1}, "dt: expected a positive"),
        ({"t1": -0.1}, "t1: expected a time at 0 or after it"),
        ({"tol": 0.0}, "tol: expected a positive"),
        ({"t1": None}, "t1: expected a time at 0 or after it"),
        ({"map": np.eye(2)}, "map: expected a pde.AffineMap"),
        ({"coordinates": pde.MultiLevel}, "an object, not a class"),
        ({"saveat": pde.SaveAt(steps=-3)}, "saveat: expected steps >= 0"),
        ({"stepsize_controller": pde.PIDController(1e-4, dtmax=-1.0)}, "expected 0 <= dtmin"),
        (
            {"stepsize_controller": pde.PIDController(1e-4, dtmin=0.2, dtmax=0.1)},
            "expected 0 <= dtmin",
        ),
        ({"tol": 1.0}, "tol: expected a relative error below 1"),
        ({"method": "euler"}, "method: expected one of"),
        ({"coordinates": "moving"}, "coordinates: expected"),
        ({"coordinates": 3}, "coordinates: expected"),
        ({"conserve": "energy"}, "conserve: expected"),
        ({"resolution_limit": 0.0}, "resolution_limit: expected"),
        ({"max_rank": 0}, "max_rank: expected"),
        ({"extrapolate": 3}, "extrapolate: expected"),
        ({"progress": 3}, "progress: expected"),
        ({"saveat": 0.5}, "saveat: expected"),
        ({"stepsize_controller": 1}, "stepsize_controller: expected"),
        ({"stepsize_controller": pde.PIDController(0.0)}, "stepsize_controller: expected"),
        ({"start": 1}, "start: expected a pde.State"),
        ({"rank": 2, "method": "ab2", "coordinates": "fixed"}, "method: expected one of"),
        ({"rank": 2}, 'coordinates: expected "fixed"'),
        ({"rank": 2, "coordinates": "fixed", "conserve": "rescale"}, "rank: expected no conserve"),
        ({"rank": 2, "coordinates": "fixed", "progress": True}, "rank: expected no progress"),
        ({"rank": 2, "coordinates": "fixed", "max_steps": 3}, "rank: expected no progress"),
    ],
)
def test_bad_arguments_say_what_was_expected(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        pde.integrate(turning(24), **{"t1": 0.1, "dt": 0.05, **options})


def functional(theta: Any, coordinates: Any) -> Any:
    """u at a point, as a function of drift and diffusion."""
    start = pde.Gaussian(np.array([0.2, -0.1]), np.diag([0.8, 0.4]))
    problem = pde.OrnsteinUhlenbeck(
        theta * jnp.asarray(TURN), theta * jnp.diag(jnp.array([0.2, 0.1])), start,
        pde.Box.fourier(2, 24, 6.0),
    )  # fmt: skip
    options: dict[str, Any] = {"t1": 0.5, "dt": 0.025, "rank": 8, "method": "rk2"}
    state = pde.integrate(problem, coordinates=coordinates, **options).final
    return pde.evaluate(state.v, state.map, problem.box, np.array([[0.3, 0.2]]))[0]


def test_gradients_pass_through_fixed_ranks():
    swing = pde.Prescribed(lambda t: 0.3 * TURN * np.cos(t))

    def value(theta: Any) -> Any:
        return functional(theta, swing)

    both = jax.jit(jax.value_and_grad(value))
    found, slopes = zip(*(both(jnp.asarray(t)) for t in (0.499, 0.5, 0.501)), strict=True)
    np.testing.assert_allclose(slopes[1], (found[2] - found[0]) / 0.002, rtol=1e-4)
    start = pde.Gaussian(np.array([0.2, -0.1]), np.diag([0.8, 0.4]))
    exact = pde.OrnsteinUhlenbeck(
        0.5 * TURN, 0.5 * np.diag([0.2, 0.1]), start, pde.Box.fourier(2)
    ).exact(0.5, np.array([[0.3, 0.2]]))
    assert exact is not None
    np.testing.assert_allclose(found[1], exact[0], rtol=2e-3)


DIVERGES: dict[str, Any] = {"t1": 400.0, "dt": 1.0, "method": "rk2", "coordinates": "fixed"}


def test_fixed_ranks_that_overflow_are_not_successful():
    solution = pde.integrate(turning(64), rank=1, **DIVERGES)
    assert solution.result == pde.Result.not_finite
    assert not solution.stats["finite"][-1]


def test_fixed_ranks_at_rest_take_drifts_that_are_not_traced():
    start, box = pde.Gaussian(np.zeros(2), np.diag([0.5, 0.3])), pde.Box.fourier(2, 32, 5.0)

    def values(amplitude: Any, **options: Any) -> Any:
        drift = [pde.Separable({1: np.tanh}, amplitude), None]
        problem = pde.FokkerPlanck(drift, 0.05, start, box, matrix=-0.1 * np.eye(2))
        final = pde.integrate(problem, t1=0.2, dt=0.05, coordinates="fixed", **options).final
        return pde.evaluate(final.v, final.map, box, np.array([[0.3, -0.2], [0.5, 0.4]]))

    found = jax.jit(lambda amplitude: values(amplitude, rank=8))(0.7)
    np.testing.assert_allclose(found, values(0.7, tol=1e-8), atol=1e-6)


@pytest.mark.slow
def test_overflow_at_fixed_ranks_is_seen_under_jit():
    problem = turning(64)
    good = jax.jit(lambda: pde.integrate(problem, rank=1, **DIVERGES).stats["finite"])()
    assert good[0]
    assert not good[-1]


@pytest.mark.slow
def test_fixed_ranks_are_mapped_over_parameters():
    thetas = jnp.array([0.4, 0.5])
    many = jax.jit(jax.vmap(lambda theta: functional(theta, "fixed")))(thetas)
    each = [functional(theta, "fixed") for theta in thetas]
    np.testing.assert_allclose(many, each, rtol=1e-9)


@pytest.mark.slow
def test_fixed_ranks_repeat_the_motion_of_an_earlier_run():
    problem = turning(32)
    moved = pde.integrate(problem, t1=0.5, dt=0.025, tol=1e-6)
    again = pde.integrate(problem, t1=0.5, dt=0.025, rank=3, coordinates=moved)
    assert again.result == pde.Result.successful
    assert error(problem, again.final) < 1e-4
    np.testing.assert_allclose(again.final.map.matrix, moved.final.map.matrix, atol=1e-10)
    host = pde.integrate(problem, t1=0.5, dt=0.025, tol=1e-6, coordinates=moved)
    assert error(problem, host.final) < 1e-4
    assert host.stats["rank"][-1] <= 3


@pytest.mark.parametrize("method", ["rk4", "rk2", "ab2"])
def test_reactions_and_sources_follow_their_closed_forms(method: Any):
    start = pde.Gaussian(np.zeros(2), np.array([[0.5, 0.2], [0.2, 0.4]]), amplitude=1.0)
    other = pde.Gaussian(np.ones(2), 0.4 * np.eye(2), amplitude=0.5)
    box = pde.Box.fourier(2, 40, 6.0)
    options: dict[str, Any] = {"t1": 0.5, "dt": 0.01, "tol": 1e-6, "method": method}
    options["coordinates"] = "fixed"
    x = np.random.default_rng(0).normal(size=(100, 2))
    u, g = start.values(x), other.values(x)
    decay = pde.AdvectionDiffusionReaction(None, None, start, box, reaction=(0.0, 0.0, -1.0))
    final = pde.integrate(decay, **options).final
    np.testing.assert_allclose(
        pde.evaluate(final.v, final.map, box, x), u / (1 + 0.5 * u), atol=1e-4
    )
    fed = pde.AdvectionDiffusionReaction(None, None, start, box, source=other)
    final = pde.integrate(fed, **options).final
    np.testing.assert_allclose(pde.evaluate(final.v, final.map, box, x), u + 0.5 * g, atol=2e-5)


@pytest.mark.parametrize("d", [12, 20, pytest.param(50, marks=pytest.mark.slow)])
def test_steps_of_a_controller_follow_the_motion_in_many_dimensions(d: int):
    """Drawn processes: ranks stay low, for no step is too long for the extrapolated motion."""
    rng = np.random.default_rng(9000 + d)
    a = rng.standard_normal((d, d)) / np.sqrt(d)
    a = (a - a.T) / 2 + 0.15 * (a + a.T)
    a = a - (np.linalg.eigvals(a).real.max() + 0.3) * np.eye(d)
    start = pde.Gaussian(np.zeros(d), np.diag(rng.uniform(0.3, 1.0, d)))
    box = pde.Box.fourier(d, 48, 6.0)
    problem = pde.OrnsteinUhlenbeck(a, 0.2 * np.eye(d), start, box)
    found = pde.integrate(problem, t1=0.6, tol=1e-3)
    assert found.result == pde.Result.successful, found.message
    assert found.stats["rank"].max() <= 3
    assert found.stats["rejected"] <= 2
    _, _, covariance = pde.moments(found.final.v, found.final.map, box)
    known = problem.moments(0.6)
    assert known is not None
    assert np.abs(covariance - known[2]).max() < 1e-3 * np.diag(known[2]).max()


@pytest.mark.parametrize("seed", range(2))
def test_the_first_step_in_moving_coordinates_is_short_enough_for_their_motion(seed: int):
    """How the motion changes is not known yet; ranks that its error brings would remain."""
    rng, dim = np.random.default_rng(seed), 14
    a = rng.standard_normal((dim, dim)) / np.sqrt(dim)
    a = 0.4 * a - 0.1 * a.T
    a -= (np.linalg.eigvals(a).real.max() + 0.3) * np.eye(dim)
    start = pde.Gaussian(np.zeros(dim), np.diag(rng.uniform(0.3, 1, dim)))
    problem = pde.OrnsteinUhlenbeck(a, 0.2 * np.eye(dim), start, pde.Box.fourier(dim, 40, 7.0))
    with jax.enable_x64(True):
        found = pde.integrate(problem, t1=0.05, tol=1e-6)
    assert found.result is pde.Result.successful
    assert found.stats["rank"].max() == 1


def test_the_miss_of_an_extrapolated_motion_is_that_of_the_best_polynomial(rng: Any):
    """Of drawn quadratic motions three moments miss nothing; jumps and rest tell nothing."""
    b, c, e = rng.standard_normal((3, 3, 3))
    zero, times = np.zeros(3), np.cumsum(rng.uniform(0.05, 0.1, 4))
    moments = [Moment(t, b + c * t + e * t**2, zero) for t in times]
    exact = missed(moments, 2)
    assert exact is not None
    assert exact.count == 3
    assert exact.share < 1e-10
    assert exact.span == pytest.approx(times[-1] - times[-2])
    constant = missed(moments[:2], 0)
    assert constant is not None
    size = max(np.linalg.norm(m.sigma) for m in moments[:2])
    change = np.linalg.norm(moments[1].sigma - moments[0].sigma)
    assert constant.share == pytest.approx(change / size)
    assert missed(moments[:1], 2) is None
    assert missed([*moments[:3], Moment(times[3], 10 * b, zero)], 2) is None
    assert missed([Moment(t, 0 * b, zero) for t in times], 2) is None
