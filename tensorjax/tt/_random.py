"""Random trains with independent normal entries of their cores."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import _check
from tensorjax._cores.ranks import rank_bounds
from tensorjax._formats.random_arrays import scaled_normals
from tensorjax._formats.trains import TT, TTMatrix
from tensorjax._placement import placed
from tensorjax._typing import DTypeLike
from tensorjax.tt._constructors import _mode_pairs


def _random_cores(
    key: jax.Array, modes: Sequence[tuple[int, ...]], rank: int | Sequence[int], dtype: Any
) -> tuple[jax.Array, ...]:
    sizes = [math.prod(m) for m in modes]
    # One int is a wish for every bond, cut where a bond cannot need as much; ranks given one by
    # one are taken at their word (padded loops want them uniform).
    uniform = isinstance(rank, int | np.integer)
    bounds = rank_bounds(sizes) if uniform else [np.iinfo(np.int64).max] * (len(sizes) - 1)
    ranks = (1, *_check.bond_ranks(rank, bounds), 1)
    dtype = _check.inexact_dtype(dtype)
    shapes = [(ranks[k], *mode, ranks[k + 1]) for k, mode in enumerate(modes)]
    return tuple(scaled_normals(key, shapes, [r**-0.5 for r in ranks[1:]], dtype))


@placed
def random(
    key: jax.Array, shape: Sequence[int], rank: int | Sequence[int], dtype: DTypeLike | None = None
) -> TT:
    """Constructs a random tensor train whose entries have mean 0 and variance 1.

    Args:
      key: `jax.random.key`.
      shape: mode sizes (n_1, …, n_d).
      rank: one int for all bonds (cut where a bond cannot need as much), or d−1 of them.
      dtype: floating or complex; JAX's default float if None.

    Returns:
      TT with independent normal cores of variance 1/r_k.

    Raises:
      ValueError: empty shape, negative sizes, ranks below 1, wrong number of ranks.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> tt.random(jax.random.key(0), (4, 5, 6), 3)
      TT(shape=(4, 5, 6), ranks=(1, 3, 3, 1), dtype=float32)

    Source: ours.
    """
    return TT(_random_cores(key, [(n,) for n in _check.shape("shape", shape, low=0)], rank, dtype))


@placed
def random_matrix(
    key: jax.Array,
    row_shape: Sequence[int],
    col_shape: Sequence[int],
    rank: int | Sequence[int],
    dtype: DTypeLike | None = None,
) -> TTMatrix:
    """Constructs a random TT-matrix with independent normal cores and entries of variance 1.

    Args:
      key: `jax.random.key`.
      row_shape: row mode sizes (m_1, …, m_d).
      col_shape: as many column mode sizes.
      rank: one int for all bonds (cut where a bond cannot need as much), or d−1 of them.
      dtype: floating or complex; JAX's default float if None.

    Returns:
      TTMatrix with independent normal cores of variance 1/r_k.

    Raises:
      ValueError: other numbers of row than of column modes, negative sizes, ranks below 1, wrong
        number of ranks. TypeError: integer dtypes.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> tt.random_matrix(jax.random.key(0), (2, 3), (4, 5), 2).shape
      (6, 20)

    Source: ours.
    """
    return TTMatrix(_random_cores(key, _mode_pairs(row_shape, col_shape), rank, dtype))
