"""How much memory a piece of work takes."""

import contextlib
import ctypes
import gc
import os
import threading
from collections.abc import Iterator

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE


def trim() -> None:
    """Gives back to the system what is free."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@contextlib.contextmanager
def peak(every: float = 0.01) -> Iterator[list[int]]:
    """Yields a list whose one number becomes the most bytes in memory beyond those at the start."""
    trim()
    start, found, stop = resident(), [0], threading.Event()

    def watch() -> None:
        while not stop.wait(every):
            found[0] = max(found[0], resident() - start)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
