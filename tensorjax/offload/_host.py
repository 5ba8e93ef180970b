"""Arrays of a device in the memory of the host, where the optimiser computes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PINNED = "pinned_host"  # kind of memory


def cpu() -> Any:
    """The device of JAX that is the host, or RuntimeError."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise RuntimeError(
            "the optimiser runs on the host, and JAX has no CPU backend here; add it: "
            "JAX_PLATFORMS=cuda,cpu"
        ) from error


def begin(tree: Any) -> Any:
    """Arrays on their way to the host, for `to_host`: before anything else the device is given."""
    return jax.tree.map(_begin, tree)


def to_host(tree: Any) -> Any:
    """Arrays as the host's own, once they are there; those that are so already as they are.

    An accelerator writes to pinned memory by itself, many times as fast as it hands out memory that
    is not. From there they are copied, by several cores: XLA writes results to the memory of an
    array, such as a gradient, only where it has allocated that itself.
    """
    leaves, structure = jax.tree.flatten(tree)
    host = cpu()
    begun = [_begin(x) for x in leaves]
    return jax.tree.unflatten(structure, jax.block_until_ready([_end(x, host) for x in begun]))


def owned(x: Any) -> jax.Array:
    """A copy of an array, in memory of the host that nothing else uses."""
    host = cpu()
    if elsewhere(x):
        return to_host(x)
    return jax.block_until_ready(jnp.array(x, copy=True, device=host))


def elsewhere(x: Any) -> bool:
    """Whether an array lies on devices that are not the host."""
    return isinstance(x, jax.Array) and cpu() not in x.sharding.device_set


def _begin(x: Any) -> Any:
    """An array on its way through pinned memory, if it has to go there, and there is some."""
    if not elsewhere(x) or not x.is_fully_addressable or x.sharding.memory_kind == PINNED:
        return x
    kinds = {memory.kind for d in x.sharding.device_set for memory in d.addressable_memories()}
    return jax.device_put(x, x.sharding.with_memory_kind(PINNED)) if PINNED in kinds else x


def _end(x: Any, host: Any) -> Any:
    if not elsewhere(x):
        return jax.device_put(x, host)
    pinned = jax.device_put(np.asarray(x), host)
    size = pinned.dtype.itemsize
    if size > 4 or not jnp.issubdtype(pinned.dtype, jnp.floating):
        return _copied(pinned, None)
    return _copied(pinned, np.zeros((), f"u{size}"))


@jax.jit
def _copied(x: Any, zero: Any) -> Any:
    """A copy. XLA copies by one core; arithmetic, which changes no bit here, it shares out."""
    if zero is None:
        return jnp.copy(x)
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(x, zero.dtype) | zero, x.dtype)
