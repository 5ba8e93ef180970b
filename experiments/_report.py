"""Report on one page of all results, as Markdown and as self-contained HTML."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments._registry import Experiment, discover
from experiments._report_html import MEASUREMENT, Html
from experiments._results import read_csv, read_runs, short, write_atomically

LEGEND = (
    "Each card has the claim of a paper, what the latest run here found, what of the paper was "
    "read (basis; “recalled” is unverified), and whether the claim holds in this run. The title "
    "leads to figures and tables; the command runs it again. Small, quick runs are marked so; a "
    "benchmark claims nothing and is a measurement."
)
Entry = tuple[Experiment, dict[str, Any]]
Names = Sequence[str]
Rows = Iterable[Sequence[str]]


class Card(NamedTuple):
    """Summary card of an experiment on the report page: claim, finding, source, verdict.

    Attributes:
        name: Of the experiment.
        title: Heading of its part of the page.
        claim: Of the paper, or what is measured.
        ours: What the run found.
        basis: What of the paper was read, and the paper.
        verdict: Whether the claim holds; "measurement" where nothing is claimed.
        command: That makes this run again.
    """

    name: str
    title: str
    claim: str
    ours: str
    basis: str
    verdict: str
    command: str


class Markdown:
    """Writer of the report page as Markdown; figures are links relative to it."""

    ending = ".md"

    def __init__(self, results: Path) -> None:
        self.results = results
        self.parts: list[str] = []

    def heading(self, level: int, text: str) -> None:
        self.parts.append(f"{'#' * level} {self._escape(text)}")

    def paragraph(self, text: str) -> None:
        self.parts.append(self._escape(text))

    def cards(self, cards: Sequence[Card]) -> None:
        self.parts.append(self._grid(Card._fields, cards))

    def table(
        self, caption: str, columns: Sequence[str], rows: Rows, published: Names = ()
    ) -> None:
        self.parts += [f"**{self._escape(caption)}**", self._grid(columns, rows)]

    def figure(self, path: Path, caption: str) -> None:
        self.parts.append(
            f"![{self._escape(caption)}]({path.relative_to(self.results).as_posix()})"
        )

    def page(self) -> str:
        return "\n\n".join(self.parts) + "\n"

    def _grid(self, columns: Sequence[str], rows: Rows) -> str:
        return "\n".join([self._row(columns), "|" + " --- |" * len(columns), *map(self._row, rows)])

    def _row(self, cells: Sequence[str]) -> str:
        return "| " + " | ".join(map(self._escape, cells)) + " |"

    @staticmethod
    def _escape(text: str) -> str:
        for special in "\\|*_`<[":
            text = text.replace(special, f"\\{special}")
        return " ".join(text.split())


def write_report(results: Path) -> tuple[list[Path], list[str]]:
    """Writes ``report.md`` and ``report.html`` from the latest run of every experiment.

    Returns:
        The pages written, none if there are no results, and the faults met on the way.
    """
    latest: list[Entry] = []
    faults: list[str] = []
    for experiment in discover().values():
        runs, bad = read_runs(results, experiment.name)
        latest += [(experiment, run) for run in runs[-1:]]
        faults += bad
    pages = []
    for writer in (Markdown(results), Html()) if latest else ():
        fill(writer, latest, results)
        path = results / f"report{writer.ending}"
        write_atomically(path, writer.page())
        pages.append(path)
    return pages, faults


def fill(page: Markdown | Html, latest: Sequence[Entry], results: Path) -> None:
    """Writes a report page: provenance of the runs, a card for each, then each run in full."""
    page.heading(1, "tensorjax: results")
    page.paragraph(". ".join(made(run for _, run in latest)) + ".")
    page.paragraph(LEGEND)
    papers_first = sorted(latest, key=lambda entry: not entry[0].claim)
    page.cards([card(*entry) for entry in papers_first])
    for experiment, run in papers_first:
        page.heading(2, heading(experiment))
        page.paragraph(
            f"{experiment.summary[:1].upper()}{experiment.summary[1:]}. Source: {experiment.paper}."
        )
        folder = results / experiment.name / run["run"]
        for figure in run["figures"]:
            page.figure(folder / figure["file"], figure["caption"] or figure["file"])
        for table in run["tables"]:
            rows = read_csv(folder / table["file"])
            cells = [[short(value) for value in row.values()] for row in rows]
            caption = table["caption"] or table["file"]
            page.table(caption, list(rows[0]), cells, table["published"])
        page.table("Run", ("what", "value"), facts(run))


def made(runs: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yields sentences on the provenance of runs: dates, devices, versions and commits."""
    found = list(runs)
    days = sorted({run["started"][:10] for run in found})
    yield f"Runs of {' to '.join(days[:1] + days[1:][-1:])}"
    for what, of in (("Device", machine), ("JAX", jax), ("Commit", short_commit)):
        yield f"{what}: {', or '.join(sorted({of(run) for run in found}))}"
    if any((run["commit"] or {}).get("dirty") for run in found):
        yield "Some runs had uncommitted changes: see the last table of each"


def heading(experiment: Experiment) -> str:
    """Returns the heading of an experiment's part of the page: its title, with its name."""
    named = experiment.title and experiment.title != experiment.name
    return f"{experiment.title} ({experiment.name})" if named else experiment.name


def card(experiment: Experiment, run: dict[str, Any]) -> Card:
    """Returns the summary card of an experiment's latest run."""
    outcome = run.get("outcome") or {"ours": "", "holds": None}
    quick = " --quick" if run["quick"] else ""
    basis = f"{experiment.basis}: {experiment.paper}" if experiment.basis else experiment.paper
    return Card(
        experiment.name,
        heading(experiment),
        experiment.claim or experiment.summary,
        outcome["ours"] or "see its tables",
        basis,
        verdict(outcome["holds"], run["quick"]) if experiment.claim else MEASUREMENT,
        f"python -m experiments run {experiment.name}{quick}",
    )


def verdict(holds: bool | None, quick: bool) -> str:
    """Returns in words whether a claim holds, with a note if the run was a quick one."""
    said = {True: "holds", False: "does not hold", None: "not judged"}[holds]
    return f"{said} (quick run)" if quick else said


def facts(run: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields what is needed to repeat a run: metrics, options, versions, device and commit."""
    for name, value in run["metrics"].items():
        yield name, short(value)
    yield "options", ", ".join(f"{name} = {value}" for name, value in run["config"].items())
    yield "configuration", "quick" if run["quick"] else "full"
    yield "started", f"{run['started']}, took {run['seconds']} s"
    yield "versions", ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    yield "device", device(run)
    yield "commit", commit(run)


def device(run: dict[str, Any]) -> str:
    """Returns the device of a run in words."""
    return ", ".join(f"{name} {value}" for name, value in run["device"].items() if value)


def machine(run: dict[str, Any]) -> str:
    """Returns the device of a run by name and number alone."""
    found = run["device"]
    if found.get("platform") == "cpu":
        return f"{found.get('cpu') or 'CPU'}, {found.get('cores')} cores"
    return f"{found.get('count')} × {found.get('kind')}"


def jax(run: dict[str, Any]) -> str:
    """Returns the version of JAX of a run."""
    return run["versions"].get("jax", "unknown")


def short_commit(run: dict[str, Any]) -> str:
    """Returns the first digits of the commit of a run."""
    return run["commit"]["hash"][:9] if run["commit"] else "not in git"


def commit(run: dict[str, Any]) -> str:
    """Returns the commit of a run, and whether the tree had changes."""
    found = run["commit"] or {"hash": "not in git", "dirty": False}
    return found["hash"] + (", with changes" if found["dirty"] else "")
