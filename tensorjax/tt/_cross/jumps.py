"""Search for jumps of `cross`'s tensor train: pairs of neighbouring entries between which it jumps.

A function that jumps is right nearly everywhere once its train has the right ranks, and wrong next
to the edges, which the train has at slightly wrong places. The train itself says where its edges
are: bisection along lines finds them without any evaluation of the function, and the entries on
both sides of an edge show whether the function jumps there too.

A line runs through some modes, in lexicographic order of their indices: all of them, every second
or third (the digits of one coordinate where those of several are interleaved), or a range of them
(digits in sequence); the other indices are those of the entry where it starts. A mode of size 4 or
8 counts as two or three binary digits, for it may be fused of those of several coordinates: along
the order of its own indices all coordinates change at once.
"""

import itertools
from collections.abc import Callable

import numpy as np

from tensorjax import linalg
from tensorjax._cores.scaling import norms_near_one
from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._cross.train_entries import entries

# A pair of neighbours is an edge if the train differs there by this part of what it differs by
# between the ends where the bisection began.
_EDGE = 0.1
# An edge is sharp if the train differs there by so many times what it differs by next to it: a
# smooth function on a coarse grid, or a peak, does not.
_SHARP = 30
# Neighbours that are looked at from each entry at an edge.
_TRIES = 8
# Modes of these sizes count as so many binary digits.
_BINARY = {4: 2, 8: 3}


class Digits:
    """Digits of multi-indices, in which `cross` searches for jumps and corners: fused ones apart.

    Attributes:
      sizes: (digits,) number of values of each.
      owner: (digits,) modes that they are digits of.

    Example:
      >>> import numpy as np
      >>> digits = Digits(np.array([5, 4]))
      >>> print(digits.sizes, digits.owner)
      [5 2 2] [0 1 1]
      >>> at = digits.split(np.array([[4, 2]]))
      >>> print(at, digits.join(at))
      [[4 1 0]] [[4 2]]
    """

    def __init__(self, modes: np.ndarray):
        count = np.array([_BINARY.get(int(n), 1) for n in modes])
        self.owner = np.repeat(np.arange(len(modes)), count)
        self.sizes = np.where(count > 1, 2, modes)[self.owner]
        behind = np.cumsum(count)[self.owner] - 1 - np.arange(len(self.owner))
        self._place = np.where(count[self.owner] > 1, 1 << behind, 1)
        self._starts = np.cumsum(count) - count

    def split(self, index: np.ndarray) -> np.ndarray:
        """Splits multi-indices (m, d), where `cross` looks for jumps, into (m, digits)."""
        return index[:, self.owner] // self._place % self.sizes

    def join(self, digits: np.ndarray) -> np.ndarray:
        """Joins digits (m, digits), between which `cross` found jumps, to multi-indices (m, d)."""
        return np.add.reduceat(digits * self._place, self._starts, axis=1)


def edges(
    cores: Cores, starts: np.ndarray, sizes: np.ndarray, least: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Finds neighbouring entries between which a tensor train jumps, by bisection along lines.

    Args:
      starts: (m, d) entries, one line through each.
      sizes: (d,) mode sizes.
      least: jumps up to here are left alone.
      rng: of the lines, and of the parts where bisection goes on.

    Returns:
      The jumps found, one behind the other: entries before them, then those behind them. And which
      of these entries are at a sharp edge.

    Example:
      >>> import numpy as np
      >>> rng = np.random.default_rng(0)
      >>> step = np.repeat([0.0, 1.0], [37, 27]).reshape(1, 64, 1)
      >>> found, sharp = edges([step], np.array([[50]]), np.array([64]), 0.0, rng)
      >>> print(found.ravel(), sharp)
      [36 37] [ True  True]
    """
    digits = Digits(sizes)
    starts, sizes = digits.split(starts), digits.sizes
    # Once, and not for each batch of the bisection; powers of two round nothing.
    cores, exponent = norms_near_one(cores)
    train = lambda x: linalg.scaled(entries(cores, digits.join(x)), exponent)  # noqa: E731
    line = _lines(starts.shape, rng)
    first, last = np.where(line, 0, starts), np.where(line, sizes - 1, starts)
    at = [train(x) for x in (first, starts, last)]
    # Between the start and one end: a train that is the same at both ends may jump twice.
    back = (_distance(at[0], at[1]) > _distance(at[1], at[2]))[:, None]
    low, high = np.where(back, first, starts), np.where(back, starts, last)
    at_low, at_high = np.where(back, at[0], at[1]), np.where(back, at[1], at[2])
    whole = _distance(at_low, at_high)
    going = np.flatnonzero((whole > least) & (low != high).any(axis=1))
    while going.size:
        left, right = _middle(low[going], high[going], line[going], sizes)
        between = np.split(train(np.concatenate([left, right])), 2)
        values = [at_low[going], *between, at_high[going]]
        parts = np.stack([_distance(x, y) for x, y in itertools.pairwise(values)])
        part = _drawn(parts, rng)
        before, after = part > 0, part < 2
        low[going[before]] = np.where((part == 1)[:, None], left, right)[before]
        at_low[going[before]] = np.where((part == 1)[:, None], *between)[before]
        high[going[after]] = np.where((part == 1)[:, None], right, left)[after]
        at_high[going[after]] = np.where((part == 1)[:, None], *between[::-1])[after]
        going = going[(part != 1) & (low[going] != high[going]).any(axis=1)]
    size = _distance(at_low, at_high)
    jumps = np.flatnonzero(size > np.maximum(_EDGE * whole, least))
    low, high = low[jumps], high[jumps]
    beside = _beside(train, low, high, line[jumps], sizes)
    return digits.join(np.concatenate([low, high])), np.tile(size[jumps] > _SHARP * beside, 2)


def along(
    cores: Cores, points: np.ndarray, sizes: np.ndarray, least: float, rng: np.random.Generator
) -> np.ndarray:
    """Finds entries between which a tensor train jumps, next to entries where it does.

    From each, several steps go to a neighbour on a random line, and on to a neighbour of that: both
    are at an edge if the train differs between them.

    Args:
      points: (m, d) entries at edges.
      sizes: (d,) mode sizes.
      least: jumps up to here are left alone.
      rng: of the steps.

    Example:
      >>> import numpy as np
      >>> rng = np.random.default_rng(0)
      >>> steps = [np.eye(16)[None], np.tri(16)[:, :, None]]
      >>> found = along(steps, np.array([[8, 8]]), np.array([16, 16]), 0.5, rng)
      >>> bool((abs(found - 8) <= 2).all()), len(found) > 0
      (True, True)
    """
    digits = Digits(sizes)
    here = np.repeat(digits.split(points), _TRIES, axis=0)
    back, again = rng.random((2, len(here), 1)) < 0.5
    for part in (back, again):
        line = _lines(here.shape, rng)
        before = here
        steps = [_next(here, line, digits.sizes, back=way) for way in (True, False)]
        here = np.where(part, *steps)
    pair = digits.join(before), digits.join(here)
    jumps = _distance(*(entries(cores, x) for x in pair)) > least
    return np.concatenate([x[jumps] for x in pair])


def _beside(
    train: Callable[[np.ndarray], np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    line: np.ndarray,
    sizes: np.ndarray,
) -> np.ndarray:
    """Computes a tensor train's change one step beyond pairs of entries that it jumps between.

    Between the neighbours of the pair, and between the pairs of which only the indices up to the
    one that differs are other ones, by one: where a line runs through several coordinates, those
    that begin anew behind each step of another one make jumps all along the line.
    """
    upto = line & (np.arange(low.shape[1]) <= (low != high).argmax(axis=1)[:, None])
    at_low, at_high = train(low), train(high)
    out, moved = np.zeros(len(low)), np.zeros(len(low), bool)
    for back in (True, False):
        at, values = (low, at_low) if back else (high, at_high)
        out = np.maximum(out, _distance(train(_next(at, line, sizes, back=back)), values))
        pair = [_next(x, upto, sizes, back=back) for x in (low, high)]
        here = (pair[0] != low).any(axis=1) & (pair[1] != high).any(axis=1)
        steps = _distance(*(train(x) for x in pair))
        out, moved = np.where(here, np.maximum(out, steps), out), moved | here
    return np.where(moved, out, np.inf)


def _lines(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draws random lines through entries along which `cross` searches for jumps."""
    count, d = shape
    place = np.arange(d)
    period = rng.integers(1, 4, count)[:, None]
    one = rng.integers(0, d, count)[:, None]
    # Half of them run through all modes of the period, half through a range of modes.
    # Half of the ranges end at the last mode: jumps are located to the cell by the last digits.
    last = np.where(rng.random((count, 1)) < 0.5, d - 1, rng.integers(one, d))
    ends = rng.integers(0, one + 1), last
    ranged = rng.random((count, 1)) < 0.5
    inside = ~ranged | ((place >= ends[0]) & (place <= ends[1]))
    return inside & ((place - one) % period == 0)


def _middle(
    low: np.ndarray, high: np.ndarray, line: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bisects a line on which a train jumps: returns the two neighbouring entries half way."""
    rows = np.arange(len(low))
    mode = (low != high).argmax(axis=1)
    index = (low[rows, mode] + high[rows, mode]) // 2
    index = np.minimum(index, high[rows, mode] - 1)
    behind = line & (np.arange(low.shape[1]) > mode[:, None])
    left, right = np.where(behind, sizes - 1, low), np.where(behind, 0, low)
    left[rows, mode], right[rows, mode] = index, index + 1
    return left, right


def _next(at: np.ndarray, line: np.ndarray, sizes: np.ndarray, *, back: bool) -> np.ndarray:
    """Returns the next entries on lines along which a tensor train may jump, not past the ends."""
    out, going = at.copy(), np.ones(len(at), bool)
    for k in reversed(range(at.shape[1])):
        here = going & line[:, k]
        full = out[:, k] == (0 if back else sizes[k] - 1)
        out[:, k] += here * np.where(full, sizes[k] - 1, -1) * (1 if back else -1)
        going &= ~line[:, k] | full
    return np.where(going[:, None], at, out)


def _drawn(parts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws the part of each line that is searched next for a train's jump, by its change."""
    weights = np.cumsum(parts, axis=0)
    return np.minimum((weights <= rng.random(len(parts.T)) * weights[-1]).sum(axis=0), 2)


def _distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x - y, axis=1)
