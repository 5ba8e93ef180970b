"""Search for jumps of `cross`'s tensor train: pairs of neighbouring entries between which it jumps.

A function that jumps is right nearly everywhere once its train has the right ranks, and wrong next
to the edges, which the train has at slightly wrong places. The train itself says where its edges
are: bisection along lines finds them without any evaluation of the function, and the entries on
both sides of an edge show whether the function jumps there too.

A line runs through some modes, in lexicographic order of their indices: all of them, every second
or third (the digits of one coordinate where those of several are interleaved), or a range of them
(digits in sequence); the other indices are those of the entry where it starts.
"""

import itertools

import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._cross.train_entries import entries

# A pair of neighbours is an edge if the train differs there by this part of what it differs by
# between the ends where the bisection began.
_EDGE = 0.1
# An edge is sharp if the train differs there by so many times what it differs by next to it: a
# smooth function on a coarse grid, or a peak, does not.
_SHARP = 30


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
    line = _lines(starts.shape, rng)
    first, last = np.where(line, 0, starts), np.where(line, sizes - 1, starts)
    at = [entries(cores, x) for x in (first, starts, last)]
    # Between the start and one end: a train that is the same at both ends may jump twice.
    back = (_distance(at[0], at[1]) > _distance(at[1], at[2]))[:, None]
    low, high = np.where(back, first, starts), np.where(back, starts, last)
    at_low, at_high = np.where(back, at[0], at[1]), np.where(back, at[1], at[2])
    whole = _distance(at_low, at_high)
    going = np.flatnonzero((whole > least) & (low != high).any(axis=1))
    while going.size:
        left, right = _middle(low[going], high[going], line[going], sizes)
        between = entries(cores, left), entries(cores, right)
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
    beside = _beside(cores, low, high, line[jumps], sizes)
    return np.concatenate([low, high]), np.tile(size[jumps] > _SHARP * beside, 2)


def _beside(
    cores: Cores, low: np.ndarray, high: np.ndarray, line: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """Computes a tensor train's change one step beyond pairs of entries that it jumps between.

    Between the neighbours of the pair, and between the pairs of which only the indices up to the
    one that differs are other ones, by one: where a line runs through several coordinates, those
    that begin anew behind each step of another one make jumps all along the line.
    """
    upto = line & (np.arange(low.shape[1]) <= (low != high).argmax(axis=1)[:, None])
    at_low, at_high = entries(cores, low), entries(cores, high)
    out, moved = np.zeros(len(low)), np.zeros(len(low), bool)
    for back in (True, False):
        at, values = (low, at_low) if back else (high, at_high)
        out = np.maximum(out, _distance(entries(cores, _next(at, line, sizes, back=back)), values))
        pair = [_next(x, upto, sizes, back=back) for x in (low, high)]
        here = (pair[0] != low).any(axis=1) & (pair[1] != high).any(axis=1)
        steps = _distance(*(entries(cores, x) for x in pair))
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
