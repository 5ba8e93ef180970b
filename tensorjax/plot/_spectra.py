"""Rank profiles and singular values of tensor trains."""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from tensorjax import tt
from tensorjax._cores.ranks import rank_bounds
from tensorjax._formats.trains import TT, TTMatrix
from tensorjax.plot._axes import COLOURS, INK, axes_of, concrete


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
