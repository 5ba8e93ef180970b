"""The experiment `pde`: its problems, its errors and orders, and a tiny run from end to end."""

import csv
import json

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the experiments have an extra of their own")
pytest.importorskip("tyro", reason="the experiments have an extra of their own")

from experiments.__main__ import main
from experiments.pde import cases, orders, prototype, solve
from experiments.pde.cases import Case
from experiments.pde.main import Config
from tensorjax import pde


def test_henon_heiles_moves_by_its_hamiltonian() -> None:
    strength, h = 0.7, 1e-5

    def energy(x: np.ndarray) -> np.ndarray:
        q1, q2 = x[:, 0], x[:, 1]
        return (x**2).sum(1) / 2 + strength * (q1**2 * q2 - q2**3 / 3)

    x = np.random.default_rng(0).normal(size=(20, 4))
    slope = np.stack([(energy(x + h * e) - energy(x - h * e)) / (2 * h) for e in np.eye(4)], 1)
    expected = np.concatenate([slope[:, 2:], -slope[:, :2]], 1)
    np.testing.assert_allclose(cases.henon_heiles(strength).velocity(x), expected, atol=1e-8)


def test_drifts_are_what_they_are_said_to_be() -> None:
    x = np.random.default_rng(0).normal(size=(10, 4))
    expected = np.sin(np.roll(x, -1, axis=1)) - x / 5
    np.testing.assert_allclose(cases.cyclic().velocity(x), expected, atol=1e-14)
    two = cases.sines().velocity(x[:, :2])
    np.testing.assert_allclose(two, np.stack([np.sin(x[:, 1]), -np.sin(x[:, 0])], 1), atol=1e-14)
    three = cases.three_sines().velocity(x[:, :3])
    np.testing.assert_allclose(three, np.sin(x[:, [1, 2, 0]]), atol=1e-14)


def test_problems_are_those_of_the_prototype_as_far_as_its_ranks_tell() -> None:
    # Closed forms of the largest rank at the end, in fixed coordinates.
    def closed(problem: pde.Problem, t1: float, tol: float) -> int:
        assert isinstance(problem, pde.Liouville | pde.OrnsteinUhlenbeck)
        assert isinstance(problem.start, pde.Gaussian)
        return max(problem.start.moved(problem.flow(t1)).ranks(tol))

    found = [
        (closed(cases.turn(), np.pi / 4, 1e-6), 15),
        (closed(cases.turn(), np.pi / 4, 1e-8), 21),
        (closed(cases.saddle(), 1.0, 1e-8), 61),
        (closed(cases.chain(3), 1.0, 1e-6), 9),
        (closed(cases.misaligned(), 0.0, 1e-6), 15),
    ]
    # Modes that grow by less than the tolerance in a step are cut again and again.
    assert all(theirs <= ours <= 1.2 * theirs for ours, theirs in found), found


def test_groups_of_cases() -> None:
    quick, whole = (cases.plane(cases.NAMES, quick=q) for q in (True, False))
    assert [c.name for c in quick] == list(cases.NAMES)
    assert {(c.name, c.tol) for c in quick} < {(c.name, c.tol) for c in whole}
    assert [c.tol for c in whole if c.name == "P4"] == [1e-3, 1e-4, 1e-6, 1e-8]
    assert [c.problem.dim for c in cases.family((2, 6), 1e-6)] == [2, 6]
    names = {(c.name, c.tol) for c in [*whole, *cases.family((3, 6, 10), 1e-6)]}
    published = {(r["problem"], r["tol"]) for r in [*prototype.PLANE, *prototype.FAMILY]}
    assert published <= names


def test_ranks_and_errors_of_a_run_to_its_end_and_of_one_that_is_stopped() -> None:
    case = Case("P1", cases.turn(), np.pi / 4, 80, 1e-8)
    row = solve.row(solve.solved(case, "ours", pde.MultiLevel(), 60.0, 10))
    assert row["rank"] <= 3
    assert row["error"] < 1e-6
    assert row["until"] == "end"
    assert row["programs"] == 0
    assert row["mass drift"] < 1e-7
    row = solve.row(solve.solved(case, "fixed", "fixed", 60.0, 10))
    assert 7 <= row["largest"] <= 10
    assert "rank cap reached" in row["until"]
    assert row["error"] < 1e-6


def test_a_generator_that_jumps_leaves_the_error_alone() -> None:
    # P4 at a tight tolerance: Σ jumps by its own size from step to step.
    case = Case("P4", cases.sines(), 0.2, 20, 1e-8)
    ours, fixed = (solve.solved(case, "", how, 60.0, 30) for how in (pde.MultiLevel(), "fixed"))
    assert ours.error is not None
    assert fixed.error is not None
    assert ours.error < 3 * fixed.error + 2e-8
    assert ours.solution.stats["rank"][-1] <= fixed.solution.stats["rank"][-1]


def test_coordinates_that_are_told_well_leak_no_ranks() -> None:
    # With Σ extrapolated by a line, or moved by all levels, it ends at rank 4.
    (case,) = cases.family((6,), 1e-6)
    found = solve.solved(case, "ours", pde.MultiLevel(), 120.0, 20)
    assert found.error is not None
    assert found.error < 1e-6
    assert found.solution.stats["rank"][-1] <= 3


def test_errors_without_an_exact_solution() -> None:
    case = Case("cyclic", cases.cyclic(), 0.1, 8, 1e-3, reference=1e-4)
    runs = [solve.solved(case, "fixed", "fixed", 60.0, 60)]
    assert runs[0].error is None
    (found,) = solve.compared(runs, 60.0, 60)
    assert found.error is not None
    assert 1e-5 < found.error < 1e-2
    assert solve.compared(runs, 60.0, 2)[0].error is None  # the reference stops


@pytest.mark.parametrize("degree", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_orders(degree: int) -> None:
    first, second = orders.rows(orders.RUNS[degree : degree + 1], (10, 20))
    assert first["order"] is None
    assert abs(second["order"] - 4) < 0.2


def test_what_should_be_equal_is() -> None:
    found = {r["what"]: r["difference"] for r in orders.differences(80)}
    assert max(found.values()) < 1e-7  # of time steps
    assert max(d for what, d in found.items() if "marginal" in what) < 1e-12


def test_a_tiny_run_leaves_its_tables_and_its_figures(tmp_path) -> None:
    options = ["--plane", "P1", "--dims", "2", "--bent", "--four", "--order-methods", "1"]
    options += ["--textbook", "near-defective", "--paths", "100"]
    options += ["--difference-steps", "80", "--order-steps", "10", "20", "--feedback", "5"]
    assert main(["run", "pde", "--quick", "--results", str(tmp_path), *options]) == 0
    line = json.loads((tmp_path / "pde" / "runs.jsonl").read_text())
    folder = tmp_path / "pde" / line["run"]
    tables = {"plane.csv", "family.csv", "textbook.csv", "orders.csv", "differences.csv"}
    assert {table["file"] for table in line["tables"]} == tables
    with (folder / "plane.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    words = ["fixed", "convex", "flow", "ours", "ours, κ = 5"]
    assert [r["coordinates"] for r in rows] == words
    assert rows[0]["rank (prototype)"] == "21"
    assert line["metrics"]["rank_P1_1e-08_ours"] <= 3
    assert line["metrics"]["programs"] <= 10
    with (folder / "textbook.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["status"] for r in rows] == ["successful"] * 2
    assert float(rows[1]["density"]) < 1e-5
    for name in ("ranks.png", "frames.png"):
        assert (folder / name).stat().st_size > 10_000


@pytest.mark.parametrize(
    "options",
    [
        {"plane": ("P9",)},
        {"bent": ("boomerang",)},
        {"four": ("lorenz",)},
        {"dims": (1,)},
        {"order_steps": (20, 30)},
        {"seconds": 0.0},
    ],
)
def test_bad_options_are_named(options) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected"):
        Config(**options)


@pytest.mark.slow
def test_a_narrow_state_does_not_end_at_the_edge_of_its_box() -> None:
    """The noise of a density that 48 points barely resolve once set off the edge gauge."""
    (case,) = cases.four(("cyclic",), (1e-4,), 80)
    solution = solve.integrated(case, pde.MultiLevel(), 600.0, 100)
    assert solution.result == pde.Result.successful
    assert solution.stats["rank"].max() <= 14
