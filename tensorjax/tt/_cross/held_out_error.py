"""Error estimate of a cross approximation, from held-out entries that it was not fitted to.

Random entries of the whole tensor tell nothing of a function that is large at few of them. The
train itself says where that is: entries drawn from |t|² are then looked at too, and each entry is
weighted by the inverse of its probability under both ways of drawing (multiple importance sampling
with the balance heuristic: E. Veach, L. Guibas, SIGGRAPH 1995).
"""

import math
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._cross.sampled_function import Oracle
from tensorjax.tt._cross.train_entries import TELLING, Sampler, entries, squares

# One in _GLANCE held-out entries is evaluated first; the others only if the error is at most _FAR
# times the tolerance.
_GLANCE, _FAR = 4, 10
# If the norms of f and of the train differ by more than this factor, one of them is wrong.
_SAME_NORM = 2.0
# n random entries miss a part of all entries that is larger than 3 / n with probability 5 %.
_MISSED = 3.0
# Entries that are read in one call where all are: f may need memory for each.
_READ = 4096
# Most entries drawn from a train, and from one that is exact at all random entries: its error is
# known, and a few show whether it is exact where it is large too.
_DRAWN, _DRAWN_EXACT = 500, 50
# Errors at no more than one in so many entries are at few.
_RARE = 100
# If f has at most _FEW_VALUES distinct values, it jumps: the train is then wrong at few entries,
# but by much.
_FEW_VALUES = 10
# Zeros are what underflow leaves of a smooth tail if the least other value is below this part of
# the largest.
_UNDERFLOW = 1e-60
# Error that such a function may have at entries not evaluated, for its error to count as known.
_JUMPED = 0.1
# One held-out entry has nearly all of an error whose standard error is above this part of it (it is
# half of it if one has all): then others that were not drawn may be wrong by as much, or more.
_ONE = 0.45
# A train is exact up to so many units of roundoff of every value; values below the second number
# may be what is left of smaller ones.
_EXACT, _LEAST_SIZE = 1e4, 1e-280
_EPS = float(np.finfo(np.float64).eps)


class Estimate(NamedTuple):
    """Estimate of a cross approximation's relative error from held-out entries, with its std."""

    error: float
    std: float

    @property
    def bound(self) -> float:
        """Upper bound of a cross approximation's error: two standard errors above the estimate."""
        return self.error + 2 * self.std

    @property
    def of_one(self) -> bool:
        """Whether a cross approximation's error is that at one held-out entry, nearly all of it."""
        return self.std > _ONE * self.error > 0


UNKNOWN = Estimate(math.inf, math.inf)


class HeldOut:
    """Held-out entries, which estimate the error of a cross approximation not fitted to them.

    All entries, if the tensor has no more than asked for: the error is then exact.

    Attributes:
      index: multi-indices (m, d); random ones of the whole tensor first.
      values: all components there, (m, 1) or (m, components).
      uniform: how many are random ones of the whole tensor.
      size: number of entries of the tensor, components not counted.
      all: whether they are all entries of the tensor.
      telling: number of entries that carry the norm of f, (Σ w |f|²)² / Σ (w |f|²)².
      worst: the largest error when the train was last looked at.
      rest: the error then without the entries, one in _RARE, that had most of it.
    """

    def __init__(self, oracle: Oracle, count: int, rng: np.random.Generator):
        self._oracle, self._rng = oracle, rng
        self._shape = oracle.shape
        self.size = math.prod(self._shape)
        self._source: Sampler | None = None
        self._weights: np.ndarray | None = None
        self._former: list[tuple[np.ndarray, np.ndarray]] = []
        self.all = self.size <= count
        self.index = self._every() if self.all else self._draw(count)
        self.values = oracle.start(self.index)
        self.uniform = len(self.index)
        self.telling = self.worst = self.rest = 0.0
        self._weigh()

    def _draw(self, count: int) -> np.ndarray:
        return self._rng.integers(0, self._shape, (count, len(self._shape)))

    def _every(self) -> np.ndarray:
        return np.indices(self._shape).reshape(len(self._shape), -1).T

    # Which entries ---------------------------------------------------------------------------

    def read_all(self) -> None:
        """Evaluates all entries as held-out ones, which makes error estimates of `cross` exact."""
        if self.all:
            return
        index = self._every()
        parts = [self._oracle.points(index[k : k + _READ]) for k in range(0, len(index), _READ)]
        self.values = np.concatenate(parts)
        self.index, self.all, self.uniform = index, True, len(index)
        self._source = self._weights = None
        self._weigh()

    def extend(self, count: int) -> None:
        """Adds uniformly random entries of a tensor to the held-out entries of `cross`."""
        if self.all:  # an entry held out twice would count twice
            return
        index = self._draw(count)
        values, u = self._oracle.points(index), self.uniform
        self.index = np.concatenate([self.index[:u], index, self.index[u:]])
        self.values = np.concatenate([self.values[:u], values, self.values[u:]])
        self.uniform += count
        self._weigh()

    def replace(self, places: np.ndarray) -> None:
        """Replaces held-out entries of `cross` that became pivots by new random ones."""
        if self.all:
            return
        inside = places[places < self.uniform]
        self._former.append((self.index[inside], self.values[inside]))
        index = self._draw(len(inside))
        values = self._oracle.points(index)
        self.values = self.values.astype(np.result_type(self.values, values), copy=False)
        self.values[inside] = values
        self.index[inside] = index
        outside = places[places >= self.uniform]
        self.index, self.values = (np.delete(x, outside, 0) for x in (self.index, self.values))
        self._weigh()

    def reread(self) -> None:
        """Updates the values of `cross`'s held-out entries after the function was rescaled."""
        self.index, self._former = self.index[: self.uniform], []
        self.values = self._oracle.points(self.index)
        self._source = self._weights = None
        self._weigh()

    def renew(self) -> None:
        """Replaces all random held-out entries of `cross` by new random ones."""
        self.replace(np.arange(self.uniform))

    def follow(self, cores: Cores) -> bool:
        """Adds held-out entries drawn from a tensor train if others miss its large entries.

        Returns:
          Whether the entries are others now.
        """
        if self.seen(cores) or (self._source is not None and self.agree(cores)):
            return False
        return self.mix(cores)

    def seen(self, cores: Cores) -> bool:
        """Whether random held-out entries of `cross` meet enough of f, none drawn from a train."""
        met = self.plain and (self.telling >= self.enough or self.exact(cores))
        return self.all or met

    def mix(self, cores: Cores) -> bool:
        """Adds held-out entries drawn from the tensor train with probability |t|² / ‖t‖²."""
        if self.all:
            return False
        source = Sampler(cores)
        most = _DRAWN_EXACT if self.plain and self.exact(cores) and not self.jumps else _DRAWN
        asked = min(1 + self.uniform // 2, most)
        count = int(min(asked, self._oracle.left // 4))
        if count < min(TELLING, asked):
            return False
        index = source.draw(count, self._rng)[:, : len(self._shape)]
        values, u = self._oracle.points(index), self.uniform
        self.index = np.concatenate([self.index[:u], index])
        self.values = np.concatenate([self.values[:u], values])
        self._source = source
        self._weigh()
        return True

    def _weigh(self) -> None:
        """Computes importance weights of `cross`'s held-out entries, random and drawn ones."""
        if self._source is not None:
            drawn = len(self.index) - self.uniform
            density = self._source.log_density(self.index) + math.log(self.size)
            self._weights = 1 / (self.uniform + drawn * np.exp(np.minimum(density, 600.0)))
        terms, _, largest = self._terms()
        self.telling = float(terms.sum() ** 2 / (terms @ terms)) if largest > 0 else 0.0

    def _terms(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Returns w |f|² and |f|² at `cross`'s held-out entries, each divided by its maximum."""
        right = squares(self.values)
        right = right / (right.max() or 1.0)
        terms = right / len(right) if self._weights is None else right * self._weights
        largest = float(terms.max())
        return terms / (largest or 1.0), right, largest

    # What they show --------------------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether all held-out entries are uniformly random, none drawn from a tensor train."""
        return self._source is None

    @property
    def enough(self) -> float:
        """Least number of held-out entries to carry the norm of f, for `cross` to be reliable."""
        return min(TELLING, self.uniform / 2)

    @property
    def jumps(self) -> bool:
        """Whether few distinct values at `cross`'s held-out entries show that f has jumps."""
        values = self.values[: self.uniform]
        levels, counts = np.unique(values, axis=0, return_counts=True)
        common = levels[counts.argmax()]
        if not common.any() and len(levels) > _FEW_VALUES:
            sizes = np.abs(values).max(axis=1)  # squares of small values may all be zero
            least = sizes[sizes > 0].min()
            if least < _UNDERFLOW * sizes.max():  # a tail that ends in zeros, as of exp(-x^2)
                return False
        return len(counts) <= _FEW_VALUES or 2 * counts.max() > self.uniform

    @property
    def constant(self) -> bool:
        """Whether f has one value at all of `cross`'s random held-out entries."""
        return bool((self.values[: self.uniform] == self.values[0]).all())

    def unseen(self, *, elsewhere: bool) -> float:
        """Returns the standard error of `cross` that remains where f with jumps was not sampled.

        What is wrong is then wrong by as much as f is large, and n random entries miss a part of
        all entries of 3 / n with probability 5 %.

        Args:
          elsewhere: whether f may be large where the train is not; if not, entries drawn from the
            train count too.
        """
        if self.all:
            return 0.0
        met = self.uniform * self.share if elsewhere else len(self.index)
        return math.sqrt(_MISSED / met) / 2 if met > 0 else math.inf

    @property
    def share(self) -> float:
        """Share of a tensor's entries that carry its norm, estimated by `cross`'s held-out ones."""
        terms, right, largest = self._terms()
        return largest * float(terms.sum() ** 2 / (terms @ right)) if largest > 0 else 0.0

    @property
    def rms(self) -> float:
        """Root mean square of a tensor's entries, estimated by `cross`'s held-out ones."""
        terms, _, largest = self._terms()
        top = math.sqrt(float(squares(self.values).max()))
        return top * math.sqrt(largest * float(terms.sum()))

    @property
    def missing(self) -> float:
        """Number of held-out entries to add to `cross`, to detect an equally small part of f."""
        share, most = self.share, _MISSED / _JUMPED**2 if self.jumps else _MISSED
        return most / share - self.uniform if share > 0 else math.inf

    def agree(self, cores: Cores) -> bool:
        """Whether the norms of train and tensor agree at the held-out entries of `cross`."""
        right = squares(self.values)
        w = self._weights if self._weights is not None else 1 / len(right)
        seen = float(np.sum(w * right))
        if seen <= 0:
            return False
        train = 2 * Sampler(cores).log_norm - math.log(self.size)
        return abs(train - math.log(seen)) <= math.log(_SAME_NORM)

    def exact(self, cores: Cores) -> bool:
        """Whether a train equals f up to roundoff at every random held-out entry, small or large.

        Then it has found all of f that has a tail: another peak, as small as the one found, would
        be far above the roundoff of the small values that random entries meet.
        """
        index, values = self.index[: self.uniform], self.values[: self.uniform]
        size = np.sqrt(squares(values))
        if not (size > _LEAST_SIZE).all():  # zeros are right by chance
            return False
        roundoff = float(np.finfo(self._oracle.dtype).eps)
        return bool((self.wrong(cores, index, values) <= _EXACT * roundoff * size).all())

    def places(self, point: np.ndarray) -> np.ndarray:
        """Finds the positions of a multi-index among the held-out entries of `cross`."""
        return np.flatnonzero((self.index == point[: self.index.shape[1]]).all(axis=1))

    def errors(self, cores: Cores, count: int | None = None) -> np.ndarray:
        """Computes squared errors of a tensor train at all or the first held-out entries."""
        wrong = squares(entries(cores, self.index[:count]) - self.values[:count])
        self.worst = math.sqrt(wrong.max())
        return wrong

    def with_former(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns all held-out entries of `cross`, the replaced ones too: multi-indices, values."""
        index, values = zip((self.index, self.values), *self._former, strict=True)
        return np.concatenate(index), np.concatenate(values)

    def not_zero(self, count: int) -> np.ndarray:
        """Returns at most ``count`` of `cross`'s held-out multi-indices at which f is not zero."""
        at = np.flatnonzero(self.values[: self.uniform].any(axis=1))
        at = self._rng.permutation(at)[:count]
        component = np.abs(self.values[at]).argmax(axis=1)
        return np.column_stack([self.index[at], component])[:, : len(self._oracle.shape)]

    def wrong(self, cores: Cores, index: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Computes errors of a tensor train at further held-out multi-indices with known values."""
        return np.sqrt(squares(entries(cores, index) - values))

    def glance(self, cores: Cores, tol: float) -> Estimate:
        """Estimates the error of a tensor train, from few held-out entries if it is large."""
        count = len(self.index) // _GLANCE
        if self.plain and not self.all and count >= TELLING:
            estimate = self._estimate(self.errors(cores, count))
            # Infinite where f is zero at these few, as is likely if it is at most entries.
            if _FAR * tol < estimate.error < math.inf:
                return estimate
        return self.estimate(cores)

    def estimate(self, cores: Cores) -> Estimate:
        """Estimates a tensor train's relative error at held-out entries, and its deviation."""
        if self._weights is None:
            return self._estimate(self.errors(cores))
        return self._estimate(self.errors(cores), self._weights)

    def _estimate(self, wrong: np.ndarray, weights: Any = 1.0) -> Estimate:
        # Terms are taken relative to their mean: weights of a narrow peak are tiny.
        right = weights * squares(self.values[: len(wrong)])
        wrong = weights * wrong
        scale = float(right.mean())
        if scale == 0:
            nothing = Estimate(0.0, 0.0 if self.all else math.inf)
            return UNKNOWN if wrong.any() else nothing
        ratio = float(wrong.mean()) / scale
        few = max(1, len(wrong) // _RARE)
        self.rest = math.sqrt(float(np.sort(wrong)[:-few].sum()) / len(wrong) / scale)
        if self.all:
            return Estimate(math.sqrt(ratio), 0.0)
        if ratio == 0:
            return Estimate(0.0, _EPS)
        spread = float(np.std((wrong - ratio * right) / scale, ddof=1)) if len(right) > 1 else 1e300
        std = spread / (math.sqrt(len(right)) * 2 * math.sqrt(ratio))
        return Estimate(math.sqrt(ratio), max(std, _EPS * math.sqrt(ratio)))
