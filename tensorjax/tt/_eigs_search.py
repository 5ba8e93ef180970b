"""Searches for eigenpairs: what each sweep of DMRG is to do, and when to stop."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from tensorjax import linalg
from tensorjax._cores import Cores, cut_ranks
from tensorjax.tt import _dmrg as dmrg
from tensorjax.tt._build import rank_bounds
from tensorjax.tt._eigs_local import Local, Rule

Status = Literal["converged", "max_rank", "stalled", "max_sweeps"]
# Rank of the random start; what is kept may double from sweep to sweep.
_START = 8
# Steps of Lanczos per local problem, doubled up to the second number where sweeps gain little: the
# residual of a local problem need not be small, for the next sweep goes on from it.
_STEPS, _MOST_STEPS = 4, 64
# In the first sweeps with two sites, so many directions are added to every bond, and more steps of
# Lanczos taken, so that the search sees its way out of local minima.
_EARLY, _ESCAPE, _ESCAPE_STEPS = 4, 4, 8
# Random starts of all pairs but the first: neighbours in the spectrum may lie far apart in space.
_TRIALS = 4
# Overlap with a found state from which on a state is no other one.
_APART = 1e-3
# Directions that one site adds by default.
_EXPAND = 8
# Spaces up to this size are diagonalised at once; if nearly all pairs are wanted, up to the second.
_SMALL, _LARGEST = 16, 4096


class Sweep(NamedTuple):
    """What a callback is told after each sweep.

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
    """An eigenpair and how it was found; ``bound`` is what was asked of its residual."""

    value: float
    cores: Cores
    residual: float
    bound: float
    truncation: float
    sweeps: int
    status: Status


class Search(NamedTuple):
    """What the searches of all pairs share; ``operator`` in double precision on the host."""

    operator: Cores
    dtype: Any
    tol: float
    limit: int
    sites: int
    expand: int | None
    max_sweeps: int
    rng: np.random.Generator
    report: Callable[[Sweep], None]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(c.shape[1] for c in self.operator)

    def bound(self, scale: float, spread: float, tol: float | None = None) -> float:
        """The residual asked: relative to ``scale``, or what roundoff leaves of ‖A‖₂ = spread."""
        floor = 10 * len(self.operator) ** 0.5 * linalg.epsilon(self.dtype)
        return max((self.tol if tol is None else tol) * scale, floor * spread)


def widened(core: Any, dtype: Any) -> np.ndarray:
    """A core on the host, in double precision, complex if ``dtype`` is."""
    wide = np.result_type(linalg.factor_dtype(dtype), np.float64)
    return np.asarray(core).astype(wide, copy=False)


def find_pairs(search: Search, starts: list[Cores], k: int) -> list[Pair]:
    """The k lowest pairs, in ascending order."""
    size = math.prod(search.shape)
    fits = max(rank_bounds(search.shape), default=1) <= search.limit
    if len(search.shape) == 1 or (fits and size <= max(_SMALL, min(4 * k, _LARGEST))):
        return _dense_pairs(search, k)
    # What the first pairs lack, the others inherit: their own tolerance is part of the whole.
    tol = search.tol if k == 1 else search.tol / (2 * k**0.5)
    pairs: list[Pair] = []
    spread = 0.0
    for j in range(k):
        given = j < len(starts)
        expand = search.expand if search.expand is not None else 0 if given else _EXPAND
        course = _Course(search, expand, tol, pairs, spread)
        trials = (
            [starts[j]] if given else [_random_cores(search) for _ in range(_TRIALS if j else 1)]
        )
        pairs.append(_one_pair(search, course, trials, given, pairs))
        spread = max(spread, course.spread)
    return sorted(pairs, key=lambda pair: pair.value)


def _random_cores(search: Search) -> Cores:
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


def _dense_pairs(search: Search, k: int) -> list[Pair]:
    """All pairs at once, where the space is small."""
    one = np.ones((1, 1, 1), search.operator[0].dtype)
    w, z = np.linalg.eigh(Local(one, search.operator, one).dense())
    spread = float(np.abs(w[[0, -1]]).max())
    pairs: list[Pair] = []
    for j in range(k):
        cores = [z[:, j].reshape(1, search.shape[0], -1)]
        for n in search.shape[1:]:
            q, r = np.linalg.qr(cores[-1].reshape(-1, cores[-1].shape[2]))
            cores[-1] = q.reshape(*cores[-1].shape[:2], -1)
            cores.append(r.reshape(len(r), n, -1))
        pairs.append(_judged(search, cores, pairs, spread, "stalled"))
        seen = (pairs[-1].value, pairs[-1].residual, max(len(c) for c in cores), 0.0)
        search.report(Sweep(j, 0, *seen))
    return pairs


def _one_pair(
    search: Search, course: "_Course", trials: list[Cores], given: bool, found: list[Pair]
) -> Pair:
    """Sweeps until the residual is small enough, or will not get smaller."""
    others = [p.cores for p in found]
    chains = [dmrg.prepared(search.operator, x, others, course.shift) for x in trials]
    chain = chains[0] if len(chains) == 1 else _best(search, course, chains)
    if given:
        course.begin(chain)
    while course.status is None:
        rule = course.rule()
        chain, seen = dmrg.sweep(chain, rule, search.rng)
        course.note(rule, seen)
        rank = max(len(c) for c in chain.cores)
        size = (seen.value, seen.gradient, rank, seen.discarded)
        search.report(Sweep(len(found), course.sweeps, *size))
        if course.hopeful and rule.extra == 0:
            course.judge(dmrg.residual(*dmrg.settled(chain)))
    if course.status == "max_rank" and search.sites == 2:
        # Truncated pairs are not the best of their ranks: single sites, there and back, are.
        for _ in range(min(2, search.max_sweeps - course.sweeps)):
            rule = course.rule()._replace(sites=1, share=0.0, extra=0)
            chain, polished = dmrg.sweep(chain, rule, search.rng)
            course.sweeps += 1
            size = (polished.value, polished.gradient, rank, 0.0)
            search.report(Sweep(len(found), course.sweeps, *size))
    cores = dmrg.settled(chain)[0].cores
    cores = dmrg.mirrored(cores) if course.sweeps % 2 else cores
    pair = _judged(search, cores, found, course.spread, course.status)
    return pair._replace(truncation=seen.discarded, sweeps=course.sweeps)


def _best(search: Search, course: "_Course", chains: list[dmrg.Chain]) -> dmrg.Chain:
    """The start that promises most, after two rough sweeps of each."""
    values = []
    for j, chain in enumerate(chains):
        for _ in range(2):
            chain, seen = dmrg.sweep(chain, course.rule(), search.rng)
        chains[j] = chain
        values.append(seen.value)
    return chains[int(np.argmin(values))]


class _Course:
    """The course of one search: truncation follows the residual down, the cap on ranks doubles."""

    def __init__(self, search: Search, expand: int, tol: float, found: list[Pair], spread: float):
        self.search, self.expand, self.tol = search, expand, tol
        self.scale = max((abs(p.value) for p in found), default=0.0)
        self.deflated = bool(found)
        # Enough to raise found pairs above all others.
        self.shift = 2 * spread or 1.0
        self.sweeps, self.waited, self.tightness, self.steps = 0, 0, 1.0, _STEPS
        self.gradient = self.previous = self.least = self.best = self.value = math.inf
        self.spread, self.rank = spread, 1
        self.finishing = False
        self.status: Status | None = None

    def begin(self, chain: dmrg.Chain) -> None:
        """Takes in how good a given start is, not to spoil it."""
        start, self.value = dmrg.settled(chain)
        self.spread = max(self.spread, abs(self.value))
        self.gradient = self.least = dmrg.residual(start, self.value)
        self.rank = max(len(c) for c in chain.cores)

    @property
    def asked(self) -> float:
        scale = max(self.scale, abs(self.value)) if math.isfinite(self.value) else math.inf
        return self.search.bound(scale, self.spread, self.tol)

    @property
    def fixed(self) -> bool:
        """Whether the ranks stay what they are."""
        return self.search.sites == 1 and self.expand == 0

    @property
    def hopeful(self) -> bool:
        """Whether the residual may be small enough by now."""
        return self.gradient <= self.asked and (self.sweeps >= _EARLY or self.fixed)

    def rule(self) -> Rule:
        """What to do in the next sweep."""
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

    def note(self, rule: Rule, seen: dmrg.Pass) -> None:
        """Takes in what a sweep found, and decides whether to go on."""
        settled = abs(self.value - seen.value) <= self.asked
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
        patience = 1 if limited and self.search.sites == 2 else 2 if limited else 6
        if self.gradient < 0.8 * self.best or not settled:
            self.best, self.waited = min(self.best, self.gradient), 0
        else:
            self.waited += 1
        if self.finishing or (self.waited >= patience and rule.extra == 0):
            self.status = "max_rank" if limited else "stalled"
        self.finishing = self.waited >= patience
        if self.status is None and self.sweeps == self.search.max_sweeps:
            self.status = "max_sweeps"

    def judge(self, residual: float) -> None:
        """Takes in the residual as it was measured."""
        if residual <= self.asked:
            self.status = "converged"
        elif self.fixed:
            self.status = "max_rank"
        self.gradient = residual
        self.tightness *= 0.3


def _judged(search: Search, cores: Cores, found: list[Pair], spread: float, status: Status) -> Pair:
    """The pair as it will be handed out, rounded to the dtype, with its residual measured."""
    rounded = [widened(c.astype(search.dtype), search.dtype) for c in cores]
    chain = dmrg.prepared(search.operator, rounded, [p.cores for p in found])
    apart = dmrg.overlap(chain) <= _APART
    chain, value = dmrg.settled(dmrg.prepared(search.operator, rounded, []))
    residual = dmrg.residual(chain, value)
    scale = max([abs(value), *(abs(p.value) for p in found)])
    bound = search.bound(scale, spread)
    status = "converged" if residual <= bound and apart else status
    return Pair(value, chain.cores, residual, bound, 0.0, 0, status)
