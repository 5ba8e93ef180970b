"""Nonlinear maps of coordinates that are flows of vector fields, and their derivatives.

With a field g(y, t) = Σ_m c_m(t) g_m(y), y(t) = Φ_t(x) follows ẏ = g(y, t) from y(0) = x. Every
Φ_t is a diffeomorphism for as long as the flow exists: for ever where g is bounded, as that of
`Fields` is. The inverse is the flow backwards, and cannot fail to exist; ∂x/∂y and
∇ ln det ∂y/∂x are integrated along with it: no matrix is differenced, and det ∂y/∂x > 0.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tensorjax import _check
from tensorjax._cores import rounding
from tensorjax._cores.unfoldings import Cores
from tensorjax._typing import ArrayLike

State = tuple[np.ndarray, ...]
# Length of a step of the classical method over the largest slope of the field, and the points, in
# units of the reach of the fields, at which slopes are looked at.
_STEP, _LOOKS = 0.05, 64
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
        """Number of the monomial of every vector field, (M,)."""
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
        """Evaluates sin(ω y)^p for p = 0 … degree, with up to two derivatives."""
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


class Back(NamedTuple):
    """Preimages x of points y under a flow map, with inverse Jacobians and volume gradients.

    Attributes:
      x: (m, d).
      inverse: ∂x/∂y, (m, d, d).
      rise: ∇_y ln det ∂y/∂x, (m, d), or None.
    """

    x: np.ndarray
    inverse: np.ndarray
    rise: np.ndarray | None

    def push(self, field: np.ndarray) -> np.ndarray:
        """Pushes vectors (m, d) at points x forward to y: multiplies by the Jacobian ∂y/∂x.

        Args:
          field: (m, d), at the points x.

        Returns:
          (m, d), at the points y.
        """
        return np.linalg.solve(self.inverse, field[..., None])[..., 0]


@dataclasses.dataclass(frozen=True, eq=False)
class FlowMap:
    """Time-dependent map y = Φ_t(x): the flow of a vector field Σ_m c_m(t) g_m.

    Attributes:
      fields: g_m.
      starts: when each piece begins, ascending; the last one has no end.
      pieces: of each piece, coefficients (degree + 1, M) by powers of the time since it began.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> fields = pde.Fields(2, 6.0, degree=2)
      >>> bend = pde.FlowMap(fields, (0.0,), (np.array([[0, 0, 0.3, 0, 0, 0.2]]),))
      >>> x = np.array([[0.5, -1.0], [0.2, 0.3]])
      >>> y, volume = bend.forward(1.0, x)
      >>> back = bend.back(1.0, y)
      >>> bool(np.allclose(back.x, x, atol=1e-8))
      True
      >>> bool(np.allclose(volume * np.linalg.det(back.inverse), 1))
      True
    """

    fields: Fields
    starts: tuple[float, ...]
    pieces: tuple[np.ndarray, ...]
    _slopes: dict[tuple[int, float], float] = dataclasses.field(default_factory=dict, repr=False)

    def rates(self, t: float) -> np.ndarray:
        """Returns the coefficients c(t), (M,), of the vector field that generates a flow map.

        Args:
          t: time.

        Returns:
          (M,).
        """
        k = max(int(np.searchsorted(self.starts, t, "right")) - 1, 0)
        return _polynomial(self.pieces[k], t - self.starts[k])

    def extended(self, start: float, piece: np.ndarray) -> "FlowMap":
        """Returns a flow map with further vector-field coefficients from time ``start`` on.

        Args:
          start: time at which it begins.
          piece: coefficients (degree + 1, M), by powers of the time since then.

        Returns:
          `FlowMap`, a new one.
        """
        starts, pieces = (*self.starts, float(start)), (*self.pieces, piece)
        return FlowMap(self.fields, starts, pieces, self._slopes)

    def forward(self, t: float, x: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Maps points x to y = Φ_t(x); returns y (m, d) and the volume factor det ∂y/∂x (m,).

        Args:
          t: time.
          x: points (m, d).

        Returns:
          (y (m, d), det ∂y/∂x (m,)).
        """
        x = np.array(x, np.float64)

        def rate(c: np.ndarray, y: np.ndarray, log: np.ndarray) -> State:
            g, slopes, _ = self.fields.values(c, y)
            return g, np.trace(slopes, axis1=1, axis2=2)

        state: State = (x, np.zeros(len(x)))
        for k, a, b in self._spans(t):
            state = self._moved(k, a, b, state, rate)
        return state[0], np.exp(state[1])

    def back(self, t: float, y: ArrayLike, *, second: bool = False) -> Back:
        """Maps points y back to x with Φ_t(x) = y, with the derivatives of the inverse.

        These are ∂x/∂y and, if asked for, ∇ ln det ∂y/∂x.

        Args:
          t: time.
          y: points (m, d).
          second: whether ∇ ln det ∂y/∂x is asked for.

        Returns:
          `Back`.
        """
        y = np.array(y, np.float64)

        def rate(c: np.ndarray, y: np.ndarray, m: np.ndarray, *q: np.ndarray) -> State:
            g, slopes, rise = self.fields.values(c, y, second=second)
            # ln det ∂y/∂x is the integral of div g along the way.
            more = () if rise is None else (-(m.mT @ rise[..., None])[..., 0],)
            return g, slopes @ m, *more

        one = np.tile(np.eye(self.fields.dim), (len(y), 1, 1))
        state: State = (y, one, *([np.zeros_like(y)] if second else []))
        for k, a, b in reversed(self._spans(t)):
            state = self._moved(k, b, a, state, rate)
        x, inverse, *rise = state
        return Back(x, inverse, rise[0] if rise else None)

    def _spans(self, t: float) -> list[tuple[int, float, float]]:
        """Lists the pieces of a flow map with nonzero velocity up to time t: (index, from, to)."""
        ends = (*self.starts[1:], math.inf)
        spans = [(k, a, min(b, t)) for k, (a, b) in enumerate(zip(self.starts, ends, strict=True))]
        return [(k, a, b) for k, a, b in spans if a < b and np.any(self.pieces[k])]

    def _moved(self, k: int, a: float, b: float, state: State, rate: Callable[..., State]) -> State:
        """Integrates points through one time piece of a flow map by the Runge–Kutta method."""
        count = max(1, math.ceil(abs(b - a) * self._slope(k, max(a, b)) / _STEP))
        h, start = (b - a) / count, self.starts[k]

        def slopes(t: float, by: float, before: State | None) -> State:
            at = state if before is None else _sum(state, (before, by))
            return rate(_polynomial(self.pieces[k], t - start), *at)

        for i in range(count):
            t = a + i * h
            k1 = slopes(t, 0.0, None)
            k2 = slopes(t + h / 2, h / 2, k1)
            k3 = slopes(t + h / 2, h / 2, k2)
            k4 = slopes(t + h, h, k3)
            state = _sum(state, (k1, h / 6), (k2, h / 3), (k3, h / 3), (k4, h / 6))
        return state

    def _slope(self, k: int, end: float) -> float:
        """Estimates the largest Jacobian norm of a flow map's vector field, for the step length."""
        key = k, end
        if key not in self._slopes:
            reach, d = self.fields.reach, self.fields.dim
            y = np.random.default_rng(0).uniform(-reach / 2, reach / 2, (_LOOKS, d))
            rates = [_polynomial(self.pieces[k], t) for t in (0.0, end - self.starts[k])]
            slopes = [self.fields.values(c, y)[1] for c in rates]
            self._slopes[key] = float(np.linalg.norm(np.concatenate(slopes), axis=(1, 2)).max())
        return self._slopes[key]


def _polynomial(coefficients: np.ndarray, t: float) -> np.ndarray:
    return t ** np.arange(len(coefficients)) @ coefficients


def _sum(state: State, *parts: tuple[State, float]) -> State:
    return tuple(x + sum(by * part[i] for part, by in parts) for i, x in enumerate(state))
