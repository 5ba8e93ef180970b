"""Thread-pool backends: blocking reads and writes at offsets, by the system or by kvikio."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorjax import _check
from tensorjax.offload._store.backends.files import DiskFile, KvikioFile, MemoryFile, Say
from tensorjax.offload._store.backends.protocol import Backend, FileBackend
from tensorjax.offload._store.transfers.queue import Queue

MIB = 1 << 20


class ThreadBackend(FileBackend):
    """I/O backend of a thread pool, each thread of which makes one transfer at a time.

    Python's global lock is free during a transfer, a checksum and a large copy.

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

    def open(self, path: Path, capacity: int, say: Say) -> None:
        """Opens or creates the data file of a thread-pool backend."""
        self.file = self._make(path, capacity, say)

    def start(self, queue: Queue) -> None:
        """Starts the thread-pool backend's workers, which take transfers from a store's queue."""
        self._threads = [
            threading.Thread(
                target=_serve, args=(self.file, queue), name=f"tensorjax-store-{i}", daemon=True
            )
            for i in range(self._workers)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Waits for the worker threads of a thread-pool backend to end."""
        for thread in self._threads:
            if thread is not threading.current_thread():  # a store that was dropped there
                thread.join()
        self._threads = []


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
    """Constructs a thread-pool backend that bypasses the page cache (O_DIRECT)."""
    return ThreadBackend(lambda path, _, say: DiskFile(path, direct=True, say=say), **options)


def buffered(**options: Any) -> ThreadBackend:
    """Constructs a thread-pool backend that goes through the page cache."""
    options = {"name": "buffered", **options}
    return ThreadBackend(lambda path, _, say: DiskFile(path, direct=False, say=say), **options)


def memory(**options: Any) -> ThreadBackend:
    """Constructs the thread backend `memory`, on a file in memory that is lost when closed."""
    options = {"name": "memory", "workers": 2, "volatile": True, **options}
    return ThreadBackend(lambda _, capacity, __: MemoryFile(capacity), **options)


def kvikio(**options: Any) -> Backend:
    """Constructs a thread-pool backend whose threads read and write by kvikio."""
    options = {"name": "kvikio (untested)", **options}
    return ThreadBackend(lambda path, _, say: KvikioFile(path, say=say), **options)
