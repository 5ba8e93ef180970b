"""Calls of C++ functions on NumPy arrays, outside of XLA, by ctypes."""

import ctypes
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax._native.loading import loaded

_JOINED = 2**13  # elements of arrays that are copied together, to pass their addresses
_INVALID, _NO_MEMORY = -1, -2  # what calls return, as in buffers.h


class Address(int):
    """Address of memory that the caller of a C++ function holds, found before the call."""


def addresses(arrays: Sequence[np.ndarray], dtype: Any = None) -> tuple[np.ndarray, Any]:
    """Returns the addresses of NumPy arrays for a C++ call, and an owner of their memory.

    NumPy takes longer to tell an address than to copy a small array: small ones are joined. They
    are converted to ``dtype`` on the way, if it is given.
    """
    sizes = [a.size for a in arrays]
    if sum(sizes) <= _JOINED:
        joined = np.concatenate(arrays, axis=None, dtype=dtype)
        starts = itertools.accumulate(sizes[:-1], initial=0)
        first, step = address(joined), joined.itemsize
        return np.array([first + step * start for start in starts], np.uintp), joined
    held = [np.require(a, dtype, ["C", "A"]) for a in arrays]
    return np.array([address(a) for a in held], np.uintp), held


def address(a: np.ndarray) -> int:
    """Returns the address of a NumPy array's memory for a C++ call, in a third of ctypes' time."""
    return a.__array_interface__["data"][0]


def call(name: str, *arguments: int | float | np.ndarray | Address) -> int:
    """Calls a C++ function by name through ctypes, on NumPy arrays; raises if that fails.

    Arrays are passed by their addresses, so the caller holds them until the call has returned.
    """
    kinds = tuple(map(type, arguments))
    function = _function(name, kinds)
    pairs: Any = zip(kinds, arguments, strict=True)
    found = function(*[address(x) if kind is np.ndarray else x for kind, x in pairs])
    if found == _NO_MEMORY:
        raise MemoryError(name)
    if found == _INVALID:
        raise ValueError(f"{name}: expected sizes that fit, of arrays that are not empty")
    return found


@functools.cache
def _function(name: str, kinds: tuple[type, ...]) -> Any:
    """Returns a C++ function of the loaded library, to be called on NumPy arrays by ctypes."""
    one = {int: ctypes.c_long, float: ctypes.c_double}
    for pointer in (np.ndarray, Address):
        one[pointer] = ctypes.c_void_p
    function: Any = ctypes.CFUNCTYPE(ctypes.c_long, *(one[kind] for kind in kinds))
    return function((name, loaded()[0]))


def contiguous(name: str, a: Any, ndim: int) -> np.ndarray:
    """Converts an array to contiguous, aligned float64, as the C++ functions require."""
    a = np.asarray(a)
    if a.ndim != ndim or not a.size or not np.can_cast(a.dtype, np.float64):
        raise ValueError(f"{name}: expected {ndim} axes of real numbers, got {a.shape}, {a.dtype}")
    return np.require(a, np.float64, ["C", "A"])
