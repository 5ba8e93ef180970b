"""The figure: score against numbers, and ranks over time."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.comera import report

COLORS = (
    "#000000",
    "#7f7f7f",
    "#e69f00",
    "#56b4e9",
    "#009e73",
    "#0072b2",
    "#d55e00",
    "#cc79a7",
    "#882255",
)
MARKERS = "osD^v*PhX"
Results = Sequence[Mapping[str, Any]]


def overview(found: Mapping[str, tuple[str, Results]]) -> Figure:
    """Draws a column a task.

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
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=7.5, frameon=False)
    figure.tight_layout(rect=(0, 0.03 + 0.025 * (len(labels) // 4 + 1), 1, 1))
    return figure


def pareto(axis: Axes, results: Results, metric: str) -> None:
    """Test scores against numbers: a point a seed, a large one for the mean."""
    for k, (name, group) in enumerate(report.groups(results).items()):
        color, marker = COLORS[k % len(COLORS)], MARKERS[k % len(MARKERS)]
        numbers = [r["best"]["numbers"] for r in group]
        scores = [r["best"]["test"][metric] for r in group]
        axis.scatter(numbers, scores, s=10, alpha=0.6, color=color, marker=marker)
        mean = (sum(numbers) / len(numbers), sum(scores) / len(scores))
        axis.scatter([mean[0]], [mean[1]], s=46, label=name, color=color, marker=marker)
    axis.set_xscale("log")
    axis.set_xlabel("numbers", fontsize=9)
    axis.set_ylabel(f"{metric} on the test split [%]", fontsize=9)


def ranks(axis: Axes, results: Results) -> None:
    """Ranks of the first seed over its steps: each bond thin, their mean thick."""
    drawn = [r for r in results if r["method"] in ("early", "late")]
    drawn = [r for r in drawn if r["seed"] == drawn[0]["seed"]]
    names = list(report.groups(results))
    for result in drawn:
        color = COLORS[names.index(report.title(result)) % len(COLORS)]
        records = [*result.get("early", [])[-1:], *result["records"]]
        steps = [record["step"] for record in records]
        bonds = [[r for layer in record["ranks"].values() for r in layer] for record in records]
        for line in zip(*bonds, strict=True):
            axis.plot(steps, line, color=color, linewidth=0.4, alpha=0.35)
        means = [sum(b) / len(b) for b in bonds]
        axis.plot(steps, means, color=color, linewidth=2.2, marker="o", markersize=3)
    axis.set_xlabel("step", fontsize=9)
    axis.set_ylabel("TT-ranks", fontsize=9)
