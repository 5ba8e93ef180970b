"""Copies into staging memory, with their checksums."""

import numpy as np
import pytest
import xxhash

from tensorjax import _native
from tensorjax.offload import _checksums

SIZES = [0, 1, 4096, (1 << 16) - 1, 1 << 16, (1 << 18) + 5, (1 << 20) + 13]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("compiled", [True, False])
def test_a_copy_and_its_checksum(
    size: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same ones with compiled code and without."""
    if not compiled:
        monkeypatch.setattr(_native, "stream", lambda: None)
    source = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    target = np.zeros(size + 64, np.uint8)
    assert _checksums.copy(source, target[:size], target.ctypes.data) == xxhash.xxh3_64_hexdigest(
        source.tobytes()
    )
    assert np.array_equal(target[:size], source)
    assert not target[size:].any()
    assert _checksums.digest(source) == xxhash.xxh3_64_hexdigest(source.tobytes())


def test_arrays_are_joined_with_their_checksums() -> None:
    """Those of any lengths, an empty one too; a view of more is not copied beyond its end."""
    rng = np.random.default_rng(0)
    sources = [rng.integers(0, 256, n, np.uint8) for n in (5, 0, 4096, 70000)]
    sources.append(sources[3][100:200])
    target = np.zeros(sum(map(len, sources)), np.uint8)
    found = _checksums.gather(sources, target)
    assert found == [xxhash.xxh3_64_hexdigest(source.tobytes()) for source in sources]
    assert target.tobytes() == b"".join(source.tobytes() for source in sources)
