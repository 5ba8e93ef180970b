"""Figures of the experiment `pde`: ranks over time, and densities with moving coordinates."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.pde.solve import Found
from tensorjax import pde

COLORS = {
    "fixed": "#7f7f7f",
    "convex": "#e69f00",
    "flow": "#cc79a7",
    "ours": "#0072b2",
}
FEEDBACK = "#009e73"
# Lines that coincide are still seen.
WIDTHS = {"convex": 3.2}
# Levels of a density, over its largest value.
LEVELS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)
# Of a panel of a density, in standard deviations.
REACH = 4.0
# Points of a marginal, and lines of the grid, along an axis.
POINTS, LINES = 101, 15


def ranks(found: Sequence[Found]) -> Figure:
    """Draws the largest rank over time, one panel for each problem at its smallest tolerance."""
    groups = _tightest(found)
    columns = min(4, len(groups))
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(3.3 * columns, 2.6 * rows + 0.5))
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, runs in zip(axes, groups, strict=False):
        for run in runs:
            stats = run.solution.stats
            t, rank = np.append(0.0, stats["t"]), stats["rank"]
            rank = np.append(max(run.solution.ys[0].v.ranks), rank)
            color = COLORS.get(run.coordinates, FEEDBACK)
            width = WIDTHS.get(run.coordinates, 1.4)
            axis.plot(t, rank, color=color, label=run.coordinates, linewidth=width,
                      drawstyle="steps-post")  # fmt: skip
        case = runs[0].case
        axis.set_title(f"{case.name}, tol {case.tol:g}", fontsize=9)
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:.0f}")
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_ylim(0.9, 1.2 * max(r.solution.stats["rank"].max() for r in runs) + 1)
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.tick_params(labelsize=7)
    for axis in axes[len(groups) :]:
        axis.set_axis_off()
    lines = {label: line for axis in axes for line, label in
             zip(*axis.get_legend_handles_labels(), strict=True)}  # fmt: skip
    figure.legend(list(lines.values()), list(lines), loc="lower center", ncols=5, fontsize=8,
                  frameon=False)  # fmt: skip
    figure.supylabel("largest TT-rank", fontsize=9)
    low = (0.22 + 0.2 * -(-len(lines) // 5)) / figure.get_figheight()  # above the legend's rows
    figure.supxlabel("time", fontsize=9, y=low)
    figure.tight_layout(rect=(0.01, low, 1, 1))
    return figure


def frames(found: Sequence[Found]) -> Figure:
    """Draws densities over time: in x with the grid of y, and in y below."""
    runs = _drawn(found)
    columns = max(len(run.solution.ys) for run in runs)
    figure = Figure(figsize=(2.3 * columns, 4.5 * len(runs)))
    axes = figure.subplots(2 * len(runs), columns, squeeze=False)
    for axis in axes.ravel():
        axis.set_axis_off()
    for i, run in enumerate(runs):
        for k, state in enumerate(run.solution.ys):
            top, bottom = axes[2 * i][k], axes[2 * i + 1][k]
            _physical(top, run, state)
            _moving(bottom, run, state)
            top.set_title(f"{run.case.name}, t = {state.t:.3g}", fontsize=8)
            bottom.set_title(f"in y, ranks {list(state.v.ranks[1:-1])}", fontsize=8)
    figure.tight_layout()
    return figure


def _tightest(found: Sequence[Found]) -> list[list[Found]]:
    """Returns the runs of each problem at its smallest tolerance."""
    out: dict[str, list[Found]] = {}
    for run in found:
        if not len(run.solution.stats["t"]):
            continue
        known = out.get(run.case.name)
        if known is None or run.case.tol < known[0].case.tol:
            out[run.case.name] = [run]
        elif run.case.tol == known[0].case.tol:
            known.append(run)
    return list(out.values())


def _drawn(found: Sequence[Found]) -> list[Found]:
    """Chooses the runs to draw: a plane one, and one in four dimensions."""
    ours = [run for runs in _tightest(found) for run in runs if run.coordinates == "ours"]
    flat = sorted((r for r in ours if r.case.problem.dim == 2), key=lambda r: r.case.name != "P4")
    many = sorted(
        (r for r in ours if r.case.problem.dim > 2),
        key=lambda r: (r.case.name != "Hénon–Heiles", r.case.problem.dim),
    )
    return [*flat[:1], *many[:1]]


def _physical(axis: Axes, run: Found, state: pde.State) -> None:
    """Draws the marginal density of x₁ and x₂, with lines of constant y₁ and y₂.

    In more than two dimensions the lines are those in the plane through the mean.
    """
    box = run.case.problem.box
    _, mean, covariance = pde.moments(state.v, state.map, box)
    x1, x2 = _points(mean, covariance)
    plane = np.tile(mean, (x1.size * x2.size, 1))
    plane[:, :2] = np.stack(np.meshgrid(x1, x2, indexing="ij"), -1).reshape(-1, 2)
    _, density = pde.marginal(state.v, state.map, box, (0, 1), points=[x1, x2])
    axis.contourf(x1, x2, density.T, levels=_levels(density), cmap="Blues")
    y = np.asarray(state.map.forward(plane)).reshape(x1.size, x2.size, -1)
    for k, a in enumerate(box.axes[:2]):
        levels = np.linspace(a.low, a.high, LINES)
        axis.contour(
            x1, x2, y[..., k].T, levels=levels, colors="black", linewidths=0.35, linestyles="solid"
        )
    axis.set_aspect("equal")


def _moving(axis: Axes, run: Found, state: pde.State) -> None:
    """Draws the marginal density of the moving coordinates y₁ and y₂."""
    box = run.case.problem.box
    still = pde.AffineMap.identity(box.dim)
    _, mean, covariance = pde.moments(state.v, still, box)
    y1, y2 = _points(mean, covariance)
    _, density = pde.marginal(state.v, still, box, (0, 1), points=[y1, y2])
    axis.contourf(y1, y2, density.T, levels=_levels(density), cmap="Greens")
    axis.set_aspect("equal")


def _points(mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns grid points of a square about the mean that holds the density."""
    reach = REACH * np.sqrt(np.diag(covariance)[:2].max())
    return (
        mean[0] + reach * np.linspace(-1, 1, POINTS),
        mean[1] + reach * np.linspace(-1, 1, POINTS),
    )


def _levels(density: np.ndarray) -> np.ndarray:
    return density.max() * np.asarray(LEVELS)
