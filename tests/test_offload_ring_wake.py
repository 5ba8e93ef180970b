"""The ring's thread is woken though a signal's handler cuts a call off."""

from typing import Any

import pytest

from tensorjax.offload._store.backends.uring import _Driver


class CutOff(Exception):
    """Raised by the handler of a signal."""


class Ring:
    """Ring whose first wake is cut off before it reaches the kernel."""

    def __init__(self) -> None:
        self.calls = self.woken = 0

    def wake(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise CutOff
        self.woken += 1


def test_a_wake_that_was_cut_off_is_made_up_for() -> None:
    ring: Any = Ring()
    nothing: Any = None
    driver = _Driver(ring, nothing, nothing, 1, {}, polls=False)
    driver._asleep = True
    with pytest.raises(CutOff):
        driver.wake()
    driver.wake()  # as the queue does when it has put a call that was cut off in order
    driver.wake()
    assert ring.woken == 1
