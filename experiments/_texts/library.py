"""Python's standard library as text, split so that no package is in two splits."""

import hashlib
import sys
import sysconfig
import tokenize
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from experiments._texts import bpe

# Tables that a program wrote, not code that somebody did.
GENERATED = frozenset({"encodings", "pydoc_data"})
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Source:
    """Source file of Python's standard library: its package, path and text.

    Attributes:
        package: The top-level module it belongs to; tests belong to what they test, and
            ``_pydecimal`` and the like to the package of the name without the underscore.
        path: Relative to the library's folder, with ``/``.
        text: What it holds.
    """

    package: str
    path: str
    text: str


class OfPackage(Protocol):
    """Protocol of objects that belong to a package."""

    @property
    def package(self) -> str:
        """Name of the package that this belongs to."""
        ...


T = TypeVar("T", bound=OfPackage)


def default_folder() -> Path:
    """Returns the folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def options(
    folder: Path,
    *,
    vocabulary: int,
    length: int,
    tests: bool,
    held_out: float,
    max_files: int | None,
    seed: int,
) -> dict[str, Any]:
    """Returns all options on which arrays made of the library depend, checked.

    Raises:
        ValueError: One of them is out of its range.
    """
    bpe.checked_sizes(vocabulary, length)
    if not 0 < held_out < 0.5:
        raise ValueError(f"held_out: expected a part above 0 and below 0.5, got {held_out}")
    if max_files is not None and max_files < 10:
        raise ValueError(f"max_files: expected at least 10 files, got {max_files}")
    return {
        "vocabulary": vocabulary,
        "length": length,
        "tokenizers": bpe.release(),
        "tests": tests,
        "held_out": held_out,
        "max_files": max_files,
        "seed": seed,
        "library": identity(folder),
    }


def sources(folder: Path, *, tests: bool, limit: int | None, seed: int) -> tuple[list[Source], int]:
    """Reads the source files of Python's standard library, without installed packages.

    Args:
        folder: The library's folder.
        tests: Whether to read the library's tests too, where they are installed.
        limit: How many files to read, chosen by a hash; all by default.
        seed: Of the choice.

    Returns:
        The files in the order of their paths, and how many were skipped as undecodable.

    Raises:
        FileNotFoundError: The folder holds no module of the standard library.
    """
    chosen: list[tuple[str, str]] = []
    for top in folder.iterdir():
        if top.name != "test" and package_of(top.name) is None:
            continue  # what is installed beside the library can be many times its size
        for path in top.rglob("*.py") if top.is_dir() else [top]:
            name = path.relative_to(folder).as_posix()
            package = package_of(name)
            if path.suffix == ".py" and package is not None and (tests or not is_test(name)):
                chosen.append((name, package))
    if not chosen:
        raise FileNotFoundError(
            f"{folder}: expected the modules of Python's standard library, found none; "
            "use a Python whose library is installed as .py files"
        )
    chosen.sort(key=lambda entry: rank(seed, entry[0]))
    found, skipped = [], 0
    for name, package in sorted(chosen[:limit]):
        try:
            with tokenize.open(folder / name) as file:
                found.append(Source(package, name, file.read()))
        except (SyntaxError, UnicodeDecodeError):
            skipped += 1
    return found, skipped


def package_of(name: str) -> str | None:
    """Returns the package of a source file, or None if it is not of the standard library.

    >>> package_of("json/decoder.py"), package_of("test/test_json/test_scan.py")
    ('json', 'json')
    >>> package_of("_pydecimal.py"), package_of("site-packages/numpy/linalg.py")
    ('pydecimal', None)
    """
    parts = name.removesuffix(".py").split("/")
    if parts[0] == "test":
        inner = parts[1] if len(parts) > 1 else ""
        return inner.removeprefix("test_").strip("_") if inner.startswith("test_") else "test"
    if parts[0] not in sys.stdlib_module_names or parts[0] in GENERATED:
        return None
    return parts[0].strip("_")


def is_test(name: str) -> bool:
    """Whether a source file belongs to the standard library's tests.

    >>> is_test("test/test_json.py"), is_test("idlelib/idle_test/mock_tk.py")
    (True, True)
    >>> is_test("json/tool.py")
    False
    """
    return any(part in ("test", "tests", "idle_test") for part in name.split("/")[:-1])


def split(sizes: Mapping[str, int], *, held_out: float, seed: int) -> dict[str, str]:
    """Assigns whole packages to train, valid and test splits, in an order given by a hash.

    Validation and test get about ``held_out`` of all each, from packages of at most a quarter of
    that if there are enough, so that many packages are in each.

    Args:
        sizes: Size of each package, in any unit.
        held_out: Part of the whole for validation, and again for the test.
        seed: Of the order.

    Raises:
        ValueError: If a split stays empty.
    """
    wanted = held_out * sum(sizes.values())
    assigned, filled = dict.fromkeys(sizes, "train"), dict.fromkeys(SPLITS, 0)
    order = sorted(sizes, key=lambda name: rank(seed, name))
    for largest in (wanted / 4, 2 * wanted):
        for package in order:
            if assigned[package] != "train" or sizes[package] > largest:
                continue
            for name in ("valid", "test"):
                if filled[name] + sizes[package] / 2 < wanted:
                    assigned[package] = name
                    filled[name] += sizes[package]
                    break
    for name in SPLITS:
        if name not in assigned.values():
            raise ValueError(
                f"split: expected packages for train, valid and test, got none for {name} of "
                f"{len(sizes)}; allow more files"
            )
    return assigned


def parted(
    found: Sequence[T], size: Callable[[T], int], *, held_out: float, seed: int
) -> tuple[dict[str, list[T]], dict[str, list[str]]]:
    """Splits items by package; returns the items, and the package names, of each split.

    Args:
        found: Files, or parts of files.
        size: Of one of them, in any unit.
        held_out: As for `split`.
        seed: As for `split`.
    """
    sizes = Counter[str]()
    for one in found:
        sizes[one.package] += size(one)
    assigned = split(sizes, held_out=held_out, seed=seed)
    parts = {name: [one for one in found if assigned[one.package] == name] for name in SPLITS}
    packages = {name: sorted(p for p in sizes if assigned[p] == name) for name in SPLITS}
    return parts, packages


def texts(
    found: Sequence[Source], skipped: int, *, held_out: float, seed: int
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Splits source files by package; returns the texts of each split, and facts on them.

    Args:
        found: Files, as `sources` returns them.
        skipped: How many more could not be read.
        held_out: As for `split`.
        seed: As for `split`.
    """
    parts, packages = parted(found, lambda source: len(source.text), held_out=held_out, seed=seed)
    inside = {name: [source.text for source in part] for name, part in parts.items()}
    facts = {
        "files": {name: len(part) for name, part in inside.items()},
        "characters": {name: sum(map(len, part)) for name, part in inside.items()},
        "skipped_undecodable": skipped,
        "packages": packages,
    }
    return inside, facts


def rank(seed: int, name: str) -> bytes:
    """Returns a hash of a seed and a name, which orders names in the same way everywhere."""
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()


def identity(folder: Path) -> list[str]:
    """Returns what identifies a standard library: Python's version and the folder."""
    return [sys.version, str(folder.resolve())]
