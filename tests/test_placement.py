"""Results lie where the arguments do: one device, a mesh of either mode, or JAX's default."""

from typing import Any

import jax
import pytest

from tests.placement_cases import CASES, missing

SLOW = {
    "tt.complete", "tt.cross", "tt.eigsh", "tt.solve", "mera.refine", "mera.to_tt",
    "convert.tt_to_mera", "optim.rank_adaptive", "tt.riemannian_descent",
}  # fmt: skip
NAMES = [
    pytest.param(
        case, id=name, marks=pytest.mark.slow if name in SLOW else ()
    )
    for module, cases in CASES.items()
    for name, case in ((f"{module.__name__.split('.')[-1]}.{n}", c) for n, c in cases.items())
]  # fmt: skip


def arrays(tree: Any) -> list[jax.Array]:
    return [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]


def test_every_public_function_has_a_case():
    assert {m.__name__: missing(m) for m in CASES} == {m.__name__: set() for m in CASES}


@pytest.mark.parametrize("case", NAMES)
def test_results_stay_on_the_device(case: Any):
    device = jax.devices()[3]
    for x in arrays(case(lambda tree: jax.device_put(tree, device))):
        assert x.devices() == {device}
        assert x.committed
