"""Exact trains of indicators on quantics grids: steps, boxes and deltas."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax._formats.trains import TT
from tensorjax._typing import DTypeLike
from tensorjax.tt._constructors import unit
from tensorjax.tt.quantics.digit_trains import automaton, over_dimensions, train
from tensorjax.tt.quantics.elementary_functions import constant
from tensorjax.tt.quantics.grids import QuanticsGrid, checked_grid, digits_of, sizes_of

# States of the automaton of an interval: digits so far equal those of both ends, of the lower end,
# of the upper one, or of neither.
_BOTH, _LOWER, _UPPER, _FREE = "both", "lower", "upper", "free"


def step(grid: QuanticsGrid, at: float, dim: int = 0, *, dtype: DTypeLike | None = None) -> TT:
    """Constructs the step function, 1 where x_dim ≥ ``at`` and 0 elsewhere, on a quantics grid.

    Args:
      grid: `tensorjax.tt.quantics_grid`.
      at: where it steps; points of the grid at it have the value one.
      dim: dimension of the coordinate.
      dtype: of the train; JAX's default float if None.

    Returns:
      TT of the grid's shape, TT-ranks of at most two.

    Raises:
      ValueError: NaN, a dimension out of range. TypeError: no grid, traced numbers.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid(0.0, 1.0, bits=2)
      >>> print(np.ravel(tt.to_dense(tt.quantics.step(grid, 0.25))))
      [0. 1. 1. 1.]

    Source: ours: digits are compared from the most significant one on.
    """
    dim = _check.integer("dim", dim, low=-checked_grid(grid).dims, high=grid.dims - 1) % grid.dims
    low = [-math.inf] * grid.dims
    low[dim] = _number("at", at)
    return _boxed(grid, low, [math.inf] * grid.dims, dtype)


def box(
    grid: QuanticsGrid,
    low: float | Sequence[float],
    high: float | Sequence[float],
    *,
    dtype: DTypeLike | None = None,
) -> TT:
    """Constructs a box indicator on a quantics grid: 1 where low_j ≤ x_j < high_j for all j.

    Args:
      grid: `tensorjax.tt.quantics_grid`.
      low: first ends, one number or one a dimension; −inf for no end.
      high: last ends, which are no part of the box; inf for no end.
      dtype: of the train; JAX's default float if None.

    Returns:
      TT of the grid's shape. TT-ranks are at most three for a dimension whose digits are being
      read: 3 for digits in sequence, 3^dims for interleaved or fused ones. Zero for an empty box.

    Raises:
      ValueError: NaN, another number of ends than of dimensions. TypeError: no grid, traced ends.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid(0.0, 1.0, bits=3)
      >>> print(np.ravel(tt.to_dense(tt.quantics.box(grid, 0.25, 0.625))))
      [0. 0. 1. 1. 1. 0. 0. 0.]

    Source: ours: digits are compared from the most significant one on.
    """
    checked_grid(grid)
    return _boxed(grid, _ends("low", grid, low), _ends("high", grid, high), dtype)


def _boxed(grid: QuanticsGrid, low: Sequence[float], high: Sequence[float], dtype: Any) -> TT:
    factors: list[Any] = []
    for dim in range(grid.dims):
        first, last = (_first_from(grid, dim, x) for x in (low[dim], high[dim]))
        whole = first == 0 and last == sizes_of(grid)[dim]
        factors.append(None if whole else interval(grid.base, digits_of(grid)[dim], first, last))
    if all(f is None for f in factors):
        return constant(grid, dtype=_check.inexact_dtype(dtype))
    return train(grid, over_dimensions(grid, factors), dtype)


def _first_from(grid: QuanticsGrid, dim: int, x: float) -> int:
    """Returns the first index at which a step function is 1: of the first point ≥ x of a grid."""
    low, h, count = grid.low[dim], grid.spacing[dim], sizes_of(grid)[dim]
    if x <= low or x == -math.inf:
        return 0
    if x > low + (count - 1) * h:
        return count
    i = min(math.ceil((x - low) / h), count - 1)
    # As `QuanticsGrid.coordinates` rounds: the quotient may be off by one.
    while i > 0 and low + (i - 1) * h >= x:
        i -= 1
    while i < count and low + i * h < x:
        i += 1
    return i


def interval(base: int, bits: int, first: int, last: int) -> list[Any]:
    """Builds a quantics train's cores of the indicator of first ≤ i < last in one dimension."""
    if first >= last:
        return [np.zeros((1, base, 1))] * bits
    lower, upper = _digits(base, bits, first), _digits(base, bits, last - 1)
    steps = []
    for k, (a, b) in enumerate(zip(lower, upper, strict=True)):
        step: dict[tuple[str, str], np.ndarray] = {}
        for state in (_BOTH, _LOWER, _UPPER, _FREE):
            low = a if state in (_BOTH, _LOWER) else 0
            high = b if state in (_BOTH, _UPPER) else base - 1
            for digit in range(low, high + 1):
                held = state in (_BOTH, _LOWER) and digit == a and any(lower[k + 1 :])
                under = state in (_BOTH, _UPPER) and digit == b
                under = under and any(d < base - 1 for d in upper[k + 1 :])
                after = {(1, 1): _BOTH, (1, 0): _LOWER, (0, 1): _UPPER, (0, 0): _FREE}[held, under]
                step.setdefault((state, after), np.zeros(base))[digit] = 1
        steps.append(step)
    return automaton(steps, {_BOTH: 1}, dict.fromkeys((_BOTH, _LOWER, _UPPER, _FREE), 1))


def _digits(base: int, bits: int, index: int) -> list[int]:
    return [index // base**k % base for k in range(bits - 1, -1, -1)]


def delta(grid: QuanticsGrid, x: float | Sequence[float], *, dtype: DTypeLike | None = None) -> TT:
    """Constructs the indicator of the grid point nearest to x, 1 there and 0 elsewhere; ranks one.

    Args:
      grid: `tensorjax.tt.quantics_grid`.
      x: coordinates, one number or one a dimension.
      dtype: of the train; JAX's default float if None.

    Returns:
      TT of the grid's shape, TT-ranks one. Divided by the volume ∏ h_j of a cell
      (``grid.spacing``), it stands for Dirac's delta.

    Raises:
      ValueError: a point outside of the grid by more than half a cell, another number of
        coordinates. TypeError: no grid, traced coordinates.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid(0.0, 1.0, bits=2)
      >>> print(np.ravel(tt.to_dense(tt.quantics.delta(grid, 0.7))))
      [0. 0. 0. 1.]

    Source: ours.
    """
    point = np.array(_ends("x", checked_grid(grid), x))
    steps = (point - np.array(grid.low)) / np.array(grid.spacing)
    if not ((steps >= -0.5) & (steps <= np.array(sizes_of(grid)) - 0.5)).all():
        raise ValueError(f"x: expected a point of the grid {grid.low} to {grid.high}, got {x!r}")
    return unit(grid.shape, grid.nearest(point).tolist(), dtype)


def _number(name: str, value: Any) -> float:
    if _check.is_traced(value):
        raise TypeError(f"{name}: expected a concrete number, got a traced one: ranks hang on it")
    return _check.number(name, value, finite=False)


def _ends(name: str, grid: QuanticsGrid, value: Any) -> list[float]:
    """Checks an end of a box indicator: one concrete number per dimension of the quantics grid."""
    given = [value] * grid.dims if np.ndim(value) == 0 else list(value)
    if len(given) != grid.dims:
        raise ValueError(f"{name}: expected one number or {grid.dims}, got {value!r}")
    return [_number(name, x) for x in given]
