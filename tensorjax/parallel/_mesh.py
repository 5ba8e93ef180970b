"""Construction of 2D and 3D device meshes for the layouts."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from tensorjax import _check


def mesh(rows: int, columns: int, *, depth: int = 1, devices: Sequence[Any] | None = None) -> Mesh:
    """Creates a device mesh with axes "r" (rows) and "c" (columns), and "d" if ``depth`` exceeds 1.

    Its axes are of type Auto: code outside of `jax.shard_map` is partitioned by the compiler.

    Args:
      rows: size of axis "r".
      columns: size of axis "c". Neighbours along "c" are neighbours in ``devices``.
      depth: size of axis "d", for 2.5D.
      devices: the first rows × columns × depth of them are taken; None is `jax.devices()`, in an
        order that follows the wires between them where JAX knows them.

    Returns:
      `jax.sharding.Mesh` of shape (rows, columns), or (depth, rows, columns).

    Raises:
      ValueError: a size below one, or more devices asked for than there are.

    Example:
      >>> from tensorjax import parallel
      >>> dict(parallel.mesh(1, 1).shape)
      {'r': 1, 'c': 1}

    Source: ours.
    """
    named = {"d": depth, "r": rows, "c": columns}
    for name, size in zip(("depth", "rows", "columns"), named.values(), strict=True):
        _check.integer(name, size, low=1)
    if depth == 1:
        del named["d"]
    sizes = tuple(named.values())
    needed = math.prod(sizes)
    there = list(jax.devices() if devices is None else devices)
    if len(there) < needed:
        raise ValueError(
            f"mesh: expected at least {' × '.join(map(str, sizes))} = {needed} devices, got "
            f"{len(there)}; ask for a smaller mesh, or simulate devices on a CPU with "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={needed}"
        )
    types = (AxisType.Auto,) * len(sizes)
    if devices is None and len(there) == needed:
        return jax.make_mesh(sizes, tuple(named), axis_types=types)
    array = np.asarray(there[:needed], dtype=object).reshape(sizes)
    return Mesh(array, tuple(named), axis_types=types)
