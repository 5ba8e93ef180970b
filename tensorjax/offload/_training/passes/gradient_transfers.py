"""Transfer of gradients from the device to the host, and sums over layers that share a group."""

import functools
import math
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tensorjax.offload._threads import Settings
from tensorjax.offload._training.passes.engine import Engine
from tensorjax.offload._training.passes.layers import Layer
from tensorjax.offload._training.storage.arrays import finite, widened
from tensorjax.offload._training.storage.process_shards import Shards
from tensorjax.offload._training.trace import Trace
from tensorjax.offload._training.updates.host_optimizer import HostOptimizer

# By group: the gradient, and whether it is finite, where the device checks that; else None.
Looked = dict[str, tuple[Any, Any]]


class Gradients:
    """Collector of gradients: transfers them to the host, and sums those of shared parameters.

    A thread does it, while the device computes the next layer: those of one layer at a time, so the
    device holds two layers' gradients at most, and sums of several layers' that an accelerator adds
    up by itself. All are taken in the order they were given. They are offered in the dtypes of the
    parameters, which may be half as wide as those they are summed in.

    Args:
      dtypes: of the parameters of each group, in JAX's order.
      optimizer: whose device they go to.
      shards: which part of them is this process's.
      measured: whether their norm is wanted.
      offer: called in the thread with a group, its whole gradient, and the bytes of the gradients
        that layers are still to add to.

    Raises:
      FloatingPointError: from `take` or `wait`, if a gradient is not finite.

    Attributes:
      norm: of all whole gradients together since `begin`; of several processes, of those pieces
        that this one counts.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        dtypes: Mapping[str, tuple[Any, ...]],
        engine: Engine,
        optimizer: HostOptimizer,
        shards: Shards,
        *,
        measured: bool,
        offer: Callable[[str, Any, int], None],
        trace: Trace,
    ) -> None:
        self._dtypes, self._engine, self._optimizer = dtypes, engine, optimizer
        self._shards, self._measured, self._lent = shards, measured, engine.lends
        self._offer, self._trace = offer, trace
        self._uses = Counter(group for layer in layers for group in layer.uses)
        # How often a group's gradient comes to the host: an accelerator adds up by itself.
        alone = self._lent and jax.process_count() == 1
        self._comes = Counter({*self._uses}) if alone else self._uses
        self._given: queue.SimpleQueue[Looked | None] = queue.SimpleQueue()
        self._there = threading.Event()
        self._error: BaseException | None = None
        self._there.set()
        self._settings = Settings()
        self.begin(0)
        self._thread = threading.Thread(target=self._work, name="offload gradient", daemon=True)
        self._thread.start()

    def begin(self, step: int) -> None:
        """Resets the collector of gradients for a new training step."""
        self._step, self._left, self._missing = step, self._comes.copy(), self._uses.copy()
        self._partial: dict[str, Any] = {}  # of the host
        self._sums: dict[str, Any] = {}  # of the device
        self.norm = 0.0

    def look(self, layer: Layer, gradients: Sequence[Any]) -> Looked:
        """Starts transfers of gradients to the host, even while computed; returns them for `take`.

        What that takes of the device comes before the next layer that it is given: a transfer waits
        for all that was given before it.
        """
        found = {}
        for group, gradient in zip(layer.uses, gradients, strict=True):
            whole = gradient
            if self._comes[group] < self._uses[group]:
                whole = self._summed(group, gradient)
                if whole is None:
                    continue
            if self._alone(group, whole):
                whole = self._narrowed(group, whole)
            found[group] = self._engine.fetch((whole, self._check(group, whole)))
        return found

    def _summed(self, group: str, gradient: Any) -> Any:
        """Adds a gradient of shared parameters to the sum on the device; returns complete sums."""
        held = widened(gradient)
        if group in self._sums:
            held = self._engine.add(self._sums.pop(group), held)
        self._missing[group] -= 1
        if not self._missing[group]:
            return held
        self._sums[group] = held
        return None

    def take(self, looked: Looked) -> None:
        """Queues a layer's pending gradient transfers for the thread."""
        self.wait()
        self._there.clear()
        self._given.put(looked)

    def wait(self) -> None:
        """Waits until all gradients were transferred to the host; raises the thread's error."""
        if not self._there.is_set():
            with self._trace.span("wait", "gradient", self._step):
                self._there.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Ends the thread that copies gradients to the host, once it has passed on all of them."""
        self._given.put(None)
        self._thread.join()

    def _work(self) -> None:
        """Copies queued gradients to the host, in a thread, one layer after the other."""
        with self._settings.entered():
            while (given := self._given.get()) is not None:
                try:
                    self._take(given)
                except BaseException as error:
                    self._error = error
                finally:
                    del given
                    self._there.set()

    def _take(self, given: Looked) -> None:
        for group in [*given]:
            with self._trace.span("gradient", group, self._step):
                whole = self._add(group, *given.pop(group))
            if whole is not None:
                held = sum(x.nbytes for x in jax.tree.leaves(self._partial))
                self._offer(group, whole, held)
            del whole

    def _add(self, group: str, gradient: Any, check: Any) -> Any:
        """Adds a transferred gradient of shared parameters on the host; returns complete sums."""
        held = self._shards.take(group, gradient)
        if self._comes[group] > 1:
            held = widened(held)
        if group in self._partial:
            held = self._optimizer.add(self._partial.pop(group), held, lent=self._lent)
        self._left[group] -= 1
        if self._left[group]:
            self._partial[group] = held
            return None
        held = self._narrowed(group, held)
        norm = 0.0
        if check is None:
            norm = (self._optimizer.norm if self._measured else self._optimizer.squares)(held)
            check = math.isfinite(norm) or finite(held)
        if not check:
            raise FloatingPointError(
                f"{group}: expected a finite gradient, got NaN or infinite numbers in step "
                f"{self._step + 1}, whose loss is finite; this group was not updated by it, and "
                "nothing of this step is committed: go on from the last commit"
            )
        if self._measured:
            counted = self._shards.counted(group, held)
            norm = norm if counted is held else self._optimizer.norm(counted)
            self.norm = math.hypot(self.norm, norm)
        return held

    def _check(self, group: str, gradient: Any) -> Any:
        """Starts a check on the device that a gradient to transfer is finite; None if host checks.

        The host is left to find it with the norm, and where it adds up what several layers gave.
        """
        if self._measured or not self._lent or not self._alone(group, gradient):
            return None
        return self._engine.finite(gradient)

    def _alone(self, group: str, gradient: Any) -> bool:
        """Whether a transferred gradient is complete here, without sums on the host.

        Of several processes, none may wait for another.
        """
        leaves = jax.tree.leaves(gradient)
        here = all(isinstance(x, np.ndarray) or x.is_fully_addressable for x in leaves)
        return here and self._comes[group] == 1

    def _narrowed(self, group: str, gradient: Any) -> Any:
        """Casts a parameter group's transferred gradient back to the dtypes of its parameters."""
        leaves, structure = jax.tree.flatten(gradient)
        wanted = self._dtypes[group]
        if all(x.dtype == dtype for x, dtype in zip(leaves, wanted, strict=True)):
            return gradient
        return jax.tree.unflatten(structure, _cast(leaves, wanted))


@functools.partial(jax.jit, static_argnums=1)
def _cast(arrays: list[Any], dtypes: tuple[Any, ...]) -> list[Any]:
    return [x.astype(dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
