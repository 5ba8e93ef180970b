"""Cross approximation: a tensor train from few entries of a black-box function."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.rounding_methods import svd_round
from tensorjax._cores.scaling import balanced
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT, single
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike, DTypeLike
from tensorjax.tt._cross import search as _search
from tensorjax.tt._cross.function_calls import Executor
from tensorjax.tt._cross.held_out_error import Estimate
from tensorjax.tt._cross.sampled_function import Jit, Oracle
from tensorjax.tt._cross.search import CrossProgress, Search, Status

_ADVICE: dict[str, str] = {
    "converged": "",
    "max_rank": "max_rank is too small for tol: raise it, or ask for less accuracy",
    "budget": "max_evaluations is too small for tol: raise it, start from x0=, or ask for less",
    "max_sweeps": "ranks were still growing: raise max_sweeps",
    "stalled": "no entry was found whose fit would lower the error: f may be noisy at the level "
    "of the error, or vary too fast for low ranks; ask for less accuracy, reorder or refine the "
    "modes (see tt.quantics_grid), or start from x0=",
    "stopped": "the callback returned True",
    "unseen": "random entries meet too little of what was found for its error to be known: another "
    "part of f as small would have escaped; if there is none, or to look elsewhere too, give "
    "pivots=, multi-indices where f is large, or x0=",
    "failed": "f raised an error, see message: mend f, and start again from x0=, the train returned",
    "zero": "every entry seen is zero: if f is not, give pivots=, multi-indices where f is large, "
    "or an x0= that is large where f is",
}
_ALL_ZERO = "f is zero: all entries were read"
# _PARTS: shares of the squared error left below the goal that rounding may use, tried in turn.
# _SLACK: factor by which rounding may raise the error of a train that misses the tolerance anyway.
_PARTS = (0.25, 0.01)
_SLACK = 1.05
# Most held-out entries of a small tensor: one in _FEW of all entries, or _FEW if that is more.
_FEW = 100


@dataclasses.dataclass(frozen=True)
class CrossInfo:
    """Report of a cross approximation: status, error estimate, evaluations, ranks, advice.

    Attributes:
      status: "converged"; or "max_rank", "budget", "max_sweeps", "stalled", "stopped" (by the
        callback): the best train found is returned, with its error. "zero": every entry seen is
        zero, and the error is not known (inf). "unseen": the train fits f wherever it is large and
        wherever f was looked at, but that is so small a part of all entries that random ones would
        not have met another one like it; ``error_std`` is inf.
      error: estimated ‖f − t‖ / ‖f‖, from ``held_out`` entries that t was not fitted to: random
        ones, and entries drawn from |t|² where few random ones are large.
      error_std: standard error of that estimate; 0 only if all entries of the tensor were read;
        inf if the held-out entries show less than ``tol`` while the search, which did not converge,
        met others that are wrong.
        If f has few values, or one at most entries, it is what random entries may have missed:
        such a function jumps, and what is wrong is wrong by as much as f is large.
      held_out: number of those entries.
      evaluations: multi-indices at which f was evaluated: all different, held-out ones included.
      cache_hits: entries that were asked for again and taken from memory.
      sweeps: half-sweeps over the bonds.
      ranks: TT-ranks of the result.
      seconds: time taken.
      programs: programs compiled for a JAX function, one for each batch size of few.
      advice: what to do next, in words; empty if converged, unless f is zero everywhere.
      searched: entries at which errors were sought beside the fit, random and others.
      message: the status, the error and what was searched, in one sentence. A part of f at fewer
        entries than it says can escape any search, "converged" or not.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> f = lambda i: 1.0 * i.sum(axis=1)
      >>> t, info = tt.cross(f, (4, 4, 4), tol=1e-4, key=jax.random.key(0))
      >>> info.status, info.evaluations <= 64, info.advice
      ('converged', True, '')

    Source: ours.
    """

    status: Status
    error: float
    error_std: float
    held_out: int
    evaluations: int
    cache_hits: int
    sweeps: int
    ranks: tuple[int, ...]
    seconds: float
    programs: int
    advice: str
    searched: int = 0
    message: str = ""


@placed
def cross(
    f: Callable[[Any], Any],
    shape: Sequence[int],
    *,
    tol: float,
    key: jax.Array,
    max_rank: int | None = None,
    max_evaluations: int | None = None,
    vectorized: bool = True,
    grid: Sequence[Any] | None = None,
    jit: Jit = "auto",
    x0: TT | None = None,
    pivots: ArrayLike | None = None,
    held_out: int = 1000,
    max_sweeps: int = 100,
    search: float = 0.05,
    callback: Callable[[CrossProgress], Any] | None = None,
    dtype: DTypeLike | None = None,
    cache: int = 1 << 23,
    executor: Executor | None = None,
    on_error: Literal["raise", "return"] = "raise",
) -> tuple[TT, CrossInfo]:
    """Approximates a function of multi-indices or grid points by a train, from few evaluations.

    Index sets of all bonds grow pivot by pivot where random entries of two neighbouring modes show
    the largest residual (greedy two-site cross interpolation). No entry is evaluated twice.

    Args:
      f: maps a batch of multi-indices, int64 (batch, d), to values (batch,); or to (batch, m), and
        the train then has a last mode of size m, whose entries cost nothing more. A NumPy or a JAX
        function, real or complex.
      shape: mode sizes (n_1, …, n_d).
      tol: relative error in the Frobenius norm. The search ends when the error at the held-out
        entries is below it by two standard errors.
      key: `jax.random.key`; the result is determined by it.
      max_rank: of the result; no limit if None.
      max_evaluations: of f, never exceeded; no limit if None.
      vectorized: False if f takes one multi-index (d,), and gives a scalar or (m,).
      grid: d arrays (n_k,) of coordinates: f then gets points (batch, d) instead of indices.
      jit: whether to compile f. "auto" compiles functions that return JAX arrays and can be traced.
        Batches are then padded (by copies) to one of seven sizes, so few programs are compiled.
      x0: a train near f, of the same shape, for a warm start: its index sets are tried first.
      pivots: multi-indices (m, d) where f is large, for functions that are large at few entries:
        the search starts from them. With x0 or pivots, other parts of f as small are taken not to
        exist.
      held_out: number of random entries that measure the error (fewer for a small budget or
        tensor). Errors confined to a smaller part of all entries than about 3/held_out may escape.
        Where the norm of f is, up to 20 000 are looked at; a tensor that has no more entries is
        read as a whole if the search fails or few of them are large.
      max_sweeps: half-sweeps over the bonds.
      callback: gets a `CrossProgress` after each; the search stops when it returns True.
      dtype: of the result; that of f's values, as JAX has it, if None.

    Returns:
      The train, and a `CrossInfo` with status, error and its uncertainty, evaluations and advice.

    Raises:
      ValueError: f returns NaN or Inf (the multi-indices are named) or a wrong shape; tol below
        10 eps; shapes of grid or x0 that do not fit.
      TypeError: a key that is not one of `jax.random`, or a call under a JAX transformation.

    Example:
      >>> import jax, numpy as np
      >>> from tensorjax import tt
      >>> f = lambda i: 1 / (1.0 + i.sum(axis=1))
      >>> t, info = tt.cross(f, (10,) * 6, tol=1e-4, key=jax.random.key(0))
      >>> info.status, info.evaluations < 4000, max(t.ranks) < 8
      ('converged', True, True)
      >>> bool(abs(tt.evaluate(t, [9, 8, 7, 6, 5, 4]) - 1 / 40) < 1e-4)
      True

    Source: D. Savostyanov, "Quasioptimality of maximum-volume cross interpolation of tensors",
    Linear Algebra Appl. 458 (2014), the greedy cross interpolation; S. Dolgov, D. Savostyanov,
    "Parallel cross interpolation for high-precision calculation of high-dimensional integrals",
    Comput. Phys. Commun. 246 (2020). Departures: a bond gets as many pivots in one visit as lie
    above a threshold that falls from sweep to sweep, so that ranks grow evenly; the wrong held-out
    entries become pivots where blocks show no residual; the error comes from entries that are not
    fitted; a part of the tolerance is left for rounding the result.
    """
    sizes = _check.shape("shape", shape)
    options = _options(sizes, tol, max_rank, held_out, max_sweeps, max_evaluations, search, callback)
    rng = _check.host_generator(key, "; tt.cross calls f from the host and cannot be traced")
    coordinates = None if grid is None else _grid(grid, sizes)
    oracle = Oracle(
        f,
        sizes,
        grid=coordinates,
        vectorized=vectorized,
        jit=jit,
        budget=max_evaluations,
        cache=_check.integer("cache", cache, low=0),
        executor=executor,
        end_on_error=_calls(jit, executor, on_error),
    )
    final = _Dtype(oracle, dtype)
    starts = _start(x0, sizes), _pivots(pivots, sizes)
    searched = Search(oracle, options, rng, *starts, final.finish)
    final.check(options.tol)
    status = searched.run()
    final.check_range(at_end=True)
    cores, estimate = _rounded(searched, options.tol, max_rank, final.finish)
    doubt = _doubt(status, searched, elsewhere=x0 is None and pivots is None)
    if status == "converged" and estimate.bound > options.tol:
        status = "max_rank"
    if status != "zero":
        estimate = Estimate(estimate.error, max(estimate.std, doubt))
    train = TT._unchecked(tuple(jax.device_put(final.result(cores))))
    return train, _info(status, estimate, searched, oracle, train)


def _calls(jit: Any, executor: Any, on_error: Any) -> bool:
    """Checks how `cross` is to call f; returns whether an error of f ends the search."""
    if jit not in (True, False, "auto"):
        raise ValueError(f'jit: expected True, False or "auto", got {jit!r}')
    if on_error not in ("raise", "return"):
        raise ValueError(f'on_error: expected "raise" or "return", got {on_error!r}')
    if executor is not None and not (hasattr(executor, "submit") or hasattr(executor, "map")):
        raise TypeError(f"executor: expected one with map or submit, got {type(executor).__name__}")
    if executor is not None and jit is True:
        raise ValueError("executor: its workers call f as it is; pass jit=False, or no executor")
    return on_error == "return"


def _share(search: Any) -> float:
    """Checks the share of evaluations that `cross` spends on global search."""
    if not isinstance(search, int | float | np.number) or not 0 <= search < 1:
        raise ValueError(f"search: expected a share of the evaluations in [0, 1), got {search!r}")
    return float(search)


def _doubt(status: Status, search: Search, *, elsewhere: bool) -> float:
    """Returns the part of a cross's standard error that held-out entries cannot show."""
    contradicted = status in ("stalled", "max_rank", "max_sweeps") and (
        not search.held.all and search.estimate.bound <= search.tol
    )
    if status == "unseen" or contradicted:
        return math.inf
    return search.held.unseen(elsewhere=elsewhere)


def _info(
    status: Status, estimate: Estimate, search: Search, oracle: Oracle, train: TT
) -> CrossInfo:
    return CrossInfo(
        status=status,
        error=estimate.error,
        error_std=estimate.std,
        held_out=len(search.held.index),
        evaluations=oracle.evaluations,
        cache_hits=oracle.hits,
        sweeps=search.sweeps,
        ranks=train.ranks,
        seconds=search.seconds,
        programs=len(oracle.programs),
        advice=_ALL_ZERO if search.held.all and oracle.largest == 0 else _ADVICE[status],
        searched=search.held.uniform + search.globally.spent,
        message=_message(status, estimate, search),
    )


def _message(status: Status, estimate: Estimate, search: Search) -> str:
    """Says in words how a cross ended, and where f was looked at beside the entries fitted."""
    held, globally = search.held, search.globally
    said = search.failure or (
        f"{status}: error {estimate.error:.1e} with standard error {estimate.std:.1e}, "
        f"{search.tol:.1e} asked"
    )
    if held.all:
        return f"{said}; all {held.size} entries were read"
    part = 3 / max(1, held.uniform)
    return (
        f"{said}; searched: {held.uniform} random entries of {held.size:.3g}, "
        f"{globally.spent} others and {globally.climbs} ascents of the error; what f does at less "
        f"than {part:.1e} of all entries may have escaped"
    )


def _options(
    sizes: tuple[int, ...],
    tol: Any,
    max_rank: Any,
    held_out: Any,
    max_sweeps: Any,
    budget: Any,
    search: Any,
    callback: Any,
) -> _search.Options:
    if _check.is_traced(tol):
        raise TypeError("tol: expected a number; tt.cross chooses ranks and cannot be traced")
    asked = _check.integer("held_out", held_out, low=2)
    held_out = min(asked, max(_FEW, math.prod(sizes) // _FEW))
    if budget is not None:
        budget = _check.integer("max_evaluations", budget, low=1)
        # Most of a small budget is spent on the fit.
        held_out = min(held_out, max(1, budget // 5))
    cap = np.iinfo(np.int64).max
    if max_rank is not None:
        # Rounding the interpolation of a slightly higher rank is better than interpolating.
        cap = _check.integer("max_rank", max_rank, low=1)
        cap += 1 + cap // 4
    return _search.Options(
        tol=_check.tolerance(tol, np.float64),
        max_rank=int(cap),
        max_sweeps=_check.integer("max_sweeps", max_sweeps, low=1),
        held_out=held_out,
        asked=asked,
        budget=math.inf if budget is None else budget,
        search=_share(search),
        most_random=_search.AT_LEAST if budget is None else min(_search.AT_LEAST, budget),
        callback=callback,
    )


def _grid(grid: Sequence[Any], sizes: tuple[int, ...]) -> np.ndarray:
    """Checks the grid of a cross; returns coordinates as the zero-padded rows of one array."""
    arrays = [np.asarray(g) for g in grid]
    shapes = [g.shape for g in arrays]
    if shapes != [(n,) for n in sizes]:
        raise ValueError(
            f"grid: expected one array (n_k,) for each mode of shape {sizes}, got shapes {shapes}"
        )
    _check.finite("grid", [g for g in arrays if g.dtype.kind in "fc"])
    out = np.zeros((len(sizes), max(sizes)), np.result_type(*arrays))
    for row, g in zip(out, arrays, strict=True):
        row[: len(g)] = g
    return out


def _start(x0: TT | None, sizes: tuple[int, ...]) -> Cores | None:
    if x0 is None:
        return None
    single("x0", x0, TT)
    if x0.shape[: len(sizes)] != sizes or x0.order > len(sizes) + 1:
        raise ValueError(f"x0: expected shape {sizes} (and the components of f), got {x0.shape}")
    _check.finite("x0", x0)
    wide = np.result_type(np.asarray(x0.cores[0]).dtype, np.float64)
    return [np.asarray(c).astype(wide) for c in x0.cores]


def _pivots(value: Any, sizes: tuple[int, ...]) -> np.ndarray | None:
    """Checks the pivots given to `cross` and returns them as rows of non-negative multi-indices."""
    if value is None:
        return None
    rows = np.asarray(value)
    if (
        rows.dtype.kind not in "iu"
        or rows.ndim != 2
        or rows.shape[1] != len(sizes)
        or not len(rows)
    ):
        raise ValueError(
            f"pivots: expected integers (m, {len(sizes)}), a multi-index in each row, "
            f"got {rows.dtype} {rows.shape}"
        )
    rows = rows.astype(np.int64)
    outside = ((rows < -np.array(sizes)) | (rows >= sizes)).any(axis=1)
    if outside.any():
        raise ValueError(
            f"pivots: expected multi-indices into shape {sizes}, got "
            f"{tuple(rows[outside.argmax()].tolist())}"
        )
    return rows % sizes


class _Dtype:
    """Dtype of the result, known once f has been called, and casts of cores to it."""

    def __init__(self, oracle: Oracle, dtype: Any):
        self._oracle = oracle
        self._asked = None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)
        if self._asked is not None and not jnp.issubdtype(self._asked, jnp.inexact):
            raise TypeError(f"dtype: expected a floating-point or complex dtype, got {dtype}")

    @property
    def value(self) -> Any:
        kind = self._oracle.dtype
        if self._asked is None:
            return jax.dtypes.canonicalize_dtype(kind)
        if kind.kind == "c" and not jnp.issubdtype(self._asked, jnp.complexfloating):
            raise ValueError(
                f"dtype: expected a complex one, for f has complex values, got {self._asked}"
            )
        return self._asked

    def check(self, tol: float) -> None:
        _check.tolerance(tol, self.value)

    def check_range(self, *, at_end: bool = False) -> None:
        """Raises if a cross's largest |f| overflows the dtype; at the end, if it underflows.

        JAX takes numbers that are not normal ones for zero.
        """
        if self._oracle.largest == 0:
            return
        exponent = math.frexp(self._oracle.largest)[1] + self._oracle.exponent
        info = jnp.finfo(self.value)
        if exponent > info.maxexp or (at_end and exponent <= info.minexp):
            raise ValueError(
                f"f: its largest value, about 2^{exponent}, is outside the range of {self.value} "
                f"(2^{info.minexp} to 2^{info.maxexp}); scale f, or ask for a wider dtype="
            )

    def finish(self, cores: Cores) -> Cores:
        """Casts a cross's cores to the result's dtype and back, so that errors include it."""
        self.check_range()
        is_complex = jnp.issubdtype(self.value, jnp.complexfloating)
        wide = np.complex128 if is_complex else np.float64
        cast = [c.astype(wide, copy=False) for c in self.result(cores)]
        return [*cast[:-1], linalg.scaled(cast[-1], -self._oracle.exponent)]

    def result(self, cores: Cores) -> Cores:
        """Casts the cores of a cross to the result's dtype, in the scale of f."""
        value, exponent = self.value, self._oracle.exponent
        if exponent:  # a core that cannot hold it shares it with the others
            cores = balanced(cores, exponent, fit=linalg.exponents_held(value))
        return [c.astype(value, copy=False) for c in cores]


def _rounded(
    search: Search, tol: float, max_rank: int | None, finish: Callable[[Cores], Cores]
) -> tuple[Cores, Estimate]:
    """Rounds the train that `cross` found to ``tol`` and ``max_rank``; returns its error too."""
    estimate = search.estimate
    if search.sweeps and estimate.bound > tol:  # it may come from a part of the held-out entries
        estimate = search.held.estimate(search.cores)
    best, bound = (search.cores, estimate), estimate.bound
    if len(search.cores) == 1 or not math.isfinite(bound):
        return best
    goal = tol if bound <= tol else _SLACK * bound
    for part in _PARTS:
        cores = finish(balanced(*svd_round(search.cores, None, part * (goal**2 - bound**2))))
        estimate = search.held.estimate(cores)
        if estimate.bound <= goal:
            best = cores, estimate
            break
    if max_rank is not None and max(c.shape[-1] for c in best[0]) > max_rank:
        ranks = [max_rank] * (len(best[0]) - 1)
        cores = finish(balanced(*svd_round(best[0], ranks, None)))
        best = cores, search.held.estimate(cores)
    return best
