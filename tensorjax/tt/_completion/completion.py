"""Tensor completion: tensor trains from samples, by ALS or Riemannian conjugate gradients."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.ranks import feasible_ranks
from tensorjax._cores.scaling import balanced, cast_in_range
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT, single
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike
from tensorjax.tt._completion import als as als
from tensorjax.tt._completion import riemannian

Method = Literal["als", "riemannian"]
# A raised rank is kept if it lowers the held-out error by at least this share.
_WORTH = 0.003
# Iterations after a rank was raised, before it is judged.
_TRIAL = 10
# Size of the random entries that pad cores to a higher rank, relative to the largest entry.
_SPARK = 1e-3
# Held-out errors above this count as a poor local minimum: another random start is tried.
_STUCK = 0.5
# Held-out errors above so many times the tolerance deny that the fit is what was asked for.
_DENIED = 100
# A held-out error of more than so many times that of the fit says that the fit is overfitted.
_APART = 1.5
# Iterations in a row that may raise the held-out error, or hardly lower that of the fit.
_PATIENCE, _SLOW = 40, 3


@dataclasses.dataclass(frozen=True)
class CompleteInfo:
    """Report of a tensor completion: status, fitted and held-out errors, ranks, advice.

    Attributes:
      status: "reached" (the error is at most ``tol``, and on held-out samples, if there are any, at
        most a hundred times that; of ranks that are too high, some entries may be determined by no
        sample, and be seen by none that is held out), "overfit" (the samples are fitted better, by
        a half at least, or to ``tol``, those held out no better for forty iterations; or none are
        held out, and trains of these ranks have more degrees of freedom than there are samples),
        "converged" (three iterations lowered the error by less than ``stop`` of itself each, or
        forty lowered none of the two errors, which are alike), "stopped" (by the callback) or
        "max_iterations".
      error: ‖x − values‖ / ‖values‖ on the samples fitted.
      held_out_error: the same on the samples held out; NaN if there are none.
      ranks: TT-ranks of the result.
      iterations: of all, those at lower ranks included.
      history: (ranks, error, held-out error) after every iteration.
      seconds: taken.
      advice: what to try where the status is not "reached"; empty otherwise.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> indices = np.indices((4, 5)).reshape(2, -1).T
      >>> x, info = tt.complete(indices, np.ones(20, np.float32), (4, 5), 1)
      >>> info.status, info.ranks
      ('reached', (1, 1, 1))

    Source: ours.
    """

    status: str
    error: float
    held_out_error: float
    ranks: tuple[int, ...]
    iterations: int
    history: tuple[tuple[tuple[int, ...], float, float], ...]
    seconds: float
    advice: str


_ADVICE = {
    "reached": "",
    "max_iterations": "allow more iterations, or start from a good x0",
    "stopped": "the callback ended it; start again from x0 to go on",
}


@placed
def complete(
    indices: ArrayLike,
    values: ArrayLike,
    shape: Sequence[int],
    rank: int | Sequence[int],
    *,
    method: Method = "als",
    adapt: bool = False,
    tol: float = 1e-6,
    stop: float = 1e-4,
    max_iterations: int = 100,
    held_out: float = 0.05,
    ridge: float = 1e-9,
    restarts: int = 4,
    x0: TT | None = None,
    key: jax.Array | None = None,
    callback: Callable[[int, float, float], Any] | None = None,
) -> tuple[TT, CompleteInfo]:
    """Fits a tensor train of low TT-ranks to some entries of a tensor (tensor completion).

    Minimises the mean of |x[i] − values|² over the samples, plus ``ridge`` times that over all
    entries of x, in units of the mean square of the values.

    Args:
      indices: integers (N, d).
      values: (N,), floating or complex.
      shape: mode sizes n_1 … n_d.
      rank: TT-ranks, one int or one per interior bond, cut where the modes cannot hold as much;
        with ``adapt``, at most.
      method: "als", sweeps over the cores, each solved exactly, slice by slice: O(N r⁴) operations
        per core. "riemannian": conjugate gradients on the manifold of fixed ranks, O(N r²). Both on
        the host, nothing compiled.
      adapt: start at rank 1 and raise one bond after the other, or all at once, as long as that
        lowers the error on the samples held out.
      tol: ends when the relative error on the samples fitted is at most this.
      stop: ends when three iterations in a row lower that error by less than this share of itself.
      max_iterations: sweeps there and back, or steps.
      held_out: share of the entries sampled that is never fitted, by which overfitting is seen and
        ranks are chosen; 0 for none. An entry sampled repeatedly is fitted or held out as a whole.
      ridge: weight of the mean square of all entries ("als" only).
      restarts: random starts, at most, while the held-out error of the best is more than a half:
        then the fit is stuck in a poor local minimum.
      x0: TT to start from, of the ranks asked (not with ``adapt``).
      key: of the random start and the samples held out; a fixed draw if None.
      callback: called after every iteration with its number, the error and the held-out error; ends
        the work if it returns True.

    Returns:
      (TT in the dtype of the values, `CompleteInfo`). The iterate with the least held-out error.

    Raises:
      ValueError: samples that do not match, indices out of range, none left to fit, NaN or Inf, an
        unknown method. TypeError: indices that are no integers, values that are no floats.

    Example:
      >>> import jax, numpy as np
      >>> from tensorjax import tt
      >>> x = tt.random(jax.random.key(0), (8, 9, 10), 2)
      >>> indices = np.random.default_rng(0).integers(0, (8, 9, 10), (500, 3))
      >>> found, info = tt.complete(indices, tt.evaluate(x, indices), x.shape, 2, tol=1e-5)
      >>> info.status, bool(tt.distance(found, x) < 1e-3 * tt.norm(x))
      ('reached', True)

    Source: L. Grasedyck, M. Kluge, S. Krämer, "Variants of alternating least squares tensor
    completion in the tensor train format", SIAM J. Sci. Comput. 37 (2015) ("als"); M. Steinlechner,
    "Riemannian optimization for high-dimensional tensor completion", SIAM J. Sci. Comput. 38 (2016)
    ("riemannian", with its linearised step, and the strategy of raising ranks). Ours: the ridge,
    which in the gauge of the current core is the norm of the whole train.
    """
    start = time.perf_counter()
    data = _Data(indices, values, shape, held_out, key)
    _check.choice("method", method, ("als", "riemannian"))
    _check.integer("max_iterations", max_iterations, low=1)
    _check.integer("restarts", restarts, low=1)
    for name, value in (("tol", tol), ("stop", stop), ("ridge", ridge)):
        _check.number(name, value, low=0)
    if callback is not None:
        _check.function("callback", callback)
    if _check.flag("adapt", adapt) and (x0 is not None or not len(data.unseen.values)):
        raise ValueError(
            "adapt: expected samples held out to choose ranks by, and no x0; give held_out=, or "
            "adapt=False"
        )
    ranks = feasible_ranks(rank, data.shape)
    work = _Work(data, method, ridge, tol, stop, callback)
    best, status = None, ""
    for _ in range(restarts if x0 is None else 1):
        if adapt:
            now, why = work.grow(ranks, max_iterations)
        else:
            now, why = work.fit(data.start(x0, ranks), max_iterations)
        if best is None or now.judged < best.judged:
            best, status = now, why
        if best.judged <= _STUCK or why == "stopped":
            break
    assert best is not None
    cores = cast_in_range(_times(best.cores, data.scale), data.dtype)
    found = TT._unchecked(tuple(jax.device_put(cores)))
    history = tuple(work.history)
    seconds = time.perf_counter() - start
    return found, CompleteInfo(
        status,
        best.error,
        best.unseen,
        found.ranks,
        len(history),
        history,
        seconds,
        _advice(status, best, method),
    )


def _advice(status: str, fit: "_Fit", method: Method) -> str:
    """Returns advice after a tensor completion, by its errors on fitted and held-out samples."""
    if status in _ADVICE:
        return _ADVICE[status]
    if status == "overfit" or fit.unseen > _APART * fit.error:
        ridge = "raise ridge, " if method == "als" else ""
        return f"lower the ranks, or let adapt=True choose them; {ridge}or give more samples"
    other = "als" if method == "riemannian" else "riemannian"
    seen = "the samples fitted" if np.isnan(fit.unseen) else "samples fitted and held out alike"
    return (
        f"{seen} are missed: raise the ranks, or, where the fit is a poor local minimum, start "
        f"from another key or a good x0, or use method={other!r}"
    )


class _Data:
    """Samples of a tensor completion, normalised, and split into fitted and held-out ones."""

    def __init__(self, indices: Any, values: Any, shape: Any, held_out: float, key: Any):
        self.shape = _check.shape("shape", shape)
        where = np.asarray(_check.indices(indices, self.shape)) % np.asarray(self.shape)
        given = np.asarray(_check.inexact("values", values))
        if where.ndim != 2 or given.shape != where.shape[:1]:
            raise ValueError(
                f"values: expected one for each row of indices {where.shape}, got {given.shape}"
            )
        _check.finite("values", given)
        _check.number("held_out", held_out, low=0, high=1)
        self.dtype = given.dtype
        given = given.astype(np.result_type(linalg.factor_dtype(self.dtype), np.float64))
        self.rng = np.random.default_rng(_check.seed(key))
        fit, rest, self.distinct = _split(where, held_out, self.rng)
        if not len(fit):
            raise ValueError("values: expected at least one sample to fit, got none")
        # The squares of the values themselves may be out of range.
        top = float(np.abs(given[fit]).max()) or 1.0
        given = given / top
        own = float(np.sqrt(np.mean(np.abs(given[fit]) ** 2))) or 1.0
        self.scale, given = top * own, given / own
        self.fitted = als.samples(where[fit], given[fit], self.shape)
        self.unseen = als.samples(where[rest], given[rest], self.shape)

    def start(self, x0: TT | None, ranks: Sequence[int]) -> Cores:
        """Returns the initial cores of a tensor completion: scaled ones of x0, or random ones."""
        if x0 is None:
            return self.random(ranks)
        single("x0", x0, TT)
        if x0.shape != self.shape or x0.ranks[1:-1] != tuple(ranks):
            raise ValueError(
                f"x0: expected shape {self.shape} and TT-ranks {tuple(ranks)}, "
                f"got {x0.shape} and {x0.ranks[1:-1]}"
            )
        _check.finite("x0", x0)
        cores = [np.asarray(c).astype(self.fitted.values.dtype) for c in x0.cores]
        return _times(cores, self.scale, divide=True)

    def random(self, ranks: Sequence[int]) -> Cores:
        full = (1, *ranks, 1)
        cores = []
        for k, n in enumerate(self.shape):
            c = self.rng.standard_normal((full[k], n, full[k + 1])) / full[k + 1] ** 0.5
            cores.append(c.astype(self.fitted.values.dtype))
        return cores


def _split(
    where: np.ndarray, held_out: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, int]:
    """Draws the samples of a completion to fit and to hold out, repeated entries on one side.

    Of an entry that is fitted as well, a held-out sample would not see overfitting.

    Returns:
      Places of the samples fitted, of those held out, and the number of distinct entries fitted.
    """
    # Equal for equal entries, and for others with a probability of 2^-64 or so.
    weights = np.random.default_rng(0).integers(2**63, size=where.shape[1], dtype=np.uint64)
    keys = (where.astype(np.uint64) * (2 * weights + 1)).sum(axis=1)
    entries, group = np.unique(keys, return_inverse=True)
    order = rng.permutation(len(entries))
    cut = int(held_out * len(entries))
    if len(entries) == len(where):
        return order[cut:], order[:cut], len(order) - cut
    out = np.isin(group, order[:cut])
    return np.flatnonzero(~out), np.flatnonzero(out), len(order) - cut


def _times(cores: Cores, factor: float, divide: bool = False) -> Cores:
    """Multiplies a completion's train by a number, shared by all cores: one might overflow.

    The norm, which grows with the number of entries, would sit in one core after a sweep.
    """
    mantissa, exponent = math.frexp(factor)
    first, *rest = cores
    if divide:
        mantissa, exponent = 1 / mantissa, -exponent
    return balanced([first * mantissa, *rest], exponent, fit=(0, 0))


def _freedom(cores: Cores) -> int:
    """Returns the dimension of the manifold of trains of given TT-ranks that a completion fits."""
    return sum(c.size for c in cores) - sum(c.shape[0] ** 2 for c in cores[1:])


class _Fit(NamedTuple):
    cores: Cores
    error: float
    unseen: float

    @property
    def judged(self) -> float:
        """Error by which tensor completions are compared: on held-out samples if there are any."""
        return self.error if np.isnan(self.unseen) else self.unseen


class _Work:
    """State of a running tensor completion: samples, options and history of errors."""

    def __init__(
        self, data: _Data, method: Method, ridge: float, tol: float, stop: float, callback: Any
    ):
        self.data, self.method, self.ridge = data, method, ridge
        self.tol, self.stop, self.callback = tol, stop, callback
        self.history: list[tuple[tuple[int, ...], float, float]] = []

    def fit(self, cores: Cores, most: int) -> tuple[_Fit, str]:
        """Completes a tensor at fixed TT-ranks; returns the best iterate and why it ended."""
        data = self.data
        if self.method == "als":
            iterates = als.sweeps(cores, data.fitted, self.ridge)
        else:
            iterates = riemannian.steps(cores, data.fitted)
        best, before, risen, slow = None, np.finfo(float).max, 0, 0
        for cores in itertools.islice(iterates, most):
            now = self.measured(cores)
            done = self.callback and self.callback(len(self.history), now.error, now.unseen)
            risen = 0 if best is None or now.judged <= best.judged else risen + 1
            best = now if risen == 0 else best
            assert best is not None
            if now.error <= self.tol:
                return best, "reached" if self.is_reached(best) else "overfit"
            if done:
                return best, "stopped"
            if risen == _PATIENCE:
                return best, "overfit" if now.unseen > _APART * now.error else "converged"
            slow = slow + 1 if before - now.error <= self.stop * before else 0
            if slow == _SLOW:
                return best, "converged"
            before = now.error
        assert best is not None
        return best, "max_iterations"

    def is_reached(self, fit: _Fit) -> bool:
        """Whether a tensor completion meets its tolerance, by fitted and held-out samples."""
        if np.isnan(fit.unseen) and _freedom(fit.cores) > self.data.distinct:
            return False  # whatever the samples are, some train of these ranks fits them
        return fit.error <= self.tol and not fit.unseen > _DENIED * self.tol

    def measured(self, cores: Cores) -> _Fit:
        errors = []
        for seen in (self.data.fitted, self.data.unseen):
            # Of samples that are all zero, in units of the values fitted, whose mean square is one.
            size = np.linalg.norm(seen.values) or max(len(seen.values), 1) ** 0.5
            difference = np.linalg.norm(als.entries(cores, seen) - seen.values)
            errors.append(float(difference / size) if len(seen.values) else float("nan"))
        self.history.append((tuple(c.shape[0] for c in cores[1:]), *errors))
        return _Fit(cores, *errors)

    def grow(self, caps: tuple[int, ...], most: int) -> tuple[_Fit, str]:
        """Completes a tensor at increasing TT-ranks, as long as the held-out error falls."""
        best, status = self.fit(self.data.random([1] * len(caps)), most)
        choices = [{bond} for bond in range(len(caps))] + [set(range(len(caps)))]
        refused, turn = 0, 0
        while refused < len(choices) and status not in ("reached", "stopped"):
            now = [c.shape[0] for c in best.cores[1:]]
            more = choices[turn % len(choices)]
            wanted = [r + max(1, r // 4) if k in more else r for k, r in enumerate(now)]
            wanted = feasible_ranks(wanted, self.data.shape, caps)
            turn, refused = turn + 1, refused + 1
            if list(wanted) != now:
                trial, why = self.fit(als.raised(best.cores, wanted, _SPARK, self.data.rng), _TRIAL)
                if trial.judged < (1 - _WORTH) * best.judged:
                    best, status, refused = trial, why, 0
                    if status not in ("reached", "stopped"):
                        # To the end: what is still falling would make any higher rank look better.
                        best, status = self.fit(best.cores, most)
        return best, status
