"""What callers give a store, checked."""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat, cast

from tensorjax import _check
from tensorjax.offload._store._extents import ALIGN


def folder(given: Any) -> Path:
    """The folder of a store."""
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"path: expected a folder's path, got {given!r}")
    found = Path(given)
    if found.is_file():
        raise NotADirectoryError(f"path: expected a folder, got the file {found}")
    return found


def amount(name: str, given: int | None, low: int) -> int | None:
    """A number of bytes, or None."""
    return None if given is None else _check.integer(name, given, low=low)


def block(given: int | None) -> int | None:
    """The most bytes of a transfer, or None."""
    if given is not None and _check.integer("block", given, low=1) % ALIGN:
        raise ValueError(f"block: expected a multiple of {ALIGN}, got {given}")
    return given


def options(given: Any) -> dict[str, Any]:
    """Options of a backend, a copy."""
    if not isinstance(given, Mapping | None):
        raise TypeError(f"options: expected a mapping, or None, got {given!r}")
    return dict(given or {})


def named(name: str, given: Any) -> Any:
    """Something by name."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name}: expected a mapping from names, got {type(given).__name__}")
    return given


def deadline(given: Any) -> float:
    """A deadline as a float; those beyond all floats are infinite."""
    if isinstance(given, str) or not isinstance(given, SupportsFloat):
        raise TypeError(f"deadline: expected a number, got {given!r}")
    try:
        found = float(given)
    except OverflowError:
        return math.inf if cast(Any, given) > 0 else -math.inf
    if math.isnan(found):
        raise ValueError("deadline: expected a number, got NaN")
    return found


def barrier(given: Any) -> Callable[[], object] | None:
    """A function that waits for other processes, or None."""
    if given is not None and not callable(given):
        raise TypeError(f"barrier: expected a function, or None, got {given!r}")
    return given
