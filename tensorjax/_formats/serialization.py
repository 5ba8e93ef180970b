"""Serialisation of the tensor formats, for programs saved by `jax.export`."""

import json
from collections.abc import Callable
from typing import Any

import jax


def serializable(
    kind: Any,
    encode: Callable[[Any], Any] = lambda aux: aux,
    decode: Callable[[Any], Any] = lambda aux: aux,
) -> None:
    """Registers a format's pytree type for serialisation by `jax.export.Exported.serialize`.

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
