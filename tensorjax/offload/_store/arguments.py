"""Checks of the arguments that callers pass to a `TensorStore`."""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat, cast

from tensorjax import _check
from tensorjax.offload._store.disk.extents import ALIGN


def folder(given: Any) -> Path:
    """Checks the argument for a store's folder, a path."""
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"path: expected a folder's path, got {given!r}")
    found = Path(given)
    if found.is_file():
        raise NotADirectoryError(f"path: expected a folder, got the file {found}")
    return found


def amount(name: str, given: int | None, low: int) -> int | None:
    """Checks an optional number of bytes that a caller passes to a store."""
    return None if given is None else _check.integer(name, given, low=low)


def block(given: int | None) -> int | None:
    """Checks the store's argument for the block size: the most bytes of one transfer."""
    if given is not None and _check.integer("block", given, low=1) % ALIGN:
        raise ValueError(f"block: expected a multiple of {ALIGN}, got {given}")
    return given


def options(given: Any) -> dict[str, Any]:
    """Checks the backend options that a caller passes to a store, and copies them."""
    if not isinstance(given, Mapping | None):
        raise TypeError(f"options: expected a mapping, or None, got {given!r}")
    return dict(given or {})


def named(name: str, given: Any) -> Any:
    """Checks that an argument of a store's method is a mapping by tensor names."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name}: expected a mapping from names, got {type(given).__name__}")
    return given


def deadline(given: Any) -> float:
    """Checks a caller's deadline, and converts it to a float; beyond all floats it is infinite."""
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
    """Checks a caller's barrier for the store's commits: a function, or None."""
    if given is not None and not callable(given):
        raise TypeError(f"barrier: expected a function, or None, got {given!r}")
    return given
