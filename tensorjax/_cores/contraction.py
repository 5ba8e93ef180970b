"""Einsum contraction of cores: by NumPy for host arrays, by a planned order for JAX arrays."""

from typing import Any

import jax
import numpy as np
from jax import lax

from tensorjax import contract
from tensorjax.contract._numpy_einsum import numpy_einsum

_NUMPY = {np.ndarray}


def einsum(expression: str, *operands: Any) -> Any:
    """Contracts NumPy or JAX arrays by an einsum expression, at full precision.

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
