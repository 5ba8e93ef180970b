"""Processes of prices and rates: geometric Brownian motion, Cox–Ingersoll–Ross, Heston."""

import dataclasses
from typing import Any

import numpy as np
from scipy import linalg

from tensorjax._typing import ArrayLike
from tensorjax.pde._arguments import coefficient, finite, positive
from tensorjax.pde._discretization.axis import Axis
from tensorjax.pde._discretization.collocation_matrices import laguerre_zeros
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.initial_states import Start
from tensorjax.pde._function_trains.known_densities import (
    Independent,
    Lognormal,
    Normal,
    SquareRootTransition,
)
from tensorjax.pde._problems.diffusion import proportional
from tensorjax.pde._problems.drifts import Power
from tensorjax.pde._problems.ready_made import (
    AGE,
    HALF_WIDTH,
    ReadyMade,
    check_own,
    even_axis,
    log_axis,
)

# Points of a Laguerre axis, and the exponent 2κθ/σ² − 1 of its weight from which on the axis of a
# square-root process is logarithmic: its start is resolved by 64 functions up to about 100.
_LAGUERRE, _FAR = 64, 60.0


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

    def _later(self, t: float) -> Lognormal | None:
        if not isinstance(self.start, Lognormal):
            return None
        rates, sigma, _, ties = _shaped(self.rate, self.volatility, self.x0, self.correlation)
        spread = sigma[:, None] * ties * sigma
        mean = self.start.mean + (rates - sigma**2 / 2) * t
        return Lognormal(mean, self.start.covariance + spread * t)


def _shaped(
    rate: Any, volatility: Any, x0: Any, correlation: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Expands parameters of a price process to arrays; ValueError if not valid."""
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
            "correlation: expected a symmetric positive definite matrix with ones on its diagonal, "
            f"got {ties.tolist()}"
        )
    return out[0], out[1], out[2], ties


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class CIR(ReadyMade):
    """Cox–Ingersoll–Ross process of interest rates, dx = κ (θ − x) dt + σ √x dW (Itô).

    Its density is a noncentral χ² one, x^(2κθ/σ² − 1) near zero: 2κθ ≥ σ² (Feller) is required,
    for otherwise it has no bound there. Without ``start`` it is that of paths which left ``x0`` a
    time ``age`` ago; without ``box`` the axis is one of Laguerre functions, and does not move.

    Attributes:
      rate: κ.
      level: θ.
      volatility: σ.
      x0: point that the paths have left; θ if None.
      age: of the start; 1/2κ if None.
      start: the initial state, u(0).
      box: `Box` of the coordinates y.

    Raises:
      ValueError: parameters out of range; a start without a box.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> rate = pde.CIR(rate=2.0, level=0.04, volatility=0.3)
      >>> solution = pde.integrate(rate, t1=1.0)
      >>> x = np.array([[0.01], [0.04]])
      >>> u = pde.evaluate(solution.final.v, solution.final.map, rate.box, x)
      >>> exact = rate.exact(1.0, x)
      >>> bool(np.abs(u / exact - 1).max() < 1e-4)
      True

    Source: J. Cox, J. Ingersoll, S. Ross, "A theory of the term structure of interest rates",
    Econometrica 53 (1985).
    """

    rate: float
    level: float
    volatility: float
    x0: float
    age: float

    def __init__(
        self,
        rate: float = 1.0,
        level: float = 1.0,
        volatility: float = 0.5,
        *,
        x0: float | None = None,
        age: float | None = None,
        start: Start | None = None,
        box: Box | None = None,
    ):
        positive(rate=rate, level=level, volatility=volatility)
        x0, age = level if x0 is None else x0, 0.5 / rate if age is None else age
        positive(x0=x0, age=age)
        own = SquareRootTransition(rate, level, volatility, x0, age)
        if box is None:
            check_own(start)
            box = Box((variance_axis(own),))
        super().__init__(
            None, [Power([1.0], amplitude=volatility**2 / 2)],
            Independent([own]) if start is None else start, box,
            matrix=[[-rate]], offset=[rate * level],
        )  # fmt: skip
        self._set(rate=rate, level=level, volatility=volatility, x0=x0, age=age)

    def _later(self, t: float) -> Independent | None:
        part = self.start.parts[0] if isinstance(self.start, Independent) else None
        own = SquareRootTransition(self.rate, self.level, self.volatility, 0.0, 0.0)
        if not (isinstance(part, SquareRootTransition) and part.same(own)):
            return None
        return Independent([part.later(t)])

    def _at_rest(self, x: np.ndarray) -> np.ndarray:
        """Evaluates the stationary density of the square-root process, a gamma density."""
        last = SquareRootTransition(self.rate, self.level, self.volatility, 0.0, np.inf)
        return last.values(x[:, 0])


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Heston(ReadyMade):
    """Heston model in (s, v), s = log S: ds = (μ − v/2) dt + √v dW₁, dv = κ (θ − v) dt + σ √v dW₂.

    dW₁ dW₂ = ρ dt. Mean and covariance are known in closed form (`moments`), and the density of v
    is that of `CIR`; 2κθ ≥ σ² is required. Without ``start`` s is normal of mean 0 and variance
    θ·age, and v what paths from ``v0`` are distributed like after a time ``age``. Without ``box``
    that holds the density up to a time ``horizon``; coordinates do not move.

    Attributes:
      rate: κ.
      level: θ.
      volatility: σ, of the variance v.
      correlation: ρ, within (−1, 1).
      drift_rate: μ.
      v0: variance that the paths have left; θ if None.
      age: of the start; a quarter of 1/κ if None.
      horizon: time that the box is made for.
      start: the initial state, u(0).
      box: `Box` of the coordinates y.

    Raises:
      ValueError: parameters out of range; a start without a box.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> model = pde.Heston()
      >>> solution = pde.integrate(model, t1=0.2, tol=1e-4)
      >>> _, mean, _ = pde.moments(solution.final.v, solution.final.map, model.box)
      >>> bool(np.allclose(mean, model.moments(0.2)[1], atol=1e-4))
      True

    Source: S. Heston, "A closed-form solution for options with stochastic volatility", Rev. Financ.
    Stud. 6 (1993).
    """

    rate: float
    level: float
    volatility: float
    correlation: float
    drift_rate: float
    v0: float
    age: float
    horizon: float

    def __init__(
        self,
        rate: float = 2.0,
        level: float = 0.04,
        volatility: float = 0.3,
        correlation: float = -0.7,
        *,
        drift_rate: float = 0.0,
        v0: float | None = None,
        age: float | None = None,
        horizon: float = 1.0,
        start: Start | None = None,
        box: Box | None = None,
    ):
        positive(rate=rate, level=level, volatility=volatility, horizon=horizon)
        finite(correlation=correlation, drift_rate=drift_rate)
        if not abs(correlation) < 1:
            raise ValueError(f"correlation: expected a number within (-1, 1), got {correlation!r}")
        v0, age = level if v0 is None else v0, AGE / rate if age is None else age
        positive(v0=v0, age=age)
        variance = SquareRootTransition(rate, level, volatility, v0, age)
        own = start is None
        start = Independent([Normal(0.0, level * age), variance]) if start is None else start
        tensor = np.array(
            [[1.0, correlation * volatility], [correlation * volatility, volatility**2]]
        )
        self._set(
            rate=rate, level=level, volatility=volatility, correlation=correlation,
            drift_rate=drift_rate, v0=v0, age=age, horizon=horizon, start=start,
        )  # fmt: skip
        if box is None:
            check_own(None if own else start)
            box = Box((self._axis(np.sqrt(level * age)), variance_axis(variance)))
        super().__init__(
            None, [(Power([0.0, 1.0], amplitude=0.5), tensor)], start, box,
            matrix=[[0.0, -0.5], [0.0, -rate]], offset=[drift_rate, rate * level],
        )  # fmt: skip

    def _axis(self, narrow: float) -> Axis:
        """Builds the Fourier axis of the log price (Heston), wide enough for its heavy tails."""
        ends = []
        for t in np.linspace(0, self.horizon, 9):
            found = self._moments(t)
            assert found is not None
            _, mean, covariance = found
            top = covariance[1, 1] ** 0.5 / mean[1]  # deviations of the variance widen the tails
            half = HALF_WIDTH * np.sqrt(covariance[0, 0] * (1 + top))
            ends += [mean[0] - half, mean[0] + half]
        return even_axis(min(ends), max(ends), narrow)

    def moments(self, t: float) -> tuple[float, np.ndarray, np.ndarray] | None:
        """Returns mass, mean and covariance of log price and variance (Heston); None if unknown.

        Moments up to order two obey a linear equation.
        """
        return None if self.box.walled else self._moments(t)

    def _moments(self, t: float) -> tuple[float, np.ndarray, np.ndarray] | None:
        """Computes mass, mean and covariance of log price and variance (Heston), without walls."""
        known = getattr(self.start, "moments", None)
        if known is None:
            return None
        mass, (s, v), c = known()
        second = [s * s + c[0, 0], s * v + c[0, 1], v * v + c[1, 1]]
        first = mass * np.array([1.0, s, v, *second])
        k, drive, sigma = self.rate, self.rate * self.level, self.volatility
        mu, tie = self.drift_rate, self.correlation * self.volatility
        flow = np.zeros((6, 6))  # of 1, s, v, s², s v, v²
        flow[1, [0, 2]] = mu, -0.5
        flow[2, [0, 2]] = drive, -k
        flow[3, [1, 4, 2]] = 2 * mu, -1.0, 1.0
        flow[4, [2, 5, 1, 4]] = mu + tie, -0.5, drive, -k
        flow[5, [2, 5]] = 2 * drive + sigma**2, -2 * k
        mass, s, v, ss, sv, vv = linalg.expm(flow * t) @ first
        mean = np.array([s, v]) / mass
        second = np.array([[ss, sv], [sv, vv]]) / mass
        return float(mass), mean, second - np.outer(mean, mean)


def variance_axis(process: SquareRootTransition) -> Axis:
    """Builds the grid axis on x > 0 for a square-root process (CIR, Heston).

    Of Laguerre functions, which are the eigenfunctions of the process; logarithmic where 2κθ/σ² is
    so large that the density lies far from zero: a start that is narrower than the stationary
    density has then no expansion in few of them.
    """
    power = 2 * process.rate * process.level / process.volatility**2 - 1
    if power < 0:
        raise ValueError(
            "rate, level, volatility: expected 2 rate level >= volatility² (Feller), for otherwise "
            f"the density has no bound at zero, and paths reach it; got {power + 1:.3g} "
            "volatility². Expectations are smooth there: take pde.expectation with an open wall at "
            "zero"
        )
    if power > _FAR:
        ages = process, dataclasses.replace(process, age=np.inf)
        mean, variance = np.transpose([p.moments for p in ages])
        width = np.sqrt(variance) / mean
        return log_axis(np.log(mean).min(), np.log(mean).max(), width.min(), width.max())
    last = float(laguerre_zeros(_LAGUERRE, 2 * power)[-1])
    scale = process.volatility**2 / (2 * process.rate)  # of the stationary density
    return Axis("laguerre", _LAGUERRE, 0.0, scale * last, power=power)
