"""Quantics (QTT) grids: functions on 2^b points a dimension as tensors of many small modes.

Point i = Σ_l c_l b^(bits − 1 − l) of a dimension is written in digits c_0 … c_{bits−1} of a base b,
the most significant first. Smooth functions then have small TT-ranks, and 2^30 points cost 30 small
cores.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax import _check
from tensorjax._typing import ArrayLike


class QuanticsGrid(NamedTuple):
    """Uniform grid in one or more dimensions whose point indices are written in digits.

    Attributes:
      low: (dims,) first points.
      high: (dims,) last points, or the ends that are left out.
      bits: digits of every dimension, or a tuple of those of each where they differ.
      base: of the digits.
      interleaved: whether digits of one significance stand together, (x_0, y_0, x_1, y_1, …); else
        dimensions follow each other, (x_0, x_1, …, y_0, y_1, …).
      endpoint: whether ``high`` is a point of the grid.
      fused: whether digits of one significance are one mode, the first dimension's digit the most
        significant one in it: base^dims values where all dimensions have a digit.

    Example:
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid(0.0, 1.0, bits=3)
      >>> grid.shape, grid.points, grid.spacing, grid.coordinates([1, 0, 0])
      ((2, 2, 2), 8, (0.125,), array([0.5]))

    Source: Khoromskij (2011), see `quantics_grid`.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    bits: int | tuple[int, ...]
    base: int
    interleaved: bool
    endpoint: bool
    fused: bool = False

    @property
    def dims(self) -> int:
        """Number of dimensions of the quantics grid."""
        return len(self.low)

    @property
    def shape(self) -> tuple[int, ...]:
        """Mode sizes of a tensor on the quantics grid: a mode for each digit, or fused digits."""
        bits = _each(self.bits, self.dims)
        if not self.fused:
            return (self.base,) * sum(bits)
        return tuple(self.base**n for n in fused_counts(bits))

    @property
    def points(self) -> int | tuple[int, ...]:
        """Number of points per dimension of the quantics grid; a tuple if they differ."""
        if isinstance(self.bits, tuple):
            return tuple(self.base**bits for bits in self.bits)
        return self.base**self.bits

    @property
    def spacing(self) -> tuple[float, ...]:
        """Distances between neighbouring points of the quantics grid, one per dimension."""
        ends = zip(self.low, self.high, _each(self.points, self.dims), strict=True)
        return tuple((b - a) / (n - 1 if self.endpoint else n) for a, b, n in ends)

    def index(self, digits: ArrayLike) -> np.ndarray:
        """Converts quantics digits to grid indices.

        Args:
          digits: integers (…, modes) in the ranges of ``shape``.

        Returns:
          NumPy integers (…, dims).
        """
        return quantics_to_index(
            digits,
            dims=self.dims,
            base=self.base,
            interleaved=self.interleaved,
            bits=self.bits,
            fused=self.fused,
        )

    def digits(self, index: ArrayLike) -> np.ndarray:
        """Converts grid indices to quantics digits.

        Args:
          index: integers (…, dims), each in [0, base^bits).

        Returns:
          NumPy integers (…, modes).
        """
        return index_to_quantics(
            index, self.bits, base=self.base, interleaved=self.interleaved, fused=self.fused
        )

    def coordinates(self, digits: ArrayLike) -> np.ndarray:
        """Converts quantics digits to the coordinates of grid points.

        Args:
          digits: integers (…, modes) in the ranges of ``shape``.

        Returns:
          NumPy float64 coordinates (…, dims).
        """
        return np.asarray(self.low) + self.index(digits) * np.asarray(self.spacing)

    def nearest(self, x: ArrayLike) -> np.ndarray:
        """Finds the digits of the quantics grid points nearest to given coordinates.

        Args:
          x: coordinates (…, dims); those outside of the grid are moved to its ends.

        Returns:
          NumPy integers (…, modes), the digits of the points.

        Raises:
          ValueError: another number of coordinates than the grid has dimensions, or NaN.
        """
        x = np.asarray(x, float)
        if x.ndim == 0 or x.shape[-1] != self.dims or np.isnan(x).any():
            raise ValueError(
                f"x: expected coordinates (…, {self.dims}) without NaN, got shape {x.shape}"
            )
        steps = (x - np.asarray(self.low)) / np.asarray(self.spacing)
        return self.digits(np.clip(np.rint(steps), 0, np.array(self.points) - 1).astype(np.int64))


def quantics_grid(
    low: float | Sequence[float],
    high: float | Sequence[float],
    bits: int | Sequence[int],
    *,
    base: int = 2,
    interleaved: bool = True,
    endpoint: bool = False,
    fused: bool = False,
) -> QuanticsGrid:
    """Builds a quantics grid: base^bits points in each dimension, for trains over digits.

    Args:
      low: first point; a number, or one a dimension.
      high: last point; likewise.
      bits: digits a dimension, one number or one a dimension; base^bits at most 2^53, where
        coordinates are still exact.
      base: of the digits.
      interleaved: digits of one significance stand together, as suits functions that couple the
        dimensions at every scale; else dimension after dimension, for nearly separable ones.
      endpoint: whether ``high`` itself is a point.
      fused: digits of one significance make one mode of base^dims values, as suits functions that
        couple few dimensions strongly: fewer and larger cores than with ``interleaved``.

    Returns:
      `QuanticsGrid`, with ``shape``, ``coordinates(digits)``, ``index(digits)``, ``digits(index)``
      and ``nearest(x)``. Exact trains and operators on it are in `tensorjax.tt.quantics`.

    Raises:
      ValueError: bounds that do not match or that are not increasing, too many bits, ``fused`` for
        digits in sequence.

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
      >>> tt.quantics_grid([0, 0], [1, 1], bits=(3, 2), fused=True).shape
      (4, 4, 2)

    Source: B. Khoromskij, "O(d log N)-quantics approximation of N-d tensors in high-dimensional
    numerical modeling", Constr. Approx. 34 (2011).
    """
    lengths = {np.shape(x) for x in (low, high) if np.ndim(x)} or {np.shape(bits) or (1,)}
    if len(lengths) > 1 or any(len(s) != 1 or not s[0] for s in lengths):
        raise ValueError(
            f"low, high: expected one number or one a dimension, got {low!r} and {high!r}"
        )
    dims = lengths.pop()
    ends = [np.broadcast_to(np.asarray(x, float), dims) for x in (low, high)]
    first, last = ends
    if not np.all(np.isfinite(ends)) or not (first < last).all():
        raise ValueError(f"low, high: expected finite low < high, got {low!r} and {high!r}")
    base = _check.integer("base", base, low=2)
    digits = _bits(bits, len(first), base)
    if base ** max(digits) > 2**53:
        raise ValueError(
            f"bits: expected base**bits of at most 2**53 points, got {base}**{max(digits)}; "
            "coordinates would not be told apart"
        )
    _check_order(interleaved, fused)
    return QuanticsGrid(
        tuple(first.tolist()),
        tuple(last.tolist()),
        digits[0] if len(set(digits)) == 1 else digits,
        base,
        interleaved,
        endpoint,
        fused,
    )


def index_to_quantics(
    index: ArrayLike,
    bits: int | Sequence[int],
    *,
    base: int = 2,
    interleaved: bool = True,
    fused: bool = False,
) -> np.ndarray:
    """Converts grid indices (…, dims) to quantics digits, most significant first.

    Args:
      index: integers (…, dims), each in [0, base^bits).
      bits: digits a dimension, one number or one a dimension.
      base: of the digits.
      interleaved: whether digits of one significance stand together, (x_0, y_0, x_1, y_1, …); else
        dimensions follow each other.
      fused: whether digits of one significance are one mode; see `quantics_grid`.

    Returns:
      NumPy integers (…, modes): dims·bits, or as many as the longest dimension has if fused.

    Raises:
      ValueError: an index outside [0, base^bits), or one that is no integer array.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.index_to_quantics([[6, 1]], bits=3))
      [[1 0 1 0 0 1]]
      >>> print(tt.index_to_quantics([[6, 1]], bits=3, interleaved=False))
      [[1 1 0 0 0 1]]
      >>> print(tt.index_to_quantics([[6, 1]], bits=3, fused=True))
      [[2 2 1]]

    Source: Khoromskij (2011), see `quantics_grid`.
    """
    index = _integers("index", index)
    each = _bits(bits, index.shape[-1], base)
    _check_order(interleaved, fused)
    sizes = [base**n for n in each]
    if index.size and (index.min() < 0 or _above(index, sizes)):
        limits = sizes[0] if len(set(sizes)) == 1 else tuple(sizes)
        raise ValueError(
            f"index: expected values in [0, {limits}), got {index.min()} to {index.max()}"
        )
    if each.count(each[0]) == len(each):  # no copies of the indices
        digits = index[..., None] // _powers(base, each[0]) % base  # (…, dims, bits)
        digits = digits.swapaxes(-1, -2) if interleaved else digits
        digits = digits.reshape(*index.shape[:-1], -1)
    else:
        where = places(each, interleaved)
        powers = np.array([base ** (each[dim] - 1 - level) for dim, level in where], np.int64)
        digits = index[..., [dim for dim, _ in where]] // powers % base
    if not fused:
        return digits
    counts = fused_counts(each)
    weights = np.concatenate([base ** np.arange(n)[::-1] for n in counts])
    return np.add.reduceat(digits * weights, np.cumsum([0, *counts[:-1]]), axis=-1)


def quantics_to_index(
    digits: ArrayLike,
    *,
    dims: int = 1,
    base: int = 2,
    interleaved: bool = True,
    bits: int | Sequence[int] | None = None,
    fused: bool = False,
) -> np.ndarray:
    """Converts quantics digits (…, modes), most significant first, to grid indices.

    Args:
      digits: integers (…, modes), each in [0, base); in [0, base^dims) if fused.
      dims: dimensions of the grid.
      base: of the digits.
      interleaved: whether digits of one significance stand together; see `index_to_quantics`.
      bits: digits of each dimension; as many in all of them if None.
      fused: whether digits of one significance are one mode; see `quantics_grid`.

    Returns:
      NumPy integers (…, dims).

    Raises:
      ValueError: a last axis that ``dims`` and ``bits`` do not fit, or digits out of range.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.quantics_to_index([[1, 0, 1, 0, 0, 1]], dims=2))
      [[6 1]]
      >>> print(tt.quantics_to_index([[2, 2, 1]], dims=2, fused=True))
      [[6 1]]

    Source: Khoromskij (2011), see `quantics_grid`.
    """
    digits = _integers("digits", digits)
    dims = _check.integer("dims", dims, low=1)
    each = _counted(digits.shape[-1], dims, bits, base, fused)
    _check_order(interleaved, fused)
    if fused:
        digits = _unfused(digits, fused_counts(each), base)
    elif digits.size and (digits.min() < 0 or digits.max() >= base):
        raise ValueError(
            f"digits: expected values in [0, {base}), got {digits.min()} to {digits.max()}"
        )
    if each.count(each[0]) < len(each):
        powers = [_powers(base, n) for n in each]
        held = [dim for dim, _ in places(each, interleaved)]
        columns = [np.flatnonzero(np.array(held) == dim) for dim in range(dims)]
        return np.stack([digits[..., c] @ p for c, p in zip(columns, powers, strict=True)], -1)
    if interleaved:
        split = digits.reshape(*digits.shape[:-1], each[0], dims).swapaxes(-1, -2)
    else:
        split = digits.reshape(*digits.shape[:-1], dims, each[0])
    return split @ _powers(base, each[0])


@functools.cache
def _powers(base: int, bits: int) -> np.ndarray:
    return np.array([base**k for k in range(bits - 1, -1, -1)], np.int64)


def places(bits: Sequence[int], interleaved: bool) -> list[tuple[int, int]]:
    """Returns dimension and level of each digit of a quantics grid, from digits per dimension.

    Levels count from the most significant digit, so that digits of one level tell of one share of
    each dimension's length, however many digits follow.
    """
    if not interleaved:
        return [(dim, level) for dim, n in enumerate(bits) for level in range(n)]
    levels = range(max(bits))
    return [(dim, level) for level in levels for dim, n in enumerate(bits) if level < n]


def fused_counts(bits: Sequence[int]) -> list[int]:
    """Returns how many digits each mode of a fused quantics grid holds."""
    return [sum(level < n for n in bits) for level in range(max(bits))]


def _above(index: np.ndarray, sizes: Sequence[int]) -> bool:
    if sizes.count(sizes[0]) == len(sizes):
        return bool(index.max() >= sizes[0])
    return bool((index >= np.array(sizes)).any())


def _each(value: int | tuple[int, ...], dims: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * dims


def _bits(bits: Any, dims: int, base: int) -> tuple[int, ...]:
    """Returns the number of digits of each dimension of a quantics grid; ValueError if unfit."""
    if type(bits) is int or type(bits) is tuple:
        return _known_bits(bits, dims, base)
    return _known_bits(tuple(bits) if np.ndim(bits) else bits, dims, base)


@functools.lru_cache(typed=True)
def _known_bits(bits: Any, dims: int, base: int) -> tuple[int, ...]:
    given = bits if isinstance(bits, tuple) else [bits] * dims
    if len(given) != dims:
        raise ValueError(f"bits: expected one number or {dims}, one a dimension, got {bits!r}")
    each = tuple(_check.integer("bits", n, low=1) for n in given)
    if base ** max(each, default=0) > 2**63:
        raise ValueError(f"bits: expected base**bits of at most 2**63 points, got {bits!r}")
    return each


def _check_order(interleaved: bool, fused: bool) -> None:
    if fused and not interleaved:
        raise ValueError("fused: expected interleaved digits, got interleaved=False")


def _counted(modes: int, dims: int, bits: Any, base: int, fused: bool) -> tuple[int, ...]:
    """Returns each dimension's number of digits in a quantics grid; ValueError for wrong modes."""
    if bits is None:
        count, rest = (modes, 0) if fused else divmod(modes, dims)
        if rest or not count:
            raise ValueError(
                f"digits: expected a last axis of dims·bits with dims = {dims}, got {modes}"
            )
        return _bits(count, dims, base)
    each = _bits(bits, dims, base)
    expected = max(each) if fused else sum(each)
    if modes != expected:
        raise ValueError(f"digits: expected a last axis of {expected} digits, got {modes}")
    return each


def _unfused(digits: np.ndarray, counts: Sequence[int], base: int) -> np.ndarray:
    """Splits fused digits of a quantics grid into the digits of single dimensions."""
    sizes = np.array([base**n for n in counts])
    if digits.size and (digits.min() < 0 or (digits >= sizes).any()):
        raise ValueError(
            f"digits: expected fused values in [0, {sizes.max()}), got {digits.min()} to "
            f"{digits.max()}"
        )
    weights = np.concatenate([base ** np.arange(n)[::-1] for n in counts])
    return np.repeat(digits, counts, axis=-1) // weights % base


def _integers(name: str, value: Any) -> np.ndarray:
    if _check.is_traced(value):
        raise TypeError(
            f"{name}: expected concrete integers, got traced ones: grid indices are of 64 bits, on "
            "the host; convert them outside of jit, vmap and grad"
        )
    array = np.asarray(value)
    if array.ndim == 0 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: expected integers with at least one axis, got {array.dtype} {array.shape}"
        )
    return array.astype(np.int64)


def digits_of(grid: QuanticsGrid) -> tuple[int, ...]:
    """Returns the number of digits of each dimension of a quantics grid."""
    return grid.bits if isinstance(grid.bits, tuple) else (grid.bits,) * grid.dims


def sizes_of(grid: QuanticsGrid) -> tuple[int, ...]:
    """Returns the number of points of each dimension of a quantics grid."""
    return tuple(grid.base**n for n in digits_of(grid))


def grid_places(grid: QuanticsGrid) -> list[tuple[int, int]]:
    """Returns the dimension and level of each digit of a quantics grid, in order."""
    return places(digits_of(grid), grid.interleaved)


def checked_grid(grid: Any) -> QuanticsGrid:
    """Returns a quantics grid; raises TypeError for anything else."""
    if not isinstance(grid, QuanticsGrid):
        raise TypeError(f"grid: expected a tt.quantics_grid, got {type(grid).__name__}")
    return grid
