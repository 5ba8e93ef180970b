"""Training with everything on the device, with which offloading is compared."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import offload


class Resident:
    """Trainer that keeps all parameters and optimiser states on the device.

    It runs the same programs of the same layers, and updates as soon as possible.

    Nothing waits for the host but the loss at the end of a step.

    Args:
        layers: Of the model.
        params: What draws the parameters of each group.
        optimizer: Of Optax; applied to each group by itself, as the trainer does.
        microbatches: That a batch is cut into.
    """

    def __init__(
        self,
        layers: Sequence[offload.Layer],
        params: Mapping[str, Any],
        optimizer: Any,
        microbatches: int,
    ) -> None:
        self._layers, self._microbatches = list(layers), microbatches
        self._engine = offload.Engine()
        self._params = {name: draw() for name, draw in params.items()}
        init = jax.jit(optimizer.init)
        self._state = {name: init(tree) for name, tree in self._params.items()}
        self._first = {group: layer for layer in reversed(self._layers) for group in layer.uses}

        def update(params: Any, state: Any, gradient: Any) -> Any:
            gradient = jax.tree.map(lambda g, p: g.astype(p.dtype), gradient, params)
            with jax.numpy_dtype_promotion("standard"):  # as the trainer does
                updates, state = optimizer.update(gradient, state, params)
            return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates), state

        self._update = jax.jit(update, donate_argnums=(0, 1))
        self._add = jax.jit(
            lambda a, b: jax.tree.map(lambda x, y: x + y.astype(x.dtype), a, b), donate_argnums=0
        )

    def step(self, batch: Any) -> float:
        """Trains one step on a batch; returns the loss before the update."""
        rows = len(jax.tree.leaves(batch)[0]) // self._microbatches
        parts = [
            jax.tree.map(lambda x, m=m: x[m * rows : (m + 1) * rows], batch)
            for m in range(self._microbatches)
        ]
        x: list[Any] = [None] * len(parts)
        inputs = []
        for layer in self._layers[:-1]:
            inputs.append(x)
            mine = self._of(layer)
            x = [self._engine.forward(layer, mine, x[m], part, None)[0]
                 for m, part in enumerate(parts)]  # fmt: skip
        last, share = self._layers[-1], 1 / len(parts)
        sums: Any = None
        losses, dy, waiting = [], list(x), {}
        for m, part in enumerate(parts):
            loss, dy[m], sums = self._engine.last(
                last, self._of(last), x[m], part, None, share, sums
            )
            losses.append(loss)
        del x
        self._updated(last, sums, waiting)
        for layer in reversed(self._layers[:-1]):
            mine, sums, x = self._of(layer), None, inputs.pop()
            for m, part in enumerate(parts):
                dy[m], sums = self._engine.backward(
                    layer, mine, x[m], part, None, None, dy[m], sums
                )
            del mine, x
            self._updated(layer, sums, waiting)
        return float(sum(float(loss) for loss in losses))

    def _of(self, layer: offload.Layer) -> tuple[Any, ...]:
        return tuple(self._params[group] for group in layer.uses)

    def _updated(self, layer: offload.Layer, sums: Any, waiting: dict[str, Any]) -> None:
        """Updates groups whose gradients are complete, and sums the gradients of others."""
        for group, gradient in zip(layer.uses, sums, strict=True):
            if group in waiting:
                gradient = self._add(waiting.pop(group), gradient)
            if self._first[group] is not layer:
                waiting[group] = jax.tree.map(
                    lambda x: x.astype(np.promote_types(x.dtype, np.float32)), gradient
                )
                continue
            self._params[group], self._state[group] = self._update(
                self._params[group], self._state[group], gradient
            )
