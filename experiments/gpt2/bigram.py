"""Smoothed bigram models of the same tokens, as a baseline for the language model.

Source: R. Kneser, H. Ney, "Improved backing-off for m-gram language modeling", ICASSP 1995, in the
interpolated form of S. F. Chen, J. Goodman, "An empirical study of smoothing techniques for
language modeling", Computer Speech & Language 13 (1999), section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DISCOUNTS = (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
ADDED = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts of adjacent token pairs in a stream, with statistics for smoothing.

    Attributes:
        size: Number of tokens of the vocabulary.
        keys: (p,) int64, sorted: first · size + second of every pair that occurs.
        pairs: (p,) how often.
        firsts: (size,) how often a token is the first of a pair.
        followers: (size,) how many different tokens follow a token.
        leaders: (size,) how many different tokens a token follows.
    """

    size: int
    keys: np.ndarray
    pairs: np.ndarray
    firsts: np.ndarray
    followers: np.ndarray
    leaders: np.ndarray

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns first and second tokens of all adjacent pairs in rows, and the pairs' counts."""
        first, second = rows[:, :-1].ravel().astype(np.int64), rows[:, 1:].ravel()
        wanted = first * self.size + second
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return first, second, np.where(self.keys[place] == wanted, self.pairs[place], 0)


def count(stream: np.ndarray, size: int) -> Counts:
    """Counts the adjacent pairs in a stream of tokens below ``size``."""
    first, second = stream[:-1].astype(np.int64), stream[1:]
    keys, pairs = np.unique(first * size + second, return_counts=True)
    return Counts(
        size=size,
        keys=keys,
        pairs=pairs,
        firsts=np.bincount(first, minlength=size),
        followers=np.bincount(keys // size, minlength=size),
        leaders=np.bincount(keys % size, minlength=size),
    )


def kneser_ney(counts: Counts, rows: np.ndarray, discount: float, lower: float) -> float:
    """Computes the mean loss −log p of a bigram model with interpolated Kneser–Ney smoothing.

        p(w | v) = max(c(v w) − D, 0) / c(v) + D N(v ·) / c(v) · q(w),
        q(w) = max(N(· w) − D', 0) / N(· ·) + D' |{w : N(· w) > 0}| / N(· ·) / V,

    where N counts different pairs. The last term gives tokens that were never seen a part.

    Args:
        counts: Of the training stream.
        rows: (n, length + 1) tokens; every neighbour in a row is a prediction.
        discount: D.
        lower: D' of the lower order.
    """
    first, second, seen = counts.of(rows)
    kinds = counts.leaders.sum()
    q = np.maximum(counts.leaders - lower, 0) / kinds
    q += lower * (counts.leaders > 0).sum() / kinds / counts.size
    total = np.maximum(counts.firsts[first], 1)
    kept = np.maximum(seen - discount, 0) / total
    # Behind a token that was never a first one, all goes to the lower order.
    rest = np.where(counts.firsts[first] > 0, discount * counts.followers[first] / total, 1.0)
    return float(-np.log(kept + rest * q[second]).mean())


def add_k(counts: Counts, rows: np.ndarray, k: float) -> float:
    """Computes the mean loss −log p of a bigram model with add-k smoothing.

    p(w | v) = (c(v w) + k) / (c(v) + k V).
    """
    first, _, seen = counts.of(rows)
    return float(-np.log((seen + k) / (counts.firsts[first] + k * counts.size)).mean())


def unigram(counts: Counts, rows: np.ndarray) -> float:
    """Computes the mean loss −log p of a unigram model, which ignores context."""
    seen = np.bincount(counts.keys % counts.size, counts.pairs, minlength=counts.size)
    p = (seen + 1) / (seen.sum() + counts.size)  # add-one smoothing: all tokens are possible
    return float(-np.log(p[rows[:, 1:]]).mean())


def baselines(
    stream: np.ndarray, size: int, valid: np.ndarray, test: np.ndarray
) -> Sequence[dict[str, float | str]]:
    """Computes the losses of all n-gram models, each tuned on validation data.

    Args:
        stream: Training tokens.
        size: Of the vocabulary.
        valid: (n, length + 1) rows to tune on.
        test: (m, length + 1) rows to report.
    """
    counts = count(stream, size)
    pairs = [(d, e) for d in DISCOUNTS for e in (0.5, 0.75, 0.95)]
    d, e = min(pairs, key=lambda pair: kneser_ney(counts, valid, *pair))
    k = min(ADDED, key=lambda k: add_k(counts, valid, k))
    return [
        {
            "model": "unigram",
            "setting": "add 1",
            "valid": unigram(counts, valid),
            "test": unigram(counts, test),
        },
        {
            "model": "bigram, add k",
            "setting": f"k = {k:g}",
            "valid": add_k(counts, valid, k),
            "test": add_k(counts, test, k),
        },
        {
            "model": "bigram, Kneser–Ney",
            "setting": f"D = {d:g}, {e:g}",
            "valid": kneser_ney(counts, valid, d, e),
            "test": kneser_ney(counts, test, d, e),
        },
    ]
