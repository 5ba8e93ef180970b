"""Cache of compiled programs that lives no longer than the functions they were made of."""

import abc
import functools
import threading
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Self

_MOST = 1024  # values of one object, and objects that cannot be referred to weakly


class Wrapper(abc.ABC):
    """Base class of objects that wrap a function, so that `WeakCache` can refer to it weakly."""

    @property
    @abc.abstractmethod
    def inner(self) -> Any:
        """Function or Optax transformation wrapped by an object, referenced weakly."""

    @property
    @abc.abstractmethod
    def kind(self) -> Hashable:
        """Hashable key that distinguishes wrappers of the same function in a `WeakCache`."""

    @classmethod
    @abc.abstractmethod
    def around(cls, inner: Any, kind: Any) -> Self:
        """Builds a wrapper with a given key around a function, for weak references."""


class WeakCache:
    """Cache of values, as compiled programs, keyed by functions that it references only weakly.

    What a function captures, such as an array, is freed with it: programs are kept as long as the
    function that they were made of is. For they get a stand-in, which refers to it weakly. Equal
    objects share what the first of them has; methods of one object, of which Python makes another
    one whenever it is asked, share what is kept as long as that object.

    Args:
      make: makes a value of a stand-in and the other arguments of a call.

    Example:
      >>> cache = WeakCache(lambda function, power: lambda x: function(x) ** power)
      >>> double = lambda x: 2 * x
      >>> cache(double, 2) is cache(double, 2), cache(double, 2)(3)
      (True, 36)
      >>> del double
      >>> len(cache)
      0
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        # Taken again where the collector runs a finaliser of the same thread that comes here.
        self._make, self._lock = make, threading.RLock()
        self._held: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._methods: dict[tuple[int, int], _Method] = {}
        self._strong = functools.lru_cache(_MOST)(make)

    def __call__(self, owner: Any, *rest: Hashable) -> Any:
        """Returns the cached value for a function and further arguments; computes it if missing."""
        functions, kind, build = _parts(owner)
        key = (kind, rest)
        try:
            with self._lock:
                values = self._values(functions)
                if key in values:
                    return values[key]
            stand_in = build(tuple(map(_weak, functions)))
        except TypeError:  # it has no weak references, or no hash
            return self._strong(owner, *rest)
        made = self._make(stand_in, *rest)
        with self._lock:
            if len(values) >= _MOST:
                values.pop(next(iter(values)))
            return values.setdefault(key, made)

    def __len__(self) -> int:
        return len(self._held)

    def _values(self, functions: tuple[Any, ...]) -> dict[Any, Any]:
        """Returns the dictionary of values cached for some functions; the lock is held."""
        found: Any = self._held
        *first, last = map(self._key, functions)
        for key in first:
            found = found.setdefault(key, weakref.WeakKeyDictionary())
        return found.setdefault(last, {})

    def _key(self, function: Any) -> Any:
        """Returns what stands for a function in a weak cache's key; the lock is held."""
        if not isinstance(function, types.MethodType):
            return function
        numbers = (id(function.__self__), id(function.__func__))
        if (found := self._methods.get(numbers)) is None:
            methods = self._methods

            def drop(_: Any) -> None:
                methods.pop(numbers, None)

            found = methods[numbers] = _Method(function, drop)
        return found


class _Method:
    """Key of equal methods in a `WeakCache`: dropped with their object, or with their function.

    By identity, as methods compare their objects, which need no hash.
    """

    def __init__(self, method: types.MethodType, drop: Callable[[Any], None]) -> None:
        self._parts = (weakref.ref(method.__self__, drop), weakref.ref(method.__func__, drop))


class _Transformation(NamedTuple):
    """Optax transformation rebuilt from weak references to its functions, for a `WeakCache`."""

    init: Any
    update: Any


def _parts(owner: Any) -> tuple[tuple[Any, ...], Hashable, Callable[[tuple[Any, ...]], Any]]:
    """Splits a `WeakCache` key into functions, a hashable rest, and a constructor from both."""
    if isinstance(owner, Wrapper):
        functions, kind, build = _parts(owner.inner)
        kinds, around = (kind, owner.kind), type(owner).around
        return functions, (type(owner), *kinds), lambda held: around(build(held), kinds[1])
    if isinstance(owner, tuple) and hasattr(owner, "init") and hasattr(owner, "update"):
        # A tuple of Optax has no weak references, but its functions have.
        optax: Any = owner
        return (optax.update, optax.init), None, lambda held: _Transformation(held[1], held[0])
    return (owner,), None, lambda held: held[0]


def _weak(function: Any) -> Any:
    """Returns a callable that calls a function, or an optimiser's methods, by weak reference."""
    if isinstance(function, types.MethodType):
        held: Any = weakref.WeakMethod(function)
    else:
        held = weakref.ref(function)

    def stand_in(*arguments: Any) -> Any:
        return _alive(held)(*arguments)

    stand_in.__name__ = getattr(function, "__name__", type(function).__name__)
    for name in ("init", "update"):  # of an optimizer that is an object
        if hasattr(function, name):
            setattr(stand_in, name, _named(held, name))
    return stand_in


def _named(held: Any, name: str) -> Callable[..., Any]:
    return lambda *arguments: getattr(_alive(held), name)(*arguments)


def _alive(held: Any) -> Any:
    if (found := held()) is None:
        raise RuntimeError(
            "expected the function that programs were compiled of, got None: it was dropped while "
            "they are used; keep the layers and the optimizer of a trainer"
        )
    return found
