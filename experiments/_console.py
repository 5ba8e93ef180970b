"""Plain console, without any package: the part of rich's interface that the experiments use."""

from collections.abc import Mapping, Sequence
from typing import Any


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
