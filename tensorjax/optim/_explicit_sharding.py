"""Arrays on meshes with explicit sharding: widest dtypes, resharding, selected indices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def widest(*arrays: Any) -> Any:
    """Returns the widest dtype, to which arrays promote by JAX's standard rules."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*arrays)


def like(x: jax.Array, model: Any) -> jax.Array:
    """Reshards x like another array, on meshes with explicit sharding only."""
    sharding = jax.typeof(model).sharding
    return jax.sharding.reshard(x, sharding) if _explicit(sharding) else x


def _whole(x: jax.Array) -> jax.Array:
    """Replicates an array on all devices of a mesh with explicit sharding; else keeps it."""
    sharding = jax.typeof(x).sharding
    if not _explicit(sharding):
        return x
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec()))


def take(x: jax.Array, indices: np.ndarray, axis: int) -> jax.Array:
    """Selects indices along an axis of an explicitly sharded array; other axes stay sharded."""
    sharding = jax.typeof(x).sharding
    if not _explicit(sharding):
        return jnp.take(x, jnp.asarray(indices), axis=axis)
    spec = list(sharding.spec)
    spec[axis] = None
    sharding = NamedSharding(sharding.mesh, PartitionSpec(*spec))
    where = (*(slice(None),) * axis, jnp.asarray(indices))
    return jax.sharding.reshard(x, sharding).at[where].get(out_sharding=sharding)


def _explicit(sharding: Any) -> bool:
    return AxisType.Explicit in sharding.mesh.axis_types
