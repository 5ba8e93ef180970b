"""Constructors of trains: zeros, ones, random, identities, unit tensors, outer products."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores.ranks import rank_bounds
from tensorjax._formats.random_arrays import scaled_normals
from tensorjax._formats.trains import TT, Train, TTMatrix, known
from tensorjax._placement import placed
from tensorjax._transfer import constants
from tensorjax._typing import ArrayLike, DTypeLike
from tensorjax.tt._broadcasting import mode_shapes


def _mode_pairs(row_shape: Sequence[int], col_shape: Sequence[int]) -> list[tuple[int, int]]:
    rows, cols = (
        _check.shape("row_shape", row_shape, low=0),
        _check.shape("col_shape", col_shape, low=0),
    )
    if len(rows) != len(cols):
        raise ValueError(
            f"col_shape: expected as many modes as row_shape ({len(rows)}), got {len(cols)}; "
            "pad the shorter one with ones"
        )
    return list(zip(rows, cols, strict=True))


@placed
def rank_one(vectors: Sequence[Any]) -> TT:
    """Constructs the outer product of vectors v_1 ∘ … ∘ v_d as a tensor train, TT-ranks one.

    Args:
      vectors: d arrays (n_k,), floating or complex.

    Returns:
      TT of shape (n_1, …, n_d), in the dtype that they promote to.

    Raises:
      ValueError: no vectors, or an array that is none. TypeError: integers.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.rank_one([jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])])))
      [[3. 4.]
       [6. 8.]]

    Source: ours.
    """
    given = _check.several("vectors", vectors, "vectors, one a mode")
    arrays = [jnp.asarray(_check.inexact(f"vectors[{k}]", v)) for k, v in enumerate(given)]
    for k, v in enumerate(arrays):
        if v.ndim != 1:
            raise ValueError(f"vectors[{k}]: expected shape (n,), got {v.shape}")
    dtype = jnp.result_type(*arrays) if arrays else None
    return TT([v.astype(dtype)[None, :, None] for v in arrays])


def rank_one_matrix(
    matrices: Sequence[Any] | Mapping[int, Any], order: int | None = None
) -> TTMatrix:
    """Constructs a TT-matrix of rank one from matrices: the Kronecker product A_1 ⊗ … ⊗ A_d.

    Args:
      matrices: d arrays (m_k, n_k), floating or complex. Or those of some sites, by site from 0 on,
        as for correlators of a chain: identities stand at the others, for which those given must be
        square and of one size.
      order: number of sites d, where ``matrices`` are given by site; by default they end at the
        last one given.

    Returns:
      TTMatrix of row shape (m_1, …, m_d) and column shape (n_1, …, n_d), in the dtype that they
      promote to.

    Raises:
      ValueError: no matrices, arrays that are none, sites out of range, sizes of the identities
        that cannot be told. TypeError: integers.

    Example:
      The correlator of the spins at sites 1 and 3 in the ground state of a chain:

      >>> import numpy as np
      >>> from tensorjax import tt
      >>> x, z = np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([1.0, -1.0])
      >>> _, (state,), _ = tt.eigsh(tt.chain_operator(6, site=-z, bond=-np.kron(x, x)), tol=1e-4)
      >>> pair = tt.rank_one_matrix({1: x, 3: x}, order=6)
      >>> print(f"{tt.bilinear_form(state, pair, state):.2f}")
      0.41

    Source: ours.
    """
    if isinstance(matrices, Mapping):
        found = _with_identities(matrices, order)
    else:
        found = _check.several("matrices", matrices, "matrices, one a mode")
        if order is not None and _check.integer("order", order, low=1) != len(found):
            raise ValueError(f"order: expected {len(found)}, one for each matrix, got {order}")
    arrays = [jnp.asarray(_check.inexact(f"matrices[{k}]", a)) for k, a in enumerate(found)]
    for k, a in enumerate(arrays):
        if a.ndim != 2:
            raise ValueError(f"matrices[{k}]: expected shape (m, n), got {a.shape}")
    dtype = jnp.result_type(*arrays) if arrays else None
    return TTMatrix([a.astype(dtype)[None, :, :, None] for a in arrays])


def _with_identities(matrices: Mapping[int, Any], order: int | None) -> list[Any]:
    """Lists the factors of a rank-one TT-matrix, with identities at sites without a given one."""
    given = {}
    for site, a in matrices.items():
        at = _check.integer("sites of matrices", site, low=0)
        given[at] = _check.inexact(f"matrices[{site}]", a)
    last = max(given, default=0)
    order = last + 1 if order is None else _check.integer("order", order, low=last + 1)
    shapes = {a.shape for a in given.values()}
    if len(given) == order:
        return [given[k] for k in range(order)]
    if len(shapes) != 1 or any(len(shape) != 2 or shape[0] != shape[1] for shape in shapes):
        raise ValueError(
            f"matrices: identities are of the size of those given, which must be square and of one "
            f"shape, got {sorted(shapes)}; give a sequence of all {order} matrices"
        )
    one = next(iter(given.values()))
    eye: Any = np.eye(len(one), dtype=one.dtype)
    if isinstance(one, jax.Array) and not _check.is_traced(one) and one.committed:
        eye = jax.device_put(eye, one.sharding)
    return [given.get(k, eye) for k in range(order)]


def ones(shape: Sequence[int], dtype: DTypeLike | None = None) -> TT:
    """Constructs the tensor train of ones, of TT-ranks one, as `numpy.ones`.

    Args:
      shape: mode sizes (n_1, …, n_d).
      dtype: floating or complex; JAX's default float if None.

    Returns:
      TT of TT-ranks one.

    Raises:
      ValueError: an empty shape, or negative sizes. TypeError: integer dtypes.

    Example:
      >>> from tensorjax import tt
      >>> tt.ones((2, 3))
      TT(shape=(2, 3), ranks=(1, 1, 1), dtype=float32)

    Source: ours.
    """
    dtype = _check.inexact_dtype(dtype)
    return TT([constants().ones((1, n, 1), dtype) for n in _check.shape("shape", shape, low=0)])


def zeros(shape: Sequence[int], dtype: DTypeLike | None = None) -> TT:
    """Constructs the zero train, TT-ranks one.

    Args:
      shape: mode sizes (n_1, …, n_d).
      dtype: floating or complex; JAX's default float if None.

    Returns:
      TT of TT-ranks one.

    Raises:
      ValueError: an empty shape, or negative sizes. TypeError: integer dtypes.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.zeros((3,))))
      [0. 0. 0.]

    Source: ours.
    """
    dtype = _check.inexact_dtype(dtype)
    return TT([constants().zeros((1, n, 1), dtype) for n in _check.shape("shape", shape, low=0)])


def identity(shape: Sequence[int], dtype: DTypeLike | None = None) -> TTMatrix:
    """Constructs the identity of size ∏ n_k as a TT-matrix, TT-ranks one.

    Args:
      shape: row and column mode sizes (n_1, …, n_d).
      dtype: floating or complex; JAX's default float if None.

    Returns:
      TTMatrix of TT-ranks one.

    Raises:
      ValueError: an empty shape, or negative sizes. TypeError: integer dtypes.

    Example:
      >>> from tensorjax import tt
      >>> tt.identity((2, 3)).shape
      (6, 6)

    Source: ours; the identity is the Kronecker product of those of the modes.
    """
    dtype = _check.inexact_dtype(dtype)
    sizes = _check.shape("shape", shape, low=0)
    return TTMatrix([constants().eye(n, dtype=dtype)[None, :, :, None] for n in sizes])


@placed
def ones_like(x: Train) -> Train:
    """Constructs the train of ones with another's type, shape and dtype; TT-ranks are one.

    Args:
      x: TT or TTMatrix, or a batch of them.

    Returns:
      Train of TT-ranks one.

    Raises:
      TypeError: ``x`` is no train.

    Example:
      >>> from tensorjax import tt
      >>> tt.ones_like(tt.unit((4, 5), (1, 2)))
      TT(shape=(4, 5), ranks=(1, 1, 1), dtype=float32)

    Source: ours.
    """
    known("x", x)
    modes = zip(x.cores, mode_shapes(x), strict=True)
    batch = x.cores[0].shape[: -x._core_ndim]
    return type(x)._unchecked(tuple(jnp.ones((*batch, 1, *n, 1), c.dtype) for c, n in modes))


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
