"""Quantics (QTT) grids: functions on 2^b points a dimension as tensors of many small modes.

Point i = Σ_l c_l b^(bits − 1 − l) of a dimension is written in digits c_0 … c_{bits−1} of a base b,
the most significant first. Smooth functions then have small TT-ranks, and 2^30 points cost 30 small
cores.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax import _check
from tensorjax._typing import ArrayLike


class QuanticsGrid(NamedTuple):
    """Uniform grid in ``dims`` dimensions with indices in digits; see `quantics_grid`.

    Attributes:
      low: (dims,) first points.
      high: (dims,) last points, or the ends that are left out.
      bits: digits a dimension.
      base: of the digits.
      interleaved: whether digits of one significance stand together, (x_0, y_0, x_1, y_1, …); else
        dimensions follow each other, (x_0, x_1, …, y_0, y_1, …).
      endpoint: whether ``high`` is a point of the grid.

    Example:
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid(0.0, 1.0, bits=3)
      >>> grid.shape, grid.points, grid.spacing, grid.coordinates([1, 0, 0])
      ((2, 2, 2), 8, (0.125,), array([0.5]))

    Source: Khoromskij (2011), see `quantics_grid`.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    bits: int
    base: int
    interleaved: bool
    endpoint: bool

    @property
    def dims(self) -> int:
        """Number of dimensions of the quantics grid."""
        return len(self.low)

    @property
    def shape(self) -> tuple[int, ...]:
        """Mode sizes of a tensor on the quantics grid: ``base``, dims·bits times."""
        return (self.base,) * (self.dims * self.bits)

    @property
    def points(self) -> int:
        """Number of points a dimension of the quantics grid, base^bits."""
        return self.base**self.bits

    @property
    def spacing(self) -> tuple[float, ...]:
        """Distances of neighbouring points of the quantics grid, one a dimension."""
        steps = self.points - 1 if self.endpoint else self.points
        return tuple((b - a) / steps for a, b in zip(self.low, self.high, strict=True))

    def index(self, digits: ArrayLike) -> np.ndarray:
        """Converts quantics digits to grid indices; see `quantics_to_index`.

        Args:
          digits: integers (…, dims·bits), each in [0, base).

        Returns:
          NumPy integers (…, dims).
        """
        return quantics_to_index(
            digits, dims=self.dims, base=self.base, interleaved=self.interleaved
        )

    def digits(self, index: ArrayLike) -> np.ndarray:
        """Converts grid indices to quantics digits; see `index_to_quantics`.

        Args:
          index: integers (…, dims), each in [0, base^bits).

        Returns:
          NumPy integers (…, dims·bits).
        """
        return index_to_quantics(index, self.bits, base=self.base, interleaved=self.interleaved)

    def coordinates(self, digits: ArrayLike) -> np.ndarray:
        """Converts quantics digits to coordinates of the grid's points.

        Args:
          digits: integers (…, dims·bits), each in [0, base).

        Returns:
          NumPy float64 coordinates (…, dims).
        """
        return np.asarray(self.low) + self.index(digits) * np.asarray(self.spacing)

    def nearest(self, x: ArrayLike) -> np.ndarray:
        """Finds the points of the quantics grid nearest to given coordinates.

        Args:
          x: coordinates (…, dims); those outside of the grid are moved to its ends.

        Returns:
          NumPy integers (…, dims·bits), the digits of the points.
        """
        steps = (np.asarray(x, float) - np.asarray(self.low)) / np.asarray(self.spacing)
        return self.digits(np.clip(np.rint(steps), 0, self.points - 1).astype(np.int64))


def quantics_grid(
    low: float | Sequence[float],
    high: float | Sequence[float],
    bits: int,
    *,
    base: int = 2,
    interleaved: bool = True,
    endpoint: bool = False,
) -> QuanticsGrid:
    """Builds a quantics grid: base^bits points in each dimension, for trains over digits.

    Args:
      low: first point; a number, or one a dimension.
      high: last point; likewise.
      bits: digits a dimension; base^bits below 2^53, where coordinates are still exact.
      base: of the digits.
      interleaved: digits of one significance stand together, as suits functions that couple the
        dimensions at every scale; else dimension after dimension, for nearly separable ones.
      endpoint: whether ``high`` itself is a point.

    Returns:
      `QuanticsGrid`, with ``shape``, ``coordinates(digits)``, ``index(digits)``, ``digits(index)``
      and ``nearest(x)``.

    Raises:
      ValueError: bounds that do not match or that are not increasing, too many bits.

    Example:
      >>> import jax, numpy as np
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid(0.0, 1.0, bits=20)
      >>> f = lambda digits: np.exp(-3 * grid.coordinates(digits)[:, 0])
      >>> t, info = tt.cross(f, grid.shape, tol=1e-5, key=jax.random.key(0))
      >>> info.status, max(t.ranks)
      ('converged', 1)
      >>> bool(abs(tt.evaluate(t, grid.nearest([0.5])) - np.exp(-1.5)) < 1e-4)
      True

    Source: B. Khoromskij, "O(d log N)-quantics approximation of N-d tensors in high-dimensional
    numerical modeling", Constr. Approx. 34 (2011).
    """
    ends = np.broadcast_arrays(np.atleast_1d(low).astype(float), np.atleast_1d(high).astype(float))
    first, last = ends
    if first.ndim != 1 or not np.all(np.isfinite(ends)) or not (first < last).all():
        raise ValueError(f"low, high: expected finite low < high, got {low!r} and {high!r}")
    bits = _check.integer("bits", bits, low=1)
    base = _check.integer("base", base, low=2)
    if base**bits > 2**53:
        raise ValueError(
            f"bits: expected base**bits of at most 2**53 points, got {base}**{bits}; "
            "coordinates would not be told apart"
        )
    return QuanticsGrid(
        tuple(first.tolist()), tuple(last.tolist()), bits, base, interleaved, endpoint
    )


def index_to_quantics(
    index: ArrayLike, bits: int, *, base: int = 2, interleaved: bool = True
) -> np.ndarray:
    """Converts grid indices (…, dims) to quantics digits, most significant first.

    Args:
      index: integers (…, dims), each in [0, base^bits).
      bits: digits a dimension.
      base: of the digits.
      interleaved: whether digits of one significance stand together, (x_0, y_0, x_1, y_1, …); else
        dimensions follow each other.

    Returns:
      NumPy integers (…, dims·bits).

    Raises:
      ValueError: an index outside [0, base^bits), or one that is no integer array.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.index_to_quantics([[6, 1]], bits=3))
      [[1 0 1 0 0 1]]
      >>> print(tt.index_to_quantics([[6, 1]], bits=3, interleaved=False))
      [[1 1 0 0 0 1]]

    Source: Khoromskij (2011), see `quantics_grid`.
    """
    index = _integers("index", index)
    bits = _check.integer("bits", bits, low=1)
    if index.size and (index.min() < 0 or index.max() >= base**bits):
        raise ValueError(
            f"index: expected values in [0, {base**bits}), got {index.min()} to {index.max()}"
        )
    powers = np.array([base**k for k in range(bits - 1, -1, -1)], np.int64)
    digits = index[..., None] // powers % base  # (…, dims, bits)
    digits = digits.swapaxes(-1, -2) if interleaved else digits
    return digits.reshape(*index.shape[:-1], -1)


def quantics_to_index(
    digits: ArrayLike, *, dims: int = 1, base: int = 2, interleaved: bool = True
) -> np.ndarray:
    """Converts quantics digits (…, dims·bits), most significant first, to grid indices.

    Args:
      digits: integers (…, dims·bits), each in [0, base).
      dims: dimensions of the grid.
      base: of the digits.
      interleaved: whether digits of one significance stand together; see `index_to_quantics`.

    Returns:
      NumPy integers (…, dims).

    Raises:
      ValueError: a last axis that ``dims`` does not divide, or digits outside [0, base).

    Example:
      >>> from tensorjax import tt
      >>> print(tt.quantics_to_index([[1, 0, 1, 0, 0, 1]], dims=2))
      [[6 1]]

    Source: Khoromskij (2011), see `quantics_grid`.
    """
    digits = _integers("digits", digits)
    dims = _check.integer("dims", dims, low=1)
    bits, rest = divmod(digits.shape[-1], dims)
    if rest or not bits:
        raise ValueError(
            f"digits: expected a last axis of dims·bits with dims = {dims}, got {digits.shape}"
        )
    if digits.size and (digits.min() < 0 or digits.max() >= base):
        raise ValueError(
            f"digits: expected values in [0, {base}), got {digits.min()} to {digits.max()}"
        )
    powers = np.array([base**k for k in range(bits - 1, -1, -1)], np.int64)
    if interleaved:
        split = digits.reshape(*digits.shape[:-1], bits, dims).swapaxes(-1, -2)
    else:
        split = digits.reshape(*digits.shape[:-1], dims, bits)
    return split @ powers


def _integers(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.ndim == 0 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: expected integers with at least one axis, got {array.dtype} {array.shape}"
        )
    return array.astype(np.int64)
