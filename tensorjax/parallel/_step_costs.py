"""Floating-point operations and temporary memory of a training step, in formulas."""

from tensorjax.parallel._communication_costs import Remat, Sizes
from tensorjax.parallel._layout import Layout


def flops(sizes: Sizes, remat: Remat) -> float:
    """Computes the floating-point operations of one device in one training step.

    The backward pass costs twice the forward pass. Rematerialisation adds nothing ("none"), the
    products of attention ("dots"), or the blocks once more ("full").
    """
    t, h, c = sizes.tokens, sizes.features, sizes.wide
    linear, attention = 2 * t * 12 * h * h, 4 * t * sizes.length * h
    again = {"none": 0, "dots": attention, "full": linear + attention}[remat]
    ends = 2 * t * sizes.vocabulary * h
    return (sizes.layers * (3 * (linear + attention) + again) + 3 * ends) / c


def temporary(layout: Layout, s: Sizes, remat: Remat, itemsize: int = 4) -> tuple[float, float]:
    """Estimates a device's temporary memory in a training step, in elements, for XLA on CPUs.

    What all blocks keep for the backward pass, and the largest one of what is worked on: attention,
    an MLP, the logits. The factors are a fit to 235 compiled programs (JAX 0.10.1; all layouts, 4
    to 16 devices), none of which it misses by more than 15 %, all but two by less than 9 %, and for
    "dots" to 182 others, none of which it misses by more than 13 %. Attention stores its scores,
    from 128 tokens on without a quarter of them that only the future has, and GELU keeps two
    arrays, as those of GPT-2 do.

    Args:
      layout: of the model.
      s: of the step.
      remat: what is computed again in the backward pass.
      itemsize: bytes of a number of the computation. Logits are of four bytes at least, and count
        as so many more elements.
    """
    x = s.tokens * s.features
    split = s.wide if layout.features or layout.length else 1
    gathering = layout.rows == "gather"
    scores = s.tokens * s.length * s.heads / s.wide * (0.75 if s.length >= 128 else 1)
    weights = 12 * s.features**2 / s.wide
    table = s.vocabulary * s.features / s.wide
    attention = 2.5 * scores + 2.7 * x / s.wide + (1.2 if layout.mesh is None else 1.4) * weights
    mlp = 1.1 * scores + 22.5 * x / s.wide + 3.4 * x + x / split + 0.8 * weights
    ends = 2 * s.tokens * s.vocabulary / s.wide * max(itemsize, 4) / itemsize + x
    if layout.stored:  # the table, gathered, beside the logits or beside its gradient
        ends = max(ends, table + x) + table
        attention += 0 if gathering else 0.3 * weights
    if s.extra > 1:  # gradients that are added over the devices, of weights and of the token table
        attention += {"none": 1.7, "dots": 2.1, "full": 2.9}[remat] * table / s.stored
        mlp += 0.3 * weights
        ends += table / s.stored if s.stored > 1 else 0
    if gathering:
        mlp += 7.7 * max(0.0, x - 2 * x / s.wide)
    if remat == "full":
        return s.layers * x / split, max(attention, mlp, ends)
    if remat == "dots":
        # Products with weights: of seven arrays of the heads' width, and that behind attention,
        # which rows that scatter have of all features. What is kept need not be worked on.
        kept = 7.5 * x / s.wide + x / split
        kept += 1.7 * x / s.wide - 0.7 * x if gathering else x
        attention += 3 * x / s.wide
        mlp += (9.5 * (x - x / s.wide) if gathering else 0) - 3 * x / s.wide - 1.4 * x
        return s.layers * kept, max(attention, mlp, ends)
    # Half an array of the size of the scores, two of the MLP's width (GELU and its slope) and as
    # much of the heads', nine of the features'.
    kept = 0.5 * scores + 15.5 * x / s.wide + 3.2 * x + 6.1 * x / split
    kept += 0.85 * weights if layout.stored else 0  # gathered ones; others are where they were
    kept += 6.5 * (x - x / s.wide) if gathering else 0
    return s.layers * kept, max(1.25 * attention, ends)
