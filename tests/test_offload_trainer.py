"""Training by layers equals training in one program, and does not depend on where things live."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

from tensorjax import offload
from tensorjax.models import gpt2
from tests import offload_cases as cases


def largest(a: Any, b: Any) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.max(np.abs(x - y)) / (1e-3 + np.max(np.abs(x)))) for x, y in pairs)


@pytest.mark.parametrize(
    ("microbatches", "clip", "activations"),
    [(1, None, "recompute"), (2, 0.3, "keep"), (4, None, "offload")],
)
def test_steps_equal_those_of_one_program(microbatches, clip, activations) -> None:
    optimizer = optax.adamw(1e-2)
    whole = cases.Monolith(optimizer, clip)
    layers = gpt2.layers(cases.CONFIG)
    with offload.Trainer(
        layers,
        gpt2.groups(cases.model()),
        optimizer,
        microbatches=microbatches,
        clip=clip,
        engine=offload.Engine(activations=activations),
    ) as trainer:
        for batch in cases.batches(3):
            assert trainer.step(batch).loss == pytest.approx(whole.step(batch), rel=1e-6)
        got, wanted = trainer.params(), whole.groups()
    assert {n: largest(wanted[n], got[n]) for n in wanted} == {}
