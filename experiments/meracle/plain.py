"""Reference method in plain NumPy, to compare with: no compilation, no batches.

One pair after the other: Procrustes iterations from the identity, a full SVD in each, for a rank
that is given; they end when the energy beyond that rank is within the tolerance.
"""

from collections.abc import Sequence

import numpy as np

ITERATIONS = 1000


def layer(cores: Sequence[np.ndarray], ranks: Sequence[int], tol: float) -> list[int]:
    """Disentangles the pairs (1, 2), (3, 4), … of a train's cores in plain NumPy.

    Args:
      cores: (r, n, s), right-orthogonal.
      ranks: the rank that each pair is to reach.
      tol: relative error allowed in all.

    Returns:
      The rank of each pair at the tolerance, after at most `ITERATIONS` iterations.
    """
    cores = list(cores)
    tail = tol**2 * float(np.linalg.norm(cores[0])) ** 2 / (2 * len(ranks) + 1)
    reached = []
    for i in range(len(cores) - 1):
        if i % 2:
            pair = np.tensordot(cores[i], cores[i + 1], 1)
            reached.append(_disentangled(pair, ranks[i // 2], tail))
        q, r = np.linalg.qr(cores[i].reshape(-1, cores[i].shape[-1]))
        cores[i] = q.reshape(*cores[i].shape[:2], -1)
        cores[i + 1] = np.tensordot(r, cores[i + 1], 1)
    return reached


def right_orthogonal(cores: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Orthogonalises a train from the right; all but its first core are orthogonal."""
    cores = list(cores)
    for i in reversed(range(1, len(cores))):
        q, r = np.linalg.qr(cores[i].reshape(cores[i].shape[0], -1).T)
        cores[i] = q.T.reshape(-1, *cores[i].shape[1:])
        cores[i - 1] = np.tensordot(cores[i - 1], r.T, 1)
    return cores


def _disentangled(pair: np.ndarray, rank: int, tail: float) -> int:
    r, n, m, s = pair.shape
    x = pair.transpose(1, 2, 0, 3).reshape(n * m, r * s)
    values = np.zeros(1)
    for _ in range(ITERATIONS):
        across = x.reshape(n, m, r, s).transpose(2, 0, 1, 3).reshape(r * n, m * s)
        u, values, vh = np.linalg.svd(across, full_matrices=False)
        if np.sum(values[rank:] ** 2) <= tail:
            break
        best = (u[:, :rank] * values[:rank]) @ vh[:rank]
        best = best.reshape(r, n, m, s).transpose(1, 2, 0, 3).reshape(n * m, r * s)
        p, _, qh = np.linalg.svd(best @ x.T)
        x = p @ qh @ x
    rest = np.cumsum(values[::-1] ** 2)[::-1]
    return max(1, int(np.sum(rest > tail)))
