"""Random arrays of many shapes from one key, by a few compiled programs."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from tensorjax import _check
from tensorjax._placement import _default_device
from tensorjax._transfer import on_device

# Entries, those of the padding among them, up to which drawing takes less than compiling: some ms.
_MOST = 2**18


def scaled_normals(
    key: Any, shapes: Sequence[tuple[int, ...]], scales: Sequence[float], dtype: Any
) -> list[jax.Array]:
    """Draws normal arrays of given shapes and standard deviations from one random key."""
    drawn = on_host(jax.random.normal, _check.key(key), shapes, dtype)
    if drawn is not None:
        return on_device([x * np.asarray(s, dtype) for x, s in zip(drawn, scales, strict=True)])
    keys = jax.random.split(key, len(shapes))
    return [
        jax.random.normal(k, shape, dtype) * jnp.asarray(s, dtype)
        for k, shape, s in zip(keys, shapes, scales, strict=True)
    ]


def on_host(
    draw: Callable[..., jax.Array], key: Any, shapes: Sequence[tuple[int, ...]], dtype: Any
) -> list[np.ndarray] | None:
    """Draws random arrays of several shapes by one program for similar sizes; None if it cannot.

    The bits of Threefry depend on the key and on the place of an entry, not on how many there are,
    and so do the keys of a split: what is drawn is the beginning of longer vectors. Their lengths
    and number are powers of four, so that few programs serve all shapes.

    Args:
      draw: called with a key, a shape and a dtype; hashable.
      key: one key.
      shapes: of the arrays.
      dtype: of the arrays.

    Returns:
      The arrays; None where padding does not apply or does not pay: the key is traced or not of
      Threefry, JAX works on another platform or a mesh, or there are many entries.
    """
    sizes = [math.prod(shape) for shape in shapes]
    count, size = _padded(len(sizes), 4), _padded(max(sizes, default=1), 64)
    if count * size > _MOST or not _is_plain(key):
        return None
    drawn = _vectors(draw, key, count, size, jnp.dtype(dtype))
    if isinstance(drawn, Tracer):  # a concrete key within a traced function
        return None
    rows = np.asarray(drawn)
    return [row[:n].reshape(shape) for row, n, shape in zip(rows, sizes, shapes, strict=False)]


def _padded(n: int, least: int) -> int:
    """Rounds the length of random arrays up to a power of four times ``least``."""
    while least < n:
        least *= 4
    return least


def _is_plain(key: Any) -> bool:
    """Whether random arrays of a key can be drawn on the host: concrete Threefry, CPU, no mesh."""
    config: Any = jax.config  # whose options have no types
    if not isinstance(key, jax.Array) or isinstance(key, Tracer):
        return False
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.ndim:
        return False
    return (
        getattr(config, "jax_threefry_partitionable", True)  # the only way where no option is left
        and str(jax.random.key_impl(key)) == "threefry2x32"
        and not key.committed  # else results go where the key is
        and _default_device().platform == "cpu"
        and jax.sharding.get_abstract_mesh().empty
    )


@functools.partial(jax.jit, static_argnums=(0, 2, 3, 4))
def _vectors(
    draw: Callable[..., jax.Array], key: jax.Array, count: int, size: int, dtype: Any
) -> jax.Array:
    return jax.vmap(lambda k: draw(k, (size,), dtype))(jax.random.split(key, count))
