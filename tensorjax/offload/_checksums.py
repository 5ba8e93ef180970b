"""Checksums of blocks: xxh3, 64 bits, from the library xxhash (the extra ``offload``)."""

from typing import Any

import numpy as np

try:
    import xxhash
except ImportError:  # models name their layers for a trainer without it
    xxhash = None


def require() -> None:
    """Raises where there is no xxhash, before a store is begun that could not be written."""
    if xxhash is None:
        raise ImportError(
            "tensorjax.offload.TensorStore needs the library xxhash; "
            "install it with pip install 'tensorjax[offload]'"
        )


# Bytes that are still in the cache when they have been copied.
_CHUNK = 1 << 17


def copy(source: np.ndarray, target: np.ndarray) -> int:
    """Copies bytes, and gives the checksum of the copy: made at once, it hardly costs time.

    >>> target = np.zeros(6, np.uint8)
    >>> copy(np.frombuffer(b"tensor", np.uint8), target) == digest(b"tensor"), bytes(target)
    (True, b'tensor')
    """
    assert xxhash is not None
    if len(source) <= _CHUNK:
        target[:] = source
        return digest(target)
    state = xxhash.xxh3_64()
    for start in range(0, len(source), _CHUNK):
        part: Any = target[start : start + _CHUNK]
        part[:] = source[start : start + _CHUNK]
        state.update(part)
    return state.intdigest()


def digest(data: Any) -> int:
    """The xxh3 checksum of a buffer of bytes.

    >>> digest(b"tensor") == digest(b"tensor"), digest(b"tensor") == digest(b"tenSor")
    (True, False)
    """
    assert xxhash is not None
    return xxhash.xxh3_64_intdigest(data)
