"""Checks of the arguments of a `TensorStore`."""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat, cast

from tensorjax import _check
from tensorjax.offload._store.disk.extents import ALIGN


def folder(given: Any) -> Path:
    """Checks the path of a tensor store: returns a `Path`; raises for other types and for files."""
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"path: expected a folder's path, got {given!r}")
    found = Path(given)
    if found.is_file():
        raise NotADirectoryError(f"path: expected a folder, got the file {found}")
    return found


def amount(name: str, given: int | None, low: int) -> int | None:
    """Checks an optional byte count of a tensor store: returns it, None or an int >= ``low``."""
    return None if given is None else _check.integer(name, given, low=low)


def block(given: int | None) -> int | None:
    """Checks the block size of a tensor store, a multiple of 4096 bytes; returns it."""
    if given is not None and _check.integer("block", given, low=1) % ALIGN:
        raise ValueError(f"block: expected a multiple of {ALIGN}, got {given}")
    return given


def options(given: Any) -> dict[str, Any]:
    """Checks the options of an I/O backend: returns a dict; TypeError if not a mapping."""
    if not isinstance(given, Mapping | None):
        raise TypeError(f"options: expected a mapping, or None, got {given!r}")
    return dict(given or {})


def named(name: str, given: Any) -> Any:
    """Checks that an argument maps tensor names to values; returns it unchanged."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name}: expected a mapping from names, got {type(given).__name__}")
    return given


def deadline(given: Any) -> float:
    """Checks the deadline of a read or write: returns a float; raises for NaN or no number."""
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
    """Checks the barrier function that commits of several processes call; may be None."""
    if given is not None and not callable(given):
        raise TypeError(f"barrier: expected a function, or None, got {given!r}")
    return given
