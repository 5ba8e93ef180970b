"""Contractions of single cores (r, n, s), NumPy or JAX, with matrices, vectors and cores."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from tensorjax import _blas_threads, contract
from tensorjax._cores.unfoldings import tall, wide
from tensorjax.contract._numpy_einsum import numpy_einsum
from tensorjax.linalg._arrays import matmul

_NUMPY = {np.ndarray}
# Elements of core slices gathered at a time: they fit into the caches.
_GATHER = 2**18
# Slices of so many elements are not gathered where the gathered ones would have so many an index:
# a product by groups of rows with one index costs as much.
_LARGE_SLICE, _GROUPED = 2**8, 2**14
# For mode sizes up to this, all slices are multiplied and one is picked, by one thread from so many
# multiplications on: gathering costs more, and so do threads for so few columns.
_FEW_SLICES, _ONE_THREAD = 4, 2**18
# Rows per index from which on slices are laid out one after another before they are gathered.
_AGAIN = 8


def einsum(expression: str, *operands: Any) -> Any:
    """Contracts NumPy or JAX arrays, mostly cores, by an einsum expression at full precision.

    Args:
      expression: as NumPy's, with an output and without "...".
      operands: all NumPy arrays, or at least one of JAX.

    Returns:
      Array; of NumPy perhaps a transposed view, as after `numpy.transpose`.
    """
    if set(map(type, operands)) == _NUMPY:
        return numpy_einsum(expression, *operands)
    if not any(isinstance(x, jax.Array) for x in operands):  # scalars of NumPy, or subclasses
        return numpy_einsum(expression, *map(np.asarray, operands))
    # Axes are not merged to matrices, which would end the sharding of a mode over devices.
    return contract.einsum(expression, *operands, precision=lax.Precision.HIGHEST, merge_axes=False)


def absorb(matrix: Any, core: Any) -> Any:
    """Contracts a matrix with the left bond of a core, NumPy or JAX: matrix @ core."""
    return matmul(matrix, wide(core)).reshape(matrix.shape[0], *core.shape[1:])


def times_right(core: Any, matrix: Any) -> Any:
    """Contracts a matrix with the right bond of a core, NumPy or JAX: core @ matrix."""
    return matmul(tall(core), matrix).reshape(*core.shape[:2], matrix.shape[1])


def join(a: Any, b: Any) -> Any:
    """Contracts neighbouring cores over their bond: (r, …, s) and (s, …, t) to (r, …, …, t)."""
    return matmul(tall(a), wide(b)).reshape(*a.shape[:-1], *b.shape[1:])


def merge(cores: Sequence[Any]) -> Any:
    """Contracts neighbouring cores over their bonds into one core (r, ∏ n, s)."""
    out = cores[0]
    for core in cores[1:]:
        out = join(out, core)
    return out.reshape(out.shape[0], math.prod(out.shape[1:-1]), out.shape[-1])


def times_mode(core: Any, matrix: Any) -> Any:
    """Contracts a core with a matrix along its mode."""
    return matmul(matrix[None], core)


def times_axis(x: Any, matrix: Any, axis: int) -> Any:
    """Contracts one axis of an array of any order, such as a Tucker core, with a matrix."""
    rows, columns = x.shape[:axis], x.shape[axis + 1 :]
    flat = x.reshape(math.prod(rows), x.shape[axis], math.prod(columns))
    return times_mode(flat, matrix).reshape(*rows, matrix.shape[0], *columns)


def weighted_sum(core: Any, weights: Any) -> Any:
    """Contracts a core (r, n, s) over its mode with weights (n,): a matrix (r, s)."""
    return matmul(weights, core)


def times_slices(rows: np.ndarray, core: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Contracts each row vector (m, r) with the slice of a host core at the row's index: (m, s)."""
    r, n, s = core.shape
    count = len(index)
    if count == 1:
        return rows @ core[:, index[0]]
    if r * s >= _LARGE_SLICE and count * r * s >= _GROUPED * n:
        return _times_sorted_slices(rows, core, index)
    if n <= _FEW_SLICES:
        with _blas_threads.one_thread(rows.size * n * s >= _ONE_THREAD):
            return absorb(rows, core)[np.arange(count), index]
    slices = core.transpose(1, 0, 2)
    if count >= _AGAIN * n:
        slices = np.ascontiguousarray(slices)  # what is gathered lies together
    step = max(1, _GATHER // (r * s))
    if count <= step:
        return np.matmul(rows[:, None], slices[index])[:, 0]
    pieces = [slice(k, k + step) for k in range(0, count, step)]
    return np.concatenate([np.matmul(rows[p, None], slices[index[p]])[:, 0] for p in pieces])


def _times_sorted_slices(rows: np.ndarray, core: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Contraction `times_slices` of rows with core slices, by one matrix product per index."""
    order = np.argsort(index, kind="stable")
    ends = np.cumsum(np.bincount(index, minlength=core.shape[1]))
    rows = rows[order]
    out = np.empty((len(index), core.shape[2]), np.result_type(rows, core))
    start = 0
    for k, end in enumerate(ends):
        if end > start:
            out[order[start:end]] = rows[start:end] @ core[:, k]
        start = end
    return out


# Operators that are a few matrices per mode, Σ_p C[a, p, b] O_p, are given by C (a, P, b) and by
# the images O_p x of a core x of a train, (P, r, n, s). A flat bond is a pair (rank of the train,
# rank of the operator). The orders of these products are fixed: ranks and modes are so small that
# to find an order, or the axes of a general product, takes longer than the products themselves.


def functionals(core: np.ndarray, f: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Contracts a core (r, n, s) with m weights (n, m) and m vectors (m, s) at its right: (m, r).

    Each row of ``f`` meets its own column of the weights, so that rank-one trains of m columns, as
    random sketches and moments are, pass the core at once.
    """
    return (np.matmul(core, f.T) * weights).sum(1).T


def applied_functionals(
    coefficients: np.ndarray, images: np.ndarray, f: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Contracts a product's core with m weights (n, m) and m vectors (m, s b): (m, r a)."""
    a, p, b = coefficients.shape
    _, r, _, s = images.shape
    m = len(f)
    seen = np.matmul(weights.T, images).transpose(2, 1, 3, 0).reshape(m, r, s * p)
    after = f.reshape(m * s, b) @ coefficients.reshape(a * p, b).T
    after = after.reshape(m, s, a, p).swapaxes(2, 3).reshape(m, s * p, a)
    return np.matmul(seen, after).reshape(m, r * a)


def applied_from_left(coefficients: np.ndarray, images: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Multiplies rows (f, r a) by a product's core: (f n, s b)."""
    a, p, b = coefficients.shape
    _, r, n, s = images.shape
    f = len(rows)
    ahead = rows.reshape(f * r, a) @ coefficients.reshape(a, p * b)
    ahead = ahead.reshape(f, r, p, b).transpose(0, 3, 2, 1).reshape(f * b, p * r)
    out = ahead @ images.reshape(p * r, n * s)
    return out.reshape(f, b, n, s).transpose(0, 2, 3, 1).reshape(f * n, s * b)
