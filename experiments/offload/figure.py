"""Figure of the step times of all ways, beside the lower bound."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bars(rows: Sequence[dict[str, Any]]) -> "Figure":
    """Draws the step times as bars, grouped by size and device, with P* as dashed line."""
    import matplotlib.pyplot as plt

    groups = list(dict.fromkeys((row["size"], row["device"]) for row in rows))
    figure, axes = plt.subplots(1, len(groups), figsize=(3.2 * len(groups), 3.4), squeeze=False)
    for place, group in zip(axes[0], groups, strict=True):
        mine = [row for row in rows if (row["size"], row["device"]) == group]
        colours = ["#ed7d31" if row["way"].endswith("overlap") else "#4472c4" for row in mine]
        place.bar([row["way"] for row in mine], [row["seconds"] for row in mine], color=colours)
        place.axhline(mine[0]["P*"], color="black", linestyle="--", linewidth=1)
        place.set_title(", ".join(group), fontsize=9)
        ways = [row["way"] for row in mine]
        place.set_xticks(range(len(ways)), ways, rotation=60, ha="right", rotation_mode="anchor",
                         fontsize=8)  # fmt: skip
        place.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("seconds per step (dashed: P*)")
    figure.tight_layout()
    return figure
