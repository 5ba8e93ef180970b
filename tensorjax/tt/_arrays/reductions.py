"""Reductions of trains as in NumPy: sum, mean, var and cumsum, over all modes or some."""

import math
from collections.abc import Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._formats.trains import TT, Train, TTMatrix, single
from tensorjax._placement import placed
from tensorjax.tt._arrays.indexing_and_concatenation import item
from tensorjax.tt._arrays.mode_products import contraction, with_core
from tensorjax.tt._constructors import ones_like
from tensorjax.tt._exact_arithmetic import add, conj, real, scale, transpose
from tensorjax.tt._folding import fold
from tensorjax.tt._products.hadamard_and_matrix_products import hadamard, matmul
from tensorjax.tt._products.inner_products import distance
from tensorjax.tt._rounding.orthogonalize import orthogonalize

Axis = int | Sequence[int] | None


@overload
def sum(t: TT | TTMatrix, axis: None = None, *, keepdims: Literal[False] = False) -> jax.Array: ...
@overload
def sum(t: Train, axis: Axis = None, *, keepdims: Literal[True]) -> Train: ...
@overload
def sum(t: TT | TTMatrix, axis: Axis = None, *, keepdims: bool = False) -> Any: ...
@placed
def sum(t: TT | TTMatrix, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """Sums the entries of a train over all modes, or over some, as `numpy.sum`.

    Args:
      t: TT, or TTMatrix, whose axes are 0, the rows, and 1, the columns.
      axis: modes to sum over; None for all.
      keepdims: whether these modes stay, of size one, and with them the kind of ``t``.

    Returns:
      TT of the modes that remain, or a scalar.

    Raises:
      ValueError: a mode out of range, or given twice. OverflowError: the dtype cannot hold the sum,
        as of `inner`.

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
    shape, dtype = t.shape, t.dtype
    ones = {k: np.ones(shape[k], dtype) for k in _modes(axis, t.order)}
    return contraction(t, ones, "the sum")


@overload
def mean(t: TT | TTMatrix, axis: None = None, *, keepdims: Literal[False] = False) -> jax.Array: ...
@overload
def mean(t: Train, axis: Axis = None, *, keepdims: Literal[True]) -> Train: ...
@overload
def mean(t: TT | TTMatrix, axis: Axis = None, *, keepdims: bool = False) -> Any: ...
@placed
def mean(t: TT | TTMatrix, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """Averages the entries of a train over all modes, or over some, as `numpy.mean`.

    Args:
      t: TT, or TTMatrix, whose axes are 0, the rows, and 1, the columns.
      axis: modes to average over; None for all.
      keepdims: whether these modes stay, of size one, and with them the kind of ``t``.

    Returns:
      TT of the modes that remain, or a scalar, in the dtype of ``t``.

    Raises:
      ValueError: a mode out of range, or given twice. OverflowError: the dtype cannot hold the
        mean, as of `inner`.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.mean(tt.ones((10,) * 40)))
      1.0

    Source: ours; a contraction with vectors of equal powers of two, whose product is exact.
    """
    single("t", t)
    if _check.flag("keepdims", keepdims):
        return _kept(mean(t, axis), t, axis)
    return _mean(t, axis, "the mean")


def _mean(t: TT | TTMatrix, axis: Axis, name: str | None) -> Any:
    """Averages a train over some modes; overflow of the mean is an error if it has a ``name``."""
    if isinstance(t, TTMatrix):
        sides = _modes(axis, 2)
        powers, rest = _inverse_powers([math.prod(c.shape[1 + k] for k in sides) for c in t.cores])
        return _matrix_sum(_multiplied(t, powers), sides) * rest
    modes, shape, dtype = _modes(axis, t.order), t.shape, t.dtype
    powers, rest = _inverse_powers([shape[k] for k in modes])
    pairs = zip(modes, powers, strict=True)
    vectors = {k: np.full(shape[k], w).astype(dtype) for k, w in pairs}
    return contraction(t, vectors, name) * rest


@overload
def var(t: TT | TTMatrix, axis: None = None, *, keepdims: Literal[False] = False) -> jax.Array: ...
@overload
def var(t: Train, axis: Axis = None, *, keepdims: Literal[True]) -> Train: ...
@overload
def var(t: TT | TTMatrix, axis: Axis = None, *, keepdims: bool = False) -> Any: ...
@placed
def var(t: TT | TTMatrix, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """Computes the variance, mean of |x − mean|², of a train's entries over all modes or some.

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
        centre = scale(ones_like(flat), _mean(flat, None, None))
        return (distance(_multiplied(flat, powers), _multiplied(centre, powers)) * rest) ** 2
    # Orthogonal, for squares of the two terms of x − mean would cancel where they are alike.
    centred = add(t, scale(mean(t, modes, keepdims=True), -1))  # broadcast  # type: ignore[arg-type]
    deviation = orthogonalize(centred, 0)
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
    return with_core(t, k, jnp.cumsum(t.cores[k], axis=1))


def _modes(axis: Axis, order: int) -> list[int]:
    """Converts the axis of a train's reduction to the list of modes to sum over, ascending."""
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


def _inverse_powers(sizes: Sequence[float]) -> tuple[list[float], float]:
    """Splits the factor 1/∏ n_k of a train's mean into a power of two per mode and a remainder.

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
    """Multiplies each core of a train by its own power of two, for its mean or variance."""
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
    """Inserts modes of size one into a reduced train, as NumPy's ``keepdims`` asks."""
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
    """Builds the lower-triangular TT-matrix of ones by which `cumsum` sums a train.

    From the left, the multi-indices of row and column are equal so far, or the column's is smaller.
    """
    cores = []
    for k, n in enumerate(shape):
        core = np.zeros((2, n, n, 2))
        core[0, ..., 0], core[0, ..., 1], core[1, ..., 1] = np.eye(n), np.tri(n, k=-1), 1
        core = core[:1] if k == 0 else core
        cores.append(core.sum(-1, keepdims=True) if k == len(shape) - 1 else core)
    return TTMatrix._unchecked(tuple(jnp.asarray(c, dtype) for c in cores))
