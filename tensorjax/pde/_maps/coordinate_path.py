"""Coordinate motion within one time step: Σ and β as polynomials in time, and the map.

Any smooth Σ(t) is consistent, for it changes the ranks and not the solution; but the Σ that moves
Γ and the Σ in the transport term must be the same function of time, or the order of the integrator
is lost. Here it is a polynomial in time on every step, and Γ its power series, summed to roundoff.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax.pde._maps.affine_maps import AffineMap

# Largest number of terms of the power series, which converges as (‖Σ‖ dt)^k / k!.
_TERMS = 60
# Largest error of an extrapolated moment, relative to the size of the moments.
_MISS = 0.1


class Moment(NamedTuple):
    """Sample of a coordinate path's motion ẏ = Σ y + β at a time t."""

    t: float
    sigma: Any
    beta: Any


class Path:
    """Path of moving coordinates within a time step: their affine map and motion at each time.

    Args:
      at: the map y = Γ x + s at t.
      t: the time.
      dt: the step.
      past: motions that the generator returned, the newest last and at t; the polynomial passes
        through all of them. Empty: coordinates at rest.
    """

    def __init__(self, at: AffineMap, t: float, dt: float, past: Sequence[Moment]):
        self.t = t
        self.dt = dt
        self._start = at
        self._motion = _polynomial(t, dt, past) if past else []
        self._series = self._solved() if past else []

    def time(self, share: float) -> float:
        """Returns the time at a fraction ``share`` of a coordinate path."""
        return self.t + share * self.dt

    def motion(self, share: float) -> tuple[Any, Any]:
        """Returns the coordinate motion (Σ, β) at a fraction of a time step; None, None at rest."""
        if not self._motion:
            return None, None
        total = _horner(self._motion, share) / self.dt
        return total[:, :-1], total[:, -1]

    def map(self, share: float) -> AffineMap:
        """Returns the affine map of moving coordinates at a fraction ``share`` of a time step."""
        if not self._series or share == 0:
            return self._start
        total = _horner(self._series, share)
        return AffineMap(total[:, :-1], total[:, -1])

    def _solved(self) -> list[Any]:
        """Computes a coordinate path's power series in time of [Γ s]: Γ̇ = Σ Γ, ṡ = Σ s + β."""
        out = [np.column_stack([self._start.matrix, self._start.shift]).astype(float)]
        size = np.linalg.norm(out[0])
        for k in range(1, _TERMS):
            pairs = zip(self._motion, reversed(out[-len(self._motion) :]), strict=False)
            term = sum(c[:, :-1] @ g for c, g in pairs)
            if k <= len(self._motion):
                term = np.asarray(term)
                term[:, -1] += self._motion[k - 1][:, -1]
            out.append(np.asarray(term) / k)
            small = np.finfo(float).eps / 4 * size
            if k > len(self._motion) and all(np.linalg.norm(g) <= small for g in out[-3:]):
                break
        return out


def told(moments: Sequence[Moment], degree: int) -> Sequence[Moment]:
    """Selects the latest samples of a coordinate path that can be extrapolated in time.

    A generator that jumps from step to step must not be extrapolated: a parabola through values
    that differ by a jump changes within one step by several times as much, which leaves the
    integrator with errors far above its order. The newest moment shows how well polynomials through
    the ones before it tell what comes: the highest degree is taken that misses by a tenth of the
    size of the moments or less, and a constant where there is none. The newest of the moments, at
    most degree + 2, comes last.
    """
    if len(moments) < 3:  # nothing to judge by
        return moments[-(degree + 1) :]
    good, most = _telling(moments, degree)
    return moments[-(degree + 1) :] if most in good else moments[-max(good, default=1) :]


def jumps(moments: Sequence[Moment], degree: int) -> bool:
    """Whether a coordinate motion jumps in time: no polynomial through earlier samples predicts it.

    Slopes from before a jump are those of another motion: a multistep method that went on with them
    would be of order one there.
    """
    return len(moments) >= 3 and not _telling(moments, degree)[0]


class Miss(NamedTuple):
    """Error of a coordinate motion extrapolated in time, at the end of a time step.

    Attributes:
      share: of the size of the moments.
      span: length of the step.
      count: past motions that the polynomial went through; the error is of this order in the step.
    """

    share: float
    span: float
    count: int


def missed(moments: Sequence[Moment], degree: int) -> Miss | None:
    """Computes the error of the extrapolated coordinate motion against its newest sample.

    None where there is nothing to compare, where coordinates rest, and where the motion jumps:
    shorter steps do not help there.
    """
    if len(moments) < 2:
        return None
    misses, size = _misses(moments, degree)
    count = min(range(len(misses)), key=misses.__getitem__)
    if not misses[count] <= _MISS * size or not size > 0:
        return None
    return Miss(misses[count] / size, moments[-1].t - moments[-2].t, count + 1)


def followed(
    moments: Sequence[Moment], degree: int, dt: float, cost: float, allowed: float, least: float
) -> float:
    """Shortens a time step so that a coordinate motion can be extrapolated over it.

    Args:
      moments: of the motion, the newest last.
      degree: of the polynomial in time.
      dt: length of the step.
      cost: normal component of the right side at rest, which an error of the motion leaves.
      allowed: largest norm that it may leave in a step.
      least: smallest factor of one step's length over the last one's.
    """
    if len(moments) == 1:  # how Σ changes is not known yet: as fast as it turns the axes
        turns = float(np.linalg.norm(moments[0].sigma, 2))
        return min(dt, float(np.sqrt(2 * allowed / max(cost * turns, 1e-300))))
    miss = missed(moments, degree)
    if miss is None or miss.share == 0:
        return dt
    order = miss.count + 1
    strays = cost * miss.share * miss.span / order
    factor = (allowed / strays) ** (1 / order)
    return min(dt, max(factor, least) * miss.span)


def _telling(moments: Sequence[Moment], degree: int) -> tuple[list[int], int]:
    """Returns the numbers of past samples from which a coordinate motion extrapolates well."""
    misses, size = _misses(moments, degree)
    good = [count for count, miss in enumerate(misses, start=1) if miss <= _MISS * size]
    return good, len(misses)


def _misses(moments: Sequence[Moment], degree: int) -> tuple[list[float], float]:
    """Computes errors of coordinate motions extrapolated by polynomials, and the largest motion."""
    *past, new = moments
    misses = []
    for count in range(1, min(degree + 1, len(past)) + 1):
        nodes = np.array([m.t for m in past[-count:]]) - new.t
        powers = np.vander(nodes / np.abs(nodes).max(), increasing=True)
        weights = np.linalg.solve(powers.T, np.eye(count)[0])
        parts = [w * _joined(m) for w, m in zip(weights, past[-count:], strict=True)]
        misses.append(float(np.linalg.norm(np.sum(parts, axis=0) - _joined(new))))
    return misses, max(float(np.linalg.norm(_joined(m))) for m in moments)


def _joined(moment: Moment) -> np.ndarray:
    return np.column_stack([moment.sigma, moment.beta])


def _polynomial(t: float, dt: float, past: Sequence[Moment]) -> list[Any]:
    """Fits a polynomial in time to the motions of a coordinate path; returns its coefficients."""
    values = np.stack([dt * _joined(m) for m in past])
    nodes = np.array([(m.t - t) / dt for m in past])
    powers = np.vander(nodes, increasing=True)
    return list(np.linalg.solve(powers, values.reshape(len(past), -1)).reshape(values.shape))


def _horner(coefficients: Sequence[Any], x: float) -> Any:
    total = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = c + x * total
    return total
