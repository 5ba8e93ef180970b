"""Tensor store: tensors on disk by name, moved asynchronously, committed atomically."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from tensorjax._typing import ArrayLike
from tensorjax.offload._errors import CapacityError, Notices, StoreError, listed
from tensorjax.offload._processes import numbered
from tensorjax.offload._store import arguments_and_contents as _arguments
from tensorjax.offload._store.arguments_and_contents import StoreContents
from tensorjax.offload._store.backends import Backend, choose
from tensorjax.offload._store.disk import checksums as _checksums
from tensorjax.offload._store.disk import extents
from tensorjax.offload._store.disk import folder as _folder
from tensorjax.offload._store.disk import index as _index
from tensorjax.offload._store.disk.extents import Place
from tensorjax.offload._store.lease import Lease, Leases
from tensorjax.offload._store.statistics import Statistics
from tensorjax.offload._store.tensor_states import entries, failures, opened
from tensorjax.offload._store.transfers.requests import item_of
from tensorjax.offload._store.transport import Transport
from tensorjax.offload._store.writer import flat


class TensorStore(StoreContents):
    """Store of named tensors on disk, with asynchronous transfers and atomic commits.

    It is one preallocated file, with two slots for each tensor, and an index that is replaced
    atomically.

    Writes go to the slot that is not committed, reads give what was written last, `commit` makes
    everything written since the last one durable in one step, and opening a store gives the last
    committed state, however the process before ended. Reads and writes of one tensor keep their
    order; otherwise the earliest deadline goes first. Tensors below 4096 bytes are packed: those of
    one reservation share blocks of the disk, and what was last written to these stays in memory, so
    that one of them can be written alone, and what the disk refused goes with the next one. Each is
    verified by itself. All methods may be called from any thread, but not from a signal's handler,
    which may have cut one of them off. A process that is forked cannot use the store: what it
    inherits, leases included, is empty there.

    Args:
        path: A folder; created if it is not there, opened if it holds a store.
        capacity: Most bytes of the data file; a tensor takes twice its size, rounded up to 4096;
            smaller ones share blocks.
            `offload.tensors` says which ones a training has, `offload.capacity` what they take. Of
            a store that is there, None takes what it holds.
        backend: "auto", one of `backends()`, or an object with the methods of `Backend`.
        staging: Bytes of aligned memory for transfers: a quarter for writes, the rest for reads and
            the leases they give. By default 256 MiB, and more where the largest tensors need it.
        model: Description of what the store belongs to, as JSON, such as a model's configuration. A
            store that was created with another one is refused, with the difference named.
        process: Number of this process and count of processes, for sharded training: each has its
            own files in the folder, which all of them see. By default those of `jax.distributed`.
        block: Most bytes of one transfer and of one checksum, in multiples of 4096; of a new store.
        options: For the backend: "io_uring" has ``depth`` (transfers in flight, 32), ``sqpoll`` and
            ``iopoll`` (off) and ``fixed`` (registered memory, on), "threads" and "buffered" have
            ``workers``; with "auto" they are those of "threads", which it then takes.

    Raises:
        CorruptError: if files are missing or too short, or no copy of the index is whole. Contents
            of tensors are verified only when they are read: then the read raises it, and names
            them; `Trainer.step` raises RuntimeError, of which it is the cause.
        LockedError: if the store is open already.
        MismatchError: if it is of another version, model or number of processes.
        CapacityError: if the capacity is below what the store holds.

    Example:
        >>> import tempfile, numpy as np, jax
        >>> from tensorjax.offload import TensorStore
        >>> folder = tempfile.mkdtemp()
        >>> with TensorStore(folder, 1 << 20, backend="threads") as store:
        ...     store.reserve({"w": jax.ShapeDtypeStruct((2, 3), np.float32)})
        ...     done = store.write("w", np.ones((2, 3), np.float32))
        ...     store.commit({"step": 1})
        >>> with TensorStore(folder, 1 << 20, backend="threads") as store:
        ...     with store.read("w").result() as lease:
        ...         print(store.meta, lease.array.sum())
        {'step': 1} 6.0
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity: int | None = None,
        *,
        backend: str | Backend = "auto",
        staging: int | None = None,
        model: Any = None,
        process: tuple[int, int] | None = None,
        block: int | None = None,
        options: Mapping[str, Any] | None = None,
    ):
        _checksums.require()
        capacity = _arguments.amount("capacity", capacity, 1)
        options = _arguments.options(options)
        self._staging = _arguments.amount("staging", staging, 8 * extents.ALIGN)
        block = _arguments.block(block)
        self._say = Notices()
        self._paths = _folder.Paths(_arguments.folder(path), numbered(process))
        self._backend = choose(backend, self._paths.folder, self._say, options)
        self._mutex = threading.Lock()  # one commit, reservation or closing at a time
        self._open = self._opened = self._undecided = False
        self._pid = os.getpid()
        self._lock: _folder.Lock | None = None
        self._committing = 0.0
        try:
            self._begin(_index.plain("model", model), block, capacity)
        except BaseException:
            if self._opened:
                self._backend.close()
            if self._lock is not None:
                self._lock.release()
            raise

    def _begin(self, model: Any, block: int | None, capacity: int | None) -> None:
        found = None
        if not self._backend.volatile:
            _folder.make(self._paths.folder)
            if advice := _folder.advice(self._paths.folder):
                self._say(advice)
            self._lock = _folder.lock(self._paths.lock, self._say)
            found = _index.load(self._paths, model, self._say)
        fresh = found is None
        self._capacity = _index.checked_capacity(self._paths, found, capacity)
        index = found or _index.Index(self._paths.process, model, block or self._backend.block)
        self._index = index
        self._tensors = opened(index.places.values(), index.entries)
        transport = Transport(self._backend, self._lock, block=index.block, staging=self._staging)
        pools = transport.pools(self._tensors)
        if fresh:  # only now, for nothing is left behind where options do not fit
            self._save(index)
        elif index.places and not self._backend.volatile:
            _index.keep_names(self._paths, index)
        self._backend.open(self._paths.data, self._capacity, self._say)
        self._opened = True
        if not fresh and (size := self._backend.size()) < index.end:
            self._say(
                f"{self._paths.data}: the file has {size} bytes, expected {index.end}: it was cut; "
                "all that was committed is there, and the place of the rest is reserved again"
            )
            self._backend.allocate(index.end)
        transport.start(pools)
        self._transport, self._open = transport, True

    # Reservations.

    def reserve(self, tensors: Mapping[str, Any]) -> None:
        """Reserves disk space for tensors in a `TensorStore`, two slots for each.

        Tensors that are reserved together lie side by side, small ones in the same blocks; those
        that will be written together should be. One call for all is much the cheapest: each takes
        blocks of its own, and writes the index. A tensor that has its place already is left there.
        Other threads may read and write meanwhile, also where the staging memory has to grow.

        Args:
            tensors: Anything with ``shape`` and ``dtype``, by name.

        Raises:
            CapacityError: if the capacity, the disk or the staging memory is too small; with sizes.
            ValueError: if a tensor is reserved already with another shape or dtype.
        """
        tensors = _arguments.named("tensors", tensors)
        specs = {name: extents.checked(name, like) for name, like in tensors.items()}
        with self._mutex:
            self._check_open()
            for name in [name for name in specs if name in self._tensors]:
                place, spec = self._tensors[name].place, specs.pop(name)
                if (place.shape, place.dtype) != (spec.shape, spec.dtype):
                    raise ValueError(
                        f"{name}: reserved already as {place.dtype}{list(place.shape)}, got "
                        f"{spec.dtype}{list(spec.shape)}; use another name"
                    )
            if specs:
                self._reserve(extents.place(specs, self._index.end))

    def forget(self) -> None:
        """Cancels all reservations of a `TensorStore` in which no tensor has been written.

        Raises:
            StoreError: if one has.
        """
        with self._mutex, self._transport.writer.paused():
            self._check_open()
            if written := self.written:
                raise StoreError(
                    "forget: expected tensors that were only reserved, got "
                    f"{listed(written)}, which were written; remove the folder of the "
                    "store to begin anew"
                )
            if self._tensors:
                # Reads of what was reverted since; none begins meanwhile, as nothing is written.
                self._transport.queue.drain(everything=True)
                index = replace(self._index, places={})
                self._save(index)
                for tensor in self._tensors.values():
                    tensor.forgotten = True
                self._tensors, self._index = {}, index
                self._transport.layouts.forget()  # others get these places

    def _reserve(self, places: tuple[Place, ...]) -> None:
        index = self._index.including(places)
        if index.end > self._capacity:
            free = self._capacity - self._index.end
            raise CapacityError(
                f"capacity: {index.end - self._index.end} more bytes are needed for two slots of "
                f"{len(places)} tensors ({listed([p.name for p in places])}), {free} of "
                f"{self._capacity} are free; pass a capacity of at least {index.end}"
            )
        tensors = {**self._tensors, **opened(places, {})}
        larger = self._transport.larger(tensors)
        self._backend.allocate(index.end)
        self._save(index)
        if larger is not None:
            self._transport.queue.enlarge(larger)
        # Only now can they be used: after a failure, others may get their place.
        self._tensors, self._index = tensors, index

    # Moving tensors.

    def write(self, name: str, array: ArrayLike, *, deadline: float = math.inf) -> Future[None]:
        """Starts writing an array to a tensor store: copies it, and returns a future.

        It is copied to staging memory, and goes to the slot that is not committed.

        Blocks while the staging pool is full, of which the earliest deadline gets what others give
        back; and, where the tensor shares a block, while that is written with another one or, for
        the first time since the store was opened, read. The array may be changed when the call
        returns.

        Args:
            name: Of a reserved tensor.
            array: NumPy or JAX, of the reserved shape and dtype.
            deadline: When it is needed, in any unit; the earliest goes first.

        Returns:
            A future that is done when the tensor is in the file (durable after `commit`). Callbacks
            of futures run in the store's own threads: they must not wait for the store, and not
            write. This call waits for these threads: hold no lock that a callback takes.

        Raises:
            StoreError: if the block that it shares cannot be read; write all tensors in it.
        """
        return self.write_many({name: array}, deadline=deadline)

    def write_many(self, arrays: Mapping[str, Any], *, deadline: float = math.inf) -> Future[None]:
        """Starts writing several tensors to a `TensorStore`, together; neighbours share a transfer.

        One future for all: much cheaper than one each when the tensors are small.

        Args:
            arrays: NumPy or JAX arrays, by name, of the reserved shapes and dtypes.
            deadline: When they are needed, in any unit; the earliest goes first.

        Returns:
            One future, done when all are in the file.
        """
        self._check_open()
        todo = [(tensor := self._tensor(name), flat(tensor.place, array))
                for name, array in _arguments.named("arrays", arrays).items()]  # fmt: skip
        return self._transport.writer.write(todo, _arguments.deadline(deadline))

    def read(self, name: str, *, deadline: float = math.inf) -> Future[Lease]:
        """Starts reading a tensor from a `TensorStore`, as written last, committed or not.

        Does not block: a read waits in the queue for its staging memory. So a lock that callbacks
        take may be held. Leases that are not released keep later reads waiting. A tensor that
        shares a block and that the disk refused is read from memory.

        Args:
            name: Of a tensor that was written.
            deadline: When it is needed, in any unit; the earliest goes first.

        Returns:
            A future of a lease. It raises CorruptError, with the tensor named, if the checksum of
            what was read is not that of what was written.
        """
        return item_of(self.read_many([name], deadline=deadline), name)

    def read_many(self, names: Iterable[str], *, deadline: float = math.inf) -> Future[Leases]:
        """Starts reading several tensors of a `TensorStore`, together; neighbours share a transfer.

        Args:
            names: Of tensors that were written.
            deadline: When they are needed, in any unit; the earliest goes first.

        Returns:
            A future of `Leases`, which has a lease for each name.

        Raises:
            CapacityError: if they do not fit the staging pool together.
            StoreError: if one was never written.
        """
        self._check_open()
        tensors = [self._tensor(name) for name in dict.fromkeys(names)]
        return self._transport.reader.read(tensors, _arguments.deadline(deadline))

    def hasten(self, names: Iterable[str], *, deadline: float) -> None:
        """Moves pending reads of some tensors of a `TensorStore` to an earlier deadline.

        Args:
            names: Of reserved tensors.
            deadline: The new one, in the unit of the reads; a later one changes nothing.
        """
        self._check_open()
        tensors, due = [self._tensor(name) for name in names], _arguments.deadline(deadline)
        queue = self._transport.queue
        with queue.lock:
            for tensor in tensors:
                for request in tensor.slots.readers():
                    queue.hasten(request, due)

    def hasten_writes(self, *, deadline: float) -> None:
        """Moves all pending writes of a `TensorStore` to an earlier deadline.

        Args:
            deadline: The new one, in the unit of the writes; a later one changes nothing.
        """
        self._check_open()
        self._transport.queue.hasten_writes(_arguments.deadline(deadline))

    def starved(self) -> bool:
        """Whether a `TensorStore`'s reads wait for memory held by leases, no transfer under way."""
        return self._transport.queue.starved()

    def commit(self, meta: Any = None, *, barrier: Callable[[], object] | None = None) -> None:
        """Commits everything written to a `TensorStore` so far, atomically and durably.

        Waits for the writes, syncs the data, and replaces the index. Writes that other threads
        begin meanwhile wait.

        Args:
            meta: What belongs to the state, as JSON: step, random keys, position in the data.
            barrier: Waits for the other processes of a sharded training, each of which commits
                the same step. With it their stores, in one folder, commit together: killed at any
                moment, all of them open with the old state or all with the new one.

        Raises:
            StoreError: if a write failed; the tensor is named and the old state stays committed.
            CapacityError: if the disk has no room for the index; the old state stays committed.
            OSError: if the disk fails while it syncs; the store has to be opened again, with the
                old state or the new one.
        """
        meta, began = _index.plain("meta", meta), time.perf_counter()
        barrier = _arguments.barrier(barrier)
        with self._mutex, self._transport.writer.paused():
            self._check_open()
            index = self._index.after(entries(self._tensors), meta, joint=barrier is not None)
            # The index is written while the last transfers end: all checksums are known.
            fresh = [] if self._backend.volatile else _index.prepare(self._paths, index)
            self._transport.queue.drain_writes()
            if failed := failures(self._tensors[name] for name in index.entries):
                for path in fresh:
                    path.unlink()
                raise StoreError(
                    f"commit: these tensors could not be written: {listed([*failed])}; "
                    f"commit {self._index.commit} stays in place; write them again",
                    failed,
                ) from next(iter(failed.values()))
            try:
                _index.commit(self._paths, fresh, self._backend.sync, barrier)
                self._index = index
                for tensor in self._tensors.values():
                    tensor.slots.committed = tensor.slots.newest
            except BaseException:
                # Which state the disk has is not known here, and writes could go to the slots that
                # it has committed. A sync that failed says nothing when it is tried again.
                self._undecided = True
                raise
            self._committing += time.perf_counter() - began

    def revert(self) -> None:
        """Reverts a tensor store to its last commit, and discards what was written since."""
        with self._mutex, self._transport.writer.paused():
            self._check_open()
            self._transport.queue.drain_writes()
            for tensor in self._tensors.values():
                tensor.slots.newest = tensor.slots.committed

    def _save(self, index: _index.Index) -> None:
        if self._backend.volatile:
            return
        if index.places.keys() != self._index.places.keys():
            _index.replace(self._paths.names, _index.names_of(index.places.values()))
        _index.adopt(self._paths, *_index.prepare(self._paths, index))

    # Statistics and closing.

    def statistics(self) -> Statistics:
        """Returns the transfer statistics of a `TensorStore` since it was opened."""
        return Statistics(
            backend=self._backend.name,
            direct=self._backend.direct,
            notices=tuple(self._say),
            commits=self._index.commit,
            committing=self._committing,
            allocated=self._index.end,
            capacity=self._capacity,
            **self._transport.statistics(),
        )

    def close(self) -> None:
        """Finishes pending transfers and closes a tensor store; uncommitted writes are lost."""
        if self._pid != os.getpid():
            if self._open:
                self._open = False
                self._transport.leave()
            return
        with self._mutex:
            if not self._open:
                return
            self._open = False
            self._transport.close()

    def __enter__(self) -> "TensorStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
