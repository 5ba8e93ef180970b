"""Patches of patched trains, drawn on their quantics grid."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle

from tensorjax import _check
from tensorjax._typing import ArrayLike
from tensorjax.plot._axes import INK, axes_of
from tensorjax.tt.patches.patched_train import PatchedTT
from tensorjax.tt.quantics.grids import QuanticsGrid


def patches(
    p: PatchedTT, grid: QuanticsGrid, *, points: ArrayLike | None = None, ax: Axes | None = None
) -> Axes:
    """Draws the patches of a function on a quantics grid, coloured by their largest TT-rank.

    Args:
      p: patched train of the grid's shape.
      grid: `tensorjax.tt.quantics_grid` of one or two dimensions, interleaved or fused if two.
      points: coordinates (m, dims) to mark, such as those of peaks; none if None.
      ax: to draw into; new axes if None.

    Returns:
      The axes. Of two dimensions, rectangles with a colour bar; of one, bars as high as the ranks.

    Raises:
      TypeError: no patched train, or no grid. ValueError: another shape than the grid's, more than
        two dimensions, digits of the dimensions one after the other.

    Example:
      >>> import matplotlib
      >>> matplotlib.use("Agg")
      >>> from tensorjax import plot, tt
      >>> grid = tt.quantics_grid(0.0, 1.0, bits=3)
      >>> halves = tt.patches.PatchedTT(grid.shape, [(0,), (1,)], [tt.ones((2, 2))] * 2)
      >>> len(plot.patches(halves, grid).collections)
      1

    Source: ours.
    """
    if not isinstance(p, PatchedTT):
        raise TypeError(f"p: expected a PatchedTT, got {_check.short(p)}")
    if not isinstance(grid, QuanticsGrid):
        raise TypeError(f"grid: expected a tt.quantics_grid, got {_check.short(grid)}")
    if p.shape != grid.shape:
        raise ValueError(f"p: expected shape {grid.shape}, that of the grid, got {p.shape}")
    if grid.dims > 2 or (grid.dims == 2 and not (grid.interleaved or grid.fused)):
        raise ValueError(
            "grid: expected one dimension, or two of interleaved or fused digits, in which a patch "
            f"is a rectangle, got {grid.dims}"
        )
    ax = axes_of(ax, 4.8, 4.0)
    found = np.array([max(t.ranks) for t in p.trains])
    shapes = [_rectangle(p, grid, k, rank) for k, rank in enumerate(found)]
    drawn = PatchCollection(shapes, edgecolor=INK, linewidth=0.6, cmap="viridis")
    drawn.set_array(found)
    ax.add_collection(drawn)
    ends = [(a, b) for a, b in zip(grid.low, grid.high, strict=True)]
    ax.set_xlim(*ends[0])
    ax.set_ylim(*(ends[1] if grid.dims == 2 else (0, 1.1 * found.max())))
    ax.set(xlabel="$x_1$", ylabel="$x_2$" if grid.dims == 2 else "largest TT-rank")
    if grid.dims == 2:
        ax.figure.colorbar(drawn, ax=ax, label="largest TT-rank")
    if points is not None:
        at = _check.points("points", points).reshape(-1, grid.dims)
        ax.plot(at[:, 0], at[:, 1] if grid.dims == 2 else np.zeros(len(at)), "r+", ms=7)
    return ax


def _rectangle(p: PatchedTT, grid: QuanticsGrid, patch: int, rank: int) -> Rectangle:
    """Builds the rectangle of a patch, from its first point to one spacing behind its last."""
    lead = p.prefixes[patch]
    rest = p.shape[len(lead) :]
    corners = ([*lead, *([0] * len(rest))], [*lead, *(n - 1 for n in rest)])
    low, last = (grid.coordinates(np.array(c)) for c in corners)
    widths = last - low + np.array(grid.spacing)
    return Rectangle(
        (low[0], low[1] if grid.dims == 2 else 0),
        widths[0],
        widths[1] if grid.dims == 2 else rank,
    )
