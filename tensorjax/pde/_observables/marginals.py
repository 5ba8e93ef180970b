"""Marginal densities of a solution, over one or two physical coordinates."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax._cores.contractions import absorb, times_right, weighted_sum
from tensorjax._formats.trains import TT
from tensorjax._typing import ArrayLike
from tensorjax.pde._arguments import check_concrete
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._observables.values_and_moments import by_parts, given, moments

# Width of the window of a marginal, in standard deviations, unless the box is narrower.
_WINDOW = 24.0


def marginal(
    v: TT, map: AffineMap, box: Box, axes: Sequence[int], *, points: ArrayLike | None = None
) -> tuple[list[np.ndarray], np.ndarray]:
    """Computes a marginal density: u integrated over all physical coordinates but one or two.

    From the characteristic function φ(ω) = ∫ exp(i ω·x) u dx, one contraction of the train for
    every ω, by a Fourier series in a window that holds the solution. φ is zero where a component of
    Γ⁻ᵀ ω is beyond π over the widest gap of the grid of y, πn/2L on Fourier points: sums over it
    would give other frequencies' values there.

    Args:
      v: train of values on the grid of the box; a density.
      map: `AffineMap` y = Γ x + s.
      box: of the coordinates y.
      axes: one or two physical coordinates, in order.
      points: for each of them an array of points or a number of equidistant ones, also one for
        both; 128 if None. These lie within 6 standard deviations of the mean.

    Returns:
      (the points (m,) of each axis, values (m,) or (m₁, m₂)). Points outside the window, of 24
      standard deviations or the whole image of the box, have the value zero.

    Raises:
      ValueError: other numbers of axes, no such axis, or a density without positive variances.
      TypeError: v or the map is traced.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> box, start = pde.Box.fourier(3), pde.Gaussian(np.zeros(3), np.diag([1.0, 0.5, 0.5]))
      >>> map = pde.AffineMap.identity(3)
      >>> v = start.train(box, map, 1e-5)
      >>> _, density = pde.marginal(v, map, box, axes=(0,), points=[np.array([0.0])])
      >>> bool(abs(density[0] - 1 / np.sqrt(2 * np.pi)) < 1e-5)
      True

    Source: ours.
    """
    _, cores, map = given(v, map, box)
    check_concrete("v, map", cores, map)
    if isinstance(axes, int | np.integer):
        raise ValueError(f"axes: expected one or two coordinates such as ({axes},), got {axes}")
    axes = tuple(_check.integer("axes", a, low=0, high=box.dim - 1) for a in axes)
    if len(axes) not in (1, 2) or len(set(axes)) != len(axes):
        raise ValueError(f"axes: expected one or two different coordinates, got {axes}")
    _, mean, covariance = moments(v, map, box)
    spread = np.diag(covariance)[list(axes)]
    if not (spread > 0).all():
        raise ValueError(f"v: expected a density of positive variances, got {spread}")
    center, width = _window(map, box, axes, mean, np.sqrt(spread))
    grids = _points(points, mean[list(axes)], np.sqrt(spread))
    bounded = tuple(a for a in axes if not box.axes[a].movable)
    if len(bounded) == len(axes) or (map.still and not box.movable):
        return grids, _at_rest(cores, box, axes, grids) / abs(float(map.det))
    if not box.movable:
        return grids, _beside(cores, box, map, axes, grids)
    return grids, _transformed(cores, box, map, axes, grids, center, width)


def _transformed(
    cores: list[Any],
    box: Box,
    map: AffineMap,
    axes: tuple[int, ...],
    grids: list[np.ndarray],
    center: np.ndarray,
    width: np.ndarray,
) -> np.ndarray:
    """Computes a marginal density from its characteristic function, in a window."""
    limit = _limits(box)
    back = np.linalg.inv(map.matrix)[list(axes)]  # rows: x_a in terms of y
    reach = _reach(back, limit)
    count = np.ceil(reach * width / (2 * np.pi)).astype(int)
    steps = [np.arange(-c, c + 1) * (2 * np.pi / w) for c, w in zip(count, width, strict=True)]
    mesh = np.stack([m.ravel() for m in np.meshgrid(*steps, indexing="ij")], 1)
    kappa = mesh @ back
    half = (np.abs(kappa) < limit).all(1) & (np.arange(len(mesh)) >= len(mesh) // 2)
    phi = np.zeros(len(mesh), complex)
    # The integrals ∫ exp(i κ·y) v dy.
    phi[half] = by_parts(cores, kappa[half], [a.waves for a in box.axes], complex) * np.exp(
        -1j * (kappa[half] @ map.shift + mesh[half] @ center)
    )
    phi[: len(phi) // 2] = phi[: len(phi) // 2 : -1].conj()  # φ(−ω) is the conjugate of φ(ω)
    out = phi.reshape([len(s) for s in steps]) / np.prod(width) / abs(map.det)
    for grid, step, middle, w in zip(grids, steps, center, width, strict=True):
        wave = np.exp(-1j * np.outer(grid - middle, step)) * (abs(grid - middle) <= w / 2)[:, None]
        out = (wave @ out).T  # the axes take turns
    return np.real(out)


def _beside(
    cores: list[Any], box: Box, map: AffineMap, axes: tuple[int, ...], grids: list[np.ndarray]
) -> np.ndarray:
    """Computes a marginal density over a moving axis beside periodic, half-line or walled axes.

    Those are summed over, or evaluated at the points of the marginal, one after the other.
    """
    free = [k for k in range(box.dim) if box.axes[k].movable]
    other = [a for a in axes if a not in free]
    points = [np.zeros(1)] if not other else [grids[axes.index(a)] for a in other]
    rows = [a.weights[None] for a in box.axes]
    if other:
        rows[other[0]] = np.asarray(box.axes[other[0]].interpolate(points[0]))
    part = Box([box.axes[k] for k in free])
    at = AffineMap(map.matrix[np.ix_(free, free)], map.shift[free])
    own = tuple(free.index(a) for a in axes if a in free)
    meshes = [grids[axes.index(a)] for a in axes if a in free]
    state = TT._unchecked(tuple(_kept(cores, free, [a.weights[None] for a in box.axes])))
    _, mean, covariance = moments(state, at, part)
    window = _window(at, part, own, mean, np.sqrt(np.diag(covariance)[list(own)]))
    out = []
    for i in range(len(points[0])):
        at_point = [r[min(i, len(r) - 1)][None] for r in rows]
        out.append(_transformed(_kept(cores, free, at_point), part, at, own, meshes, *window))
    found = np.stack(out, 0 if not other or axes.index(other[0]) == 0 else -1)
    return found if other else found[0]


def _kept(cores: list[Any], free: list[int], rows: list[np.ndarray]) -> list[np.ndarray]:
    """Contracts a train with vectors on the axes that a marginal integrates over."""
    out, carried = [], np.ones((1, 1))
    for k, core in enumerate(cores):
        if k in free:
            out.append(absorb(carried, core))
            carried = np.eye(core.shape[2])
        else:
            carried = carried @ weighted_sum(core, rows[k][0])
    out[-1] = times_right(out[-1], carried)
    return out


def _window(
    map: AffineMap, box: Box, axes: Sequence[int], mean: np.ndarray, spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns centre and width, on each axis, of the interval over which `marginal` is expanded."""
    back = np.linalg.inv(map.matrix)[list(axes)]
    middle = np.asarray([(a.low + a.high) / 2 for a in box.axes])
    image = back @ (middle - map.shift), np.abs(back) @ [a.length for a in box.axes]
    whole = image[1] <= _WINDOW * spread
    return (
        np.where(whole, image[0], mean[list(axes)]),
        np.where(whole, image[1], _WINDOW * spread),
    )


def _limits(box: Box) -> np.ndarray:
    """Returns the highest frequency of a marginal that the grid of each axis resolves."""
    return np.asarray([np.pi / np.diff(p).max() for p in box.points])


def _at_rest(
    cores: list[Any], box: Box, axes: tuple[int, ...], grids: list[np.ndarray]
) -> np.ndarray:
    """Computes a marginal density in fixed coordinates, by sums over the other axes."""
    mesh = np.stack([g.ravel() for g in np.meshgrid(*grids, indexing="ij")], 1)
    points, rows = np.zeros((len(mesh), box.dim)), []
    for k, axis in enumerate(box.axes):
        if k in axes:
            points[:, k] = mesh[:, axes.index(k)]
            rows.append(axis.interpolate)
        else:
            rows.append(lambda y, w=axis.weights: np.broadcast_to(w, (len(y), len(w))))
    return by_parts(cores, points, rows, float).reshape([len(g) for g in grids])


def _reach(back: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Computes the largest frequency of a marginal density that all grid axes resolve."""
    if len(back) == 1:
        return np.min(limit / np.maximum(np.abs(back), 1e-300), axis=1)
    first, second = np.triu_indices(back.shape[1], 1)
    # Corners: ω·back_k = ± limit_k for two k.
    (a, b), (c, d), p, q = back[:, first], back[:, second], limit[first], limit[second]
    corners = []
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for e in (p, -p):
            corner = np.stack([d * e - b * q, a * q - c * e]) / (a * d - b * c)
            inside = np.all(np.abs(corner.T @ back) <= limit * (1 + 1e-9), axis=1)
            corners.append(corner[:, inside])
    return np.abs(np.concatenate(corners, 1)).max(1)


def _points(points: Any, mean: np.ndarray, spread: np.ndarray) -> list[np.ndarray]:
    asked = 128 if points is None else points
    if isinstance(asked, int | np.integer):
        asked = [asked] * len(mean)
    elif isinstance(asked, np.ndarray) and asked.ndim == 1 and len(mean) == 1:
        asked = [asked]
    if len(asked) != len(mean):
        raise ValueError(f"points: expected one entry for each axis, got {len(asked)}")
    return [
        m + 6 * s * np.linspace(-1, 1, _check.integer("points", p, low=1))
        if isinstance(p, int | np.integer)
        else np.asarray(p, np.float64)
        for p, m, s in zip(asked, mean, spread, strict=True)
    ]
