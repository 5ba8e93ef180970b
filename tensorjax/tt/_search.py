"""The search of `cross`: sweeps of greedy pivots, watched by entries that no pivot was made of."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from tensorjax._cores import Cores
from tensorjax.tt._greedy import Sets
from tensorjax.tt._maxvol import right_sets
from tensorjax.tt._oracle import BudgetExhausted, Oracle

Status = Literal["converged", "max_rank", "budget", "max_sweeps", "stalled", "stopped"]
# A sweep lowers the residual that it leaves alone by a factor in this range.
_STEEPEST, _FLATTEST = 0.1, 0.5
# With fewer pivots a bond than this, the next sweep may lower it by the square of that.
_FEW_PIVOTS = 1.5
# Without an error lower by this factor for so many times the evaluations, the search has stalled.
_PROGRESS, _PATIENCE, _AT_LEAST = 0.7, 5, 20_000
# Held-out entries that become pivots, where they are so many times more wrong than the blocks.
_OFFERED, _HIDDEN = 4, 10.0
# Moves of the first pivot along the fibres through it, each at least this much larger.
_MOVES, _MOVE_GAIN = 4, 2.0
# Fresh random entries agree with the held-out ones if none is wrong by more than so many times the
# tolerance, relative to the largest value.
_AGREES = 100
# One in so many held-out entries is looked at first, and the others if the error is not larger than
# so many times the tolerance.
_GLANCE, _FAR = 4, 10
# Fewer held-out entries than this are no reason to prefer their mean to zero.
_TELLING = 10


class Estimate(NamedTuple):
    """A relative error in the Frobenius norm, measured at random entries."""

    error: float
    std: float

    @property
    def bound(self) -> float:
        """Two standard errors above the estimate."""
        return self.error + 2 * self.std


class CrossProgress(NamedTuple):
    """What `cross` tells its callback after every sweep.

    Attributes:
      sweep: 1, 2, …; odd ones go from left to right.
      error: relative error at the held-out entries.
      error_std: standard error of that.
      evaluations: multi-indices evaluated so far.
      ranks: TT-ranks so far, before rounding.
      seconds: since the start.
    """

    sweep: int
    error: float
    error_std: float
    evaluations: int
    ranks: tuple[int, ...]
    seconds: float


@dataclasses.dataclass
class Options:
    tol: float
    max_rank: int
    max_sweeps: int
    held_out: int
    callback: Callable[[CrossProgress], Any] | None


class HeldOut:
    """Random entries that the train is measured at, and that are not fitted.

    All entries, if the tensor has no more than that: the error is then exact.
    """

    def __init__(self, oracle: Oracle, count: int, rng: np.random.Generator):
        self._oracle, self._rng = oracle, rng
        self._shape = oracle.shape
        self.all = math.prod(self._shape) <= count
        self.index = np.argwhere(np.ones(self._shape, bool)) if self.all else self._draw(count)
        self.values = oracle.start(self.index)

    def _draw(self, count: int) -> np.ndarray:
        return self._rng.integers(0, self._shape, (count, len(self._shape)))

    def largest(self) -> np.ndarray:
        """The multi-index of the largest value, with its component if there are any."""
        i, j = divmod(int(np.abs(self.values).argmax()), self.values.shape[1])
        has_components = len(self._oracle.shape) > len(self._shape)
        return np.append(self.index[i], j) if has_components else self.index[i].copy()

    def errors(self, cores: Cores, count: int | None = None) -> np.ndarray:
        """Squared errors, of the first ``count`` entries or of all."""
        return _squares(entries(cores, self.index[:count]) - self.values[:count])

    def glance(self, cores: Cores, tol: float) -> Estimate:
        """The error, from a part of the entries if those show it far above the tolerance."""
        count = len(self.index) // _GLANCE
        if not self.all and count >= _TELLING:
            estimate = self._estimate(self.errors(cores, count))
            if estimate.error > _FAR * tol:
                return estimate
        return self.estimate(cores)

    def estimate(self, cores: Cores) -> Estimate:
        """√(mean |error|² / mean |value|²), with its standard error by the delta method."""
        return self._estimate(self.errors(cores))

    def _estimate(self, wrong: np.ndarray) -> Estimate:
        right = _squares(self.values[: len(wrong)])
        scale = float(right.mean())
        if scale == 0:
            return Estimate(0.0 if not wrong.any() else math.inf, 0.0)
        ratio = float(wrong.mean()) / scale
        if self.all or ratio == 0:
            return Estimate(math.sqrt(ratio), 0.0)
        spread = float(np.std(wrong - ratio * right, ddof=1)) if len(right) > 1 else math.inf
        return Estimate(
            math.sqrt(ratio), spread / (scale * math.sqrt(len(right)) * 2 * math.sqrt(ratio))
        )

    def replace(self, places: np.ndarray | slice) -> None:
        """Draws new entries for those that have become pivots."""
        if not self.all:
            index = self._draw(len(self.index[places]))
            self.values[places] = self._oracle.points(index)
            self.index[places] = index


def _squares(x: Any) -> Any:
    return (np.square(x.real) + np.square(x.imag)).sum(axis=1)


def entries(cores: Cores, index: np.ndarray) -> np.ndarray:
    """All components, (m, 1) or (m, components), of a train at multi-indices (m, d)."""
    v = cores[0][0, index[:, 0]]
    for core, i in zip(cores[1:], index.T[1:], strict=False):
        rows = np.ascontiguousarray(core.transpose(1, 0, 2))[i]
        v = np.matmul(v[:, None], rows)[:, 0]
    return v @ cores[-1][:, :, 0] if len(cores) > index.shape[1] else v


class Search:
    """Runs to a status; the best train so far and its error are there at any time.

    Attributes:
      cores: of the best train so far.
      estimate: its error.
      sweeps: done.
    """

    def __init__(
        self,
        oracle: Oracle,
        options: Options,
        rng: np.random.Generator,
        x0: Cores | None,
        finish: Callable[[Cores], Cores],
    ):
        self.sweeps = 0
        self._began = time.perf_counter()
        self._oracle, self._options, self._rng, self._x0 = oracle, options, rng, x0
        self.held = HeldOut(oracle, options.held_out, rng)
        self._finish = finish  # cores as they will be returned: cast to their dtype
        self._sets: Sets | None = None
        self._threshold = float(np.abs(self.held.values).max())
        self._mark = (math.inf, 0)
        self._biased = False  # whether pivots were made of held-out entries
        self.cores: Cores = []
        self.estimate = Estimate(math.inf, math.inf)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def run(self) -> Status:
        if self._threshold == 0 and self._x0 is None:
            self.cores, self.estimate = self._constant()
            return "converged"  # every entry seen is zero, and so is the train
        try:
            self._sets = self._start()
            self._measure(self._sets)
            one_mode = len(self._oracle.shape) == 1
            return "converged" if one_mode else self._sweep_on(self._sets)
        except BudgetExhausted:
            if self._sets is not None:
                self._measure(self._sets)
            cores, estimate = self._constant()
            if estimate.bound < self.estimate.bound:
                self.cores, self.estimate = cores, estimate
            return "budget"

    def _constant(self) -> tuple[Cores, Estimate]:
        """The train of the mean: what there is when the budget ends before the first cross."""
        values = self.held.values
        ones = [np.ones((1, n, 1)) for n in self._oracle.shape]
        has_components = len(ones) > self.held.index.shape[1]
        mean = values.mean(axis=0)
        last = mean[None, :, None] if has_components else ones[-1] * mean
        cores = self._finish([*ones[:-1], last])
        estimate, count = self.held.estimate(cores), len(values)
        if not self.held.all and count > 1:  # each entry against the mean of the others
            estimate = Estimate(*(x * count / (count - 1) for x in estimate))
        if estimate.bound < 1 and (self.held.all or count >= _TELLING):
            return cores, estimate
        return self._finish([*ones[:-1], 0 * last]), Estimate(1.0, 0.0)

    def _start(self) -> Sets:
        """Rank one through a large entry; then what the first train offers."""
        point = self.held.largest()
        self.held.replace(np.array([int(np.abs(self.held.values).max(axis=1).argmax())]))
        offers = [] if self._x0 is None else right_sets(self._x0)
        sets = Sets(self._oracle, self._larger(point, offers))
        for _ in range(_MOVES):
            moved = Sets(self._oracle, sets.largest())
            if moved.size < _MOVE_GAIN * sets.size:
                break
            sets = moved
        self._threshold = _STEEPEST * sets.size
        for k, right in enumerate(offers if sets.size > 0 else [], start=1):
            limit = self._options.max_rank - len(sets.left[k])
            sets.offer(k, right, 1e3 * self._floor(), limit)
        return sets

    def _larger(self, point: np.ndarray, offers: list[np.ndarray]) -> np.ndarray:
        """The point, or a larger one on the offered fibres of the first core."""
        if not offers:
            return point
        oracle = self._oracle
        first = np.append(np.arange(oracle.shape[0]), point[0])[:, None]
        others = np.concatenate([offers[0], point[None, 1:]])
        seen = np.abs(oracle.block(oracle.part(first, 0), oracle.part(others, 1)))
        i, j = divmod(int(seen.argmax()), seen.shape[1])
        return np.concatenate([first[i], others[j]])

    def _floor(self) -> float:
        """What roundoff makes of a zero."""
        values = float(np.finfo(self._oracle.dtype).eps)
        arithmetic = 16 * float(np.finfo(np.float64).eps)
        return max(values, arithmetic) * self._oracle.largest

    def _measure(self, sets: Sets) -> Estimate:
        """The error of the train as it is; keeps the train if there was none better."""
        cores = self._finish(sets.cores())
        estimate = self.held.glance(cores, self._options.tol)
        if estimate.bound <= self.estimate.bound:
            self.cores, self.estimate = cores, estimate
        if estimate.bound < _PROGRESS * self._mark[0]:
            self._mark = (estimate.bound, self._oracle.evaluations)
        return estimate

    def _sweep_on(self, sets: Sets) -> Status:
        options = self._options
        bonds = range(1, len(self._oracle.shape))
        idle = 0
        for self.sweeps in range(1, options.max_sweeps + 1):
            forward = self.sweeps % 2 == 1
            level, added = 0.0, 0
            for k in bonds if forward else reversed(bonds):
                r = len(sets.left[k])
                limit = min(max(2, r // 2), options.max_rank - r)
                seen, new = sets.visit(k, self._threshold, limit, forward, self._rng)
                level, added = max(level, seen), added + new
            estimate = self._measure(sets)
            if self._told(sets, estimate):
                return "stopped"
            if estimate.bound <= options.tol and self._trusted(sets, level):
                return "converged"
            if not added:
                added = self._offer_wrong(sets, level)
            idle = 0 if added else idle + 1
            full = max(sets.ranks) >= options.max_rank
            if self._stalled(idle) or (full and idle > 1 and level > self._threshold):
                return "max_rank" if full else "stalled"
            self._lower(level, added / len(bonds), estimate)
        return "max_sweeps"

    def _trusted(self, sets: Sets, level: float) -> bool:
        """Whether rare large errors can be ruled out, which may escape the held-out entries."""
        if level > _AGREES * self._options.tol * self._oracle.largest:
            return False  # seen by the fresh random entries of this sweep
        if not self._biased:
            return True
        # Wrong entries were taken out: those that are left are right more often than others.
        self._biased = False
        self.held.replace(slice(None))
        self.estimate = Estimate(math.inf, math.inf)
        return self._measure(sets).bound <= self._options.tol

    def _told(self, sets: Sets, estimate: Estimate) -> bool:
        if self._options.callback is None:
            return False
        told = CrossProgress(
            self.sweeps, *estimate, self._oracle.evaluations, sets.ranks, self.seconds
        )
        return bool(self._options.callback(told))

    def _offer_wrong(self, sets: Sets, level: float) -> int:
        """Pivots from the held-out entries that are most wrong, where the blocks look right."""
        hidden = _HIDDEN * max(level, self._threshold)
        wrong = self.held.errors(self._finish(sets.cores()))
        worst = np.argsort(-wrong, kind="stable")[:_OFFERED]
        worst = worst[wrong[worst] > hidden**2]
        if not worst.size:
            return 0
        points, values = self.held.index[worst], self.held.values[worst]
        if len(self._oracle.shape) > points.shape[1]:
            component = np.abs(values).argmax(axis=1)
            points = np.concatenate([points, component[:, None]], axis=1)
        self.held.replace(worst)
        self._biased = True
        added = 0
        for k in range(1, points.shape[1]):
            limit = self._options.max_rank - len(sets.left[k])
            added += sets.offer(k, points[:, k:], self._threshold, limit)
        return added

    def _stalled(self, idle: int) -> bool:
        spent = self._oracle.evaluations - self._mark[1]
        if spent > _PATIENCE * self._mark[1] + _AT_LEAST:
            return True
        return idle >= 3 and (self._threshold <= self._floor() or idle >= 20)

    def _lower(self, level: float, added: float, estimate: Estimate) -> None:
        """Lowers the threshold: steeply, more so if that gave few pivots, gently near the end."""
        need = self._options.tol / (2 * estimate.error) if estimate.error > 0 else 1.0
        base = self._threshold if added else min(self._threshold, level)
        steep = _STEEPEST**2 if added < _FEW_PIVOTS else _STEEPEST
        lowered = base * min(max(steep, need), _FLATTEST)
        self._threshold = max(lowered, self._floor())
