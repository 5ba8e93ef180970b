"""Affine maps of the coordinates of quantics grids, as TT-matrices of zeros and ones."""

import itertools
import math
import numbers
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from tensorjax import _check
from tensorjax._formats.trains import TTMatrix
from tensorjax._typing import ArrayLike, DTypeLike
from tensorjax.tt.quantics.digit_trains import Step, automaton, matrix
from tensorjax.tt.quantics.grids import QuanticsGrid, checked_grid, digits_of, grid_places, sizes_of

# Largest number of states of a bond, and with it TT-rank, that is not taken for a mistake.
_MOST = 4096


def affine(
    grid: QuanticsGrid,
    linear: ArrayLike,
    offset: ArrayLike = 0,
    *,
    boundary: Literal["dirichlet", "periodic"] = "periodic",
    rounding: Literal["floor", "exact"] = "floor",
    dtype: DTypeLike | None = None,
) -> TTMatrix:
    """Constructs the affine change of grid indices, (T f)(i) = f(A i + b), as a TT-matrix.

    With b = 0 and a grid that begins at zero it maps coordinates too, (T f)(x) = f(A x). On a grid
    of points low + h i, the map x → a x + c has b = (a low + c − low) / h. The transpose moves
    values the other way: to A i + b the one at i.

    Args:
      grid: `tensorjax.tt.quantics_grid`; of several dimensions interleaved or fused, with as many
        digits in each.
      linear: integers A (dims, dims), or fractions of `fractions.Fraction`, or one for a single
        dimension.
      offset: integers or fractions b (dims,), or one for all dimensions.
      boundary: "periodic", indices are taken modulo the points; or "dirichlet", f is zero outside.
      rounding: where A i + b lies between indices: "floor", f is taken at the largest ones below;
        or "exact", zero.
      dtype: of the matrix; JAX's default float if None.

    Returns:
      TTMatrix of entries 0 and 1. TT-ranks are the numbers of carries between digits, whatever the
      number of digits is: of one dimension at most |p| + q for A = p/q with the common denominator
      q of A and b, of an unfused grid some more within the digits of one significance.

    Raises:
      TypeError: no grid, numbers that are no integers or fractions. ValueError: another shape of A
        or b, digits that are neither interleaved nor fused, entries or denominators of A that are
        so large that ranks exceed 4096.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid(0.0, 1.0, bits=3)
      >>> print(tt.quantics.affine(grid, 3, 1) @ jnp.arange(8.0))
      [1. 4. 7. 2. 5. 0. 3. 6.]

      Stretched to twice its length, every value is met twice:

      >>> from fractions import Fraction
      >>> print(tt.quantics.affine(grid, Fraction(1, 2)) @ jnp.arange(8.0))
      [0. 0. 1. 1. 2. 2. 3. 3.]

      Coordinates (x, y) → (x + y, x − y) on 2^20 points each:

      >>> plane = tt.quantics_grid([0.0, 0.0], [1.0, 1.0], bits=20, fused=True)
      >>> max(tt.quantics.affine(plane, [[1, 1], [1, -1]]).ranks)
      4

    Source: ours; the additions with carries of `shift`, for several summands.
    """
    dims = checked_grid(grid).dims
    a, b, common = _scaled(
        _rationals("linear", linear, (dims, dims)), _rationals("offset", offset, (dims,))
    )
    _check.choice("boundary", boundary, ("dirichlet", "periodic"))
    _check.choice("rounding", rounding, ("floor", "exact"))
    bits = digits_of(grid)
    if dims > 1 and (len(set(bits)) > 1 or not (grid.interleaved or grid.fused)):
        raise ValueError(
            "grid: expected as many digits in every dimension, interleaved or fused: carries of "
            "digits that stand far apart have high ranks"
        )
    if math.prod(common) > _MOST:
        raise ValueError(f"linear: expected smaller denominators, got {common}: ranks explode")
    # What A i + b may be above the index times the denominator, in each dimension.
    rests = itertools.product(*(range(q if rounding == "floor" else 1) for q in common))
    end = {tuple(-r for r in rest): 1 for rest in rests}
    steps, tops = _steps(grid, a, b, common, set(end))
    # What is left over at the first digit: indices beyond the grid, by so many times its points.
    beyond = [int(k) // n for k, n in zip(b, sizes_of(grid), strict=True)]
    start = {}
    for top in tops:
        left = [t + k for t, k in zip(top, beyond, strict=True)]
        wrapped = boundary == "periodic" and not any(np.remainder(left, common))
        start[top] = int(wrapped or not any(left))
    return matrix(grid, automaton(steps, start, end), dtype)


def _rationals(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Converts the coefficients of an affine map to an array of `fractions.Fraction`."""
    found = np.asarray(value)
    if found.dtype.kind not in "iu":
        found = np.asarray(value, object)
        if not found.size or not all(isinstance(x, numbers.Rational) for x in found.ravel()):
            raise TypeError(f"{name}: expected integers or fractions, got {_check.short(value)}")
    if found.ndim == 0 and (len(shape) == 1 or shape == (1, 1)):
        found = np.broadcast_to(found, shape)
    if found.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {found.shape}")
    flat = [Fraction(int(x.numerator), int(x.denominator)) for x in found.ravel()]
    out = np.empty(len(flat), object)
    out[:] = flat
    return out.reshape(shape)


def _scaled(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Multiplies rows of an affine map by their common denominators; returns integers and these.

    The offsets stay Python integers, for those of grids of many digits.
    """
    common = [
        math.lcm(offset.denominator, *(x.denominator for x in row))
        for row, offset in zip(a, b, strict=True)
    ]
    rows = [[int(x * q) for x in row] for row, q in zip(a, common, strict=True)]
    offsets = np.array([int(x * q) for x, q in zip(b, common, strict=True)], object)
    return np.array(rows, np.int64), offsets, common


def _steps(
    grid: QuanticsGrid,
    a: np.ndarray,
    b: np.ndarray,
    common: list[int],
    last: set[tuple[int, ...]],
) -> tuple[list[Step], list[tuple[int, ...]]]:
    """Builds the automaton of the affine map A i + b on digits; returns its first states too.

    The state between two digits is the vector of what digits further right have to add up to. At
    a level it is b·c + (digits of A i + b) − A (digits of i), for carries c out of that level and
    the base b, so it is followed from right to left, where it is zero. With denominators q, A and b
    are multiplied by them, indices j count q times, and A i + b − q j may be a rest below q, which
    is subtracted first.

    Args:
      a: integers A (dims, dims).
      b: integers (dims,).
      common: denominators of the dimensions.
      last: states behind the last digit.
    """
    base, levels = grid.base, digits_of(grid)[0]
    states = last
    steps: list[Step] = []
    for position, (dim, level) in reversed(list(enumerate(grid_places(grid)))):
        step: dict[tuple[Any, Any], np.ndarray] = {}
        for state in states:
            for row, column in itertools.product(range(base), repeat=2):
                left = np.array(state) + a[:, dim] * row
                left[dim] -= common[dim] * column
                _marked(step, tuple(left.tolist()), state, (row, column), base)
        if position == 0 or grid_places(grid)[position - 1][1] != level:
            added = np.array([int(x) // base ** (levels - 1 - level) % base for x in b])
            step = dict(_carried(step, added, base))
        states = {left for left, _ in step}
        if len(states) > _MOST:
            raise ValueError(f"linear: expected smaller entries, got {a.tolist()}: ranks explode")
        zero = (0,) * grid.dims
        nothing: Step = {(zero, zero): np.zeros((base, base))}
        steps.append(step or nothing)  # no index is mapped to one of the grid
    return steps[::-1], sorted(states)


def _marked(step: dict[Any, Any], left: Any, right: Any, at: tuple[int, int], base: int) -> None:
    step.setdefault((left, right), np.zeros((base, base)))[at] = 1


def _carried(
    step: dict[Any, np.ndarray], added: np.ndarray, base: int
) -> Iterable[tuple[Any, np.ndarray]]:
    """Yields an affine map's automaton blocks whose digit sums the base divides, with carries."""
    for (left, right), block in step.items():
        total = np.array(left) + added
        if not (total % base).any():
            yield (tuple((total // base).tolist()), right), block
