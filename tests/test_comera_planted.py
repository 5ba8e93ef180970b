"""The planted-rank experiment, on a problem small enough for a test."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.comera import planted


@pytest.fixture
def small():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield planted.Config(
            seeds=2, steps=1200, problem=planted.Problem((5, 5), (2,), (5,)), batch=0
        )


def test_planted_ranks_are_found(small: planted.Config):
    rows = planted.measure(small, "surrogate, β")
    assert [row["seed"] for row in rows] == [1000, 1001]
    for row in rows:
        assert row["planted"] == 20
        assert row["numbers"] == small.problem.numbers(row["ranks"])
        assert row["ratio"] <= 1.5
        assert row["error"] <= 1e-2
        assert row["Σ‖G‖² release"] <= row["Σ‖G‖² largest"]


@pytest.mark.slow
@pytest.mark.parametrize("method", planted.METHODS)
def test_every_method_runs_and_dead_gates_stay_dead(small: planted.Config, method: planted.Method):
    for batch in (0, 4):
        config = dataclasses.replace(small, steps=60, batch=batch)
        rows = planted.measure(config, method)
        assert all(np.isfinite(row["error"]) for row in rows)
        assert all(1 <= row["ranks"][0] <= 5 for row in rows)
