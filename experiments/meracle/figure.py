"""Figure of the experiment `meracle`: storage against error, ranks, recovery, an image."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments._panels import grid, letter
from experiments.meracle.image import Picture

Rows = Sequence[dict[str, Any]]
SIZE = (12.5, 7.6)  # inches
COLORS = ("#0072b2", "#e69f00", "#56b4e9", "#cc79a7", "#009e73")
MARKERS = "osD^v"


def overview(stored: Rows, picture: Picture, found: Rows) -> Figure:
    """Draws the figure of the experiment `meracle`, with six panels.

    Args:
        stored: rows of ``heat.measure``.
        picture: of ``image.measure``.
        found: of ``planted.measure``.
    """
    figure = Figure(figsize=SIZE)
    axes = figure.subplots(2, 3)
    letter(axes.flat)
    grid(axes[0])
    _storage(axes[0, 0], stored)
    _ranks(axes[0, 1], found)
    _recovery(axes[0, 2], found)
    for axis, values, label in zip(
        axes[1], picture, ("original", "MERA, at the tolerance", "top tensor, log |entries|"),
        strict=True,
    ):  # fmt: skip
        shown = np.log10(np.abs(values) + 1e-6) if values is picture.top else values
        axis.imshow(shown, cmap="gray" if values is not picture.top else "viridis", aspect="auto")
        axis.set_xlabel(label, fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    figure.tight_layout()
    return figure


def _storage(axis: Axes, rows: Rows) -> None:
    for name, color, marker in zip(dict.fromkeys(r["format"] for r in rows), COLORS, MARKERS,
                                   strict=True):  # fmt: skip
        line = [r for r in rows if r["format"] == name]
        x, y = [r["error"] for r in line], [r["entries"] for r in line]
        axis.loglog(x, y, color=color, marker=marker, markersize=5, label=name)
    axis.set_xlabel("true relative error\nheat equation", fontsize=9)
    axis.set_ylabel("entries stored", fontsize=9)
    axis.legend(fontsize=7.5)


def _ranks(axis: Axes, found: Rows) -> None:
    largest = max(found, key=lambda row: row["n"])
    layers = largest["layers"]
    trains = [layers[0].ranks_before, *(layer.ranks_after for layer in layers)]
    for k, (ranks, color) in enumerate(zip(trains, COLORS, strict=False)):
        label = "train" if k == 0 else f"above layer {k}"
        position = np.linspace(0, 1, len(ranks))
        axis.semilogy(position, ranks, color=color, marker=MARKERS[k], markersize=5, label=label)
    axis.set_xlabel(f"bond, as a share of the chain\nn = {largest['n']}, r = {largest['r']}",
                    fontsize=9)  # fmt: skip
    axis.set_ylabel("TT-rank", fontsize=9)
    axis.legend(fontsize=7.5)


def _recovery(axis: Axes, found: Rows) -> None:
    cases = list(dict.fromkeys((row["n"], row["r"]) for row in found))
    for k, case in enumerate(cases):
        ratios = [row["found"] / row["planted"] for row in found if (row["n"], row["r"]) == case]
        spread = np.linspace(-0.2, 0.2, len(ratios)) if len(ratios) > 1 else np.zeros(1)
        axis.plot(k + spread, ratios, "o", color=COLORS[k % len(COLORS)], markersize=5)
    axis.axhline(1, color="#7f7f7f", linewidth=0.8)
    axis.set_xticks(range(len(cases)), [f"({n}, {r})" for n, r in cases])
    axis.set_ylim(0.9, max(1.3, axis.get_ylim()[1]))
    axis.set_xlabel("planted case (n, r)", fontsize=9)
    axis.set_ylabel("entries found / planted", fontsize=9)
