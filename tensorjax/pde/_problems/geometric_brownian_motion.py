"""Geometric Brownian motion, of one or several coordinates, on half-lines."""

import dataclasses
from typing import Any

import numpy as np

from tensorjax._typing import ArrayLike, KeyOrGenerator
from tensorjax.pde._arguments import coefficient, generator_of, positive
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.initial_states import Start
from tensorjax.pde._function_trains.known_densities import Lognormal
from tensorjax.pde._problems.diffusion import proportional
from tensorjax.pde._problems.ready_made import AGE, ReadyMade, check_own, log_axis


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class GeometricBrownianMotion(ReadyMade):
    """Geometric Brownian motion dx_i = μ_i x_i dt + σ_i x_i dW_i (Itô), in one or more dimensions.

    The density is lognormal. Without ``start`` it is that of paths which left ``x0`` a time ``age``
    ago; without ``box`` the axes are logarithmic, hold the density up to a time ``horizon``, and do
    not move.

    Attributes:
      rate: μ, one number or (d,).
      volatility: σ, one number or (d,).
      x0: point that the paths have left, one number or (d,), positive.
      correlation: of the dW_i, (d, d); the identity if None.
      age: of the start; a quarter of the horizon if None.
      horizon: time that the box is made for.
      start: the initial state, u(0).
      box: `Box` of the coordinates y.

    Raises:
      ValueError: parameters out of range, or whose shapes differ; a start without a box.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> price = pde.GeometricBrownianMotion(rate=0.1, volatility=0.3)
      >>> solution = pde.integrate(price, t1=1.0)
      >>> x = np.array([[0.8], [1.0], [1.5]])
      >>> u = pde.evaluate(solution.final.v, solution.final.map, price.box, x)
      >>> bool(np.abs(u - price.exact(1.0, x)).max() < 1e-4)
      True

    Source: F. Black, M. Scholes, "The pricing of options and corporate liabilities", J. Polit.
    Econ. 81 (1973).
    """

    rate: Any
    volatility: Any
    x0: Any
    correlation: Any
    age: float
    horizon: float

    def __init__(
        self,
        rate: ArrayLike = 0.05,
        volatility: ArrayLike = 0.2,
        x0: ArrayLike = 1.0,
        *,
        correlation: ArrayLike | None = None,
        age: float | None = None,
        horizon: float = 1.0,
        start: Start | None = None,
        box: Box | None = None,
    ):
        rates, sigma, point, ties = _shaped(rate, volatility, x0, correlation)
        age = AGE * horizon if age is None else age
        positive(age=age, horizon=horizon)
        growth, spread = rates - sigma**2 / 2, sigma[:, None] * ties * sigma
        first = np.log(point) + growth * age
        if box is None:
            check_own(start)
            wide = sigma * np.sqrt(age + horizon)
            last = first + growth * horizon
            ends = np.minimum(first, last), np.maximum(first, last), sigma * np.sqrt(age), wide
            box = Box(tuple(log_axis(*each) for each in zip(*ends, strict=True)))
        start = Lognormal(first, spread * age) if start is None else start
        noise = proportional(spread / 2)
        super().__init__(None, noise, start, box, matrix=np.diag(rates))
        self._set(
            rate=rate, volatility=volatility, x0=x0, correlation=correlation, age=age,
            horizon=horizon,
        )  # fmt: skip

    def _moved(self, t: float) -> Lognormal | None:
        """Returns geometric Brownian motion's lognormal density at time t; else None."""
        if not isinstance(self.start, Lognormal) or self.box.walled:
            return None
        rates, sigma, _, ties = _shaped(self.rate, self.volatility, self.x0, self.correlation)
        spread = sigma[:, None] * ties * sigma
        mean = self.start.mean + (rates - sigma**2 / 2) * t
        return Lognormal(mean, self.start.covariance + spread * t)

    def exact(self, t: float, x: ArrayLike) -> np.ndarray | None:
        """Evaluates the exact lognormal density of geometric Brownian motion; or None."""
        found = self._moved(t)
        return None if found is None else found.values(np.asarray(x, np.float64))

    def moments(self, t: float) -> tuple[float, np.ndarray, np.ndarray] | None:
        """Returns mass, mean and covariance of geometric Brownian motion; or None."""
        found = self._moved(t)
        return None if found is None else found.moments()

    def sample(self, key: KeyOrGenerator, t: float, count: int) -> np.ndarray:
        """Draws points (count, d) of geometric Brownian motion at time t.

        Args:
          key: `jax.random.key`, or a NumPy generator.
          t: time.
          count: number of points.

        Returns:
          Points (count, d).

        Raises:
          ValueError: a start that is not lognormal.
        """
        found = self._moved(t)
        if found is None:
            return super().sample(key, t, count)
        return found.sample(generator_of(key), count)


def _shaped(
    rate: Any, volatility: Any, x0: Any, correlation: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Expands parameters of a geometric Brownian motion to arrays; ValueError if not valid."""
    given = {"rate": rate, "volatility": volatility, "x0": x0}
    sizes = [len(np.asarray(v)) for v in given.values() if np.ndim(v) == 1]
    d = max(sizes, default=1) if correlation is None else len(np.atleast_2d(correlation))
    out = []
    for name, value in given.items():
        whole = np.full(d, float(np.asarray(value))) if np.ndim(value) == 0 else value
        out.append(coefficient(name, whole, (d,)))
    ties = coefficient("correlation", np.eye(d) if correlation is None else correlation, (d, d))
    for name, values in zip(("volatility", "x0"), out[1:], strict=True):
        if not (values > 0).all():
            raise ValueError(f"{name}: expected positive numbers, got {given[name]}")
    low = np.linalg.eigvalsh(ties)[0] if np.allclose(ties, ties.T) else -1.0
    if not (low > 0 and np.allclose(np.diag(ties), 1)):
        raise ValueError(
            "correlation: expected a symmetric positive definite matrix with ones on its diagonal"
        )
    return out[0], out[1], out[2], ties
