"""Progress of a training: losses read with a delay, and times of checkpoints."""

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.gpt2 import processes
from experiments.gpt2.checkpoints import Checkpoints

Record = dict[str, Any]
_BEHIND = 4  # steps that the device may have before it when a loss is read
_TOGETHER = 16  # steps after which several processes agree on whether to write a checkpoint


class Clock:
    """Clock that tells when the next checkpoint is due.

    Args:
        every: Seconds between two of them.
    """

    def __init__(self, every: float) -> None:
        self.every = every
        self.restart()

    def restart(self) -> None:
        """Restarts the clock after a checkpoint was written."""
        self.saved = time.perf_counter()

    def due(self, *, now: bool = False, step: int = 0) -> bool:
        """Whether a checkpoint is due now; all processes get the same answer.

        Clocks differ between them, so the first one says; after most steps it is not asked.
        """
        if step % _TOGETHER and jax.process_count() > 1:
            return False
        return processes.first_says(now or time.perf_counter() - self.saved > self.every)


class Leg:
    """Steps between two evaluations, with their losses and seconds.

    A loss is read when `_BEHIND` more steps have been given to the device: it never waits for this
    process, and a loss that is not finite is noticed as many steps later.

    Args:
        checkpoints: Where states are kept, for the message.
        losses: Of the steps before a checkpoint that the training goes on from.
        seconds: That they took.
        compile_seconds: That the program took.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        losses: Sequence[float] = (),
        seconds: float = 0.0,
        compile_seconds: float = 0.0,
    ) -> None:
        self.checkpoints, self.losses, self.seconds = checkpoints, [*losses], seconds
        self.compile_seconds = compile_seconds
        self.waiting: deque[tuple[int, jax.Array]] = deque()
        self.resume()

    def resume(self) -> None:
        """Resumes counting the seconds of training steps."""
        self.start = time.perf_counter()

    def add(self, number: int, loss: jax.Array) -> None:
        """Adds the loss of a training step, which may still be being computed."""
        self.waiting.append((number, loss))
        if len(self.waiting) > _BEHIND:
            self._read()

    def _read(self) -> None:
        number, loss = self.waiting.popleft()
        self.losses.append(float(loss))
        check_finite(self.losses[-1], f"step {number}", self.checkpoints)

    def settled(self) -> dict[str, Any]:
        """Waits for all losses; returns losses and seconds since the last evaluation."""
        while self.waiting:
            self._read()
        self.seconds += time.perf_counter() - self.start
        return {
            "losses": self.losses,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
        }

    def record(self, tokens: int, seconds: float) -> Record:
        """Returns mean loss, seconds and tokens per second since the last evaluation.

        Args:
            tokens: Of a step.
            seconds: That one of them would take at the peak of the devices.
        """
        took = self.settled()["seconds"]
        speed = len(self.losses) * tokens / took
        return {
            "train": float(np.mean(self.losses)),
            "seconds": took,
            "compile_seconds": self.compile_seconds,
            "tokens_per_second": speed,
            "utilisation": speed * seconds,
        }


def check_finite(loss: float, where: str, checkpoints: Checkpoints) -> None:
    """Raises FloatingPointError if a loss is not finite, with what checkpoint is left."""
    if math.isfinite(loss):
        return
    kept = checkpoints.newest
    held = f"the checkpoint of step {kept} is kept in" if kept else "no checkpoint was written to"
    raise FloatingPointError(
        f"{where}: expected a finite loss and gradient, got {loss}; {held} {checkpoints.folder}; "
        "lower --rate, or compute in float32"
    )
