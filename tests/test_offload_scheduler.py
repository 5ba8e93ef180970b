"""Whose turn it is: no threads, no memory, only what is known and what follows from it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from tensorjax.offload._training.storage.storage import Held, HostStorage
from tensorjax.offload._training.storage.tensor_packing import TensorPacking
from tensorjax.offload._training.updates.host_optimizer import HostOptimizer
from tensorjax.offload._training.updates.parameter_groups import Group
from tensorjax.offload._training.updates.read_budget import ReadBudget
from tensorjax.offload._training.updates.scheduler import Fetched, Ready, UpdateScheduler

NAMES = ("a", "b", "c", "d", "e", "f")


class Cold(HostStorage):
    """A storage that has to read parameters, but for those that something else holds."""

    in_place = False
    held_now: frozenset[str] = frozenset()

    def holds(self, packing: TensorPacking) -> bool:
        return packing.name.split("/")[0] in self.held_now


class Late(Held):
    """A reading that has no memory yet."""

    def ready(self) -> bool:
        return False

    begun = ready


def turns(
    lookahead: int = 9, at_once: int = 2, memory: str = "", **options: Any
) -> UpdateScheduler:
    """Of six groups of one size, some in memory; results of two updates fit."""
    cold, hot, like = Cold(), HostStorage(), {"w": jax.ShapeDtypeStruct((4,), jnp.float32)}
    groups = {
        name: Group(
            name,
            TensorPacking(f"{name}/params", like),
            TensorPacking(f"{name}/state", like),
            None,
            TensorPacking(f"{name}/gradient", like),
            hot if name in memory else cold,
            HostOptimizer(optax.sgd(0.1)),
        )
        for name in NAMES
    }
    ahead = ReadBudget(groups, lookahead=lookahead, staging=None, spills=False)
    results = groups["f"].results
    options = {
        "early": lookahead > 0,
        "together": False,
        "results_most": at_once * results,
    } | options
    return UpdateScheduler(groups, ahead, lookahead=lookahead, start=0, **options)


def there(known: UpdateScheduler, name: str, deadline: float, *, state: bool = True) -> None:
    """The gradient of a group is there, and its state, or that is on its way."""
    known.ready[name] = Ready(1, deadline, "gradient", not known.open)
    known.fetched[name] = Fetched(Held([]) if state else Late([]), whole=False)


def test_the_most_urgent_of_those_that_are_there_is_updated() -> None:
    known = turns()
    assert known.able() == (None, False)
    there(known, "a", 3.0)
    there(known, "b", 2.0)
    there(known, "c", 1.0, state=False)
    assert known.able() == ("b", True)


def test_what_has_been_there_longest_goes_first_while_none_is_needed_soon() -> None:
    """More than three are to come before any of them is needed."""
    known = turns()
    there(known, "a", 9.0)
    there(known, "b", 8.0)
    assert known.able() == ("b", True)
    known.expected = dict.fromkeys(("c", "d", "e", "f"), (1, 1.0))
    assert known.able()[0] == "a"


def test_results_leave_room_for_what_is_more_urgent() -> None:
    """The first one may always be updated, or nothing would ever go on."""
    known = turns(at_once=1)
    there(known, "a", 2.0)
    known.expected = {"b": (1, 1.0)}
    assert known.able() == ("a", True)
    known.unwritten = 1
    assert known.able() == ("a", False)


def test_what_lives_in_memory_waits_for_no_room() -> None:
    """Its results take none, and its gradient's memory is free again."""
    known = turns(at_once=1, memory="ab")
    for name, deadline in (("b", 5.0), ("a", 4.0), ("c", 1.0)):
        there(known, name, deadline)
    assert known.able() == ("c", True)
    known.unwritten, known.results_bytes = 1, known._results_most
    assert known.able() == ("a", True)
    del known.ready["a"], known.fetched["a"]
    known.expected = {"d": (1, 0.0)}
    assert known.able() == ("b", True)
    del known.ready["b"], known.fetched["b"]
    assert known.able() == ("c", False)


def test_nothing_begins_while_the_gate_is_closed() -> None:
    known = turns()
    known.open = False
    there(known, "a", 1.0)
    assert known.able() == (None, False)


def test_what_a_commit_needs_goes_on_and_what_is_beyond_it_waits() -> None:
    known = turns()
    known.version["b"] = 1
    there(known, "a", 2.0)
    there(known, "b", 1.0)
    known.ready["b"].version = 2
    known.newest = 1
    assert known.behind(1)
    assert known.able() == ("a", True)
    del known.ready["a"], known.fetched["a"]
    assert known.able() == (None, False)
    known.version = {name: 1 for name in NAMES}  # noqa: C420 (of other types)
    assert not known.behind(1)


def test_states_are_asked_for_in_the_order_of_gradients() -> None:
    """Those that come next, if they are more urgent than what can be updated; each once."""
    known = turns()
    known.expected = {"c": (1, 3.0), "b": (1, 2.0), "a": (1, 1.0)}
    asked = []
    while (wanted := known.wanted()) is not None:
        asked.append(wanted[0])
        known.fetched[wanted[0]] = Fetched(Late([]), whole=False)
    assert asked == ["c", "b", "a"]


def test_a_state_beside_parameters_that_are_held_is_asked_for_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = turns()
    known.expected = {"c": (1, 3.0), "b": (1, 2.0), "a": (1, 1.0)}
    monkeypatch.setattr(Cold, "held_now", frozenset({"b"}))
    assert known.wanted() == ("b", 1, 2.0)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda known: known.version.update(c=-1), None),  # and none behind it takes its room
        (lambda known: known.fetched.update(c=Fetched(Late([]), whole=False)), ("b", 1, 2.0)),
        (lambda known: setattr(known, "gated", True), ("b", 1, 2.0)),  # then by deadline
    ],
)
def test_what_keeps_a_state_from_being_asked_for(
    change: Callable[[UpdateScheduler], None], found: tuple[str, int, float] | None
) -> None:
    known = turns()
    known.expected = {"c": (1, 3.0), "b": (1, 2.0)}
    change(known)
    assert known.wanted() == found


def test_without_lookahead_a_state_is_asked_for_once_all_is_written() -> None:
    known = turns(lookahead=0)
    known.expected = {"b": (1, 1.0)}
    assert known.wanted() is None
    known.ready["a"] = Ready(1, 2.0, "gradient", gated=False)
    known.unwritten = 1
    assert known.wanted() is None
    known.unwritten = 0
    assert known.wanted() == ("a", 1, 2.0)


def test_where_states_are_not_read_early_the_gate_is_waited_for() -> None:
    known = turns(early=False)
    known.expected = {"b": (1, 1.0)}
    known.open = False
    known.ready["a"] = Ready(1, 2.0, "gradient", gated=True)
    assert known.wanted() is None
    known.open = True
    known.ready["a"].gated = False
    assert known.wanted() == ("a", 1, 2.0)
    known.ready["c"] = Ready(1, 3.0, "gradient", gated=False)
    known.fetched["a"], known.unwritten = Fetched(Late([]), whole=False), 1
    assert known.wanted() == ("c", 1, 3.0)  # while another is under way
    known.fetched["c"] = Fetched(Late([]), whole=False)
    assert known.wanted() is None  # what has no gradient yet is not asked for


def test_a_gradient_in_the_store_is_read_once_its_state_was_asked_for() -> None:
    known = turns()
    known.ready["a"] = Ready(1, 2.0, None, gated=False)
    assert known.lacking() is None
    known.fetched["a"] = Fetched(Late([]), whole=False)
    assert known.lacking() == "a"
    known.fetched["a"].gradient = Late([])
    assert known.lacking() is None
    known.fetched["a"] = Fetched(Late([]), whole=True)  # it comes with the state
    assert known.lacking() is None


def test_the_last_one_whose_state_has_memory_gives_way() -> None:
    known = turns()
    assert known.latest() is None
    there(known, "a", 1.0)
    there(known, "b", 2.0)
    there(known, "c", 3.0, state=False)
    assert known.latest() == "b"
