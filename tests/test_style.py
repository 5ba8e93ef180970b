"""Words that text for users does without: docstrings, messages, pages, READMEs, notebooks."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Pattern, and what to say instead.
WORDS = {
    r"home|house|bell|heart of|soul|magic(al(ly)?)?|wisdom|guests?|strangers": (
        "the plain word: a metaphor is not found by a search"
    ),
    r"blazing(ly)?|lightning.fast|powerful|seamless(ly)?|leverag(e|es|ing)|cutting.edge|"
    r"state.of.the.art|game.chang\w+|under the hood|world.class": "a measurement, or nothing",
    r"simply|obviously|of course|needless to say|as everyone knows|clearly": "nothing",
    r"(the )?fastest peer's time over ours|time over ours": "speed-up over …",
    r"never formed|is a promise": "without materialising; a bound, or an error",
    r"put right|what is there|good for nothing|in vain|spoilt": (
        "the thing itself: orthogonalised, the present ranks, corrupted"
    ),
    r"(fewer|million|thousand|many|few|more) numbers": "parameters or entries",
    r"numbers (held|stored|kept|they take|it takes|it holds|of a core|a layer)": (
        "parameters or entries"
    ),
    r"utili[sz]e[sd]?|in order to|due to the fact": "use; to; because",
}  # fmt: skip
FIRST = ("What", "Those", "Of", "Whose", "How", "Where", "Which", "When", "Who")
PATTERN = re.compile("|".join(rf"\b(?:{p})\b" for p in WORDS), re.IGNORECASE)
# Names in code, and titles of others.
CODE = re.compile(r"```.*?```|``.+?``|`[^`\n]+`|\$[^$\n]+\$|\[[^\]]*\]\(http[^)]*\)", re.DOTALL)


def found(text: str) -> list[str]:
    """Lists the words of a text that are in the table, without its code."""
    return [m[0] for m in PATTERN.finditer(CODE.sub(" ", text))]


def pages() -> Iterator[tuple[str, str]]:
    """Yields the Markdown files of the repository and the texts of its notebooks."""
    for folder in (ROOT, ROOT / "docs", ROOT / "experiments"):
        for path in folder.glob("*.md" if folder == ROOT else "**/*.md"):
            if not {"_build", "generated"} & set(path.relative_to(ROOT).parts):
                yield str(path.relative_to(ROOT)), path.read_text("utf-8")
    for path in ROOT.glob("notebooks/*.ipynb"):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        texts = ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
        yield path.name, "\n\n".join(texts)


def strings(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yields the docstrings of a module and the messages of its errors: line, text, which."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield getattr(node, "lineno", 1), text, True
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield node.lineno, part.value, False


def test_pages_use_plain_words() -> None:
    faults = [f"{name}: {words}" for name, text in pages() if (words := found(text))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("folder", ["tensorjax", "experiments"])
def test_docstrings_and_messages_use_plain_words(folder: str) -> None:
    faults = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for line, text, is_docstring in strings(path):
            words = found(text)
            first = text.split(maxsplit=1)[0] if text.strip() else ""
            if is_docstring and first in FIRST:
                words.append(f"begins with {first}")
            if words:
                faults.append(f"{path.relative_to(ROOT)}:{line}: {words}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "text", ["Obviously right.", "at home in", "1.2 million numbers", "Just the time over ours."]
)
def test_words_of_the_table_are_found(text: str) -> None:
    assert found(text)
    assert not found(f"`{text}`")
    assert not found("All numbers of complex homes: housekeeping.")
