"""Where bundles of arrays live between their uses: in host memory, or in a tensor store."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tensorjax.offload._training._bundle import Bundle
from tensorjax.offload._training._host import view
from tensorjax.offload._training._trace import Trace


class Reading(Protocol):
    """Arrays on their way from a home."""

    def ready(self) -> bool:
        """Whether `arrays` would return at once."""
        ...

    def begun(self) -> bool:
        """Whether some of it is there, and has memory."""
        ...

    def when_ready(self, call: Callable[[], None]) -> None:
        """Calls back when `arrays` would return at once, or raise; from any thread."""
        ...

    def arrays(self) -> list[list[Any]]:
        """The arrays of each bundle, valid until `release`."""
        ...

    def release(self) -> None:
        """Gives their memory back; they must not be read any more."""
        ...


class Home(Protocol):
    """Keeps the newest arrays of every bundle it was given.

    Attributes:
      in_place: whether updates may write to the arrays that are read.
    """

    in_place: bool

    def read(self, *bundles: Bundle, deadline: float, step: int) -> Reading:
        """Begins to read what was written last."""
        ...

    def write(
        self, *parts: tuple[Bundle, Sequence[Any]], deadline: float, step: int
    ) -> Sequence[Sequence[Any]] | None:
        """Takes over the arrays of bundles; returns as many that nobody needs any more, or None.

        On return a `read` sees the new arrays. What comes back may be overwritten.
        """
        ...

    def hasten(self, deadline: float) -> None:
        """Brings writes forward: somebody waits for the memory that they hold."""
        ...

    def holds(self, bundle: Bundle) -> bool:
        """Whether a read of a bundle would share what another has, or waits for."""
        ...

    def starved(self) -> bool:
        """Whether reads wait for memory that other readings hold, and no transfer is under way."""
        ...

    def settle(self) -> None:
        """Waits until all that was written is where it should be; raises what went wrong."""
        ...


class HostHome:
    """Arrays in the memory of the host, which XLA has allocated."""

    in_place = True

    def __init__(self) -> None:
        self.held: dict[str, list[Any]] = {}

    def read(self, *bundles: Bundle, deadline: float, step: int) -> Reading:
        """Returns the arrays themselves: nothing moves."""
        return Held([self.held[bundle.name] for bundle in bundles])

    def write(
        self, *parts: tuple[Bundle, Sequence[Any]], deadline: float, step: int
    ) -> Sequence[Sequence[Any]] | None:
        """Keeps the arrays, which may be those that were here, written to."""
        self.held.update({bundle.name: list(arrays) for bundle, arrays in parts})

    def hasten(self, deadline: float) -> None:
        """Nothing is under way."""

    def holds(self, bundle: Bundle) -> bool:
        """Always: nothing is read."""
        return True

    def starved(self) -> bool:
        """Never: reads take no memory."""
        return False

    def settle(self) -> None:
        """Nothing to wait for."""


@dataclass(eq=False)
class _Share:
    """A bundle on its way from the store or in staging memory, and how many use it."""

    bundle: Bundle
    future: Any
    names: list[str]  # of all tensors that the future waits for
    users: int = 1

    def failed(self) -> bool:
        return self.future.done() and self.future.exception() is not None

    def arrays(self) -> list[Any]:
        """Once they are there."""
        found = self.future.result()
        return self.bundle.arrays({name: found[name].array for name in self.bundle.specs})

    def release(self, read: Any) -> None:
        """Gives back the memory of this bundle, of all that were read together."""
        if read.exception() is None:
            for name in self.bundle.specs:
                read.result()[name].release()


class StoreHome:
    """Arrays in a `TensorStore`.

    A bundle that somebody is reading, or still holds, is not read from the disk again: the backward
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
        """Asks the store for the bundles, but for what is there already."""
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
        """What is there of a bundle, or on its way; the lock is held."""
        share = self._shares.get(bundle.name)
        return None if share is None or share.failed() else share

    def _ask(self, bundles: Sequence[Bundle], deadline: float, step: int) -> dict[str, _Share]:
        """Reads bundles, which get their memory at once; the lock is held."""
        if not bundles:
            return {}
        start, names = time.perf_counter(), [name for b in bundles for name in b.specs]
        future = self._store.read_many(names, deadline=deadline)
        self._follow(future, "read", bundles[0].name, start, step)
        return {bundle.name: _Share(bundle, future, names) for bundle in bundles}

    def write(
        self, *parts: tuple[Bundle, Sequence[Any]], deadline: float, step: int
    ) -> Sequence[Sequence[Any]] | None:
        """Copies the arrays to the store's staging memory; they are free again on return."""
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
        """What is there is not the newest any more, for those who read from now on."""
        with self._lock:
            for bundle in bundles:
                self._shares.pop(bundle.name, None)

    def _let_go(self, share: _Share) -> None:
        """One user less; the last one gives the memory back."""
        with self._lock:
            share.users -= 1
            if share.users:
                return
            if self._shares.get(share.bundle.name) is share:
                del self._shares[share.bundle.name]
        # Does not wait: what is not there yet may wait for memory that others still have.
        share.future.add_done_callback(share.release)

    def hasten(self, deadline: float) -> None:
        """Brings the writes under way forward, where their deadline is later."""
        self._store.hasten_writes(deadline=deadline)

    def holds(self, bundle: Bundle) -> bool:
        """Whether it is being read, or still held."""
        with self._lock:
            return self._known(bundle) is not None

    def starved(self) -> bool:
        """Whether reads wait for staging memory that others hold, and no transfer is under way."""
        return self._store.starved()

    def settle(self) -> None:
        """Waits for all writes, and raises the first error of one."""
        with self._lock:
            writes, self._writes = self._writes, []
        for future in writes:
            future.result()

    def _follow(self, future: Any, track: str, name: str, start: float, step: int) -> None:
        future.add_done_callback(
            lambda _: self._trace.add(track, name, start, time.perf_counter(), step)
        )


class Held:
    """A reading of arrays that are there already."""

    def __init__(self, arrays: list[list[Any]]) -> None:
        self._arrays = arrays

    def ready(self) -> bool:
        """Always."""
        return True

    def begun(self) -> bool:
        """Always."""
        return True

    def when_ready(self, call: Callable[[], None]) -> None:
        """At once."""
        call()

    def arrays(self) -> list[list[Any]]:
        """The arrays."""
        return [list(arrays) for arrays in self._arrays]

    def release(self) -> None:
        """They are not seen from here any more."""
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
    """Whether a write is done; raises what went wrong with it."""
    return write.done() and write.result() is None
