"""Results of a run: tables, figures and one line of JSON, written all or not at all.

``results/NAME/runs.jsonl`` gains one line a run: its configuration, metrics, versions,
device and commit. The CSV and PNG files that the line names lie in ``results/NAME/RUN/``.
They are written to a hidden folder, which takes its name only once the run has succeeded.
"""

import csv
import dataclasses
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from experiments import _provenance
from experiments._registry import Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

Row = Mapping[str, Any]
T = TypeVar("T")


class Run:
    """Recorder that an experiment is given for its metrics, tables, figures and outcome.

    Attributes:
        folder: Where the files of this run are written while it lasts.
        console: A console of rich's, or a plain one, for anything worth saying on the way.
        discarded: Why nothing of this run is kept; empty if it is.
    """

    def __init__(self, folder: Path, console: "Console | PlainConsole") -> None:
        self.folder = folder
        self.console = console
        self.metrics: dict[str, Any] = {}
        self.tables: list[dict[str, Any]] = []
        self.figures: list[dict[str, str]] = []
        self.outcome: dict[str, Any] | None = None
        self.discarded = ""

    def discard(self, reason: str) -> None:
        """Discards this run's results, as another process records the same run."""
        from rich.console import Console

        self.discarded, self.console = reason, Console(quiet=True)

    def metric(self, name: str, value: Any) -> None:
        """Records a metric of a run: a number, flag or word; NaN and Inf become null."""
        if name in self.metrics:
            raise ValueError(f"metric '{name}' is already recorded; give this one its own name")
        self.metrics[name] = plain(value)

    def compare(self, ours: str, holds: bool | None = None) -> None:
        """Records, once, what a run found beside the paper's claim, and whether that holds.

        Args:
            ours: What was found, in a few words with its figures.
            holds: Whether the claim holds here; None where the run cannot tell.
        """
        if self.outcome is not None:
            raise ValueError(f"the outcome is already recorded: {self.outcome['ours']!r}")
        self.outcome = {"ours": ours, "holds": plain(holds)}

    def table(
        self,
        name: str,
        rows: Sequence[Row],
        *,
        caption: str = "",
        key: Sequence[str] = (),
        paper: Sequence[Row] = (),
        source: str = "paper",
    ) -> None:
        """Writes a table of a run as ``name.csv`` and prints it, with published values beside ours.

        Args:
            name: File name without its ending.
            rows: One mapping a row, from column to value; a missing value is left blank.
            caption: What the table shows, with the units of its columns.
            key: The columns that identify a row; by default the first one.
            paper: Published rows. Each has the ``key`` columns and any of the others; its
                values appear in columns ``"column (paper)"``, next to ours.
            source: The word in those brackets, where the values are not the paper's.
        """
        merged = beside(rows, key, paper, source)
        published = [c for c in merged[0] if c.endswith(f" ({source})")] if paper else []
        write_csv(self._path(name, ".csv"), merged)
        self.tables.append({"file": f"{name}.csv", "caption": caption, "published": published})
        if isinstance(self.console, PlainConsole):
            self.console.print(text_table(caption or name, merged, short))
        else:
            self.console.print(rich_table(caption or name, merged, published))

    def figure(self, name: str, figure: "Figure", *, caption: str = "") -> None:
        """Writes a Matplotlib figure as ``name.png`` and closes it."""
        import matplotlib.pyplot as plt

        figure.savefig(self._path(name, ".png"), dpi=150, bbox_inches="tight")
        plt.close(figure)
        self.figures.append({"file": f"{name}.png", "caption": caption})

    def progress(self, steps: Iterable[T], description: str) -> Iterator[T]:
        """Yields ``steps`` under a progress bar; off a terminal, says only how long they took."""
        if not isinstance(self.console, PlainConsole) and self.console.is_terminal:
            from rich.progress import track

            yield from track(steps, description, console=self.console, transient=True)
            return
        start, count = time.perf_counter(), 0
        for step in steps:
            yield step
            count += 1
        self.console.print(f"{description}: {count} in {time.perf_counter() - start:.1f} s")

    def _path(self, name: str, ending: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
            raise ValueError(f"expected a name of letters, digits, '_' and '-', got '{name}'")
        path = self.folder / f"{name}{ending}"
        if path.exists():
            raise ValueError(f"'{path.name}' is already recorded; give this one its own name")
        return path


@contextmanager
def record(
    experiment: Experiment,
    config: Any,
    *,
    quick: bool,
    results: Path,
    console: "Console | PlainConsole",
) -> Iterator[Run]:
    """Context manager that yields a `Run` and keeps its results only if the block succeeds."""
    started, clock = datetime.now(UTC), time.perf_counter()
    identifier = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    partial = results / f".{identifier}.partial"
    partial.mkdir(parents=True)
    try:
        run = Run(partial, console)
        yield run
        if run.discarded:
            return
        line = {
            "experiment": experiment.name,
            "run": identifier,
            "quick": quick,
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - clock, 3),
            "config": plain(config),
            "metrics": run.metrics,
            "outcome": run.outcome,
            "tables": run.tables,
            "figures": run.figures,
            "versions": _provenance.versions(experiment.packages),
            "device": _provenance.device(),
            "commit": _provenance.commit(),
        }
        text = json.dumps(line, allow_nan=False) + "\n"
        home = results / experiment.name
        home.mkdir(parents=True, exist_ok=True)
        partial.rename(home / identifier)
        append(home / "runs.jsonl", text)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_runs(results: Path, name: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Reads the recorded runs of an experiment, oldest first, and messages on invalid lines."""
    path = results / name / "runs.jsonl"
    runs: list[dict[str, Any]] = []
    faults: list[str] = []
    for number, text in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
        try:
            run = json.loads(text)
        except json.JSONDecodeError as error:
            faults.append(f"{path}, line {number}: not JSON ({error}); the run is left out")
            continue
        if (path.parent / run["run"]).is_dir():
            runs.append(run)
        else:
            faults.append(f"{path}, line {number}: its files are gone; the run is left out")
    return runs, faults


def beside(
    rows: Sequence[Row], key: Sequence[str], paper: Sequence[Row], source: str
) -> list[dict[str, Any]]:
    """Joins our rows of a table with published rows: each published column beside its namesake.

    >>> beside([{"d": 2, "error": 0.1}], ["d"], [{"d": 2, "error": 0.2}], "paper")
    [{'d': 2, 'error': 0.1, 'error (paper)': 0.2}]
    """
    if not rows:
        raise ValueError("a table needs at least one row")
    columns = list(dict.fromkeys(column for row in rows for column in row))
    keys = list(key) or columns[:1]
    published = {tuple(row[k] for k in keys): row for row in paper}
    theirs = [c for c in dict.fromkeys(c for row in paper for c in row) if c not in keys]
    ours = {tuple(row[k] for k in keys) for row in rows}
    missing = [{k: row[k] for k in keys} for at, row in published.items() if at not in ours]
    merged = []
    for row in [*rows, *missing]:
        other = published.get(tuple(row[k] for k in keys), {})
        cells: dict[str, Any] = {}
        for column in dict.fromkeys([*columns, *theirs]):
            if column in columns:
                cells[column] = row.get(column)
            if column in theirs:
                cells[f"{column} ({source})"] = other.get(column)
        merged.append(cells)
    return merged


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Writes rows that share their columns as CSV, numbers in full precision."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({c: _scalar(value) for c, value in row.items()} for row in rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Reads a CSV file as rows of text, by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def rich_table(title: str, rows: Sequence[Row], published: Sequence[str]) -> Any:
    """Returns the rows as a table for the terminal, published columns dimmed."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for column in rows[0]:
        style = "dim" if column in published else None
        table.add_column(Text(column), style=style, overflow="fold")  # no number loses its end
    for row in rows:
        table.add_row(*(Text(short(value)) for value in row.values()))
    return table


def short(value: Any) -> str:
    """Formats a number with four significant digits; other values as text.

    >>> short(0.98612345), short("1e-20"), short("785"), short(None), short(True)
    ('0.9861', '1e-20', '785', '', 'True')
    """
    text = "" if value is None else str(_scalar(value))
    try:
        number = float(text)
    except ValueError:
        return text
    return text if re.fullmatch(r"[-+]?\d+", text) else f"{number:.4g}"


def plain(value: Any) -> Any:
    """Returns ``value`` as JSON can hold it: no NaN or Inf, no arrays, no classes."""
    value = _scalar(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    return str(value)


def _scalar(value: Any) -> Any:
    """Returns a zero-dimensional array or NumPy scalar as the Python number it holds."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def append(path: Path, text: str) -> None:
    """Appends text to a file in one write, so that runs ending together do not mix lines."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def write_atomically(path: Path, text: str) -> None:
    """Replaces a text file atomically: it holds the old text or the new one."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class PlainConsole:
    """Console that prints text as it is, for where rich is not installed."""

    def print(self, *things: Any, **_: Any) -> None:
        """Prints text, and ignores the options of rich's consoles."""
        print(*things, flush=True)


def text_table(title: str, rows: Sequence[Mapping[str, Any]], text: Any) -> str:
    """Formats rows as a text table with a title; ``text`` formats a value."""
    cells = [list(rows[0]), *([text(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells)
    return "\n".join([title, *(line.rstrip() for line in lines)])
