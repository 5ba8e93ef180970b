"""Copies into staging memory, with their checksums."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import xxhash

from tensorjax.offload._store.disk import checksums as _checksums

SIZES = [0, 1, 63, 64, 65, 4096, (1 << 16) - 1, 1 << 16, (1 << 18) + 5, (1 << 20) + 13]
built = pytest.mark.skipif(_checksums._copies_c is None, reason="copies were not built")


@pytest.fixture(params=[pytest.param(True, marks=built), False], ids=["compiled", "numpy"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With compiled code and without."""
    if not request.param:
        monkeypatch.setattr(_checksums, "_copies_c", None)


def _numbers(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("size", SIZES)
def test_a_copy_and_its_checksum(size: int) -> None:
    source, target = _numbers(size), np.zeros(size + 64, np.uint8)
    found = _checksums.copy(source, target[:size])
    assert found == _checksums.digest(source) == xxhash.xxh3_64_hexdigest(source.tobytes())
    assert np.array_equal(target[:size], source)
    assert not target[size:].any()


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("there", [0, 1, 60])
def test_arrays_are_joined_with_their_checksums(there: int) -> None:
    """Those of any lengths and at any place; nothing is written beside them."""
    sources = [_numbers(n) for n in SIZES]
    sources.append(sources[-1][101:5000])
    size = sum(map(len, sources))
    target = np.full(size + 128, 7, np.uint8)
    found = _checksums.gather(sources, target[there : there + size])
    assert found == [xxhash.xxh3_64_hexdigest(source.tobytes()) for source in sources]
    assert target[there : there + size].tobytes() == b"".join(s.tobytes() for s in sources)
    assert np.all(target[:there] == 7)
    assert np.all(target[there + size :] == 7)


@built
@pytest.mark.parametrize(
    ("sources", "target", "error", "message"),
    [
        ([b"four", b"more"], bytearray(3), ValueError, "got 3, 1 too few"),
        ([b"four"], bytearray(6), ValueError, "got 6, 2 too many"),
        ([b"four", "text"], bytearray(8), TypeError, "bytes-like"),
        (None, bytearray(4), TypeError, "not iterable"),
        ([b"four"], b"four", TypeError, "read-write"),
    ],
)
def test_compiled_copies_refuse_what_does_not_fit(
    sources: Sequence[Any], target: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _checksums._copies_c.gather(sources, target)


@built
def test_compiled_copies_let_go_of_what_they_were_given() -> None:
    """After a copy and after an error: a buffer that is held could never be resized."""
    sources, target = [bytearray(b"ten"), bytearray(b"sor")], bytearray(6)
    counts = [sys.getrefcount(part) for part in (*sources, target)]
    _checksums._copies_c.gather(sources, target)
    assert target == b"tensor"
    with pytest.raises(ValueError, match="3 too many"):
        _checksums._copies_c.gather(sources[:1], target)
    assert [sys.getrefcount(part) for part in (*sources, target)] == counts
    for part in (*sources, target):
        part.append(0)
