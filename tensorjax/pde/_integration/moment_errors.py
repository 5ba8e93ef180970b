"""Errors of the means and covariances of a density in a run, by the equations of its moments.

Of u_t = −∇·(f u) + ∂_i∂_j(D_ij u) the mean and the second moments change at the rates E[f] and
E[x f + f x + 2D]. Time stepping follows the semi-discrete equation, which has other rates: the grid
does not differentiate what its highest modes, or the jump of a coefficient between the ends of an
axis, make of the solution. Estimates of a time step do not see that, nor does the density much,
whose norm weighs what is far out as little as what is near.

* Affine f, constant D: the equations of the moments are closed. After every step they are compared
  with the exact flow of those before it, and errors so far are carried by that flow: what is left
  at the end is the error, whatever has caused it, the grid, truncation or the steps.
* Else the difference of both rates, at the same u, is summed over the steps: what the grid adds.
  What the drift damps of it later is not taken off, so that the sum is an estimate from above.

Source: ours.
"""

from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.contractions import times_mode
from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._discretization import variable_coefficients as multipliers
from tensorjax.pde._discretization.affine_operators import Coefficients
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._initial_states.initial_states import Gaussian, Mixture
from tensorjax.pde._integration.initial_checks import is_density
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._problems.fokker_planck import FokkerPlanck
from tensorjax.pde._stepping.low_moments import Moments, functionals
from tensorjax.pde._stepping.right_side import Rates

# Truncation restores covariances in so many dimensions, and variances in so many; see
# `tensorjax.pde._stepping.low_moments`. What it does not restore is not judged either.
_ALL, _ALONG = 4, 10


class _Seen(NamedTuple):
    """Mass, means and second moments of a density in coordinates t = (y − center)/scale."""

    at: Moments
    center: np.ndarray
    scale: np.ndarray
    mass: float
    mean: np.ndarray
    second: np.ndarray


class MomentEquations:
    """Equations of the means and covariances of a PDE's density, to judge those of a run.

    Args:
      problem: of the run. Judged are densities in boxes without walls and half-lines, on the axes
        that are not periodic, in at most ten dimensions; see ``axes``, which else is empty.
    """

    def __init__(self, problem: Any):
        self.problem = problem
        self.axes = _judged(problem)
        nonlinear = isinstance(problem, FokkerPlanck) and not problem._affine
        self._linear = problem._linear() if isinstance(problem, FokkerPlanck) else problem
        self._linear = None if nonlinear else self._linear
        self._last: tuple[Any, Any] = (None, None)

    @property
    def exact(self) -> bool:
        """Whether the equations of the moments are closed, so that errors are those of a run."""
        return bool(self.axes) and self._linear is not None

    def at_start(self, cores: Cores, map: AffineMap) -> np.ndarray | None:
        """Computes the errors that the grid leaves in the moments of a problem's initial state."""
        found = self._moments(cores, map)
        start = self.problem.start
        if found is None or not isinstance(start, Gaussian | Mixture):
            return None
        _, mean, covariance = (np.asarray(m) for m in start.moments())
        known = np.column_stack([mean[self.axes], covariance[np.ix_(self.axes, self.axes)]])
        return found - known

    def after(
        self,
        before: tuple[Cores, AffineMap],
        after: tuple[Cores, AffineMap],
        rates: Rates | None,
        t: float,
        dt: float,
        errors: np.ndarray | None,
    ) -> np.ndarray | None:
        """Adds what a time step has brought to the errors of the moments.

        Args:
          before: cores and map at the beginning of the step.
          after: at its end.
          rates: at its end, not needed where the equations are closed.
          t: time at the end.
          dt: the step.
          errors: so far, (f, 1 + f): of the means and covariances of f axes, physical; or None.
        """
        if not self.axes:
            return None
        errors = np.zeros((len(self.axes), 1 + len(self.axes))) if errors is None else errors
        if self._linear is None:
            assert rates is not None
            found = self._defect(*after, rates, t)
            return errors if found is None else errors + dt * found
        old, new = self._moments(*before), self._moments(*after)
        if old is None or new is None:
            return errors
        flow = self._linear.flow(dt)
        f = flow.matrix[np.ix_(self.axes, self.axes)]

        def carried(m: np.ndarray) -> np.ndarray:
            return np.column_stack([f @ m[:, 0], f @ m[:, 1:] @ f.T])

        noise = flow.noise[np.ix_(self.axes, self.axes)]
        exact = carried(old) + np.column_stack([flow.shift[self.axes], noise])
        return new - exact + carried(errors)

    def told(
        self, errors: Any, cores: Cores, map: AffineMap, t: float, allowed: float, share: float
    ) -> str:
        """Explains the errors of the moments of a run, if they are larger than allowed; else "".

        Args:
          errors: see `after`, or None.
          cores: of v at the end.
          map: its coordinates.
          t: its time.
          allowed: largest error of a success, in units of the standard deviations.
          share: of the mass in ∫ |u| dx, where masses of either sign cancel.
        """
        found = self._moments(cores, map) if self.axes and errors is not None else None
        if found is None:
            return ""
        width = np.sqrt(np.diag(found[:, 1:]))
        mean, spread = share * errors[:, 0] / width, share * errors[:, 1:] / np.outer(width, width)
        if len(width) > _ALL:
            spread = np.diag(np.diag(spread))
        sizes = np.abs(np.column_stack([mean, spread]))
        if not sizes.max() > allowed:
            return ""
        j, k = np.unravel_index(int(np.argmax(sizes)), sizes.shape)
        name = f"mean along axis {self.axes[j]}"
        if k == j + 1:
            name = f"variance along axis {self.axes[j]}"
        elif k:
            name = (
                f"covariance of axis {self.axes[min(j, k - 1)]} and axis {self.axes[max(j, k - 1)]}"
            )
        if self.exact:
            return (
                f"at t = {t:g} the {name} is off by {sizes.max():.1g} of its scale, by the "
                f"equations of the moments, for accuracy = {allowed:.1g}: take a smaller tol or "
                "more points, or a larger accuracy"
            )
        return (
            f"at t = {t:g} the points have changed the {name} by up to {sizes.max():.1g} of its "
            f"scale, by the equations of the moments, for accuracy = {allowed:.1g}: take more "
            "points, or a larger tol or accuracy"
        )

    def _moments(self, cores: Cores, map: AffineMap) -> np.ndarray | None:
        """Computes physical means and covariances of a train, (f, 1 + f); None if no density."""
        if self._last[0] is cores:
            return self._last[1]
        seen = _seen(cores, self.problem.box, self.axes)
        found: np.ndarray | None = None
        if seen is not None:
            back = np.linalg.inv(np.asarray(map.matrix)[np.ix_(self.axes, self.axes)])
            mean = seen.center[self.axes] + seen.scale[self.axes] * seen.mean
            scale = back * seen.scale[self.axes]
            spread = seen.second - np.outer(seen.mean, seen.mean)
            mean = back @ (mean - np.asarray(map.shift)[self.axes])
            found = np.column_stack([mean, scale @ spread @ scale.T])
        self._last = cores, found
        return found

    def _defect(self, cores: Cores, map: AffineMap, rates: Rates, t: float) -> np.ndarray | None:
        """Computes the rates that the grid adds to the physical moments, (f, 1 + f)."""
        box, axes = self.problem.box, self.axes
        seen = _seen(cores, box, axes)
        if seen is None:
            return None
        on_grid = _unpacked(sum(seen.at.of(r.whole) for r in rates.terms(cores, 0.1)), len(axes))
        mass, mean, second = (
            a - b for a, b in zip(on_grid, self._exact(seen, cores, map, rates, t), strict=True)
        )
        mean, second = mean - mass * seen.mean, second - mass * seen.second
        second = second - np.outer(seen.mean, mean) - np.outer(mean, seen.mean)
        back = np.linalg.inv(np.asarray(map.matrix)[np.ix_(axes, axes)]) * seen.scale[axes]
        return np.column_stack([back @ mean, back @ second @ back.T]) / seen.mass

    def _exact(
        self, seen: _Seen, cores: Cores, map: AffineMap, rates: Rates, t: float
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """Computes the exact rates of the moments in ``seen.at``, by parts."""
        box, axes, gamma = self.problem.box, self.axes, np.asarray(map.matrix)
        scale = seen.scale[axes]
        mass, mean, second = _affine(seen, axes, rates.affine)
        one = np.eye(box.dim, dtype=int)[axes]
        powers = np.concatenate([np.zeros((1, box.dim), int), one])
        at = functionals(box, powers, seen.center, seen.scale, plain=True)

        def moved(cores_of: Cores, direction: Any) -> None:
            """Adds the rates of −a·∇(m v): those of a drift m a."""
            nonlocal mean, second
            a = np.asarray(direction)[axes] / scale
            p = at.of_train(multipliers.times(cores_of, cores))
            mean = mean + a * p[0]
            second = second + np.outer(a, p[1:]) + np.outer(p[1:], a)

        noise = self.problem.noise
        for m, direction in self.problem.field.pieces(box, map, t):
            moved(m, direction)
        for m, matrix in noise.pieces(box, map, t) if noise.variable else ():
            tensor = gamma @ np.asarray(matrix) @ gamma.T
            part = (tensor + tensor.T)[np.ix_(axes, axes)] / np.outer(scale, scale)
            second = second + part * at.of_train(multipliers.times(m, cores))[0]
            for k, axis in enumerate(box.axes) if noise.share else ():
                slope = [times_mode(c, axis.slope) if i == k else c for i, c in enumerate(m)]
                moved(slope, noise.share * tensor[:, k])
        return mass, mean, second


def _judged(problem: Any) -> list[int]:
    """Returns the axes on which the moments of a PDE's density are judged; none if it is none."""
    axes = problem.box.axes
    bounded = any(a.kind in ("log", "laguerre") or a.walls is not None for a in axes)
    out = [k for k, a in enumerate(axes) if a.kind != "periodic"]
    return out if is_density(problem) and not bounded and len(out) <= _ALONG else []


def _seen(cores: Cores, box: Box, axes: list[int]) -> _Seen | None:
    """Computes standardised moments of a tensor train; None without positive mass and variances."""
    one = np.eye(box.dim, dtype=int)[axes]
    first, later = np.triu_indices(len(axes))
    zero = np.zeros((1, box.dim), int)
    center, scale = np.zeros(box.dim), np.ones(box.dim)
    raw = functionals(
        box, np.concatenate([zero, one, 2 * one]), center, scale, plain=True
    ).of_train(cores)
    with np.errstate(all="ignore"):
        mean, square = np.split(raw[1:] / raw[0], 2)
        center[axes], scale[axes] = mean, np.sqrt(square - mean**2)
    if not (raw[0] > 0 and np.isfinite(scale).all() and (scale > 0).all()):
        return None
    at = functionals(
        box, np.concatenate([zero, one, one[first] + one[later]]), center, scale, plain=True
    )
    mass, mean, second = _unpacked(at.of_train(cores), len(axes))
    return _Seen(at, center, scale, mass, mean / mass, second / mass)


def _unpacked(values: Any, count: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Splits values of functionals into those of the mass, (f,) means and (f, f) second moments."""
    second = np.zeros((count, count))
    first, later = np.triu_indices(count)
    second[first, later] = second[later, first] = values[1 + count :]
    return float(values[0]), np.asarray(values[1 : 1 + count]), second


def _affine(
    seen: _Seen, axes: list[int], affine: Coefficients | None
) -> tuple[float, np.ndarray, np.ndarray]:
    """Computes the rates of standardised moments under (M y + b)·∇v + S:∇∇v + c v, by parts."""
    d = len(seen.center)
    given = Coefficients() if affine is None else affine
    m = np.zeros((d, d)) if given.matrix is None else np.asarray(given.matrix)
    b = np.zeros(d) if given.shift is None else np.asarray(given.shift)
    s = np.zeros((d, d)) if given.diffusion is None else np.asarray(given.diffusion)
    growth = float(given.constant or 0.0) - float(np.trace(m))
    scale, mass = seen.scale[axes], seen.mass
    shift = (m @ seen.center + b)[axes] / scale
    turn = m[np.ix_(axes, axes)] * scale / scale[:, None]
    spread = (s + s.T)[np.ix_(axes, axes)] / np.outer(scale, scale)
    mean, second = mass * seen.mean, mass * seen.second
    moved = np.outer(shift, mean) + turn @ second
    return (
        growth * mass,
        growth * mean - shift * mass - turn @ mean,
        growth * second - moved - moved.T + spread * mass,
    )
