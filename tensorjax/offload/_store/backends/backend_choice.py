"""Choice of the I/O backend of a store: built-in ones and plug-ins, with fallbacks.

Plug-ins, for an SPDK block device for example, register a function under the entry point group
``tensorjax.offload``; it is called with the options of the store and returns an object with the
methods of `Backend`.
"""

import importlib.util
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tensorjax.offload._errors import Notices
from tensorjax.offload._store.backends import io_uring_binding, uring
from tensorjax.offload._store.backends import threads as _threads
from tensorjax.offload._store.backends.protocol import Backend

GROUP = "tensorjax.offload"  # of the entry points of plug-ins
_BUILT_IN: dict[str, Callable[..., Backend]] = {
    "threads": _threads.threads,
    "io_uring": uring.UringBackend,
    "buffered": _threads.buffered,
    "memory": _threads.memory,
}


_METHODS = (
    "name",
    "block",
    "volatile",
    "open",
    "size",
    "allocate",
    "start",
    "stop",
    "sync",
    "close",
)


def available() -> tuple[str, ...]:
    """Returns the names of the I/O backends to choose from by ``backend=`` on this machine.

    Without "io_uring" where its C library is not there; with the plug-ins that are installed.

    Returns:
        "auto", then the built-in names, then those of plug-ins.

    Example:
        >>> from tensorjax import offload
        >>> {"auto", "threads", "buffered", "memory"} <= set(offload.backends())
        True

    Source: ours.
    """
    names = [name for name in _BUILT_IN if name != "io_uring" or not io_uring_binding.status()]
    return ("auto", *names, *plugins())


def plugins() -> dict[str, Callable[..., Backend]]:
    """Returns the constructors of installed plug-in I/O backends to choose from, by name."""
    found: dict[str, Callable[..., Backend]] = {}
    if importlib.util.find_spec("kvikio") is not None:
        found["kvikio"] = _threads.kvikio
    for entry in entry_points(group=GROUP):
        found[entry.name] = lambda entry=entry, **options: entry.load()(**options)
    return found


def choose(backend: Any, folder: Path, say: Notices, options: dict[str, Any]) -> Backend:
    """Chooses a store's I/O backend by name and constructs it; returns a given object as is.

    Args:
        backend: A name, or anything with the methods of `Backend`.
        folder: Of the store.
        say: Told of fallbacks.
        options: For the backend's constructor.
    """
    if not isinstance(backend, str):
        if lacking := [name for name in _METHODS if not hasattr(backend, name)]:
            raise TypeError(
                f"backend: expected a name of {available()} or an object with the methods of "
                f"offload.Backend, got {backend!r} without {', '.join(lacking)}"
            )
        return backend
    if backend == "auto":
        return _auto(folder, say, options)
    if backend == "io_uring":
        try:
            made, why = _with(uring.UringBackend, backend, options), ""
        except (ImportError, OSError) as error:
            made, why = None, str(error)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            why = uring.probe(folder)["io_uring"]
        if made is not None and not why:
            return made
        say(f"io_uring cannot be used here ({why}); going on with a pool of threads")
        return _threads.threads(**{k: v for k, v in options.items() if k == "block"})
    ways = {**_BUILT_IN, **plugins()}
    if backend not in ways:
        raise ValueError(
            f"backend: expected one of {available()}, got {backend!r}; others come with packages "
            "of their own: kvikio (GPUDirect Storage), or any that registers an entry point in the "
            f"group {GROUP!r}, such as one for SPDK"
        )
    if backend == "buffered":
        say("the page cache is used: speeds are not those of the disk")
    return _with(ways[backend], backend, options)


def _auto(folder: Path, say: Notices, options: dict[str, Any]) -> Backend:
    """Chooses the io_uring backend if a trial transfer by it works, else a thread-pool backend.

    With options it is the pool of threads, whose options they are.
    """
    if options:  # which are those of threads
        return _with(_threads.threads, "threads", options)
    if why := io_uring_binding.status():
        say.once(
            f"io_uring cannot be asked for ({why}): going on with a pool of threads; install "
            "tensorjax's wheel for Linux, or from source with a C compiler, or ask for "
            "backend='threads'"
        )
        return _threads.threads()
    folder.mkdir(parents=True, exist_ok=True)
    if why := uring.probe(folder)["io_uring"]:
        say(f"io_uring does not work here ({why}); going on with a pool of threads")
        return _threads.threads()
    return uring.UringBackend()


def _with(make: Callable[..., Backend], name: str, options: dict[str, Any]) -> Backend:
    try:
        return make(**options)
    except TypeError as error:
        raise TypeError(
            f"options: the backend {name!r} cannot be made with them: {error}"
        ) from error
