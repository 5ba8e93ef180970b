"""Storage of bundles between their uses: host memory or a tensor store."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tensorjax.offload._training.storage.host_arrays import view
from tensorjax.offload._training.storage.tensor_packing import Bundle
from tensorjax.offload._training.trace import Trace


class Reading(Protocol):
    """Pending read of bundles from host memory or a store."""

    def ready(self) -> bool:
        """Whether the read from storage is done: `arrays` would return at once."""
        ...

    def begun(self) -> bool:
        """Whether some of the read from storage is done, and holds memory."""
        ...

    def when_ready(self, call: Callable[[], None]) -> None:
        """Calls ``call`` once the read from storage is done or failed; from any thread."""
        ...

    def arrays(self) -> list[list[Any]]:
        """Returns the arrays read from storage for each bundle, valid until `release`."""
        ...

    def release(self) -> None:
        """Gives the memory of arrays read from storage back; they must not be read any more."""
        ...


class Home(Protocol):
    """Storage that keeps the newest arrays of every bundle written to it.

    Attributes:
      in_place: whether updates may write to the arrays that are read.
    """

    in_place: bool

    def read(self, *bundles: Bundle, deadline: float, step: int) -> Reading:
        """Starts reading bundles from storage, as they were written last."""
        ...

    def write(
        self, *parts: tuple[Bundle, Sequence[Any]], deadline: float, step: int
    ) -> Sequence[Sequence[Any]] | None:
        """Writes bundles' arrays to storage; returns arrays whose memory may be reused, or None.

        On return a `read` sees the new arrays. What comes back may be overwritten.
        """
        ...

    def hasten(self, deadline: float) -> None:
        """Moves the storage's pending writes forward, as somebody waits for their memory."""
        ...

    def holds(self, bundle: Bundle) -> bool:
        """Whether the storage has a bundle in memory, or reads it, for another user already."""
        ...

    def starved(self) -> bool:
        """Whether storage reads wait for memory that other readings hold, without transfers."""
        ...

    def settle(self) -> None:
        """Waits until all writes to storage are done; raises the error of one that failed."""
        ...


class HostHome:
    """Storage in host memory, in arrays that XLA has allocated."""

    in_place = True

    def __init__(self) -> None:
        self.held: dict[str, list[Any]] = {}

    def read(self, *bundles: Bundle, deadline: float, step: int) -> Reading:
        """Returns the bundles' arrays in host storage themselves: nothing moves."""
        return Held([self.held[bundle.name] for bundle in bundles])

    def write(
        self, *parts: tuple[Bundle, Sequence[Any]], deadline: float, step: int
    ) -> Sequence[Sequence[Any]] | None:
        """Keeps the arrays in host storage, in place of those before."""
        self.held.update({bundle.name: list(arrays) for bundle, arrays in parts})

    def hasten(self, deadline: float) -> None:
        """Does nothing: no write to host storage is ever pending."""

    def holds(self, bundle: Bundle) -> bool:
        """Returns True: host storage has every bundle in memory."""
        return True

    def starved(self) -> bool:
        """Returns False: reads from host storage take no memory."""
        return False

    def settle(self) -> None:
        """Does nothing: writes to host storage are done at once."""


@dataclass(eq=False)
class _Share:
    """Bundle that is being read or lies in staging memory, and the number of its users."""

    bundle: Bundle
    future: Any
    names: list[str]  # of all tensors that the future waits for
    users: int = 1

    def failed(self) -> bool:
        return self.future.done() and self.future.exception() is not None

    def arrays(self) -> list[Any]:
        """Returns the arrays of a shared read from storage, once they have been read."""
        found = self.future.result()
        return self.bundle.arrays({name: found[name].array for name in self.bundle.specs})

    def release(self, read: Any) -> None:
        """Releases a bundle's memory, of all bundles read from storage together."""
        if read.exception() is None:
            for name in self.bundle.specs:
                read.result()[name].release()


class StoreHome:
    """Storage in a `TensorStore`, in which several users share one read of a bundle.

    A bundle that is being read, or is still held, is not read from the disk again: the backward
    pass and the update of a layer share its parameters.

    Args:
      store: the store; names of tensors are reserved already.
      trace: gains a span for every tensor that is read or written.

    Attributes:
      together: whether the bundles of one read get their memory at once or not at all; else each
        comes as soon as it can.
    """

    in_place = False

    def __init__(self, store: Any, trace: Trace) -> None:
        self._store, self._trace = store, trace
        self.together = False
        self._writes: list[Any] = []
        self._shares: dict[str, _Share] = {}
        self._lock = threading.Lock()

    def read(self, *bundles: Bundle, deadline: float, step: int) -> Reading:
        """Starts reading those bundles from the store that no user has or reads already."""
        with self._lock:
            joined = {b.name: s for b in bundles if (s := self._known(b)) is not None}
            missing = [bundle for bundle in bundles if bundle.name not in joined]
            asked = {}
            try:
                for batch in [missing] if self.together else [[bundle] for bundle in missing]:
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
        return _Leased([(joined | asked)[bundle.name] for bundle in bundles], self._let_go)

    def _known(self, bundle: Bundle) -> _Share | None:
        """Returns a bundle's pending or held read from the store, or None; the lock is held."""
        share = self._shares.get(bundle.name)
        return None if share is None or share.failed() else share

    def _ask(self, bundles: Sequence[Bundle], deadline: float, step: int) -> dict[str, _Share]:
        """Starts one read of several bundles from the store; the lock is held."""
        if not bundles:
            return {}
        start, names = time.perf_counter(), [name for b in bundles for name in b.specs]
        future = self._store.read_many(names, deadline=deadline)
        self._follow(future, "read", bundles[0].name, start, step)
        return {bundle.name: _Share(bundle, future, names) for bundle in bundles}

    def write(
        self, *parts: tuple[Bundle, Sequence[Any]], deadline: float, step: int
    ) -> Sequence[Sequence[Any]] | None:
        """Copies the bundles' arrays to the store's staging memory; then they are free again."""
        tensors: dict[str, np.ndarray] = {}
        for bundle, arrays in parts:
            tensors.update(bundle.tensors([view(x) for x in arrays]))
        start = time.perf_counter()
        self._forget(bundle for bundle, _ in parts)
        future = self._store.write_many(tensors, deadline=deadline)
        self._forget(bundle for bundle, _ in parts)  # what was asked for just before
        self._follow(future, "write", parts[0][0].name, start, step)
        with self._lock:
            self._writes = [w for w in self._writes if not _done(w)] + [future]
        return [arrays for _, arrays in parts]

    def _forget(self, bundles: Iterable[Bundle]) -> None:
        """Forgets the store's shared reads of bundles, as newer arrays are in storage."""
        with self._lock:
            for bundle in bundles:
                self._shares.pop(bundle.name, None)

    def _let_go(self, share: _Share) -> None:
        """Removes one user of a bundle's shared read; the last one frees the memory."""
        with self._lock:
            share.users -= 1
            if share.users:
                return
            if self._shares.get(share.bundle.name) is share:
                del self._shares[share.bundle.name]
        # Does not wait: what is not there yet may wait for memory that others still have.
        share.future.add_done_callback(share.release)

    def hasten(self, deadline: float) -> None:
        """Moves the pending writes of bundles to an earlier deadline in the store."""
        self._store.hasten_writes(deadline=deadline)

    def holds(self, bundle: Bundle) -> bool:
        """Whether a bundle is being read from the store, or still held."""
        with self._lock:
            return self._known(bundle) is not None

    def starved(self) -> bool:
        """Whether bundles' reads wait for the store's staging memory, without transfers."""
        return self._store.starved()

    def settle(self) -> None:
        """Waits for all writes of bundles to the store, and raises the first error."""
        with self._lock:
            writes, self._writes = self._writes, []
        for future in writes:
            future.result()

    def _follow(self, future: Any, track: str, name: str, start: float, step: int) -> None:
        future.add_done_callback(
            lambda _: self._trace.add(track, name, start, time.perf_counter(), step)
        )


class Held:
    """Completed read of arrays that are in memory already."""

    def __init__(self, arrays: list[list[Any]]) -> None:
        self._arrays = arrays

    def ready(self) -> bool:
        """Returns True: the bundles' arrays are in memory."""
        return True

    def begun(self) -> bool:
        """Returns True: the bundles' arrays are in memory."""
        return True

    def when_ready(self, call: Callable[[], None]) -> None:
        """Calls ``call`` at once, as the bundles' arrays are in memory."""
        call()

    def arrays(self) -> list[list[Any]]:
        """Returns the bundles' arrays, which storage had in memory."""
        return [list(arrays) for arrays in self._arrays]

    def release(self) -> None:
        """Drops the references to the bundles' arrays."""
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


def _done(write: Any) -> bool:
    """Whether a write to storage is done; raises its error if it failed."""
    return write.done() and write.result() is None
