"""Search of `cross`: sweeps that add greedy pivots, until held-out entries show the error asked."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from tensorjax import _check
from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._cross.global_search import GlobalSearch, climbed
from tensorjax.tt._cross.greedy_pivots import Sets
from tensorjax.tt._cross.held_out_error import TELLING, UNKNOWN, Estimate, HeldOut
from tensorjax.tt._cross.maxvol import right_sets
from tensorjax.tt._cross.sampled_function import (
    BudgetExhausted,
    FunctionFailed,
    Oracle,
    Rescaled,
)
from tensorjax.tt._tt_svd.from_dense import from_dense

Status = Literal[
    "converged",
    "max_rank",
    "budget",
    "max_sweeps",
    "stalled",
    "stopped",
    "unseen",
    "zero",
    "failed",
]
# Every sweep lowers the threshold, below which residuals are left, by a factor in this range.
_STEEPEST, _FLATTEST = 0.1, 0.5
# After a sweep with fewer pivots per bond than this, it may fall by _STEEPEST².
_FEW_PIVOTS = 1.5
# Pivots are no smaller than this part of the largest residual or error that was just seen: smaller
# ones make the interpolation ill-conditioned, and do not lead to what is large.
_LEVEL = 1e-3
# The search has stalled if the error did not fall by the factor _PROGRESS while _PATIENCE times as
# many evaluations were made as until then, plus AT_LEAST.
_PROGRESS, _PATIENCE, AT_LEAST = 0.7, 5, 20_000
# The least tolerance of a TT-SVD.
_EXACT = 10 * float(np.finfo(np.float64).eps)
# A train this much more accurate than asked for seems to be exact.
_LIKE_ZERO = 0.01
# Most entries near pivots, or near large entries of the train, that become pivots at once.
_NEAR_OFFERED = 16
# Local maxima that tell whether the train has found all of f: so many at least, each with this
# share of the largest entry or more.
_LEAST_TOPS, _TOP = 3, 0.1
# Residuals of these parts of the tolerance, relative to the root mean square of f, need no pivot;
# one that is roundoff makes the interpolation useless. The second, if the error is at few entries
# alone: where it is large, smaller pivots do not lead.
_NEEDLESS = (1e-6, 1e-3)
# Errors so many times the tolerance, and this large beside the root mean square of f, at few
# entries while all others are below the tolerance, tell of a function that jumps.
_ALONE, _LARGE = 10, 0.1
# Errors are at few entries if without these they are this part of themselves, or less.
_ELSEWHERE = 0.1
# A tensor with so many times the entries that are known is read as a whole if f jumps, and has no
# more than the second number.
_READ, _MOST_READ = 4, 1 << 17
# So many times at most a train that met the tolerance may be found wrong at other entries before
# the search counts as one that makes no progress.
_SURPRISES = 4
# Times that entries near the index sets are looked at if f jumps.
_ROUNDS = 3
# Random entries that global search looks at before it climbs from the worst of them.
_BATCH = 20_000
# Most held-out entries that become pivots at once: those with errors above _HIDDEN times the
# residuals of all blocks.
_OFFERED, _HIDDEN = 4, 10.0
# Most moves of the first pivot along its fibres, each to an entry larger by at least this factor.
_MOVES, _MOVE_GAIN = 4, 2.0
# New entries contradict the estimate if one has an error above so many times the tolerance,
# relative to the largest value.
_AGREES = 100


class CrossProgress(NamedTuple):
    """Progress report that `cross` passes to its callback after every sweep.

    Attributes:
      sweep: 1, 2, …; odd ones go from left to right.
      error: relative error at the held-out entries.
      error_std: standard error of that.
      evaluations: multi-indices evaluated so far.
      ranks: TT-ranks so far, before rounding.
      seconds: since the start.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> seen = []
      >>> f = lambda i: 1.0 * i.sum(axis=1)
      >>> _ = tt.cross(f, (10,) * 4, tol=1e-4, key=jax.random.key(0), callback=seen.append)
      >>> seen[0].sweep, seen[0].evaluations < 10**4
      (1, True)

    Source: ours.
    """

    sweep: int
    error: float
    error_std: float
    evaluations: int
    ranks: tuple[int, ...]
    seconds: float


@dataclasses.dataclass
class Options:
    """Options of a search, checked; ``most_random`` caps the random entries that are evaluated."""

    tol: float
    max_rank: int
    max_sweeps: int
    held_out: int
    asked: int
    budget: float
    most_random: int
    search: float
    callback: Callable[[CrossProgress], Any] | None


class Search:
    """Search for a cross approximation, with the best train so far and its estimated error.

    Attributes:
      cores: of the best train so far.
      estimate: its error.
      sweeps: done.
      failure: the error of f that ended the search, and where; empty if none did.
    """

    def __init__(
        self,
        oracle: Oracle,
        options: Options,
        rng: np.random.Generator,
        x0: Cores | None,
        pivots: np.ndarray | None,
        finish: Callable[[Cores], Cores],
    ):
        self.sweeps = 0
        self.failure = ""
        self._began = time.perf_counter()
        self._oracle, self._options, self._rng = oracle, options, rng
        self.held = HeldOut(oracle, options.held_out, rng)
        self.globally = GlobalSearch(oracle, self.held, rng, options.search, options.most_random)
        self._finish = finish  # cores as they will be returned: cast to their dtype
        self._x0, self._pivots = x0, pivots
        self._sets: Sets | None = None
        self._threshold = 0.0
        self._mark = (math.inf, 0)
        self._biased = False  # whether pivots were made of held-out entries
        self._found = 0  # pivots that the last verdict gave
        self._surprises = 0  # times that a train below the tolerance was found wrong elsewhere
        self._edgy = False  # whether errors were ever large at few entries, as where f jumps
        self._rare = False  # whether errors were last at few entries alone
        self.cores: Cores = []
        self.estimate = UNKNOWN

    @property
    def tol(self) -> float:
        return self._options.tol

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def run(self) -> Status:
        rescaled = False
        while True:
            try:
                if rescaled:
                    self.held.reread()
                status = self._run()
                if status not in ("converged", "zero"):
                    self._settle()
                return status
            except Rescaled:  # values so large that the others are nothing: from the beginning
                rescaled = True
                self._sets, self.estimate, self._mark = None, UNKNOWN, (math.inf, 0)
            except BudgetExhausted:
                return self._ended("budget")
            except FunctionFailed as error:
                self.failure = str(error)
                return self._ended("failed")

    def _settle(self) -> None:
        """Measures the error of a search that did not converge, at entries never used as pivots."""
        if self._biased:
            self._biased = False
            self.held.renew()
        if not self.held.all and not self.held.agree(self.cores):
            self.held.mix(self.cores)
        self.estimate = self.held.estimate(self.cores)

    def _run(self) -> Status:
        self._look()
        if self._small and (self._one_read or self.held.telling < self.held.enough):
            return self._whole()
        if self._oracle.largest == 0 and self._x0 is None:
            return self._nothing()
        self._sets = self._start()
        if self._sets.size == 0:  # the first train led nowhere
            self._x0 = self._sets = None
            return self._run()
        self._measure(self._sets)
        status = self._sweep_on(self._sets)
        known = self._small or self.held.all
        return self._whole() if status in ("stalled", "unseen") and known else status

    def _look(self) -> None:
        """Starts the search at given pivots; while f is zero, at more and more random entries."""
        if self._pivots is not None:
            self._oracle.points(self._pivots)
        most = self._options.most_random
        if self._small or self._x0 is not None:
            return
        while self._oracle.largest == 0 and self.held.uniform < most:
            self.held.extend(min(self.held.uniform, most - self.held.uniform))

    @property
    def _one_read(self) -> bool:
        """Whether one read ends the search: all entries are held out, or there is one mode."""
        return self.held.all or self.held.index.shape[1] == 1

    @property
    def _small(self) -> bool:
        """Whether reading all entries costs no more than a search that finds nothing."""
        most = self._options.budget if self._one_read else self._options.most_random
        return self.held.size <= most

    def _whole(self) -> Status:
        """Reads all entries in place of a search and factors them by TT-SVD."""
        self.held.read_all()
        values = self.held.values.reshape(self._oracle.shape)
        # A part of the tolerance is left for the dtype of the result, and for rounding.
        self.cores = self._finish(self._constant_cores(0.0))
        if values.any():
            tol = max(self._options.tol / 2, _EXACT)
            with _check.double_of_ours():
                cores = from_dense(values, tol=tol).cores
            self.cores = self._finish([np.asarray(c) for c in cores])
        self.estimate = self.held.estimate(self.cores)
        return "converged"

    def _nothing(self) -> Status:
        self.cores, self.estimate = self._finish(self._constant_cores(0.0)), UNKNOWN
        return "zero"

    def _ended(self, status: Status) -> Status:
        """Keeps the best train of a search that can call f no more."""
        if self._oracle.largest == 0:
            return self._nothing()
        if self._sets is not None:
            self._measure(self._sets, follow=False)
        cores, estimate = self._constant()
        if not self.cores or estimate.bound < self.estimate.bound:
            self.cores, self.estimate = cores, estimate
        return status

    def _constant_cores(self, value: Any) -> Cores:
        """Returns the cores of a constant for the search: one value, or one for each component."""
        ones = [np.ones((1, n, 1)) for n in self._oracle.shape]
        has_components = len(ones) > self.held.index.shape[1]
        last = ones[-1] * (np.reshape(value, (1, -1, 1)) if has_components else value)
        return [*ones[:-1], last]

    def _constant(self) -> tuple[Cores, Estimate]:
        """Returns the constant train of the mean, for a search that ends before any cross."""
        mean, count = self.held.values[: self.held.uniform].mean(axis=0), self.held.uniform
        cores = self._finish(self._constant_cores(mean))
        estimate = self.held.estimate(cores)
        if not self.held.all and count > 1:  # each entry against the mean of the others
            estimate = Estimate(*(x * count / (count - 1) for x in estimate))
        if estimate.bound < 1 and (self.held.all or count >= TELLING):
            return cores, estimate
        return self._finish(self._constant_cores(0.0 * mean)), Estimate(1.0, 0.0)

    def _start(self) -> Sets:
        """Starts the search with index sets of rank one at a large entry; adds pivots from x0."""
        oracle = self._oracle
        offers = [] if self._x0 is None else right_sets(self._x0)
        point = self._larger(oracle.peak, offers)
        self.held.replace(self.held.places(oracle.peak))
        if self.held.telling < self.held.enough:  # few entries lead there: one step is not enough
            point = climbed(oracle, point)
        sets = Sets(oracle, point)
        for _ in range(_MOVES):
            moved = Sets(oracle, sets.largest())
            if moved.size < _MOVE_GAIN * sets.size:
                break
            sets = moved
        self._threshold = _STEEPEST * sets.size
        if sets.size > 0:
            least = 1e3 * self._floor()
            for k, right in enumerate(offers, start=1):
                sets.offer(k, right, least, self._options.max_rank - len(sets.left[k]))
            if self._pivots is not None:
                self._offer(sets, self._pivots, oracle.points(self._pivots), least)
        return sets

    def _offer(self, sets: Sets, points: np.ndarray, values: np.ndarray, threshold: float) -> int:
        """Adds the search's finds (m, d), all components, as pivots; returns their number."""
        if len(self._oracle.shape) > points.shape[1]:
            component = np.abs(values).argmax(axis=1)
            points = np.concatenate([points, component[:, None]], axis=1)
        added = 0
        for k in range(1, points.shape[1]):
            limit = self._options.max_rank - len(sets.left[k])
            added += sets.offer(k, points[:, k:], threshold, limit)
        return added

    def _larger(self, point: np.ndarray, offers: list[np.ndarray]) -> np.ndarray:
        """Returns a search's start, or a larger entry on fibres of mode 0 through x0's set."""
        if not offers:
            return point
        oracle = self._oracle
        first = np.append(np.arange(oracle.shape[0]), point[0])[:, None]
        others = np.concatenate([offers[0], point[None, 1:]])
        seen = np.abs(oracle.block(oracle.part(first, 0), oracle.part(others, 1)))
        i, j = divmod(int(seen.argmax()), seen.shape[1])
        return np.concatenate([first[i], others[j]])

    def _floor(self) -> float:
        """Returns the level of roundoff in the values of f, as the search of pivots needs it."""
        values = float(np.finfo(self._oracle.dtype).eps)
        arithmetic = 16 * float(np.finfo(np.float64).eps)
        return max(values, arithmetic) * self._oracle.largest

    def _least(self) -> float:
        """Returns the residual below which no pivot of the search serves the tolerance asked."""
        part = _NEEDLESS[self.held.rest <= self._options.tol]
        return max(self._floor(), part * self._options.tol * self.held.rms)

    def _measure(self, sets: Sets, *, follow: bool = True) -> Estimate:
        """Estimates the error of the search's present train; keeps it if it is the best."""
        cores = self._finish(sets.cores())
        if follow and self.held.follow(cores):
            self.estimate = UNKNOWN  # it was measured at other entries
        estimate = self.held.glance(cores, self._options.tol)
        if estimate.error > _ALONE * self._options.tol:
            held = self.held  # a train that knows f nearly everywhere, and not at all elsewhere
            jumped = held.plain and held.worst > _LARGE * held.rms
            self._rare = jumped and held.rest <= self._options.tol
            self._edgy = self._edgy or (jumped and held.rest <= _ELSEWHERE * estimate.error)
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
            self._found = 0
            if estimate.bound <= options.tol:
                before = self._oracle.evaluations
                if status := self._verdict(sets, level):
                    return status
                if self._oracle.evaluations > before and self._surprises < _SURPRISES:
                    self._surprises += 1  # f is another one than it seemed: patience anew
                    self._mark = (math.inf, self._oracle.evaluations)
            added += self._found
            # Errors that are larger by far than all that was left alone lie where no block shows.
            hidden = self.held.worst > _HIDDEN * max(level, self._threshold)
            if hidden or not added:
                added += self._offer_wrong(sets, level)
            idle = 0 if added else idle + 1
            full = max(sets.ranks) >= options.max_rank
            if self._stalled(idle) or (full and idle > 1 and level > self._threshold):
                return "max_rank" if full else "stalled"
            self._lower(level, added / len(bonds), estimate)
        return "max_sweeps"

    def _verdict(self, sets: Sets, level: float) -> Status | None:
        """Searches for large errors that may escape the held-out entries, as far as it can.

        Returns:
          "converged"; None if the search should go on; "unseen" if no random entries that could be
          paid for would meet another part of f as small as the one that was found.
        """
        held, tol = self.held, self._options.tol
        if level > _AGREES * tol * self._oracle.largest:
            return None  # seen by the fresh random entries of this sweep
        if self._biased and not self._unbiased(sets):
            return None
        if held.all:
            return "converged"
        cores = self._finish(sets.cores())
        seen = held.plain and held.agree(cores)
        if self._corners_wrong(sets, cores):
            return None
        if seen and self.estimate.error > _LIKE_ZERO * tol and not self._rare:
            return None if self._wrong_elsewhere(sets, cores) else "converged"
        # Either f is large at few entries, or the train seems to be exact: then f may also be
        # one that jumps, and wrong at few entries only.
        if not self._more(sets):
            return None
        if held.all:
            return "converged"
        given = self._x0 is not None or self._pivots is not None
        for _ in range(_ROUNDS if self._jumps else 1):
            near = self.globally.near(cores, sets.left, sets.right)
            if self._found_wrong(sets, cores, near):
                return None
            if self._jumps and self._corners_wrong(sets, cores):
                return None
        if self._wrong_elsewhere(sets, cores):
            return None
        if not (seen or given):
            tops = self.globally.tops()
            if self._found_wrong(sets, cores, tops):
                return None
            # If all climbs end at entries as large as those found, the train has found all of f.
            high = np.abs(self._oracle.points(tops)).max(axis=1) >= _TOP * self._oracle.largest
            seen = high.size >= _LEAST_TOPS and bool(high.all())
        status = self._met(sets) if not given and (held.jumps or not seen) else "converged"
        return "unseen" if status and self._rare else status

    def _unbiased(self, sets: Sets) -> bool:
        """Whether the search's error stays below tolerance at entirely new held-out entries.

        Wrong ones were taken out, and those that are left are right more often than others.
        """
        self._biased = False
        self.held.renew()
        return self._holds(sets)

    def _more(self, sets: Sets) -> bool:
        """Whether the search's error stays below tolerance at more held-out entries."""
        held = self.held
        more = min(self._options.asked - held.uniform, self._oracle.left)
        known = self._oracle.evaluations
        readable = max(known, self._options.asked)
        if self._rare or held.jumps:
            readable = max(readable, min(_READ * known, _MOST_READ))
        if held.size <= min(readable, known + self._oracle.left):
            held.read_all()
        elif more >= 1:
            held.extend(int(more))
        if not held.plain or not held.agree(self._finish(sets.cores())):
            held.mix(self._finish(sets.cores()))
        return self._holds(sets)

    @property
    def _jumps(self) -> bool:
        """Whether f seems to jump: by its values, or by errors that were large at few entries."""
        return self._edgy or self.held.jumps

    def _corners_wrong(self, sets: Sets, cores: Cores) -> bool:
        """Searches the corners of boxes for errors of the train; adds wrong ones as pivots."""
        many = self._jumps
        least = _AGREES * self._options.tol * self._oracle.largest
        edges = self.globally.edges(cores, sets.left, sets.right, least, many=many)
        corners = self.globally.corners(sets.left, many=many)
        wrong = self._found_wrong(sets, cores, edges) or self._found_wrong(sets, cores, corners)
        self._edgy = self._edgy or wrong
        return wrong

    def _wrong_elsewhere(self, sets: Sets, cores: Cores) -> bool:
        """Searches random entries, and climbs from the worst, within the share of global search."""
        search = self.globally
        while (credit := search.credit) >= 2 * search.a_climb:
            before = self._oracle.evaluations
            random = search.random(min(credit // 2, _BATCH))
            if self._found_wrong(sets, cores, random):
                return True
            starts = np.concatenate([random, self.held.index])
            wrong = self.held.wrong(cores, starts, self._oracle.points(starts))
            starts = starts[np.argsort(-wrong, kind="stable")]
            if self._found_wrong(sets, cores, search.worst_tops(cores, starts, credit // 2)):
                return True
            if 2 * (self._oracle.evaluations - before) < len(random):
                break  # most entries are known: there is little left to look at
        return False

    def _found_wrong(self, sets: Sets, cores: Cores, points: np.ndarray) -> bool:
        """Searches the entries (m, d) for errors of the train; adds wrong ones as pivots."""
        points = points[: int(min(len(points), self._oracle.left))]
        if not len(points):
            return False
        before = self._oracle.evaluations
        values = self._oracle.points(points)
        self.globally.spent += self._oracle.evaluations - before
        wrong = self.held.wrong(cores, points, values)
        worst = np.argsort(-wrong, kind="stable")[:_NEAR_OFFERED]
        worst = worst[wrong[worst] > _AGREES * self._options.tol * self._oracle.largest]
        if worst.size:
            self._found = self._offer(sets, points[worst], values[worst], self._threshold)
            self.estimate = UNKNOWN
        return worst.size > 0

    def _met(self, sets: Sets) -> Status | None:
        """Adds held-out entries until the search would meet another part of f as small as this."""
        held = self.held
        while held.missing > 0:
            more = min(held.missing, self._options.most_random - held.uniform, self._oracle.left)
            if more < 1:
                return "unseen"
            held.extend(math.ceil(more))
            if not self._holds(sets):
                return None
        return "converged"

    def _holds(self, sets: Sets) -> bool:
        """Whether the search's error is below tolerance at changed held-out entries."""
        self.estimate = UNKNOWN
        return self._measure(sets).bound <= self._options.tol

    def _told(self, sets: Sets, estimate: Estimate) -> bool:
        if self._options.callback is None:
            return False
        told = CrossProgress(
            self.sweeps, *estimate, self._oracle.evaluations, sets.ranks, self.seconds
        )
        return bool(self._options.callback(told))

    def _offer_wrong(self, sets: Sets, level: float) -> int:
        """Adds held-out entries of largest error as pivots, where sweeps find none."""
        hidden = _HIDDEN * max(level, self._threshold)
        wrong = self.held.errors(self._finish(sets.cores()))
        worst = np.argsort(-wrong, kind="stable")[:_OFFERED]
        worst = worst[wrong[worst] > hidden**2]
        if not worst.size:
            return 0
        points, values = self.held.index[worst], self.held.values[worst]
        self.held.replace(worst)
        self._biased = True
        return self._offer(sets, points, values, self._threshold)

    def _stalled(self, idle: int) -> bool:
        spent = self._oracle.evaluations - self._mark[1]
        if spent > _PATIENCE * self._mark[1] + AT_LEAST:
            return True
        return idle >= 3 and (self._threshold <= self._least() or idle >= 20)

    def _lower(self, level: float, added: float, estimate: Estimate) -> None:
        """Lowers the search's residual threshold: steeply after few pivots, gently near the end."""
        need = self._options.tol / (2 * estimate.error) if estimate.error > 0 else 1.0
        base = self._threshold
        if not added:
            base = min(base, max(level, self.held.worst / _HIDDEN))
        steep = _STEEPEST**2 if added < _FEW_PIVOTS else _STEEPEST
        lowered = base * min(max(steep, need), _FLATTEST)
        least = self._least()
        if added:
            least = max(least, _LEVEL * max(level, self.held.worst))
        self._threshold = max(lowered, least)
