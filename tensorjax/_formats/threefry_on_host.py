"""Random bits of JAX's Threefry generator by NumPy, where compiling it would take longer.

XLA takes some tenths of a second to compile Threefry, anew for every number of keys or bits. With
`jax_threefry_partitionable`, JAX's default, each word of random bits depends on the key and on its
place alone, and so does each key of a split.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from tensorjax._placement import _default_device
from tensorjax._transfer import on_device

Words = np.ndarray[Any, np.dtype[np.uint32]]

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = 0x1BD11BDA
# Elements hashed at a time, which the cache holds.
_PIECE = 2**14


def words_of(key: Any) -> Words | None:
    """Returns the two words of a JAX key from which NumPy can draw random arrays, or None.

    That is a concrete key of Threefry, not committed to a device, while JAX works on a CPU without
    a mesh.
    """
    config: Any = jax.config  # whose options have no types
    if not isinstance(key, jax.Array) or isinstance(key, Tracer) or key.committed:
        return None
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if key.shape != (() if typed else (2,)):
        return None
    impl = str(jax.random.key_impl(key)) if typed else config.jax_default_prng_impl
    if (
        impl != "threefry2x32"
        or not getattr(config, "jax_threefry_partitionable", True)  # or no option is left
        or _default_device().platform != "cpu"
        or not jax.sharding.get_abstract_mesh().empty
    ):
        return None
    words = jax.random.key_data(key)  # traced within a traced function, though the key is not
    return None if isinstance(words, Tracer) else np.asarray(words)


def hashed(keys: Words, places: np.ndarray) -> tuple[Words, Words]:
    """Hashes 64-bit counts to random bits by Threefry-2x32 with 20 rounds, in NumPy.

    Args:
      keys: (…, 2) words.
      places: non-negative integers below 2^64, which broadcast against the keys.

    Returns:
      High and low words of the random bits, of the broadcast shape.

    Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11 (2011), section 4;
    jax.random has the same rounds.
    """
    places = np.asarray(places, np.uint64)
    shape = np.broadcast_shapes(keys.shape[:-1], places.shape)
    counts = (places >> np.uint64(32)).astype(np.uint32), places.astype(np.uint32)
    given = [keys[..., 0], keys[..., 1], *counts]
    flat = [np.broadcast_to(x, shape).reshape(-1) for x in given]
    high, low = np.empty(flat[0].shape, np.uint32), np.empty(flat[0].shape, np.uint32)
    for start in range(0, high.size, _PIECE):
        piece = slice(start, start + _PIECE)
        high[piece], low[piece] = _mixed(*(x[piece] for x in flat))
    return high.reshape(shape), low.reshape(shape)


def _mixed(first: Words, second: Words, x: Words, y: Words) -> tuple[Words, Words]:
    keys = first, second, first ^ second ^ np.uint32(_PARITY)
    x, y = x + first, y + second
    turned = np.empty_like(y)
    for k in range(5):
        for r in _ROTATIONS[k % 2]:
            x += y
            np.left_shift(y, np.uint32(r), out=turned)
            y >>= np.uint32(32 - r)
            y |= turned
            y ^= x
        x += keys[(k + 1) % 3]
        y += keys[(k + 2) % 3]
        y += np.uint32(k + 1)
    return x, y


def split(keys: Words, count: int) -> Words:
    """Splits each random key (…, 2) into ``count`` new ones, as `jax.random.split`, in NumPy."""
    return np.stack(hashed(keys[..., None, :], np.arange(count)), axis=-1)


def fold_in(key: Words, data: int) -> Words:
    """Folds a 32-bit integer into a random key (2,), as `jax.random.fold_in`, in NumPy."""
    return np.stack(hashed(key, np.asarray(data % 2**32)), axis=-1)


def split_keys(key: Any, count: int) -> Any:
    """Splits a JAX random key as `jax.random.split` does, by NumPy where that can."""
    words = words_of(key)
    if words is None:
        return jax.random.split(key, count)
    return [_key(k, key) for k in split(words, count)]


def folded_key(key: Any, data: int) -> Any:
    """Folds a number into a JAX random key as `jax.random.fold_in` does, by NumPy if that can."""
    words = words_of(key)
    return jax.random.fold_in(key, data) if words is None else _key(fold_in(words, data), key)


def _key(words: Any, like: Any) -> Any:
    """Builds a JAX random key from its two words: typed or raw, as the given key is."""
    (moved,) = on_device([words])
    return (
        moved if like.dtype == np.uint32 else jax.random.wrap_key_data(moved, impl="threefry2x32")
    )
