"""Overflow checks of scalars that are computed from tensors: norms, inner products, sums."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check

# log10 |value| and log10 of the product of the norms of what it is made of.
Powers = tuple[float, float]
_NOT_HELD = (0.0, math.inf)


def held(name: str, value: Any, powers: Callable[[], Powers], remedy: str) -> jax.Array:
    """Returns a scalar, or raises OverflowError if its dtype cannot hold what it stands for.

    Values known only under a transformation, and batches of them, are returned as they are. A value
    of 0 is refused if the true one is more than roundoff of the terms that it is a sum of.

    Args:
      name: of the scalar, for the error.
      value: scalar that may have overflowed to infinity or underflowed to zero.
      powers: computes log10 of the true absolute value, and of the bound on it by the norms of its
        factors (Cauchy–Schwarz); called for 0 and infinity only.
      remedy: what to do instead, for the error.
    """
    if _check.is_traced(value) or value.ndim or float(np.abs(np.asarray(value))) not in _NOT_HELD:
        return value
    power, bound = powers()
    info = jnp.finfo(value.dtype)
    low = math.log10(2) * (info.minexp - info.nmant)
    high = math.log10(2) * info.maxexp
    # Below roundoff of the terms a zero is right.
    lost = power >= high or bound + math.log10(info.eps) < power < low
    if math.isfinite(power) and lost:
        raise OverflowError(
            f"{name}, about 1e{power:+.0f}, is out of the range of {jnp.dtype(value.dtype).name}; "
            f"{remedy}"
        )
    return value


def power_of_ten(mantissa: Any, exponent: Any) -> float:
    """Computes log10 |m·2^e|; −∞ for zero, NaN if m is not finite."""
    size = float(np.abs(mantissa))
    if not math.isfinite(size):
        return math.nan
    return math.log10(size) + int(exponent) * math.log10(2) if size else -math.inf
