"""Dtypes of factorisations: half precision widened to single, machine epsilon, promotion."""

import functools
from typing import Any

import jax.numpy as jnp

from tensorjax.linalg._arrays import Array


def factor_dtype(dtype: Any) -> Any:
    """Returns the dtype in which to factorise a matrix: float32 for half precision."""
    return jnp.dtype(jnp.float32) if jnp.finfo(dtype).bits < 32 else jnp.dtype(dtype)


@functools.cache
def epsilon(dtype: Any) -> float:
    """Returns the machine epsilon of a floating or complex dtype, half precision included."""
    return float(jnp.finfo(dtype).eps)


def wide(a: Array) -> Array:
    """Casts a half-precision array to its factorisation dtype, single precision."""
    dtype = factor_dtype(a.dtype)
    return a if a.dtype == dtype else a.astype(dtype)
