"""Constructors of trains as in NumPy: zeros_like, unit (one-hot), meshgrid, pad_modes."""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._formats.trains import TT, TTMatrix, known, single
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike, DTypeLike
from tensorjax.tt._algebra import ones_like
from tensorjax.tt._constructors import _mode_pairs, rank_one
from tensorjax.tt._core_moves import rearranged

Train = TypeVar("Train", TT, TTMatrix)


@placed
def zeros_like(x: Train) -> Train:
    """Creates a zero train like another, as `numpy.zeros_like`; its TT-ranks are one.

    Args:
      x: TT or TTMatrix, or a batch of them.

    Returns:
      Train of TT-ranks one.

    Raises:
      TypeError: ``x`` is no train.

    Example:
      >>> from tensorjax import tt
      >>> tt.zeros_like(tt.unit((4, 5), (1, 2)))
      TT(shape=(4, 5), ranks=(1, 1, 1), dtype=float32)

    Source: ours.
    """
    known("x", x)
    return 0 * ones_like(x)


def ones_matrix(
    row_shape: Sequence[int], col_shape: Sequence[int], dtype: DTypeLike | None = None
) -> TTMatrix:
    """Creates the TT-matrix whose entries are all one, TT-ranks one.

    Args:
      row_shape: row mode sizes (m_1, …, m_d).
      col_shape: as many column mode sizes.
      dtype: floating or complex; JAX's default float if None.

    Returns:
      TTMatrix of TT-ranks one.

    Raises:
      ValueError: other numbers of modes, or negative sizes. TypeError: integer dtypes.

    Example:
      >>> from tensorjax import tt
      >>> tt.ones_matrix((2, 3), (4, 1)).shape
      (6, 4)

    Source: ours.
    """
    return _constant_matrix(np.ones, row_shape, col_shape, dtype)


def zeros_matrix(
    row_shape: Sequence[int], col_shape: Sequence[int], dtype: DTypeLike | None = None
) -> TTMatrix:
    """Creates the zero TT-matrix, TT-ranks one.

    Args:
      row_shape: row mode sizes (m_1, …, m_d).
      col_shape: as many column mode sizes.
      dtype: floating or complex; JAX's default float if None.

    Returns:
      TTMatrix of TT-ranks one.

    Raises:
      ValueError: other numbers of modes, or negative sizes. TypeError: integer dtypes.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.norm(tt.zeros_matrix((2, 3), (4, 1))))
      0.0

    Source: ours.
    """
    return _constant_matrix(np.zeros, row_shape, col_shape, dtype)


def _constant_matrix(fill: Any, row_shape: Any, col_shape: Any, dtype: Any) -> TTMatrix:
    kind = _check.inexact_dtype(dtype)
    return TTMatrix([fill((1, m, n, 1), kind) for m, n in _mode_pairs(row_shape, col_shape)])


def unit(shape: Sequence[int], index: Sequence[int], dtype: DTypeLike | None = None) -> TT:
    """Creates the one-hot train, 1 at one multi-index and 0 elsewhere; TT-ranks are one.

    Args:
      shape: mode sizes (n_1, …, n_d).
      index: one integer per mode, negative ones count from the end.
      dtype: floating or complex; JAX's default float if None.

    Returns:
      TT of TT-ranks one.

    Raises:
      ValueError: an index out of range, or too many or few.
      TypeError: indices that are no integers, or an integer dtype.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.unit((2, 3), (1, -1))))
      [[0. 0. 0.]
       [0. 0. 1.]]

    Source: ours.
    """
    shape = _check.shape("shape", shape)
    at = _check.indices(np.asarray(index), shape)
    kind = jnp.zeros((), dtype).dtype
    return rank_one([np.eye(n, dtype=kind)[i] for n, i in zip(shape, np.asarray(at), strict=True)])


def meshgrid(*vectors: ArrayLike) -> list[TT]:
    """Creates grid coordinates as trains of TT-rank one, as `numpy.meshgrid` with indexing "ij".

    Args:
      vectors: (n_k,) coordinates along each mode.

    Returns:
      d trains of shape (n_1, …, n_d); the k-th has the entries vectors[k][i_k].

    Raises:
      ValueError: no vectors, or an array that is none. TypeError: integers.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> x, y = tt.meshgrid(jnp.arange(2.0), jnp.arange(3.0))
      >>> print(tt.to_dense(x + y))
      [[0. 1. 2.]
       [1. 2. 3.]]

    Source: ours.
    """
    if not vectors:
        raise ValueError("vectors: expected one or more vectors, got none")
    given = [_check.inexact(f"vectors[{k}]", v) for k, v in enumerate(vectors)]
    for k, v in enumerate(given):
        if v.ndim != 1:
            raise ValueError(f"vectors[{k}]: expected a vector (n,), got shape {v.shape}")
    ones = [np.ones(v.shape, v.dtype) for v in given]
    return [rank_one([*ones[:k], v, *ones[k + 1 :]]) for k, v in enumerate(given)]


@placed
def pad_modes(t: TT, widths: Sequence[tuple[int, int]]) -> TT:
    """Appends zeros before and after the modes of a train, as `numpy.pad`; the TT-ranks stay.

    Args:
      t: TT.
      widths: (before, after) per mode.

    Returns:
      TT of the TT-ranks of ``t``, whose k-th mode has size before + n_k + after.

    Raises:
      ValueError: another number of pairs than modes, or negative widths.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.pad_modes(tt.ones((2,)), [(1, 0)])))
      [0. 1. 1.]

    Source: ours.
    """
    single("t", t, TT)
    widths = _check.several("widths", widths, "pairs (before, after)")
    if len(widths) != t.order:
        raise ValueError(f"widths: expected {t.order} pairs (before, after), got {len(widths)}")
    if any(np.ndim(pair) != 1 for pair in widths):
        raise ValueError(f"widths: expected pairs (before, after), got {widths}")
    pairs = [tuple(_check.integer("widths", w, low=0) for w in pair) for pair in widths]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"widths: expected pairs (before, after), got {widths}")

    def padded(core: Any, pair: tuple[int, int]) -> Any:
        return (np if linalg.is_host(core) else jnp).pad(core, [(0, 0), pair, (0, 0)])

    return TT._unchecked(rearranged("pad_modes", t.cores, padded, pairs))
