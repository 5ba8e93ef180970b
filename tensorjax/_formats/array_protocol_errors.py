"""Errors and protocol methods for tensor formats that are used as NumPy or JAX arrays.

A format is none: its entries are sums of products. What has an exact counterpart gives it, as
``numpy.add(x, y)`` gives x + y; everything else raises an error that names the function to call.
"""

import math
import re
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np


def is_scalar(x: Any) -> bool:
    """Whether what meets a tensor format by NumPy's array protocol is a scalar, or 0-d."""
    if isinstance(x, int | float | complex):
        return True
    if not isinstance(x, np.generic | np.ndarray | jax.Array) or x.ndim:
        return False
    # The kinds first: jnp.issubdtype, which knows bfloat16 too, takes a microsecond.
    return getattr(x.dtype, "kind", "key") in "biufc" or jnp.issubdtype(x.dtype, jnp.number)


# Functions of NumPy that only read attributes, or give an object its place in an array of them.
_READS = {"shape", "ndim", "iscomplexobj", "isrealobj", "result_type", "copyto"}
# Attributes and functions of arrays, and of trains elsewhere, beside what does the same here.
_INSTEAD = {
    "add": "x + y",
    "allclose": "{0}.distance(x, y)",
    "array_equal": "{0}.distance(x, y)",
    "around": "{0}.round(t, tol=) for lower ranks, {0}.map(numpy.round, t, tol=, key=) for entries",
    "at": "t + {0}.unit(t.shape, index) * (value - t[index])",
    "conjugate": "{0}.conj(t)",
    "copy": "t itself, which nothing changes",
    "dot": "t @ x",
    "einsum": "{0}.tensordot(x, y, axes)",
    "flatten": "{0}.reshape(t, (-1,))",
    "full": "{0}.to_dense(t)",
    "H": "{0}.conj(t).T",
    "item": "t[0, …]",
    "matmul": "{0}.mode_product(t, matrix, mode)",
    "matvec": "a @ x",
    "max": "{0}.argmax(t)",
    "min": "{0}.argmin(t)",
    "multiply": "x * y",
    "negative": "-t",
    "numpy": "numpy.asarray({0}.to_dense(t))",
    "ravel": "{0}.reshape(t, (-1,))",
    "round": "{0}.round(t, tol=) for lower ranks, {0}.map(numpy.round, t, tol=, key=) for entries",
    "square": "t ** 2",
    "squeeze": "t[:, 0, …]",
    "stack": "{0}.concatenate([x[None], y[None]])",
    "std": "{0}.var(t) ** 0.5",
    "subtract": "x - y",
    "swapaxes": "{0}.permute(t, axes)",
    "tolist": "{0}.to_dense(t).tolist()",
    "transpose": "t.T or {0}.permute(t, axes)",
    "vdot": "{0}.inner(x, y)",
}
# Functions of entries that are no `numpy.ufunc`.
_OF_ENTRIES = {"angle", "clip", "isclose", "nan_to_num", "real_if_close", "sinc", "where"}
# Methods of Python's operators that NumPy's functions of two formats stand for: of the left
# operand, and of the right one where the left is none.
_OPERATORS = {
    "absolute": ("__abs__", ""), "add": ("__add__", "__radd__"),
    "divide": ("__truediv__", "__rtruediv__"), "equal": ("__eq__", "__eq__"),
    "matmul": ("__matmul__", "__rmatmul__"), "multiply": ("__mul__", "__rmul__"),
    "negative": ("__neg__", ""), "not_equal": ("__ne__", "__ne__"), "positive": ("__pos__", ""),
    "power": ("__pow__", "__rpow__"), "subtract": ("__sub__", "__rsub__"),
}  # fmt: skip
# Operators that no format has, and NumPy's functions of entries that they stand for.
_ENTRYWISE = {
    "__abs__": "abs", "__and__": "bitwise_and", "__divmod__": "divmod",
    "__floordiv__": "floor_divide", "__ge__": "greater_equal", "__gt__": "greater",
    "__invert__": "invert", "__le__": "less_equal", "__lshift__": "left_shift", "__lt__": "less",
    "__matmul__": "matmul", "__mod__": "remainder", "__or__": "bitwise_or", "__pow__": "power",
    "__rand__": "bitwise_and", "__rdivmod__": "divmod", "__rfloordiv__": "floor_divide",
    "__rlshift__": "left_shift", "__rmatmul__": "matmul", "__rmod__": "remainder",
    "__ror__": "bitwise_or", "__rpow__": "power", "__rrshift__": "right_shift",
    "__rshift__": "right_shift", "__rtruediv__": "divide", "__rxor__": "bitwise_xor",
    "__truediv__": "divide", "__xor__": "bitwise_xor",
}  # fmt: skip


class NoArray:
    """Base class of tensor formats that keeps NumPy from taking them for array elements.

    What Python or NumPy would answer without a look at the entries, such as ``x == y``, raises.

    Attributes:
      dense_name: public name of the function that gives the dense array.
      entrywise_name: call that applies a function ``{0}`` entry by entry at a tolerance, if any.
    """

    dense_name: ClassVar[str]
    entrywise_name: ClassVar[str] = ""
    __hash__ = object.__hash__

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise TypeError(
            f"expected an array, got a {type(self).__name__} object, which is none by itself; "
            f"the dense array is that of {self.dense_name}"
        )

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        name = function.__name__
        if name in _READS:
            return function._implementation(*args, **options)
        if name == "size" and hasattr(args[0], "shape"):
            return _size(*args, **options)
        raise no_array(self, f"{function.__module__}.{name}")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", inputs[:1])  # that of `array += t`, which makes a tensor of it
        name = ufunc.__name__
        if method == "__call__" and name in _OPERATORS and not options and out[0] is inputs[0]:
            forward, backward = _OPERATORS[name]
            x, *others = inputs
            if not isinstance(x, NoArray):
                forward, x, others = backward, others[0], [x]
            # Not by the operator itself: that of an array on its left would come back here.
            result = getattr(type(x), forward, _unsupported)(x, *others)
            if result is not NotImplemented:
                return result
        raise no_array(self, f"numpy.{name}")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not _is_operand(other):
            return NotImplemented
        raise TypeError(
            f"==: the entries of a {type(self).__name__} are sums of products, equal at best to "
            f"roundoff; {_advice(self, 'distance')}, or ask `x is y`"
        )

    def __bool__(self) -> bool:
        raise ValueError(
            f"the truth value of a {type(self).__name__} is that of no entry; ask `x is not None`, "
            f"or for its norm: {_advice(self, 'norm')}"
        )

    def __contains__(self, value: Any) -> bool:
        raise TypeError(
            f"in: a {type(self).__name__} is not searched for an entry; {_advice(self, 'argmax')}"
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        kind = type(self).__name__
        raise TypeError(
            f"[...] = …: a {kind} has entries that are sums of products, and does not change; "
            f"{_advice(self, 'at')}"
        )

    def __delitem__(self, key: Any) -> None:
        raise TypeError(f"del: a {type(self).__name__} does not change; index what remains")


def _size(x: Any, axis: Any = None) -> int:
    """Answers `numpy.size` of a tensor format used as an array: entries in all, or along axes."""
    axes = range(len(x.shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return math.prod(x.shape[k] for k in axes)


def _is_operand(x: Any) -> bool:
    return isinstance(x, NoArray | np.ndarray | jax.Array) or is_scalar(x)


def _unsupported(*operands: Any) -> Any:
    return NotImplemented


def _refusal(operator: str, function: str) -> Callable[..., Any]:
    """Makes a method that refuses a NumPy operator of arrays for a tensor format: an error."""

    def method(self: NoArray, *others: Any) -> Any:
        if not all(map(_is_operand, others)):
            return NotImplemented
        raise no_array(self, f"numpy.{function}", entries="matmul" not in function)

    method.__name__ = method.__qualname__ = operator
    return method


def _no_number(operator: str, name: str) -> Callable[..., Any]:
    """Answers Python's float(), int() or round() of a tensor format: TypeError with advice."""

    def method(self: NoArray, *digits: Any) -> Any:
        kind = type(self).__name__
        if name == "round":
            raise TypeError(f"round: expected a number, got a {kind}; {_advice(self, 'round')}")
        entries = _entries(self, "f")
        raise TypeError(
            f"{name}: expected a number, got a {kind}, which has many entries; "
            f"{_advice(self, 'item')}{', or, ' + entries if entries else ''}"
        )

    method.__name__ = method.__qualname__ = operator
    return method


# Not written into the class: a checker is to report these operators, not to allow them.
for _name, _function in _ENTRYWISE.items():
    setattr(NoArray, _name, _refusal(_name, _function))
for _name in ("float", "int", "complex", "round", "trunc", "floor", "ceil"):
    setattr(NoArray, f"__{_name}__", _no_number(f"__{_name}__", _name))


# What errors name ---------------------------------------------------------------------------------


def no_array(x: NoArray, function: str, entries: bool = False) -> TypeError:
    """Returns a TypeError for a NumPy function of arrays, as "numpy.exp", for a tensor format.

    With ``entries`` it names how to apply the function to entries, and no function of that name.
    """
    name = function.rpartition(".")[2]
    kind, dense = type(x).__name__, f"{x.dense_name} gives a dense array"
    known = None if entries else _named(x, name)
    ufunc = isinstance(getattr(np, name, None), np.ufunc)
    if known is None and (entries or ufunc or name in _OF_ENTRIES):
        known = _entries(x, f"numpy.{name}")
    return TypeError(
        f"{function}: expected arrays, got a {kind}; {known + '; ' if known else ''}{dense}"
    )


def asked_by_jax(x: NoArray) -> None:
    """Raises TypeError where a `jax.numpy` function takes a tensor format for an array.

    JAX asks every argument for ``__jax_array__`` and then names itself only. Operators with JAX's
    arrays ask too, and must find nothing. The difference is who asks, a private name of JAX: if
    that changes, the error is JAX's own again.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(4):
        if frame is None or frame.f_code.co_name.startswith("check_arraylike"):
            break
        frame = frame.f_back
    else:
        return
    asks = frame.f_locals if frame else {}
    if isinstance(asks.get("fun_name"), str) and not asks.get("emit_warning"):
        raise no_array(x, "jax.numpy." + asks["fun_name"].removeprefix("jnp."))


def unknown(kind: type[NoArray], name: str) -> str:
    """Returns the error message for an array's attribute that a tensor format lacks."""
    message = f"{kind.__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):
        return message
    known = _instead(kind, name)
    if known is not None and name != "round":  # a method of trains elsewhere, of lower ranks
        return f"{message}; here it is {known}"
    if name not in _functions(kind):
        return message
    return f"{message}; its functions stand outside of it: {package(kind)}.{name}(…)"


def package(kind: type[NoArray]) -> str:
    """Returns the package of a tensor format's functions, such as "tt", for error messages."""
    space = getattr(kind, "_namespace", None)
    return "" if space is None else space.__name__.removeprefix("tensorjax.")


def _functions(kind: type[NoArray]) -> Sequence[str]:
    return getattr(getattr(kind, "_namespace", None), "__all__", ())


def _instead(kind: type[NoArray], name: str) -> str | None:
    """Returns, for an error, the hint what replaces an array attribute that a format lacks."""
    text, functions = _INSTEAD.get(name), set(_functions(kind))
    if text is None or not hasattr(kind, "ndim"):
        return None
    if "*" in text and not functions & {"hadamard", "multiply"}:
        return None
    if "[" in text and not hasattr(kind, "__getitem__"):
        return None
    if "@" in text and kind.__matmul__ is NoArray.__matmul__:  # type: ignore[attr-defined]
        return None
    used = re.findall(r"\{0\}\.(\w+)", text)
    return text.format(package(kind)) if set(used) <= functions else None


def _advice(x: NoArray, name: str) -> str:
    """Returns, for an error, the hint what replaces a NumPy function of arrays."""
    return _named(x, name) or f"the dense array is that of {x.dense_name}"


def _named(x: NoArray, name: str) -> str | None:
    known = _instead(type(x), name)
    if known is not None:
        return f"write {known}"
    return f"call {package(type(x))}.{name}" if name in _functions(type(x)) else None


def _entries(x: NoArray, function: str) -> str | None:
    """Returns, for an error, the hint how to apply a NumPy function to entries, or None."""
    call = x.entrywise_name.format(function)
    return f"entry by entry, at a tolerance, call {call}" if call else None
