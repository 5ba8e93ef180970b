"""Survival probabilities and densities of first-passage times, by inverse Laplace transforms."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax._cores import products, rounding_methods
from tensorjax._cores.contraction import einsum
from tensorjax._cores.unfoldings import Cores
from tensorjax._typing import ArrayLike
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._discretization.walls import walled
from tensorjax.pde._integration.solution import Result
from tensorjax.pde._long_times import linear_systems
from tensorjax.pde._long_times.first_passage import (
    Walls,
    backward,
    checked_domain,
    checked_options,
    finer,
    probes,
)
from tensorjax.pde._problems.problem import Problem

# Hyperbola z = μ (1 + sin(iu − α)), u = (k + ½) h: α, μ t/N and h N for N nodes in a half plane.
_ANGLE, _SCALE, _STEP = 1.172104229, 4.492075287, 1.081792140
# Digits that a node adds, and nodes beyond those that the tolerance asks for.
_DIGITS, _SPARE = 1.0, 2
# Relative residual of the systems, over the tolerance; largest change of S, over it, and at least.
_RESIDUAL, _CHANGE, _LEAST = 1e-2, 10.0, 1e-4


@dataclasses.dataclass(frozen=True)
class Survival:
    """Survival probability S(t, x): that a path from x has met no absorbing wall by the time t.

    Attributes:
      times: t, (m,).
      domain: `Box` with the walls in it.
      result: `Result.successful`; `Result.unresolved` where the points are too coarse, or t is so
        short that S falls too steeply at the walls; `Result.solver`, `Result.max_rank`.
      message: explanation of a failure, with advice; else empty.
      error: largest change of S from fewer points and nodes to these: an estimate of its error.
      residual: of the linear systems, relative, the largest one.
      sums: for every time the cores of two complex trains, whose imaginary parts are S and −∂S/∂t.
    """

    times: np.ndarray
    domain: Box
    result: Result
    message: str
    error: float
    residual: float
    sums: tuple[tuple[Cores, Cores], ...]

    def __call__(self, x: ArrayLike) -> np.ndarray:
        """Evaluates the survival probability of starts x (m, d) at all times.

        Args:
          x: points (m, d).

        Returns:
          Values (times, m); NaN outside the domain.

        Raises:
          ValueError: points of another dimension.
        """
        return self._values(x, 0)

    def density(self, x: ArrayLike) -> np.ndarray:
        """Evaluates the density −∂S/∂t of the first-passage time, for starts x, at all times.

        Args:
          x: points (m, d).

        Returns:
          Values (times, m); NaN outside the domain.

        Raises:
          ValueError: points of another dimension.
        """
        return self._values(x, 1)

    def _values(self, x: ArrayLike, which: int) -> np.ndarray:
        points = np.asarray(x, np.float64)
        if points.ndim != 2 or points.shape[1] != self.domain.dim:
            raise ValueError(
                f"x: expected points of shape (m, {self.domain.dim}), got {points.shape}"
            )
        inside, rows = np.ones(len(points), bool), []
        for k, axis in enumerate(self.domain.axes):
            y = points[:, k]
            if axis.kind == "fourier":
                y = axis.low + np.mod(y - axis.low, axis.length)
            inside &= (y >= axis.low) & (y <= axis.high)
            rows.append(axis.interpolate(y))
        out = np.empty((len(self.times), len(points)))
        for j, pair in enumerate(self.sums):
            state = np.ones((len(points), 1))
            for row, core in zip(rows, pair[which], strict=True):
                state = einsum("ma,mn,anb->mb", state, row, core)
            out[j] = np.where(inside, np.imag(state[:, 0]), np.nan)
        return out


def survival(
    problem: Problem,
    domain: Box,
    times: ArrayLike | Sequence[float],
    *,
    walls: Walls | None = None,
    tol: float = 1e-6,
    max_rank: int | None = None,
) -> Survival:
    """Computes the probability that paths have met no absorbing wall by given times, for any start.

    S solves the backward Kolmogorov equation ∂S/∂t = L S, L = a·∇ + D:∇∇, with S = 1 at first and
    S = 0 at absorbing walls: it is the inverse Laplace transform of (z − L)⁻¹ 1, an integral along
    a hyperbola in the complex plane. Every node of it is one linear system at rest, and no step in
    time is made, so that times may be long. −∂S/∂t, the density of the time at which a path first
    meets a wall, has the transform 1 − z (z − L)⁻¹ 1, and comes from the same solutions.

    Args:
      problem: `FokkerPlanck` or `OrnsteinUhlenbeck`, of drift and diffusion that do not depend on
        time; its start and box do not matter.
      domain: `Box` of "chebyshev" axes, whose ends are walls, and "periodic" ones.
      times: positive, one or more.
      walls: as in `first_passage`: "absorbing" or "reflecting" for each axis, or pairs of them.
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
    integral", Math. Comp. 76 (2007), for the hyperbola; S. Redner, "A Guide to First-Passage
    Processes" (Cambridge, 2001).
    """
    tol, cap = checked_options(tol, max_rank)
    ts = np.atleast_1d(np.asarray(times, np.float64))
    if ts.ndim != 1 or not len(ts) or not (np.isfinite(ts).all() and ts.min() > 0):
        raise ValueError(f"times: expected positive finite times, one or more, got {times!r}")
    checked_domain(problem, domain, walls)
    nodes = max(4, math.ceil(-math.log10(tol) / _DIGITS)) + _SPARE
    first = _solved(problem, walled(domain, walls), ts, nodes - _SPARE, tol, cap)
    if first.result != Result.successful:
        return first
    out = _solved(problem, walled(finer(domain), walls), ts, nodes, tol, cap)
    return out if out.result != Result.successful else _compared(first, out, tol)


def _solved(
    problem: Any, grid: Box, times: np.ndarray, nodes: int, tol: float, cap: int | None
) -> Survival:
    """Computes survival probabilities with so many nodes in a half plane."""
    operator = backward(problem, grid)
    one = [np.ones((1, n, 1)) for n in grid.shape]
    identity = [np.eye(n)[None, :, :, None] for n in grid.shape]
    sums, worst = [], 0.0
    for t in times:
        solutions, weights, rates = [], [], []
        for z, weight in zip(*_hyperbola(float(t), nodes), strict=True):
            shifted = linear_systems.square(
                products.combined(
                    [linear_systems.flat(identity), linear_systems.flat(operator)], [z, -1.0]
                )
            )
            guess = one if not solutions else solutions[-1]
            y, residual = linear_systems.solved(shifted, one, guess, _RESIDUAL * tol, cap)
            solutions.append(y)
            weights.append(weight)
            rates.append(-weight * z)
            worst = max(worst, residual)
        pair = tuple(
            rounding_methods.rounded(products.combined(solutions, w), _RESIDUAL * tol)
            for w in (weights, rates)
        )
        sums.append(pair)
    result, message = Result.successful, ""
    if not worst <= tol:
        result = Result.solver if cap is None else Result.max_rank
        message = (
            f"the linear systems are solved to {worst:.2g} only: take a larger tol or max_rank, "
            "fewer points or a smaller domain"
        )
    return Survival(times, grid, result, message, math.nan, worst, tuple(sums))


def _hyperbola(t: float, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns nodes z of an inverse Laplace transform at t, and weights of its imaginary part."""
    u = (np.arange(nodes) + 0.5) * _STEP / nodes
    scale = _SCALE * nodes / t
    z = scale * (1 + np.sin(1j * u - _ANGLE))
    slope = 1j * scale * np.cos(1j * u - _ANGLE)
    return z, _STEP / nodes / np.pi * np.exp(z * t) * slope


def _compared(coarse: Survival, fine: Survival, tol: float) -> Survival:
    """Returns the finer one of two survival probabilities, with their difference as its error."""
    x = probes(fine.domain)
    values = fine(x)
    error = float(np.abs(values - coarse(x)).max())
    limit = max(_CHANGE * tol, _LEAST)
    outside = max(-float(values.min()), float(values.max()) - 1, 0.0)
    if error <= limit and outside <= limit:
        return dataclasses.replace(fine, error=error)
    message = (
        f"with more points and nodes the survival probability changes by {error:.2g}, and it "
        f"leaves [0, 1] by {outside:.2g}: take more points, a smaller domain, or longer times"
    )
    return dataclasses.replace(fine, result=Result.unresolved, message=message, error=error)
