"""Token streams from a folder of texts, split so that no package is in two splits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments._texts import bpe, library
from experiments._texts import cache as cached
from experiments._texts.library import Source
from experiments._texts.types import Corpus, Special

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
    """Loads texts as a corpus of token streams: trains a byte-level BPE and encodes all.

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
    home = library.default_folder()
    options = library.options(
        home, vocabulary=vocabulary, length=8, tests=False, held_out=held_out,
        max_files=max_files, seed=seed,
    )  # fmt: skip
    paths: list[Path] = []
    if folder is not None:
        paths = _paths(folder, endings)
        options |= {"endings": list(endings), "folder": cached.stamp([folder, *paths])}

    def build() -> Corpus:
        if folder is None:
            found, skipped = library.sources(home, tests=False, limit=max_files, seed=seed)
        else:
            found, skipped = _sources(folder, paths, max_files, seed)
        texts, facts = library.texts(found, skipped, held_out=held_out, seed=seed)
        tokenizer = bpe.byte_level(texts["train"], vocabulary)
        streams = {name: _stream(bpe.encode(tokenizer, part)) for name, part in texts.items()}
        return Corpus(
            **streams,
            vocabulary=tokenizer.get_vocab_size(),
            tokenizer=tokenizer.to_str(),
            facts={
                "data": "Python's standard library" if folder is None else str(folder.name),
                "tokens": {name: len(stream) for name, stream in streams.items()},
                **facts,
            },
        )

    programs = [Path(__file__)]
    return cached.cached(cache, "gpt2", Corpus, options, build, programs=programs)


def decoded(corpus: Corpus, ids: Any) -> str:
    """Decodes token ids to text."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(corpus.tokenizer).decode([int(token) for token in ids])


def encoded(corpus: Corpus, text: str) -> list[int]:
    """Encodes a text as token ids."""
    from tokenizers import Tokenizer

    tokenizer = bpe.as_text_only(Tokenizer.from_str(corpus.tokenizer))
    return tokenizer.encode(text, add_special_tokens=False).ids


def windows(stream: np.ndarray, length: int, most: int | None = None) -> np.ndarray:
    """Cuts a token stream into rows (n, length + 1) of inputs and shifted targets.

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
    """Reads the texts of a folder; also counts the files that are not text."""
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    chosen = sorted(sorted(names, key=lambda name: library.rank(seed, name))[:limit])
    found, skipped = [], 0
    for name in chosen:
        try:
            text = names[name].read_text(encoding="utf-8")
        except UnicodeDecodeError:
            skipped += 1
            continue
        found.append(Source(name.split("/")[0], name, text))
    return found, skipped
