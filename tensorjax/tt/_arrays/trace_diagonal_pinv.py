"""Trace and diagonal of TT-matrices, diagonal TT-matrices, and pseudo-inverses of trains."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import times_right
from tensorjax._cores.scaling import balanced, cast_in_range, shared_out
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax.tt._arrays import reductions
from tensorjax.tt._folding import rearranged
from tensorjax.tt._rounding.orthogonalize import orthogonal_cores

_HIGHEST = jax.lax.Precision.HIGHEST


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
    return reductions.sum(diagonal(a))


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


@placed
def pinv(t: TT, split: int, *, tol: float | None = None) -> TT:
    """Computes the pseudo-inverse of a train's unfolding, a matrix, as a train of the same shape.

    Args:
      t: TT.
      split: k in 1 … d − 1 (negative ones count from the end): X has the first k modes as rows and
        the others as columns.
      tol: singular values of X up to tol times the largest one count as zero; None is
        for eps times the larger side of the matrix between the orthogonal cores.

    Returns:
      TT P of the shape of ``t`` with unfolding (X⁺)ᵀ: X⁺[j, i] = P[i, j], so that a least-squares
      problem X w = b has the solution ``tt.tensordot(P, b, (range(k), range(k)))``. Its TT-ranks
      are those of ``t``, or at the bond of ``split`` the rank of X; under jit zeros fill them.

    Raises:
      ValueError: no such bond, NaN or Inf.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import tt
      >>> t = tt.random(jax.random.key(0), (4, 5, 2, 3), 3)
      >>> exact = jnp.linalg.pinv(tt.to_dense(t).reshape(20, 6), rtol=1e-5).T.reshape(t.shape)
      >>> bool(jnp.allclose(tt.to_dense(tt.pinv(t, 2, tol=1e-5)), exact, rtol=1e-3, atol=1e-3))
      True

    Source: P. Gelß, S. Klus, J. Eisert, C. Schütte, "Multidimensional approximation of nonlinear
    dynamical systems", J. Comput. Nonlinear Dyn. 14 (2019), section 2.3 (as in scikit_tt): the
    cores on both sides are orthogonalised, and the matrix between them is inverted by its SVD.
    """
    single("t", t, TT, entries=True)
    if t.order < 2:
        raise ValueError("t: expected two or more modes, for rows and columns, got one")
    split = _check.integer("split", split, low=1 - t.order, high=t.order - 1) % t.order
    if split == 0:
        raise ValueError("split: expected a bond between two modes, got 0")
    _check.finite("t", t)
    if choose_kernel("tt.pinv", (t,), rest=tol) is NUMPY:
        host = TT._unchecked(tuple(np.asarray(c) for c in t.cores))
        cores, exponent = _inverted(host, split, tol)
        cores = balanced(cores, int(exponent), fit=linalg.exponents_held(t.dtype))
        return TT._unchecked(tuple(jax.device_put(cast_in_range(cores, t.dtype))))
    return _compiled_pinv(t, split, tol)


@jax.jit(static_argnums=1)
def _compiled_pinv(t: TT, split: int, tol: Any) -> TT:
    cores, exponent = _inverted(t, split, tol)
    return TT._unchecked(tuple(cast_in_range(shared_out(cores, exponent), t.dtype)))


def _inverted(t: TT, split: int, tol: Any) -> tuple[list[Any], Any]:
    """Computes cores of the transposed pseudo-inverse of a train's unfolding, over 2^e, and e."""
    cores, exponent = orthogonal_cores(t, split)
    matrix = cores[split].reshape(len(cores[split]), -1)
    xp = np if linalg.is_host(matrix) else jnp
    # The bond has no more entries than the core left of it: an SVD of the two together.
    u, s, vh = linalg.svd(matrix)
    if tol is not None and not _check.is_traced(tol):
        tol = _check.number("tol", tol, low=0)
    if tol is None:
        tol = max(matrix.shape) * linalg.epsilon(matrix.dtype)
    kept = s > tol * s[0]
    if xp is np:
        rank = max(int(kept.sum()), 1)
        u, s, vh, kept = u[:, :rank], s[:rank], vh[:rank], kept[:rank]
    inverse = xp.where(kept, 1 / xp.where(kept, s, 1), 0).astype(matrix.dtype)
    left, right = cores[split - 1], cores[split]
    cores[split - 1] = times_right(left, u * inverse[None])
    cores[split] = vh.reshape(-1, *right.shape[1:])
    return [c.conj() for c in cores], -exponent
