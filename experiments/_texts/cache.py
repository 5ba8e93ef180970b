"""Cache of prepared data: whole files in a folder, named by their options."""

import dataclasses
import hashlib
import json
import os
import secrets
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np

T = TypeVar("T")
SPLITS = ("train", "valid", "test")


def cached(
    folder: Path | None,
    name: str,
    kind: type[T],
    options: Mapping[str, Any],
    build: Callable[[], T],
    *,
    programs: Iterable[Path] = (),
) -> T:
    """Returns data from a cache folder, or builds them with ``build`` and stores them there.

    The file is written under a hidden name and renamed, so it is whole or absent. One that
    cannot be read, whatever damaged it, is built again.

    Args:
        folder: Where prepared data lie; made if absent. None keeps nothing.
        name: What the file name begins with.
        kind: The class that ``build`` returns an instance of: a dataclass with the fields train,
            valid and test, which are arrays or dataclasses of arrays, and others that JSON can
            hold.
        options: All that the result depends on, as JSON can hold it.
        build: Prepares the data.
        programs: Source files that it depends on besides those of this package: data prepared by
            another version of either are not used.
    """
    if folder is None:
        return build()
    path = folder / f"{name}-{key(options, programs)}.npz"
    found = read(path, kind)
    if found is None:
        found = build()
        write(path, found)
    return found


def key(options: Mapping[str, Any], programs: Iterable[Path] = ()) -> str:
    """Returns a digest of data's options and of the sources that prepare them, as file name."""
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for source in [*sorted(Path(__file__).parent.glob("*.py")), *programs]:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def stamp(paths: Iterable[Path]) -> list[list[Any]]:
    """Returns names, sizes and times of files, which identify a version of them."""
    found = [(path, path.stat()) for path in paths]
    return [[str(path.resolve()), at.st_size, at.st_mtime_ns] for path, at in found]


def write(path: Path, data: Any) -> None:
    """Writes a dataclass of arrays to a cache file, whole or not at all."""
    arrays: dict[str, np.ndarray] = {}
    rest: dict[str, Any] = {}
    for field in dataclasses.fields(data):
        value = getattr(data, field.name)
        if isinstance(value, np.ndarray):
            arrays[field.name] = value
        elif dataclasses.is_dataclass(value):
            names = [inner.name for inner in dataclasses.fields(value)]
            arrays |= {f"{field.name}.{inner}": getattr(value, inner) for inner in names}
        else:
            rest[field.name] = value
    arrays["rest"] = np.frombuffer(json.dumps(rest).encode(), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path, kind: type[T]) -> T | None:
    """Reads a dataclass of arrays from a cache file; None if it is missing or damaged."""
    parts = {split: get_type_hints(kind)[split] for split in SPLITS}
    try:
        # Opened here: NumPy leaves a damaged file that it opened itself open.
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            fields: dict[str, Any] = json.loads(file["rest"].tobytes())
            splits = {split: _part(file, split, part) for split, part in parts.items()}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    # JSON has lists only: every sequence of these classes is a tuple.
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return kind(**splits, **fields)


def _part(file: Any, split: str, part: type) -> Any:
    if part is np.ndarray:
        return file[split]
    return part(**{f.name: file[f"{split}.{f.name}"] for f in dataclasses.fields(part)})
