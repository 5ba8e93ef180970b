"""What a model asks of the specs of `tensorjax.nn`, and the checks its configurations share."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tensorjax import _check


class Spec(Protocol):
    """How to build a layer: `nn.Dense`, `nn.LowRank`, `nn.TT`, `nn.Tucker` or `nn.CP`."""

    def linear(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = ...,
        rngs: nnx.Rngs,
    ) -> Any:
        """A layer x ↦ x W + b."""
        ...

    def embedding(
        self,
        num_embeddings: int,
        features: int,
        *,
        dtype: Any = None,
        param_dtype: Any = ...,
        rngs: nnx.Rngs,
        padding_idx: int | None = None,
    ) -> Any:
        """A layer that looks rows up."""
        ...


def check_spec(name: str, spec: Any) -> Spec:
    """Returns a spec, or says what one is."""
    if isinstance(spec, type) or not (hasattr(spec, "linear") and hasattr(spec, "embedding")):
        raise TypeError(
            f"{name}: expected a spec of tensorjax.nn, such as nn.Dense() or nn.TT(rank=30), "
            f"got {spec!r}"
        )
    return spec


def check_sizes(config: Any, names: tuple[str, ...], low: int = 1) -> None:
    """Raises where a field of a configuration is not an integer of at least ``low``.

    Integers of NumPy become Python's.
    """
    for name in names:
        value = getattr(config, name)
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < low:
            raise ValueError(f"{name}: expected an int of at least {low}, got {value!r}")
        if not isinstance(value, int):
            object.__setattr__(config, name, int(value))


def check_ids(name: str, ids: Any, counts: int | tuple[int, ...], ndim: int) -> jax.Array:
    """Ids as an array of so many axes; concrete ones have to be in [0, count).

    Args:
      name: of the argument.
      ids: integers.
      counts: how many there are, one number or one for each index of the last axis.
      ndim: number of axes.
    """
    # Not yet JAX's: it would wrap what 32 bits do not hold.
    array = ids if isinstance(ids, jax.Array) else np.asarray(ids)
    if array.ndim != ndim or not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(
            f"{name}: expected integers with {ndim} axes, got {array.dtype} of shape {array.shape}"
        )
    if _check.is_traced(array):
        return jnp.asarray(array)
    given, high = np.asarray(array), np.asarray(counts)
    high = high.reshape((1,) * (ndim - high.ndim) + high.shape)
    outside = np.argwhere((given < 0) | (given >= high))
    if len(outside):
        place = tuple(map(int, outside[0]))
        most = int(np.broadcast_to(high, given.shape)[place])
        raise ValueError(
            f"{name}: expected ids in [0, {most}), got {int(given[place])} at {place}; "
            "the sizes of the configuration have to cover all ids"
        )
    return jnp.asarray(array)


def with_spread(layer: Any, spread: float) -> Any:
    """Rescales a fresh embedding, of whatever spec, to entries of standard deviation ``spread``.

    Dense and factorised tables are drawn with different variances; a model has to begin the same.
    All factors take an equal part, so that none of them is much smaller than the others.
    """
    dense = isinstance(layer, nnx.Embed)
    present = layer.features**-0.5 if dense else 1.0  # as flax and tensorjax.nn draw them
    return _rescaled(layer, spread / present)


def fresh_linear(spec: Spec, in_features: int, out_features: int, **options: Any) -> Any:
    """A linear layer that begins with weights of variance 1 / N, as flax draws dense ones."""
    layer = spec.linear(in_features, out_features, **options)
    return with_linear_spread(layer, in_features**-0.5)


def with_linear_spread(layer: Any, spread: float) -> Any:
    """Rescales a fresh layer of `tensorjax.nn` to weights of standard deviation ``spread``."""
    return _rescaled(layer, spread * (layer.in_features + layer.out_features) ** 0.5)


def _rescaled(layer: Any, factor: float) -> Any:
    """Multiplies the weight of a layer by a factor, of which all its parameters take a part."""
    parts = [getattr(layer, name, ()) for name in ("embedding", "cores", "core", "factors")]
    params = jax.tree.leaves(parts, is_leaf=lambda node: isinstance(node, nnx.Param))
    for param in params:
        value = param[...]
        param[...] = value * jnp.asarray(factor ** (1 / len(params)), value.dtype)
    return layer
