"""Rows of a part of `bench/device`: JSON lines written at once, within a budget of time.

Every row says where it comes from: part, case, device, date, versions, commit.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments._results import append, plain

# A case is begun if this share of the longest one before it is left.
_ENOUGH = 0.7
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "OutOfMemory", "MemoryError", "CUDA_ERROR_OUT_OF_MEMORY")
FAILED, CRASHED = "failed", "crashed"  # how reasons begin that nobody expected
Case = tuple[str, Callable[[], Mapping[str, Any]]]


class LeftOut(Exception):
    """Raised if a case cannot be measured here; the message says why."""


@dataclass
class Budget:
    """Time budget of a part, and whether it is a trial with tiny sizes.

    Attributes:
        seconds: From when the budget was made.
        tiny: Sizes of a trial on a CPU, whose times mean nothing.
        clock: In seconds.
        facts: What other parts found out before, such as the speed of the device.
    """

    seconds: float
    tiny: bool = False
    clock: Callable[[], float] = time.monotonic
    facts: Mapping[str, Any] = field(default_factory=dict)
    longest: float = 0.0

    def __post_init__(self) -> None:
        self.end = self.clock() + self.seconds

    def left(self) -> float:
        """Returns the seconds until a part's time is over."""
        return self.end - self.clock()


class Emit:
    """Writer that appends the rows of a part to a file, each in one write.

    Args:
        path: Of the file.
        part: That the rows are of.
        about: What all rows say of where they come from.
    """

    def __init__(self, path: Path, part: str, about: Mapping[str, Any]) -> None:
        self.path, self.part, self.about = path, part, dict(about)
        self.lock = threading.Lock()

    def __call__(self, case: str, **values: Any) -> None:
        """Appends the row of a case to the file; NaN and Inf become null."""
        row = {"part": self.part, "case": case, **values, "about": self.about}
        with self.lock:
            append(self.path, json.dumps(plain(row), allow_nan=False) + "\n")
        shown = ", ".join(f"{k} {_short(v)}" for k, v in values.items() if v not in (None, ""))
        print(f"{self.part}: {case}: {shown}", flush=True)

    def left_out(self, case: str, why: str) -> None:
        """Appends a row that says why a case was left out."""
        self(case, **{"left out": why})


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run_cases(cases: Iterable[Case], budget: Budget, emit: Emit, *, least: float = 0.0) -> None:
    """Runs cases one after the other, and emits a row for each: numbers, or why there are none.

    Args:
        cases: Names, and what finds the numbers.
        budget: A case is not begun if too little is left for it, by the longest one before.
        emit: Takes the rows.
        least: Seconds that any case takes, as far as is known before the first one.
    """
    for name, find in cases:
        run_case(name, find, budget, emit, least=least)


def run_case(
    name: str,
    find: Callable[[], Mapping[str, Any]],
    budget: Budget,
    emit: Emit,
    *,
    least: float = 0.0,
) -> None:
    """Runs one case within the time budget, and emits its row."""
    needed, left = max(least, _ENOUGH * budget.longest), budget.left()
    if left < needed or left <= 0:
        emit.left_out(name, f"out of time: {max(left, 0):.0f} s left, about {needed:.0f} s needed")
        return
    start = budget.clock()
    try:
        found = find()
    except Exception as error:  # of any library, for any reason: the other cases go on
        emit.left_out(name, reason(error))
    else:
        emit(name, **found)
    budget.longest = max(budget.longest, budget.clock() - start)


def reason(error: BaseException) -> str:
    """Returns the reason why a case has no numbers, from the error that ended it."""
    kind, text = type(error).__name__, " ".join(str(error).split())
    if any(sign in f"{kind} {text}" for sign in _OUT_OF_MEMORY):
        return f"out of memory: {text[:160]}"
    if isinstance(error, ModuleNotFoundError):
        return f"'{error.name}' is not installed"
    if isinstance(error, LeftOut):
        return text
    if text.startswith(FAILED):  # a benchmark's own words for the error of a call
        return text[:220]
    return f"{FAILED}: {kind}: {text[:200]}"


def read(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Reads the rows of a result file, and messages on invalid lines."""
    found: list[dict[str, Any]] = []
    faults: list[str] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            found.append({**row, "part": row["part"], "case": row["case"], "about": row["about"]})
        except (ValueError, TypeError, KeyError) as error:
            faults.append(f"{path.name}, line {number}: no row ({type(error).__name__}: {error})")
    return found, faults
