"""Data classes of the loaders: arrays in three splits, and facts on them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments._texts.types import Tokenized


@dataclass(frozen=True, eq=False)
class Tabular:
    """Split of a task on tables: dense features, category ids, labels.

    Attributes:
        dense: (n, d) float32.
        ids: (n, t) int32; column k holds rows of table k, and 0 is a category that was rare or
            absent in training.
        labels: (n,) int32, 0 or 1.
    """

    dense: np.ndarray
    ids: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, eq=False)
class TabularTask:
    """Task of binary classification of rows with dense and categorical features.

    Attributes:
        train: The rows to learn from.
        valid: The rows to choose by.
        test: The rows to report.
        tables: Number of rows of each of the t embedding tables.
        table_names: What they hold.
        dense_names: What the d columns hold.
        facts: What a reader of the results should know, as JSON can hold it; ``occupied`` counts
            the rows of each table that occur in training.
    """

    train: Tabular
    valid: Tabular
    test: Tabular
    tables: tuple[int, ...]
    table_names: tuple[str, ...]
    dense_names: tuple[str, ...]
    facts: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Split of a task on pairs of texts: tokens, segments, labels.

    Attributes:
        tokens: (n, length) int32, ``[CLS] a [SEP] b [SEP]`` and padding.
        segments: (n, length) int32, 1 on ``b [SEP]`` and 0 elsewhere.
        labels: (n,) int32, indices of classes.
    """

    tokens: np.ndarray
    segments: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class PairTask(Tokenized):
    """Task of classifying pairs of texts.

    Attributes:
        train: The pairs to learn from.
        valid: The pairs to choose by.
        test: The pairs to report.
        classes: Names of the classes.
    """

    train: Pairs
    valid: Pairs
    test: Pairs
    classes: tuple[str, ...]
