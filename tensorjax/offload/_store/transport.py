"""Transport of a store: owner of its queue, staging memory, reader, writer and backend."""

import os
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from tensorjax.offload._errors import CapacityError, StoreError
from tensorjax.offload._store.backends import Backend
from tensorjax.offload._store.disk import folder as _folder
from tensorjax.offload._store.disk.extents import Layouts
from tensorjax.offload._store.reader import Reader
from tensorjax.offload._store.tensor_states import Tensor
from tensorjax.offload._store.transfers.queue import Queue
from tensorjax.offload._store.transfers.requests import Request
from tensorjax.offload._store.transfers.staging import Pool, sizes
from tensorjax.offload._store.writer import Writer

Pools = tuple[Pool, Pool]


class Transport:
    """Transport of a store: owner of its queue, staging memory, reader, writer and I/O backend.

    Where it is dropped, threads end and the lock is let go.

    Args:
        backend: Moves the bytes; open once it starts, and closed with it.
        lock: Of the folder, let go at the end; None where there is none.
        block: Most bytes of one transfer and of one checksum.
        staging: Bytes of staging memory; None for what tensors need.

    Attributes:
        queue: What is asked for and not yet done.
        reader: From transfers to leases.
        writer: From arrays to transfers.
    """

    queue: Queue

    def __init__(
        self, backend: Backend, lock: _folder.Lock | None, *, block: int, staging: int | None
    ):
        self._backend, self._lock, self._block, self._staging = backend, lock, block, staging
        self.layouts = Layouts(block)
        self.reader = Reader(self.layouts)
        self.writer = Writer(block, self.layouts, self.reader)

    def pools(self, tensors: Mapping[str, Tensor]) -> Pools:
        """Allocates the transport's staging pools for reads and writes of given tensors.

        Raises:
            CapacityError: if it is too little, or not to be had.
        """
        reading, writing = _pools(*self._sizes(tensors))
        return reading, writing

    def larger(self, tensors: Mapping[str, Tensor]) -> Pool | None:
        """Allocates a larger staging pool of the transport if given tensors need one, or None.

        What writes take is a block at a time, whatever the tensors are.

        Raises:
            CapacityError: if it is too little, or not to be had.
        """
        size, _ = self._sizes(tensors)
        return _pools(size)[0] if size > self.queue.reading.size else None

    def _sizes(self, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        largest = max((t.slots.extent.size for t in tensors.values()), default=0)
        return sizes(self._staging, self._block, largest)

    def start(self, pools: Pools) -> None:
        """Starts a store's transport: creates the queue, starts the backend's threads."""
        self.queue = Queue(*pools)
        self._backend.start(self.queue)
        self.writer.queue = self.reader.queue = self.queue
        self._finalizer = weakref.finalize(
            self, _abandon, self.queue, self._backend, self._lock, os.getpid()
        )

    def statistics(self) -> dict[str, Any]:
        """Returns the transport's part of `Statistics`: transfers and staging memory."""
        queue = self.queue
        counted = ("depth", "deepest", "queued", "blocked", "overflow")
        with queue.lock:
            return {
                "reads": queue.reads.frozen(),
                "writes": queue.writes.frozen(),
                "staging": queue.reading.size + queue.writing.size,
                "staging_reads": queue.reading.size,
                "staging_peak": queue.staged,
                **{name: getattr(queue, name) for name in counted},
            }

    def close(self) -> None:
        """Closes a store's transport: finishes transfers, and fails reads without memory."""
        with self.writer.paused():
            self.queue.drain()
            left = self.queue.close()
        _refuse(left)
        self._backend.stop()
        self._finalizer.detach()
        self._backend.close()
        self._unlock()

    def leave(self) -> None:
        """Abandons a store's transport in a forked process: releases the lock, takes no other."""
        self._finalizer.detach()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()


def _pools(*wanted: int) -> list[Pool]:
    try:
        return [Pool(size) for size in wanted]
    except (OSError, MemoryError) as error:
        raise CapacityError(
            f"staging, block: {sum(wanted)} bytes of memory are not to be had ({error}); "
            "give a smaller staging=, of at least the largest tensor and a third of it, and of a "
            "few blocks"
        ) from error


def _refuse(requests: Iterable[Request]) -> None:
    """Fails reads that wait for staging memory when a store's transport closes."""
    for request in requests:
        request.error = StoreError("the store was closed")
        request.resolve(request)


def _abandon(queue: Queue, backend: Backend, lock: _folder.Lock | None, pid: int) -> None:
    """Closes a store's transport (queue, backend, lock) at garbage collection or at the exit."""

    def end() -> None:
        if pid == os.getpid():  # a fork has none of the threads, and locks that they may have held
            _refuse(queue.close())
            backend.stop()
            backend.close()
        if lock is not None:
            lock.release()

    try:  # not here: the collector may have come from a thread that holds the queue's lock
        threading.Thread(target=end, name="tensorjax-store-end").start()
    except RuntimeError:  # too late for threads
        end()
