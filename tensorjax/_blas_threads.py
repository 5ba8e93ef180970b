"""Thread control of OpenBLAS: gets and sets the number of threads of NumPy's or SciPy's BLAS."""

import ctypes
import functools
import importlib
import threading
from collections.abc import Sequence
from typing import Any

# Threads gain nothing in sweeps over cores with fewer entries than this: of matrices of some dozens
# of rows, one is done before the others are awake, and they go on spinning.
_SMALL_CORE = 2**14
_guard = threading.Lock()
_inside = [0, 1]  # how many are in `one_thread`, and the threads there were before the first


def controls(module: str) -> tuple[Any, Any] | None:
    """Returns functions that get and set OpenBLAS's threads in an extension module, or None."""
    try:
        library = ctypes.CDLL(str(importlib.import_module(module).__file__))
    except (ImportError, OSError):
        return None
    for prefix in ("scipy_openblas", "openblas"):  # as NumPy's and SciPy's wheels name it, or not
        for suffix in ("64_", ""):
            try:
                get, put = (
                    getattr(library, f"{prefix}_{verb}_num_threads{suffix}")
                    for verb in ("get", "set")
                )
            except AttributeError:
                continue
            return get, put
    return None


@functools.cache
def _numpy() -> tuple[Any, Any] | None:
    return controls("numpy.linalg._umath_linalg")


def slow_down(cores: Sequence[Any]) -> bool:
    """Whether cores are so small that BLAS threads slow down a sweep over them."""
    return max(c.size for c in cores) < _SMALL_CORE


class one_thread:  # named as what it does; a generator takes several times longer
    """Context manager that limits NumPy's BLAS to one thread in this process, if ``wanted``.

    For factorisations of some hundred rows between passes that have threads of their own: those of
    OpenBLAS gain nothing there, and go on spinning on cores that the passes need.
    """

    __slots__ = ("_put",)

    def __init__(self, wanted: bool) -> None:
        found = _numpy() if wanted else None
        self._put = found and found[1]

    def __enter__(self) -> None:
        if self._put is None:
            return
        with _guard:
            if _inside[0] == 0:
                found = _numpy()
                assert found is not None
                _inside[1] = found[0]()
                self._put(1)
            _inside[0] += 1

    def __exit__(self, *_: object) -> None:
        if self._put is None:
            return
        with _guard:
            _inside[0] -= 1
            if _inside[0] == 0:
                self._put(_inside[1])
