"""Data files that complete short transfers: by O_DIRECT, page cache or kvikio, and in memory.

Source: open(2), preadv2(2), posix_fallocate(3). O_DIRECT wants offset, length and memory aligned;
a transfer it refuses, or that stopped inside a block, is finished through the page cache.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tensorjax.offload._errors import FULL, CapacityError, CorruptError
from tensorjax.offload._store.disk.extents import ALIGN

Say = Callable[[str], None]


class DiskFile:
    """Data file on disk that any number of threads may read and write at byte offsets.

    Args:
        path: Of the file; created if it is not there.
        direct: Whether to go past the page cache. Where that is refused the file goes on through
            the cache and says so once.
        say: Told of it.
    """

    def __init__(self, path: Path, *, direct: bool, say: Say):
        self.path, self._say = path, say
        self._refusal, self._kept, self._short = threading.Lock(), None, False
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._cached = os.open(path, flags, 0o600)
        self.descriptor = self._cached
        if direct:
            try:
                self.descriptor = os.open(path, flags | os.O_DIRECT, 0o600)
            except (OSError, AttributeError) as error:
                self._refused(f"{error}")

    @property
    def direct(self) -> bool:
        """Whether transfers of the data file bypass the page cache."""
        return self.descriptor != self._cached

    def read(self, offset: int, memory: memoryview) -> None:
        """Reads bytes of the data file from ``offset`` on into all of ``memory``."""
        self._loop(os.preadv, offset, memory)

    def write(self, offset: int, memory: memoryview) -> None:
        """Writes all of ``memory`` to the data file at ``offset``."""
        self._loop(os.pwritev, offset, memory)

    def _loop(self, call: Callable, offset: int, memory: memoryview) -> None:
        done, descriptor = 0, self.descriptor
        while done < len(memory):
            try:
                moved = call(descriptor, [memory[done:]], offset + done)
            except InterruptedError:  # a signal handler that raised nothing: go on
                continue
            except OSError as error:
                if error.errno != errno.EINVAL or descriptor == self._cached:
                    raise
                self._refused(f"a transfer of {len(memory)} bytes: {error}")
                descriptor = self._cached
                continue
            if moved <= 0:
                raise CorruptError(
                    f"{self.path} ends at byte {self.size()}, expected at least "
                    f"{offset + len(memory)}"
                    if call is os.preadv
                    else f"{self.path}: nothing was written at byte {offset + done}"
                )
            done += moved
            if done < len(memory):
                self.stopped("reading" if call is os.preadv else "writing", done, len(memory))
            if done % ALIGN:
                descriptor = self._cached

    def stopped(self, doing: str, done: int, size: int) -> None:
        """Reports the first transfer of a data file that moved fewer bytes than requested."""
        with self._refusal:
            told, self._short = self._short, True
        if not told:
            self._say(
                f"{self.path}: {doing} stopped after {done} of {size} "
                "bytes; what is left of such transfers is moved by further ones"
            )

    def _refused(self, why: str) -> None:
        with self._refusal:
            if self._kept is not None:
                return
            # The direct descriptor stays open until the end: another thread may be using it.
            self._kept, self.descriptor = self.descriptor, self._cached
        self._say(f"{self.path}: O_DIRECT is refused ({why}); going on through the page cache")

    def size(self) -> int:
        """Returns the size of the data file in bytes."""
        return os.fstat(self._cached).st_size

    def allocate(self, size: int) -> None:
        """Allocates disk blocks for the first ``size`` bytes of the data file.

        Raises:
            CapacityError: if the disk is full; the file is as long as before.
        """
        before = self.size()
        if size <= before:
            return
        try:
            os.posix_fallocate(self._cached, before, size - before)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._cached, before)
            if error.errno not in FULL:
                raise
            disk = os.fstatvfs(self._cached)
            raise CapacityError(
                f"{self.path}: the disk is full: {size - before} more bytes are needed, "
                f"{disk.f_bavail * disk.f_frsize} are free ({os.strerror(error.errno or 0)}); "
                "free some space or choose another disk"
            ) from error
        os.fsync(self._cached)

    def sync(self) -> None:
        """Waits until everything written to the data file is on the disk."""
        os.fdatasync(self._cached)

    def close(self) -> None:
        """Closes the descriptors of the data file."""
        for descriptor in {self._cached, self.descriptor, self._kept} - {None}:
            os.close(descriptor)


class MemoryFile:
    """Data file kept in memory, without a disk, like `DiskFile`; for tests, lost when closed."""

    direct = False

    def __init__(self, capacity: int) -> None:
        # Pages that were never written take no memory.
        self._bytes, self._size = np.zeros(capacity, np.uint8), 0

    def read(self, offset: int, memory: memoryview) -> None:
        """Reads bytes of a memory-backed data file from ``offset`` on into ``memory``."""
        np.copyto(np.frombuffer(memory, np.uint8), self._bytes[offset : offset + len(memory)])

    def write(self, offset: int, memory: memoryview) -> None:
        """Writes all of ``memory`` to a memory-backed data file at ``offset``."""
        np.copyto(self._bytes[offset : offset + len(memory)], np.frombuffer(memory, np.uint8))

    def size(self) -> int:
        """Returns the size of a memory-backed data file, in bytes."""
        return self._size

    def allocate(self, size: int) -> None:
        """Enlarges a memory-backed data file to at least ``size`` bytes."""
        self._size = max(self._size, size)

    def sync(self) -> None:
        """Does nothing: a memory-backed data file needs no sync."""

    def close(self) -> None:
        """Frees the bytes of a memory-backed data file."""
        self._bytes = np.zeros(0, np.uint8)


class KvikioFile(DiskFile):
    """Data file whose threads read and write by NVIDIA's kvikio; untested, as it needs a GPU."""

    def __init__(self, path: Path, *, say: Say):
        super().__init__(path, direct=False, say=say)
        import kvikio  # type: ignore[import-not-found]

        self._cufile = kvikio.CuFile(str(path), "r+")
        say("kvikio: this way was never tested by the authors of tensorjax")

    def read(self, offset: int, memory: memoryview) -> None:
        """Reads data file bytes from ``offset`` on into ``memory`` by kvikio, in a pool thread."""
        self._all(self._cufile.pread, offset, memory)

    def write(self, offset: int, memory: memoryview) -> None:
        """Writes all of ``memory`` to the data file at ``offset`` by kvikio, in a pool's thread."""
        self._all(self._cufile.pwrite, offset, memory)

    def _all(self, call: Callable[..., Any], offset: int, memory: memoryview) -> None:
        done = 0
        while done < len(memory):
            moved = call(memory[done:], file_offset=offset + done).get()
            if moved <= 0:
                raise CorruptError(f"{self.path} ends at byte {self.size()}")
            done += moved

    def close(self) -> None:
        """Closes kvikio's handle of a thread-pool backend's data file, and the file."""
        self._cufile.close()
        super().close()
