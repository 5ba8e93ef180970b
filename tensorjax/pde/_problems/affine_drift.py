"""Affine drift and constant diffusion of PDE problems: coefficients in y, velocity, checks."""

from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax.pde._arguments import floats
from tensorjax.pde._discretization.affine_operators import Coefficients
from tensorjax.pde._maps.affine_maps import AffineMap


def affine_part(map: AffineMap, matrix: Any, offset: Any, diffusion: Any) -> Coefficients:
    """Computes the operator −∇·((A x + b) u) + D:∇∇u of a linear SDE in coordinates y."""
    zero = np.zeros((map.dim, map.dim))
    xp, (gamma, s, a, b, diff) = floats(
        map.matrix,
        map.shift,
        zero if matrix is None else matrix,
        zero[0] if offset is None else offset,
        zero if diffusion is None else diffusion,
    )
    m = -xp.linalg.solve(gamma.T, (gamma @ a).T).T
    shift = -m @ s - gamma @ b
    return Coefficients(
        None if matrix is None else m,
        shift,
        None if diffusion is None else gamma @ diff @ gamma.T,
        -xp.trace(a),
    )


def check_turns(box: Any, matrix: Any) -> None:
    """Raises ValueError if an affine drift depends linearly on a periodic coordinate."""
    if matrix is None or _check.is_traced(matrix):
        return
    for k, axis in enumerate(box.axes):
        if axis.kind == "periodic" and np.any(np.asarray(matrix)[:, k]):
            raise ValueError(
                f"matrix: expected zeros in column {k}, whose axis is periodic, for a drift linear "
                "in an angle jumps where a turn ends; take pde.Sin or another periodic term, or a "
                'kind of axis that is not "periodic"'
            )


def check_unbounded(box: Any) -> None:
    """Raises ValueError if nonlinear moving coordinates meet axes that must stay fixed."""
    if not box.movable:
        raise ValueError(
            "problem: expected a box of unbounded axes, which nonlinear coordinates move, got "
            "periodic ones, half-lines or walls; take pde.integrate"
        )


def affine_velocity(x: np.ndarray, matrix: Any, offset: Any) -> np.ndarray:
    """Evaluates the affine drift A x + b at points (m, d); None stands for zero."""
    out = np.zeros_like(x) if matrix is None else x @ np.asarray(matrix).T
    return out if offset is None else out + np.asarray(offset)
