"""Names that the API pages list: read from the pages, without Sphinx, for the tests too."""

import re
from collections.abc import Iterator
from pathlib import Path

# Packages in the order in which an object that several of them export is documented.
PACKAGES = (
    "", "tt", "tt.functions", "tt.patches", "tt.quantics", "tucker", "mera", "convert", "interop",
    "contract", "linalg", "sketch", "pde", "pde.problems", "pde.coords", "plot", "nn",
    "optim", "parallel", "offload", "models", "models.gpt2", "models.code", "models.encoder",
    "models.dlrm",
)  # fmt: skip
BLOCK = re.compile(r"^:::\{public\} (\S+)\n(.*?)^:::$", re.MULTILINE | re.DOTALL)


def full(package: str) -> str:
    """Dotted name of a package of the library."""
    return f"tensorjax.{package}".rstrip(".")


def listed(pages: Path) -> Iterator[tuple[str, str, Path]]:
    """Yields package, name and page of every entry in the tables of the API pages."""
    for page in sorted(pages.rglob("*.md")):
        for package, names in BLOCK.findall(page.read_text("utf-8")):
            for name in names.split():
                yield package, name, page
