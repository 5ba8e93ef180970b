"""Cost model of entries of a train on the host: one by one in C++, or by NumPy's tables of cores.

Nanoseconds of one core, fitted to trains of 5 to 20 cores, 2 to 17 indices, ranks 20 to 100, and 10
to 1000 entries in single and double precision (an AMD EPYC with AVX-512). Only their ratios count.
"""

from collections.abc import Sequence

# With at least so many entries per index NumPy multiplies all rows of an index at once.
ROWS_PER_INDEX = 64
# C++: an entry and core, and a multiplication.
_ENTRY, _PRODUCT = 60.0, 0.33
# Tables: a core, an element of it, and a multiplication: where all slices of a core are multiplied
# at once, which is done up to so many slices and where entries share indices, and elsewhere.
_CORE, _ELEMENT, _AT_ONCE, _GATHERED, _SLICES = 25e3, 0.9, 0.03, 0.3, 4


def faster_one_by_one(batch: int, shapes: Sequence[tuple[int, ...]], operations: float) -> bool:
    """Whether C++ is predicted to evaluate a batch of train entries faster than NumPy.

    Args:
      batch: entries.
      shapes: of the cores.
      operations: multiplications of C++.
    """
    by_tables = 0.0
    for r, n, s in shapes:
        at_once = n <= _SLICES or batch >= ROWS_PER_INDEX * n
        product = _AT_ONCE if at_once else _GATHERED
        by_tables += _CORE + r * s * (n * _ELEMENT + batch * product)
    return batch * len(shapes) * _ENTRY + operations * _PRODUCT <= by_tables
