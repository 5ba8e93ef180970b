"""CodeSearchNet as published: JSON lines, one function each (Husain et al., arXiv 1909.09436)."""

import json
from pathlib import Path

from experiments._texts import bpe
from experiments._texts.cache import stamp
from experiments._texts.types import Corpus, Progress
from experiments.comera.data import _files, _rows

CODE = ("code", "original_string")
PART = ("partition", "split")
NAMES = {"train": "train", "valid": "valid", "validation": "valid", "dev": "valid", "test": "test"}


def load(
    path: Path,
    *,
    vocabulary: int = 30_522,
    length: int = 128,
    limit: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Loads CodeSearchNet's functions as a corpus, from a file or all files of a folder.

    A function is the field "code" (or "original_string"), its split "partition" (or "split").

    Args:
        path: A file, or a folder such as ``python/final/jsonl``, searched with all below it.
        vocabulary: Number of tokens; fewer if the texts hold no more.
        length: Tokens in a row, ``[CLS]`` and ``[SEP]`` among them.
        limit: How many functions of each split to read, the first; all by default.
        cache: Where to keep what was prepared.
        progress: Told what is being done, and how far it is.

    Raises:
        FileNotFoundError: There is no such file, or none in the folder.
        ValueError: A line is malformed, a split is empty, or an option is out of its range.
    """
    bpe.checked_sizes(vocabulary, length)
    if limit is not None and limit < 1:
        raise ValueError(f"limit: expected at least 1 function, got {limit}")
    paths = files(path)
    options = {
        "vocabulary": vocabulary,
        "length": length,
        "tokenizers": bpe.release(),
        "limit": limit,
        "files": stamp(paths),
    }

    def build() -> Corpus:
        texts = read(paths, limit, progress)
        for name, part in texts.items():
            if not part:
                raise ValueError(
                    f"{path}: expected functions of the splits {', '.join(texts)}, got none for "
                    f"{name}; give the folder that holds the files of all three"
                )
        facts = {
            "data": "CodeSearchNet",
            "functions": {name: len(part) for name, part in texts.items()},
        }
        return _rows.corpus(
            texts, vocabulary=vocabulary, length=length, facts=facts, progress=progress
        )

    return _files.cached(cache, "codesearchnet", Corpus, options, build)


def files(path: Path) -> list[Path]:
    """Returns the data files that a path stands for, sorted by name."""
    advice = "unpack the published python.zip and give its folder python/final/jsonl"
    _files.existing(path, "a .jsonl file of CodeSearchNet, or a folder of them", advice)
    if path.is_file():
        return [path]
    found = sorted([*path.rglob("*.jsonl"), *path.rglob("*.jsonl.gz")])
    if not found:
        raise FileNotFoundError(f"{path}: expected .jsonl or .jsonl.gz files, found none; {advice}")
    return found


def read(paths: list[Path], limit: int | None, progress: Progress | None) -> dict[str, list[str]]:
    """Reads the functions of each split, in the order of the files."""
    texts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for path in paths:
        for number, line in _files.lines(path, progress):
            name, text = function(path, number, line)
            if limit is None or len(texts[name]) < limit:
                texts[name].append(text)
    return texts


def function(path: Path, number: int, line: bytes) -> tuple[str, str]:
    """Parses a line of CodeSearchNet: returns the split and the text of the function."""
    where = f"{path}, line {number}"
    try:
        record = json.loads(line)
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are such
        raise ValueError(f"{where}: expected a JSON object, got {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(record).__name__}")
    found = []
    for names in (PART, CODE):
        value = next((record[name] for name in names if name in record), None)
        if not isinstance(value, str):
            raise ValueError(
                f"{where}: expected text in the field '{names[0]}' or '{names[1]}', got the "
                f"fields {', '.join(record)}; give the files as published"
            )
        found.append(value)
    if found[0] not in NAMES:
        raise ValueError(
            f"{where}: expected one of {', '.join(NAMES)} as the split, got '{found[0]}'"
        )
    return NAMES[found[0]], found[1]
