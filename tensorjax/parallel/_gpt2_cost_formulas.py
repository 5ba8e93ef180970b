"""Communication, FLOP and memory formulas for a training step of a GPT-2 style decoder.

Bytes per block follow the theory: 8 T H (p − 1)/p elements for 1D (10 with rematerialisation),
2 (7 T H + 12 H²)(q − 1)/q² for SUMMA on q × q devices (×3 in place of ×2), with vectors, norms,
embedding, logits and loss added.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal

from tensorjax.parallel._layout import Layout

Remat = Literal["none", "dots", "full"]


@dataclasses.dataclass(frozen=True)
class Collective:
    """Cost, by formula, of a GPT-2 step's collectives of one kind and size, over all runs.

    Attributes:
      kind: as XLA calls it.
      numbers: elements of the larger one of input and output, per device.
      group: number of devices that take part.
    """

    name: str
    kind: str
    numbers: float
    group: int
    runs: int = 1

    @property
    def single(self) -> bool:
        """Whether a cost is of norms, losses or gradients, sent in float32 at least."""
        if self.name in ("norms", "loss", "gradients"):
            return True
        parameters = self.name in ("weights", "vectors", "table")
        return parameters and self.kind == "reduce-scatter"

    @property
    def sent(self) -> float:
        """Number of elements that a device sends, by the cost formula of a collective."""
        passes = 2 if self.kind == "all-reduce" else 1
        return self.runs * passes * self.numbers * (self.group - 1) / self.group

    @property
    def hops(self) -> int:
        """Number of consecutive ring messages, by the cost formula of a collective.

        Collectives of vectors count as no message, because XLA combines them with others.
        """
        if self.name == "vectors":
            return 0
        passes = 2 if self.kind == "all-reduce" else 1
        return self.runs * passes * (self.group - 1)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a GPT-2 training step, global and per device, for cost formulas.

    Attributes:
      layers, features, heads, vocabulary, length: of the model; the vocabulary is the padded one.
      tokens: T of the block of the batch that a device works on.
      wide, stored, extra: devices that split the wide side of a weight, that hold the rest of it in
        pieces, and that hold the same weights for other tokens.
    """

    layers: int
    features: int
    heads: int
    vocabulary: int
    length: int
    tokens: int
    wide: int
    stored: int
    extra: int

    @classmethod
    def of(cls, layout: Layout, config: Any, batch: int, length: int) -> "Sizes":
        """Computes, for cost formulas, a step's sizes in a layout; ValueError for uneven splits."""
        layout.padded("heads", config.heads)
        layout.padded("embed", config.features)
        wide, stored = layout.ways(layout.wide), layout.ways(layout.stored)
        rows = getattr(config, "padded", None) or layout.padded("vocab", config.vocabulary)
        if rows % wide:
            step = math.lcm(128, wide)  # as GPT-2 pads its table
            raise ValueError(
                f"vocab: expected a table whose rows split into {wide} blocks, got {rows} rows; "
                f"take a vocabulary of {-(-rows // step) * step}"
            )
        return cls(
            layers=config.layers,
            features=config.features,
            heads=config.heads,
            vocabulary=rows,
            length=layout.padded("length", length),
            tokens=layout.local("batch", batch) * length,
            wide=wide,
            stored=stored,
            extra=layout.ways(layout.batch) // stored,
        )

    def parameters(self, positions: int) -> int:
        """Counts, by formula, the parameters of a GPT-2 style decoder of these sizes.

        Per block 4 weights and 9 vectors (13 H), besides 2 tables and the last norm.
        """
        h = self.features
        block = 12 * h * h + 13 * h
        return self.layers * block + (self.vocabulary + positions + 2) * h


def collectives(layout: Layout, sizes: Sizes, positions: int, remat: Remat) -> Iterator[Collective]:
    """Yields, by formulas, the costs of all collectives of one GPT-2 training step.

    Args:
      positions: rows of the table of positions.
      remat: what is computed again in the backward pass. Products that are kept ("dots") spare no
        collective: what goes into them is needed for the gradients of weights.
    """
    again = 1 if remat == "none" else 2
    yield from _block(layout, sizes, sizes.layers, again)
    yield from _ends(layout, sizes)
    if sizes.extra > 1:
        local = sizes.parameters(positions) / (sizes.wide * sizes.stored)
        table = sizes.vocabulary * sizes.features / (sizes.wide * sizes.stored)
        # The table of tokens has two gradients, as it is used twice.
        yield Collective("gradients", "all-reduce", local + table, sizes.extra)


def _block(layout: Layout, s: Sizes, runs: int, again: int) -> Iterator[Collective]:
    """Yields costs, by formula, of ``runs`` GPT-2 blocks whose forward runs ``again`` times."""
    split, c = bool(layout.features or layout.length), s.wide
    x = s.tokens * s.features
    # Into attention and into the MLP.
    if split:
        yield Collective("columns", "all-gather", x, c, 2 * again * runs)
        yield Collective("columns", "reduce-scatter", x, c, 2 * runs)
    else:
        yield Collective("columns", "all-reduce", x, c, 2 * runs)
    # Out of both: what the last one adds up is not needed by the backward pass.
    if layout.rows == "gather":
        for wide in (x, 4 * x):
            yield Collective("rows", "all-gather", wide, c, again * runs)
            yield Collective("rows", "reduce-scatter", wide, c, runs)
    elif split:
        yield Collective("rows", "reduce-scatter", x, c, (1 + again) * runs)
        yield Collective("rows", "all-gather", x, c, 2 * runs)
    else:
        yield Collective("rows", "all-reduce", x, c, (1 + again) * runs)
    for widths in (3, 1, 4, 4):
        weight = widths * s.features**2 / c
        yield Collective("weights", "all-gather", weight, s.stored, again * runs)
        yield Collective("weights", "reduce-scatter", weight, s.stored, runs)
    yield Collective("vectors", "all-gather", 7 * s.features / c, s.stored, again * runs)
    yield Collective("vectors", "reduce-scatter", 7 * s.features / c, s.stored, runs)
    for _ in range(2):
        yield from _norm(layout, s, runs, again)
    # The bias of the second row: not needed again.
    yield from _vector(layout, s, s.features, runs, again)
    yield from _vector(layout, s, s.features, runs, 1)


def _norm(layout: Layout, s: Sizes, runs: int, again: int) -> Iterator[Collective]:
    """Yields, by formula, the costs of collectives in a layer norm of a GPT-2 step."""
    for _ in range(2):
        yield from _vector(layout, s, s.features, runs, again)
    if layout.features:
        moments = 2 * s.tokens * s.wide
        yield Collective("norms", "all-gather", moments, s.wide, again * runs)
        yield Collective("norms", "reduce-scatter", moments, s.wide, runs)


def _vector(layout: Layout, s: Sizes, numbers: int, runs: int, again: int) -> Iterator[Collective]:
    """Yields, by formula, costs of collectives of a feature vector or the position table."""
    yield Collective("vectors", "all-gather", numbers / s.wide, s.stored, again * runs)
    yield Collective("vectors", "reduce-scatter", numbers / s.wide, s.stored, runs)
    if not layout.features:
        yield Collective("vectors", "all-gather", numbers, s.wide, again * runs)
    if layout.length:
        yield Collective("vectors", "reduce-scatter", numbers, s.wide, runs)


def _ends(layout: Layout, s: Sizes) -> Iterator[Collective]:
    """Yields, by formula, costs of a GPT-2 step's collectives outside the blocks."""
    split, c, g = bool(layout.features or layout.length), s.wide, s.stored
    x = s.tokens * s.features
    yield Collective("embedding", "all-gather", s.tokens * g, g)
    yield Collective("embedding", "all-to-all", x, g, 2)
    if split:
        yield Collective("embedding", "reduce-scatter", x, c)
        yield Collective("embedding", "all-gather", x, c)
        yield Collective("logits", "all-gather", x, c)
        yield Collective("logits", "reduce-scatter", x, c)
    else:
        yield Collective("embedding", "all-reduce", x, c)
        yield Collective("logits", "all-reduce", x, c)
    yield from _vector(layout, s, s.length * s.features, 1, 1)
    yield from _norm(layout, s, 1, 1)
    table = s.vocabulary * s.features / c
    yield Collective("table", "all-gather", table, g)
    yield Collective("table", "reduce-scatter", table, g)
    yield Collective("loss", "all-reduce", 3 * s.tokens, c)


def flops(sizes: Sizes, remat: Remat) -> float:
    """Computes, by formula, the floating-point operations of one device in one GPT-2 step.

    The backward pass costs twice the forward pass. Rematerialisation adds nothing ("none"), the
    products of attention ("dots"), or the blocks once more ("full").
    """
    t, h, c = sizes.tokens, sizes.features, sizes.wide
    linear, attention = 2 * t * 12 * h * h, 4 * t * sizes.length * h
    again = {"none": 0, "dots": attention, "full": linear + attention}[remat]
    ends = 2 * t * sizes.vocabulary * h
    return (sizes.layers * (3 * (linear + attention) + again) + 3 * ends) / c


def temporary(layout: Layout, s: Sizes, remat: Remat, itemsize: int) -> tuple[float, float]:
    """Estimates by formula a device's temporary memory in a sharded GPT-2 step, in elements.

    What all blocks keep for the backward pass, and the largest one of what is worked on: attention,
    an MLP, the logits. The factors are a fit to 235 compiled programs (JAX 0.10.1; all layouts, 4
    to 16 devices), none of which it misses by more than 15 %, all but two by less than 9 %, and for
    "dots" to 182 others, none of which it misses by more than 13 %. Attention stores its scores,
    from 128 tokens on without a quarter of them that only the future has, and GELU keeps two
    arrays, as those of GPT-2 do.

    Args:
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
