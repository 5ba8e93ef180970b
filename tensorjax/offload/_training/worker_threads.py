"""Worker threads that share one lock; an error in one ends all waiting calls."""

import threading
from collections.abc import Callable


class WorkerThreads:
    """Base class of objects with worker threads that share one lock and condition.

    Args:
      failed: called with what ended a thread.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        # Taken by `with self._lock`, not by the condition: a signal may interrupt the Python code
        # by which Condition takes its lock, and leave it locked.
        self._lock = threading.RLock()
        self._cond = threading.Condition(self._lock)
        self._error: BaseException | None = None
        self._closed = False

    def _start(self, **bodies: Callable[[], None]) -> None:
        """Starts one worker thread for each function; called last in ``__init__``."""
        self._threads = [
            threading.Thread(
                target=self._guarded, args=(body,), name=f"offload {name}", daemon=True
            )
            for name, body in bodies.items()
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            self._ended(error)

    def _ended(self, error: BaseException) -> None:
        """Records and reports the error that ended a worker thread; lock not held."""
        self.fail(error)
        self._failed(error)

    def fail(self, error: BaseException) -> None:
        """Makes all calls that wait for worker threads raise, with the first error as cause."""
        with self._lock:
            self._error = self._error or error
            self._cond.notify_all()

    def _raise(self) -> None:
        """Raises RuntimeError if a worker thread has failed."""
        if self._error is not None:
            raise RuntimeError(
                f"the training cannot go on: a thread of it failed: {self._error!r}"
            ) from self._error
