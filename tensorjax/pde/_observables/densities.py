"""Physical quantities of a solution: point values, mass, moments, marginals, edge mass.

u(x) = v(Γ x + s), with v the interpolant of its values on the grid, and zero outside the box.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax._cores import interfaces
from tensorjax._cores.contractions import absorb, einsum, times_mode, times_right, weighted_sum
from tensorjax._cores.overlaps import bond_overlap
from tensorjax._formats.trains import TT, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import PROGRAM
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike, JaxOrHost
from tensorjax.pde._arguments import floats
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._discretization.modes import moment_weights
from tensorjax.pde._maps.affine_maps import AffineMap

__all__ = ["edge_mass", "evaluate", "marginal", "mass", "moments", "resolution"]

# Largest number of entries held at once while points are evaluated.
_CHUNK = 1 << 22
# Width of the window of a marginal, in standard deviations, unless the box is narrower.
_WINDOW = 24.0


@placed
def evaluate(v: TT, map: AffineMap, box: Box, x: ArrayLike) -> JaxOrHost:
    """Evaluates a solution u(x) = v(Γ x + s) at physical points; zero outside the box.

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
    _, cores, map = _given(v, map, box)
    points: Any = x if _check.is_traced(x) else _check.points("x", x)
    if points.ndim != 2 or points.shape[1] != box.dim:
        raise ValueError(f"x: expected points of shape (m, {box.dim}), got {points.shape}")
    y = map.forward(points)
    if choose_kernel("pde.evaluate", (y, cores)) is PROGRAM:
        return _contracted(cores, [a.interpolate(y[:, k]) for k, a in enumerate(box.axes)])
    return _by_parts(cores, y, [a.interpolate for a in box.axes], float)


@placed
def mass(v: TT, map: AffineMap, box: Box) -> JaxOrHost:
    """Computes the mass ∫ u dx = ∫ v dy / |det Γ| of a solution in physical coordinates.

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
    xp, cores, map = _given(v, map, box)
    return functools.reduce(xp.matmul, _weighted(xp, cores, box, 0))[0, 0] / xp.abs(map.det)


@placed
def moments(v: TT, map: AffineMap, box: Box) -> tuple[Any, Any, Any]:
    """Computes mass, mean (d,) and covariance (d, d) of a density in physical coordinates.

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
    xp, cores, map = _given(v, map, box)
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
    _, cores, map = _given(v, map, box)
    if _check.is_traced(cores, map):
        raise TypeError("v, map: expected concrete ones; call this outside jit, vmap and grad")
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
    """Computes a marginal from its characteristic function, in a window about ``center``."""
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
    phi[half] = _by_parts(cores, kappa[half], [a.waves for a in box.axes], complex) * np.exp(
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
    """Computes a marginal over an unbounded axis, beside axes on which coordinates stay at rest.

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
    """Contracts a solution's train with vectors on all axes but some: the cores of those."""
    out, carried = [], np.ones((1, 1))
    for k, core in enumerate(cores):
        if k in free:
            out.append(absorb(carried, core))
            carried = np.eye(core.shape[2])
        else:
            carried = carried @ weighted_sum(core, rows[k][0])
    out[-1] = times_right(out[-1], carried)
    return out


def edge_mass(v: TT, box: Box) -> float:
    """Returns the edge mass of a solution: the largest share of ‖v‖ next to an end of an axis.

    v has to vanish there: what is not small against the accuracy asked for has left the box, or is
    about to. The end at which a "laguerre" axis begins does not count. One sweep in either
    direction, O(d n r³) operations.

    Args:
      v: train of values on the grid of the box.
      box: of the coordinates y.

    Returns:
      A float; 0 for v = 0.

    Raises:
      ValueError: shapes that do not match, NaN or Inf.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> box = pde.Box.fourier(2, half_width=5.0)
      >>> v = pde.Gaussian(np.zeros(2), np.eye(2)).train(box, pde.AffineMap.identity(2), 1e-5)
      >>> pde.edge_mass(v, box) < 1e-4
      True

    Source: ours.
    """
    return shares(v, box)[0]


def resolution(v: TT, box: Box) -> float:
    """Computes a solution's resolution: share of ‖v‖ in the highest third of an axis's modes.

    It is near √⅓ for noise and next to nothing for what the points resolve; of a Gaussian as narrow
    as they can hold with a relative error ε it is about ε^(4/9).

    Args:
      v: train of values on the grid of the box.
      box: of the coordinates y.

    Returns:
      A float; 0 for v = 0.

    Raises:
      ValueError: shapes that do not match, NaN or Inf.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start, still = pde.Gaussian(np.zeros(2), 0.1 * np.eye(2)), pde.AffineMap.identity(2)
      >>> for n in (24, 48):
      ...     box = pde.Box.fourier(2, n, half_width=5.0)
      ...     print(f"{pde.resolution(start.train(box, still, 1e-5), box):.1g}")
      0.1
      0.002

    Source: ours.
    """
    return shares(v, box)[1]


def shares(v: TT, box: Box) -> tuple[float, float]:
    """Computes `edge_mass` and `resolution`, two checks of a solution's train, at once."""
    _, cores, _ = _given(v, AffineMap.identity(box.dim), box)
    edge, rough = shares_of(np, cores, quadrature(box))
    return float(edge), float(rough)


def quadrature(box: Box) -> list[tuple[np.ndarray, ...]]:
    """Returns weights, highest modes and ends of every axis, for edge mass and resolution.

    `shares_of` takes them in this form.
    """
    return [(a.weights, a.fine, a.ends) for a in box.axes]


def shares_of(xp: Any, cores: Sequence[Any], axes: Sequence[tuple[Any, ...]]) -> tuple[Any, Any]:
    """Computes edge mass and resolution, physical quantities of a train, by NumPy or JAX."""
    left, right = xp.ones((1, 1), cores[0].dtype), [xp.ones((1, 1), cores[0].dtype)]
    weighted = [c * xp.sqrt(w)[None, :, None] for c, (w, *_) in zip(cores, axes, strict=True)]
    for core in weighted[::-1]:
        right.append(interfaces.right_overlap(right[-1], core, core))
    edges, roughs = [], []
    for core, after, (_, fine, ends) in zip(weighted, right[-2::-1], axes, strict=True):
        before, after = absorb(left, core), times_right(core, after)
        density = (before * after).sum((0, 2))
        total = density.sum()
        safe = xp.where(total > 0, total, 1)
        edges.append((density * ends).sum() / safe)
        roughs.append((times_mode(before, fine) * times_mode(after, fine)).sum() / safe)
        left = bond_overlap(before, core)
    # Sums of squares, but for roundoff; zero has no share anywhere.
    return tuple(xp.sqrt(xp.max(xp.maximum(xp.stack(s), 0))) for s in (edges, roughs))


def _given(v: TT, map: AffineMap, box: Box) -> tuple[Any, list[Any], AffineMap]:
    """Checks v, map and box of a physical quantity; returns NumPy or JAX, cores and map."""
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
    """Evaluates a train at m physical points from rows (m, n_k) of interpolation weights."""
    state = None
    for core, row in zip(cores, rows, strict=True):
        part = einsum("mn,anb->mab", row, core)
        state = part[:, 0] if state is None else einsum("ma,mab->mb", state, part)
    assert state is not None
    return state[:, 0]


def _by_parts(
    cores: list[Any], points: np.ndarray, rows_of: list[Callable[[Any], Any]], dtype: Any
) -> np.ndarray:
    """Evaluates a solution's train at m points in chunks, from rows of weights for every axis."""
    # The memory that a part takes is bounded: one row, and one matrix between bonds, per point.
    step = max(1, _CHUNK // max(max(c.shape[1], c.shape[0] * c.shape[2]) for c in cores))
    out = np.empty(len(points), dtype)
    for i in range(0, len(points), step):
        columns = points[i : i + step].T
        rows = [f(y) for f, y in zip(rows_of, columns, strict=True)]
        out[i : i + step] = _contracted(cores, rows)
    return out


def _weighted(xp: Any, cores: list[Any], box: Box, power: int) -> list[Any]:
    """Computes Σ_j w_j y_j^power G_k[:, j, :] of all cores on a box, for physical moments."""
    out = []
    for core, axis in zip(cores, box.axes, strict=True):
        w = xp.asarray(moment_weights(axis, power)).astype(core.dtype)
        out.append(weighted_sum(core, w))
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
    """Returns the highest frequency that each axis's grid resolves, for sums in `marginal`."""
    return np.asarray([np.pi / np.diff(p).max() for p in box.points])


def _at_rest(
    cores: list[Any], box: Box, axes: tuple[int, ...], grids: list[np.ndarray]
) -> np.ndarray:
    """Computes a marginal of a solution in coordinates at rest, by sums over the other axes."""
    mesh = np.stack([g.ravel() for g in np.meshgrid(*grids, indexing="ij")], 1)
    points, rows = np.zeros((len(mesh), box.dim)), []
    for k, axis in enumerate(box.axes):
        if k in axes:
            points[:, k] = mesh[:, axes.index(k)]
            rows.append(axis.interpolate)
        else:
            rows.append(lambda y, w=axis.weights: np.broadcast_to(w, (len(y), len(w))))
    return _by_parts(cores, points, rows, float).reshape([len(g) for g in grids])


def _reach(back: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Computes the largest frequency that all grid axes resolve, per axis of a marginal density."""
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
    given = 128 if points is None else points
    if isinstance(given, int | np.integer):
        given = [given] * len(mean)
    elif isinstance(given, np.ndarray) and given.ndim == 1 and len(mean) == 1:
        given = [given]
    if len(given) != len(mean):
        raise ValueError(f"points: expected one entry for each axis, got {len(given)}")
    return [
        m + 6 * s * np.linspace(-1, 1, _check.integer("points", p, low=1))
        if isinstance(p, int | np.integer)
        else np.asarray(p, np.float64)
        for p, m, s in zip(given, mean, spread, strict=True)
    ]
