"""Tensor-product grids on boxes, one collocation grid an axis.

Functions on a `Box` vanish at its edge, but on periodic axes, half-lines and at walls; see `Axis`.
"""

import dataclasses
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax._typing import ArrayLike
from tensorjax.pde._discretization.axis import Axis, Kind


@dataclasses.dataclass(frozen=True, init=False)
class Box:
    """Tensor-product grid of d axes; functions on it are tensors of shape (n_1, …, n_d).

    Attributes:
      axes: d of `Axis`.

    Raises:
      ValueError: no axes, or other objects than `Axis`.

    Example:
      >>> from tensorjax import pde
      >>> box = pde.Box.fourier(3, n=32, half_width=5.0)
      >>> box.shape, float(box.axes[0].points[0])
      ((32, 32, 32), -5.0)
    """

    axes: tuple[Axis, ...]

    def __init__(self, axes: Sequence[Axis]):
        object.__setattr__(self, "axes", tuple(axes))
        if not self.axes or not all(isinstance(a, Axis) for a in self.axes):
            raise ValueError(f"axes: expected one or more pde.Axis, got {self.axes!r}")

    @classmethod
    def fourier(cls, dim: int, n: int | Sequence[int] = 64, half_width: ArrayLike = 7.0) -> "Box":
        """Builds a box of Fourier grids on [−L, L)^d.

        Args:
          dim: number of axes d.
          n: grid points per axis, one int for all axes or d of them.
          half_width: L, one for all axes or d of them.

        Returns:
          `Box`.
        """
        return cls(_axes("fourier", dim, n, half_width, 4))

    @classmethod
    def chebyshev(cls, dim: int, n: int | Sequence[int] = 64, half_width: ArrayLike = 7.0) -> "Box":
        """Builds a box of Chebyshev grids on (−L, L)^d.

        Args:
          dim: number of axes d.
          n: grid points per axis, one int for all axes or d of them.
          half_width: L, one for all axes or d of them.

        Returns:
          `Box`.
        """
        return cls(_axes("chebyshev", dim, n, half_width, 4))

    @classmethod
    def finite_differences(
        cls, dim: int, n: int | Sequence[int] = 64, half_width: ArrayLike = 7.0, *, order: int = 4
    ) -> "Box":
        """Builds a box of finite-difference grids of order 2, 4 or 6 on (−L, L)^d.

        Args:
          dim: number of axes d.
          n: grid points per axis, one int for all axes or d of them.
          half_width: L, one for all axes or d of them.
          order: of the differences.

        Returns:
          `Box`.
        """
        return cls(_axes("finite differences", dim, n, half_width, order))

    @property
    def dim(self) -> int:
        """Number d of axes of the grid."""
        return len(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of grid points along every axis, (n_1, …, n_d)."""
        return tuple(a.n for a in self.axes)

    @property
    def points(self) -> list[np.ndarray]:
        """Collocation points of every axis of the grid, a list of arrays."""
        return [a.points for a in self.axes]

    @property
    def movable(self) -> bool:
        """Whether all axes of the grid may move: none is periodic, half-line or walled."""
        return all(a.movable for a in self.axes)

    @property
    def unbounded(self) -> np.ndarray:
        """Whether the coordinate along each axis of the grid may move, a boolean array (d,)."""
        return np.array([a.movable for a in self.axes])

    @property
    def walled(self) -> bool:
        """Whether an axis of the grid has walls (absorbing, reflecting or open)."""
        return any(a.walls is not None for a in self.axes)

    @property
    def weights(self) -> list[np.ndarray]:
        """Quadrature weights of every axis of the grid, a list of arrays."""
        return [a.weights for a in self.axes]


def ends(box: Box) -> tuple[np.ndarray, np.ndarray]:
    """Returns the low and the high ends (d,) of all axes of a grid on a box."""
    return np.array([a.low for a in box.axes]), np.array([a.high for a in box.axes])


def random_points(box: Box, count: int, seed: int = 0) -> np.ndarray:
    """Draws uniform random points (count, d) of a grid's box, at which functions are checked."""
    return np.random.default_rng(seed).uniform(*ends(box), (count, box.dim))


def _axes(kind: Kind, dim: int, n: Any, half_width: Any, order: int) -> tuple[Axis, ...]:
    dim = _check.integer("dim", dim, low=1)
    sizes, widths = (_one_each(*a, dim) for a in (("n", n), ("half_width", half_width)))
    if not all(float(w) > 0 for w in widths):
        raise ValueError(
            f"half_width: expected L > 0 for (-L, L) on every axis, got {half_width!r}; "
            "for other intervals take pde.Box([pde.Axis(kind, n, low, high), ...])"
        )
    return tuple(
        Axis(kind, m, -float(w), float(w), order) for m, w in zip(sizes, widths, strict=True)
    )


def _one_each(name: str, value: Any, dim: int) -> Sequence[Any]:
    values = [value] * dim if isinstance(value, numbers.Real) else value
    if isinstance(values, str) or not np.iterable(values):
        raise ValueError(f"{name}: expected one number or {dim} of them, got {value!r}")
    values = list(values)
    if len(values) != dim:
        raise ValueError(f"{name}: expected one number or {dim} of them, got {len(values)}")
    if any(isinstance(v, str) or np.ndim(v) for v in values):
        raise ValueError(
            f"{name}: expected numbers, one for all axes or {dim} of them, got {value!r}"
        )
    return values
