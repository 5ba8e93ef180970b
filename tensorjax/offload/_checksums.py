"""Checksums of blocks: xxh3, 64 bits, from the library xxhash (the extra ``offload``)."""

from typing import Any

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


def digest(data: Any) -> int:
    """The xxh3 checksum of a buffer of bytes.

    >>> digest(b"tensor") == digest(b"tensor"), digest(b"tensor") == digest(b"tenSor")
    (True, False)
    """
    assert xxhash is not None
    return xxhash.xxh3_64_intdigest(data)
