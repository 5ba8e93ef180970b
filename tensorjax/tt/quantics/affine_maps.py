"""Affine maps of the coordinates of quantics grids, as TT-matrices of zeros and ones."""

import itertools
from collections.abc import Iterable
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
    dtype: DTypeLike | None = None,
) -> TTMatrix:
    """Constructs the affine change of grid indices, (T f)(i) = f(A i + b), as a TT-matrix.

    With b = 0 and a grid that begins at zero it maps coordinates too, (T f)(x) = f(A x). The
    transpose moves values the other way: to A i + b the one at i.

    Args:
      grid: `tensorjax.tt.quantics_grid`; of several dimensions interleaved or fused, with as many
        digits in each.
      linear: integers A (dims, dims), or one for a single dimension.
      offset: integers b (dims,), or one for all dimensions.
      boundary: "periodic", indices are taken modulo the points; or "dirichlet", f is zero outside.
      dtype: of the matrix; JAX's default float if None.

    Returns:
      TTMatrix of entries 0 and 1. TT-ranks are the numbers of carries between digits, whatever the
      number of digits is: of one dimension at most |A| + 1, of an unfused grid some more within the
      digits of one significance.

    Raises:
      TypeError: no grid, numbers that are no integers. ValueError: another shape of A or b, digits
        that are neither interleaved nor fused, entries of A that are so large that ranks exceed
        4096.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid(0.0, 1.0, bits=3)
      >>> print(tt.quantics.affine(grid, 3, 1) @ jnp.arange(8.0))
      [1. 4. 7. 2. 5. 0. 3. 6.]

      Coordinates (x, y) → (x + y, x − y) on 2^20 points each:

      >>> plane = tt.quantics_grid([0.0, 0.0], [1.0, 1.0], bits=20, fused=True)
      >>> max(tt.quantics.affine(plane, [[1, 1], [1, -1]]).ranks)
      4

    Source: ours; the additions with carries of `shift`, for several summands.
    """
    dims = checked_grid(grid).dims
    a = _integers("linear", linear, (dims, dims))
    b = _integers("offset", offset, (dims,))
    _check.choice("boundary", boundary, ("dirichlet", "periodic"))
    bits = digits_of(grid)
    if dims > 1 and (len(set(bits)) > 1 or not (grid.interleaved or grid.fused)):
        raise ValueError(
            "grid: expected as many digits in every dimension, interleaved or fused: carries of "
            "digits that stand far apart have high ranks"
        )
    steps, tops = _steps(grid, a, b)
    # What is left over at the first digit: indices beyond the grid, by so many times its points.
    beyond = [int(k) // n for k, n in zip(b, sizes_of(grid), strict=True)]
    inside = tuple(-k for k in beyond)
    start = {top: int(boundary == "periodic" or top == inside) for top in tops}
    return matrix(grid, automaton(steps, start, {(0,) * dims: 1}), dtype)


def _integers(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    found = np.asarray(value)
    if found.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got {_check.short(value)}")
    if found.ndim == 0 and (len(shape) == 1 or shape == (1, 1)):
        found = np.broadcast_to(found, shape)
    if found.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {found.shape}")
    return found.astype(np.int64)


def _steps(
    grid: QuanticsGrid, a: np.ndarray, b: np.ndarray
) -> tuple[list[Step], list[tuple[int, ...]]]:
    """Builds the automaton that computes A i + b digit by digit; returns its first states too.

    The state between two digits is the vector of what digits further right have to add up to. At
    a level it is b·c + (digits of A i + b) − A (digits of i), for carries c out of that level and
    the base b, so it is followed from right to left, where it is zero.
    """
    base, levels = grid.base, digits_of(grid)[0]
    states: set[tuple[int, ...]] = {(0,) * grid.dims}
    steps: list[Step] = []
    for position, (dim, level) in reversed(list(enumerate(grid_places(grid)))):
        step: dict[tuple[Any, Any], np.ndarray] = {}
        for state in states:
            for row, column in itertools.product(range(base), repeat=2):
                left = np.array(state) + a[:, dim] * row
                left[dim] -= column
                _marked(step, tuple(left.tolist()), state, (row, column), base)
        if position == 0 or grid_places(grid)[position - 1][1] != level:
            added = b // base ** (levels - 1 - level) % base
            step = dict(_carried(step, added, base))
        states = {left for left, _ in step}
        if len(states) > _MOST:
            raise ValueError(f"linear: expected smaller entries, got {a.tolist()}: ranks explode")
        steps.append(step)
    return steps[::-1], sorted(states)


def _marked(step: dict[Any, Any], left: Any, right: Any, at: tuple[int, int], base: int) -> None:
    step.setdefault((left, right), np.zeros((base, base)))[at] = 1


def _carried(
    step: dict[Any, np.ndarray], added: np.ndarray, base: int
) -> Iterable[tuple[Any, np.ndarray]]:
    """Yields the blocks of a digit automaton whose sums are multiples of the base, with carries."""
    for (left, right), block in step.items():
        total = np.array(left) + added
        if not (total % base).any():
            yield (tuple((total // base).tolist()), right), block
