"""Sentences that head a benchmark in the report: the range of its speed-ups."""

from collections.abc import Iterable


def spread(ratios: Iterable[float | None]) -> str:
    """Returns the least, the median and the greatest of some ratios in words; empty without any.

    >>> spread([2.0, None, 0.5, 1.0]), spread([3.14159, None]), spread([])
    ('0.5 to 2, median 1', '3.1', '')
    """
    found = sorted(ratio for ratio in ratios if ratio is not None)
    if not found:
        return ""
    half = len(found) // 2
    median = found[half] if len(found) % 2 else (found[half - 1] + found[half]) / 2
    if len(found) == 1:
        return f"{median:.2g}"
    return f"{found[0]:.2g} to {found[-1]:.2g}, median {median:.2g}"
