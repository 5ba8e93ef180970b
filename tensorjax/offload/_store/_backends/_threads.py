"""A pool of threads that read and write at offsets: the standard library and nothing else."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorjax import _check
from tensorjax.offload._store._files import DiskFile, MemoryFile, Say
from tensorjax.offload._store._queue import Queue

MIB = 1 << 20


class ThreadBackend:
    """Serves the queue by threads, each with one transfer at a time.

    The interpreter's lock is free during a transfer, a checksum and a large copy.

    Args:
        file: Makes the file from its path, capacity and a way to tell of fallbacks.
        name: What statistics call it.
        workers: Threads.
        block: Most bytes of one transfer.
    """

    def __init__(
        self,
        file: Callable[[Path, int, Say], Any],
        *,
        name: str = "threads",
        workers: int = 4,
        block: int = MIB,
        volatile: bool = False,
    ):
        self.name, self.block, self.volatile = name, block, volatile
        self._make, self._workers = file, _check.integer("workers", workers, low=1)
        self._threads: list[threading.Thread] = []
        self.file: Any = None

    @property
    def direct(self) -> bool:
        """Whether it goes past the page cache."""
        return bool(getattr(self.file, "direct", False))

    def open(self, path: Path, capacity: int, say: Say) -> None:
        """Opens or creates the file."""
        self.file = self._make(path, capacity, say)

    def size(self) -> int:
        """Bytes of the file."""
        return self.file.size()

    def allocate(self, size: int) -> None:
        """Reserves blocks on the disk."""
        self.file.allocate(size)

    def start(self, queue: Queue) -> None:
        """Starts the threads."""
        self._threads = [
            threading.Thread(
                target=_serve, args=(self.file, queue), name=f"tensorjax-store-{i}", daemon=True
            )
            for i in range(self._workers)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Waits for the threads."""
        for thread in self._threads:
            if thread is not threading.current_thread():  # a store that was dropped there
                thread.join()
        self._threads = []

    def sync(self) -> None:
        """Waits for the disk."""
        self.file.sync()

    def close(self) -> None:
        """Closes the file."""
        self.file.close()


def _serve(file: Any, queue: Queue) -> None:
    while (ops := queue.take()) is not None:
        (op,) = ops
        try:
            assert op.memory is not None
            (file.write if op.write else file.read)(op.offset, op.memory.data)
        except BaseException as error:  # of any file, for any reason: the caller is told
            queue.done(op, error)
        else:
            queue.done(op)
        del op, ops  # what waits for the next one must not keep the last one alive


def threads(**options: Any) -> ThreadBackend:
    """O_DIRECT by a pool of threads."""
    return ThreadBackend(lambda path, _, say: DiskFile(path, direct=True, say=say), **options)


def buffered(**options: Any) -> ThreadBackend:
    """The page cache by a pool of threads."""
    options = {"name": "buffered", **options}
    return ThreadBackend(lambda path, _, say: DiskFile(path, direct=False, say=say), **options)


def memory(**options: Any) -> ThreadBackend:
    """A file in memory, gone when it is closed."""
    options = {"name": "memory", "workers": 2, "volatile": True, **options}
    return ThreadBackend(lambda _, capacity, __: MemoryFile(capacity), **options)
