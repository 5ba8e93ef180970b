"""Arrays of a device in the memory of the host, where the optimiser computes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def cpu() -> Any:
    """The device of JAX that is the host, or RuntimeError."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise RuntimeError(
            "the optimiser runs on the host, and JAX has no CPU backend here; add it: "
            "JAX_PLATFORMS=cuda,cpu"
        ) from error


def to_host(tree: Any) -> Any:
    """Arrays as the host's own, once they are there; those that are so already as they are.

    An accelerator writes to pinned memory by itself, many times as fast as it hands out memory that
    is not. From there they are copied, by several cores: XLA writes results to the memory of an
    array, such as a gradient, only where it has allocated that itself.
    """
    leaves, structure = jax.tree.flatten(tree)
    host = cpu()
    begun = [_begin(x, host) for x in leaves]
    return jax.tree.unflatten(structure, jax.block_until_ready([_end(x, host) for x in begun]))


def owned(x: Any) -> jax.Array:
    """A copy of an array, in memory of the host that nothing else uses."""
    host = cpu()
    if _elsewhere(x, host):
        return to_host(x)
    return jax.block_until_ready(jnp.array(x, copy=True, device=host))


def _elsewhere(x: Any, host: Any) -> bool:
    """Whether an array lies on devices that are not the host."""
    return isinstance(x, jax.Array) and host not in x.sharding.device_set


def _begin(x: Any, host: Any) -> Any:
    """An array on its way through pinned memory, if it has to go there."""
    if not _elsewhere(x, host):
        return x
    return jax.device_put(x, x.sharding.with_memory_kind("pinned_host"))


def _end(x: Any, host: Any) -> Any:
    if _elsewhere(x, host):
        return _copied()(jax.device_put(np.asarray(x), host))
    return jax.device_put(x, host)


@functools.cache
def _copied() -> Any:
    return jax.jit(jnp.copy)
