"""Search for the k lowest eigenpairs: single pairs by DMRG, then eigenpairs that were missed.

DMRG finds eigenpairs, not necessarily the lowest ones. So, after the first pair, a block of states
starts the others (block DMRG, in `dmrg_sweeps`), and at the end the complement of all pairs
found is searched from fresh random starts. A lower level there takes the place of the highest one.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from tensorjax import linalg
from tensorjax._cores.contractions import merge
from tensorjax._cores.ranks import rank_bounds
from tensorjax._cores.truncation_sweeps import svd_round
from tensorjax._cores.unfoldings import Cores
from tensorjax.tt._eigen import dmrg_sweeps
from tensorjax.tt._eigen.local_problems import Local, Rule, lowest
from tensorjax.tt._eigen.single_eigenpair import (
    Course,
    Pair,
    Search,
    Sweep,
    judged,
    one_pair,
    random_cores,
)

# Directions that single-site sweeps add to a bond by default.
_EXPAND = 8
# Spaces up to _SMALL are diagonalised densely; if nearly all pairs are wanted, up to _LARGEST.
_SMALL, _LARGEST = 16, 4096
# A block seeks so many states more than are wanted, for the last ones converge last; its ranks are
# a few per state: it has to tell the states apart, the searches of single pairs make them exact.
_MORE, _CROSS_MORE, _RANK, _RANKS_PER_STATE = 3, 6, 12, 4
# Sweeps of a block, and steps of block Krylov per local problem: more where no search of single
# pairs follows that would correct what was left out.
_BLOCK_SWEEPS, _BLOCK_STEPS, _CROSS_STEPS = 4, 2, 4
# Random starts in a row that must find no lower level; one more once a level had been missed.
_IDLE = 2
# Levels closer than this share of ‖A‖₂ are taken as equal: that is roundoff of the deflation.
_SLACK = 1e-12
# Statuses of pairs that are as accurate as was asked.
_DONE = ("converged", "energy")
# Tolerance at which a state of the complement is told to be above the highest pair.
_ROUGH = 1e-4
# Spaces up to this size are checked as vectors, by Lanczos: so many steps, so many restarts. That
# takes less than the search for several pairs took; of a single one, in smaller spaces only.
_VECTORS, _VECTORS_OF_ONE, _VECTOR_STEPS, _RESTARTS = 2**16, 2**14, 120, 12
# A state of a block is new if at most this share of its norm² is in the span of the pairs found.
_OTHER = 0.5
# Share of a vector's norm² that may be discarded when its train only starts a search.
_STARTED = 1e-12


# How far it was checked that no lower level was missed; see `tensorjax.tt.EigInfo`.
Check = Literal["exhaustive", "searched", "unchecked", "unsure"]


class Levels(NamedTuple):
    """Lowest eigenpairs, ascending, how thoroughly lower ones were searched for, and the norm.

    Attributes:
      size: the largest magnitude of an eigenvalue seen, a lower bound of ‖A‖₂.
    """

    pairs: list[Pair]
    check: Check
    size: float


def find_levels(search: Search, starts: list[Cores], k: int) -> Levels:
    """Finds the k lowest eigenpairs of a TT-matrix by DMRG, or densely where it is small."""
    size = math.prod(search.shape)
    fits = max(rank_bounds(search.shape), default=1) <= search.limit
    if len(search.shape) == 1 or (fits and size <= max(_SMALL, min(4 * k, _LARGEST))):
        pairs, spread = _dense_pairs(search, k)
        return Levels(pairs, "exhaustive", spread)
    finder = _Finder(search, k)
    for start in starts:
        finder.add_given(start)
    while len(finder.pairs) < k:
        finder.add()
    check = finder.complete()
    return Levels(finder.pairs, check, finder.spread)


class _Finder:
    """Search for the k lowest eigenpairs by DMRG: found pairs, and start states for others."""

    def __init__(self, search: Search, k: int):
        self.search, self.k = search, k
        # What the first pairs lack, the others inherit: their own tolerance is part of the whole.
        self.tol = search.tol if k == 1 else search.tol / (2 * k**0.5)
        self.pairs: list[Pair] = []
        self.spread = 0.0
        self.queue: list[Cores] = []

    def add_given(self, start: Cores) -> None:
        """Adds to the lowest pairs the one that DMRG finds from a train given by the user."""
        expand = self.search.expand if self.search.expand is not None else 0
        self.pairs.append(self._searched(start, self.tol, expand, known=True))

    def add(self) -> None:
        """Adds to the lowest pairs the one that DMRG finds from a random or block-DMRG state."""
        known = bool(self.pairs)
        if known and not self.queue:
            self.queue = self._block_states(self.k - len(self.pairs))
        start = self.queue.pop(0) if known else random_cores(self.search)
        self.pairs.append(self._searched(start, self.tol, known=known))

    def complete(self) -> Check:
        """Searches for lowest pairs that DMRG missed, until none is found; says how thoroughly."""
        idle, enough = 0, _IDLE
        for _ in range(2 * self.k + 6):
            self.pairs.sort(key=lambda p: p.value)
            if any(p.status not in _DONE for p in self.pairs):
                return "unchecked"  # their statuses say what is missing
            lower, check = self._lower()
            if lower is not None:
                self.pairs = sorted([*self.pairs, lower], key=lambda p: p.value)[: self.k]
                idle, enough = 0, _IDLE + 1
                continue
            idle += 1
            if check != "searched" or idle == enough:
                return check
        return "unsure"

    def _searched(
        self, start: Cores, tol: float, expand: int | None = None, *, known: bool, **ends: float
    ) -> Pair:
        """Searches the next of the lowest pairs from a start, with all found ones deflated.

        ``ends`` are the options of `Course` that say when the search may end.
        """
        if expand is None:
            expand = _EXPAND if self.search.expand is None else self.search.expand
        course = Course(self.search, expand, tol, self.pairs, self.spread, **ends)
        pair = one_pair(self.search, course, start, known, self.pairs)
        self.spread = max(self.spread, course.spread)
        return pair

    def _block_states(self, count: int) -> list[Cores]:
        """Finds at most ``count`` lowest states orthogonal to found ones, by block DMRG."""
        search, others = self.search, [p.cores for p in self.pairs]
        chain = dmrg_sweeps.prepared(search.operator, random_cores(search), others, self._shift)
        states = self._swept(chain, count + _MORE)
        return [states.state(j) for j in range(min(count, len(states.centres)))]

    def _crossed(self) -> Cores | None:
        """Finds a missed low state by block DMRG that starts in the bases of the states found.

        Levels often differ by a stretch of the chain: what is left of it in one state found, and
        right of it, joins what another one has between. Random starts seldom hold such a state.
        """
        search, found = self.search, [p.cores for p in self.pairs]
        ranks = [_RANK] * (len(search.shape) - 1)
        starts = [*(svd_round(c, ranks, None)[0] for c in found), random_cores(search)]
        chain = dmrg_sweeps.prepared(search.operator, dmrg_sweeps.joined(starts), [])
        states = self._swept(chain, self.k + _CROSS_MORE, _CROSS_STEPS)
        for j in range(len(states.centres)):
            chain = dmrg_sweeps.prepared(search.operator, states.state(j), found)
            if dmrg_sweeps.share_found(chain) <= _OTHER:
                return states.state(j)
        return None

    def _swept(
        self, chain: dmrg_sweeps.Chain, count: int, steps: int = _BLOCK_STEPS
    ) -> dmrg_sweeps.Block:
        """Finds ``count`` lowest states from random ones in the bases of a chain, by block DMRG."""
        search = self.search
        states = dmrg_sweeps.random_block(chain, count, search.rng)
        cap = min(search.limit, _RANK + _RANKS_PER_STATE * count)
        rule = Rule(search.sites, cap, 1e-6, steps, math.inf, 0)
        for _ in range(_BLOCK_SWEEPS):  # an even number: they end where they began
            states = dmrg_sweeps.block_sweep(states, rule)
        return states

    @property
    def _shift(self) -> float:
        """Shift by which the search for lowest pairs lifts found eigenvalues, about 2 ‖A‖₂."""
        return 2 * self.spread or 1.0

    def _lower(self) -> tuple[Pair | None, Check]:
        """Searches for an eigenpair below the highest of the lowest pairs found; None if none."""
        least = [max(p.bound, p.residual if p.status == "energy" else 0.0) for p in self.pairs]
        slack = max(*least, _SLACK * self._shift, 0.0)
        highest = self.pairs[-1].value - slack
        most = _VECTORS_OF_ONE if self.k == 1 else _VECTORS
        if math.prod(self.search.shape) <= most:  # a start is then proof that there is a lower one
            start, check = self._vector_below(highest)
            return (None, check) if start is None else self._below(start, highest, "unsure")
        if self.k == 1:
            return None, "unchecked"
        start = self._crossed()
        if start is not None:
            pair, check = self._below(start, highest, "searched")
            if pair is not None or check == "unsure":
                return pair, check
        return self._below(self._block_states(1)[0], highest, "searched")

    def _below(self, start: Cores, highest: float, otherwise: Check) -> tuple[Pair | None, Check]:
        """Refines a start by DMRG to one of the lowest pairs, if that is below ``highest``."""
        for tol, least in ((max(self.tol, _ROUGH), self.spread), (self.tol, 0.0)):
            pair = self._searched(start, tol, known=True, least=least, above=highest)
            # An eigenvalue is no further from the quotient than the residual.
            if pair.value - pair.residual >= highest:
                return None, otherwise
            start = pair.cores
        if pair.status not in _DONE:
            return None, "unsure"
        return (pair, "searched") if pair.value < highest else (None, otherwise)

    def _vector_below(self, level: float) -> tuple[Cores | None, Check]:
        """Searches for a missed lowest eigenpair by the Lanczos method on dense vectors."""
        search = self.search
        one = np.ones((1, 1, 1), search.operator[0].dtype)
        found = np.stack([_vector(p.cores) for p in self.pairs])
        local = Local(one, search.operator, one, found, self._shift)
        x = search.rng.standard_normal((1, *search.shape, 1)).astype(one.dtype)
        for _ in range(_RESTARTS):
            x = lowest(local, x, Rule(2, 0, 0.0, _VECTOR_STEPS, 0.0, 1), search.rng).x
            image = local(x)
            value = float(np.vdot(x, image).real)
            if value < level:
                return _train(x.ravel(), search.shape, _STARTED), "exhaustive"
            if value - np.linalg.norm(image - value * x) >= level:
                return None, "exhaustive"
        return None, "unsure"


def _vector(cores: Cores) -> np.ndarray:
    """Contracts an eigenvector's train to a dense vector, to search for missed lowest pairs."""
    return merge(cores).ravel()


def _train(vector: np.ndarray, shape: tuple[int, ...], share: float = 0.0) -> Cores:
    """Decomposes an eigenpair's dense vector into left-orthogonal cores, to a share of energy."""
    cores = [vector.reshape(1, shape[0], -1)]
    for n in shape[1:]:
        matrix = cores[-1].reshape(-1, cores[-1].shape[2])
        q = linalg.left_basis(matrix, share=share / len(shape), method="svd").u if share else None
        q, r = np.linalg.qr(matrix) if q is None else (q, q.conj().T @ matrix)
        cores[-1] = q.reshape(*cores[-1].shape[:2], -1)
        cores.append(r.reshape(len(r), n, -1))
    return cores


def _dense_pairs(search: Search, k: int) -> tuple[list[Pair], float]:
    """Computes the k lowest eigenpairs of a small TT-matrix, and its norm, without DMRG."""
    one = np.ones((1, 1, 1), search.operator[0].dtype)
    w, z = np.linalg.eigh(Local(one, search.operator, one).dense())
    spread = float(np.abs(w[[0, -1]]).max())
    pairs: list[Pair] = []
    for j in range(k):
        cores = _train(z[:, j], search.shape)
        pairs.append(judged(search, cores, pairs, spread, "stalled"))
        seen = (pairs[-1].value, pairs[-1].residual, max(len(c) for c in cores), 0.0)
        search.report(Sweep(j, 0, *seen))
    return pairs, spread
