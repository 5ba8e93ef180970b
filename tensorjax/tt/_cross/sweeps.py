"""Sweeps of `cross`: they add greedy pivots until held-out entries meet the tolerance."""

import math
import time

import numpy as np

from tensorjax.tt._cross.approximation_state import Approximation
from tensorjax.tt._cross.cross_info import ADVICE, ALL_ZERO, CrossInfo, CrossProgress, Status, told
from tensorjax.tt._cross.error_search import GlobalSearch
from tensorjax.tt._cross.greedy_pivots import Sets
from tensorjax.tt._cross.held_out_error import Estimate
from tensorjax.tt._cross.sampled_function import (
    BudgetExhausted,
    FunctionFailed,
    Rescaled,
)
from tensorjax.tt._cross.verification import Verification

# Every sweep lowers the threshold, below which residuals are left, by a factor in this range.
_STEEPEST, _FLATTEST = 0.1, 0.5
# After a sweep with fewer pivots per bond than this, it may fall by _STEEPEST².
_FEW_PIVOTS = 1.5
# Pivots are no smaller than this part of the largest residual or error that was just seen: smaller
# ones make the interpolation ill-conditioned, and do not lead to what is large.
_LEVEL = 1e-3
# The search has stalled if the error did not fall by the factor PROGRESS while _PATIENCE times as
# many evaluations were made as until then, plus AT_LEAST. A train with an error above _LOST may
# still be about to find f: where f is large on curves or along edges alone, the error hardly falls
# until ranks are nearly those of f. Then so many evaluations more are made.
_PATIENCE, AT_LEAST = 5, 20_000
_LOST, _SEARCHED = 0.1, 100_000
# So many times at most a train that met the tolerance may be found wrong at other entries before
# the search counts as one that makes no progress.
_SURPRISES = 4
# So many times at most a search that stalled goes on from new cells of a thin set.
_GROWTHS = 30
# Entries that are asked for again where a search stalled, as f may be noisy or have a state; and
# what it may differ by beside its root mean square, for sums of a batch may depend on the others.
_AGAIN, _SAME = 8, 1e-6
# A tensor of so many entries or more that was read whole is asked for some again if the train is no
# shorter than it, as that of noise is; but not if more than this part of its values are the same,
# of which a few entries tell nothing.
_MANY_ENTRIES, _SAME_VALUE = 256, 0.9
# Most held-out entries that become pivots at once, and no more than half of the largest rank unless
# f jumps: those with errors above _HIDDEN times the residuals of all blocks.
_OFFERED, _HIDDEN = 4, 10.0
# After an error of no more than so many times the tolerance, a sweep ends at the first bond whose
# pivots led below it: those of the other bonds would make the train better than was asked for. Not
# on digits, where pivots cost little, and singularities are resolved that random entries miss.
_NEARLY = 10


class Search:
    """Sweeps of a cross approximation, which add pivots until the error meets the tolerance.

    Attributes:
      globally: search for errors all over the tensor.
      failure: the error of f that ended the search, and where; empty if none did.
      unsteady: by how much f differs from itself at the same entries, over its root mean square; 0
        if it does not, or if neither the search stalled nor the train is as long as the tensor.
    """

    def __init__(self, fit: Approximation, rng: np.random.Generator):
        self.sweeps = 0
        self.failure = ""
        self.unsteady = 0.0
        self._fails = False  # f does at an entry that a search may not need
        self._began = time.perf_counter()
        self._oracle, self._options, self._rng = fit.oracle, fit.options, rng
        self.fit, self.held = fit, fit.held
        self.globally = GlobalSearch(
            fit.oracle, fit.held, rng, fit.options.search, fit.options.most_random
        )
        self._verification = Verification(self.fit, self.globally)
        self._last = math.inf  # error when it was last measured
        self._growths = 0  # times that a search that stalled went on
        self._surprises = 0  # times that a train below the tolerance was found wrong elsewhere

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
                    self.fit.settle(more=status != "stopped")
                noisy = status == "stalled" or (status == "converged" and self._full)
                if noisy and self._oracle.left >= _AGAIN:
                    self.unsteady = self._unsteady()
                return "stalled" if self.unsteady > self.tol else status
            except Rescaled:  # values so large that the others are nothing: from the beginning
                rescaled = True
                self.fit.rescale()
            except BudgetExhausted:
                return self.fit.ended("budget")
            except FunctionFailed as error:
                self.failure = str(error)
                return self.fit.ended("failed")
            except KeyboardInterrupt:
                if not self._oracle.end_on_error or not self._oracle.evaluations:
                    raise
                self.failure = f"interrupted after {self._oracle.evaluations} evaluations"
                return self.fit.ended("failed", measured=False)

    @property
    def doubt(self) -> float:
        """Standard error that sweeps of `cross` add for unsampled regions of an f with jumps."""
        return self.held.unseen(elsewhere=not self.fit.given) if self.fit.jumps else 0.0

    @property
    def _full(self) -> bool:
        """Whether sweeps of `cross` read all entries, and the train has no fewer parameters."""
        held = self.held
        parameters = sum(c.size for c in self.fit.cores)
        if not held.all or held.size < _MANY_ENTRIES or parameters < held.values.size:
            return False
        counts = np.unique(held.values, axis=0, return_counts=True)[1]
        return bool(counts.max() <= _SAME_VALUE * len(held.values))

    def _unsteady(self) -> float:
        """Sweeps' first check in `cross`: how much f changes when it is evaluated again."""
        places = np.arange(min(_AGAIN, len(self.held.index)))
        if self.held.all:  # which are in order, and the first one may be the largest
            places = (2 * places + 1) * len(self.held.index) // (2 * len(places))
        change = np.abs(
            self._oracle.again(self.held.index[places]) - self.held.values[places]
        ).max()
        part = float(change) / (self.held.rms or 1.0)
        return part if part > _SAME else 0.0

    def _run(self) -> Status:
        self.fit.look()
        few = self.fit.small and self.held.telling < self.held.enough
        if self.fit.payable and (few or (self.fit.readable and not self._fails)):
            try:
                return self.fit.whole()
            except FunctionFailed:
                if few:
                    raise
                self._fails = True
        if self._oracle.largest == 0 and not self.fit.warm:
            return self._read_after(self.fit.zero())
        if not self.fit.start():
            return self._run()
        # Before any sweep: a train of rank one may do.
        if self._measured().bound <= self.tol and (status := self._verification.verdict(0.0)):
            return self._read_after(status)
        return self._read_after(self._sweep_on(self.fit.sets))

    def _measured(self) -> Estimate:
        """Estimates the error between sweeps of `cross`, at more held-out entries if in doubt."""
        estimate = self.fit.measure()
        more = min(self._options.wanted - self.held.uniform, self._oracle.left)
        if estimate.error <= self.tol < estimate.bound and more >= 1:
            self.held.extend(int(more))
            estimate = self.fit.measured_anew()
        self._last = estimate.error
        return estimate

    def _read_after(self, status: Status) -> Status:
        """Evaluates a tensor in full, if small enough, after sweeps of `cross` of unknown error."""
        fit = self.fit
        if status == "converged" and self.doubt > self.tol and not fit.like_exact:
            status = "unseen"
        known = fit.small or self.held.all or (fit.affordable and not self._fails)
        if status not in ("stalled", "unseen", "zero") or not (known and fit.payable):
            return status
        try:
            return fit.whole()
        except FunctionFailed:
            if fit.small or self.held.all:
                raise
            return status

    def _read(self) -> Status | None:
        """Reads all entries in place of more sweeps of `cross`; None if f or the budget forbids."""
        if self._fails:
            return None
        try:
            return self.fit.whole()
        except FunctionFailed:
            self._fails = True
        except BudgetExhausted:
            pass
        return None

    def _sweep_on(self, sets: Sets) -> Status:
        options = self._options
        bonds = range(1, len(self._oracle.shape))
        idle = 0
        for self.sweeps in range(1, options.max_sweeps + 1):
            forward = self.sweeps % 2 == 1
            level, added = self._swept(sets, bonds if forward else bonds[::-1])
            estimate = self._measured()
            if self._told(sets, estimate):
                return "stopped"
            if self.fit.half_read and (status := self._read()):
                return status
            self._verification.found = 0
            if estimate.bound <= options.tol:
                before = self._oracle.evaluations
                if status := self._verification.verdict(level):
                    known = status == "converged" and self.fit.quarter_read
                    return (self._read() if known else None) or status
                if self._oracle.evaluations > before and self._surprises < _SURPRISES:
                    self._surprises += 1  # f is another one than it seemed: patience anew
                    self.fit.mark = (math.inf, self._oracle.evaluations)
            added += self._verification.found
            # Errors that are larger by far than all that was left alone lie where no block shows.
            hidden = self.held.worst > _HIDDEN * max(level, self.fit.threshold)
            if hidden or not added:
                added += self._offer_wrong(level)
            idle = 0 if added else idle + 1
            full = max(sets.ranks) >= options.max_rank
            if self._stalled(idle) or (full and idle > 1 and level > self.fit.threshold):
                if full or not self._grown():
                    return "max_rank" if full else "stalled"
                idle = 0
            self._lower(level, added / len(bonds), estimate)
        return "max_sweeps"

    def _swept(self, sets: Sets, bonds: range) -> tuple[float, int]:
        """Adds pivots of `cross` bond by bond in one sweep; a last sweep ends at the tolerance.

        Returns:
          The largest residual that was met, and the number of pivots added.
        """
        level, added = 0.0, 0
        nearly = self._last <= _NEARLY * self.tol and self.globally.coarseness > 1
        for k in bonds:
            r = len(sets.left[k])
            limit = min(max(2, r // 2), self._options.max_rank - r)
            seen, new = sets.visit(k, self.fit.threshold, limit, bonds.step > 0, self._rng)
            level, added = max(level, seen), added + new
            if nearly and new and self.fit.measure().bound <= self.tol:
                break
        return level, added

    def _offer_wrong(self, level: float) -> int:
        """Adds held-out entries of largest error as pivots if the sweeps of `cross` miss them."""
        hidden = _HIDDEN * max(level, self.fit.threshold)
        wrong = self.held.errors(self.fit.current())
        few = max(1, min(_OFFERED, max(self.fit.sets.ranks) // 2))
        most = _OFFERED if self.fit.jumps else few
        worst = np.argsort(-wrong, kind="stable")[:most]
        worst = worst[wrong[worst] > hidden**2]
        if not worst.size:
            return 0
        self.fit.alone = math.sqrt(wrong[worst[0]])
        points, values = self.held.index[worst], self.held.values[worst]
        self.held.replace(worst)
        self.fit.biased = True
        return self.fit.offer(points, values)

    def _told(self, sets: Sets, estimate: Estimate) -> bool:
        if self._options.callback is None:
            return False
        told = CrossProgress(
            self.sweeps, *estimate, self._oracle.evaluations, sets.ranks, self.seconds
        )
        return bool(self._options.callback(told))

    def _stalled(self, idle: int) -> bool:
        spent = self._oracle.evaluations - self.fit.mark[1]
        least = _SEARCHED if _LOST < self.fit.mark[0] < math.inf else AT_LEAST
        if spent > _PATIENCE * self.fit.mark[1] + least:
            return True
        return idle >= 3 and (self.fit.threshold <= self.fit.least() or idle >= 20)

    def _grown(self) -> bool:
        """Whether the sweeps of `cross`, which stalled, go on from cells beside the set they know.

        A set so thin that random entries do not meet it is known by the cells that led to others.
        """
        if self._growths >= _GROWTHS or not self._verification.grows():
            return False
        self._growths += 1
        self.fit.mark = (math.inf, self._oracle.evaluations)
        return True

    def _lower(self, level: float, added: float, estimate: Estimate) -> None:
        """Lowers the residual threshold above which sweeps of `cross` make entries pivots."""
        need = self._options.tol / (2 * estimate.error) if estimate.error > 0 else 1.0
        base = self.fit.threshold
        if not added:
            base = min(base, max(level, self.held.worst / _HIDDEN))
        steep = _STEEPEST**2 if added < _FEW_PIVOTS else _STEEPEST
        lowered = base * min(max(steep, need), _FLATTEST)
        least = self.fit.least()
        if added:
            least = max(least, _LEVEL * max(level, self.held.worst))
        self.fit.threshold = max(lowered, least)

    # Report --------------------------------------------------------------------------------------

    def report(self, status: Status, estimate: Estimate, ranks: tuple[int, ...]) -> CrossInfo:
        """Builds the report of `cross` after its last sweep, of a train of these ranks."""
        oracle = self._oracle
        return CrossInfo(
            status=status,
            error=estimate.error,
            error_std=estimate.std,
            held_out=len(self.held.index),
            evaluations=oracle.evaluations,
            cache_hits=oracle.hits,
            sweeps=self.sweeps,
            ranks=ranks,
            seconds=self.seconds,
            programs=len(oracle.programs),
            advice=self._advice(status),
            searched=self.held.uniform + self.globally.spent,
            message=self._message(status, estimate),
            record=oracle.record(self._options.held_out),
        )

    def _advice(self, status: Status) -> str:
        """Writes advice after the last sweep of `cross`: what to change if it has not converged."""
        if self.held.all and self._oracle.largest == 0:
            return ALL_ZERO
        if self.unsteady:
            return (
                f"f gave other values when it was asked for the same entries again, by "
                f"{self.unsteady:.0e} of its root mean square: it is noisy or has a state; make it "
                f"depend on its argument alone, or ask for a tol above its noise"
            )
        return ADVICE[status]

    def _message(self, status: Status, estimate: Estimate) -> str:
        """Describes in words how the sweeps of `cross` ended, and where errors were sought."""
        held, globally = self.held, self.globally
        said = self.failure or (
            f"{status}: error {estimate.error:.1e} with standard error {estimate.std:.1e}, "
            f"{self.tol:.1e} asked{told(estimate.std)}"
        )
        if held.all:
            return f"{said}; all {held.size} entries were read"
        part = 3 / max(1, held.uniform)
        return (
            f"{said}; searched, a sample of {self._oracle.evaluations} of {held.size:.3g} entries: "
            f"{held.uniform} random entries, {globally.spent} others and {globally.climbs} ascents "
            f"of the error; what f does at less than {part:.1e} of all entries may have escaped"
        )
