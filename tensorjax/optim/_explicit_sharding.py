"""Gates and cores on meshes of explicit axes: widest shardings, gathered arrays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def widest(*arrays: Any) -> Any:
    """Returns the widest dtype of gates or other arrays, under strict dtype promotion too."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*arrays)


def like(x: jax.Array, model: Any) -> jax.Array:
    """Reshards x, such as gates to prune, like another array, on meshes with explicit sharding."""
    sharding = jax.typeof(model).sharding
    return jax.sharding.reshard(x, sharding) if _explicit(sharding) else x


def _whole(x: jax.Array) -> jax.Array:
    """Replicates gates on every device, on meshes with explicit sharding."""
    sharding = jax.typeof(x).sharding
    if not _explicit(sharding):
        return x
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec()))


def take(x: jax.Array, indices: np.ndarray, axis: int) -> jax.Array:
    """Takes some indices of an axis, those not pruned; other axes keep their explicit sharding."""
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
