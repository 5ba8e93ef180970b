"""Counts of calls by shape: the first few of each are served by NumPy, later ones by a program."""

from collections.abc import Callable, Hashable

_MOST_KEYS = 4096


class FirstCalls:
    """Tells the first calls of every key from later ones, which are worth a compiled program.

    Two threads that count at once may both be told of a first call: no harm is done.
    """

    def __init__(self) -> None:
        self._left: dict[Hashable, int] = {}

    def is_first(self, key: Hashable, allowed: Callable[[], int]) -> bool:
        """Whether this is one of the first calls of a key, of ``allowed()`` many; counts it."""
        left = self._left.get(key)
        if left is None:
            if len(self._left) >= _MOST_KEYS:  # what is forgotten has first calls once more
                self._left.clear()
            left = allowed()
        self._left[key] = max(left - 1, 0)
        return left > 0
