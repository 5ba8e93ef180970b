"""The benchmark of integrators: one equation for all, and only what reaches the error counts."""

import importlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.__main__ import main
from experiments.bench import _stepping
from experiments.bench import pde as bench
from experiments.bench._stepping import Setting, Task

(TASK,) = _stepping.SMALL


def no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the peers look as if they were not installed."""
    real = importlib.import_module

    def fake(name: str, *args: Any) -> Any:
        if name.partition(".")[0] in bench.PEERS:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", fake)


def row(library: str, variant: str, seconds: float, error: float, note: str = "") -> Any:
    return {"library": library, "variant": variant, "cpu s": seconds, "error": error, "note": note}


def test_the_equation_keeps_its_mass_and_comes_to_rest() -> None:
    mass, mean, covariance = _stepping.process(4, 8).moments(60.0)
    assert mass == pytest.approx(1.0)
    np.testing.assert_allclose(mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(covariance, 0.2 * np.eye(4), atol=1e-12)  # A + Aᵀ = −I, D = 0.1 I


def test_errors_are_those_of_the_density() -> None:
    exact = _stepping.process(2, 8)
    answer = _stepping.measured(TASK, lambda x: 1.01 * exact.exact(1.0, x), 3)
    assert answer == {"error": pytest.approx(0.01), "rank": 3}


def test_every_way_at_hand_reaches_the_error_of_the_small_task() -> None:
    problem = _stepping.problem(TASK)
    assert [way.library for way in problem.ways[:2]] == ["tensorjax", "tensorjax"]
    for way in problem.ways:
        answer = way.answer(way.call())
        assert answer["error"] < TASK.target, (way.library, way.variant)
        # A Gaussian has rank one in the coordinates of its axes, which moving ones may find.
        assert (2 if way.variant.startswith("fixed") else 1) <= answer["rank"] < 28


def test_a_run_of_ours_that_stops_is_no_result() -> None:
    task = Task(2, 1e-3, (Setting(28, 2, 1e-3),), ())
    fixed = _stepping.problem(task).ways[0]
    with pytest.raises(RuntimeError, match=r"n 28, 2 steps, tol 0\.001: time step too large"):
        fixed.answer(fixed.call())


def test_settings_are_of_the_dimensions_that_can_be_asked_for() -> None:
    assert bench.Config().dims == tuple(sorted({task.dim for task in _stepping.TASKS}))
    with pytest.raises(ValueError, match=r"dims: expected some of \[2, 3, 4\], got \(5,\)"):
        bench.Config(dims=(5,))
    with pytest.raises(ValueError, match="repeats: expected at least 1, got 0"):
        bench.Config(repeats=0)


def test_verdicts_take_every_library_at_its_fastest_that_reaches_the_error() -> None:
    rows = [
        row("tensorjax", "fixed, a", 2.0, 1e-3),
        row("tensorjax", "fixed, b", 1.0, 1e-3),
        row("tensorjax", "moving, a", 0.5, 1e-4),
        row("fpcross", "fast", 0.1, 1.0, "misses the error"),
        row("fpcross", "slow", 8.0, 2e-3),
        row("seemps", "c", 0.5, 3e-3),
    ]
    task = Task(2, 1e-2, (), ())
    ratios = {r["beside"]: r["ratio"] for r in bench.verdicts(task, rows)}
    assert ratios == {"moving coordinates": 0.5, "fpcross": 8.0, "seemps": 0.5}
    (alone,) = bench.verdicts(task, rows[:2])
    assert (alone["beside"], alone["ratio"]) == ("no peer", None)
    (missed,) = bench.verdicts(task, rows[2:])
    assert missed["beside"] == "none: ours misses the error"


def test_the_goals_are_about_the_prototype_and_programs() -> None:
    rows = [
        {"problem": "P", "cpu s": 3.0, "seconds": 9.0, "error": 1e-6, "programs": 0},
        {"problem": "P", "cpu s": 2.0, "seconds": 2.0, "error": 1e-6, "programs": 4},
    ]
    processor, wall, programs = bench.goals(rows)
    assert (processor["ratio"], processor["goal"]) == (15.0, "at least 10")
    assert (wall["ratio"], wall["goal"]) == (5.0, "at least 10")
    assert (programs["ratio"], programs["goal"]) == (4, "at most 10")


def test_seconds_of_the_processor_leave_out_what_others_do() -> None:
    idle = bench.Processor(lambda: time.sleep(0.2))
    idle()
    assert idle.median < 0.1
    idle.samples = [9.0, 1.0, 2.0, 3.0]
    assert idle.median == 2.0


@pytest.mark.slow
def test_a_quick_run_names_the_peers_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_peers(monkeypatch)
    assert main(["run", "bench/pde", "--quick", "--results", str(tmp_path)]) == 0
    (line,) = (tmp_path / "bench" / "pde" / "runs.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert {t["file"] for t in found["tables"]} == {
        "peers.csv", "fixed.csv", "moving.csv", "ratios.csv"
    }  # fmt: skip
    folder = tmp_path / "bench" / "pde" / found["run"]
    text = (folder / "peers.csv").read_text()
    assert "'fpcross' is not installed" in text
    assert "scikit_tt,,PyPI has no package of it" in text
    assert "seemps" not in (folder / "fixed.csv").read_text()
