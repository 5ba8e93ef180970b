"""How many states are read before they are needed."""

import jax
import jax.numpy as jnp
import optax
import pytest

from tensorjax.offload._training.storage.storage import HostStorage
from tensorjax.offload._training.storage.tensor_packing import TensorPacking
from tensorjax.offload._training.updates.host_optimizer import HostOptimizer
from tensorjax.offload._training.updates.parameter_groups import Group
from tensorjax.offload._training.updates.read_budget import ReadBudget

UNIT = 1 << 18  # bytes of the parameters of a block; its state is twice that, a table four times


def group(name: str, size: int) -> Group:
    def packing(part: str, times: int) -> TensorPacking:
        like = jax.ShapeDtypeStruct((times * size * UNIT // 4,), jnp.float32)
        return TensorPacking(f"{name}/{part}", {"w": like})

    parts = (packing("params", 1), packing("state", 2), None, packing("gradient", 1))
    return Group(name, *parts, HostStorage(), HostOptimizer(optax.sgd(0.1)))


GROUPS = {name: group(name, size) for name, size in {"a": 1, "b": 1, "c": 1, "table": 4}.items()}


def ahead(staging: int | None = None, *, lookahead: int = 1, spills: bool = False) -> ReadBudget:
    bytes_ = None if staging is None else staging * UNIT
    return ReadBudget(GROUPS, lookahead=lookahead, staging=bytes_, spills=spills)


def test_states_are_counted_by_their_bytes() -> None:
    """The largest has twelve units: four blocks beside each other, or the table alone."""
    assert ahead().fits("c", ["a", "b"], [])
    assert not ahead().fits("table", ["a"], [])
    assert ahead(lookahead=2).fits("table", ["a", "b", "c"], [])


def test_the_first_one_always_fits() -> None:
    assert ahead(1, lookahead=0).fits("table", [], ["a"])
    assert not ahead(1, lookahead=0).fits("a", ["b"], [])


def test_room_is_left_for_what_is_more_urgent() -> None:
    assert ahead(lookahead=2).fits("b", ["a"], ["table"])
    assert not ahead().fits("b", ["a"], ["table"])
    assert ahead().fits("b", ["table"], ["table"]) is False
    assert ahead(lookahead=2).fits("b", ["table"], ["table"])  # it is there already


def test_staging_leaves_room_for_the_largest_parameters() -> None:
    assert ahead(16 + 3, lookahead=9).fits("table", ["a"], [])
    assert not ahead(16 + 2, lookahead=9).fits("table", ["a"], [])


@pytest.mark.parametrize(("spills", "gradient"), [(False, 0), (True, 1)])
def test_early_states_fit_beside_the_largest_parameters(spills: bool, gradient: int) -> None:
    """Gradients count if they may be in the store: else nothing could go on."""
    enough = 4 + 2 * (3 + gradient)
    assert ahead(enough, spills=spills).fits_early({"a", "b"})
    assert not ahead(enough - 1, spills=spills).fits_early({"a", "b"})
    assert ahead(spills=spills).fits_early({"a", "b", "c", "table"})


def test_gradients_in_the_store_count_with_their_states() -> None:
    """An update that holds its state must find memory for its gradient."""
    bounded = ahead(4 + 8, lookahead=9, spills=True)
    assert bounded.fits("b", ["a"], [])
    assert not bounded.fits("c", ["a", "b"], [])
    assert ahead(4 + 9, lookahead=9).fits("c", ["a", "b"], [])
