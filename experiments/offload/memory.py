"""Measurement of a process's memory."""

import contextlib
import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Returns the bytes of this process that are in memory (resident set)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE


def available() -> int:
    """Returns the bytes that the system can give to programs without swapping."""
    with open("/proc/meminfo") as file:
        found = dict(line.split(":") for line in file)
    return int(found["MemAvailable"].split()[0]) * 1024


def trim() -> None:
    """Returns freed memory to the system."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@dataclass
class Memory:
    """Memory of a process: bytes at the start, and the most beyond those.

    Attributes:
        start: Bytes before.
        grown: The most bytes beyond those.
    """

    start: int
    grown: int = 0


@contextlib.contextmanager
def peak(every: float = 0.005) -> Iterator[Memory]:
    """Context manager that samples this process's memory; yields a `Memory`."""
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
