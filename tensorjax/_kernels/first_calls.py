"""Counts of calls with equal shapes: NumPy serves the first ones, a compiled program later ones.

XLA takes some tenths of a second to compile a program, anew for every combination of shapes, while
NumPy computes small products in no more time than such a program takes to be called.
"""

from collections.abc import Callable, Hashable

_MOST_KEYS = 4096


class FirstCalls:
    """Counter of calls by key, which tells first calls from those worth compiling for.

    Two threads that count at once may both be told of a first call: no harm is done.
    """

    def __init__(self) -> None:
        self._left: dict[Hashable, int] = {}

    def is_first(self, key: Hashable, allowed: Callable[[], int]) -> bool:
        """Counts a call, and returns whether it is among the first ones with its key."""
        left = self._left.get(key)
        if left is None:
            if len(self._left) >= _MOST_KEYS:  # what is forgotten has first calls once more
                self._left.clear()
            left = allowed()
        self._left[key] = max(left - 1, 0)
        return left > 0

    def clear(self) -> None:
        """Resets the counts, so that the next calls are first calls again."""
        self._left.clear()
