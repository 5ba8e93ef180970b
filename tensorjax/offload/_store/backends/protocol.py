"""Protocol of the I/O backends of a store."""

from pathlib import Path
from typing import Any, Protocol

from tensorjax.offload._store.backends.files import Say
from tensorjax.offload._store.transfers.queue import Queue


class Backend(Protocol):
    """Protocol of an I/O backend, which moves bytes between the data file and staging memory.

    It is started once: `Queue.reading`, the pool of staging memory for reads, may be replaced by a
    larger one meanwhile (``op.pool`` is that of a transfer).

    A backend takes `Op`s from the queue, in the queue's order, moves ``op.memory`` whole from or to
    ``op.offset`` of the file (looping on short transfers), and reports each by ``queue.done(op,
    error)`` from any thread. Memory, offset and size are multiples of 4096. It may move several at
    once; what conflicts is never in the queue at the same time.

    Attributes:
        name: What statistics call it.
        block: The size of transfer, in bytes, that suits it.
        volatile: Whether the data are gone when it is closed.

    Example:
        A backend that keeps the data in a list of bytes of this process, with one thread:

        >>> import tempfile, threading, numpy as np
        >>> from tensorjax import offload
        >>> class Bytes:
        ...     name, block, volatile, direct = "bytes", 1 << 20, True, False
        ...     def open(self, path, capacity, say):
        ...         self.data = bytearray(capacity)
        ...     def size(self):
        ...         return len(self.data)
        ...     def allocate(self, size):
        ...         pass
        ...     def start(self, queue):
        ...         self.thread = threading.Thread(target=self.serve, args=(queue,))
        ...         self.thread.start()
        ...     def serve(self, queue):
        ...         while (ops := queue.take()) is not None:
        ...             for op in ops:
        ...                 part = memoryview(self.data)[op.offset : op.offset + op.size]
        ...                 if op.write:
        ...                     part[:] = op.memory.data
        ...                 else:
        ...                     op.memory.data[:] = part
        ...                 queue.done(op)
        ...     def stop(self):
        ...         self.thread.join()
        ...     def sync(self):
        ...         pass
        ...     def close(self):
        ...         pass
        >>> with offload.TensorStore(tempfile.mkdtemp(), capacity=8192, backend=Bytes()) as store:
        ...     store.reserve({"w": np.zeros(10)})
        ...     done = store.write("w", np.ones(10)).result()
        ...     with store.read("w").result() as lease:
        ...         print(lease.array.sum(), store.statistics().backend)
        10.0 bytes
    """

    name: str
    block: int
    volatile: bool

    @property
    def direct(self) -> bool:
        """Whether a backend's transfers bypass the page cache, in the backend protocol."""
        ...

    def open(self, path: Path, capacity: int, say: Say) -> None:
        """Opens a backend's data file, created if missing, in the backend protocol.

        Args:
            path: Of the data file.
            capacity: Most bytes that the file may get.
            say: Told of fallbacks, as text.
        """
        ...

    def size(self) -> int:
        """Returns the size of a backend's data file in bytes, in the backend protocol."""
        ...

    def allocate(self, size: int) -> None:
        """Reserves disk space for the first ``size`` bytes, in the backend protocol.

        Args:
            size: Bytes from the start of the file.

        Raises:
            CapacityError: if the disk has no room for them.
        """
        ...

    def start(self, queue: Queue) -> None:
        """Starts threads that serve a queue of transfers, in the backend protocol.

        Args:
            queue: Of the store, from which transfers are taken until it is closed.
        """
        ...

    def stop(self) -> None:
        """Waits for threads to end once the queue was closed, in the backend protocol."""
        ...

    def sync(self) -> None:
        """Waits until everything written is on the disk, in the backend protocol."""
        ...

    def close(self) -> None:
        """Closes a backend's data file after `stop`, in the backend protocol."""
        ...


class FileBackend:
    """Base class for the I/O backend protocol on one data file: size, allocation, sync, close.

    Attributes:
        file: Of `tensorjax.offload._store.backends.files`, once it is open.
    """

    file: Any = None

    @property
    def direct(self) -> bool:
        """Whether transfers of the data file bypass the page cache, for the backend protocol."""
        return bool(getattr(self.file, "direct", False))

    def size(self) -> int:
        """Returns the size of the data file in bytes, for the backend protocol."""
        return self.file.size()

    def allocate(self, size: int) -> None:
        """Reserves disk space for the first ``size`` bytes, for the backend protocol."""
        self.file.allocate(size)

    def sync(self) -> None:
        """Waits until everything written is on the disk, for the backend protocol."""
        self.file.sync()

    def close(self) -> None:
        """Closes the data file, for the backend protocol."""
        self.file.close()
