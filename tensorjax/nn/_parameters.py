"""Parameters of tensorised layers: dtypes, gates, random streams, placement, size limit."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tensorjax import _check, linalg
from tensorjax._placement import replicated

# Default limit of a dense weight, in bytes: 4 GiB.
MAX_BYTES = 2**32


def checked_dtype(name: str, dtype: Any) -> np.dtype:
    """Returns a layer's parameter dtype; TypeError unless it is floating-point or complex."""
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.inexact):
        raise TypeError(f"{name}: expected a floating-point type like jnp.float32, got {dtype!r}")
    return found


def check_rngs(rngs: Any) -> None:
    """Raises TypeError unless ``rngs``, to draw a layer's parameters from, is a `nnx.Rngs`."""
    if not isinstance(rngs, nnx.Rngs):
        raise TypeError(f"rngs: expected flax.nnx.Rngs, got {rngs!r}; pass rngs=nnx.Rngs(0)")


def gate_dtype(param_dtype: Any) -> Any:
    """Returns the dtype of a layer's gate parameters: single precision, or the layer's if wider."""
    return linalg.factor_dtype(param_dtype)


def ones(sizes: Sequence[int], dtype: Any) -> nnx.List:
    """Creates the gate parameters of a tensorised layer: vectors of ones of given lengths."""
    return nnx.List([nnx.Param(jnp.ones((n,), gate_dtype(dtype))) for n in sizes])


def mark_linear(cores: nnx.List) -> nnx.List:
    """Marks core parameters of a linear TT-matrix without bias: lookups have such shapes too.

    `tensorjax.optim` refuses to count the operations of marked ones.
    """
    for core in cores:
        core.set_metadata(linear_matrix=True)
    return cores


def values(parameters: Any) -> list[jax.Array]:
    """Returns the arrays that a layer's parameters hold, as a list."""
    return [parameter[...] for parameter in parameters]


def parameter_count(model: Any) -> int:
    """Counts the parameters of a layer or a model, biases and gates included."""
    return sum(math.prod(p.shape) for p in jax.tree.leaves(nnx.state(model, nnx.Param)))


def settle(layer: nnx.Module, given: nnx.Param) -> None:
    """Places a tensorised layer's parameters on the devices of the dense layer's parameter."""
    where = replicated(given.get_value())
    if where is not None:
        nnx.update(layer, jax.device_put(nnx.state(layer), where))


def check_bytes(elements: int, dtype: Any, most: int) -> None:
    """Raises ValueError if parameters stand for a dense array of more bytes than a limit."""
    _check.number("max_bytes", most, low=0, finite=False)
    needed = elements * np.dtype(jnp.dtype(dtype)).itemsize
    if needed > most:
        raise ValueError(
            f"max_bytes: expected at least {needed:,} bytes for a dense weight of {elements:,} "
            f"numbers, got {most:,}; keep the layer as it is, or raise max_bytes"
        )
