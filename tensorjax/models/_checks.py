"""Checks of models' configurations and ids, and embedding rows, NaN where ids are out of range."""

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, _ids
from tensorjax.nn import Spec


def check_spec(name: str, spec: Any) -> Spec:
    """Checks that a layer's option in a model's configuration is a layer specification."""
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
    """Checks that heads divide features and the dropout rate is in [0, 1), else ValueError."""
    if config.features % config.heads:
        raise ValueError(
            f"heads: expected a divisor of features = {config.features}, got {config.heads}"
        )
    rate: float = config.dropout
    if not isinstance(rate, numbers.Real) or not 0 <= rate < 1:
        raise ValueError(f"dropout: expected a rate in [0, 1), got {rate!r}")


def check_ids(
    name: str, ids: Any, counts: int | tuple[int, ...], ndim: int, *, ignored: bool = False
) -> jax.Array:
    """Checks a model's integer ids, and converts them to an array; ValueError if out of range.

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


def check_length(tokens: jax.Array, longest: int) -> int:
    """Checks the length of a model's token ids against its configuration's; returns it."""
    if not 1 <= tokens.shape[1] <= longest:
        raise ValueError(
            f"tokens: expected at least one and at most length = {longest} of them in a row, got "
            f"{tokens.shape[1]}; cut the texts or configure a longer length"
        )
    return tokens.shape[1]


def rows_of(layer: Any, ids: jax.Array, count: int) -> jax.Array:
    """Looks up embedding rows for a model's checked ids; traced ids outside [0, count) give NaN."""
    if not _check.is_traced(ids):
        return layer(ids)  # `check_ids` has seen them
    ids = _ids.as_int32(ids, count)
    valid = _ids.inside(ids, count)
    return _ids.or_nan(layer(jnp.where(valid, ids, 0)), valid)
