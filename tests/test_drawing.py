"""The cases that a landing draws of slow tests."""

import math

from tests.drawing import SHARE, drawn


def test_every_test_has_a_case_and_seeds_draw_others(rng) -> None:
    counts = [1, 2, *rng.integers(3, 60, 6).tolist()]
    cases = [f"tests/test_{k}.py::test[{i}]" for k, n in enumerate(counts) for i in range(n)]
    found = [drawn(rng.permutation(cases), seed) for seed in map(str, range(40))]
    for one in found:
        assert one <= {*cases}
        for k, n in enumerate(counts):
            of_test = [c for c in one if c.startswith(f"tests/test_{k}.py::")]
            assert len(of_test) == math.ceil(n / SHARE)
    assert drawn(cases, "0") == found[0]
    assert set().union(*found) == {*cases}  # over many landings all are run
