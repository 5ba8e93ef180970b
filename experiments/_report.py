"""One page of all results, as Markdown and as HTML that needs no other file."""

import base64
import html
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments._registry import Experiment, discover
from experiments._results import read_csv, read_runs, short, write_atomically

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { display: block; overflow-x: auto; border-collapse: collapse; margin: 1rem 0;
        font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ccc; padding: .25rem .75rem; text-align: left; }
td.paper, th.paper { color: #666; font-style: italic; }
figure { margin: 1rem 0; } img { max-width: 100%; } small, figcaption { color: #555; }
"""


Names = Sequence[str]
Rows = Iterable[Sequence[str]]


class Markdown:
    """Writes the page as Markdown; figures are links relative to it."""

    ending = ".md"

    def __init__(self, results: Path) -> None:
        self.results = results
        self.parts: list[str] = []

    def heading(self, level: int, text: str) -> None:
        self.parts.append(f"{'#' * level} {self._escape(text)}")

    def paragraph(self, text: str) -> None:
        self.parts.append(self._escape(text))

    def table(
        self, caption: str, columns: Sequence[str], rows: Rows, published: Names = ()
    ) -> None:
        lines = [self._row(columns), "|" + " --- |" * len(columns), *map(self._row, rows)]
        self.parts += [f"**{self._escape(caption)}**", "\n".join(lines)]

    def figure(self, path: Path, caption: str) -> None:
        self.parts.append(
            f"![{self._escape(caption)}]({path.relative_to(self.results).as_posix()})"
        )

    def page(self) -> str:
        return "\n\n".join(self.parts) + "\n"

    def _row(self, cells: Sequence[str]) -> str:
        return "| " + " | ".join(map(self._escape, cells)) + " |"

    @staticmethod
    def _escape(text: str) -> str:
        for special in "\\|*_`<[":
            text = text.replace(special, f"\\{special}")
        return " ".join(text.split())


class Html:
    """Writes the page as one HTML file, figures and style inside it."""

    ending = ".html"

    def __init__(self, results: Path) -> None:
        self.parts: list[str] = []

    def heading(self, level: int, text: str) -> None:
        self.parts.append(f"<h{level}>{html.escape(text)}</h{level}>")

    def paragraph(self, text: str) -> None:
        self.parts.append(f"<p>{html.escape(text)}</p>")

    def table(
        self, caption: str, columns: Sequence[str], rows: Rows, published: Names = ()
    ) -> None:
        marks = [' class="paper"' if column in published else "" for column in columns]
        lines = [self._row("th", marks, columns), *(self._row("td", marks, row) for row in rows)]
        self.parts.append(
            f"<p><b>{html.escape(caption)}</b></p><table>\n" + "\n".join(lines) + "\n</table>"
        )

    def figure(self, path: Path, caption: str) -> None:
        data, text = base64.b64encode(path.read_bytes()).decode(), html.escape(caption)
        self.parts.append(
            f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
            f"<figcaption>{text}</figcaption></figure>"
        )

    def page(self) -> str:
        head = f'<meta charset="utf-8"><title>tensorjax results</title><style>{STYLE}</style>'
        body = "\n".join(self.parts)
        return f'<!doctype html>\n<html lang="en">\n{head}\n<body>\n{body}\n</body>\n</html>\n'

    @staticmethod
    def _row(tag: str, marks: Sequence[str], cells: Sequence[str]) -> str:
        inner = (f"<{tag}{m}>{html.escape(c)}</{tag}>" for m, c in zip(marks, cells, strict=True))
        return f"<tr>{''.join(inner)}</tr>"


def write_report(results: Path) -> tuple[list[Path], list[str]]:
    """Writes ``report.md`` and ``report.html`` from the latest run of every experiment.

    Returns:
        The pages written, none if there are no results, and the faults met on the way.
    """
    latest: list[tuple[Experiment, dict[str, Any]]] = []
    faults: list[str] = []
    for experiment in discover().values():
        runs, bad = read_runs(results, experiment.name)
        latest += [(experiment, run) for run in runs[-1:]]
        faults += bad
    pages = []
    for writer in (Markdown(results), Html(results)) if latest else ():
        fill(writer, latest, results)
        path = results / f"report{writer.ending}"
        write_atomically(path, writer.page())
        pages.append(path)
    return pages, faults


def fill(
    page: Markdown | Html, latest: Sequence[tuple[Experiment, dict[str, Any]]], results: Path
) -> None:
    """Writes a summary of the runs, then each of them in full."""
    page.heading(1, "tensorjax: results")
    page.table("Runs", ("experiment", "paper", "configuration", "seconds"), map(summary, latest))
    for experiment, run in latest:
        page.heading(2, experiment.name)
        page.paragraph(f"{experiment.summary}. Source: {experiment.paper}.")
        folder = results / experiment.name / run["run"]
        for table in run["tables"]:
            rows = read_csv(folder / table["file"])
            cells = ([short(value) for value in row.values()] for row in rows)
            caption = table["caption"] or table["file"]
            page.table(caption, list(rows[0]), cells, table["published"])
        for figure in run["figures"]:
            page.figure(folder / figure["file"], figure["caption"] or figure["file"])
        page.table("Run", ("what", "value"), facts(run))


def summary(entry: tuple[Experiment, dict[str, Any]]) -> tuple[str, str, str, str]:
    """Returns one row of the table of runs."""
    experiment, run = entry
    return (
        experiment.name,
        experiment.paper,
        "quick" if run["quick"] else "full",
        f"{run['seconds']}",
    )


def facts(run: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields what is needed to run it again: metrics, options, versions, device and commit."""
    commit = run["commit"] or {"hash": "not in git", "dirty": False}
    for name, value in run["metrics"].items():
        yield name, short(value)
    yield "options", ", ".join(f"{name} = {value}" for name, value in run["config"].items())
    yield "configuration", "quick" if run["quick"] else "full"
    yield "started", f"{run['started']}, took {run['seconds']} s"
    yield "versions", ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    yield "device", ", ".join(f"{name} {value}" for name, value in run["device"].items() if value)
    yield "commit", commit["hash"] + (", with changes" if commit["dirty"] else "")
