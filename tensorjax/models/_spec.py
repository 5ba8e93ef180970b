"""Helpers of the models: layers from specifications, checks of sizes, scales of initial weights."""

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tensorjax.nn import Spec


def check_spec(name: str, spec: Any) -> Spec:
    """Returns a layer specification of `tensorjax.nn`; raises TypeError for anything else."""
    if isinstance(spec, type) or not (hasattr(spec, "linear") and hasattr(spec, "embedding")):
        raise TypeError(
            f"{name}: expected a spec of tensorjax.nn, such as nn.Dense() or nn.TT(rank=30), "
            f"got {spec!r}"
        )
    return spec


def check_sizes(config: Any, names: tuple[str, ...], low: int = 1) -> None:
    """Checks a model's configuration: fields are integers of at least ``low``, else ValueError.

    NumPy integers are replaced by Python's.
    """
    for name in names:
        value = getattr(config, name)
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < low:
            raise ValueError(f"{name}: expected an int of at least {low}, got {value!r}")
        if not isinstance(value, int):
            object.__setattr__(config, name, int(value))


def check_heads_and_dropout(config: Any) -> None:
    """Raises ValueError unless heads divide features and the dropout rate is in [0, 1)."""
    if config.features % config.heads:
        raise ValueError(
            f"heads: expected a divisor of features = {config.features}, got {config.heads}"
        )
    rate: float = config.dropout
    if not isinstance(rate, numbers.Real) or not 0 <= rate < 1:
        raise ValueError(f"dropout: expected a rate in [0, 1), got {rate!r}")


def with_spread(layer: Any, spread: float) -> Any:
    """Rescales a model's new embedding layer to a given standard deviation of its entries.

    Dense and factorised tables are drawn with different variances; a model has to begin the same.
    All factors take an equal part, so that none of them is much smaller than the others.
    """
    dense = isinstance(layer, nnx.Embed)
    present = layer.features**-0.5 if dense else 1.0  # as flax and tensorjax.nn draw them
    return _rescaled(layer, spread / present)


def fresh_linear(spec: Spec, in_features: int, out_features: int, **options: Any) -> Any:
    """Builds a model's new linear layer from a spec, with weights of variance 1 / in_features."""
    layer = spec.linear(in_features, out_features, **options)
    return with_linear_spread(layer, in_features**-0.5)


def with_linear_spread(layer: Any, spread: float) -> Any:
    """Rescales a model's new linear layer to a given standard deviation of its weights."""
    return _rescaled(layer, spread * (layer.in_features + layer.out_features) ** 0.5)


def _rescaled(layer: Any, factor: float) -> Any:
    """Multiplies a new model layer's weight by a factor, shared evenly by its parameters."""
    parts = [getattr(layer, name, ()) for name in ("embedding", "cores", "core", "factors")]
    params = jax.tree.leaves(parts, is_leaf=lambda node: isinstance(node, nnx.Param))
    for param in params:
        value = param[...]
        param[...] = value * jnp.asarray(factor ** (1 / len(params)), value.dtype)
    return layer
