"""Figure of the experiment `comera`: score against parameters, and ranks over time."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.comera import report
from experiments.comera.methods import ADAPTIVE, LATE, NAMES

COLORS: Mapping[str, str] = {
    "dense": "#000000",
    "shrunk": "#7f7f7f",
    "lowrank": "#e69f00",
    "galore": "#56b4e9",
    "fixed": "#009e73",
    "early": "#0072b2",
    "late": "#e69f9f",
    "importance": "#d55e00",
}
TARGETS = ("#d55e00", "#cc79a7", "#882255")  # its targets, where there are ranks to draw
MARKERS = dict(zip(COLORS, "osD^v*PX", strict=True))
Results = Sequence[Mapping[str, Any]]


def overview(found: Mapping[str, tuple[str, Results]]) -> Figure:
    """Draws the figure of scores and ranks, one column for each task.

    Args:
        found: metric and results of each task.
    """
    columns = len(found)
    figure = Figure(figsize=(4.6 * columns, 7.6))
    axes = figure.subplots(2, columns, squeeze=False)
    for column, (task, (metric, results)) in enumerate(found.items()):
        pareto(axes[0][column], results, metric)
        axes[0][column].set_title(task, fontsize=10)
        ranks(axes[1][column], results)
    for axis in axes.flat:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.tick_params(labelsize=8)
    low = 0.0
    for row in (1, 0):  # what the ranks are of, and above it what the scores are of
        handles, labels = axes[row][0].get_legend_handles_labels()
        look: dict[str, Any] = {"ncols": 4, "fontsize": 7.5, "frameon": False}
        if labels:
            figure.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, low), **look)
            low += 0.03 + 0.02 * (len(labels) // 4)
    figure.tight_layout(rect=(0, low + 0.01, 1, 1))
    return figure


def pareto(axis: Axes, results: Results, metric: str) -> None:
    """Draws test scores against parameters: small points for seeds, large ones for means."""
    for method in NAMES:
        groups = report.groups([r for r in results if r["method"] == method])
        look: dict[str, Any] = {"color": COLORS[method], "marker": MARKERS[method]}
        means = []
        for group in groups.values():
            numbers = [r["best"]["numbers"] for r in group]
            scores = [r["best"]["test"][metric] for r in group]
            axis.scatter(numbers, scores, s=10, alpha=0.5, **look)
            means.append((sum(numbers) / len(numbers), sum(scores) / len(scores)))
        if means:
            axis.plot(*zip(*sorted(means), strict=True), label=NAMES[method], linewidth=1, **look)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("parameters", fontsize=9)
    axis.set_ylabel(f"{metric} on the test split [%]", fontsize=9)


def ranks(axis: Axes, results: Results) -> None:
    """Draws the ranks over the steps, of the first seed: bonds thin, their mean thick."""
    drawn = [r for r in results if r["method"] in ADAPTIVE]
    drawn = [r for r in drawn if r["seed"] == drawn[0]["seed"]]
    targets = sorted({r["target"] for r in drawn if r["method"] in LATE}, reverse=True)
    for result in drawn:
        color, style = COLORS["early"], "--" if result["method"] == "late" else "-"
        if result["method"] in LATE:
            color = TARGETS[targets.index(result["target"]) % len(TARGETS)]
        records = [*result.get("early", [])[-1:], *result["records"]]
        steps = [record["step"] for record in records]
        bonds = [[r for layer in record["ranks"].values() for r in layer] for record in records]
        for line in zip(*bonds, strict=True):
            axis.plot(steps, line, color=color, linestyle=style, linewidth=0.3, alpha=0.3)
        means = [sum(b) / len(b) for b in bonds]
        look: dict[str, Any] = {
            "linewidth": 1.8,
            "linestyle": style,
            "marker": "o",
            "markersize": 3,
        }
        axis.plot(steps, means, color=color, label=report.title(result), **look)
    axis.set_xlabel("step", fontsize=9)
    axis.set_ylabel("TT-ranks", fontsize=9)
