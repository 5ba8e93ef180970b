"""Monitoring of a run: statistics of its steps, progress line, counter of compiled programs."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tensorjax._cores.unfoldings import Cores

_COMPILED = "/jax/core/compile/backend_compile_duration"
# Statistics of a step that are numbers or arrays of one shape.
_NAMES = (
    "t", "dt", "rank", "cost_without", "cost", "asked", "cond", "mass", "edge_mass", "resolution",
    "norm", "error", "seconds", "compilations", "sigma", "beta", "exponential",
)  # fmt: skip


def row_of(v: Cores, known: dict[str, Any]) -> dict[str, Any]:
    """Adds ranks and norm of a solution to the statistics of a time step.

    Args:
      v: right-orthogonal but for the first core.
      known: the other statistics.
    """
    ranks = tuple(len(c) for c in v[1:])
    return {
        **known,
        "rank": max(ranks, default=1),
        "ranks": ranks,
        "norm": float(np.linalg.norm(v[0])),
    }


def stats_of(rows: Sequence[dict[str, Any]], bonds: int) -> dict[str, Any]:
    """Stacks the statistics of accepted time steps to arrays, for `Solution.stats`."""
    out: dict[str, Any] = {n: np.array([r[n] for r in rows]) for n in _NAMES}
    out["ranks"] = np.array([r["ranks"] for r in rows], int).reshape(len(rows), bonds)
    out["fallback"] = np.zeros(len(rows), bool)
    return out


class Compilations:
    """Counter of XLA compilations during a time integration, for its progress line.

    JAX's listeners belong to the process: this one is taken back at the end.
    """

    def __init__(self):
        self.count = 0

    def __call__(self, event: str, duration_secs: float, **_: Any) -> None:
        self.count += event == _COMPILED

    def __enter__(self) -> "Compilations":
        jax.monitoring.register_event_duration_secs_listener(self)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self)


Progress = Callable[[dict[str, Any]], Any]


def progress_of(progress: Any, t0: float, t1: float) -> Progress:
    """Returns the progress callback that a time integration calls after each step.

    Args:
      progress: a callback, True for a line on stderr, or False.
      t0: time at the start.
      t1: time at the end.

    Raises:
      ValueError: anything else.
    """
    if callable(progress):
        return progress
    if progress is True:
        return _Line(t0, t1)
    if progress is False or progress is None:
        return lambda _: None
    raise ValueError(f"progress: expected True, False or a callback, got {progress!r}")


class _Line:
    """Progress callback of a time integration that rewrites one line on stderr."""

    def __init__(self, t0: float, t1: float):
        self._span = t0, t1
        self._next = 0.0

    def __call__(self, row: dict[str, Any]) -> None:
        t0, t1 = self._span
        now, done = time.monotonic(), row["t"] >= t1
        if now < self._next and not done:
            return
        self._next = now + 0.2
        share = (row["t"] - t0) / (t1 - t0)
        bar = "#" * int(24 * share) + "." * (24 - int(24 * share))
        sys.stderr.write(
            f"\r[{bar}] t = {row['t']:.4g} of {t1:g}, dt {row['dt']:.2g}, rank {row['rank']}, "
            f"cond {row['cond']:.2g}" + ("\n" if done else "")
        )
        sys.stderr.flush()
