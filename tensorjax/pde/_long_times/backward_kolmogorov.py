"""Backward Kolmogorov operators on walled domains: checks, drift, diffusion, TT-matrix."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._arguments import hosted_cores, or_zero
from tensorjax.pde._discretization import variable_coefficients as multipliers
from tensorjax.pde._discretization.grid import Box, random_points
from tensorjax.pde._discretization.walls import Wall, WalledAxis, walled
from tensorjax.pde._function_trains.cross_approximation import crossed
from tensorjax.pde._long_times import linear_systems
from tensorjax.pde._long_times.sawtooth_damping import damped, diffusions
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._problems.fokker_planck import FokkerPlanck
from tensorjax.pde._problems.ornstein_uhlenbeck import OrnsteinUhlenbeck

# Points at which the diffusion is checked, and its least share in what is largest.
_LOOKS, _DEGENERATE = 200, 1e-12
# Random points of the domain at which solutions on two grids are compared.
_PROBES = 1000
# Relative error of drifts of one sign.
_CROSS = 1e-10

Walls = Sequence[Wall | tuple[Wall, Wall]]


def grid_of(problem: Any, domain: Box, walls: Any) -> Box:
    """Adds absorbing, reflecting or open walls to the domain of a backward Kolmogorov equation.

    Without walls that are given by name, here or to the axis, noise is expected along all that have
    absorbing ones.
    """
    named = np.array([walls is not None or a.walls is not None for a in domain.axes])
    if not named.any():
        return walled(domain, walls)
    return walled(domain, walls, (named & ~_noisy(problem, domain).any(0)).tolist())


def _noisy(problem: Any, domain: Box) -> np.ndarray:
    """Tells for random points along which axes a backward Kolmogorov operator has noise."""
    size = np.diagonal(diffusions(problem, random_points(domain, _LOOKS)), axis1=1, axis2=2)
    return size > _DEGENERATE * max(size.max(), 1e-300)


def finer(domain: Box) -> Box:
    """Returns the domain of a backward Kolmogorov equation with a quarter more points an axis."""
    return Box(tuple(dataclasses.replace(a, n=a.n + a.n // 4 + 2) for a in domain.axes))


def probes(domain: Box) -> np.ndarray:
    """Draws random points at which two solutions of a backward Kolmogorov equation are compared."""
    return random_points(domain, _PROBES, seed=1)


def jumps(grid: Box) -> bool:
    """Tells whether backward Kolmogorov solutions may jump: at walls reached without noise.

    They jump where the drift turns at such a wall; there no points are enough.
    """
    return any(getattr(a, "noiseless", False) for a in grid.axes)


def largest_of(grid: Box, x: np.ndarray) -> float:
    """Measures differences x (…, m) of two backward Kolmogorov solutions at points: the largest.

    Where solutions jump it is the root mean square over the points, the largest of all times.
    """
    return float((np.sqrt(np.square(x).mean(-1)) if jumps(grid) else np.abs(x)).max())


def checked_domain(problem: Any, domain: Any, walls: Any, *, arrives: bool = True) -> Box:
    """Checks problem, box and walls of a backward Kolmogorov equation; returns the grid.

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
    """Raises ValueError if paths of a backward Kolmogorov equation cross a wall marked "open"."""
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


def _drift(problem: Any, grid: Box) -> list[tuple[Cores, np.ndarray]]:
    """Decomposes a backward Kolmogorov operator's drift as pairs (tensor train m, vector a)."""
    d, out = grid.dim, []
    matrix, offset = map(np.asarray, (or_zero(problem.matrix, d, d), or_zero(problem.offset, d)))
    for i in range(d):
        if np.any(matrix[i]) or offset[i]:
            out.append((multipliers.power(grid, matrix[i], offset[i], 1), np.eye(d)[i]))
    if isinstance(problem, FokkerPlanck):
        out += problem.field.pieces(grid, AffineMap.identity(d))
    return out


def _diffusion(problem: Any, grid: Box) -> list[tuple[Cores, np.ndarray]]:
    """Decomposes a backward Kolmogorov operator's diffusion as pairs (train m, matrix S)."""
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
    operator = linear_systems.merged([hosted_cores(t) for t in terms])
    return damped(operator, problem, grid, AffineMap.identity(grid.dim))


def _upwind(problem: Any, grid: Box, k: int) -> list[Any]:
    """Builds a backward Kolmogorov operator's a_k ∂_k on an axis without noise, upwind."""
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
    """Builds the TT-cores of a backward Kolmogorov drift of one coordinate, or None."""
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


def drift_along(problem: Any, grid: Box, axis: int) -> Cores:
    """Builds −a·∇ℓ, ℓ linear along an axis: load of a committor's backward Kolmogorov equation."""
    parts, weights = [], []
    for m, a in _drift(problem, grid):
        if a[axis]:
            parts.append(m)
            weights.append(-a[axis] / grid.axes[axis].length)
    if not parts:
        return [np.zeros((1, n, 1)) for n in grid.shape]
    return linear_systems.summed(parts, weights)
