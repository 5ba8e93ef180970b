"""Streams of tokens from a folder of texts, split so that no package is in two splits."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.comera.data import _cache, _stdlib, _text
from experiments.comera.data._stdlib import SPLITS, Source
from experiments.comera.data._types import Corpus, Special

END = Special().sep  # between two files
LARGEST = 2**21  # bytes of a file; what is larger is data, not text


def load(
    *,
    folder: Path | None,
    endings: Sequence[str],
    vocabulary: int,
    held_out: float,
    max_files: int | None,
    seed: int,
    cache: Path | None,
) -> Corpus:
    """Reads texts, trains a byte-level BPE on the training split, and encodes all.

    Args:
        folder: Files or folders, each top-level one a package; None for the library of the
            running Python, without its tests.
        endings: Of the names of files that are read from ``folder``.
        vocabulary: Number of tokens, at least 261: the bytes and five special ones.
        held_out: Part of the text for validation, and again for the test, about.
        max_files: How many files to read, chosen by a hash; all by default.
        seed: Of that choice and of the split.
        cache: Where to keep what was prepared.

    Returns:
        A corpus whose splits are streams: (n,) int32, the files one behind the other, each with
        ``[SEP]`` after it.

    Raises:
        FileNotFoundError: The folder is missing, or holds no such files.
        ValueError: An option is out of its range, or a split stays empty.
    """
    library = _stdlib.default_folder()
    options = _stdlib.options(
        library, vocabulary=vocabulary, length=8, tests=False, held_out=held_out,
        max_files=max_files, seed=seed,
    )  # fmt: skip
    own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    options |= {"program": own}
    paths: list[Path] = []
    if folder is not None:
        paths = _paths(folder, endings)
        options |= {"endings": list(endings), "folder": _cache.stamp([folder, *paths])}

    def build() -> Corpus:
        if folder is None:
            found, skipped = _stdlib.sources(library, tests=False, limit=max_files, seed=seed)
        else:
            found, skipped = _sources(folder, paths, max_files, seed)
        sizes = Counter[str]()
        for source in found:
            sizes[source.package] += len(source.text)
        assigned = _stdlib.split(sizes, held_out=held_out, seed=seed)
        texts = {
            name: [source.text for source in found if assigned[source.package] == name]
            for name in SPLITS
        }
        tokenizer = _text.byte_level(texts["train"], vocabulary)
        streams = {name: _stream(_text.encode(tokenizer, part)) for name, part in texts.items()}
        facts = {
            "data": "Python's standard library" if folder is None else str(folder.name),
            "files": {name: len(part) for name, part in texts.items()},
            "characters": {name: sum(map(len, part)) for name, part in texts.items()},
            "tokens": {name: len(stream) for name, stream in streams.items()},
            "skipped_undecodable": skipped,
            "packages": {name: sorted(p for p in sizes if assigned[p] == name) for name in SPLITS},
        }
        return Corpus(
            **streams,
            vocabulary=tokenizer.get_vocab_size(),
            tokenizer=tokenizer.to_str(),
            facts=facts,
        )

    return _cache.cached(cache, "gpt2", Corpus, options, build)


def decoded(corpus: Corpus, tokens: Any) -> str:
    """The text that tokens stand for."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(corpus.tokenizer).decode([int(token) for token in tokens])


def encoded(corpus: Corpus, text: str) -> list[int]:
    """The tokens of a text."""
    from tokenizers import Tokenizer

    tokenizer = _text.as_text_only(Tokenizer.from_str(corpus.tokenizer))
    return tokenizer.encode(text, add_special_tokens=False).ids


def windows(stream: np.ndarray, length: int, most: int | None = None) -> np.ndarray:
    """Rows (n, length + 1) that cover a stream: inputs and, one further, targets.

    The last token of a row is the first one of the next, so that every token but the first is a
    target once. What does not fill a row is left out.

    Args:
        stream: (n,) tokens.
        length: Of the inputs.
        most: How many rows to keep, evenly spread; all by default.

    Raises:
        ValueError: The stream is shorter than one row.

    >>> windows(np.arange(8), 3).tolist()
    [[0, 1, 2, 3], [3, 4, 5, 6]]
    """
    count = (len(stream) - 1) // length
    if count < 1:
        raise ValueError(
            f"length: expected less than the {len(stream)} tokens of a split, got {length}; "
            "give more texts"
        )
    chosen = np.arange(count)
    if most is not None and count > most:
        chosen = np.linspace(0, count - 1, most).astype(np.int64)
    return stream[chosen[:, None] * length + np.arange(length + 1)]


def _stream(encoded: Sequence[np.ndarray]) -> np.ndarray:
    end = np.array([END], np.int32)
    return np.concatenate([part for tokens in encoded for part in (tokens, end)])


def _paths(folder: Path, endings: Sequence[str]) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: expected a folder of texts, found none")
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in endings and path.is_file() and path.stat().st_size <= LARGEST
    )
    if not found:
        raise FileNotFoundError(
            f"{folder}: expected files that end in {', '.join(endings)}, found none; see --endings"
        )
    return found


def _sources(
    folder: Path, paths: Sequence[Path], limit: int | None, seed: int
) -> tuple[list[Source], int]:
    """The texts of a folder, and how many of its files were none."""
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    chosen = sorted(sorted(names, key=lambda name: _stdlib.rank(seed, name))[:limit])
    found, skipped = [], 0
    for name in chosen:
        try:
            text = names[name].read_text(encoding="utf-8")
        except UnicodeDecodeError:
            skipped += 1
            continue
        found.append(Source(name.split("/")[0], name, text))
    return found, skipped
