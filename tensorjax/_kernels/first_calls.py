"""Counts of calls with equal shapes: NumPy serves the first ones, a compiled program the others.

XLA takes some tenths of a second to compile a program, anew for every combination of shapes, while
NumPy computes small products in no more time than such a program takes to be called.
"""

from collections.abc import Callable, Hashable

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

    def clear(self) -> None:
        """Forgets all calls, so that the next ones are first calls again."""
        self._left.clear()
