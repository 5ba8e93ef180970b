"""Points where a function of several variables is large, found by ascents along lines."""

from collections.abc import Callable, Mapping

import numpy as np

# Peaks to climb to, beside the largest value known, where random points see little of f.
_CLIMBS = 8
# Most sweeps of an ascent over all variables: the first time, and on finer lines.
_SWEEPS, _MORE_SWEEPS = 4, 1
# Peaks below this part of the largest one are left out.
_LOW = 0.01
# A peak stands out of a line if all values at its nodes are below this part of it.
_HIDDEN = 0.5
# Number of random points that must carry the norm of f for f not to be concentrated.
TELLING = 10


def telling(squares: np.ndarray) -> float:
    """Returns (Σ s)² / Σ s², the number of points that carry a peaked sum; 0 for all zeros.

    Example:
      >>> import numpy as np
      >>> telling(np.array([2.0, 2.0, 0.0])), telling(np.zeros(3))
      (2.0, 0.0)
    """
    top = squares.max(initial=0.0)
    parts = squares / (top or 1.0)
    return float(parts.sum() ** 2 / (parts @ parts)) if top > 0 else 0.0


class Peaks:
    """Points that climb to local maxima of |f| along lines of nodes, one variable after the other.

    A few lines through the largest of some random points show how f varies where it is large; and
    if only few of these see f, ascents from other points show whether it has other peaks.

    Attributes:
      points: (m, d); none if f is zero wherever it was looked at.
      concentrated: whether few of the random points see f.
    """

    def __init__(
        self, points: np.ndarray, values: np.ndarray, given: int, rng: np.random.Generator
    ):
        """Starts from points (n, d) with values (n, components): random ones, the last given."""
        start = len(points) - given
        every = np.linalg.norm(values, axis=1)
        sizes = every[:start]
        top = sizes.max(initial=0.0)
        self.concentrated = telling((sizes / (top or 1.0)) ** 2) < TELLING
        seen = np.flatnonzero(sizes > 0)
        others = rng.permutation(seen)[: _CLIMBS * self.concentrated]
        first = np.append(sizes.argmax(), others) if seen.size else seen
        first = np.append(first, np.arange(start, len(points)))
        self.points, self._sizes = points[first], every[first]
        self._climbed = False

    @property
    def lines(self) -> int:
        """Largest number of lines along each variable in the next ascent."""
        return len(self.points) * self._sweeps

    @property
    def _sweeps(self) -> int:
        return _MORE_SWEEPS if self._climbed else (_SWEEPS if self.concentrated else 2)

    def hidden(self, lines: np.ndarray) -> bool:
        """Whether a peak stands out of all values (m, n, components) on the line through it."""
        return bool((np.linalg.norm(lines, axis=2).max(axis=1) < _HIDDEN * self._sizes).any())

    def climb(
        self, values: Callable[[np.ndarray], np.ndarray], grids: Mapping[int, np.ndarray]
    ) -> dict[int, np.ndarray]:
        """Climbs along lines of nodes of some variables, in turn; then joins equal points.

        Args:
          values: f of points (batch, d).
          grids: for each variable the nodes (n_k,) of its lines.

        Returns:
          Values (m, n_k, components) on the last line along each variable.
        """
        lines: dict[int, np.ndarray] = {}
        for _ in range(self._sweeps if len(self.points) else 0):
            before = self.points.copy()
            for k, nodes in grids.items():
                found = values(along(self.points, k, nodes))
                found = found.reshape(len(self.points), len(nodes), -1)
                on_line = np.linalg.norm(found, axis=2)
                sizes, at = on_line.max(axis=1), on_line.argmax(axis=1)
                higher = sizes > self._sizes
                self.points[higher, k] = nodes[at[higher]]
                self._sizes = np.maximum(sizes, self._sizes)
                lines[k] = found
            if (self.points == before).all():
                break
            lines = self._joined(lines)
        self._climbed = True
        self._sizes[self._sizes <= _LOW * self._sizes.max(initial=0.0)] = 0
        return self._joined(lines)

    def _joined(self, lines: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Joins equal points, and leaves out those where f is zero, with their lines."""
        once = np.sort(np.unique(self.points, axis=0, return_index=True)[1])
        keep = once[self._sizes[once] > 0]
        self.points, self._sizes = self.points[keep], self._sizes[keep]
        return {k: v[keep] for k, v in lines.items()}


def along(points: np.ndarray, k: int, nodes: np.ndarray) -> np.ndarray:
    """Returns points (m n, d) on lines along variable k, along which peaks are climbed.

    Example:
      >>> import numpy as np
      >>> along(np.array([[1.0, 2.0]]), 1, np.array([5.0, 6.0])).tolist()
      [[1.0, 5.0], [1.0, 6.0]]
    """
    x = np.repeat(points, len(nodes), axis=0)
    x[:, k] = np.tile(nodes, len(points))
    return x
