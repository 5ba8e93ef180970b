"""Binding of io_uring by ctypes: queues transfers, submits them, and collects completed ones."""

import ctypes
import errno
import functools
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensorjax import _shared_libraries

_INT, _UINT, _WORD = ctypes.c_int, ctypes.c_uint, ctypes.c_uint64
_POINTER = ctypes.c_void_p


# As the kernel's: its flags, which are not asked for, fill it up to 16 bytes.
_COMPLETION = np.dtype(
    {"names": ["token", "result"], "formats": ["u8", "i4"], "offsets": [0, 8], "itemsize": 16}
)


class _Calls:
    """Typed bindings of the C functions in io_uring.c."""

    def __init__(self, library: ctypes.CDLL):
        def typed(name: str, result: Any, *arguments: Any, kind: Any = ctypes.CFUNCTYPE) -> Any:
            return kind(result, *arguments)((f"tensorjax_ring_{name}", library))

        self.open = typed("open", _POINTER, _UINT, _INT, _INT, _INT, _POINTER)
        self.close = typed("close", None, _POINTER)
        self.register = typed("register", _INT, _POINTER, _UINT, _POINTER, _POINTER)
        self.unregister = typed("unregister", _INT, _POINTER)
        self.wait = typed("wait", _INT, _POINTER, _INT, _POINTER, _INT)
        # Shorter than what it takes to let other threads of Python run, which PYFUNCTYPE does not.
        self.prepare = typed("prepare", _INT, _POINTER, _WORD, _INT, _INT, _WORD, ctypes.c_uint32,
                             _WORD, _INT, kind=ctypes.PYFUNCTYPE)  # fmt: skip


@functools.cache
def _load() -> tuple[_Calls | None, str]:
    library, why = _shared_libraries.load(Path(__file__).with_name("libio_uring.so"))
    if library is None:
        return None, why
    try:
        return _Calls(library), ""
    except AttributeError as error:
        return None, f"libio_uring.so: {error}"


def status() -> str:
    """Returns the reason why the C library of io_uring cannot be loaded here; empty if it can.

    Whether the kernel grants one is another question, for `uring.probe`.
    """
    return _load()[1]


class Ring:
    """Ring of io_uring, used by one thread; only `wake` may be called from others.

    Args:
        entries: Requests that may be queued; the kernel rounds up to a power of two.
        sqpoll: A thread of the kernel looks for new requests.
        iopoll: The device is polled for completions; such a ring cannot be woken.

    Raises:
        ImportError: if the C library is not part of this installation.
        OSError: if the kernel refuses.
    """

    def __init__(self, entries: int, *, sqpoll: bool = False, iopoll: bool = False):
        self._handle: Any = None
        self._event = -1
        calls, why = _load()
        if calls is None:
            raise ImportError(f"io_uring: {why}")
        self._calls, self._prepare, self._guard = calls, calls.prepare, threading.Lock()
        self._buffers: list[Any] = []
        # The kernel has room for twice as many completions as requests, a power of two.
        self._room = 2 << max(entries - 1, 1).bit_length()
        self._found = np.zeros(self._room, _COMPLETION)
        self._place = self._found.ctypes.data
        if not iopoll:  # a ring that polls cannot watch an eventfd
            self._event = os.eventfd(0, os.EFD_CLOEXEC)
        error = _INT()
        self._handle = calls.open(entries, sqpoll, iopoll, self._event, ctypes.byref(error))
        if not self._handle:
            self.close()
            raise OSError(-error.value, os.strerror(-error.value))

    def register(self, buffers: Sequence[Any]) -> None:
        """Registers writable buffers of at most 1 GiB each with io_uring, until `unregister`."""
        if self._buffers:
            raise RuntimeError("buffers are registered already")
        held = [(ctypes.c_char * memoryview(b).nbytes).from_buffer(b) for b in buffers]
        starts = (_POINTER * len(held))(*map(ctypes.addressof, held))
        sizes = (ctypes.c_size_t * len(held))(*map(ctypes.sizeof, held))
        _checked(self._calls.register(self._open(), len(held), starts, sizes))
        self._buffers = held

    def unregister(self) -> None:
        """Unregisters all buffers from io_uring; no transfer may be using them."""
        if self._buffers:
            _checked(self._calls.unregister(self._open()))
            self._buffers = []

    def prepare(
        self, token: int, write: bool, file: int, address: int, size: int, offset: int, buffer: int
    ) -> None:
        """Queues one read or write in io_uring, which `wait` submits.

        Args:
            token: Names it in what `wait` returns; below 2⁶⁴ − 1.
            write: To the file, or from it.
            address: Of memory that stays where it is until the transfer is done.
            buffer: Number of the registered buffer that holds the memory, or -1.
        """
        if buffer >= len(self._buffers):
            raise IndexError("no such registered buffer")
        handle = self._handle or self._open()
        if error := self._prepare(handle, token, write, file, address, size, offset, buffer):
            _checked(error)

    def wait(self, block: bool) -> list[tuple[int, int]]:
        """Submits the queued transfers to io_uring; returns token and result of completed ones.

        The result is the number of bytes moved, or -errno.

        Args:
            block: Wait until a transfer lands or another thread calls `wake`; a signal may end it
                sooner, with nothing.
        """
        handle = self._open()
        while True:  # a signal's handler runs between two calls, and may raise
            count = self._calls.wait(handle, block, self._place, self._room)
            if count != -errno.EINTR:
                return self._found[: _checked(count)].tolist()

    def wake(self) -> None:
        """Ends the current or next `wait` of a ring, from any thread; does nothing once closed."""
        with self._guard:
            if self._event >= 0:
                os.eventfd_write(self._event, 1)

    def close(self) -> None:
        """Closes a ring of io_uring and releases its registered buffers."""
        with self._guard:  # whoever wakes it writes to the eventfd, never to what has its number
            event, self._event = self._event, -1
        handle, self._handle = self._handle, None
        if handle:
            self._calls.close(handle)
        if event >= 0:
            os.close(event)
        self._buffers = []

    def _open(self) -> Any:
        if not self._handle:
            raise ValueError("the ring is closed")
        return self._handle

    def __del__(self) -> None:
        if hasattr(self, "_guard"):
            self.close()


def _checked(result: int) -> int:
    """Returns the result of an io_uring call; raises OSError if it is a negative errno."""
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result
