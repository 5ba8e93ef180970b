"""Cross approximation: a tensor train from few entries of a black-box function."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.scaling import balanced
from tensorjax._cores.truncation_sweeps import svd_round
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT, single
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike, DTypeLike
from tensorjax.tt._cross.approximation_state import Approximation
from tensorjax.tt._cross.cross_info import CrossInfo, CrossProgress, Options, Status
from tensorjax.tt._cross.function_calls import Evaluations, Executor, Jit
from tensorjax.tt._cross.held_out_error import Estimate
from tensorjax.tt._cross.sampled_function import Oracle
from tensorjax.tt._cross.sweeps import AT_LEAST, Search

# _PARTS: shares of the squared error left below the goal that rounding may use, tried in turn.
# _SLACK: factor by which rounding may raise the error of a train that misses the tolerance anyway.
_PARTS = (0.25, 0.01)
_SLACK = 1.05
# Most held-out entries of a small tensor: so many, or one in so many of all if that is more.
_FEW_ENTRIES = 100
# Entries that are held out while ranks grow. All that were asked for are, fresh ones where some of
# these became pivots, before a train counts as converged.
_FIRST_HELD_OUT = 500
# Most indices of a mode: all entries along one mode are asked for at once, 40 bytes each at least.
_LONGEST_MODE = 2**31 - 1


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
    max_sweeps: int = 400,
    search: float = 0.05,
    callback: Callable[[CrossProgress], Any] | None = None,
    dtype: DTypeLike | None = None,
    cache: int = 1 << 23,
    executor: Executor | None = None,
    on_error: Literal["raise", "return"] = "raise",
    resume: CrossInfo | None = None,
) -> tuple[TT, CrossInfo]:
    """Approximates a function of multi-indices or grid points by a tensor train, from few values.

    Index sets of all bonds grow pivot by pivot where random entries of two neighbouring modes show
    the largest residual (greedy two-site cross interpolation). No entry is evaluated twice, but for
    eight, to find whether f is noisy, where a search stalls or where all entries, 256 or more, were
    read and the train has no fewer parameters. A small tensor, of up to 20 000 entries, is read
    entirely and factored by TT-SVD: its error is exact, if f is the same at every call. One of up
    to 2^18 entries, or of up to ``max_evaluations``, is read where a search would end without
    knowing its error: "unseen", "stalled" or "zero". So is one of which half of the entries are
    known, and, before it counts as converged, one of up to 2^16 of which a quarter are: with ranks
    so high it may have a kink. Evaluations must be left for all entries that are not known (in the
    cache). Where f costs too much for that, ``max_evaluations`` or ``search=0`` asks for a search.

    Args:
      f: maps a batch of multi-indices, int64 (batch, d), to values (batch,); or to (batch, m), and
        the train then has a last mode of size m, whose entries cost nothing more. A NumPy or a JAX
        function, real or complex.
      shape: mode sizes (n_1, …, n_d), each below 2^31.
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
      pivots: multi-indices (m, d) where f is large, or with ``grid`` points there, for functions
        that are large at few entries: the search starts from them. With x0 or pivots, other parts
        of f as small are taken not to exist.
      held_out: number of random entries that measure the error (fewer for a small budget or
        tensor; up to 500 of them while ranks grow). Errors confined to a smaller part of all
        entries than about 3/held_out may escape. Where the norm of f is, up to 20 000 are looked
        at.
      max_sweeps: half-sweeps over the bonds.
      search: share of all evaluations, in [0, 1), for a global search of errors that sweeps miss:
        random entries, held-out ones among them, and ascents of the error from the worst. With
        0.9 it takes nine times what the fit takes, which finds peaks as narrow. With 0 a small
        tensor is searched too, and read only if the search fails or few entries are large.
      callback: gets a `CrossProgress` after each half-sweep; the search stops when it returns True.
        It is not called where a tensor is read entirely, or the first train is accurate enough.
      dtype: of the result; that of f's values, as JAX has it, if None.
      cache: values of f kept at most, about 150 bytes each. When it is full, it is emptied, and f
        may be evaluated again where it was before; entries that are fitted are kept apart. Those
        it forgot do not count as known: with room for fewer than all entries of a tensor, all are
        read only if the evaluations left allow for each of them.
      executor: workers that evaluate f: anything with ``submit`` or ``map`` as executors of
        `concurrent.futures` have them. f is called on parts of a batch, or at one point after the
        other (``vectorized=False``), and not compiled; processes need one that can be pickled.
      on_error: "return" ends the search if f raises an error or returns NaN or Inf, or at an
        interrupt (KeyboardInterrupt): the best train so far is returned, with status "failed". An
        error of the very first batch is raised in any case.
      resume: report of an earlier search of the same f on the same shape, ended by a budget, an
        error, an interrupt or a callback: the search goes on from there. Its values of f are taken
        from ``resume.record`` and count as evaluations, of ``max_evaluations`` too, but f is not
        asked for them again. After an error, an interrupt or a callback, the result with the same
        key and options is that of a search without a break.

    Returns:
      The train, and a `CrossInfo` with status, error and its uncertainty, evaluations and advice.

    Raises:
      ValueError: f returns NaN or Inf (the multi-indices are named) or a wrong shape; tol below
        10 eps; modes of 2^31 indices; shapes of grid or x0 that do not fit. An error that f raises
        passes through, with a note that names the multi-index.
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
    fitted; a part of the tolerance is left for rounding the result; residuals far below the
    tolerance are no pivots; the global search has a share of the evaluations.
    """
    sizes = _sizes(shape)
    options = _options(
        sizes, tol, max_rank, held_out, max_sweeps, max_evaluations, search, callback
    )
    record = _resumed(resume, sizes)
    if record is not None and record.held_out:  # the same entries are held out as before
        options.held_out = min(record.held_out, options.held_out)
    rng = _check.host_generator(key, "; tt.cross calls f from the host and cannot be traced")
    coordinates = None if grid is None else checked_grid(grid, sizes)
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
        record=record,
    )
    final = _Dtype(oracle, dtype)
    starts = _start(x0, sizes), checked_pivots(pivots, sizes, grid)
    searched = Search(Approximation(oracle, options, rng, *starts, final.finish), rng)
    final.check(options.tol)
    status = searched.run()
    final.check_range(at_end=True)
    cores, estimate = _rounded(searched, options.tol, max_rank, final.finish)
    doubt = _doubt(status, searched)
    if status == "converged" and estimate.bound > options.tol:
        status = "max_rank"
    if status == "converged" and doubt > options.tol and not options.like_exact(estimate.error):
        status, doubt = "unseen", math.inf  # f jumps, and the train of it is not exact
    if status != "zero":  # no train is nearer to f than f to itself
        unsteady = searched.unsteady
        estimate = Estimate(max(estimate.error, unsteady), max(estimate.std, doubt, unsteady))
    train = TT._unchecked(tuple(jax.device_put(final.result(cores))))
    return train, searched.report(status, estimate, train.ranks)


def _sizes(shape: Any) -> tuple[int, ...]:
    """Checks `cross`'s mode sizes: no mode may be too long for all its indices to be evaluated."""
    sizes = _check.shape("shape", shape)
    if max(sizes) > _LONGEST_MODE:
        raise ValueError(
            f"shape: expected modes of at most {_LONGEST_MODE} indices, as f is evaluated at all "
            f"of them, got {sizes}; write longer ones in digits, see tt.quantics_grid"
        )
    return sizes


def _calls(jit: Any, executor: Any, on_error: Any) -> bool:
    """Checks `cross`'s options ``jit``, ``executor`` and ``on_error``; whether errors return."""
    _check.choice("jit", jit, (True, False, "auto"))
    _check.choice("on_error", on_error, ("raise", "return"))
    if executor is not None and not (hasattr(executor, "submit") or hasattr(executor, "map")):
        raise TypeError(f"executor: expected one with map or submit, got {type(executor).__name__}")
    if executor is not None and jit is True:
        raise ValueError("executor: expected jit=False or 'auto' beside it, got True")
    return on_error == "return"


def _resumed(resume: Any, sizes: tuple[int, ...]) -> Evaluations | None:
    """Checks the option ``resume`` of `cross`: returns the values that an earlier call computed."""
    if resume is None:
        return None
    if not isinstance(resume, CrossInfo) or resume.record is None:
        raise TypeError(
            f"resume: expected the CrossInfo of an earlier search, got {_check.short(resume)}"
        )
    if resume.record.shape != sizes:
        raise ValueError(f"resume: expected a search of shape {sizes}, got {resume.record.shape}")
    return resume.record


def _share(search: Any) -> float:
    """Checks `cross`'s option ``search``: a share in [0, 1) of evaluations that seek errors."""
    if not isinstance(search, int | float | np.number) or not 0 <= search < 1:
        raise ValueError(f"search: expected a share of the evaluations in [0, 1), got {search!r}")
    return float(search)


def _doubt(status: Status, search: Search) -> float:
    """Returns the standard error that `cross` adds, at its end, for what samples may miss.

    It is infinite where they tell nothing: the error is then that of what was looked at alone.
    """
    held, fit = search.held, search.fit
    if status == "unseen":
        return math.inf
    if status in ("converged", "zero") or held.all or not all(c.any() for c in fit.cores):
        return search.doubt  # the error of a train of zeros is one
    contradicted = status in ("stalled", "max_rank", "max_sweeps") and (
        fit.estimate.bound <= search.tol
    )
    # Entries drawn from a train do not meet what it lacks.
    blind = not (fit.given or held.seen(fit.cores))
    alone = fit.estimate.of_one and not (search.doubt or fit.like_exact)
    return math.inf if contradicted or blind or alone else search.doubt


def _options(
    sizes: tuple[int, ...],
    tol: Any,
    max_rank: Any,
    held_out: Any,
    max_sweeps: Any,
    budget: Any,
    search: Any,
    callback: Any,
) -> Options:
    if _check.is_traced(tol):
        raise TypeError("tol: expected a number; tt.cross chooses ranks and cannot be traced")
    asked = _check.integer("held_out", held_out, low=2)
    held_out = min(asked, max(_FEW_ENTRIES, math.prod(sizes) // _FEW_ENTRIES))
    if budget is not None:
        budget = _check.integer("max_evaluations", budget, low=1)
        # Most of a small budget is spent on the fit.
        held_out = min(held_out, max(1, budget // 5))
    cap = np.iinfo(np.int64).max
    if max_rank is not None:
        # Rounding the interpolation of a slightly higher rank is better than interpolating.
        cap = _check.integer("max_rank", max_rank, low=1)
        cap += 1 + cap // 4
    return Options(
        tol=_check.tolerance(tol, np.float64),
        max_rank=int(cap),
        max_sweeps=_check.integer("max_sweeps", max_sweeps, low=1),
        held_out=min(held_out, _FIRST_HELD_OUT),
        wanted=held_out,
        asked=asked,
        budget=math.inf if budget is None else budget,
        search=_share(search),
        most_random=AT_LEAST if budget is None else min(AT_LEAST, budget),
        callback=callback,
    )


def checked_grid(grid: Sequence[Any], sizes: tuple[int, ...]) -> np.ndarray:
    """Checks the option ``grid`` of `cross`: returns coordinates, one zero-padded row per mode."""
    arrays = [np.asarray(g) for g in _check.several("grid", grid, "arrays, one a mode")]
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


def checked_pivots(value: Any, sizes: tuple[int, ...], grid: Any) -> np.ndarray | None:
    """Checks the option ``pivots`` of `cross`: returns multi-indices ≥ 0, or ValueError."""
    if value is None:
        return None
    rows = np.asarray(value)
    if grid is not None and rows.dtype.kind == "f" and rows.shape[1:] == (len(sizes),):
        _check.finite("pivots", rows)
        nearest = [np.abs(np.subtract.outer(x, g)) for x, g in zip(rows.T, grid, strict=True)]
        rows = np.stack([distance.argmin(axis=1) for distance in nearest], axis=1)
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
    """Dtype of `cross`'s result, asked for or that of f; checks tolerance and range by it."""

    def __init__(self, oracle: Oracle, dtype: Any):
        self._oracle = oracle
        self._asked = None if dtype is None else _check.inexact_dtype(dtype)

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
        """Raises ValueError if values of f are out of range of the dtype of `cross`'s result.

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
        """Rounds cores to the dtype of `cross`'s result, so that measured errors include it."""
        self.check_range()
        is_complex = jnp.issubdtype(self.value, jnp.complexfloating)
        wide = np.complex128 if is_complex else np.float64
        cast = [c.astype(wide, copy=False) for c in self.result(cores)]
        return [*cast[:-1], linalg.scaled(cast[-1], -self._oracle.exponent)]

    def result(self, cores: Cores) -> Cores:
        """Casts cores to the dtype of `cross`'s result, and multiplies them by the scale of f."""
        value, exponent = self.value, self._oracle.exponent
        if exponent:  # a core that cannot hold it shares it with the others
            cores = balanced(cores, exponent, fit=linalg.exponents_held(value))
        return [c.astype(value, copy=False) for c in cores]


def _rounded(
    search: Search, tol: float, max_rank: int | None, finish: Callable[[Cores], Cores]
) -> tuple[Cores, Estimate]:
    """Rounds, at the end of `cross`, the train found to its tolerance and rank cap."""
    estimate = search.fit.estimate
    if search.sweeps and estimate.bound > tol:  # it may come from a part of the held-out entries
        estimate = search.held.estimate(search.fit.cores)
    best, bound = (search.fit.cores, estimate), estimate.bound
    if len(search.fit.cores) == 1 or not math.isfinite(bound):
        return best
    goal = tol if bound <= tol else _SLACK * bound
    for part in _PARTS:
        cores = finish(balanced(*svd_round(search.fit.cores, None, part * (goal**2 - bound**2))))
        estimate = search.held.estimate(cores)
        if estimate.bound <= goal:
            best = cores, estimate
            break
    if max_rank is not None and max(c.shape[-1] for c in best[0]) > max_rank:
        ranks = [max_rank] * (len(best[0]) - 1)
        cores = finish(balanced(*svd_round(best[0], ranks, None)))
        best = cores, search.held.estimate(cores)
    return best
