"""Figures: evaluations and errors over the table of functions, and a function in patches."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from experiments._panels import grid, letter
from tensorjax import plot, tt

SIZE = (12.0, 6.4)  # inches
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
MARKERS = "os^D"
# Errors over the tolerance are drawn in this range.
LOW, HIGH = 1e-6, 1e6


def overview(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draws evaluations and errors over the tolerance, a line for each function.

    Args:
        rows: of the table of cross approximations.
    """
    names = list(dict.fromkeys(row["function"] for row in rows))
    libraries = list(dict.fromkeys(row["library"] for row in rows))
    figure = Figure(figsize=SIZE)
    evaluations, errors = figure.subplots(1, 2, sharey=True)
    letter((evaluations, errors))
    grid((evaluations, errors))
    for k, library in enumerate(libraries):
        mine = [row for row in rows if row["library"] == library]
        style = {"color": COLORS[k % len(COLORS)], "marker": MARKERS[k % len(MARKERS)]}
        shift = 0.16 * (k - (len(libraries) - 1) / 2)
        at = [names.index(row["function"]) + shift for row in mine]
        solved = [(row["evaluations"], y) for row, y in zip(mine, at, strict=True)
                  if row["evaluations"]]  # fmt: skip
        evaluations.plot(*zip(*solved, strict=True), linestyle="", label=library, **style)
        for row, y in zip(mine, at, strict=True):
            error = row["median error"] / row["tol"]
            error = HIGH if not math.isfinite(error) else min(max(error, LOW), HIGH)
            all_good = row["good"] == row["runs"]
            errors.plot(error, y, fillstyle="full" if all_good else "none", **style)
    errors.axvline(1, color="black", linewidth=0.8)
    evaluations.set_xscale("log")
    evaluations.set_xlim(5e2, 1e6)
    errors.set_xscale("log")
    evaluations.set_yticks(range(len(names)), names, fontsize=8)
    evaluations.invert_yaxis()
    evaluations.set_xlabel("evaluations", fontsize=9)
    errors.set_xlabel("true error / tolerance", fontsize=9)
    evaluations.legend(fontsize=8)
    figure.tight_layout()
    return figure


def patched(seed: int) -> tuple[Figure, int]:
    """Draws a function with a ridge and a peak beside its patches; returns how many there are."""
    rng = np.random.default_rng([seed, 99])
    centre, peak, radius = (
        rng.uniform(-0.3, 0.3, 2),
        rng.uniform(-0.8, 0.8, 2),
        rng.uniform(0.3, 0.5),
    )
    places = tt.quantics_grid([-1.0, -1.0], [1.0, 1.0], bits=10, fused=True)

    def ridge(digits: np.ndarray) -> np.ndarray:
        x = places.coordinates(digits)
        far = np.linalg.norm(x - centre, axis=1) - radius
        return 1 / (1 + 2000 * far**2) + np.exp(-((x - peak) ** 2).sum(axis=1) / 2e-2)

    key = jax.random.key(seed)
    p, info = tt.patches.cross(ridge, places.shape, tol=1e-3, max_rank=12, key=key)
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    letter((left, right))
    axis = np.linspace(-1, 1, 150, endpoint=False)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    values = np.asarray(tt.patches.evaluate(p, places.nearest(points)))
    left.contourf(axis, axis, values.T, np.linspace(-0.1, 2.1, 23))
    left.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
    plot.patches(p, places, ax=right).set(aspect="equal")
    return figure, info.patches
