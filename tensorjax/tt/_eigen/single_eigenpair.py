"""Search for one eigenpair: sequence of DMRG sweeps, its ranks, accuracies and stopping rule."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from tensorjax import linalg
from tensorjax._cores.ranks import cut_ranks
from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._eigen import dmrg_sweeps
from tensorjax.tt._eigen.local_problems import Rule

Status = Literal["converged", "energy", "incomplete", "max_rank", "stalled", "max_sweeps"]
# Rank of the random start; what is kept may double from sweep to sweep.
_START = 8
# Steps of Lanczos per local problem, doubled up to the second number where sweeps gain little: the
# residual of a local problem need not be small, for the next sweep goes on from it.
_STEPS, _MOST_STEPS = 4, 64
# In the first sweeps with two sites, so many directions are added to every bond, and more steps of
# Lanczos taken, so that the search sees its way out of local minima.
_EARLY, _ESCAPE, _ESCAPE_STEPS = 4, 4, 8
# Sweeps, one there and one back, over which the eigenvalue must stay as it is to end the search.
_CALM = 2
# A state with a larger overlap with a found one does not count as another state.
_APART = 1e-3


class Sweep(NamedTuple):
    """Report of one sweep in the search for one eigenpair, which `eigsh` passes to its callback.

    Attributes:
      pair: which eigenpair is searched, 0 … k−1.
      sweep: count of sweeps for this pair, from 1 on; one goes there or back.
      value: present eigenvalue.
      residual: estimate of ‖A x − λ x‖ before the sweep, from the local problems.
      rank: largest TT-rank now.
      discarded: share of ‖x‖² cut off during the sweep.
    """

    pair: int
    sweep: int
    value: float
    residual: float
    rank: int
    discarded: float


class Pair(NamedTuple):
    """Single eigenpair found by DMRG, with measured and wanted residual, and its status."""

    value: float
    cores: Cores
    residual: float
    bound: float
    truncation: float
    sweeps: int
    status: Status


class Search(NamedTuple):
    """Options of `eigsh` that the DMRG search for each single eigenpair needs."""

    operator: Cores
    dtype: Any
    tol: float
    energy_tol: float | None
    limit: int
    sites: int
    expand: int | None
    max_sweeps: int
    rng: np.random.Generator
    report: Callable[[Sweep], None]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(c.shape[1] for c in self.operator)

    def bound(self, scale: float, spread: float, tol: float) -> float:
        """Returns the residual asked of one eigenpair: tol · scale, or roundoff of ``spread``."""
        floor = 10 * len(self.operator) ** 0.5 * linalg.epsilon(self.dtype)
        return max(tol * scale, floor * spread)

    def allowed(self, scale: float, spread: float, residual: float) -> float:
        """Returns the largest residual at which a single eigenpair counts as converged.

        Where all eigenvalues are zero to within the residual, nothing is left to be relative to
        but ‖A‖₂: a zero mode could otherwise never converge.
        """
        return self.bound(spread if scale <= residual else scale, spread, self.tol)


def widened(core: Any, dtype: Any) -> np.ndarray:
    """Copies a core for the search of one eigenpair: to the host, in double precision."""
    wide = np.result_type(linalg.factor_dtype(dtype), np.float64)
    return np.asarray(core).astype(wide, copy=False)


def random_cores(search: Search) -> Cores:
    shape, rank = search.shape, min(_START, search.limit)
    ranks = cut_ranks((1, *[rank] * (len(shape) - 1), 1), shape)
    kind = search.operator[0].dtype
    cores = []
    for j, n in enumerate(shape):
        core = search.rng.standard_normal((ranks[j], n, ranks[j + 1])).astype(kind)
        if np.iscomplexobj(core):
            core += 1j * search.rng.standard_normal(core.shape)
        cores.append(core)
    return cores


def one_pair(
    search: Search, course: "Course", start: Cores, given: bool, found: list[Pair]
) -> Pair:
    """Searches one eigenpair by DMRG sweeps until its residual is small or falls no more."""
    others = [p.cores for p in found]
    chain = dmrg_sweeps.prepared(search.operator, start, others, course.shift)
    if given:
        course.begin(chain)
    while course.status is None:
        rule = course.rule()
        chain, seen = dmrg_sweeps.sweep(chain, rule, search.rng)
        course.note(rule, seen)
        rank = max(len(c) for c in chain.cores)
        size = (seen.value, seen.gradient, rank, seen.discarded)
        search.report(Sweep(len(found), course.sweeps, *size))
        if course.hopeful and rule.extra == 0:
            course.judge(dmrg_sweeps.residual(*dmrg_sweeps.settled(chain)))
    if course.status == "max_rank" and search.sites == 2:
        # Truncated pairs are not the best of their ranks: single sites, there and back, are.
        for _ in range(min(2, search.max_sweeps - course.sweeps)):
            rule = course.rule()._replace(sites=1, share=0.0, extra=0)
            chain, polished = dmrg_sweeps.sweep(chain, rule, search.rng)
            course.sweeps += 1
            size = (polished.value, polished.gradient, rank, 0.0)
            search.report(Sweep(len(found), course.sweeps, *size))
    cores = dmrg_sweeps.settled(chain)[0].cores
    cores = dmrg_sweeps.mirrored(cores) if course.sweeps % 2 else cores
    pair = judged(search, cores, found, course.spread, course.status)
    return pair._replace(truncation=seen.discarded, sweeps=course.sweeps)


class Course:
    """Schedule of the DMRG sweeps for one eigenpair: truncation, rank cap, stopping rule.

    The tolerance is relative to the largest of the eigenvalue, those ``found`` and ``least``. A
    value that is greater than ``above`` by more than its residual ends the search.
    """

    def __init__(
        self,
        search: Search,
        expand: int,
        tol: float,
        found: list[Pair],
        spread: float,
        *,
        least: float = 0.0,
        above: float = math.inf,
    ):
        self.search, self.expand, self.tol = search, expand, tol
        self.scale = max([least, *(abs(p.value) for p in found)])
        self.deflated = bool(found)
        self.above = above
        # Enough to raise found pairs above all others.
        self.shift = 2 * spread or 1.0
        self.sweeps, self.waited, self.tightness, self.steps = 0, 0, 1.0, _STEPS
        self.gradient = self.previous = self.least = self.best = self.value = math.inf
        self.spread, self.rank = spread, 1
        self.finishing = False
        self.calm = 0  # sweeps in a row that left the eigenvalue within ``energy_tol``
        self.status: Status | None = None

    def begin(self, chain: dmrg_sweeps.Chain) -> None:
        """Measures the residual of one eigenpair's initial state before the first DMRG sweep."""
        start, self.value = dmrg_sweeps.settled(chain)
        self.spread = max(self.spread, abs(self.value))
        self.gradient = self.least = dmrg_sweeps.residual(start, self.value)
        self.rank = max(len(c) for c in chain.cores)

    @property
    def asked(self) -> float:
        scale = max(self.scale, abs(self.value)) if math.isfinite(self.value) else math.inf
        return self.search.bound(scale, self.spread, self.tol)

    @property
    def fixed(self) -> bool:
        """Whether the DMRG sweeps for an eigenpair leave all ranks of the train unchanged."""
        return self.search.sites == 1 and self.expand == 0

    @property
    def hopeful(self) -> bool:
        """Whether one eigenpair's estimated residual is small enough to measure the true one."""
        return self.gradient <= self.asked and (self.sweeps >= _EARLY or self.fixed)

    def rule(self) -> Rule:
        """Returns the options of the next DMRG sweep for a single eigenpair."""
        s = self.search
        bonds = len(s.operator) - 1
        share, goal = 1e-2, math.inf
        if math.isfinite(self.least):
            accuracy = max(0.1 * self.least, 0.3 * self.asked * self.tightness)
            share = min(share, (accuracy / (self.spread or 1.0)) ** 2)
            goal = 0.3 * accuracy / bonds**0.5
        last = self.sweeps + 1 == s.max_sweeps or self.finishing or self.hopeful
        early = s.sites == 2 and self.sweeps < _EARLY
        many = self.expand if s.sites == 1 else _ESCAPE if early else 0
        cap = min(s.limit, max(self.rank, _START * 2 ** min(max(self.sweeps - _EARLY, 0) + 1, 32)))
        return Rule(
            sites=s.sites,
            cap=cap,
            share=0.0 if self.fixed else share / bonds,
            steps=max(self.steps, _ESCAPE_STEPS if early else 0),
            goal=goal,
            extra=0 if last else many,
        )

    def note(self, rule: Rule, seen: dmrg_sweeps.Pass) -> None:
        """Records a DMRG sweep for one eigenpair; sets its status if the search ends."""
        settled = abs(self.value - seen.value) <= self.asked
        energy_tol = self.search.energy_tol or 0.0
        calm = abs(self.value - seen.value) <= energy_tol * max(self.scale, abs(seen.value))
        growing = seen.capped and rule.cap < self.search.limit  # larger ranks may lower it
        self.calm = self.calm + 1 if calm and not growing else 0
        self.sweeps += 1
        if seen.gradient > 0.5 * self.previous and not seen.capped:
            self.steps = min(2 * self.steps, _MOST_STEPS)
        self.previous = self.gradient
        if self.search.sites == 2 or self.fixed or rule.extra:  # else it sees a part only
            self.least = min(self.least, seen.gradient)
        self.value, self.gradient = seen.value, seen.gradient
        if not self.deflated:  # or it would be the norm of the deflated operator
            self.spread = max(self.spread, seen.spread)
        limited = self.fixed or (seen.capped and rule.cap == self.search.limit)
        scale = max(self.scale, abs(self.value))
        enough = self.gradient <= self.search.allowed(scale, self.spread, self.gradient)
        patience = 1 if limited and self.search.sites == 2 else 2 if limited or enough else 6
        if self.gradient < 0.8 * self.best or not settled:
            self.best, self.waited = min(self.best, self.gradient), 0
        else:
            self.waited += 1
        if self.finishing or (self.waited >= patience and rule.extra == 0):
            self.status = "max_rank" if limited else "stalled"
        if self.value - self.gradient >= self.above and self.sweeps >= _EARLY:
            self.status = "stalled"
        self.finishing = self.waited >= patience
        if energy_tol and self.calm >= _CALM and self.sweeps >= _EARLY and self.status is None:
            self.status = "energy"
        if self.status is None and self.sweeps == self.search.max_sweeps:
            self.status = "max_sweeps"

    def judge(self, residual: float) -> None:
        """Records one eigenpair's measured residual, and sets the status if it has converged."""
        if residual <= self.asked < math.inf:
            self.status = "converged"
        elif self.fixed:
            self.status = "max_rank"
        self.gradient = residual
        self.tightness *= 0.3


def judged(search: Search, cores: Cores, found: list[Pair], spread: float, status: Status) -> Pair:
    """Rounds one eigenpair that DMRG found to the result's dtype; sets its residual and status."""
    rounded = [widened(c.astype(search.dtype), search.dtype) for c in cores]
    chain = dmrg_sweeps.prepared(search.operator, rounded, [p.cores for p in found])
    apart = dmrg_sweeps.overlap(chain) <= _APART
    chain, value = dmrg_sweeps.settled(dmrg_sweeps.prepared(search.operator, rounded, []))
    residual = dmrg_sweeps.residual(chain, value)
    scale = max([abs(value), *(abs(p.value) for p in found)])
    bound = search.allowed(scale, spread, residual)
    if residual <= bound < math.inf and apart:
        status = "converged"
    elif not math.isfinite(residual) or not math.isfinite(bound):
        status = "stalled"
    return Pair(value, chain.cores, residual, bound, 0.0, 0, status)
