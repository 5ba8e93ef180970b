"""Tables and figure of the comparison: accuracy against parameters, beside the paper's."""

import collections
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.comera.methods import ADAPTIVE, EQUAL, LATE, NAMES

# From memory, of other models on other data: beside ours for orientation only.
PAPER: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "flights": (
        {"method": "dense", "accuracy": 78.75, "dense / parameters": 1},
        {"method": "CoMERA early", "accuracy": 78.76, "dense / parameters": 99},
    ),
    "code": ({"method": "CoMERA early", "dense / parameters": 4.23},),
    "pairs": (
        {"method": "dense", "accuracy": 62.2, "dense / parameters": 1},
        {"method": "CoMERA early", "accuracy": 63.3, "dense / parameters": 43},
        {"method": "CoMERA late 0.8", "accuracy": 62.2, "dense / parameters": 52},
        {"method": "CoMERA late 0.5", "accuracy": 62.1, "dense / parameters": 65},
        {"method": "CoMERA late 0.2", "accuracy": 61.5, "dense / parameters": 80},
    ),
}


def title(result: Mapping[str, Any]) -> str:
    """Returns the name of a result's method, with its target if it has one."""
    target = result["target"]
    return NAMES[result["method"]] + ("" if target is None else f" {target:g}")


def groups(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Groups results by method and target, all seeds together."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        found.setdefault(title(result), []).append(result)
    return found


def rows(results: Sequence[Mapping[str, Any]], dense: int) -> list[dict[str, Any]]:
    """Returns the table rows of a task: means over seeds, and their spread."""
    return [row(name, found, dense) for name, found in groups(results).items()]


def row(name: str, found: Sequence[Mapping[str, Any]], dense: int) -> dict[str, Any]:
    """Returns the table row of one method: means over seeds, and their spread."""
    best = [r["best"] for r in found]
    legs = [r["records"] for r in found]
    numbers = statistics.mean(b["numbers"] for b in best)
    scores = {name: [b["test"][name] for b in best] for name in best[0]["test"]}
    cells: dict[str, Any] = {
        "method": name,
        "parameters": round(numbers),
        "dense / parameters": dense / numbers,
    }
    for metric, values in scores.items():
        cells[metric] = statistics.mean(values)
        if len(values) > 1 and metric != "loss":
            cells[f"± {metric}"] = statistics.stdev(values)
    cells |= {
        "seeds": len(found),
        "rate": found[0]["rate"],
        "chosen": found[0]["note"],
        "compilations": max(sum(r["compilations"] for r in leg) for leg in legs),
    }
    if "size_target" in found[0]:
        reached = [r["records"][-1]["tensorised"] / r["size_target"] for r in found]
        cells["size / S₀"] = max(reached)
        said = collections.Counter(r["status"] for r in found)
        cells["status"] = ", ".join(f"{count} {name}" for name, count in said.items())
    return cells


def metrics(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Returns the metrics of a task: points below dense, and above models of equal size."""
    by_name = {row["method"]: row for row in rows}
    dense = by_name.get(NAMES["dense"])
    ours = [r for r in rows if r["method"].startswith("CoMERA")]
    found: dict[str, Any] = {}
    small = [r for r in ours if r["dense / parameters"] >= 10]
    if dense and small:
        best = max(small, key=lambda r: r[metric])
        found["best_10x"] = best["method"]
        found["points_below_dense"] = dense[metric] - best[metric]
    found |= above_equal_size(by_name, ours, metric)
    late = [r["size / S₀"] for r in ours if r.get("size / S₀") is not None]
    if late:
        found["largest_size_over_target"] = max(late)
    return found


def above_equal_size(
    by_name: Mapping[str, Mapping[str, Any]], ours: Sequence[Mapping[str, Any]], metric: str
) -> dict[str, float]:
    """Computes our accuracy points above the best model of equal size.

    For each late stage and target too.
    """

    def best(size: str) -> Mapping[str, Any] | None:
        equal = [by_name[name] for m in EQUAL if (name := NAMES[m] + size) in by_name]
        return max(equal, key=lambda row: row[metric], default=None)

    found, other = {}, best("")
    # All of equal size fit the same budget.
    limit = max((by_name[NAMES[m]]["parameters"] for m in EQUAL if NAMES[m] in by_name), default=0)
    small = [row[metric] for row in ours if row["parameters"] <= limit]
    if other and small:
        found["points_above_equal_size"] = max(small) - other[metric]
    for method in LATE:
        for row in ours:
            name, _, share = row["method"].rpartition(" ")
            other = best(f" {share}")
            if name == NAMES[method] and other:  # S₀ is that budget
                found[f"{method}_{share}_above_equal_size"] = row[metric] - other[metric]
    return found


def planted(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns one method's row in the table of planted ranks."""
    ratios = [row["ratio"] for row in rows]
    return {
        "method": rows[0]["method"],
        "seeds": len(rows),
        "size / planted": statistics.median(ratios),
        "largest": max(ratios),
        "found": sum(row["ratio"] <= 1.5 and row["error"] <= 0.01 for row in rows),
        "exact ranks": sum(bool(row["exact"]) for row in rows),
        "largest error": max(row["error"] for row in rows),
        "Σ‖G‖² growth": max(row["Σ‖G‖² largest"] / row["Σ‖G‖² start"] for row in rows),
        "seconds": sum(row["seconds"] for row in rows),
    }


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
        found = groups([r for r in results if r["method"] == method])
        look: dict[str, Any] = {"color": COLORS[method], "marker": MARKERS[method]}
        means = []
        for group in found.values():
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
        axis.plot(steps, means, color=color, label=title(result), **look)
    axis.set_xlabel("step", fontsize=9)
    axis.set_ylabel("TT-ranks", fontsize=9)
