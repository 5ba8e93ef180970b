"""Base class of the tensor formats: frozen pytrees with static fields, pickled and exported."""

import operator
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax

from tensorjax._formats.serialization import dtypes_of, rebuilt, serializable


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
        """Builds a tensor format from the values of its fields, without checks."""
        self = object.__new__(cls)
        self.__dict__.update(zip(cls._fields, values, strict=True))
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        values = tuple([vars(self)[name] for name in self._fields])
        return rebuilt, (type(self), values, dtypes_of(self))
