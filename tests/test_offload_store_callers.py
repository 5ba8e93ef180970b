"""What callers do to a store: signals, forks, threads, views that outlive their lease."""

import contextlib
import gc
import linecache
import os
import select
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("xxhash", reason="the store has an extra of its own")

from tensorjax import offload
from tensorjax.offload import TensorStore
from tensorjax.offload._store import reader as _reader
from tensorjax.offload._store import transport
from tensorjax.offload._store import writer as _writer
from tensorjax.offload._store.transfers import queue as _queue
from tensorjax.offload._store.transfers import requests as _requests
from tensorjax.offload._store.transfers import staging

MIB, PAGE = 1 << 20, 4096
CUT = {m.__file__ for m in (_queue, _requests, _reader, _writer, staging)}
BACKENDS = [name for name in ("threads", "io_uring") if name in offload.backends()]


@pytest.fixture(params=BACKENDS)
def backend(request: Any) -> str:
    return request.param


def made(path: Path, backend: str = "threads", **options: Any) -> TensorStore:
    options = {"staging": 4 * MIB, "block": MIB // 4, **options}
    return TensorStore(path, 256 * MIB, backend=backend, **options)


def filled(path: Path, backend: str = "threads", **options: Any) -> TensorStore:
    """A store of which "x" is ones and "y" is twos, committed as step 1."""
    store = made(path, backend, **options)
    store.reserve({"x": np.zeros(8), "y": np.zeros(8)})
    store.write_many({"x": np.ones(8), "y": np.full(8, 2.0)})
    store.commit({"step": 1})
    return store


def test_a_view_outlives_its_lease(tmp_path: Path, backend: str) -> None:
    with filled(tmp_path, backend) as store:
        with pytest.warns(ResourceWarning, match="dropped without release"):
            x, y = store.read("x").result().array[2:], store.read("y").result().array
        np.testing.assert_array_equal(x, np.ones(6))
        np.testing.assert_array_equal(y, np.full(8, 2.0))
        del x, y
        store.read("x").result().release()  # which takes up what was dropped
        assert not store._transport.queue.reading.used


def test_what_a_caller_does_to_meta_is_his(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        store.meta["step"] += 1
        store.reserve({"z": np.zeros(8)})
    with made(tmp_path) as store:
        assert store.meta == {"step": 1}


@pytest.mark.parametrize("ended", [False, True])
def test_commits_of_one_process_do_not_decide_for_all(tmp_path: Path, ended: bool) -> None:
    """Where one has more commits than the other: all go back, or all go forward."""

    class Killed(BaseException):
        pass

    def killed() -> None:
        raise Killed

    def opened() -> list[TensorStore]:
        return [made(tmp_path, process=(number, 2)) for number in range(2)]

    stores = opened()
    for store in stores:
        store.reserve({"x": np.zeros(8)})
        store.write("x", np.ones(8))
    stores[0].commit("by itself")
    stores[0].commit("and again")
    for store in stores:
        store.commit({"step": 1}, barrier=lambda: None)
        store.write("x", np.full(8, 2.0))
    with pytest.raises(Killed):
        stores[0].commit({"step": 2}, barrier=killed)
    if ended:  # the other one had passed the barrier
        stores[1].commit({"step": 2}, barrier=lambda: None)
    else:
        with pytest.raises(Killed):
            stores[1].commit({"step": 2}, barrier=killed)
    for store in stores:
        store.close()
    for store in opened():
        with store, store.read("x").result() as lease:
            assert store.meta == {"step": 2 if ended else 1}
            assert lease.array[0] == (2.0 if ended else 1.0)


def test_thousands_of_writes_of_one_tensor_can_be_hastened(tmp_path: Path) -> None:
    """A read that is urgent, behind a chain of reads and writes that are not."""
    with filled(tmp_path) as store:
        request: Any = None
        queue = store._transport.queue
        chain = []
        for _ in range(5000):
            leaders = [request] if request else []
            request = SimpleNamespace(
                complete=False, deadline=9.0, batch=None, ops=(), leaders=leaders
            )
            chain.append(request)
        with queue.lock:
            queue.hasten(request, 1.0)
        assert {link.deadline for link in chain} == {1.0}


def write_for_ever(store: TensorStore, name: str, x: np.ndarray) -> None:
    while True:
        store.write(name, x)


def test_an_interrupt_while_staging_is_full_leaves_the_store_usable(
    tmp_path: Path, backend: str
) -> None:
    x = np.zeros(16 * MIB, np.uint8)
    with filled(tmp_path, backend, staging=24 * MIB) as store:
        store.reserve({"large": x})
        main = threading.get_ident()
        timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
        # A shell without job control has what it starts in the background ignore Ctrl-C.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                write_for_ever(store, "large", x)
        finally:
            signal.signal(signal.SIGINT, before)
        assert not store._transport.queue._wanting
        store.revert()
        store.write("x", np.full(8, 3.0)).result(30)
        store.commit({"step": 2})


def test_interrupts_at_any_moment_lose_no_memory(tmp_path: Path, backend: str) -> None:
    """As Ctrl-C may come: within a call, between its lines, while it waits."""

    class Cut(Exception):
        pass

    def cut(number: int, frame: Any) -> None:
        raise Cut

    count, rng = 0, np.random.default_rng(5)
    x = np.zeros(20_000, np.int32)
    names = [f"t{i}" for i in range(20)]
    before = signal.signal(signal.SIGALRM, cut)
    with made(tmp_path, backend, staging=8 * (MIB // 16), block=MIB // 16) as store:
        store.reserve(dict.fromkeys(names, x))
        store.write_many(dict.fromkeys(names, x)).result(30)
        try:
            for _ in range(800):
                # What is dropped when a call is cut off, as the collector does it, is not of this.
                gc.disable()
                try:
                    signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-5, 2e-3)))
                    for name in names:
                        store.write(name, x)
                    for name in names[:3]:
                        store.read(name).result(30).release()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Cut:
                    count += 1
                except offload.StoreError:
                    pass  # of a read whose tensor was not written to its end
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    gc.enable()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert count > 100
        gc.collect()
        store.write_many({name: np.full_like(x, 7) for name in names}).result(30)
        store.commit()
        with store.read("t3").result(30) as lease:  # which takes up what was dropped
            assert np.all(lease.array == 7)
        assert not store._transport.queue.reading.used
        assert not store._transport.queue.writing.used


def test_a_write_cut_off_at_its_end_holds_up_nobody(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When all has been written, and it was about to say so."""
    todo = [KeyboardInterrupt]

    def seal(queue: Any, request: Any) -> None:
        while request.left:
            time.sleep(0.001)
        sealing(queue, request)

    def finish(queue: Any, request: Any) -> None:
        if todo and threading.current_thread() is threading.main_thread():
            raise todo.pop()
        finishing(queue, request)

    with filled(tmp_path, backend) as store:
        sealing, finishing = _queue.Queue.seal, _queue.Queue.finish
        monkeypatch.setattr(_queue.Queue, "seal", seal)
        monkeypatch.setattr(_queue.Queue, "finish", finish)
        with pytest.raises(KeyboardInterrupt):
            store.write("x", np.full(8, 4.0))
        store.write("x", np.full(8, 5.0)).result(30)
        store.commit()
        with store.read("x").result(30) as lease:
            np.testing.assert_array_equal(lease.array, np.full(8, 5.0))


def cut_off(line: int, call: Callable[[], Any]) -> bool:
    """Calls, and raises at this line of the queue, the requests, the reader or the writer.

    Returns whether the call has so many lines.
    """
    left = line

    def trace(frame: Any, event: str, value: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in CUT:
            return None
        here = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # No signal is seen where a lock is just taken or given back.
        if event == "line" and not here.startswith(("with ", "try:")):
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_write_may_be_cut_off_at_every_line(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the queue's and the writer's, also where its transfers end before the call goes on."""
    sealing = _queue.Queue.seal

    def seal(queue: Any, request: Any) -> None:
        while request.left:
            time.sleep(0.0005)
        sealing(queue, request)

    monkeypatch.setattr(_queue.Queue, "seal", seal)
    with filled(tmp_path, backend) as store:
        line = 1
        while cut_off(line, lambda: store.write("x", np.full(8, 4.0))):
            store.write("x", np.full(8, float(line))).result(30)
            with store.read("x").result(30) as lease:
                np.testing.assert_array_equal(lease.array, np.full(8, float(line)))
            line += 1
        assert line > 80
        store.commit()
        assert not store._transport.queue.writing.used
        assert not store._transport.queue._pending


@pytest.mark.filterwarnings("ignore:x. a lease was dropped:ResourceWarning")
def test_a_read_may_be_cut_off_at_every_line(tmp_path: Path, backend: str) -> None:
    with filled(tmp_path, backend) as store:
        line = 1
        while cut_off(line, lambda: store.read("x").result(30).release()):
            gc.collect(1)  # of young objects: all of them take long after other tests
            with store.read("x").result(30) as lease:
                np.testing.assert_array_equal(lease.array, np.ones(8))
            store.write("x", np.ones(8)).result(30)
            line += 1
        assert line > 40
        gc.collect()
        store.read("x").result(30).release()
        assert not store._transport.queue.reading.used
        assert not store._transport.queue._pending


def test_a_release_may_be_cut_off_at_every_line(tmp_path: Path, backend: str) -> None:
    """Also while it gives its memory to reads that wait."""
    size, names = 24 * PAGE, ["a", "b", "c"]
    with made(tmp_path, backend, block=8 * PAGE, staging=32 * PAGE) as store:
        arrays = {name: np.full(size, k, np.uint8) for k, name in enumerate(names)}
        store.reserve(arrays)
        store.write_many(arrays).result(30)
        more, line = True, 1
        while more:
            first = store.read("a").result(30)  # all the memory there is
            waiting = [store.read(name) for name in names[1:]]
            more = cut_off(line, first.release)
            first.release()
            for k, future in enumerate(waiting, 1):
                with future.result(10) as lease:
                    assert (lease.array == k).all()
            line += 1
        assert line > 20
        assert not store._transport.queue.reading.used


def test_a_lease_may_be_released_again_where_that_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(queue: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with filled(tmp_path) as store:
        lease = store.read("x").result(30)
        monkeypatch.setattr(_queue.Queue, "_admit", cut)
        with pytest.raises(KeyboardInterrupt):
            lease.release()
        lease.release()
        assert store._transport.queue.reading.used == 0
        store.read("x").result(30).release()


def test_writes_that_wait_for_reads_leave_staging_to_others(tmp_path: Path, backend: str) -> None:
    """A write that waits for a read, which waits for a write that needs staging."""
    large, small = np.zeros(8 * PAGE, np.uint8), np.ones(PAGE, np.uint8)
    names = [f"{kind}{i}" for i in range(4) for kind in "ab"]
    tensors = {**{f"x{i}": large for i in range(40)}, **dict.fromkeys(names, small)}
    with made(tmp_path, backend, block=2 * PAGE, staging=16 * PAGE) as store:
        store.reserve(tensors)
        store.write_many(tensors).result(30)
        first = {n: x for n, x in tensors.items() if n[0] in "xa"}
        second = {n: x for n, x in tensors.items() if n[0] == "b"}
        for _ in range(5):
            done: list[int] = []

            def write(some: Any, done: list[int] = done) -> None:
                store.write_many(some).result(30)
                done.append(1)

            threads = [threading.Thread(target=write, args=(some,)) for some in (first, second)]
            threads[0].start()
            reads = [store.read_many([f"a{i}", f"b{i}"]) for i in range(4)]
            threads[1].start()
            for read in reads:
                read.result(30).release()
            for thread in threads:
                thread.join(30)
            assert done == [1, 1]


def test_reads_go_on_while_the_store_is_enlarged(tmp_path: Path, backend: str) -> None:
    with filled(tmp_path, backend, staging=None) as store:
        stop, faults, count = threading.Event(), [], [0]

        def read() -> None:
            while not stop.is_set():
                try:
                    with store.read("x").result(30):
                        count[0] += 1
                except Exception as error:
                    faults.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        for i in range(2):
            spec = jax.ShapeDtypeStruct(((56 + 4 * i) * MIB,), np.uint8)
            store.reserve({f"large{i}": spec})
        before = store.statistics().staging_peak
        stop.set()
        thread.join(60)
        assert not faults
        assert count[0]
        assert before  # of the pools before counts too


def test_memory_that_is_not_to_be_had_leaves_the_store_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(size: int) -> Any:
        raise OSError(12, "Cannot allocate memory")

    with filled(tmp_path, staging=None) as store:
        with monkeypatch.context() as patch:
            patch.setattr(transport, "Pool", refuse)
            with pytest.raises(
                offload.CapacityError, match=r"staging, block: \d+ bytes of memory are not"
            ):
                store.reserve({"large": jax.ShapeDtypeStruct((60 * MIB,), np.uint8)})
        assert "large" not in store.names
        store.write("x", np.full(8, 3.0)).result(30)
        store.commit({"step": 2})


def test_pools_go_with_the_store(tmp_path: Path, backend: str) -> None:
    """At once, not when the collector of cycles comes by."""
    gc.collect()
    gc.disable()
    try:
        store = filled(tmp_path, backend)
        store.read("x").result().release()
        pools = [
            weakref.ref(store._transport.queue.reading),
            weakref.ref(store._transport.queue.writing),
        ]
        store.close()
        del store
        assert [pool() for pool in pools] == [None, None]
    finally:
        gc.enable()


def test_a_fork_neither_keeps_the_lock_nor_hangs(tmp_path: Path) -> None:
    store = filled(tmp_path)
    seen, there = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX and Python warn of forks
        child = os.fork()
    if not child:
        try:
            store.read("x")
        except offload.StoreError as error:
            os.write(there, str(error).encode())
        finally:
            signal.pause()  # as a worker that lives on
    try:
        assert select.select([seen], [], [], 60)[0]
        assert b"of which this one is a fork" in os.read(seen, 1000)
        store.close()
        made(tmp_path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (jax.ShapeDtypeStruct((-4,), jnp.float32), ValueError, "a: expected sizes of at least 0"),
        (np.zeros(3, "S5"), TypeError, "a: expected a plain dtype"),
    ],
)
def test_tensors_that_cannot_be_are_refused(
    tmp_path: Path, spec: Any, error: type[Exception], message: str
) -> None:
    with made(tmp_path) as store, pytest.raises(error, match=message):
        store.reserve({"a": spec})


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for backend in ("auto", "threads"):
        with pytest.raises(NotADirectoryError, match="path: expected a folder, got the file"):
            made(tmp_path / "file", backend)
    with pytest.raises(TypeError, match="path: expected a folder's path, got 3"):
        TensorStore(3, MIB)


def test_writes_and_reads_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        with pytest.raises(TypeError, match="x: expected an array"):
            store.write("x", store.spec("x"))
        with pytest.raises(ValueError, match="deadline: expected a number, got NaN"):
            store.read("x", deadline=float("nan"))


@pytest.mark.parametrize("ending", ["close", "drop", "exit"])
def test_a_fork_leaves_the_store_locked(tmp_path: Path, backend: str, ending: str) -> None:
    """However it ends, and with transfers under way when it began."""
    data = np.ones(8 * MIB, np.uint8)
    store = made(tmp_path, backend, staging=16 * MIB)
    store.reserve({f"t{n}": data for n in range(4)})
    store.commit({"step": 1})
    for n in range(4):
        store.write(f"t{n}", data[: data.size])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX and Python warn of forks
        child = os.fork()
    if not child:
        code = 1
        try:
            if ending == "close":
                store.close()
            elif ending == "drop":
                del store
                gc.collect()
            else:
                store._transport._finalizer()  # as when the interpreter ends
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)
    with pytest.raises(offload.LockedError, match="open already"):
        made(tmp_path, backend)
    store.commit({"step": 2})
    with store.read("t3").result() as lease:
        np.testing.assert_array_equal(lease.array, data)
    store.close()
    made(tmp_path, backend, staging=16 * MIB).close()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, ValueError])
def test_callbacks_that_raise_end_no_thread(tmp_path: Path, backend: str, kind: Any) -> None:
    def fail(_: Any) -> None:
        raise kind

    options = {"workers": 2} if backend == "threads" else {}
    with filled(tmp_path, backend, options=options) as store:
        for n in range(6):
            written = store.write("x", np.full(8, float(n)))
            with contextlib.suppress(kind):  # called here, and raised, if it is done already
                written.add_done_callback(fail)
            written.result(30)
            read = store.read("x")
            with contextlib.suppress(kind):
                read.add_done_callback(fail)
            with read.result(30) as lease:
                assert lease.array[0] == n
        store.commit({"step": 2})


@pytest.mark.parametrize("place", ["enter", "_offer", "_unblock", "read", "turn", "stage"])
@pytest.mark.parametrize("after", [False, True])
def test_a_call_that_is_cut_off_leaves_the_store_usable(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch, place: str, after: bool
) -> None:
    """Ctrl-C may come at the beginning or at the end of everything that a call does."""

    class Cut(BaseException):
        pass

    with filled(tmp_path, backend) as store:
        whole = getattr(_queue.Queue, place)
        calls = []

        def cut(self: Any, *arguments: Any) -> Any:
            mine = threading.current_thread() is threading.main_thread() and not calls
            if mine and not after:
                calls.append(place)
                raise Cut
            found = whole(self, *arguments)
            if mine:
                calls.append(place)
                raise Cut
            return found

        for call in (lambda: store.write("x", np.full(8, 5.0)), lambda: store.read("y")):
            calls.clear()
            with monkeypatch.context() as patch:
                patch.setattr(_queue.Queue, place, cut)
                with contextlib.suppress(Cut):
                    found = call().result(30)  # it does not come by that place
                    if found is not None:
                        found.release()
            if place == "stage" and after:  # what was about to be handed over is lost: 64 bytes
                continue
            store.write("x", np.full(8, 3.0)).result(30)
            store.write("y", np.full(8, 4.0)).result(30)
            for name, value in (("x", 3.0), ("y", 4.0)):
                with store.read(name).result(30) as lease:
                    assert lease.array[0] == value
            store.commit({"step": 2})
            # What the call that was cut off had read before is released as its read ends.
            end = time.monotonic() + 30
            while store._transport.queue.reading.used and time.monotonic() < end:
                time.sleep(0.001)
            assert not store._transport.queue.reading.used


def test_what_was_read_before_a_call_was_cut_off_is_released(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(BaseException):
        pass

    unblock, cut = _queue.Queue._unblock, _queue.Queue.cut
    end = time.monotonic() + 30

    def unblocked(self: Any, request: Any) -> None:
        unblock(self, request)
        if threading.current_thread() is threading.main_thread():
            raise Cut

    def late(self: Any, requests: Any, error: BaseException) -> None:
        while not all(request.complete for request in requests):
            assert time.monotonic() < end
            time.sleep(0.001)
        cut(self, requests, error)

    with filled(tmp_path, backend) as store:
        with monkeypatch.context() as patch:
            patch.setattr(_queue.Queue, "_unblock", unblocked)
            patch.setattr(_queue.Queue, "cut", late)
            with pytest.raises(Cut):
                store.read("y")
        while store._transport.queue.reading.used:
            assert time.monotonic() < end
            time.sleep(0.001)
            assert not store._transport.queue.writing.used


def test_deadlines_are_numbers(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for call in (
        lambda due: store.hasten(["x"], deadline=due),
        lambda due: store.hasten_writes(deadline=due),
        lambda due: store.read("x", deadline=due),
        lambda due: store.write("x", np.ones(8), deadline=due),
    ):
        with pytest.raises(ValueError, match="deadline: expected a number, got NaN"):
            call(float("nan"))
        for wrong in ("soon", None):
            with pytest.raises(TypeError, match="deadline: expected a number, got"):
                call(wrong)
    store.read("x", deadline=10**400).result(30).release()  # as late as infinity
    store.close()
    for call in (lambda: store.hasten(["x"], deadline=1), lambda: store.hasten_writes(deadline=1)):
        with pytest.raises(offload.StoreError, match="closed"):
            call()


def test_what_does_not_fit_leaves_no_store_behind(tmp_path: Path) -> None:
    for options in ({"block": 1 << 50, "staging": None}, {"staging": 8 * PAGE}):
        with pytest.raises(offload.CapacityError, match="staging"):
            made(tmp_path, model={"a": 1}, **options)
    with made(tmp_path, model={"a": 2}) as store:
        assert store.names == ()


def test_a_store_that_is_there_knows_its_capacity(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="capacity: expected bytes for the new store"):
        TensorStore(tmp_path, backend="threads")
    filled(tmp_path).close()
    with TensorStore(tmp_path, backend="threads") as store:
        assert "2 tensors, commit 1" in repr(store)
        with store.read("y").result() as lease:
            assert lease.array[0] == 2
        with pytest.raises(offload.CapacityError, match="pass a capacity of at least"):
            store.reserve({"more": np.ones(8)})
    assert "closed" in repr(store)


def test_reads_beside_the_staging_memory_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = np.ones(MIB, np.uint8)
    with made(tmp_path, staging=4 * MIB) as store:
        store.reserve({f"t{n}": data for n in range(12)})
        for n in range(12):
            store.write(f"t{n}", data).result(30)
        leases = [store.read(f"t{n}").result(30) for n in range(3)]  # all there is for reads
        reads = [store.read(f"t{n}") for n in range(3, 12)]
        for n in range(3, 12):
            store.write(f"t{n}", data).result(30)
        assert store.statistics().overflow == 9 * MIB
        for lease in (*leases, *(read.result(30) for read in reads)):
            lease.release()
    assert sum("beside the staging memory" in r.getMessage() for r in caplog.records) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.write_many([1]), "arrays: expected a mapping from names, got list"),
        (lambda s: s.reserve(None), "tensors: expected a mapping from names, got NoneType"),
        (lambda s: s.write("x", np.ma.masked_equal(np.ones(8), 1)), "x: expected an array without"),
        (lambda s: s.reserve({"z": SimpleNamespace(shape=(2.5,), dtype="f4")}),
         "z: expected a shape of integers"),
        (lambda s: s.reserve({"z": SimpleNamespace(shape=(None,), dtype="f4")}),
         "z: expected a shape of integers"),
        (lambda s: s.commit(1, barrier=5), "barrier: expected a function"),
        (lambda s: TensorStore("a", 1, backend=5), "backend: expected a name of .* without"),
        (lambda s: TensorStore("a", 1, options=5), "options: expected a mapping"),
        (lambda s: TensorStore("a", 1, process=(0,)), "process: expected .number, count."),
    ],
)  # fmt: skip
def test_arguments_of_another_kind_are_named(tmp_path: Path, call: Any, message: str) -> None:
    with filled(tmp_path) as store:
        with pytest.raises(TypeError, match=message):
            call(store)
        with pytest.raises(ValueError, match=r"x: expected float64\[8\] as reserved, got list"):
            store.write("x", [[1, 2], [3]])
        store.commit({"step": 2})
