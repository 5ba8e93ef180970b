"""C++ kernel of the TT-SVD of small dense arrays."""

import functools
import math

import numpy as np

from tensorjax._native.accepted_arrays import GRAM_DTYPES
from tensorjax._native.host_calls import call
from tensorjax._transfer import LINE, FreshArrays, aligned, split_at_lines


def tt_svd(x: np.ndarray, share: float, noise: float) -> FreshArrays | None:
    """Computes the TT-SVD of a small dense array by a C++ kernel; None if it cannot.

    Args:
      x: (n_1, …, n_d), d ≥ 2, real or complex, of single or double precision; so are the cores.
        Computed in double precision.
      share: of the energy that every bond may discard.
      noise: of a Gram matrix, as a share of the energy.
    """
    if x.ndim < 2 or not x.size or x.dtype not in GRAM_DTYPES:
        raise ValueError(
            f"x: expected two modes or more of real or complex numbers, got {x.shape}, {x.dtype}"
        )
    x = np.require(x, requirements=["C", "A"])
    modes, ranks = np.array(x.shape, np.int64), np.empty(x.ndim + 1, np.int64)
    line = LINE // x.dtype.itemsize
    out = aligned((_most_entries(x.shape) + line * x.ndim,), x.dtype)
    parts = 2 if x.dtype.kind == "c" else 1
    single = int(x.dtype.itemsize // parts == 4)
    arguments = x.ndim, modes, parts, single, x, float(share), float(noise), ranks, out
    if not call("tensorjax_tt_svd", *arguments):
        return None
    found = ranks.tolist()
    return split_at_lines(out, zip(found[:-1], x.shape, found[1:], strict=True))


@functools.lru_cache(maxsize=4096)
def _most_entries(shape: tuple[int, ...]) -> int:
    """Returns the largest number of entries that cores of a small array's TT-SVD can have."""
    size, left, most, total = math.prod(shape), 1, 1, 0
    for n in shape:
        left *= n
        before, most = most, min(left, size // left)
        total += before * n * most
    return total
