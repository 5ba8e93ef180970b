"""Expectations, survival probabilities, densities of first-passage times: Laplace transforms."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorjax._cores import products, rounding
from tensorjax._cores.unfoldings import Cores
from tensorjax._typing import ArrayLike
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.cross_approximation import crossed
from tensorjax.pde._integration.solution import Result
from tensorjax.pde._long_times import linear_systems
from tensorjax.pde._long_times.backward_kolmogorov import (
    Walls,
    backward,
    checked_domain,
    finer,
    grid_of,
    jumps,
    largest_of,
    probes,
)
from tensorjax.pde._long_times.sawtooth_damping import diffusions
from tensorjax.pde._observables import values_and_moments
from tensorjax.pde._problems.problem import Problem

# Hyperbola z = μ (1 + sin(iu − α)), u = (k + ½) h: α, μ t/N and h N for N nodes in a half plane.
_ANGLE, _SCALE, _STEP = 1.172104229, 4.492075287, 1.081792140
# Digits that a node adds, and nodes beyond those that the tolerance asks for.
_DIGITS, _SPARE = 1.0, 2
# Relative residual of the systems, over the tolerance; largest change of S, over it, and at least.
_RESIDUAL, _CHANGE, _LEAST = 1e-2, 10.0, 1e-4


@dataclasses.dataclass(frozen=True)
class Expectation:
    """Expected payoff or survival probability at given times, as a function of the start x.

    Attributes:
      times: t, (m,).
      domain: `Box` with the walls in it.
      result: `Result.successful`; `Result.unresolved` where the points are too coarse, or t is so
        short that values fall too steeply at the walls; `Result.solver`, `Result.max_rank`.
      message: explanation of a failure, with advice; else empty.
      error: largest change from fewer points and nodes to these, over the largest value or 1: an
        estimate of the error. It is at most 10 tol, or 1e-4 if that is more, of a success. Where
        paths are carried over walls without noise it is the root mean square at 1000 points of the
        domain, for there the function jumps.
      residual: of the linear systems, relative, the largest one.
      sums: for every time the cores of complex trains, whose imaginary parts are the values, and
        their time derivatives with the sign reversed.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian([0.5], [[0.1]])
      >>> motion = pde.FokkerPlanck(None, 0.5, start, pde.Box.fourier(1))
      >>> domain = pde.Box([pde.Axis("chebyshev", 20, 0.0, 1.0)])
      >>> found = pde.expectation(motion, domain, lambda x: np.sin(np.pi * x[:, 0]), [0.1, 0.2],
      ...                         walls=["absorbing"])
      >>> print(found.result.value, found([[0.5]]).shape)
      successful (2, 1)
      >>> bool(np.allclose(found([[0.5]])[:, 0], np.exp(-np.pi**2 / 2 * found.times), atol=1e-5))
      True
    """

    times: np.ndarray
    domain: Box
    result: Result
    message: str
    error: float
    residual: float
    sums: tuple[tuple[Cores, ...], ...]

    def __call__(self, x: ArrayLike) -> np.ndarray:
        """Evaluates the expectation or survival probability for starts x (m, d) at all times.

        Args:
          x: points (m, d).

        Returns:
          Values (times, m); NaN outside the domain.

        Raises:
          ValueError: points of another dimension.
        """
        return self._values(x, 0)

    def _values(self, x: ArrayLike, which: int) -> np.ndarray:
        rows, inside = values_and_moments.interpolation_rows(self.domain, x)
        out = [np.imag(values_and_moments.interpolated(pair[which], rows)) for pair in self.sums]
        return np.where(inside, out, np.nan)


@dataclasses.dataclass(frozen=True)
class Survival(Expectation):
    """Survival probability S(t, x) that a path from x hits no absorbing wall before time t.

    The attributes are those of `Expectation`.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> motion = pde.FokkerPlanck(None, 0.5, pde.Gaussian([0.5], [[0.1]]), pde.Box.fourier(1))
      >>> found = pde.survival(motion, pde.Box([pde.Axis("chebyshev", 20, 0.0, 1.0)]), [1.0])
      >>> rate = found.density([[0.5]]) / found([[0.5]])  # of the slowest mode, π²/2
      >>> print(found.result.value, np.round(rate, 3))
      successful [[4.935]]
    """

    def density(self, x: ArrayLike) -> np.ndarray:
        """Evaluates −∂S/∂t of the survival probability S, the density of first-passage times.

        Its error is that of S over the time, or more where the time is short.

        Args:
          x: points (m, d).

        Returns:
          Values (times, m); NaN outside the domain, as for S.
        """
        return self._values(x, 1)


def survival(
    problem: Problem,
    domain: Box,
    times: ArrayLike | Sequence[float],
    *,
    walls: Walls | None = None,
    tol: float = 1e-6,
    max_rank: int | None = None,
) -> Survival:
    """Computes survival probabilities: paths hit no absorbing wall before given times.

    S solves the backward Kolmogorov equation ∂S/∂t = L S, L = a·∇ + D:∇∇, with S = 1 at first and
    S = 0 at absorbing walls: it is the inverse Laplace transform of (z − L)⁻¹ 1, an integral along
    a hyperbola in the complex plane. Every node of it is one linear system at rest, and no step in
    time is made, so that times may be long. (Of paths that go round several times until t the
    hyperbola misses a part; the status says so.) −∂S/∂t, the density of the time at which a path
    first meets a wall, has the transform 1 − z (z − L)⁻¹ 1, and comes from the same solutions.

    Args:
      problem: `FokkerPlanck` or `OrnsteinUhlenbeck`, of drift and diffusion that do not depend on
        time; its start and box do not matter.
      domain: `Box` of "chebyshev" axes, whose ends are walls, and "periodic" ones.
      times: positive, one or more.
      walls: as in `first_passage`: "absorbing" or "reflecting" for each axis, or pairs of them;
        those of the axes if None, or absorbing where an axis has none.
      tol: absolute error of S by nodes and linear systems. That of the grid comes on top; both are
        measured, by a second solution.
      max_rank: of the solutions.

    Returns:
      `Survival`: a function of points (m, d), with a status.

    Raises:
      ValueError: another problem or domain, times that are not positive, no absorbing wall, noise
        that does not reach one.

    Example:
      Brownian motion between walls at 0 and 1: S decays as (4/π) sin(πx) exp(−π²Dt).

      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian([0.5], [[0.1]])
      >>> motion = pde.FokkerPlanck(None, 0.5, start, pde.Box.fourier(1))
      >>> domain = pde.Box([pde.Axis("chebyshev", 20, 0.0, 1.0)])
      >>> s = pde.survival(motion, domain, [1.0])
      >>> bool(abs(s([[0.5]])[0, 0] - 4 / np.pi * np.exp(-np.pi**2 / 2)) < 1e-6)
      True

    Source: J. Weideman, L. Trefethen, "Parabolic and hyperbolic contours for computing the Bromwich
    integral", Math. Comp. 76 (2007), for the hyperbola; C. Gardiner, "Stochastic Methods"
    (Springer, 2009), section 5.5, for the equation.
    """
    checked_domain(problem, domain, walls)
    out = _found(problem, domain, times, walls, None, tol, max_rank)
    return Survival(**{f.name: getattr(out, f.name) for f in dataclasses.fields(out)})


def expectation(
    problem: Problem,
    domain: Box,
    payoff: Callable[[Any], Any],
    times: ArrayLike | Sequence[float],
    *,
    walls: Walls | None = None,
    tol: float = 1e-6,
    max_rank: int | None = None,
) -> Expectation:
    """Computes expectations E[g(X_t)] of a payoff g, for paths that start anywhere.

    u(t, x) = E[g(X_t) | X_0 = x] solves the backward Kolmogorov equation ∂u/∂t = a·∇u + D:∇∇u with
    u = g at first, by inverse Laplace transforms as in `survival`. Paths that meet an absorbing
    wall count zero (a barrier option). With g = exp(−h/λ), −λ log u solves a
    Hamilton–Jacobi–Bellman equation: it is the least expected cost where controls c, added to the
    drift, cost λ c·D⁻¹c/4 per time, and the end costs h.

    Args:
      problem: `FokkerPlanck` or `OrnsteinUhlenbeck`, of drift and diffusion that do not depend on
        time; its start and box do not matter.
      domain: `Box` of "chebyshev" axes, whose ends are walls, and "periodic" ones.
      payoff: g, a function of points (m, d) with values (m,), smooth where accuracy is to be
        spectral.
      times: positive, one or more.
      walls: for each axis "absorbing", "reflecting" or "open", or a pair, as in `first_passage`;
        those of the axes if None, or reflecting where an axis has none. Axes without a wall in
        truth have reflecting ones far out.
      tol: error by nodes and linear systems, over the largest value. That of the grid comes on top;
        both are measured, by a second solution.
      max_rank: of the solutions.

    Returns:
      `Expectation`: a function of points (m, d), with a status.

    Raises:
      ValueError: another problem or domain, times that are not positive, a payoff that is not
        finite or of no low rank.

    Example:
      The bond of a square-root rate, E[exp(−X_t)], where paths reach zero: 2κθ < σ².

      >>> import numpy as np
      >>> from tensorjax import pde
      >>> kappa, theta, sigma, t = 1.0, 0.3, 1.2, 0.5
      >>> noise = [(pde.Power([1.0]), [[sigma**2 / 2]])]
      >>> start, box = pde.Gaussian([0.5], [[0.01]]), pde.Box([pde.Axis("fourier", 32, 0.1, 1.0)])
      >>> rate = pde.FokkerPlanck(
      ...     None, noise, start, box, matrix=[[-kappa]], offset=[kappa * theta]
      ... )
      >>> domain = pde.Box([pde.Axis("chebyshev", 32, 0.0, 20.0)])
      >>> walls = [("open", "reflecting")]
      >>> found = pde.expectation(rate, domain, lambda x: np.exp(-x[:, 0]), [t], walls=walls)
      >>> c = 2 * kappa / (sigma**2 * (1 - np.exp(-kappa * t)))
      >>> power = 2 * kappa * theta / sigma**2
      >>> exact = (c / (c + 1)) ** power * np.exp(-0.4 * np.exp(-kappa * t) * c / (c + 1))
      >>> bool(abs(found([[0.4]])[0, 0] - exact) < 1e-5)
      True

    Source: as for `survival`; H. Kappen, "Linear theory for control of nonlinear stochastic
    systems", Phys. Rev. Lett. 95 (2005), for the transform by the logarithm.
    """
    if not callable(payoff):
        raise ValueError(f"payoff: expected a function of points (m, d), got {payoff!r}")
    given = walls
    if walls is None and isinstance(domain, Box):
        given = [a.walls or "reflecting" for a in domain.axes]
    checked_domain(problem, domain, given, arrives=False)
    return _found(problem, domain, times, given, payoff, tol, max_rank)


def _found(
    problem: Any, domain: Box, times: Any, walls: Any, payoff: Any, tol: float, cap: Any
) -> Expectation:
    """Computes survival probabilities or expected payoffs on two grids, for an error estimate."""
    tol, cap = linear_systems.checked_options(tol, cap)
    ts = np.atleast_1d(np.asarray(times, np.float64))
    if ts.ndim != 1 or not len(ts) or not (np.isfinite(ts).all() and ts.min() > 0):
        raise ValueError(f"times: expected positive finite times, one or more, got {times!r}")
    nodes = max(4, math.ceil(-math.log10(tol) / _DIGITS)) + _SPARE
    first = _solved(problem, grid_of(problem, domain, walls), payoff, ts, nodes - _SPARE, tol, cap)
    if first.result != Result.successful:
        return first
    out = _solved(problem, grid_of(problem, finer(domain), walls), payoff, ts, nodes, tol, cap)
    if out.result != Result.successful:
        return out
    out = _compared(first, out, tol, probability=payoff is None)
    turns = _turns(problem, domain, ts, nodes, max(_CHANGE * tol, _LEAST))
    if not turns:
        return out
    message = (
        f"paths go round {turns:.2g} times until t, and what is left of that is not seen by the "
        "transform: take shorter times, and the result as the payoff of the next ones, or "
        "integrate the density in time"
    )
    return dataclasses.replace(out, result=Result.unresolved, message=message)


def _checked(payoff: Callable[[Any], Any]) -> Callable[[Any], np.ndarray]:
    """Wraps the payoff function of an expectation: an error unless it returns real values (m,)."""

    def checked(x: Any) -> np.ndarray:
        values = np.asarray(payoff(x))
        if values.shape != (len(x),) or values.dtype.kind not in "fiub":
            raise ValueError(
                f"payoff: expected real values of shape ({len(x)},) at points {np.shape(x)}, got "
                f"{values.dtype} {values.shape}; of a complex payoff take both parts by themselves"
            )
        return values

    return checked


def _turns(problem: Any, domain: Box, times: np.ndarray, nodes: int, limit: float) -> float:
    """Estimates oscillations of an expectation that the inverse Laplace transform misses.

    Eigenvalues are estimated by those of the drift's Jacobian at some points, and their doubles; on
    a periodic axis by the waves that the drift carries along.
    """
    x, found = probes(domain), list[np.ndarray]()
    velocity, noise = problem.velocity(x), diffusions(problem, x)
    jacobian = np.empty((len(x), domain.dim, domain.dim))
    for k, axis in enumerate(domain.axes):
        step = 1e-4 * axis.length * np.eye(domain.dim)[k]
        moved = problem.velocity(x + step) - problem.velocity(x - step)
        jacobian[:, :, k] = moved / (2e-4 * axis.length)
        if axis.kind == "periodic":
            wave = 2 * np.pi / axis.length
            rates = 1j * wave * velocity[:, k] - wave**2 * noise[:, k, k]
            found += [rates, 2 * rates - 2 * wave**2 * noise[:, k, k]]
    rates = np.linalg.eigvals(jacobian).ravel()
    rates = np.minimum(rates.real, 0) + 1j * rates.imag
    every: Any = np.concatenate([*found, rates, 2 * rates])
    turns = 0.0
    for t in times:
        # z = μ (1 + sin(iu − α)) with α above that of the hyperbola are enclosed by it.
        angle = -np.arcsin(every * t / (_SCALE * nodes) - 1).real
        missed = (angle < _ANGLE) & (np.exp(every.real * t) > limit)
        turns = max(turns, float(np.abs(every.imag[missed] * t).max(initial=0)) / (2 * np.pi))
    return turns


def _solved(
    problem: Any, grid: Box, payoff: Any, times: np.ndarray, nodes: int, tol: float,
    cap: int | None,
) -> Expectation:  # fmt: skip
    """Computes survival probabilities or expected payoffs on one grid by Laplace transforms."""
    operator, accuracy, direct = backward(problem, grid), _RESIDUAL * tol, jumps(grid)
    load = [np.ones((1, n, 1)) for n in grid.shape]
    if payoff is not None:
        load = crossed("payoff", _checked(payoff), grid.points, accuracy)
    identity = linear_systems.flat([np.eye(n)[None, :, :, None] for n in grid.shape])
    flat, sums, worst = linear_systems.flat(operator), [], 0.0
    for t in times:
        solutions, (z, weights) = [], _hyperbola(float(t), nodes)
        for at in z:
            system = linear_systems.square(products.combined([identity, flat], [at, -1.0]))
            guess = solutions[-1] if solutions else load
            y, residual = linear_systems.solved(system, load, guess, accuracy, cap, direct)
            solutions.append(y)
            worst = max(worst, residual)
        pair = [
            rounding.rounded(products.combined(solutions, list(w)), accuracy)
            for w in (weights, -weights * z)
        ]
        sums.append(tuple(pair))
    result, message = Result.successful, ""
    if not worst <= tol:
        result = Result.solver if cap is None else Result.max_rank
        message = (
            f"the linear systems are solved to {worst:.2g} only: take a larger tol or max_rank, "
            "fewer points or a smaller domain"
        )
    return Expectation(times, grid, result, message, math.nan, worst, tuple(sums))


def _hyperbola(t: float, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns nodes and weights of the inverse Laplace transform of an expectation at time t."""
    u = (np.arange(nodes) + 0.5) * _STEP / nodes
    scale = _SCALE * nodes / t
    z = scale * (1 + np.sin(1j * u - _ANGLE))
    slope = 1j * scale * np.cos(1j * u - _ANGLE)
    return z, _STEP / nodes / np.pi * np.exp(z * t) * slope


def _compared(
    coarse: Expectation, fine: Expectation, tol: float, *, probability: bool
) -> Expectation:
    """Returns the finer one of two expectations, with their difference as its error."""
    x = probes(fine.domain)
    values = fine(x)
    size = 1.0 if probability else float(np.abs(values).max()) or 1.0
    error = largest_of(fine.domain, values - coarse(x)) / size
    limit, outside = max(_CHANGE * tol, _LEAST), 0.0
    if probability:
        outside = largest_of(fine.domain, np.maximum(np.maximum(-values, values - 1), 0.0))
    if error <= limit and outside <= limit:
        return dataclasses.replace(fine, error=error)
    also = f", and leaves [0, 1] by {outside:.2g}" if probability else ""
    message = (
        f"with more points and nodes the solution changes by {error:.2g}{also}: take more points, "
        "a smaller domain, or longer times; a payoff with a kink needs many"
    )
    return dataclasses.replace(fine, result=Result.unresolved, message=message, error=error)
