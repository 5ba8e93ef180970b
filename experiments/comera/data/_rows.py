"""Rows of token ids, and corpora made of texts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments._texts import bpe
from experiments._texts.types import Corpus, Progress, Special


def windows(encoded: Iterable[np.ndarray], length: int) -> np.ndarray:
    """Cuts token sequences into rows ``[CLS] tokens [SEP]``, padded at the end.

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
    """Joins pairs of token sequences to rows ``[CLS] a [SEP] b [SEP]``, with segment ids.

    The longer text of a pair is cut first.

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
    splits = {name: windows(part, length) for name, part in encoded.items()}
    return Corpus(
        **splits,
        vocabulary=tokenizer.get_vocab_size(),
        tokenizer=tokenizer.to_str(),
        facts={**facts, "tokens": tokens},
    )
