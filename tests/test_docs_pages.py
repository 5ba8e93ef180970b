"""Pages of the site: public names, README, links between pages, and what they are made from.

Sphinx is not needed here; `make docs` builds the site with warnings as errors.
"""

import importlib
import json
import re
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.public_surface import PACKAGES as SURFACE

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    p for p in DOCS.rglob("*.md") if not {"_build", "generated"} & set(p.relative_to(DOCS).parts)
)
HABITS = ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "CITATION.cff")


def loaded(name: str) -> dict[str, Any]:
    """Names of a module of the site's extension, loaded from its file."""
    return runpy.run_path(str(DOCS / "_ext" / f"{name}.py"))


NAMES = loaded("public_names")


def test_every_public_package_is_documented() -> None:
    assert set(NAMES["PACKAGES"]) == {"", *SURFACE}


def test_every_public_name_is_in_one_table_of_the_api() -> None:
    found = Counter((package, name) for package, name, _ in NAMES["listed"](DOCS / "api"))
    public = {
        (NAMES["full"](package), name)
        for package in NAMES["PACKAGES"]
        for name in importlib.import_module(NAMES["full"](package)).__all__
    }
    assert sorted(public - found.keys()) == [], "add these to a page in docs/api"
    assert sorted(found.keys() - public) == [], "these are no public names"
    assert [entry for entry, count in found.items() if count > 1] == []


def test_the_api_index_has_all_pages() -> None:
    index = (DOCS / "api" / "index.md").read_text("utf-8")
    for page in (DOCS / "api").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page.name
        assert page.name == "index.md" or f"\n{page.stem}\n" in index, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(DOCS)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Sphinx checks those too; here a wrong one is seen without it."""
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        path = (page.parent / target).resolve()
        if "generated" in path.parts:  # made from a file of the repository
            sources = {
                "experiments": ROOT / "experiments" / path.stem / "README.md",
                "notebooks": ROOT / "notebooks" / f"{path.stem}.ipynb",
            }
            path = sources.get(path.parent.name, ROOT / "CHANGELOG.md")
        assert path.exists(), target


def test_the_gallery_has_every_figure_and_every_drawing() -> None:
    """Of experiments and notebooks, and all that `tensorjax.plot` draws."""
    gallery = (DOCS / "gallery.md").read_text("utf-8")
    shown = re.findall(r":img-top: (\S+)", gallery)
    assert all((DOCS / image).exists() for image in shown)
    assert len(shown) == len(set(shown))
    files = {(DOCS / image).resolve() for image in shown}
    kept = DOCS / "_static"
    assert files == {*(ROOT / "experiments").glob("*/*.png"), *kept.rglob("*.png")}
    notebooks = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert notebooks == set(re.findall(r":link: generated/notebooks/(\w+)", gallery))
    drawings = (DOCS / "drawings.py").read_text("utf-8")
    for name in re.findall(r"`plot\.(\w+)`", gallery):
        assert f"plot.{name}(" in drawings, name
    public = importlib.import_module("tensorjax.plot").__all__
    assert set(re.findall(r"`plot\.(\w+)`", gallery)) == set(public)


def test_the_readme_is_short_and_works_on_a_package_index() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.split()) <= 700
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert all(link.startswith("https://") for link in links), "relative links break on an index"
    for file in re.findall(r"`([A-Z]+\.(?:md|cff))`", text):
        assert (ROOT / file).exists(), file


def test_examples_of_the_readme_are_short() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 7  # trains, and the six systems
    assert all(len(block.strip().splitlines()) <= 12 for block in blocks)


def test_the_six_systems_have_a_page_with_claims_and_basis() -> None:
    pages = [p for p in (DOCS / "methods").glob("*.md") if p.name != "index.md"]
    assert len(pages) == 6
    for page in pages:
        text = page.read_text("utf-8")
        assert "**Basis.**" in text, page.name
        assert [h for h in ("## Equations", "## Claims", "## Departures") if h not in text] == []
        assert "python -m experiments run" in text, page.name


@pytest.mark.parametrize("file", HABITS)
def test_habits_are_written_down(file: str) -> None:
    assert len((ROOT / file).read_text("utf-8").split()) > 20


# What .ci/run checks and the workflow, too.
CHECKS = (
    "ruff format --check", "ruff check", "codespell", "pyright", "make test", "-m slow", "--draw",
    "--doctest-modules", 'tensorjax experiments README.md docs/*.md docs/concepts docs/api',
    "jupyter execute --timeout=60", "make docs", "docs/find.py", "docs/look.py", ".ci/wheel",
    '[nn,offload,plot]" pytest pytest-timeout pytest-xdist scikit-learn',
    "python -m experiments run bench/device --tiny --seconds 600",
)  # fmt: skip


def test_the_workflow_mirrors_the_gate() -> None:
    gate, workflow = (
        (ROOT / f).read_text("utf-8") for f in (".ci/run", ".github/workflows/ci.yml")
    )
    gate = gate.replace('"$work/newest/bin/python"', "python").replace("\\\n", "")
    for text in (gate, workflow):
        flat = " ".join(text.replace("$VENV/bin/", "").split())
        assert [check for check in CHECKS if check not in flat] == []
    core = re.search(r"core_tests=\((.+?)\)", gate, re.DOTALL)
    assert core is not None
    names = set(re.findall(r"\w+", re.sub(r"tt_\{(.+?)\}", lambda m: " ".join(
        f"tt_{name}" for name in m[1].split(",")), core[1])))  # fmt: skip
    assert [name for name in names if not re.search(rf"(\s|test_){name}\b", workflow)] == []
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    for version in re.findall(r"Python :: (3\.\d+)", project):
        assert f'python: ["{version}"]' in workflow or f'python: "{version}"' in workflow
        assert f"cp{version.replace('.', '')}-manylinux" in project


def test_the_version_is_the_same_everywhere() -> None:
    project = re.search(
        r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE
    )
    citation = re.search(
        r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE
    )
    assert project is not None
    assert citation is not None
    assert project[1] == citation[1]


def test_the_changelog_has_versions_with_short_entries() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    found = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    assert found[0] == ("Unreleased", "")
    versions = [tuple(map(int, version.split("."))) for version, _ in found[1:]]
    assert versions == sorted(versions, reverse=True)
    assert all(date for _, date in found[1:])
    project = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert project is not None
    assert tuple(map(int, project[1].split("."))) == versions[0]
    entries = re.findall(r"^- (.+(?:\n  .+)*)", text, re.MULTILINE)
    assert len(entries) > 15
    assert [e for e in entries if len(e) > 400] == [], "the long text goes to the docs"


def test_docstrings_become_markdown() -> None:
    convert = loaded("docstrings")["markdown"]
    text = """Adds a*b_c to x<y.

    Prose with ``code`` and `known`, and $5.

    Args:
      x: first, an array
        of two lines.
      *rest: others.

    Raises:
      ValueError: none, or {x}.

    Example:
      >>> 1 + 1
      2

    Source: someone (2011).
    """
    found = convert(text, {"known": "tensorjax.known"}.get)
    assert "Adds a\\*b\\_c to x\\<y." in found
    assert "`` code `` and {py:obj}`known <tensorjax.known>`, and \\$5." in found
    assert "- `x`: first, an array\n  of two lines.\n- `*rest`: others." in found
    assert "**Raises**\n\n- `ValueError`: none, or \\{x\\}." in found
    assert "```pycon\n>>> 1 + 1\n2\n```" in found
    assert found.endswith("**Source.** someone (2011).")


@pytest.mark.parametrize("indent", ["  ", "    "])
def test_docstrings_of_packages_become_markdown(indent: str) -> None:
    convert = loaded("docstrings")["markdown"]
    lines = [
        "Does it:",
        "",
        ">>> f(a_b)",
        "1",
        "",
        "Then `x`.",
        "",
        "Example: two steps:",
        ">>> g()",
    ]
    lines = [indent + x if x.startswith((">>>", "1")) else x for x in lines]
    lines += ["", "Words:", f"{indent}group: some", f"{indent}  more.", f"{indent}lease: x_y."]
    found = convert("First.\n\n" + "\n".join(lines), {}.get)
    assert "Does it:\n\n```pycon\n>>> f(a_b)\n1\n```\n\nThen `` x ``." in found
    assert "two steps:\n\n```pycon\n>>> g()\n```" in found
    assert found.endswith("**Words**\n\n- `group`: some\n  more.\n- `lease`: x\\_y.")
    assert convert("", {}.get) == ""


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that copies pages."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    yield importlib.import_module("pages")
    sys.modules.pop("pages", None)


def test_links_of_copied_pages_lead_to_pages(pages: Any) -> None:
    source = ROOT / "experiments" / "bench" / "README.md"
    page = pages.sources()[source]
    text = (
        "[a](../pde/README.md) [b](_peers.py) [c](https://x.org) [d](#e) [`f`](device) ![g](no.png)"
    )
    assert pages.relinked(text, source, page) == (
        "[a](pde.md) b (`_peers.py`) [c](https://x.org) [d](#e) `f` g"
    )


@pytest.mark.parametrize("first", ["# Title\n\nText.", "Text.", "```python\n# no title\n```"])
def test_notebooks_become_pages_with_a_title(
    pages: Any, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    outputs = [
        {"output_type": "stream", "text": ["1\n", "2\n"]},
        {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": "<Figure>"}},
    ]
    cells = [
        {"cell_type": "markdown", "source": [first]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": outputs},
        {"cell_type": "code", "source": []},
    ]
    source = tmp_path / "some_book.ipynb"
    source.write_text(json.dumps({"cells": cells}), "utf-8")
    found = pages.notebook(source, tmp_path / "page.md")
    assert found.startswith("# Title\n" if first.startswith("# T") else "# some book\n")
    assert found.count("# Title") <= 1
    assert "```python\nprint(1)\n```\n\n```text\n1\n2\n```\n\n![" in found
    (picture,) = tmp_path.glob("page-*.png")
    assert picture.read_bytes() == b"hi"
    assert f"]({picture.name})" in found


NUMBER = re.compile(r"(?<![\w.])(\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?)(?![\d⁰¹²³⁴⁵⁶⁷⁸⁹⁻])")
DERIVED = {"41"}  # planted networks: the seeds of the table's rows together


def unsupported(text: str, sources: list[Path]) -> list[str]:
    """Numbers of a text to which no number of the sources rounds; code and links are left out."""
    known = {
        float(n.replace(",", "")) for p in sources for n in NUMBER.findall(p.read_text("utf-8"))
    }
    found = []
    for number in NUMBER.findall(re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", "", text)):
        value = float(number.replace(",", ""))
        if "e" in number:
            fits = any(abs(n - value) <= 0.05 * value for n in known)
        else:
            fits = any(round(n, len(number.partition(".")[2])) == value for n in known)
        if not fits and number not in DERIVED:
            found.append(number)
    return found


def part(page: Path, begin: str, end: str) -> str:
    text = page.read_text("utf-8")
    return text[text.index(begin) : text.index(end)]


@pytest.mark.parametrize("name", ["ttrp", "meracle", "pde", "comera", "tp2d", "offload"])
def test_numbers_of_the_claims_are_those_of_the_results(name: str) -> None:
    results = [ROOT / "experiments" / folder / "README.md" for folder in (name, "bench")]
    page = DOCS / "methods" / f"{name}.md"
    assert unsupported(part(page, "## Claims", "## Departures"), results) == []


def test_numbers_of_the_summaries_are_those_of_the_results() -> None:
    bench = ROOT / "experiments" / "bench" / "README.md"
    assert unsupported(part(DOCS / "benchmarks.md", "## Speed", "## Features"), [bench]) == []
    results = sorted((ROOT / "experiments").glob("*/README.md"))
    assert unsupported(part(ROOT / "README.md", "## Papers", "## Limits"), results) == []


def test_a_number_without_a_result_is_found(tmp_path: Path) -> None:
    results = tmp_path / "results.md"
    results.write_text("| 1.648 | 240,000 | 3.4e-06 |", "utf-8")
    text = "1.65 and 240,000 at 3.5e-6, not 1.66; `7.77`, [8.8](x), 10⁴, 4.8e-6"
    assert unsupported(text, [results]) == ["1.66", "4.8e-6"]
