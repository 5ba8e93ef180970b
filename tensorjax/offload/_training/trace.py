"""Trace of compute, reads, writes and updates as time spans, for Perfetto or Matplotlib."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorjax import _check

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

TRACKS = ("compute", "wait", "place", "gradient", "read", "update", "write", "commit")
_COLOURS = {"compute": "#4472c4", "wait": "#d9d9d9", "place": "#8faadc", "gradient": "#ffc000",
            "read": "#70ad47", "update": "#ed7d31", "write": "#a64d79",
            "commit": "#7f7f7f"}  # fmt: skip
_BACKWARD = "#1f3864"


@dataclass(frozen=True)
class Span:
    """Time span of an activity in a training's trace, with track, name, start and end.

    Attributes:
      track: one of "compute", "wait" (compute has nothing to work on), "place" (to the device),
        "gradient" (to the host), "read" and "write" (from being asked for until they are done, the
        time in the store's queue included), "update", "commit".
      name: of the layer or group, and what was done.
      start, stop: in seconds, of `time.perf_counter`.
      step: training step that it belongs to, counted from 0: one less than `Step.number`.

    Example:
      >>> from tensorjax import offload
      >>> offload.Span("read", "block000", 0.5, 0.75, 0).seconds
      0.25
    """

    track: str
    name: str
    start: float
    stop: float
    step: int

    @property
    def seconds(self) -> float:
        """Duration of a time span of a trace in seconds."""
        return self.stop - self.start


class Trace:
    """Trace of a training: recorder of time spans from any thread, in the order they ended in.

    Args:
      capacity: spans that are kept; the first ones are dropped when there are more.

    Example:
      >>> from tensorjax import offload
      >>> trace = offload.Trace()
      >>> with trace.span("compute", "block000 forward", 0):
      ...     pass
      >>> [span.track for span in trace.spans()]
      ['compute']
    """

    def __init__(self, capacity: int = 200_000) -> None:
        self._capacity = _check.integer("capacity", capacity, low=1)
        self._lock = threading.Lock()
        self._spans: list[Span] = []

    @contextlib.contextmanager
    def span(self, track: str, name: str, step: int) -> Iterator[None]:
        """Context manager that records the time that its block takes, as a span of a trace.

        Args:
          track: one of the tracks of `Span`.
          name: of the layer or group, and the activity.
          step: training step, counted from 0.

        Returns:
          A context manager.
        """
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(track, name, start, time.perf_counter(), step)

    def add(self, track: str, name: str, start: float, stop: float, step: int) -> None:
        """Adds a time span with known start and end to a trace.

        Args:
          track: one of the tracks of `Span`.
          name: of the layer or group, and the activity.
          start: of the span, in seconds of `time.perf_counter`.
          stop: its end, likewise.
          step: training step, counted from 0.
        """
        with self._lock:
            self._spans.append(Span(track, name, start, stop, step))
            if len(self._spans) > self._capacity:
                del self._spans[: max(1, self._capacity // 4)]

    def spans(self, track: str | None = None, *, first: int = 0) -> list[Span]:
        """Returns a trace's time spans of one track, or of all, from step ``first`` on.

        Args:
          track: which one; None for all.
          first: least step.

        Returns:
          The spans, in the order they ended in.
        """
        with self._lock:
            held = list(self._spans)
        return [s for s in held if track in (None, s.track) and s.step >= first]

    def seconds(self, track: str, *, first: int = 0) -> dict[int, float]:
        """Computes the busy seconds of one track of a trace, overlaps counted once, per step.

        Args:
          track: which one.
          first: least step.

        Returns:
          A dictionary from step to seconds.
        """
        by_step: dict[int, list[Span]] = {}
        for span in self.spans(track, first=first):
            by_step.setdefault(span.step, []).append(span)
        return {step: _covered(by_step[step]) for step in sorted(by_step)}

    def save(self, path: str | Path) -> None:
        """Writes a trace in Chrome's JSON form, which ui.perfetto.dev opens.

        Args:
          path: of the JSON file, which is overwritten.
        """
        spans = self.spans()
        origin = min((s.start for s in spans), default=0.0)
        events: list[dict[str, Any]] = []
        number = 0
        for track in TRACKS:
            for lane, mine in enumerate(_lanes([s for s in spans if s.track == track])):
                number += 1
                title = track if lane == 0 else f"{track} {lane + 1}"
                events.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": number,
                               "args": {"name": title}})  # fmt: skip
                events.append({"name": "thread_sort_index", "ph": "M", "pid": 1, "tid": number,
                               "args": {"sort_index": number}})  # fmt: skip
                events += [
                    {"name": s.name, "cat": track, "ph": "X", "pid": 1, "tid": number,
                     "ts": 1e6 * (s.start - origin), "dur": 1e6 * s.seconds,
                     "args": {"step": s.step}}
                    for s in mine
                ]  # fmt: skip
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))

    def picture(self, steps: Sequence[int] | None = None) -> "Figure":
        """Draws some steps of a trace as a Matplotlib figure, one row for each track.

        Args:
          steps: which; the last two that were computed if None.

        Returns:
          A `matplotlib.figure.Figure`, which is neither shown nor kept by pyplot.

        Raises:
          ValueError: there are no spans of these steps.
        """
        import matplotlib.pyplot  # noqa: F401  (a notebook then shows what a cell returns)
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 3.2), layout="constrained")
        handles = draw(self, figure.subplots(), steps)
        if handles:
            figure.legend(handles=handles, loc="outside right upper", frameon=False)
        return figure


def draw(trace: Trace, axes: "Axes", steps: Sequence[int] | None) -> "list[Patch]":
    """Draws some steps of a training `Trace` into Matplotlib axes, one row for each track.

    Args:
      steps: which; the last two that were computed if None.

    Returns:
      The entries of a legend; none if nothing went backward.

    Raises:
      ValueError: there are no spans of these steps.
    """
    from matplotlib.patches import Patch

    if steps is None:
        steps = sorted({s.step for s in trace.spans("compute")})[-2:]
    spans = [s for s in trace.spans() if s.step in set(steps)]
    if not spans:
        raise ValueError(f"steps: expected some that were traced, got {list(steps)}")
    start, stop = _limits(spans)
    shown = [track for track in TRACKS if any(s.track == track for s in spans)]
    for row, track in enumerate(shown):
        lanes = _lanes([s for s in spans if s.track == track])
        for lane, mine in enumerate(lanes):
            height = 0.8 / len(lanes)
            bars = [(s.start - start, s.seconds) for s in mine]
            colours = [_BACKWARD if "backward" in s.name else _COLOURS[track] for s in mine]
            axes.broken_barh(bars, (row - 0.4 + lane * height, height), facecolors=colours,
                             edgecolors="white", linewidth=0.3)  # fmt: skip
    for step in steps:
        if mine := [s.start for s in spans if (s.track, s.step) == ("compute", step)]:
            axes.axvline(min(mine) - start, color="k", linewidth=0.8, linestyle=":")
            axes.text(min(mine) - start, -0.7, f" step {step}", fontsize="small")
    axes.set_yticks(range(len(shown)), shown)
    axes.set_ylim(len(shown) - 0.4, -1)
    axes.set_xlim(0, stop - start)
    axes.set_xlabel("seconds")
    axes.spines[["top", "right"]].set_visible(False)
    if not any("backward" in s.name for s in spans):
        return []
    return [Patch(color=_COLOURS["compute"], label="forward"),
            Patch(color=_BACKWARD, label="backward")]  # fmt: skip


def _limits(spans: Sequence[Span]) -> tuple[float, float]:
    """Returns start and end of a trace's time spans, without those too short to be drawn."""
    start, stop = min(s.start for s in spans), max(s.stop for s in spans)
    seen = [s for s in spans if s.seconds >= 1e-3 * (stop - start)] or spans
    return min(s.start for s in seen), max(s.stop for s in seen)


def _covered(spans: Sequence[Span]) -> float:
    total, end = 0.0, float("-inf")
    for span in sorted(spans, key=lambda s: s.start):
        total += max(span.stop, end) - max(span.start, end) if span.stop > end else 0.0
        end = max(end, span.stop)
    return total


def _lanes(spans: Sequence[Span]) -> list[list[Span]]:
    """Distributes the spans of a training's trace over lanes without overlaps, to draw them."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: s.start):
        free = next((lane for lane in lanes if lane[-1].stop <= span.start), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return lanes
