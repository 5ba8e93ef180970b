"""Drawings of PDE solutions: marginal densities, moving coordinates, statistics over time."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tensorjax import _check, pde
from tensorjax.plot._axes import COLOURS, INK, axes_of, concrete, instance


def marginal(
    state: pde.State,
    box: pde.Box,
    axes: int | Sequence[int] = (0, 1),
    *,
    points: int = 128,
    ax: Axes | None = None,
) -> Axes:
    """Draws a marginal density of a PDE solution, over one or two coordinates.

    Args:
      state: of a `pde.Solution`, such as ``solution.final``.
      box: of the problem.
      axes: one physical coordinate, drawn as a curve, or two, drawn as filled contours.
      points: in each direction.
      ax: to draw into; new axes if None.

    Returns:
      The axes.

    Raises:
      ValueError: other numbers of coordinates, no such ones, or a density without positive
        variances. TypeError: a traced state, or no
        state.

    Example:
      >>> import matplotlib, numpy as np
      >>> matplotlib.use("Agg")
      >>> from tensorjax import pde, plot
      >>> box, map = pde.Box.fourier(2, 32), pde.AffineMap.identity(2)
      >>> v = pde.Gaussian(np.zeros(2), np.eye(2)).train(box, map, 1e-5)
      >>> plot.marginal(pde.State(v, map, 0.5), box, (0,)).get_title()
      't = 0.5'

    Source: ours; the values are those of `pde.marginal`.
    """
    instance("state", state, pde.State, "solution.final")
    concrete("state", (state.v, state.map))
    chosen = (axes,) if isinstance(axes, int) else tuple(axes)
    count = _check.integer("points", points, low=2)
    at, values = pde.marginal(state.v, state.map, box, chosen, points=count)
    ax = axes_of(ax, 4.8, 3.6)
    if len(chosen) == 1:
        ax.plot(at[0], values, color=COLOURS[0])
        ax.set(xlabel=_name(chosen[0]), ylabel="density")
    else:
        levels = np.linspace(0.01, 1.0, 25) * values.max()  # below lie the signs of roundoff
        ax.contourf(at[0], at[1], values.T, levels=levels, cmap="Blues")
        ax.set(xlabel=_name(chosen[0]), ylabel=_name(chosen[1]))
    ax.set_title(f"t = {float(state.t):.4g}", fontsize=9)
    return ax


def coordinates(
    map: pde.AffineMap,
    box: pde.Box,
    axes: tuple[int, int] = (0, 1),
    *,
    lines: int = 13,
    ax: Axes | None = None,
) -> Axes:
    """Draws lines of a PDE solution's constant moving coordinates y = Γ x + s, in a plane.

    The plane lies through the image of the box's centre; lines of two of the y are drawn, and the
    others keep their value there.

    Args:
      map: `pde.AffineMap`, such as ``solution.final.map``.
      box: of the coordinates y.
      axes: the two coordinates, of y and of x.
      lines: of each of the two.
      ax: to draw into; new axes if None.

    Returns:
      The axes, of one scale in both directions.

    Raises:
      ValueError: not two different axes of the box, or fewer than two lines. TypeError: a traced
        map, or no map.

    Example:
      >>> import matplotlib, numpy as np
      >>> matplotlib.use("Agg")
      >>> from tensorjax import pde, plot
      >>> sheared = pde.affine(np.array([[1.0, 0.5], [0.0, 1.0]]))
      >>> len(plot.coordinates(sheared, pde.Box.fourier(2), lines=7).lines)
      14

    Source: ours.
    """
    instance("map", map, pde.AffineMap, "solution.final.map")
    concrete("map", map)
    count = _check.integer("lines", lines, low=2)
    first, second = (_check.integer("axes", a, low=0, high=box.dim - 1) for a in axes)
    if first == second:
        raise ValueError(f"axes: expected two different ones, got {tuple(axes)}")
    sides = [(float(a.points.min()), float(a.points.max())) for a in box.axes]
    centre = np.asarray([(low + high) / 2 for low, high in sides])
    ax = axes_of(ax, 4.2, 4.2)
    for fixed, moving, colour in ((first, second, COLOURS[0]), (second, first, COLOURS[1])):
        for value in np.linspace(*sides[fixed], count):
            ends = np.stack([centre, centre])
            ends[:, fixed], ends[:, moving] = value, sides[moving]
            x = np.asarray(map.inverse(ends))
            ax.plot(x[:, first], x[:, second], color=colour, lw=0.7)
    ax.set(xlabel=_name(first), ylabel=_name(second), aspect="equal")
    return ax


def history(solution: pde.Solution, name: str = "rank", *, ax: Axes | None = None) -> Axes:
    """Draws a statistic of a PDE solution over time (rank, step size, mass) as a curve.

    Args:
      solution: of `pde.integrate`.
      name: of `pde.Solution.stats`, with one number for each accepted step: "rank", "dt", "error",
        "cost", "cond", "mass", "edge_mass", "resolution", …
      ax: to draw into; new axes if None.

    Returns:
      The axes; what spans more than two orders of magnitude on a logarithmic scale.

    Raises:
      ValueError: no such statistic, or one that has not one number for each step. TypeError: a
        traced solution, or no solution.

    Example:
      >>> import matplotlib, numpy as np
      >>> matplotlib.use("Agg")
      >>> from tensorjax import pde, plot
      >>> start = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.25]))
      >>> problem = pde.Liouville(np.eye(2), start, pde.Box.fourier(2, 48, 6.0))
      >>> solution = pde.integrate(problem, t1=0.1, dt=0.05, coordinates="fixed")
      >>> plot.history(solution, "dt").get_ylabel()
      'dt'

    Source: ours.
    """
    instance("solution", solution, pde.Solution, "pde.integrate returns")
    concrete("solution", solution.stats)
    times = np.asarray(solution.stats["t"], float)
    shown = {k: v for k, v in solution.stats.items() if np.shape(v) == times.shape}
    if times.ndim != 1 or name not in shown:
        known = ", ".join(shown) or "none: the solution is a batch"
        raise ValueError(f"name: expected one of {known}, got {name!r}")
    values = np.asarray(shown[name], float)
    ax = axes_of(ax)
    ax.step(times, values, where="pre", color=COLOURS[0], lw=1.2)
    positive = values[values > 0]
    if len(positive) == len(values) and np.ptp(np.log10(positive)) > 2:
        ax.set_yscale("log")
    if not np.isfinite(values).any():
        ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", color=INK)
    if np.issubdtype(np.asarray(shown[name]).dtype, np.integer):
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="t", ylabel=name)
    return ax


def _name(axis: int) -> str:
    return f"$x_{{{axis + 1}}}$"
