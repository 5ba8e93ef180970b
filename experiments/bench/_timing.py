"""Timing of benchmarks: interleaved warm medians, first calls, and XLA's compilations."""

import functools
import gc
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
# Idle threads of OpenBLAS and OpenMP spin for some 30 ms before they sleep; nobody is timed while
# those of the competitor before still hold a core.
_PAUSE = 0.05
# A short call is repeated this long within its turn, up to so many times, after one call that is
# not timed and brings its data back into the caches.
_TURN = 0.02
_MOST = 100
_SHORT = 0.2
# A competitor whose calls are long gets fewer turns than the others, but never fewer than three.
_SECONDS = 6.0
_LEAST_TURNS = 3
# One call of this length is enough.
PATIENCE = 20.0


@dataclass(frozen=True)
class Lane:
    """Way of doing a case's work that is timed: a library's call, with its thread settings.

    Attributes:
        library: Name of the competitor.
        variant: Which of its ways this is; empty if there is only one.
        call: Does the work and waits for it; input and output are the competitor's own types.
        threads: Threads that BLAS and OpenMP may use; None leaves the defaults.
        before: Called before every timed call, untimed; the call is then never repeated in a turn.
    """

    library: str
    variant: str
    call: Callable[[], Any]
    threads: int | None = None
    before: Callable[[], object] | None = None


@dataclass
class Timing:
    """Times of one lane: first call, warm calls, compilations, failure.

    Attributes:
        lane: What was timed.
        first: Seconds of the first call, compilation included.
        compiling: Seconds of it that XLA's compiler took.
        samples: Seconds of the warm calls.
        programs: Programs XLA compiled in the first call, and again in any later one that was not
            made to start afresh.
        failure: Why there is no time, if there is none.
    """

    lane: Lane
    first: float = math.nan
    compiling: float = 0.0
    samples: list[float] = field(default_factory=list)
    programs: int = 0
    failure: str = ""

    @property
    def median(self) -> float:
        """Median seconds of the warm calls; of the only call, if there was one."""
        return statistics.median(self.samples or [self.first])


def cores() -> int:
    """Returns the number of processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextmanager
def compilations() -> Iterator[list[float]]:
    """Context manager that yields a list of the seconds of all compilations in its block."""
    seconds: list[float] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILED:
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@contextmanager
def conditions(lane: Lane) -> Iterator[None]:
    """Context manager that sets a lane's threads, and silences warnings of other libraries."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        if lane.library != "tensorjax":
            warnings.simplefilter("ignore")
        if lane.threads is not None:
            stack.enter_context(thread_limit(lane.threads))
        yield


@contextmanager
def thread_limit(threads: int) -> Iterator[None]:
    """Context manager that limits the threads of BLAS, OpenMP and PyTorch."""
    from threadpoolctl import threadpool_limits

    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    with threadpool_limits(threads):
        if torch:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if torch:
                torch.set_num_threads(before)


@functools.cache
def leave_modules() -> None:
    """Leaves what exists, modules of the peers above all, out of all later searches for garbage.

    There is a search before every first call: it took a third of the time of a quick run.
    """
    gc.collect()
    gc.freeze()


def first_call(lane: Lane) -> tuple[Timing, Any]:
    """Times the first call of a lane; returns the timing and the call's result."""
    timing = Timing(lane)
    leave_modules()
    gc.collect()
    try:
        with conditions(lane), compilations() as compiled:
            timing.first, result = _timed(lane)
    except Exception as error:  # of any library, for any reason: the others go on
        text = " ".join(str(error).split())
        timing.failure = f"failed: {type(error).__name__}: {text[:80]}"
        return timing, None
    timing.programs, timing.compiling = len(compiled), sum(compiled)
    return timing, result


def interleave(timings: Sequence[Timing], repeats: int) -> None:
    """Times the warm calls of all lanes by turns, and adds them to their samples.

    Args:
        timings: From `first_call`; those that failed, or tried one's patience, are left alone.
        repeats: Turns of a lane, unless its calls are long.
    """
    able = [t for t in timings if not t.failure and t.first - t.compiling < PATIENCE]
    warm = {id(t): _turn(t, repeated=False)[0] for t in able}
    for turn in range(repeats):
        for timing in able if turn % 2 == 0 else able[::-1]:
            seconds = warm[id(timing)]
            if turn < max(_LEAST_TURNS, _SECONDS / seconds):
                timing.samples += _turn(timing, repeated=seconds < _SHORT)


def _turn(timing: Timing, *, repeated: bool) -> list[float]:
    """Times one call of a lane, or as many as fit into a turn; returns their seconds."""
    lane = timing.lane
    samples: list[float] = []
    time.sleep(_PAUSE)
    with conditions(lane), compilations() as compiled:
        if lane.before is not None:
            return [_timed(lane)[0]]
        if repeated:
            lane.call()
        end = time.perf_counter() + _TURN
        while not samples or (repeated and time.perf_counter() < end and len(samples) < _MOST):
            samples.append(_timed(lane)[0])
    timing.programs += len(compiled)
    return samples


def _timed(lane: Lane) -> tuple[float, Any]:
    if lane.before is not None:
        lane.before()
    enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        result = lane.call()
        return time.perf_counter() - start, result
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class Repeated:
    """Options of a benchmark whose competitors are timed by turns."""

    repeats: int = 9
    """Turns of every competitor; long calls get fewer."""

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"repeats: expected at least 1, got {self.repeats}")


@dataclass(frozen=True)
class Sized(Repeated):
    """Options of a benchmark with small sizes for a trial."""

    small: bool = False
    """Use sizes that take seconds: for trying out, the times mean nothing."""

    @classmethod
    def quick(cls) -> Self:
        return cls(repeats=1, small=True)
