"""Dtypes of random maps applied to data: promotion and accumulation."""

from typing import Any

import jax
import jax.numpy as jnp


def promoted(a: Any, b: Any) -> Any:
    """Returns the dtype in which a map applies to x: JAX's standard promotion, in any mode."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(jax.dtypes.canonicalize_dtype(a), jax.dtypes.canonicalize_dtype(b))


def accumulator(dtype: Any) -> Any:
    """Returns the dtype in which a map is applied: single precision at least."""
    return promoted(dtype, jnp.float32)
