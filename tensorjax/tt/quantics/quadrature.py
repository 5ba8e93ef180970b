"""Quadrature weights on quantics grids as trains: trapezoidal and rectangle rules."""

from typing import Any

import numpy as np

from tensorjax._formats.trains import TT
from tensorjax._typing import DTypeLike
from tensorjax.tt.quantics.digit_trains import automaton, over_dimensions, train
from tensorjax.tt.quantics.grids import QuanticsGrid, checked_grid, digits_of


def weights(grid: QuanticsGrid, *, dtype: DTypeLike | None = None) -> TT:
    """Constructs the weights of the trapezoidal rule on a quantics grid as a train.

    Args:
      grid: `tensorjax.tt.quantics_grid`. With its end points the weights are those of the
        trapezoidal rule; without, of the rectangle rule, all ∏ h_j, which is the trapezoidal one
        of periodic functions.
      dtype: of the train; JAX's default float if None.

    Returns:
      TT of the grid's shape. ``tt.inner(weights, t)`` is the integral of a train t over the grid.
      TT-ranks are one without end points, else at most 3 for digits in sequence and 3^dims for
      interleaved or fused ones.

    Raises:
      TypeError: no grid.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> grid = tt.quantics_grid(0.0, 1.0, bits=30, endpoint=True)
      >>> w = tt.quantics.weights(grid)
      >>> print(f"{tt.inner(w, tt.quantics.polynomial(grid, [0.0, 0.0, 3.0])):.3f}")
      1.000

    Source: ours.
    """
    checked_grid(grid)
    return train(grid, over_dimensions(grid, [rule(grid, k) for k in range(grid.dims)]), dtype)


def rule(grid: QuanticsGrid, dim: int) -> list[Any]:
    """Builds the cores, over one dimension's digits, of the grid's quadrature weights."""
    base, bits, h = grid.base, digits_of(grid)[dim], grid.spacing[dim]
    first, last = np.eye(base)[0], np.eye(base)[-1]
    step = {("all", "all"): np.ones(base), ("first", "first"): first, ("last", "last"): last}
    half = -h / 2 if grid.endpoint else 0.0
    start = {"all": h, "first": half, "last": half}
    return automaton([step] * bits, start, dict.fromkeys(start, 1))


def coarse_rule(grid: QuanticsGrid, dim: int) -> list[Any]:
    """Builds cores of a coarse trapezoidal rule on every base-th quantics point, for errors."""
    base, bits, h = grid.base, digits_of(grid)[dim], grid.spacing[dim]
    first, last = np.eye(base)[0], np.eye(base)[-1]
    step = {("all", "all"): np.ones(base), ("first", "first"): first}
    step |= {("last", "last"): last, ("before", "before"): last}
    end = {("all", "all"): first, ("first", "first"): first}
    end |= {("last", "last"): last, ("before", "before"): first}
    # The last interval, of (base − 1) h, lies between the last base-th point and the last one.
    start = {"all": base * h, "first": -base * h / 2, "before": -h / 2, "last": (base - 1) * h / 2}
    return automaton([step] * (bits - 1) + [end], start, dict.fromkeys(start, 1))
