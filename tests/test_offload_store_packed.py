"""Tensors that share a block of the disk: each is written, read and verified by itself."""

import contextlib
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tensorjax import offload
from tensorjax.offload import TensorStore
from tensorjax.offload._store.disk.checksums import digest
from tensorjax.offload._store.transfers import queue

BACKENDS = tuple(n for n in ("threads", "io_uring", "memory") if n in offload.backends())
KIB = 1 << 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def made(path: Path, backend: str = "threads", **options: Any) -> TensorStore:
    options = {"capacity": 1 << 22, "staging": 1 << 20, "block": 64 * KIB, **options}
    return TensorStore(path, backend=backend, **options)


def committed(path: Path, backend: str = "threads", count: int = 3) -> TensorStore:
    """A store of small tensors, each of its number, as a fresh process finds it."""
    store = made(path, backend)
    arrays = {f"t{i}": np.full(8, float(i)) for i in range(count)}
    store.reserve(arrays)
    store.write_many(arrays)
    store.commit({"step": 1})
    if backend != "memory":
        store.close()
        store = made(path, backend)
    return store


def value(store: TensorStore, name: str) -> float:
    with store.read(name).result(30) as lease:
        assert np.all(lease.array == lease.array.flat[0])
        return float(lease.array.flat[0])


def test_a_thousand_scales_take_a_few_blocks(folder: Path) -> None:
    """64 bytes each and not two blocks; written and read in one transfer; large ones between."""
    scales = {f"scale {i}": np.full(16, i, np.float32) for i in range(1000)}
    large = {f"large {i}": np.full(5 * KIB, i, np.float32) for i in range(4)}
    arrays = dict(sorted((scales | large).items(), key=lambda item: item[0][-1]))
    with made(folder, block=1 << 20, staging=1 << 22) as store:
        store.reserve(arrays)
        assert store.statistics().allocated == 2 * (64 * KIB + 4 * 20 * KIB)
        store.write_many(scales).result(30)
        store.write_many(large)
        store.commit()
        with store.read_many(arrays).result(30) as leases:
            assert all(np.array_equal(leases[k].array, array) for k, array in arrays.items())
        assert store.statistics().reads.transfers == 1
    with made(folder, staging=1 << 22) as store:
        assert store.names == tuple(arrays)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_is_written_and_the_others_stay(folder: Path, backend: str) -> None:
    """In a transaction, after it, after a reversion, and reopened."""
    with committed(folder, backend) as store:
        store.write("t1", np.full(8, 7.0))
        assert [value(store, f"t{i}") for i in range(3)] == [0, 7, 2]
        store.revert()
        assert [value(store, f"t{i}") for i in range(3)] == [0, 1, 2]
        store.write("t2", np.full(8, 8.0))
        store.write("t0", np.full(8, 9.0))
        store.commit()
        store.write("t0", np.full(8, 5.0))
        assert [value(store, f"t{i}") for i in range(3)] == [5, 1, 8]
    if backend != "memory":
        with made(folder, backend) as store:
            assert [value(store, f"t{i}") for i in range(3)] == [9, 1, 8]


def test_one_that_was_never_written_cannot_be_read(folder: Path) -> None:
    with made(folder) as store:
        store.reserve({"a": np.zeros(4), "b": np.zeros(4)})
        store.write("a", np.ones(4))
        store.commit()
        assert store.written == ("a",)
        with pytest.raises(offload.StoreError, match=r"never written.*'b'"):
            store.read("b").result(30)
    with made(folder) as store:
        assert store.written == ("a",)
        store.write("b", np.zeros(4))
        assert (value(store, "a"), value(store, "b")) == (1, 0)


def flip(folder: Path, place: int) -> None:
    with (folder / "data-00000-of-00001").open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))


def test_a_flipped_byte_names_its_tensor_and_no_other(folder: Path) -> None:
    """Also after a neighbour was written, with which it moved to the other slot."""
    committed(folder).close()
    flip(folder, 64 + 5)
    with made(folder) as store:
        for _ in range(2):
            with pytest.raises(offload.CorruptError, match="t1: bytes 0 to 64 are not what was"):
                store.read("t1").result(30)
            assert (value(store, "t0"), value(store, "t2")) == (0, 2)
            store.write("t0", np.zeros(8))
            store.commit()
        store.write("t1", np.full(8, 6.0))  # which mends it
        assert value(store, "t1") == 6
    flip(folder, 4096 - 1)  # nobody's, if slot 0 is the committed one
    flip(folder, 8192 - 1)
    with made(folder) as store:
        assert (value(store, "t0"), value(store, "t2")) == (0, 2)


def test_a_write_that_fails_takes_no_neighbour_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in memory is read from there, and the next write of any of them mends all."""

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with committed(folder) as store:
        store.write("t0", np.full(8, 3.0)).result(30)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", full)
            failed = store.write("t1", np.full(8, 4.0))
            with pytest.raises(offload.StoreError, match=r"writing .*'t1'.* failed: OSError"):
                failed.result(30)
        assert (value(store, "t0"), value(store, "t2")) == (3, 2)
        with pytest.raises(offload.StoreError, match=r"could not be written: .*'t1'"):
            store.commit()
        store.write("t2", np.full(8, 5.0))
        store.commit()
        assert [value(store, f"t{i}") for i in range(3)] == [3, 4, 5]
    with made(folder) as store:
        assert [value(store, f"t{i}") for i in range(3)] == [3, 4, 5]


def test_only_neighbours_that_move_along_are_read(folder: Path) -> None:
    """Once after opening, together, however many blocks they take; none where all are written."""
    arrays = {f"t{i}": np.full(8, float(i)) for i in range(2000)}  # 32 blocks
    with made(folder) as store:
        store.reserve(arrays)
        store.write_many(arrays)
        store.commit()
    with made(folder) as store:
        store.write_many(arrays)
        assert store.statistics().reads.transfers == 0
    some = {name: -array for i, (name, array) in enumerate(arrays.items()) if i % 3}
    with made(folder) as store:
        for _ in range(2):
            store.write_many(some)
            store.commit()
        assert store.statistics().reads.transfers <= 2
        with store.read_many(arrays).result(30) as leases:
            for name, array in (arrays | some).items():
                assert np.array_equal(leases[name].array, array)


def test_leases_that_fill_staging_do_not_stop_a_write(folder: Path) -> None:
    """Which has to read the neighbours first: not into the memory that its caller holds."""
    with made(folder) as store:
        large = {"large": np.zeros(768 * KIB, np.uint8)}
        store.reserve({"a": np.zeros(4), "b": np.zeros(4)} | large)
        store.write_many({"a": np.ones(4), "b": np.ones(4)} | large)
        store.commit()
    with made(folder) as store:
        with store.read("large").result(30):
            waits = store.read("a")
            store.write("b", np.full(4, 2.0)).result(30)
            assert not waits.done()
        waits.result(30).release()
        assert (value(store, "a"), value(store, "b")) == (1, 2)


def test_writers_of_one_block_do_not_undo_each_other(folder: Path) -> None:
    """Several threads, each with a tensor of its own in the same block."""

    def work(store: TensorStore, name: str) -> list[float]:
        found = []
        for i in range(50):
            store.write(name, np.full(8, float(i)))
            found.append(value(store, name))
        return found

    with committed(folder) as store, ThreadPoolExecutor(3) as pool:
        tasks = [pool.submit(work, store, f"t{i}") for i in range(3)]
        assert all(task.result(60) == [float(i) for i in range(50)] for task in tasks)
        store.commit()
    with made(folder) as store:
        assert [value(store, f"t{i}") for i in range(3)] == [49] * 3


def test_a_write_cut_off_while_it_looks_at_the_neighbours_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the beginning or in the middle; no thread waits for what was cut off."""

    class Cut(BaseException):
        pass

    def cut(*_: Any) -> None:
        raise Cut

    for place in ("enter", "_attach_beside", "_begin", "until"):
        with committed(folder / place) as store:
            with monkeypatch.context() as patch:
                patch.setattr(queue.Queue, place, cut)
                with pytest.raises(Cut):
                    store.write("t1", np.full(8, 7.0))
            assert [value(store, f"t{i}") for i in range(3)] == [0, 1, 2]
            store.write("t1", np.full(8, 8.0))
            assert [value(store, f"t{i}") for i in range(3)] == [0, 8, 2]
            store.commit()


def older(text: bytes) -> bytes:
    """The index as the release before wrote it."""
    body = text.partition(b"\n")[2]
    return f"tensorjax-store 1 {digest(body)}\n".encode() + body


def test_a_store_of_the_format_before_is_read_and_goes_on(folder: Path) -> None:
    """There each tensor had blocks of its own."""
    with made(folder) as store:
        for i in range(3):
            store.reserve({f"t{i}": jax.ShapeDtypeStruct((8,), float)})
            store.write(f"t{i}", np.full(8, float(i)))
        store.commit()
    path = folder / "index-00000-of-00001"
    path.write_bytes(older(path.read_bytes()))
    with made(folder) as store:
        store.write("t1", np.full(8, 7.0))
        assert store.statistics().reads.transfers == 0
        store.commit()
    assert path.read_bytes().startswith(b"tensorjax-store 1 ")
    with made(folder) as store:
        assert [value(store, f"t{i}") for i in range(3)] == [0, 7, 2]
        store.reserve({"a": np.zeros(3), "b": np.zeros(3)})
    assert path.read_bytes().startswith(b"tensorjax-store 2 ")
    with made(folder) as store:
        assert [value(store, f"t{i}") for i in range(3)] == [0, 7, 2]


@pytest.mark.parametrize("like", [np.float16, np.bool_, np.int8, np.complex64, "bfloat16"])
def test_every_dtype_finds_its_alignment(folder: Path, like: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        f"{n}": rng.integers(0, 2, n).astype(jax.numpy.dtype(like)) for n in (1, 3, 7, 33, 0, 65)
    }
    with made(folder) as store:
        store.reserve(arrays)
        store.write_many(arrays)
        store.commit()
    with made(folder) as store, store.read_many(arrays).result(30) as leases:
        for name, array in arrays.items():
            assert leases[name].array.tobytes() == array.tobytes()
            assert leases[name].array.dtype == array.dtype


@contextlib.contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, name: str, gate: threading.Event | None = None) -> Any:
    """A disk that fails to read or to write."""

    def fail(*_: Any) -> int:
        if gate is not None:
            assert gate.wait(30)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        yield


def test_what_the_disk_changed_is_found_in_memory_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a neighbour's write has failed all are read from memory, and verified there."""
    committed(folder).close()
    flip(folder, 64 + 5)
    with made(folder) as store:
        with failing(monkeypatch, "pwritev"):
            assert store.write("t0", np.full(8, 7.0)).exception(30)
        with pytest.raises(offload.CorruptError, match="t1: bytes 0 to 64 are not what was"):
            store.read("t1").result(30)
        with pytest.raises(offload.CorruptError, match="t1: bytes 0 to 64 are not what was"):
            store.read_many(["t0", "t1"]).result(30)
        with store.read("t2").result(30) as lease:
            assert lease.array[0] == 2
            assert lease.array.ctypes.data % 64 == 0


@pytest.mark.parametrize("then", ["revert", "write"])
def test_a_read_gives_what_was_there_when_it_was_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """From memory, after a write that failed, and while it waits for other tensors."""
    large = {"large": np.zeros(512 * KIB, np.uint8)}
    with made(folder) as store:
        store.reserve({"a": np.zeros(4), "b": np.zeros(4)} | large)
        store.write_many(large)
        store.commit()
        with failing(monkeypatch, "pwritev"):
            assert store.write("a", np.ones(4)).exception(30)
        with store.read("large").result(30):  # most of the staging memory
            waits = store.read_many(["a", "large"])
            if then == "revert":
                store.revert()
            else:
                store.write("a", np.full(4, 2.0)).result(30)
            assert not waits.done()
        with waits.result(30) as leases:
            assert np.all(leases["a"].array == 1)
            assert np.all(leases["large"].array == 0)


def test_errors_name_what_was_to_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none of the forty others in the same block; also after a second one failed."""
    with committed(folder, count=40) as store:
        with failing(monkeypatch, "pwritev"):
            error = store.write("t30", np.ones(8)).exception(30)
            assert "writing 't30' failed: OSError" in str(error)
            error = store.write("t31", np.ones(8)).exception(30)
        with pytest.raises(
            offload.StoreError, match=r"not be written: 't30', 't31'; comm"
        ) as found:
            store.commit()
        assert sorted(found.value.tensors) == ["t30", "t31"]
        store.write("t2", np.ones(8))  # which takes them with it
        store.commit()
        assert [value(store, f"t{i}") for i in (2, 3, 30, 31)] == [1, 3, 1, 1]


def test_a_read_under_way_does_not_fail_with_its_neighbours_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    with committed(folder) as store:
        store.write("t1", np.full(8, 5.0)).result(30)
        with failing(monkeypatch, "pwritev", gate):
            written, read = store.write("t0", np.ones(8)), store.read_many(["t1", "t2"])
            gate.set()
            assert written.exception(30)
            with read.result(30) as leases:
                assert [leases[name].array[0] for name in ("t1", "t2")] == [5, 2]
        assert not store._transport.queue.reading.used


def test_a_block_that_cannot_be_read_can_be_written_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(folder).close()
    with made(folder) as store:
        with (
            failing(monkeypatch, "preadv"),
            pytest.raises(offload.StoreError, match=r"reading .* failed.*write all") as found,
        ):
            store.write("t1", np.ones(8))
        assert found.value.tensors == ("t0", "t1", "t2")
        assert [value(store, f"t{i}") for i in range(3)] == [0, 1, 2]
        with failing(monkeypatch, "preadv"):
            store.write_many({f"t{i}": np.full(8, 3.0) for i in range(3)}).result(30)
        assert [value(store, f"t{i}") for i in range(3)] == [3, 3, 3]


def test_a_store_of_the_format_before_opens_with_the_capacity_of_now(folder: Path) -> None:
    """It has taken more for small tensors than they would take now."""
    specs = {f"t{i}": jax.ShapeDtypeStruct((8,), float) for i in range(3)}
    with made(folder) as store:
        for name, spec in specs.items():
            store.reserve({name: spec})
            store.write(name, np.ones(8))
        store.commit()
    now = offload.capacity(specs)
    with pytest.raises(offload.CapacityError, match="takes 24576 bytes already, got 8192"):
        made(folder, capacity=now)
    path = folder / "index-00000-of-00001"
    path.write_bytes(older(path.read_bytes()))
    for _ in range(2):  # also when it was written to
        with made(folder, capacity=now) as store:
            assert value(store, "t2") == 1
            store.write("t2", np.ones(8))
            store.commit()
