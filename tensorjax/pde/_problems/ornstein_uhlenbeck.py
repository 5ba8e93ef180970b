"""Problems with linear drift: Ornstein–Uhlenbeck processes and linear Liouville equations.

The affine part of other drifts, with constant diffusion, has the same coefficients (`affine_part`).
"""

import dataclasses
from typing import Any

import numpy as np
from scipy import linalg

from tensorjax import _check
from tensorjax._typing import ArrayLike, KeyOrGenerator
from tensorjax.pde._arguments import coefficient, floats, generator_of, or_zero
from tensorjax.pde._discretization.affine_operators import Coefficients
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.initial_states import Function, Gaussian, Mixture, Start
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._maps.characteristics import Flow, flow
from tensorjax.pde._problems.diffusion import diffusion_matrix
from tensorjax.pde._problems.problem import Problem, RightSide

# Eigenvalues of a covariance below this share of the largest: some direction is without noise.
SINGULAR = 1e-12


def affine_part(map: AffineMap, matrix: Any, offset: Any, diffusion: Any) -> Coefficients:
    """Computes the operator −∇·((A x + b) u) + D:∇∇u of an Ornstein–Uhlenbeck process."""
    d = map.dim
    xp, (gamma, s, a, b, diff) = floats(
        *map, or_zero(matrix, d, d), or_zero(offset, d), or_zero(diffusion, d, d)
    )
    m = -xp.linalg.solve(gamma.T, (gamma @ a).T).T
    shift = -m @ s - gamma @ b
    return Coefficients(
        None if matrix is None else m,
        shift,
        None if diffusion is None else gamma @ diff @ gamma.T,
        -xp.trace(a),
    )


def check_turns(box: Any, matrix: Any) -> None:
    """Raises ValueError if an Ornstein–Uhlenbeck drift is linear in a periodic coordinate."""
    if matrix is None or _check.is_traced(matrix):
        return
    for k, axis in enumerate(box.axes):
        if axis.kind == "periodic" and np.any(np.asarray(matrix)[:, k]):
            raise ValueError(
                f"matrix: expected zeros in column {k}, whose axis is periodic, for a drift linear "
                "in an angle jumps where a turn ends; take pde.Sin or another periodic term, or a "
                'kind of axis that is not "periodic"'
            )


def stationary_gaussian(matrix: Any, offset: Any, diffusion: Any) -> Gaussian | None:
    """Computes the stationary Gaussian of an Ornstein–Uhlenbeck process, A C + C Aᵀ + 2D = 0.

    None where there is no such density: a mode that does not decay, or that no noise reaches.
    """
    a = np.asarray(matrix, np.float64)
    if np.linalg.eigvals(a).real.max() >= 0:
        return None
    covariance = linalg.solve_continuous_lyapunov(a, -2 * np.asarray(diffusion, np.float64))
    low, high = np.linalg.eigvalsh(covariance)[[0, -1]]
    if low <= SINGULAR * high:
        return None
    return Gaussian(-np.linalg.solve(a, np.asarray(or_zero(offset, len(a)))), covariance)


def affine_velocity(x: np.ndarray, matrix: Any, offset: Any) -> np.ndarray:
    """Evaluates the Ornstein–Uhlenbeck drift A x + b at points (m, d); None stands for zero."""
    out = np.zeros_like(x) if matrix is None else x @ np.asarray(matrix).T
    return out if offset is None else out + np.asarray(offset)


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class _Linear(Problem):
    """Base class of Ornstein–Uhlenbeck and Liouville problems, of drift A x + b, diffusion D."""

    matrix: Any
    diffusion: Any
    offset: Any

    def __init__(self, matrix: Any, diffusion: Any, start: Start, box: Box, offset: Any):
        super().__init__(start, box)
        self._set(
            matrix=coefficient("matrix", matrix, (box.dim,) * 2),
            diffusion=diffusion_matrix("diffusion", diffusion, box.dim),
            offset=coefficient("offset", offset, (box.dim,), optional=True),
        )
        check_turns(box, self.matrix)

    def right_side(self, map: AffineMap, t: float) -> RightSide:
        """Builds the right side of an Ornstein–Uhlenbeck or Liouville equation in coordinates.

        Q_y(v) = −(Γ (A Γ⁻¹ (y − s) + b))·∇v − tr(A) v + (Γ D Γᵀ):∇∇v, at all times.
        """
        return RightSide(self.box, affine_part(map, self.matrix, self.offset, self.diffusion))

    def velocity(self, x: ArrayLike) -> np.ndarray:
        """Evaluates the drift A x + b of an Ornstein–Uhlenbeck or Liouville problem at points.

        Args:
          x: points (m, d).

        Returns:
          (m, d).
        """
        return affine_velocity(np.asarray(x, np.float64), self.matrix, self.offset)

    def flow(self, t: float) -> Flow:
        """Computes F, g, Q of an Ornstein–Uhlenbeck process x(t) = F x(0) + g + noise.

        Args:
          t: duration.

        Returns:
          (F, g, Q) of x(t) = F x(0) + g plus normal noise of covariance Q.
        """
        d = self.dim
        return flow(self.matrix, or_zero(self.offset, d), or_zero(self.diffusion, d, d), t)

    def exact(self, t: float, x: ArrayLike) -> np.ndarray | None:
        """Evaluates the exact density of an Ornstein–Uhlenbeck or Liouville problem, or None.

        Gaussians are moved in closed form; without diffusion any start gives u₀ along
        characteristics times e^(−tr(A) t).
        """
        if self.box.walled:
            return None
        if isinstance(self.start, Gaussian | Mixture):
            return self.start.moved(self.flow(t)).values(np.asarray(x))
        if self.diffusion is not None:
            return None
        back = self.flow(t).back(np.asarray(x, np.float64))
        return self.start.values(back) * np.exp(-np.trace(np.asarray(self.matrix)) * t)

    def moments(self, t: float) -> tuple[float, np.ndarray, np.ndarray] | None:
        """Returns mass, mean, covariance of an Ornstein–Uhlenbeck problem, or None."""
        if isinstance(self.start, Function) or self.box.walled:
            return None
        return self.start.moved(self.flow(t)).moments()

    def sample(self, key: KeyOrGenerator, t: float, count: int) -> np.ndarray:
        """Draws points (count, d) from an Ornstein–Uhlenbeck problem's exact density at time t."""
        if isinstance(self.start, Function) or self.box.walled:
            return super().sample(key, t, count)
        return self.start.moved(self.flow(t)).sample(generator_of(key), count)


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class OrnsteinUhlenbeck(_Linear):
    """Density equation of an Ornstein–Uhlenbeck process: u_t = −∇·((A x + b) u) + D:∇∇u.

    Attributes:
      matrix: A, (d, d), possibly traced.
      diffusion: D, (d, d), symmetric and positive semidefinite, or None for zero.
      offset: b, (d,), or None for zero.
      start: the initial state, u(0): a `Gaussian`, `Mixture` or `Function`.
      box: `Box` of the coordinates y.

    Raises:
      ValueError: wrong shapes, NaN or Inf, negative diffusion.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.25]))
      >>> process = pde.OrnsteinUhlenbeck(-np.eye(2), np.eye(2), start, pde.Box.fourier(2))
      >>> mass, mean, covariance = process.moments(50.0)  # at rest: A C + C Aᵀ + 2D = 0
      >>> bool(np.allclose(covariance, np.eye(2)))
      True
    """

    def __init__(self, matrix: Any, diffusion: Any, start: Start, box: Box, *, offset: Any = None):
        super().__init__(matrix, diffusion, start, box, offset)

    def stationary_density(self, x: ArrayLike) -> np.ndarray | None:
        """Evaluates an Ornstein–Uhlenbeck process's stationary Gaussian, or None.

        None where a mode does not decay, or no noise reaches it.
        """
        if self.box.walled or self.diffusion is None:
            return None
        found = stationary_gaussian(self.matrix, self.offset, self.diffusion)
        return None if found is None else found.values(np.asarray(x))


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Liouville(_Linear):
    """Liouville equation u_t = −∇·((A x + b) u): density of points that move with ẋ = A x + b.

    Attributes:
      matrix: A, (d, d), possibly traced.
      offset: b, (d,), or None for zero.
      start: the initial state, u(0): a `Gaussian`, `Mixture` or `Function`.
      box: `Box` of the coordinates y.

    Raises:
      ValueError: wrong shapes, NaN or Inf.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.16]), amplitude=1.0)
      >>> rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
      >>> turned = pde.Liouville(rotation, start, pde.Box.fourier(2, 112))
      >>> x = np.array([[0.0, -1.0]])
      >>> print(turned.exact(np.pi / 2, x), start.values(np.array([[1.0, 0.0]])))
      [0.60653066] [0.60653066]
    """

    diffusion: None = dataclasses.field(init=False)  # none is given

    def __init__(self, matrix: Any, start: Start, box: Box, *, offset: Any = None):
        super().__init__(matrix, None, start, box, offset)
