"""Criteo Kaggle display-advertising data as published: ``train.txt``, tab-separated.

A line is a label (0 or 1), 13 integers and 26 categories of up to 8 hexadecimal digits; what is
missing is empty. Lines are in the order of time, over seven days of about equal length that the
file does not mark: as commonly done, the first 6/7 of the lines are for training, half of the
rest for validation and the last half for the test. An integer x becomes log(1 + max(x, 0)), a
missing one 0; a missing category is a category (Naumov et al., arXiv 1906.00091). All lines are
held in memory, 40 numbers each and the 26 keys beside them; ``limit`` reads fewer.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from experiments._texts.cache import stamp
from experiments._texts.types import Progress
from experiments.comera.data import _columns, _files
from experiments.comera.data._types import Tabular, TabularTask

INTEGERS, CATEGORIES, DAYS = 13, 26, 7
FIELDS = 1 + INTEGERS + CATEGORIES
CHUNK = 50_000  # lines parsed at once
HEX = np.isin(np.arange(256), np.frombuffer(b"0123456789abcdefABCDEF\0", np.uint8))


def load(
    path: Path,
    *,
    rows: int | None = None,
    min_count: int = 10,
    limit: int | None = None,
    seed: int = 0,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> TabularTask:
    """Loads Criteo's ``train.txt`` or ``train.txt.gz`` as a task on tables.

    Args:
        path: The file.
        rows: Size of every table, with categories hashed into it; by default a table has one row
            for each category known.
        min_count: Training lines that a category needs to be known; the others share row 0.
        limit: How many lines to read, the first; all by default.
        seed: Of the hash.
        cache: Where to keep what was prepared.
        progress: Told what is being done, and how far it is.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is malformed (its number is given), there are too few, or an option is
            out of its range.
    """
    _columns.checked_table_options(rows, min_count)
    if limit is not None and limit < 2 * DAYS:
        raise ValueError(f"limit: expected at least {2 * DAYS} lines, got {limit}")
    _files.existing(
        path, "Criteo's train.txt or train.txt.gz", "fetch dac.tar.gz from Criteo and unpack it"
    )
    options = {
        "rows": rows,
        "min_count": min_count,
        "limit": limit,
        "seed": seed,
        "files": stamp([path]),
    }

    def build() -> TabularTask:
        chunks = list(_chunks(path, limit, progress))
        if sum(len(labels) for labels, _, _ in chunks) < 2 * DAYS:
            raise ValueError(f"{path}: expected at least {2 * DAYS} lines, to be split by order")
        return _task(chunks, rows, min_count, seed)

    return _files.cached(cache, "criteo", TabularTask, options, build)


def _task(
    chunks: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    rows: int | None,
    min_count: int,
    seed: int,
) -> TabularTask:
    labels = np.concatenate([chunk[0] for chunk in chunks])
    dense = np.concatenate([chunk[1] for chunk in chunks])
    n = len(labels)
    ends = [0, n * (DAYS - 1) // DAYS, n * (2 * DAYS - 1) // (2 * DAYS), n]
    train = slice(0, ends[1])
    ids = np.empty((n, CATEGORIES), np.int32)
    sizes, occupied = [], []
    for column in range(CATEGORIES):
        # One column at a time: a second copy of all keys would be most of the memory.
        keys = np.concatenate([chunk[2][:, column] for chunk in chunks])
        ids[:, column], size, used = _columns.encode(
            keys, train, rows=rows, min_count=min_count, seed=seed
        )
        sizes.append(size)
        occupied.append(used)
    splits = {}
    for name, a, b in zip(("train", "valid", "test"), ends, ends[1:], strict=False):
        splits[name] = Tabular(dense[a:b], ids[a:b], labels[a:b])
    return TabularTask(
        **splits,
        tables=tuple(sizes),
        table_names=tuple(f"C{k}" for k in range(1, CATEGORIES + 1)),
        dense_names=tuple(f"I{k}" for k in range(1, INTEGERS + 1)),
        facts={"data": "Criteo Kaggle", "lines": n, "occupied": occupied},
    )


def _chunks(
    path: Path, limit: int | None, progress: Progress | None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields labels, transformed integers and category keys of the file, chunk by chunk."""
    records: list[list[bytes]] = []
    first = 1
    for number, line in _files.lines(path, progress):
        if limit is not None and number > limit:
            break
        record = line.split(b"\t")
        if len(record) != FIELDS:
            raise ValueError(
                f"{path}, line {number}: expected {FIELDS} tab-separated fields (label, "
                f"{INTEGERS} integers, {CATEGORIES} categories), got {len(record)}; "
                "give the published train.txt (test.txt has no labels)"
            )
        records.append(record)
        if len(records) == CHUNK:
            yield _parse(path, first, records)
            records, first = [], number + 1
    if records:
        yield _parse(path, first, records)


def _parse(
    path: Path, first: int, records: list[list[bytes]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parses lines to labels, integers and category keys; ``first`` is the first line's number."""
    table = np.array(records, "S")
    labels, integers, texts = np.split(table, [1, 1 + INTEGERS], axis=1)
    good = bool(np.isin(labels, (b"0", b"1")).all() and np.strings.str_len(texts).max() <= 8)
    codes = np.ascontiguousarray(texts.astype("S8"))
    numbers = None
    if good and HEX[codes.view(np.uint8)].all():
        # An integer that is none is found by the conversion, line by line only then.
        with contextlib.suppress(ValueError, OverflowError):
            numbers = np.where(integers == b"", b"0", integers).astype(np.int64)
    if numbers is None:
        faults = ((first + k, _fault(record)) for k, record in enumerate(records))
        number, fault = next((at, fault) for at, fault in faults if fault)
        raise ValueError(f"{path}, line {number}: {fault}")
    dense = np.log1p(np.maximum(numbers, 0)).astype(np.float32)
    keys = codes.view("<u8").astype(np.uint64)
    return (labels[:, 0] == b"1").astype(np.int32), dense, keys


def _fault(record: list[bytes]) -> str | None:
    """Returns what is wrong with a line of 40 fields, or None."""
    label, integers, categories = record[0], record[1 : 1 + INTEGERS], record[1 + INTEGERS :]
    if label not in (b"0", b"1"):
        return f"expected the label 0 or 1, got '{label.decode(errors='replace')}'"
    for k, text in enumerate(integers, 1):
        try:
            np.int64(text or b"0")
        except (ValueError, OverflowError):
            return f"expected an integer or nothing as I{k}, got '{text.decode(errors='replace')}'"
    for k, text in enumerate(categories, 1):
        if len(text) > 8 or not HEX[np.frombuffer(text, np.uint8)].all():
            return (
                f"expected up to 8 hexadecimal digits or nothing as C{k}, got "
                f"'{text.decode(errors='replace')}'"
            )
    return None
