"""Statistics of a store: bytes, transfers, latencies, and their formatting with units."""

from dataclasses import dataclass

BUCKETS = 32  # powers of two of a microsecond: the last one begins at 18 minutes


def size(nbytes: float) -> str:
    """Formats bytes as text, for a store's statistics: in the largest fitting unit, B to TiB.

    >>> size(0), size(1000), size(3 << 19), size(23.2 * 2**30)
    ('0 B', '1000 B', '1.5 MiB', '23.2 GiB')
    """
    units = ["TiB", "GiB", "MiB", "KiB"]
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    while nbytes >= 1024 and units:
        nbytes, unit = nbytes / 1024, units.pop()
    return f"{nbytes:.1f} {unit}"


def time(seconds: float) -> str:
    """Formats seconds as text, for a store's statistics: in µs, ms or s.

    >>> time(0), time(64e-6), time(0.01234), time(13.8), time(4000)
    ('0 s', '64 µs', '12.3 ms', '13.8 s', '4000 s')
    """
    if not seconds or seconds >= 1:
        return f"{seconds:.0f} s" if seconds >= 1000 else f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def bucket(seconds: float) -> int:
    """Returns the bucket of a latency in a store's statistics: the power of two of µs above it."""
    return min(BUCKETS - 1, int(seconds * 1e6).bit_length())


@dataclass(frozen=True)
class Traffic:
    """Statistics of a tensor store's transfers in one direction: bytes, counts, latencies.

    Attributes:
        bytes: Moved, padding included.
        transfers: Given to the backend.
        tensors: Whole tensors asked for.
        failures: Transfers that ended in an error.
        latency: Transfers that took less than 2^i µs, and at least half that, in the backend.
        waiting: The same of the time that a transfer stood in the queue.

    Example:
        >>> import tempfile, numpy as np
        >>> from tensorjax import offload
        >>> with offload.TensorStore(tempfile.mkdtemp(), capacity=8192, backend="memory") as store:
        ...     store.reserve({"w": np.zeros(10)})
        ...     done = store.write("w", np.ones(10)).result()
        ...     traffic = store.statistics().writes
        >>> traffic.tensors, traffic.bytes, traffic.failures, traffic.quantile(0.5) > 0
        (1, 4096, 0, True)
    """

    bytes: int = 0
    transfers: int = 0
    tensors: int = 0
    failures: int = 0
    latency: tuple[int, ...] = (0,) * BUCKETS
    waiting: tuple[int, ...] = (0,) * BUCKETS

    def quantile(self, q: float) -> float:
        """Returns a quantile of the latency in the statistics, in seconds, to a factor of two.

        Args:
            q: Fraction of the transfers, in [0, 1]; 0.5 gives the median.

        Returns:
            Seconds: an upper bound, a power of two of microseconds; 0 without transfers.

        Raises:
            ValueError: if q is outside [0, 1].
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q: expected a fraction in [0, 1], got {q!r}")
        seen, total = 0, sum(self.latency)
        for i, count in enumerate(self.latency):
            seen += count
            if total and seen >= q * total:
                return 2**i * 1e-6
        return 0.0


@dataclass(frozen=True)
class Statistics:
    """Statistics of a tensor store since it was opened.

    Attributes:
        backend: Name of the backend in use.
        direct: Whether it goes past the page cache.
        notices: What the store had to say: fallbacks, file systems.
        reads: Traffic from the disk.
        writes: Traffic to the disk.
        depth: Transfers in the backend now, those included that have landed and are looked at.
        deepest: The most there were at once.
        queued: Transfers that wait for their turn now.
        staging: Bytes of the staging pools.
        staging_reads: Those of them that reads get.
        staging_peak: The most of them that was in use at once.
        blocked: Seconds that writers waited for staging.
        overflow: Bytes of reads that went around the staging pool, to avoid a deadlock.
        commits: Number of the last commit.
        committing: Seconds spent in commits since the store was opened.
        allocated: Bytes of the data file.
        capacity: Bytes it may have.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tensorjax import offload
        >>> with offload.TensorStore(tempfile.mkdtemp(), capacity=8192) as store:
        ...     store.reserve({"w": np.zeros(10)})
        ...     _ = store.write("w", np.ones(10)).result()
        ...     store.statistics().writes.tensors
        1
    """

    backend: str
    direct: bool
    notices: tuple[str, ...]
    reads: Traffic
    writes: Traffic
    depth: int
    deepest: int
    queued: int
    staging: int
    staging_reads: int
    staging_peak: int
    blocked: float
    overflow: int
    commits: int
    committing: float
    allocated: int
    capacity: int

    def __str__(self) -> str:
        """Formats a tensor store's statistics as a table: bytes moved and latencies."""
        way = "past the page cache" if self.direct else "by the page cache or memory"
        head = (
            f"{self.backend}, {way}: {size(self.allocated)} of {size(self.capacity)} allocated; "
            f"commit {self.commits}, {time(self.committing)} spent in commits"
        )
        names = (
            f"{'':<8}{'bytes':>12}{'transfers':>11}{'tensors':>10}{'failures':>10}"
            f"{'half within':>14}{'99 % within':>14}"
        )
        lines = [head, names]
        for name, traffic in (("reads", self.reads), ("writes", self.writes)):
            half, most = (time(traffic.quantile(q)) for q in (0.5, 0.99))
            lines.append(
                f"{name:<8}{size(traffic.bytes):>12}{traffic.transfers:>11}{traffic.tensors:>10}"
                f"{traffic.failures:>10}{half:>14}{most:>14}"
            )
        lines.append(
            f"in flight {self.depth}, at most {self.deepest}; waiting {self.queued}; staging at "
            f"most {size(self.staging_peak)} of {size(self.staging)}, for which writers waited "
            f"{time(self.blocked)}"
        )
        if self.overflow:
            lines.append(f"{size(self.overflow)} were read beside the staging memory")
        return "\n".join([*lines, *self.notices])


class Counter:
    """Running counts for the statistics of one direction of transfers; the caller has the lock."""

    def __init__(self) -> None:
        self.bytes = self.transfers = self.tensors = self.failures = 0
        self.latency, self.waiting = [0] * BUCKETS, [0] * BUCKETS

    def add(self, nbytes: int, latency: float, waiting: float, *, failed: bool) -> None:
        """Counts a transfer in a store's statistics: bytes, latency, time in the queue, failure."""
        self.transfers += 1
        self.failures += failed
        self.bytes += 0 if failed else nbytes
        self.latency[bucket(latency)] += 1
        self.waiting[bucket(waiting)] += 1

    def frozen(self) -> Traffic:
        """Returns the statistics so far of one direction of transfers, an immutable `Traffic`."""
        counts = {**vars(self), "latency": tuple(self.latency), "waiting": tuple(self.waiting)}
        return Traffic(**counts)
