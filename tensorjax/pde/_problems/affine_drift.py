"""Affine drift and constant diffusion of PDE problems: coefficients in y, velocity, checks."""

from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax.pde._arguments import coefficient, floats
from tensorjax.pde._discretization.affine_operators import Coefficients
from tensorjax.pde._maps.affine_maps import AffineMap


def affine_part(map: AffineMap, matrix: Any, offset: Any, diffusion: Any) -> Coefficients:
    """Computes the operator −∇·((A x + b) u) + D:∇∇u in moving coordinates y, as `Coefficients`."""
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
    """Raises ValueError for a drift of a problem that is linear in a periodic coordinate."""
    if matrix is None or _check.is_traced(matrix):
        return
    for k, axis in enumerate(box.axes):
        if axis.kind == "periodic" and np.any(np.asarray(matrix)[:, k]):
            raise ValueError(
                f"matrix: expected zeros in column {k}, whose axis is periodic, for a drift linear "
                "in an angle jumps where a turn ends; take pde.Sin or another periodic term, or a "
                'kind of axis that is not "periodic"'
            )


def affine_velocity(x: np.ndarray, matrix: Any, offset: Any) -> np.ndarray:
    """Evaluates the affine drift A x + b at points (m, d); None stands for zero."""
    out = np.zeros_like(x) if matrix is None else x @ np.asarray(matrix).T
    return out if offset is None else out + np.asarray(offset)


def diffusion_matrix(name: str, value: Any, dim: int) -> Any:
    """Converts a diffusion to a matrix; ValueError unless symmetric positive semidefinite."""
    if value is None:
        return None
    if callable(value):
        raise ValueError(
            f"{name}: expected a number or a constant matrix ({dim}, {dim}), got a function; for "
            "one that depends on x see pde.FokkerPlanck and pde.AdvectionDiffusionReaction"
        )
    if isinstance(value, str):
        raise ValueError(
            f"{name}: expected a number or a constant matrix ({dim}, {dim}), got {value!r}"
        )
    if np.ndim(value) == 0:
        value = value * np.eye(dim)
    value = coefficient(name, value, (dim, dim))
    if _check.is_traced(value):
        return value
    low, high = np.linalg.eigvalsh((value + value.T) / 2)[[0, -1]]
    if not np.allclose(value, value.T, atol=1e-12 * np.abs(value).max()):
        raise ValueError(
            f"{name}: expected a symmetric matrix, got one that is not; D:∇∇u sees (D + Dᵀ)/2 only"
        )
    if low < -1e-12 * abs(high):
        raise ValueError(
            f"{name}: expected a symmetric positive semidefinite matrix, got eigenvalues from "
            f"{low:.2g} to {high:.2g}; negative diffusion has no solution forward in time"
        )
    return value
