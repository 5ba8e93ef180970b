"""B-splines as the basis of one variable of a functional train."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax._typing import ArrayLike
from tensorjax.tt.functions.bases import Basis, checked_interval, degree_of, fixed


@dataclasses.dataclass(frozen=True, init=False)
class BSpline(Basis):
    """Basis of B-splines: piecewise polynomials between knots, for functions with kinks or peaks.

    Of m knots and degree p there are m + p − 1 functions. A spline has p − 1 continuous derivatives
    at a knot given once; a knot given j times takes j − 1 of them.

    Attributes:
      knots: ascending, the ends of the interval first and last, once each; knots inside up to
        p + 1 times.
      degree: p of the polynomials, 3 for cubic splines.
      low: left end, the first knot.
      high: right end, the last knot.

    Raises:
      ValueError: knots that do not ascend, are too few, or are given too often.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> basis = tt.functions.BSpline([0.0, 0.5, 2.0], degree=1)   # hat functions
      >>> print(basis.values(np.array([0.0, 0.25, 2.0])))
      [[1.  0.  0. ]
       [0.5 0.5 0. ]
       [0.  0.  1. ]]

    Source: C. de Boor, "A Practical Guide to Splines" (Springer, 1978), chapters IX to XIII.
    """

    knots: tuple[float, ...]
    degree: int = 3

    def __init__(self, knots: ArrayLike, degree: int = 3):
        p = degree_of(degree, 0)
        try:
            values = np.asarray(knots, np.float64)
        except (TypeError, ValueError):
            values = np.zeros(0)
        if values.ndim != 1 or len(values) < 2:
            raise ValueError(f"knots: expected two or more ascending numbers, got {knots!r}")
        checked_interval(values[0], values[-1])
        steps = np.diff(values)
        counts = np.unique(values, return_counts=True)[1]
        if (steps < 0).any() or not np.isfinite(values).all():
            raise ValueError(f"knots: expected ascending numbers, got {knots!r}")
        if counts[0] > 1 or counts[-1] > 1 or counts.max() > p + 1:
            raise ValueError(
                f"knots: expected ends once, and others at most degree + 1 = {p + 1} times, "
                f"got {knots!r}"
            )
        object.__setattr__(self, "knots", tuple(values.tolist()))
        object.__setattr__(self, "degree", p)

    @classmethod
    def uniform(cls, low: float, high: float, pieces: int, degree: int = 3) -> "BSpline":
        """Builds a basis of B-splines with knots at equal distances.

        Args:
          low: left end of the interval.
          high: right end.
          pieces: number of intervals between knots; the basis has pieces + degree functions.
          degree: of the polynomials.

        Returns:
          `BSpline`.
        """
        ends = checked_interval(low, high)
        if not isinstance(pieces, int) or pieces < 1:
            raise ValueError(f"pieces: expected an integer >= 1, got {pieces!r}")
        return cls(np.linspace(*ends, pieces + 1), degree)

    @property
    def low(self) -> float:
        """Left end of the interval of the B-splines, their first knot."""
        return self.knots[0]

    @property
    def high(self) -> float:
        """Right end of the interval of the B-splines, their last knot."""
        return self.knots[-1]

    @property
    def size(self) -> int:
        """Number of B-splines in the basis."""
        return len(self.knots) + self.degree - 1

    @functools.cached_property
    def clamped(self) -> np.ndarray:
        """Knot vector (n + p + 1,) of the B-splines, with each end repeated p + 1 times."""
        ends = np.ones(len(self.knots), int)
        ends[[0, -1]] = self.degree + 1
        return fixed(np.repeat(self.knots, ends))

    @functools.cached_property
    def nodes(self) -> np.ndarray:
        """Interpolation points (n,) of the B-splines: averages of knots (Greville).

        Where a knot is given so often that two of them would fall together, they are moved apart.
        """
        t, p = self.clamped, self.degree
        if p == 0:
            return fixed((t[:-1] + t[1:]) / 2)
        at = np.array([t[i + 1 : i + 1 + p].mean() for i in range(self.size)])
        same = np.flatnonzero(at[1:] <= at[:-1])
        for i in same:  # at a jump: one point on each side
            at[i] -= (t[i + p] - t[i]) / (4 * p)
            at[i + 1] += (t[i + p + 2] - t[i + 2]) / (4 * p)
        return fixed(at)

    @functools.cached_property
    def from_values(self) -> np.ndarray:
        """Matrix (n, n) from values at the interpolation points to B-spline coefficients."""
        return fixed(np.linalg.inv(self._on_host(self.nodes)))

    @functools.cached_property
    def integrals(self) -> np.ndarray:
        """Integrals (n,) of the B-splines over the interval."""
        t, p = self.clamped, self.degree
        return fixed((t[p + 1 :] - t[: -p - 1]) / (p + 1))

    @functools.cached_property
    def gram(self) -> np.ndarray:
        """Gram matrix (n, n) of the B-splines in L², banded."""
        x, w = self._gauss
        at = self._on_host(x)
        return fixed(at.T @ (w[:, None] * at))

    @property
    def constant(self) -> np.ndarray:
        """Coefficients (n,) of the constant function 1 in a B-spline basis, which are all 1."""
        return np.ones(self.size)

    def derivative(self) -> tuple["BSpline", np.ndarray]:
        """Returns the B-spline basis of one degree less, and the differentiation matrix into it.

        At a knot where the spline jumps or has a kink, the derivative is that from the right.
        """
        p = self.degree
        counts = np.unique(self.knots, return_counts=True)[1]
        if p == 0 or counts.max() > p:
            raise ValueError(
                f"degree: expected continuous splines to differentiate, got degree {p} with a knot "
                f"{counts.max()} times"
            )
        gaps = self.clamped[p + 1 : -1] - self.clamped[1 : -p - 1]
        matrix = np.diff(np.eye(self.size), axis=0) * (p / gaps)[:, None]
        return BSpline(self.knots, p - 1), matrix

    def common(self, other: "BSpline") -> tuple["BSpline", np.ndarray, np.ndarray]:
        """Returns a B-spline basis that contains two bases, and the matrices into it.

        Args:
          other: splines on the same interval.

        Returns:
          Basis of the larger degree and of all knots; two matrices of coefficients.
        """
        if self == other:
            return self, np.eye(self.size), np.eye(self.size)
        basis = self._joined(other, max(self.degree, other.degree))
        points, back = basis._projection
        return basis, back @ self._on_host(points), back @ other._on_host(points)

    def product(self, other: "BSpline") -> tuple["BSpline", np.ndarray, np.ndarray]:
        """Returns a B-spline basis that holds products, points, and the matrix from values there.

        Args:
          other: splines on the same interval.

        Returns:
          Basis whose degree is the sum of both, points (m,), matrix (n, m) of the projection in
          L², which leaves products as they are.
        """
        basis = self._joined(other, self.degree + other.degree)
        return basis, *basis._projection

    def _joined(self, other: "BSpline", degree: int) -> "BSpline":
        """Builds a B-spline basis with all knots of two bases, as smooth as the less smooth one."""
        smooth: dict[float, int] = {}
        for b in (self, other):
            for knot, count in zip(*np.unique(b.knots, return_counts=True), strict=True):
                least = b.degree - int(count)
                smooth[float(knot)] = min(least, smooth.get(float(knot), least))
        ends = {self.low, self.high}
        repeated = [[k] * (1 if k in ends else degree - s) for k, s in sorted(smooth.items())]
        return BSpline([k for group in repeated for k in group], degree)

    @functools.cached_property
    def _gauss(self) -> tuple[np.ndarray, np.ndarray]:
        """Gauss–Legendre points and weights of knot intervals, exact for products of B-splines."""
        x, w = np.polynomial.legendre.leggauss(self.degree + 1)
        t = np.unique(self.knots)
        half = np.diff(t)[:, None] / 2
        return ((t[:-1] + t[1:])[:, None] / 2 + half * x).ravel(), (half * w).ravel()

    @functools.cached_property
    def _projection(self) -> tuple[np.ndarray, np.ndarray]:
        """Points, and the matrix from values there to the L² projection's B-spline coefficients."""
        x, w = self._gauss
        return x, np.linalg.solve(self.gram, self._on_host(x).T * w)

    def _on_host(self, x: np.ndarray) -> np.ndarray:
        return _values(np, x, self.clamped, self.degree)

    def _on_device(self, x: jax.Array) -> jax.Array:
        return _values(jnp, x, self.clamped, self.degree)


def _values(xp: Any, x: Any, knots: np.ndarray, degree: int) -> Any:
    """Evaluates all B-splines of a knot vector at points, by the recursion of Cox and de Boor.

    All of them, not the p + 1 that are not zero: so shapes are static, and nothing is gathered. At
    the right end the last interval counts.
    """
    x = x[..., None]

    def row(values: np.ndarray) -> Any:
        return xp.asarray(values, x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))

    t = row(knots)
    first, last = np.flatnonzero(np.diff(knots) > 0)[[0, -1]]
    index = xp.clip(xp.sum(t[..., 1:-1] <= x, axis=-1, keepdims=True), first, last)
    out = (index.astype(x.dtype) == row(np.arange(len(knots) - 1))).astype(x.dtype)
    for p in range(1, degree + 1):
        gap = knots[p:] - knots[:-p]
        # Zero where knots fall together: 0/0 counts as zero.
        scale = row(np.where(gap > 0, 1 / np.where(gap > 0, gap, 1), 0))
        rising = (x - t[..., : -p - 1]) * scale[..., :-1] * out[..., :-1]
        falling = (t[..., p + 1 :] - x) * scale[..., 1:] * out[..., 1:]
        out = rising + falling
    return out
