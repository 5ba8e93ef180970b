"""Product of one array of a tensor with a matrix, kept in the range of the dtype."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tensorjax._cores.scaling import shared_out
from tensorjax._cores.unfoldings import Cores
from tensorjax._kernels.conditions import on_cpu
from tensorjax.linalg._powers_of_two import exponent_of, exponents_held, normalized

Times = Callable[[Any, Any], Any]


def is_in_range(array: Any, matrix: Any) -> bool:
    """Whether a concrete array on a CPU, and its product with a matrix, are known to be in range.

    False for traced arrays and for those elsewhere, which are not looked at.
    """
    if not (on_cpu(array, matrix) and on_cpu(matrix)):
        return False
    low, high = exponents_held(array.dtype)
    size = exponent_of(np.asarray(array)) + exponent_of(np.asarray(matrix))
    return low < size < high - (2 * matrix.shape[1]).bit_length()


def times_in_range(arrays: Sequence[Any], at: int, matrix: Any, times: Times, name: str) -> Cores:
    """Multiplies one of the arrays that a tensor is the product of by a matrix, in range.

    What this array cannot hold all of them share.

    Args:
      arrays: of JAX, in one dtype.
      at: which of them is multiplied.
      matrix: in the same dtype.
      times: makes the product of the array and the matrix.
      name: of the tensor, for the error.

    Raises:
      OverflowError: concrete finite arrays, whose product the dtype cannot hold in as many.
    """
    out = _times_in_range(tuple(arrays), at, matrix, times)
    if on_cpu(*out) and not _are_finite(out) and _are_finite([*arrays, matrix]):
        raise OverflowError(
            f"{name}: {matrix.dtype} cannot hold the product with the matrix in {len(out)} arrays; "
            "scale the tensor or the matrix first, or cast them to a wider dtype"
        )
    return out


@jax.jit(static_argnums=(1, 3))
def _times_in_range(arrays: Sequence[Any], at: int, matrix: Any, times: Times) -> Cores:
    (array, own), (small, e) = normalized(arrays[at]), normalized(matrix)
    return shared_out([*arrays[:at], times(array, small), *arrays[at + 1 :]], own + e, at=at)


def _are_finite(arrays: Sequence[Any]) -> bool:
    return all(bool(np.isfinite(np.asarray(a)).all()) for a in arrays)
