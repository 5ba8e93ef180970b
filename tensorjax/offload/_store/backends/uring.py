"""io_uring backend: many transfers in flight from one thread.

Source: io_uring(7); fixed buffers as in io_uring_register(2). What the ring does not finish
(short transfers, EINVAL, EAGAIN) is finished by the file's own loop.
"""

import os
import threading
from pathlib import Path
from typing import Any

from tensorjax import _check
from tensorjax.offload._errors import StoreError
from tensorjax.offload._store.backends.files import DiskFile, Say
from tensorjax.offload._store.backends.io_uring_binding import Ring
from tensorjax.offload._store.backends.protocol import FileBackend
from tensorjax.offload._store.transfers.queue import Queue
from tensorjax.offload._store.transfers.requests import Op, nothing
from tensorjax.offload._store.transfers.staging import Pool

MIB = 1 << 20
_BUFFER = 1 << 30  # the most that one registered buffer may have


class UringBackend(FileBackend):
    """I/O backend with one thread, which keeps many transfers in flight by io_uring.

    Args:
        depth: Transfers in flight.
        block: Most bytes of one transfer.
        sqpoll: Let a thread of the kernel look for new transfers; it takes a core.
        iopoll: Poll the device for completions; needs poll queues.
        fixed: Register the staging memory with the kernel.

    Raises:
        OSError: if the kernel refuses a ring.
        ImportError: if its C library is not part of this installation.
    """

    name, volatile = "io_uring", False

    def __init__(
        self,
        *,
        depth: int = 32,
        block: int = MIB,
        sqpoll: bool = False,
        iopoll: bool = False,
        fixed: bool = True,
    ):
        self.block, self._depth = block, _check.integer("depth", depth, low=1, high=4096)
        self._flags = {"sqpoll": bool(sqpoll), "iopoll": bool(iopoll)}
        self._fixed = bool(fixed)
        self._make().close()  # fails here where it would fail later
        self._thread: threading.Thread | None = None

    def _make(self) -> Any:
        return Ring(2 * self._depth, **self._flags)

    def open(self, path: Path, capacity: int, say: Say) -> None:
        """Opens or creates the data file of an io_uring backend."""
        self.file, self._say = DiskFile(path, direct=True, say=say), say
        for flag in [name for name, wanted in self._flags.items() if wanted]:
            if why := _answer(path.parent, {flag: True}):
                say(f"io_uring: {flag} does not work here ({why}); going on without it")
                self._flags[flag] = False

    def start(self, queue: Queue) -> None:
        """Starts the io_uring backend: creates its ring, and the thread that serves transfers."""
        ring = self._make()
        starts = _registered(ring, queue, self._say) if self._fixed else {}
        driver = _Driver(ring, queue, self.file, self._depth, starts, polls=self._flags["iopoll"],
                         say=self._say)  # fmt: skip
        queue.wake = driver.wake
        self._thread = threading.Thread(target=driver.run, name="tensorjax-store-ring", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Waits for the thread of an io_uring backend to end, which closes the ring."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None


def _registered(ring: Any, queue: Queue, say: Say) -> dict[Pool, int]:
    """Registers the io_uring backend's staging pools; returns each one's first buffer number."""
    parts, starts = [], {}
    for pool in (queue.reading, queue.writing):
        starts[pool] = len(parts)
        parts += [pool.memory[a : a + _BUFFER] for a in range(0, pool.size, _BUFFER)]
    try:
        ring.unregister()
        ring.register(parts)
    except OSError as error:
        say(
            f"io_uring: the staging memory cannot be registered ({error}; see ulimit -l); going on "
            "with plain buffers"
        )
        return {}
    return starts


class _Driver:
    """Event loop of the io_uring thread: submits transfers and reports their completion."""

    def __init__(
        self,
        ring: Any,
        queue: Queue,
        file: DiskFile,
        depth: int,
        starts: dict[Pool, int],
        *,
        polls: bool,
        say: Say = nothing,
    ):
        self._ring, self._queue, self._file = ring, queue, file
        self._depth, self._starts, self._polls, self._say = depth, starts, polls, say
        self._asleep = False

    def wake(self) -> None:
        """Wakes the io_uring thread if it sleeps; the caller holds the transfer queue's lock."""
        if self._asleep:
            # In this order: if a signal's handler raises in between, the next call wakes it again.
            self._ring.wake()
            self._asleep = False

    def run(self) -> None:
        """Serves queued disk transfers by io_uring until the queue is closed and empty."""
        flight: dict[int, Op] = {}
        landed: list[tuple[Op, int]] = []
        token = 0
        try:
            while True:
                busy = bool(flight or landed)
                ops = [] if self._renewing(busy=busy) else self._take(len(flight), wait=not busy)
                if ops is None and not flight and not landed:
                    return
                for op in ops or ():
                    token += 1
                    flight[token] = op
                    self._prepare(token, op)
                op = ops = None
                # What is next goes to the disk before what has landed is looked at: some disks
                # report a whole batch at once, and would idle meanwhile.
                found = self._ring.wait(not landed)
                while landed:
                    self._landed(*landed.pop())
                landed = [(flight.pop(number), moved) for number, moved in found]
        except BaseException as error:  # the ring itself fails: nobody must wait for ever
            for op in [*flight.values(), *(op for op, _ in landed)]:
                self._queue.done(op, error)
            self._refuse(error)
        finally:
            with self._queue.lock:
                self._queue.wake = None  # it holds this, and this the queue and its pools
            self._ring.close()

    def _renewing(self, *, busy: bool) -> bool:
        """Registers replaced staging memory with io_uring once idle; returns if transfers wait.

        They wait while the replaced memory is still in use.

        Once that is over, the new one is registered. Transfers that have it before use it as it is.
        """
        if not self._starts or self._queue.reading in self._starts:
            return False
        if not busy:
            self._starts = _registered(self._ring, self._queue, self._say)
        return busy

    def _take(self, flying: int, *, wait: bool) -> list[Op] | None:
        room = self._depth - flying
        if room <= 0:
            return []
        if self._polls:  # such a ring cannot be woken: sleep in the queue instead
            return self._queue.take(room, wait=wait)
        self._asleep = False
        ops = self._queue.take(room, wait=False)
        if ops == []:
            self._asleep = True
            ops = self._queue.take(room, wait=False)  # what came before we were asleep
            if ops:
                self._asleep = False
        return ops

    def _prepare(self, token: int, op: Op) -> None:
        assert op.memory is not None
        buffer = -1
        if op.place >= 0 and op.pool in self._starts:
            number, last = op.place // _BUFFER, (op.place + op.size - 1) // _BUFFER
            buffer = self._starts[op.pool] + number if number == last else -1
        self._ring.prepare(token, op.write, self._file.descriptor, op.memory.ctypes.data, op.size,
                           op.offset, buffer)  # fmt: skip

    def _landed(self, op: Op, moved: int) -> None:
        try:
            if moved != op.size:
                # A whole block at a time, so that what is left stays aligned.
                done = max(moved, 0) // 4096 * 4096
                assert op.memory is not None
                call = self._file.write if op.write else self._file.read
                if moved >= 0:
                    self._file.stopped("writing" if op.write else "reading", moved, op.size)
                call(op.offset + done, op.memory.data[done:])
        except BaseException as error:
            self._queue.done(op, error)
        else:
            self._queue.done(op)

    def _refuse(self, error: BaseException) -> None:
        while (ops := self._queue.take(self._depth)) is not None:
            for op in ops:
                self._queue.done(op, error)


def probe(folder: Path) -> dict[str, str]:
    """Tests the io_uring backend on a disk: plain, SQPOLL and IOPOLL; returns "" if it works.

    Args:
        folder: On the disk that is meant; a small file is written there and removed.

    Returns:
        Answers for ``"io_uring"``, ``"sqpoll"`` and ``"iopoll"``.
    """
    return {
        "io_uring": _answer(folder, {}),
        "sqpoll": _answer(folder, {"sqpoll": True}),
        "iopoll": _answer(folder, {"iopoll": True}),
    }


def _answer(folder: Path, options: dict[str, bool]) -> str:
    path = folder / f"probe-{os.getpid()}"
    try:
        return _tried(path, options)
    except (ImportError, OSError, StoreError) as error:  # the disk may be full
        return f"{error}"
    finally:
        path.unlink(missing_ok=True)


def _tried(path: Path, options: dict[str, bool]) -> str:
    """Writes and reads one block by io_uring: returns why that failed, or an empty string."""
    notes: list[str] = []
    file, pool = DiskFile(path, direct=True, say=notes.append), Pool(4096)
    ring = Ring(2, **options)
    try:
        file.allocate(4096)
        for write in (True, False):
            ring.prepare(1, write, file.descriptor, pool.memory.ctypes.data, 4096, 0, -1)
            moved: list[tuple[int, int]] = []
            while not moved:
                moved = ring.wait(True)
            if moved[0][1] != 4096:
                return os.strerror(-moved[0][1]) if moved[0][1] < 0 else "a short transfer"
    finally:
        ring.close()
        file.close()
    return notes[0] if notes else ""
