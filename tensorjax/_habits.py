"""Whether NumPy serves a call with concrete arrays on a CPU, or a program is worth compiling.

XLA takes some tenths of a second to compile a program, anew for every combination of shapes, while
NumPy computes small ones in no more time than such a program takes to be called.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

from tensorjax import _check, _placement

# Calls with equal shapes after which a program is compiled for them, which is two to four times
# faster where cores are small: by multiplications, or numbers written, up to which it is so many.
_HABITS = {2**18: 10, 2**23: 3}
_MOST_KINDS = 4096
_calls: Counter[Any] = Counter()


def is_hosted(arrays: Sequence[Any], dtype: Any) -> bool:
    """Whether NumPy can serve: concrete arrays in the memory of a CPU, not of half precision."""
    if dtype.kind not in "fc" or dtype.itemsize < 4:
        return False
    if not _placement._is_alone():
        return all(isinstance(c, jax.Array) and _check.on_cpu(c) for c in arrays)
    try:  # where there is one device, results are put nowhere afterwards
        return not any(map(_placement._COMMITTED, arrays))
    except (AttributeError, jax.errors.ConcretizationTypeError):
        return False  # traced, or abstract


def pays(kind: Any, arrays: Sequence[Any], work: float) -> bool:
    """Whether a piece of work is no habit yet, for which a program is worth being compiled."""
    if len(_calls) > _MOST_KINDS:
        _calls.clear()
    key = kind, tuple([c.shape for c in arrays]), arrays[0].dtype
    _calls[key] += 1
    return _calls[key] <= next((n for most, n in _HABITS.items() if work <= most), 0)
