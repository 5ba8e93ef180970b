"""A console that needs no package: what the experiments use of rich's."""

from collections.abc import Mapping, Sequence
from typing import Any


class PlainConsole:
    """Prints text as it is."""

    def print(self, *things: Any, **_: Any) -> None:
        """Prints; options of rich's are of no use here."""
        print(*things, flush=True)


def text_table(title: str, rows: Sequence[Mapping[str, Any]], text: Any) -> str:
    """Returns the rows as columns of text; ``text`` writes a value."""
    cells = [list(rows[0]), *([text(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells)
    return "\n".join([title, *(line.rstrip() for line in lines)])
