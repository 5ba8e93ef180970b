"""Global search of `cross` for entries, anywhere in the tensor, where its train is wrong.

Sweeps look into the blocks of the index sets, held-out entries at random ones of the whole tensor.
What both miss lies at few entries. Three ways lead there: entries near the index sets, which follow
edges; mode-wise ascent of |f|, to peaks; and mode-wise ascent of the error |f − t| from the entries
that are worst so far, the global pivots of A. Dolgov, D. Savostyanov (2020) and of Y. Núñez
Fernández et al., "Learning tensor networks with tensor cross interpolation", SciPost Phys. 18
(2025), section 4.3.5.
"""

import numpy as np

from tensorjax._cores.contractions import absorb, times_slices
from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._cross.edge_patterns import rare_cells
from tensorjax.tt._cross.held_out_error import HeldOut
from tensorjax.tt._cross.jumps import Digits, along, edges
from tensorjax.tt._cross.sampled_function import Oracle
from tensorjax.tt._cross.train_entries import Sampler

# Entries near the index sets: one for so many evaluations, but these at least and at most.
_NEAR, _LEAST_NEAR, _MOST_NEAR = 10, 100, 500
# Lines on which jumps of the train are looked for: _LINES, fewer if modes are long, fewer still if
# f does not seem to jump, _FEW_LINES at least; then one in _EDGES evaluations is at the jumps
# found, one in _SMOOTH_EDGES if the train is not smooth beside any, or _LEAST_EDGES.
_LINES, _FEW_LINES = 1000, 100
_EDGES, _SMOOTH_EDGES, _LEAST_EDGES = 30, 300, 20
# Most entries at edges from which these are followed to the next ones.
_FOLLOWED = 2000
# Entries at rare patterns of jumps, and around tips, that are looked at: one for so many
# evaluations, or so many at least; and most tips.
_RARE, _TIP, _LEAST_RARE = 50, 10, 200
_TIPS = 300
# Corners to look at for each row of a block, beside the first and the last, where f seems to jump,
# and the most of all: to evaluate, and to choose from.
_CORNERS, _MOST_CORNERS, _MOST_LOOKED = 6, 5000, 20_000
# Modes up to this size may be digits, whose first and last ones say where in a box a corner is; of
# longer ones, fewer corners are looked at.
_DIGITS = 4
# Binary digits of up to three coordinates, fused or not. Edges are followed on these only:
# elsewhere functions that jump have low ranks, and a fit costs less than following would.
_BINARY = (2, 4, 8)
# Most and least entries to climb from at once.
_CLIMBS, _LEAST_CLIMBS = 10, 3
# Most sweeps of one ascent of the error over all modes; an ascent may stop at any entry.
_ASCENTS = 4


class GlobalSearch:
    """Search of the whole tensor for entries at which a cross approximation is wrong.

    Attributes:
      spent: evaluations that the search took, held-out entries not counted.
      climbs: ascents made.
    """

    def __init__(
        self, oracle: Oracle, held: HeldOut, rng: np.random.Generator, share: float, most: int
    ):
        self._oracle, self._held, self._rng = oracle, held, rng
        self._share, self._most = share, most
        self.spent = self.climbs = 0

    @property
    def credit(self) -> int:
        """Number of evaluations that the global search of `cross` may still use.

        Its part of all evaluations, with those it takes itself, is then the share asked for.
        """
        looked = self.spent + self._held.uniform
        more = (self._share * self._oracle.evaluations - looked) / (1 - self._share)
        return int(max(0.0, min(more, self._oracle.left)))

    @property
    def coarseness(self) -> int:
        """Ratio of the longest mode to a digit's, by which searches for errors are shorter."""
        return max(1, max(self._oracle.shape) // _DIGITS)

    @property
    def fine(self) -> bool:
        """Whether all modes may be binary digits, so that `cross` follows edges cell by cell."""
        return all(n in _BINARY for n in self._oracle.shape[: self._held.index.shape[1]])

    @property
    def a_climb(self) -> int:
        """Least number of evaluations of one ascent in the search of `cross` for errors."""
        return 2 * sum(self._oracle.shape)

    def random(self, count: int) -> np.ndarray:
        """Draws uniform multi-indices (count, d) of a tensor, to search for errors of `cross`."""
        shape = self._oracle.shape[: self._held.index.shape[1]]
        return self._rng.integers(0, shape, (count, len(shape)))

    def near(self, cores: Cores, left: list[np.ndarray], right: list[np.ndarray]) -> np.ndarray:
        """Draws multi-indices near the pivots of a cross approximation, to look for errors.

        Random entries, and drawn ones, that begin with a member of a left set or end with one of a
        right set: the sets hold the rare indices on which f depends in some way of its own, as
        those along the edge of a set whose indicator it is. And drawn entries as they are, or but
        for one or two indices.

        Args:
          left: left[k] (r, k) multi-indices, before mode k.
          right: right[k] (r, d − k).
        """
        modes = self._held.index.shape[1]
        most = _LEAST_NEAR if self._held.exact(cores) and not self._held.jumps else _MOST_NEAR
        count = int(np.clip(self._oracle.evaluations // _NEAR, _LEAST_NEAR, most))
        drawn = Sampler(cores).draw(count, self._rng)[:, :modes]
        count = len(drawn)
        random = self.random(count)
        kind, mode = self._rng.integers(0, [6, modes], (count, 2)).T
        out = np.where((kind % 2 == 0)[:, None], random, drawn)
        for k in range(modes):
            before = np.flatnonzero((kind < 2) & (mode == k))
            out[before, :k] = left[k][self._rng.integers(0, len(left[k]), len(before))]
            after = np.flatnonzero(((kind == 2) | (kind == 3)) & (mode == k))
            ends = right[k + 1][:, : modes - k - 1]
            out[after, k + 1 :] = ends[self._rng.integers(0, len(ends), len(after))]
        one = (kind == 4)[:, None]
        second = self._rng.integers(0, modes, count)  # the same mode again, or one more
        only = (np.arange(modes) == mode[:, None]) | (np.arange(modes) == second[:, None])
        return np.where(one, np.where(only, random, drawn), out)

    def edges(
        self,
        cores: Cores,
        left: list[np.ndarray],
        right: list[np.ndarray],
        least: float,
        *,
        many: bool,
    ) -> np.ndarray:
        """Finds multi-indices on both sides of jumps in a cross approximation's tensor train.

        Args:
          left: left[k] (r, k) multi-indices, before mode k.
          right: right[k] (r, d − k).
          least: jumps up to here are left alone.
          many: whether to look for many jumps; a few show whether there are any.
        """
        fewer = self.coarseness if many else max(self._oracle.shape)
        count = max(_FEW_LINES, _LINES // fewer)
        starts = self.random(count)
        modes = starts.shape[1]
        place = self._rng.integers(0, modes + 1, count // 2)
        for k in range(modes + 1):
            here = np.flatnonzero(place == k)
            for part, known in ((slice(k), left[k]), (slice(k, modes), right[k][:, : modes - k])):
                starts[here, part] = known[self._rng.integers(0, len(known), len(here))]
        sizes = np.array(self._oracle.shape[:modes])
        found, sharp = edges(cores, starts, sizes, least, self._rng)
        if many:  # where edges end or meet: lines through entries at edges
            again = self._rng.permutation(found)[:count]
            found = np.concatenate([found, edges(cores, again, sizes, least, self._rng)[0]])
        else:  # sharp ones first, as there f itself is most likely to jump
            found = np.concatenate([found, found[sharp]])
        out, met = np.unique(found, axis=0, return_counts=True)
        known = self._oracle.known(out)
        new = np.flatnonzero(~known)
        new = new[np.argsort(self._rng.random(len(new)) - met[new])]  # most lines meet true edges
        if not many:
            part = _EDGES if sharp.any() else _SMOOTH_EDGES
            new = new[: max(_LEAST_EDGES, self._oracle.evaluations // part)]
        return out[np.append(np.flatnonzero(known), new)]

    def along(self, cores: Cores, points: np.ndarray, least: float) -> np.ndarray:
        """Finds multi-indices at jumps of a train of `cross`, next to others that are at jumps."""
        points = self._rng.permutation(points)[:_FOLLOWED]
        sizes = np.array(self._oracle.shape[: points.shape[1]])
        return np.unique(along(cores, points, sizes, least, self._rng), axis=0)

    def rare(self, cores: Cores, least: float) -> np.ndarray:
        """Returns entries at rare patterns of jumps, around tips, and all known ones at jumps.

        Args:
          least: jumps up to here are left alone.
        """
        sizes = np.array(self._oracle.shape[: self._held.index.shape[1]])
        spent = self._oracle.evaluations
        parts = []
        for cells, part in zip(rare_cells(cores, sizes, least, _TIPS), (_RARE, _TIP), strict=True):
            known = self._oracle.known(cells)
            parts += [cells[known], cells[~known][: max(_LEAST_RARE, spent // part)]]
        return np.unique(np.concatenate(parts), axis=0)

    def corners(self, left: list[np.ndarray], *, many: bool) -> np.ndarray:
        """Returns corners of boxes of a tensor, where to search for errors of `cross` inside.

        The entries that begin with one row are a box, on digits of a grid a small one, and those
        that go on with first or last indices are its corners. If f jumps inside the box, corners
        have values on both sides, however near to one side the jump is. Digits of coordinates may
        be interleaved or in sequence: where many corners are looked at, words of one to three
        first or last indices are repeated, and may change to their opposites at one place.

        Args:
          left: left[k] (r, k) multi-indices, before mode k.
          many: whether to look at several corners of each box, and at more of them.
        """
        sizes, modes = np.array(self._oracle.shape), self._held.index.shape[1]
        words = 2 + many * _CORNERS
        most_rows = max(1, _MOST_LOOKED // (words * modes))
        parts = [np.empty((0, modes), np.int64)]
        for k in range(1, modes):
            number = self._rng.permutation(len(left[k - 1]) * sizes[k - 1])[:most_rows]
            parent, index = np.divmod(number, sizes[k - 1])
            rows = np.column_stack([left[k - 1][parent], index])
            digits = Digits(sizes[k:modes])
            for word in range(words):
                same = np.full((len(rows), len(digits.sizes)), word)
                ends = same if word < 2 else self._ends(*same.shape)
                parts.append(np.column_stack([rows, digits.join(ends * (digits.sizes - 1))]))
        out = np.unique(np.concatenate(parts), axis=0)
        # Two for each multi-index of the left sets, if not many.
        most = _MOST_CORNERS if many else 2 * sum(map(len, left[:modes]))
        most = max(_LEAST_EDGES, most // self.coarseness**2)
        known = self._oracle.known(out)
        new = self._rng.permutation(np.flatnonzero(~known))[:most]
        return out[np.append(np.flatnonzero(known), new)]

    def _ends(self, count: int, digits: int) -> np.ndarray:
        """Draws 0/1 patterns that select corners of a tensor, to search for errors there."""
        words = self._rng.integers(0, 2, (count, 3))
        period = self._rng.integers(1, 4, count)[:, None]
        place = np.arange(digits)
        switch = self._rng.integers(0, 2 * digits, count)[:, None]
        ends = np.take_along_axis(words, place % period, axis=1)
        return np.where(place >= switch, 1 - ends, ends)

    def tops(self) -> np.ndarray:
        """Searches local maxima of |f| by mode-wise ascent from random entries, to find errors."""
        oracle, modes = self._oracle, self._held.index.shape[1]
        count = np.clip(self._most // self.a_climb, _LEAST_CLIMBS, _CLIMBS)
        starts = self._held.not_zero(int(min(count, oracle.left // (4 * self.a_climb))))
        tops = [climbed(oracle, p)[:modes] for p in starts]
        return np.array(tops, np.int64).reshape(len(tops), modes)

    def worst_tops(
        self, cores: Cores, points: np.ndarray, count: int, *, relative: bool = False
    ) -> np.ndarray:
        """Searches local maxima of a train's error |f − t| by mode-wise ascent.

        Args:
          points: to start from, the most promising first.
          count: evaluations to take at most, about.
          relative: whether to climb first on the error beside what the train sums up.
        """
        modes = points.shape[1]
        points = points[: min(_CLIMBS, count // self.a_climb)]
        if not len(points):
            return points
        before = self._oracle.evaluations
        self.climbs += len(points)
        if len(self._oracle.shape) > modes:  # the component that is wrong is found on the way
            points = np.column_stack([points, np.zeros(len(points), np.int64)])
        sweeps = max(1, min(_ASCENTS, count // (len(points) * (self.a_climb // 2))))
        if relative:
            points = climbed_errors(self._oracle, cores, points, sweeps, relative=True)
        tops = climbed_errors(self._oracle, cores, points, sweeps)[:, :modes]
        self.spent += self._oracle.evaluations - before
        return tops


def climbed(oracle: Oracle, point: np.ndarray) -> np.ndarray:
    """Climbs to a local maximum of |f|, mode after mode, in the search for errors of `cross`."""
    best = -1.0
    point = point.copy()
    while True:
        for k, n in enumerate(oracle.shape):
            index = np.tile(point, (n, 1))
            index[:, k] = np.arange(n)
            sizes = np.abs(oracle.pairs(oracle.part(index[:, :1], 0), oracle.part(index[:, 1:], 1)))
            point[k] = int(sizes.argmax())
            size = float(sizes.max())
        if not size > best:
            return point
        best = size


def climbed_errors(
    oracle: Oracle, cores: Cores, points: np.ndarray, sweeps: int, *, relative: bool = False
) -> np.ndarray:
    """Climbs from entries (m, d) to larger errors of a cross approximation, mode after mode.

    All entries climb at once. Vectors of the train left and right of a mode are kept, so that its
    fibres cost r² each.

    Args:
      oracle: f.
      points: (m, d) to start from.
      sweeps: over all modes, at most.
      relative: whether errors are over the magnitude of the terms that make the train's entry: what
        is roundoff where the train is large is an error where it is small.

    Example:
      >>> import numpy as np
      >>> from tensorjax.tt._cross.sampled_function import Oracle
      >>> f = lambda i: 1.0 * (i.sum(axis=1))
      >>> oracle = Oracle(f, (3, 4), grid=None, vectorized=True, jit=False, budget=None)
      >>> _ = oracle.start(np.array([[0, 0]]))
      >>> zero = [np.zeros((1, 3, 1)), np.zeros((1, 4, 1))]
      >>> print(climbed_errors(oracle, zero, np.array([[1, 1]]), 2))
      [[2 3]]
    """
    points, best = points.copy(), np.full(len(points), -1.0)
    parts = [_Fibres(cores)]
    if relative:
        parts.append(_Fibres([np.abs(core) for core in cores]))
    for _ in range(sweeps):
        for part in parts:
            part.start(points)
        for k in range(points.shape[1]):
            fitted = [part.values(k) for part in parts]
            error = np.abs(_fibres(oracle, points, k) - fitted[0])
            if relative:
                with np.errstate(over="ignore"):
                    error = error / (fitted[1] + np.finfo(float).tiny)
            points[:, k] = error.argmax(axis=1)
            for part in parts:
                part.take(points[:, k])
        size = error.max(axis=1)
        if not (size > best).any():
            break
        best = np.maximum(best, size)
    return points


class _Fibres:
    """Fibres of a train, mode after mode, along which the global search climbs to errors."""

    def __init__(self, cores: Cores):
        self._cores = cores

    def start(self, points: np.ndarray) -> None:
        """Contracts core slices right of every mode, to search for errors on fibres."""
        self._right = [np.ones((len(points), 1))]
        for k in range(points.shape[1] - 1, 0, -1):
            mirrored = self._cores[k].transpose(2, 1, 0)
            self._right.append(times_slices(self._right[-1], mirrored, points[:, k]))
        self._left = np.ones((len(points), 1))

    def values(self, k: int) -> np.ndarray:
        """Evaluates a train's fibres along mode k, (m, n_k), in the search for errors."""
        self._rows = absorb(self._left, self._cores[k])  # (entries, n, r)
        return (self._rows * self._right.pop()[:, None]).sum(axis=2)

    def take(self, index: np.ndarray) -> None:
        """Fixes a mode's indices (m,), and takes the search for errors to the next mode."""
        self._left = self._rows[np.arange(len(index)), index]


def _fibres(oracle: Oracle, points: np.ndarray, k: int) -> np.ndarray:
    """Evaluates f along fibres of mode k through entries, (m, n_k), to search `cross`'s errors."""
    n = oracle.shape[k]
    index = np.repeat(points, n, axis=0)
    index[:, k] = np.tile(np.arange(n), len(points))
    values = oracle.pairs(oracle.part(index[:, :1], 0), oracle.part(index[:, 1:], 1))
    return values.reshape(len(points), n)
