"""Vocabularies in an order in which tokens that are used alike are neighbours."""

import numpy as np
import pytest

from experiments.comera import ordering

FIRST = 5


def sentences(rng: np.random.Generator, kinds: int, each: int, rows: int) -> tuple:
    """Rows of tokens whose kinds follow each other in turn, and the kind of every token."""
    kind = rng.permutation(np.repeat(np.arange(kinds), each))
    tokens = np.empty((rows, 24), np.int32)
    for row in tokens:
        for place in range(len(row)):
            row[place] = FIRST + rng.choice(np.flatnonzero(kind == place % kinds))
    tokens[:, 0] = 2  # a special token, as every row has one
    return tokens, kind


@pytest.mark.parametrize("kinds", [2, 4])
def test_tokens_of_one_kind_are_together(rng, kinds) -> None:
    tokens, kind = sentences(rng, kinds, each=16, rows=400)
    ids = ordering.by_neighbours(tokens, FIRST + len(kind), FIRST)
    found = np.empty_like(kind)
    found[ids[FIRST:] - FIRST] = kind
    changes = np.count_nonzero(np.diff(found))
    assert changes == kinds - 1
    assert np.count_nonzero(np.diff(kind)) > 4 * changes  # as they came, they were mixed


def test_ids_are_exchanged_and_special_ones_stay(rng) -> None:
    tokens, kind = sentences(rng, 2, each=30, rows=50)
    vocabulary = FIRST + len(kind) + 7  # seven tokens of which the texts have none
    ids = ordering.by_neighbours(tokens, vocabulary, FIRST)
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids[:FIRST], np.arange(FIRST))
    np.testing.assert_array_equal(np.sort(ids), np.arange(vocabulary))
    np.testing.assert_array_equal(ids, ordering.by_neighbours(tokens, vocabulary, FIRST))


def test_long_texts_are_sampled(rng, monkeypatch) -> None:
    tokens, kind = sentences(rng, 2, each=8, rows=40)
    vocabulary = FIRST + len(kind)
    few = ordering.by_neighbours(tokens[[0, 13, 26, 39]], vocabulary, FIRST)
    monkeypatch.setattr(ordering, "LOOKED_AT", 4 * tokens.shape[1])
    np.testing.assert_array_equal(ordering.by_neighbours(tokens, vocabulary, FIRST), few)
