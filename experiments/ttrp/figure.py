"""Figure of the experiment `ttrp`, with six panels and one legend."""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments._panels import grid, letter
from experiments.ttrp import distances, images, scaling
from experiments.ttrp.methods import METHODS, Method

Rows = Sequence[dict[str, Any]]

_KNOWN = {m.name: m for m in (*METHODS, images.TTRP_SPLIT, images.PCA, images.RAW)}
_WIDE = Method(f"TTRP Rademacher, m_k = {scaling.WIDE}", METHODS[0].draw, "#d55e00", "h", "-.")
SIZE = (12.5, 8.3)  # inches


def overview(
    measured: Rows, projected: Rows, dense: Rows, trains: Rows, structured: Rows, *, data: str
) -> Figure:
    """Draws the figure of the experiment `ttrp`, with six panels.

    Args:
        measured: rows of ``distances.measure``.
        projected: of ``images.measure``.
        dense: of ``scaling.dense``.
        trains: of ``scaling.trains``.
        structured: of ``structured.measure``.
        data: what the images are.
    """
    figure = Figure(figsize=SIZE)
    axes = figure.subplots(2, 3)
    letter(axes.flat)
    grid(axes.flat)
    _distances(axes[0, 0], measured)
    _accuracy(axes[0, 1], projected, "M", f"output size M\n{data}")
    _accuracy(axes[0, 2], projected, "storage", f"elements stored\n{data}")
    _scaling(axes[1, 0], dense, trains, "storage", "elements stored")
    _scaling(axes[1, 1], dense, trains, "time [ms]", "time to project [ms]")
    _structured(axes[1, 2], structured)
    _legend(figure, axes.flat)
    return figure


def _method(row: dict[str, Any]) -> Method:
    wide = str(row.get("M", "")).startswith(f"{scaling.WIDE}^")
    return _WIDE if wide else _KNOWN[row["method"]]


def _by_method(rows: Rows, column: str) -> dict[Method, Rows]:
    """Groups rows with a value in ``column`` by method."""
    out: dict[Method, list[dict[str, Any]]] = {}
    for row in rows:
        if row.get(column) is not None:
            out.setdefault(_method(row), []).append(row)
    return dict(out)


def _column(rows: Rows, name: str) -> list[Any]:
    return [row.get(name) or 0.0 for row in rows]


def _distances(axis: Axes, rows: Rows) -> None:
    n = max(row["N"] for row in rows)
    for method, line in _by_method([r for r in rows if r["N"] == n], "variance").items():
        axis.loglog(_column(line, "M"), _column(line, "variance"), **method.style)
    found = [r for r in distances.REFERENCE if r["N"] == n]
    if found and any(row["M"] == distances.PAPER_ROWS for row in rows):
        x = [distances.PAPER_ROWS] * len(found)
        label = "reference, measured independently"
        style = {"color": "#000000", "marker": "_", "markersize": 16, "linestyle": ""}
        axis.plot(x, _column(found, "variance"), label=label, **style)
    _ticks(axis, sorted({row["M"] for row in rows}))
    axis.set_xlabel(f"output size M\nGaussian points, N = {n}", fontsize=9)
    axis.set_ylabel("variance of the mean distance ratio", fontsize=9)


def _ticks(axis: Axes, values: Sequence[int]) -> None:
    axis.set_xticks(values, [str(v) for v in values])
    axis.set_xticks([], minor=True)


def _accuracy(axis: Axes, rows: Rows, against: str, label: str) -> None:
    for method, line in _by_method(rows, "accuracy").items():
        if method is images.RAW:
            axis.axhline(line[0]["accuracy"], color=method.color, linestyle=":", label=method.name)
            continue
        spread = _column(line, "accuracy sd")
        x, y = _column(line, against), _column(line, "accuracy")
        axis.errorbar(x, y, yerr=spread, capsize=2, elinewidth=0.8, **method.style)
    axis.set_xscale("log")
    if against == "M":
        _ticks(axis, sorted({row["M"] for row in rows if row["method"] != images.RAW.name}))
    axis.set_ylim(0, 1)
    axis.set_xlabel(label, fontsize=9)
    axis.set_ylabel(f"accuracy, {images.NEIGHBORS} nearest neighbours", fontsize=9)


def _scaling(axis: Axes, dense: Rows, trains: Rows, column: str, label: str) -> None:
    for rows, fill in ((dense, {}), (trains, {"markerfacecolor": "white"})):
        for method, line in _by_method(rows, column).items():
            axis.loglog(_column(line, "N"), _column(line, column), **method.style | fill)
    axis.set_xlabel("input size N\nfilled: dense inputs, hollow: in TT form", fontsize=9)
    axis.set_ylabel(label, fontsize=9)


def _structured(axis: Axes, rows: Rows) -> None:
    for method, line in _by_method(rows, "variance").items():
        d = _column(line, "d")
        look = method.style
        exact: dict[str, Any] = look | {"marker": "", "label": "_"}
        axis.plot(d, _column(line, "exact"), **exact)
        spread = _column(line, "variance ±")
        points: dict[str, Any] = look | {"linestyle": ""}
        axis.errorbar(d, _column(line, "variance"), yerr=spread, capsize=2, **points)
    axis.set_yscale("log")
    _ticks(axis, sorted({row["d"] for row in rows}))
    label = f"factors d of a rank-one input, M = {rows[0]['M']}\npoints: sampled, lines: exact"
    axis.set_xlabel(label, fontsize=9)
    axis.set_ylabel("variance of ‖f(x)‖² / ‖x‖²", fontsize=9)


def _legend(figure: Figure, axes: Iterable[Axes]) -> None:
    """Draws one legend entry for each method, below the panels."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="lower center",
        ncols=5,
        fontsize=8.5,
        frameon=False,
    )
