"""Checks of arrays of a training: finite values, bytes, dtypes of gradients."""

from typing import Any

import jax
import jax.numpy as jnp

from tensorjax import linalg


def nbytes(x: Any) -> int:
    """Returns the bytes that a JAX array takes on the devices of this process."""
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return x.nbytes
    return sum(shard.data.nbytes for shard in x.addressable_shards)


def widened(gradients: Any) -> Any:
    """Casts the gradient arrays of a training to single precision at least, to sum them."""
    if all(x.dtype == linalg.factor_dtype(x.dtype) for x in jax.tree.leaves(gradients)):
        return gradients
    return _widened(gradients)


@jax.jit
def finite(tree: Any) -> jax.Array:
    """Whether all entries of a pytree of arrays are finite, computed where the arrays are."""
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


@jax.jit
def _widened(gradients: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(linalg.factor_dtype(x.dtype)), gradients)
