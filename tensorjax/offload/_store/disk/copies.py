"""Copies of bytes past the CPU caches, by a small C library; NumPy serves where it is missing."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensorjax import _shared_libraries

# Finding out where an array lies takes NumPy a microsecond, in which it copies as many bytes itself.
_SMALL = 1 << 14


def _load() -> tuple[Any, str]:
    library, why = _shared_libraries.load(Path(__file__).with_name("libcopies.so"))
    if library is not None:
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        for name, arguments in (
            ("tensorjax_copy", (pointer, pointer, size)),
            ("tensorjax_join", (size, pointer, pointer, pointer)),
        ):
            call = getattr(library, name)
            call.argtypes, call.restype = arguments, None
    return library, why


_library, _why = _load()


def status() -> str:
    """Returns the reason why copies go through the caches here; empty if they do not."""
    return _why


class Copy:
    """Copy of an array of bytes to another one, part by part.

    >>> target = np.zeros(6, np.uint8)
    >>> copy = Copy(np.frombuffer(b"tensor", np.uint8), target)
    >>> copy(2, 4)
    >>> bytes(target)
    b'\\x00\\x00ns\\x00\\x00'
    """

    def __init__(self, source: np.ndarray, target: np.ndarray):
        if len(source) != len(target):
            raise _misfit(len(source), len(target))
        self._source, self._target = source, target  # kept alive, and so where they are
        if _library is not None:
            self._from, self._to = _address(source), _address(_writable(target))

    def __call__(self, start: int, stop: int) -> None:
        """Copies the bytes from ``start`` up to ``stop``."""
        if not 0 <= start <= stop <= len(self._source):
            raise IndexError(f"expected a part of {len(self._source)} bytes, got {start}:{stop}")
        if _library is None:
            self._target[start:stop] = self._source[start:stop]
        else:
            _library.tensorjax_copy(self._from + start, self._to + start, stop - start)


def join(sources: Sequence[Any], target: Any) -> None:
    """Copies buffers of bytes, one behind the other, to fill a buffer.

    >>> target = bytearray(6)
    >>> join([b"ten", b"sor"], target)
    >>> target
    bytearray(b'tensor')
    """
    parts, out = [*map(_bytes, sources)], _writable(_bytes(target))
    sizes = [*map(len, parts)]
    if sum(sizes) != len(out):
        raise _misfit(sum(sizes), len(out))
    if _library is None or len(out) < _SMALL * len(parts):
        if parts:
            np.concatenate(parts, out=out)
        return
    places = np.array([*map(_address, parts)], np.uintp)
    lengths = np.array(sizes, np.uintp)
    _library.tensorjax_join(len(parts), _address(places), _address(lengths), _address(out))


def _bytes(buffer: Any) -> np.ndarray:
    if isinstance(buffer, np.ndarray) and buffer.dtype == np.uint8 and buffer.strides == (1,):
        return buffer
    return np.frombuffer(buffer, np.uint8)


def _writable(target: np.ndarray) -> np.ndarray:
    if not target.flags.writeable:
        raise TypeError("target: expected a read-write buffer, got one that is read-only")
    return target


def _address(array: np.ndarray) -> int:
    if len(array.strides) != 1 or array.strides[0] != array.itemsize:
        raise ValueError(f"expected a contiguous array of one axis, got strides {array.strides}")
    return array.ctypes.data


def _misfit(needed: int, size: int) -> ValueError:
    left, which = abs(size - needed), "few" if size < needed else "many"
    return ValueError(
        f"target: expected as many bytes as the sources have, got {size}, {left} too {which}"
    )
