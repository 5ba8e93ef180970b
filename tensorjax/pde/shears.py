"""Polynomial shears: nonlinear coordinates with closed-form inverses and unit Jacobian.

With the axes split into moved ones J and the others, y_J = x_J + q(x_others) and y_others =
x_others, where q = Σ_m c_m p_m e_{j(m)} in monomials p_m of the others. The inverse is x_J = y_J −
q(y_others), volumes are kept, and a motion ċ is the field Σ_m ċ_m p_m e_{j(m)} in y for every c:
all those fields commute. On a train, p_m ∂_j is an operator of TT-rank one, and so `field_motion`
finds the ċ that leaves least of the right side outside the tangent space by the same quadratic
problem as `Convex` and `MultiLevel`, in these directions instead of y_k ∂_j. `Sheared` is a problem
in coordinates that move so. `tensorjax.pde.flows` has fields of any kind.

Source: ours.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax._typing import ArrayLike, HostArray
from tensorjax.pde._arguments import or_zero
from tensorjax.pde._discretization.variable_coefficients import flux
from tensorjax.pde._function_trains.initial_states import Function
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._problems.drifts import Field
from tensorjax.pde._problems.problem import Problem, RightSide, check_unbounded


@dataclasses.dataclass(frozen=True)
class Shears:
    """Shear maps of coordinates: axes J are shifted by polynomials of the other coordinates.

    Args:
      dim: d.
      moved: the axes J, at least one, not all.
      degree: largest total degree of the monomials.

    Raises:
      ValueError: axes out of range, none or all of them, a degree below one.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> bend = pde.Shears(2, moved=(0,), degree=2)
      >>> print(bend.powers, bend.axes)
      [[0 1]
       [0 2]] [0 0]
      >>> y = bend.forward(np.array([0.0, 0.5]), np.array([[1.0, 2.0]]))
      >>> print(y, bend.inverse(np.array([0.0, 0.5]), y))
      [[3. 2.]] [[1. 2.]]
    """

    dim: int
    moved: Sequence[int]
    degree: int = 3

    def __post_init__(self):
        object.__setattr__(self, "dim", _check.integer("dim", self.dim, low=2))
        moved = tuple(
            _check.integer("moved", j, low=0, high=self.dim - 1) for j in sorted(set(self.moved))
        )
        if not 0 < len(moved) < self.dim:
            raise ValueError(f"moved: expected one axis or more, but not all, got {self.moved}")
        object.__setattr__(self, "moved", moved)
        _check.integer("degree", self.degree, low=1)

    @property
    def powers(self) -> np.ndarray:
        """Exponents of every monomial of a shear map, (M, d)."""
        return np.repeat(self._monomials, len(self.moved), axis=0)

    @property
    def axes(self) -> np.ndarray:
        """Axis that each monomial of a shear map shifts, (M,)."""
        return np.tile(self.moved, len(self._monomials))

    @property
    def _monomials(self) -> np.ndarray:
        others = [k for k in range(self.dim) if k not in self.moved]
        out = []
        for degree in range(1, self.degree + 1):
            for chosen in itertools.combinations_with_replacement(others, degree):
                out.append(np.bincount(chosen, minlength=self.dim))
        return np.array(out)

    def factor(self, m: int, k: int, y: np.ndarray) -> np.ndarray:
        """Evaluates the factor of a shear map's monomial m that depends on coordinate k.

        Args:
          m: number of the monomial.
          k: coordinate.
          y: values of that coordinate, (n,).

        Returns:
          (n,).
        """
        return y ** self.powers[m, k]

    def shift(self, coefficients: ArrayLike, x: HostArray) -> np.ndarray:
        """Evaluates the displacement of points (m, d) by a polynomial shear map.

        Args:
          coefficients: c, (M,).
          x: points (m, d).

        Returns:
          (m, d), zero along the axes that do not move.
        """
        values = np.prod(x[:, None] ** self.powers[None], axis=2) * np.asarray(coefficients)
        out = np.zeros_like(x)
        for j in self.moved:
            out[:, j] = values[:, self.axes == j].sum(1)
        return out

    def forward(self, coefficients: ArrayLike, x: ArrayLike) -> np.ndarray:
        """Maps points x, (m, d), to sheared points y by a polynomial shear map.

        Args:
          coefficients: c, (M,).
          x: points (m, d).

        Returns:
          (m, d).
        """
        x = np.asarray(x, np.float64)
        return x + self.shift(coefficients, x)

    def inverse(self, coefficients: ArrayLike, y: ArrayLike) -> np.ndarray:
        """Maps sheared points y, (m, d), back to points x by the inverse shear.

        Args:
          coefficients: c, (M,).
          y: points (m, d).

        Returns:
          (m, d).
        """
        y = np.asarray(y, np.float64)
        return y - self.shift(coefficients, y)

    def push(self, coefficients: ArrayLike, x: HostArray, field: HostArray) -> np.ndarray:
        """Pushes vectors at points x forward by the Jacobian of a shear map.

        Args:
          coefficients: c, (M,).
          x: points (m, d).
          field: f at these points, (m, d).

        Returns:
          (m, d).
        """
        out = np.array(field, np.float64)
        for k in set(range(self.dim)) - set(self.moved):
            lower = self.powers - np.eye(self.dim, dtype=int)[k]
            slope = self.powers[:, k] * np.asarray(coefficients)
            values = np.prod(x[:, None] ** np.maximum(lower, 0)[None], axis=2) * slope
            for j in self.moved:
                out[:, j] += field[:, k] * values[:, self.axes == j].sum(1)
        return out


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Sheared(Problem):
    """Liouville problem in coordinates sheared by polynomials, which may move in time.

    v_t = −∇·((F + Σ_m ċ_m p_m e_{j(m)}) v), F the image of the drift under the shear with the
    coefficients c + (t − t₀) ċ, brought into a train by cross approximation. It is a problem like
    any other, in z = the sheared coordinates: affine coordinates y = Γ z + s may move on top.

    Attributes:
      problem: with a method ``velocity(x)`` (m, d) ↦ (m, d), no diffusion, and an ``exact``
        solution if one is to be known here: a `FokkerPlanck` without diffusion.
      shears: the fields.
      coefficients: c at t₀, (M,).
      rates: ċ, (M,).
      since: t₀.
      cross_tol: relative error of the cross approximation.

    Raises:
      ValueError: diffusion, or shapes that do not match.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), np.diag([0.5, 0.5]))
      >>> drift = [pde.Power([0.0, 1.0], 0.0, 2), None]
      >>> problem = pde.FokkerPlanck(drift, None, start, pde.Box.fourier(2, n=48))
      >>> shears = pde.Shears(2, (0,), degree=2)
      >>> still = pde.Sheared(problem, shears, np.zeros(2), np.array([0.0, -1.0]))
      >>> x = np.array([[0.5, 0.5]])  # the coordinates move with the solution
      >>> bool(np.allclose(still.exact(0.7, x), start.values(x)))
      True
    """

    def __init__(
        self,
        problem: Problem,
        shears: Shears,
        coefficients: Any,
        rates: Any = None,
        since: float = 0.0,
        *,
        cross_tol: float = 1e-10,
    ):
        if getattr(problem, "diffusion", None) is not None:
            raise ValueError(
                "problem: expected one without diffusion, which shears do not carry; take "
                "pde.integrate in linear coordinates"
            )
        if getattr(problem, "timed", False):
            raise ValueError(
                "problem: expected a drift that does not depend on time, got a timed one; take "
                "pde.integrate in linear coordinates"
            )
        count = (len(shears.axes),)
        given = {"coefficients": coefficients, "rates": or_zero(rates, *count)}
        for name, value in given.items():
            given[name] = np.asarray(value, np.float64)
            if given[name].shape != count:
                raise ValueError(f"{name}: expected shape {count}, got {given[name].shape}")
            _check.finite(name, given[name])
        check_unbounded(problem.box)
        if shears.dim != problem.dim:
            raise ValueError(f"shears: expected {problem.dim} coordinates, got {shears.dim}")
        self._set(problem=problem, shears=shears, since=float(since), cross_tol=cross_tol, **given)
        super().__init__(Function(self._begin), problem.box)

    start: Any = dataclasses.field(init=False)  # both are those of the problem
    box: Any = dataclasses.field(init=False)
    problem: Any
    shears: Shears
    coefficients: np.ndarray
    rates: np.ndarray
    since: float
    cross_tol: float

    def _begin(self, z: Any) -> np.ndarray:
        """Evaluates a PDE's initial state at points in sheared coordinates."""
        return self.problem.start.values(self.inverse(self.since, z))

    def at(self, t: float) -> np.ndarray:
        """Returns the coefficients of a moving shear map at time t.

        Args:
          t: time.

        Returns:
          (M,).
        """
        return self.coefficients + (t - self.since) * self.rates

    def inverse(self, t: float, z: ArrayLike) -> np.ndarray:
        """Maps sheared points (m, d) to physical points at time t.

        Args:
          t: time.
          z: sheared points (m, d).

        Returns:
          (m, d).
        """
        return self.shears.inverse(self.at(t), z)

    def velocity(self, t: float, z: ArrayLike) -> np.ndarray:
        """Evaluates a PDE's drift in sheared coordinates at points (m, d).

        Args:
          t: time.
          z: sheared points (m, d).

        Returns:
          (m, d).
        """
        x = self.inverse(t, z)
        moved = self.shears.push(self.at(t), x, self.problem.velocity(x))
        return moved + self.shears.shift(self.rates, np.asarray(z))

    def right_side(self, map: AffineMap, t: float) -> RightSide:
        """Builds a Liouville equation's right side in coordinates y = Γ z + s, z sheared ones."""
        field = Field(lambda z: self.velocity(t, z), self.dim, self.cross_tol)
        pieces = field.pieces(self.box, map)
        return RightSide(self.box, None, tuple(flux(self.box, -a, m) for m, a in pieces))

    def exact(self, t: float, x: ArrayLike) -> np.ndarray | None:
        """Evaluates a PDE's exact solution at sheared points x, (m, d); None if unknown."""
        return self.problem.exact(t, self.inverse(t, np.asarray(x, np.float64)))
