"""Product of one mode of a train with a matrix (mode-n product)."""

from typing import Any

import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import times_mode
from tensorjax._cores.products import is_in_range, times_in_range
from tensorjax._formats.trains import TT, single
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike
from tensorjax.tt._arrays.reductions import _replaced
from tensorjax.tt._core_moves import rearranged


@placed
def mode_product(t: TT, matrix: ArrayLike, mode: int) -> TT:
    """Contracts one mode of a train with a matrix, Σ_j matrix[i, j] x[…, j, …]; the ranks stay.

    Args:
      t: TT.
      matrix: (m, n_k), which makes the mode of size n_k one of size m.
      mode: k; negative ones count from the end.

    Returns:
      TT of the TT-ranks of ``t``, whose mode ``mode`` has size m, in the promoted dtype.

    Raises:
      ValueError: the matrix has another number of columns. OverflowError: the dtype cannot hold the
        product in as many cores; under transformations, where no size is known, the one core is
        multiplied as it is, and what it cannot hold is Inf or 0.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> tt.mode_product(tt.ones((2, 3)), jnp.ones((5, 3)), 1).shape
      (2, 5)

    Source: T. Kolda, B. Bader, "Tensor decompositions and applications", SIAM Rev. 51 (2009),
    section 2.5.
    """
    single("t", t, TT)
    k, w, dtype = _check.mode_matrix(matrix, mode, t.shape, t.dtype)
    t = t.astype(dtype)
    core = t.cores[k]
    if _check.is_traced(t, w):
        return _replaced(t, k, times_mode(core, w))
    if not is_in_range(core, w):
        return TT._unchecked(tuple(times_in_range(t.cores, k, w, times_mode, "t")))

    def times(c: Any) -> Any:
        return times_mode(c, np.asarray(w) if linalg.is_host(c) else w)

    return _replaced(t, k, rearranged("mode_product", [core], times)[0])
