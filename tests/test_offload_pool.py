"""Staging memory itself."""

import mmap
import re
import sys
from pathlib import Path

import pytest

from tensorjax.offload._store.transfers.staging import Pool

MIB = 1 << 20


def flags_of(address: int) -> set[str]:
    """What Linux says of the mapping that an address is in."""
    here = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            here = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif here and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise AssertionError(f"no mapping with {address:#x}")


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_memory_may_be_huge_pages_and_is_wiped_in_forks() -> None:
    pool = Pool(8 * MIB)
    assert pool.memory.ctypes.data % mmap.PAGESIZE == 0
    flags = flags_of(pool.memory.ctypes.data)
    assert "sh" not in flags  # shared memory gets none
    assert "wf" in flags
    if Path("/sys/kernel/mm/transparent_hugepage").exists():
        assert "hg" in flags


def test_all_or_nothing_is_taken() -> None:
    pool = Pool(4 * MIB)
    assert pool.take_all([MIB, MIB]) == [0, MIB]
    assert pool.take_all([MIB, 2 * MIB]) is None
    assert pool.used == 2 * MIB
    pool.give(0, MIB)
    assert pool.take_all([2 * MIB, MIB]) == [2 * MIB, 0]
    assert pool.used == pool.size == 4 * MIB


@pytest.mark.parametrize("taken", [[], [(0, 1)], [(1, 1), (3, 1)], [(2, 2), (0, 1)], [(0, 4)]])
def test_all_but_what_is_taken_is_free(taken: list[tuple[int, int]]) -> None:
    pool = Pool(4 * MIB)
    pool.take_all([MIB, 2 * MIB])
    pool.reset([(start * MIB, size * MIB) for start, size in taken])
    used = {n for start, size in taken for n in range(start, start + size)}
    assert pool.used == len(used) * MIB
    found = [pool.take(MIB) for _ in range(4 - len(used))]
    assert {start // MIB for start in found if start is not None} == {*range(4)} - used
    assert pool.take(1) is None
