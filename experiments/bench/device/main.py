"""Runs the benchmark `bench/device` on an accelerator that is available for minutes.

Source: none; our own measurement. It runs from a source tree, without installing anything, where
jax, flax, optax and numpy are; PyTorch and torchTT are compared with where they are, too::

    python -m experiments run bench/device --seconds 540
    python -m experiments.bench.device.readme      # turns all results into the tables of the README

Each part has a process of its own and a share of the time. Rows are appended to a file of
``results`` in this folder as they are found; what was left out has rows, too, which say why.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import Run, _provenance
from experiments.bench.device.driver import ROOT, Plan, drive
from experiments.bench.device.parts import PARTS, Part
from experiments.bench.device.readme import RESULTS, left_out, shown
from experiments.bench.device.rows import CRASHED, FAILED, read


@dataclass(frozen=True)
class Config:
    """Options of the benchmark `bench/device`."""

    seconds: float = 540.0
    """For everything, start-up included."""

    only: tuple[str, ...] = ()
    """Parts to run, by name; all if none is named."""

    folder: str = ""
    """Where the file of rows goes: by default "results" in the folder of this benchmark, or that of
    the run where sizes are tiny."""

    commit: str = ""
    """Of the sources, where they are no checkout of git."""

    tiny: bool = False
    """Use sizes that take seconds on a CPU: for trying out, the times mean nothing."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"seconds: expected more than 0, got {self.seconds}")
        known = [part.name for part in PARTS]
        for name in self.only:
            if name not in known:
                raise ValueError(f"only: expected names among {', '.join(known)}, got {name!r}")

    @classmethod
    def quick(cls) -> "Config":
        return cls(seconds=240.0, tiny=True)

    @property
    def parts(self) -> Sequence[Part]:
        """Parts to be run, with that which identifies the device first."""
        return [p for p in PARTS if not self.only or p.name in (PARTS[0].name, *self.only)]


def run(config: Config, run: Run) -> None:
    """Runs the parts of `bench/device`; writes tables of results and of what was left out.

    Raises:
        RuntimeError: In a trial something failed, which is there to be seen.
    """
    folder = Path(config.folder) if config.folder else run.folder if config.tiny else RESULTS
    plan = Plan(
        config.parts, config.seconds, folder, config.commit or _commit(), config.tiny,
        say=lambda line: run.console.print(line, markup=False, highlight=False, soft_wrap=True),
    )  # fmt: skip
    path = drive(plan)
    rows, faults = read(path)
    for part in config.parts:
        if mine := shown(rows, part):
            run.table(part.name, mine, caption=part.caption)
    if missing := left_out(rows):
        run.table("left-out", missing, key=["part", "cases"], caption="Left out, and why")
    without = sum("left out" in row for row in rows)
    run.metric("rows", len(rows) - without)
    run.metric("left out", without)
    run.metric("file", str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name)

    wrong = [f"{row['part']}, {row['case']}: {row['left out']}" for row in rows
             if row.get("left out", "").startswith((FAILED, CRASHED))]  # fmt: skip
    wrong += [f"{row['part']}, {row['case']}: differs" for row in rows if row.get("same") == "no"]
    if config.tiny and (wrong or faults):
        raise RuntimeError("; ".join([*wrong, *faults]))


def _commit() -> str:
    """Returns the short git hash of this checkout, marked if files differ; empty outside git."""
    found: dict[str, Any] | None = _provenance.commit()
    return "" if found is None else found["hash"][:12] + (" with changes" if found["dirty"] else "")
