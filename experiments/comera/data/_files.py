"""Files of users, read and counted, and the cache of prepared data."""

import functools
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from experiments._texts import cache
from experiments._texts.types import Progress

EVERY = 100_000  # lines between two reports


def existing(path: Path, wanted: str, advice: str) -> Path:
    """Returns a path that exists; raises FileNotFoundError with advice otherwise.

    Raises:
        FileNotFoundError: It does not; the message says what was wanted and what to do.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected {wanted}, found nothing; {advice}")
    return path


def lines(path: Path, progress: Progress | None = None) -> Iterator[tuple[int, bytes]]:
    """Yields numbered lines of a plain or gzipped file, without line ends.

    Raises:
        ValueError: The file is gzipped and damaged.
    """
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        size, number = path.stat().st_size, 0
        try:
            for number, line in enumerate(gzip.open(raw) if packed else raw, 1):  # noqa: SIM115
                if progress is not None and number % EVERY == 0:
                    progress(f"reading {path.name}", min(raw.tell(), size), size)
                yield number, line.rstrip(b"\r\n")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{path}, after line {number}: expected a whole gzip file, got {error}; "
                "fetch it again"
            ) from error
    if progress is not None:
        progress(f"reading {path.name}", size, size)


cached = functools.partial(cache.cached, programs=sorted(Path(__file__).parent.glob("*.py")))
