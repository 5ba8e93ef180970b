"""Collocation grids on an interval: Fourier, Chebyshev, finite differences or half-lines.

They hold functions that vanish at the edge of the box: a linear map of coordinates moves the box,
and no boundary condition of a physical domain would survive that. Periodic axes, those of
half-lines, "log" and "laguerre", and those with walls stay where they are.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from tensorjax import _chebyshev, _check
from tensorjax._typing import ArrayLike
from tensorjax.pde._arguments import floats
from tensorjax.pde._discretization import collocation_matrices as matrices

Kind = Literal["fourier", "periodic", "chebyshev", "finite differences", "log", "laguerre"]
Wall = Literal["absorbing", "reflecting"]
# Points of a local derivative: of order 12, to 1e-8 at 12 points to a wave.
_NEAREST = 13
# Positions in `Axis.basis`.
ONE, D, Y, YD, DD = range(5)


@dataclasses.dataclass(frozen=True)
class Axis:
    """Axis of a grid: n points on an interval, with quadrature, derivatives and interpolation.

    Attributes:
      kind: "fourier": points low + (high − low) k/n, spectrally accurate, for functions that vanish
        at both ends. "periodic": the same for angles, where the ends are one point. "chebyshev":
        the interior Gauss–Lobatto points, for functions that vanish at both ends, spectrally
        accurate. "finite differences": low + (high − low)(k + 1)/(n + 1), central differences, the
        function taken as zero from the ends on. "log": points low·(high/low)^(k/n) of a half-line,
        Fourier in log y, for densities u that vanish at both ends (growth, prices); values are
        those of y u, the density of log y. "laguerre":
        functions (y − low)^power exp(−(y − low)/2β) times polynomials, with the last of n points
        at ``high``, spectrally accurate: densities of noise that vanishes at ``low`` with its
        distance, as √(y − low) dW, of which ``power`` is the exponent there; values are those of u
        times `factor`. Coordinates stay at rest on the last two, and on periodic axes.
      n: number of points.
      low: left end.
      high: right end.
      order: of finite differences, 2, 4 or 6; and of their interpolation.
      power: exponent of "laguerre" axes, 0 or larger.
      walls: of a "chebyshev" axis "absorbing" or "reflecting", or a pair, for its low and high end:
        densities are zero at an absorbing wall, and paths end there; none pass a reflecting one.
        Coordinates along the axis stay at rest. None: no walls are meant, densities are to stay
        away from the ends, and coordinates may move, with the ends. Of backward equations
        `first_passage`, `survival` and `expectation` take these where they are given no others, and
        `committor` has its own.

    Raises:
      ValueError: an unknown kind or order, too few points, an empty interval, an interval of "log"
        that is not positive, more than 160 points of "laguerre", a negative power, unknown walls,
        or walls of another kind of axis.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> axis = pde.Axis("fourier", 32, -np.pi, np.pi)
      >>> bool(np.allclose(axis.d1 @ np.sin(axis.points), np.cos(axis.points)))
      True
      >>> queue = pde.Axis("chebyshev", 24, 0.0, 5.0, walls=("reflecting", "absorbing"))
      >>> queue.free, queue.movable
      ((True, False), False)

    Source: L. N. Trefethen, "Spectral Methods in MATLAB" (SIAM, 2000), chapters 3, 6 and 12. Ours:
    on Chebyshev points derivatives are projected, in L², onto the polynomials that vanish at both
    ends: ∂ is then skew and ∂² negative definite. Collocation with the ends dropped is not, and
    transport would have growing modes.
    """

    kind: Kind
    n: int
    low: float
    high: float
    order: int = 4
    power: float = 0.0
    walls: Wall | tuple[Wall, Wall] | None = None

    def __post_init__(self):
        _check.choice("kind", self.kind, get_args(Kind))
        if self.order not in matrices.FIRST_DIFFERENCES:
            raise ValueError(f"order: expected 2, 4 or 6, got {self.order!r}")
        _check.integer("n", self.n, low=self.order + 1)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low, high: expected finite low < high, got {self.low}, {self.high}")
        if self.kind == "log" and not self.low > 0:
            raise ValueError(f"low: expected a positive end of a log axis, got {self.low}")
        if self.kind == "laguerre":
            _check.integer("n", self.n, low=2, high=matrices.MOST_LAGUERRE)
        if not (math.isfinite(self.power) and self.power >= 0):
            raise ValueError(f"power: expected a finite exponent >= 0, got {self.power}")
        self._check_walls()

    def _check_walls(self) -> None:
        if self.walls is None:
            return
        pair = (self.walls,) * 2 if isinstance(self.walls, str) else self.walls
        fits = isinstance(pair, Sequence) and len(pair) == 2
        if not (fits and all(isinstance(w, str) and w in get_args(Wall) for w in pair)):
            raise ValueError(
                'walls: expected "absorbing" or "reflecting", or a pair of them, got '
                f"{self.walls!r}"
            )
        if self.kind != "chebyshev":
            raise ValueError(f'walls: expected None but on "chebyshev" axes, got {self.walls!r}')
        object.__setattr__(self, "walls", tuple(pair))

    @property
    def movable(self) -> bool:
        """Whether an axis may carry moving coordinates: not if periodic, half-line or walled."""
        return self.kind not in ("periodic", "log", "laguerre") and self.walls is None

    @property
    def free(self) -> tuple[bool, bool]:
        """Whether functions may be nonzero at the low and the high end of an axis (reflecting)."""
        low, high = ("absorbing",) * 2 if self.walls is None else self.walls
        return low == "reflecting", high == "reflecting"

    @functools.cached_property
    def logarithm(self) -> "Axis":
        """Fourier axis in log y that underlies an axis of kind "log"."""
        return Axis("fourier", self.n, math.log(self.low), math.log(self.high))

    @functools.cached_property
    def _scale(self) -> float:
        """Length scale β of a Laguerre axis, whose functions decay as exp(−y/2β)."""
        return self.length / float(matrices.laguerre_zeros(self.n, 2 * self.power)[-1])

    @property
    def length(self) -> float:
        """Length high − low of the interval that a grid axis covers."""
        return self.high - self.low

    @functools.cached_property
    def points(self) -> np.ndarray:
        """Collocation points of one grid axis, an ascending array (n,)."""
        if self.kind in ("fourier", "periodic"):
            return _fixed(self.low + self.length * np.arange(self.n) / self.n)
        if self.kind == "chebyshev":
            return _fixed(self.low + self.length * (1 + _chebyshev.extrema(self.n + 2)[1:-1]) / 2)
        if self.kind == "log":
            return _fixed(np.exp(self.logarithm.points))
        if self.kind == "laguerre":
            return _fixed(self.low + self._scale * matrices.laguerre_zeros(self.n, 2 * self.power))
        return _fixed(self.low + self.length * np.arange(1, self.n + 1) / (self.n + 1))

    @functools.cached_property
    def factor(self) -> np.ndarray:
        """Ratio (n,) of the values stored on a grid axis to the function u; 1 except on half-lines.

        What is rounded off far out, where points are wide apart, counts in moments.
        """
        if self.kind == "log":
            return self.points
        if self.kind == "laguerre":
            s = matrices.laguerre_zeros(self.n, 2 * self.power)
            size = self._scale * matrices.laguerre_weights(self.n, self.power)
            return _fixed(np.sqrt(size) * (1 + s / (self.power + 1)) ** 2)
        return _fixed(np.ones(self.n))

    @functools.cached_property
    def weights(self) -> np.ndarray:
        """Quadrature weights (n,) of one grid axis: ∫ v dy ≈ weights · values."""
        if self.kind in ("fourier", "periodic"):
            return _fixed(np.full(self.n, self.length / self.n))
        if self.kind == "chebyshev":
            return _fixed(self.length / 2 * self._galerkin.weights)
        if self.kind == "log":
            return self.logarithm.weights
        if self.kind == "laguerre":
            return _fixed(self._scale * matrices.laguerre_weights(self.n, self.power) / self.factor)
        return _fixed(np.full(self.n, self.length / (self.n + 1)))

    @functools.cached_property
    def d1(self) -> np.ndarray:
        """First-derivative matrix on the collocation points of one grid axis, (n, n).

        With walls that of fluxes, none of which pass a reflecting one.
        """
        if self.kind in ("fourier", "periodic"):
            return _fixed(matrices.fourier_first(self.n) * (2 * np.pi / self.length))
        if self.kind == "chebyshev":
            return _fixed(2 / self.length * self._galerkin.divergence)
        if self.kind == "log":
            return _fixed(self.logarithm.d1 / self.points)
        if self.kind == "laguerre":
            bare = matrices.laguerre_derivative(self.n, self.power) / self._scale
            return _fixed(bare * np.divide.outer(self.factor, self.factor))
        h = self.length / (self.n + 1)
        return _fixed(
            matrices.banded(self.n, (0.0, *matrices.FIRST_DIFFERENCES[self.order]), -1) / h
        )

    @functools.cached_property
    def d2(self) -> np.ndarray:
        """Second-derivative matrix on the collocation points of one grid axis, (n, n)."""
        if self.kind in ("fourier", "periodic"):
            return _fixed(matrices.fourier_second(self.n) * (2 * np.pi / self.length) ** 2)
        if self.kind == "chebyshev":
            return _fixed((2 / self.length) ** 2 * self._galerkin.second)
        if self.kind == "log":
            # y u'' = (∂² + ∂)(u / y) by derivatives in log y: (y² u)'' has no growing modes.
            return _fixed((self.logarithm.d2 + self.logarithm.d1) / self.points**2)
        if self.kind == "laguerre":
            return _fixed(self.d1 @ self.d1)
        h = self.length / (self.n + 1)
        return _fixed(matrices.banded(self.n, matrices.SECOND_DIFFERENCES[self.order], 1) / h**2)

    @functools.cached_property
    def basis(self) -> np.ndarray:
        """Matrices of 1, ∂, y, y ∂ and ∂² on the points of one grid axis, (5, n, n)."""
        if self.projected is not None:
            return self.stable_basis
        y, one = np.diag(self.points), np.eye(self.n)
        # On half-lines in the form of a divergence: y ∂ has growing modes.
        moved = y @ self.d1 if self.movable else self.d1 @ y - one
        return _fixed(np.stack([one, self.d1, y, moved, self.d2]))

    @functools.cached_property
    def stable_basis(self) -> np.ndarray:
        """Matrices of 1, ∂, y, y ∂ and ∂² on one grid axis, (5, n, n), without modes that grow.

        As `basis`, but between walls y and y ∂ are projected: taken at the points, y ∂ has modes
        that grow, at rates that rise with the number of points.
        """
        at = self.projected
        if at is None:
            return self.basis
        one, there = np.eye(self.n), (at.filled @ self.points)[:, None] * at.value
        moved = -2 / self.length * at.steep @ there - one
        return _fixed(np.stack([one, self.d1, at.tested @ there, moved, self.d2]))

    @functools.cached_property
    def slope(self) -> np.ndarray:
        """First-derivative matrix of a finite-difference axis for functions nonzero at its ends.

        Polynomials through the nearest points, 13 of them where there are as many.
        """
        count = min(_NEAREST, self.n)
        out = np.zeros((self.n, self.n))
        for i, x in enumerate(self.points):
            first = min(max(i - count // 2, 0), self.n - count)
            near = slice(first, first + count)
            out[i, near] = matrices.slope_weights(self.points[near] - x)
        return _fixed(out)

    @functools.cached_property
    def fine(self) -> np.ndarray:
        """Matrix (m, n) from grid values on an axis to the highest third of its modes.

        Orthonormal rows, for v times the root of the weights.
        """
        return _fixed(matrices.modes(self)[2 * self.n // 3 :])

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """Indicator (n,) of the grid points next to the ends of an axis where functions vanish.

        The two outermost ones at each end; of Chebyshev points, which crowd there, as large a share
        of the axis: the norm there is then near the error of a cut-off tail over the box.
        """
        out = np.zeros(self.n)
        if self.kind == "periodic" or self.walls is not None:
            return _fixed(out)
        if self.kind == "chebyshev":
            # The outermost points say nothing: functions are zero next to them whatever is lost.
            near = np.minimum(self.points - self.low, self.high - self.points)
            out[near <= 2 * self.length / self.n] = 1
            return _fixed(out)
        out[-2:] = 1
        out[: 0 if self.kind == "laguerre" else 2] = 1
        return _fixed(out)

    def interpolate(self, y: ArrayLike) -> Any:
        """Returns the matrix (m, n) that interpolates values on the axis at points y, (m,).

        Rows of points outside [low, high] are zero, but on periodic axes. Fourier: the
        trigonometric interpolant. Chebyshev: the polynomial that vanishes at both ends, but at
        reflecting walls. Finite differences: polynomials of degree ``order`` − 1 through the
        nearest points. Half-lines: the functions of the axis.

        Args:
          y: points (m,).

        Returns:
          (m, n), of NumPy, or of JAX if y is traced.
        """
        xp, (points,) = floats(y)
        if self.kind == "periodic":
            return self._trigonometric(xp, points)
        inside = (points >= self.low) & (points <= self.high)
        points = xp.clip(points, self.low, self.high)
        rows = {
            "fourier": self._trigonometric,
            "chebyshev": self._barycentric,
            "finite differences": lambda xp, y: matrices.local_interpolation(
                xp, y, self.n, self.low, self.length, self.order
            ),
            "log": lambda xp, y: self.logarithm._trigonometric(xp, xp.log(y)) / y[:, None],
            "laguerre": self._laguerre,
        }[self.kind](xp, points)
        return xp.where(inside[:, None], rows, xp.zeros_like(rows))

    def waves(self, kappa: np.ndarray) -> np.ndarray:
        """Returns the matrix (m, n) that maps values on an axis to ∫ exp(i κ y) v dy for every κ.

        Chebyshev: that of the interpolant, exactly, for its own quadrature would see the product
        with the wave on too few points. Else by the quadrature, good up to π over the widest gap.

        Args:
          kappa: wave numbers κ, (m,).

        Returns:
          (m, n), complex.
        """
        if self.kind != "chebyshev":
            return np.exp(1j * np.outer(kappa, self.points)) * self.weights
        points, matrix = self._refined
        return np.exp(1j * np.outer(kappa, points)) @ matrix

    @functools.cached_property
    def _refined(self) -> tuple[np.ndarray, np.ndarray]:
        """Gauss–Legendre points (2n,) of an axis, and the weighted interpolation matrix to them."""
        x, w = np.polynomial.legendre.leggauss(2 * self.n)
        y = self.low + self.length * (x + 1) / 2
        return y, (self.length / 2 * w)[:, None] * self._barycentric(np, y)

    def _laguerre(self, xp: Any, y: Any) -> Any:
        at = matrices.laguerre_functions(xp, (y - self.low) / self._scale, self.n, self.power)
        rows = matrices.laguerre_transform(self.n, self.power) / self.factor
        return at.T @ xp.asarray(rows, y.dtype)

    def _trigonometric(self, xp: Any, y: Any) -> Any:
        return matrices.trigonometric_interpolation(xp, y, self.points, self.length)

    def _barycentric(self, xp: Any, y: Any) -> Any:
        if any(self.free):
            x = xp.clip(2 * (y - self.low) / self.length - 1, -1, 1)
            return matrices.cardinal(xp, self.n, self.free, x)
        return self._lagrange(xp, y)[:, 1:-1]

    def _lagrange(self, xp: Any, y: Any) -> Any:
        """Evaluates the Lagrange polynomials of a Chebyshev axis's points and ends at y."""
        ends = np.concatenate([[self.low], self.points, [self.high]])
        return _chebyshev.lagrange(xp, ends, _chebyshev.extremum_weights(self.n + 2), y)

    @property
    def projected(self) -> matrices.Galerkin | None:
        """Galerkin matrices for products with coefficients on an axis with walls; else None.

        Without walls products are taken at the points: of functions that vanish at the ends they
        are as accurate with fewer points, and drifts inwards damp what noise there is.
        """
        return None if self.walls is None else self._galerkin

    @property
    def _galerkin(self) -> matrices.Galerkin:
        return matrices.galerkin(self.n, self.free)

    @functools.cached_property
    def _slopes(self) -> np.ndarray:
        """First-derivative matrix (n + 2, n + 2) of a Chebyshev axis that includes both ends."""
        return _chebyshev.differentiation(self.n + 2) * (2 / self.length)


def _fixed(x: np.ndarray) -> np.ndarray:
    """Makes an array that a grid axis caches read-only, and returns it."""
    x.flags.writeable = False
    return x
