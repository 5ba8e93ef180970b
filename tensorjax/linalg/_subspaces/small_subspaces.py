"""Leading subspaces of small NumPy matrices by one Gram matrix, with little call overhead.

In double precision, with no choice between methods and no attempt that may fail; see
`subspaces_on_host.leading` for these.
"""

import functools
from typing import Any

import numpy as np

from tensorjax.linalg._gram import host_gram
from tensorjax.linalg._subspaces.choose import GRAM_NOISE, gram_floor
from tensorjax.linalg._subspaces.subspaces_on_host import Asked, Subspace, all_needed, leading

# From _WHOLE rows on it pays to test first whether the full rank is needed. From _SKETCHED rows on
# a random sketch may be cheaper.
_WHOLE, _SKETCHED = 32, 96


@functools.cache
def least_share(dtype: Any) -> float:
    """Returns the least share of energy that a Gram matrix of a small host array can discard."""
    return 2 * GRAM_NOISE * gram_floor(np.result_type(dtype, np.float64), 1)


def small_leading(a: np.ndarray, asked: Asked, *, right: bool = False) -> Subspace:
    """Computes the leading left or right singular subspace of a small NumPy matrix.

    Args:
      a: (m, n), of double precision.
      asked: ``tail``, the energy that may be discarded; ``whole``, to test for the full rank first.
      right: the subspace of the rows of ``a``.
    """
    if a.shape[right] >= _SKETCHED:
        return leading(a, asked, right=right)
    return of_gram(host_gram(a, right=right), asked)


def of_gram(g: np.ndarray, asked: Asked) -> Subspace:
    """Computes the leading subspace of a small host matrix from its Gram matrix."""
    side = len(g)
    if asked.whole and side >= _WHOLE and all_needed(g, asked):
        return Subspace(np.eye(side, dtype=g.dtype), None, 0.0, 0.0)
    w, v = np.linalg.eigh(g)
    sums = np.cumsum(np.maximum(w, 0))
    total = float(sums[-1])
    assert asked.tail is not None
    allowed = max(asked.tail - _noise(g.dtype) * total, 0.0)
    dropped = min(int(np.searchsorted(sums, allowed, side="right")), side - 1)
    if dropped == 0:
        return Subspace(np.eye(side, dtype=g.dtype), None, 0.0, total)
    basis = np.ascontiguousarray(v[:, : dropped - 1 : -1])
    return Subspace(basis, w[: dropped - 1 : -1], float(sums[dropped - 1]), total)


@functools.cache
def _noise(dtype: Any) -> float:
    return GRAM_NOISE * gram_floor(dtype, 2)
