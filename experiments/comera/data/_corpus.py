"""Corpus for masked-language modelling from texts in three splits."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments._texts import bpe
from experiments._texts.types import Corpus, Progress
from experiments.comera.data import _rows


def corpus(
    texts: Mapping[str, Sequence[str]],
    *,
    vocabulary: int,
    length: int,
    facts: Mapping[str, Any],
    progress: Progress | None,
) -> Corpus:
    """Builds a corpus: trains a byte-level BPE, and cuts all texts into rows of tokens.

    Args:
        texts: What is in the splits train, valid and test.
        vocabulary: Number of tokens to train; fewer if the texts hold no more.
        length: Tokens in a row, ``[CLS]`` and ``[SEP]`` among them.
        facts: What is known of the texts; the numbers of tokens are added.
        progress: Told how far the encoding is.
    """
    tokenizer = bpe.byte_level(texts["train"], vocabulary)
    encoded = {name: bpe.encode(tokenizer, part, progress) for name, part in texts.items()}
    tokens = {name: sum(map(len, part)) for name, part in encoded.items()}
    splits = {name: _rows.windows(part, length) for name, part in encoded.items()}
    return Corpus(
        **splits,
        vocabulary=tokenizer.get_vocab_size(),
        tokenizer=tokenizer.to_str(),
        facts={**facts, "tokens": tokens},
    )
