"""Scaling of arrays by exact powers of two, so that squares and products stay in range."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax.linalg._arrays import Array, is_host

# Elements of a real array up to which one more array is made to find its largest part in one pass.
_SMALL = 2**12


def normalized(x: Array, axis: Any = None) -> tuple[Array, Any]:
    """Scales an array by a power of two to entries of at most 1; returns it and the exponent.

    A JAX array of zeros as a whole stays, with exponent 0: the least exponent that there is would
    take derivatives with respect to it out of range.
    """
    e = exponent_of(x, axis)
    if is_host(x):
        return scaled(x, -e), e
    if axis is None:
        e = exponent_of_nonzero(e, x.dtype)
    return x * power_of_two(-e, x.dtype), e


def exponent_of_nonzero(exponent: Any, dtype: Any) -> Any:
    """Returns what `exponent_of` found of a JAX array, but 0 of zeros and subnormal numbers."""
    return jnp.where(exponent == 2 - exponents_held(dtype)[1], 0, exponent)


def exponent_of(x: Array, axis: Any = None) -> Any:
    """Returns the exponent e of an array's largest entry, which lies in [2^(e−1), 2^e).

    With ``axis`` it is that of each slice over these axes, which are kept, of size one.
    """
    kept = axis is not None
    if is_host(x):
        size = largest_part(x, axis)
        return np.frexp(size)[1] if kept else math.frexp(size)[1]
    x = lax.stop_gradient(x)
    real = jnp.finfo(x.dtype).dtype
    integer, bits, bias = _ieee(real)

    def largest(part: Array) -> Any:
        # Magnitudes are ordered as their bits are, and integers compare faster: no NaN to heed.
        size = lax.bitcast_convert_type(part, integer) & jnp.iinfo(integer).max
        return jnp.max(size, axis=axis, keepdims=kept, initial=0)

    size = largest(x.real)
    if jnp.iscomplexobj(x):
        size = jnp.maximum(size, largest(x.imag))
    # The bits of the exponent themselves: frexp takes XLA several times longer to compile.
    e = (size >> bits).astype(jnp.int32) - bias + 1
    return jnp.clip(e, 2 - bias, bias - 1)  # both 2^e and 2^(−e) are normal numbers


def largest_part(x: Array, axis: Any = None) -> Any:
    """Returns the largest magnitude of a real or imaginary part in a NumPy array, for scaling."""
    if axis is None and x.dtype.kind == "f" and x.size < _SMALL:
        return np.abs(x).max(initial=0)
    parts = (x.real, x.imag) if np.iscomplexobj(x) else (x,)
    keep = {"axis": axis, "keepdims": axis is not None, "initial": 0}
    sizes = [np.maximum(p.max(**keep), -p.min(**keep)) for p in parts]
    return functools.reduce(np.maximum, sizes)


def squares_fit(x: Array) -> bool:
    """Whether an array's entries can be squared and summed without scaling by a power of two."""
    low, high = _squared(x.dtype)
    return bool(low <= largest_part(x) <= high)


@functools.cache
def _squared(dtype: Any) -> tuple[float, float]:
    top = exponents_held(dtype)[1] + 1
    return 2.0 ** (-0.2 * top), 2.0 ** (0.3 * top)


@functools.cache
def exponents_held(dtype: Any) -> tuple[int, int]:
    """Returns the least and largest exponents of two for scaling a dtype without lost digits."""
    info = jnp.finfo(dtype)
    return int(info.minexp) + int(info.nmant), int(info.maxexp) - 1


def power_of_two(e: Any, dtype: Any) -> jax.Array:
    """Builds the power of two 2^e in a dtype from the bits of its exponent, in JAX."""
    real = jnp.finfo(dtype).dtype
    integer, bits, bias = _ieee(real)
    raw = (jnp.asarray(e, jnp.int32) + bias).astype(integer) << bits
    return lax.bitcast_convert_type(raw, real).astype(dtype)


def _ieee(real: Any) -> tuple[Any, int, int]:
    """Returns a float dtype's bit layout, for powers of two: int type, mantissa bits, bias."""
    info = jnp.finfo(real)
    return jnp.dtype(f"int{info.bits}"), info.nmant, int(info.maxexp) - 1


def scaled(x: Array, exponent: Any) -> Array:
    """Scales an array by the power of two 2^exponent, of any size; it may over- or underflow.

    In two halves: the value may be in range where 2^exponent is not.
    """
    half = exponent // 2
    if is_host(x):
        if np.ndim(exponent) == 0 and exponent == 0:
            return x
        one = np.ones((), x.real.dtype)
        with np.errstate(over="ignore"):
            return x * np.ldexp(one, half) * np.ldexp(one, exponent - half)
    limit = _ieee(jnp.finfo(x.dtype).dtype)[2] - 1
    halves = (jnp.clip(e, -limit, limit) for e in (half, exponent - half))
    for e in halves:
        x = x * power_of_two(e, x.dtype)
    return x


def scalar_near_one(s: Any) -> tuple[Any, Any]:
    """Splits a JAX scalar, real or complex, into (m, e), value m·2^e, with |m| near one."""
    if not jnp.iscomplexobj(s):
        return _frexp(s)
    (x, p), (y, q) = _frexp(s.real), _frexp(s.imag)
    e = jnp.maximum(jnp.where(x == 0, q, p), jnp.where(y == 0, p, q))
    return lax.complex(scaled(x, p - e), scaled(y, q - e)), e


def _frexp(s: Any) -> tuple[Any, Any]:
    """Splits a real scalar in JAX into mantissa and power of two, by its bits."""
    info = jnp.finfo(s.dtype)
    integer, top = jnp.dtype(f"int{info.bits}"), int(info.maxexp)
    raw = lax.bitcast_convert_type(lax.stop_gradient(s), integer)
    size = raw & jnp.iinfo(integer).max
    tiny = (size >> info.nmant) == 0
    # A subnormal number is an integer times the least of them.
    whole = jnp.where(raw < 0, -size, size).astype(s.dtype)
    m = jnp.where(tiny, whole, s)
    bits = lax.bitcast_convert_type(lax.stop_gradient(m), integer) & jnp.iinfo(integer).max
    e = (bits >> info.nmant).astype(jnp.int32) - (top - 2)
    e = jnp.where(bits == 0, 0, e)
    least = int(info.minexp) - int(info.nmant)
    return scaled(m, -e), e + jnp.where(tiny & (bits != 0), least, 0)
