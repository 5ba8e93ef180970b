"""Integer ids, targets and indices in compiled programs: values out of range give NaN.

Tokens, categories and targets are integers below a count, indices count from the end too. Where
they are concrete they are checked; where they are traced, what is made of one out of range is NaN,
so that a loss says so, whatever the dtype of the ids and the layout on a mesh.
"""

import jax
import jax.numpy as jnp

# A target of which no prediction is asked for, as PyTorch's `ignore_index` and Hugging Face's
# labels have it.
IGNORED = -100


def as_int32(ids: jax.Array, count: int) -> jax.Array:
    """Casts integer ids to int32 in a JAX program, so that ids out of range still give NaN.

    A plain cast would let 2³² + 5 be the id 5.
    """
    return _clipped(ids, IGNORED - 1, count)


def counted(indices: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """Converts ids, negative ones from the end, to int32 in [0, n); also returns validity."""
    i = _clipped(indices, -n - 1, n)
    return jnp.clip(jnp.where(i < 0, i + n, i), 0, n - 1), (i >= -n) & (i < n)


def _clipped(ids: jax.Array, low: int, high: int) -> jax.Array:
    """Clips integer ids to [low, high] and casts them to int32, without overflow of the dtype."""
    info = jnp.iinfo(ids.dtype)
    ends = (max(low, int(info.min)), min(high, int(info.max)))
    return jnp.clip(ids, *(jnp.asarray(end, ids.dtype) for end in ends)).astype(jnp.int32)


def inside(ids: jax.Array, count: int) -> jax.Array:
    """Whether int32 ids, of tokens or rows, are in [0, count), as a boolean array."""
    return (ids >= 0) & (ids < count)


def or_nan(rows: jax.Array, valid: jax.Array) -> jax.Array:
    """Replaces rows looked up at invalid integer ids by NaN; no gradient flows to them."""
    return jnp.where(valid[..., None], rows, jnp.asarray(jnp.nan, rows.dtype))
