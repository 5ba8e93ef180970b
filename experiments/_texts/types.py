"""What the loaders of texts return and are told: a corpus, special tokens, progress."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

# What is being done, how much of it is done, and how much there is of it.
Progress = Callable[[str, int, int], None]


class Special(NamedTuple):
    """The ids of the tokens that stand for no text, the first of every vocabulary."""

    pad: int = 0
    unk: int = 1
    cls: int = 2
    sep: int = 3
    mask: int = 4


@dataclass(frozen=True, eq=False, kw_only=True)
class Tokenized:
    """What is known of texts as tokens, whatever they are for.

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
        """The ids of the special tokens."""
        return Special()


@dataclass(frozen=True, eq=False, kw_only=True)
class Corpus(Tokenized):
    """Text for a language model, as tokens.

    Attributes:
        train: int32: (n,), a stream, or (n, length), rows ``[CLS] text [SEP]`` and padding.
        valid: The same, of other packages.
        test: The same, of others still.
    """

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
