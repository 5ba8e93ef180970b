"""Storage of parameters and optimiser states between uses: host memory or a tensor store."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tensorjax.offload._training.storage.arrays import view
from tensorjax.offload._training.storage.tensor_packing import TensorPacking
from tensorjax.offload._training.trace import Trace


class Reading(Protocol):
    """Protocol of a pending read of pytrees from a trainer's storage, on host or disk."""

    def ready(self) -> bool:
        """Whether a read of pytrees from a storage is complete: `arrays` returns at once."""
        ...

    def begun(self) -> bool:
        """Whether a read of pytrees from a storage is complete in part, and so holds memory."""
        ...

    def when_ready(self, call: Callable[[], None]) -> None:
        """Calls ``call`` once a read of pytrees from a storage ended or failed, from any thread."""
        ...

    def arrays(self) -> list[list[Any]]:
        """Waits for a read of pytrees from a storage; returns arrays, valid until `release`."""
        ...

    def release(self) -> None:
        """Frees the memory of pytrees read from a storage; their arrays become invalid."""
        ...


class Storage(Protocol):
    """Protocol of a storage, in host memory or on disk, of the newest arrays of pytrees.

    Attributes:
      in_place: whether updates may write to the arrays that are read.
    """

    in_place: bool

    def read(self, *packings: TensorPacking, deadline: float, step: int) -> Reading:
        """Starts reading the newest arrays of pytrees from a storage."""
        ...

    def write(
        self, *parts: tuple[TensorPacking, Sequence[Any]], deadline: float, step: int
    ) -> Sequence[Sequence[Any]] | None:
        """Writes the arrays of pytrees to a storage; returns arrays to reuse, or None.

        On return a `read` sees the new arrays. What comes back may be overwritten.
        """
        ...

    def hasten(self, deadline: float) -> None:
        """Moves a storage's pending writes to an earlier deadline."""
        ...

    def holds(self, packing: TensorPacking) -> bool:
        """Whether a storage has a pytree in memory already, or reads it, for another reader."""
        ...

    def starved(self) -> bool:
        """Whether a storage's reads wait for memory of other reads, with no transfer under way."""
        ...

    def settle(self) -> None:
        """Waits for all pending writes to a storage; raises the first error of them."""
        ...


class HostStorage:
    """Storage of pytrees in host memory, the counterpart of `StoreStorage` on disk."""

    in_place = True

    def __init__(self) -> None:
        self.held: dict[str, list[Any]] = {}

    def read(self, *packings: TensorPacking, deadline: float, step: int) -> Reading:
        """Returns the arrays of pytrees in host storage themselves, without a copy."""
        return Held([self.held[packing.name] for packing in packings])

    def write(
        self, *parts: tuple[TensorPacking, Sequence[Any]], deadline: float, step: int
    ) -> Sequence[Sequence[Any]] | None:
        """Keeps the arrays of pytrees in host storage, in place of earlier ones."""
        self.held.update({packing.name: list(arrays) for packing, arrays in parts})

    def hasten(self, deadline: float) -> None:
        """Does nothing, as writes to host storage are never pending."""

    def holds(self, packing: TensorPacking) -> bool:
        """Returns True, as host storage has every pytree in memory."""
        return True

    def starved(self) -> bool:
        """Returns False, as reads from host storage need no further memory."""
        return False

    def settle(self) -> None:
        """Does nothing, as writes to host storage are complete at once."""


@dataclass(eq=False)
class _Share:
    """Read of a pytree from a storage on disk that several users share, and their number."""

    packing: TensorPacking
    future: Any
    names: list[str]  # of all tensors that the future waits for
    users: int = 1

    def failed(self) -> bool:
        return self.future.done() and self.future.exception() is not None

    def arrays(self) -> list[Any]:
        """Waits for a shared read of a pytree from a storage on disk; returns its arrays."""
        found = self.future.result()
        return self.packing.arrays({name: found[name].array for name in self.packing.specs})

    def release(self, read: Any) -> None:
        """Frees the staging memory of a pytree that was read from a storage on disk."""
        if read.exception() is None:
            for name in self.packing.specs:
                read.result()[name].release()


class StoreStorage:
    """Storage of pytrees in a `TensorStore`; users of one pytree share one read.

    A pytree that is being read, or is still held, is not read from the disk again: the backward
    pass and the update of a layer share its parameters.

    Args:
      store: the store; names of tensors are reserved already.
      trace: gains a span for every tensor that is read or written.

    Attributes:
      together: whether the pytrees of one read get their memory at once or not at all; else each
        comes as soon as it can.
    """

    in_place = False

    def __init__(self, store: Any, trace: Trace) -> None:
        self._store, self._trace = store, trace
        self.together = False
        self._writes: list[Any] = []
        self._shares: dict[str, _Share] = {}
        self._lock = threading.Lock()

    def read(self, *packings: TensorPacking, deadline: float, step: int) -> Reading:
        """Starts reading pytrees from a storage on disk, except those being read already."""
        with self._lock:
            joined = {b.name: s for b in packings if (s := self._known(b)) is not None}
            missing = [packing for packing in packings if packing.name not in joined]
            asked = {}
            try:
                for batch in [missing] if self.together else [[packing] for packing in missing]:
                    asked |= self._ask(batch, deadline, step)
            except BaseException:
                for share in asked.values():
                    share.future.add_done_callback(share.release)
                raise
            for share in joined.values():
                share.users += 1
            self._shares |= asked
        for share in joined.values():
            if not share.future.done():
                self._store.hasten(share.names, deadline=deadline)
        return _Leased([(joined | asked)[packing.name] for packing in packings], self._let_go)

    def _known(self, packing: TensorPacking) -> _Share | None:
        """Returns a storage's pending or completed read of a pytree, or None; the lock is held."""
        share = self._shares.get(packing.name)
        return None if share is None or share.failed() else share

    def _ask(
        self, packings: Sequence[TensorPacking], deadline: float, step: int
    ) -> dict[str, _Share]:
        """Starts one read of several pytrees from a storage on disk; the lock is held."""
        if not packings:
            return {}
        start, names = time.perf_counter(), [name for b in packings for name in b.specs]
        future = self._store.read_many(names, deadline=deadline)
        self._follow(future, "read", packings[0].name, start, step)
        return {packing.name: _Share(packing, future, names) for packing in packings}

    def write(
        self, *parts: tuple[TensorPacking, Sequence[Any]], deadline: float, step: int
    ) -> Sequence[Sequence[Any]] | None:
        """Starts writing pytrees to a storage on disk; arrays are copied, so may be reused."""
        tensors: dict[str, np.ndarray] = {}
        for packing, arrays in parts:
            tensors.update(packing.tensors([view(x) for x in arrays]))
        start = time.perf_counter()
        self._forget(packing for packing, _ in parts)
        future = self._store.write_many(tensors, deadline=deadline)
        self._forget(packing for packing, _ in parts)  # what was asked for just before
        self._follow(future, "write", parts[0][0].name, start, step)
        with self._lock:
            # The result raises the error of a write that failed.
            self._writes = [w for w in self._writes if not w.done() or w.result()] + [future]
        return [arrays for _, arrays in parts]

    def _forget(self, packings: Iterable[TensorPacking]) -> None:
        """Drops a storage's shared reads of pytrees that have just been rewritten."""
        with self._lock:
            for packing in packings:
                self._shares.pop(packing.name, None)

    def _let_go(self, share: _Share) -> None:
        """Removes one user of a storage's shared read; the last one frees the memory."""
        with self._lock:
            share.users -= 1
            if share.users:
                return
            if self._shares.get(share.packing.name) is share:
                del self._shares[share.packing.name]
        # Does not wait: what is not there yet may wait for memory that others still have.
        share.future.add_done_callback(share.release)

    def hasten(self, deadline: float) -> None:
        """Moves all pending writes to a storage on disk to an earlier deadline."""
        self._store.hasten_writes(deadline=deadline)

    def holds(self, packing: TensorPacking) -> bool:
        """Whether a storage on disk is reading a pytree, or still has it in memory."""
        with self._lock:
            return self._known(packing) is not None

    def starved(self) -> bool:
        """Whether reads of a storage on disk wait for staging memory, no transfer under way."""
        return self._store.starved()

    def settle(self) -> None:
        """Waits for all writes of pytrees to a storage on disk; raises the first error."""
        with self._lock:
            writes, self._writes = self._writes, []
        for future in writes:
            future.result()

    def _follow(self, future: Any, track: str, name: str, start: float, step: int) -> None:
        future.add_done_callback(
            lambda _: self._trace.add(track, name, start, time.perf_counter(), step)
        )


class Held:
    """Read of pytrees from a storage, complete at once, as the arrays are in host memory."""

    def __init__(self, arrays: list[list[Any]]) -> None:
        self._arrays = arrays

    def ready(self) -> bool:
        """Returns True, as arrays read from host storage are in memory."""
        return True

    def begun(self) -> bool:
        """Returns True, as arrays read from host storage are in memory."""
        return True

    def when_ready(self, call: Callable[[], None]) -> None:
        """Calls ``call`` at once, as arrays read from host storage are in memory."""
        call()

    def arrays(self) -> list[list[Any]]:
        """Returns the arrays of pytrees that were read from host storage."""
        return [list(arrays) for arrays in self._arrays]

    def release(self) -> None:
        """Drops the references to arrays of pytrees read from host storage."""
        self._arrays = []


class _Leased:
    def __init__(self, shares: Sequence[_Share], let_go: Callable[[_Share], None]) -> None:
        self._shares, self._let_go = shares, let_go
        self._released = False

    def ready(self) -> bool:
        return all(share.future.done() for share in self._shares)

    def begun(self) -> bool:
        return any(share.future.done() for share in self._shares)

    def when_ready(self, call: Callable[[], None]) -> None:
        for share in self._shares:
            share.future.add_done_callback(lambda _: call() if self.ready() else None)

    def arrays(self) -> list[list[Any]]:
        if self._released:
            raise ValueError("a reading was released; read again")
        return [share.arrays() for share in self._shares]

    def release(self) -> None:
        if not self._released:
            self._released = True
            for share in self._shares:
                self._let_go(share)
