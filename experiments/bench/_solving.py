"""Problems, the ways in which libraries solve them, and their timing by turns."""

import gc
import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from experiments.bench import _timing
from experiments.bench._timing import Timing
from tensorjax import tt

Answer = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """Way in which one library does the work of a problem.

    Attributes:
        library: Name of the competitor.
        variant: Which of its ways this is; empty if there is only one.
        call: Does the work, in the competitor's own types, and waits for it.
        answer: What the table says of its result: errors, ranks, evaluations.
    """

    library: str
    variant: str
    call: Callable[[], Any]
    answer: Callable[[Any], Answer]


@dataclass(frozen=True)
class Problem:
    """Benchmark problem: the same work for every library, one group of table rows.

    Attributes:
        name: How the table calls it.
        ways: Of all libraries that can do it, ours first.
        goal: The least ratio of the fastest peer's time to ours that is aimed at; None if there is
            none.
    """

    name: str
    ways: list[Way]
    goal: float | None = None


def by_turns(
    ways: Sequence[Way], repeats: int, name: str, *, threads: int | None = None
) -> list[tuple[Way, Answer, Timing]]:
    """Times all ways of a problem by turns, and reads the answers of their first calls.

    Args:
        ways: Of all libraries.
        repeats: Turns of every way, unless its calls are long.
        name: Of the problem, for the message.
        threads: Threads that BLAS and OpenMP may use; None leaves the defaults.

    Returns:
        Every way with its answer, empty where it failed, and its timing.

    Raises:
        RuntimeError: A way of tensorjax failed.
    """
    timings, answers = [], []
    for way in ways:
        lane = _timing.Lane(way.library, way.variant, way.call, threads=threads)
        timing, value = _timing.first_call(lane)
        if timing.failure and way.library == "tensorjax":
            raise RuntimeError(f"{name}: {timing.failure}")
        timings.append(timing)
        answers.append({} if timing.failure else way.answer(value))
    _timing.interleave(timings, repeats)
    gc.collect()
    return list(zip(ways, answers, timings, strict=True))


def found(name: str) -> Any:
    """Imports a module; returns None if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        return None


def torch_device(torch: Any) -> str:
    """Returns the device for PyTorch: the GPU if JAX uses it, else the CPU."""
    return "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"


def waited(torch: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    """Wraps a call so that it waits for what PyTorch computes on a GPU."""
    if torch_device(torch) == "cpu":
        return call

    def found() -> Any:
        result = call()
        torch.cuda.synchronize()
        return result

    return found


def compared(exact: tt.TT, cores: Callable[[Any], Any]) -> Callable[[Any], Answer]:
    def answer(result: Any) -> Answer:
        train = tt.TT([np.asarray(c) for c in cores(result)])
        error = float(tt.distance(train, exact) / tt.norm(exact))
        return {"error": error, "rank": max(train.ranks)}

    return answer


def torch_train(cores: Any) -> Any:
    """Converts cores to a train or TT-matrix of torchTT."""
    torch, torchtt = found("torch"), found("torchtt")
    return torchtt.TT([torch.tensor(np.array(c)) for c in cores])


def quimb_arrays(cores: Any) -> list[np.ndarray]:
    """Converts cores to quimb's arrays: bonds first, and none at the ends."""
    arrays = [np.moveaxis(np.asarray(c), -1, 1) for c in cores]
    return [arrays[0][0], *arrays[1:-1], arrays[-1][:, 0]]


def from_quimb(state: Any) -> list[np.ndarray]:
    state = state.copy()
    state.permute_arrays("lpr")
    first, *middle, last = (np.asarray(a) for a in state.arrays)
    return [first[None], *middle, last[..., None]]
