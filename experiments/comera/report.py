"""Tables of the results of `comera`, and the paper's published results, as recalled."""

import collections
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.comera.methods import EQUAL, LATE, NAMES

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
