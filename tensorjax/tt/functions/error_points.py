"""Points at which the error of a functional train is measured: random ones, and drawn ones.

Random points of the box tell nothing of a function that is large in a small part of it. The train
itself says where that is: points drawn from its square are then looked at too, and each point is
weighted by the inverse of its probability under both ways of drawing (multiple importance sampling
with the balance heuristic: E. Veach, L. Guibas, SIGGRAPH 1995).
"""

import math
from collections.abc import Sequence

import numpy as np

from tensorjax._cores.contractions import times_mode
from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._cross.train_entries import Sampler
from tensorjax.tt.functions.bases import Basis
from tensorjax.tt.functions.degree_choice import uniform
from tensorjax.tt.functions.error_search import standing_out
from tensorjax.tt.functions.evaluation import host_values
from tensorjax.tt.functions.function_values import Values
from tensorjax.tt.functions.peaks import TELLING, telling

# Most random points to look at while f is zero at all of them.
_MOST_ZEROS = 20_000


class ErrorPoints:
    """Points at which a functional train's error is measured: values of f that it is not fitted to.

    Attributes:
      x: points (m, d), random ones first.
      true: values of f there, (m, components).
    """

    def __init__(
        self, values: Values, bases: Sequence[Basis], count: int, rng: np.random.Generator
    ):
        self._values, self._rng = values, rng
        self.x = uniform(bases, count, rng)
        self.true = values(self.x)
        while not self.true.any() and len(self.x) < min(_MOST_ZEROS, values.left // 4):
            x = uniform(bases, len(self.x), rng)
            self.x = np.concatenate([self.x, x])
            self.true = np.concatenate([self.true, values(x)])
        self._count = len(self.x)
        self._boxes: list[tuple[np.ndarray, np.ndarray, int]] = []
        self._lengths = np.array([b.high - b.low for b in bases])
        self._weigh()

    @property
    def random(self) -> int:
        """Number of the random points of the whole box."""
        return self._count

    @property
    def _sizes(self) -> np.ndarray:
        return np.linalg.norm(self.true, axis=1)

    @property
    def rms(self) -> float:
        """Root mean square of f over the box, estimated from the points."""
        top = float(self._sizes.max()) or 1.0
        parts = self._weights * (self._sizes / top) ** 2
        return top * float(np.sqrt(parts.sum() / self._weights.sum()))

    @property
    def _fixed(self) -> int:
        """Number of points that do not depend on the train: random ones, of all boxes."""
        return self._count + sum(count for _, _, count in self._boxes)

    def extend(self, bases: Sequence[Basis], count: int) -> None:
        """Adds random points of the whole box at which the error is measured."""
        x, u = uniform(bases, count, self._rng), self._count
        true = self._values(x)
        self.x = np.concatenate([self.x[:u], x, self.x[u : self._fixed]])
        self.true = np.concatenate([self.true[:u], true, self.true[u : self._fixed]])
        self._count += count
        self._weigh()

    def look_at(self, low: np.ndarray, high: np.ndarray) -> None:
        """Adds points of a box, half as many as random ones, at which the error is measured."""
        count = int(min(self._count // 2, self._values.left // 4))
        if count < TELLING:
            return
        x, fixed = low + (high - low) * self._rng.random((count, len(low))), self._fixed
        self.x = np.concatenate([self.x[:fixed], x])
        self.true = np.concatenate([self.true[:fixed], self._values(x)])
        self._boxes.append((low, high, count))
        self._weigh()

    def _weigh(self, drawn: np.ndarray | float = 0.0) -> None:
        """Computes the importance weights of all points; ``drawn`` is the density of drawn ones."""
        density = self._count + drawn * np.ones(len(self.x))
        for low, high, count in self._boxes:
            part = np.exp(np.log((high - low) / self._lengths).sum())
            density += count * ((self.x >= low) & (self.x <= high)).all(axis=1) / part
        self._weights = 1 / density

    def follow(self, bases: Sequence[Basis], cores: Cores) -> None:
        """Draws points from the square of a train, half as many, if too few points see f."""
        count = int(min(self._count // 2, self._values.left // 4))
        if count < TELLING or telling(self._weights * self._sizes**2) >= TELLING:
            return
        source = _Density(bases, cores)
        if not source.proper:
            return
        x, fixed = source.draw(count, self._rng), self._fixed
        self.x = np.concatenate([self.x[:fixed], x])
        self.true = np.concatenate([self.true[:fixed], self._values(x)])
        self._weigh(count * np.exp(np.minimum(source.log_density(self.x), 600.0)))

    def worst(self, bases: Sequence[Basis], cores: Cores) -> np.ndarray | None:
        """Returns the point of the largest error of a train if it is far above all others."""
        found = host_values(bases, cores, self.x).reshape(self.true.shape)
        place = standing_out(np.linalg.norm(found - self.true, axis=1))
        return None if place is None else self.x[place]

    def error(self, bases: Sequence[Basis], cores: Cores) -> tuple[float, float, float]:
        """Measures the error of a train: relative, its deviation, and the largest."""
        found = host_values(bases, cores, self.x).reshape(self.true.shape)
        difference, size = np.linalg.norm(found - self.true, axis=1), self._sizes
        top = size.max()
        if not difference.any():
            return 0.0, 0.0, 0.0
        if not top:
            return math.inf, math.inf, math.inf
        parts = [self._weights * (d / top) ** 2 for d in (difference, size)]
        spread = [float(p.std() / p.mean()) / len(p) ** 0.5 for p in parts]
        error = float(np.sqrt(parts[0].mean() / parts[1].mean()))
        return error, error * math.hypot(*spread) / 2, float(difference.max() / top)


class _Density:
    """Density |t|² of a functional train, from which points to measure its error are drawn.

    Attributes:
      proper: whether the train is not zero.
    """

    def __init__(self, bases: Sequence[Basis], cores: Cores):
        self._edges = [_cells(b) for b in bases]
        widths = [np.diff(e) for e in self._edges]
        at_nodes = [
            b.values(b.nodes) * np.sqrt(w)[:, None] for b, w in zip(bases, widths, strict=True)
        ]
        weighted = [times_mode(c, m) for c, m in zip(cores, at_nodes, strict=False)]
        self._sampler = Sampler([*weighted, *cores[len(bases) :]])
        self._log_widths = [np.log(w / w.sum()) for w in widths]
        self.proper = self._sampler.log_norm > -math.inf

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draws points (count, d)."""
        index = self._sampler.draw(count, rng)[:, : len(self._edges)]
        u = rng.random(index.shape)
        ends = [(e[i], e[i + 1]) for e, i in zip(self._edges, index.T, strict=True)]
        return np.stack([a + (b - a) * v for (a, b), v in zip(ends, u.T, strict=True)], axis=1)

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Returns the logarithm of the density at points, beside that of uniform ones."""
        index = [np.searchsorted(e[1:-1], v) for e, v in zip(self._edges, x.T, strict=True)]
        cells = sum(w[i] for w, i in zip(self._log_widths, index, strict=True))
        return self._sampler.log_density(np.stack(index, axis=1)) - cells


def _cells(basis: Basis) -> np.ndarray:
    """Returns the ends (n + 1,) of the cells about basis nodes, in which error points are drawn."""
    nodes = basis.nodes
    return np.concatenate([[basis.low], (nodes[1:] + nodes[:-1]) / 2, [basis.high]])
