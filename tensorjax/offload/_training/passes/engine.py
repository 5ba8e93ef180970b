"""Engine: computes layers forwards and backwards on a device, by their compiled programs."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._typing import Key, PyTree
from tensorjax.offload._training.passes.layers import Activations, Layer, LayerPrograms, programs_of
from tensorjax.offload._training.storage.arrays import begin, finite, lends, widened


class Engine:
    """Engine that runs a model's layers by jitted forward and backward programs.

    A layer's backward pass starts from its input, and computes the layer again ("recompute"), or
    from what the forward pass kept of it: the results of its matrix products, by a policy of
    `jax.checkpoint` ("keep"), which "offload" moves to pinned host memory in the meantime.

    Args:
      activations: "recompute", "keep" or "offload".
      shardings: of the parameters of each group, a mapping from its name to a pytree of
        `jax.sharding.Sharding` like them, which their gradients get too; groups without lie on the
        device that JAX uses if none is named. In one of several processes (`jax.distributed`) every
        group has to have some, over the devices of all processes.
      data: sharding of every array of a microbatch, or None. Each of several processes gives whole
        batches, the same ones, and places what its devices need of them.

    Raises:
      ValueError: unknown ``activations``.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import offload
      >>> engine = offload.Engine(activations="keep")
      >>> double = offload.Layer(name="double", apply=lambda params, x, batch, key: 2 * x)
      >>> engine.evaluate(double, ({},), jnp.ones(2), None).tolist()
      [2.0, 2.0]

    Source: T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174.
    """

    def __init__(
        self,
        *,
        activations: Activations = "recompute",
        shardings: Mapping[str, Any] | None = None,
        data: Any = None,
    ) -> None:
        _check.choice("activations", activations, get_args(Activations))
        self.activations = activations
        self.shardings, self._data = dict(shardings or {}), data

    def batch(self, batch: PyTree) -> Any:
        """Copies a microbatch to the engine's device.

        Args:
          batch: pytree of arrays, one microbatch.

        Returns:
          The same pytree of JAX arrays, on the sharding ``data`` if there is one.
        """
        if self._data is None:
            return batch if self.shardings else jax.device_put(batch, self.device)
        if self._data.is_fully_addressable:
            return jax.device_put(batch, self._data)
        batch, where = jax.tree.map(np.asarray, batch), self._data
        return jax.tree.map(
            lambda x: jax.make_array_from_callback(x.shape, where, x.__getitem__), batch
        )

    @functools.cached_property
    def device(self) -> Any:
        """Device of the engine for parameters without shardings: JAX's default device."""
        return next(iter(jnp.empty(()).devices()))

    def place(self, group: str, params: PyTree) -> Any:
        """Copies parameters from host memory to the engine's device, never as views.

        Args:
          group: name of the group, by which its shardings are found.
          params: pytree of arrays on the host.

        Returns:
          The same pytree of JAX arrays.
        """
        where = self.shardings.get(group, self.device)
        if self.device.platform == "cpu":
            # Not device_put(may_alias=False), which on a CPU aliases aligned memory all the same.
            params = jax.tree.map(lambda x: jnp.array(x, copy=True), params)
        return jax.device_put(params, where)

    def forward(
        self, layer: Layer, params: PyTree, x: PyTree, batch: PyTree, key: Key | None
    ) -> tuple[Any, Any]:
        """Computes a layer's output by the engine, and what is saved for its backward pass.

        Args:
          layer: layer to compute.
          params: parameters of the groups it uses, on the device, as a tuple.
          x: its input; None for the first layer.
          batch: a microbatch on the device.
          key: of `jax.random`, for layers that draw; None computes without.

        Returns:
          (result, what is kept); the second is None with "recompute".
        """
        programs = self._of(layer)
        if self.activations == "recompute":
            return programs.forward(params, x, batch, key), None
        y, kept = programs.forward_keeping(params, x, batch, key)
        return y, _moved(kept, "pinned_host") if self.activations == "offload" else kept

    def evaluate(self, layer: Layer, params: PyTree, x: PyTree, batch: PyTree) -> Any:
        """Computes a layer's output by the engine, without random key, and saves nothing.

        Args:
          layer, params, x, batch: as for `forward`.

        Returns:
          The result, a pytree of arrays.
        """
        return self._of(layer).forward(params, x, batch, None)

    def backward(
        self,
        layer: Layer,
        params: PyTree,
        x: PyTree,
        batch: PyTree,
        key: Key | None,
        kept: Any,
        dy: Any,
        sums: PyTree,
    ) -> tuple[Any, Any]:
        """Computes a layer's backward pass by the engine: cotangent, and gradients into ``sums``.

        The first has the dtypes of the parameters, sums are in single precision at least. They are
        handed over: updates write to their memory, so nothing else may use them.

        Args:
          layer, params, x, batch, key: as for `forward`.
          kept: what `forward` kept.
          dy: cotangent of the result.
          sums: gradients of the microbatches before, like ``params``; None at the first one.

        Returns:
          (cotangent of the input, sums with the gradients of this microbatch).
        """
        programs, sums = self._of(layer), widened(sums)
        if kept is None:
            return programs.backward(params, x, batch, key, dy, sums)
        if self.activations == "offload":
            kept = _moved(kept, "device")
        return programs.backward_kept(params, x, batch, key, kept, dy, sums)

    def shares(
        self, layer: Layer, params: PyTree, xs: Sequence[Any], batches: Sequence[Any], keys: Any
    ) -> list[Any]:
        """Returns the weights by which the engine averages microbatch losses to that of a batch.

        Args:
          layer, params: the last one.
          xs, batches, keys: of each microbatch.

        Returns:
          One factor for each microbatch: 1 / count, or 1 / Σ weights if losses come with weights.

        Raises:
          ValueError: several microbatches, and a loss without weight that is no mean over rows.
        """
        programs = self._of(layer)
        if not programs.weighs(params, xs[0], batches[0], keys[0]):
            if len(batches) > 1:
                programs.check_mean(layer.name, params, xs[:2], batches[:2])
            return [1.0 / len(batches)] * len(batches)
        given = zip(xs, batches, keys, strict=True)
        weights = [programs.weight(params, x, batch, key) for x, batch, key in given]
        return [_reciprocal(weights)] * len(batches)

    def last(
        self,
        layer: Layer,
        params: PyTree,
        x: PyTree,
        batch: PyTree,
        key: Key | None,
        share: Any,
        sums: PyTree,
    ) -> tuple[Any, Any, Any]:
        """Computes, by the engine, last layer's loss, cotangent, gradients times ``share``.

        Args:
          layer, params, x, batch, key: as for `forward`.
          share: factor of this microbatch, from `shares`.
          sums: gradients of the microbatches before, like ``params``; None at the first one.

        Returns:
          (loss, cotangent of the input, sums with the gradients of this microbatch).
        """
        return self._of(layer).last(params, x, batch, key, share, widened(sums))

    def shapes(
        self, layer: Layer, params: PyTree, x: PyTree, batch: PyTree, key: Key | None
    ) -> tuple[Any, Any]:
        """Returns the shapes of a layer's output and activations saved by the engine, uncomputed.

        Args:
          layer, params, x, batch, key: as for `forward`.

        Returns:
          Two pytrees of `jax.ShapeDtypeStruct`.
        """
        return jax.eval_shape(self._of(layer).forward_keeping, params, x, batch, key)

    @property
    def lends(self) -> bool:
        """Whether gradients that the engine copies to the host lie in pinned memory, kept as is."""
        return lends(self.device)

    def add(self, sums: PyTree, gradient: PyTree) -> Any:
        """Adds, by the engine, two gradients of the same parameters in the first one's memory.

        Args:
          sums: gradients so far; their memory is reused.
          gradient: a pytree like it.

        Returns:
          The sum, a pytree of arrays.
        """
        return _add(sums, gradient)

    def finite(self, gradient: PyTree) -> Any:
        """Whether all entries of a gradient on the engine's device are finite, a scalar.

        Args:
          gradient: pytree of arrays.

        Returns:
          A boolean scalar, which may still be computed.
        """
        return finite(gradient)

    def fetch(self, arrays: Any) -> Any:
        """Starts the engine's transfer of arrays to the host, even while they are computed.

        Args:
          arrays: pytree of arrays on the device.

        Returns:
          A pytree that the host reads once the transfers are done.
        """
        return begin(arrays)

    def wait(self, value: Any) -> Any:
        """Waits until the engine has computed arrays, and returns them.

        Args:
          value: pytree of arrays.

        Returns:
          The same pytree.
        """
        return jax.block_until_ready(value)

    def _of(self, layer: Layer) -> LayerPrograms:
        leaves, tree = jax.tree.flatten(tuple(self.shardings.get(group) for group in layer.uses))
        return programs_of(layer.apply, tree, tuple(leaves))


@jax.jit
def _reciprocal(weights: list[jax.Array]) -> jax.Array:
    """Computes the factor 1 / Σ weights of a batch's losses in the engine; 0 for no weight."""
    wide = 1.0 * sum(map(_summable, weights), jnp.zeros((), _summable(weights[0]).dtype))
    wide = wide.astype(linalg.factor_dtype(wide.dtype))
    return jnp.where(wide == 0, 0, 1 / jnp.where(wide == 0, 1, wide))


def _summable(weight: jax.Array) -> jax.Array:
    """Casts a microbatch's loss weight in the engine to a dtype in which several can be added."""
    if jnp.issubdtype(weight.dtype, jnp.floating):
        return weight.astype(linalg.factor_dtype(weight.dtype))
    return weight if weight.dtype.itemsize >= 4 else weight.astype(int)


@functools.partial(jax.jit, donate_argnums=(0,))
def _add(sums: PyTree, gradient: PyTree) -> Any:
    return jax.tree.map(jnp.add, sums, gradient)


def _moved(arrays: Any, kind: str) -> Any:
    return jax.tree.map(lambda x: jax.device_put(x, x.sharding.with_memory_kind(kind)), arrays)
