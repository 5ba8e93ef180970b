"""Checks before the first time step: box, resolution, conservation of mass, half-lines."""

import dataclasses
from typing import Any

import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._observables.densities import shares
from tensorjax.pde._stepping.mass import mass_of, mass_of_term
from tensorjax.pde._stepping.right_side import Rates

# Share of its mass that the initial state may lose on the grid: well above the error of a loose
# tolerance, well below the loss in a box that is too small.
_LOST = 0.3
# Largest share of the mass that a conservative equation may change over a run, at its first rate.
_CHANGED = 1e-2


def check_inside(
    problem: Any, cores: Cores, map: AffineMap, edge_limit: float, resolution_limit: float
) -> None:
    """Raises ValueError if the initial state exceeds the box or the grid does not resolve it."""
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


def check_conserving(problem: Any, right: Any, cores: Cores, span: float) -> None:
    """Raises ValueError for conserve= if the equation changes ∫ u dx over a time ``span``."""
    affine = right.affine
    growth = 0.0
    if affine is not None:
        divergence = 0.0 if affine.matrix is None else float(np.trace(affine.matrix))
        growth = float(affine.constant or 0.0) - divergence
    weights = problem.box.weights
    mass = mass_of(cores, weights)
    linear = Rates(problem.box, dataclasses.replace(right, affine=None, source=None, reaction=None))
    rate = sum(mass_of_term(t, weights) for t in linear.terms(cores, 0.1)) + growth * mass
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


def check_at_rest(box: Box, map: AffineMap) -> None:
    """Raises ValueError, before an integration, if the map moves periodic or half-line axes."""
    if not (box.movable or map.still):
        raise ValueError(
            'map: expected the identity, for the box has axes ("periodic", "log", "laguerre") '
            "where coordinates stay at rest"
        )
