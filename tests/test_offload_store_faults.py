"""The tensor store when something goes wrong: disks, files, kernels, other processes, callers."""

import contextlib
import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import offload
from tensorjax.offload import TensorStore
from tensorjax.offload._store.backends import uring
from tensorjax.offload._store.disk import folder as _folder
from tensorjax.offload._store.disk import index as _index

MIB = 1 << 20
SIZE = MIB // 8  # of float64, so 1 MiB
HERE = [name for name in ("threads", "io_uring") if name in offload.backends()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def made(path: Path, backend: Any = "threads", **options: Any) -> TensorStore:
    options = {"capacity": 64 * MIB, "staging": 8 * MIB, "block": MIB // 4, **options}
    return TensorStore(path, backend=backend, **options)


def committed(path: Path, backend: str = "threads", names: str = "abc") -> None:
    """A store whose tensors, of 1 MiB, hold their number."""
    with made(path, backend) as store:
        store.reserve({name: jnp.zeros(SIZE) for name in names})
        for i, name in enumerate(names):
            store.write(name, np.full(SIZE, float(i)))
        store.commit({"step": 1})


def holds(store: TensorStore, name: str, expected: float) -> bool:
    with store.read(name).result(30) as lease:
        return bool(np.all(lease.array == expected))


def data(path: Path) -> Path:
    return path / "data-00000-of-00001"


def index(path: Path) -> Path:
    return path / "index-00000-of-00001"


def indices(path: Path) -> list[Path]:
    """The index, its copy, and the one of the commit before."""
    found = [index(path), *(path / f"{what}-00000-of-00001" for what in ("copy", "before"))]
    return [p for p in found if p.exists()]


def lose(path: Path) -> None:
    for p in indices(path):
        p.unlink()


# Files that changed on the disk.


@pytest.mark.parametrize("backend", HERE)
def test_a_flipped_byte_is_found_and_the_tensor_named(folder: Path, backend: str) -> None:
    committed(folder, backend)
    with data(folder).open("r+b") as file:
        file.seek(MIB + 300_000)  # in the first slot of b
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))
    with made(folder, backend) as store:
        assert holds(store, "a", 0)
        with pytest.raises(offload.CorruptError, match=r"b: bytes 262144 to 524288 are not what"):
            store.read("b").result(30)
        with pytest.raises(offload.CorruptError, match="b: bytes"):
            store.read_many("abc").result(30)
        assert holds(store, "c", 2)
        assert store.statistics().reads.failures == 2


def test_a_cut_file_is_found_when_the_store_is_opened(folder: Path) -> None:
    committed(folder)
    os.truncate(data(folder), 3 * MIB - 4096)
    with pytest.raises(offload.CorruptError, match=r"the file has 3141632 bytes.*lost: 'c'"):
        made(folder)
    data(folder).unlink()
    with pytest.raises(offload.CorruptError, match="lost: 'a', 'b', 'c'"):
        made(folder)


def test_a_missing_file_is_not_called_a_cut_one(folder: Path) -> None:
    committed(folder)
    data(folder).unlink()
    with pytest.raises(offload.CorruptError, match="the file is missing, and these") as found:
        made(folder)
    assert found.value.tensors == ("a", "b", "c")
    assert not data(folder).exists()


def test_a_file_cut_in_the_padding_has_lost_nothing(folder: Path) -> None:
    """And one byte before it, the last tensor only; all names are told, not the first five."""
    arrays = {f"t{i}": np.full(5000, i, np.uint8) for i in range(8)}
    with made(folder) as store:
        store.reserve(arrays)
        store.write_many(arrays)
        store.commit()
    end = 7 * 8192 + 5000  # of the first slot, which is the committed one
    os.truncate(data(folder), end)
    with (
        pytest.warns(offload.StoreWarning, match="all that was committed is there"),
        made(folder) as store,
        store.read("t7").result(30) as lease,
    ):
        assert np.all(lease.array == 7)
    os.truncate(data(folder), 8192)
    with pytest.raises(offload.CorruptError, match="'t5' and 2 more") as found:
        made(folder)
    assert found.value.tensors == tuple(arrays)[1:]


def test_the_version_is_part_of_the_checksum(folder: Path) -> None:
    committed(folder)
    for path in indices(folder):
        path.write_bytes(path.read_bytes().replace(b"store 2 ", b"store 1 ", 1))
    with pytest.raises(offload.CorruptError, match="checksum of the index is wrong"):
        made(folder)


@pytest.mark.parametrize("backend", HERE)
def test_a_file_cut_behind_what_was_committed_gets_its_place_again(
    folder: Path, backend: str
) -> None:
    """And it is said: the second slots were there no more."""
    committed(folder)
    os.truncate(data(folder), 3 * MIB)
    with pytest.warns(offload.StoreWarning, match="3145728 bytes, expected 6291456: it was cut"):
        store = made(folder, backend)
    with store:
        assert data(folder).stat().st_size == 6 * MIB
        assert holds(store, "c", 2)
        store.write("c", np.full(SIZE, 5.0))
        store.commit()
    with made(folder, backend) as store:
        assert holds(store, "c", 5)


def test_a_store_of_which_only_the_names_are_left_is_not_a_new_one(folder: Path) -> None:
    committed(folder)
    lose(folder)
    data(folder).unlink()
    with pytest.raises(offload.CorruptError, match=r"gone too, and with it the tensors 'a', 'b'"):
        made(folder)


@pytest.mark.parametrize("backend", HERE)
def test_a_file_cut_while_open_is_found_by_the_read(folder: Path, backend: str) -> None:
    committed(folder)
    with made(folder, backend) as store:
        os.truncate(data(folder), 2 * MIB + 8192)
        with pytest.raises(offload.CorruptError, match=r"reading 'c' failed.* ends at byte"):
            store.read("c").result(30)
        assert holds(store, "b", 1)


def test_a_lost_index_names_the_tensors(folder: Path) -> None:
    committed(folder)
    lose(folder)
    with pytest.raises(offload.CorruptError, match=r"the index is lost.*'a', 'b', 'c'"):
        made(folder)
    (folder / "names-00000-of-00001").unlink()
    with pytest.raises(offload.CorruptError, match=r"the index is lost.*cannot be read"):
        made(folder)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda b: b[:-20], offload.CorruptError, r"index is wrong.*'a', 'b', 'c'"),
        (lambda b: b.replace(b'"block":', b'"blocc":'), offload.CorruptError, "checksum of the"),
        (lambda b: b"hello", offload.CorruptError, "expected an index of a tensorjax store"),
        (
            lambda b: b.replace(b"store 2", b"store 7"),
            offload.MismatchError,
            r"version 1 or 2, got 7.*'a', 'b",
        ),
    ],
)
def test_a_changed_index_is_refused(
    folder: Path, change: Callable[[bytes], bytes], error: type, message: str
) -> None:
    committed(folder)
    for path in indices(folder):
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(error, match=message):
        made(folder)


def spoiled(path: Path, rng: np.random.Generator) -> None:
    """A flipped bit, a cut, foreign bytes, or no file at all."""
    content = bytearray(path.read_bytes())
    match rng.integers(4):
        case 0:
            bit = int(rng.integers(8 * len(content)))
            content[bit // 8] ^= 1 << bit % 8
        case 1:
            content = content[: int(rng.integers(len(content)))]
        case 2:
            content = bytearray(rng.bytes(int(rng.integers(1, 200))))
        case 3:
            path.unlink()
            return
    path.write_bytes(content)


def test_an_index_that_is_spoiled_costs_nothing(folder: Path, rng: np.random.Generator) -> None:
    """Its copy stands in, says so, and is whole again afterwards; which of both is the same."""
    committed(folder)
    for trial in range(24):
        spoiled(indices(folder)[trial % 2], rng)
        before = pytest.warns(offload.StoreWarning, match="going on from its copy")
        with contextlib.nullcontext() if trial % 2 else before:
            store = made(folder)
        with store:
            assert all(holds(store, name, k) for k, name in enumerate("abc"))
            store.write("b", np.full(SIZE, 1.0)).result(30)
            if trial % 3 == 0:
                store.commit({"trial": trial})
        assert len({p.read_bytes() for p in indices(folder)[:2]}) == 1


def test_without_index_and_copy_the_commit_before_holds(
    folder: Path, rng: np.random.Generator
) -> None:
    with made(folder) as store:
        store.reserve({name: jnp.zeros(SIZE) for name in "abc"})
        for step in range(3):
            for name in "abc"[: 3 - step]:
                store.write(name, np.full(SIZE, float(step))).result(30)
            store.commit({"step": step})
    for path in indices(folder)[:2]:
        spoiled(path, rng)
    said = pytest.warns(offload.StoreWarning, match="the commit before, which is of commit 2")
    with said:
        store = made(folder)
    with store:
        assert store.meta == {"step": 1}
        assert all(holds(store, name, value) for name, value in zip("abc", (1, 1, 0), strict=True))


def test_of_several_processes_none_goes_back_by_itself(folder: Path) -> None:
    with made(folder, process=(0, 2)) as store:
        store.reserve({"a": jnp.zeros(SIZE)})
        store.commit()
    for what in ("index", "copy"):
        (folder / f"{what}-00000-of-00002").write_bytes(b"nothing")
    with pytest.raises(offload.CorruptError, match="expected an index of a tensorjax store"):
        made(folder, process=(0, 2))


@pytest.mark.parametrize("content", [None, b'["a", "x", "c"]', b"[", b"\xff"])
def test_a_list_of_names_that_was_lost_or_changed_is_made_again(
    folder: Path, content: bytes | None
) -> None:
    committed(folder)
    names = folder / "names-00000-of-00001"
    names.unlink()
    if content is not None:
        names.write_bytes(content)
    made(folder).close()
    lose(folder)
    with pytest.raises(offload.CorruptError, match=r"index is lost.*'a', 'b', 'c'"):
        made(folder)
    with pytest.raises(offload.MismatchError, match="written by 1 processes, asked for 2"):
        made(folder, process=(0, 2))


def test_a_crash_between_temporary_index_and_rename_leaves_the_old_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(folder)

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with made(folder) as store:
        store.write("a", np.full(SIZE, 9.0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", crash)
            with pytest.raises(KeyboardInterrupt):
                store.commit({"step": 2})
        assert store.meta == {"step": 1}
    assert (folder / "index-00000-of-00001.new").exists()
    with made(folder) as store:
        assert store.meta == {"step": 1}
        assert holds(store, "a", 0)


# Disks that are full, and transfers that stop.


def test_a_full_disk_fails_at_reservation_with_the_numbers(folder: Path) -> None:
    committed(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with made(folder) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 * MIB, hard))
        try:
            with pytest.raises(
                offload.CapacityError, match=r"4194304 more bytes are needed, \d+ are free"
            ):
                store.reserve({"d": jnp.zeros(2 * SIZE)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert store.names == ("a", "b", "c")
        assert data(folder).stat().st_size == 6 * MIB
        assert holds(store, "c", 2)
        store.reserve({"d": jnp.zeros(2 * SIZE)})
    with made(folder) as store:
        assert store.names == ("a", "b", "c", "d")


def test_a_reservation_that_fails_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for those who write meanwhile: others get the place in the file."""
    with made(folder) as store:

        def full(size: int) -> None:
            with pytest.raises(KeyError, match="expected one of 0 reserved tensors"):
                store.write("a", np.zeros(10))
            raise OSError(errno.ENOSPC, "no space")

        with monkeypatch.context() as patch:
            patch.setattr(store._backend, "allocate", full)
            with pytest.raises(OSError, match="no space"):
                store.reserve({"a": jnp.zeros(10)})
        assert store.names == ()
        for name, size in (("b", 20), ("a", SIZE)):
            store.reserve({name: jnp.zeros(size)})
            store.write(name, np.full(size, 3.0))
            assert holds(store, name, 3.0)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_while_writing_leaves_the_committed_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    committed(folder)
    writes = iter(range(100))

    def full(descriptor: int, buffers: list, offset: int) -> int:
        if next(writes) == 5:
            raise OSError(number, os.strerror(number))
        return real(descriptor, buffers, offset)

    real = os.pwritev
    with made(folder) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", full)
            futures = {name: store.write(name, np.full(SIZE, 7.0)) for name in "abc"}
            failed = [name for name, future in futures.items() if future.exception(30)]
        assert len(failed) == 1
        text = f"writing '{failed[0]}' failed: OSError: .*{os.strerror(number)}"
        with pytest.raises(offload.StoreError, match=text):
            futures[failed[0]].result()
        with pytest.raises(offload.StoreError, match=f"could not be written: '{failed[0]}'"):
            store.commit({"step": 2})
        with pytest.raises(offload.StoreError, match=f"{failed[0]}: its last write failed"):
            store.read(failed[0]).result(30)
        assert store.meta == {"step": 1}
    with made(folder) as store:
        assert all(holds(store, name, i) for i, name in enumerate("abc"))
        store.write(failed[0], np.full(SIZE, 8.0))  # and it goes on
        store.commit({"step": 2})
        assert holds(store, failed[0], 8)


@pytest.mark.parametrize("where", ["data", "folder"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "no sync"), KeyboardInterrupt()])
def test_after_a_sync_that_failed_the_store_has_to_be_opened_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException
) -> None:
    """Which state the disk has is not known: no write may go to the slots of either."""
    committed(folder)

    def fail(*_: Any) -> None:
        raise error

    with made(folder) as store:
        store.write("a", np.full(SIZE, 9.0)).result(30)
        with monkeypatch.context() as patch:
            if where == "data":
                patch.setattr(store._backend, "sync", fail)
            else:
                patch.setattr(_index, "sync_folder", fail)
            with pytest.raises(type(error)):
                store.commit({"step": 2})
        for call in (lambda: store.write("a", np.full(SIZE, 8.0)), store.commit, store.revert):
            with pytest.raises(offload.StoreError, match=r"commit was cut off.*open it again"):
                call()
    with made(folder) as store:
        assert holds(store, "a", 9.0 if store.meta == {"step": 2} else 0.0)


def test_what_was_not_committed_can_be_forgotten(folder: Path) -> None:
    committed(folder)
    with made(folder) as store:
        store.reserve({"d": jnp.zeros(SIZE)})
        store.write_many({"a": np.full(SIZE, 9.0), "d": np.full(SIZE, 9.0)})
        assert store.written == ("a", "b", "c", "d")
        store.revert()
        assert store.written == ("a", "b", "c")
        assert holds(store, "a", 0)
        store.write("a", np.full(SIZE, 7.0))
        store.commit()
    with made(folder) as store:
        assert holds(store, "a", 7)


def test_an_index_that_cannot_be_written_leaves_the_committed_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(folder)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with made(folder) as store:
        store.write("a", np.full(SIZE, 9.0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(offload.CapacityError, match="what was committed stays in place"):
                store.commit({"step": 2})
        assert store.meta == {"step": 1}
        assert not [*folder.glob("*.new")]
        store.commit({"step": 2})  # once there is space
    with made(folder) as store:
        assert store.meta == {"step": 2}
        assert holds(store, "a", 9)


@pytest.mark.parametrize("most", [4096, 5000, 100_000])
def test_short_transfers_and_signals_are_gone_on_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Also those that stop inside a block, where O_DIRECT cannot go on."""
    calls = {"write": 0, "read": 0}

    def short(kind: str, real: Callable) -> Callable:
        def call(descriptor: int, buffers: list, offset: int) -> int:
            calls[kind] += 1
            if calls[kind] % 3 == 0:
                raise InterruptedError
            if len(buffers[0]) > most and most % 4096 and offset % 4096 == 0:
                # As a full disk would do it: part of a block, through the cache.
                cached = os.open(data(folder), os.O_RDWR)
                try:
                    return real(cached, [buffers[0][:most]], offset)
                finally:
                    os.close(cached)
            return real(descriptor, [buffers[0][:most]], offset)

        return call

    monkeypatch.setattr(os, "pwritev", short("write", os.pwritev))
    monkeypatch.setattr(os, "preadv", short("read", os.preadv))
    committed(folder)
    with made(folder) as store:
        assert all(holds(store, name, i) for i, name in enumerate("abc"))
        (notice,) = store.statistics().notices
        assert "reading stopped after" in notice
    assert min(calls.values()) > 3 * 1.3 * MIB / most


def test_einval_on_o_direct_goes_on_through_the_cache_and_says_so_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(real: Callable) -> Callable:
        def call(descriptor: int, buffers: list, offset: int) -> int:
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EINVAL, "Invalid argument")
            return real(descriptor, buffers, offset)

        return call

    monkeypatch.setattr(os, "pwritev", refuse(os.pwritev))
    monkeypatch.setattr(os, "preadv", refuse(os.preadv))
    committed(folder)
    with made(folder) as store:
        assert store.statistics().direct
        assert all(holds(store, name, i) for i, name in enumerate("abc"))
        found = store.statistics()
    assert not found.direct
    assert len(found.notices) == 1
    assert "O_DIRECT is refused" in found.notices[0]


def test_a_file_system_without_o_direct_is_told_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *rest, **named)

    real = os.open
    monkeypatch.setattr(os, "open", without)
    with pytest.warns(offload.StoreWarning, match="O_DIRECT is refused"):
        store = made(folder)
    with store:
        store.reserve({"a": jnp.zeros(SIZE)})
        store.write("a", np.ones(SIZE))
        assert holds(store, "a", 1)
        assert not store.statistics().direct


# Kernels without io_uring, and rings that stop short.


@pytest.fixture
def ring() -> None:
    if "io_uring" not in offload.backends():
        pytest.skip("the C library was not built: no compiler")


@pytest.mark.parametrize("error", [PermissionError(1, "not permitted"), ImportError("not built")])
def test_a_forbidden_io_uring_falls_back_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(uring.UringBackend, "_make", refuse)
    with pytest.warns(offload.StoreWarning, match=r"io_uring cannot be used here \(.*not"):
        store = made(folder, "io_uring")
    with store:
        assert store.statistics().backend == "threads"
        store.reserve({"a": jnp.zeros(SIZE)})
        store.write("a", np.ones(SIZE))
        assert holds(store, "a", 1)


@pytest.mark.usefixtures("ring")
def test_auto_takes_what_the_probe_allows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(folder, "auto") as store:
        assert store.statistics().backend == "io_uring"
    monkeypatch.setattr(uring, "probe", lambda _: {"io_uring": "forbidden"})
    with pytest.warns(offload.StoreWarning, match=r"io_uring does not work here \(forbidden\)"):
        store = made(folder, "auto")
    with store:
        assert store.statistics().backend == "threads"


@pytest.mark.usefixtures("ring")
def test_a_full_disk_is_no_reason_not_to_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(folder)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)  # of the probe's block
    with pytest.warns(offload.StoreWarning, match="the disk is full"):
        store = made(folder, "auto")
    with store:
        assert holds(store, "a", 0)


@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize("moved", [-errno.EINVAL, -errno.EAGAIN, 0, 5000, 8192])
def test_what_a_ring_leaves_is_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    real = uring._Driver._landed

    def short(self: Any, op: Any, _: int) -> None:
        if not op.write:  # what was not moved is not there
            op.memory[max(moved, 0) :] = 77
        real(self, op, moved)

    committed(folder, "io_uring")
    with monkeypatch.context() as patch:
        patch.setattr(uring._Driver, "_landed", short)
        with made(folder, "io_uring") as store:
            assert all(holds(store, name, i) for i, name in enumerate("abc"))


@pytest.mark.usefixtures("ring")
def test_memory_that_cannot_be_registered_is_told_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> dict:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    class Limited:
        def __init__(self, ring: Any):
            self.ring = ring

        def __getattr__(self, name: str) -> Any:
            return refuse if name == "register" else getattr(self.ring, name)

    make = uring.UringBackend._make
    monkeypatch.setattr(uring.UringBackend, "_make", lambda self: Limited(make(self)))
    with pytest.warns(offload.StoreWarning, match="cannot be registered"):
        store = made(folder, "io_uring")
    with store:
        store.reserve({"a": jnp.zeros(SIZE)})
        store.write("a", np.ones(SIZE))
        assert holds(store, "a", 1)


@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize("option", ["sqpoll", "iopoll", "fixed"])
def test_options_of_the_ring_work_or_say_why_not(folder: Path, option: str) -> None:
    value = option != "fixed"
    why = uring.probe(folder.parent).get(option, "")
    if why:
        with pytest.warns(offload.StoreWarning, match=option):
            store = made(folder, "io_uring", options={option: value})
    else:
        store = made(folder, "io_uring", options={option: value})
    with store:
        store.reserve({"a": jnp.zeros(SIZE)})
        store.write("a", np.ones(SIZE))
        store.commit()
        assert holds(store, "a", 1)


# Two processes, other models, bad input.


def test_a_second_store_on_a_folder_is_refused(folder: Path) -> None:
    with made(folder):
        with pytest.raises(offload.LockedError, match=f"open already, by process {os.getpid()}"):
            made(folder)
        code = (
            "from tensorjax.offload import *; import sys\n"
            "try: TensorStore(sys.argv[1], 1 << 20, backend='threads')\n"
            "except LockedError as error: print(error)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder)], capture_output=True, text=True,
            cwd=Path(__file__).parents[1], check=True,
        )  # fmt: skip
        assert f"by process {os.getpid()}" in done.stdout
    made(folder).close()


def test_where_files_cannot_be_locked_that_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on network file systems: nobody has the store open."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(offload.StoreWarning, match=r"cannot be locked here \(No locks available\)"):
        store = made(folder)
    with store:
        store.reserve({"a": jnp.zeros(SIZE)})
        store.write("a", np.ones(SIZE))
        store.commit()
    monkeypatch.undo()
    with made(folder) as store:
        assert holds(store, "a", 1)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"layers": 2, "bias": None}, r"model\.bias: the store has nothing, asked for None"),
        ({}, r"model\.layers: the store has 2, asked for nothing"),
        ({"layers": True}, "the store has 2, asked for True"),
    ],
)
def test_what_only_one_of_two_models_has_is_named(folder: Path, asked: Any, said: str) -> None:
    made(folder, model={"layers": 2}).close()
    with pytest.raises(offload.MismatchError, match=said):
        made(folder, model=asked)


def test_true_is_not_one_of_a_model(folder: Path) -> None:
    made(folder, model={"layers": 1}).close()
    with pytest.raises(offload.MismatchError, match="the store has 1, asked for True"):
        made(folder, model={"layers": True})


def test_another_model_is_refused_and_the_difference_named(folder: Path) -> None:
    made(folder, model={"layers": 2, "name": "gpt2"}).close()
    with pytest.raises(
        offload.MismatchError, match=r"model\.layers: the store has 2, asked for 3$"
    ):
        made(folder, model={"layers": 3, "name": "gpt2"})
    made(folder, model={"name": "gpt2", "layers": 2}).close()
    made(folder).close()


def test_a_capacity_too_small_says_how_much_is_needed(folder: Path) -> None:
    with made(folder, capacity=3 * MIB) as store:
        store.reserve({"a": jnp.zeros(SIZE)})
        with pytest.raises(
            offload.CapacityError, match=r"2097152 more bytes.*'b'.*1048576 of 3145728 are free"
        ):
            store.reserve({"b": jnp.zeros(SIZE)})
        assert store.names == ("a",)
    with pytest.raises(offload.CapacityError, match="takes 2097152 bytes already, got 1048576"):
        made(folder, capacity=MIB)


def test_a_staging_pool_too_small_says_so(folder: Path) -> None:
    with made(folder, staging=2 * MIB) as store:
        with pytest.raises(offload.CapacityError, match="the largest tensor so far 4194304"):
            store.reserve({"a": jnp.zeros(4 * SIZE)})
        assert store.names == ()
        store.reserve({name: jnp.zeros(SIZE) for name in "abc"})
        store.write_many({name: np.zeros(SIZE) for name in "abc"}).result(30)
        with pytest.raises(offload.CapacityError, match="read fewer at a time"):
            store.read_many("abc")


@pytest.mark.parametrize(
    ("kind", "message"),
    [("tmpfs", "which is memory"), ("nfs4", "a network file system"), ("ext4", "")],
)
def test_file_systems_that_are_no_disk_are_warned_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, message: str
) -> None:
    monkeypatch.setattr(_folder, "file_system", lambda _: kind)
    if not message:
        made(folder).close()
        return
    with pytest.warns(offload.StoreWarning, match=f"is on {kind}, {message}"):
        made(folder).close()


def test_the_file_system_of_a_path_is_known() -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        pytest.skip("this machine has no /dev/shm")
    assert _folder.file_system(shm / "not" / "there") == "tmpfs"
    assert _folder.file_system(Path("/proc/self")) == "proc"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.write("b", np.zeros(3)), KeyError, "expected one of 1 reserved"),
        (lambda s: s.read("b"), KeyError, "got 'b'"),
        (lambda s: s.write("a", np.zeros(3)), ValueError, r"a: expected float64\[131072\] as"),
        (lambda s: s.write("a", np.zeros(SIZE, np.float32)), ValueError, r"got float32\[131072\]"),
        (lambda s: s.write("a", [1.0]), ValueError, r"got list\[1\]"),
        (lambda s: s.read("a"), offload.StoreError, "never written"),
        (lambda s: s.reserve({"a": jnp.zeros(3)}), ValueError, "a: reserved already as float64"),
        (lambda s: s.reserve({"": jnp.zeros(3)}), TypeError, "expected a non-empty string"),
        (lambda s: s.reserve({"x": 3.0}), TypeError, "x: expected an array or"),
        (lambda s: s.reserve({"x": jax.random.key(0)}), TypeError, "jax.random.key_data"),
        (lambda s: s.reserve({"x": np.zeros(3, ">f4")}), TypeError, "a plain dtype"),
        (lambda s: s.reserve({"x": np.array([None])}), TypeError, "a plain dtype"),
    ],
)
def test_bad_calls_are_refused(folder: Path, call: Callable, error: type, message: str) -> None:
    with made(folder, "memory") as store:
        store.reserve({"a": jnp.zeros(SIZE)})
        with pytest.raises(error, match=message):
            call(store)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "capacity: expected an integer >= 1"),
        ({"staging": 100}, "staging: expected an integer"),
        ({"block": 5000}, "block: expected a multiple of 4096"),
        ({"process": (2, 2)}, "process: expected an integer in"),
        ({"backend": "floppy"}, "backend: expected one of .*'threads'.* got 'floppy'"),
    ],
)
def test_bad_options_are_refused(folder: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TensorStore(folder, **{"capacity": MIB, "backend": "memory", **options})


@pytest.mark.parametrize("backend", ["auto", "threads", "memory"])
def test_options_that_a_backend_has_not_are_named(folder: Path, backend: str) -> None:
    with pytest.raises(TypeError, match=r"options: the backend '\w+' cannot be .*'dpeth'"):
        TensorStore(folder, MIB, backend=backend, options={"dpeth": 8})


# Processes that are killed.

KILLED = """
import itertools, os, signal, sys
import numpy as np
from tensorjax.offload import TensorStore

def child(folder, backend):
    store = TensorStore(folder, 64 << 20, backend=backend, staging=4 << 20, block=1 << 18)
    names = [f"w{i}" for i in range(8)] + [f"b{i}" for i in range(20)]
    store.reserve({n: np.zeros(200_000 if n[0] == "w" else 50, np.float32) for n in names})
    os.write(1, b"ready\\n")
    for step in itertools.count((store.meta or {"step": 0})["step"] + 1):
        for n in names:
            store.write(n, np.arange(store.spec(n).shape[0], dtype=np.float32) + step)
        store.commit({"step": step})
        os.write(1, f"{step}\\n".encode())

for line in sys.stdin:  # one child for each line: only the first pays for the imports
    pid = os.fork()
    if not pid:
        child(*line.split())
    os.write(1, f"pid {pid}\\n".encode())
    os.waitpid(pid, 0)
    os.write(1, b"dead\\n")
"""


def kill_and_look(folder: Path, backend: str, moments: int, seed: int) -> list[int]:
    """Kills a writing process at random moments; every state found is the committed one."""
    rng, steps = np.random.default_rng(seed), [0]
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", KILLED], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, bufsize=1, cwd=Path(__file__).parents[1],
    ) as helper:  # fmt: skip
        assert helper.stdin is not None
        assert helper.stdout is not None
        for moment in range(moments):
            helper.stdin.write(f"{folder} {backend}\n")
            lines = [helper.stdout.readline() for _ in range(2)]
            assert "ready\n" in lines
            pid = int(next(line for line in lines if line.startswith("pid")).split()[1])
            printed = []
            if moment % 2:  # the other half may be killed before the first commit
                printed.append(int(helper.stdout.readline()))
            time.sleep(rng.uniform(0.0, 0.4))
            os.kill(pid, signal.SIGKILL)
            while (line := helper.stdout.readline()) != "dead\n":
                printed.append(int(line))
            steps.append(state(folder, backend))
            # The commit may have succeeded just before its number could be printed.
            assert steps[-1] - (printed[-1] if printed else steps[-2]) in (0, 1)
        helper.stdin.close()
    return steps


def state(folder: Path, backend: str) -> int:
    """The committed step of a store, every tensor of which is of that step."""
    with TensorStore(folder, 64 * MIB, backend=backend, staging=4 * MIB) as store:
        step = (store.meta or {"step": 0})["step"]
        assert len(store.written) == (28 if step else 0)
        for name in store.written:
            expected = np.arange(store.spec(name).shape[0], dtype=np.float32) + step
            with store.read(name).result(30) as lease:
                assert lease.array.tobytes() == expected.tobytes(), (name, step)
    return step


@pytest.mark.parametrize("backend", HERE)
def test_a_killed_process_leaves_the_committed_state(folder: Path, backend: str) -> None:
    assert kill_and_look(folder, backend, 4, seed=1)[-1] >= 2


@pytest.mark.slow
@pytest.mark.parametrize("backend", HERE)
def test_a_killed_process_leaves_the_committed_state_25_times(folder: Path, backend: str) -> None:
    assert kill_and_look(folder, backend, 25, seed=2)[-1] >= 12


def test_a_ring_is_filled_again_before_what_has_landed_is_looked_at() -> None:
    """Some disks report a batch at once, and would idle while it is looked at."""
    events: list[str] = []
    todo: list[Any] = [
        SimpleNamespace(write=False, offset=0, size=1, place=-1, memory=np.zeros(1, np.uint8))
        for _ in range(6)
    ]

    class Disk:
        """A ring that reports all it was given when somebody waits."""

        def __init__(self) -> None:
            self.given: list[int] = []

        def prepare(self, token: int, *_: Any) -> None:
            events.append("prepare")
            self.given.append(token)

        def wait(self, block: bool) -> list[tuple[int, int]]:
            events.append("wait" if block else "submit")
            given, self.given = (self.given, []) if block else ([], self.given)
            return [(token, 1) for token in given]

        def close(self) -> None:
            events.append("close")

    def take(most: int, *, wait: bool = True) -> list[Any] | None:
        taken = [todo.pop() for _ in range(min(most, len(todo)))]
        return taken or None

    queue: Any = SimpleNamespace(
        take=take, done=lambda op: events.append("landed"), lock=threading.Lock(), wake=None
    )
    file: Any = SimpleNamespace(descriptor=0)
    uring._Driver(Disk(), queue, file, 2, {}, polls=False).run()
    batch = ["prepare", "prepare", "submit", "landed", "landed", "wait"]
    assert events == ["prepare", "prepare", "wait", *batch, *batch, "submit", "landed", "landed",
                      "close"]  # fmt: skip
