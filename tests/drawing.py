"""Which of the slow cases of a test a landing runs: a part drawn by a seed.

Slow tests are long tables: the same statement over functions, dtypes, placements or drawn inputs.
Every landing runs every such statement, on some of its cases, and another landing on others. All
cases are what ``pytest -m slow`` runs where no seed is given.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable

FEWEST = 3
SHARE = 3


def drawn(cases: Iterable[str], seed: str) -> set[str]:
    """Of the cases of each test one in `SHARE`, at least `FEWEST`, in an order drawn by `seed`."""
    tests = defaultdict(list)
    for case in cases:
        tests[case.partition("[")[0]].append(case)
    return {
        case
        for of_test in tests.values()
        for case in sorted(of_test, key=lambda case: zlib.crc32(f"{seed} {case}".encode()))[
            : max(FEWEST, -(-len(of_test) // SHARE))
        ]
    }
