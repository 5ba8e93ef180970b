"""Errors of the means and covariances of a density in a run, by the equations of its moments.

Of u_t = −∇·(f u) + ∂_i∂_j(D_ij u) the mean and the second moments change at the rates E[f] and
E[x f + f x + 2D]. Time stepping follows the semi-discrete equation, which has other rates: the grid
does not differentiate what its highest modes, or the jump of a coefficient between the ends of an
axis, make of the solution. Estimates of a time step do not see that, nor does the density much,
whose norm weighs what is far out as little as what is near.

* Affine f, constant D: the equations of the moments are closed. Those at the end are compared with
  the exact flow of those at the start: the difference is the error, whatever has caused it, the
  grid, truncation or the steps. With constant steps, whose length is given, it is not judged.
* Else the difference of both rates, at the same u, is summed over time: what the grid adds. It
  comes in at the ends of the box, where the highest modes weigh most, and is damped as the drift
  carries it: by the squared distance from the mean, over that at the beginning, of points
  that follow the drift from the ends of an axis. This is an estimate, which may be off by a factor
  of a few: it is told from three times the error allowed on.

Source: ours.
"""

import zlib
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._arguments import or_zero
from tensorjax.pde._discretization import variable_coefficients as multipliers
from tensorjax.pde._discretization.affine_operators import Coefficients
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.initial_states import Gaussian, Mixture
from tensorjax.pde._integration.error_estimates import advised
from tensorjax.pde._integration.initial_checks import is_density
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._problems.fokker_planck import FokkerPlanck
from tensorjax.pde._stepping.low_moments import MOST_AXES, Moments, functionals, standardisation
from tensorjax.pde._stepping.right_side import Clock, Rates, right_side

# Smaller errors are not told: those that the tails of a Gaussian make which a box of six standard
# deviations cuts.
_LEAST_ERROR = 1e-7
# What the grid adds is looked at after every 4th step, for a look costs a fifth of one. So many
# looks are kept one by one; of those before them only the sum is.
_EVERY, _KEPT = 4, 64
# Points follow the drift in steps that take this share of their distance from the mean, so many.
_FOLLOWED, _MOST = 0.2, 200
# What the grid adds is known within a factor of about this, for where it comes in is a guess: less
# than so many times the error allowed is not told (measured on an oscillator: ten times too large).
_ROOM = 3
# Points drawn at either end of an axis.
_ON_A_FACE = 16
# Shares of a step at which what comes in within it is damped.
_WITHIN = (0.05, 0.2, 0.4, 0.6, 0.8)


class _Seen(NamedTuple):
    """Standardised moments of a density, whose errors are judged: mass, means and second ones."""

    at: Moments
    center: np.ndarray
    scale: np.ndarray
    mass: float
    mean: np.ndarray
    second: np.ndarray


class MomentEquations:
    """Equations of a PDE's means and covariances, by which the moment errors of a run are judged.

    Args:
      constant_steps: whether the length of the steps is given, and not their error.
      problem: of the run. Judged are densities of constant noise, in boxes without walls and
        half-lines, on the axes that are not periodic, in at most ten dimensions; see ``axes``,
        which else is empty.
    """

    def __init__(self, problem: Any, constant_steps: bool = False):
        self.problem = problem
        self.axes = _judged(problem)
        linear = problem
        if isinstance(problem, FokkerPlanck):
            linear = problem._linear() if problem._affine else None
        self._linear = linear
        if constant_steps and linear is not None:
            self.axes = []
        self._last: tuple[Any, np.ndarray | None] = (None, None)
        # Numbers below zero mark rows of moments; the same marks are of the same equation.
        self._mark = 0.0
        if self.axes and linear is not None:
            parts = linear.matrix, linear.diffusion, linear.offset
            known = b"".join(np.asarray(0.0 if p is None else p).tobytes() for p in parts)
            self._mark = -1.0 - zlib.crc32(known)

    @property
    def exact(self) -> bool:
        """Whether the errors of the moments are those of a run, and not those of the grid alone."""
        return bool(self.axes) and self._linear is not None

    def begin(self, cores: Cores, map: AffineMap, t: float, errors: Any, fresh: bool) -> Any:
        """Begins a run with the errors of the moments of its first state; returns these, or None.

        Args:
          cores: of v at the beginning.
          map: its coordinates.
          t: its time.
          errors: those that a saved state has, see `after`; or None.
          fresh: whether v is the initial state of the problem, whose moments are known.
        """
        found = self._moments(cores, map) if self.axes else None
        if found is None:
            return None
        same = errors is not None and len(errors[0]) == 2 + found.size
        if same and min(float(np.asarray(errors)[0, 1]), 0.0) == self._mark:
            return errors
        start, known = self.problem.start, found
        if fresh and isinstance(start, Gaussian | Mixture):
            _, mean, covariance = (np.asarray(m) for m in start.moments())
            known = np.column_stack([mean[self.axes], covariance[np.ix_(self.axes, self.axes)]])
        return _rows(t, self._mark, known if self.exact else found - known)

    def after(
        self, cores: Cores, map: AffineMap, rates: Clock, t: float, steps: int,
        errors: np.ndarray | None,
    ) -> np.ndarray | None:  # fmt: skip
        """Adds what the last time steps have brought to the errors of the moments.

        Args:
          cores: of v after a step.
          map: its coordinates.
          rates: of the step, by the share of it.
          t: time at its end.
          steps: number of steps so far.
          errors: so far, or None: rows of a time, the time since the row before, and the errors
            (f, 1 + f) that have come in within it, of the physical means and covariances of f axes.
            Where the equations are closed, one row of a time, a mark of the equation, and the
            moments themselves.
        """
        if not self.axes or self.exact or steps % _EVERY:
            return errors
        return self._looked(cores, map, rates(1.0), t, errors)

    def now(self, cores: Cores, map: AffineMap, t: float, errors: Any) -> Any:
        """Returns the errors of the moments of a state, up to its time; None if not judged.

        They are for `told` only, and no part of the memory of a run: what is said of its end does
        not depend on how often it is looked at in between.

        Args:
          cores: of v.
          map: its coordinates.
          t: its time.
          errors: see `after`.
        """
        if not self.axes or self.exact or errors is None or not t > errors[-1, 0]:
            return errors
        try:
            rates = Rates(self.problem.box, right_side(self.problem, map, t))
            return self._looked(cores, map, rates, t, errors)
        except Exception:  # of a function of the user; the run has ended, and is not to be lost
            return errors

    def _looked(
        self, cores: Cores, map: AffineMap, rates: Rates, t: float, errors: Any
    ) -> np.ndarray:
        """Adds the moment errors that the grid has brought since the last look."""
        none = np.zeros((len(self.axes), 1 + len(self.axes)))
        rows = _rows(t, 0.0, none) if errors is None else errors
        dt = t - rows[-1, 0]
        found = self._defect(cores, map, rates, t)
        return _appended(rows, _rows(t, dt, none if found is None else dt * found))

    def _flowed(self, dt: float, m: np.ndarray) -> np.ndarray:
        """Carries errors of means and covariances, (f, 1 + f), by a linear equation."""
        assert self._linear is not None
        flow, pick = self._linear.flow(dt), np.ix_(self.axes, self.axes)
        f = flow.matrix[pick]
        out = np.column_stack([f @ m[:, 0], f @ m[:, 1:] @ f.T])
        return out + np.column_stack([flow.shift[self.axes], flow.noise[pick]])

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
        found = self._moments(cores, map) if self.axes else None
        if found is None or errors is None:
            return ""
        width = np.sqrt(np.diag(found[:, 1:]))
        total = self._left(errors, found, map, t)
        mean, spread = share * total[:, 0] / width, share * total[:, 1:] / np.outer(width, width)
        sizes = np.abs(np.column_stack([mean, spread]))
        if not sizes.max() > max(allowed if self.exact else _ROOM * allowed, _LEAST_ERROR):
            return ""
        name = self._name(*np.unravel_index(int(np.argmax(sizes)), sizes.shape))
        asked = f"by the equations of the moments, for accuracy = {allowed:.1g}"
        more = advised(cores, self.problem.box, not self.exact, sizes.max(), allowed)
        if self.exact:
            return (
                f"at t = {t:g} the {name} is off by about {sizes.max():.1g} of its scale, {asked}: "
                f"take {more}, or a smaller tol, or a larger accuracy"
            )
        return (
            f"at t = {t:g} the points have changed the {name} by about {sizes.max():.1g} of its "
            f"scale, {asked}: take {more}, or a larger tol or accuracy"
        )

    def _name(self, row: Any, column: Any) -> str:
        """Names the moment in a row and column of the array of moment errors."""
        j, k = int(row), int(column) - 1
        if k < 0:
            return f"mean along axis {self.axes[j]}"
        if j == k:
            return f"variance along axis {self.axes[j]}"
        return f"covariance of axis {self.axes[min(j, k)]} and axis {self.axes[max(j, k)]}"

    def _left(self, errors: np.ndarray, found: np.ndarray, map: AffineMap, t: float) -> np.ndarray:
        """Sums the moment errors of all times, less those that the drift has damped, (f, 1 + f)."""
        times, steps, parts = _unfolded(errors, len(self.axes))
        if self.exact:
            return found - self._flowed(t - float(times[0]), parts[0])
        factors = []
        for share in _WITHIN:
            kept = self._kept(t - times + share * steps, found, map, t)
            pairs = kept[:, :, None] * kept[:, None, :]
            factors.append(np.concatenate([kept[:, :, None], pairs], 2))
        return (np.abs(parts) * np.mean(factors, axis=0)).sum(0)

    def _kept(self, ages: np.ndarray, found: np.ndarray, map: AffineMap, t: float) -> np.ndarray:
        """Computes the share of a moment error by noise of some age that the drift keeps, (m, f).

        Of points that follow the drift from both ends of an axis, the root mean square, weighed by
        the drift across the ends, whose jump there makes the noise; 1 at most. They stay in the
        box: outside of it the drift need not be defined. All is kept if it fails.
        """
        box, axes = self.problem.box, self.axes
        mean, width = np.zeros(box.dim), np.zeros(box.dim)
        mean[axes], width[axes] = found[:, 0], 1 / np.sqrt(np.diag(found[:, 1:]))
        x = _inside(box, map, np.asarray(map.inverse(_on_faces(box, axes))))
        kept = np.ones((len(axes), len(ages)))
        try:
            with np.errstate(all="ignore"):
                rate = np.asarray(self.problem.velocity(x, t)) @ np.asarray(map.matrix).T
                reached, shares = self._followed(x, mean, width, map, t, float(ages.max()))
        except Exception:  # of a function of the user; the run has ended, and is not to be lost
            return kept.T
        squares = np.array([np.interp(ages, *r) for r in zip(reached, shares, strict=True)]) ** 2
        faces = zip(axes, np.split(rate, len(axes)), np.split(squares, len(axes)), strict=True)
        for i, (k, speeds, of_points) in enumerate(faces):
            weights = np.nan_to_num(np.abs(speeds[:, k]))
            if weights.any():
                kept[i] = np.sqrt(np.average(of_points, axis=0, weights=weights))
        return kept.T

    def _followed(
        self, x: np.ndarray, mean: np.ndarray, width: np.ndarray, map: AffineMap, t: float,
        end: float,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Follows the drift from points x in the box; returns ages and shares kept, (p, steps)."""
        box = self.problem.box
        far = np.linalg.norm((x - mean) * width, axis=1)
        first, age, rows = far, np.zeros(len(x)), [(np.zeros(len(x)), np.ones(len(x)))]
        for _ in range(_MOST):
            rate = self.problem.velocity(x, t)
            speed = np.linalg.norm(rate * width, axis=1)
            dt = np.where(speed > 0, _FOLLOWED * far / speed, np.inf)
            dt = np.minimum(dt, np.maximum(end - age, 0))
            middle = self.problem.velocity(_inside(box, map, x + dt[:, None] / 2 * rate), t)
            x, age = _inside(box, map, x + dt[:, None] * middle), age + dt
            far = np.linalg.norm((x - mean) * width, axis=1)
            rows.append((age, np.minimum(np.nan_to_num(far / first, nan=1.0), 1)))
            if not (age < end).any():
                break
        reached, kept = (np.array(r).T for r in zip(*rows, strict=True))
        return reached, kept

    def _moments(self, cores: Cores, map: AffineMap) -> np.ndarray | None:
        """Computes a train's means and covariances for moment errors, (f, 1 + f); or None."""
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
        """Computes the rates of moment errors that the grid brings, (f, 1 + f)."""
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
        """Computes the exact rates of the moments, with which those of a run are compared."""
        box, axes = self.problem.box, self.axes
        scale = seen.scale[axes]
        mass, mean, second = _affine(seen, axes, rates.affine)
        one = np.eye(box.dim, dtype=int)[axes]
        powers = np.concatenate([np.zeros((1, box.dim), int), one])
        at = functionals(box, powers, seen.center, seen.scale, plain=True)
        for m, direction in self.problem.field.pieces(box, map, t):  # −a·∇(m v), of a drift m a
            a = np.asarray(direction)[axes] / scale
            p = at.of_train(multipliers.times(m, cores))
            mean = mean + a * p[0]
            second = second + np.outer(a, p[1:]) + np.outer(p[1:], a)
        return mass, mean, second


def _on_faces(box: Box, axes: list[int]) -> np.ndarray:
    """Draws points of a grid at the ends of each axis along which moment errors are judged."""
    rng = np.random.default_rng(0)
    low, high = (np.array([f(a.points) for a in box.axes]) for f in (np.min, np.max))
    out = rng.uniform(low, high, (len(axes), 2, _ON_A_FACE, box.dim))
    for i, k in enumerate(axes):
        out[i, 0, :, k], out[i, 1, :, k] = low[k], high[k]
    return out.reshape(-1, box.dim)


def _inside(box: Box, map: AffineMap, x: np.ndarray) -> np.ndarray:
    """Moves points (m, d) outside of a grid to its ends, or to their images on periodic axes."""
    y = np.asarray(map.forward(x))
    moved = y.copy()
    for k, axis in enumerate(box.axes):
        if axis.kind == "periodic":
            moved[:, k] = axis.low + (y[:, k] - axis.low) % (axis.high - axis.low)
        else:
            moved[:, k] = np.clip(y[:, k], axis.points.min(), axis.points.max())
    out = (moved != y).any(1)
    return np.where(out[:, None], np.asarray(map.inverse(moved)), x)


def _rows(t: float, dt: float, errors: np.ndarray) -> np.ndarray:
    """Returns the errors of moments that have come in by a time, within a step, as one row."""
    return np.concatenate([[t, dt], errors.ravel()])[None]


def _unfolded(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Splits rows of errors into times (m,), steps (m,) and errors (m, f, 1 + f)."""
    return rows[:, 0], rows[:, 1], rows[:, 2:].reshape(-1, count, 1 + count)


def _appended(rows: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Appends a row of errors; the two oldest become one where there are too many."""
    rows = np.concatenate([rows, row])
    if len(rows) <= _KEPT:
        return rows
    oldest = np.concatenate([rows[1, :2], np.abs(rows[0, 2:]) + np.abs(rows[1, 2:])])
    return np.concatenate([oldest[None], rows[2:]])


def _judged(problem: Any) -> list[int]:
    """Returns the axes on which the moments of a PDE's density are judged; none if it is none."""
    varies = isinstance(problem, FokkerPlanck) and problem.noise.variable
    if varies or not is_density(problem):
        # Diffusion that grows outwards damps at once what the grid adds there; drift does not.
        return []
    axes = problem.box.axes
    bounded = any(a.kind in ("log", "laguerre") or a.walls is not None for a in axes)
    out = [k for k, a in enumerate(axes) if a.kind != "periodic"]
    # What truncation does not restore is not judged either.
    return [] if bounded or len(out) > MOST_AXES else out


def _seen(cores: Cores, box: Box, axes: list[int]) -> _Seen | None:
    """Computes standardised moments, whose errors are judged; None without positive variances."""
    # The same bits for the cores of a saved state, whose memory has another order.
    cores = [np.ascontiguousarray(c) for c in cores]
    found = standardisation(cores, box, axes)
    if found is None:
        return None
    one = np.eye(box.dim, dtype=int)[axes]
    first, later = np.triu_indices(len(axes))
    powers = np.concatenate([np.zeros((1, box.dim), int), one, one[first] + one[later]])
    at = functionals(box, powers, *found, plain=True)
    mass, mean, second = _unpacked(at.of_train(cores), len(axes))
    return _Seen(at, *found, mass, mean / mass, second / mass)


def _unpacked(values: Any, count: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Splits values of moments into those of mass, (f,) means and (f, f) second moments."""
    second = np.zeros((count, count))
    first, later = np.triu_indices(count)
    second[first, later] = second[later, first] = values[1 + count :]
    return float(values[0]), np.asarray(values[1 : 1 + count]), second


def _affine(
    seen: _Seen, axes: list[int], affine: Coefficients | None
) -> tuple[float, np.ndarray, np.ndarray]:
    """Computes exact rates of moments, for their errors, under (M y + b)·∇v + S:∇∇v + c v."""
    d = len(seen.center)
    given = Coefficients() if affine is None else affine
    b = np.asarray(or_zero(given.shift, d))
    m, s = (np.asarray(or_zero(p, d, d)) for p in (given.matrix, given.diffusion))
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
