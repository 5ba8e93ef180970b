"""Verification of a tensor train of `cross` that met its tolerance: search for large errors."""

import math

import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._cross.approximation_state import Approximation
from tensorjax.tt._cross.cross_info import Status
from tensorjax.tt._cross.error_search import GlobalSearch
from tensorjax.tt._cross.held_out_error import UNKNOWN
from tensorjax.tt._cross.train_entries import TELLING, magnitudes

# Most wrong entries that become pivots at once.
_OFFERED = 16
# Local maxima that tell whether the train has found all of f: so many at least, each with this
# share of the largest entry or more.
_LEAST_TOPS, _TOP = 3, 0.1
# A tensor with so many times the entries that are known is read as a whole if f jumps, and has no
# more than the second number.
_READ, _MOST_READ = 4, 1 << 17
# Times that entries near the index sets and at edges are looked at if f jumps: on digits, and on
# longer modes.
_ROUNDS, _FEWER_ROUNDS = 3, 2
# Random entries that global search looks at before it climbs from the worst of them.
_BATCH = 20_000
# New entries contradict the estimate if one has an error above so many times the tolerance,
# relative to the largest value.
_AGREES = 100
# A held-out error stands out above so many times the root mean square of all but the TELLING
# largest ones, and above this part of the largest value, for less is roundoff. The second number
# of times is for errors beside roundoff, which scatter more.
_STANDS_OUT, _ABOVE_OTHERS, _ROUNDOFF = 10, 100, 1e-12
# Where f jumps, random entries are looked at too, until they are this share of all evaluations or
# would meet errors at so small a part of all entries that they are below so many times the
# tolerance: what is wrong is wrong by much, but at few entries, and no smaller errors lead there.
# They contradict the estimate if they show an error above the tolerance, of which entries with
# errors above the last part, relative to the largest value, become pivots.
_AT_RANDOM, _HARMLESS, _WRONG = 0.25, 3, 0.05
# Errors as large as those that were last made pivots would be met by new held-out entries, unless
# all of them together are below so many times the tolerance; but no more entries than this share of
# all evaluations are held out for that.
_TOGETHER, _SHARE = 3, 0.25
# Few held-out entries have most of the error if its standard error is above this part of it.
_UNEVEN = 0.1
# Where f was the same everywhere, there is nothing to fit: so many times as many random entries as
# were held out are looked at.
_IF_CONSTANT = 2
# Errors beside the terms that the train sums up stand out above so many units of roundoff.
_ABOVE_ROUNDOFF = 1e4
# An error of this part of the largest value tells of a jump, smaller ones of a smooth function's
# corners.
_JUMP = 0.01
# Where f jumps, edges are followed until so large a share of the evaluations went there, in so many
# steps at most.
_ALONG, _STEPS = 0.25, 30


class Verification:
    """Verification of a cross approximation that met its tolerance; wrong entries become pivots.

    Attributes:
      found: pivots that the last verdict gave.
    """

    def __init__(self, fit: Approximation, search: GlobalSearch):
        self._fit, self._search = fit, search
        self.found = 0
        self._worst = 0.0  # largest error at the entries that were looked at last
        self._largest = 0.0  # and at all that the last verdict looked at
        self._surprised = False  # whether a train that met the tolerance was wrong at edges
        self._drawn = 0  # random entries looked at where f jumps
        self._right = 0  # entries at edges that were right since one was wrong

    @property
    def _least(self) -> float:
        """Smallest error of one entry by which verification of `cross` refutes its error.

        If few entries carry the norm of f, less at one of them is above the tolerance already.
        """
        held = self._fit.held
        alone = _TOGETHER * math.sqrt(max(1.0, held.share * held.size))
        return min(_AGREES, alone) * self._fit.options.tol * self._fit.oracle.largest

    @property
    def _many(self) -> bool:
        """Whether verification of `cross` checks many entries near jumps that f seems to have."""
        return self._fit.jumps and self._fit.options.search > 0

    def verdict(self, level: float) -> Status | None:
        """Verifies that a cross approximation has converged, by a search for large errors.

        Args:
          level: the largest residual that the last sweep met.

        Returns:
          "converged"; None if the search should go on; "unseen" if no random entries that could be
          paid for would meet another part of f as small as the one that was found.
        """
        before = self._fit.held.uniform
        self._largest = level
        status = self._verdict(level)
        if status and not self._met_by_many():
            return None
        # Held-out entries that were added may show what the first ones did not.
        if status and self._fit.held.uniform > before and not self._fit.held.all:
            return None if self._wrong_above(self._fit.current()) else status
        return status

    def grows(self) -> bool:
        """Verifies, on digits, a stalled train of `cross` beside the cells at its edges.

        Returns:
          Whether it was wrong there; entries where it was are pivots now.
        """
        if not (self._many and self._search.fine):
            return False
        return self._wrong_at_rare(self._fit.current())

    def _verdict(self, level: float) -> Status | None:
        """Verifies that a cross approximation converged, by its held-out and other entries."""
        fit, held = self._fit, self._fit.held
        if level > self._least:
            if self._many and self._harmless():
                return "converged"
            if self._many:  # where one edge is wrong, others are
                self._wrong_at_edges(fit.current())
            return None  # seen by the fresh random entries of this sweep
        if fit.biased and not self._unbiased():
            return None
        if held.all:
            return "converged"
        if not self._met_as_large_as(level):
            return None
        cores = fit.current()
        if self._wrong_above(cores):
            return None
        seen = held.plain and (held.agree(cores) or held.exact(cores))
        if self._wrong_at_edges(cores):
            self._surprised = self._surprised or self._worst > _JUMP * fit.oracle.largest
            return None
        if seen and not fit.like_exact and not fit.rare:
            if self._wrong_elsewhere(cores):
                return None
            return "unseen" if self._surprised else "converged"
        # Either f is large at few entries, or the train seems to be exact: then f may also be
        # one that jumps, and wrong at few entries only.
        if not self._more():
            return None
        if held.all:
            return "converged"
        if self._wrong_nearby(cores) or self._wrong_elsewhere(cores):
            return None
        if not (seen or fit.given):
            tops = self._search.tops()
            if self._found_wrong(cores, tops):
                return None
            # If all climbs end at entries as large as those found, the train has found all of f.
            high = np.abs(fit.oracle.points(tops)).max(axis=1) >= _TOP * fit.oracle.largest
            seen = high.size >= _LEAST_TOPS and bool(high.all())
        status = self._met() if not fit.given and (held.jumps or not seen) else "converged"
        return "unseen" if status and (fit.rare or self._surprised) else status

    def _harmless(self) -> bool:
        """Whether verification of `cross` shows that errors at jumps are below tolerance.

        An edge is never found to the last cell where ranks are as high as the grid is fine; at a
        tolerance of 1e-2, a few thousand entries tell that the cells that are wrong are too few.
        """
        fit, held = self._fit, self._fit.held
        enough = 3 / (_HARMLESS * fit.options.tol) ** 2
        more = math.ceil(enough) - held.uniform
        if enough > _BATCH or more > fit.oracle.left or (fit.biased and not self._unbiased()):
            return False
        if more > 0:
            held.extend(more)
        return fit.holds()

    def _met_as_large_as(self, level: float) -> bool:
        """Verifies `cross` at enough held-out entries to meet what the sweep left.

        Residuals of the last sweep stand at other entries too. An earlier search with a small
        budget, or on a small tensor, held out few: more are, up to the number asked for, until they
        would meet such errors unless all of them together are below tolerance.
        """
        options, held = self._fit.options, self._fit.held
        times = level / (_TOGETHER * options.tol * (held.rms or 1.0))
        enough = max(options.wanted, min(options.asked, 3 * times**2))
        missing = math.ceil(min(enough - held.uniform, self._fit.oracle.left))
        if missing >= 1:
            held.extend(missing)
            return self._fit.holds()
        return True

    def _met_by_many(self) -> bool:
        """Verifies `cross` at enough entries to meet the largest errors found.

        Along a kink errors are far above the tolerance, and at so few entries that the held-out
        ones may have met none, while the search for errors did.
        """
        fit, held = self._fit, self._fit.held
        if fit.options.search == 0 or held.all:
            return True
        if fit.estimate.std <= _UNEVEN * fit.estimate.error:  # then they met such errors
            return True
        times = self._largest / (_TOGETHER * fit.options.tol * (held.rms or 1.0))
        enough = min(3 * times**2, _SHARE * fit.oracle.evaluations)
        more = math.ceil(min(enough - held.uniform, fit.oracle.left))
        if more < 1:
            return True
        held.extend(more)
        return fit.holds()

    def _unbiased(self) -> bool:
        """Verifies that a cross approximation meets its tolerance at new held-out entries.

        Wrong ones were taken out, and those that are left are right more often than others.
        """
        fit = self._fit
        fit.biased = False
        fit.held.renew()
        if not fit.holds():
            return False
        if fit.options.search == 0 or fit.jumps:  # which is looked at in other ways
            return True
        # Errors along a curve, as at a kink, are at so few entries that as usual none is met.
        times = fit.alone / (_TOGETHER * fit.options.tol * (fit.held.rms or 1.0))
        most = min(_SHARE * fit.oracle.evaluations, fit.oracle.left)
        more = math.ceil(min(3 * times**2 - fit.held.uniform, most))
        if more < 1 or fit.held.all:
            return True
        fit.held.extend(more)
        return fit.holds()

    def _more(self) -> bool:
        """Verifies that a cross approximation meets its tolerance at more held-out entries."""
        held = self._fit.held
        more = min(self._fit.options.asked - held.uniform, self._fit.oracle.left)
        known = self._fit.oracle.remembered
        readable = max(known, self._fit.options.asked)
        if self._fit.rare or held.jumps:
            readable = max(readable, min(_READ * known, _MOST_READ))
        if held.size <= readable and self._fit.payable:
            held.read_all()
        elif more >= 1:
            held.extend(int(more))
        if not held.plain or not held.agree(self._fit.current()):
            held.mix(self._fit.current())
        return self._fit.holds()

    def _wrong_at_edges(self, cores: Cores) -> bool:
        """Verifies a tensor train of `cross` beside jumps and at corners; True if wrong there."""
        fit, sets = self._fit, self._fit.sets
        many, before = self._many, fit.oracle.evaluations
        edges = self._search.edges(cores, sets.left, sets.right, self._least, many=many)
        wrong = self._found_wrong(cores, edges)
        wrong = wrong or self._found_wrong(cores, self._search.corners(sets.left, many=many))
        self._right = 0 if wrong else self._right + fit.oracle.evaluations - before
        fit.edgy = fit.edgy or (wrong and self._worst > _JUMP * fit.oracle.largest)
        return wrong

    def _wrong_above(self, cores: Cores) -> bool:
        """Verifies `cross` by a climb from a held-out error that stands out; True if wrong.

        Where the train is exact, errors are beside the roundoff in the train's entry: the tail of a
        peak is far above it where all else that f consists of is small.
        """
        fit, search = self._fit, self._search
        if fit.options.search == 0 or fit.oracle.left <= search.a_climb:
            return False
        index, values = fit.held.with_former()
        wrong = fit.held.wrong(cores, index, values)
        if self._stands_out(wrong, _ROUNDOFF * fit.oracle.largest, _STANDS_OUT):
            start = index[[int(wrong.argmax())]]
            return self._found_wrong(cores, search.worst_tops(cores, start, search.a_climb))
        roundoff = float(np.finfo(fit.oracle.dtype).eps)
        with np.errstate(over="ignore"):
            part = wrong / (magnitudes(cores, index) + np.finfo(float).tiny)
        part = np.minimum(part, np.finfo(float).max)
        if self._stands_out(part, _ABOVE_ROUNDOFF * roundoff, _ABOVE_OTHERS):
            start = index[[int(part.argmax())]]
            tops = search.worst_tops(cores, start, search.a_climb, relative=True)
            return self._found_wrong(cores, tops)
        return False

    def _stands_out(self, wrong: np.ndarray, least: float, times: float) -> bool:
        """Whether the verification of `cross` sees one error far above most others."""
        largest = float(wrong.max())
        if not largest > least:
            return False
        rest = np.sort(wrong)[:-TELLING] / largest
        return float((rest**2).sum()) * times**2 < len(wrong)

    def _wrong_nearby(self, cores: Cores) -> bool:
        """Verifies a tensor train of `cross` near its index sets; True if wrong there."""
        sets = self._fit.sets
        rounds = _ROUNDS if self._search.coarseness == 1 else _FEWER_ROUNDS
        for _ in range(rounds if self._many else 1):
            if self._found_wrong(cores, self._search.near(cores, sets.left, sets.right)):
                return True
            if self._many and self._wrong_at_edges(cores):
                self._surprised = self._surprised or self._worst > _JUMP * self._fit.oracle.largest
                return True
        if not (self._many and self._search.fine):
            return False
        return self._wrong_at_rare(cores) or self._wrong_along_edges(cores)

    def _wrong_at_rare(self, cores: Cores) -> bool:
        """Verifies a train of `cross` where its edges look as nowhere else; True if wrong there."""
        wrong = self._found_wrong(cores, self._search.rare(cores, self._least))
        largest = self._fit.oracle.largest
        self._surprised = self._surprised or (wrong and self._worst > _JUMP * largest)
        return wrong

    def _wrong_along_edges(self, cores: Cores) -> bool:
        """Verifies a train of `cross` all along the edges that it has; True if wrong there.

        A jump along a curve is right in most cells once the ranks are right, and wrong in single
        ones, of which bisection meets few: from the edges found, steps to neighbours go on along
        the curve until they meet nothing new. A train that is right at more entries at edges than
        it has parameters, none of which it was fitted to, is not followed: few points, or lines
        along the axes, are edges of low rank.
        """
        oracle, sets = self._fit.oracle, self._fit.sets
        if self._right >= sum(core.size for core in cores):
            return False
        edges = self._search.edges(cores, sets.left, sets.right, self._least, many=True)
        most = (1 + _ALONG) * oracle.evaluations
        seen = edges
        for _ in range(_STEPS):
            if not len(edges) or oracle.evaluations >= most:
                return False
            if self._found_wrong(cores, edges):
                self._surprised = self._surprised or self._worst > _JUMP * oracle.largest
                return True
            edges = self._search.along(cores, edges, self._least)
            edges = edges[~_among(edges, seen)]
            seen = np.concatenate([seen, edges])
        return False

    def _wrong_at_random(self, cores: Cores) -> bool:
        """Verifies `cross` of a function with jumps at random entries; True if wrong there."""
        fit, oracle, tol = self._fit, self._fit.oracle, self._fit.options.tol
        least = _IF_CONSTANT * fit.held.uniform if fit.held.constant else 0
        most = max(_AT_RANDOM * oracle.evaluations, least)
        most = min(most, 3 / (_HARMLESS * tol) ** 2)
        while self._many and (more := int(min(most - self._drawn, _BATCH, oracle.left))) > 0:
            self._drawn += more
            points, before = self._search.random(more), oracle.evaluations
            wrong = fit.held.wrong(cores, points, oracle.points(points))
            self._search.spent += oracle.evaluations - before
            if float((wrong**2).mean()) > (tol * fit.held.rms) ** 2:
                worst = points[np.argsort(-wrong, kind="stable")[:_OFFERED]]
                if self._found_wrong(cores, worst, _WRONG * oracle.largest):
                    return True
        return False

    def _wrong_elsewhere(self, cores: Cores) -> bool:
        """Verifies a train of `cross` by ascents from random entries; True if wrong there."""
        if self._wrong_at_random(cores):
            return True
        search, oracle, held = self._search, self._fit.oracle, self._fit.held
        while (credit := search.credit) >= 2 * search.a_climb:
            before = oracle.evaluations
            random = search.random(min(credit // 2, _BATCH))
            if self._found_wrong(cores, random):
                return True
            starts = np.concatenate([random, held.index])
            wrong = held.wrong(cores, starts, oracle.points(starts))
            starts = starts[np.argsort(-wrong, kind="stable")]
            if self._found_wrong(cores, search.worst_tops(cores, starts, credit // 2)):
                return True
            if 2 * (oracle.evaluations - before) < len(random):
                break  # most entries are known: there is little left to look at
        return False

    def _found_wrong(self, cores: Cores, points: np.ndarray, least: float | None = None) -> bool:
        """Verifies `cross` at given entries: errors above ``least`` become pivots; True if any."""
        fit, oracle = self._fit, self._fit.oracle
        points = points[: int(min(len(points), oracle.left))]
        if not len(points):
            return False
        before = oracle.evaluations
        values = oracle.points(points)
        self._search.spent += oracle.evaluations - before
        wrong = fit.held.wrong(cores, points, values)
        self._worst = float(wrong.max())
        self._largest = max(self._largest, self._worst)
        worst = np.argsort(-wrong, kind="stable")[:_OFFERED]
        worst = worst[wrong[worst] > (self._least if least is None else least)]
        if worst.size:
            self.found = fit.offer(points[worst], values[worst])
            fit.estimate = UNKNOWN
        return worst.size > 0

    def _met(self) -> Status | None:
        """Adds held-out entries for the verification of `cross`, to detect an equal part of f."""
        held = self._fit.held
        while held.missing > 0 and not held.all:
            more = min(
                held.missing, self._fit.options.most_random - held.uniform, self._fit.oracle.left
            )
            if more < 1:
                return "unseen"
            held.extend(math.ceil(more))
            if not self._fit.holds():
                return None
        return "converged"


def _among(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Whether each multi-index (m, d) is among others that verification of `cross` has seen."""
    numbers = np.unique(np.concatenate([others, rows]), axis=0, return_inverse=True)[1].ravel()
    return np.isin(numbers[len(others) :], numbers[: len(others)])
