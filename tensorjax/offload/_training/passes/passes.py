"""Forward and backward pass of a training step, layer by layer."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax.offload._training.passes.engine import Engine
from tensorjax.offload._training.passes.gradient_transfers import Gradients, Looked
from tensorjax.offload._training.passes.layers import Layer, mean_loss
from tensorjax.offload._training.passes.weight_stream import WeightStream
from tensorjax.offload._training.storage.arrays import begin, nbytes
from tensorjax.offload._training.trace import Trace

# For each layer and microbatch, the input and what the layer kept; None once it is used.
Inputs = list[list[Any]]


@dataclass
class _Begun:
    """Backward pass of one layer that `Passes` has started on the device."""

    layer: Layer
    step: int
    position: int
    start: float
    results: Any  # of the last microbatch
    gradients: Looked  # on their way
    losses: list[Any]
    checked: Callable[[], None] | None = None


class Passes:
    """Runner of forward and backward passes, one layer at a time for all microbatches.

    Args:
      layers: of the model; the last one gives the loss.
      stream: brings parameters.
      gradients: takes gradients.
      ahead: whether, in the backward pass, the device is given a layer while it computes the one
        before, if the parameters are there: then it need not wait for what the host does between.
      key: of `jax.random`, or None.

    Attributes:
      peak_activations: the most bytes of inputs and of what layers kept.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        engine: Engine,
        stream: WeightStream,
        gradients: Gradients,
        *,
        ahead: bool,
        key: jax.Array | None,
        trace: Trace,
    ) -> None:
        self._layers, self._engine, self._ahead = layers, engine, ahead
        self._stream, self._gradients = stream, gradients
        self._key, self._trace = key, trace
        self._ended = 0.0  # when the last backward pass of a layer had been computed
        self.peak_activations = 0

    def forward(self, step: int, base: int, batches: Sequence[Any]) -> Inputs:
        """Computes all layers' forward passes of a step; returns inputs and saved activations.

        Args:
          base: position of its first layer in the stream.
        """
        x: list[Any] = [None] * len(batches)
        inputs, trained = [], False
        for number, layer in enumerate(self._layers[:-1]):
            params = self._stream.take(base + number)
            with (
                self._trace.span("compute", f"{layer.name} forward", step),
                self._noted(layer, "forward", step),
            ):
                out = [
                    self._engine.forward(layer, params, x[m], batch, self._keyed(step, number, m))
                    for m, batch in enumerate(batches)
                ]
                self._engine.wait(out)
                trained = trained or bool(jax.tree.leaves(params))
                if trained:
                    _check_floating(out)
            inputs.append([(x[m], kept) for m, (_, kept) in enumerate(out)])
            x = [y for y, _ in out]
            del params, out
            self._stream.done(base + number)
        inputs.append([(y, None) for y in x])
        held = sum(nbytes(leaf) for leaf in jax.tree.leaves(inputs))
        self.peak_activations = max(self.peak_activations, held)
        return inputs

    def evaluate(self, step: int, base: int, batches: Sequence[Any]) -> float:
        """Computes the loss of a batch by forward passes of all layers, without random keys."""
        x: list[Any] = [None] * len(batches)
        for number, layer in enumerate(self._layers):
            params = self._stream.take(base + number)
            with (
                self._trace.span("compute", f"{layer.name} evaluation", step),
                self._noted(layer, "forward", step),
            ):
                pairs = zip(x, batches, strict=True)
                x = [self._engine.evaluate(layer, params, y, batch) for y, batch in pairs]
                self._engine.wait(x)
            del params
            self._stream.done(base + number)
        return mean_loss(x)

    def backward(
        self,
        step: int,
        base: int,
        batches: Sequence[Any],
        inputs: Inputs,
        *,
        checked: Callable[[], None],
    ) -> float:
        """Computes all layers' backward passes of a step; returns the loss after all gradients.

        Args:
          step, base, batches: as of `forward`.
          inputs: that it gave, which are used up.
          checked: called once the loss is known to be finite, before any gradient is taken.

        Raises:
          FloatingPointError: the loss, or a gradient, is not finite.
        """
        last = len(self._layers) - 1
        dy: list[Any] = [None] * len(batches)
        self._gradients.begin(step)
        losses: list[Any] = []
        begun: _Begun | None = None
        for number in range(last, -1, -1):
            position = base + 2 * last - number
            if begun is not None:
                if self._ahead and self._stream.has(position):
                    self._gradients.wait()  # the device holds those of two layers, not of three
                else:
                    self._end(begun)
                    begun = None
            before, begun = begun, self._begin(step, number, position, batches, inputs, dy)
            if number == last:
                losses, begun.checked = begun.losses, checked
            if before is not None:
                self._end(before)
        if begun is not None:
            self._end(begun)
        self._gradients.wait()
        return float(sum(float(loss) for loss in losses))

    def _begin(
        self,
        step: int,
        number: int,
        position: int,
        batches: Sequence[Any],
        inputs: Inputs,
        dy: list[Any],
    ) -> "_Begun":
        """Starts the backward pass of one layer, and replaces ``dy`` by its input's cotangent."""
        layer, losses = self._layers[number], []
        sums: Any = None
        params = self._stream.take(position)
        start = time.perf_counter()
        with self._noted(layer, "backward", step):
            keys = [self._keyed(step, number, m) for m in range(len(batches))]
            is_last, shares = number == len(self._layers) - 1, []
            if is_last:
                xs = [x for x, _ in inputs[number]]
                shares = self._engine.shares(layer, params, xs, batches, keys)
                del xs
            for m, batch in enumerate(batches):
                x, kept = inputs[number][m]
                key = keys[m]
                if is_last:
                    loss, dy[m], sums = self._engine.last(
                        layer, params, x, batch, key, shares[m], sums
                    )
                    losses.append(loss)
                else:
                    dy[m], sums = self._engine.backward(
                        layer, params, x, batch, key, kept, dy[m], sums
                    )
                inputs[number][m] = x = kept = None
            looked, losses = self._gradients.look(layer, sums), begin(losses)
        # Not the sums, where there is more: another layer may be adding to them.
        results = (losses, dy[-1]) if jax.tree.leaves((losses, dy[-1])) else sums
        return _Begun(layer, step, position, start, results, looked, losses)

    def _end(self, begun: "_Begun") -> None:
        """Waits for one layer's backward pass, and passes its gradients on to be transferred."""
        layer, step = begun.layer, begun.step
        with self._noted(layer, "backward", step):
            self._engine.wait(begun.results)
        begun.results, end = None, time.perf_counter()
        start, self._ended = max(begun.start, self._ended), end
        self._trace.add("compute", f"{layer.name} backward", start, end, step)
        self._stream.done(begun.position)
        if begun.checked is not None:
            _check_finite(begun.losses, step)
            begun.checked()
        self._gradients.take(begun.gradients)

    @contextlib.contextmanager
    def _noted(self, layer: Layer, way: str, step: int) -> Iterator[None]:
        """Context manager that adds the layer, pass and step to errors raised within."""
        try:
            yield
        except Exception as error:
            where = f"the {way} pass of layer {layer.name!r}"
            if layer is self._layers[-1]:  # both passes are one program
                where = f"the last layer, {layer.name!r}"
            error.add_note(f"in {where}, step {step + 1}")
            raise

    def _keyed(self, step: int, layer: int, microbatch: int) -> Any:
        if self._key is None:
            return None
        key = jax.random.fold_in(self._key, step)
        return jax.random.fold_in(jax.random.fold_in(key, layer), microbatch)


def _check_floating(out: Sequence[tuple[Any, Any]]) -> None:
    for y, _ in out:
        leaves = jax.tree.leaves(y)
        if not any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
            got = ", ".join(str(leaf.dtype) for leaf in leaves) or "nothing"
            raise TypeError(
                "layers: expected a floating array, maybe among others, from all but the last, got "
                f"{got}: no gradient would pass through"
            )


def _check_finite(losses: Sequence[Any], step: int) -> None:
    wrong = {m: float(x) for m, x in enumerate(losses) if not math.isfinite(float(x))}
    if wrong:
        said = ", ".join(f"{x} of microbatch {m}" for m, x in wrong.items())
        raise FloatingPointError(
            f"loss: expected finite numbers, got {said} in step {step + 1}; nothing of this step "
            "was applied or committed: go on with another batch, or from the last commit with "
            "another learning rate"
        )
