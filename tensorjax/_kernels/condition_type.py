"""Type of kernel conditions: named predicates of a call, each with its reason."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Arrays = Sequence[Any]
Facts = Mapping[str, Any]
CORE_BENCH = "python -m experiments run bench/core --only "


def power(n: int) -> str:
    return f"2^{n.bit_length() - 1}"


class Condition(NamedTuple):
    """Condition of a kernel: a named predicate of a call, with its reason.

    Attributes:
      name: as the table prints it.
      holds: the predicate, of arrays and facts.
      reason: why the kernel serves only where it holds.
      source: command that times both candidates at the constants, if there are any.
      parts: conditions of which one must hold, if it is made of several.
    """

    name: str
    holds: Callable[[Arrays, Facts], bool]
    reason: str
    source: str = ""
    parts: tuple["Condition", ...] = ()


def condition(
    name: str, reason: str, source: str = ""
) -> Callable[[Callable[[Arrays, Facts], bool]], Condition]:
    """Decorator factory that turns a predicate of a call into a `Condition` for kernels."""
    return lambda holds: Condition(name, holds, reason, source)


def any_of(*conditions: Condition) -> Condition:
    """Combines kernel conditions into one that holds if any of them does, asked in this order."""

    def holds(arrays: Arrays, facts: Facts) -> bool:
        return any(c.holds(arrays, facts) for c in conditions)

    return Condition(", or ".join(c.name for c in conditions), holds, "", parts=conditions)
