"""Where bundles of arrays live between their uses: in host memory, or in a tensor store."""

import ctypes
import time
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

from tensorjax.offload._bundle import Bundle
from tensorjax.offload._trace import Trace


class Reading(Protocol):
    """Arrays on their way from a home."""

    def ready(self) -> bool:
        """Whether `arrays` would return at once."""
        ...

    def arrays(self) -> list[Any]:
        """The arrays, valid until `release`."""
        ...

    def release(self) -> None:
        """Gives their memory back; they must not be read any more."""
        ...


class Home(Protocol):
    """Keeps the newest arrays of every bundle it was given."""

    def read(self, bundle: Bundle, *, deadline: float, step: int) -> Reading:
        """Begins to read what was written last."""
        ...

    def write(
        self, bundle: Bundle, arrays: Sequence[Any], *, deadline: float, step: int
    ) -> Sequence[Any] | None:
        """Takes over arrays, and returns some of the same kind that nobody needs any more.

        On return a `read` sees the new arrays. What comes back may be overwritten.
        """
        ...

    def settle(self) -> None:
        """Waits until all that was written is where it should be; raises what went wrong."""
        ...


class HostHome:
    """Arrays in the memory of the host."""

    def __init__(self) -> None:
        self.held: dict[str, list[Any]] = {}

    def read(self, bundle: Bundle, *, deadline: float, step: int) -> Reading:
        """Returns the arrays themselves: nothing moves."""
        return _Held(self.held[bundle.name])

    def write(
        self, bundle: Bundle, arrays: Sequence[Any], *, deadline: float, step: int
    ) -> Sequence[Any] | None:
        """Keeps the arrays, and returns the ones before."""
        before = self.held.get(bundle.name)
        self.held[bundle.name] = list(arrays)
        return before

    def settle(self) -> None:
        """Nothing to wait for."""


class StoreHome:
    """Arrays in a `TensorStore`.

    Args:
      store: the store; names of tensors are reserved already.
      trace: gains a span for every tensor that is read or written.
    """

    def __init__(self, store: Any, trace: Trace) -> None:
        self._store, self._trace = store, trace
        self._writes: list[Any] = []

    def read(self, bundle: Bundle, *, deadline: float, step: int) -> Reading:
        """Asks the store for all tensors of a bundle."""
        futures = {}
        for name in bundle.specs:
            start = time.perf_counter()
            futures[name] = self._store.read(name, deadline=deadline)
            self._follow(futures[name], "read", name, start, step)
        return _Leased(bundle, futures)

    def write(
        self, bundle: Bundle, arrays: Sequence[Any], *, deadline: float, step: int
    ) -> Sequence[Any] | None:
        """Copies the arrays to the store's staging memory; they are free again on return."""
        for name, array in bundle.tensors([_view(x) for x in arrays]).items():
            start = time.perf_counter()
            future = self._store.write(name, array, deadline=deadline)
            self._follow(future, "write", name, start, step)
            self._writes.append(future)
        self._drop_done()
        return arrays

    def settle(self) -> None:
        """Waits for all writes, and raises the first error of one."""
        while self._writes:
            self._writes.pop(0).result()

    def _drop_done(self) -> None:
        while self._writes and self._writes[0].done():
            self._writes.pop(0).result()

    def _follow(self, future: Any, track: str, name: str, start: float, step: int) -> None:
        future.add_done_callback(
            lambda _: self._trace.add(track, name, start, time.perf_counter(), step)
        )


class _Held:
    def __init__(self, arrays: list[Any]) -> None:
        self._arrays = arrays

    def ready(self) -> bool:
        return True

    def arrays(self) -> list[Any]:
        return list(self._arrays)

    def release(self) -> None:
        return


class _Leased:
    def __init__(self, bundle: Bundle, futures: dict[str, Any]) -> None:
        self._bundle, self._futures = bundle, futures

    def ready(self) -> bool:
        return all(future.done() for future in self._futures.values())

    def arrays(self) -> list[Any]:
        tensors = {name: future.result().array for name, future in self._futures.items()}
        return self._bundle.arrays(tensors)

    def release(self) -> None:
        for future in self._futures.values():
            if future.exception() is None:
                future.result().release()
        self._futures = {}


def _view(x: Any) -> np.ndarray:
    """An array of the host as NumPy sees it, without a reference that would outlive the caller's.

    NumPy's own view of a `jax.Array` counts as a reference of its buffer, and stays with the array;
    XLA then copies where it could write in place.
    """
    if not isinstance(x, jax.Array) or not x.nbytes:
        return np.asarray(x)
    jax.block_until_ready(x)
    raw = (ctypes.c_uint8 * x.nbytes).from_address(x.unsafe_buffer_pointer())
    return np.frombuffer(raw, np.uint8).view(np.dtype(x.dtype)).reshape(x.shape)
