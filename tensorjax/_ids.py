"""Ids and targets inside compiled programs, which cannot raise: out of range is NaN.

Tokens, categories and targets are integers below a count. Where they are concrete they are checked;
where they are traced, what is made of one out of range is NaN, so that a loss says so, whatever
the dtype of the ids and the layout on a mesh.
"""

import jax
import jax.numpy as jnp

# A target of which no prediction is asked for, as PyTorch's `ignore_index` and Hugging Face's
# labels have it.
IGNORED = -100


def as_int32(ids: jax.Array, count: int) -> jax.Array:
    """Ids as int32: those in [0, count) and `IGNORED` as they are, others still out of range.

    A plain cast would let 2³² + 5 be the id 5.
    """
    info = jnp.iinfo(ids.dtype)
    low, high = max(IGNORED - 1, int(info.min)), min(count, int(info.max))
    ends = (jnp.asarray(end, ids.dtype) for end in (low, high))
    return jnp.clip(ids, *ends).astype(jnp.int32)


def inside(ids: jax.Array, count: int) -> jax.Array:
    """Whether each of these int32 ids is in [0, count)."""
    return (ids >= 0) & (ids < count)


def or_nan(rows: jax.Array, valid: jax.Array) -> jax.Array:
    """Rows (…, features) where they are valid (…), NaN elsewhere; no gradient comes of those."""
    return jnp.where(valid[..., None], rows, jnp.asarray(jnp.nan, rows.dtype))
