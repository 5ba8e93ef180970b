"""What is seen while it trains: a bar with loss, score and size, or a line a training."""

import time
from types import TracebackType
from typing import Any

from experiments import Run
from experiments.comera.tasks import Task
from experiments.comera.training import Watch


class Board:
    """Shows how far all trainings have come; a context manager.

    Args:
        run: Whose console is written to.
        total: Number of trainings, at most.
    """

    def __init__(self, run: Run, total: int) -> None:
        self.run, self.total = run, total
        self._seen: set[str] = set()
        self._bars: Any = None

    def __enter__(self) -> "Board":
        """Puts the bars up, if there is a terminal to show them."""
        console: Any = self.run.console
        if getattr(console, "is_terminal", False):
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bars = Progress(*columns, console=console, transient=True)
            self._bars.start()
            self._all = self._bars.add_task("trainings", total=self.total)
            self._one = self._bars.add_task("", total=1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Takes them down."""
        if self._bars is not None:
            self._bars.stop()

    @property
    def done(self) -> int:
        """How many trainings were begun or found; one that is asked for again counts once."""
        return len(self._seen)

    def skip(self, task: Task, title: str) -> None:
        """A training that was done before."""
        self._seen.add(f"{task.name}: {title}")
        if self._bars is not None:
            self._bars.update(self._all, completed=self.done)

    def absent(self, task: Task, name: str) -> None:
        """A method that has no model as small as is asked for."""
        self.run.console.print(f"{task.name}: {name}: left out, its smallest model is larger")

    def diverged(self, task: Task, title: str, error: FloatingPointError) -> None:
        """A learning rate that a training does not survive, which others are chosen before."""
        self.run.console.print(f"{task.name}: {title}: diverged, {error}")

    def begin(self, task: Task, title: str) -> Watch:
        """Announces a training, and returns what is to be called at its evaluations."""
        start = time.perf_counter()
        self._seen.add(f"{task.name}: {title}")
        if self._bars is not None:
            self._bars.reset(self._one, total=task.steps, description=f"{task.name}: {title}")

        def watch(record: dict[str, Any]) -> None:
            shown = (
                f"{task.name}: {title}: loss {record['loss']:.4f}, {task.metric} "
                f"{record['score']:.2f}, {record['numbers']} numbers"
            )
            ranks = [r for layer in record["ranks"].values() for r in layer]
            if ranks:
                shown += f", ranks {min(ranks)}–{max(ranks)}, mean {sum(ranks) / len(ranks):.1f}"
            if self._bars is not None:
                self._bars.update(self._one, completed=record["step"], description=shown)
            if record["step"] == task.steps:
                seconds = time.perf_counter() - start
                self.run.console.print(f"{self.done}/{self.total} {shown} ({seconds:.1f} s)")
                if self._bars is not None:
                    self._bars.update(self._all, completed=self.done)

        return watch
