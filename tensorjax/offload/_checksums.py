"""Checksums of blocks: xxh3, 64 bits, from the library xxhash (the extra ``offload``)."""

from typing import Any

try:
    from xxhash import xxh3_64_intdigest
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "tensorjax.offload needs the library xxhash; "
        "install it with pip install 'tensorjax[offload]'"
    ) from error


def digest(data: Any) -> int:
    """The xxh3 checksum of a buffer of bytes.

    >>> digest(b"tensor") == digest(b"tensor"), digest(b"tensor") == digest(b"tenSor")
    (True, False)
    """
    return xxh3_64_intdigest(data)
