"""Times cross approximation, solvers, completion and fused products beside the peers.

Source: none; our own measurement. Run it on a quiet machine with the peers installed::

    python -m experiments run bench/solvers

All run in one process, by turns, warm; see README.md in this folder for what is measured and how,
and for results.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from experiments import Run
from experiments.bench import _problems, _solving
from experiments.bench._outcomes import spread
from experiments.bench._solving import Problem
from experiments.bench._timing import Sized
from experiments.bench.core import double_precision

Group = Literal["products", "cross", "systems", "chains", "completion"]
CAPTIONS = {
    "products": "Products rounded to the rank of their factors, float64",
    "cross": "Functions on a grid, relative error 1e-6 at 10 000 random points",
    "systems": "Linear systems by finite differences, relative residual 1e-8",
    "chains": "Ground states of spin chains with open ends",
    "completion": "A photograph from some of its pixels; errors on all others",
}
# Errors up to this many times those asked for count as reached.
_SLACK = 2.0


@dataclass(frozen=True)
class Config(Sized):
    """Options of the benchmark `bench/solvers`."""

    only: tuple[Group, ...] = ("products", "cross", "systems", "chains", "completion")
    """Groups of problems to run."""

    repeats: int = 5
    """Turns of every competitor; long calls get fewer."""


def groups(small: bool) -> dict[str, Callable[[], list[Problem]]]:
    """Returns a function for each group that creates its problems."""
    if small:
        return {
            "products": lambda: _problems.products(6, 3, 8),
            "cross": lambda: _problems.cross(4, 6),
            "systems": lambda: _problems.systems((3,), 8),
            "chains": lambda: _problems.chains(8, (8,)),
            "completion": lambda: _problems.completion(16, 0.6),
        }
    return {
        "products": lambda: [*_problems.products(10, 4, 64), *_problems.products(20, 4, 64)],
        "cross": lambda: _problems.cross(10, 20),
        "systems": lambda: _problems.systems((8, 10, 12), 64),
        "chains": lambda: _problems.chains(64, (16, 32, 64)),
        "completion": lambda: _problems.completion(100, 0.3),
    }


def run(config: Config, run: Run) -> None:
    """Times the solver groups asked for; writes their tables and the ratios beside the goals."""
    ratios = []
    _solving.found("torch")  # imported before its default precision is set
    with double_precision():
        for name in config.only:
            rows = []
            for problem in run.progress(groups(config.small)[name](), name):
                found = measure(problem, config.repeats)
                rows += found
                ratios += verdict(problem, found)
            run.table(name, rows, caption=CAPTIONS[name], key=["problem", "library", "variant"])
    run.table("ratios", ratios, caption="Speed-up over the fastest peer", key=["problem"])
    if said := spread(row["ratio"] for row in ratios):
        run.compare(f"speed-up over the fastest peer installed: {said}")


def measure(problem: Problem, repeats: int) -> list[dict[str, Any]]:
    """Times all ways of a solver problem by turns; returns a row for each."""
    rows = [
        {
            "problem": problem.name,
            "library": way.library,
            "variant": way.variant,
            **{name: answer.get(name) for name in ("error", "rank", "evaluations", "energy")},
            "seconds": None if timing.failure else timing.median,
            "first call": None if timing.failure else timing.first,
            "note": timing.failure,
        }
        for way, answer, timing in _solving.by_turns(problem.ways, repeats, problem.name, threads=1)
    ]
    return [{k: v for k, v in row.items() if any(r[k] is not None for r in rows)} for row in rows]


def verdict(problem: Problem, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compares the fastest peer of like accuracy with our fastest way, as a row."""
    able = [row for row in rows if row.get("seconds") is not None]
    ours = min((r for r in able if r["library"] == "tensorjax"), key=lambda r: r["seconds"])
    reach = _SLACK * max(ours.get("error") or 0.0, 1e-6)
    near = [r for r in able if r["library"] != "tensorjax" and (r.get("error") or 0.0) <= reach]
    if not near:
        return [{"problem": problem.name, "peer": "none as near", "ratio": None,
                 "goal": problem.goal, "evaluations": None}]  # fmt: skip
    peer = min(near, key=lambda r: r["seconds"])
    fewest = [r["evaluations"] for r in near if r.get("evaluations")]
    return [
        {
            "problem": problem.name,
            "peer": f"{peer['library']} {peer['variant']}",
            "ratio": peer["seconds"] / ours["seconds"],
            "goal": problem.goal,
            "evaluations": min(fewest) / ours["evaluations"] if fewest else None,
        }
    ]
