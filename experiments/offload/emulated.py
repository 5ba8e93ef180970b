"""A device that is none: it waits as long as one would compute, and leaves the cores alone."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import offload


class Emulated(offload.Engine):
    """Waits in the place of computing; parameters are read, and dropped as if a device had them.

    Gradients are the same numbers in every step, of the right shapes.

    Args:
        gradients: Of each group: a pytree of NumPy arrays.
        seconds: Of the forward and of the backward pass of each layer, by its name.

    Attributes:
        seconds: As given.
    """

    def __init__(
        self, gradients: Mapping[str, Any], seconds: Mapping[str, tuple[float, float]]
    ) -> None:
        super().__init__()
        self._gradients, self.seconds = gradients, seconds

    def place(self, group: str, params: Any) -> Any:
        """A device would copy by itself, without the cores."""
        return group

    def forward(
        self, layer: offload.Layer, params: Any, x: Any, batch: Any, key: Any
    ) -> tuple[Any, Any]:
        """Waits, and returns next to nothing."""
        time.sleep(self.seconds[layer.name][0])
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
        time.sleep(self.seconds[layer.name][1])
        return dy, tuple(self._gradients[group] for group in layer.uses)

    def last(
        self, layer: offload.Layer, params: Any, x: Any, batch: Any, key: Any, share: float,
        sums: Any
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Waits for both passes."""
        time.sleep(self.seconds[layer.name][0])
        dx, sums = self.backward(layer, params, x, batch, key, None, x, sums)
        return np.float32(0), dx, sums

    def wait(self, value: Any) -> Any:
        """There is nothing to wait for."""
        return value


def emulated(
    layers: Sequence[offload.Layer], params: Mapping[str, Any], compute: float
) -> Emulated:
    """A device that takes ``compute`` seconds a step, layers in proportion to their work."""
    shapes = {name: jax.eval_shape(draw) for name, draw in params.items()}
    # Views of one array, off by one number: so they are copied, as a device's would be.
    most = max(x.size for x in jax.tree.leaves(shapes))
    numbers = np.full(most + 17, 1e-3, np.float32)
    start = (1 - numbers.ctypes.data // 4) % 16
    gradients = jax.tree.map(lambda x: numbers[start : start + x.size].reshape(x.shape), shapes)
    look_up = "embedding"  # of GPT-2: next to no work
    work = {layer.name: 0.05 if layer.name == look_up else 1.0 for layer in layers}
    unit = compute / sum(work.values())
    return Emulated(
        gradients, {name: (unit * share / 3, unit * share * 2 / 3) for name, share in work.items()}
    )
