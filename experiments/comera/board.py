"""Progress display of trainings: a bar with loss, score and size, or a line each."""

import time
from types import TracebackType
from typing import Any

from experiments import Run
from experiments.comera.tasks import Task
from experiments.comera.training import Watch


class Board:
    """Context manager that shows the progress of all trainings.

    Args:
        run: Whose console is written to.
        total: Number of trainings, at most.
    """

    def __init__(self, run: Run, total: int) -> None:
        self.run, self.total = run, total
        self._seen: set[str] = set()
        self._bars: Any = None

    def __enter__(self) -> "Board":
        """Starts the progress bars if there is a terminal."""
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
        """Stops the progress bars."""
        if self._bars is not None:
            self._bars.stop()

    @property
    def done(self) -> int:
        """Number of trainings begun or found in the store, each counted once."""
        return len(self._seen)

    def skip(self, task: Task, title: str) -> None:
        """Counts a training whose result was found in the store."""
        self._seen.add(f"{task.name}: {title}")
        if self._bars is not None:
            self._bars.update(self._all, completed=self.done)

    def absent(self, task: Task, name: str) -> None:
        """Reports that a method has no model as small as asked for."""
        self.run.console.print(f"{task.name}: {name}: left out, its smallest model is larger")

    def diverged(self, task: Task, title: str, error: FloatingPointError) -> None:
        """Reports a training that diverged at its learning rate."""
        self.run.console.print(f"{task.name}: {title}: diverged, {error}")

    def begin(self, task: Task, title: str) -> Watch:
        """Announces a training; returns a function to be called at its evaluations."""
        start = time.perf_counter()
        self._seen.add(f"{task.name}: {title}")
        if self._bars is not None:
            self._bars.reset(self._one, total=task.steps, description=f"{task.name}: {title}")

        def watch(record: dict[str, Any]) -> None:
            shown = (
                f"{task.name}: {title}: loss {record['loss']:.4f}, {task.metric} "
                f"{record['score']:.2f}, {record['numbers']} parameters"
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
