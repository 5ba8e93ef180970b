"""Stream of weights to the device: prefetches, and evicts the furthest next use (Belady)."""

import math
import queue
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorjax import _check
from tensorjax.offload._threads import WorkerThreads
from tensorjax.offload._training.storage.storage import Held, Reading
from tensorjax.offload._training.trace import Trace

_AWAY = object()  # placeholder of parameters that are not on the device yet


@dataclass
class _Entry:
    """Entry of the weight stream: a parameter group on the device, or on its way there."""

    version: int
    params: Any = _AWAY
    pins: set[int] = field(default_factory=set)


class WeightStream(WorkerThreads):
    """Stream of weights to the device, which prefetches the next layers within a memory bound.

    Time is counted in positions: one for each layer of the forward pass and, but for the last one,
    of the backward pass, on through all steps. What is next is known, so the group whose next use
    is furthest away makes room (Belady's rule). A group is fetched at the version that its step
    computes with, and not before that has been written or handed over. Reading begins before there
    is room on the device, as far as host memory is set aside for that.

    Args:
      uses: groups that each position of a step needs.
      sizes: bytes of every group on the device.
      capacity: bytes that the device has for parameters. The groups of one position are fetched in
        any case.
      ahead: positions that are prefetched.
      early: bytes of the host for what is read while the device has no room for it.
      handed: bytes of the host for what is handed over while the device has no room for it, so that
        it need not be written and read again before its use; what is used first is kept.
      stored: groups that have to be read; others are there, and need not be kept.
      start: position to begin with.
      version: of the parameters that a step computes with.
      read: begins to read a group, by name, deadline and step.
      place: makes parameters on the device of what was read; arrays it returns share no memory
        with it.
      failed: called with what ended a thread.

    Attributes:
      peak: the most bytes that the device had.
      peak_handed: the most bytes of what was handed over and kept.

    Source: L. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM
    Systems Journal 5 (1966).
    """

    def __init__(
        self,
        uses: Sequence[tuple[str, ...]],
        sizes: dict[str, int],
        *,
        capacity: int,
        ahead: int,
        early: int,
        handed: int,
        stored: Collection[str],
        start: int,
        version: Callable[[int], int],
        read: Callable[[str, float, int], Reading],
        place: Callable[[str, list[Any]], Any],
        trace: Trace,
        failed: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        super().__init__(failed)
        self._uses, self._sizes, self._capacity = list(uses), sizes, capacity
        self._ahead, self._version = ahead, version
        self._read, self._place, self._trace = read, place, trace
        self._at = {g: [n for n, used in enumerate(uses) if g in used] for g in sizes}
        self._cache: dict[str, _Entry] = {}
        self._used = 0
        self._early: dict[tuple[str, int], Reading] = {}  # by group and version
        self._early_left = early
        self._handed: dict[str, tuple[int, list[Any]]] = {}  # version and arrays
        self._handed_most, self.peak_handed = handed, 0
        self._stored = frozenset(stored)
        self._now = self._cursor = start
        self._rewound: int | None = None
        first = version(start // len(uses))
        self._available = dict.fromkeys(sizes, first)
        self.peak = 0
        self._placing: queue.Queue[Any] = queue.Queue()
        self._start(fetch=self._fetch, place=self._place_all)

    def take(self, position: int) -> tuple[Any, ...]:
        """Waits until the weight stream has brought a layer pass's parameters; returns them."""
        step, names = divmod(position, len(self._uses))
        version = self._version(step)
        with self._lock:
            self._now = position
            self._cond.notify_all()
            if not self._present(names, version):
                with self._trace.span("wait", " ".join(self._uses[names]), step):
                    while not self._present(names, version):
                        self._wait()
            return tuple(self._cache[g].params for g in self._uses[names])

    def has(self, position: int) -> bool:
        """Whether the weight stream has brought the parameters that a layer pass needs."""
        step, names = divmod(position, len(self._uses))
        with self._lock:
            return self._present(names, self._version(step))

    def done(self, position: int) -> None:
        """Marks a layer pass as computed, so that the weight stream may evict its parameters."""
        with self._lock:
            for entry in self._cache.values():
                entry.pins.discard(position)
            self._now = position + 1
            self._cond.notify_all()

    def rewind(self, position: int) -> None:
        """Rewinds the weight stream to the first layer of a step, to repeat it."""
        with self._lock:
            self._now = self._rewound = position
            for entry in self._cache.values():
                entry.pins.clear()
            self._cond.notify_all()

    def updated(self, group: str, version: int, arrays: list[Any]) -> None:
        """Passes a group's updated parameters to the weight stream's cache, if there is room.

        On the host they are kept too, unless others are used sooner.
        """
        with self._lock:
            step = version
            while self._version(step) < version:
                step += 1
            first = step * len(self._uses) + self._at[group][0]
            self._drop(group)
            self._keep(group, version, arrays, first)
            if not self._make_room(group, first):
                self._cond.notify_all()
                return
            # Not pinned: what is needed sooner may still push it out.
            self._cache[group] = entry = _Entry(version)
            self._grow(group)
        with self._trace.span("place", group, step):
            params = self._place(group, arrays)
        with self._lock:
            entry.params = params
            self._cond.notify_all()

    def written(self, group: str, version: int) -> None:
        """Tells the weight stream that updated parameters were written and can be read again."""
        with self._lock:
            self._available[group] = version
            self._cond.notify_all()

    @property
    def failed(self) -> bool:
        """Whether a thread of the weight stream failed, so that no step can follow."""
        return self._error is not None

    def close(self) -> None:
        """Ends the threads of the weight stream, and drops its arrays on the device."""
        with self._lock:
            self._closed = True
            self._cond.notify_all()
        fetch, place = self._threads
        fetch.join()
        self._placing.put(None)
        place.join()
        while not self._placing.empty():  # where the thread ended early
            if (item := self._placing.get()) is not None:
                item[-1].release()
        for reading in self._early.values():
            reading.release()
        self._early.clear()
        self._handed.clear()
        self._cache.clear()

    # Below: with the lock held, unless said otherwise.

    def _present(self, position: int, version: int) -> bool:
        found = (self._cache.get(g) for g in self._uses[position])
        return all(e is not None and e.version == version and e.params is not _AWAY for e in found)

    def _wait(self) -> None:
        self._raise()
        if self._closed:
            raise RuntimeError("the trainer is closed; make a new one")
        self._cond.wait()

    def _next_use(self, group: str, after: int) -> int:
        step, position = divmod(after, len(self._uses))
        later = next((n for n in self._at[group] if n >= position), None)
        if later is None:
            return (step + 1) * len(self._uses) + self._at[group][0]
        return step * len(self._uses) + later

    def _kept_for(self, group: str) -> float:
        """Returns the next use of weights cached by the stream; infinity if outdated."""
        position = self._next_use(group, self._now)
        current = self._version(position // len(self._uses)) == self._cache[group].version
        return position if current else math.inf

    def _keep(self, group: str, version: int, arrays: list[Any], position: int) -> None:
        """Keeps updated parameters for the weight stream on the host, unless others come sooner."""
        if group not in self._stored:
            return
        self._handed.pop(group, None)
        left = self._handed_most - sum(self._sizes[g] for g in self._handed)
        by_use = sorted(self._handed, key=lambda g: self._next_use(g, self._now))
        while by_use and left < self._sizes[group]:
            if self._next_use(by_use[-1], self._now) <= position:
                return
            left += self._sizes[by_use[-1]]
            del self._handed[by_use.pop()]
        if left >= self._sizes[group]:
            self._handed[group] = version, arrays
            held = self._handed_most - left + self._sizes[group]
            self.peak_handed = max(self.peak_handed, held)

    def _here(self, group: str, version: int) -> bool:
        """Whether the weight stream keeps a group's parameters of a given update on the host."""
        return group in self._handed and self._handed[group][0] == version

    def _make_room(self, group: str, position: int) -> bool:
        """Evicts weights from the device, furthest next use first; returns if there is room."""
        need, victims, free = self._sizes[group], [], self._capacity - self._used
        unpinned = [g for g, entry in self._cache.items() if not entry.pins]
        unpinned.sort(key=self._kept_for)
        while free < need and unpinned:
            victim = unpinned.pop()
            if self._kept_for(victim) <= position:
                break
            victims.append(victim)
            free += self._sizes[victim]
        if free < need and position > self._now:
            return False
        for victim in victims:
            self._drop(victim)
        return True

    def _drop(self, group: str) -> None:
        if self._cache.pop(group, None) is not None:
            self._used -= self._sizes[group]

    def _grow(self, group: str) -> None:
        self._used += self._sizes[group]
        self.peak = max(self.peak, self._used)

    def _ended(self, error: BaseException) -> None:
        """Records an error that ended a thread of the weight stream, unless it was closed."""
        if not self._closed:
            super()._ended(error)

    def _fetch(self) -> None:
        """Prefetches weights in the stream's thread, without the lock, as memory allows."""
        while not self._closed:
            position = self._cursor
            step, number = divmod(position, len(self._uses))
            for group in self._uses[number]:
                entry = self._reserve(group, position, self._version(step))
                reading = self._take_early(group, self._version(step))
                if entry is not None:
                    reading = reading or self._read(group, float(position), step)
                    self._placing.put((group, step, entry, reading))
                elif reading is not None:
                    reading.release()
            with self._lock:
                self._cursor = position + 1 if self._rewound is None else self._rewound
                self._rewound = None

    def _take_early(self, group: str, version: int) -> Reading | None:
        """Returns weights read early or kept on the host for the stream, or None; no lock."""
        with self._lock:
            reading = self._early.pop((group, version), None)
            if reading is not None:
                self._early_left += self._sizes[group]
            if self._here(group, version):
                return reading or Held([self._handed.pop(group)[1]])
            return reading

    def _read_early(self) -> None:
        """Starts reading the next layers' weights before the device has room."""
        for position in range(max(self._cursor, self._now), self._now + self._ahead):
            step, number = divmod(position, len(self._uses))
            version = self._version(step)
            for group in self._uses[number]:
                entry = self._cache.get(group)
                if (group, version) in self._early or (entry and entry.version == version):
                    continue
                if self._here(group, version):
                    continue
                if self._available[group] < version or self._sizes[group] > self._early_left:
                    return
                self._early[group, version] = self._read(group, float(position), step)
                self._early_left -= self._sizes[group]

    def _reserve(self, group: str, position: int, version: int) -> _Entry | None:
        """Waits for room on the device for streamed weights; returns their new entry, or None.

        None where the group is there already, or is not needed any more. Called without the lock.

        Called without the lock.
        """
        with self._lock:
            while True:
                # What was handed over has been used already, or this one comes again.
                if position < self._now or self._rewound is not None:
                    return None
                entry = self._cache.get(group)
                if entry is not None and entry.version == version:
                    entry.pins.add(position)
                    return None
                there = self._here(group, version) or self._available[group] >= version
                if position < self._now + self._ahead and there:
                    if entry is not None and not entry.pins:
                        self._drop(group)
                    if group not in self._cache and self._make_room(group, position):
                        self._cache[group] = entry = _Entry(version, pins={position})
                        self._grow(group)
                        return entry
                self._read_early()
                self._wait()

    def _place_all(self) -> None:
        """Copies weights that were read to the device, in the stream's thread, without the lock."""
        while (item := self._placing.get()) is not None:
            group, step, entry, reading = item
            try:
                (arrays,) = reading.arrays()
                with self._trace.span("place", group, step):
                    params = self._place(group, arrays)
                del arrays
            finally:
                reading.release()
            with self._lock:
                entry.params = params
                self._cond.notify_all()


def room(
    given: int | None, layers: Sequence[tuple[str, ...]], sizes: dict[str, int], *, everything: bool
) -> int:
    """Returns the bytes on the device for streamed weights: as given, or as needed.

    Without a given bound these are all parameters, or those of the two largest layers.

    Raises:
      ValueError: the largest layer does not fit.
    """
    largest = sorted(sum(sizes[group] for group in uses) for uses in layers)
    if given is None:
        return sum(sizes.values() if everything else largest[-2:])
    if _check.integer("device_bytes", given, low=0) < largest[-1]:
        raise ValueError(
            f"device_bytes: expected room for the largest layer, {largest[-1]} bytes, got {given}; "
            "cut that layer in two, or compute in half precision"
        )
    return given
