"""The ring of io_uring: transfers, their results, wake-ups, and what it refuses."""

import errno
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorjax import _shared_libraries
from tensorjax.offload._store.backends import io_uring_binding as _ring
from tensorjax.offload._store.backends import uring
from tensorjax.offload._store.backends.io_uring_binding import Ring

SIZE = 1 << 16


@pytest.fixture(autouse=True)
def _allowed(tmp_path: Path) -> None:
    if why := uring.probe(tmp_path)["io_uring"]:
        pytest.skip(why)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, np.random.default_rng(0).bytes(SIZE), 0)
    yield descriptor
    os.close(descriptor)


def landed(ring: Ring, count: int) -> dict[int, int]:
    found: list[tuple[int, int]] = []
    while len(found) < count:
        found += ring.wait(True)
    assert len(dict(found)) == len(found) == count
    return dict(found)


def prepare(ring: Ring, *arguments: Any) -> None:
    """Queues a transfer once there is room."""
    for _ in range(1000):
        try:
            return ring.prepare(*arguments)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            time.sleep(1e-3)  # the kernel's thread has not taken those before yet
    raise TimeoutError("no room in the ring")


@pytest.mark.parametrize("sqpoll", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_transfers_move_what_was_asked(file: int, tmp_path: Path, seed: int, sqpoll: bool) -> None:
    """From and to registered buffers and others, up to the end of a file, more than fit at once."""
    if sqpoll and (why := uring.probe(tmp_path)["sqpoll"]):
        pytest.skip(why)
    draw, ring = random.Random(seed), Ring(4, sqpoll=sqpoll)
    memory = np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)
    ring.register([memory[: SIZE // 2], memory[SIZE // 2 :]])
    expected, sizes = bytearray(os.pread(file, SIZE, 0)), {}
    step = SIZE // 16
    for token in range(16):  # each has a part of its own of file and memory
        start, size = token * step, draw.randint(1, step)
        buffer = draw.choice([-1, token // 8])
        write = draw.random() < 0.5
        if write:
            expected[start : start + size] = memory[start : start + size].tobytes()
        address = memory.ctypes.data + start
        prepare(ring, token, write, file, address, size, start, buffer)
        sizes[token] = size
    assert landed(ring, 16) == sizes
    assert os.pread(file, SIZE, 0) == bytes(expected)
    for token, size in sizes.items():
        start = token * step
        assert memory[start : start + size].tobytes() == expected[start : start + size]
    ring.close()


def test_results_tell_of_the_end_of_a_file_and_of_errors(file: int) -> None:
    ring, memory = Ring(4), np.zeros(SIZE, np.uint8)
    for token, (descriptor, offset) in enumerate([(file, SIZE - 10), (file, SIZE), (-1, 0)]):
        ring.prepare(token, False, descriptor, memory.ctypes.data, 100, offset, -1)
    assert landed(ring, 3) == {0: 10, 1: 0, 2: -errno.EBADF}
    assert ring.wait(False) == []
    ring.close()


def test_another_thread_ends_a_wait_again_and_again() -> None:
    ring = Ring(2)
    for early in (False, True) * 3:
        timer = threading.Timer(0 if early else 0.02, ring.wake)
        timer.start()
        if early:
            timer.join()
        assert ring.wait(True) == []
        timer.join()
    ring.close()


def wait_for_ever(ring: Ring) -> None:
    while True:  # a wait that began with a request to submit may end with nothing
        assert ring.wait(True) == []


def test_a_signal_that_raises_ends_a_wait() -> None:
    ring, seen = Ring(2), []

    def handler(*_: object) -> None:
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_for_ever(ring)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) == 2
    ring.close()


def test_a_closed_ring_refuses_and_wakes_nobody(file: int) -> None:
    """Closed twice, and woken by many threads meanwhile: no file that came later is written to."""
    ring = Ring(2)
    wakers = [threading.Thread(target=lambda: [ring.wake() for _ in range(200)]) for _ in range(4)]
    for waker in wakers:
        waker.start()
    ring.close()
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]  # writing to them would raise
    for waker in wakers:
        waker.join()
    for other in others:
        os.close(other)
    ring.close()
    ring.wake()
    calls = [
        lambda: ring.wait(False),
        lambda: ring.prepare(1, False, file, 0, 1, 0, -1),
        lambda: ring.register([bytearray(4096)]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()


def test_registered_buffers_are_held_until_they_are_let_go() -> None:
    ring, memory = Ring(2), bytearray(8192)
    ring.register([memory])
    with pytest.raises(BufferError):
        memory.append(0)
    with pytest.raises(RuntimeError, match="already"):
        ring.register([memory])
    with pytest.raises(IndexError, match="registered"):
        ring.prepare(1, False, 0, 0, 1, 0, 1)
    ring.unregister()
    ring.unregister()
    memory.append(0)
    with pytest.raises((TypeError, BufferError)):
        ring.register([b"read-only"])
    ring.register([bytearray(4096)])
    ring.close()


def test_rings_leave_no_files_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        Ring(2)  # never closed
        Ring(2, iopoll=True).close()
        with pytest.raises(OSError, match="Invalid argument"):
            Ring(1 << 20)  # more than the kernel allows
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_missing_or_broken_library_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "libbroken.so"
    broken.write_bytes(b"\x7fELF")
    for path, why in ((tmp_path / "none.so", "not part"), (broken, "libbroken.so")):
        library, found = _shared_libraries.load(path)
        assert library is None
        assert why in found
        monkeypatch.setattr(_ring, "_load", lambda found=found: (None, found))
        assert uring.probe(tmp_path)["io_uring"].endswith(found)
        with pytest.raises(ImportError, match="io_uring"):
            Ring(2)
