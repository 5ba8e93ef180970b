"""Fokker–Planck and Liouville equations with nonlinear drift."""

import dataclasses
from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax._typing import ArrayLike, KeyOrGenerator
from tensorjax.pde._arguments import coefficient, generator_of
from tensorjax.pde._discretization import variable_coefficients as multipliers
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._initial_states.initial_states import Function, Start
from tensorjax.pde._maps import characteristics
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._problems.affine_drift import affine_part, affine_velocity, diffusion_matrix
from tensorjax.pde._problems.drifts import Field
from tensorjax.pde._problems.linear_drift import OrnsteinUhlenbeck
from tensorjax.pde._problems.problem import Problem, RightSide


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class FokkerPlanck(Problem):
    """Fokker–Planck equation u_t = −∇·((A x + b + f(x)) u) + D:∇∇u; Liouville if D = 0.

    The linear part of the drift, the diffusion and the motion of the coordinates are one operator,
    of the TT-rank of `affine_generator`; every other term a of the drift is one more, v ↦ −a·∇(m v)
    of TT-rank twice that of its multiplier m.

    Attributes:
      drift: f, d entries, each a term (`Sin`, `Power`, `Product`, `Separable`), a sequence of terms
        that are summed, or None; or a function that maps points (m, d) to (m, d), brought into a
        train by cross approximation in every new map.
      diffusion: D, (d, d), symmetric and positive semidefinite, a number for a multiple of 1, or
        None for zero.
      matrix: A, (d, d), or None for zero.
      offset: b, (d,), or None for zero.
      cross_tol: relative error of cross approximations of the drift.
      start: the initial state, u(0): a `Gaussian`, `Mixture` or `Function`.
      box: `Box` of the coordinates y.

    Raises:
      ValueError: wrong shapes, NaN or Inf, negative diffusion.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), np.diag([0.5, 0.08]))
      >>> drift = [pde.Sin([0.0, 1.0]), pde.Sin([1.0, 0.0], amplitude=-1.0)]
      >>> problem = pde.FokkerPlanck(drift, None, start, pde.Box.fourier(2, 112, 5.0))
      >>> print(problem.exact(0.0, np.zeros((1, 2))) == start.values(np.zeros((1, 2))))
      [ True]
      >>> [a.ranks for a in problem.right_side(pde.AffineMap.identity(2), 0.0).operators]
      [(1, 1, 1), (1, 1, 1)]
    """

    drift: Any
    matrix: Any
    diffusion: Any
    offset: Any
    cross_tol: float
    field: Field = dataclasses.field(init=False)

    def __init__(
        self,
        drift: Any,
        diffusion: Any,
        start: Start,
        box: Box,
        *,
        matrix: Any = None,
        offset: Any = None,
        cross_tol: float = 1e-8,
    ):
        super().__init__(start, box)
        d = box.dim
        diffusion = diffusion_matrix("diffusion", diffusion, d)
        if not (diffusion is None or _check.is_traced(diffusion) or np.any(diffusion)):
            diffusion = None
        self._set(
            matrix=coefficient("matrix", matrix, (d, d), optional=True),
            diffusion=diffusion,
            offset=coefficient("offset", offset, (d,), optional=True),
            cross_tol=cross_tol,
            field=Field(drift, d, cross_tol),
        )

        self._set(drift=self.field.given)

    def right_side(self, map: AffineMap, t: float) -> RightSide:
        """Builds the Fokker–Planck right side −∇·(Γ f v) + (ΓDΓᵀ):∇∇v, affine part apart.

        Args:
          map: `AffineMap` y = Γ x + s.
          t: time; the operators do not depend on it.

        Returns:
          `RightSide`.
        """
        parts = self.matrix, self.offset, self.diffusion
        affine = None if all(p is None for p in parts) else affine_part(map, *parts)
        pieces = self.field.pieces(self.box, map)
        others = tuple(multipliers.transport(self.box, -a, m) for m, a in pieces)
        return RightSide(self.box, affine, others)

    def velocity(self, x: ArrayLike) -> np.ndarray:
        """Evaluates the Fokker–Planck drift A x + b + f(x) at points (m, d).

        Args:
          x: points (m, d).

        Returns:
          (m, d).
        """
        x = np.asarray(x)
        return self.field.values(x) + affine_velocity(x, self.matrix, self.offset)

    def exact(self, t: float, x: ArrayLike) -> np.ndarray | None:
        """Evaluates the exact Fokker–Planck solution, or None if both D and f are set.

        With D = 0 it follows characteristics, to about 1e-10.

        Args:
          t: time.
          x: points (m, d).

        Returns:
          Values (m,), or None.
        """
        if not self.field:
            return self._linear().exact(t, x)
        if self.diffusion is not None:
            return None
        x = np.asarray(x, np.float64)
        trace = 0.0 if self.matrix is None else np.trace(np.asarray(self.matrix))

        def back(state: np.ndarray) -> np.ndarray:
            p = state[:, :-1]
            growth = trace + self.field.divergence(p)
            return -np.concatenate([self.velocity(p), growth[:, None]], 1)

        state = characteristics.solve(back, np.concatenate([x, np.zeros((len(x), 1))], 1), t)
        return self.start.values(state[:, :-1]) * np.exp(state[:, -1])

    def moments(self, t: float) -> tuple[float, np.ndarray, np.ndarray] | None:
        """Returns mass, mean, covariance of the Fokker–Planck solution; None unless f is zero.

        Args:
          t: time.

        Returns:
          (mass, mean (d,), covariance (d, d)), or None.
        """
        return None if self.field else self._linear().moments(t)

    def sample(self, key: KeyOrGenerator, t: float, count: int) -> np.ndarray:
        """Draws points of the Fokker–Planck solution, if known; see `Problem.sample`.

        With D and f there is no exact density: `simulate` gives approximate points.

        Args:
          key: `jax.random.key`, or a NumPy generator.
          t: time.
          count: number of points.

        Returns:
          Points (count, d).

        Raises:
          ValueError: no exact density is known.
        """
        if not self.field:
            return self._linear().sample(key, t, count)
        if self.diffusion is not None or isinstance(self.start, Function):
            return super().sample(key, t, count)
        start = self.start.sample(generator_of(key), count)
        return characteristics.solve(self.velocity, start, t)

    def simulate(self, key: KeyOrGenerator, t: float, count: int, *, steps: int) -> np.ndarray:
        """Simulates Fokker–Planck paths dx = (A x + b + f(x)) dt + √(2D) dW to t by Heun's method.

        Statistics converge with the square of the step (Heun's method, weak order 2 for constant D)
        and with 1/√count.

        Args:
          key: `jax.random.key`, or a NumPy generator.
          t: time.
          count: number of paths.
          steps: number of steps.

        Returns:
          Points (count, d).

        Raises:
          ValueError: a start that cannot be sampled, or paths that do not stay finite.

        Source: P. Kloeden, E. Platen, "Numerical Solution of Stochastic Differential Equations"
        (Springer, 1992), section 15.1.
        """
        if isinstance(self.start, Function):
            raise ValueError("start: expected a Gaussian or a mixture to sample from")
        rng, h = generator_of(key), t / _check.integer("steps", steps, low=1)
        x = self.start.sample(rng, count)
        noise = np.zeros((self.dim,) * 2)
        if self.diffusion is not None:
            values, vectors = np.linalg.eigh(np.asarray(self.diffusion))
            noise = vectors * np.sqrt(2 * h * np.maximum(values, 0))
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            for _ in range(steps):
                kick = rng.standard_normal(x.shape) @ noise.T
                rate = self.velocity(x)
                x = x + h / 2 * (rate + self.velocity(x + h * rate + kick)) + kick
        if not np.isfinite(x).all():
            raise ValueError(
                "drift: expected paths that stay finite, got NaN or Inf; take more steps"
            )
        return x

    def _linear(self) -> OrnsteinUhlenbeck:
        """Returns the linear Fokker–Planck problem without f."""
        matrix = np.zeros((self.dim,) * 2) if self.matrix is None else self.matrix
        return OrnsteinUhlenbeck(matrix, self.diffusion, self.start, self.box, offset=self.offset)
