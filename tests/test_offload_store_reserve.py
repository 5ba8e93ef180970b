"""Reservations that enlarge the staging memory while transfers, leases and callbacks are about."""

import contextlib
import errno
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("xxhash", reason="the store has an extra of its own")

from tensorjax import offload
from tensorjax.offload import StoreError, TensorStore
from tensorjax.offload._store import transport
from tensorjax.offload._store.backends import uring
from tensorjax.offload._store.transfers import queue as _queue
from tensorjax.offload._store.transfers import staging

KIB, LIMIT = 1 << 10, 20.0
BACKENDS = [name for name in offload.backends() if name not in ("auto", "kvikio")]
pytestmark = pytest.mark.filterwarnings("ignore::tensorjax.offload.StoreWarning")


@pytest.fixture(params=BACKENDS)
def backend(request: Any) -> str:
    return request.param


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools that grow with tensors of more than 64 KiB."""
    monkeypatch.setattr(staging, "_STAGING", 512 * KIB)
    monkeypatch.setattr(staging, "_WRITING", 256 * KIB)


@contextlib.contextmanager
def opened(path: Path, backend: str, **tensors: int) -> Iterator[TensorStore]:
    """A store with tensors of some KiB, each full of its own number in the order of names."""
    with TensorStore(path, 64 << 20, backend=backend, block=16 * KIB) as store:
        arrays = {n: np.full(k * KIB, i, np.uint8) for i, (n, k) in enumerate(tensors.items())}
        store.reserve(arrays)
        store.write_many(arrays).result(LIMIT)
        yield store


def spec(kib: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((kib * KIB,), np.uint8)


class Call(threading.Thread):
    """A call in a thread of its own, whose result or error `get` gives within a time."""

    def __init__(self, call: Callable[..., Any], *arguments: Any):
        super().__init__(daemon=True)
        self.call, self.arguments = call, arguments
        self.found: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.found = self.call(*self.arguments)
        except BaseException as error:
            self.error = error

    def get(self) -> Any:
        self.join(LIMIT)
        assert not self.is_alive(), "it waits for ever"
        if self.error is not None:
            raise self.error
        return self.found


def serving(store: TensorStore) -> set[threading.Thread]:
    """The threads of the backend."""
    backend: Any = store._backend
    return {*backend._threads} if hasattr(backend, "_threads") else {backend._thread}


def stopped(store: TensorStore, lock: Any, names: list[str]) -> list[Any]:
    """Reads, by whose callbacks all threads of the backend wait for a lock, which is held."""
    inside, futures, go = [], [], threading.Event()

    def wait(_: Any) -> None:
        go.wait(LIMIT)  # so that it runs in the backend
        inside.append(threading.current_thread())
        with lock:
            pass

    for _ in range(4 * len(serving(store))):
        futures += [store.read(name) for name in names]
        futures[-1].add_done_callback(wait)
    go.set()
    threads = {*serving(store)}
    end = time.monotonic() + LIMIT
    while not threads <= {*inside}:
        assert time.monotonic() < end
        if threading.current_thread() in inside:
            raise AssertionError("a callback ran in the caller's thread")
        time.sleep(0.001)
    return futures


def released(futures: list[Any]) -> None:
    for future in futures:
        future.result(LIMIT).release()


@pytest.mark.parametrize("holder", ["reads", "reserves", "both"])
def test_threads_in_callbacks_stop_no_reservation(
    tmp_path: Path, backend: str, holder: str
) -> None:
    """The callback waits for a lock, whose holder reads or reserves while another one reserves."""
    with opened(tmp_path, backend, x=4, y=4) as store:
        before, lock = serving(store), threading.Lock()
        with lock:
            futures = stopped(store, lock, ["x", "y"])
            if holder != "reserves":
                other = Call(store.reserve, {"large": spec(300)})
                futures += [Call(store.read, "y").get() for _ in range(5)]
                other.get()  # though the lock is held
            if holder != "reads":
                Call(store.reserve, {"larger": spec(700)}).get()
                futures += [Call(store.read, "x").get()]
        released(futures)
        assert serving(store) == before
        name = "large" if holder == "reads" else "larger"
        array = np.arange(store.spec(name).shape[0]).astype(np.uint8)
        store.write(name, array).result(LIMIT)
        with store.read(name).result(LIMIT) as lease:
            np.testing.assert_array_equal(lease.array, array)
        assert not store._transport.queue.reading.used


def test_threads_in_callbacks_keep_no_reader_waiting_for_forget(
    tmp_path: Path, backend: str
) -> None:
    with opened(tmp_path, backend, x=4, y=4) as store:
        lock = threading.Lock()
        with lock:
            futures = stopped(store, lock, ["x", "y"])
            futures += [store.read("x"), store.read("y")]  # which no thread is left for
            Call(store.revert).get()
            forget = Call(store.forget)
            for _ in range(20):  # at any point of it
                with pytest.raises((StoreError, KeyError)):
                    Call(store.read, "x").get()
        forget.get()
        released(futures)
        assert not store.names


def test_reads_that_wait_get_the_memory_of_the_larger_pool(tmp_path: Path, backend: str) -> None:
    with opened(tmp_path, backend, x=64, y=64, z=64, u=64, v=64) as store:
        leases = [store.read(name).result(LIMIT) for name in "xyzu"]
        waiting = [store.read("v", deadline=i) for i in range(3)]
        time.sleep(0.02)
        assert store.starved()
        store.reserve({"large": spec(300)})
        for future in waiting:
            with future.result(LIMIT) as lease:
                assert (lease.array == 4).all()
        for i, lease in enumerate(leases):  # of the pool before
            assert (lease.array == i).all()
            lease.release()
        assert not store._transport.queue.reading.used


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_reordered_in_drawn_interleavings(
    tmp_path: Path, backend: str, seed: int
) -> None:
    """Threads write and read their tensors, with callbacks that read; others hold leases."""
    rng = random.Random(seed)
    sizes = {f"t{i}": rng.choice([0, 1, 4, 12, 16, 20, 48, 64]) for i in range(6)}
    lock, faults = threading.RLock(), []

    def use(store: TensorStore, name: str, draw: random.Random) -> int:
        kept, made, asked = [], 0, 0
        inner: SimpleQueue[Any] = SimpleQueue()  # a callback may run after its future's result
        size = sizes[name] * KIB

        def look(done: Any) -> None:  # in the backend: takes the lock, and reads
            with lock:
                inner.put(store.read(name))

        for value in range(1, 25):
            store.write(name, np.full(size, value, np.uint8), deadline=draw.random())
            made += 1
            with lock:  # the holder reads, too
                future = store.read(name, deadline=draw.random())
            if draw.random() < 0.5:
                future.add_done_callback(look)
                asked += 1
            lease = future.result(LIMIT)
            if not (lease.array == value).all():
                faults.append((name, value))
            if size <= 4 * KIB and draw.random() < 0.2:
                kept.append((value, lease))
            else:
                lease.release()
            while not inner.empty():
                inner.get().result(LIMIT).release()
                asked -= 1
        for value, lease in kept:  # through all enlargements
            if not (lease.array == value).all():
                faults.append((name, value, "kept"))
            lease.release()
        for _ in range(asked):
            inner.get(timeout=LIMIT).result(LIMIT).release()
        return made

    with opened(tmp_path, backend, **sizes) as store:
        users = [Call(use, store, name, random.Random(f"{seed}{name}")) for name in sizes]
        kib, count = 64, 0
        while any(user.is_alive() for user in users) and count < 12:
            kib, count = kib + rng.randint(1, 60), count + 1
            store.reserve({f"large{count}": spec(kib)})
            time.sleep(rng.random() * 0.01)
        made = sum(user.get() for user in users)
        assert not faults
        end = time.monotonic() + LIMIT
        while store._transport.queue.depth or store._transport.queue._buffers:
            assert time.monotonic() < end
            time.sleep(0.001)
        found = store.statistics()
        assert found.writes.tensors == made + len(sizes)
        assert not found.reads.failures
        assert found.staging_reads >= 4 * kib * KIB


@pytest.mark.parametrize("when", ["pool", "allocate", "save", "enlarge", "enlarged"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOMEM, "no memory")])
def test_a_reservation_that_is_cut_off_leaves_the_store_as_it_was(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch, when: str, error: BaseException
) -> None:
    def cut(*_: Any, **__: Any) -> Any:
        raise error

    enlarge = _queue.Queue.enlarge

    def late(self: Any, pool: Any) -> None:
        enlarge(self, pool)
        raise error

    with opened(tmp_path, backend, x=4, y=64) as store:
        before, lease = serving(store), store.read("y").result(LIMIT)
        future = store.read("x")
        with monkeypatch.context() as patch:
            where: Any = {"pool": transport, "allocate": store._backend, "save": store}
            name = {"pool": "Pool", "save": "_save"}.get(when, when)
            if when.startswith("enlarge"):
                patch.setattr(_queue.Queue, "enlarge", cut if when == "enlarge" else late)
            else:
                patch.setattr(where[when], name, cut)
            with pytest.raises((type(error), offload.CapacityError)):
                store.reserve({"large": spec(300)})
        assert store.names == ("x", "y")
        assert serving(store) == before
        future.result(LIMIT).release()
        assert (lease.array == 1).all()
        lease.release()
        store.reserve({"large": spec(300)})
        store.write("large", np.full(300 * KIB, 7, np.uint8)).result(LIMIT)
        with store.read("large").result(LIMIT) as lease:
            assert (lease.array == 7).all()
        store.commit()
        assert not store._transport.queue.reading.used


class Watched:
    """A ring that keeps what is registered, and where each transfer has its memory."""

    def __init__(self, ring: Any, refused: int = -1):
        self.ring, self.refused = ring, refused
        self.registered: list[list[tuple[int, int]]] = []
        self.used: list[tuple[int, int, int]] = []

    def register(self, parts: Any) -> None:
        if len(self.registered) == self.refused:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        self.ring.register(parts)
        self.registered.append([(p.ctypes.data, p.ctypes.data + p.size) for p in parts])

    def prepare(self, *arguments: Any) -> None:
        *_, address, size, _, buffer = arguments
        if buffer >= 0:
            begin, end = self.registered[-1][buffer]
            assert begin <= address <= address + size <= end
        self.used.append((address, size, buffer))
        self.ring.prepare(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ring, name)


@pytest.mark.skipif("io_uring" not in BACKENDS, reason="the C library was not built")
@pytest.mark.parametrize("refused", [False, True])
def test_the_ring_registers_the_larger_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rings: list[Watched] = []
    make = uring.UringBackend._make

    def watched(self: Any) -> Watched:
        rings.append(Watched(make(self), 1 if refused else -1))
        return rings[-1]

    monkeypatch.setattr(uring.UringBackend, "_make", watched)
    with opened(tmp_path, "io_uring", x=64, y=64) as store:
        ring = rings[-1]
        for kib in (300, 500, 800):
            futures = [store.read(name) for _ in range(2) for name in "xy"]
            store.reserve({f"large{kib}": spec(kib)})
            released(futures)
            store.write(f"large{kib}", np.full(kib * KIB, 3, np.uint8)).result(LIMIT)
            ring.used.clear()
            with store.read(f"large{kib}").result(LIMIT) as lease:
                assert (lease.array == 3).all()
            assert len(ring.used) == kib // 16 + (kib % 16 > 0)
            assert all((buffer < 0) == refused for *_, buffer in ring.used)
        assert len(ring.registered) == (1 if refused else 4)
        assert any("cannot be registered" in notice for notice in store._say) == refused
