"""Wiring of MERA layers: block sizes and disentanglers, planned for a number of sites."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from tensorjax import _check

Boundary = Literal["open", "periodic"]


class Wiring(NamedTuple):
    """Wiring of one MERA layer, without arrays: block sizes and positions of disentanglers.

    Attributes:
      arities: sites in each block, that is, bottom legs of each isometry.
      cuts: disentangler j acts across cut ``cuts[j]``: on the last site of that block and the first
        of the next. The cut of the last block closes the ring.

    Example:
      >>> from tensorjax import mera
      >>> wiring = mera.Wiring(arities=(2, 3), cuts=(0,))
      >>> wiring.length, wiring.pairs, wiring.periodic
      (5, ((1, 2),), False)

    Source: ours.
    """

    arities: tuple[int, ...]
    cuts: tuple[int, ...]

    @property
    def length(self) -> int:
        """Number of sites at the bottom of a MERA layer, by its wiring."""
        return sum(self.arities)

    @property
    def blocks(self) -> tuple[range, ...]:
        """Ranges of the sites that each isometry of a MERA layer joins, by its wiring."""
        ends = np.cumsum(self.arities).tolist()
        return tuple(range(e - a, e) for e, a in zip(ends, self.arities, strict=True))

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Pairs of sites on which a MERA layer's disentanglers act, by its wiring."""
        blocks = self.blocks
        return tuple((blocks[c][-1], blocks[(c + 1) % len(blocks)][0]) for c in self.cuts)

    @property
    def periodic(self) -> bool:
        """Whether a MERA layer's wiring has a disentangler between the last site and the first."""
        return len(self.arities) - 1 in self.cuts


def check_wiring(wiring: Wiring, count: int) -> None:
    blocks = len(wiring.arities)
    last = blocks - 1 if blocks > 1 else -1
    if len(wiring.cuts) != count:
        raise ValueError(f"cuts: expected one per disentangler ({count}), got {wiring.cuts}")
    if any(not 0 <= c <= last for c in wiring.cuts):
        raise ValueError(
            f"cuts: expected 0 to {last}, the cuts between {blocks} blocks (the last closes the "
            f"ring), got {wiring.cuts}"
        )
    touched = [site for pair in wiring.pairs for site in pair]
    if len(set(touched)) < len(touched):
        twice = sorted({s for s in touched if touched.count(s) > 1})
        raise ValueError(
            f"disentanglers: expected at most one on every site, got two on {twice}; a block of "
            "one site has room for one of its two neighbours only"
        )


def wirings(
    length: int,
    arity: int | Sequence[int] = 2,
    *,
    boundary: Boundary = "open",
    layers: int | None = None,
) -> list[Wiring]:
    """Plans the `Wiring` of every layer of a MERA, blocks and disentanglers, from the bottom up.

    Blocks have ``arity`` sites; what a division leaves over forms a shorter last block. A single
    left-over site is passed through by an isometry of arity one; on a ring it joins the last block.

    Args:
      length: number of sites N at the bottom.
      arity: sites per block, one int for all layers or one per layer, from the bottom up.
      boundary: "open" or "periodic" (a disentangler between the last site and the first).
      layers: how many; by default until no more sites are left than ``arity``.

    Returns:
      List of a `Wiring` per layer.

    Raises:
      ValueError: another boundary, arities below two or above the number of sites, or another
        number of layers than of arities.

    Example:
      >>> from tensorjax import mera
      >>> [w.arities for w in mera.wirings(7)]
      [(2, 2, 2, 1), (2, 2)]

    Source: Vidal (2007), see `MERA`, for arity two; K. Batselier, A. Cichocki, N. Wong, arXiv
    1912.09775, for others. Lengths that do not divide and rings are ours.
    """
    _check.choice("boundary", boundary, ("open", "periodic"))
    several = isinstance(arity, Sequence)
    given = list(arity) if isinstance(arity, Sequence) else [arity]
    for k in given:
        _check.integer("arity", k, low=2)
    if several and layers is not None and layers != len(given):
        raise ValueError(f"layers: expected {len(given)}, one per arity, got {layers}")
    count = len(given) if several else layers
    if count is not None:
        _check.integer("layers", count, low=1)
    out: list[Wiring] = []
    sites = length
    while len(out) < count if count is not None else sites > given[0] or not out:
        k = given[len(out)] if several else given[0]
        if sites < k:
            raise ValueError(
                f"arity: expected at most the number of sites, got blocks of {k} for the {sites} "
                f"sites of layer {len(out)} ({length} at the bottom); ask for fewer layers, a "
                "smaller arity or a longer tensor"
            )
        out.append(_wiring(sites, k, boundary))
        sites = len(out[-1].arities)
    return out


def _wiring(sites: int, arity: int, boundary: Boundary) -> Wiring:
    full, rest = divmod(sites, arity)
    arities = (arity,) * full + ((rest,) if rest else ())
    if boundary == "open" or len(arities) == 1:
        return Wiring(arities, tuple(range(len(arities) - 1)))
    if rest == 1:  # one site has no room for two disentanglers: the last block takes it in
        arities = (*arities[:-2], arity + 1)
    return Wiring(arities, tuple(range(len(arities) if len(arities) > 1 else 0)))
