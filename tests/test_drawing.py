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


def test_tests_with_other_cases_share_what_is_over(rng) -> None:
    counts = [1] * 12 + [2] * 7 + rng.integers(3, 30, 6).tolist()
    names = [f"tests/test_a.py::test_{k}" for k in range(len(counts))]
    cases = [f"{name}[{i}]" for name, n in zip(names, counts, strict=True) for i in range(n)]
    always = set(names[:-2])  # the last ones have no other cases
    others = [case.replace("test_a", "test_b") for case in cases]
    found = [drawn(rng.permutation(cases), seed, always) for seed in map(str, range(60))]
    for one in found:
        of_test = [sum(case.startswith(f"{name}[") for case in one) for name in names]
        assert all(m in {n // SHARE, -(-n // SHARE)} for m, n in zip(of_test, counts, strict=True))
        assert of_test[-2:] == [math.ceil(n / SHARE) for n in counts[-2:]]
        assert sum(of_test[:-2]) == math.ceil(sum(counts[:-2]) / SHARE)
    beside = drawn([*cases, *others], "0", always | {n.replace("test_a", "test_b") for n in always})
    assert {case for case in beside if "test_a" in case} == found[0]  # as the file alone
    assert set().union(*found) == {*cases}
