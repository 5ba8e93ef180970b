"""Serialisation of the tensor formats: copies, pickles, and programs saved by `jax.export`."""

import json
from collections.abc import Callable
from typing import Any

import jax

from tensorjax import _check


def serializable(
    kind: Any,
    encode: Callable[[Any], Any] = lambda aux: aux,
    decode: Callable[[Any], Any] = lambda aux: aux,
) -> None:
    """Registers a tensor format's pytree type for serialisation by `jax.export`.

    Args:
      kind: the type, which is registered with `jax.tree_util` already.
      encode: its metadata as lists, numbers and strings; none by default.
      decode: the inverse.
    """
    package = kind.__module__.split(".")[1].removeprefix("_")
    jax.export.register_pytree_node_serialization(
        kind,
        serialized_name=f"tensorjax.{package}.{kind.__name__}",
        serialize_auxdata=lambda aux: json.dumps(encode(aux)).encode(),
        deserialize_auxdata=lambda saved: decode(json.loads(saved)),
    )


def dtypes_of(x: Any) -> tuple[Any, ...]:
    """Returns the dtypes of a tensor format's leaves, which copies and pickles preserve."""
    return tuple(getattr(leaf, "dtype", None) for leaf in jax.tree.leaves(x))


def rebuilt(kind: Any, fields: tuple[Any, ...], dtypes: tuple[Any, ...]) -> Any:
    """Rebuilds a tensor of any format in `copy` and `pickle`; TypeError if JAX would round it."""
    made = kind._unchecked(*fields)
    for then, now in zip(dtypes, dtypes_of(made), strict=True):
        if then != now:
            _check.available(f"a pickled {kind.__name__}", then)
    return made
