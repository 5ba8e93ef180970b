"""MNLI as published: files of ``multinli_1.0`` or of GLUE (arXiv 1704.05426).

The folder holds ``multinli_1.0_train`` and ``multinli_1.0_dev_matched`` as ``.jsonl`` or ``.txt``,
or GLUE's ``train.tsv`` and ``dev_matched.tsv``; each may be gzipped. The matched development set
is the test split, since the labels of the test set are not published; the validation split is a
part of the training set, with no premise in both.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments._texts import bpe
from experiments._texts.cache import stamp
from experiments._texts.types import Progress
from experiments.comera.data import _files, _rows
from experiments.comera.data._types import Pairs, PairTask

CLASSES = ("entailment", "neutral", "contradiction")
UNDECIDED = "-"
COLUMNS = ("sentence1", "sentence2", "gold_label")
STEMS = {
    "train": ("multinli_1.0_train.jsonl", "multinli_1.0_train.txt", "train.tsv"),
    "test": (
        "multinli_1.0_dev_matched.jsonl",
        "multinli_1.0_dev_matched.txt",
        "dev_matched.tsv",
    ),
}
Row = tuple[str, str, str]


def load(
    path: Path,
    *,
    vocabulary: int = 30_522,
    length: int = 128,
    held_out: float = 0.05,
    limit: int | None = None,
    seed: int = 0,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> PairTask:
    """Loads MNLI's pairs as a task, encoded by a byte-level BPE of the training split.

    Args:
        path: The folder.
        vocabulary: Number of tokens; fewer if the texts hold no more.
        length: Tokens in a row; the longer text of a pair is cut first.
        held_out: Part of the training premises that is for validation, about.
        limit: How many pairs to read from each file, the first; all by default.
        seed: Of the choice of these premises.
        cache: Where to keep what was prepared.
        progress: Told what is being done, and how far it is.

    Raises:
        FileNotFoundError: The folder or one of the files is missing.
        ValueError: A line is malformed (its number is given), or an option is out of its range.
    """
    bpe.checked_sizes(vocabulary, length)
    if not 0 < held_out < 0.5:
        raise ValueError(f"held_out: expected a part above 0 and below 0.5, got {held_out}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit: expected at least 1 pair, got {limit}")
    paths = files(path)
    options = {
        "vocabulary": vocabulary,
        "length": length,
        "tokenizers": bpe.release(),
        "held_out": held_out,
        "limit": limit,
        "seed": seed,
        "files": stamp(paths.values()),
    }

    def build() -> PairTask:
        return _prepare(paths, vocabulary, length, held_out, limit, seed, progress)

    return _files.cached(cache, "mnli", PairTask, options, build)


def files(folder: Path) -> dict[str, Path]:
    """Returns the training and the development file in a folder."""
    advice = "unpack multinli_1.0.zip or GLUE's MNLI.zip and give its folder"
    _files.existing(folder, "the folder of MNLI's files", advice)
    found = {}
    for name, stems in STEMS.items():
        there = [folder / f"{stem}{end}" for stem in stems for end in ("", ".gz")]
        match = next((path for path in there if path.is_file()), None)
        if match is None:
            raise FileNotFoundError(f"{folder}: expected one of {', '.join(stems)}; {advice}")
        found[name] = match
    return found


def _prepare(
    paths: dict[str, Path],
    vocabulary: int,
    length: int,
    held_out: float,
    limit: int | None,
    seed: int,
    progress: Progress | None,
) -> PairTask:
    parts, undecided = _parts(paths, held_out, limit, seed, progress)
    for name, part in parts.items():
        if not part:
            raise ValueError(
                f"{paths['train'].parent}: expected labelled pairs in each split, got none for "
                f"{name}; raise held_out or limit"
            )
    texts = (text for row in parts["train"] for text in row[:2])
    tokenizer = bpe.byte_level(texts, vocabulary, natural=True)
    splits = {}
    for name, part in parts.items():
        a, b = (bpe.encode(tokenizer, [row[k] for row in part], progress) for k in (0, 1))
        labels = np.array([CLASSES.index(row[2]) for row in part], np.int32)
        splits[name] = Pairs(*_rows.frame(a, b, length), labels)
    facts = {
        "data": "MNLI",
        "pairs": {name: len(part) for name, part in parts.items()},
        "dropped_undecided": undecided,
    }
    return PairTask(
        **splits,
        classes=CLASSES,
        vocabulary=tokenizer.get_vocab_size(),
        tokenizer=tokenizer.to_str(),
        facts=facts,
    )


def _parts(
    paths: dict[str, Path],
    held_out: float,
    limit: int | None,
    seed: int,
    progress: Progress | None,
) -> tuple[dict[str, list[Row]], int]:
    """Reads the pairs of each split; also returns how many have no agreed label."""
    parts: dict[str, list[Row]] = {"train": [], "valid": [], "test": []}
    undecided = 0
    for name, path in paths.items():
        for number, row in enumerate(rows(path, progress)):
            if limit is not None and number == limit:
                break
            if row[2] == UNDECIDED:
                undecided += 1
            elif name == "train" and _draw(seed, row[0]) < held_out:
                parts["valid"].append(row)
            else:
                parts[name].append(row)
    return parts, undecided


def rows(path: Path, progress: Progress | None = None) -> Iterator[Row]:
    """Yields premise, hypothesis and label of every line; the label may be "undecided"."""
    json_lines = path.name.removesuffix(".gz").endswith(".jsonl")
    header: list[str] = []
    for number, line in _files.lines(path, progress):
        where = f"{path}, line {number}"
        try:
            text = line.decode()
            record = json.loads(text) if json_lines else text.split("\t")
        except ValueError as error:
            kind = "a JSON object" if json_lines else "UTF-8 text"
            raise ValueError(f"{where}: expected {kind}, got {error}") from error
        if not json_lines:
            if number == 1:
                header = record
                continue
            if len(record) != len(header):
                raise ValueError(
                    f"{where}: expected {len(header)} tab-separated fields as in the first "
                    f"line, got {len(record)}"
                )
            record = dict(zip(header, record, strict=True))
        yield _row(where, record)


def _row(where: str, record: object) -> Row:
    fields = record if isinstance(record, dict) else {}
    missing = [name for name in COLUMNS if not isinstance(fields.get(name), str)]
    if missing:
        raise ValueError(
            f"{where}: expected the fields {', '.join(COLUMNS)}, got "
            f"{', '.join(map(str, fields)) or 'none'}; missing: {', '.join(missing)}"
        )
    first, second, label = (fields[name] for name in COLUMNS)
    if label not in (*CLASSES, UNDECIDED):
        raise ValueError(
            f"{where}: expected {', '.join(CLASSES)} or '{UNDECIDED}' as gold_label, got '{label}'"
        )
    return first, second, label


def _draw(seed: int, premise: str) -> float:
    """Returns a number in [0, 1) hashed from a premise, so that its pairs stay together."""
    digest = hashlib.blake2b(f"{seed}/{premise}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
