"""Trace and diagonal of a TT-matrix, and the TT-matrix of a diagonal."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import linalg
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._placement import placed
from tensorjax.tt._arrays.reductions import sum
from tensorjax.tt._core_moves import rearranged


@placed
def trace(a: TTMatrix) -> jax.Array:
    """Computes the trace of a square TT-matrix, a scalar.

    Args:
      a: TTMatrix with equal row and column modes.

    Returns:
      Scalar in the dtype of ``a``.

    Raises:
      ValueError: row and column modes differ.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.trace(tt.identity((2, 3))))
      6.0

    Source: ours; the sum of `diagonal`.
    """
    return sum(diagonal(a))


@placed
def diagonal(a: TTMatrix) -> TT:
    """Returns the diagonal of a square TT-matrix, as a TT of its row modes, as in NumPy.

    Args:
      a: TTMatrix with equal row and column modes n_k.

    Returns:
      TT of shape (n_1, …, n_d) and of the TT-ranks of ``a``.

    Raises:
      ValueError: row and column modes differ.

    Example:
      >>> from tensorjax import tt
      >>> tt.diagonal(tt.identity((2, 3))).shape
      (2, 3)

    Source: ours; the diagonals of the cores.
    """
    single("a", a, TTMatrix)
    if a.row_shape != a.col_shape:
        raise ValueError(
            f"a: expected equal row and column modes, got {a.row_shape}, {a.col_shape}"
        )
    return TT._unchecked(rearranged("diagonal", a.cores, _diagonal))


def _diagonal(core: Any) -> Any:
    return core.diagonal(axis1=1, axis2=2).swapaxes(1, 2)


@placed
def diagonal_matrix(t: TT) -> TTMatrix:
    """Returns the diagonal TT-matrix with a train's entries, as `numpy.diag`; TT-ranks stay.

    Args:
      t: TT of shape (n_1, …, n_d).

    Returns:
      TTMatrix with row and column modes n_k and the TT-ranks of ``t``.

    Raises:
      TypeError: ``t`` is no TT.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.diagonal_matrix(tt.ones((2,)))))
      [[1. 0.]
       [0. 1.]]

    Source: ours.
    """
    single("t", t, TT)

    def spread(core: Any) -> Any:
        xp = np if linalg.is_host(core) else jnp
        return core[:, :, None, :] * xp.eye(core.shape[1], dtype=core.dtype)[None, ..., None]

    return TTMatrix._unchecked(rearranged("diagonal_matrix", t.cores, spread))
