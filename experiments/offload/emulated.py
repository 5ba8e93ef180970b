"""Emulated device: waits as long as a device would compute, without using the cores."""

import functools
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import jax
import numpy as np

from tensorjax import offload
from tensorjax.offload._store.transfers.staging import Pool


class Emulated(offload.Engine):
    """Engine of an emulated device, which waits instead of computing.

    Parameters are read, and dropped as if a device had them.

    Gradients are the same numbers in every step, of the right shapes. As an accelerator does, it
    adds up those of several layers and looks whether they are finite without the host's cores, and
    writes them to memory of the host by itself, where they stay until they have been used.

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
        self._free = 0.0  # when it has computed all that it was given
        self._written: dict[Any, _Written] = {}

    @property
    def lends(self) -> bool:
        """Returns True, as gradients arrive in the emulated device's own memory."""
        return True

    def place(self, group: str, params: Any) -> Any:
        """Returns the group's name in place of parameters, as a device copies by itself."""
        return group

    def forward(
        self, layer: offload.Layer, params: Any, x: Any, batch: Any, key: Any
    ) -> tuple[Any, Any]:
        """Returns the time at which an emulated forward pass will be done."""
        return self._after(self.seconds[layer.name][0]), None

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
        """Returns the time at which an emulated backward pass will be done, and gradients."""
        dx = self._after(self.seconds[layer.name][1])
        return dx, tuple(self._gradients[group] for group in layer.uses)

    def shares(
        self, layer: offload.Layer, params: Any, xs: Any, batches: Any, keys: Any
    ) -> list[float]:
        """Returns equal factors, by which losses of microbatches give a mean."""
        return [1.0 / len(batches)] * len(batches)

    def last(
        self, layer: offload.Layer, params: Any, x: Any, batch: Any, key: Any, share: float,
        sums: Any
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Returns loss, time and gradients of the last layer's emulated passes."""
        dx = self._after(sum(self.seconds[layer.name]))
        return np.float32(0), dx, tuple(self._gradients[group] for group in layer.uses)

    def add(self, sums: Any, gradient: Any) -> Any:
        """Returns the same gradients again, as sums are not computed."""
        return gradient

    def finite(self, gradient: Any) -> Any:
        """Returns True, as emulated gradients are finite."""
        return np.True_

    def fetch(self, arrays: Any) -> Any:
        """Returns host memory that holds the emulated gradients."""
        return jax.tree.map(self._host, arrays)

    def forget(self) -> None:
        """Frees the memory that gradients were written to, before the next training."""
        self._written.clear()

    def wait(self, value: Any) -> Any:
        """Waits until the emulated computation of a value is done."""
        times = [x[0] for x in jax.tree.leaves(value) if isinstance(x, _Time)]
        time.sleep(max(0.0, max(times, default=0.0) - time.perf_counter()))
        return value

    def _after(self, seconds: float) -> "_Time":
        self._free = max(self._free, time.perf_counter()) + seconds
        return np.array([self._free]).view(_Time)

    def _host(self, x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        if x.dtype not in self._written:
            every = [g for g in jax.tree.leaves(self._gradients) if g.dtype == x.dtype]
            # All may wait at once, while others come.
            most = sum(g.nbytes + _Written.LINE for g in every) + 2 * max(g.nbytes for g in every)
            self._written[x.dtype] = _Written(most, x.ravel()[:1])
        return self._written[x.dtype].array(x)


class _Written:
    """Pool of memory that holds one number everywhere, as if a device had written it.

    As that of an accelerator's allocator, it is given out again once nobody sees it any more, and
    grows to the most that was in use at a time.
    """

    LINE = 64  # bytes, so that XLA takes a view

    def __init__(self, most: int, number: np.ndarray) -> None:
        self._pool, self._number, self._end = Pool(most), number, 0
        # The collector may find them anywhere, also while this gives memory out.
        self._unseen: SimpleQueue[tuple[int, int]] = SimpleQueue()

    def array(self, like: np.ndarray) -> np.ndarray:
        """Returns an array of the same shape and dtype, filled with the number."""
        while not self._unseen.empty():
            self._pool.give(*self._unseen.get())
        size = -(-like.nbytes // self.LINE) * self.LINE
        start = self._pool.take(size) if size else 0
        if start is None:
            raise MemoryError(f"gradients: more than {self._pool.size} bytes wait")
        end, memory = start + size, self._pool.memory
        if end > self._end:
            memory[self._end : end].view(self._number.dtype)[:] = self._number
            self._end = end
        seen = np.frombuffer(memory[start : start + like.nbytes].data, like.dtype)
        if size:
            weakref.finalize(seen.base, self._unseen.put, (start, size)).atexit = False
        return seen.reshape(like.shape)


class _Time(np.ndarray):
    """Array that stands for a result: the time at which it is done.

    By `time.perf_counter`.
    """


def emulated(
    layers: Sequence[offload.Layer], params: Mapping[str, Any], compute: float
) -> Emulated:
    """Builds an emulated device that takes ``compute`` seconds a step.

    Layers take parts of it in proportion to their work.
    """
    shapes = {name: jax.eval_shape(draw) for name, draw in params.items()}
    uses = Counter(group for layer in layers for group in layer.uses)
    most = max(x.size for x in jax.tree.leaves(shapes))
    numbers = functools.cache(lambda dtype: np.full(most, 1e-3, dtype))
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
