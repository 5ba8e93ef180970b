"""Search for large errors of a functional train: ascents along lines from errors that stand out.

A narrow peak beside a smooth function is met by few random points or by none, but its tail may be:
one error is then far above all others. Ascents of |f − t| along the coordinates lead from there to
the peak, as the global pivots of `tt.cross` do on a grid.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax.tt.functions.bases import Basis
from tensorjax.tt.functions.evaluation import host_values
from tensorjax.tt.functions.function_values import Values
from tensorjax.tt.functions.peaks import TELLING, along

# An error stands out above so many times the root mean square of all but the TELLING largest ones.
_STANDS_OUT = 10
# Most sweeps of an ascent over all variables; points of a line on both sides of where it is, at
# distances that halve with every second one, and points all along the interval.
_SWEEPS, _NEAR, _ALONG = 3, 20, 33
# An ascent has found another part of f if the error there is so many times that where it began.
_FOUND = 3
# A peak ends where the error is below this part of its top; so many times that far is looked at.
_END, _WIDER = 0.02, 1.5


class HiddenPart(NamedTuple):
    """Part of a function that a functional train lacks: a point where it is large, a box about it.

    Attributes:
      point: (d,) where the error is largest.
      low, high: (d,) ends of the box.
    """

    point: np.ndarray
    low: np.ndarray
    high: np.ndarray


def standing_out(wrong: np.ndarray) -> int | None:
    """Returns the place of the largest of some errors if it is far above the others, else None.

    Example:
      >>> import numpy as np
      >>> standing_out(np.append(np.ones(100), 200.0)), standing_out(np.ones(100))
      (100, None)
    """
    worst = int(wrong.argmax())
    rest = np.sort(wrong)[:-TELLING] / (wrong[worst] or 1.0)
    far = wrong[worst] > 0 and float((rest**2).sum()) * _STANDS_OUT**2 < len(wrong)
    return worst if far else None


def hidden_part(
    values: Values, bases: Sequence[Basis], cores: Cores, start: np.ndarray, least: float
) -> HiddenPart | None:
    """Climbs from a point to larger errors of a functional train, along one variable after another.

    Args:
      values: the function.
      bases: of the train.
      cores: of the train.
      start: (d,) where the ascent begins.
      least: smaller errors do not count as found.

    Returns:
      The part found; None if errors are about as large where the ascent began.
    """
    low, high = np.array([b.low for b in bases]), np.array([b.high for b in bases])
    ladder = 2.0 ** (-np.arange(2, 2 + _NEAR) / 2)
    point, first, best = start.copy(), 0.0, -1.0
    profiles: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(_SWEEPS):
        before, profiles = point.copy(), []
        for k in range(len(bases)):
            steps = (high[k] - low[k]) * ladder
            line = np.concatenate(
                [
                    point[[k]],
                    point[k] - steps,
                    point[k] + steps,
                    np.linspace(low[k], high[k], _ALONG),
                ]
            )
            line = np.clip(line, low[k], high[k])
            if values.left < len(line):
                return None
            x = along(point[None], k, line)
            true = values(x)
            wrong = np.linalg.norm(true - host_values(bases, cores, x).reshape(true.shape), axis=1)
            first = first or float(wrong[0])
            profiles.append((line, wrong))
            point[k], best = line[wrong.argmax()], float(wrong.max())
        if (point == before).all():
            break
    if best <= max(_FOUND * first, least):
        return None
    widths = np.array(
        [_width(line, wrong, x) for (line, wrong), x in zip(profiles, point, strict=True)]
    )
    return HiddenPart(point, np.maximum(low, point - widths), np.minimum(high, point + widths))


def _width(line: np.ndarray, wrong: np.ndarray, top: float) -> float:
    """Returns how far the errors on a line are large, on the side where they are so farther."""
    far = np.abs(line - top)
    large = wrong > _END * wrong.max()
    beyond = far[~large & (far > 0)]
    # At least as far as the next points, for the peak may be narrower than their distance.
    least = float(far[far > 0].min())
    reach = float(far[large].max(initial=0.0))
    inside = beyond[beyond > reach]
    return _WIDER * max(least, float(inside.min()) if inside.size else reach)
