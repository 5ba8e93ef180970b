"""Trains of smooth, expensive functions: sampled on coarse Chebyshev grids, then interpolated.

A function on a box that needs n points an axis to hold a narrow density may itself be smooth. It
is evaluated on a coarse grid, whole where that is small, else by cross approximation, and the cores
are interpolated. The error is measured at random points of the fine grid, and the coarse grid is
doubled until it is below the tolerance.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tensorjax import _chebyshev
from tensorjax._cores.contractions import einsum, times_mode
from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._function_trains.functions_by_values import crossed

# Points of the fine grid that are compared.
_TESTS = 128
# Whole grids up to this size are evaluated at once.
_WHOLE = 1 << 14


class Coarse(NamedTuple):
    """Coarse Chebyshev grid on which smooth functions are sampled before their interpolation."""

    points: tuple[np.ndarray, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of points along every axis of the coarse Chebyshev grid."""
        return tuple(len(p) for p in self.points)


def smooth(
    name: str, f: Callable[[np.ndarray], np.ndarray], box: Any, tol: float, first: int
) -> tuple[Cores, int]:
    """Approximates a smooth vector-valued function on a grid by a TT, from a coarse Chebyshev grid.

    Args:
      name: of the function, in errors.
      f: smooth on the box.
      box: of the points asked for.
      tol: largest error, at points of the grid, over the largest value.
      first: points of an axis that are tried first; they are doubled until the error is small.

    Returns:
      The cores, and how many points were enough.

    Raises:
      ValueError: the points of the box itself are not enough.
    """
    rng = np.random.default_rng(0)
    index = [rng.integers(0, n, _TESTS) for n in box.shape]
    exact = np.asarray(f(np.stack([p[i] for p, i in zip(box.points, index, strict=True)], 1)))
    count, most = first, 2 * max(box.shape)
    while True:
        nodes = _chebyshev.roots(count)
        at = Coarse(tuple((a.low + a.high + (a.high - a.low) * nodes) / 2 for a in box.axes))
        cores = _cores(name, f, at, tol)
        weights = _chebyshev.root_weights(count)
        pairs = zip(at.points, box.points, strict=True)
        rows = [_chebyshev.lagrange(np, c, weights, p) for c, p in pairs]
        fine = [times_mode(c, r) for r, c in zip(rows, cores, strict=False)]
        found = np.ones((_TESTS, 1))
        for c, i in zip(fine, index, strict=True):
            found = einsum("ma,amb->mb", found, c[:, i])
        found = found @ cores[-1][..., 0]
        error = np.abs(found - exact).max() / (np.abs(exact).max() or 1.0)
        if error <= tol:
            return [*fine, cores[-1]], count
        if 2 * count > most:
            raise ValueError(
                f"{name}: expected a smooth function, got an error of {error:.1g} from {count} "
                f"points an axis for tol = {tol:.1g}; ask for less accuracy, or take steps that "
                "deform coordinates less"
            )
        count *= 2


def _cores(name: str, f: Any, at: Coarse, tol: float) -> Cores:
    if math.prod(at.shape) > _WHOLE:
        return crossed(name, f, at, tol / 3)  # pyright: ignore[reportArgumentType]
    mesh = np.stack([m.ravel() for m in np.meshgrid(*at.points, indexing="ij")], 1)
    rest = np.asarray(f(mesh), np.float64)
    allowed = tol / 3 * float(np.linalg.norm(rest)) / len(at.shape)
    out: Cores = []
    rank = 1
    for n in at.shape:
        u, s, w = np.linalg.svd(rest.reshape(rank * n, -1), full_matrices=False)
        tail = np.sqrt(np.cumsum(s[::-1] ** 2)[::-1])
        keep = max(int((tail > allowed).sum()), 1)
        out.append(u[:, :keep].reshape(rank, n, keep))
        rest, rank = s[:keep, None] * w[:keep], keep
    return [*out, rest[..., None]]
