"""Maxvol: rows of nearly maximal volume, and the index sets that they give for a train's bonds."""

import numpy as np

from tensorjax._cores.contractions import times_right
from tensorjax._cores.scaling import in_range
from tensorjax._cores.unfoldings import Cores, wide

# Rows are swapped as long as the volume grows by more than this factor, which makes few swaps
# enough; the second number only bounds them.
_GROWTH, _MAX_SWAPS = 1.05, 100


def maxvol(matrix: np.ndarray) -> np.ndarray:
    """Finds rows of a tall matrix whose square submatrix has nearly the largest volume |det|.

    Args:
      matrix: (m, r), m ≥ r, of full column rank.

    Returns:
      (r,) rows; every other row is a combination of them with coefficients up to 1.05.

    Example:
      >>> import numpy as np
      >>> print(sorted(maxvol(np.array([[1.0, 0.0], [0.1, 0.1], [0.0, 3.0]])).tolist()))
      [0, 2]

    Source: S. Goreinov et al., "How to find a good submatrix" (2010), the algorithm maxvol. The
    first rows are those of Gaussian elimination with row pivoting.
    """
    q = np.linalg.qr(matrix)[0]
    rows = _pivot_rows(q)
    coefficients = np.linalg.solve(q[rows].T, q.T).T
    for _ in range(_MAX_SWAPS):
        i, j = divmod(int(np.abs(coefficients).argmax()), len(rows))
        if abs(coefficients[i, j]) <= _GROWTH:
            break
        rows[j] = i
        change = coefficients[i].copy()
        change[j] -= 1
        coefficients -= np.outer(coefficients[:, j] / coefficients[i, j], change)
    return rows


def _pivot_rows(matrix: np.ndarray) -> np.ndarray:
    work = matrix.copy()
    rows = np.empty(work.shape[1], np.int64)
    for j in range(work.shape[1]):
        rows[j] = i = int(np.abs(work[:, j]).argmax())
        work[:, j:] -= np.outer(work[:, j] / work[i, j], work[i, j:])
        work[rows[: j + 1]] = 0
    return rows


def right_sets(cores: Cores) -> list[np.ndarray]:
    """Finds the right index sets of a train's bonds by maxvol, from the last bond to the first.

    From right to left, each set within mode k × the set after it. A bond of rank above what its
    cores span gives some multi-indices that the others determine already.

    Source: I. Oseledets, E. Tyrtyshnikov, "TT-cross approximation for multidimensional arrays",
    Linear Algebra Appl. 432 (2010), its sweep from right to left, on a given train.
    """
    sets: list[np.ndarray] = []
    right = np.zeros((1, 0), np.int64)
    core = in_range(cores[-1])
    for k in range(len(cores) - 1, 0, -1):
        q, r = np.linalg.qr(wide(core).T)
        rows = maxvol(q)
        mode, parent = np.divmod(rows, len(right))
        right = np.concatenate([mode[:, None], right[parent]], axis=1)
        sets.append(right)
        # The bond is now numbered by the entries picked.
        core = in_range(times_right(in_range(cores[k - 1]), (q[rows] @ r).T))
    return sets[::-1]
