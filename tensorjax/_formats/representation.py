"""Text representation of tensor formats, also with leaves that are not arrays."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any


def shown(text: Callable[[Any], str]) -> Callable[[Any], str]:
    """Decorates a tensor format's __repr__ or __str__ to list fields if leaves are no arrays.

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
