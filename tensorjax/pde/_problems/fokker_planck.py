"""Fokker–Planck and Liouville equations with nonlinear drift."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax._typing import ArrayLike, KeyOrGenerator
from tensorjax.pde._arguments import coefficient, generator_of, or_zero
from tensorjax.pde._discretization import variable_coefficients as multipliers
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.initial_states import Function, Start
from tensorjax.pde._maps import characteristics
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._problems.diffusion import Diffusion, Interpretation
from tensorjax.pde._problems.drifts import Field
from tensorjax.pde._problems.ornstein_uhlenbeck import (
    OrnsteinUhlenbeck,
    affine_part,
    affine_velocity,
    check_turns,
)
from tensorjax.pde._problems.problem import Problem, RightSide
from tensorjax.pde._problems.user_functions import check_periodic


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class FokkerPlanck(Problem):
    """Fokker–Planck equation u_t = −∇·((A x + b + f(x)) u) + ∂_i∂_j (D_ij u); Liouville if D = 0.

    It is that of the stochastic differential equation dx = (A x + b + f(x)) dt + √(2D) dW. The
    linear part of the drift, constant diffusion and the motion of the coordinates are one operator,
    of the TT-rank of `affine_generator`; every other term a of the drift is one more, v ↦ −a·∇(m v)
    of TT-rank twice that of its multiplier m, and so is every term of a D that varies.

    Attributes:
      drift: f, d entries, each a term (`Sin`, `Power`, `Product`, `Separable`), a sequence of terms
        that are summed, or None; or a function f(x) or f(t, x) that maps points (m, d) to (m, d),
        brought into a train by cross approximation in every new map and, with t, at every time.
      diffusion: D, (d, d), symmetric and positive semidefinite, a number for a multiple of 1, or
        None for zero. Where it varies (multiplicative noise): a `Term`, for a multiple of 1;
        d entries of the diagonal, or d rows of d entries, each a term, a number or None; pairs
        (term, matrix), which are summed; or a function D(x) or D(t, x) of points (m, d), with
        values (m, d), the diagonal, or (m, d, d), by cross approximation as the drift. It has to
        be positive semidefinite all over the box; where that is so for a part of space only (√x),
        coordinates have to be fixed.
      matrix: A, (d, d), or None for zero.
      offset: b, (d,), or None for zero.
      interpretation: sense of √(2D(x)) dW: "ito"; "stratonovich", which adds ½ ∂_j D_ij to the
        drift (each term of D a noise of its own, whose directions do not depend on x); or
        "klimontovich" (Hänggi–Klimontovich, isothermal), which adds ∂_j D_ij: ∇·(D∇u).
      cross_tol: relative error of cross approximations of the drift and the diffusion.
      start: the initial state, u(0): a `Gaussian`, `Mixture` or `Function`.
      box: `Box` of the coordinates y.

    Raises:
      ValueError: wrong shapes, NaN or Inf, negative diffusion, an interpretation that D does not
        determine.

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

      Geometric Brownian motion dx = μ x dt + σ x dW, away from zero.

      >>> axis = pde.Axis("fourier", 96, 0.0, 4.0)
      >>> price = pde.FokkerPlanck(
      ...     None,
      ...     [pde.Power([1.0], exponent=2, amplitude=0.2**2 / 2)],
      ...     pde.Gaussian([1.5], [[0.02]]),
      ...     pde.Box([axis]),
      ...     matrix=[[0.1]],
      ... )
      >>> solution = pde.integrate(price, t1=0.1, tol=1e-5, coordinates="fixed")
      >>> _, mean, _ = pde.moments(solution.final.v, solution.final.map, price.box)
      >>> bool(abs(mean[0] - 1.5 * np.exp(0.1 * 0.1)) < 1e-4)
      True

    Source: for the interpretations: C. Gardiner, "Stochastic Methods" (Springer, 2009), chapter 4;
      Y. Klimontovich, "Ito, Stratonovich and kinetic forms of stochastic equations", Physica A 163
      (1990).
    """

    drift: Any
    matrix: Any
    diffusion: Any
    offset: Any
    interpretation: Interpretation
    cross_tol: float
    field: Field = dataclasses.field(init=False)
    noise: Diffusion = dataclasses.field(init=False)

    def __init__(
        self,
        drift: Any,
        diffusion: Any,
        start: Start,
        box: Box,
        *,
        matrix: Any = None,
        offset: Any = None,
        interpretation: Interpretation = "ito",
        cross_tol: float = 1e-8,
    ):
        super().__init__(start, box)
        d = box.dim
        noise = Diffusion(diffusion, box, cross_tol, interpretation)
        self._set(
            matrix=coefficient("matrix", matrix, (d, d), optional=True),
            diffusion=diffusion if noise.variable else noise.constant,
            noise=noise,
            interpretation=interpretation,
            offset=coefficient("offset", offset, (d,), optional=True),
            cross_tol=cross_tol,
            field=Field(drift, d, cross_tol),
        )
        check_turns(box, self.matrix)
        if self.field:
            check_periodic("drift", box, self.field.values)
        if noise.variable:
            check_periodic("diffusion", box, noise.values)

        self._set(drift=self.field.given)

    def right_side(self, map: AffineMap, t: float) -> RightSide:
        """Builds the right side of a Fokker–Planck equation in the coordinates of a map."""
        parts = self.matrix, self.offset, self.noise.constant
        affine = None if all(p is None for p in parts) else affine_part(map, *parts)
        pieces = self.field.pieces(self.box, map, t)
        drift = tuple(multipliers.transport(self.box, -a, m) for m, a in pieces)
        return RightSide(self.box, affine, drift + self.noise.operators(self.box, map, t))

    def velocity(self, x: ArrayLike, t: float = 0.0) -> np.ndarray:
        """Evaluates a Fokker–Planck equation's drift A x + b + f(t, x) at points (m, d).

        Args:
          x: points (m, d).
          t: time.

        Returns:
          (m, d).
        """
        x = np.asarray(x)
        return self.field.values(x, t) + affine_velocity(x, self.matrix, self.offset)

    def exact(self, t: float, x: ArrayLike) -> np.ndarray | None:
        """Evaluates a Fokker–Planck equation's exact density (affine or no noise); else None.

        None with a drift of t, too. With D = 0 it follows characteristics, to about 1e-10.
        """
        if self._affine:
            return self._linear().exact(t, x)
        if self.diffusion is not None or self.field.timed or self.box.walled:
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
        """Returns a linear Fokker–Planck equation's exact mass, mean and covariance; else None."""
        return self._linear().moments(t) if self._affine else None

    def sample(self, key: KeyOrGenerator, t: float, count: int) -> np.ndarray:
        """Draws points (count, d) from a Fokker–Planck equation's exact density, if known.

        With D and f there is no exact density: `simulate` gives approximate points.
        """
        if self._affine:
            return self._linear().sample(key, t, count)
        lost = self.diffusion is not None or self.field.timed or self.box.walled
        if lost or isinstance(self.start, Function):
            return super().sample(key, t, count)
        start = self.start.sample(generator_of(key), count)
        return characteristics.solve(self.velocity, start, t)

    def simulate(self, key: KeyOrGenerator, t: float, count: int, *, steps: int) -> np.ndarray:
        """Simulates paths of a Fokker–Planck equation's SDE to time t; returns end points.

        Statistics converge with 1/√count and, for constant D, with the square of the step (Heun's
        method, weak order 2); else with the step (Euler–Maruyama of the Itô equation, order 1).

        Args:
          key: `jax.random.key`, or a NumPy generator.
          t: time.
          count: number of paths.
          steps: number of steps.

        Returns:
          Points (count, d).

        Raises:
          ValueError: a start that cannot be sampled, a box with walls, or paths that do not stay
            finite.

        Source: P. Kloeden, E. Platen, "Numerical Solution of Stochastic Differential Equations"
        (Springer, 1992), section 15.1.
        """
        draw = getattr(self.start, "sample", None)
        if draw is None:
            raise ValueError(
                "start: expected a pde.Gaussian or pde.Mixture to sample from, got "
                f"{type(self.start).__name__}"
            )
        if self.box.walled:
            raise ValueError(
                "box: expected no walls, which simulated paths do not see; leave walls= out, or "
                "take pde.integrate"
            )
        rng, h = generator_of(key), t / _check.integer("steps", steps, low=1)
        x = draw(rng, count)
        step = self._euler if self.noise.variable else self._heun()
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            for k in range(steps):
                x = step(x, k * h, h, rng.standard_normal(x.shape))
        if not np.isfinite(x).all():
            raise ValueError(
                "drift: expected paths that stay finite, got NaN or Inf; take more steps"
            )
        return x

    def _heun(self) -> Callable[[np.ndarray, float, float, np.ndarray], np.ndarray]:
        """Returns a function for one Heun step of a Fokker–Planck equation of constant noise."""
        root = _root(np.asarray(or_zero(self.diffusion, self.dim, self.dim)))

        def step(x: np.ndarray, t: float, h: float, normal: np.ndarray) -> np.ndarray:
            kick = np.sqrt(2 * h) * normal @ root.T
            rate = self.velocity(x, t)
            return x + h / 2 * (rate + self.velocity(x + h * rate + kick, t + h)) + kick

        return step

    def _euler(self, x: np.ndarray, t: float, h: float, normal: np.ndarray) -> np.ndarray:
        """Advances paths of a Fokker–Planck equation's SDE by one Euler–Maruyama step."""
        if not np.isfinite(x).all():
            return x
        kick = (_root(self.noise.values(x, t)) @ normal[:, :, None])[:, :, 0]
        drift = self.velocity(x, t) + self.noise.spurious(x, t)
        return x + h * drift + np.sqrt(2 * h) * kick

    @property
    def timed(self) -> bool:
        """Whether drift or diffusion of the Fokker–Planck equation depends on time."""
        return self.field.timed or self.noise.timed

    @property
    def _affine(self) -> bool:
        """Whether a Fokker–Planck equation has affine drift and constant diffusion."""
        return not (self.field or self.noise.variable)

    def _linear(self) -> OrnsteinUhlenbeck:
        """Returns the Ornstein–Uhlenbeck problem of a Fokker–Planck equation's affine drift."""
        matrix = or_zero(self.matrix, self.dim, self.dim)
        return OrnsteinUhlenbeck(matrix, self.diffusion, self.start, self.box, offset=self.offset)


def _root(diffusion: np.ndarray) -> np.ndarray:
    """Computes roots B of D, B Bᵀ = D, to simulate the SDE of a Fokker–Planck equation."""
    values, vectors = np.linalg.eigh(diffusion)
    return vectors * np.sqrt(np.maximum(values, 0))[..., None, :]
