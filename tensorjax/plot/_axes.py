"""Axes to draw into, and colours shared by all drawings."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from tensorjax import _check

# Colour-blind safe (Okabe and Ito): blue, orange, green, vermilion, purple, sky.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
INK, PALE = "#333333", "#dfe6ea"


def axes_of(ax: Axes | None, width: float = 6.4, height: float = 3.6) -> Axes:
    """Returns the given Matplotlib axes to draw into, or creates new ones of a size in inches.

    Raises:
      TypeError: ``ax`` is something else, such as a figure or an array of axes.
    """
    if ax is None:
        return plt.subplots(figsize=(width, height), layout="constrained")[1]
    if not isinstance(ax, Axes):
        raise TypeError(f"ax: expected matplotlib's Axes or None, got {type(ax).__name__}")
    return ax


def instance(name: str, x: object, kind: type, how: str) -> None:
    """Raises TypeError, with advice, if an object to be drawn is not of the expected class."""
    if not isinstance(x, kind):
        wanted = f"pde.{kind.__name__}, such as {how}"
        raise TypeError(f"{name}: expected a {wanted}, got {type(x).__name__}")


def concrete(name: str, x: object) -> None:
    """Raises TypeError if an argument to be drawn into axes is traced by JAX."""
    if _check.is_traced(x):
        raise TypeError(f"{name}: expected concrete arrays; draw outside jit, vmap and grad")
