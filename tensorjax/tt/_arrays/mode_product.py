"""Product of one mode of a train with a matrix (mode-n product)."""

from tensorjax import _check
from tensorjax._cores.contractions import times_mode
from tensorjax._formats.trains import TT, single
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike
from tensorjax.tt._arrays.reductions import _replaced


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
      ValueError: the matrix has another number of columns.

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
    return _replaced(t, k, times_mode(t.cores[k], w))
