"""Counts of calls with equal shapes: NumPy computes the first ones, compiled programs others.

XLA takes some tenths of a second to compile a program, anew for every combination of shapes, while
NumPy computes small products in no more time than such a program takes to be called.
"""

from collections.abc import Callable, Hashable

import jax

from tensorjax._kernels.conditions import CORE_BENCH, Arrays, Facts, condition, power
from tensorjax._kernels.train_signatures import forget_pairs

_MOST_KEYS = 4096


class FirstCalls:
    """Counter of calls by key, which tells the first calls from those worth compiling for.

    Two threads that count at once may both be told of a first call: no harm is done.
    """

    def __init__(self) -> None:
        self._left: dict[Hashable, int] = {}

    def is_first(self, key: Hashable, allowed: Callable[[], int]) -> bool:
        """Counts a call by key, and returns whether it is a first one, not yet worth compiling."""
        left = self._left.get(key)
        if left is None:
            if len(self._left) >= _MOST_KEYS:  # what is forgotten has first calls once more
                self._left.clear()
            left = allowed()
        self._left[key] = max(left - 1, 0)
        return left > 0

    def clear(self) -> None:
        """Resets the counts of calls, so that the next calls count as first calls again."""
        self._left.clear()


# First calls of products of trains: by elements written, or multiplications, how many calls with
# equal shapes NumPy serves. Programs are two to four times faster where cores are small, and take
# as long to compile as some hundreds of such calls; larger products gain less from NumPy's start.
CALLS = {2**18: 10, 2**23: 3}
# The same for entries of trains, whatever their number: compiling takes seconds there.
CALLS_OF_EVALUATE = 10
# More of them where compiling for every core, in seconds, takes longer than NumPy's calls, of so
# many seconds an entry and core and a multiplication: both together never take twice the better.
COMPILING, AN_ENTRY, A_PRODUCT = 0.1, 2e-8, 3e-10
# First projections of dense rows of one shape that NumPy serves, of so many elements at most: it
# takes up to twice as long as a program, which takes half a second to compile for every shape.
CALLS_OF_SKETCH, MOST_SKETCHED = 10, 2**25
_SOLVERS = "python -m experiments run bench/solvers"
_counted, _repeated, _evaluated, _sketched = (FirstCalls() for _ in range(4))


@condition(
    "one of the first calls with these shapes ("
    + ", ".join(f"{n} up to {power(most)}" for most, n in CALLS.items())
    + " operations)",
    "a program takes tenths of a second to compile, and NumPy no longer than its call",
    _SOLVERS,
)
def first_calls(arrays: Arrays, facts: Facts) -> bool:
    return _is_first(_counted, arrays, facts)


def _is_first(counts: FirstCalls, arrays: Arrays, facts: Facts) -> bool:
    def allowed() -> int:
        done = facts["work"]()
        return next((n for most, n in CALLS.items() if done <= most), 0)

    shapes = facts["shapes"] if "shapes" in facts else tuple([c.shape for c in arrays])
    return counts.is_first((facts["key"], shapes, arrays[0].dtype), allowed)


@condition(
    "none of these first calls",
    "a program of one call takes hundredths of a second to compile",
    CORE_BENCH + "shapes",
)
def later_calls(arrays: Arrays, facts: Facts) -> bool:
    return not _is_first(_repeated, arrays, facts)


@condition(
    f"one of the first {CALLS_OF_EVALUATE} calls with these shapes, or of as many as take no "
    "longer than to compile",
    "a program of some dozens of cores takes seconds to compile",
    CORE_BENCH + "arithmetic",
)
def first_evaluations(arrays: Arrays, facts: Facts) -> bool:
    def allowed() -> int:
        shapes, batch = facts["shapes"], max(facts["batch"], 1)
        products = sum(r * s for r, _, s in shapes)
        once = batch * (len(shapes) * AN_ENTRY + products * A_PRODUCT)
        return max(CALLS_OF_EVALUATE, int(COMPILING * len(shapes) / once))

    return _evaluated.is_first((facts["batch"], facts["key"]), allowed)


@condition(
    f"one of the first {CALLS_OF_SKETCH} calls with these shapes, of at most "
    f"{power(MOST_SKETCHED)} elements",
    "a program takes half a second to compile for every number of rows",
    CORE_BENCH + "shapes",
)
def first_projections(arrays: Arrays, facts: Facts) -> bool:
    x = arrays[0]
    if x.size > MOST_SKETCHED:
        return False
    leaves = tuple([a.shape for a in jax.tree.leaves(facts["map"])])
    key = x.shape, x.dtype, facts["dense"], leaves
    return _sketched.is_first(key, lambda: CALLS_OF_SKETCH)


def forget_first_calls() -> None:
    """Resets, for tests, the counts of first calls, by which programs are compiled or not."""
    _counted.clear()
    _repeated.clear()
    _sketched.clear()
    _evaluated.clear()
    forget_pairs()
