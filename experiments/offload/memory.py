"""How much memory a piece of work takes."""

import contextlib
import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE


def available() -> int:
    """Bytes that the system can give to programs without swapping."""
    with open("/proc/meminfo") as file:
        found = dict(line.split(":") for line in file)
    return int(found["MemAvailable"].split()[0]) * 1024


def trim() -> None:
    """Gives back to the system what is free."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@dataclass
class Memory:
    """What a process had in memory.

    Attributes:
        start: Bytes before.
        grown: The most bytes beyond those.
    """

    start: int
    grown: int = 0


@contextlib.contextmanager
def peak(every: float = 0.005) -> Iterator[Memory]:
    """Yields what will be the bytes in memory at the start, and the most beyond those."""
    trim()
    found, stop = Memory(resident()), threading.Event()

    def watch() -> None:
        while not stop.wait(every):
            found.grown = max(found.grown, resident() - found.start)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
