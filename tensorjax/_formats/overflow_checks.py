"""Overflow checks of scalars that are computed from tensors: norms, inner products, sums."""

import cmath
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, _placement

# log10 |value|, and a function that computes log10 of the product of the norms of its factors.
Powers = tuple[float, Callable[[], float]]


def held(name: str, value: Any, powers: Callable[[], Powers], remedy: str) -> jax.Array:
    """Checks a computed scalar for overflow: OverflowError if its dtype cannot hold the true value.

    Returned as they are: values known only under a transformation, batches of them, and those on
    accelerators or several devices, for which a program would have to wait. A value of 0 is refused
    if the true one is more than roundoff of the terms that it is a sum of.

    Args:
      name: of the scalar, for the error.
      value: scalar that may have overflowed to infinity or underflowed to zero.
      powers: computes log10 of the true absolute value, and how to find the bound on it by the
        norms of its factors (Cauchy–Schwarz); called for 0 and infinity only.
      remedy: what to do instead, for the error.
    """
    if _check.is_traced(value) or value.ndim or not on_one_cpu(value):
        return value
    number = value.item()
    infinite = cmath.isinf(number)
    if not infinite and number != 0:
        return value
    power, bound = powers()
    info = jnp.finfo(value.dtype)
    low = math.log10(2) * (info.minexp - info.nmant)
    # Below roundoff of the terms a zero is right.
    if math.isfinite(power) and (
        infinite or (power < low and power > bound() + math.log10(info.eps))
    ):
        raise OverflowError(
            f"{name}, about 1e{power:+.0f}, is out of the range of {jnp.dtype(value.dtype).name}; "
            f"{remedy}"
        )
    return value


def on_one_cpu(value: Any) -> bool:
    """Whether a computed scalar, or array, is on one CPU, so that overflow may be checked."""
    if _placement._is_alone():
        return True
    devices = value.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"


def power_of_ten(mantissa: Any, exponent: Any) -> float:
    """Computes log10 |m·2^e| for overflow checks; −∞ for zero, NaN if m is not finite."""
    size = float(np.abs(mantissa))
    if not math.isfinite(size):
        return math.nan
    return math.log10(size) + int(exponent) * math.log10(2) if size else -math.inf
