"""Arrays of a training: transfer to host memory, views of them there, and checks."""

import ctypes
import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import linalg

PINNED = "pinned_host"  # kind of memory

# A commit and a spill may ask for one array at a time; JAX fills a cache of it when it is asked.
_POINTERS = threading.Lock()


def cpu() -> Any:
    """Returns JAX's CPU device, for the arrays of a training on the host; or RuntimeError."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise RuntimeError(
            "the optimiser runs on the host, and JAX has no CPU backend here; add it: "
            "JAX_PLATFORMS=cuda,cpu"
        ) from error


def begin(tree: Any) -> Any:
    """Starts the copy of device arrays to host memory for the optimiser, pinned if available."""
    leaves, structure = jax.tree.flatten(tree)
    going = [n for n, x in enumerate(leaves) if _goes(x)]
    where = [leaves[n].sharding.with_memory_kind(PINNED) for n in going]
    for n, x in zip(going, jax.device_put([leaves[n] for n in going], where), strict=True):
        leaves[n] = x
    return jax.tree.unflatten(structure, leaves)


def to_host(tree: Any) -> Any:
    """Copies a pytree of device arrays to the optimiser's host memory and waits for the copies.

    An accelerator copies to pinned memory by itself, many times as fast as to other memory. The
    arrays stay in it, as a copy to fresh memory would take longer than the transfer. It is not
    memory of XLA's own, so XLA cannot write results to it.
    """
    leaves, structure = jax.tree.flatten(begin(tree))
    host = cpu()
    found = [jax.device_put(np.asarray(x) if elsewhere(x) else x, host) for x in leaves]
    return jax.tree.unflatten(structure, jax.block_until_ready(found))


def lends(device: Any) -> bool:
    """Whether a device's arrays reach host memory as copies, not as views of the same memory."""
    return device != cpu()


def owned(x: Any) -> jax.Array:
    """Copies an array of a training to host memory of XLA's that nothing else uses."""
    if elsewhere(x):
        x = to_host(x)
        size = x.dtype.itemsize
        exact = size <= 4 and jnp.issubdtype(x.dtype, jnp.floating)
        return jax.block_until_ready(_copy(x, np.zeros((), f"u{size}") if exact else None))
    return jax.block_until_ready(jnp.array(x, copy=True, device=cpu()))


def view(x: Any) -> np.ndarray:
    """Returns a NumPy view of a host array, which XLA may still overwrite later.

    NumPy's own view of a `jax.Array` counts as a reference of its buffer, and stays with the array;
    XLA then copies where it could write in place. This one only keeps the array.
    """
    if not isinstance(x, jax.Array) or not x.nbytes or x.devices() != {cpu()}:
        return np.asarray(x)
    jax.block_until_ready(x)
    with _POINTERS:
        pointer = x.unsafe_buffer_pointer()
    raw: Any = (ctypes.c_uint8 * x.nbytes).from_address(pointer)
    raw.array = x
    return np.frombuffer(raw, np.uint8).view(np.dtype(x.dtype)).reshape(x.shape)


def elsewhere(x: Any) -> bool:
    """Whether an array has to be moved to host memory: none of its devices is the host CPU."""
    return isinstance(x, jax.Array) and cpu() not in x.sharding.device_set


def _goes(x: Any) -> bool:
    """Whether a device array is copied to host memory through pinned memory."""
    if not elsewhere(x) or not x.is_fully_addressable or x.sharding.memory_kind == PINNED:
        return False
    return all(map(_pins, x.sharding.device_set))


@functools.cache
def _pins(device: Any) -> bool:
    return any(memory.kind == PINNED for memory in device.addressable_memories())


@jax.jit
def _copy(x: Any, zero: Any) -> Any:
    """Copies a host array by a parallel XLA program (OR with ``zero``), or by `jnp.copy`."""
    if zero is None:
        return jnp.copy(x)
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(x, zero.dtype) | zero, x.dtype)


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
