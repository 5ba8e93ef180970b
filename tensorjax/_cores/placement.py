"""Zero-padding of cores, and sharding of cores over devices as given ones are sharded."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from tensorjax import _check
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import PROGRAM
from tensorjax._placement import returned, spec_like


def zero_padded(x: Any, widths: list[tuple[int, int]]) -> jax.Array:
    """Pads a JAX array with zeros before and after each axis, as `jnp.pad`."""
    if not any(map(any, widths)):
        return x
    if choose_kernel("tt.pad", (x,)) is PROGRAM:
        return jnp.pad(x, widths)
    # On the host, and back: every new shape would compile a program.
    return returned(np.pad(np.asarray(x), widths), x)


def placed_like(cores: Sequence[Any], given: Sequence[jax.Array]) -> tuple[Any, ...]:
    """Shards cores over devices as the given cores are sharded, on axes whose sizes allow it."""
    return tuple(_placed(c, g) for c, g in zip(cores, given, strict=True))


def _placed(core: Any, given: jax.Array) -> Any:
    sharding = None if _check.is_traced(core, given) else getattr(given, "sharding", None)
    if not isinstance(sharding, NamedSharding):  # of NumPy's arrays there is none
        return core
    return jax.device_put(core, NamedSharding(sharding.mesh, spec_like(core, given)))
