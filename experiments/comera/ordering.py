"""Order of a vocabulary in which tokens of similar use are near each other.

A tensor train over the digits of an id shares parameters between ids with digits in common: the
order of the ids is part of the model, while tables and their low-rank factors do not see it. Ids of
a BPE are in the order in which they were merged, which says little; this order is found from the
training texts alone, by the words beside each token (positive pointwise mutual information, its
leading singular vectors; O. Levy, Y. Goldberg, NeurIPS 2014) and halving along the main direction.
"""

import numpy as np

DIMENSIONS = 48  # singular vectors that describe a token
DISTANCE = 2  # words on either side that count as beside it
SMALLEST = 8  # groups up to this size are ordered by frequency
LOOKED_AT = 2**22  # tokens of the texts, at most; rows evenly spaced
SAMPLE = 2000  # tokens of a group that its main direction is found from


def by_neighbours(tokens: np.ndarray, vocabulary: int, first: int) -> np.ndarray:
    """Renumbers a vocabulary so that tokens with similar neighbours are near each other.

    Returns new ids (vocabulary,) int32 by old ones; those below ``first`` are kept.

    Args:
        tokens: Rows (n, length) of the training texts.
        vocabulary: Number of tokens.
        first: The first id that is no special token's.
    """
    rows = min(len(tokens), max(1, LOOKED_AT // tokens.shape[1]))
    tokens = tokens[np.linspace(0, len(tokens) - 1, rows).astype(int)]
    vectors = _vectors(tokens, vocabulary, first)
    counts = np.bincount(tokens.ravel(), minlength=vocabulary)
    found = _halved(np.arange(first, vocabulary), vectors, np.log1p(counts))
    ids = np.arange(vocabulary, dtype=np.int32)
    ids[np.concatenate(found)] = np.arange(first, vocabulary)
    return ids


def _vectors(tokens: np.ndarray, vocabulary: int, first: int) -> np.ndarray:
    """Computes unit vectors (vocabulary, k) that are close for tokens with the same neighbours."""
    from scipy import sparse
    from scipy.sparse import linalg

    who, beside = [], []
    for distance in range(1, DISTANCE + 1):
        left, right = tokens[:, :-distance].ravel(), tokens[:, distance:].ravel()
        words = (left >= first) & (right >= first)
        left, right = left[words].astype(np.int64), right[words].astype(np.int64)
        place = 2 * (distance - 1) * vocabulary
        who += [left, right]
        beside += [right + place, left + place + vocabulary]
    rows, columns = np.concatenate(who), np.concatenate(beside)
    shape = (vocabulary, 2 * DISTANCE * vocabulary)
    counts = sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape).tocsr().tocoo()
    often = np.bincount(columns, minlength=shape[1]) ** 0.75  # rare neighbours weigh less
    expected = np.bincount(rows)[counts.row] * (often / often.sum())[counts.col]
    information = np.maximum(np.log(counts.data / expected), 0.0)
    matrix = sparse.csr_array((information, (counts.row, counts.col)), shape)
    start = np.random.default_rng(0).standard_normal(vocabulary)
    left, values, _ = linalg.svds(matrix, k=min(DIMENSIONS, vocabulary - 1), v0=start)
    vectors = left * np.sqrt(values)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def _halved(ids: np.ndarray, vectors: np.ndarray, often: np.ndarray) -> list[np.ndarray]:
    """Orders ids by repeated halving along the main direction, the frequent half first."""
    if len(ids) <= SMALLEST:
        return [ids[np.argsort(-often[ids], kind="stable")]]
    centred = vectors[ids] - vectors[ids].mean(0)
    some = np.linspace(0, len(ids) - 1, min(len(ids), SAMPLE)).astype(int)
    along = centred @ np.linalg.svd(centred[some], full_matrices=False)[2][0]
    if along @ (often[ids] - often[ids].mean()) < 0:
        along = -along
    ids = ids[np.argsort(-along, kind="stable")]
    middle = (len(ids) + 1) // 2
    first, second = ids[:middle], ids[middle:]
    return _halved(first, vectors, often) + _halved(second, vectors, often)
