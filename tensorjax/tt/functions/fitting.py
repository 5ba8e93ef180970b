"""Functional trains from samples at scattered points, by alternating least squares."""

import dataclasses
import itertools
import math
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from tensorjax import _blas_threads, _check
from tensorjax._cores.contractions import times_mode
from tensorjax._cores.products import combined
from tensorjax._cores.ranks import feasible_ranks
from tensorjax._cores.scaling import balanced
from tensorjax._cores.truncation_sweeps import svd_round
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax._typing import ArrayLike, Key, Rank
from tensorjax.tt._completion.als import raised
from tensorjax.tt.functions.bases import Basis
from tensorjax.tt.functions.chebyshev import checked_domain
from tensorjax.tt.functions.degree_choice import of_degree
from tensorjax.tt.functions.function_train import FunctionTrain
from tensorjax.tt.functions.least_squares import (
    first_order,
    smooth_coordinates,
    sweeps,
    values_at,
)

FitStatus = Literal["reached", "converged", "max_rank", "few"]
_ADVICE: dict[str, str] = {
    "reached": "",
    "converged": "",
    "max_rank": "the held-out error was still falling with the rank: raise rank=",
    "few": "the samples do not determine f: the fit is hardly better than their mean, or they are "
    "fewer than the coefficients of a sum of functions of one variable; give more samples, or "
    "smaller bases",
}
# Degrees that are tried for variables given by an interval.
_DEGREES = (3, 6, 12)
_RIDGES = tuple(10.0**e for e in range(-9, 3))
# Of these, ALS starts with every third.
_APART = 3
# Largest rank tried if none is given.
_MOST = 12
# A trial is kept if it lowers the held-out error by at least this share.
_WORTH = 0.003
# Sweeps of a trial; sweeps in a row that may raise the held-out error.
_TRIAL, _PATIENCE = 5, 3
# Up to so many samples, every one is held out once; of more, one part of them. Of so few, products
# gain nothing by several threads.
_FEW_SAMPLES = 2000
# Size of the random entries that pad cores, relative to the largest entry.
_SPARK = 1e-2
# Relative errors to which ranks are lowered as a trial.
_LOWER = (0.3, 0.1, 0.03, 0.01)
# Held-out errors above this one are those of a mean.
_MEAN = 0.95


@dataclasses.dataclass(frozen=True)
class FitInfo:
    """Report of a functional-train fit: status, fitted and held-out errors, ranks, ridge.

    Errors are root mean squares of the difference over those of the values about their mean: 1 is
    that of a constant, and 1 − error² the coefficient of determination.

    Attributes:
      status: "reached" (the held-out error is at most ``tol``), "converged" (higher ranks and other
        ridges lowered it no more), "max_rank" (it was still falling), or "few" (samples: the
        fit is not to be relied on).
      error: on the samples that were fitted.
      held_out_error: on those held out. Ranks, degrees and the ridge were chosen by it, so it is a
        little too small.
      first_order_error: of the best sum of functions of one variable, on the held-out samples.
      bases: one a variable.
      ranks: TT-ranks of the result.
      ridge: weight of the smoothness norm.
      sweeps: of all trials, over all cores there and back.
      history: (largest rank, ridge, held-out error) of every trial that was kept.
      seconds: taken.
      advice: what to do next, in words; empty if all is well.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> x = np.random.default_rng(0).random((300, 3))
      >>> f, info = tt.functions.fit(x, np.sin(x[:, 0] * x[:, 1]) + x[:, 2], [(0, 1)] * 3)
      >>> info.held_out_error < info.first_order_error, info.held_out_error < 0.01
      (True, True)

    Source: ours.
    """

    status: FitStatus
    error: float
    held_out_error: float
    first_order_error: float
    bases: tuple[Basis, ...]
    ranks: tuple[int, ...]
    ridge: float
    sweeps: int
    history: tuple[tuple[int, float, float], ...]
    seconds: float
    advice: str


def fit(
    points: ArrayLike,
    values: ArrayLike,
    domain: Sequence[Any],
    *,
    rank: Rank | None = None,
    tol: float = 0.0,
    ridge: float | None = None,
    held_out: float = 0.2,
    max_sweeps: int = 30,
    key: Key | None = None,
) -> tuple[FunctionTrain, FitInfo]:
    """Fits a functional train to samples at scattered points, noisy or not, by least squares.

    Alternating least squares (ALS) from the best sum of functions of one variable (the first order
    of an ANOVA). Held-out samples choose the ranks, the ridge, degrees that are not given, and when
    to stop; the result is fitted to all samples in the same steps.

    Args:
      points: real (N, d), in the domain.
      values: (N,), real or complex.
      domain: for each variable a basis, or a pair (low, high), for Chebyshev polynomials whose
        degree is chosen.
      rank: largest TT-ranks of the result; 12 if None.
      tol: held-out error at which to stop, relative to the deviation of the values.
      ridge: weight of the squared norm of f and its first mixed derivatives beside the mean square
        of the residual, values over their deviation; chosen if None.
      held_out: share of the samples that is held out, in (0, 1/2]. Up to 2000 samples, one part
        after the other (cross-validation).
      max_sweeps: over all cores, for each rank.
      key: `jax.random.key` of the choice of samples; of seed 0 if None.

    Returns:
      The `FunctionTrain`, and a `FitInfo` with status and errors.

    Raises:
      ValueError: shapes that do not fit, NaN or Inf, points outside of the domain, fewer than two
        samples to fit or none held out.
      TypeError: values or points that are no numbers.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> x = np.random.default_rng(0).random((400, 4))
      >>> y = np.exp(-x[:, 0] - x[:, 1]) * (1 + x[:, 2])   # does not depend on the last variable
      >>> f, info = tt.functions.fit(x, y, [(0, 1)] * 4, tol=1e-3)
      >>> info.status, bool(abs(f([0.5, 0.5, 1.0, 0.2]) - 2 * np.exp(-1)) < 0.01)
      ('reached', True)

    Source: A. Gorodetsky, J. Jakeman, "Gradient-based optimization for regression in the functional
    tensor-train format", J. Comput. Phys. 374 (2018); M. Eigel, R. Schneider, P. Trunschke,
    S. Wolf, "Variational Monte Carlo: bridging concepts of machine learning and high-dimensional
    partial differential equations", Adv. Comput. Math. 45 (2019), the regularised ALS. Ours: the
    start, the smoothness norm, and that everything is chosen by held-out samples.
    """
    start = time.perf_counter()
    bases, free = checked_domain(domain)
    data = _Data(points, values, bases, held_out, key)
    for name, value in (("tol", tol), ("ridge", 0.0 if ridge is None else ridge)):
        _check.number(name, value, low=0)
    _check.integer("max_sweeps", max_sweeps, low=1)
    works = []
    with _blas_threads.one_thread(len(data.y) <= _FEW_SAMPLES):
        for degree in _DEGREES if free else (0,):
            tried = [of_degree(b, degree) if k in free else b for k, b in enumerate(bases)]
            ranks = feasible_ranks(_MOST if rank is None else rank, [b.size for b in tried])
            works.append(_Work(data, tried, ranks, tol, ridge, max_sweeps))
            works[-1].start()
        best = min(works, key=lambda w: w.best.unseen)
        best.grow()
        best.cap()
    return best.result(time.perf_counter() - start)


class _Data:
    """Normalised samples for a functional-train fit, split into fitted and held-out ones."""

    def __init__(self, points: Any, values: Any, bases: list[Basis], share: float, key: Any):
        x, y = _check.points("points", points), np.asarray(_check.inexact("values", values))
        if x.ndim != 2 or x.shape[1] != len(bases) or y.shape != x.shape[:1]:
            raise ValueError(
                f"points, values: expected shapes (N, {len(bases)}) and (N,), "
                f"got {x.shape} and {y.shape}"
            )
        _check.finite("points", x)
        _check.finite("values", y)
        for k, b in enumerate(bases):
            outside = (x[:, k] < b.low) | (x[:, k] > b.high)
            if outside.any():
                raise ValueError(
                    f"points: expected variable {k} in [{b.low:g}, {b.high:g}], "
                    f"got {x[outside.argmax(), k]}"
                )
        if not 0 < _check.number("held_out", share, low=0) <= 0.5:
            raise ValueError(f"held_out: expected a share in (0, 1/2], got {share!r}")
        if len(y) < 4:
            raise ValueError(f"values: expected four or more samples, got {len(y)}")
        self.rng = np.random.default_rng(_check.seed(key))
        order = self.rng.permutation(len(y))
        self.dtype = y.dtype
        wide = y.astype(np.result_type(y.dtype, np.float64))
        self.mean = wide.mean()
        self.scale = float(np.sqrt(np.mean(np.abs(wide - self.mean) ** 2))) or 1.0
        self.x = x
        self.y = (wide - self.mean) / self.scale
        parts = np.array_split(order, max(2, min(round(1 / share), len(y))))
        self.held = parts if len(y) <= _FEW_SAMPLES else parts[:1]
        everything = np.arange(len(y))
        self.fitted = [np.setdiff1d(everything, part) for part in self.held]
        # Last, the fit to all samples: the result.
        self.fitted.append(everything)


class _Fit(NamedTuple):
    """Functional trains fitted to samples: one without each held-out part, and one with all.

    Attributes:
      replicas: cores of every fit, of the same ranks; that to all samples is the last one.
      unseen: error on the held-out parts, each by the fit that left it out.
    """

    replicas: list[Cores]
    ridge: float
    unseen: float

    @property
    def ranks(self) -> list[int]:
        """TT-ranks of the fitted functional trains, bond by bond."""
        return [c.shape[0] for c in self.replicas[-1][1:]]


class _Work:
    """State of a running fit of a functional train: bases, starts, best fit, history."""

    def __init__(
        self, data: _Data, bases: list[Basis], ranks: tuple[int, ...], tol: float,
        ridge: float | None, most: int,
    ):  # fmt: skip
        self.data, self.bases, self.ranks, self.tol, self.most = data, bases, ranks, tol, most
        self.fixed_ridge = ridge
        self.maps = [smooth_coordinates(b) for b in bases]
        self.rows = [b.values(x) @ m for b, x, m in zip(bases, data.x.T, self.maps, strict=True)]
        self.samples = [([r[some] for r in self.rows], data.y[some]) for some in data.fitted]
        self.sweeps, self.history, self.rising = 0, [], False
        self.mean = data.mean  # which is not in the fits
        ridges = _RIDGES if ridge is None else (ridge,)
        starts = zip(*[self.first_order(*s, ridges) for s in self.samples], strict=True)
        self.starts = [_Fit(list(c), r, self.error(c)) for c, r in zip(starts, ridges, strict=True)]
        self.best = min(self.starts, key=lambda f: f.unseen)
        self.first = self.best.unseen
        self.keep(self.best)

    def first_order(self, rows: Any, values: np.ndarray, ridges: Sequence[float]) -> list[Cores]:
        """Fits sums of one-variable functions to samples, one per ridge, as functional trains."""
        found = first_order(rows, values, ridges)
        if len(self.bases) == 1:
            return found
        return [balanced(*svd_round(c, self.ranks, None)) for c in found]

    def error(self, replicas: Sequence[Cores]) -> float:
        """Computes the error of functional-train fits on the held-out samples."""
        residuals = [
            values_at(cores, [r[part] for r in self.rows]) - self.data.y[part]
            for cores, part in zip(replicas, self.data.held, strict=False)
        ]
        return _rms(np.concatenate(residuals))

    def keep(self, found: _Fit) -> None:
        """Stores a functional-train fit as the best one, and records its held-out error."""
        self.best = found
        self.history.append((max([1, *found.ranks]), found.ridge, found.unseen))

    def start(self) -> None:
        """Runs a few sweeps of a functional-train fit from each start, a sum of functions."""
        if len(self.bases) > 1:
            for start in self.starts[::_APART]:
                self.improved(start.replicas, start.ridge, _TRIAL)

    def grow(self) -> None:
        """Raises the TT-ranks of a functional-train fit, while its held-out error falls."""
        if len(self.bases) == 1:
            return
        self.improved(self.best.replicas, self.best.ridge, self.most)
        self.tune()
        refused = 0
        while refused < 2 and self.best.unseen > self.tol:
            now = self.best.ranks
            more = [r + max(1, r // 4) + refused for r in now]
            wanted = feasible_ranks(more, tuple(b.size for b in self.bases), self.ranks)
            if list(wanted) == now:
                self.rising = refused == 0 and len(self.history) > 1
                break
            found = self.best.replicas
            wider = [raised(cores, wanted, _SPARK, self.data.rng) for cores in found]
            if self.improved(wider, self.best.ridge, _TRIAL):
                self.improved(self.best.replicas, self.best.ridge, self.most)
                self.tune()
                refused = 0
            else:
                refused += 1
        for part in _LOWER:
            if self.improved(self.lowered(part), self.best.ridge, _TRIAL):
                self.tune()

    def tune(self) -> None:
        """Tries larger and smaller regularisation (ridge) for the best functional-train fit."""
        for factor in (0.1, 10.0):
            while self.fixed_ridge is None and self.best.unseen > self.tol:
                if not self.improved(self.best.replicas, self.best.ridge * factor, _TRIAL):
                    break

    def cap(self) -> None:
        """Adds the mean to functional-train fits whose ranks it would raise above those asked for.

        The mean is one more term: either the fits give one up for it, or they are rounded with it.
        Sweeps that fit the values themselves follow.
        """
        found, data = self.best, self.data
        if all(r < most for r, most in zip(found.ranks, self.ranks, strict=True)):
            return
        mean = self.mean / data.scale
        self.shift(mean)
        starts = [[_rounded(_plus(c, mean), self.ranks) for c in found.replicas]]
        if self.error(starts[0]) > (1 + _WORTH) * found.unseen and min(self.ranks) > 1:
            self.shift(-mean)
            fewer = [min(r, most - 1) for r, most in zip(found.ranks, self.ranks, strict=True)]
            lower = self.refitted([_rounded(c, fewer) for c in found.replicas], found).replicas
            self.shift(mean)
            starts.append([_plus(c, mean) for c in lower])
        self.mean = 0 * self.mean
        best = min((self.refitted(start, found) for start in starts), key=lambda f: f.unseen)
        self.rising = self.rising or best.unseen > (1 + _WORTH) * found.unseen
        self.history = [trial for trial in self.history if trial[2] > best.unseen]
        self.keep(best)

    def shift(self, mean: Any) -> None:
        """Adds a constant to the values that functional trains are fitted to."""
        self.data.y = self.data.y + mean
        self.samples = [(rows, y + mean) for rows, y in self.samples]

    def refitted(self, replicas: list[Cores], before: _Fit) -> _Fit:
        """Fits functional trains anew from others, if they are worse than those before."""
        self.best = _Fit(replicas, before.ridge, self.error(replicas))
        if self.best.unseen > (1 + _WORTH) * before.unseen:
            self.improved(replicas, before.ridge, self.most)
            self.tune()
        return self.best

    def improved(self, replicas: Sequence[Cores], ridge: float, most: int) -> bool:
        """Runs sweeps of functional-train fits while the held-out error falls; tells if it fell."""
        best, risen, least = self.best, 0, math.inf
        runs = [sweeps(c, *s, ridge) for c, s in zip(replicas, self.samples, strict=True)]
        for now in itertools.islice(zip(*runs, strict=True), most):
            self.sweeps += 1
            error = self.error(now)
            risen = 0 if error < (1 - _WORTH) * least else risen + 1
            least = min(least, error)
            if error < best.unseen:
                best = _Fit(list(now), ridge, error)
            if risen == _PATIENCE or best.unseen <= self.tol:
                break
        better = best.unseen < (1 - _WORTH) * self.best.unseen
        if better:
            self.keep(best)
        return better

    def lowered(self, part: float) -> list[Cores]:
        """Rounds all functional-train fits to the TT-ranks of the fit to all samples."""
        *others, last = self.best.replicas
        last = balanced(*svd_round(last, None, part**2))
        ranks = [c.shape[0] for c in last[1:]]
        return [*(balanced(*svd_round(c, ranks, None)) for c in others), last]

    def result(self, seconds: float) -> tuple[FunctionTrain, FitInfo]:
        """Returns the functional train that fits the samples best, and the report of the fit."""
        data, best = self.data, self.best
        cores = best.replicas[-1]
        error = _rms(values_at(cores, self.rows) - data.y)
        cores = [times_mode(c, m) for c, m in zip(cores, self.maps, strict=True)]
        cores[0] = cores[0] * data.scale
        train = TT._unchecked(tuple(jax.device_put([c.astype(data.dtype) for c in cores])))
        f = FunctionTrain._unchecked(tuple(self.bases), train)
        f = f + self.mean.item() if self.mean else f
        unknown = 1 + sum(b.size - 1 for b in self.bases)
        status: FitStatus = "converged"
        if best.unseen <= self.tol:
            status = "reached"
        elif best.unseen > _MEAN or len(data.y) < unknown:
            status = "few"
        elif self.rising:
            status = "max_rank"
        return f, FitInfo(
            status, error, best.unseen, self.first, f.bases, f.ranks, best.ridge, self.sweeps,
            tuple(self.history), seconds, _ADVICE[status],
        )  # fmt: skip


def _rounded(cores: Cores, ranks: Sequence[int]) -> Cores:
    """Rounds a functional-train fit to TT-ranks."""
    return balanced(*svd_round(cores, tuple(ranks), None))


def _plus(cores: Cores, constant: Any) -> Cores:
    """Adds a constant to a functional-train fit, in coordinates of which the first is constant."""
    term = [np.eye(1, c.shape[1]).reshape(1, -1, 1) for c in cores]
    return combined([cores, term], [1, constant])


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.abs(x) ** 2)))
