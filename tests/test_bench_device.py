"""The run for an accelerator: shares of time, parts that fail, rows, tables, what it imports."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.bench.device import driver, main, readme, rows
from experiments.bench.device.driver import Plan
from experiments.bench.device.parts import PARTS, Part

ROOT = Path(__file__).resolve().parents[1]
# What is there besides Python, where nothing can be installed, with what these need themselves.
THERE = ("jax", "jaxlib", "flax", "optax", "numpy", "torch")

# A stand-in for `experiments.bench.device.part` that loads no library.
CHILD = """
import argparse, json, os, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("name")
for option in ("--module", "--rows", "--seconds", "--commit", "--facts"):
    parser.add_argument(option)
parser.add_argument("--tiny", action="store_true")
given = parser.parse_args(sys.argv[1:])
about = {"device": "Fast One", "date": "2026-01-01T00:00:00Z", "versions": {"jax": "9"},
         "commit": given.commit, "tiny": given.tiny, "host": {"platform": "gpu"}}

def emit(case, **values):
    row = {"part": given.name, "case": case, **values, "about": about}
    with open(given.rows, "a") as file:
        file.write(json.dumps(row) + "\\n")

BODY
"""


def planned(tmp_path: Path, monkeypatch: Any, bodies: dict[str, str], **options: Any) -> Plan:
    """A plan whose parts run bits of Python in place of their modules."""
    folder = tmp_path / "children"
    folder.mkdir()
    for name, body in bodies.items():
        text = CHILD.replace("BODY", textwrap.dedent(body))
        (folder / f"{name}.py").write_text(text)
    real = subprocess.Popen

    def fake(command: list[str], **given: Any) -> Any:
        place = command.index("-m")
        name = command[place + 2]
        start = [sys.executable, "-S", str(folder / f"{name}.py")]
        return real([*start, *command[place + 2 :]], **given)

    monkeypatch.setattr(subprocess, "Popen", fake)
    parts = [Part(name, "none", 1.0, name, least=0.0) for name in bodies]
    said: list[str] = []
    return Plan(parts, options.pop("seconds", 20.0), tmp_path / "out", say=said.append, **options)


def found(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    lines, faults = rows.read(path)
    assert not faults
    return {(row["part"], row["case"]): row for row in lines}


def test_parts_that_crash_hang_or_leave_something_running_do_not_stop_the_others(
    tmp_path: Path, monkeypatch: Any
) -> None:
    bodies = {
        "machine": "emit('speed', value=7)",
        "raises": "emit('one', value=1); raise RuntimeError('the reason')",
        "dies": "emit('one', value=1); os.kill(os.getpid(), signal.SIGSEGV)",
        "exits": "sys.exit(3)",
        "hangs": """
            import subprocess
            child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
            emit('child', pid=child.pid)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
        """,
        "last": "emit('facts', given=json.loads(given.facts)['speed']['value'])",
    }
    plan = planned(tmp_path, monkeypatch, bodies, seconds=4.0, commit="abc")
    start = plan.clock()
    path = driver.drive(plan)
    assert plan.clock() - start < plan.seconds + 1.0
    rows_ = found(path)
    assert rows_["machine", "speed"]["value"] == 7
    assert rows_["raises", "one"]["value"] == 1
    assert "RuntimeError: the reason" in rows_["raises", "the rest"]["left out"]
    assert "SIGSEGV" in rows_["dies", "the rest"]["left out"]
    assert "status 3" in rows_["exits", "the rest"]["left out"]
    assert "out of time: ended after its share" in rows_["hangs", "the rest"]["left out"]
    status = Path(f"/proc/{rows_['hangs', 'child']['pid']}/stat")
    # Ended, though perhaps nobody has asked for its exit status.
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] in "ZX"
    assert rows_["last", "facts"]["given"] == 7
    for row in rows_.values():
        assert row["about"]["device"] == "Fast One"
        assert row["about"]["commit"] == "abc"
        assert row["about"]["date"]
    assert path.name.startswith("fast-one-2")
    assert path.parent == plan.folder


def test_what_a_part_leaves_goes_to_those_after_it_and_what_needs_more_is_left_out(
    monkeypatch: Any, tmp_path: Path
) -> None:
    """By a clock that only parts move."""
    time = [0.0]
    shares: dict[str, float] = {}
    takes = {"a": 10.0, "b": 0.0, "c": 10.0, "e": 1.0}

    def process(plan: Plan, part: Part, seconds: float, *_: Any) -> driver.Ended:
        shares[part.name] = seconds
        time[0] += min(takes[part.name], seconds)
        return driver.Ended(takes[part.name] > seconds, 0, "")

    monkeypatch.setattr(driver, "_process", process)
    least = {"a": 0.0, "b": 0.0, "c": 9.0, "d": 50.0, "e": 0.0}
    parts = [Part(name, "", 1.0, "", least=seconds) for name, seconds in least.items()]
    plan = Plan(parts, 25.0, tmp_path, clock=lambda: time[0], say=lambda _: None)
    path = driver.drive(plan)
    # c is given what it needs at least, though its share would be less.
    assert shares == {"a": 5.0, "b": 5.0, "c": 9.0, "e": 11.0}
    assert time[0] == 15.0
    rows_ = found(path)
    assert "out of time" in rows_["d", "all"]["left out"]
    assert "out of time" in rows_["a", "the rest"]["left out"]
    assert rows_["a", "the rest"]["about"]["device"] == "unknown"


def test_a_flag_that_xla_does_not_know_costs_a_row_and_not_the_part(
    tmp_path: Path, monkeypatch: Any
) -> None:
    body = """
        if "--xla_none" in os.environ["XLA_FLAGS"]:
            sys.exit("Unknown flag in XLA_FLAGS: --xla_none=1")
        emit('one', value=1)
    """
    plan = planned(tmp_path, monkeypatch, {"machine": body})
    plan.parts = [Part("machine", "none", 1.0, "", least=0.0, flags="--xla_none=1")]
    rows_ = found(driver.drive(plan))
    assert rows_["machine", "one"]["value"] == 1
    assert "does not know" in rows_["machine", "--xla_none=1"]["left out"]


def test_cases_fit_their_budget_and_say_why_they_have_no_numbers(tmp_path: Path) -> None:
    time = [0.0]
    budget = rows.Budget(10.0, clock=lambda: time[0])
    emit = rows.Emit(tmp_path / "rows.jsonl", "part", {"device": "x"})

    def case(seconds: float, error: Exception | None = None) -> Callable[[], dict[str, Any]]:
        def find() -> dict[str, Any]:
            time[0] += seconds
            if error is not None:
                raise error
            return {"s": np.float32(seconds), "nan": float("nan")}

        return find

    cases = [
        ("one", case(1.0)),
        ("memory", case(1.0, RuntimeError("RESOURCE_EXHAUSTED: Out of memory while …"))),
        ("missing", case(0.0, ModuleNotFoundError("No module", name="torchtt"))),
        ("long", case(5.0)),
        ("too long", case(5.0)),
    ]
    rows.run_cases(cases, budget, emit)
    lines = [json.loads(line, parse_constant=pytest.fail)
             for line in (tmp_path / "rows.jsonl").read_text().splitlines()]  # fmt: skip
    assert [line["case"] for line in lines] == [name for name, _ in cases]
    assert lines[0] == {"part": "part", "case": "one", "s": 1.0, "nan": None,
                        "about": {"device": "x"}}  # fmt: skip
    assert lines[1]["left out"].startswith("out of memory")
    assert lines[2]["left out"] == "'torchtt' is not installed"
    assert lines[4]["left out"].startswith("out of time: 3 s left")
    assert time[0] == 7.0


def sample(device: str, part: str, case: str, date: str = "2026-05-01T10:00:00Z", **values: Any):
    host = {"platform": "cpu" if device == "cpu" else "gpu"}
    about = {"device": device, "date": date, "versions": {"jax": "0.11.2"}, "commit": "abc123",
             "tiny": False, "host": host}  # fmt: skip
    return {"part": part, "case": case, **values, "about": about}


def test_tables_are_of_the_newest_row_of_every_accelerator(tmp_path: Path) -> None:
    early, late = "2026-05-01T10:00:00Z", "2026-05-02T10:00:00Z"
    lines = [
        sample("H100", "machine", "copy", late, ms=2.5),
        sample("H100", "machine", "copy", early, ms=9.75),
        sample("H100", "core", "add | r=3", early, ms=1.0, error=1e-9),
        sample("H100", "core", "torchTT", early, **{"left out": "'torchtt' is not installed"}),
        sample("H100", "core", "add | r=3", late, **{"left out": "out of time"}),
        sample("H100", "pde", "all", early, **{"left out": "out of time"}),
        sample("H100", "pde", "d = 2", late, ms=3.0),
        sample("cpu", "machine", "copy", ms=77.0),
        sample("H200", "machine", "copy", ms=1.5),
    ]
    tiny = sample("H300", "machine", "copy", ms=1.5)
    tiny["about"]["tiny"] = True
    text = "\n".join(map(json.dumps, [*lines, tiny]))
    (tmp_path / "a.jsonl").write_text(text + '\n{"part": "cut o')
    page = readme.page(readme.gathered(tmp_path))
    assert page.count("### ") == 2
    assert "| copy | 2.5 |" in page
    assert not any(text in page for text in ("9.75", "77", "out of time"))
    assert "| add \\| r=3 | 1 | 1e-09 |" in page
    assert "'torchtt' is not installed" in page
    assert "2026-05-01, 2026-05-02; commit abc123; jax 0.11.2." in page
    assert len(rows.read(tmp_path / "a.jsonl")[1]) == 1
    target = tmp_path / "README.md"
    target.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    assert readme.main(tmp_path, target) == 0
    assert target.read_text() == f"before\n{readme.BEGIN}\n\n{page}\n{readme.END}\nafter\n"
    with pytest.raises(ValueError, match="once each"):
        readme.filled("no marks", page)


def test_the_readme_has_the_tables_of_the_results_that_are_here() -> None:
    text = readme.README.read_text("utf-8")
    assert text == readme.filled(text, readme.page(readme.gathered(readme.RESULTS)))


def test_bad_options_are_named() -> None:
    with pytest.raises(ValueError, match="seconds: expected more than 0, got 0"):
        main.Config(seconds=0)
    with pytest.raises(ValueError, match="only: expected names among machine, contract"):
        main.Config(only=("speed",))
    assert [p.name for p in main.Config(only=("pde",)).parts] == ["machine", "pde"]


HIDING = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        top = name.partition(".")[0]
        if top in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def hidden() -> set[str]:
    """All distributions' packages that are here and may not be there."""
    from importlib.metadata import packages_distributions, requires

    needed, todo = set(), [*THERE]
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name not in needed:
            needed.add(name)
            try:
                todo += [r.replace("(", " ").split(";")[0].split("[")[0].split("<")[0].split(">")[0]
                         .split("=")[0].split("!")[0].split("~")[0].strip()
                         for r in requires(name) or () if "extra ==" not in r]  # fmt: skip
            except ModuleNotFoundError:
                continue
    kept = {"pip", "setuptools", "experiments", "tensorjax", "tests"}
    return {
        top
        for top, owners in packages_distributions().items()
        if top not in kept and not {o.lower().replace("_", "-") for o in owners} & needed
    }


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which Python finds the libraries named, and nothing else."""
    absent = hidden()
    assert {"tyro", "matplotlib", "pytest", "sklearn"} <= absent
    (tmp_path / "sitecustomize.py").write_text(f"HIDDEN = {sorted(absent)!r}\n{HIDING}")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
            "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}  # fmt: skip


def test_it_imports_nothing_that_may_not_be_there(bare: dict[str, str]) -> None:
    modules = ", ".join(sorted({part.module for part in PARTS}))
    code = f"import {modules}\nfrom tests import contract_cases, placement_cases\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=bare, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_it_runs_where_only_the_libraries_named_are(tmp_path: Path, bare: dict[str, str]) -> None:
    command = [sys.executable, "-m", "experiments", "run", "bench/device", "--only", "attention",
               "--tiny", "--seconds", "90", "--folder", str(tmp_path / "out"),
               "--results", str(tmp_path / "results"), "--commit", "abc"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "without 'tyro'" in done.stdout
    (path,) = (tmp_path / "out").glob("cpu-*.jsonl")
    lines = found(path)
    assert {part for part, _ in lines} == {"machine", "attention"}
    assert {row["about"]["commit"] for row in lines.values()} == {"abc"}
    (run,) = (tmp_path / "results" / "bench" / "device").glob("runs.jsonl")
    assert json.loads(run.read_text())["metrics"]["rows"] > 0
