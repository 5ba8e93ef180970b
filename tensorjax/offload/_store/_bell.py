"""Waiting that a signal's handler may cut off."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Bell:
    """Wakes threads that wait until something holds.

    As `threading.Condition` does; but a thread that waits has no lock to take back. A handler that
    raises in it, as that of Ctrl-C does, so leaves the lock to those who have it.

    Args:
        lock: What guards that which is waited for.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self._waiting = lock, deque[threading.Lock]()

    def wait(self, holds: Callable[[], T]) -> T:
        """What ``holds`` gives, called with the lock, once that is true; the lock is free."""
        while True:
            with self._lock:
                if found := holds():
                    return found
                mine = threading.Lock()
                mine.acquire()
                self._waiting.append(mine)
            mine.acquire()

    def ring(self) -> None:
        """Has all look again; the caller holds the lock."""
        while self._waiting:
            with contextlib.suppress(RuntimeError):  # a call that was cut off has got so far
                self._waiting[0].release()
            self._waiting.popleft()
