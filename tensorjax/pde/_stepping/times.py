"""Comparison of times up to roundoff, and the number of equal steps between two times.

0.1 + 0.2 and 3 · 0.1 lie one unit in the last place above 0.3, and a sum of many steps further off.
A step of that length would cost as much as any other, and spoil interpolation through the times of
several steps: slopes of multistep methods, extrapolated motions.
"""

import math
from typing import Any

import numpy as np

from tensorjax import _check

# A remainder below this share of a step is not worth one: the last step is so much longer.
# Thousands of steps, each rounded, miss their end by less; no method notices a step longer by it.
_HAIR = 1e-6
# Units in the last place within which computed times count as equal.
_UNITS = 8


def roundoff(*times: float) -> float:
    """Returns the difference up to which two times count as equal in floating point."""
    return _UNITS * float(np.spacing(max(map(abs, times))))


def reaches(dt: float, begin: float, end: float) -> bool:
    """Whether a time step ``dt`` from ``begin`` reaches ``end``, up to roundoff."""
    return (end - begin) / dt <= 1 + _hair(dt, begin, end)


def step_count(begin: float, end: float, dt: float) -> int:
    """Returns the number of equal time steps of at most about ``dt`` between two times."""
    return max(1, math.ceil((end - begin) / dt - _hair(dt, begin, end)))


def _hair(dt: float, *times: float) -> float:
    return min(max(_HAIR, roundoff(*times) / dt), 0.5)


def snapped(times: list[float], t0: float, t1: float) -> list[float]:
    """Replaces times that equal t0, t1 or the preceding time, up to roundoff, by the exact ones."""
    out: list[float] = []
    for t in times:
        near = [s for s in (t0, t1, *out[-1:]) if abs(t - s) <= roundoff(t0, t1)]
        out.append(near[0] if near else t)
    return out


def checked_end(t0: float, t1: Any) -> float:
    """Returns the end time t1 of an integration, t0 if equal up to roundoff; ValueError if earlier.

    Raises:
      ValueError: an earlier time, or one that is not finite.
    """
    end = math.nan if t1 is None else _check.number("t1", t1, finite=False)
    if not (math.isfinite(t0) and math.isfinite(end) and end - t0 >= -roundoff(t0, end)):
        raise ValueError(f"t1: expected a time at {t0:g} or after it, got {t1!r}")
    return t0 if end - t0 <= roundoff(t0, end) else end
