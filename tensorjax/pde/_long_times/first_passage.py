"""Mean first-passage times and committors: backward Kolmogorov equations at rest, by AMEn."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import _check
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax._typing import ArrayLike
from tensorjax.pde._arguments import hosted_cores, or_zero
from tensorjax.pde._discretization import variable_coefficients as multipliers
from tensorjax.pde._discretization.grid import Box, Wall, WalledAxis, random_points, walled
from tensorjax.pde._function_trains.cross_approximation import crossed
from tensorjax.pde._integration.solution import Result
from tensorjax.pde._long_times import linear_systems
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._problems.fokker_planck import FokkerPlanck
from tensorjax.pde._problems.ornstein_uhlenbeck import OrnsteinUhlenbeck
from tensorjax.pde._problems.problem import Problem

# The residual is this share of ``tol``: equations of Chebyshev grids amplify it.
_RESIDUAL = 1e-3
# Points at which the diffusion is checked, and its least share in what is largest.
_LOOKS, _DEGENERATE = 200, 1e-12
# Largest change of the solution by a quarter more points, over ``tol``, and at least.
_CHANGE, _LEAST = 10.0, 1e-4
# Random points of the domain at which the two are compared.
_PROBES = 1000
# Relative error of drifts of one sign.
_CROSS = 1e-10

Walls = Sequence[Wall | tuple[Wall, Wall]]


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
        rows, inside = linear_systems.interpolation_rows(self.domain, x)
        out = linear_systems.interpolated(hosted_cores(self.v), rows)
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
    """Computes the probability that paths reach the high end of an axis before its low end.

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
        return _solved(grid, backward(problem, grid), _drift_along(problem, grid, k), k, tol, cap)

    return _compared(solution, domain, tol)


def grid_of(problem: Any, domain: Box, walls: Any) -> Box:
    """Adds absorbing, reflecting or open walls to the domain of a first-passage problem.

    Without walls that are given by name, here or to the axis, noise is expected along all that have
    absorbing ones.
    """
    named = np.array([walls is not None or a.walls is not None for a in domain.axes])
    if not named.any():
        return walled(domain, walls)
    return walled(domain, walls, (named & ~_noisy(problem, domain).any(0)).tolist())


def _noisy(problem: Any, domain: Box) -> np.ndarray:
    """Tells for random points of a domain along which axes a diffusion process has noise."""
    size = np.diagonal(diffusions(problem, random_points(domain, _LOOKS)), axis1=1, axis2=2)
    return size > _DEGENERATE * max(size.max(), 1e-300)


def finer(domain: Box) -> Box:
    """Returns the domain of a first-passage problem with a quarter more grid points an axis."""
    return Box(tuple(dataclasses.replace(a, n=a.n + a.n // 4 + 2) for a in domain.axes))


def probes(domain: Box) -> np.ndarray:
    """Draws random points of a domain at which two first-passage solutions are compared."""
    return random_points(domain, _PROBES, seed=1)


def _solved(
    grid: Box, operator: Cores, load: Cores, target: int | None, tol: float, cap: int | None
) -> Passage:
    guess = [np.ones((1, n, 1)) for n in grid.shape]
    aim = max(_RESIDUAL * tol, 1e-12)
    quiet = any(getattr(a, "noiseless", False) for a in grid.axes)
    cores, residual = linear_systems.solved(operator, load, guess, aim, cap, direct=quiet)
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
    # Without noise solutions jump where the drift turns at a wall: there no points are enough.
    quiet = any(getattr(a, "noiseless", False) for a in fine.domain.axes)
    of = _mean_square if quiet else np.max
    error = float(of(np.abs(after - before)) / size)
    limit = max(_CHANGE * tol, _LEAST)
    # Neither times nor probabilities are negative.
    if error > limit or of(np.maximum(-after, 0)) > limit * size:
        message = (
            f"with a quarter more points the solution changes by {error:.2g} of its largest value, "
            f"and its least value is {after.min():.2g}: take more points, or a smaller domain"
        )
        return dataclasses.replace(fine, result=Result.unresolved, message=message, error=error)
    return dataclasses.replace(fine, error=error)


def _mean_square(x: np.ndarray) -> float:
    """Computes the root mean square of an array."""
    return float(np.sqrt(np.square(x).mean()))


def checked_domain(problem: Any, domain: Any, walls: Any, *, arrives: bool = True) -> Box:
    """Checks problem, box and walls of a first-passage problem; returns the grid.

    ``arrives``: whether paths are to meet a wall, so that one has to be absorbing.
    """
    if not isinstance(problem, FokkerPlanck | OrnsteinUhlenbeck):
        raise ValueError(
            "problem: expected a pde.FokkerPlanck or pde.OrnsteinUhlenbeck, got "
            f"{type(problem).__name__}"
        )
    if getattr(problem, "timed", False):
        raise ValueError(
            "problem: expected a drift and a diffusion that do not depend on time, got a timed "
            "one; pde.integrate takes those"
        )
    if not isinstance(domain, Box) or domain.dim != problem.dim:
        raise ValueError(f"domain: expected a pde.Box of {problem.dim} axes, got {domain!r}")
    if isinstance(problem, FokkerPlanck) and problem.noise.share and problem.noise.variable:
        raise ValueError(
            "problem: expected the Itô equation, got another interpretation of noise that varies: "
            "give its drift in the sense of Itô"
        )
    grid = grid_of(problem, domain, walls)
    wet = [
        a.kind == "chebyshev" and "absorbing" in a.walls
        for a in grid.axes if isinstance(a, WalledAxis)
    ]  # fmt: skip
    _check_open(problem, grid)
    if not any(wet) and not arrives:
        return grid
    if not any(wet):
        raise ValueError("walls: expected an absorbing one, got none: paths never arrive")
    quiet = [a.noiseless and a.walls == ("absorbing",) * 2 for a in grid.axes]  # type: ignore
    if not _noisy(problem, grid)[:, np.array(wet) & ~np.array(quiet)].all():
        raise ValueError(
            "walls: expected noise along every axis with an absorbing wall, got none in a part of "
            "the domain: without it paths arrive on one side of the wall only, and the other has "
            "no condition; give that axis a little noise, or another wall; or, where there is none "
            'in all of the domain, walls="absorbing" by name at both its ends'
        )
    return grid


def _check_open(problem: Any, grid: Box) -> None:
    """Raises ValueError if a diffusion process can cross a wall marked "open"."""
    for k, axis in enumerate(grid.axes):
        assert isinstance(axis, WalledAxis)
        for end, inwards, wall in zip((axis.low, axis.high), (1, -1), axis.walls, strict=True):
            if wall != "open" or axis.kind == "fourier":
                continue
            x = random_points(grid, _LOOKS)
            whole = diffusions(problem, x)[:, k, k].max()
            x[:, k] = end
            outwards = problem.velocity(x)[:, k] * inwards < 0
            if (diffusions(problem, x)[:, k, k] > 1e-10 * whole).any() or outwards.any():
                raise ValueError(
                    f"walls: expected noise and drift that carry no path over the open wall of "
                    f"axis {k} at {end:g}, got others; take a reflecting or an absorbing one"
                )


def diffusions(problem: Any, x: np.ndarray) -> np.ndarray:
    """Evaluates the diffusion matrix of a stochastic process at points, (m, d, d)."""
    if isinstance(problem, FokkerPlanck):
        return problem.noise.values(x)
    d = problem.dim
    return np.broadcast_to(np.asarray(or_zero(problem.diffusion, d, d)), (len(x), d, d))


def _drift(problem: Any, grid: Box) -> list[tuple[Cores, np.ndarray]]:
    """Decomposes a process's drift as Σ m(x) a into pairs (tensor train m, vector a)."""
    d, out = grid.dim, []
    matrix, offset = map(np.asarray, (or_zero(problem.matrix, d, d), or_zero(problem.offset, d)))
    for i in range(d):
        if np.any(matrix[i]) or offset[i]:
            out.append((multipliers.power(grid, matrix[i], offset[i], 1), np.eye(d)[i]))
    if isinstance(problem, FokkerPlanck):
        out += problem.field.pieces(grid, AffineMap.identity(d))
    return out


def _diffusion(problem: Any, grid: Box) -> list[tuple[Cores, np.ndarray]]:
    """Decomposes a process's diffusion as Σ m(x) S into pairs (tensor train m, matrix S)."""
    one = [np.ones((1, n, 1)) for n in grid.shape]
    if not isinstance(problem, FokkerPlanck):
        return [] if problem.diffusion is None else [(one, np.asarray(problem.diffusion))]
    constant, out = problem.noise.constant, []
    if constant is not None:
        out.append((one, np.asarray(constant)))
    if problem.noise.variable:
        out += problem.noise.pieces(grid, AffineMap.identity(grid.dim), 0.0)
    return out


def backward(problem: Any, grid: Box) -> Cores:
    """Builds the TT-cores of the backward Kolmogorov operator v ↦ a·∇v + D:∇∇v on a grid."""
    quiet = np.array([getattr(a, "noiseless", False) for a in grid.axes])
    drift = [(m, np.where(quiet, 0, a)) for m, a in _drift(problem, grid)]
    terms = [multipliers.advection(grid, a, m) for m, a in drift if np.any(a)]
    terms += [t for k in np.flatnonzero(quiet) for t in _upwind(problem, grid, int(k))]
    for m, tensor in _diffusion(problem, grid):
        for i, j in zip(*np.nonzero(np.triu(tensor)), strict=True):
            terms.append(multipliers.bent(grid, (int(i), int(j)), float(tensor[i, j]), m))
    return linear_systems.merged([hosted_cores(t) for t in terms])


def _upwind(problem: Any, grid: Box, k: int) -> list[Any]:
    """Builds a_k ∂_k along an axis without noise, upwind by the sign of the drift a_k."""
    axis, out = grid.axes[k], []
    assert isinstance(axis, WalledAxis)
    for sign, derivative in zip((1, -1), axis.upwind, strict=True):

        def part(x: Any, sign: int = sign) -> np.ndarray:
            return sign * np.maximum(sign * problem.velocity(np.asarray(x))[:, k], 0)

        cores = _of_one(part, grid) or crossed("drift", part, grid.points, _CROSS)
        if any(np.any(c) for c in cores[:1]):
            out.append(multipliers.carried(cores, {k: derivative}))
    return out


def _of_one(function: Callable[[Any], np.ndarray], grid: Box) -> Cores | None:
    """Builds the exact TT-cores of a function that depends on one coordinate; else None."""
    x = probes(grid)
    for k, axis in enumerate(grid.axes):
        middle = np.array([(a.low + a.high) / 2 for a in grid.axes])
        there = np.tile(middle, (len(x), 1))
        there[:, k] = x[:, k]
        if np.array_equal(function(x), function(there)):
            points = np.tile(middle, (axis.n, 1))
            points[:, k] = axis.points
            out = [np.ones((1, n, 1)) for n in grid.shape]
            out[k] = function(points)[None, :, None]
            return out
    return None


def _drift_along(problem: Any, grid: Box, axis: int) -> Cores:
    """Builds the committor equation's right-hand side −a·∇ℓ, ℓ linear along an axis."""
    parts, weights = [], []
    for m, a in _drift(problem, grid):
        if a[axis]:
            parts.append(m)
            weights.append(-a[axis] / grid.axes[axis].length)
    if not parts:
        return [np.zeros((1, n, 1)) for n in grid.shape]
    return linear_systems.summed(parts, weights)
