"""Times one call of each part of the toolkit and keeps the times, commit by commit.

Source: none; our own measurement, of this library alone: `bench/core` and its siblings stand beside
other libraries. Run on a quiet machine, before and after a change that may cost time::

    python -m experiments run bench/history --record

A line is added to ``history.jsonl`` in this folder, and the figure shows all lines of the same kind
of processor. Times are divided by a yardstick, a product and an eigenvalue decomposition by NumPy
in the same process.
"""

import datetime
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from experiments import Run, _provenance
from experiments.bench import _timing
from experiments.bench._history_rows import rows, yardstick
from experiments.bench._timing import Repeated
from experiments.bench.core import double_precision

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = Path(__file__).with_name("history.jsonl")


@dataclass(frozen=True)
class Config(Repeated):
    """Options of the benchmark `bench/history`."""

    record: bool = False
    """Add the times to the history. Refused where files differ from the commit."""

    file: Path = FILE
    """The history: a JSON object on each line."""

    @classmethod
    def quick(cls) -> "Config":
        return cls(repeats=1)


def run(config: Config, run: Run) -> None:
    """Times all rows; writes a table beside the last record, and a figure of all records."""
    commit = _provenance.commit() or {"hash": "", "dirty": True}
    if config.record and commit["dirty"]:
        raise ValueError("record: files differ from the commit that the line would name")
    measured, unit = measure(config.repeats, run)
    device = _provenance.device()["cpu"]
    line = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit["hash"][:9],
        "cpu": device,
        "yardstick_s": unit,
        "rows": measured,
    }
    before = [old for old in read(config.file) if old["cpu"] == device]
    run.table("history", table(line, before[-1] if before else None), caption="Times of the rows")
    if config.record:
        with config.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    run.figure("history", plot([*before, line]), caption="Time over the yardstick, by commit")


def measure(repeats: int, run: Run) -> tuple[dict[str, dict[str, float]], float]:
    """Times every row, and the yardstick before and after; returns both, in seconds."""
    measured: dict[str, dict[str, float]] = {}
    with double_precision():
        units = [_timed(yardstick(), repeats).median]
        for name, build in run.progress(rows().items(), "rows"):
            timing = _timed(build(), repeats)
            measured[name] = {
                "first_s": timing.first,
                "warm_s": timing.median,
                "programs": timing.programs,
            }
        units.append(_timed(yardstick(), repeats).median)
    return measured, min(units)


def _timed(call: Any, repeats: int) -> _timing.Timing:
    lane = _timing.Lane("tensorjax", "", lambda: jax.block_until_ready(call()))
    timing, _ = _timing.first_call(lane)
    if timing.failure:
        raise RuntimeError(timing.failure)
    _timing.interleave([timing], repeats)
    return timing


def read(file: Path) -> list[dict[str, Any]]:
    """Returns the records of a history, oldest first; none where there is no file."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]


def table(line: dict[str, Any], before: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Returns a table of a record's times; with ratios of yardsticked times to an older record."""
    out = []
    for name, row in line["rows"].items():
        old = before["rows"].get(name) if before else None
        ratio = math.nan
        if before and old:
            ratio = (row["warm_s"] / line["yardstick_s"]) / (old["warm_s"] / before["yardstick_s"])
        out.append(
            {
                "row": name,
                "first call [s]": row["first_s"],
                "warm [s]": row["warm_s"],
                "programs": row["programs"],
                "warm over yardstick": row["warm_s"] / line["yardstick_s"],
                "over the record before": ratio,
            }
        )
    return out


def plot(lines: list[dict[str, Any]]) -> "Figure":
    """Draws every row's time over the yardstick, relative to its first record, by commit."""
    from matplotlib.figure import Figure

    names = list(lines[-1]["rows"])
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    at = np.arange(len(lines))
    for k, name in enumerate(names):
        times = np.array(
            [
                old["rows"].get(name, {}).get("warm_s", math.nan) / old["yardstick_s"]
                for old in lines
            ]
        )
        known = times[np.isfinite(times)]
        axes.semilogy(
            at, times / known[0], "o-" if k < 10 else "s--", color=f"C{k % 10}", label=name
        )
    axes.set_xticks(at, [f"{old['date']}\n{old['commit']}" for old in lines], fontsize=7)
    axes.set_ylabel("time over yardstick, relative to the first record")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
