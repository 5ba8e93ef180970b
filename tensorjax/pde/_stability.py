"""How fast a right side acts on a state, beside what an explicit method can follow."""

import math

import numpy as np

from tensorjax._cores import Cores
from tensorjax.pde._rates import Rates
from tensorjax.pde._sums import Train, relative_norm, rounded

# Steps of the power iteration that estimates the fastest rate.
_ITERATIONS = 6


def too_fast(
    rates: Rates, cores: Cores, dt: float, share: float, stable: tuple[float, float]
) -> float | None:
    """The fastest rate, about, where it is too fast for a step; else None.

    Instability grows out of the small parts of v: those below ``share`` are asked apart. Only
    linear operators have rates; a source has none, and what a reaction does the norms tell.

    Args:
      rates: linear operators.
      cores: of v.
      dt: the step.
      share: of ‖v‖.
      stable: what dt times a real, and an imaginary, rate may be.
    """
    big = rounded([Train(cores)], [1.0], share).cores
    low = [4] * (len(cores) - 1)
    small = rounded([Train(cores), Train(big)], [1.0, -1.0], 0.1, low)
    asked = [cores]
    if small.norm > 1e-14 * float(np.linalg.norm(cores[0])):
        asked.append(small.cores)
    rate = max(_rate(rates, part) for part in asked)
    if not (math.isfinite(rate) and dt * rate > max(stable)):
        return None
    part = asked[-1]
    for _ in range(_ITERATIONS):  # towards what grows fastest
        size = float(np.linalg.norm(part[0]))
        if not (math.isfinite(size) and size > 0):
            break
        terms = rates.terms(part, 0.1)
        part = rounded(terms, [1 / size] * len(terms), 0.3, low).cores
    last = _rate(rates, part)
    return max(rate, last) if math.isfinite(last) else rate


def _rate(rates: Rates, cores: Cores) -> float:
    """About ‖right side at v‖ / ‖v‖."""
    terms = rates.terms(cores, 0.1)
    return relative_norm(terms, [1.0] * len(terms), Train(cores)) if terms else 0.0
