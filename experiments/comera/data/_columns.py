"""Categorical columns as ids of embedding rows: vocabularies and hashed crosses."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np


def keys(values: Iterable[str]) -> np.ndarray:
    """Hashes texts to 64-bit keys, equal on every machine and in every process.

    >>> keys(["JFK", "LGA"]).dtype, bool(np.diff(keys(["JFK", "JFK"]))[0] == 0)
    (dtype('uint64'), True)
    """
    digests = (hashlib.blake2b(v.encode(), digest_size=8).digest() for v in values)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def mix(columns: Sequence[np.ndarray], seed: int) -> np.ndarray:
    """Hashes rows of several key columns to one 64-bit key each; the order of columns counts.

    The finaliser is that of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    """
    state = np.full(len(columns[0]), seed, np.uint64)
    for column in columns:
        state = (state ^ column) + np.uint64(0x9E3779B97F4A7C15)  # modulo 2^64, as wanted
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


def encode(
    column: np.ndarray,
    train: np.ndarray | slice,
    *,
    rows: int | None = None,
    min_count: int = 1,
    seed: int = 0,
) -> tuple[np.ndarray, int, int]:
    """Encodes a column of keys as row ids of an embedding table, fixed by the training split.

    A key that occurs fewer than ``min_count`` times in training is unknown and gets row 0, so
    with ``min_count`` above one the row of the unknown is trained too.

    Args:
        column: (n,) uint64 keys.
        train: Which entries are of the training split.
        rows: Size of the table, with known keys hashed to rows 1, …, rows − 1; without it every
            known key has a row of its own, in the order of the keys.
        min_count: Training rows that a key needs to be known.
        seed: Which hash.

    Returns:
        (n,) int32 rows, the size of the table, and how many of its rows occur in training.

    >>> c = np.array([7, 9, 7, 9, 8, 5], np.uint64)
    >>> ids, size, occupied = encode(c, slice(0, 5), min_count=2)
    >>> ids.tolist(), size, occupied
    ([1, 2, 1, 2, 0, 0], 3, 3)
    """
    seen, counts = np.unique(column[train], return_counts=True)
    known = seen[counts >= min_count]
    at = np.searchsorted(known, column)
    is_known = np.zeros(len(column), bool)
    if len(known):
        is_known = known[np.minimum(at, len(known) - 1)] == column
    if rows is None:
        size = len(known) + 1
        ids = np.where(is_known, at + 1, 0)
    else:
        size = rows
        hashed = mix([column], seed) % np.uint64(rows - 1) + np.uint64(1)
        ids = np.where(is_known, hashed, np.uint64(0))
    ids = ids.astype(np.int32)
    return ids, size, len(np.unique(ids[train]))


def checked_table_options(rows: int | None, min_count: int) -> None:
    """Raises ValueError unless the options of an embedding table are valid.

    Raises:
        ValueError: If a table would have no row besides the unknown one.
    """
    if rows is not None and not 2 <= rows < 2**31:
        raise ValueError(f"rows: expected 2 to 2**31 − 1 (row 0 is the unknown one), got {rows}")
    if min_count < 1:
        raise ValueError(f"min_count: expected at least 1 training row, got {min_count}")
