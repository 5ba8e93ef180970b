"""Precision of host decompositions: error budgets, and single precision where it suffices."""

from typing import Any

import numpy as np

from tensorjax.linalg._arrays import epsilon
from tensorjax.linalg._gram import host_energy
from tensorjax.linalg._subspaces.subspaces_on_host import Asked

# Below this many eps, accumulated roundoff competes with the tolerance: the result is verified. Of
# results that are only rounded to a narrower dtype in the end, roundoff of each part is known.
VERIFY_BELOW, _ROUNDED = 1e4, 8
# Single precision serves where the share of the energy that a bond may discard is so many eps.
# Roundoff of their Gram matrices adds up over all rows, and must not look like a rank.
_SINGLE, _COARSE = 0.25, 64
# Arrays with fewer entries are converted to double precision as a whole.
_CONVERTED = 2**20


def budget(tol: float, parts: int, given: Any, dtype: Any) -> tuple[float, bool]:
    """Returns the energy share that a host decomposition may discard, and whether to verify it.

    The rest pays for rounding so many cores or factors to ``dtype``, from double precision.
    """
    eps = epsilon(dtype)
    narrower = np.result_type(given, np.float64).itemsize > np.dtype(dtype).itemsize
    if tol < eps * (_ROUNDED * parts if narrower else VERIFY_BELOW):
        return max(tol**2 - parts * (eps / 2) ** 2, tol**2 / 4), True
    return (tol - parts * eps / 2) ** 2 if narrower else tol**2, False


def in_single(x: np.ndarray, asked: Asked, bonds: int, compress: Any) -> Any:
    """Runs a host decomposition in single precision; repeats it in double if too inaccurate.

    Args:
      x: host array.
      asked: of each of so many ``bonds``.
      compress: returns arrays of which the last has the norm.
    """
    least = epsilon(x.dtype)
    single = x.dtype.itemsize < np.result_type(x.dtype, np.float64).itemsize
    share = asked.share if single and asked.method == "auto" and asked.share else 0.0
    # Less than two eps in all would not pass the test below.
    if share >= _SINGLE * least and bonds * share >= 2 * least:
        out = compress(x, asked._replace(narrow=True, coarse=share >= _COARSE * least))
        total = host_energy(x)
        if total - host_energy(out[-1]) <= (bonds * share - least) * total:
            return out
    if single and x.size < _CONVERTED:  # once: larger ones piece by piece, in every pass
        x = x.astype(np.result_type(x.dtype, np.float64))
    return compress(x, asked)
