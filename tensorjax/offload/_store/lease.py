"""Leases: arrays that were read, valid in staging memory until they are released."""

import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping

import numpy as np

from tensorjax.offload._store.disk.extents import Place
from tensorjax.offload._store.transfers.queue import Queue
from tensorjax.offload._store.transfers.requests import Buffer


class Lease:
    """Tensor that was read from a store, valid in staging memory until its release.

    The memory is reused after the release: copy what has to live longer. A lease that is dropped
    without a release gives its memory back once no array views it any more. `jax.device_put` may
    alias the array on a CPU, even with ``may_alias=False`` (seen with jax 0.10.1): copy it by
    ``jax.numpy.array(…, copy=True)``.

    Attributes:
        name: Of the tensor.

    Example:
        >>> import tempfile, numpy as np, jax
        >>> from tensorjax import offload
        >>> with offload.TensorStore(tempfile.mkdtemp(), 1 << 20, backend="memory") as store:
        ...     store.reserve({"w": jax.ShapeDtypeStruct((2,), np.float32)})
        ...     store.write("w", np.ones(2, np.float32)).result()
        ...     with store.read("w").result() as lease:
        ...         print(lease.array)
        [1. 1.]
    """

    __slots__ = ("_array", "_buffer", "_queue", "name")

    def __init__(self, place: Place, array: np.ndarray, buffer: Buffer | None, queue: Queue):
        self.name = place.name
        self._array: np.ndarray | None = array
        self._buffer, self._queue = buffer, queue

    @property
    def array(self) -> np.ndarray:
        """Read-only NumPy array of a leased tensor, a view of the staging memory.

        It is aligned to 4096 bytes; one that is smaller than this, to 64.

        Raises:
            ValueError: if the lease was released.
        """
        if self._array is None:
            raise ValueError(f"{self.name}: the lease was released; read the tensor again")
        return self._array

    def release(self) -> None:
        """Ends the lease of a tensor in staging memory and frees it; a second call does nothing."""
        if self._array is not None:
            if self._buffer is not None:
                self._queue.release(self._buffer, self.name)
            self._array = None

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        array = getattr(self, "_array", None)
        if sys.is_finalizing():  # all memory goes now, and what is called here may have gone
            return
        if array is not None and self._buffer is not None:
            # No lock here: this may run in a thread that holds it. Views of the array, such as
            # `store.read(name).result().array`, may live on: the memory waits for the last one.
            viewed = weakref.finalize(array.base, self._queue.orphans.put,
                                     (self._buffer, self.name))  # fmt: skip
            viewed.atexit = False
            warnings.warn(
                f"{self.name}: a lease was dropped without release()", ResourceWarning, stacklevel=2
            )


class Leases(Mapping[str, Lease]):
    """Leases of tensors that were read from a store together, as a mapping from their names.

    Example:
        >>> import tempfile, numpy as np, jax
        >>> from tensorjax import offload
        >>> with offload.TensorStore(tempfile.mkdtemp(), 1 << 20, backend="memory") as store:
        ...     store.reserve({"w": jax.ShapeDtypeStruct((2,), np.float32)})
        ...     store.write("w", np.ones(2, np.float32)).result()
        ...     with store.read_many(["w"]).result() as leases:
        ...         print({name: float(lease.array.sum()) for name, lease in leases.items()})
        {'w': 2.0}
    """

    def __init__(self, leases: dict[str, Lease]):
        self._leases = leases

    def __getitem__(self, name: str) -> Lease:
        return self._leases[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    def release(self) -> None:
        """Releases the leases of all tensors that were read together."""
        for lease in self._leases.values():
            lease.release()

    def __enter__(self) -> "Leases":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def view(memory: np.ndarray, position: int, place: Place) -> np.ndarray:
    """Returns a leased tensor in staging memory as a NumPy view."""
    return np.ndarray(place.shape, place.dtype, memory, position)
