"""Patched cross approximation: where ranks would pass a bound, the domain is split into patches."""

import dataclasses
import heapq
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._formats.trains import TT
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike, DTypeLike
from tensorjax.tt._arrays.indexing_and_concatenation import item
from tensorjax.tt._constructors import zeros
from tensorjax.tt._cross.cross import checked_grid, checked_pivots
from tensorjax.tt._cross.cross import cross as cross_of_train
from tensorjax.tt._cross.function_calls import Executor, Jit
from tensorjax.tt._cross.sampled_function import Oracle, Rescaled
from tensorjax.tt._rounding import round as rounding
from tensorjax.tt._tt_svd.from_dense import from_dense
from tensorjax.tt.patches.arithmetic_on_host import norm_of
from tensorjax.tt.patches.conversion import by_parent, joined
from tensorjax.tt.patches.patched_train import PatchedTT, Prefix

Status = Literal["converged", "unseen", "budget", "max_patches"]
ADVICE = {
    "converged": "",
    "unseen": "some patches are zero wherever f was looked at, or large at few entries: parts of f "
    "as small may have escaped; give pivots=, multi-indices where f is large",
    "budget": "max_evaluations is too small for tol: raise it, or ask for less accuracy",
    "max_patches": "f needs more patches at this tol: raise max_patches or max_rank, or ask for "
    "less accuracy",
}


@dataclasses.dataclass(frozen=True)
class PatchesInfo:
    """Report of a patched cross approximation: status, error estimate, patches, evaluations.

    Attributes:
      status: "converged"; "unseen": nothing that was looked at is wrong, but some patches hold so
        few large entries, or none, that others may have escaped, and ``error_std`` is inf;
        "budget" or "max_patches": a limit was met, and the patches that were not split any further
        are the best trains found.
      error: estimated ‖f − p‖ / ‖f‖, from held-out entries of all patches.
      error_std: standard error of that estimate; 0 only if all patches were read whole; inf if that
        of one patch is, as of `CrossInfo`: nothing is then known beside what was looked at.
      evaluations: multi-indices at which f was evaluated.
      searches: patches that were fitted, those that were split among them.
      patches: number of patches of the result; those that are zero are left out.
      largest_rank: of all patches.
      seconds: time taken.
      advice: what to do next, in words; empty if converged.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> f = lambda i: 1.0 * (i.sum(axis=1) > 8)
      >>> p, info = tt.patches.cross(f, (4, 4, 4, 4), tol=1e-4, key=jax.random.key(0))
      >>> info.status, info.evaluations
      ('converged', 256)

    Source: ours.
    """

    status: Status
    error: float
    error_std: float
    evaluations: int
    searches: int
    patches: int
    largest_rank: int
    seconds: float
    advice: str


# Share of the tolerance for the fits; the rest is for the rounding of patches that are merged.
_FIT = 0.8
# A patch of so few entries is read whole: a search takes as many.
_WHOLE = 2048
# Below this relative error a train tells the norm of f; else so many random entries do.
_NEAR, _SAMPLES = 0.3, 256


@placed
def cross(
    f: Callable[[Any], Any],
    shape: Sequence[int],
    *,
    tol: float,
    key: jax.Array,
    max_rank: int = 30,
    max_patches: int = 1000,
    max_evaluations: int | None = None,
    vectorized: bool = True,
    grid: Sequence[Any] | None = None,
    jit: Jit = "auto",
    pivots: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    cache: int = 1 << 23,
    executor: Executor | None = None,
) -> tuple[PatchedTT, PatchesInfo]:
    """Approximates a function by trains on patches of its domain, each with TT-ranks below a bound.

    `tensorjax.tt.cross` fits the whole domain first. A part that it cannot fit with ``max_rank`` is
    split by its first mode, and the pieces are fitted in turn, the worst first. Pieces that one
    train of ``max_rank`` can hold are merged in the end. On a quantics grid, interleaved or fused,
    leading modes are coarse digits, so that patches are boxes: small ones where f is sharp.

    Args:
      f: maps a batch of multi-indices, int64 (batch, d), to values (batch,), or (batch, m), as in
        `tensorjax.tt.cross`.
      shape: mode sizes (n_1, …, n_d).
      tol: relative error of the whole in the Frobenius norm.
      key: `jax.random.key`; the result is determined by it.
      max_rank: largest TT-rank of a patch.
      max_patches: patches at most, before those of equal rank are merged.
      max_evaluations: of f, never exceeded; no limit if None.
      vectorized: False if f takes one multi-index (d,).
      grid: d arrays (n_k,) of coordinates: f then gets points (batch, d) instead of indices.
      jit: whether to compile f, as in `tensorjax.tt.cross`.
      pivots: multi-indices (m, d) where f is large, or with ``grid`` points there.
      dtype: of the result; that of f's values, as JAX has it, if None.
      cache: values of f kept at most; patches that are split read many of them again.
      executor: workers that evaluate f, as in `tensorjax.tt.cross`.

    Returns:
      The patched train, and a `PatchesInfo` with status, error, evaluations and advice.

    Raises:
      ValueError: f returns NaN or Inf, or a wrong shape; tol below 10 eps; limits below one. An
        error that f raises passes through.
      TypeError: a key that is not one of `jax.random`, or a call under a JAX transformation.

    Example:
      >>> import jax, numpy as np
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid([-4.0] * 2, [4.0] * 2, bits=12, base=2, fused=True)
      >>> def f(i):  # a ridge along a circle, which no few separable terms can hold
      ...     return 1 / (1 + 300 * (np.hypot(*grid.coordinates(i).T) - 2) ** 2)
      >>> p, info = tt.patches.cross(f, grid.shape, tol=1e-3, key=jax.random.key(0), max_rank=20)
      >>> info.status, info.largest_rank <= 20, info.patches > 4
      ('converged', True, True)
      >>> at = grid.nearest([[2.0, 0.0], [0.0, -2.0]])
      >>> bool(abs(tt.patches.evaluate(p, at) - 1).max() < 0.01)
      True

    Source: G. Grosso, M. Ritter et al., "Adaptive patching for tensor train computations" (2025),
    recalled from its abstract: splits along leading digits where a bond dimension is exceeded.
    Ours: the worst first, merges, parts below the tolerance of the whole, status and error.
    """
    start, sizes = time.perf_counter(), _check.shape("shape", shape)
    if max_evaluations is not None:
        _check.integer("max_evaluations", max_evaluations, low=1)
    oracle = Oracle(
        f,
        sizes,
        grid=None if grid is None else checked_grid(grid, sizes),
        vectorized=vectorized,
        jit=jit,
        budget=max_evaluations,
        cache=_check.integer("cache", cache, low=0),
        executor=executor,
    )
    _check.host_generator(key, "; tt.patches.cross calls f from the host and cannot be traced")
    search = _Splitting(
        oracle,
        tol=_check.tolerance(tol, np.float64),
        max_rank=_check.integer("max_rank", max_rank, low=1),
        max_patches=_check.integer("max_patches", max_patches, low=1),
        key=key,
        pivots=checked_pivots(pivots, sizes, grid),
        dtype=dtype,
    )
    status = search.run()
    rounded = search.merge((1 - _FIT) * float(tol))
    return search.result(), search.report(status, rounded, start)


@dataclasses.dataclass(frozen=True, eq=False)
class _Leaf:
    """Fitted patch of a function: its train (None for zero), norm, error and standard error."""

    train: TT | None
    norm: float
    error: float
    std: float
    fits: bool  # within the tolerance


def _pieces(found: _Leaf, size: int) -> list[_Leaf]:
    """Splits a patch fitted by cross into one part per index of its first mode, with error shares.

    So they have of what the norm of f is beyond that of the train, which may lack a part of f.
    """
    whole = 0.0 if found.train is None else norm_of(found.train)
    lacks = math.sqrt(max(found.norm - whole, 0.0)) * math.sqrt(found.norm + whole)
    out = []
    for digit in range(size):
        train = None if found.train is None else item(found.train, digit)
        norm = math.hypot(0.0 if train is None else norm_of(train), lacks / math.sqrt(size))
        error, std = found.error / math.sqrt(size), found.std / math.sqrt(size)
        out.append(_Leaf(train, norm, error, std, False))
    return out


class _Splitting:
    """State of an adaptive splitting of a function's domain: fitted and waiting patches."""

    def __init__(self, oracle: Oracle, **options: Any):
        self.tol: float = options["tol"]
        self._max_rank: int = options["max_rank"]
        self._max_patches: int = options["max_patches"]
        self._key, self._dtype = options["key"], options["dtype"]
        self._pivots: np.ndarray | None = options["pivots"]
        self._oracle, self._modes = oracle, oracle.shape
        self.searches = 0
        self.leaves: dict[Prefix, _Leaf] = {}
        self._waiting: list[tuple[float, Prefix, _Leaf]] = []  # with what the parent found there

    def run(self) -> Status:
        """Fits patches of a function's domain, and splits them until all fit or a limit is met."""
        self._oracle.start(np.zeros((1, len(self._modes)), np.int64))
        _check.tolerance(self.tol, self._kind)
        self.tol = max(_FIT * self.tol, 10 * float(jnp.finfo(self._kind).eps))
        whole = self._fit(())
        if whole is None:
            return self._give_up("budget")
        room = self._place((), whole)
        while self._waiting and room:
            _, prefix, _ = self._waiting[0]
            found = self._fit(prefix)
            if found is None:
                return self._give_up("budget")
            heapq.heappop(self._waiting)
            room = self._place(prefix, found)
        if not room:
            return self._give_up("max_patches")
        seen = all(math.isfinite(leaf.std) for leaf in self.leaves.values())
        return "converged" if seen else "unseen"

    @property
    def _kind(self) -> Any:
        """Dtype of the patched train, known once the approximated function was called."""
        return self._dtype or jax.dtypes.canonicalize_dtype(self._oracle.dtype)

    def _place(self, prefix: Prefix, found: _Leaf) -> bool:
        """Stores a patch that patched cross has fitted, or splits it along its next mode.

        Returns:
          False if the pieces would be too many patches: it is then stored as it is.
        """
        low = found.train is None or max(found.train.ranks) <= self._max_rank
        fits = low and (found.fits or self._negligible(prefix, found))
        last = len(prefix) == len(self._modes) - 1
        if fits or (last and low):
            self.leaves[prefix] = found
            return True
        size = self._modes[len(prefix)]
        if len(self.leaves) + len(self._waiting) + size > self._max_patches:
            self.leaves[prefix] = self._bounded(found)
            return False
        for digit, share in enumerate(_pieces(found, size)):
            if last:  # what is left are components
                self.leaves[(*prefix, digit)] = share
            else:
                heapq.heappush(self._waiting, (-share.error, (*prefix, digit), share))
        return True

    def _bounded(self, found: _Leaf) -> _Leaf:
        """Rounds a patch that patched cross read whole to the largest rank, if not to be split."""
        if found.train is None or max(found.train.ranks) <= self._max_rank:
            return found
        train = rounding.round(found.train, rank=self._max_rank)
        size, kept = norm_of(found.train), norm_of(train)
        lost = math.sqrt(max(size - kept, 0.0)) * math.sqrt(size + kept)
        error = math.hypot(found.error, lost)
        # The norm stays that of the patch before, which stands for f: errors are relative to f.
        return dataclasses.replace(found, train=train, error=error, fits=False)

    def _sampled_norm(self, prefix: Prefix, rest: tuple[int, ...]) -> float:
        """Estimates, in patched cross, a function's norm on a patch from random entries."""
        count = int(min(_SAMPLES, self._oracle.left))
        rng = np.random.default_rng(self.searches)
        index = np.stack([rng.integers(n, size=count) for n in rest], axis=1)
        values = self._part(prefix)(index)
        largest = float(np.abs(values).max(initial=0))
        mean = float((np.abs(values / (largest or 1.0)) ** 2).sum()) / max(1, count)
        return largest * math.sqrt(mean * math.prod(rest))

    def _negligible(self, prefix: Prefix, found: _Leaf) -> bool:
        """Whether a patch's error is below its share of what patched cross allows."""
        if found.error > _NEAR * found.norm or found.norm == 0:
            return False
        whole = math.hypot(*(leaf.norm for leaf in self.leaves.values()), found.norm)
        share = math.prod(self._modes[: len(prefix)]) ** -0.5
        return found.error + 2 * found.std <= self.tol * whole * share

    def _give_up(self, status: Status) -> Status:
        """Ends patched cross approximation early: unfitted patches take their parents' trains."""
        if not self.leaves and not self._waiting:
            self.leaves[()] = _Leaf(None, 0.0, 0.0, math.inf, False)
        for _, prefix, share in self._waiting:
            self.leaves[prefix] = self._bounded(share)
        self._waiting = []
        return status

    def _fit(self, prefix: Prefix) -> _Leaf | None:
        """Fits a train to a patch by cross approximation; None if too few evaluations are left."""
        left = self._oracle.left
        rest = self._modes[len(prefix) :]
        self.searches += 1
        if math.prod(rest) <= _WHOLE:
            return self._read(prefix, rest) if math.prod(rest) <= left else None
        if left < (_WHOLE if prefix else 1):  # the whole domain is fitted with what there is
            return None
        train, info = cross_of_train(
            self._part(prefix),
            rest,
            tol=self.tol,
            key=jax.random.fold_in(self._key, self.searches),
            max_rank=self._max_rank,
            max_evaluations=None if math.isinf(left) else int(left),
            jit=False,
            pivots=self._inside(prefix),
            dtype=self._dtype,
        )
        if info.status == "zero":
            return _Leaf(None, 0.0, 0.0, math.inf, True)
        # The error is relative to f, whose norm is that of a train that is near, but no other's.
        size = norm_of(train)
        if not info.error + 2 * info.error_std < _NEAR:
            size = max(size, self._sampled_norm(prefix, rest))
        error = info.error if math.isfinite(info.error) else 1.0
        fits = info.status == "converged" or (info.status == "unseen" and info.error <= self.tol)
        known = math.isfinite(info.error_std) and size > 0
        std = info.error_std * size if known else math.inf
        return _Leaf(train, size, error * size, std, fits)

    def _read(self, prefix: Prefix, rest: tuple[int, ...]) -> _Leaf:
        """Evaluates all entries of a small patch for patched cross, and runs TT-SVD on them."""
        index = np.indices(rest).reshape(len(rest), -1).T
        values = self._part(prefix)(index)
        if not values.any():
            return _Leaf(None, 0.0, 0.0, 0.0, True)
        dense = values.reshape(*rest, *values.shape[1:]).astype(self._kind)
        train = from_dense(dense, tol=self.tol)
        size = norm_of(train)
        return _Leaf(train, size, self.tol * size, 0.0, True)

    def _part(self, prefix: Prefix) -> Callable[[np.ndarray], np.ndarray]:
        """Returns the function of patched cross restricted to a patch, of the indices after it."""
        lead, oracle = np.array(prefix, np.int64), self._oracle

        def part(index: np.ndarray) -> np.ndarray:
            lead_rows = np.broadcast_to(lead, (len(index), len(lead)))
            rows = np.concatenate([lead_rows, index], axis=1)
            try:
                values = oracle.points(rows)
            except Rescaled:  # values of another scale: they are all at hand now
                values = oracle.points(rows)
            values = linalg.scaled(values, oracle.exponent)
            # What the dtype cannot hold is zero: a patch may have nothing larger.
            values = np.where(np.abs(values) < jnp.finfo(self._kind).tiny, 0, values)
            return values if len(oracle.shape) > len(self._modes) else values[:, 0]

        return part

    def _inside(self, prefix: Prefix) -> np.ndarray | None:
        """Returns the given pivots of patched cross that lie in a patch, or None."""
        if self._pivots is None:
            return None
        here = (self._pivots[:, : len(prefix)] == np.array(prefix, np.int64)).all(axis=1)
        return self._pivots[here, len(prefix) :] if here.any() else None

    def merge(self, tol: float) -> float:
        """Merges, after patched cross, patches that one train of bounded rank can hold."""
        depth = max(map(len, self.leaves))
        share, spent = tol / max(1, depth), 0
        for level in range(depth, 0, -1):
            merged = False
            for parent, children in by_parent(p for p in self.leaves if len(p) == level).items():
                if len(children) == self._modes[level - 1]:
                    merged |= self._merge(parent, [(p, self.leaves[p]) for p in children], share)
            spent += merged
        return spent * share

    def _merge(self, parent: Prefix, children: list[tuple[Prefix, _Leaf]], tol: float) -> bool:
        errors = [leaf.error for _, leaf in children], [leaf.std for _, leaf in children]
        parts = {p[-1]: leaf.train for p, leaf in children if leaf.train is not None}
        train = joined(parts, self._oracle.shape, tol) if parts else None
        if train is not None and max(train.ranks) > self._max_rank:
            return False
        for prefix, _ in children:
            del self.leaves[prefix]
        size = math.hypot(*(leaf.norm for _, leaf in children))
        error, std = (math.hypot(*found) for found in errors)
        self.leaves[parent] = _Leaf(train, size, error, std, True)
        return True

    def result(self) -> PatchedTT:
        """Returns the result of patched cross: all patches on which the function is not zero."""
        found = [(prefix, self.leaves[prefix].train) for prefix in sorted(self.leaves)]
        kept = [(prefix, train) for prefix, train in found if train is not None]
        shape = self._oracle.shape
        if not kept:
            kept = [((), zeros(shape, self._kind))]
        return PatchedTT(shape, [p for p, _ in kept], [t for _, t in kept])

    def report(self, status: Status, rounded: float, start: float) -> PatchesInfo:
        """Returns the report of a finished patched cross approximation."""
        leaves = list(self.leaves.values())
        whole = math.hypot(*(leaf.norm for leaf in leaves))
        error, std = (
            math.hypot(*(getattr(leaf, name) for leaf in leaves)) / (whole or 1.0)
            for name in ("error", "std")
        )
        if whole == 0 and std > 0:  # zero wherever it was looked at
            error = math.inf
        trains = [leaf.train for leaf in leaves if leaf.train is not None]
        return PatchesInfo(
            status=status,
            error=error + rounded,
            error_std=std,
            evaluations=self._oracle.evaluations,
            searches=self.searches,
            patches=len(trains),
            largest_rank=max((max(t.ranks) for t in trains), default=1),
            seconds=time.perf_counter() - start,
            advice=ADVICE[status],
        )
