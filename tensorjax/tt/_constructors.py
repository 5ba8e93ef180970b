"""Constructors of trains (random, ones, zeros, identity, rank one), to_dense, pad and trim."""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._formats.cores import cut_ranks, zero_padded
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._placement import by_axes, placed, placed_by
from tensorjax.tt import _evaluate_on_host

Train = TypeVar("Train", TT, TTMatrix)
# Exponents of all cores together up to which their products are in the range of single precision.
_TAME = 100


def rank_bounds(sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the largest rank each interior bond can need: its unfolding's shorter side."""
    left = [math.prod(sizes[:k]) for k in range(1, len(sizes))]
    right = [math.prod(sizes[k:]) for k in range(1, len(sizes))]
    return tuple(map(min, left, right))


def feasible_ranks(
    rank: int | Sequence[int], sizes: Sequence[int], caps: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Returns ``rank`` bond by bond, cut to what neighbours, sizes and ``caps`` allow."""
    ranks = _check.bond_ranks(rank, rank_bounds(sizes))
    return cut_ranks((1, *(ranks if caps is None else map(min, ranks, caps)), 1), sizes)[1:-1]


def padded_ranks(
    rank: int | Sequence[int], ranks: tuple[int, ...], trains: Sequence[TT | TTMatrix]
) -> tuple[int, ...]:
    """Returns the ranks of a result: feasible ``ranks``, or ``rank`` for padded trains.

    It is ``rank`` itself if a train that goes in has exactly these ranks, and more than its modes
    allow, as `pad` makes it: loops over padded trains keep their shapes. Larger ranks do not count:
    a sum of trains has those too.
    """
    wanted = _check.bond_ranks(rank, [np.iinfo(np.int64).max] * len(ranks))
    for t in trains:
        sizes = [math.prod(c.shape[1:-1]) for c in t.cores]
        if t.ranks[1:-1] == tuple(wanted) and cut_ranks(t.ranks, sizes) != t.ranks:
            return tuple(wanted)
    return ranks


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
    keys = jax.random.split(key, len(modes))
    return tuple(
        jax.random.normal(k, (ranks[i], *mode, ranks[i + 1]), dtype)
        * jnp.asarray(ranks[i + 1] ** -0.5, dtype)
        for i, (k, mode) in enumerate(zip(keys, modes, strict=True))
    )


@placed
def random(
    key: jax.Array, shape: Sequence[int], rank: int | Sequence[int], dtype: Any = None
) -> TT:
    """Draws a random tensor train whose entries have mean 0 and variance 1.

    Args:
      key: `jax.random.key`.
      shape: mode sizes (n_1, …, n_d).
      rank: one int for all bonds (cut where a bond cannot need as much), or d−1 of them.
      dtype: floating or complex; JAX's default float if None.

    Returns:
      TT with independent normal cores of variance 1/r_k.

    Raises:
      ValueError: empty shape, sizes or ranks below 1, wrong number of ranks.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> tt.random(jax.random.key(0), (4, 5, 6), 3)
      TT(shape=(4, 5, 6), ranks=(1, 3, 3, 1), dtype=float32)
    """
    return TT(_random_cores(key, [(n,) for n in _check.shape("shape", shape)], rank, dtype))


@placed
def random_matrix(
    key: jax.Array,
    row_shape: Sequence[int],
    col_shape: Sequence[int],
    rank: int | Sequence[int],
    dtype: Any = None,
) -> TTMatrix:
    """Draws a random TT-matrix whose entries have mean 0 and variance 1; see `random`.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> tt.random_matrix(jax.random.key(0), (2, 3), (4, 5), 2).shape
      (6, 20)
    """
    return TTMatrix(_random_cores(key, _mode_pairs(row_shape, col_shape), rank, dtype))


def _mode_pairs(row_shape: Sequence[int], col_shape: Sequence[int]) -> list[tuple[int, int]]:
    rows, cols = _check.shape("row_shape", row_shape), _check.shape("col_shape", col_shape)
    if len(rows) != len(cols):
        raise ValueError(
            f"col_shape: expected as many modes as row_shape ({len(rows)}), got {len(cols)}; "
            "pad the shorter one with ones"
        )
    return list(zip(rows, cols, strict=True))


@placed
def rank_one(vectors: Sequence[Any]) -> TT:
    """Returns the outer product v_1 ∘ … ∘ v_d, TT-ranks one.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.rank_one([jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])])))
      [[3. 4.]
       [6. 8.]]
    """
    arrays = [jnp.asarray(_check.inexact(f"vectors[{k}]", v)) for k, v in enumerate(vectors)]
    for k, v in enumerate(arrays):
        if v.ndim != 1:
            raise ValueError(f"vectors[{k}]: expected shape (n,), got {v.shape}")
    dtype = jnp.result_type(*arrays) if arrays else None
    return TT([v.astype(dtype)[None, :, None] for v in arrays])


def ones(shape: Sequence[int], dtype: Any = None) -> TT:
    """Returns the train whose entries are all one, TT-ranks one."""
    dtype = _check.inexact_dtype(dtype)
    return TT([jnp.ones((1, n, 1), dtype) for n in _check.shape("shape", shape)])


def zeros(shape: Sequence[int], dtype: Any = None) -> TT:
    """Returns the zero train, TT-ranks one."""
    dtype = _check.inexact_dtype(dtype)
    return TT([jnp.zeros((1, n, 1), dtype) for n in _check.shape("shape", shape)])


def identity(shape: Sequence[int], dtype: Any = None) -> TTMatrix:
    """Returns the identity of size ∏ n_k as a TT-matrix, TT-ranks one.

    Example:
      >>> from tensorjax import tt
      >>> tt.identity((2, 3)).shape
      (6, 6)
    """
    dtype = _check.inexact_dtype(dtype)
    return TTMatrix(
        [jnp.eye(n, dtype=dtype)[None, :, :, None] for n in _check.shape("shape", shape)]
    )


def _by_modes(out: Any, arguments: Any) -> list[Any]:
    """Returns the sharding of the dense array: each axis as its mode, merged ones as the first."""
    cores = jax.tree.leaves(arguments)
    if cores[0].ndim == 3:
        return [by_axes(out.shape, [[(c, 1)] for c in cores])]
    return [by_axes(out.shape, [[(cores[0], 1)], [(cores[0], 2)]])]


@placed_by(_by_modes)
def to_dense(t: TT | TTMatrix) -> jax.Array:
    """Returns the dense array: (n_1, …, n_d) of a TT, (∏ m_k, ∏ n_k) of a TTMatrix.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.identity((2,))))
      [[1. 0.]
       [0. 1.]]
    """
    single("t", t)
    return _to_dense(t, not _is_tame(t))


def _is_tame(t: TT | TTMatrix) -> bool:
    """Whether concrete cores are so near one that no product of them can over- or underflow."""
    if not _evaluate_on_host.is_hosted(t):
        return False
    exponents = [linalg.exponent_of(np.asarray(c)) for c in t.cores]
    # Sums over the bonds make products larger; smaller ones than these bounds are lost anyway.
    bonds = sum(r.bit_length() for r in t.ranks)
    return sum(map(abs, exponents)) + bonds < _TAME * (2 if t.dtype.itemsize > 4 else 1)


@jax.jit(static_argnums=1)
def _to_dense(t: TT | TTMatrix, careful: bool) -> jax.Array:
    # Halves first: the one large product is then a matrix product of two balanced factors. Each of
    # them takes half of the exponent, which neither may be able to hold alone.
    middle = _balanced_cut(t)
    whole, exponent = _chain(t.cores[:middle], careful)
    right, e = _chain(t.cores[middle:], careful) if middle < t.order else (None, 0)
    half = exponent + e if right is None else (exponent + e) // 2
    whole = linalg.scaled(whole, half) if careful else whole
    if right is not None:
        right = linalg.scaled(right, exponent + e - half) if careful else right
        whole = linalg.matmul(whole.reshape(-1, whole.shape[-1]), right.reshape(right.shape[0], -1))
    if isinstance(t, TT):
        return whole.reshape(t.shape)
    pairs = [n for pair in zip(t.row_shape, t.col_shape, strict=True) for n in pair]
    order = (*range(0, 2 * t.order, 2), *range(1, 2 * t.order, 2))
    return whole.reshape(pairs).transpose(order).reshape(t.shape)


def _balanced_cut(t: TT | TTMatrix) -> int:
    sizes = [math.prod(c.shape[1:-1]) for c in t.cores]
    costs = [math.prod(sizes[:k]) + math.prod(sizes[k:]) for k in range(1, t.order)]
    return 1 + int(np.argmin(costs)) if costs else 1


def _chain(cores: Sequence[jax.Array], careful: bool) -> tuple[jax.Array, Any]:
    """Multiplies neighbouring cores to (r_left, ∏ n, r_right), over a power of two if careful.

    Products are then kept near one: those of some cores may leave the range of the dtype where the
    whole does not.
    """
    out, exponent = cores[0].reshape(cores[0].shape[0], -1, cores[0].shape[-1]), 0
    for c in cores[1:]:
        out, e = linalg.normalized(out) if careful else (out, 0)
        flat = linalg.matmul(out.reshape(-1, out.shape[-1]), c.reshape(c.shape[0], -1))
        out, exponent = flat.reshape(out.shape[0], -1, c.shape[-1]), exponent + e
    out, e = linalg.normalized(out) if careful else (out, 0)
    return out, exponent + e


@placed
def pad(t: Train, rank: int | Sequence[int]) -> Train:
    """Zero-pads the bonds to the given TT-ranks; the tensor stays the same.

    Loops under jit need shapes that do not change: pad once before, and give `round`, or the
    rounded products and sums, the same ``rank=`` inside, with or without ``tol=``. A train of
    exactly these ranks keeps them there, also where its modes allow fewer; a sum by ``+`` has
    larger ones: round it by `linear_combination`, or pad what `round` makes of it.

    Args:
      t: TT or TTMatrix.
      rank: one int for all interior bonds, or one per bond; not below the present ranks.

    Raises:
      ValueError: a rank is below the present one.

    Example:
      >>> from tensorjax import tt
      >>> tt.pad(tt.ones((2, 3, 4)), 5).ranks
      (1, 5, 5, 1)
    """
    single("t", t)
    present = t.ranks[1:-1]
    wanted = _check.bond_ranks(rank, [np.iinfo(np.int64).max] * len(present))
    if any(w < p for w, p in zip(wanted, present, strict=True)):
        raise ValueError(
            f"rank: expected at least the present ranks {present}, got {wanted}; "
            "use tt.round to lower ranks"
        )
    ranks = (1, *wanted, 1)
    cores = []
    for k, c in enumerate(t.cores):
        widths = [(0, 0)] * c.ndim
        widths[0] = (0, ranks[k] - c.shape[0])
        widths[-1] = (0, ranks[k + 1] - c.shape[-1])
        cores.append(zero_padded(c, widths))
    return type(t)._unchecked(tuple(cores))


def _alive(t: TT | TTMatrix) -> list[Any]:
    """Finds the bond indices that lie on a path of non-zeros through all cores."""
    cores = t.cores if _check.is_traced(t) else [np.asarray(c) for c in t.cores]
    steps: list[Any] = [(c != 0).any(axis=tuple(range(1, c.ndim - 1))) for c in cores]
    from_left, from_right = [], []
    reached: Any = np.ones(1, bool)
    for step in steps[:-1]:
        reached = (reached[:, None] & step).any(axis=0)
        from_left.append(reached)
    reached = np.ones(1, bool)
    for step in reversed(steps[1:]):
        reached = (step & reached[None, :]).any(axis=1)
        from_right.append(reached)
    return [a & b for a, b in zip(from_left, reversed(from_right), strict=True)]


@placed
def effective_ranks(t: TT | TTMatrix) -> tuple[Any, ...]:
    """Returns the TT-ranks that remain when zero-padding is dropped; see `trim`.

    Returns:
      (1, r_1, …, r_{d−1}, 1): Python ints, or traced integers under jit.

    Example:
      >>> from tensorjax import tt
      >>> tt.effective_ranks(tt.pad(tt.ones((2, 3)), 4))
      (1, 1, 1)
    """
    single("t", t)
    counts = [a.sum() for a in _alive(t)]
    return (1, *(jnp.maximum(c, 1) if _check.is_traced(c) else max(int(c), 1) for c in counts), 1)


@placed
def trim(t: Train) -> Train:
    """Drops zero-padded bond indices; outside jit only, for shapes change.

    Raises:
      TypeError: under a JAX transformation.

    Example:
      >>> from tensorjax import tt
      >>> tt.trim(tt.pad(tt.ones((2, 3)), 4)).ranks
      (1, 1, 1)
    """
    single("t", t)
    if _check.is_traced(t):
        raise TypeError(
            "tt.trim changes shapes by the data, which jit, vmap and grad cannot trace; "
            "call it outside the transformation"
        )
    first = np.array([0])
    keep = [np.flatnonzero(a) for a in _alive(t)]
    bonds = [first, *(k if k.size else first for k in keep), first]
    cores = (np.asarray(c)[bonds[k]][..., bonds[k + 1]] for k, c in enumerate(t.cores))
    return type(t)._unchecked(tuple(jnp.asarray(c) for c in cores))
