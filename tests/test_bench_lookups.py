"""The lookups of the benchmark: every way makes the same rows."""

import numpy as np
import pytest

from experiments.bench import _lookups


@pytest.mark.slow
def test_every_way_makes_the_same_rows() -> None:
    problems = _lookups.problems(small=True)
    assert len(problems) == 4
    for problem in problems:
        libraries = {way.library for way in problem.ways}
        assert {"tensorjax", "JAX"} <= libraries
        for way in problem.ways:
            result = way.call()
            answer = way.answer(result)
            assert answer["error"] < 1e-6, (problem.name, way.library, way.variant)
            if way.library in ("tensorjax", "JAX"):
                assert answer["flops"] > 0
                assert len(result) == 1 + problem.name.endswith("backward")


def test_ids_are_the_same_every_time() -> None:
    ids = _lookups.zipf_ids(4096, 32000)
    assert np.array_equal(ids, _lookups.zipf_ids(4096, 32000))
    assert 500 < len(np.unique(ids)) < 1024
