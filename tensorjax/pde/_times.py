"""Times compared up to roundoff, and the steps of one length that lead from one to another.

0.1 + 0.2 and 3 · 0.1 lie one unit in the last place above 0.3, and a sum of many steps further off.
A step of that length would cost as much as any other, and ruin what is laid through the times of
several: slopes of multistep methods, motions that are extrapolated.
"""

import math
from typing import Any

import numpy as np

# A remainder below this share of a step is not worth one: the last step is so much longer.
# Thousands of steps, each rounded, miss their end by less; no method notices a step longer by it.
_HAIR = 1e-6
# Units in the last place within which times given by arithmetic are meant to be one.
_UNITS = 8


def roundoff(*times: float) -> float:
    """What times of this size may be apart and yet be meant to be one."""
    return _UNITS * float(np.spacing(max(map(abs, times))))


def reaches(dt: float, begin: float, end: float) -> bool:
    """Whether a step of ``dt`` ends at a time, or so near that it is to end there."""
    return (end - begin) / dt <= 1 + _hair(dt, begin, end)


def step_count(begin: float, end: float, dt: float) -> int:
    """The number of steps of about ``dt``, and not longer, over an interval; at least one."""
    return max(1, math.ceil((end - begin) / dt - _hair(dt, begin, end)))


def _hair(dt: float, *times: float) -> float:
    return min(max(_HAIR, roundoff(*times) / dt), 0.5)


def snapped(times: list[float], t0: float, t1: float) -> list[float]:
    """Ascending times, where those that roundoff parts from t0, t1 or each other are made one."""
    out: list[float] = []
    for t in times:
        near = [s for s in (t0, t1, *out[-1:]) if abs(t - s) <= roundoff(t0, t1)]
        out.append(near[0] if near else t)
    return out


def check_span(t0: float, t1: Any) -> None:
    """Raises ValueError where t1 is not a time after t0, by more than roundoff."""
    end = math.nan if t1 is None else float(t1)
    if not (math.isfinite(t0) and math.isfinite(end) and end - t0 > roundoff(t0, end)):
        raise ValueError(f"t1: expected a time after {t0:g}, got {t1!r}")
