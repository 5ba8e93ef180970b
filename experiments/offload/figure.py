"""Figure of the step times of all ways, beside the lower bound."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bars(rows: Sequence[dict[str, Any]]) -> "Figure":
    """Draws the step times as bars, a panel for each size and device, with P* as dashed line."""
    import matplotlib.pyplot as plt

    groups = list(dict.fromkeys((row["size"], row["device"]) for row in rows))
    ways = list(dict.fromkeys(row["way"] for row in rows))[::-1]
    size = (1.9 + 3.2 * len(groups), 1.1 + 0.3 * len(ways))
    figure, axes = plt.subplots(1, len(groups), figsize=size, squeeze=False, sharey=True)
    for place, group in zip(axes[0], groups, strict=True):
        mine = [row for row in rows if (row["size"], row["device"]) == group]
        colours = ["#ed7d31" if row["way"].endswith("overlap") else "#4472c4" for row in mine]
        at = [ways.index(row["way"]) for row in mine]
        place.barh(at, [row["seconds"] for row in mine], color=colours)
        place.axvline(mine[0]["P*"], color="black", linestyle="--", linewidth=1, label="bound P*")
        place.set_title(", ".join(group), fontsize=9)
        place.set_yticks(range(len(ways)), ways, fontsize=8)
        place.tick_params(axis="x", labelsize=8)
        place.set_xlabel("seconds per step", fontsize=9)
        place.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    return figure
