"""Exact scaling of trains by powers of two: the one rule that keeps all sweeps in range.

The product of cores may overflow or vanish on the way though the result does not, and the path to
one index of a bond may be many orders of magnitude larger than the path to another. So before a
sweep every column of every core, which belongs to one index of its right bond, is brought near one,
and its power of two moves on into the rows of the next core (`gauged`). What a sweep then loses
beside 1 is lost beside the result. Integers count the powers of two, and they are put back at the
end: into one core, or into all where one could not hold them (`held`, `restored`).

Multiplying by a power of two is exact, and the exponents are constants to differentiation, on which
the result does not depend: so derivatives are right.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax._factor import (
    exponent_of,
    exponents_held,
    ieee,
    is_host,
    largest_bits,
    largest_part,
    namespace,
    normalized,
    power_of_two,
    scaled,
)

Cores = list[Any]
# Exponent of a zero: far below that of any path, and a thousand cores of it are still an int32.
NOTHING = -(2**20)


def gauged(cores: Sequence[Any]) -> tuple[Cores, Any]:
    """The same train over 2^e, with the largest part in every column of every core near one; and e.

    Columns that nothing leads to are left zero or tiny. Denormal numbers are what the platform's
    arithmetic takes them for: zeros under XLA on CPUs and TPUs.

    Args:
      cores: (r, n, s) each, NumPy or JAX.
    """
    xp = namespace(cores[0])
    carry, total = xp.zeros((1,), np.int32), xp.zeros((), np.int32)
    out: Cores = []
    for core in cores:
        columns = xp.maximum((carry[:, None] + _blocks(core)).max(0), NOTHING)
        top = xp.where(columns.max() > NOTHING // 2, columns.max(), 0)
        # A column of zeros has a derivative: its power is undone in the next core like any other.
        columns = xp.where(columns > NOTHING // 2, columns, top)
        out.append(scaled(core, (carry[:, None] - columns[None])[:, None, :]))
        carry = columns - top
        total = total + top
    return out, total


def _blocks(core: Any) -> Any:
    """(r, s) exponents of the largest part of every fibre along the mode; `NOTHING` of zeros."""
    if is_host(core):
        size = largest_part(core, 1)[:, 0]
        return np.where(size != 0, np.frexp(size)[1], NOTHING).astype(np.int32)
    size = largest_bits(lax.stop_gradient(core), 1, False)
    _, bits, bias = ieee(core.dtype)
    return jnp.where(size == 0, NOTHING, (size >> bits).astype(jnp.int32) - bias + 1)


def lifted(x: Any, axis: Any = None) -> tuple[Any, Any]:
    """`normalized`, but zeros, which have a derivative too, stay as they are: of exponent 0."""
    some = (x != 0).any(axis=axis, keepdims=axis is not None)
    e = namespace(x).where(some, exponent_of(x, axis), 0)
    return scaled(x, -e), e


def restored(x: Any, exponent: Any) -> Any:
    """x · 2^exponent with no overflow on the way, backwards neither: only the value may."""
    small, e = normalized(x)
    return scaled(small, e + exponent)


def held(cores: Sequence[Any], exponent: Any, *, at: int = -1, dtype: Any = None) -> Cores:
    """A train times 2^exponent: in one core, or in all of them where that could not hold it.

    Args:
      cores: with largest parts near one, but for the one that takes the exponent.
      exponent: traced or not.
      at: the core that takes it.
      dtype: that has to hold the cores; theirs if None.
    """
    out = list(cores)
    at = at % len(out)
    xp = namespace(out[at])
    low, high = exponents_held(out[at].dtype if dtype is None else dtype)
    e = exponent_of(out[at]) + exponent
    share = xp.where((low < e) & (e < high), 0, exponent // len(out))
    if is_host(out[at]) and share == 0:
        return [*out[:at], scaled(out[at], exponent), *out[at + 1 :]]
    rest = exponent - share * (len(out) - 1)
    return [scaled(c, rest if k == at else share) for k, c in enumerate(out)]


def near_one(cores: Sequence[Any]) -> tuple[Cores, list[Any]]:
    """Every core over its own power of two, and the exponents: cheaper than `gauged`.

    For products of two trains and for what keeps the form of its cores.
    """
    pairs = [normalized(c) for c in cores]
    return [c for c, _ in pairs], [e for _, e in pairs]


__all__ = [
    "NOTHING",
    "gauged",
    "held",
    "lifted",
    "near_one",
    "power_of_two",
    "restored",
]  # fmt: skip
