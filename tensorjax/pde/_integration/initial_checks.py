"""Checks before the first time step: box, resolution, conservation of mass, half-lines."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.initial_states import (
    Function,
    Gaussian,
    Mixture,
    with_factors,
    wrapped,
)
from tensorjax.pde._generators.inputs_and_motion import moves_unbounded
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._observables.edge_and_resolution import shares
from tensorjax.pde._observables.values_and_moments import moments
from tensorjax.pde._problems.fokker_planck import FokkerPlanck
from tensorjax.pde._problems.ornstein_uhlenbeck import Liouville, OrnsteinUhlenbeck
from tensorjax.pde._problems.reactions import AdvectionDiffusionReaction
from tensorjax.pde._stepping.low_moments import mass_alone
from tensorjax.pde._stepping.mass import mass_of
from tensorjax.pde._stepping.right_side import Rates

# Share of its mass that the initial state may lose on the grid: well above the error of a loose
# tolerance, well below the loss in a box that is too small.
_LOST = 0.3
# Largest share of the mass that a conservative equation may change over a run, at its first rate.
_CHANGED = 1e-2
# Relative error of initial states whose moments are compared, as a share of what may be missed.
_EXACT = 1e-3
# The same of functions, which a cross approximates: fewer evaluations.
_NEARLY = 3e-2
# Points at which the diffusion is checked, and its least share in what is largest.
_LOOKS, _DEGENERATE = 200, 1e-12


def check_inside(
    problem: Any, cores: Cores, map: AffineMap, edge_limit: float, resolution_limit: float
) -> None:
    """Raises ValueError if a PDE's initial state exceeds the box or the grid is too coarse."""
    box = problem.box
    mass = mass_of(cores, box.weights) / abs(float(map.det))
    start = problem.start
    known = getattr(start, "mass", None)
    size = np.abs(getattr(start, "_masses", known)).sum() if known is not None else 0.0
    if known is not None and not abs(mass - known) <= _LOST * size:
        raise ValueError(
            f"start: expected an initial state that the box holds and its points resolve, got "
            f"{mass:.3g} of its mass {known:.3g} on the grid; take a larger or finer box, or a map "
            "that brings the state to its middle"
        )
    edge, rough = shares(TT._unchecked(tuple(cores)), box)
    if edge > edge_limit:
        raise ValueError(
            f"start: expected an initial state that vanishes at the edge of the box, got a share "
            f"{edge:.2g} of its norm there (edge_limit = {edge_limit:g}); take a larger "
            "box, or a map that brings the state to its middle"
        )
    if rough > resolution_limit:
        raise ValueError(
            f"start: expected an initial state that the points of the box resolve, got a share "
            f"{rough:.2g} of its norm in the highest third of the modes of an axis "
            f"(resolution_limit = {resolution_limit:g}); take more points, a smaller box, or a map "
            "that makes the state wider"
        )


def start_errors(problem: Any, map: AffineMap, allowed: float) -> np.ndarray | None:
    """Measures what the points of Chebyshev axes miss of an initial density's moments.

    Products with the polynomials there fold what the points do not hold into the lowest modes,
    where it stays: nothing at the end tells. On the other axes it comes into the highest modes,
    and diffuses; the mass and the moments of a sum over equidistant points are those of v.

    Args:
      problem: of the run.
      map: its coordinates at the beginning.
      allowed: largest error of a success; where all are, nothing is measured.

    Returns:
      Of every axis the largest error of mass, means and covariances, in units of the mass and the
      standard deviations, beside twice as many points there, (d,); None if it is not known.
    """
    axes, start = problem.box.axes, problem.start
    known = isinstance(start, Function)
    known |= isinstance(start, Gaussian | Mixture) and start.mass > 0
    known = known and is_density(problem)
    if not known or np.isinf(allowed) or all(a.kind != "chebyshev" for a in axes):
        return None

    def found(box: Box) -> tuple[Any, Any, Any]:
        if isinstance(start, Function):
            cores = start.cores(box, map, _NEARLY * min(allowed, 1.0))
        else:
            cores = wrapped(start, box, map, _EXACT * min(allowed, 1.0), is_rounded=False)
        return moments(TT._unchecked(tuple(with_factors(cores, box))), map, box)

    try:
        return _missed(found, problem.box)
    except ValueError:  # a function that is not finite, or of no low rank, between the points
        return None


def _missed(found: Callable[[Box], tuple[Any, Any, Any]], box: Box) -> np.ndarray | None:
    """Compares moments of an initial state with those on twice as many Chebyshev points."""
    axes = box.axes

    out = np.zeros(len(axes))
    mass, mean, covariance = found(box)
    for k, axis in enumerate(axes):
        if axis.kind != "chebyshev":
            continue
        finer = Box([*axes[:k], dataclasses.replace(axis, n=2 * axis.n), *axes[k + 1 :]])
        true = found(finer)
        with np.errstate(invalid="ignore"):
            width = np.sqrt(np.diag(true[2]))
        if not (true[0] > 0 and (width > 0).all()):
            return None
        of_means = np.abs(mean - true[1]) / width
        of_covariances = np.abs(covariance - true[2]) / np.outer(width, width)
        out[k] = max(abs(mass / true[0] - 1), of_means.max(), of_covariances.max())
    return out


def check_conserving(problem: Any, right: Any, cores: Cores, span: float) -> None:
    """Checks initially for conserve= that the PDE keeps ∫ u dx within a time ``span``."""
    affine = right.affine
    growth = 0.0
    if affine is not None:
        divergence = 0.0 if affine.matrix is None else float(np.trace(affine.matrix))
        growth = float(affine.constant or 0.0) - divergence
    mass = mass_of(cores, problem.box.weights)
    linear = Rates(problem.box, dataclasses.replace(right, affine=None, source=None, reaction=None))
    masses = mass_alone(problem.box)
    rate = sum(float(masses.of(t)[0]) for t in linear.terms(cores, 0.1)) + growth * mass
    why = ""
    if right.reaction is not None or right.source is not None:
        why = "a reaction or a source"
    elif not abs(rate) * span <= _CHANGED * abs(mass):
        why = f"one whose mass {mass:.3g} changes at the rate {rate:.2g}"
    if why:
        raise ValueError(
            "conserve: expected an equation that conserves the integral of u, such as "
            f"pde.FokkerPlanck, and one that is not zero, got {why}; take conserve=None"
        )


def conserves(problem: Any) -> bool:
    """Checks whether a PDE conserves the integral of u: a density without absorbing walls."""
    return is_density(problem) and not any("absorbing" in (a.walls or ()) for a in problem.box.axes)


def is_density(problem: Any) -> bool:
    """Checks whether the solution of a PDE is a probability density (Fokker–Planck, Liouville)."""
    return isinstance(problem, FokkerPlanck | OrnsteinUhlenbeck | Liouville)


def check_at_rest(box: Box, map: AffineMap) -> None:
    """Raises ValueError if the initial map changes periodic, half-line or walled coordinates."""
    if not moves_unbounded(box, map.matrix - np.eye(box.dim), map.shift):
        raise ValueError(
            'map: expected the identity on axes ("periodic", "log", "laguerre", or with walls) '
            f"where coordinates stay at rest, got the matrix {np.asarray(map.matrix).tolist()} and "
            f"the shift {np.asarray(map.shift).tolist()}; leave map out, or change other axes only"
        )


def check_walls(problem: Any, times: Sequence[float] = (0.0,)) -> None:
    """Checks initially that diffusion and drift have boundary conditions at the walls.

    The condition at a reflecting wall is that of a noise normal to it, and no flow is that of a
    reaction equation. Of traced coefficients nothing is known.

    Args:
      problem: with its box.
      times: at which coefficients are looked at that depend on time. Noise may vanish at some.
    """
    errors = jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError
    with contextlib.suppress(*errors):
        _check_walls(problem, times)


def _check_walls(problem: Any, times: Sequence[float]) -> None:
    """Checks initially that walls have boundary conditions for untraced coefficients of a PDE."""
    box = problem.box
    free = np.array([any(a.free) for a in box.axes])
    walled = np.array([a.walls is not None for a in box.axes])
    if not walled.any():
        return
    low, high = ([getattr(a, end) for a in box.axes] for end in ("low", "high"))
    x = np.random.default_rng(0).uniform(low, high, (_LOOKS, box.dim))
    known = [_diffusions(problem, x, t) for t in times]
    values = [np.asarray(found) for found in known if found is not None]
    if not values:
        return
    found = np.stack(values)
    size = np.diagonal(found, axis1=2, axis2=3).max(0)
    if not (size[:, walled] > _DEGENERATE * max(size.max(), 1e-300)).all():
        raise ValueError(
            "walls: expected noise along every axis with walls, got none in a part of the box: "
            "without it paths cross a wall on one side only, and the other has no condition; give "
            "that axis a little noise, or no walls"
        )
    across = found[:, :, free] * (~np.eye(box.dim, dtype=bool))[free]
    if np.abs(across).max(initial=0.0) > _DEGENERATE * size.max():
        raise ValueError(
            "walls: expected noise along axes with reflecting walls that is not correlated with "
            "that along others: paths would be reflected at an angle; take coordinates in which it "
            "is not correlated"
        )
    if isinstance(problem, AdvectionDiffusionReaction) and free.any():
        flows = np.zeros(box.dim, bool)
        if problem.velocity:
            for t in times:
                flows |= np.any(problem.velocity.values(x, t), axis=0)
        for part in (problem.matrix, problem.offset):
            if part is not None:
                flows |= np.any(np.asarray(part).reshape(box.dim, -1), axis=1)
        if flows[free].any():
            raise ValueError(
                "walls: expected no velocity along axes with reflecting walls, for it would carry "
                "u through them; take a pde.FokkerPlanck equation where u is a density"
            )


def _diffusions(problem: Any, x: np.ndarray, t: float) -> np.ndarray | None:
    """Evaluates a PDE's diffusion matrix (m, d, d) for the initial checks; None if not known."""
    if isinstance(problem, FokkerPlanck):
        return problem.noise.values(x, t)
    d = problem.dim
    if isinstance(problem, AdvectionDiffusionReaction):
        out = np.zeros((len(x), d, d))
        for term, tensor in problem._variable:
            out = out + term.values(x)[:, None, None] * np.asarray(tensor)
        constant = problem._constant
        return out if constant is None else out + np.asarray(constant)
    if not hasattr(problem, "diffusion"):
        return None
    constant = np.zeros((d, d)) if problem.diffusion is None else np.asarray(problem.diffusion)
    return np.broadcast_to(constant, (len(x), d, d))
