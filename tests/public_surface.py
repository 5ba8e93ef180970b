"""Public functions and methods of tensorjax, for tests of signatures and docstrings."""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

PACKAGES = (
    "contract", "convert", "interop", "linalg", "mera", "models", "models.code", "models.dlrm",
    "models.encoder", "models.gpt2", "nn", "offload", "optim", "parallel", "pde", "pde.coords",
    "pde.problems", "plot", "sketch", "tt", "tt.functions", "tt.patches",
    "tt.quantics", "tucker",
)  # fmt: skip


class Public(NamedTuple):
    """A public function, or a method of a public class.

    Attributes:
      name: within its package, such as "round" or "TT.astype".
      function: without decorators around it.
      is_method: of a class, whose first parameter is left out of its signature.
    """

    name: str
    function: Callable[..., Any]
    is_method: bool

    @property
    def signature(self) -> inspect.Signature:
        found = inspect.signature(self.function)
        parameters = list(found.parameters.values())
        if self.is_method and parameters and parameters[0].name in ("self", "cls"):
            parameters = parameters[1:]
        return found.replace(parameters=parameters)


def module(package: str) -> ModuleType:
    return importlib.import_module(f"tensorjax.{package}")


def functions(package: str) -> Iterator[Public]:
    """Yields the functions that a package makes public."""
    for name in module(package).__all__:
        value = getattr(module(package), name)
        home = getattr(value, "__module__", "")
        if callable(value) and not inspect.isclass(value) and home.startswith("tensorjax"):
            yield Public(name, value, False)


def classes(package: str) -> Iterator[type]:
    """Yields the classes of tensorjax that a package makes public."""
    for name in module(package).__all__:
        value = getattr(module(package), name)
        if inspect.isclass(value) and value.__module__.startswith("tensorjax"):
            yield value


def methods(package: str) -> Iterator[Public]:
    """Yields the public methods, constructors and properties of a package's public classes."""
    for name in module(package).__all__:
        kind = getattr(module(package), name)
        if not inspect.isclass(kind):
            continue
        for key, value in _members(kind):
            if not key.startswith("_") or key in ("__init__", "__call__"):
                yield Public(f"{name}.{key}", value, True)


def _members(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for key, value in inspect.getmembers_static(kind):
        owner = next((c for c in kind.__mro__ if key in vars(c)), None)
        if owner is None or not owner.__module__.startswith("tensorjax"):
            continue
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, functools.cached_property):
            value = value.func
        if inspect.isfunction(value):
            yield key, value
