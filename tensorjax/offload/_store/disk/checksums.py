"""Checksums of blocks: xxh3, 64 bits, from the library xxhash (the extra ``offload``)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensorjax import _shared_libraries

try:
    import xxhash
except ImportError:  # models name their layers for a trainer without it
    xxhash = None
try:
    from tensorjax.offload._store import _copies_c  # type: ignore[attr-defined]
except ImportError as error:  # no compiler on installation, or a Python without the stable ABI
    _copies_c, _why = None, str(error)
else:
    _why = _shared_libraries.stale(Path(_copies_c.__file__), getattr(_copies_c, "sources", ""))
    if _why:
        _copies_c = None


def copies_status() -> str:
    """Returns the reason why copies with checksums cannot bypass the CPU caches, or ""."""
    return _why


def require() -> None:
    """Raises ImportError if xxhash, which computes a tensor store's checksums, is not installed."""
    if xxhash is None:
        raise ImportError(
            "tensorjax.offload.TensorStore needs the library xxhash; "
            "install it with pip install 'tensorjax[offload]'"
        )


LENGTH = 16  # digits of a checksum

# Bytes that are copied at once, and bytes that are still in the cache when they have been hashed.
_SMALL, _CHUNK = 1 << 16, 1 << 18


def copy(source: np.ndarray, target: np.ndarray) -> str:
    """Copies bytes and returns their checksum, computed while they are in the CPU cache.

    >>> target = np.zeros(6, np.uint8)
    >>> found = copy(np.frombuffer(b"tensor", np.uint8), target)
    >>> found == digest(b"tensor"), bytes(target)
    (True, b'tensor')
    """
    assert xxhash is not None
    if len(source) < _SMALL:
        target[:] = source
        return digest(source)
    state = xxhash.xxh3_64()
    for start in range(0, len(source), _CHUNK):
        part: Any = source[start : start + _CHUNK]
        state.update(part)  # which brings it into the cache
        _join([part], target[start : start + _CHUNK])
    return state.hexdigest()


def gather(sources: Sequence[Any], target: np.ndarray) -> list[str]:
    """Concatenates small byte arrays into one array, and returns the checksum of each.

    One call for all: tensors of a few pages cost less to copy than to be talked about.

    >>> target = np.zeros(6, np.uint8)
    >>> parts = [np.frombuffer(b"ten", np.uint8), np.frombuffer(b"sor", np.uint8)]
    >>> gather(parts, target) == [digest(b"ten"), digest(b"sor")], bytes(target)
    (True, b'tensor')
    """
    assert xxhash is not None
    found = [*map(xxhash.xxh3_64_hexdigest, sources)]
    _join(sources, target)
    return found


def _join(sources: Sequence[Any], target: np.ndarray) -> None:
    """Concatenates byte arrays with known checksums, by C code that bypasses CPU caches if any."""
    if _copies_c is not None:
        _copies_c.gather(sources, target)
    else:
        np.concatenate(sources, out=target)


def digest(data: Any) -> str:
    """Returns the xxh3 checksum of a buffer of bytes, in hexadecimal.

    >>> digest(b"tensor") == digest(b"tensor"), digest(b"tensor") == digest(b"tenSor")
    (True, False)
    """
    assert xxhash is not None
    return xxhash.xxh3_64_hexdigest(data)
