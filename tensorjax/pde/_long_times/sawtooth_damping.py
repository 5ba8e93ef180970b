"""Damping of the highest mode of Fourier axes without noise, which no derivative sees."""

import math
from typing import Any

import numpy as np

from tensorjax._cores import overlaps
from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._arguments import or_zero
from tensorjax.pde._discretization.grid import Box, random_points
from tensorjax.pde._long_times import linear_systems
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._problems.fokker_planck import FokkerPlanck
from tensorjax.pde._problems.ornstein_uhlenbeck import OrnsteinUhlenbeck

# Points at which noise is looked for, and its least share in what is largest.
_LOOKS, _QUIET = 200, 1e-12


def damped(operator: Cores, problem: Any, grid: Box, map: AffineMap, boxes: bool = True) -> Cores:
    """Damps the sawtooth modes of a PDE operator, on even Fourier axes without noise.

    The first derivative of the mode (−1)^j of an even number of points is zero at all of them.
    Where an axis has no second derivative either, the generator has zero as an eigenvalue twice,
    and its stationary density is not unique. A term −c s sᵀ/n along the axis makes it so; c is the
    root mean square of the rates of the operator. The sawtooth has no mass and the mean of a
    constant along it is zero: mass is conserved as before, and constants remain what they were.

    Args:
      operator: cores (r, n, n, s) of the equation for densities or for expectations.
      problem: its noise is looked at if it is one of the library's, else nothing is done.
      grid: of the operator.
      map: its coordinates, at rest.
      boxes: whether axes of a box, "fourier", are damped too, or those that are periodic alone.
    """
    kinds = ("fourier", "periodic") if boxes else ("periodic",)
    even = [k for k, a in enumerate(grid.axes) if a.kind in kinds and a.n % 2 == 0]
    if not even or not isinstance(problem, FokkerPlanck | OrnsteinUhlenbeck):
        return operator
    x, turn = np.asarray(map.inverse(random_points(grid, _LOOKS))), np.asarray(map.matrix)
    noise = turn @ diffusions(problem, x) @ turn.T
    size = np.abs(np.diagonal(noise, axis1=1, axis2=2)).max(0)
    quiet = [k for k in even if size[k] <= _QUIET * max(size.max(), 1e-300)]
    if not quiet:
        return operator
    flat = linear_systems.flat(operator)
    rate = overlaps.norm(flat) / math.sqrt(math.prod(grid.shape))
    terms, weights = [flat], [1.0]
    for k in quiet:
        term: Cores = [np.eye(n)[None, :, :, None] for n in grid.shape]
        sawtooth = (-1.0) ** np.arange(grid.shape[k]) / math.sqrt(grid.shape[k])
        term[k] = np.outer(sawtooth, sawtooth)[None, :, :, None]
        terms, weights = [*terms, linear_systems.flat(term)], [*weights, -rate]
    return linear_systems.square(linear_systems.summed(terms, weights))


def diffusions(problem: Any, x: np.ndarray) -> np.ndarray:
    """Evaluates the diffusion matrix of a backward Kolmogorov operator at points, (m, d, d)."""
    if isinstance(problem, FokkerPlanck):
        return problem.noise.values(x)
    d = problem.dim
    return np.broadcast_to(np.asarray(or_zero(problem.diffusion, d, d)), (len(x), d, d))
