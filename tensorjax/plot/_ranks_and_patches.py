"""Rank profiles and singular values of tensor trains, and patches of patched trains."""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from tensorjax import _check, tt
from tensorjax._cores.ranks import rank_bounds
from tensorjax._formats.trains import TT, TTMatrix
from tensorjax._typing import ArrayLike
from tensorjax.plot._axes import COLOURS, INK, axes_of, concrete
from tensorjax.tt.patches.patched_train import PatchedTT
from tensorjax.tt.quantics.grids import QuanticsGrid


def ranks(
    *trains: TT | TTMatrix, labels: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """Draws the ranks of tensor trains at every bond, with the largest possible ranks.

    Args:
      trains: one or several, of any shapes.
      labels: a name for each, for a legend.
      ax: to draw into; new axes if None.

    Returns:
      The axes; ranks on a logarithmic scale.

    Raises:
      ValueError: no trains, or labels of another number. TypeError: other objects than trains.

    Example:
      >>> import jax
      >>> import matplotlib
      >>> matplotlib.use("Agg")
      >>> from tensorjax import plot, tt
      >>> x = tt.random(jax.random.key(0), (4,) * 6, 3)
      >>> len(plot.ranks(x, x * x, labels=["x", "x²"]).lines)
      3

    Source: ours.
    """
    if not trains:
        raise ValueError("trains: expected one or more, got none")
    if labels is not None and len(labels) != len(trains):
        raise ValueError(f"labels: expected {len(trains)}, one for each train, got {len(labels)}")
    for k, t in enumerate(trains):
        _train(f"trains[{k}]", t)
    ax = axes_of(ax)
    for k, t in enumerate(trains):
        bonds = range(1, len(t.cores))
        name = labels[k] if labels is not None else None
        ax.plot(bonds, t.ranks[1:-1], "o-", color=COLOURS[k % len(COLOURS)], ms=4, label=name)
    highest = 4 * max(max(t.ranks) for t in trains)  # bounds of many modes are out of any scale
    for sizes in dict.fromkeys(map(_sizes, trains)):
        bounds = [min(bound, highest) for bound in rank_bounds(sizes)]
        ax.plot(range(1, len(sizes)), bounds, ":", color=INK, lw=1, label="_bound")
    ax.set(xlabel="bond", ylabel="rank", yscale="log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # ranks are integers: 2, 5, 10, 20
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if labels is not None:
        low, high = ax.get_ylim()
        ax.set_ylim(low, high * (high / low) ** 0.4)  # room for the legend above the lines
        ax.legend(loc="upper left", fontsize=8)
    return ax


def singular_values(t: TT | TTMatrix, *, ax: Axes | None = None) -> Axes:
    """Draws the singular values of a tensor train at every bond, relative to its norm.

    What a rounding to rank r loses at a bond is the root of the sum of squares beyond the r-th.

    Args:
      t: a TT or TTMatrix.
      ax: to draw into; new axes if None.

    Returns:
      The axes; values on a logarithmic scale, a line for each bond from dark to light.

    Raises:
      TypeError: another object, or a traced train. ValueError: NaN or Inf.

    Example:
      >>> import jax
      >>> import matplotlib
      >>> matplotlib.use("Agg")
      >>> from tensorjax import plot, tt
      >>> len(plot.singular_values(tt.random(jax.random.key(0), (4,) * 6, 3)).lines)
      5

    Source: ours; the values are those of `tt.singular_values`.
    """
    _train("t", t)
    concrete("t", t)
    ax = axes_of(ax)
    unit = tt.normalize(cast(Any, t))
    found = [np.asarray(s, np.float64) for s in tt.singular_values(unit)]
    for k, s in enumerate(found):
        shade = 0.75 * k / max(len(found) - 1, 1)
        kept = np.where(s > 0, s, np.nan)  # zeros have no place on a logarithmic scale
        ax.plot(range(1, len(s) + 1), kept, ".-", color=str(shade), lw=0.8, label=f"bond {k + 1}")
    ax.set(xlabel="index", ylabel="singular value / norm", yscale="log")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


def _train(name: str, t: object) -> None:
    if not isinstance(t, TT | TTMatrix):
        raise TypeError(f"{name}: expected a TT or TTMatrix, got {type(t).__name__}")


def _sizes(t: TT | TTMatrix) -> tuple[int, ...]:
    """Returns the mode sizes of a tensor train or TT-matrix, to draw bounds of its ranks."""
    return tuple(math.prod(c.shape[1:-1]) for c in t.cores)


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
