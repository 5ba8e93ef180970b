"""Parameters are read before the device has room for them, as far as the host has."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tensorjax.offload._training.passes.weight_stream import WeightStream
from tensorjax.offload._training.trace import Trace


class Asked:
    """A reading that is there at once, and says when it is released."""

    def __init__(self, name: str) -> None:
        self.name, self.released = name, False

    def ready(self) -> bool:
        return True

    begun = ready

    def when_ready(self, call: Callable[[], None]) -> None:
        call()

    def arrays(self) -> list[list[Any]]:
        assert not self.released
        return [[self.name]]

    def release(self) -> None:
        self.released = True


class Recorded:
    """A stream over four layers of 10 bytes, of which two fit the device."""

    def __init__(self, early: int, handed: int = 0) -> None:
        self.asked: list[Asked] = []
        self._changed = threading.Condition()
        uses = [("a",), ("b",), ("c",), ("d",)]
        self.stream = WeightStream(
            [*uses, *uses[-2::-1]],
            dict.fromkeys("abcd", 10),
            capacity=20,
            ahead=4,
            early=early,
            handed=handed,
            stored="abcd",
            start=0,
            version=lambda step: step,
            read=self.read,
            place=lambda group, arrays: arrays[0],
            trace=Trace(),
        )

    def read(self, group: str, deadline: float, step: int) -> Asked:
        with self._changed:
            self.asked.append(Asked(group))
            self._changed.notify_all()
            return self.asked[-1]

    def names(self, count: int) -> str:
        """What was asked for, once that are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, 10)
            return "".join(asked.name for asked in self.asked)


@pytest.mark.parametrize(("early", "wanted"), [(0, "ab"), (9, "ab"), (10, "abc"), (20, "abcd")])
def test_as_much_is_read_early_as_there_is_room(early: int, wanted: str) -> None:
    recorded = Recorded(early)
    try:
        assert recorded.stream.take(0) == ("a",)
        assert recorded.stream.take(1) == ("b",)  # both are on the device: nothing more comes
        assert recorded.names(len(wanted)) == wanted
    finally:
        recorded.stream.close()
    assert recorded.names(0) == wanted
    assert all(asked.released for asked in recorded.asked)


@pytest.mark.parametrize("early", [0, 10, 20])
def test_a_step_reads_the_same_whatever_is_early(early: int) -> None:
    recorded = Recorded(early)
    try:
        for position, name in enumerate("abcdcba"):
            assert recorded.stream.take(position) == (name,)
            recorded.stream.done(position)
    finally:
        recorded.stream.close()
    # The two last ones of the forward pass stay for the backward pass.
    assert sorted(recorded.names(6)) == sorted("abcdba")
    assert all(asked.released for asked in recorded.asked)


@pytest.mark.parametrize("early", [0, 10, 20])
@pytest.mark.parametrize("failed", [0, 1, 3])
def test_a_step_can_be_taken_again_from_its_beginning(early: int, failed: int) -> None:
    """Wherever it was left, and more than once."""
    recorded = Recorded(early)
    try:
        for _ in range(3):
            for position, name in enumerate("abcd"[: failed + 1]):
                assert recorded.stream.take(position) == (name,)
                if position < failed:
                    recorded.stream.done(position)
            recorded.stream.rewind(0)
        for position, name in enumerate("abcdcba"):
            assert recorded.stream.take(position) == (name,)
            recorded.stream.done(position)
    finally:
        recorded.stream.close()
    assert all(asked.released for asked in recorded.asked)


def test_what_is_handed_over_takes_the_place_of_what_was_read_early() -> None:
    recorded = Recorded(20)
    try:
        for position in range(7):
            recorded.stream.take(position)
            recorded.stream.done(position)
        recorded.stream.updated("a", 1, ["new a"])
        recorded.stream.updated("b", 1, ["new b"])
        for name in "abcd":
            recorded.stream.written(name, 1)
        assert recorded.stream.take(7) == ("new a",)
        recorded.stream.done(7)
        assert recorded.stream.take(8) == ("new b",)
    finally:
        recorded.stream.close()
    assert all(asked.released for asked in recorded.asked)


def after_a_step(handed: int) -> Recorded:
    recorded = Recorded(0, handed)
    for position in range(7):
        recorded.stream.take(position)
        recorded.stream.done(position)
    return recorded


def test_what_is_handed_over_is_kept_until_the_device_has_room() -> None:
    recorded = after_a_step(40)
    try:
        for name in "abcd":  # two of which have no room yet; none has been written
            recorded.stream.updated(name, 1, [f"new {name}"])
        for position, name in enumerate("abcd", 7):
            assert recorded.stream.take(position) == (f"new {name}",)
            recorded.stream.done(position)
        assert 20 <= recorded.stream.peak_handed <= 40  # two may have been pinned already
    finally:
        recorded.stream.close()
    assert not {"c", "d"} & set(recorded.names(0)[6:])


def test_what_is_used_first_is_kept_and_the_rest_is_read() -> None:
    recorded = after_a_step(10)
    try:
        for name in "ab":
            recorded.stream.updated(name, 1, [f"new {name}"])
        end = time.monotonic() + 30
        while recorded.stream._cursor < 9:  # both are pinned, and there is no room for others
            assert time.monotonic() < end
            time.sleep(0.001)
        for name in "dc":
            recorded.stream.updated(name, 1, [f"new {name}"])
        recorded.stream.written("d", 1)
        found = []
        for position in range(7, 11):
            found += recorded.stream.take(position)
            recorded.stream.done(position)
        assert recorded.stream.peak_handed == 10
    finally:
        recorded.stream.close()
    assert found == ["new a", "new b", "new c", "d"]  # what was read has its own name
