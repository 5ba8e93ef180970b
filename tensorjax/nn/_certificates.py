"""Certificate of a converted layer: measured error and compression, kept beside the layer."""

import dataclasses
import weakref

from flax import nnx


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Measured error and compression of converting a dense layer to a tensorised one.

    Attributes:
      error: ‖W − W'‖ / ‖W‖ (Frobenius), measured with the parameters as they are stored.
      bound: the guaranteed error: the tolerance, or None where the ranks given, or rounding to
        the dtype of the parameters, do not allow it.
      least: no weight of the same format and ranks has a smaller error, by quasi-optimality.
      ranks: of the layer; like all of these when it was made, whatever became of it in training.
      numbers_before: in the dense layer, bias included.
      numbers: parameters of the new layer, gates and bias included.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> dense = nnx.Linear(64, 64, use_bias=False, rngs=nnx.Rngs(0))
      >>> layer, certificate = nn.from_linear(dense, rank=8)
      >>> certificate.compression > 1, certificate.least <= certificate.error
      (True, True)
    """

    error: float
    bound: float | None
    least: float
    ranks: tuple[int, ...]
    numbers_before: int
    numbers: int

    @property
    def compression(self) -> float:
        """Parameters of the dense layer divided by those of the tensorised layer."""
        return self.numbers_before / self.numbers

    def __str__(self) -> str:
        promised = "none promised" if self.bound is None else f"promised {self.bound:.2g}"
        return (
            f"relative error {self.error:.2g} ({promised}; at these ranks not below "
            f"{self.least:.2g}), ranks {self.ranks}, {self.numbers_before:,} → {self.numbers:,} "
            f"numbers: {self.compression:.3g} times fewer"
        )


# Certificates of converted layers. As attributes they would be part of the pytree structure, so
# that no two converted layers could be stacked or share a compiled program.
certificates: weakref.WeakKeyDictionary[nnx.Module, Certificate] = weakref.WeakKeyDictionary()
