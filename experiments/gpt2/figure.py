"""Figure of the losses over the tokens seen, with the bigram models' losses."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

COLORS = ("#999999", "#e69f00", "#d55e00")


def curves(
    records: Sequence[Mapping[str, Any]], tokens: int, marks: Sequence[Mapping[str, Any]]
) -> Figure:
    """Draws the losses of a training over the tokens seen, with baselines as lines.

    Args:
        records: One an evaluation.
        tokens: In a step.
        marks: Other models, with their loss in validation.
    """
    figure = Figure(figsize=(6.4, 4.2))
    axis = figure.subplots()
    seen = [record["step"] * tokens / 1e6 for record in records]
    for name, color in (("train", "#56b4e9"), ("valid", "#000000")):
        values = [record[name] for record in records]
        label = {"train": "training (mean since the last point)", "valid": "validation"}[name]
        axis.plot(seen, values, marker="o", markersize=3, color=color, label=label)
    for mark, color in zip(marks, COLORS, strict=False):
        axis.axhline(mark["valid"], color=color, linestyle="--", linewidth=1, label=mark["model"])
    axis.set_xlabel("millions of tokens seen")
    axis.set_ylabel("loss [nats per token]")
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    return figure
