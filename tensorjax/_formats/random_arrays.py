"""Random arrays of many shapes from one key; bits of JAX's Threefry generator by NumPy.

XLA takes some tenths of a second to compile Threefry, anew for every number of keys or bits. With
`jax_threefry_partitionable`, JAX's default, each word of random bits depends on the key and on its
place alone, and so does each key of a split.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from tensorjax import _check
from tensorjax._kernels.first_calls import FirstCalls
from tensorjax._placement import _default_device
from tensorjax._transfer import on_device

# Called with a key, a shape and a dtype, like `jax.random.normal`; hashable.
Draw = Callable[..., jax.Array]

# Entries, those of the padding among them, that one compiled program draws for all shapes.
_MOST = 2**18
# Entries whose bits NumPy makes for one call, and for all calls that would share a program: it
# takes 0.1 µs an entry and some tenths of a ms a call, and XLA half a second to compile.
_MOST_OF_NUMPY, _ALL_OF_NUMPY, _CALLS_OF_NUMPY = 2**20, 2**22, 2000
_first = FirstCalls()

Words = np.ndarray[Any, np.dtype[np.uint32]]

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = 0x1BD11BDA
# Elements hashed at a time, which the cache holds.
_PIECE = 2**14


def scaled_normals(
    key: Any, shapes: Sequence[tuple[int, ...]], scales: Sequence[float], dtype: Any
) -> list[jax.Array]:
    """Draws normal arrays of given shapes and standard deviations from one JAX random key."""
    drawn = on_host(jax.random.normal, key, shapes, dtype)
    if drawn is not None:
        return on_device([x * np.asarray(s, dtype) for x, s in zip(drawn, scales, strict=True)])
    keys = jax.random.split(key, len(shapes))
    return [
        jax.random.normal(k, shape, dtype) * jnp.asarray(s, dtype)
        for k, shape, s in zip(keys, shapes, scales, strict=True)
    ]


def on_host(
    draw: Draw, key: Any, shapes: Sequence[tuple[int, ...]], dtype: Any
) -> list[np.ndarray] | None:
    """Draws arrays of given shapes by NumPy, from keys split off a JAX key; None if it cannot.

    None if the host cannot: see `words_of`, and `drawn`, whose arguments the others are.
    """
    words = words_of(_check.key(key))
    return None if words is None else drawn(draw, split(words, len(shapes)), shapes, dtype)


def drawn(
    draw: Draw, keys: Words, shapes: Sequence[tuple[int, ...]], dtype: Any
) -> list[np.ndarray] | None:
    """Draws random arrays of several shapes by JAX programs that other shapes reuse.

    Entries are those of ``draw`` with the same key and shape, bit by bit. In first calls NumPy
    makes random bits, and a program makes entries of them; it knows how many there are, padded to
    a power of four, and no shapes. Later ones draw the beginnings of longer vectors, whose lengths
    and number are powers of four.

    Args:
      draw: what is drawn; it asks for random bits once, and for those of one key, or twice if
        complex.
      keys: (m, 2) words of keys, one for each shape; or (m, k, 2), where each shape is to be that
        of k arrays, which are stacked.
      shapes: of the arrays.
      dtype: of the arrays.

    Returns:
      The arrays; None where a program for these shapes alone pays: there are many entries, or many
      calls for stacked arrays.
    """
    dtype = jnp.dtype(dtype)
    sizes, stacked = [math.prod(shape) for shape in shapes], keys.ndim > 2
    total = sum(sizes) * math.prod(keys.shape[1:-1])
    count, size = _padded(len(sizes), 4), _padded(max(sizes, default=1), 64)
    shared = count * size <= _MOST and not stacked
    if total <= _MOST_OF_NUMPY and _first.is_first(
        (draw, dtype, (count, size) if shared else (keys.shape, tuple(shapes))),
        lambda: min(_CALLS_OF_NUMPY, _ALL_OF_NUMPY // max(total, 1)),
    ):
        return _from_numpy(draw, keys, shapes, dtype)
    if not shared:
        return None
    every = np.zeros((count, 2), np.uint32)
    every[: len(keys)] = keys
    rows = np.asarray(_vectors(draw, *on_device([every]), size, dtype))
    return [row[:n].reshape(shape) for row, n, shape in zip(rows, sizes, shapes, strict=False)]


def one_on_host(draw: Draw, key: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray | None:
    """Draws one array from an unsplit JAX random key by NumPy; None if NumPy cannot."""
    words = words_of(_check.key(key))
    found = None if words is None else drawn(draw, words[None], [shape], dtype)
    return None if found is None else found[0]


def _from_numpy(
    draw: Draw, keys: Words, shapes: Sequence[tuple[int, ...]], dtype: Any
) -> list[np.ndarray] | None:
    lead = keys.shape[1:-1]
    sizes = np.repeat([math.prod(shape) for shape in shapes], math.prod(lead))
    ends = np.cumsum(sizes, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    places = np.arange(total) - np.repeat(ends - sizes, sizes)
    flat = keys.reshape(-1, 2)
    # Real and imaginary parts have keys of their own.
    parts = np.moveaxis(split(flat, 2), 1, 0) if dtype.kind == "c" else flat[None]
    bits = np.zeros((len(parts), 2, _padded(total, 64)), np.uint32)
    for out, ks in zip(bits, parts, strict=True):
        out[:, :total] = hashed(np.repeat(ks, sizes, axis=0), places)
    try:
        values = np.asarray(_entries(draw, *on_device([bits]), dtype))
    except _NotFromBits:
        return None
    cuts = ends[math.prod(lead) - 1 :: math.prod(lead)]
    pieces = np.split(values, cuts)[:-1]
    return [x.reshape((*lead, *shape)) for x, shape in zip(pieces, shapes, strict=True)]


class _NotFromBits(Exception):
    """Exception for a distribution that does not turn one random word into one entry."""


def _padded(n: int, least: int) -> int:
    """Rounds a length up to a power of four times ``least``, so that few programs are compiled."""
    while least < n:
        least *= 4
    return least


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _vectors(draw: Draw, keys: Any, size: int, dtype: Any) -> jax.Array:
    typed = jax.random.wrap_key_data(keys, impl="threefry2x32")
    return jax.vmap(lambda k: draw(k, (size,), dtype))(typed)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _entries(draw: Draw, bits: Any, dtype: Any) -> jax.Array:
    """Converts given random bits to entries of a distribution, by JAX's own functions."""
    key = jax.random.wrap_key_data(bits, impl=_given_bits(*bits.shape))
    return draw(key, bits.shape[-1:], dtype)


@functools.cache
def _given_bits(parts: int, two: int, size: int) -> Any:
    """Returns a JAX random number generator that returns given bits, held by its key."""

    def random_bits(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
        if shape != (size,):
            raise _NotFromBits("a distribution that takes several words for an entry")
        high, low = key[0]
        if width == 64:
            return (high.astype(jnp.uint64) << 32) | low.astype(jnp.uint64)
        return (high ^ low).astype(f"uint{width}")

    def split_in(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        if shape != (parts,) or parts == 1:
            raise _NotFromBits("a distribution that splits its key")
        return jnp.stack([jnp.broadcast_to(key[k], key.shape) for k in range(parts)])

    def none(*_: Any) -> Any:
        raise _NotFromBits("these bits are not made from a seed")

    return jax.extend.random.define_prng_impl(
        key_shape=(parts, two, size),
        seed=none,
        split=split_in,
        random_bits=random_bits,
        fold_in=none,
        name=f"given_bits_{parts}_{size}",
        tag="bits",
    )


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
