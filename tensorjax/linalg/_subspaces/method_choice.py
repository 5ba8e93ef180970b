"""Choice of the method for a leading subspace: SVD, Gram matrix or sketch, and its roundoff."""

from typing import Any, Literal

import numpy as np

from tensorjax import _check
from tensorjax._typing import DTypeLike
from tensorjax.linalg._arrays import epsilon

Method = Literal["auto", "svd", "gram", "randomized"]
METHODS = ("auto", "svd", "gram", "randomized")
# Energies of a Gram matrix are wrong by a few eps of the total: at most GRAM_ERROR, measured on
# matrices of 8 to 4096 rows. GRAM_NOISE leaves room.
GRAM_ERROR, GRAM_NOISE = 4, 16


def choose(method: Method, share: float | None, dtype: DTypeLike, *, levels: int = 2) -> Method:
    """Chooses the fastest accurate method for a leading subspace: SVD, Gram matrix or sketch.

    Args:
      method: what the caller asked for; "auto" is free to choose. "gram" and "randomized" are taken
        only where they reach the accuracy, and "svd" stands in for them elsewhere.
      share: the share of the total energy that may be discarded (a squared relative error); None
        when only a rank is asked, or when it is traced.
      dtype: of the matrix; host float32 is accumulated in float64, see `gram`.
      levels: Gram matrices in a row: 2 for a given matrix (floor eps^1.5 of the energy), 1 where
        only the Gram matrix is known (floor eps).

    Returns:
      "gram", "randomized" or "svd".

    Raises:
      ValueError: ``method`` is unknown, or ``levels`` is not 1 or 2. TypeError: ``share`` is no
        number, or ``dtype`` neither floating nor complex.

    Example:
      >>> from tensorjax import linalg
      >>> [linalg.choose("auto", tol**2, "float64") for tol in (1e-6, 1e-13)]
      ['gram', 'svd']

    Source: ours; the floors are roundoff of the Gram matrix, measured.
    """
    _check.choice("method", method, METHODS)
    if not isinstance(dtype, np.dtype):
        dtype = _check.dtype_of("dtype", dtype)
    if dtype.kind in "biuOSUmM":
        raise TypeError(f"dtype: expected a floating-point or complex dtype, got {dtype}")
    _check.integer("levels", levels, low=1, high=2)
    if share is not None:
        _check.number("share", share, finite=False)
    return admitted(method, share, dtype, levels)


def admitted(method: Method, share: float | None, dtype: Any, levels: int = 2) -> Method:
    """Chooses the method for a leading subspace as `choose`, without argument checks."""
    if share is None:
        return "svd" if method == "auto" else method
    if share < 2 * GRAM_NOISE * gram_floor(dtype, levels):
        return "svd"
    return "gram" if method == "auto" else method


def gram_floor(dtype: Any, levels: int) -> float:
    """Returns the share of energy that is roundoff in a subspace from Gram matrices."""
    return epsilon(dtype) ** (0.5 + 0.5 * levels)
