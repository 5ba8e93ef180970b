"""Patterns of jumps in a train of `cross`: cells at edges whose surroundings occur nowhere else.

The edges of a simple set look the same nearly everywhere: a train that has them right but for
single cells has a pattern there that is rare among all cells at its edges. All entries of the train
are computed for that, none of the function, so that a few evaluations find cells that bisection of
random lines would meet by chance alone, as where two faces of a box meet.
"""

import itertools
import math

import numpy as np

from tensorjax._cores.contractions import merge
from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._cross.jumps import Digits

# Most entries of a train that are computed to look for patterns, and most cells at its edges.
_MOST_ENTRIES, _MOST_CELLS = 1 << 21, 1 << 18
# Coordinates that binary digits may belong to, at most; and cells beside one, on each side, that
# its pattern is made of, by the number of coordinates.
_COORDINATES = 4
_BESIDE = {1: 2, 2: 2, 3: 1, 4: 1}
# A cell is at a tip if it differs from this part of those around it: more than at right angles.
_TIP = 0.7
# Cells around a tip, on each side, at which f is looked at.
_AROUND = {1: 4, 2: 4, 3: 2, 4: 1}


def rare_cells(
    cores: Cores, sizes: np.ndarray, least: float, tips: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the cells at edges of a small train of `cross`, those with the rarest patterns first.

    Args:
      sizes: (d,) mode sizes: binary digits, or fused ones of 2 or 3 coordinates.
      least: jumps up to here are no edges.
      tips: most cells, which differ from nearly all others beside them, around which to look:
        beyond the tip of an acute corner lie single cells that are apart from the rest.

    Returns:
      (m, d) multi-indices; none if the train has too many entries, or too many at edges. And those
      around tips.

    Example:
      >>> import numpy as np
      >>> x, y = np.indices((16, 16))
      >>> square = 1.0 * ((x < 9) & (y < 9))
      >>> square[8, 4] = 0.0
      >>> q, r = np.linalg.qr(square.reshape(4, 4, 4, 4).transpose(0, 2, 1, 3).reshape(16, 16))
      >>> sizes = np.array([16, 16])
      >>> [len(x) for x in rare_cells([q[None], r[:, :, None]], sizes, 0.5, 1)]
      [0, 0]
    """
    digits = Digits(sizes)
    none = np.empty((0, len(sizes)), np.int64)
    if (digits.sizes != 2).any() or math.prod(sizes.tolist()) > _MOST_ENTRIES:
        return none, none
    values = merge(cores[: len(sizes)])[0]
    values = (values @ cores[-1][:, :, 0] if len(cores) > len(sizes) else values)[:, :]
    layouts = _layouts(len(digits.sizes), int(sizes[0]) if len(set(sizes.tolist())) == 1 else 2)
    counts = [np.count_nonzero(_at_edges(_arranged(values, x), least)) for x in layouts]
    order = layouts[int(np.argmin(counts))]
    if not 0 < min(counts) <= _MOST_CELLS:
        return none, none
    grid = _arranged(values, order)
    cells = np.argwhere(_at_edges(grid, least))
    codes, differing = _codes(grid, cells, least)
    _, inverse, met = np.unique(codes, return_inverse=True, return_counts=True)
    rare = cells[np.argsort(met[inverse], kind="stable")]
    most = np.argsort(-differing, kind="stable")[:tips]
    tip = cells[most[differing[most] >= _TIP]]
    around = tip[:, None] + _steps(len(order), _AROUND)
    around = np.clip(around, 0, np.array(grid.shape[:-1]) - 1).reshape(-1, len(order))
    return digits.join(_split(rare, order)), digits.join(_split(around, order))


def _layouts(digits: int, size: int) -> list[list[np.ndarray]]:
    """Lists the ways in which digits of a train with jumps may belong to coordinates."""
    fused = {4: 2, 8: 3}.get(size)
    place = np.arange(digits)
    if fused:
        return [[place[k::fused] for k in range(fused)]]
    out = [[place]]
    for dims in range(2, _COORDINATES + 1):
        if digits % dims == 0:
            out += [[place[k::dims] for k in range(dims)], np.split(place, dims)]
    return out


def _arranged(values: np.ndarray, order: list[np.ndarray]) -> np.ndarray:
    """Arranges entries of a train, in which jumps are looked for, by coordinates."""
    digits = sum(map(len, order))
    moved = values.reshape((2,) * digits + (-1,)).transpose(*np.concatenate(order), digits)
    return moved.reshape([1 << len(places) for places in order] + [-1])


def _at_edges(grid: np.ndarray, least: float) -> np.ndarray:
    """Whether each cell of a train differs from a neighbour along a coordinate: a jump."""
    out = np.zeros(grid.shape[:-1], bool)
    for axis in range(out.ndim):
        jump = (np.abs(np.diff(grid, axis=axis)) > least).any(axis=-1)
        for part in (slice(1, None), slice(None, -1)):
            out[(slice(None),) * axis + (part,)] |= jump
    return out


def _split(cells: np.ndarray, order: list[np.ndarray]) -> np.ndarray:
    """Splits coordinates of cells at jumps (m, dims) into the binary digits of a train."""
    out = np.empty((len(cells), sum(map(len, order))), np.int64)
    for k, places in enumerate(order):
        out[:, places] = (cells[:, k, None] >> np.arange(len(places) - 1, -1, -1)) & 1
    return out


def _steps(dims: int, beside: dict[int, int]) -> np.ndarray:
    """Lists the steps to cells around one at a jump, so many on each side along coordinates."""
    one_way = range(-beside[dims], beside[dims] + 1)
    return np.array([s for s in itertools.product(one_way, repeat=dims) if any(s)])


def _codes(grid: np.ndarray, cells: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Encodes which cells around those at edges of a train differ from them; and what part."""
    steps = _steps(cells.shape[1], _BESIDE)
    here, last = grid[tuple(cells.T)], np.array(grid.shape[:-1]) - 1
    weights = np.random.default_rng(0).integers(1, 1 << 62, len(steps))
    codes, count = np.zeros(len(cells), np.int64), np.zeros(len(cells))
    for step, weight in zip(steps, weights, strict=True):
        there = grid[tuple(np.clip(cells + step, 0, last).T)]
        differs = (np.abs(there - here) > least).any(axis=1)
        codes += weight * differs  # a hash: sums may wrap
        count += differs
    return codes, count / len(steps)
