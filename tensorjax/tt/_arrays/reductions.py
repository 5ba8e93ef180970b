"""Reductions of trains as in NumPy: sum, mean, var, cumsum, tensordot, trace, diagonals."""

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, contract, linalg
from tensorjax._cores.scaling import shared_out
from tensorjax._cores.unfoldings import absorb, times_mode, times_right
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._placement import placed
from tensorjax._transfer import copied
from tensorjax._typing import ArrayLike
from tensorjax.contract import einsum
from tensorjax.tt._algebra import add, conj, fold, ones_like, real, scale, transpose
from tensorjax.tt._arrays.indexing import item
from tensorjax.tt._arrays.reshaping import permute
from tensorjax.tt._evaluation.evaluate import contract_modes
from tensorjax.tt._norms import distance
from tensorjax.tt._products import hadamard, matmul

Train = TypeVar("Train", TT, TTMatrix)
_HIGHEST = jax.lax.Precision.HIGHEST
Axis = int | Sequence[int] | None


@overload
def sum(t: TT | TTMatrix, axis: None = None, *, keepdims: Literal[False] = False) -> jax.Array: ...
@overload
def sum(t: TT | TTMatrix, axis: Axis = None, *, keepdims: bool = False) -> Any: ...
@placed
def sum(t: TT | TTMatrix, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """Sums all entries of a train, to a scalar, or over some modes, to a TT, as `numpy.sum`.

    Args:
      t: TT, or TTMatrix, whose axes are 0, the rows, and 1, the columns.
      axis: modes to sum over; None for all.
      keepdims: whether these modes stay, of size one, and with them the kind of ``t``.

    Returns:
      TT of the modes that remain, or a scalar.

    Raises:
      ValueError: a mode out of range, or given twice.

    Example:
      >>> from tensorjax import tt
      >>> t = tt.ones((2, 3, 4))
      >>> print(tt.sum(t), tt.sum(t, axis=1).shape)
      24.0 (2, 4)

    Source: Oseledets (2011), section 4.2: a contraction with vectors of ones.
    """
    single("t", t)
    if _check.flag("keepdims", keepdims):
        return _kept(sum(t, axis), t, axis)
    if isinstance(t, TTMatrix):
        return _matrix_sum(t, axis)
    return contract_modes(t, {k: np.ones(t.shape[k], t.dtype) for k in _modes(axis, t.order)})


@overload
def mean(t: TT | TTMatrix, axis: None = None, *, keepdims: Literal[False] = False) -> jax.Array: ...
@overload
def mean(t: TT | TTMatrix, axis: Axis = None, *, keepdims: bool = False) -> Any: ...
@placed
def mean(t: TT | TTMatrix, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """Averages all entries of a train, to a scalar, or over some modes, to a TT, as `numpy.mean`.

    Args:
      t: TT, or TTMatrix, whose axes are 0, the rows, and 1, the columns.
      axis: modes to average over; None for all.
      keepdims: whether these modes stay, of size one, and with them the kind of ``t``.

    Returns:
      TT of the modes that remain, or a scalar, in the dtype of ``t``.

    Raises:
      ValueError: a mode out of range, or given twice.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.mean(tt.ones((10,) * 40)))
      1.0

    Source: ours; a contraction with vectors of equal powers of two, whose product is exact.
    """
    single("t", t)
    if _check.flag("keepdims", keepdims):
        return _kept(mean(t, axis), t, axis)
    if isinstance(t, TTMatrix):
        sides = _modes(axis, 2)
        powers, rest = _inverse_powers([math.prod(c.shape[1 + k] for k in sides) for c in t.cores])
        return _matrix_sum(_multiplied(t, powers), sides) * rest
    modes = _modes(axis, t.order)
    powers, rest = _inverse_powers([t.shape[k] for k in modes])
    pairs = zip(modes, powers, strict=True)
    return contract_modes(t, {k: np.full(t.shape[k], w).astype(t.dtype) for k, w in pairs}) * rest


@overload
def var(t: TT | TTMatrix, axis: None = None, *, keepdims: Literal[False] = False) -> jax.Array: ...
@overload
def var(t: TT | TTMatrix, axis: Axis = None, *, keepdims: bool = False) -> Any: ...
@placed
def var(t: TT | TTMatrix, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """Computes the variance, mean of |x − mean|², of a train's entries, all or over some modes.

    Follows `numpy.var`.

    Args:
      t: TT, or TTMatrix, whose axes are 0, the rows, and 1, the columns.
      axis: modes to average over; None for all.
      keepdims: whether these modes stay, of size one, and with them the kind of ``t``.

    Returns:
      A real scalar, accurate to roundoff of the deviation, not of the mean; or a TT of ranks
      (r + r')², r' those of the mean, which `round` brings down.

    Raises:
      ValueError: a mode out of range, or given twice.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> print(f"{tt.var(tt.rank_one([jnp.array([1.0, 3.0]), jnp.ones(5)])):.3f}")
      1.000

    Source: ours; over all modes it is a squared `distance` from the mean, in which nothing cancels.
    """
    single("t", t)
    if _check.flag("keepdims", keepdims):
        return _kept(var(t, axis), t, axis)
    modes = _modes(axis, t.ndim)
    if len(modes) == t.ndim:
        flat = fold(t) if isinstance(t, TTMatrix) else t
        # Root mean squares are in range where norms, of so many entries, are not.
        powers, rest = _inverse_powers([math.sqrt(n) for n in flat.shape])
        centre = scale(ones_like(flat), mean(flat))
        return (distance(_multiplied(flat, powers), _multiplied(centre, powers)) * rest) ** 2
    deviation = add(t, scale(mean(t, modes, keepdims=True), -1))  # broadcast  # type: ignore[arg-type]
    return real(mean(hadamard(conj(deviation), deviation), modes))


@placed
def cumsum(t: Train, axis: int) -> Train:
    """Computes cumulative sums of a train along one mode, exactly, as `numpy.cumsum`.

    Args:
      t: TT; or TTMatrix, down its rows or along its columns: the TT-ranks double then.
      axis: the mode; of a TTMatrix 0, the rows, or 1, the columns.

    Returns:
      Train of the kind and shape of ``t``; the TT-ranks of a TT stay.

    Raises:
      ValueError: a mode out of range.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.cumsum(tt.ones((4,)), 0)))
      [1. 2. 3. 4.]

    Source: ours; TT-matrices are multiplied by the triangle of ones, of TT-rank 2.
    """
    single("t", t)
    k = _mode(axis, t.ndim)
    if isinstance(t, TTMatrix):
        shape = t.row_shape if k == 0 else t.col_shape
        lower = _prefixes(shape, t.dtype)
        return matmul(lower, t) if k == 0 else matmul(t, transpose(lower))
    return _replaced(t, k, jnp.cumsum(t.cores[k], axis=1))


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


@placed
def tensordot(x: TT, y: TT, axes: int | tuple[Any, Any] = 2) -> Any:
    """Contracts pairs of modes of two trains, as `numpy.tensordot`.

    Args:
      x: TT.
      y: TT.
      axes: how many of the last modes of ``x`` are summed with the first ones of ``y``; or the two
        lists of modes.

    Returns:
      TT of the modes of ``x`` that remain, then those of ``y``; a scalar if none does. Where the
      modes are the last ones of ``x`` and the first ones of ``y``, in order, nothing is rounded and
      the ranks stay; elsewhere modes are permuted before, to roundoff, and ranks may grow.

    Raises:
      ValueError: sizes that differ, or modes out of range or given twice.

    Example:
      >>> from tensorjax import tt
      >>> tt.tensordot(tt.ones((2, 3, 4)), tt.ones((3, 4, 5)), 2).shape
      (2, 5)

    Source: ours; of neighbouring modes as in Oseledets (2011), section 4.2, after `permute`.
    """
    single("x", x, TT)
    single("y", y, TT)
    left, right = _summed(x, y, axes)
    kept = [k for k in range(x.order) if k not in left]
    rest = [k for k in range(y.order) if k not in right]
    dtype = jnp.promote_types(x.dtype, y.dtype)
    x = permute(x.astype(dtype), [*kept, *left])
    y = permute(y.astype(dtype), [*right, *rest])
    return _joined(x, y, len(left))


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
    return TT._unchecked(tuple(contract.einsum("aiib->aib", c) for c in a.cores))


@placed
def diagonal_matrix(t: TT) -> TTMatrix:
    """Returns the diagonal TT-matrix with the entries of a train, as `numpy.diag`; the ranks stay.

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
    eyes = [jnp.eye(n, dtype=t.dtype) for n in t.shape]
    pairs = zip(t.cores, eyes, strict=True)
    return TTMatrix._unchecked(tuple(c[:, :, None, :] * eye[None, ..., None] for c, eye in pairs))


def _modes(axis: Axis, order: int) -> list[int]:
    """Returns the modes to reduce, from an axis argument, in ascending order."""
    if axis is None:
        return list(range(order))
    single = isinstance(axis, int | np.integer)
    given = [axis] if single else _check.several("axis", axis, "modes")
    modes = sorted(_mode(k, order) for k in given)
    if len(set(modes)) < len(modes):
        raise ValueError(f"axis: expected modes given once, got {axis}")
    return modes


def _mode(axis: Any, order: int) -> int:
    return _check.integer("axis", axis, low=-order, high=order - 1) % order


def _replaced(t: TT, k: int, core: Any) -> TT:
    return TT._unchecked(tuple(copied((*t.cores[:k], core, *t.cores[k + 1 :]))))


def _inverse_powers(sizes: Sequence[float]) -> tuple[list[float], float]:
    """Splits 1/∏ sizes, of a mean, into powers of two, one for each size, and a remainder.

    They are exact in every dtype, where the same rounding of 1/n in every mode would add up.
    """
    if 0 in sizes:  # as in JAX: the mean of nothing is NaN
        return [1.0] * len(sizes), math.nan
    powers, rest = [], 1.0
    for n in sizes:
        rest, e = math.frexp(rest / n)
        powers.append(math.ldexp(1.0, e))
    return powers, rest


def _multiplied(t: Train, numbers: Sequence[float]) -> Train:
    """Multiplies every core by a factor of its own, in a mean or a variance."""
    pairs = zip(t.cores, numbers, strict=True)
    return type(t)._unchecked(tuple(c * w for c, w in pairs))


def _matrix_sum(a: TTMatrix, axis: Axis) -> Any:
    sides = _modes(axis, 2)
    if len(sides) == 2:
        return sum(fold(a))
    if not sides:
        return a
    return TT._unchecked(tuple(c.sum(axis=1 + sides[0]) for c in a.cores))


def _kept(out: Any, t: TT | TTMatrix, axis: Axis) -> Any:
    """Gives what a reduction leaves of a train its modes back, of size one (keepdims)."""
    modes = _modes(axis, t.ndim)
    if not modes:
        return out
    if len(modes) == t.ndim:
        one = np.ones((1,) * t._core_ndim, out.dtype)  # a variance is real
        return scale(type(t)([one] * t.order), out)  # type: ignore[arg-type]
    if isinstance(t, TTMatrix):
        return TTMatrix._unchecked(tuple(jnp.expand_dims(c, 1 + modes[0]) for c in out.cores))
    return item(out, tuple(None if k in modes else slice(None) for k in range(t.order)))


def _prefixes(shape: Sequence[int], dtype: Any) -> TTMatrix:
    """Builds the lower triangle of ones as a TT-matrix of TT-rank 2, for cumulative sums.

    From the left, the multi-indices of row and column are equal so far, or the column's is smaller.
    """
    cores = []
    for k, n in enumerate(shape):
        core = np.zeros((2, n, n, 2))
        core[0, ..., 0], core[0, ..., 1], core[1, ..., 1] = np.eye(n), np.tri(n, k=-1), 1
        core = core[:1] if k == 0 else core
        cores.append(core.sum(-1, keepdims=True) if k == len(shape) - 1 else core)
    return TTMatrix._unchecked(tuple(jnp.asarray(c, dtype) for c in cores))


def _summed(x: TT, y: TT, axes: Any) -> tuple[list[int], list[int]]:
    """Returns the modes that `tensordot` sums over in both trains, pair by pair, from axes."""
    if isinstance(axes, int | np.integer):
        count = _check.integer("axes", axes, low=0, high=min(x.order, y.order))
        left, right = list(range(x.order - count, x.order)), list(range(count))
    else:
        given = [
            [a] if isinstance(a, int | np.integer) else _check.several("axes", a, "modes")
            for a in _check.several("axes", axes, "two lists of modes, or their number")
        ]
        if len(given) != 2 or len(given[0]) != len(given[1]):
            raise ValueError(f"axes: expected two lists of as many modes, got {axes}")
        left, right = ([_mode(k, t.order) for k in a] for a, t in zip(given, (x, y), strict=True))
    if len(set(left)) < len(left) or len(set(right)) < len(right):
        raise ValueError(f"axes: expected modes given once, got {axes}")
    sizes = [x.shape[k] for k in left], [y.shape[k] for k in right]
    if sizes[0] != sizes[1]:
        raise ValueError(f"axes: expected modes of equal sizes, got {sizes[0]} and {sizes[1]}")
    return left, right


@functools.partial(jax.jit, static_argnums=2)
def _joined(x: TT, y: TT, count: int) -> Any:
    """Contracts the last ``count`` modes of x with the first ones of y, for `tensordot`."""
    first, summed = list(x.cores[: x.order - count]), x.cores[x.order - count :]
    last = list(y.cores[count:])
    bond, exponent = _transfer(summed, y.cores[:count], x.dtype)
    if last:
        last[0] = absorb(bond, last[0])
    elif first:
        first[-1] = times_right(first[-1], bond)
    else:
        return linalg.scaled(bond[0, 0], exponent)
    return TT._unchecked(tuple(shared_out([*first, *last], exponent, at=max(len(first) - 1, 0))))


def _transfer(xs: Sequence[Any], ys: Sequence[Any], dtype: Any) -> tuple[Any, Any]:
    """Contracts all modes of two chains in `tensordot`: a matrix of two outer bonds, as (m, e).

    The smaller one of these two bonds is carried along.
    """
    if not xs:
        return jnp.ones((1, 1), dtype), 0
    left, right = xs[0].shape[0], ys[-1].shape[-1]
    pairs, exponent = list(zip(xs, ys, strict=True)), 0
    if left <= right:
        held, expression = jnp.eye(left, dtype=dtype)[..., None], "zab,aic,bid->zcd"
    else:
        held, expression = jnp.eye(right, dtype=dtype)[None], "cdz,aic,bid->abz"
        pairs.reverse()
    for a, b in pairs:
        held, e = linalg.normalized(einsum(expression, held, a, b, precision=_HIGHEST))
        exponent += e
    return held.reshape(left, right), exponent
