"""Exact scaling of trains by powers of two: keeps sweeps in range.

The product of cores may overflow or vanish on the way though the result does not. So before a sweep
every core is brought near one (`near_one`), integers count the powers of two, and they are put back
at the end: into one core, or into all where one could not hold them (`held`, `restored`).

Multiplying by a power of two is exact, and the exponents are constants to differentiation, on which
the result does not depend: so derivatives are right.
"""

from collections.abc import Sequence
from typing import Any

from tensorjax._factor import exponent_of, exponents_held, is_host, namespace, normalized, scaled

Cores = list[Any]
# Exponent of a zero: far below that of anything else, and a thousand of it are still an int32.
NOTHING = -(2**20)


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


def near_one(cores: Sequence[Any]) -> tuple[Cores, Any]:
    """Every core over its own power of two, and the exponent of all these together."""
    pairs = [normalized(c) for c in cores]
    return [c for c, _ in pairs], sum(e for _, e in pairs)


__all__ = ["NOTHING", "held", "near_one", "restored"]
