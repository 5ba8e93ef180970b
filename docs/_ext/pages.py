"""Copies pages that live elsewhere in the repository: READMEs of experiments, notebooks, changelog.

They are written to `docs/generated`, with links that fit there, before Sphinx reads its sources.
"""

import base64
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "docs" / "generated"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def sources() -> dict[Path, Path]:
    """Files of the repository that become pages, and those pages."""
    found = {p: OUT / "experiments" / f"{p.parent.name}.md" for p in readmes()}
    found |= {p: OUT / "notebooks" / f"{p.stem}.md" for p in (ROOT / "notebooks").glob("*.ipynb")}
    return found | {ROOT / "CHANGELOG.md": OUT / "changelog.md"}


def readmes() -> list[Path]:
    """READMEs of the experiments."""
    return sorted((ROOT / "experiments").glob("*/README.md"))


def relinked(text: str, source: Path, page: Path) -> str:
    """Text with links that lead from the page to what they lead to from the source.

    Images are copied. Links to files that are no pages become the names of the files.
    """
    known = sources() | {p: p for p in (ROOT / "docs").glob("*.md")}

    def changed(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        file = (source.parent / path).resolve()
        if image and not file.exists():
            return label
        if image:
            copy = page.parent / f"{source.parent.name}-{file.name}"
            shutil.copyfile(file, copy)
            return f"![{label}]({copy.name})"
        if file.is_dir() and (file / "README.md") in known:
            file = file / "README.md"
        if file not in known:
            return label if label.startswith("`") else f"{label} (`{path.lstrip('./')}`)"
        hook = f"#{anchor}" if anchor else ""
        return f"[{label}]({os.path.relpath(known[file], page.parent)}{hook})"

    return LINK.sub(changed, text)


def notebook(source: Path, page: Path) -> str:
    """A notebook as Markdown: cells, and the outputs that it holds."""
    name = source.relative_to(ROOT)
    title, parts = "", []
    for cell in json.loads(source.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            if not title and text.startswith("# "):
                title, _, text = text.partition("\n")
            parts.append(relinked(text.strip(), source, page))
        elif cell["cell_type"] == "code" and text:
            parts.append(f"```python\n{text}\n```")
            for k, shown in enumerate(cell.get("outputs", [])):
                parts.append(output(shown, page, f"{len(parts)}-{k}"))
    run = f"This page shows the notebook `{name}`, which the tests execute:\n"
    run += f"`jupyter lab {name}` opens it."
    figure = ROOT / "docs" / "_static" / "notebooks" / f"{source.stem}.png"
    picture = ""
    if figure.exists():  # outputs are stripped: this one is kept for the gallery
        picture = f"![The last figure of the notebook](../../_static/notebooks/{figure.name})"
    title = title or f"# {source.stem.replace('_', ' ')}"
    note = f":::{{note}}\n{run}\n:::"
    return "\n\n".join(filter(None, [title, note, picture, *parts])) + "\n"


def output(cell: dict, page: Path, number: str) -> str:
    """Output of a cell as Markdown: its picture, or its text."""
    data = cell.get("data", {})
    if "image/png" in data:
        name = f"{page.stem}-{number}.png"
        (page.parent / name).write_bytes(base64.b64decode("".join(data["image/png"])))
        return f"![Output of the cell above]({name})"
    text = "".join(cell.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""


def write(app: "Sphinx | None" = None) -> None:
    """Writes all pages, those that have not changed excepted."""
    shutil.rmtree(OUT, ignore_errors=True)
    for source, page in sources().items():
        page.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".ipynb":
            text = notebook(source, page)
        else:
            text = relinked(source.read_text("utf-8"), source, page)
        page.write_text(text, "utf-8")


def setup(app: "Sphinx") -> dict[str, bool]:
    """Writes the pages at the beginning of a build."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
