"""Panels of a figure, with letters as titles."""

import string
from collections.abc import Iterable

from matplotlib.axes import Axes


def letter(axes: Iterable[Axes]) -> None:
    """Titles the panels of a figure (a), (b), …, in the order given, with small tick labels.

    Those between the decades of a logarithmic axis are smaller still: they touch in short ranges.
    """
    for axis, name in zip(axes, string.ascii_lowercase, strict=False):
        axis.set_title(f"({name})", loc="left", fontweight="bold", fontsize=10)
        axis.tick_params(labelsize=8)
        axis.tick_params(which="minor", labelsize=6)


def grid(axes: Iterable[Axes]) -> None:
    """Draws faint grid lines at the ticks of all panels."""
    for axis in axes:
        axis.grid(alpha=0.25, linewidth=0.6)
