"""Call counter per shape: NumPy serves the first few calls, a compiled program the later ones."""

from collections.abc import Callable, Hashable

# Bounds the memory of the counter.
_MOST_KEYS = 4096


class FirstCalls:
    """Counter that tells the first calls of every key from later ones, which merit compilation.

    Two threads that count at once may both see a first call, which is harmless.
    """

    def __init__(self) -> None:
        self._left: dict[Hashable, int] = {}

    def is_first(self, key: Hashable, allowed: Callable[[], int]) -> bool:
        """Counts a call of ``key``; returns whether it is among its first ``allowed()`` calls."""
        left = self._left.get(key)
        if left is None:
            if len(self._left) >= _MOST_KEYS:  # forgotten keys have first calls once more
                self._left.clear()
            left = allowed()
        self._left[key] = max(left - 1, 0)
        return left > 0
