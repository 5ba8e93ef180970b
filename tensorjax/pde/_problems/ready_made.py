"""Base of ready-made Fokker–Planck problems, and boxes that hold what their paths visit."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorjax._typing import ArrayLike, KeyOrGenerator
from tensorjax.pde._arguments import generator_of
from tensorjax.pde._discretization.axis import Axis
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.initial_states import Gaussian
from tensorjax.pde._problems.fokker_planck import FokkerPlanck

# Paths that are simulated for a box, their steps in one time of the fastest rate, and in all, and
# by how many times the distance from the outermost path to the 1 % quantile the box is larger.
_PATHS, _STEPS, _LONGEST, _BEYOND = 1000, 10, 2000, 1.5
# Points per axis, at least and at most.
_LEAST_POINTS, _MOST_POINTS = 24, 256

# Half width of an axis over the largest standard deviation there, at 1e-7 of the top, and points
# per standard deviation of the start; an axis has so many points at least.
HALF_WIDTH, _POINTS, _AXIS = 5.7, 2.5, 32
# Age of the start of a process on half-lines, over the horizon.
AGE = 0.25

Velocity = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class ReadyMade(FokkerPlanck):
    """Base class of ready-made SDE models as Fokker–Planck equations with physical parameters."""

    drift: Any = dataclasses.field(init=False)
    matrix: Any = dataclasses.field(init=False)
    diffusion: Any = dataclasses.field(init=False)
    offset: Any = dataclasses.field(init=False)
    interpretation: Any = dataclasses.field(init=False)
    cross_tol: float = dataclasses.field(init=False)

    def _later(self, t: float) -> Any:
        """Returns a ready-made process's density at time t, without walls; None if unknown."""
        return None

    def _at_rest(self, x: np.ndarray) -> np.ndarray | None:
        """Evaluates a ready-made process's stationary density, without walls; None if unknown."""
        return None

    def _known(self, t: float) -> Any:
        """Returns the density of a ready-made process at time t in closed form; None if unknown."""
        return None if self.box.walled else self._later(t)

    def stationary_density(self, x: ArrayLike) -> np.ndarray | None:
        """Evaluates the stationary density of a ready-made process; None if it is not known."""
        return None if self.box.walled else self._at_rest(np.asarray(x, np.float64))

    def exact(self, t: float, x: ArrayLike) -> np.ndarray | None:
        """Evaluates the exact density of a ready-made process; None if it is not known."""
        found = self._known(t)
        return super().exact(t, x) if found is None else found.values(np.asarray(x, np.float64))

    def moments(self, t: float) -> tuple[float, np.ndarray, np.ndarray] | None:
        """Returns mass, mean and covariance of a ready-made process; None if not known."""
        found = self._known(t)
        return super().moments(t) if found is None else found.moments()

    def sample(self, key: KeyOrGenerator, t: float, count: int) -> np.ndarray:
        """Draws points (count, d) of a ready-made process at time t, if its density is known."""
        found = self._known(t)
        if found is None:
            return super().sample(key, t, count)
        return found.sample(generator_of(key), count)


def visited(
    velocity: Velocity, diffusion: np.ndarray, start: Gaussian, time: float
) -> tuple[np.ndarray, np.ndarray]:
    """Simulates paths of a ready-made SDE to estimate the box (low, high) that they visit.

    Args:
      velocity: drift of points (m, d).
      diffusion: D, the diagonal (d,).
      start: of the paths.
      time: to which they are followed.
    """
    rng = np.random.default_rng(0)
    x = start.sample(rng, _PATHS)
    low, high = _reached(x)
    t = 0.0
    while t < time:
        far = x[np.abs(x - x.mean(0)).argmax(0)]
        rate = max(float(np.linalg.norm(_jacobian(velocity, p), 2)) for p in far)
        h = min(max(1 / (_STEPS * max(rate, 1 / time)), time / _LONGEST), time - t)
        kick = np.sqrt(2 * diffusion * h) * rng.standard_normal(x.shape)
        first = velocity(x)
        with np.errstate(over="ignore", invalid="ignore"):
            x = x + h / 2 * (first + velocity(x + h * first + kick)) + kick
        if not np.isfinite(x).all():
            raise ValueError(
                "parameters: expected paths that stay finite, got Inf; give a box of your own"
            )
        ends = _reached(x)
        low, high = np.minimum(low, ends[0]), np.maximum(high, ends[1])
        t += h
    return low, high


def narrowest(
    velocity: Velocity, diffusion: np.ndarray, start: Gaussian, time: float
) -> np.ndarray:
    """Estimates the smallest standard deviations (d,) of a ready-made SDE's density.

    Those of every coordinate at given others. Arguments are those of `visited`.
    """
    x, covariance = start.mean[None], start.covariance
    width, t = conditional_deviations(covariance), 0.0
    while t < time:
        slope = _jacobian(velocity, x[0])
        rate = max(float(np.linalg.norm(slope, 2)), 1 / time)
        h = min(max(1 / (_STEPS * rate), time / _LONGEST), time - t)
        moved = np.eye(len(slope)) + h * slope + h**2 / 2 * slope @ slope
        covariance = moved @ covariance @ moved.T + 2 * h * np.diag(diffusion)
        first = velocity(x)
        x = x + h / 2 * (first + velocity(x + h * first))
        if not (np.isfinite(covariance).all() and np.linalg.cond(covariance) < 1e12):
            break
        width = np.minimum(width, conditional_deviations(covariance))
        t += h
    return width


def _reached(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    outer = np.quantile(x, [0.0, 0.01, 0.99, 1.0], axis=0)
    return outer[0] - _BEYOND * (outer[1] - outer[0]), outer[3] + _BEYOND * (outer[3] - outer[2])


def conditional_deviations(covariance: np.ndarray) -> np.ndarray:
    """Computes conditional standard deviations (d,) of a Gaussian, for ready-made boxes."""
    return 1 / np.sqrt(np.diag(np.linalg.inv(covariance)))


def _jacobian(velocity: Velocity, x: np.ndarray) -> np.ndarray:
    step = 1e-5 * np.eye(len(x))
    return ((velocity(x + step) - velocity(x - step)) / 2e-5).T


def fourier_box(low: Any, high: Any, width: Any, points: float) -> Box:
    """Builds a box for a ready-made problem: Fourier axes, ``points`` per ``width``.

    Their numbers are odd: of an even one ∂ of the highest mode is zero, and along a coordinate
    without noise an operator may have it for a second stationary density.
    """
    axes = []
    for a, b, w in zip(low, high, width, strict=True):
        n = int(np.clip(np.ceil(points * (b - a) / w), _LEAST_POINTS, _MOST_POINTS))
        axes.append(Axis("fourier", n + 1 - n % 2, float(a), float(b)))
    return Box(tuple(axes))


def check_own(start: Any) -> None:
    """Raises ValueError if a ready-made problem is given an initial state but no grid box."""
    if start is not None:
        raise ValueError("box: expected a pde.Box with a start of your own, got None")


def even_axis(low: float, high: float, narrow: float) -> Axis:
    """Builds a Fourier axis of a ready-made problem, for standard deviations ``narrow``."""
    n = max(_AXIS, int(np.ceil(_POINTS * (high - low) / narrow)))
    return Axis("fourier", n + n % 2, float(low), float(high))


def log_axis(low: float, high: float, narrow: float, wide: float) -> Axis:
    """Builds a logarithmic axis of a ready-made problem from means and deviations of log x."""
    # x² times the density, for the covariance, has its top 2 wide² further out.
    flat = even_axis(low - HALF_WIDTH * wide, high + HALF_WIDTH * wide + 2 * wide**2, narrow)
    return Axis("log", flat.n, float(np.exp(flat.low)), float(np.exp(flat.high)))
