"""Tokenizers trained on the training split, and token arrays for encoders."""

from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING

import numpy as np

from experiments.comera.data._files import Progress
from experiments.comera.data._types import Special

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMALLEST = len(SPECIAL) + 256  # every byte has a token of its own
BATCH = 1024


def checked_sizes(vocabulary: int, length: int) -> None:
    """Checks the options that every task on texts has.

    Raises:
        ValueError: If the vocabulary cannot hold all bytes, or nothing fits into the length.
    """
    if vocabulary < SMALLEST:
        raise ValueError(
            f"vocabulary: expected at least {SMALLEST} tokens (the bytes and {len(SPECIAL)} "
            f"special ones), got {vocabulary}"
        )
    if length < 8:
        raise ValueError(f"length: expected at least 8 tokens, got {length}")


def release() -> str:
    """The release of ``tokenizers``, on which a trained vocabulary depends."""
    return metadata.version("tokenizers")


def byte_level(texts: Iterable[str], vocabulary: int, *, natural: bool = False) -> "Tokenizer":
    """Trains byte-pair encoding on bytes: no text is unknown (Sennrich, Haddow, Birch, 2016).

    WordPiece would be BERT's choice for natural language, but as ``tokenizers`` trains it, the
    same texts give other vocabularies from run to run.

    Args:
        texts: What to learn from.
        vocabulary: Number of tokens; fewer if the texts hold no more.
        natural: Whether the texts are of natural language: then case is folded, and a word is the
            same at the beginning of a text as behind a space.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    if natural:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=natural)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return as_text_only(tokenizer)


def as_text_only(tokenizer: "Tokenizer") -> "Tokenizer":
    """Makes "[MASK]" in a text four or more ordinary tokens, not the special one."""
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode(
    tokenizer: "Tokenizer", texts: Sequence[str], progress: Progress | None = None
) -> list[np.ndarray]:
    """The tokens of each text, int32, without special ones."""
    found: list[np.ndarray] = []
    for start in range(0, len(texts), BATCH):
        batch = tokenizer.encode_batch_fast(
            list(texts[start : start + BATCH]), add_special_tokens=False
        )
        found += [np.array(encoding.ids, np.int32) for encoding in batch]
        if progress is not None:
            progress("encoding texts", len(found), len(texts))
    return found


def windows(encoded: Iterable[np.ndarray], length: int) -> np.ndarray:
    """Cuts texts into rows ``[CLS] tokens [SEP]``, the last of each padded.

    The rest of a text is dropped where it would fill less than a quarter of a row and is not
    all of the text.

    >>> windows([np.arange(10, 22, dtype=np.int32)], 8)
    array([[ 2, 10, 11, 12, 13, 14, 15,  3],
           [ 2, 16, 17, 18, 19, 20, 21,  3]], dtype=int32)
    """
    inner, special = length - 2, Special()
    rows = []
    for tokens in encoded:
        for start in range(0, len(tokens), inner):
            piece = tokens[start : start + inner]
            if start == 0 or len(piece) >= inner / 4:
                rows.append(piece)
    out = np.full((len(rows), length), special.pad, np.int32)
    for row, piece in zip(out, rows, strict=True):
        row[0], row[len(piece) + 1] = special.cls, special.sep
        row[1 : len(piece) + 1] = piece
    return out


def frame(
    first: Sequence[np.ndarray], second: Sequence[np.ndarray], length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows ``[CLS] a [SEP] b [SEP]`` and the segments; the longer text of a pair is cut first.

    >>> frame([np.array([7, 8, 9])], [np.array([5])], 6)[0].tolist()
    [[2, 7, 8, 3, 5, 3]]
    """
    special, budget = Special(), length - 3
    tokens = np.full((len(first), length), special.pad, np.int32)
    segments = np.zeros((len(first), length), np.int32)
    for row, segment, a, b in zip(tokens, segments, first, second, strict=True):
        m = min(len(b), max(budget // 2, budget - len(a)))
        n = min(len(a), budget - m)
        row[0], row[n + 1], row[n + m + 2] = special.cls, special.sep, special.sep
        row[1 : n + 1], row[n + 2 : n + m + 2] = a[:n], b[:m]
        segment[n + 2 : n + m + 3] = 1
    return tokens, segments
