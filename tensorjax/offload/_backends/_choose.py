"""Which backend serves a store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorjax.offload._backends import _threads
from tensorjax.offload._backends._base import Backend
from tensorjax.offload._files import Say

_BUILT_IN: dict[str, Callable[..., Backend]] = {
    "threads": _threads.threads,
    "buffered": _threads.buffered,
    "memory": _threads.memory,
}


def available() -> tuple[str, ...]:
    """Names that ``backend=`` takes here."""
    return ("auto", *_BUILT_IN)


def choose(backend: Any, folder: Path, say: Say, options: dict[str, Any]) -> Backend:
    """Makes the backend of a name, or passes one through that was made by the caller.

    Args:
        backend: A name, or anything with the methods of `Backend`.
        folder: Of the store.
        say: Told of fallbacks.
        options: For the backend's constructor.
    """
    if not isinstance(backend, str):
        return backend
    if backend == "auto":
        return _threads.threads(**options)
    if backend not in _BUILT_IN:
        raise ValueError(f"backend: expected one of {available()}, got {backend!r}")
    if backend == "buffered":
        say("the page cache is used: speeds are not those of the disk")
    return _BUILT_IN[backend](**options)
