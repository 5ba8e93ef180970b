"""Which of the slow cases of a test a landing runs: a part drawn by a seed.

Slow tests are long tables: the same statement over functions, dtypes, placements or drawn inputs.
Every landing runs every such statement, on some of its cases or on those that are not slow, and
another landing on others. All cases are what ``pytest -m slow`` runs where no seed is given.
"""

import math
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from fractions import Fraction

SHARE = 3


def drawn(cases: Iterable[str], seed: str, always: Collection[str] = ()) -> set[str]:
    """Of the cases of each test one in `SHARE`, and at least one that is run, drawn by `seed`.

    Tests in `always` have cases that are not slow, which every landing runs: where their slow ones
    are not a multiple of `SHARE`, what is over is drawn from all such tests of a file together,
    instead of one case from each. A file alone draws the cases that it draws among others.
    """
    tests = defaultdict(list)
    for case in sorted(cases, key=lambda case: zlib.crc32(f"{seed} {case}".encode())):
        tests[case.partition("[")[0]].append(case)
    found: set[str] = set()
    over, room = defaultdict(list), defaultdict(Fraction)
    for test, of_test in tests.items():
        count = Fraction(len(of_test), SHARE)
        whole = math.floor(count) if test in always else math.ceil(count)
        found.update(of_test[:whole])
        if whole < count:
            file = test.partition("::")[0]
            over[file].append(of_test[whole])
            room[file] += count - whole
    return found.union(*(cases[: math.ceil(room[file])] for file, cases in over.items()))
