"""Tables of `bench/core` from timings: results by competitor, targets, least work."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.bench._cases import EXACT, Case, Goal

# An error no worse than a peer's may be this much larger: a randomised range finder with some
# columns to spare is not the best approximation, but nearly.
_SLACK = 1.05
# A peer whose error misses what is asked by more than this is shown, but is no yardstick.
_MISSED = 10.0
# What is asked to reach a rank, not an error.
RANKED = ("round_rank", "round_batch")
# Ratios this near to a goal cannot be told from it by medians on a shared machine.
_NOISE = 0.95


@dataclass
class Result:
    """Result of one way of a library in a case, with the better of its thread settings.

    Attributes:
        library, variant: Who, and how.
        peer: Whether the goals may be about it.
        compiled: Whether it always runs by programs that XLA compiles.
        median: Seconds of a warm call.
        first: Seconds of the first call.
        programs: Programs XLA compiled; None if it has none to do with XLA.
        error: Relative error; None where there is none to speak of.
        rank: Largest TT-rank.
        threads: Threads of BLAS and OpenMP.
        note: Why there is no time, or why it is not a yardstick.
    """

    library: str
    variant: str
    peer: bool = False
    compiled: bool = False
    median: float = math.nan
    first: float = math.nan
    programs: int | None = None
    error: float | None = None
    rank: int | None = None
    threads: str = ""
    note: str = ""

    @property
    def counts(self) -> bool:
        """Whether a result has a time and an acceptable error, so that it can be compared."""
        return not self.note

    @property
    def label(self) -> str:
        """Library and variant of a result, as the tables name it."""
        return f"{self.library}, {self.variant}" if self.variant else self.library


def judge(case: Case, results: Iterable[Result]) -> list[Result]:
    """Marks the results whose errors are too large for a comparison."""
    limit = _MISSED * _reachable(case, results := list(results))
    return [
        dataclasses.replace(r, note=f"error above {limit:.0e}: not counted")
        if r.counts and r.error is not None and not r.error <= limit
        else r
        for r in results
    ]


def _reachable(case: Case, results: list[Result]) -> float:
    """Returns the error to be reached in a case: its tolerance, or the best error at the rank."""
    errors = [r.error for r in results if r.counts and r.error is not None]
    if case.operation not in RANKED:
        return case.tolerance
    return max([case.tolerance, *([min(errors)] if errors else [])])


def ours(case: Case, results: Iterable[Result], variant: str | None = None) -> Result | None:
    """Returns our result that a case's goals are about, or that of a variant."""
    wanted = variant or case.ours
    return fastest(r for r in results if r.library == "tensorjax" and wanted in (None, r.variant))


def fastest(results: Iterable[Result]) -> Result | None:
    """Returns the fastest of the results that count, or None."""
    return min((r for r in results if r.counts), key=lambda r: r.median, default=None)


def rows(case: Case, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Returns the table rows of a benchmark case, one for each result."""
    base = ours(case, results)
    return [
        {
            "case": case.name,
            "competitor": r.label,
            "median ms": 1e3 * r.median if math.isfinite(r.median) else None,
            "× ours": r.median / base.median if base and math.isfinite(r.median) else None,
            "first s": r.first if math.isfinite(r.first) else None,
            "programs": r.programs,
            "error": r.error,
            "max rank": r.rank,
            "threads": r.threads,
            "note": r.note,
        }
        for r in results
    ]


@dataclass(frozen=True)
class Target:
    """Goal of a benchmark case, with the number reached and whether it is met.

    Attributes:
        group, case: Where it was set.
        against: Whom or what it is about.
        asked: The goal in words.
        met: ``"yes"``, ``"within 5 %"``, ``"no"``, ``"no: error"``, or why there is no answer.
        reached: The number to compare with the goal.
        ratio: Time of the other over ours, if the goal is about time.
        wanted: The ratio that meets the goal.
        fastest: Who the other was.
        ours: Which of our ways was held against it.
        error, its_error: Of ours and of the other.
    """

    group: str
    case: str
    against: str
    asked: str
    met: str
    reached: float | None = None
    ratio: float | None = None
    wanted: float = 1.0
    fastest: str = ""
    ours: str = ""
    error: float | None = None
    its_error: float | None = None

    def row(self) -> dict[str, Any]:
        """Returns a target as a row of the table of targets."""
        return {
            "group": self.group,
            "case": self.case,
            "ours": self.ours,
            "against": self.fastest or self.against,
            "goal": self.asked,
            "reached": self.reached,
            "met": self.met,
            "error": self.error,
            "its error": self.its_error,
        }


def targets(case: Case, results: Sequence[Result]) -> list[Target]:
    """Returns the targets of a case, one for each of its goals."""
    base = ours(case, results)
    found = [_target(case, goal, ours(case, results, goal.ours), results) for goal in case.goals]
    if case.most_programs is not None:
        programs = base.programs if base else None
        met = programs is not None and programs <= case.most_programs
        asked = f"at most {case.most_programs}"
        found.append(
            Target(
                case.group, case.name, "programs compiled", asked, "yes" if met else "no", programs
            )
        )
    return found


def _target(case: Case, goal: Goal, base: Result | None, results: Sequence[Result]) -> Target:
    other = fastest(r for r in results if _meant(goal, r, base))
    said = "at least" if goal.at_most is None else "at most"
    asked = f"{said} {goal.at_most or goal.at_least:g}"
    if base is None or other is None:
        met = "no result" if base is None else "no peer"
        return Target(case.group, case.name, goal.against, asked, met)
    ratio = other.median / base.median
    return Target(
        case.group,
        case.name,
        goal.against,
        asked,
        met=_verdict(case, ratio / goal.ratio, base, other),
        reached=ratio if goal.at_most is None else 1 / ratio,
        ratio=ratio,
        wanted=goal.ratio,
        fastest=other.label,
        ours=base.variant,
        error=base.error,
        its_error=other.error,
    )


def _meant(goal: Goal, result: Result, base: Result | None) -> bool:
    if goal.against == "fastest peer":
        return result.peer
    if goal.against == "peer as accurate":
        limit = max(_SLACK * (base.error or 0.0), EXACT) if base else 0.0
        return result.peer and (result.error or 0.0) <= limit
    return result.library == goal.against and goal.variant in (None, result.variant)


def _verdict(case: Case, share: float, base: Result, other: Result) -> str:
    """Returns whether a goal is met: "yes", "within 5 %", "no", or "no: error"."""
    if base.error is not None and not base.error <= _enough(case, other):
        return "no: error"
    return "yes" if share >= 1 else "within 5 %" if share >= _NOISE else "no"


def _enough(case: Case, other: Result) -> float:
    """Returns the largest error allowed to ours: the tolerance, or that of the competitor."""
    if case.operation in RANKED and other.error is not None:
        return max(_SLACK * other.error, EXACT)
    return max(case.tolerance, other.error or 0.0)


def work(case: Case, results: Sequence[Result]) -> dict[str, Any]:
    """Returns a table row: the least operations and bytes of a case beside our time."""
    base = ours(case, results)
    seconds = base.median if base else math.nan
    return {
        "case": f"{case.group}: {case.name}",
        "GFLOP": case.flops / 1e9,
        "GB": case.bytes / 1e9,
        "ours ms": 1e3 * seconds,
        "GFLOP/s": case.flops / 1e9 / seconds,
        "GB/s": case.bytes / 1e9 / seconds,
    }


def summary(found: Sequence[Target]) -> dict[str, Any]:
    """Returns the numbers to record: targets met, and the worst share of a goal by group."""
    numbers: dict[str, Any] = {
        "targets": len(found),
        "targets met": sum(t.met == "yes" for t in found),
        "targets within 5 %": sum(t.met == "within 5 %" for t in found),
        "targets without a peer": sum(t.met == "no peer" for t in found),
    }
    for group in dict.fromkeys(t.group for t in found):
        shares = [t.ratio / t.wanted for t in found if t.group == group and t.ratio is not None]
        if shares:
            numbers[f"{group}: least share of a goal"] = min(shares)
    return numbers
