"""Times the integration of a Fokker–Planck equation beside fpcross, at equal errors.

Source: none; our own measurement. Run it on a quiet machine with the peers installed::

    python -m experiments run bench/pde

All run in one process, by turns, warm, on one thread each; see README.md in this folder for what is
measured and how, and for results. Compared are seconds of the processor: on a machine shared with
other work those of the clock favour short calls, which are over before another process is let in.
"""

import importlib.metadata
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from experiments import Run
from experiments.bench import _stepping
from experiments.bench._outcomes import spread
from experiments.bench._solving import Way, by_turns, found
from experiments.bench._stepping import Task
from experiments.bench._timing import Sized
from experiments.bench.core import double_precision
from experiments.pde import cases, solve
from tensorjax import pde

Group = Literal["fixed", "moving"]
PEERS = ("fpcross", "seemps")
# What no package registry has, and who stands in for it.
MISSING = {
    "scikit_tt": "PyPI has no package of it: pip cannot install it by name; seemps stands in for it"
}
# Seconds that the prototype in NumPy took for P2 in ten dimensions, recalled, on another machine;
# how many times as fast ours is to be, and how many programs it may compile.
PROTOTYPE, FASTER, PROGRAMS = 45.0, 10.0, 10
_ITS_ERROR = 1.3e-6
_COSTS = ("cpu s", "seconds", "first call", "programs")


@dataclass(frozen=True)
class Config(Sized):
    """Options of the benchmark `bench/pde`."""

    only: tuple[Group, ...] = ("fixed", "moving")
    """Groups of problems to run."""

    dims: tuple[int, ...] = (2, 3, 4)
    """Dimensions of the problem in fixed coordinates."""

    repeats: int = 5
    """Turns of every competitor; long calls get fewer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = {task.dim for task in _stepping.TASKS}
        if not set(self.dims) <= known:
            raise ValueError(f"dims: expected some of {sorted(known)}, got {self.dims}")


def run(config: Config, run: Run) -> None:
    """Times the integrations asked for; writes their tables and the ratios beside the goals."""
    run.table("peers", peers(), caption="Who is compared, and who cannot be")
    ratios: list[dict[str, Any]] = []
    with double_precision():
        if "fixed" in config.only:
            tasks = [task for task in _stepping.TASKS if task.dim in config.dims]
            rows = []
            for task in run.progress(_stepping.SMALL if config.small else tasks, "fixed"):
                timed = measure(task, config.repeats)
                rows += timed
                ratios += verdicts(task, timed)
            run.table("fixed", rows, caption=FIXED, key=["problem", "library", "variant"])
        if "moving" in config.only:
            rows = moving(2 if config.small else 10, config.repeats)
            published = [] if config.small else [_prototype(rows)]
            run.table(
                "moving",
                rows,
                caption=MOVING,
                key=["problem", "coordinates"],
                paper=published,
                source="prototype",
            )
            ratios += [] if config.small else goals(rows)
    if ratios:
        run.table("ratios", ratios, caption=RATIOS, key=["problem"])
        if said := spread(row["ratio"] for row in ratios if row["beside"] != "moving coordinates"):
            run.compare(f"speed-up over the peers installed, in processor time: {said}")


def peers() -> list[dict[str, str]]:
    """Returns a row for each peer library: its version, or why it is missing."""
    rows = []
    for name in PEERS:
        here = found(name) is not None
        rows.append(
            {
                "peer": name,
                "version": importlib.metadata.version(name) if here else "",
                "missing because": "" if here else f"'{name}' is not installed",
            }
        )
    return rows + [
        {"peer": name, "version": "", "missing because": why} for name, why in MISSING.items()
    ]


class Processor:
    """Call that records the processor seconds it takes each time."""

    def __init__(self, call: Callable[[], Any]):
        self.call = call
        self.samples: list[float] = []

    def __call__(self) -> Any:
        start = time.process_time()
        try:
            return self.call()
        finally:
            self.samples.append(time.process_time() - start)

    @property
    def median(self) -> float:
        """Median processor seconds of the warm calls; of the only call, if there was one."""
        return statistics.median(self.samples[1:] or self.samples)


def timed(ways: Sequence[Way], repeats: int, name: str) -> list[dict[str, Any]]:
    """Times all ways by turns with one thread; returns errors, seconds and programs."""
    processors = [Processor(way.call) for way in ways]
    clocked = [
        replace(way, call=processor) for way, processor in zip(ways, processors, strict=True)
    ]
    results = by_turns(clocked, repeats, name, threads=1)
    return [
        {
            **answer,
            "cpu s": None if timing.failure else processor.median,
            "seconds": None if timing.failure else timing.median,
            "first call": None if timing.failure else timing.first,
            "programs": timing.programs if way.library == "tensorjax" else None,
            "note": timing.failure,
        }
        for (way, answer, timing), processor in zip(results, processors, strict=True)
    ]


def measure(task: Task, repeats: int) -> list[dict[str, Any]]:
    """Times all ways of a task; returns a row for each."""
    problem = _stepping.problem(task)
    rows = timed(problem.ways, repeats, problem.name)
    return [
        {
            "problem": problem.name,
            "library": way.library,
            "variant": way.variant,
            "error": row.get("error"),
            "rank": row.get("rank"),
            **{name: row[name] for name in _COSTS},
            "note": row["note"] or ("" if row["error"] <= task.target else "misses the error"),
        }
        for way, row in zip(problem.ways, rows, strict=True)
    ]


def verdicts(task: Task, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns how each library's fastest sufficient setting compares with ours.

    Ours is in fixed coordinates.
    """
    able = [row for row in rows if not row["note"]]
    best: dict[str, dict[str, Any]] = {}
    for row in sorted(able, key=lambda row: row["cpu s"]):
        moves = row["library"] == "tensorjax" and row["variant"].startswith("moving")
        best.setdefault("moving coordinates" if moves else row["library"], row)
    ours = best.pop("tensorjax", None)
    name = f"d = {task.dim}, error {task.target:g}"
    if ours is None:
        return [{"problem": name, "beside": "none: ours misses the error", "ratio": None}]
    return [
        {
            "problem": name,
            "beside": other,
            "ratio": row["cpu s"] / ours["cpu s"],
            "goal": None,
            "our cpu s": ours["cpu s"],
            "its cpu s": row["cpu s"],
            "our error": ours["error"],
            "its error": row["error"],
        }
        for other, row in best.items()
    ] or [{"problem": name, "beside": "no peer", "ratio": None}]


def moving(dim: int, repeats: int) -> list[dict[str, Any]]:
    """Times the process P2 in moving coordinates; returns a row for each generator."""
    (case,) = cases.family((dim,), 1e-6)

    def answer(solution: pde.Solution) -> dict[str, Any]:
        if solution.result != pde.Result.successful:
            raise RuntimeError(f"{case.name}: {solution.result}: {solution.message}")
        return {
            "error": solve.exact_error(case, solution.final),
            "rank": int(solution.stats["rank"][-1]),
        }

    def way(name: str, generator: Any) -> Way:
        return Way("tensorjax", name, lambda: solve.integrated(case, generator, np.inf, 80), answer)

    ways = [way("ours", pde.MultiLevel()), way("convex", pde.Convex())]
    return [
        {"problem": case.name, "coordinates": way.variant,
         **{name: row[name] for name in ("rank", "error", *_COSTS)}}
        for way, row in zip(ways, timed(ways, repeats, case.name), strict=True)
    ]  # fmt: skip


def _prototype(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {**{name: rows[0][name] for name in ("problem", "coordinates")},
            "rank": 6, "error": _ITS_ERROR, "seconds": PROTOTYPE}  # fmt: skip


def goals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns goal rows: the speed-up over the prototype, and the largest number of programs."""
    ours = rows[0]
    out = [
        {
            "problem": f"{ours['problem']}, moving",
            "beside": f"NumPy prototype, recalled; ours by {clock}",
            "ratio": PROTOTYPE / ours[column],
            "goal": f"at least {FASTER:g}",
            "our error": ours["error"],
            "its error": _ITS_ERROR,
        }
        for clock, column in (("the processor", "cpu s"), ("the wall", "seconds"))
    ]
    programs = {
        "problem": f"{ours['problem']}, moving",
        "beside": "programs compiled by XLA",
        "ratio": max(row["programs"] for row in rows),
        "goal": f"at most {PROGRAMS}",
    }
    return [*out, programs]


FIXED = (
    "Ornstein–Uhlenbeck process with diffusion 0.1 I until t = 1, one thread each. Error: relative "
    "l2 at 2000 points drawn from the exact density. Cpu s: of the processor. Programs: compiled"
)
MOVING = "P2 in moving coordinates, 80 steps, tol 1e-6, one thread. The prototype's are recalled"
RATIOS = (
    "Processor time of the others, each at its fastest setting that reaches the error, over ours "
    "in fixed coordinates"
)
