"""First calls: whether NumPy serves a call with concrete arrays on a CPU, or a compiled program.

XLA takes some tenths of a second to compile a program, anew for every combination of shapes, while
NumPy computes small products in no more time than such a program takes to be called.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from tensorjax import _check, _placement

# Calls with equal shapes after which a program is compiled for them, which is two to four times
# faster where cores are small: by multiplications, or elements written, up to which it is so many.
_CALLS = {2**18: 10, 2**23: 3}
_MOST_KEYS = 4096


class FirstCalls:
    """Counter of calls by key, which tells the first ones from those worth a compiled program.

    Two threads that count at once may both be told of a first call: no harm is done.
    """

    def __init__(self) -> None:
        self._left: dict[Hashable, int] = {}

    def is_first(self, key: Hashable, allowed: Callable[[], int]) -> bool:
        """Counts a call, and returns whether it is one of the first of its key."""
        left = self._left.get(key)
        if left is None:
            if len(self._left) >= _MOST_KEYS:  # what is forgotten has first calls once more
                self._left.clear()
            left = allowed()
        self._left[key] = max(left - 1, 0)
        return left > 0


_counted = FirstCalls()


def is_hosted(arrays: Sequence[Any], dtype: Any) -> bool:
    """Whether NumPy can serve first calls: concrete, in a CPU's memory, not of half precision."""
    if dtype.kind not in "fc" or dtype.itemsize < 4:
        return False
    if not _placement._is_alone():
        return all(isinstance(c, jax.Array) and _check.on_cpu(c) for c in arrays)
    try:  # where there is one device, results are put nowhere afterwards
        return not any(map(_placement._COMMITTED, arrays))
    except (AttributeError, jax.errors.ConcretizationTypeError):
        return False  # traced, or abstract


def pays(kind: Any, arrays: Sequence[Any], work: Callable[[], float]) -> bool:
    """Whether NumPy is to serve: these are first calls, too few to compile a program for."""

    def allowed() -> int:
        done = work()
        return next((n for most, n in _CALLS.items() if done <= most), 0)

    return _counted.is_first((kind, *[c.shape for c in arrays], arrays[0].dtype), allowed)
