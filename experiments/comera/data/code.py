"""Python's standard library as a corpus of code.

The library of the running Python is read where it is installed, so the corpus differs from one
Python to another: ``facts["python"]`` says which. Modules that hold generated tables are left
out. The split is by top-level package: no package, nor its tests, is in two splits.
"""

import platform
from pathlib import Path

from experiments._texts import library
from experiments._texts.types import Corpus, Progress
from experiments.comera.data import _files, _rows


def load(
    *,
    vocabulary: int = 8192,
    length: int = 128,
    tests: bool = False,
    held_out: float = 0.1,
    max_files: int | None = None,
    seed: int = 0,
    folder: Path | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Loads Python's standard library as a corpus: trains a byte-level BPE and encodes all files.

    Args:
        vocabulary: Number of tokens, at least the 261 of the bytes and the special tokens; 30,522
            is BERT's. Fewer if the texts hold no more.
        length: Tokens in a row, ``[CLS]`` and ``[SEP]`` among them.
        tests: Whether the library's tests are read too, where they are installed.
        held_out: Part of the text for validation, and again for the test, about.
        max_files: How many files to read, chosen by a hash; all by default.
        seed: Of that choice and of the split.
        folder: The library; by default that of the running Python.
        cache: Where to keep what was prepared.
        progress: Told what is being done, and how far it is.

    Raises:
        FileNotFoundError: The folder holds no library.
        ValueError: An option is out of its range, or a split stays empty.
    """
    folder = library.default_folder() if folder is None else folder
    options = library.options(
        folder, vocabulary=vocabulary, length=length, tests=tests, held_out=held_out,
        max_files=max_files, seed=seed,
    )  # fmt: skip

    def build() -> Corpus:
        found, skipped = library.sources(folder, tests=tests, limit=max_files, seed=seed)
        texts, facts = library.texts(found, skipped, held_out=held_out, seed=seed)
        named = {"data": "Python's standard library", "python": platform.python_version()}
        facts = {**named, **facts}
        return _rows.corpus(
            texts, vocabulary=vocabulary, length=length, facts=facts, progress=progress
        )

    return _files.cached(cache, "code", Corpus, options, build)
