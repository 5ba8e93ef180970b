"""Byte-level BPE tokenizers, trained on the training split."""

from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING

import numpy as np

from experiments._texts.types import Progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMALLEST = len(SPECIAL) + 256  # every byte has a token of its own
BATCH = 1024


def checked_sizes(vocabulary: int, length: int) -> None:
    """Raises ValueError unless vocabulary and length of a text task are large enough.

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
    """Returns the version of the package ``tokenizers``, on which trained vocabularies depend."""
    return metadata.version("tokenizers")


def byte_level(texts: Iterable[str], vocabulary: int, *, natural: bool = False) -> "Tokenizer":
    """Trains a byte-level BPE tokenizer, for which no text is unknown.

    Sennrich, Haddow, Birch, 2016.

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
    """Sets a tokenizer to encode special tokens in texts, such as "[MASK]", as ordinary text."""
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode(
    tokenizer: "Tokenizer", texts: Sequence[str], progress: Progress | None = None
) -> list[np.ndarray]:
    """Encodes texts as arrays of token ids (int32), without special tokens."""
    found: list[np.ndarray] = []
    for start in range(0, len(texts), BATCH):
        batch = tokenizer.encode_batch_fast(
            list(texts[start : start + BATCH]), add_special_tokens=False
        )
        found += [np.array(encoding.ids, np.int32) for encoding in batch]
        if progress is not None:
            progress("encoding texts", len(found), len(texts))
    return found
