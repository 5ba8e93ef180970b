"""The gradients of one backward pass, as the layers give them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax.offload._layers import Layer
from tensorjax.offload._optimizer import HostOptimizer
from tensorjax.offload._shards import Shards


class Gradients:
    """Takes gradients to the host, and adds up those of groups that several layers use.

    Args:
      layers: of the model.
      optimizer: whose device they go to.
      shards: which part of them is this process's.
      measured: whether their squares are wanted.

    Attributes:
      squares: sum of the squares of all whole gradients; of several processes, of those pieces
        that this one counts.
    """

    def __init__(
        self, layers: Sequence[Layer], optimizer: HostOptimizer, shards: Shards, *, measured: bool
    ) -> None:
        self._optimizer, self._shards, self._measured = optimizer, shards, measured
        self._left = Counter(group for layer in layers for group in layer.uses)
        self._partial: dict[str, Any] = {}
        self.squares = jnp.zeros((), jnp.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of the gradients that layers are still to add to."""
        return sum(x.nbytes for x in jax.tree.leaves(self._partial))

    def add(self, group: str, gradient: Any) -> Any:
        """The gradient of a group once all layers that use it have had their say, or None."""
        held = self._shards.take(group, gradient, self._optimizer.device)
        if group in self._partial:
            held = self._optimizer.add(self._partial.pop(group), held)
        self._left[group] -= 1
        if self._left[group]:
            self._partial[group] = held
            return None
        if self._measured:
            counted = self._shards.counted(group, held)
            self.squares = self.squares + self._optimizer.squares(counted)
        return held
