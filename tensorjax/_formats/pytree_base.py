"""Base class of the tensor formats: frozen pytrees that are pickled, exported and printed."""

import dataclasses
import functools
import json
import operator
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax

from tensorjax import _check


class FrozenPytree:
    """Base class that makes a frozen dataclass a JAX pytree; fields are children or static.

    JAX rebuilds pytrees with leaves of any kind, so that checks stay in ``__init__``.
    """

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(
        cls,
        fields: tuple[str, ...] = (),
        static: tuple[str, ...] = (),
        encode: Callable[[Any], Any] = lambda metadata: metadata,
        decode: Callable[[Any], Any] = lambda metadata: metadata,
    ) -> None:
        """Registers a tensor format with JAX as a pytree; an abstract base has no ``fields``.

        Args:
          fields: all fields, in the order of the dataclass.
          static: those that are metadata; a single one by itself, several as a tuple.
          encode: the metadata as lists, numbers and strings, for `jax.export`.
          decode: the inverse.
        """
        super().__init_subclass__()
        if not fields:
            return
        cls._fields = fields
        children = tuple(name for name in fields if name not in static)
        keys = tuple(jax.tree_util.GetAttrKey(name) for name in children)
        places = [(*children, *static).index(name) for name in fields]
        # In C, as every call of a compiled program flattens its arguments.
        arrays = operator.attrgetter(*children)
        metadata_of = operator.attrgetter(*static) if static else None
        alone, several = len(children) == 1, len(static) > 1

        def flatten(x: Any) -> tuple[tuple[Any, ...], Any]:
            found = arrays(x)
            return (found,) if alone else found, metadata_of and metadata_of(x)

        def flatten_with_keys(x: Any) -> tuple[tuple[Any, ...], Any]:
            found, metadata = flatten(x)
            return tuple(zip(keys, found, strict=True)), metadata

        def unflatten(metadata: Any, found: Any) -> Any:
            if static:
                every = (*found, *metadata) if several else (*found, metadata)
                found = [every[k] for k in places]
            return cls._unchecked(*found)

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        serializable(cls, encode, decode)

    def _set(self, *values: Any) -> None:
        vars(self).update(zip(self._fields, values, strict=True))  # past the frozen dataclass

    @classmethod
    def _unchecked(cls, *values: Any) -> Self:
        """Builds a pytree, a tensor format, from the values of its fields, without checks."""
        self = object.__new__(cls)
        self.__dict__.update(zip(cls._fields, values, strict=True))
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        values = tuple([vars(self)[name] for name in self._fields])
        return rebuilt, (type(self), values, dtypes_of(self))


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
    """Returns the dtypes of a tensor format's pytree leaves, which copies and pickles preserve."""
    return tuple(getattr(leaf, "dtype", None) for leaf in jax.tree.leaves(x))


def rebuilt(kind: Any, fields: tuple[Any, ...], dtypes: tuple[Any, ...]) -> Any:
    """Rebuilds a pytree of any format in `copy` and `pickle`; TypeError if JAX would round it."""
    made = kind._unchecked(*fields)
    for then, now in zip(dtypes, dtypes_of(made), strict=True):
        if then != now:
            _check.available(f"a pickled {kind.__name__}", then)
    return made


def shown(text: Callable[[Any], str]) -> Callable[[Any], str]:
    """Decorates a pytree's __repr__ or __str__ to list its fields if leaves are no arrays.

    JAX and its users put all kinds of leaves into a pytree: None, shapes, Booleans of a mask.
    """

    @functools.wraps(text)
    def wrapped(self: Any) -> str:
        try:
            return text(self)
        except (AttributeError, IndexError, TypeError, ValueError):
            fields = (f.name for f in dataclasses.fields(self))
            listed = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields)
            return f"{type(self).__name__}({listed})"

    return wrapped
