"""Unfoldings of tensor-train cores (r, n, s), NumPy or JAX, and products of them with matrices."""

import math
from collections.abc import Sequence
from typing import Any

from tensorjax.linalg._arrays import matmul
from tensorjax.linalg._qr import triangle

Cores = list[Any]


def tall(core: Any) -> Any:
    """Reshapes a core (r, n, s) to its left unfolding, the matrix (r n, s)."""
    return core.reshape(math.prod(core.shape[:-1]), core.shape[-1])


def wide(core: Any) -> Any:
    """Reshapes a core (r, n, s) to its right unfolding, the matrix (r, n s)."""
    return core.reshape(core.shape[0], math.prod(core.shape[1:]))


def absorb(matrix: Any, core: Any) -> Any:
    """Multiplies a matrix into the left bond of a core: matrix @ core."""
    return matmul(matrix, wide(core)).reshape(matrix.shape[0], *core.shape[1:])


def times_right(core: Any, matrix: Any) -> Any:
    """Multiplies a matrix into the right bond of a core: core @ matrix."""
    return matmul(tall(core), matrix).reshape(*core.shape[:2], matrix.shape[1])


def join(a: Any, b: Any) -> Any:
    """Contracts the bond between neighbouring cores: (r, …, s) and (s, …, t) to (r, …, …, t)."""
    return matmul(tall(a), wide(b)).reshape(*a.shape[:-1], *b.shape[1:])


def merge(cores: Sequence[Any]) -> Any:
    """Contracts the bonds between neighbouring cores into one core (r, ∏ n, s)."""
    out = cores[0]
    for core in cores[1:]:
        out = join(out, core)
    return out.reshape(out.shape[0], math.prod(out.shape[1:-1]), out.shape[-1])


def times_mode(core: Any, matrix: Any) -> Any:
    """Multiplies a tensor-train core by a matrix along its mode."""
    return matmul(matrix[None], core)


def times_axis(x: Any, matrix: Any, axis: int) -> Any:
    """Multiplies an array of any order, such as a Tucker core, by a matrix along one axis."""
    rows, columns = x.shape[:axis], x.shape[axis + 1 :]
    flat = x.reshape(math.prod(rows), x.shape[axis], math.prod(columns))
    return times_mode(flat, matrix).reshape(*rows, matrix.shape[0], *columns)


def weighted_sum(core: Any, weights: Any) -> Any:
    """Sums a core (r, n, s) over its mode with weights (n,): a matrix (r, s)."""
    return matmul(weights, core)


def short(a: Any) -> Any:
    """Replaces a matrix taller than wide by its QR triangle, which has the same Gram matrix."""
    return triangle(a) if a.shape[0] > a.shape[1] else a
