"""Points where a function of several variables, or an error, is large, by ascent along lines.

A narrow peak beside a smooth function is met by few random points or by none, but its tail may be:
one error of a functional train is then far above all others. Ascents of |f − t| along the
coordinates lead from there to the peak, as the global pivots of `tt.cross` do on a grid.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax.tt.functions.bases import Basis
from tensorjax.tt.functions.evaluation import host_values
from tensorjax.tt.functions.interpolated_function import Values

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
# An error stands out above so many times the root mean square of all but the TELLING largest ones.
_STANDS_OUT = 10
# Most sweeps of an ascent over all variables; points of a line on both sides of where it is, at
# distances that halve with every second one, and points all along the interval.
_ERROR_SWEEPS, _NEAR, _ALONG = 3, 20, 33
# An ascent has found another part of f if the error there is so many times that where it began.
_FOUND = 3
# A peak ends where the error is below this part of its top; so many times that far is looked at.
_END, _WIDER = 0.02, 1.5


def telling(squares: np.ndarray) -> float:
    """Returns (Σ s)² / Σ s², the effective number of points in a peaked sum; 0 for all zeros.

    Example:
      >>> import numpy as np
      >>> telling(np.array([2.0, 2.0, 0.0])), telling(np.zeros(3))
      (2.0, 0.0)
    """
    top = squares.max(initial=0.0)
    parts = squares / (top or 1.0)
    return float(parts.sum() ** 2 / (parts @ parts)) if top > 0 else 0.0


class Peaks:
    """Points that ascend to local maxima of |f| along lines of nodes, one variable at a time.

    A few lines through the largest of some random points show how f varies where it is large; and
    if only few of these see f, ascents from other points show whether it has other peaks.

    Attributes:
      points: (m, d); none if f is zero wherever it was looked at.
      concentrated: whether few of the random points see f.
    """

    def __init__(
        self, points: np.ndarray, values: np.ndarray, given: int, rng: np.random.Generator
    ):
        """Chooses starts of ascents to peaks from points (n, d) and values of f, and others."""
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
        """Largest number of lines along each variable in the next ascent to peaks of f."""
        return len(self.points) * self._sweeps

    @property
    def _sweeps(self) -> int:
        return _MORE_SWEEPS if self._climbed else (_SWEEPS if self.concentrated else 2)

    def hidden(self, lines: np.ndarray) -> bool:
        """Whether |f| at a point on its way to a peak is far above its values at nodes."""
        return bool((np.linalg.norm(lines, axis=2).max(axis=1) < _HIDDEN * self._sizes).any())

    def climb(
        self, values: Callable[[np.ndarray], np.ndarray], grids: Mapping[int, np.ndarray]
    ) -> dict[int, np.ndarray]:
        """Climbs to peaks of f along lines of nodes of some variables, in turn; joins equal points.

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
        """Joins equal points of an ascent to peaks of f, and removes those where f is zero."""
        once = np.sort(np.unique(self.points, axis=0, return_index=True)[1])
        keep = once[self._sizes[once] > 0]
        self.points, self._sizes = self.points[keep], self._sizes[keep]
        return {k: v[keep] for k, v in lines.items()}


def along(points: np.ndarray, k: int, nodes: np.ndarray) -> np.ndarray:
    """Returns points (m n, d) on lines along variable k, for ascents to peaks of f.

    Example:
      >>> import numpy as np
      >>> along(np.array([[1.0, 2.0]]), 1, np.array([5.0, 6.0])).tolist()
      [[1.0, 5.0], [1.0, 6.0]]
    """
    x = np.repeat(points, len(nodes), axis=0)
    x[:, k] = np.tile(nodes, len(points))
    return x


class HiddenPart(NamedTuple):
    """Part of a function that a functional train lacks: its peak, and a box about it.

    Attributes:
      point: (d,) where the error is largest.
      low, high: (d,) ends of the box.
    """

    point: np.ndarray
    low: np.ndarray
    high: np.ndarray


def standing_out(wrong: np.ndarray) -> int | None:
    """Returns the index of the peak of some errors if it is far above the others, else None.

    Example:
      >>> import numpy as np
      >>> standing_out(np.append(np.ones(100), 200.0)), standing_out(np.ones(100))
      (100, None)
    """
    worst = int(wrong.argmax())
    rest = np.sort(wrong)[:-TELLING] / (wrong[worst] or 1.0)
    far = wrong[worst] > 0 and float((rest**2).sum()) * _STANDS_OUT**2 < len(wrong)
    return worst if far else None


def hidden_part(
    values: Values, bases: Sequence[Basis], cores: Cores, start: np.ndarray, least: float
) -> HiddenPart | None:
    """Climbs to a peak of a functional train's error, along one variable after another.

    Args:
      values: the function.
      bases: of the train.
      cores: of the train.
      start: (d,) where the ascent begins.
      least: smaller errors do not count as found.

    Returns:
      The part found; None if errors are about as large where the ascent began.
    """
    low, high = np.array([b.low for b in bases]), np.array([b.high for b in bases])
    ladder = 2.0 ** (-np.arange(2, 2 + _NEAR) / 2)
    point, first, best = start.copy(), 0.0, -1.0
    profiles: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(_ERROR_SWEEPS):
        before, profiles = point.copy(), []
        for k in range(len(bases)):
            steps = (high[k] - low[k]) * ladder
            line = np.concatenate(
                [
                    point[[k]],
                    point[k] - steps,
                    point[k] + steps,
                    np.linspace(low[k], high[k], _ALONG),
                ]
            )
            line = np.clip(line, low[k], high[k])
            if values.left < len(line):
                return None
            x = along(point[None], k, line)
            true = values(x)
            wrong = np.linalg.norm(true - host_values(bases, cores, x).reshape(true.shape), axis=1)
            first = first or float(wrong[0])
            profiles.append((line, wrong))
            point[k], best = line[wrong.argmax()], float(wrong.max())
        if (point == before).all():
            break
    if best <= max(_FOUND * first, least):
        return None
    widths = np.array(
        [_width(line, wrong, x) for (line, wrong), x in zip(profiles, point, strict=True)]
    )
    return HiddenPart(point, np.maximum(low, point - widths), np.minimum(high, point + widths))


def _width(line: np.ndarray, wrong: np.ndarray, top: float) -> float:
    """Returns how far a peak of interpolation errors extends along a line, on its longer side."""
    far = np.abs(line - top)
    large = wrong > _END * wrong.max()
    beyond = far[~large & (far > 0)]
    # At least as far as the next points, for the peak may be narrower than their distance.
    least = float(far[far > 0].min())
    reach = float(far[large].max(initial=0.0))
    inside = beyond[beyond > reach]
    return _WIDER * max(least, float(inside.min()) if inside.size else reach)
