"""Values of a solution at points, its mass and moments, in physical coordinates.

u(x) = v(Γ x + s), with v the interpolant of its values on the grid, and zero outside the box.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax._cores.contractions import einsum, weighted_sum
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import PROGRAM
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike, JaxOrHost
from tensorjax.pde._arguments import floats
from tensorjax.pde._discretization.collocation_matrices import moment_weights
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._maps.affine_maps import AffineMap

# Distance of points from the domain that is roundoff of its ends.
_ROUNDOFF = 8 * float(np.finfo(np.float64).eps)

# Largest number of entries held at once while points are evaluated.
_CHUNK = 1 << 22


@placed
def evaluate(v: TT, map: AffineMap, box: Box, x: ArrayLike) -> JaxOrHost:
    """Computes values of a PDE solution u(x) = v(Γ x + s) at points; zero outside the box.

    Args:
      v: train of values on the grid of the box.
      map: `AffineMap` y = Γ x + s.
      box: of the coordinates y.
      x: points (m, d).

    Returns:
      (m,), a NumPy array, or one of JAX if anything is traced.

    Raises:
      ValueError: shapes that do not match, NaN or Inf.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> box, map = pde.Box.fourier(2), pde.affine([[1.0, 0.5], [0.0, 1.0]])
      >>> start = pde.Gaussian(np.zeros(2), np.eye(2), amplitude=1.0)
      >>> v = pde.Liouville(np.eye(2), start, box).initial(map, 1e-5)
      >>> x = np.array([[0.3, -0.4], [30.0, 0.0]])
      >>> print(np.round(pde.evaluate(v, map, box, x), 4))
      [0.8825 0.    ]

    Source: L. N. Trefethen, "Spectral Methods in MATLAB" (SIAM, 2000), for the interpolants.
    """
    _, cores, map = given(v, map, box)
    points: Any = x if _check.is_traced(x) else _check.points("x", x)
    if points.ndim != 2 or points.shape[1] != box.dim:
        raise ValueError(f"x: expected points of shape (m, {box.dim}), got {points.shape}")
    y = map.forward(points)
    if choose_kernel("pde.evaluate", (y, cores)) is PROGRAM:
        return _contracted(cores, [a.interpolate(y[:, k]) for k, a in enumerate(box.axes)])
    return by_parts(cores, y, [a.interpolate for a in box.axes], float)


@placed
def mass(v: TT, map: AffineMap, box: Box) -> JaxOrHost:
    """Computes the moment of order zero of a PDE solution, its mass ∫ u dx = ∫ v dy / |det Γ|.

    Args:
      v: train of values on the grid of the box.
      map: `AffineMap` y = Γ x + s.
      box: of the coordinates y.

    Returns:
      A scalar of NumPy, or of JAX if anything is traced.

    Raises:
      ValueError: shapes that do not match, NaN or Inf.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> box, map = pde.Box.fourier(2), pde.affine([[2.0, 0.5], [0.0, 1.0]])
      >>> v = pde.Gaussian(np.zeros(2), 0.5 * np.eye(2)).train(box, map, 1e-5)
      >>> round(float(pde.mass(v, map, box)), 5)
      1.0

    Source: ours; the quadrature is that of the grid, see `Axis`.
    """
    xp, cores, map = given(v, map, box)
    return functools.reduce(xp.matmul, _weighted(xp, cores, box, 0))[0, 0] / xp.abs(map.det)


@placed
def moments(v: TT, map: AffineMap, box: Box) -> tuple[Any, Any, Any]:
    """Computes moments of a density in physical coordinates: mass, mean (d,), covariance (d, d).

    One sweep through the train for each axis: O(d² r²) operations after O(d n r²).

    Args:
      v: train of values on the grid of the box.
      map: `AffineMap` y = Γ x + s.
      box: of the coordinates y.

    Returns:
      (mass, mean (d,), covariance (d, d)), of NumPy, or of JAX if anything is traced.

    Raises:
      ValueError: the mass is zero, shapes do not match, NaN or Inf.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> box, start = pde.Box.fourier(2), pde.Gaussian(np.array([0.5, 0.0]), np.eye(2))
      >>> map = start.whitening()
      >>> _, mean, covariance = pde.moments(start.train(box, map, 1e-5), map, box)
      >>> bool(np.allclose(mean, [0.5, 0.0], atol=1e-5))
      True

    Source: ours.
    """
    xp, cores, map = given(v, map, box)
    zero, one, two = (_weighted(xp, cores, box, power) for power in range(3))
    d = box.dim
    left, right = [xp.ones((1, 1), cores[0].dtype)], [xp.ones((1, 1), cores[0].dtype)]
    for k in range(d):
        left.append(left[-1] @ zero[k])
        right.append(zero[d - 1 - k] @ right[-1])
    right = right[::-1]
    total = left[d][0, 0]
    if not _check.is_traced(total) and total == 0:
        raise ValueError("v: expected a density, got a function of mass zero")
    first = xp.stack([(left[k] @ one[k] @ right[k + 1])[0, 0] for k in range(d)]) / total
    rows = []
    for k in range(d):
        row = [xp.zeros_like(total)] * k + [(left[k] @ two[k] @ right[k + 1])[0, 0]]
        part = left[k] @ one[k]
        for j in range(k + 1, d):
            row.append((part @ one[j] @ right[j + 1])[0, 0])
            part = part @ zero[j]
        rows.append(xp.stack(row))
    second = xp.stack(rows) / total
    second = xp.triu(second) + xp.triu(second, 1).T - first[:, None] * first[None]
    back = xp.linalg.inv(map.matrix)
    return total / xp.abs(map.det), back @ (first - map.shift), back @ second @ back.T


def given(v: TT, map: AffineMap, box: Box) -> tuple[Any, list[Any], AffineMap]:
    """Checks train v, map and box of a solution, before its values or moments are computed."""
    single("v", v, TT, host=False)
    if not isinstance(box, Box):
        raise TypeError(f"box: expected a Box, got {_check.short(box)}")
    if not isinstance(map, AffineMap):
        raise TypeError(f"map: expected an AffineMap, got {_check.short(map)}")
    if v.shape != box.shape:
        raise ValueError(f"v: expected shape {box.shape}, that of the box, got {v.shape}")
    if map.dim != box.dim:
        raise ValueError(f"map: expected {box.dim} coordinates, got {map.dim}")
    xp, (matrix, shift, *cores) = floats(*map, *v.cores)
    _check.finite("v", cores)
    return xp, cores, AffineMap(matrix, shift)


def _contracted(cores: list[Any], rows: list[Any]) -> JaxOrHost:
    """Computes the values of a train at m points from rows (m, n_k) of interpolation weights."""
    state = None
    for core, row in zip(cores, rows, strict=True):
        part = einsum("mn,anb->mab", row, core)
        state = part[:, 0] if state is None else einsum("ma,mab->mb", state, part)
    assert state is not None
    return state[:, 0]


def by_parts(
    cores: list[Any], points: np.ndarray, rows_of: list[Callable[[Any], Any]], dtype: Any
) -> np.ndarray:
    """Computes the values of a train at m points in chunks, from rows of interpolation weights."""
    # The memory that a part takes is bounded: one row, and one matrix between bonds, per point.
    step = max(1, _CHUNK // max(max(c.shape[1], c.shape[0] * c.shape[2]) for c in cores))
    out = np.empty(len(points), dtype)
    for i in range(0, len(points), step):
        columns = points[i : i + step].T
        rows = [f(y) for f, y in zip(rows_of, columns, strict=True)]
        out[i : i + step] = _contracted(cores, rows)
    return out


def _weighted(xp: Any, cores: list[Any], box: Box, power: int) -> list[Any]:
    """Computes Σ_j w_j y_j^power G_k[:, j, :] of all TT-cores on a grid, for moments."""
    out = []
    for core, axis in zip(cores, box.axes, strict=True):
        w = xp.asarray(moment_weights(axis, power)).astype(core.dtype)
        out.append(weighted_sum(core, w))
    return out


def interpolation_rows(domain: Box, x: ArrayLike) -> tuple[list[Any], np.ndarray]:
    """Computes matrices (m, n_k) that interpolate values at points x; tells which are inside.

    An end that was computed may lie beside that of the axis by roundoff: 8 eps of its larger end or
    length. Points so near outside have the values of the end.

    Raises:
      ValueError: points of another dimension.
    """
    points = np.asarray(x, np.float64)
    if points.ndim != 2 or points.shape[1] != domain.dim:
        raise ValueError(f"x: expected points of shape (m, {domain.dim}), got {points.shape}")
    rows, inside = [], np.ones(len(points), bool)
    for y, axis in zip(points.T, domain.axes, strict=True):
        if axis.kind == "fourier":
            y = axis.low + np.mod(y - axis.low, axis.length)
        end = _ROUNDOFF * max(abs(axis.low), abs(axis.high), axis.length)
        inside &= (y >= axis.low - end) & (y <= axis.high + end)
        rows.append(axis.interpolate(np.clip(y, axis.low, axis.high)))
    return rows, inside


def interpolated(cores: Cores, rows: list[Any]) -> np.ndarray:
    """Computes the values of a train at points, (m,), from interpolation matrices of its axes."""
    state = np.ones((len(rows[0]), 1))
    for row, core in zip(rows, cores, strict=True):
        state = einsum("ma,mn,anb->mb", state, row, core)
    return state[:, 0]
