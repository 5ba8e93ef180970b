"""Where tensors lie, and how they move together."""

import jax
import numpy as np
import pytest

from tensorjax.offload._store.disk import extents as _extents
from tensorjax.offload._store.disk.extents import ALIGN, Extent, Layouts

BLOCK = 4 * ALIGN


def _placed(*sizes: int) -> tuple[Extent, ...]:
    specs = {f"t{i}": jax.ShapeDtypeStruct((n,), np.uint8) for i, n in enumerate(sizes)}
    places = _extents.place({n: _extents.checked(n, s) for n, s in specs.items()}, 0)
    return tuple(_extents.extents(places))


def test_tensors_below_a_block_share_one() -> None:
    """In their order, each at a multiple of 64, while there is room; never with a large one."""
    found = _placed(100, 5000, 64, 0, 3950, 4000, 64, 1)
    assert [[place.name for place in extent.places] for extent in found] == [
        ["t0", "t2"], ["t1"], ["t3"], ["t4"], ["t5", "t6"], ["t7"]
    ]  # fmt: skip
    assert [place.offsets[0] % ALIGN for extent in found for place in extent.places] == [
        0, 128, 0, 0, 0, 0, 4032, 0
    ]  # fmt: skip
    assert [extent.size for extent in found] == [ALIGN, 2 * ALIGN, 0, ALIGN, ALIGN, ALIGN]


def test_neighbours_move_together_up_to_a_block() -> None:
    """Small ones share a transfer, a large one is cut, an empty one does not move."""
    extents = _placed(100, ALIGN, 0, 9 * ALIGN + 1, ALIGN, 2 * ALIGN)
    small, large, last = Layouts(BLOCK).runs([(e, 0) for e in extents])
    assert small.members == extents[:2]
    assert last.members == extents[4:]
    assert [len(run.transfers) for run in (small, large, last)] == [1, 3, 1]
    assert not small.transfers[0].dense  # a gap behind the first
    assert last.transfers[0].dense
    assert [t.dense for t in large.transfers] == [True, True, False]
    for run in (small, large, last):
        assert sum(t.size for t in run.transfers) == run.size
        pieces = [piece for t in run.transfers for piece in t.pieces]
        assert sum(p.stop - p.start for p in pieces) == sum(e.nbytes for e in run.members)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_gap_in_the_file_parts_them(slot: int) -> None:
    """Only neighbours are joined, in the order of the file, whatever the order asked for."""
    a, _, c, d = _placed(ALIGN, ALIGN, ALIGN, ALIGN)
    found = Layouts(BLOCK).runs([(d, slot), (a, slot), (c, slot)])
    assert [run.members for run in found] == [(a,), (c, d)]
    assert [run.offset for run in found] == [a.offsets[slot], c.offsets[slot]]


def test_what_was_asked_before_is_remembered_up_to_a_limit() -> None:
    """The same answer for the same places, for another slot another one; no more than allowed."""
    extents = _placed(ALIGN, ALIGN, ALIGN)
    layouts = Layouts(BLOCK, most=4)
    first = layouts.runs([(e, 0) for e in extents])
    assert layouts.runs([(e, 0) for e in extents]) is first
    second = layouts.runs([(e, 1) for e in extents])  # two more pieces than are kept
    assert second != first
    assert layouts.runs([(e, 1) for e in extents]) is second
    again = layouts.runs([(e, 0) for e in extents])
    assert again is not first
    assert again == first


def test_more_than_the_limit_is_not_remembered() -> None:
    """What alone is too much leaves the rest in place."""
    extents = _placed(ALIGN, ALIGN, ALIGN)
    layouts = Layouts(BLOCK, most=2)
    kept = layouts.runs([(extents[0], 0)])
    every = layouts.runs([(e, 0) for e in extents])
    assert layouts.runs([(e, 0) for e in extents]) is not every
    assert layouts.runs([(extents[0], 0)]) is kept
