"""State of a running cross approximation: index sets, tensor train, and estimated error."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax._cores.dense_decompositions import double_of_ours
from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._cross.cross_info import Options, Status
from tensorjax.tt._cross.error_search import climbed
from tensorjax.tt._cross.greedy_pivots import Sets
from tensorjax.tt._cross.held_out_error import UNKNOWN, Estimate, HeldOut
from tensorjax.tt._cross.maxvol import right_sets
from tensorjax.tt._cross.sampled_function import Oracle
from tensorjax.tt._cross.train_entries import TELLING, entries
from tensorjax.tt._tt_svd.from_dense import from_dense

# Residuals of these parts of the tolerance, relative to the root mean square of f, need no pivot;
# one that is roundoff makes the interpolation useless. The second, if the error is at few entries
# alone: where it is large, smaller pivots do not lead.
_NEEDLESS = (1e-6, 1e-3)
# Errors so many times the tolerance, and this large beside the root mean square of f, at few
# entries while all others are below the tolerance, tell of a function that jumps.
_ALONE, _LARGE = 10, 0.1
# Errors are at few entries if without these they are this part of themselves, or less.
_ELSEWHERE = 0.1
# Most moves of the first pivot along its fibres, each to an entry larger by at least this factor.
_MOVES, _MOVE_GAIN = 4, 2.0
# The first threshold, beside the largest entry; and the factor by which an error must fall to count
# as progress.
_FIRST, PROGRESS = 0.1, 0.7
# Most elements, components counted, of a tensor that is read instead of searched: 32 MiB.
_MOST_ELEMENTS = 1 << 22
# Most entries of a tensor that is read after a search that failed, if no budget is given.
_MOST_READ = 1 << 18
# A tensor of no more than so many times the entries that are known already is read entirely, as
# ranks are so high that sweeps would go on to evaluate most of it; and one of no more than so many
# times, and of so many entries, before its train counts as converged: with such ranks f may have a
# kink, along which errors are at a few hundred entries.
_HALF, _QUARTER, _FEW_ENTRIES = 2, 4, 1 << 16


class Approximation:
    """State of a cross approximation: index sets, best tensor train, and its estimated error.

    Attributes:
      oracle: f.
      held: held-out entries.
      finish: turns cores into those that will be returned: cast to their dtype.
      cores: of the best train so far.
      threshold: residuals up to here are left alone.
      mark: the last error that was progress, and the evaluations then.
      biased: whether pivots were made of held-out entries.
      alone: the largest error of those that were last made pivots.
      rare: whether errors were last at few entries alone.
      edgy: whether large errors were ever at few entries, as where f jumps.
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
        self.oracle, self.options, self.finish = oracle, options, finish
        self.held = HeldOut(oracle, options.held_out, rng)
        self._x0, self._pivots = x0, pivots
        self._sets: Sets | None = None
        self.threshold = 0.0
        self.mark = (math.inf, 0)
        self.biased = self.rare = self.edgy = False
        self.alone = 0.0
        self.cores: Cores = []
        self.estimate = UNKNOWN

    @property
    def sets(self) -> Sets:
        """Index sets (pivots) in the state of `cross`, from which its train is built."""
        if self._sets is None:
            raise RuntimeError("no index sets before the start")
        return self._sets

    @property
    def warm(self) -> bool:
        """Whether the state of `cross` starts from a given tensor train."""
        return self._x0 is not None

    @property
    def given(self) -> bool:
        """Whether the state of `cross` starts from a given tensor train or from given pivots."""
        return self._x0 is not None or self._pivots is not None

    @property
    def jumps(self) -> bool:
        """Whether, in the state of `cross`, the function seems to have jumps (discontinuities)."""
        return self.edgy or self.held.jumps

    @property
    def like_exact(self) -> bool:
        """Whether the error in the state of `cross` is as small as if the train were exact."""
        return self.options.like_exact(self.estimate.error)

    def current(self) -> Cores:
        """Returns the cores of the train in the state of a running cross approximation."""
        return self.finish(self.sets.cores())

    # Start ---------------------------------------------------------------------------------------

    def rescale(self) -> None:
        """Discards index sets and error in the state of `cross` after f was rescaled."""
        self._sets, self.estimate, self.mark = None, UNKNOWN, (math.inf, 0)

    def look(self) -> None:
        """Searches a nonzero value of f to start a cross approximation from, given or random."""
        if self._pivots is not None:
            self.oracle.points(self._pivots)
        most = self.options.most_random
        if self.small or self._x0 is not None:
            return
        while self.oracle.largest == 0 and self.held.uniform < most:
            self.held.extend(min(self.held.uniform, most - self.held.uniform))

    def start(self) -> bool:
        """Builds the first state of `cross`: index sets at a large entry of f.

        Returns:
          Whether that led anywhere: it does not if x0 or the pivots are where f is zero.
        """
        oracle = self.oracle
        offers = [] if self._x0 is None else right_sets(self._x0)
        point = self._larger(oracle.peak, offers)
        self.held.replace(self.held.places(oracle.peak))
        sets = Sets(oracle, point)
        few = self.held.telling < self.held.enough  # lead there: one step is not enough
        exact = few and self.held.exact(sets.cores())
        if few and not exact:
            sets = Sets(oracle, climbed(oracle, point))
        for _ in range(0 if exact else _MOVES):
            moved = Sets(oracle, sets.largest())
            if moved.size < _MOVE_GAIN * sets.size:
                break
            sets = moved
        self.threshold = _FIRST * sets.size
        if sets.size == 0:
            self._x0 = None
            return False
        self._sets = sets
        least = 1e3 * self._floor()
        for k, right in enumerate(offers, start=1):
            sets.offer(k, right, least, self.options.max_rank - len(sets.left[k]))
        if self._pivots is not None:
            self.offer(self._pivots, oracle.points(self._pivots), least)
        return True

    def _larger(self, point: np.ndarray, offers: list[np.ndarray]) -> np.ndarray:
        """Returns the entry where the state of `cross` starts: the largest near given pivots."""
        if not offers:
            return point
        oracle = self.oracle
        first = np.append(np.arange(oracle.shape[0]), point[0])[:, None]
        others = np.concatenate([offers[0], point[None, 1:]])
        seen = np.abs(oracle.block(oracle.part(first, 0), oracle.part(others, 1)))
        i, j = divmod(int(seen.argmax()), seen.shape[1])
        return np.concatenate([first[i], others[j]])

    def offer(self, points: np.ndarray, values: np.ndarray, threshold: float | None = None) -> int:
        """Adds entries with large residuals to the pivots of a running cross approximation."""
        sets, threshold = self.sets, self.threshold if threshold is None else threshold
        if len(self.oracle.shape) > points.shape[1]:
            component = np.abs(entries(self.current(), points) - values).argmax(axis=1)
            points = np.concatenate([points, component[:, None]], axis=1)
        added = 0
        for k in range(1, points.shape[1]):
            limit = self.options.max_rank - len(sets.left[k])
            added += sets.offer(k, points[:, k:], threshold, limit)
        return added

    # Error ---------------------------------------------------------------------------------------

    def _floor(self) -> float:
        """Returns the magnitude of roundoff in values of f, for the state of `cross`."""
        values = float(np.finfo(self.oracle.dtype).eps)
        arithmetic = 16 * float(np.finfo(np.float64).eps)
        return max(values, arithmetic) * self.oracle.largest

    def least(self) -> float:
        """Returns the residual below which a pivot is of no use to a cross approximation."""
        part = _NEEDLESS[self.held.rest <= self.options.tol]
        return max(self._floor(), part * self.options.tol * self.held.rms)

    def measure(self, *, follow: bool = True) -> Estimate:
        """Estimates the error of a running `cross`, and stores the best train in its state."""
        cores = self.current()
        if follow and self.held.follow(cores):
            self.estimate = UNKNOWN  # it was measured at other entries
        estimate = self.held.glance(cores, self.options.tol)
        if estimate.error > _ALONE * self.options.tol:
            held = self.held  # a train that knows f nearly everywhere, and not at all elsewhere
            jumped = held.plain and held.worst > _LARGE * held.rms
            self.rare = jumped and held.rest <= self.options.tol
            self.edgy = self.edgy or (jumped and held.rest <= _ELSEWHERE * estimate.error)
        if estimate.bound <= self.estimate.bound:
            self.cores, self.estimate = cores, estimate
        if estimate.bound < PROGRESS * self.mark[0]:
            self.mark = (estimate.bound, self.oracle.evaluations)
        return estimate

    def measured_anew(self) -> Estimate:
        """Updates the error in the state of `cross` after its held-out entries changed."""
        self.estimate = UNKNOWN
        return self.measure()

    def holds(self) -> bool:
        """Whether the state of `cross` meets the tolerance at changed held-out entries."""
        return self.measured_anew().bound <= self.options.tol

    def settle(self, *, more: bool) -> None:
        """Estimates the final error in the state of a cross approximation that did not converge.

        Args:
          more: whether f may be evaluated at as many held-out entries as were asked for.
        """
        missing = min(self.options.wanted - self.held.uniform, self.oracle.left)
        if self.biased:
            self.biased = False
            self.held.renew()
        if more and missing >= 1:
            self.held.extend(int(missing))
        if not self.held.all and not self.held.agree(self.cores):
            self.held.mix(self.cores)
        self.estimate = self.held.estimate(self.cores)

    # Without a search -----------------------------------------------------------------------------

    @property
    def one_read(self) -> bool:
        """Whether all entries are evaluated at once, without a search by cross approximation."""
        return self.held.all or self.held.index.shape[1] == 1

    @property
    def readable(self) -> bool:
        """Whether, in the state of `cross`, a small tensor is to be evaluated in full."""
        if self.one_read:
            return self.small
        elements = self.held.size * self.held.values.shape[1]
        return self.small and self.options.search > 0 and elements <= _MOST_ELEMENTS

    @property
    def small(self) -> bool:
        """Whether, in this state, a full evaluation costs no more than a `cross` without result."""
        most = self.options.budget if self.one_read else self.options.most_random
        return self.held.size <= most

    @property
    def payable(self) -> bool:
        """Whether, in this state, the budget of `cross` allows to evaluate all entries left."""
        size, oracle = self.held.size, self.oracle
        # A cache that is too small for all forgets known ones while the others are evaluated.
        known = oracle.remembered if oracle.holds(size) else 0
        return self.held.all or size - known <= oracle.left

    @property
    def affordable(self) -> bool:
        """Whether, in the state of a failed `cross`, to evaluate the tensor in full."""
        budget, size = self.options.budget, self.held.size
        most = budget if math.isfinite(budget) else _MOST_READ
        elements = size * self.held.values.shape[1]
        return self.options.search > 0 and size <= most and elements <= _MOST_ELEMENTS

    @property
    def half_read(self) -> bool:
        """Whether, in the state of `cross`, half of a tensor is read, so that all may be."""
        return self._known(_HALF)

    @property
    def quarter_read(self) -> bool:
        """Whether, in the state of `cross`, a quarter of a small tensor is evaluated."""
        return self.held.size <= _FEW_ENTRIES and self._known(_QUARTER)

    def _known(self, part: int) -> bool:
        """Whether, in the state of `cross`, 1/``part`` of a tensor is read, the rest payable."""
        size = self.held.size
        few = size <= part * self.oracle.remembered and self.payable
        elements = size * self.held.values.shape[1]
        return self.options.search > 0 and few and elements <= _MOST_ELEMENTS

    def whole(self) -> Status:
        """Evaluates all entries of a tensor: its TT-SVD becomes the state of `cross`."""
        self.held.read_all()
        values = self.held.values.reshape(self.oracle.shape)
        # A part of the tolerance is left for the dtype of the result, and for rounding.
        self.cores = self.finish(self._constant_cores(0.0))
        if values.any():
            dtype = jax.dtypes.canonicalize_dtype(values.dtype)  # of what `from_dense` returns
            tol = max(self.options.tol / 2, 10 * float(jnp.finfo(dtype).eps))
            with double_of_ours():
                cores = from_dense(values, tol=tol).cores
            self.cores = self.finish([np.asarray(c) for c in cores])
        self.estimate = self.held.estimate(self.cores)
        return "converged"

    def zero(self) -> Status:
        """Ends a cross approximation that found nothing but zeros, with the zero tensor train."""
        self.cores, self.estimate = self.finish(self._constant_cores(0.0)), UNKNOWN
        return "zero"

    def ended(self, status: Status, *, measured: bool = True) -> Status:
        """Ends a cross approximation that can evaluate f no more, with its state's best train.

        Args:
          measured: whether the present train is tried too: not if its index sets may be halves.
        """
        if self.oracle.largest == 0:
            return self.zero()
        if self._sets is not None and measured:
            self.measure(follow=False)
        cores, estimate = self._constant()
        if not self.cores or estimate.bound < self.estimate.bound:
            self.cores, self.estimate = cores, estimate
        return status

    def _constant_cores(self, value: Any) -> Cores:
        """Returns a constant train's cores for the state of `cross`, a value a component."""
        ones = [np.ones((1, n, 1)) for n in self.oracle.shape]
        has_components = len(ones) > self.held.index.shape[1]
        last = ones[-1] * (np.reshape(value, (1, -1, 1)) if has_components else value)
        return [*ones[:-1], last]

    def _constant(self) -> tuple[Cores, Estimate]:
        """Returns a constant train as a state of `cross`: f's mean over samples, and its error."""
        mean, count = self.held.values[: self.held.uniform].mean(axis=0), self.held.uniform
        cores = self.finish(self._constant_cores(mean))
        estimate = self.held.estimate(cores)
        if not self.held.all and count > 1:  # each entry against the mean of the others
            estimate = Estimate(*(x * count / (count - 1) for x in estimate))
        if estimate.bound < 1 and (self.held.all or count >= TELLING):
            return cores, estimate
        return self.finish(self._constant_cores(0.0 * mean)), Estimate(1.0, 0.0)
