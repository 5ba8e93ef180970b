"""README tables from results of `bench/device`: ``python -m experiments.bench.device.readme``.

The tables stand between two marks in the README of the benchmarks. Of every case the newest row of
each accelerator counts; rows of CPUs and of tiny sizes are none.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments._results import short, write_atomically
from experiments.bench.device.parts import PARTS, Part
from experiments.bench.device.rows import read

FOLDER = Path(__file__).resolve().parent
RESULTS, README = FOLDER / "results", FOLDER.parent / "README.md"
BEGIN, END = "<!-- bench/device: begin (generated) -->", "<!-- bench/device: end -->"
NONE = "No results of an accelerator are here yet."
_APART = ("part", "about", "left out")
_NAMED = 4  # cases that are named, of many that were left out for one reason
Row = dict[str, Any]


def gathered(folder: Path) -> list[Row]:
    """Reads all result files of a folder; returns the newest row of each case on accelerators."""
    rows = [row for path in sorted(folder.glob("*.jsonl")) for row in read(path)[0]]
    rows = [r for r in rows if r["about"].get("host", {}).get("platform") != "cpu"
            and not r["about"].get("tiny") and r["about"].get("device") != "unknown"]  # fmt: skip
    newest: dict[tuple[str, str, str], Row] = {}
    for row in sorted(rows, key=lambda row: row["about"]["date"]):
        key = (row["about"]["device"], row["part"], row["case"])
        before = newest.get(key)
        if before is not None and "left out" in row and "left out" not in before:
            continue  # it was measured once
        newest[key] = row
    measured = {key[:2] for key, row in newest.items() if "left out" not in row}
    # That a whole part was left out says nothing where another run had it.
    return [row for key, row in newest.items()
            if not (row["case"] in ("all", "the rest") and key[:2] in measured
                    and row["about"]["date"] < _last(rows, key))]  # fmt: skip


def _last(rows: Iterable[Row], key: tuple[str, str, str]) -> str:
    return max(r["about"]["date"] for r in rows if (r["about"]["device"], r["part"]) == key[:2])


def shown(rows: Iterable[Row], part: Part) -> list[Row]:
    """Returns the rows of a part for its table; comparisons that agree are left out."""
    return columns([r for r in rows if r["part"] == part.name and "left out" not in r
                    and r.get("same") != "yes"])  # fmt: skip


def left_out(rows: Iterable[Row]) -> list[Row]:
    """Returns what was left out and why: cases of one part and reason in one row."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "left out" in row:
            found.setdefault((row["part"], row["left out"]), []).append(row["case"])
    return [
        {"part": part, "cases": "; ".join(cases[:_NAMED])
         + (f"; and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""), "why": why}
        for (part, why), cases in found.items()
    ]  # fmt: skip


def columns(rows: Sequence[Row]) -> list[Row]:
    """Returns rows with the same columns, without those that describe the source."""
    names = list(dict.fromkeys(name for row in rows for name in row if name not in _APART))
    return [{name: row.get(name) for name in names} for row in rows]


def page(rows: Sequence[Row]) -> str:
    """Formats the tables as Markdown: a section for each device, a table for each part."""
    if not rows:
        return NONE + "\n"
    sections = []
    for device in sorted({row["about"]["device"] for row in rows}):
        mine = [row for row in rows if row["about"]["device"] == device]
        sections += [f"### {device}", _sources(mine)]
        for part in PARTS:
            found = shown(mine, part)
            if found:
                sections += [f"{part.caption} (`{part.name}`):", _table(found)]
        missing = left_out(mine)
        if missing:
            sections += ["Left out:", _table(missing)]
    return "\n\n".join(sections) + "\n"


def _sources(rows: Sequence[Row]) -> str:
    """Returns a sentence on dates, commits and versions of a device's rows."""
    found: dict[str, dict[str, None]] = {"date": {}, "commit": {}, "versions": {}}
    for about in (row["about"] for row in rows):
        versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items())
        found["date"][about["date"][:10]] = None
        found["commit"][about["commit"] or "not said"] = None
        found["versions"][versions] = None
    found["versions"].pop("", None)
    return (f"{', '.join(sorted(found['date']))}; commit {', '.join(found['commit'])}; "
            f"{'; or '.join(found['versions'])}.")  # fmt: skip


def _table(rows: Sequence[Row]) -> str:
    cells = [list(rows[0]), ["---"] * len(rows[0]), *([*map(_cell, row.values())] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def _cell(value: Any) -> str:
    text = short(value)
    if len(text) > 200:
        text = text[:200] + " …"
    return " ".join(text.replace("|", "\\|").split())


def filled(text: str, tables: str) -> str:
    """Replaces the tables between two marks in the text of a README.

    Raises:
        ValueError: A mark is missing, or there more than once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"expected the lines {BEGIN} and {END} once each")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables}\n{END}{rest.partition(END)[2]}"


def main(results: Path = RESULTS, readme: Path = README) -> int:
    """Writes the tables into the README, and reports invalid lines of the result files."""
    for path in sorted(results.glob("*.jsonl")):
        for fault in read(path)[1]:
            print(fault, file=sys.stderr)
    rows = gathered(results)
    write_atomically(readme, filled(readme.read_text("utf-8"), page(rows)))
    print(f"{readme}: {len(rows)} rows of {len({r['about']['device'] for r in rows})} accelerators")
    return 0


if __name__ == "__main__":
    sys.exit(main())
