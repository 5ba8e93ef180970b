"""A device that is none: it waits as long as one would compute, and leaves the cores alone."""

import time
from typing import Any

import numpy as np

from tensorjax import offload


class Emulated(offload.Engine):
    """Waits in the place of computing; parameters are read, and dropped as if a device had them.

    Gradients are the same numbers in every step, of the right shapes.

    Args:
        gradients: Of each group: a pytree of NumPy arrays.
        forward: Seconds of the forward pass of each layer, by its name.
        backward: Seconds of its backward pass.
    """

    def __init__(
        self, gradients: dict[str, Any], forward: dict[str, float], backward: dict[str, float]
    ) -> None:
        super().__init__()
        self._gradients, self._forward, self._backward = gradients, forward, backward

    def place(self, group: str, params: Any) -> Any:
        """A device would copy by itself, without the cores."""
        return group

    def forward(
        self, layer: offload.Layer, params: Any, x: Any, batch: Any, key: Any
    ) -> tuple[Any, Any]:
        """Waits, and returns next to nothing."""
        time.sleep(self._forward[layer.name])
        return np.zeros(1, np.float32), None

    def backward(
        self,
        layer: offload.Layer,
        params: Any,
        x: Any,
        batch: Any,
        key: Any,
        kept: Any,
        dy: Any,
        sums: Any,
    ) -> tuple[Any, Any]:
        """Waits, and returns gradients."""
        time.sleep(self._backward[layer.name])
        return dy, tuple(self._gradients[group] for group in layer.uses)

    def last(
        self, layer: offload.Layer, params: Any, x: Any, batch: Any, key: Any, share: float,
        sums: Any
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Waits for both passes."""
        time.sleep(self._forward[layer.name])
        dx, sums = self.backward(layer, params, x, batch, key, None, x, sums)
        return np.float32(0), dx, sums

    def wait(self, value: Any) -> Any:
        """There is nothing to wait for."""
        return value
