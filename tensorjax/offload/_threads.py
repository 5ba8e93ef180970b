"""Threads: workers that share one lock, and a condition whose waits Ctrl-C may interrupt."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

# JAX's settings that a `with` sets for one thread, and that change what is computed. The default
# device is not among them: a trainer's engine has that of the thread that makes it.
_SETTINGS: dict[str, Any] = {
    "jax_enable_x64": jax.enable_x64,
    "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_threefry_partitionable": jax.threefry_partitionable,
    "jax_debug_nans": jax.debug_nans,
    "jax_debug_infs": jax.debug_infs,
}

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
        """Waits in a thread until ``holds()`` is true, or Ctrl-C interrupts; no lock is held.

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


class Settings:
    """JAX's settings of the thread that makes a trainer, which its worker threads take over.

    What ``with jax.enable_x64(True):`` and the like set holds for one thread.

    Example:
      >>> with jax.default_matmul_precision("highest"):
      ...     settings = Settings()
      >>> with settings.entered():
      ...     jax.config.jax_default_matmul_precision
      'highest'
    """

    def __init__(self) -> None:
        self._values = {name: getattr(jax.config, name) for name in _SETTINGS}

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Context manager that applies JAX's settings of the trainer's thread to another thread."""
        with contextlib.ExitStack() as stack:
            for name, value in self._values.items():
                # Only what differs: programs are compiled anew for settings of a thread.
                if getattr(jax.config, name) != value:
                    stack.enter_context(_SETTINGS[name](value))
            yield


class WorkerThreads:
    """Base class of objects with worker threads that share one lock and condition.

    Args:
      failed: called with what ended a thread.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed, self._settings = failed, Settings()
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
            with self._settings.entered():
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
