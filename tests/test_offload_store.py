"""The tensor store: what is read is what was written, in order, and committed at once."""

import gc
import json
import os
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tensorjax import offload
from tensorjax.offload import TensorStore
from tensorjax.offload._store.transfers import staging_queue

MIB = 1 << 20
DTYPES = (
    np.float32, np.float64, np.float16, np.complex64, np.int8, np.uint64, np.bool_,
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4,
)  # fmt: skip
BACKENDS = tuple(n for n in ("threads", "io_uring", "memory") if n in offload.backends())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def made(path: Path, backend: str = "threads", **options: Any) -> TensorStore:
    """A store of 64 MiB with a small staging pool."""
    options = {"capacity": 64 * MIB, "staging": 4 * MIB, "block": MIB // 4, **options}
    return TensorStore(path, backend=backend, **options)


def value(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(-4, 4, shape).astype(np.float32).astype(dtype)


def same(got: np.ndarray, expected: np.ndarray) -> bool:
    return got.dtype == expected.dtype and got.shape == expected.shape and (
        got.tobytes() == expected.tobytes()
    )  # fmt: skip


def read(store: TensorStore, name: str) -> np.ndarray:
    with store.read(name).result(30) as lease:
        return lease.array.copy()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (5, 0, 2), (7, 11), (300, 1000)], ids=str)
def test_what_is_read_is_what_was_written(
    folder: Path, backend: str, dtype: Any, shape: tuple[int, ...]
) -> None:
    array = value(shape, dtype)
    with made(folder, backend) as store:
        store.reserve({"layer/0/w": jax.ShapeDtypeStruct(shape, dtype)})
        store.write("layer/0/w", array).result(30)
        with store.read("layer/0/w").result(30) as lease:
            assert same(lease.array, array)
            assert not lease.array.flags.writeable
            assert not array.size or lease.array.ctypes.data % 4096 == 0
        store.commit({"step": 1})
        assert store.spec("layer/0/w") == jax.ShapeDtypeStruct(shape, dtype)
        assert same(read(store, "layer/0/w"), array)


def test_a_jax_array_and_a_strided_one_can_be_written(folder: Path) -> None:
    arrays = {
        "jax": jnp.arange(12, dtype=jnp.bfloat16).reshape(3, 4),
        "strided": np.arange(24.0).reshape(4, 6)[::2, ::3],
    }
    with made(folder) as store:
        store.reserve(arrays)
        store.write_many(arrays).result(30)
        with store.read_many(arrays).result(30) as leases:
            assert list(leases) == list(arrays)
            for name, array in arrays.items():
                assert same(leases[name].array, np.asarray(array))


def test_opening_gives_the_committed_state(folder: Path) -> None:
    with made(folder) as store:
        store.reserve({name: jnp.zeros(1000) for name in "abc"})
        for name in "ab":
            store.write(name, np.full(1000, 1.0))
        store.commit({"step": 1, "key": [1, 2]})
        store.write("a", np.full(1000, 2.0)).result(30)
        store.write("c", np.full(1000, 2.0)).result(30)
        assert read(store, "a")[0] == read(store, "c")[0] == 2
    with made(folder) as store:
        assert store.meta == {"step": 1, "key": [1, 2]}
        assert store.names == ("a", "b", "c")
        assert store.written == ("a", "b")
        assert read(store, "a")[0] == read(store, "b")[0] == 1
        with pytest.raises(offload.StoreError, match=r"never written.*'c'"):
            store.read("c")
        store.reserve({name: jnp.zeros(1000) for name in "abcd"})  # what is there stays there
        assert read(store, "a")[0] == 1
        assert store.commits == 1


def test_reads_and_writes_of_one_tensor_keep_their_order(folder: Path) -> None:
    """Whatever their deadlines say."""
    with made(folder) as store:
        store.reserve({"a": jnp.zeros(MIB // 16), "b": jnp.zeros(MIB // 16)})
        reads: list[tuple[int, Future]] = []
        for i in range(20):
            for name in "ab":
                store.write(name, np.full(MIB // 16, float(i)), deadline=100 - i)
            reads.append((i, store.read("a", deadline=50 + i)))
            if i % 7 == 6:
                store.commit(i)
        for i, future in reads:
            with future.result(30) as lease:
                assert np.all(lease.array == i)


def test_earlier_deadlines_go_first(folder: Path) -> None:
    backend, order = gated()
    with made(folder, backend, staging=16 * MIB) as store:
        store.reserve({str(i): jnp.zeros(MIB // 32) for i in range(9)})
        deadlines = [4, 1, 8, 3, 7, 2, 6, 5]
        first = store.write("8", np.zeros(MIB // 32))  # holds the only worker
        while not backend.file.held:
            time.sleep(0.001)
        futures = [
            store.write(str(i), np.zeros(MIB // 32), deadline=d) for i, d in enumerate(deadlines)
        ]
        backend.file.gate.set()
        for future in [first, *futures]:
            future.result(30)
        size = MIB // 32 * 8
        numbers = [offset // size for offset in order[1:]]
        assert [deadlines[n] for n in numbers] == sorted(deadlines)


def test_staging_memory_goes_to_the_earliest_deadline(folder: Path) -> None:
    backend, order = gated()
    block = MIB // 4
    with made(folder, backend, staging=4 * block, block=block) as store:  # one block for writes
        store.reserve({str(i): jnp.zeros(block // 8) for i in range(5)})
        threads = [threading.Thread(target=store.write, args=("0", np.zeros(block // 8)))]
        threads[0].start()
        while not backend.file.held:
            time.sleep(0.001)
        for i, deadline in enumerate([7.0, 5.0, 5.0, 3.0], 1):
            name, waiting = str(i), len(store._transport.queue._wanting)
            arguments = {"args": (name, np.zeros(block // 8)), "kwargs": {"deadline": deadline}}
            threads.append(threading.Thread(target=store.write, **arguments))
            threads[-1].start()
            while len(store._transport.queue._wanting) == waiting:
                time.sleep(0.001)
        backend.file.gate.set()
        for thread in threads:
            thread.join(30)
        store.commit()
        assert [offset // block for offset in order] == [0, 4, 2, 3, 1]
        assert store.statistics().staging_peak == block


def test_places_that_were_given_up_are_forgotten(folder: Path) -> None:
    """Other tensors get them, of other shapes."""
    with made(folder) as store:
        store.reserve({"a": jnp.zeros(10), "b": jnp.zeros(10)})
        store.write_many({"a": np.zeros(10), "b": np.zeros(10)})
        store.read_many(["a", "b"]).result(30).release()
        store.revert()
        store.forget()
        store.reserve({"a": jnp.zeros(20), "c": jnp.zeros(10)})
        store.write_many({"a": np.arange(20.0), "c": np.arange(10.0)})
        store.commit()
    with made(folder) as store, store.read_many(["a", "c"]).result(30) as found:
        np.testing.assert_array_equal(found["a"].array, np.arange(20.0))
        np.testing.assert_array_equal(found["c"].array, np.arange(10.0))


def test_a_write_that_waits_while_its_place_is_given_up_says_so(folder: Path) -> None:
    with made(folder) as store:
        store.reserve({"a": jnp.zeros(10)})
        errors: list[BaseException] = []

        def write() -> None:
            try:
                store.write("a", np.zeros(10))
            except offload.StoreError as error:
                errors.append(error)

        thread = threading.Thread(target=write)
        with store._transport.writer.paused():  # as `forget` does for a moment
            thread.start()
            while not store._transport.writer._turn._waiting:
                time.sleep(0.001)
            store.forget()
        thread.join(30)
        assert "by `forget`; wait for reads and writes" in str(errors[0])
        store.reserve({"b": jnp.zeros(10)})
        store.write("b", np.ones(10)).result(30)
        assert store.written == ("b",)


def test_writes_can_be_brought_forward(folder: Path) -> None:
    backend, order = gated()
    with made(folder, backend, staging=16 * MIB) as store:
        store.reserve({str(i): jnp.zeros(MIB // 32) for i in range(3)})
        futures = [store.write("2", np.zeros(MIB // 32))]  # holds the only worker
        while not backend.file.held:
            time.sleep(0.001)
        futures.append(store.write("0", np.zeros(MIB // 32), deadline=9))
        store.hasten_writes(deadline=2)
        store.hasten_writes(deadline=7)  # not back again
        futures.append(store.write("1", np.zeros(MIB // 32), deadline=5))
        backend.file.gate.set()
        for future in futures:
            future.result(30)
        size = MIB // 32 * 8
        assert [offset // size for offset in order] == [2, 0, 1]


def test_a_write_under_way_does_not_hold_the_array(folder: Path) -> None:
    """It has been copied: the memory of results is not to wait for the disk."""
    backend, _ = gated()
    with made(folder, backend) as store:
        arrays = {"a": np.zeros(3), "b": np.zeros(MIB // 16)}  # of one block, of two
        store.reserve(arrays)
        gone = [weakref.ref(array) for array in arrays.values()]
        future = store.write_many(arrays)
        arrays.clear()
        gc.collect()
        assert all(ref() is None for ref in gone)
        assert not future.done()
        backend.file.gate.set()
        future.result(30)


def gated() -> tuple[Any, list[int]]:
    """A backend of one worker that waits for a gate before each transfer, and the offsets."""
    from tensorjax.offload._store.backends import ThreadBackend
    from tensorjax.offload._store.backends.files import MemoryFile

    order: list[int] = []

    class Gated(MemoryFile):
        gate, held = threading.Event(), False

        def write(self, offset: int, memory: memoryview) -> None:
            self.held = True
            self.gate.wait(30)
            order.append(offset)
            super().write(offset, memory)

    return ThreadBackend(lambda _, n, __: Gated(n), workers=1, volatile=True), order


def test_small_tensors_move_together(folder: Path) -> None:
    arrays = {f"bias/{i}": value((100,), np.float32, i) for i in range(200)}
    with made(folder) as store:
        store.reserve(arrays)
        store.write_many(arrays).result(30)
        with store.read_many(arrays).result(30) as leases:
            assert all(same(leases[name].array, array) for name, array in arrays.items())
            assert all(lease.array.ctypes.data % 64 == 0 for lease in leases.values())
        statistics = store.statistics()
    assert statistics.writes.transfers == statistics.reads.transfers == 1
    assert statistics.writes.tensors == statistics.reads.tensors == 200


@pytest.mark.parametrize("sizes", [(4096, 8192, 65536, 4096), (4096, 4095, 0, 8192), (1, 2, 3)])
def test_neighbours_of_any_size_keep_their_bytes(folder: Path, sizes: tuple[int, ...]) -> None:
    """Whole pages, which leave no space between tensors, and others; in either slot, reopened."""
    rng = np.random.default_rng(len(sizes))
    specs = {f"t{i}": jax.ShapeDtypeStruct((n,), np.uint8) for i, n in enumerate(sizes)}
    with made(folder) as store:
        store.reserve(specs)
        for _ in range(2):
            arrays = {k: rng.integers(0, 256, s.shape, np.uint8) for k, s in specs.items()}
            store.write_many(dict(reversed(arrays.items()))).result(30)
            store.commit()
            assert all(same(read(store, name), array) for name, array in arrays.items())
        assert store.statistics().writes.transfers == 2
    with made(folder) as store:
        assert all(same(read(store, name), array) for name, array in arrays.items())


def test_statistics_count(folder: Path) -> None:
    with made(folder) as store:
        store.reserve({"a": jnp.zeros((MIB,), jnp.uint8)})
        for _ in range(3):
            store.write("a", np.zeros(MIB, np.uint8)).result(30)
        read(store, "a")
        store.commit()
        found = store.statistics()
    assert (found.writes.bytes, found.reads.bytes) == (3 * MIB, MIB)
    assert (found.writes.transfers, found.reads.transfers) == (12, 4)
    assert sum(found.writes.latency) == sum(found.writes.waiting) == 12
    assert 1 <= found.deepest <= 4
    assert found.depth == found.queued == 0
    assert 0 < found.reads.quantile(0.5) <= found.reads.quantile(1.0) < 30
    assert found.allocated == 2 * MIB
    assert found.commits == 1
    assert found.committing > 0
    assert found.backend == "threads"
    assert found.direct


def test_writers_wait_for_staging_and_readers_for_leases(folder: Path) -> None:
    """Twenty times what the pool holds, by four threads, with leases held for a while."""
    names = [str(i) for i in range(32)]
    with made(folder, staging=2 * MIB) as store:
        store.reserve({name: jnp.zeros(MIB // 16) for name in names})
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for turn in range(3):
                    mine = names[number::4]
                    for name in mine:
                        store.write(name, np.full(MIB // 16, float(turn + int(name))))
                    for name, future in [(name, store.read(name)) for name in mine]:
                        with future.result(60) as lease:
                            assert np.all(lease.array == turn + int(name))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not failures
        assert not any(thread.is_alive() for thread in threads)
        assert store.statistics().staging_peak <= store.statistics().staging <= 2 * MIB


def test_reads_without_memory_are_starved_until_a_lease_ends(folder: Path) -> None:
    size = MIB // 16
    with made(folder, staging=2 * MIB) as store:
        store.reserve({str(i): jnp.zeros(size) for i in range(4)})
        for i in range(4):
            store.write(str(i), np.full(size, float(i))).result(30)
        leases = [store.read(str(i)).result(30) for i in range(3)]
        assert not store.starved()  # nobody waits
        late = store.read("3")
        assert store.starved()
        leases.pop().release()
        with late.result(30) as lease:
            assert lease.array[0] == 3
        assert not store.starved()
        for lease in leases:
            lease.release()


def test_a_write_behind_a_read_without_memory_is_no_deadlock(folder: Path) -> None:
    """One thread holds all leases, queues a read of `a`, and then fills staging with writes."""
    size = MIB // 16
    with made(folder, staging=2 * MIB) as store:
        store.reserve({str(i): jnp.zeros(size) for i in range(8)})
        for i in range(8):
            store.write(str(i), np.full(size, float(i)))
        held = [store.read(str(i)) for i in range(3)]
        leases = [future.result(30) for future in held]
        late = store.read("7")
        for turn in range(8):  # to the slot that the read is of
            store.write("7", np.full(size, 10.0 + turn))
        with late.result(30) as lease:
            assert np.all(lease.array == 7)
        assert store.statistics().overflow == size * 8
        for lease in leases:
            lease.release()
        assert read(store, "7")[0] == 17


def test_a_lease_ends_once(folder: Path) -> None:
    with made(folder) as store:
        store.reserve({"a": jnp.zeros(10)})
        store.write("a", np.arange(10.0))
        lease = store.read("a").result(30)
        lease.release()
        lease.release()
        with pytest.raises(ValueError, match="a: the lease was released"):
            _ = lease.array


def drop(leases: list) -> None:
    """Lets go of leases, and waits until the thread that made them has done so too."""
    leases.clear()
    time.sleep(0.3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_dropped_lease_is_found_and_told(folder: Path, backend: str) -> None:
    with made(folder, backend, staging=2 * MIB) as store:
        store.reserve({"a": jnp.zeros(MIB // 8)})
        store.write("a", np.ones(MIB // 8))
        leases = [store.read("a").result(30)]
        with pytest.warns(ResourceWarning, match="a: a lease was dropped"):
            drop(leases)
        assert read(store, "a")[0] == 1


@pytest.mark.filterwarnings("ignore:a.. a lease was dropped")
@pytest.mark.parametrize("backend", BACKENDS)
def test_reads_whose_results_are_dropped_keep_others_waiting_for_no_tick(
    folder: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_queue, "_TICK", 600.0)
    with made(folder, backend, staging=2 * MIB) as store:
        store.reserve({f"a{i}": jnp.zeros(MIB // 8) for i in range(3)})
        for i in range(3):
            store.write(f"a{i}", np.full(MIB // 8, float(i)))
        for i in range(30):
            store.read(f"a{i % 3}")
        with store.read("a2").result(60) as lease:
            assert lease.array[0] == 2
    gc.collect()


def test_an_array_outlives_the_store(folder: Path) -> None:
    store = made(folder)
    store.reserve({"a": jnp.zeros(10)})
    store.write("a", np.arange(10.0))
    lease = store.read("a").result(30)
    array = lease.array
    store.close()
    store.close()
    assert np.all(array == np.arange(10.0))
    lease.release()
    for call in (lambda: store.write("a", np.zeros(10)), lambda: store.read("a"), store.commit):
        with pytest.raises(offload.StoreError, match="closed"):
            call()


def test_nothing_is_left_behind(folder: Path) -> None:
    def count() -> tuple[int, int]:
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    before = count()
    for _ in range(3):
        with made(folder) as store:
            store.reserve({"a": jnp.zeros(10)})
            store.write("a", np.zeros(10))
    dropped = made(folder)
    del dropped
    end = time.monotonic() + 30
    while count() != before and time.monotonic() < end:
        time.sleep(0.01)
    assert count() == before


def test_a_random_program_agrees_with_a_dict(folder: Path) -> None:
    """Writes, reads, commits, reversions and reopenings against a model in memory."""
    rng = np.random.default_rng(5)
    shapes = {f"t{i}": (int(n),) for i, n in enumerate(rng.integers(0, 200_000, 12))}
    shapes |= {f"s{i}": (int(n),) for i, n in enumerate(rng.integers(1, 50, 12))}
    committed: dict[str, int] = {}
    newest: dict[str, int] = {}
    store = made(folder, capacity=256 * MIB)
    store.reserve({name: jax.ShapeDtypeStruct(s, np.float32) for name, s in shapes.items()})
    for step in range(400):
        names = [str(n) for n in rng.choice(list(shapes), rng.integers(1, 5), replace=False)]
        match rng.choice(
            ["write", "read", "commit", "revert", "reopen"], p=[0.57, 0.3, 0.07, 0.03, 0.03]
        ):
            case "write":
                store.write_many(
                    {n: np.full(shapes[n], step, np.float32) for n in names},
                    deadline=float(rng.random()),
                )
                newest |= dict.fromkeys(names, step)
            case "read":
                names = [n for n in names if n in newest]
                with store.read_many(names, deadline=float(rng.random())).result(30) as leases:
                    assert all(np.all(leases[n].array == newest[n]) for n in names)
            case "commit":
                store.commit({"newest": newest})
                committed = dict(newest)
            case "revert":
                store.revert()
                newest = dict(committed)
            case "reopen":
                store.close()
                store = made(folder, capacity=256 * MIB)
                assert (store.meta or {"newest": {}})["newest"] == committed
                newest = dict(committed)
    store.close()


def test_stores_of_several_processes_share_a_folder(folder: Path) -> None:
    stores = [made(folder, process=(i, 2)) for i in range(2)]
    for i, store in enumerate(stores):
        store.reserve({"shard": jnp.zeros(10)})
        store.write("shard", np.full(10, float(i)))
        store.commit()
    for i, store in enumerate(stores):
        assert read(store, "shard")[0] == i
        store.close()
    assert len(list(folder.glob("data-*"))) == 2
    with pytest.raises(offload.MismatchError, match=r"process: .* 2 processes, asked for 1"):
        made(folder)


def test_meta_is_what_json_gives_back(folder: Path) -> None:
    with made(folder) as store:
        store.commit({"step": 3, "loss": 0.1, "key": (1, 2)})
        assert store.meta == {"step": 3, "loss": 0.1, "key": [1, 2]}
        for bad in (np.zeros(3), float("nan")):
            with pytest.raises(TypeError, match="meta: expected what JSON can hold"):
                store.commit(bad)
        assert json.dumps(store.meta)


class Cut(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("reached", [0, 1, 2], ids=["none", "one", "all"])
def test_processes_commit_together_or_not_at_all(folder: Path, reached: int) -> None:
    """Cut off when so many of two processes have gone on to the new state."""
    stores = [made(folder, process=(i, 2)) for i in range(2)]
    for i, store in enumerate(stores):
        store.reserve({"shard": jnp.zeros(10)})
        store.write("shard", np.full(10, float(i)))
        store.commit(1, barrier=lambda: None)
        store.write("shard", np.full(10, 10.0 + i))

    def cut() -> None:
        raise Cut

    for number in (1, 0):  # all prepare before the first goes on, as a barrier has it
        if number < reached:
            stores[number].commit(2, barrier=lambda: None)
            continue
        with pytest.raises(Cut):
            stores[number].commit(2, barrier=cut)
        with pytest.raises(offload.StoreError, match="was cut off"):
            stores[number].write("shard", np.zeros(10))
    for store in stores:
        store.close()
    for i in range(2):
        with made(folder, process=(i, 2)) as store:
            assert store.meta == (2 if reached else 1)
            assert read(store, "shard")[0] == (10.0 + i if reached else i)
    assert not list(folder.glob("prepared-*"))


def test_the_pool_grows_with_the_tensors(folder: Path) -> None:
    """Reads and leases of before stay good."""
    large = 12 * MIB  # of float64, so that four of them do not fit 256 MiB
    with TensorStore(folder, 512 * MIB, backend="memory", block=MIB) as store:
        store.reserve({"a": jnp.zeros(1000)})
        store.write("a", np.arange(1000.0))
        lease = store.read("a").result(30)
        before = store.statistics()
        store.reserve({"b": jax.ShapeDtypeStruct((large,), np.float64)})
        assert store.statistics().staging > before.staging
        assert store.statistics().writes == before.writes
        store.write("b", np.ones(large)).result(30)
        assert read(store, "b").sum() == large
        assert np.all(lease.array == np.arange(1000.0))
        lease.release()


@pytest.mark.parametrize("backend", BACKENDS)
def test_leases_that_nobody_releases_are_told_of(
    folder: Path, backend: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tensorjax.offload._store.transfers.staging_queue._PATIENCE", 0.5)
    with made(folder, backend, staging=2 * MIB) as store:
        store.reserve({"a": jnp.zeros(MIB // 8), "b": jnp.zeros(MIB // 8)})
        for name in "ab":
            store.write(name, np.ones(MIB // 8)).result(30)
        lease, late = store.read("a").result(30), store.read("b")
        end = time.monotonic() + 30
        while not caplog.records and time.monotonic() < end:
            time.sleep(0.05)
        assert "1048576 of 1572864 bytes are held by leases" in caplog.text
        lease.release()
        late.result(30).release()


def test_a_queue_of_copies_only_is_idle(folder: Path) -> None:
    """Transfers that were brought forward leave copies behind; closing must not wait for them."""
    with made(folder, "auto", staging=16 * MIB) as store:
        store.reserve({str(i): jnp.zeros(MIB // 32) for i in range(32)})
        futures = [store.write(str(i), np.zeros(MIB // 32), deadline=1000.0) for i in range(32)]
        for n in range(50):
            store.hasten_writes(deadline=999.0 - n)
        store.commit()
        assert all(future.done() for future in futures)


def test_a_store_takes_what_capacity_says(folder: Path) -> None:
    """Not a byte less; "b" and "c" share a block."""
    specs = {
        "a": jax.ShapeDtypeStruct((1025,), jnp.float32),
        "b": jax.ShapeDtypeStruct((3,), jnp.bfloat16),
        "empty": jax.ShapeDtypeStruct((0, 7), jnp.float32),
        "c": jax.ShapeDtypeStruct((), jnp.int8),
    }
    capacity = offload.capacity(specs)
    assert capacity == 2 * (2 + 1) * 4096
    with TensorStore(folder, capacity, backend="memory") as store:
        store.reserve({"a": specs["a"]})
        store.reserve(specs)
    message = f"at least {capacity}"
    with (
        TensorStore(folder, capacity - 1, backend="memory") as store,
        pytest.raises(offload.CapacityError, match=message),
    ):
        store.reserve(specs)
    assert offload.capacity({}) == 1
