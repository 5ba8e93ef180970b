"""Arithmetic operators of tensor formats with scalars (+ − * /), and dtype promotion.

A format is a multilinear function of its arrays, so one of them carries a scalar. Dtypes are those
that `jax.numpy` gives an array and that scalar: numbers of Python are weak, integers and booleans
never change a floating dtype. Scalars are brought to that dtype before anything is done to them,
for −x of an unsigned integer and 1/x in the scalar's own dtype are other numbers.
"""

import functools
import importlib
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax import _check
from tensorjax._cores.products import are_finite
from tensorjax._formats.array_protocol_errors import (
    NoArray,
    asked_by_jax,
    is_scalar,
    no_array,
    package,
    unknown,
)
from tensorjax._formats.overflow_checks import on_one_cpu
from tensorjax._typing import DType, Scalar
from tensorjax.linalg._powers_of_two import (
    exponent_of,
    exponents_held,
    scalar_near_one,
    scaled,
)


class Scalable(NoArray):
    """Base class of tensor formats with operators ``*`` and ``/`` for scalars."""

    @property
    def dtype(self) -> DType:
        """Common dtype of the arrays of a tensor format, by JAX's promotion rules."""
        raise TypeError("an abstract format holds no arrays")

    def _carry(self, f: Callable[[Any], Any], dtype: Any) -> Self:
        """Applies a scalar operation to one of the tensor's arrays; returns it in ``dtype``."""
        raise TypeError("an abstract format holds no arrays")

    def _shift(self, exponent: int) -> Self:
        """Multiplies the tensor by 2^exponent, a number that its dtype may not hold."""
        return self._carry(lambda a: scaled(a, exponent), self.dtype)

    def __neg__(self) -> Self:
        return multiplied(self, -1)

    def __pos__(self) -> Self:
        return self

    def __mul__(self, other: Scalar) -> Self:
        return multiplied(self, other) if is_scalar(other) else refused(self, other)

    def __rmul__(self, other: Scalar) -> Self:
        return self.__mul__(other)

    def __truediv__(self, other: Scalar) -> Self:
        if isinstance(other, NoArray):
            raise no_array(self, "numpy.divide")
        return divided(self, other) if is_scalar(other) else refused(self, other)

    if not TYPE_CHECKING:  # a checker would take every name for one of Any

        def __getattr__(self, name):
            if name == "__jax_array__":
                asked_by_jax(self)
            raise AttributeError(unknown(type(self), name), name=name, obj=self)


class Summable(Scalable):
    """Base class of tensor formats with operators + and − too, for their kind and for scalars."""

    _namespace: ClassVar[Any]  # the module of its functions

    def __add__(self, other: Self | Scalar) -> Self:
        if is_scalar(other):
            if _is_zero(other):  # as sum() begins with: a constant of zeros would only add to ranks
                _check.held("x", self, host=True)
                return self._carry(lambda a: a, promoted(self.dtype, other))
            other = self._constant(other)
        return (
            self._namespace.add(self, other) if type(other) is type(self) else refused(self, other)
        )

    def __radd__(self, other: Self | Scalar) -> Self:
        return self.__add__(other)

    def __sub__(self, other: Self | Scalar) -> Self:
        term: Any = other
        if is_scalar(term):
            if _is_zero(term):
                return self.__add__(term)
            term = self._constant(term)  # whose dtype has negative numbers, as uint8 has not
        return self.__add__(-term) if type(term) is type(self) else refused(self, term)

    def __rsub__(self, other: Self | Scalar) -> Self:
        return (-self).__add__(other)

    def _constant(self, number: Any) -> Self:
        return multiplied(self._namespace.ones_like(self), number)


class Multipliable(Summable):
    """Base class of tensor formats with operator ``*`` for their kind too, and for powers."""

    def __pow__(self, exponent: int) -> Self:
        number = whole_power(self, exponent)
        if number is None:
            return super().__pow__(exponent)  # type: ignore[misc]
        out: Any = self if number else self._namespace.ones_like(self)
        for _ in range(number - 1):
            out = out * self
        return out


def whole_power(x: Any, exponent: Any) -> int | None:
    """Returns the exponent of a tensor's ``**`` as an int if whole and at least 0, else None."""
    if isinstance(exponent, np.ndarray | jax.Array) and is_scalar(exponent):
        if _check.is_traced(exponent):
            raise TypeError(
                f"exponent: expected a static integer, which gives the ranks of a power of a "
                f"{type(x).__name__}, got a traced one; mark it as static (jit's static_argnums)"
            )
        exponent = exponent.item()
    if isinstance(exponent, bool | np.bool_ | complex | np.complexfloating):
        return None
    if not is_scalar(exponent) or exponent < 0 or not float(exponent).is_integer():
        return None
    return int(exponent)


class Namespace:
    """Descriptor that imports the module of a tensor format's functions at an operator's first use.

    Submodules load lazily, and a format may come from elsewhere: a pickle, or `mera.to_tt`.
    """

    def __init__(self, name: str):
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return sys.modules.get(self.name) or importlib.import_module(self.name)


def not_exact(x: Any, what: str, function: str) -> TypeError:
    """Returns a TypeError for a tensor operator without exact ranks; names the approximate one."""
    return TypeError(
        f"{what} of a {type(x).__name__} has no exact ranks; for one at a tolerance call "
        f"{package(type(x))}.{function}"
    )


def refused(x: Scalable, other: Any) -> Any:
    """Returns NotImplemented for a tensor operator's unknown operand; TypeError for an array."""
    if not isinstance(other, np.generic | np.ndarray | jax.Array):
        return NotImplemented
    kind = type(x).__name__
    raise TypeError(
        f"expected a {kind} or a scalar (a number, or an array of shape ()) beside a {kind}, got "
        f"an array of dtype {other.dtype} and shape {other.shape}; bring it into the format first "
        f"(from_dense), or take the dense array by {x.dense_name}"
    )


def _is_zero(x: Any) -> bool:
    """Whether a scalar operand of a tensor's operator is zero; False for JAX scalars."""
    return not isinstance(x, jax.Array) and not x


def promoted(dtype: Any, scalar: Any) -> Any:
    """Returns the dtype of a tensor of any format times a scalar, as operator ``*`` promotes."""
    held = getattr(scalar, "dtype", None)  # not compared where it is None, which equals float64
    if type(scalar) in (int, float) or (held is not None and held == dtype):  # weak, or equal
        return dtype
    if isinstance(scalar, np.generic | np.ndarray):
        scalar = _check.inexact("scalar", scalar, stays=True) if _is_inexact(scalar) else 1
    elif isinstance(scalar, jax.Array) and not _is_inexact(scalar):
        scalar = 1
    if isinstance(scalar, int | float):  # weak
        return dtype
    return jnp.result_type(dtype, scalar)


def _is_inexact(x: Any) -> bool:
    return x.dtype.kind not in "biu" and jnp.issubdtype(x.dtype, jnp.inexact)


def multiplied(x: Any, factor: Any) -> Any:
    """Multiplies a tensor of any format by a scalar, the operator ``*``.

    Raises:
      TypeError: no number. ValueError: an array with axes; a number of Python or NumPy that is
        infinite. OverflowError: one so large, or on a CPU so small, that the arrays of the result
        cannot hold it. With an infinite number of JAX, entries are NaN or Inf; with NaN all are
        NaN.
    """
    if not is_scalar(factor):
        shape = getattr(factor, "shape", ())
        got = f"shape {tuple(shape)}" if shape else f"{factor!r} ({type(factor).__name__})"
        kind = ValueError if shape else TypeError
        raise kind(f"factor: expected a scalar, a number or an array of shape (), got {got}")
    _check.held("x", x, host=True)
    dtype = promoted(x.dtype, factor)
    number, exponent = _prepared(factor, dtype)
    if isinstance(number, float | complex) and abs(number) == math.inf:
        raise ValueError(
            f"factor: expected a finite number, got {factor!r}; the entries of a "
            f"{type(x).__name__} are sums of products, in which Inf becomes NaN"
        )

    def times(a: Any) -> Any:
        return a * number  # numbers of Python are weak: the array's dtype

    if not exponent:
        return x._carry(times, dtype)
    what = f"factor: {_check.short(factor)} times this {type(x).__name__}"
    return _far_scaled(x, times, exponent, dtype, what)


def _far_scaled(x: Any, f: Callable[[Any], Any], exponent: int, dtype: Any, what: str) -> Any:
    """Multiplies a tensor by f and 2^exponent in an operator: in one array if that holds it.

    Else all of them share it; on accelerators and under transformations XLA decides.

    Args:
      x: tensor.
      f: multiplies an array by a number in [1/2, 1].
      exponent: what is left of the scalar.
      dtype: of the result.
      what: beginning of the error's message.

    Raises:
      OverflowError: the arrays cannot hold the result: one became infinite, or on a CPU zero.
    """
    held = True

    def moved(a: Any) -> Any:
        nonlocal held
        held = held and _is_held(a, exponent)
        return _moved(f(a), exponent) if held else a

    alone = x._carry(moved, dtype)
    if held:
        return alone
    shared = x._carry(f, dtype)._shift(exponent)
    before, arrays = jax.tree.leaves(x), jax.tree.leaves(shared)
    if _check.is_traced(arrays) or not all(
        getattr(a, "is_fully_addressable", True) for a in arrays
    ):
        return shared
    infinite = exponent > 0 and not are_finite(arrays) and are_finite(before)
    # A CPU's arrays are read without a transfer.
    if infinite or (all(map(_on_cpu, arrays)) and _have_vanished(before, arrays)):
        raise OverflowError(
            f"{what} is out of the range of its {len(arrays)} arrays of {jnp.dtype(dtype).name}; "
            "cast it to a wider dtype, or keep the scalar apart"
        )
    return shared


def _on_cpu(a: Any) -> bool:
    return isinstance(a, np.ndarray) or on_one_cpu(a)


def _is_held(a: Any, exponent: int) -> bool:
    """Whether an array is known to hold its product in an operator: concrete, and on a CPU."""
    if _check.is_traced(a) or not _on_cpu(a):
        return False
    host = np.asarray(a)
    low, high = exponents_held(host.dtype)
    least = int(jnp.finfo(host.dtype).minexp)
    low = least if _check.keeps_subnormal(host.dtype) else low
    size = exponent_of(host)
    return (least < size and low < size + exponent < high) or not host.any()


def _moved(a: Any, exponent: int) -> Any:
    """Multiplies an array by 2^exponent in an operator, where it holds the result."""
    most = exponents_held(a.dtype)[1] - 1
    while exponent:
        step = max(-most, min(most, exponent))
        a, exponent = a * 2.0**step, exponent - step
    return a


def _have_vanished(before: Any, after: Any) -> bool:
    """Whether an operator made arrays of a tensor zero, of which none was zero before."""
    some = [bool(np.asarray(a).any()) for a in after]
    return not all(some) and all(bool(np.asarray(a).any()) for a in before)


def in_range(factor: Any, dtype: Any) -> bool:
    """Whether ``dtype`` holds a Python or NumPy number that an operator multiplies a tensor by."""
    return not _prepared(factor, dtype)[1]


def divided(x: Any, divisor: Any) -> Any:
    """Divides a tensor of any format by a scalar, the operator ``/``, without a reciprocal.

    Raises:
      ZeroDivisionError: a divisor of Python or NumPy is zero; of JAX, entries are NaN or Inf.
      OverflowError: one so small, or on a CPU so large, that the arrays of the result cannot hold
        it.
    """
    if _is_zero(divisor):
        raise ZeroDivisionError(
            f"expected a divisor that is not zero, got {divisor!r}; the entries of a "
            f"{type(x).__name__} are sums of products, in which Inf becomes NaN"
        )
    _check.held("x", x, host=True)
    dtype = promoted(x.dtype, divisor)
    number, exponent = _prepared(divisor, dtype)
    if exponent:
        number, exponent = 2 * number, exponent - 1  # above one: no quotient overflows
    if not isinstance(number, float) or dtype.kind == "c":
        number = number if isinstance(number, jax.Array) else np.asarray(number, dtype)

    def over(a: Any) -> Any:  # a float is a normal number: nothing to heed
        return a / number if isinstance(number, float) else _quotient(a, number)

    if not exponent:
        return x._carry(over, dtype)
    what = f"divisor: this {type(x).__name__} over {_check.short(divisor)}"
    return _far_scaled(x, over, -exponent, dtype, what)


def _prepared(scalar: Any, dtype: Any) -> tuple[Any, int]:
    """Splits a scalar of an operator ``*`` or ``/`` into m · 2^e, m in the dtype's range.

    The exponent is zero but for numbers of Python and NumPy far from one, see `_range`: with the
    core that they multiply they may be out of range, or in it only with that, and XLA flushes
    subnormals to zero.
    """
    if isinstance(scalar, jax.Array):
        return (scalar if scalar.dtype == dtype else scalar.astype(dtype)), 0
    low, high = _range(dtype)
    if type(scalar) is float and low <= abs(scalar) <= high:  # what is most common
        return scalar, 0
    value = scalar if type(scalar) in (int, float) else _python(scalar, dtype)
    parts = [value.real, value.imag] if isinstance(value, complex) else [value]
    size = max(map(abs, parts))
    if low <= size <= high or not size or not (isinstance(size, int) or math.isfinite(size)):
        return (value if isinstance(value, complex) else float(value)), 0
    exponent = size.bit_length() if isinstance(size, int) else math.frexp(size)[1]
    parts = [_halved(p, exponent) for p in parts]
    return (complex(*parts) if len(parts) > 1 else parts[0]), exponent


def _python(scalar: Any, dtype: Any) -> Any:
    if isinstance(scalar, int):
        return int(scalar)
    value = np.asarray(scalar).astype(np.complex128).item()
    return value if jnp.issubdtype(dtype, jnp.complexfloating) else value.real


@functools.cache
def _range(dtype: Any) -> tuple[float, float]:
    """Returns the least and largest scalar that an operator multiplies into one array as it is.

    Roots of the least and largest normal number, for what is in the array comes to that: the norm
    of a whole train may be in one core, or beside cores of the opposite size.
    """
    info = jnp.finfo(dtype)
    return 2.0 ** (int(info.minexp) // 2), 2.0 ** (int(info.maxexp) // 2)


def _halved(part: Any, exponent: int) -> float:
    """Divides a Python scalar operand of an operator by 2^exponent; integers of any length."""
    return part / 2**exponent if isinstance(part, int) else math.ldexp(part, -exponent)


@jax.custom_jvp
def _divide(a: Any, divisor: Any) -> Any:
    """Divides a tensor's array by a scalar, as operator /, without intermediate overflow."""
    small, shift = scalar_near_one(divisor)
    # Towards the result: what is then divided neither overflows nor vanishes on the way.
    small = jnp.where(shift > 0, 2 * small, small)
    shift = jnp.where(shift > 0, shift - 1, shift)
    return scaled(_over(a, small), -shift)


@_divide.defjvp
def _of_divide(primals: Any, tangents: Any) -> Any:
    (a, divisor), (da, ds) = primals, tangents
    out = _divide(a, divisor)
    # The divisor was scaled by its bits, which have no derivative.
    return out, _divide(da - out * ds, divisor)


_quotient = jax.jit(_divide)


def _over(a: Any, s: Any) -> Any:
    if not jnp.iscomplexobj(s):
        return a / s
    # Two real divisions where s is real: those of complex numbers round more often.
    real = lax.complex(a.real / s.real, a.imag / s.real)
    return jnp.where(s.imag == 0, real, a / jnp.where(s.imag == 0, jnp.ones_like(s), s))


# Casts -------------------------------------------------------------------------------------------


def floating(x: Any, dtype: Any, advice: str) -> None:
    """Checks, as arithmetic promotes, a format's ``astype``: to floating, from complex to complex.

    Args:
      advice: how to get at real numbers from complex ones.
    """
    target = jnp.dtype(dtype)
    if not all(isinstance(c, np.ndarray) for c in jax.tree.leaves(x)):
        _check.available("dtype", target)
    given = next((c.dtype for c in jax.tree.leaves(x) if c.dtype.kind == "c"), None)
    if target.kind == "c" or (target.kind == "f" and given is None):
        return
    kind = type(x).__name__
    if not jnp.issubdtype(target, jnp.inexact):
        raise TypeError(
            f"dtype: expected a floating-point or complex dtype, got {target}: the "
            f"entries of a {kind} are sums of products of its arrays, so that rounding each of "
            f"these is no rounding of the tensor; cast the dense array, by {x.dense_name}"
        )
    if given is not None:
        raise TypeError(
            f"dtype: expected a complex dtype for a {kind} of {given}, got {target}: "
            f"the real part of a product is not the product of real parts; {advice}"
        )
