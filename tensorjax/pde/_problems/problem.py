"""Base classes of PDE problems: the right side in given coordinates, and the problem interface."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax._formats.trains import TT, TTMatrix
from tensorjax._typing import ArrayLike, KeyOrGenerator
from tensorjax.pde._discretization.affine_operators import Coefficients, affine_right_side
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.initial_states import (
    Gaussian,
    Mixture,
    Start,
    with_factors,
    wrapped,
)
from tensorjax.pde._maps.affine_maps import AffineMap


@dataclasses.dataclass(frozen=True, eq=False)
class RightSide:
    """PDE problem's right side Q(v) in coordinates y: operators, source, nonlinear reaction.

    Attributes:
      box: of the grid.
      affine: coefficients of the part (M y + b)·∇v + S:∇∇v + c v, or None.
      others: other linear operators, to be summed with it.
      source: a train that is added, or None.
      reaction: (v, tol) ↦ R(v) at a relative error, nonlinear, or None.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> decay = pde.RightSide(pde.Box.fourier(2, n=16), pde.Coefficients(constant=-1.0))
      >>> decay.operators[0].ranks
      (1, 2, 1)
    """

    box: Box
    affine: Coefficients | None = None
    others: tuple[TTMatrix, ...] = ()
    source: TT | None = None
    reaction: Callable[[TT, float], TT] | None = None

    @functools.cached_property
    def operators(self) -> tuple[TTMatrix, ...]:
        """All linear operators of a PDE problem's right side, a tuple of TT-matrices to sum."""
        if self.affine is None:
            return self.others
        return (affine_right_side(self.box, self.affine), *self.others)

    def terms(self, v: TT) -> list[Any]:
        """Lists linear terms and source of a PDE problem at v, for `tt.linear_combination`.

        Args:
          v: train on the grid of the box.

        Returns:
          Pairs (operator, v) and, if there is one, the source.
        """
        return terms_of(self.operators, self.source, v)

    def moving(self, sigma: ArrayLike, beta: ArrayLike | None = None) -> "RightSide":
        """Returns a PDE problem's right side Q(v) − (Σ y + β)·∇v in moving coordinates.

        The motion joins the affine part, whose TT-rank stays what it is.

        Args:
          sigma: Σ, (d, d).
          beta: β, (d,), or None for zero.

        Returns:
          `RightSide`, a new one.
        """
        affine = Coefficients() if self.affine is None else self.affine
        return dataclasses.replace(self, affine=affine.moving(sigma, beta))


def terms_of(operators: Sequence[TTMatrix], source: TT | None, v: TT) -> list[Any]:
    """Returns a PDE problem's right side as pairs (operator, v) and source, in v's dtype.

    They have the dtype of v, for operators are in double precision whatever JAX's default is.
    """
    found: list[Any] = [(a.astype(v.dtype), v) for a in operators]
    return found if source is None else [*found, source.astype(v.dtype)]


@dataclasses.dataclass(frozen=True, eq=False)
class Problem(abc.ABC):
    """Base class of initial-value problems u_t = G(u) with an initial state and a grid box.

    A problem of one's own has a `right_side`; with `exact`, errors can be seen. Those here are
    dataclasses of what they are built from, so that `dataclasses.replace` makes a new one of some
    of it.

    Attributes:
      start: the initial state.
      box: the box of the moving coordinates y.

    Raises:
      ValueError: a start of other dimensions than the box.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> class Heat(pde.Problem):
      ...     def right_side(self, map, t):
      ...         spread = map.matrix @ map.matrix.T
      ...         return pde.RightSide(self.box, pde.Coefficients(diffusion=spread))
      >>> heat = Heat(pde.Gaussian(np.zeros(2), np.eye(2)), pde.Box.fourier(2))
      >>> heat.right_side(pde.AffineMap.identity(2), 0.0).operators[0].ranks
      (1, 3, 1)
    """

    start: Start
    box: Box

    def __post_init__(self):
        dim = getattr(self.start, "dim", self.box.dim)
        if dim != self.box.dim:
            raise ValueError(f"start: expected {self.box.dim} coordinates as the box, got {dim}")

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def dim(self) -> int:
        """Number of coordinates d of a PDE problem."""
        return self.box.dim

    def initial_cores(self, map: AffineMap, tol: float) -> list[np.ndarray]:
        """Computes the TT-cores of a PDE problem's initial state in double precision on the host.

        Args:
          map: `AffineMap` y = Γ x + s.
          tol: relative error in the norm of the values on the grid.

        Returns:
          d arrays (r_{k−1}, n_k, r_k).

        Raises:
          ValueError: a map of another number of coordinates.
        """
        if map.dim != self.dim:
            raise ValueError(f"map: expected {self.dim} coordinates, got {map.dim}")
        if isinstance(self.start, Gaussian | Mixture):
            cores = wrapped(self.start, self.box, map, tol)
        else:
            cores = self.start.cores(self.box, map, tol)
        return with_factors(cores, self.box)

    def initial(self, map: AffineMap, tol: float) -> TT:
        """Builds the tensor train of a PDE problem's initial state in coordinates y, to ``tol``.

        Args:
          map: `AffineMap` y = Γ x + s.
          tol: relative error in the norm of the values on the grid.

        Returns:
          `TT` of JAX arrays of the shape of the box, in JAX's default dtype.

        Raises:
          ValueError: a map of another number of coordinates.
        """
        return TT([jnp.asarray(c) for c in self.initial_cores(map, tol)])  # JAX's default dtype

    @abc.abstractmethod
    def right_side(self, map: AffineMap, t: float) -> RightSide:
        """Builds a PDE problem's right side in the coordinates of an affine map.

        Args:
          map: `AffineMap` y = Γ x + s.
          t: time.

        Returns:
          `RightSide`.
        """

    def exact(self, t: float, x: ArrayLike) -> np.ndarray | None:
        """Evaluates a PDE problem's exact solution at time t, points (m, d); None if unknown.

        Args:
          t: time.
          x: points (m, d).

        Returns:
          Values (m,), or None.
        """
        return None

    def moments(self, t: float) -> tuple[float, np.ndarray, np.ndarray] | None:
        """Returns mass, mean and covariance of a PDE problem's exact solution; None if unknown.

        Args:
          t: time.

        Returns:
          (mass, mean (d,), covariance (d, d)), or None.
        """
        return None

    def stationary_density(self, x: ArrayLike) -> np.ndarray | None:
        """Evaluates a PDE problem's stationary density, of mass one; None if unknown.

        Args:
          x: points (m, d).

        Returns:
          Values (m,), or None.
        """
        return None

    def sample(self, key: KeyOrGenerator, t: float, count: int) -> np.ndarray:
        """Draws points (count, d) from a PDE problem's exact solution at time t, if known.

        Args:
          key: `jax.random.key`, or a NumPy generator.
          t: time.
          count: number of points.

        Returns:
          Points (count, d).

        Raises:
          ValueError: no exact density is known.
        """
        raise ValueError(
            f"{type(self).__name__}: expected a problem with an exact density to sample from; "
            "draw the points from a density of your own"
        )
