"""Figure of the experiment `spins`: correlations, ⟨σz⟩ and storage."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments._panels import grid, letter
from experiments.spins.measure import Measured

SIZE = (13.0, 4.2)  # inches
COLORS = ("#0072b2", "#e69f00", "#56b4e9", "#cc79a7", "#009e73", "#d55e00", "#7f7f7f")
MARKERS = "osD^vP*"
# Errors below this are not told apart.
FLOOR = 1e-16


def overview(
    rows: Sequence[dict[str, Any]],
    distances: Sequence[int],
    truth: Measured,
    measured: dict[str, Measured],
) -> Figure:
    """Draws the figure of the experiment `spins`, with three panels.

    Args:
        rows: of the table of energies.
        distances: of the correlations.
        truth: the exact values.
        measured: those of each state.
    """
    figure = Figure(figsize=SIZE)
    correlations, field, storage = figure.subplots(1, 3)
    letter((correlations, field, storage))
    grid((correlations, field, storage))
    correlations.loglog(distances, truth.correlations, color="black", label="exact")
    sites = np.arange(1, len(truth.field) + 1)
    for k, ((name, m), row) in enumerate(zip(measured.items(), rows, strict=True)):
        style = {"color": COLORS[k % len(COLORS)], "label": name}
        marker = MARKERS[k % len(MARKERS)]
        correlations.loglog(distances, m.correlations, marker, markersize=4, **style)
        field.semilogy(sites, np.abs(m.field - truth.field) + FLOOR, linewidth=1, **style)
        error = max(row["error per site"], FLOOR)
        storage.loglog(error, row["entries"], marker, markersize=7, **style)
    correlations.set_xlabel("distance", fontsize=9)
    correlations.set_ylabel("⟨σx σx⟩", fontsize=9)
    field.set_xlabel("site", fontsize=9)
    field.set_ylabel("error of ⟨σz⟩", fontsize=9)
    storage.set_xlabel("error of the energy per site", fontsize=9)
    storage.set_ylabel("entries stored", fontsize=9)
    handles, labels = correlations.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=7.5, frameon=False)
    figure.tight_layout(rect=(0, 0.06 + 0.04 * (len(labels) // 4), 1, 1))
    return figure
