"""The page that maps other libraries to this one: every line of ours on it is executed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "coming_from.md"
LIBRARIES = ("torchTT", "tntorch", "teneva", "ttpy", "t3f", "scikit_tt", "tensorly", "quimb")


def sections() -> dict[str, str]:
    """Returns the text below each heading of the second level."""
    parts = re.split(r"^## (.+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text: str) -> Iterator[list[str]]:
    """Yields the cells of all rows of the tables in a text, without their heads."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and "tensorjax" not in cells:
            yield cells


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture(scope="module")
def session() -> dict[str, Any]:
    """Names that the first block of the page defines."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    return names


def test_all_libraries_have_a_section_that_says_what_is_missing() -> None:
    assert tuple(sections()) == LIBRARIES
    for name, text in sections().items():
        assert len(list(rows(text))) >= 10, name
        assert "\nNot here: " in text, name


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_line_of_ours_runs(library: str, session: dict[str, Any]) -> None:
    for row in rows(sections()[library]):
        lines = code(row[1])
        assert lines, f"no code in the row of {row[0]}"
        for line in lines:
            expression = compile(ast.parse(line, mode="eval"), f"<{library}: {line}>", "eval")
            assert eval(expression, session) is not None, line
