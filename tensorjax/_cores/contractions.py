"""Contractions of single cores (r, n, s), NumPy or JAX, with matrices, vectors and cores."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from tensorjax import contract
from tensorjax._cores.unfoldings import tall, wide
from tensorjax.contract._numpy_einsum import numpy_einsum
from tensorjax.linalg._arrays import matmul

_NUMPY = {np.ndarray}


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
