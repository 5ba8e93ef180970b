"""Times the tensor store beside files, libraries and fio, synced and past the page cache.

Source: none; our own measurement. Run it on a quiet machine with a disk of its own::

    python -m experiments run bench/store --folder /a/folder/on/the/disk

See README.md in this folder for what is measured and how, and for results. All take turns, so that
a slow minute of a shared disk hits all; medians are reported.
"""

import gc
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments import Run
from experiments.bench import _disks
from experiments.bench._disks import MIB
from experiments.bench._outcomes import spread
from experiments.bench._timing import Repeated
from tensorjax.offload import TensorStore, backends

Group = Literal["blocks", "compute"]
FIO = (("libaio", 8), ("libaio", 32), ("io_uring", 8), ("io_uring", 32))
# Goals: over the single queue at 1 MiB and below, over fio's best at every size, compute kept.
BESIDE_QUEUE, BESIDE_FIO, KEPT = 1.3, 0.9, 0.85
BARE, POOL = "bare O_DIRECT", "O_DIRECT, pool of 8 threads"
# The second one does what ours does: it copies arrays, and makes and verifies checksums.
SINGLE, WHOLE = "O_DIRECT, one at a time", "O_DIRECT, one at a time, whole"
POLICY = (
    "writes end with fsync or fdatasync; before every read all files are synced and dropped from "
    "the page cache by posix_fadvise(DONTNEED); O_DIRECT and fio --direct=1 never use it"
)


@dataclass(frozen=True)
class Config(Repeated):
    """Options of the benchmark `bench/store`."""

    only: tuple[Group, ...] = ("blocks", "compute")
    """Groups to run: `blocks` (bytes a second by size of tensor), `compute` (kept during I/O)."""

    folder: Path | None = None
    """Where to write, on the disk to be measured; a folder of this name is made and removed."""

    libraries: tuple[str, ...] = ()
    """Whose ways to measure, besides ours; by default all."""

    sizes: tuple[int, ...] = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20)
    """Bytes of a tensor, and of a transfer of fio."""

    total: int = 1 << 30
    """Most bytes of a case."""

    most: int = 4096
    """Most tensors of a case."""

    repeats: int = 5
    """Turns of every competitor."""

    seconds: float = 4.0
    """Seconds of compute in a turn of the group `compute`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = {"fio", *(way.library for way in _disks.WAYS)}
        if not set(self.libraries) <= known:
            raise ValueError(f"libraries: expected some of {sorted(known)}, got {self.libraries}")
        if any(size < 4096 or size % 4096 for size in self.sizes):
            raise ValueError(f"sizes: expected multiples of 4096, got {self.sizes}")
        if self.total < max(self.sizes):
            raise ValueError(f"total: expected at least {max(self.sizes)}, got {self.total}")

    @classmethod
    def quick(cls) -> "Config":
        return cls(sizes=(4 << 10, 256 << 10), total=4 << 20, most=64, repeats=1, seconds=0.2)


def run(config: Config, run: Run) -> None:
    """Times the store groups asked for; writes their tables and the ratios beside the goals."""
    folder = (config.folder or run.folder) / "bench-store"
    run.console.print(f"cache policy: {POLICY}")
    run.metric("cache policy", POLICY)
    run.table("peers", peers(), caption="Who is compared, and who cannot be")
    ratios: list[dict[str, Any]] = []
    try:
        if "blocks" in config.only:
            rows: list[dict[str, Any]] = []
            for size in run.progress(config.sizes, "blocks"):
                found = measure(_disks.emptied(folder), size, config)
                rows += found
                ratios += verdicts(size, found)
            run.table("blocks", rows, caption=BLOCKS, key=["size KiB", "library", "variant"])
        if "compute" in config.only:
            rows = compute(_disks.emptied(folder), config)
            run.table("compute", rows, caption=COMPUTE, key=["compute", "backend"])
            ratios += kept(rows)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if ratios:
        caption = RATIOS
        if config.repeats < 3:  # one turn tells nothing of what was asked for
            caption += ", which so few turns cannot tell of"
            ratios = [{**row, "goal": "", "reached": ""} for row in ratios]
        run.table("ratios", ratios, caption=caption, key=["size KiB", "what", "beside"])
        both = {w: spread(r["ratio"] for r in ratios if r["what"] == w) for w in ("write", "read")}
        said = "; ".join(f"{what}s {text}" for what, text in both.items() if text)
        if said:
            few = "; of so few turns that they tell little" if config.repeats < 3 else ""
            run.compare(f"speed over other ways of storage: {said}{few}")


def peers() -> list[dict[str, str]]:
    """Returns a row for each competitor of the store: why it is missing, if it is."""
    rows = [{"peer": way.library, "missing because": way.missing} for way in _disks.WAYS
            if way.needs != "numpy"]  # fmt: skip
    fio = "" if shutil.which("fio") else "'fio' is not installed"
    ring = "" if "io_uring" in backends() else "our extension was not built"
    return [*rows, {"peer": "fio", "missing because": fio},
            {"peer": "tensorjax, io_uring", "missing because": ring}]  # fmt: skip


def measure(folder: Path, size: int, config: Config) -> list[dict[str, Any]]:
    """Measures the bytes per second of every way at one tensor size; returns a row each."""
    count = max(1, min(config.most, config.total // size))
    arrays = _disks.tensors(size, count)
    wanted = {"tensorjax", *(config.libraries or [way.library for way in _disks.WAYS])}
    ways = [way for way in _disks.available() if way.library in wanted]
    rates: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    costs: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    with ExitStack() as stack:
        lanes = []
        for i, way in enumerate(ways):
            place = _disks.emptied(folder / str(i))
            mine = arrays[: way.most]
            write, read = stack.enter_context(way.open(place, mine))
            for _ in range(2):  # untimed: never written blocks are slower, and ours has two slots
                write()
            lanes.append((way, place, len(mine) * size, write, read))
        tools = _disks.emptied(folder / "fio")
        for turn in range(config.repeats):
            for way, place, total, write, read in lanes if turn % 2 == 0 else lanes[::-1]:
                writes, reads = rates.setdefault((way.library, way.variant), ([], []))
                cost = costs.setdefault((way.library, way.variant), ([], []))
                for call, rate, spent in ((write, writes, cost[0]), (read, reads, cost[1])):
                    wall, processor = _seconds(call)
                    rate.append(total / wall)
                    spent.append(processor * 1024 * MIB / total)
                    _disks.drop(place)
            if shutil.which("fio") and (not config.libraries or "fio" in config.libraries):
                _with_fio(tools, size, size * count, rates)
    return [
        {
            "size KiB": size // 1024,
            "tensors": count,
            "library": library,
            "variant": variant,
            "write MiB/s": statistics.median(writes) / MIB if writes else None,
            "read MiB/s": statistics.median(reads) / MIB if reads else None,
            "write cpu s/GiB": _median(costs.get((library, variant), ([], []))[0]),
            "read cpu s/GiB": _median(costs.get((library, variant), ([], []))[1]),
        }
        for (library, variant), (writes, reads) in rates.items()
    ]


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _with_fio(folder: Path, size: int, total: int, rates: dict[Any, Any]) -> None:
    if not (folder / "fio").exists():
        _disks.fio(folder, size, total, "psync", 1, write=True)
    for engine, depth in FIO:
        writes, reads = rates.setdefault(("fio", f"{engine}, depth {depth}"), ([], []))
        for write, found in ((True, writes), (False, reads)):
            if (rate := _disks.fio(folder, size, total, engine, depth, write=write)) is not None:
                found.append(rate)


def _seconds(call: Callable[[], None]) -> tuple[float, float]:
    """Measures the wall seconds and processor seconds of a call, over all threads."""
    gc.collect()
    gc.disable()
    try:
        start, spent = time.perf_counter(), time.process_time()
        call()
        return time.perf_counter() - start, time.process_time() - spent
    finally:
        gc.enable()


def verdicts(size: int, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compares our fastest way with bare O_DIRECT queues, with libraries and with fio."""
    kinds = {
        one: lambda r, one=one: f"{r['library']}, {r['variant']}" == one
        for one in (SINGLE, WHOLE, POOL)
    } | {
        "files and libraries": lambda r: r["library"] not in ("tensorjax", "O_DIRECT", "fio"),
        "fio's best": lambda r: r["library"] == "fio",
    }
    out = []
    for column in ("write MiB/s", "read MiB/s"):
        ours = _best(rows, column, lambda r: r["library"] == "tensorjax")
        for beside, belongs in kinds.items():
            other = _best(rows, column, belongs)
            if other is None or ours is None:
                continue
            ratio = ours[column] / other[column]
            goal = BESIDE_FIO if beside.startswith("fio") else BESIDE_QUEUE
            asked = beside.startswith("fio") or (beside in (SINGLE, WHOLE) and size <= MIB)
            out.append(
                {
                    "size KiB": size // 1024,
                    "what": column.split()[0],
                    "beside": beside,
                    "ratio": ratio,
                    "goal": f"at least {goal:g}" if asked else "",
                    "reached": ("yes" if ratio >= goal else "no") if asked else "",
                    "ours": ours["variant"],
                    "its": ", ".join(filter(None, (other["library"], other["variant"]))),
                }
            )
    return out


def _best(
    rows: list[dict[str, Any]], column: str, belongs: Callable[[dict[str, Any]], bool]
) -> dict[str, Any] | None:
    able = [row for row in rows if belongs(row) and row[column] is not None]
    return max(able, key=lambda row: row[column], default=None)


def compute(folder: Path, config: Config) -> list[dict[str, Any]]:
    """Measures how much of a computation's speed is left while the store transfers data.

    And beside bare transfers.
    """
    rows = []
    names = [name for name in ("io_uring", "threads", "buffered") if name in backends()]
    computations = {
        "one core": _one_core(),
        "one core, Python": _interpreted(),
        "all cores": _all_cores(),
    }
    for label, step in computations.items():
        beside: dict[str, list[tuple[float, float]]] = {name: [] for name in [*names, BARE]}
        for _ in range(config.repeats):
            for name, found in beside.items():
                alone = _speed(step, config.seconds)
                place = _disks.emptied(folder / "traffic")
                traffic = _bare if name == BARE else partial(_traffic, name)
                with traffic(place, config) as moved:
                    before = moved()
                    # Over the seconds just before: the machine may be another one later.
                    ratio = _speed(step, config.seconds) / alone
                    found.append((ratio, (moved() - before) / config.seconds))
        for name, found in beside.items():
            rows.append(
                {
                    "compute": label,
                    "backend": name,
                    "kept": statistics.median(ratio for ratio, _ in found),
                    "least": min(ratio for ratio, _ in found),
                    "most": max(ratio for ratio, _ in found),
                    "I/O MiB/s": statistics.median(rate for _, rate in found) / MIB,
                }
            )
    return rows


def _one_core() -> Callable[[], object]:
    # Milliseconds a call, within the cache, and as in training without the interpreter.
    program = jax.jit(lambda x: jax.lax.fori_loop(0, 500, lambda _, y: jnp.exp(-y), x))
    x = jnp.ones(8192, jnp.float32)
    program(x).block_until_ready()
    return lambda: program(x).block_until_ready()


def _interpreted() -> Callable[[], object]:
    x = np.random.default_rng(0).random(1 << 16).astype(np.float32)
    out = np.empty_like(x)

    def step() -> None:
        for _ in range(20):  # microseconds a call, each of which takes the interpreter's lock again
            np.exp(x, out=out)

    return step


def _all_cores() -> Callable[[], object]:
    product = jax.jit(lambda a: jnp.tanh(a @ a))
    a = jnp.ones((768, 768), jnp.float32)
    product(a).block_until_ready()
    return lambda: product(a).block_until_ready()


def _speed(step: Callable[[], object], seconds: float) -> float:
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds or not count:
        step()
        count += 1
    return count / passed


@contextmanager
def _traffic(backend: str, folder: Path, config: Config) -> Iterator[Callable[[], int]]:
    """Context manager that writes and reads tensors by a store, in a background thread."""
    size = min(4 * MIB, config.total // 8)
    arrays = {str(i): np.full(size // 4, i, np.float32) for i in range(8)}
    with ExitStack() as stack:
        if backend == "buffered":
            import warnings

            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        store = stack.enter_context(
            TensorStore(folder, 64 * size, backend=backend, staging=max(32 * MIB, 8 * size))
        )
        store.reserve(arrays)
        store.write_many(arrays).result()
        store.commit()

        def work() -> None:
            done = [store.write(name, array) for name, array in arrays.items()]
            for future in [store.read(name) for name in arrays]:
                future.result().release()
            for future in done:
                future.result()

        def moved() -> int:
            found = store.statistics()
            return found.reads.bytes + found.writes.bytes

        with _again_and_again([work]):
            yield moved


@contextmanager
def _bare(folder: Path, config: Config) -> Iterator[Callable[[], int]]:
    """Context manager that writes and reads by O_DIRECT in 8 threads, without store or copies."""
    block = min(MIB, max(4096, config.total // 8 // 4096 * 4096))
    memory, moved = _disks.aligned(8 * block), [0] * 8
    with _disks.directly(folder, 64 * block) as descriptor:
        for at in range(0, 64 * block, 8 * block):
            os.pwritev(descriptor, [memory], at)  # blocks that were never written are slower

        def work(number: int) -> None:
            call = os.pwritev if number % 2 else os.preadv
            part = memory[number * block : (number + 1) * block]
            for turn in range(8):
                moved[number] += call(descriptor, [part], (8 * turn + number) * block)

        with _again_and_again([partial(work, number) for number in range(8)]):
            yield lambda: sum(moved)


@contextmanager
def _again_and_again(works: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Context manager that repeats functions, each in a thread, until the block ends."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def loop(work: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=loop, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def kept(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns goal rows: the share of compute speed kept beside the default backend."""
    name = rows[0]["backend"]
    return [
        {
            "size KiB": "",
            "what": "compute kept",
            "beside": row["compute"],
            "ratio": row["kept"],
            "goal": f"at least {KEPT:g}",
            "reached": "yes" if row["kept"] >= KEPT else "no",
            "ours": row["backend"],
        }
        for row in rows
        if row["backend"] == name
    ]


BLOCKS = (
    "Median of all turns; synced writes, reads past or without the page cache. Processor seconds "
    "are of all threads. numpy, tensorstore and orbax move at most 64 tensors"
)
COMPUTE = (
    "Speed of a computation beside the store's reads and writes (half each), and beside bare ones "
    "of 8 threads, over the turn before that was alone: median, least and most"
)
RATIOS = "Our fastest way over the others, and the compute kept, beside the goals"
