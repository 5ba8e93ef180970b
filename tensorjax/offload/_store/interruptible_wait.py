"""Condition variable whose waits a signal handler may interrupt by an exception (Ctrl-C)."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class InterruptibleCondition:
    """Condition variable that stays consistent when a signal handler raises in a waiting thread.

    Like `threading.Condition`, but a waiting thread does not take the lock again as part of its
    wait: it sleeps on a lock of its own. So a handler that raises there, as that of Ctrl-C does,
    cannot release a lock that another thread holds.

    Args:
        lock: Guards the state that ``holds`` reads.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self._waiting = lock, deque[threading.Lock]()

    def wait(self, holds: Callable[[], T]) -> T:
        """Waits until ``holds()`` is true, or Ctrl-C interrupts it; the caller holds no lock.

        ``holds`` itself is called with the lock.
        """
        while True:
            with self._lock:
                if found := holds():
                    return found
                mine = threading.Lock()
                mine.acquire()
                self._waiting.append(mine)
            mine.acquire()

    def ring(self) -> None:
        """Wakes all threads that wait on this condition variable; the caller holds the lock."""
        while self._waiting:
            with contextlib.suppress(RuntimeError):  # an interrupted call released it already
                self._waiting[0].release()
            self._waiting.popleft()
