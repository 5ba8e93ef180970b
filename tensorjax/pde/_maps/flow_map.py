"""Nonlinear maps of coordinates that are flows of vector fields, and their derivatives.

With a field g(y, t) = Σ_m c_m(t) g_m(y), y(t) = Φ_t(x) follows ẏ = g(y, t) from y(0) = x. Every
Φ_t is a diffeomorphism for as long as the flow exists: for ever where g is bounded, as that of
`Fields` is. The inverse is the flow backwards, and cannot fail to exist; ∂x/∂y and
∇ ln det ∂y/∂x are integrated along with it: no matrix is differenced, and det ∂y/∂x > 0.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tensorjax._typing import ArrayLike
from tensorjax.pde._maps.vector_fields import Fields

State = tuple[np.ndarray, ...]
# Length of a step of the classical method over the largest slope of the field, and the points, in
# units of the reach of the fields, at which slopes are looked at.
_STEP, _LOOKS = 0.05, 64


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
        """Pushes vectors (m, d) forward by a flow map: multiplies by the Jacobian ∂y/∂x.

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
