"""Mean first-passage times and committors: backward Kolmogorov equations at rest, by AMEn."""

import dataclasses
import math
from collections.abc import Callable

import jax
import numpy as np

from tensorjax import _check
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax._typing import ArrayLike
from tensorjax.pde._arguments import hosted_cores
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._discretization.walls import WalledAxis
from tensorjax.pde._integration.solution import Result
from tensorjax.pde._long_times import linear_systems
from tensorjax.pde._long_times.backward_kolmogorov import (
    Walls,
    backward,
    checked_domain,
    drift_along,
    finer,
    grid_of,
    jumps,
    largest_of,
    probes,
)
from tensorjax.pde._observables import values_and_moments
from tensorjax.pde._problems.problem import Problem

# The residual is this share of ``tol``: equations of Chebyshev grids amplify it.
_RESIDUAL = 1e-3
# Largest change of the solution by a quarter more points, over ``tol``, and at least.
_CHANGE, _LEAST = 10.0, 1e-4


@dataclasses.dataclass(frozen=True)
class Passage:
    """Mean first-passage time or committor as a function of the starting point, with a status.

    Attributes:
      v: train of values on the grid of ``domain``, at its inner points; of a committor less the
        function that is linear between its walls.
      domain: `Box` with the walls in it, and a quarter more points an axis than were asked for.
      target: of a committor the axis between the two walls, else None.
      result: `Result.successful`; `Result.unresolved` where the points are too coarse;
        `Result.max_rank`; `Result.solver` where the linear system is not solved to ``tol``.
      message: explanation of a failure, with advice; else empty.
      residual: of the linear system, relative.
      error: change from the solution on the points that were asked for to this one, over the
        largest value: an estimate of the error of the former, the largest at 1000 points of the
        domain; their mean square, rooted, where paths are carried over walls without noise, for
        there the function jumps. NaN where one was not found.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian([0.0], [[0.1]])
      >>> motion = pde.FokkerPlanck(None, 0.5, start, pde.Box.fourier(1))
      >>> found = pde.first_passage(motion, pde.Box([pde.Axis("chebyshev", 16, -1.0, 2.0)]))
      >>> found.result.value, found.message, found.v.order
      ('successful', '', 1)
      >>> print(np.round(found([[0.0], [5.0]]), 6))  # the second start is outside
      [ 2. nan]
    """

    v: TT
    domain: Box
    target: int | None
    result: Result
    message: str
    residual: float
    error: float

    def __call__(self, x: ArrayLike) -> np.ndarray:
        """Evaluates the mean first-passage time or committor at starting points x, (m, d).

        Args:
          x: points (m, d).

        Returns:
          Values (m,); NaN outside the domain, by more than roundoff: 8 eps of its larger end or
          length. Points so near outside have the values of the end.

        Raises:
          ValueError: points of another dimension.
        """
        rows, inside = values_and_moments.interpolation_rows(self.domain, x)
        out = values_and_moments.interpolated(hosted_cores(self.v), rows)
        if self.target is not None:
            axis = self.domain.axes[self.target]
            out = out + (np.asarray(x, np.float64)[:, self.target] - axis.low) / axis.length
        return np.where(inside, out, np.nan)


def first_passage(
    problem: Problem,
    domain: Box,
    *,
    walls: Walls | None = None,
    tol: float = 1e-6,
    max_rank: int | None = None,
) -> Passage:
    """Computes the mean time until paths first hit an absorbing wall, for every starting point.

    Solves the backward Kolmogorov equation a·∇τ + D:∇∇τ = −1 with τ = 0 at absorbing and zero slope
    at reflecting walls, by collocation on Chebyshev points, and AMEn.

    Args:
      problem: `FokkerPlanck` or `OrnsteinUhlenbeck`, of drift and diffusion that do not depend on
        time; its start and box do not matter.
      domain: `Box` of "chebyshev" axes, whose ends are walls, and "periodic" ones.
      walls: for each axis "absorbing", "reflecting" or "open", or a pair, for its low and high end;
        those of the axes if None, or absorbing where an axis has none. Axes without a wall in truth
        have reflecting ones far out. "open": no condition, where noise ends and the drift points
        inwards (zero, of noise √x). Along an axis without noise (the position of a Kramers
        particle) both ends are "absorbing", by name: paths arrive with the drift, and τ = 0 where
        it points outwards. τ is not smooth where it turns at a wall, and errors fall algebraically
        with the number of points.
      tol: relative error of the linear system. That of the grid comes on top: it is measured, by a
        second solution on a quarter more points, which is the one that is returned.
      max_rank: of τ.

    Returns:
      `Passage`: a function of points (m, d), with a status.

    Raises:
      ValueError: another problem or domain, no absorbing wall, noise that does not reach one.

    Example:
      Brownian motion in (−1, 2): τ = (x + 1)(2 − x)/2D.

      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian([0.0], [[0.1]])
      >>> motion = pde.FokkerPlanck(None, 0.5, start, pde.Box.fourier(1))
      >>> domain = pde.Box([pde.Axis("chebyshev", 16, -1.0, 2.0)])
      >>> time = pde.first_passage(motion, domain)
      >>> print(np.round(time([[0.0], [1.0]]), 6))
      [2. 2.]

    Source: C. Gardiner, "Stochastic Methods" (Springer, 2009), section 6.6.
    """
    tol, cap = linear_systems.checked_options(tol, max_rank)
    checked_domain(problem, domain, walls)

    def solution(box: Box) -> Passage:
        grid = grid_of(problem, box, walls)
        load = [np.ones((1, n, 1)) for n in grid.shape]
        return _solved(grid, backward(problem, grid), [-load[0], *load[1:]], None, tol, cap)

    return _compared(solution, domain, tol)


def committor(
    problem: Problem,
    domain: Box,
    axis: int = 0,
    *,
    walls: Walls | None = None,
    tol: float = 1e-6,
    max_rank: int | None = None,
) -> Passage:
    """Computes the committor: the probability of first passage at an axis's high end, not its low.

    Solves a·∇q + D:∇∇q = 0 with q = 0 at the low end of the axis and 1 at the high end; the other
    axes have reflecting walls, or are periodic.

    Args:
      problem: as in `first_passage`.
      domain: `Box` of "chebyshev" and "periodic" axes.
      axis: whose ends are the two absorbing walls.
      walls: as in `first_passage`; if None all but those of the axis reflect.
      tol: relative error of the linear system; that of the grid is measured, as there.
      max_rank: of q.

    Returns:
      `Passage`: a function of points (m, d), with a status.

    Raises:
      ValueError: another problem or domain, walls that do not allow it, noise that does not reach
        them.

    Example:
      Brownian motion with drift: q = (1 − exp(−v x/D))/(1 − exp(−v/D)) in (0, 1).

      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian([0.5], [[0.1]])
      >>> motion = pde.FokkerPlanck(None, 0.5, start, pde.Box.fourier(1), offset=[1.0])
      >>> domain = pde.Box([pde.Axis("chebyshev", 24, 0.0, 1.0)])
      >>> q = pde.committor(motion, domain)
      >>> bool(abs(q([[0.5]])[0] - (1 - np.exp(-1)) / (1 - np.exp(-2))) < 1e-8)
      True

    Source: W. E, E. Vanden-Eijnden, "Towards a theory of transition paths", J. Stat. Phys. 123
    (2006).
    """
    tol, cap = linear_systems.checked_options(tol, max_rank)
    k = _check.integer("axis", axis, low=0, high=domain.dim - 1)
    if walls is None:
        walls = ["absorbing" if i == k else "reflecting" for i in range(domain.dim)]
    grid = checked_domain(problem, domain, walls)
    for i, a in enumerate(grid.axes):
        assert isinstance(a, WalledAxis)
        kind = "absorbing" if i == k else "reflecting"
        fits = a.kind == "fourier" if i != k else False
        if not (fits or (a.kind == "chebyshev" and set(a.walls) == {kind})):
            raise ValueError(
                "walls: expected absorbing walls at both ends of the axis of a committor, and "
                "reflecting ones or none at the others: where they meet others it would jump"
            )

    def solution(box: Box) -> Passage:
        grid = grid_of(problem, box, walls)
        return _solved(grid, backward(problem, grid), drift_along(problem, grid, k), k, tol, cap)

    return _compared(solution, domain, tol)


def _solved(
    grid: Box, operator: Cores, load: Cores, target: int | None, tol: float, cap: int | None
) -> Passage:
    guess = [np.ones((1, n, 1)) for n in grid.shape]
    aim = max(_RESIDUAL * tol, 1e-12)
    cores, residual = linear_systems.solved(operator, load, guess, aim, cap, direct=jumps(grid))
    v = TT._unchecked(tuple(jax.device_put(cores)))
    result, message = Result.successful, ""
    if not residual <= 30 * aim and cap is not None and max(len(c) for c in cores) >= cap:
        result, message = Result.max_rank, "the solution asks for ranks above max_rank: raise it"
    elif not residual <= max(30 * aim, tol / 10):
        result = Result.solver
        message = (
            f"the linear system is solved to {residual:.2g} only: take a larger tol, fewer points "
            "or a smaller domain"
        )
    return Passage(v, grid, target, result, message, residual, math.nan)


def _compared(solution: Callable[[Box], Passage], domain: Box, tol: float) -> Passage:
    """Solves a first-passage problem on two grids; their difference is the finer one's error.

    A residual says nothing of the error where times grow with the exponential of a barrier.
    """
    coarse = solution(domain)
    if coarse.result != Result.successful:
        return coarse
    fine = solution(finer(domain))
    if fine.result != Result.successful:
        return fine
    x = probes(domain)
    before, after = coarse(x), fine(x)
    size = np.abs(after).max()
    error = float(largest_of(fine.domain, after - before) / size)
    limit = max(_CHANGE * tol, _LEAST)
    # Neither times nor probabilities are negative.
    if error > limit or largest_of(fine.domain, np.maximum(-after, 0)) > limit * size:
        message = (
            f"with a quarter more points the solution changes by {error:.2g} of its largest value, "
            f"and its least value is {after.min():.2g}: take more points, or a smaller domain"
        )
        return dataclasses.replace(fine, result=Result.unresolved, message=message, error=error)
    return dataclasses.replace(fine, error=error)
