"""Staging memory: page-aligned pools with first-fit allocation."""

import bisect
import contextlib
import mmap
import sys
from collections.abc import Iterable

import numpy as np

from tensorjax.offload._errors import CapacityError
from tensorjax.offload._store.disk.extents import PACKED, padded

MIB = 1 << 20
_STAGING, _WRITING = 256 * MIB, 64 * MIB  # defaults: in all, and of that for writes
_WIPE_ON_FORK = 18  # MADV_WIPEONFORK of Linux 4.14, which Python's mmap does not name


def sizes(staging: int | None, block: int, largest: int) -> tuple[int, int]:
    """Computes the bytes of a tensor store's two staging pools, for reads and for writes.

    Args:
        staging: of both; None for what suits most, and more where tensors need it.
        block: the most of one transfer.
        largest: bytes of the largest tensor, padded.

    Raises:
        CapacityError: if it is too little for them.
    """
    if staging is None:
        return max(_STAGING - _WRITING, 4 * largest), max(_WRITING, 4 * block)
    writing = max(staging // 4, block)
    reading = staging - writing
    if writing < block or reading < max(largest, block):
        raise CapacityError(
            f"staging: expected at least {max(block, largest) + max(block, largest // 3)} bytes "
            f"(a block takes {block}, the largest tensor so far {largest}), got {staging}"
        )
    return reading, writing


def aligned(size: int) -> np.ndarray:
    """Allocates a zeroed, 64-byte-aligned byte array for transfers, outside the staging pools."""
    found = np.zeros(size + PACKED, np.uint8)
    start = -found.ctypes.data % PACKED
    return found[start : start + size]


class Pool:
    """Page-aligned pool of staging memory with first-fit allocation; the caller holds the lock.

    It lies in huge pages where the kernel has some: a transfer is then a few pieces of memory, not
    hundreds, by which a disk may be slower. That takes private memory, which must not be
    shared with a forked process while a transfer is under way (`man 2 open`, O_DIRECT); so forked
    processes find zeros there. Arrays that view the region keep it alive, also after the store is
    closed.
    """

    def __init__(self, size: int):
        self.size = padded(size)
        # Shared memory, which is Python's default, would not get huge pages.
        pages = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages is slower, no more
                pages.madvise(mmap.MADV_HUGEPAGE)
        if sys.platform == "linux":
            pages.madvise(_WIPE_ON_FORK)
        self.memory = np.frombuffer(pages, np.uint8)
        self.used = 0
        self._starts, self._sizes = [0], [self.size]

    def take(self, size: int) -> int | None:
        """Allocates a range of the staging pool; returns its start, None if there is no room."""
        for i, free in enumerate(self._sizes):
            if free >= size:
                start = self._starts[i]
                if free == size:
                    del self._starts[i], self._sizes[i]
                else:
                    self._starts[i] += size
                    self._sizes[i] -= size
                self.used += size
                return start
        return None

    def take_all(self, sizes: list[int]) -> list[int] | None:
        """Allocates several ranges of the staging pool, all or none; returns their starts."""
        if sum(sizes) > self.size - self.used:
            return None
        starts: list[int] = []
        for size in sizes:
            start = self.take(size)
            if start is None:
                for taken, length in zip(starts, sizes, strict=False):
                    self.give(taken, length)
                return None
            starts.append(start)
        return starts

    def reset(self, taken: Iterable[tuple[int, int]]) -> None:
        """Marks given ranges (start, size) of the staging pool as allocated, the rest as free."""
        self._starts, self._sizes, self.used, end = [], [], 0, 0
        for start, size in sorted(taken):
            if start > end:
                self._starts.append(end)
                self._sizes.append(start - end)
            self.used += size
            end = start + size
        if end < self.size:
            self._starts.append(end)
            self._sizes.append(self.size - end)

    def give(self, start: int, size: int) -> None:
        """Frees a range of the staging pool and joins it to its free neighbours."""
        i = bisect.bisect(self._starts, start)
        self._starts.insert(i, start)
        self._sizes.insert(i, size)
        self.used -= size
        for left in (i, i - 1):
            right = left + 1
            if left >= 0 and right < len(self._starts):
                end = self._starts[left] + self._sizes[left]
                if end == self._starts[right]:
                    self._sizes[left] += self._sizes[right]
                    del self._starts[right], self._sizes[right]
