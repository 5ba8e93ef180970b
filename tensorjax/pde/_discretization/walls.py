"""Walls of grids: absorbing, reflecting or open, for backward Kolmogorov equations."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from tensorjax import _chebyshev
from tensorjax.pde._discretization.axis import Axis
from tensorjax.pde._discretization.collocation_matrices import galerkin
from tensorjax.pde._discretization.grid import Box

Wall = Literal["absorbing", "reflecting", "open"]


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
        """Upwind matrices of ∂ on an axis with walls, for drift upwards and for drift downwards.

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
        """Matrix from weighted values on an axis with walls to its high Chebyshev coefficients."""
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
    """Adds absorbing, reflecting or open walls to the Chebyshev and periodic axes of a box.

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
        raise ValueError(
            f"walls: expected a sequence of {box.dim}, one per axis, such as {own}, got {walls!r}"
        )
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
