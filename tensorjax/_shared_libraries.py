"""Loading of the package's compiled shared libraries, or the reason why one cannot be used."""

import ctypes
import functools
import hashlib
from pathlib import Path


def source_digest(folder: Path) -> str:
    """Returns a digest of a shared library's sources in its folder; empty if there are none.

    The build puts it into the library, which lies beside its sources only where it was built.
    """
    digest, found = hashlib.sha256(), False
    for path in sorted(folder.iterdir()):
        if path.suffix in (".c", ".cc", ".h", ".map"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
            found = True
    return digest.hexdigest() if found else ""


def stale(path: Path, built_from: str) -> str:
    """Returns the reason if a shared library was built from other sources than present, or "".

    Args:
        built_from: The `source_digest` that the library holds.
    """
    present = source_digest(path.parent)
    if not present or built_from == present:
        return ""
    return (
        f"{path.name} was built from other sources than those beside it; build it again with "
        "`pip install -e .` or `python hatch_build.py`"
    )


@functools.cache
def load(path: Path) -> tuple[ctypes.CDLL | None, str]:
    """Loads a shared library once; returns it and "", or None and the reason for failure.

    Args:
        path: Of a plain library of C functions: it does not depend on the version of Python.
    """
    if not path.exists():
        return None, f"{path.name} is not part of this installation"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:  # built for another system, or cut
        return None, f"{path.name}: {error}"
    why = stale(path, held_digest(library))
    return (None, why) if why else (library, "")


def held_digest(library: ctypes.CDLL) -> str:
    """Returns the source digest that a compiled shared library holds, or "" if unknown."""
    try:
        call = library.tensorjax_sources
    except AttributeError:
        return ""
    call.restype = ctypes.c_char_p
    return call().decode()
