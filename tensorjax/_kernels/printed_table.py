"""Printable table of kernels for every operation, with their conditions and the reasons."""

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator

from tensorjax import _native
from tensorjax._kernels.conditions import Condition
from tensorjax._kernels.table import FIXED, REMARKS, TABLE, Candidate


@dataclasses.dataclass(frozen=True)
class KernelChoice:
    """Row of the printed report `kernel_choices`: a candidate kernel and its conditions.

    Attributes:
      operation: such as ``"tt.round(rank=)"``; the argument is named where it decides.
      stage: "call" (by the public function), "trace" (while a program is made) or "host" (inside of
        NumPy's algorithms).
      kernel: "NumPy" (and LAPACK, nothing compiled), "program", "program, rounded size" (compiled
        for the next larger of few batch sizes), "C++", "XLA".
      conditions: names of the conditions, of which all must hold; none for the last candidate.
      one_device: whether C++ is held by programs for one CPU device only.
    """

    operation: str
    stage: str
    kernel: str
    conditions: tuple[str, ...]
    one_device: bool


@dataclasses.dataclass(frozen=True, repr=False)
class KernelChoices:
    """Report of the kernels that may compute each operation, in order; prints as a table.

    Attributes:
      rows: the candidates of all stages of all operations.
      cpp: "" where C++ kernels were built and are on; else the reason why not.
    """

    rows: tuple[KernelChoice, ...]
    cpp: str

    def __repr__(self) -> str:
        lines = [f"C++ kernels: {'built' if not self.cpp else 'off, ' + self.cpp}"]
        operation = stage = ""
        for row in self.rows:
            if row.operation != operation:
                remark = f": {REMARKS[row.operation]}" if row.operation in REMARKS else ""
                lines += ["", row.operation + remark]
                operation, stage = row.operation, ""
            shown, stage = ("" if row.stage == stage else row.stage), row.stage
            start = f"  {shown:<6} {row.kernel:<21} "
            lines += textwrap.wrap(
                start + _when(row), 100, subsequent_indent=" " * len(start), break_long_words=False
            )
        return "\n".join(lines)


def _when(row: KernelChoice) -> str:
    names = list(row.conditions)
    if row.one_device:
        names.append("in programs for one CPU device")
    elif row.kernel == "C++" and row.stage == "trace":
        names.append("in programs for CPUs")
    return "if " + "; ".join(names) if names else "else"


def kernel_choices(operation: str | None = None) -> KernelChoices:
    """Returns a printable report of which kernel (C++, NumPy, XLA) computes which call, and when.

    The functions of the library ask this table. The first candidate of a stage whose conditions all
    hold serves. Programs made for `jax.export` and for other platforms never hold C++.

    Args:
      operation: name of one operation, such as "tt.round(rank=)", where the argument in brackets
        may be left out; None returns all of them.

    Returns:
      `KernelChoices`, with one row for each candidate; it prints as text.

    Raises:
      ValueError: there is no such operation.

    Example:
      >>> import tensorjax
      >>> for row in tensorjax.kernel_choices("tt.contract_modes").rows:
      ...     print(row.stage, row.kernel, row.conditions)
      call NumPy ('concrete, each on one CPU device',)
      call program ()

    Source: ours.
    """
    names = [n for n in TABLE if operation in (None, n, n.partition("(")[0])]
    if not names:
        raise ValueError(f"operation: expected one of {', '.join(TABLE)}, got {operation!r}")
    rows = (
        KernelChoice(
            name,
            stage.value,
            candidate.kernel.value,
            tuple(c.name for c in candidate.conditions),
            candidate.one_device,
        )
        for name in names
        for stage, candidates in TABLE[name].items()
        for candidate in candidates
    )
    return KernelChoices(tuple(rows), _native.status())


def markdown() -> str:
    """Formats the table of kernels as Markdown, with the reasons of the conditions."""
    lines = ["| operation | stage | kernel | serves |", "|---|---|---|---|"]
    operation = stage = ""
    for row in kernel_choices().rows:
        name = f"`{row.operation}`" if row.operation != operation else ""
        shown = row.stage if name or row.stage != stage else ""
        operation, stage = row.operation, row.stage
        lines.append(f"| {name} | {shown} | {row.kernel} | {_when(row)} |")
    lines += ["", *(f"- `{name}`: {text}." for name, text in REMARKS.items())]
    lines += ["", "Nothing is chosen for these.", "", "| operation | kernel |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in FIXED.items()]
    lines += ["", "| condition | why | compared by |", "|---|---|---|"]
    conditions = {c.name: c for c in _conditions(_candidates())}
    lines += [
        f"| {c.name} | {c.reason} | {f'`{c.source}`' if c.source else ''} |"
        for c in conditions.values()
    ]
    return "\n".join(lines)


def _candidates() -> Iterator[Candidate]:
    return (c for row in TABLE.values() for candidates in row.values() for c in candidates)


def _conditions(candidates: Iterable[Candidate]) -> Iterator[Condition]:
    for candidate in candidates:
        for condition in candidate.conditions:
            yield from condition.parts or (condition,)
