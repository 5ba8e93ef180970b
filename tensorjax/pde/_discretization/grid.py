"""Tensor-product grids on boxes, one collocation grid an axis, with or without walls.

Functions on a `Box` vanish at its edge, but on periodic axes, half-lines and at walls; see `Axis`.
Grids of a `WalledAxis` are for backward Kolmogorov equations.
"""

import dataclasses
import functools
import numbers
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from tensorjax import _chebyshev, _check
from tensorjax._typing import ArrayLike
from tensorjax.pde._discretization.axis import Axis, Kind
from tensorjax.pde._discretization.collocation_matrices import galerkin

Wall = Literal["absorbing", "reflecting", "open"]


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
        """Whether coordinates along all axes may move: none is periodic, half-line or walled."""
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
    """Returns the low and the high ends (d,) of a box's axes."""
    return np.array([a.low for a in box.axes]), np.array([a.high for a in box.axes])


def random_points(box: Box, count: int, seed: int = 0) -> np.ndarray:
    """Draws uniform random points (count, d) of a box, at which functions are checked."""
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


@dataclasses.dataclass(frozen=True)
class WalledAxis(Axis):
    """Grid axis with walls, where functions are zero (absorbing), flat (reflecting) or free (open).

    Derivatives are those of the polynomial through the inner points and the ends, whose values
    follow from the conditions there. They are accurate for functions that do not vanish at the
    ends, which those of `Axis` are not, and have growing modes, which does not matter at rest.

    Attributes:
      walls: at ``low`` and ``high``; without meaning on Fourier axes.
      noiseless: whether paths are carried over absorbing walls by the drift alone: functions vanish
        at a wall where it points outwards, and are free where it points inwards.
    """

    walls: Any = ("absorbing", "absorbing")
    noiseless: bool = False

    def _check_walls(self) -> None:
        """Does nothing: the walls of the axis have been checked by `walled`."""

    @property
    def free(self) -> tuple[bool, bool]:
        """Whether end values are free on a walled axis: never, as wall conditions set them."""
        return False, False

    @property
    def projected(self) -> None:
        """Galerkin matrices of a walled axis: None, as it multiplies pointwise."""

    @functools.cached_property
    def extended(self) -> np.ndarray:
        """Matrix (n + 2, n) that adds the values at both walls to those at the inner points."""
        rows, opened = [], 0
        weights = _chebyshev.extremum_weights(self.n + 2)
        at = _chebyshev.extrema(self.n + 2)
        for end, wall in zip((0, -1), self.walls, strict=True):
            if wall == "absorbing" and not self.noiseless:
                rows.append(np.eye(self.n + 2)[end])
            elif wall == "reflecting":
                rows.append(self._slopes[end])
            else:  # the polynomial is of a degree that the other points determine
                rows.append(weights * at**opened)
                opened += 1
        condition = np.array(rows)
        out = np.zeros((self.n + 2, self.n))
        out[1:-1] = np.eye(self.n)
        out[[0, -1]] = -np.linalg.solve(condition[:, [0, -1]], condition[:, 1:-1])
        return out

    @functools.cached_property
    def upwind(self) -> tuple[np.ndarray, np.ndarray]:
        """Upwind first-derivative matrices (n, n), for drift upwards and for drift downwards.

        Those of the polynomials that vanish at the high end, and at the low end.
        """
        ends = (True, False), (False, True)
        up, down = (galerkin(self.n, free).collocated for free in ends)
        return 2 / self.length * up, 2 / self.length * down

    @functools.cached_property
    def d1(self) -> np.ndarray:
        """First-derivative matrix at the inner points of a walled axis, (n, n)."""
        if self.kind == "fourier":
            return super().d1
        return (self._slopes @ self.extended)[1:-1]

    @functools.cached_property
    def d2(self) -> np.ndarray:
        """Second-derivative matrix at the inner points of a walled axis, (n, n)."""
        if self.kind == "fourier":
            return super().d2
        return (self._slopes @ (self._slopes @ self.extended))[1:-1]

    @functools.cached_property
    def fine(self) -> np.ndarray:
        """Matrix from weighted grid values to the highest third of the Chebyshev coefficients."""
        if self.kind == "fourier":
            return super().fine
        modes = np.polynomial.chebyshev.chebvander(_chebyshev.extrema(self.n + 2), self.n + 1)
        top = np.linalg.inv(modes)[2 * (self.n + 2) // 3 :] @ self.extended
        return top * np.sqrt(self.length / 2 / self.weights)

    def interpolate(self, y: Any) -> np.ndarray:
        """Returns the matrix (m, n) that interpolates grid values of a walled axis at y, (m,)."""
        if self.kind == "fourier":
            return super().interpolate(y)
        y = np.asarray(y, np.float64)
        inside = (y >= self.low) & (y <= self.high)
        rows = self._lagrange(np, np.clip(y, self.low, self.high)) @ self.extended
        return np.where(inside[:, None], rows, 0.0)


def walled(box: Box, walls: Sequence[Any] | None, noiseless: Sequence[bool] | None = None) -> Box:
    """Adds absorbing, reflecting or open walls to a box of Chebyshev and periodic axes.

    Args:
      box: of the domain.
      noiseless: of each axis whether it has no noise; all have some if None.
      walls: of each axis a wall for both ends, or a pair; if None those of the axes, or absorbing.

    Raises:
      ValueError: axes of another kind, another number of walls, or unknown ones.
    """
    own = [a.walls or "absorbing" for a in box.axes]
    given = own if walls is None else list(walls)
    if isinstance(walls, str) or len(given) != box.dim:
        raise ValueError(f"walls: expected {box.dim} of them, one per axis, got {walls!r}")
    axes, still = [], [False] * box.dim if noiseless is None else noiseless
    for axis, wall, quiet in zip(box.axes, given, still, strict=True):
        pair: Any = (wall, wall) if isinstance(wall, str) else tuple(wall)
        if len(pair) != 2 or not all(w in get_args(Wall) for w in pair):
            raise ValueError(
                'walls: expected "absorbing", "reflecting" or "open" for each axis, or pairs, got '
                f"{wall!r}"
            )
        if axis.kind not in ("chebyshev", "fourier", "periodic"):
            raise ValueError(
                'domain: expected axes of kind "chebyshev", with walls at their ends, or '
                f'"periodic", got {axis.kind!r}'
            )
        kind = "chebyshev" if axis.kind == "chebyshev" else "fourier"
        quiet = bool(quiet) and kind == "chebyshev" and "absorbing" in pair
        axes.append(
            WalledAxis(
                kind, axis.n, axis.low, axis.high, axis.order, walls=pair, noiseless=quiet
            )
        )  # fmt: skip
    return Box(tuple(axes))
