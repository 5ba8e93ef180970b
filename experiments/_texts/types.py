"""Types of the text loaders: corpus, special tokens, progress callback."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

# What is being done, how much of it is done, and how much there is of it.
Progress = Callable[[str, int, int], None]


class Special(NamedTuple):
    """Ids of the special tokens, which are the first of every vocabulary."""

    pad: int = 0
    unk: int = 1
    cls: int = 2
    sep: int = 3
    mask: int = 4


@dataclass(frozen=True, eq=False, kw_only=True)
class Tokenized:
    """Base class of tokenised data: vocabulary, tokenizer, and facts on the texts.

    Attributes:
        vocabulary: Number of tokens, the special ones included.
        tokenizer: The trained tokenizer, as JSON that ``tokenizers`` reads.
        facts: What a reader of the results should know.
    """

    vocabulary: int
    tokenizer: str
    facts: Mapping[str, Any]

    @property
    def special(self) -> Special:
        """Ids of the special tokens of the vocabulary."""
        return Special()


@dataclass(frozen=True, eq=False, kw_only=True)
class Corpus(Tokenized):
    """Corpus for a language model: token ids in train, valid and test splits.

    Attributes:
        train: int32: (n,), a stream, or (n, length), rows ``[CLS] text [SEP]`` and padding.
        valid: The same, of other packages.
        test: The same, of others still.
    """

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
