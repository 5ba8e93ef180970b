"""Loading of the compiled shared libraries of the package, or the reason why one does not serve."""

import ctypes
import functools
from pathlib import Path


@functools.cache
def load(path: Path) -> tuple[ctypes.CDLL | None, str]:
    """Loads a shared library once; returns it, or None and the reason for failure.

    Args:
        path: Of a plain library of C functions: it does not depend on the version of Python.
    """
    if not path.exists():
        return None, f"{path.name} is not part of this installation"
    try:
        return ctypes.CDLL(str(path)), ""
    except OSError as error:  # built for another system, or cut
        return None, f"{path.name}: {error}"
