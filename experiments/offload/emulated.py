"""A device that is none: it waits as long as one would compute, and leaves the cores alone."""

import functools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import offload


class Emulated(offload.Engine):
    """Waits in the place of computing; parameters are read, and dropped as if a device had them.

    Gradients are the same numbers in every step, of the right shapes.

    Args:
        gradients: Of each group: a pytree of NumPy arrays, in single precision at least if several
            layers use it, for these are added up.
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
    uses = Counter(group for layer in layers for group in layer.uses)
    most = max(x.size for x in jax.tree.leaves(shapes))
    numbers = functools.cache(lambda dtype: _numbers(most, dtype))
    gradients = {
        name: jax.tree.map(
            lambda x, several=uses[name] > 1: numbers(
                np.promote_types(x.dtype, np.float32) if several else x.dtype
            )[: x.size].reshape(x.shape),
            shape,
        )
        for name, shape in shapes.items()
    }
    look_up = "embedding"  # of GPT-2: next to no work
    work = {layer.name: 0.05 if layer.name == look_up else 1.0 for layer in layers}
    unit = compute / sum(work.values())
    return Emulated(
        gradients, {name: (unit * share / 3, unit * share * 2 / 3) for name, share in work.items()}
    )


def _numbers(count: int, dtype: Any) -> np.ndarray:
    """Numbers of which XLA takes no view: off by one, so they are copied, as a device's would."""
    found = np.full(count + 64, 1e-3, dtype)
    return found[(1 - found.ctypes.data // found.itemsize) % (64 // found.itemsize) :]
