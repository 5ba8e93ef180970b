"""Barriers, exchanges and sums between the processes that train one model together."""

import itertools
import json
import math
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from tensorjax import _check

PATIENCE = 600.0  # seconds: others may still compile, or write to a slower disk

_meetings = itertools.count()


class Processes:
    """Communication between all processes of `jax.distributed`; immediate in a single process.

    Each process makes the same calls in the same order. `wait` and `exchange` go through the
    service that the processes found each other by: no device takes part, so that they may be
    called from any thread, whatever the devices are computing. `total` sends numbers between
    devices, as steps do, and belongs to the thread that starts these.

    Args:
      patience: seconds to wait for the others.

    Example:
      >>> from tensorjax.offload._processes import Processes
      >>> Processes().exchange("step", {"number": 3})
      [{'number': 3}]
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self.number, self.count = jax.process_index(), jax.process_count()
        self._patience = patience
        self._name = f"tensorjax.offload/{next(_meetings)}"
        self._calls = itertools.count()

    def wait(self, what: str) -> None:
        """Waits at a barrier until all processes of a training have reached it.

        Args:
          what: this is for; for the message.

        Raises:
          RuntimeError: another process has ended, or did not come in time.
        """
        if self.count > 1:
            name = f"{self._name}/{next(self._calls)}"
            self._ask(what, "wait_at_barrier", name, round(self._patience * 1000))

    def exchange(self, what: str, value: Any) -> list[Any]:
        """Gathers a JSON value from every process, ordered by the processes' numbers.

        Args:
          what: this is for; for the message.
          value: of this process; JSON.

        Raises:
          RuntimeError: another process has ended, or did not come in time.
        """
        if self.count == 1:
            return [value]
        name = f"{self._name}/{next(self._calls)}"
        self._ask(what, "key_value_set", f"{name}/{self.number}", json.dumps(value))
        found = [
            self._ask(
                f"{what}, of process {number}",
                "blocking_key_value_get",
                f"{name}/{number}",
                round(self._patience * 1000),
            )
            for number in range(self.count)
        ]
        return [json.loads(text) for text in found]

    def norm(self, number: float) -> float:
        """Computes the root of the sum of squares of a number over all processes of a training.

        In double precision, squares of any size, and in a fixed order: all get the same bits.
        """
        if self.count == 1:
            return number
        bits = np.array([number], np.float64).view(np.uint32)  # JAX may have no double precision
        every = np.ascontiguousarray(multihost_utils.process_allgather(bits), np.uint32)
        return math.hypot(*every.reshape(-1).view(np.float64).tolist())

    def _ask(self, what: str, method: str, *arguments: Any) -> Any:
        # JAX has no public name for this (up to 0.12); its own checkpoints and Orbax take it here.
        from jax._src import distributed

        try:
            return getattr(distributed.global_state.client, method)(*arguments)
        except jax.errors.JaxRuntimeError as error:
            said = " ".join(str(error).split())  # the last lines name who is missing
            raise RuntimeError(
                f"{what}: process {self.number} of {self.count} waited up to {self._patience:g} s "
                f"for the others and cannot go on ({said[:600]}); start all processes again: they "
                "go on from what was committed"
            ) from error


def numbered(process: tuple[int, int] | None) -> tuple[int, int]:
    """Returns this training process's number and their count, by default of `jax.distributed`."""
    if process is None:
        if not jax.distributed.is_initialized():
            return (0, 1)
        return (jax.process_index(), jax.process_count())
    if not (isinstance(process, tuple) and len(process) == 2):
        raise TypeError(f"process: expected (number, count), or None, got {process!r}")
    number, count = process
    _check.integer("process", count, low=1)
    return (_check.integer("process", number, low=0, high=count - 1), count)
