"""Probability flux of a Fokker–Planck equation at points."""

import numpy as np

from tensorjax import _check
from tensorjax._formats.trains import TT
from tensorjax._typing import ArrayLike
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._observables.values_and_moments import evaluate
from tensorjax.pde._problems.fokker_planck import FokkerPlanck
from tensorjax.pde._problems.ornstein_uhlenbeck import Liouville, OrnsteinUhlenbeck
from tensorjax.pde._problems.partial_derivatives import (
    partial_derivative,
    partial_derivative_inside,
)


def flux(
    problem: FokkerPlanck | OrnsteinUhlenbeck | Liouville,
    v: TT,
    map: AffineMap,
    x: ArrayLike,
    *,
    t: float = 0.0,
) -> np.ndarray:
    """Evaluates the probability flux J = a u − ∇·(D u), with u_t = −∇·J, at physical points.

    a is the drift of the Itô equation. Derivatives are differences of order 6 of u and of the
    products D_ij u, by 6 or 7 evaluations of the interpolant at each point and axis. They are
    central ones but next to walls and to the low end of "laguerre" axes, where all are taken inside
    the box. Points next to other edges see u as zero beyond them.

    Args:
      problem: a `FokkerPlanck`, `OrnsteinUhlenbeck` or `Liouville` equation, ready-made ones too.
      v: train of values on the grid of the problem's box.
      map: `AffineMap` y = Γ x + s.
      x: points (m, d).
      t: time, of which drift and diffusion may be functions.

    Returns:
      (m, d).

    Raises:
      ValueError: a problem without drift and diffusion of this form, shapes that do not match, NaN
        or Inf.

    Example:
      The stationary state of a process that rotates has flux, though it rests.

      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start, box = pde.Gaussian(np.zeros(2), 0.5 * np.eye(2)), pde.Box.fourier(2)
      >>> drift = np.array([[-1.0, 2.0], [-2.0, -1.0]])
      >>> process = pde.OrnsteinUhlenbeck(drift, 0.5, start, box)
      >>> map, x = pde.AffineMap.identity(2), np.array([[1.0, 0.0]])
      >>> j = pde.flux(process, start.train(box, map, 1e-6), map, x)
      >>> bool(np.allclose(j, [[0.0, -2.0]] * start.values(x), atol=1e-5))
      True

    Source: C. Gardiner, "Stochastic Methods" (Springer, 2009), section 5.1.
    """
    if not isinstance(problem, FokkerPlanck | OrnsteinUhlenbeck | Liouville):
        raise ValueError(
            "problem: expected a FokkerPlanck, OrnsteinUhlenbeck or Liouville equation, got "
            f"{type(problem).__name__}"
        )
    points = _check.points("x", x)
    if points.shape[1] != problem.dim:
        raise ValueError(f"x: expected points of shape (m, {problem.dim}), got {points.shape}")
    if isinstance(problem, FokkerPlanck):
        noise, drift = (
            problem.noise,
            problem.velocity(points, t) + problem.noise.spurious(points, t),
        )
    else:
        noise, drift = None, problem.velocity(points)

    def weighted(p: np.ndarray, k: int) -> np.ndarray:
        """Evaluates column k of D u, diffusion times density, at points: (m, d)."""
        u = np.asarray(evaluate(v, map, problem.box, p))[:, None]
        if noise is not None:
            return noise.values(p, t)[:, :, k] * u
        return np.asarray(problem.diffusion)[:, k] * u

    out = drift * np.asarray(evaluate(v, map, problem.box, points))[:, None]
    if noise is None and problem.diffusion is None:
        return out
    for k, axis in enumerate(problem.box.axes):

        def column(p: np.ndarray, k: int = k) -> np.ndarray:
            return weighted(p, k)

        # Coordinates along such axes are at rest, so that x and y are the same there.
        low = axis.low if axis.walls is not None or axis.kind == "laguerre" else -np.inf
        high = axis.high if axis.walls is not None else np.inf
        bounded = np.isfinite(low)
        found = (
            partial_derivative_inside(column, points, k, low, high)
            if bounded else partial_derivative(column, points, k)
        )  # fmt: skip
        out = out - found
    return out
