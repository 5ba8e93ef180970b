"""Options that the benchmarks share: number of turns, and small sizes."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Repeated:
    """Options of a benchmark whose competitors are timed by turns."""

    repeats: int = 9
    """Turns of every competitor; long calls get fewer."""

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"repeats: expected at least 1, got {self.repeats}")


@dataclass(frozen=True)
class Sized(Repeated):
    """Options of a benchmark with small sizes for a trial."""

    small: bool = False
    """Use sizes that take seconds: for trying out, the times mean nothing."""

    @classmethod
    def quick(cls) -> Self:
        return cls(repeats=1, small=True)
