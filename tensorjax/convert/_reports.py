"""Reports of conversions of trains to MERA and Tucker: errors, ranks, sizes of both formats."""

import dataclasses

import jax
import numpy as np

from tensorjax import _check
from tensorjax._formats.pytree_base import shown


@dataclasses.dataclass(frozen=True)
class CutInfo:
    """Report on one bond in a MERA conversion: ranks, discarded energy, disentangler search.

    Attributes:
      plain: rank of the bond at the tolerance without a disentangler.
      rank: rank with the disentangler that was kept; ``plain`` if none was.
      bound: no disentangler at all could lower the rank below this.
      tail: share of ‖t‖² discarded when the bond was cut.
      iterations: of the search, all ranks that were tried and all phases taken together.
      how: "identity" if no disentangler was kept, else what found it.

    Example:
      >>> from tensorjax import convert, tt
      >>> m, info = convert.tt_to_mera(tt.ones((2,) * 4), tol=1e-3, layers=1)
      >>> info.layers[0].cuts[0].plain, info.layers[0].cuts[0].how
      (1, 'identity')

    Source: ours.
    """

    plain: int
    rank: int
    bound: int
    tail: float
    iterations: int
    how: str


@dataclasses.dataclass(frozen=True)
class LayerInfo:
    """Report on one layer in a MERA conversion: ranks, disentanglers, size, time.

    Attributes:
      ranks_before: TT-ranks of the train below the layer.
      ranks_after: TT-ranks of the train above it.
      tops: sizes of the top legs of the isometries.
      cuts: a `CutInfo` for each cut between blocks, from left to right.
      tails: shares of ‖t‖² discarded by the isometries.
      size: elements stored in the layer.
      seconds: time taken.

    Example:
      >>> from tensorjax import convert, tt
      >>> m, info = convert.tt_to_mera(tt.ones((2,) * 4), tol=1e-3, layers=1)
      >>> info.layers[0].tops, len(info.layers[0].cuts)
      ((1, 1), 1)

    Source: ours.
    """

    ranks_before: tuple[int, ...]
    ranks_after: tuple[int, ...]
    tops: tuple[int, ...]
    cuts: tuple[CutInfo, ...]
    tails: tuple[float, ...]
    size: int
    seconds: float

    @property
    def iterations(self) -> int:
        """Number of iterations of all disentangler searches in a layer of a MERA conversion."""
        return sum(c.iterations for c in self.cuts)


@dataclasses.dataclass(frozen=True)
class MERAInfo:
    """Report on a conversion from TT to MERA: error, sizes of the formats, layers.

    Attributes:
      layers: a `LayerInfo` per layer, from the bottom up.
      error: ‖t − m‖ / ‖t‖, measured by an orthogonalised difference.
      tails: shares of ‖t‖² discarded by all truncations together.
      size_tt: elements of the train, rounded to the same tolerance.
      size_tucker: elements of its Tucker form at the same tolerance.
      size: elements of the MERA.
      disentangle: the method asked for.
      fell_back: whether the MERA without disentanglers was smaller, and returned instead.
      seconds: time taken.

    Example:
      >>> from tensorjax import convert, tt
      >>> m, info = convert.tt_to_mera(tt.ones((2,) * 4), tol=1e-3, layers=1)
      >>> info.error <= 1e-3, info.size_tt
      (True, 8)

    Source: ours.
    """

    layers: tuple[LayerInfo, ...]
    error: float
    tails: float
    size_tt: int
    size_tucker: int
    size: int
    disentangle: str
    fell_back: bool
    seconds: float

    @property
    def pays(self) -> bool:
        """Whether the MERA has fewer elements than the train and the train's Tucker form."""
        return self.size < min(self.size_tt, self.size_tucker)

    def __str__(self) -> str:
        best = min(self.size_tt, self.size_tucker)
        name = "train" if self.size_tt <= self.size_tucker else "Tucker form"
        verdict = (
            f"the MERA pays: {best / self.size:.3g} times fewer numbers than the {name}"
            if self.pays
            else f"the MERA does not pay: the {name} has {self.size / best:.3g} times fewer numbers"
        )
        lines = [
            f"TT {self.size_tt:,}, Tucker {self.size_tucker:,}, MERA {self.size:,} numbers",
            f"relative error {self.error:.2g}; {verdict}",
        ]
        if self.fell_back:
            lines.append(f"disentanglers ({self.disentangle}) did not pay and were left out")
        for k, layer in enumerate(self.layers):
            cuts = ", ".join(f"{c.plain}→{c.rank}" for c in layer.cuts) or "none"
            lines.append(
                f"layer {k}: tops {layer.tops}, cuts {cuts}, TT-ranks {max(layer.ranks_before)} → "
                f"{max(layer.ranks_after)}, {layer.iterations} iterations, {layer.seconds:.2g} s"
            )
        return "\n".join(lines)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TuckerInfo:
    """Report on a conversion from TT to Tucker: error, ranks and sizes.

    Attributes:
      tails: (d,) shares of ‖t‖² that were discarded, mode by mode; their sum is ``error``².
      error: ‖t − result‖ / ‖t‖, but for the rounding to the dtype of ``t``. Where a tolerance above
        about 1e-6 let Gram matrices find the factors, values below 1e-7 are their roundoff.
      ranks_before: TT-ranks (r_0, …, r_d) of the train.
      ranks: multilinear ranks (s_1, …, s_d).
      core_ranks: TT-ranks of the core.
      size_before: elements of the train.
      size: elements of the Tucker tensor, core and factors.

    Example:
      >>> from tensorjax import convert, tt
      >>> t, info = convert.tt_to_tucker(tt.ones((10, 10, 10)), tol=1e-5)
      >>> info.ranks, info.size_before, info.size
      ((1, 1, 1), 30, 33)

    Source: ours.
    """

    tails: jax.Array
    error: jax.Array
    ranks_before: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    ranks: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    core_ranks: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    size_before: int = dataclasses.field(metadata={"static": True})
    size: int = dataclasses.field(metadata={"static": True})

    @shown
    def __str__(self) -> str:
        known = not _check.is_traced(self.error) and np.size(self.error) > 0
        error = f" at a relative error of {np.max(np.asarray(self.error)):.2g}" if known else ""
        ratio = self.size_before / self.size
        verdict = f"it pays, {ratio:.3g} times fewer" if ratio > 1 else "it does not pay"
        return (
            f"TT of {self.size_before:,} numbers to Tucker of {self.size:,}{error}: {verdict} "
            f"(multilinear ranks up to {max(self.ranks)}, TT-ranks {max(self.ranks_before)} to "
            f"{max(self.core_ranks)})"
        )
