"""Threads of trainers that are dropped, or open at the interpreter's exit: they are ended."""

import atexit
import functools
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from tensorjax.offload._training.commits import Commits, Progress
from tensorjax.offload._training.pipeline import Pipeline


def watch(
    trainer: Any, pipeline: Pipeline, commits: Commits | None, progress: Progress
) -> Callable[[], None]:
    """Makes a trainer's threads end once it is garbage-collected or the interpreter exits.

    Args:
      trainer: of which nothing that threads refer to refers to it.
      pipeline, commits, progress: its own.

    Returns:
      A function that ends the watching, for a trainer that is closed.
    """
    # Threads that are in compiled code when the interpreter ends would abort the process.
    at_exit = functools.partial(_end_at_exit, weakref.ref(trainer))
    atexit.register(at_exit)
    finalizer = weakref.finalize(trainer, _end, pipeline, commits, progress, at_exit, os.getpid())
    finalizer.atexit = False

    def unwatch() -> None:
        atexit.unregister(at_exit)
        finalizer.detach()

    return unwatch


def _end_at_exit(held: "weakref.ref[Any]") -> None:
    """Closes a trainer at the exit of the interpreter, without waiting for its updates."""
    if (trainer := held()) is not None:
        trainer.__exit__(SystemExit, SystemExit(), None)


def _end(
    pipeline: Pipeline, commits: Commits | None, progress: Progress, at_exit: Any, pid: int
) -> None:
    """Ends the threads of a trainer that was garbage-collected without being closed.

    In a thread of its own: the collector may have come from one of those that end.
    """
    if pid != os.getpid():  # a fork has none of the threads
        return
    atexit.unregister(at_exit)

    def end() -> None:
        try:
            if commits is not None:
                commits.join()  # what it commits is not lost
                commits.warn(progress.steps, "dropped without close()")
        finally:
            pipeline.close()

    thread = threading.Thread(target=end, name="offload end")
    if commits is not None:
        commits.ends_in(thread)
    try:
        thread.start()
    except RuntimeError:  # too late for threads
        end()
    warnings.warn(
        "offload.Trainer: one was dropped without close(), and its threads end now; updates under "
        "way are lost, and what was not committed. Use `with offload.Trainer(...) as trainer:`",
        ResourceWarning,
        stacklevel=2,
    )
