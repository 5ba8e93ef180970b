"""Ways to write and read tensors on disk: our store, files, libraries, bare O_DIRECT.

Every way writes the same arrays and syncs them, and reads them after its files have left the page
cache. What a way prepares, files that are reserved for example, is done before the clock runs.
"""

import importlib.util
import mmap
import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

MIB = 1 << 20
BATCH = 16 * MIB


@dataclass(frozen=True)
class Way:
    """Way to write tensors to disk and to read them back, by one library.

    Attributes:
        library: Whose it is.
        variant: Which of its ways; empty if there is only one.
        open: Gets a folder and the arrays, and yields (write, read): write ends when all is on the
            disk, read returns when all is in memory.
        most: The most tensors it is asked for: a file for each, synced, takes its time.
        needs: The module it needs.
    """

    library: str
    variant: str
    open: Callable[[Path, list[np.ndarray]], Any]
    most: int = 1 << 20
    needs: str = "numpy"

    @property
    def missing(self) -> str:
        """Reason why this way cannot be measured here; empty if it can."""
        here = importlib.util.find_spec(self.needs) is not None
        return "" if here else f"'{self.needs}' is not installed"


def tensors(size: int, count: int) -> list[np.ndarray]:
    """Returns ``count`` tensors of ``size`` bytes, as views of random bytes."""
    pool = np.random.default_rng(7).integers(
        0, 1 << 32, min(size * count, 64 * MIB) // 4, np.uint32
    )
    per = size // 4
    return [pool[(at := i * per % pool.size) : at + per].view(np.float32) for i in range(count)]


def drop(folder: Path) -> None:
    """Syncs all files of a folder and asks the kernel to forget their pages."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _sync(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _ours(
    folder: Path, arrays: list[np.ndarray], *, backend: str, together: bool
) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    from tensorjax.offload import TensorStore

    named = {f"{i:06d}": array for i, array in enumerate(arrays)}
    size = arrays[0].nbytes
    per = max(1, BATCH // size) if together else 1
    names = list(named)
    groups = [names[i : i + per] for i in range(0, len(names), per)]
    ahead = max(1, 8 * BATCH // (size * per))
    with TensorStore(
        folder, 2 * len(arrays) * max(size, 4096), backend=backend, staging=256 * MIB
    ) as store:
        store.reserve(named)

        def write() -> None:
            for group in groups:
                store.write_many({name: named[name] for name in group})
            store.commit()

        def read() -> None:
            pending: list[Any] = []
            for group in groups:
                if len(pending) == ahead:
                    pending.pop(0).result().release()
                pending.append(store.read_many(group))
            for future in pending:
                future.result().release()

        yield write, read


def _way_of_ours(backend: str, *, together: bool) -> Callable[[Path, list[np.ndarray]], Any]:
    return lambda folder, arrays: _ours(folder, arrays, backend=backend, together=together)


@contextmanager
def _numpy(folder: Path, arrays: list[np.ndarray]) -> Iterator[Any]:
    def write() -> None:
        for i, array in enumerate(arrays):
            with (folder / f"{i}.npy").open("wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())

    def read() -> None:
        for i in range(len(arrays)):
            np.load(folder / f"{i}.npy")

    yield write, read


@contextmanager
def _safetensors(folder: Path, arrays: list[np.ndarray]) -> Iterator[Any]:
    from safetensors.numpy import load_file, save_file

    path = folder / "all.safetensors"

    def write() -> None:
        save_file({str(i): array for i, array in enumerate(arrays)}, path)
        _sync(folder)

    def read() -> None:
        # Its arrays may be views of pages that are read when they are touched.
        for array in load_file(path).values():
            array.view(np.uint8)[::4096].sum()

    yield write, read


@contextmanager
def _tensorstore(folder: Path, arrays: list[np.ndarray]) -> Iterator[Any]:
    import tensorstore

    per = arrays[0].size
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(folder / "zarr")},
        "metadata": {
            "shape": [len(arrays), per],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, per]}},
            "data_type": "float32",
        },
    }

    def write() -> None:
        store = tensorstore.open(spec, create=True, delete_existing=True).result()
        for future in [store[i].write(array) for i, array in enumerate(arrays)]:
            future.result()
        _sync(folder)

    def read() -> None:
        store = tensorstore.open(spec, open=True).result()
        for future in [store[i].read() for i in range(len(arrays))]:
            future.result()

    yield write, read


@contextmanager
def _orbax(folder: Path, arrays: list[np.ndarray]) -> Iterator[Any]:
    import orbax.checkpoint

    tree = {str(i): array for i, array in enumerate(arrays)}
    path = (folder / "orbax").absolute()
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:

        def write() -> None:
            checkpointer.save(path, tree, force=True)
            checkpointer.wait_until_finished()
            _sync(folder)

        def read() -> None:
            specs = {k: jax.ShapeDtypeStruct(a.shape, a.dtype) for k, a in tree.items()}
            jax.block_until_ready(checkpointer.restore(path, specs))

        yield write, read


@contextmanager
def _buffered(folder: Path, arrays: list[np.ndarray]) -> Iterator[Any]:
    size, total = arrays[0].nbytes, sum(a.nbytes for a in arrays)
    descriptor = os.open(folder / "buffered", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, total)

    def write() -> None:
        for i, array in enumerate(arrays):
            os.pwrite(descriptor, array.data, i * size)
        os.fdatasync(descriptor)

    def read() -> None:
        for i in range(len(arrays)):
            os.preadv(descriptor, [np.empty(size, np.uint8).data], i * size)

    try:
        yield write, read
    finally:
        os.close(descriptor)


@contextmanager
def directly(folder: Path, size: int) -> Iterator[int]:
    """Context manager that opens a preallocated file with O_DIRECT; yields its descriptor."""
    descriptor = os.open(folder / "direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    try:
        os.posix_fallocate(descriptor, 0, size)
        yield descriptor
    finally:
        os.close(descriptor)


def aligned(size: int) -> memoryview:
    """Allocates page-aligned memory, in huge pages if possible, as the store does for staging."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


@contextmanager
def _direct(
    folder: Path, arrays: list[np.ndarray], *, threads: int, whole: bool = False
) -> Iterator[Any]:
    """Writes and reads tensors by bare O_DIRECT from one queue, without an index.

    It moves memory that is there already; a whole one moves the arrays, with our own copies, and
    their checksums, which it verifies.
    """
    from tensorjax.offload._store.disk.checksums import copy, digest

    size, total = arrays[0].nbytes, sum(a.nbytes for a in arrays)
    block = min(size, MIB)
    memory = aligned(min(total, 64 * MIB))
    sums: dict[int, str] = {}

    def direct(call: Callable[..., int], descriptor: int, offset: int) -> None:
        at = offset % len(memory)
        part = memory[at : at + block]
        if whole and call is os.pwritev:
            source = arrays[offset // size].view(np.uint8)[offset % size :][:block]
            sums[offset] = copy(source, np.frombuffer(part, np.uint8))
        moved = call(descriptor, [part], offset)
        if moved != block or (whole and call is os.preadv and digest(part) != sums[offset]):
            raise OSError(f"O_DIRECT: {block} bytes at {offset} did not arrive as they are")

    def move(call: Callable[..., int], descriptor: int) -> None:
        todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for offset in range(0, total, block):
            todo.put(offset)

        def work() -> None:
            while True:
                try:
                    offset = todo.get_nowait()
                except queue.Empty:
                    return
                direct(call, descriptor, offset)

        if threads == 1:
            work()
            return
        pool = [threading.Thread(target=work) for _ in range(threads)]
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()

    with directly(folder, total) as descriptor:

        def write() -> None:
            move(os.pwritev, descriptor)
            os.fdatasync(descriptor)

        yield write, lambda: move(os.preadv, descriptor)


WAYS: tuple[Way, ...] = (
    Way("tensorjax", "io_uring, together", _way_of_ours("io_uring", together=True)),
    Way("tensorjax", "io_uring, one by one", _way_of_ours("io_uring", together=False)),
    Way("tensorjax", "threads, together", _way_of_ours("threads", together=True)),
    Way("tensorjax", "threads, one by one", _way_of_ours("threads", together=False)),
    Way("O_DIRECT", "one at a time", lambda f, a: _direct(f, a, threads=1)),
    Way("O_DIRECT", "one at a time, whole", lambda f, a: _direct(f, a, threads=1, whole=True)),
    Way("O_DIRECT", "pool of 8 threads", lambda f, a: _direct(f, a, threads=8)),
    Way("buffered", "one file", _buffered),
    Way("numpy", "save, a file each", _numpy, most=64),
    Way("safetensors", "", _safetensors, needs="safetensors"),
    Way("tensorstore", "zarr3", _tensorstore, most=64, needs="tensorstore"),
    Way("orbax", "", _orbax, most=64, needs="orbax.checkpoint"),
)


def fio(
    folder: Path, size: int, total: int, engine: str, depth: int, *, write: bool
) -> float | None:
    """Measures the bytes per second that fio moves with O_DIRECT; None if fio fails.

    Writes end with a sync of the file, as ours do.
    """
    import json
    import subprocess

    command = [
        "fio", "--name=store", f"--filename={folder / 'fio'}", f"--size={total}", f"--bs={size}",
        f"--rw={'write' if write else 'read'}", "--direct=1", f"--ioengine={engine}",
        f"--iodepth={depth}", "--end_fsync=1", "--output-format=json", "--overwrite=1",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    # Its own figure, which leaves the sync at the end out: to its advantage.
    return float(job["write" if write else "read"]["bw_bytes"])


def available() -> Sequence[Way]:
    """Returns the ways of writing tensors that can be measured on this machine."""
    from tensorjax.offload import backends

    ring = "io_uring" in backends()
    return [w for w in WAYS if not w.missing and (ring or not w.variant.startswith("io_uring"))]


def emptied(folder: Path) -> Path:
    """Removes a folder with its contents and creates it anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


__all__ = ["WAYS", "Way", "available", "directly", "drop", "emptied", "fio", "tensors"]
