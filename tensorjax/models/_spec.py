"""Shared helpers of the models: layer specs, checks of sizes and ids, initial weight scales."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tensorjax import _check, _ids
from tensorjax.parallel import Single


class Spec(Protocol):
    """Protocol of layer specifications: `nn.Dense`, `nn.LowRank`, `nn.TT`, `nn.Tucker`, `nn.CP`."""

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
        """Builds a model's linear layer x ↦ x W + b of this layer spec."""
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
        """Builds a model's embedding layer of this spec, which looks up rows by id."""
        ...


def check_spec(name: str, spec: Any) -> Spec:
    """Checks that a model's argument is a layer specification; raises TypeError otherwise."""
    if isinstance(spec, type) or not (hasattr(spec, "linear") and hasattr(spec, "embedding")):
        raise TypeError(
            f"{name}: expected a spec of tensorjax.nn, such as nn.Dense() or nn.TT(rank=30), "
            f"got {spec!r}"
        )
    return spec


def check_sizes(config: Any, names: tuple[str, ...], low: int = 1) -> None:
    """Checks that fields of a model's configuration are integers of at least ``low``.

    NumPy integers are replaced by Python's.
    """
    for name in names:
        value = getattr(config, name)
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < low:
            raise ValueError(f"{name}: expected an int of at least {low}, got {value!r}")
        if not isinstance(value, int):
            object.__setattr__(config, name, int(value))


def check_ids(
    name: str, ids: Any, counts: int | tuple[int, ...], ndim: int, *, ignored: bool = False
) -> jax.Array:
    """Checks a model's ids: ``ndim`` axes and, if concrete, in [0, count); returns an array.

    Traced ones cannot raise: what reads rows by them marks those out of range (`rows_of`).

    Args:
      name: of the argument.
      ids: integers.
      counts: how many there are, one number or one for each index of the last axis.
      ndim: number of axes.
      ignored: whether they are targets, which may be −100.
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
    wrong = (given < 0) | (given >= high)
    outside = np.argwhere(wrong & (given != _ids.IGNORED) if ignored else wrong)
    if len(outside):
        place = tuple(map(int, outside[0]))
        most = int(np.broadcast_to(high, given.shape)[place])
        also = f" or {_ids.IGNORED}" if ignored else ""
        raise ValueError(
            f"{name}: expected ids in [0, {most}){also}, got {int(given[place])} at {place}; "
            "the sizes of the configuration have to cover all ids"
        )
    return jnp.asarray(array)


def rows_of(layer: Any, ids: jax.Array, count: int) -> jax.Array:
    """Looks up rows of a model's embedding; traced ids outside [0, count) give NaN."""
    if not _check.is_traced(ids):
        return layer(ids)  # `check_ids` has seen them
    ids = _ids.as_int32(ids, count)
    valid = _ids.inside(ids, count)
    return _ids.or_nan(layer(jnp.where(valid, ids, 0)), valid)


def cross_entropy(
    logits: jax.Array, targets: jax.Array, weights: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Returns a model's weighted sum of cross-entropy losses, and the sum of the weights.

    Args:
      logits: (…, classes).
      targets: integers (…): −100 counts for none, others outside [0, classes) make the sum NaN.
      weights: (…), or None for all ones.
    """
    weights = jnp.ones(targets.shape, jnp.float32) if weights is None else jnp.asarray(weights)
    for name, value in (("targets", targets), ("weights", weights)):
        if value.shape != logits.shape[:-1]:
            raise ValueError(
                f"{name}: expected shape {logits.shape[:-1]}, one for every row of logits, got "
                f"{value.shape}"
            )
    return Single().cross_entropy(logits, targets, weights, logits.shape[-1])


def with_spread(layer: Any, spread: float) -> Any:
    """Rescales a model's fresh embedding, of any spec, to standard deviation ``spread``.

    Dense and factorised tables are drawn with different variances; a model has to begin the same.
    All factors take an equal part, so that none of them is much smaller than the others.
    """
    dense = isinstance(layer, nnx.Embed)
    present = layer.features**-0.5 if dense else 1.0  # as flax and tensorjax.nn draw them
    return _rescaled(layer, spread / present)


def fresh_linear(spec: Spec, in_features: int, out_features: int, **options: Any) -> Any:
    """Builds a model's linear layer, of any spec, with initial weights of variance 1 / N."""
    layer = spec.linear(in_features, out_features, **options)
    return with_linear_spread(layer, in_features**-0.5)


def with_linear_spread(layer: Any, spread: float) -> Any:
    """Rescales a model's fresh linear layer, of any spec, to a standard deviation."""
    return _rescaled(layer, spread * (layer.in_features + layer.out_features) ** 0.5)


def _rescaled(layer: Any, factor: float) -> Any:
    """Multiplies the initial weight of a spec's layer by a factor, shared by its parameters."""
    parts = [getattr(layer, name, ()) for name in ("embedding", "cores", "core", "factors")]
    params = jax.tree.leaves(parts, is_leaf=lambda node: isinstance(node, nnx.Param))
    for param in params:
        value = param[...]
        param[...] = value * jnp.asarray(factor ** (1 / len(params)), value.dtype)
    return layer
