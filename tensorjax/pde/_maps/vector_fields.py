"""Vector fields that move coordinates: sums of products of powers of sines."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tensorjax import _check
from tensorjax._cores import rounding
from tensorjax._cores.unfoldings import Cores

# Relative error of the trains of a field.
_ROUNDED = 1e-13


@dataclasses.dataclass(frozen=True)
class Fields:
    """Basis of vector fields whose flow is a `FlowMap`: products of powers of sines.

    A train with such an operator has the TT-ranks that it had. Fields that depend on y_j alone move
    nothing out of a tangent space and are left out. Those of degree one are nearly linear motions
    where y is small against 1/ω. All are bounded by 1/ω.

    Args:
      dim: d.
      reach: π/2ω: sin(ω y) rises from −reach to reach. The half width of the box, as a rule.
      degree: largest total degree.
      moved: the axes j that move; all of them if None.

    Raises:
      ValueError: axes out of range or none, a degree below one, a reach that is not positive.

    Example:
      >>> from tensorjax import pde
      >>> fields = pde.Fields(2, 5.0, degree=2)
      >>> print(fields.powers.tolist(), fields.axes.tolist())
      [[0, 1], [1, 0], [0, 2], [1, 1], [1, 1], [2, 0]] [0, 1, 0, 0, 1, 1]
    """

    dim: int
    reach: float
    degree: int = 3
    moved: Sequence[int] | None = None

    def __post_init__(self):
        _check.integer("dim", self.dim, low=2)
        _check.integer("degree", self.degree, low=1)
        if not (math.isfinite(self.reach) and self.reach > 0):
            raise ValueError(f"reach: expected a positive length, got {self.reach!r}")
        moved = range(self.dim) if self.moved is None else sorted(set(self.moved))
        moved = tuple(_check.integer("moved", j, low=0, high=self.dim - 1) for j in moved)
        if not moved:
            raise ValueError("moved: expected one axis or more, got none")
        object.__setattr__(self, "moved", moved)

    @functools.cached_property
    def _monomials(self) -> list[tuple[int, ...]]:
        return [
            tuple(int(n) for n in np.bincount(chosen, minlength=self.dim))
            for degree in range(1, self.degree + 1)
            for chosen in sorted(
                itertools.combinations_with_replacement(range(self.dim), degree), reverse=True
            )
        ]

    @functools.cached_property
    def _pairs(self) -> list[tuple[tuple[int, ...], int]]:
        """Exponents of the sines and axis of every vector field of the basis."""
        return [
            (p, j)
            for p in self._monomials
            for j in self.moved or ()
            if any(p[k] for k in range(self.dim) if k != j)
        ]

    @functools.cached_property
    def _places(self) -> np.ndarray:
        """Number of the monomial of every vector field of the basis, (M,)."""
        place = {p: u for u, p in enumerate(self._monomials)}
        return np.array([place[p] for p, _ in self._pairs])

    @property
    def powers(self) -> np.ndarray:
        """Exponents of the sines in every vector field of the basis, (M, d)."""
        return np.array([p for p, _ in self._pairs])

    @property
    def axes(self) -> np.ndarray:
        """Axis along which each vector field of the basis points, (M,)."""
        return self._axes

    @functools.cached_property
    def _axes(self) -> np.ndarray:
        return np.array([j for _, j in self._pairs])

    def factor(self, m: int, k: int, y: np.ndarray) -> np.ndarray:
        """Evaluates the factor of vector field m that depends on coordinate k.

        Args:
          m: number of the field.
          k: coordinate.
          y: values of that coordinate, (n,).

        Returns:
          (n,).
        """
        powers, axis = self._pairs[m]
        scale = 1 / self._wave if k == axis else 1.0
        return scale * self._powers(y)[0][:, powers[k]]

    @property
    def _wave(self) -> float:
        return np.pi / (2 * self.reach)

    def _powers(self, y: np.ndarray, derivatives: int = 0) -> list[np.ndarray]:
        """Evaluates the factors sin(ω y)^p of vector fields, p = 0 … degree, with derivatives."""
        w = self._wave
        s, p = np.sin(w * y)[:, None], np.arange(self.degree + 1)
        powers = np.ones((len(y), self.degree + 1))
        np.cumprod(np.broadcast_to(s, (len(y), self.degree)), axis=1, out=powers[:, 1:])
        out = [powers]
        if derivatives:
            slope = w * np.cos(w * y)[:, None]
            one = p * powers[:, np.maximum(p - 1, 0)]
            out.append(one * slope)
        if derivatives > 1:
            two = p * (p - 1) * powers[:, np.maximum(p - 2, 0)]
            out.append(two * slope**2 - w**2 * one * s)
        return out

    def spread(self, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Expands the vector field Σ_m c_m g_m in monomials of sines: exponents and coefficients.

        Args:
          rates: c, (M,).

        Returns:
          (exponents, coefficients), of U distinct monomials.
        """
        out = np.zeros((len(self._monomials), self.dim))
        out[self._places, self.axes] = rates / self._wave
        return np.array(self._monomials), out

    def values(
        self, rates: np.ndarray, y: np.ndarray, *, second: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Evaluates the vector field Σ_m c_m g_m and its Jacobian at points (m, d).

        Args:
          rates: c, (M,).
          y: points (m, d).
          second: whether ∇ div is asked for.

        Returns:
          (values (m, d), Jacobians (m, d, d), ∇ div (m, d) or None).
        """
        monomials, c = self.spread(rates)
        tables = [
            [t[:, p] for t in self._powers(y[:, k], 2 if second else 1)]
            for k, p in enumerate(monomials.T)
        ]  # [k][derivative] (m, U)
        d = self.dim

        def product(*order: int) -> np.ndarray:
            count = np.bincount(np.asarray(order, int), minlength=d)
            return np.prod([tables[k][count[k]] for k in range(d)], axis=0)

        slopes = np.stack([product(j) @ c for j in range(d)], axis=2)
        if not second:
            return product() @ c, slopes, None
        rise = [sum(product(j, k) @ c[:, j] for j in range(d)) for k in range(d)]
        return product() @ c, slopes, np.stack([np.asarray(r) for r in rise], axis=1)

    def trains(self, rates: np.ndarray, points: Sequence[np.ndarray]) -> list[Cores]:
        """Builds the vector field Σ_m c_m g_m on a grid as one tensor train per component.

        Args:
          rates: c, (M,).
          points: d arrays (n_k,), of the grid.

        Returns:
          d lists of cores (r_{k−1}, n_k, r_k).
        """
        monomials, c = self.spread(rates)
        tables = [self._powers(y)[0][:, p] for y, p in zip(points, monomials.T, strict=True)]
        diagonal = np.eye(len(monomials))
        middle = [diagonal[:, None] * t[None] for t in tables[1:-1]]
        last = tables[-1].T[..., None]
        return [
            rounding.rounded([(tables[0] * c[:, i])[None], *middle, last], _ROUNDED)
            if np.any(c[:, i])
            else [np.zeros((1, len(y), 1)) for y in points]
            for i in range(self.dim)
        ]


class Basis(Protocol):
    """Interface of a set of vector fields g_m = Π_k f_mk(y_k) e_{j(m)} of TT-rank one."""

    @property
    def dim(self) -> int:
        """Number of coordinates of the vector fields."""
        ...

    @property
    def axes(self) -> np.ndarray:
        """Axis j(m) along which each vector field points, (M,)."""
        ...

    def factor(self, m: int, k: int, y: np.ndarray) -> np.ndarray:
        """Evaluates the factor f_mk of vector field m at coordinates y_k, (n,)."""
        ...
