"""Linear systems of PDEs in tensor-train format, by AMEn or, for small ones, by elimination."""

import math
import numbers
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import linalg
from scipy.sparse import linalg as krylov

from tensorjax import _check
from tensorjax._cores import products, rounding
from tensorjax._cores.contractions import einsum, times_right
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TTMatrix
from tensorjax.pde._stepping.runge_kutta_adams_imex import solved_by_amen

# Error of the guess that AMEn begins with.
_GUESS = 1e-2
# AMEn: directions added to a bond, sweeps.
_ENRICHMENT, _SWEEPS = 6, 40
# Unknowns of a system that is factored for all its right sides at once, within about a second, and
# of one that is factored where AMEn stalls, in about ten seconds of processor time.
_DENSE, _LARGE = 3000, 6400
# Steps of GMRES with the factors of a system that differs by a matrix of rank one: two are enough
# but for roundoff.
_KRYLOV = 8
# An operator is a sum of many terms, rounded to this relative error before it is solved with.
_EXACT = 1e-13
# By how much longer than the last sweep the next one is taken to last, at most.
_GROWTH = 4.0


class OutOfTimeError(Exception):
    """Error raised if a TT linear solve would take more processor time than allowed."""

    def __init__(self, ranks: tuple[int, ...]):
        super().__init__(f"ranks {ranks}")
        self.ranks = ranks


class Timer:
    """Limit of the processor time of all linear solves by AMEn for one stationary problem.

    Ranks grow from sweep to sweep: the next one is taken to last longer than the last one by as
    much as that did than the one before, fourfold at most.

    Args:
      seconds: at most.
    """

    def __init__(self, seconds: float):
        self._end = time.process_time() + seconds
        self.begin()

    def begin(self) -> None:
        """Notes the start time of a linear solve."""
        self._seen, self._took = time.process_time(), math.inf

    def __call__(self, sweep: int, residual: float, ranks: tuple[int, ...]) -> None:
        """Raises `OutOfTimeError` in a linear solve if its next AMEn sweep would end too late."""
        now = time.process_time()
        took = now - self._seen
        growth = min(max(took / max(self._took, 1e-9), 1.0), _GROWTH)
        if now + growth * took > self._end:
            raise OutOfTimeError(ranks)
        self._seen, self._took = now, took


def checked_seconds(seconds: float) -> Timer:
    """Starts the processor timer of linear solves; ValueError unless the time is positive."""
    number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if not (number and seconds > 0):
        raise ValueError(f"max_seconds: expected a positive number, or Inf, got {seconds!r}")
    return Timer(float(seconds))


def checked_options(tol: float, max_rank: int | None) -> tuple[float, int | None]:
    """Checks the tolerance and the rank cap of a PDE's linear system in TT format."""
    cap = None if max_rank is None else _check.integer("max_rank", max_rank, low=1)
    return _check.tolerance(tol, np.float64), cap


def flat(cores: Cores) -> Cores:
    """Merges row and column modes of a PDE operator's TT-matrix, which gives a train."""
    return [c.reshape(len(c), -1, c.shape[-1]) for c in cores]


def square(cores: Cores) -> Cores:
    """Splits the merged row and column modes of a PDE operator's TT-matrix; inverse of `flat`."""
    return [c.reshape(len(c), n, n, -1) for c in cores for n in [math.isqrt(c.shape[1])]]


def summed(terms: list[Cores], weights: list[float]) -> Cores:
    """Adds weighted trains of a linear system (right sides, flattened operators), rounded."""
    return rounding.rounded(products.combined(terms, weights), _EXACT)


def merged(operators: list[Cores]) -> Cores:
    """Adds the TT-matrices of a PDE operator to that of a linear system, rounded to roundoff."""
    return square(summed([flat(o) for o in operators], [1.0] * len(operators)))


class Elimination:
    """Factors of a PDE's linear system of one or two modes, for systems that are nearly the same.

    The first system that is solved is factored. Later ones may differ in their border, of rank
    one: GMRES with the factors of the first solves them in two or three steps.
    """

    def __init__(self) -> None:
        self._factors: Any = None

    def takes(self, operator: Cores) -> bool:
        """Tells whether a PDE's linear system is small enough to be factored where AMEn stalls."""
        return _small([c.shape[1] for c in operator], _LARGE)

    def ready(self) -> bool:
        """Tells whether a PDE's linear system has been factored, so that the next is cheap."""
        return self._factors is not None

    def __call__(self, operator: Cores, load: Cores, tol: float) -> tuple[Cores, float]:
        """Solves a PDE's linear system by elimination; returns the train and its residual."""
        right, matrix = outer(load).ravel(), _dense(operator)
        again = self.ready()
        if not again:
            self._factors = linalg.lu_factor(matrix)
        x = linalg.lu_solve(self._factors, right)
        if again:
            make: Any = krylov.LinearOperator
            inverse = make(
                matrix.shape, lambda r: linalg.lu_solve(self._factors, r), dtype=matrix.dtype
            )
            x, _ = krylov.gmres(
                matrix, right, x, rtol=tol / 10, restart=_KRYLOV, maxiter=2, M=inverse
            )
        residual = float(np.linalg.norm(matrix @ x - right) / np.linalg.norm(right))
        return _train(x, [c.shape[1] for c in operator], tol / 10), residual


def solved(
    operator: Cores,
    load: Cores,
    guess: Cores,
    tol: float,
    cap: int | None = None,
    direct: bool = False,
    timer: Timer | None = None,
    elimination: Elimination | None = None,
) -> tuple[Cores, float]:
    """Solves a PDE's linear system A x = b by AMEn, or by dense elimination if it is small.

    Args:
      operator: cores (r, n, n, s).
      load: right side.
      guess: of the solution.
      tol: relative residual.
      cap: largest rank.
      direct: whether a small system is solved by elimination in any case: where ranks are full
        AMEn takes longer.
      timer: limits the time that AMEn takes; None for no limit.
      elimination: of systems that were solved before and are nearly the same: where AMEn has
        stalled on one of them it is not tried again. None for a system of its own.

    Raises:
      OutOfTimeError: it would take longer.
    """
    if direct and cap is None and _small([c.shape[1] for c in operator], 2 * _DENSE):
        return Elimination()(operator, load, tol)
    elimination = Elimination() if elimination is None else elimination
    if cap is None and elimination.ready():
        return elimination(operator, load, tol)
    system = TTMatrix._unchecked(tuple(operator))
    found, residual = guess, math.inf
    # From a guess of high rank AMEn adds few directions and may stall; from a poor one, too.
    report = (lambda *_: None) if timer is None else timer
    for first in (rounding.rounded(guess, _GUESS), guess):
        if timer is not None:
            timer.begin()
        x, size = solved_by_amen(
            system, load, first, tol, cap=cap, enrichment=_ENRICHMENT, sweeps=_SWEEPS,
            report=report,
        )  # fmt: skip
        if size < residual:
            found, residual = x, size
        if residual <= tol:
            return found, residual
        if cap is None and elimination.takes(operator):
            return elimination(operator, load, tol)
    return found, residual


def factored(operator: Cores) -> Callable[[Cores, float], Cores] | None:
    """Factors the dense matrix of a PDE's small linear system, of one or two tensor modes.

    Returns a function of a right side and a tolerance, to which the solution is rounded; None if
    the operator is large.
    """
    n = [c.shape[1] for c in operator]
    if not _small(n):
        return None
    factors = linalg.lu_factor(_dense(operator))

    def solve(load: Cores, tol: float) -> Cores:
        return _train(linalg.lu_solve(factors, outer(load).ravel()), n, tol)

    return solve


def _small(sizes: list[int], most: int = _DENSE) -> bool:
    return len(sizes) <= 2 and math.prod(sizes) <= most


def _dense(operator: Cores) -> np.ndarray:
    """Converts the TT-matrix of a PDE's linear system of one or two modes to a dense matrix."""
    matrix = operator[0][0, :, :, 0]
    if len(operator) == 2:
        matrix = einsum("ijb,bkl->ikjl", operator[0][0], operator[1][..., 0])
    size = math.prod(c.shape[1] for c in operator)
    return matrix.reshape(size, size)


def _train(x: np.ndarray, sizes: list[int], tol: float) -> Cores:
    """Converts the dense solution of a PDE's linear system of one or two modes to a train."""
    if len(sizes) == 1:
        return [x[None, :, None]]
    cores = [x.reshape(1, *sizes), np.eye(sizes[1])[:, :, None]]
    return rounding.rounded(cores, tol)


def outer(cores: Cores) -> np.ndarray:
    """Expands the right side of a PDE's linear system of one or two modes to a dense array."""
    if len(cores) == 1:
        return cores[0][0, :, 0]
    return times_right(cores[0], cores[1][..., 0])[0]
