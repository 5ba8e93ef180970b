"""Initial states with closed-form densities: products of one-dimensional ones, and lognormal."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from scipy import special

from tensorjax._cores import rounding
from tensorjax._cores.unfoldings import Cores
from tensorjax._typing import HostArray
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains import gaussian_trains
from tensorjax.pde._function_trains.initial_states import Function, Gaussian
from tensorjax.pde._maps.affine_maps import AffineMap

# Orders of Bessel functions from which on an expansion in 1/order is as good as SciPy's, which
# underflow there.
_HIGH = 200.0


class Marginal(Protocol):
    """Interface of a known one-dimensional density, with moments and samples."""

    @property
    def moments(self) -> tuple[float, float]:
        """Mean and variance of a known one-dimensional density."""
        ...

    def values(self, x: np.ndarray) -> np.ndarray:
        """Evaluates a known one-dimensional density at points (m,)."""
        ...

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draws random points (count,) from a known one-dimensional density."""
        ...


@dataclasses.dataclass(frozen=True)
class Normal:
    """Normal density of one coordinate, a known density with moments and samples."""

    mean: float
    variance: float

    @property
    def moments(self) -> tuple[float, float]:
        """Mean and variance of a known normal density."""
        return self.mean, self.variance

    def values(self, x: np.ndarray) -> np.ndarray:
        """Evaluates a known normal density at points (m,)."""
        square = np.square(x - self.mean) / self.variance
        return np.exp(-square / 2) / np.sqrt(2 * np.pi * self.variance)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draws random points (count,) from a known normal density."""
        return rng.normal(self.mean, np.sqrt(self.variance), count)


@dataclasses.dataclass(frozen=True)
class SquareRootTransition:
    """Known transition density of the square-root process dx = κ (θ − x) dt + σ √x dW.

    A noncentral χ² density of 4κθ/σ² degrees of freedom; at age ∞ a gamma density.

    Source: J. Cox, J. Ingersoll, S. Ross, "A theory of the term structure of interest rates",
    Econometrica 53 (1985), equation 18.
    """

    rate: float
    level: float
    volatility: float
    x0: float
    age: float

    @property
    def _scaled(self) -> tuple[float, float, float]:
        """Parameters of the known noncentral χ² density: scale, noncentrality/2, degrees."""
        spread = self.volatility**2 * -np.expm1(-self.rate * self.age)
        c = 2 * self.rate / spread
        half = 2 * self.rate * self.level / self.volatility**2
        return c, c * self.x0 * np.exp(-self.rate * self.age), half

    @property
    def moments(self) -> tuple[float, float]:
        """Mean and variance of a known transition density, the square-root process', at ``age``."""
        fall = np.exp(-self.rate * self.age)
        noise = self.volatility**2 / self.rate
        variance = self.x0 * noise * (fall - fall**2) + self.level * noise / 2 * (1 - fall) ** 2
        return self.level + (self.x0 - self.level) * fall, variance

    def values(self, x: np.ndarray) -> np.ndarray:
        """Evaluates a known density, the square-root process', at points (m,); zero for x < 0."""
        c, u, half = self._scaled
        v = c * np.maximum(x, 1e-300)
        if u < 1e-12:  # gamma density
            out = np.exp((half - 1) * np.log(v) - v - special.gammaln(half))
        else:
            root = np.square(np.sqrt(v) - np.sqrt(u))
            bessel = _log_scaled_bessel(half - 1, 2 * np.sqrt(u * v))
            out = np.exp(-root + (half - 1) / 2 * np.log(v / u) + bessel)
        return np.where(x >= 0, c * out, 0.0)

    def later(self, t: float) -> "SquareRootTransition":
        """Returns the known density of a square-root process after a further time t."""
        return dataclasses.replace(self, age=self.age + t)

    def same(self, other: "SquareRootTransition") -> bool:
        """Whether another known density belongs to the same square-root process (κ, θ, σ)."""
        pairs = ((p.rate, p.level, p.volatility) for p in (self, other))
        return next(pairs) == next(pairs)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draws random points (count,) from the known density of a square-root process."""
        c, u, half = self._scaled
        return rng.noncentral_chisquare(2 * half, 2 * u, count) / (2 * c)


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Independent(Function):
    """Product of known one-dimensional densities, an initial density of a PDE."""

    parts: Sequence[Marginal] = ()

    def __init__(self, parts: Sequence[Marginal]):
        super().__init__(self.values)
        object.__setattr__(self, "parts", tuple(parts))

    mass = 1.0

    @property
    def dim(self) -> int:
        """Number of coordinates of a product of known densities."""
        return len(self.parts)

    def values(self, x: HostArray) -> np.ndarray:
        """Evaluates a product of known one-dimensional densities at physical points (m, d)."""
        columns = np.asarray(x, np.float64).T
        return np.prod([p.values(c) for p, c in zip(self.parts, columns, strict=True)], axis=0)

    def cores(self, box: Box, map: AffineMap, tol: float) -> Cores:
        """Computes TT-cores of a product of known densities on a grid y = map(x)."""
        if not map.still:
            return super().cores(box, map, tol)
        pairs = zip(self.parts, box.points, strict=True)
        return [np.asarray(part.values(x))[None, :, None] for part, x in pairs]

    def moments(self) -> tuple[float, np.ndarray, np.ndarray]:
        """Returns mass, mean and covariance of a product of known densities."""
        mean, variance = np.transpose([p.moments for p in self.parts])
        return 1.0, mean, np.diag(variance)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draws random points (count, d) from a product of known densities."""
        return np.stack([p.sample(rng, count) for p in self.parts], 1)


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Lognormal(Function):
    """Known density with log x normal, of given mean and covariance: an initial state of a PDE."""

    mean: Any = None
    covariance: Any = None

    def __init__(self, mean: Any, covariance: Any):
        super().__init__(self.values)
        object.__setattr__(self, "mean", np.asarray(mean, np.float64))
        object.__setattr__(self, "covariance", np.asarray(covariance, np.float64))

    mass = 1.0

    @property
    def dim(self) -> int:
        """Number of coordinates of the known lognormal density."""
        return len(self.mean)

    @property
    def _normal(self) -> Gaussian:
        return Gaussian(self.mean, self.covariance)

    def values(self, x: HostArray) -> np.ndarray:
        """Evaluates the known lognormal density at points (m, d); zero unless all x > 0."""
        x = np.asarray(x, np.float64)
        inside = np.asarray((x > 0).all(1))
        safe = np.where(inside[:, None], x, 1.0)
        return np.where(inside, self._normal.values(np.log(safe)) / safe.prod(1), 0.0)

    def cores(self, box: Box, map: AffineMap, tol: float) -> Cores:
        """Computes TT-cores of the known lognormal density on a grid in coordinates y = map(x)."""
        if not map.still or any(a.low <= 0 for a in box.axes):
            return super().cores(box, map, tol)
        points = [np.log(p) - m for p, m in zip(box.points, self.mean, strict=True)]
        cores = gaussian_trains.gaussian(points, np.linalg.inv(self.covariance), tol / 10)
        cores = [c / p[None, :, None] for c, p in zip(cores, box.points, strict=True)]
        cores[0] = cores[0] * self._normal._density
        return rounding.rounded(cores, tol / 2)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draws random points (count, d) from the known lognormal density."""
        return np.exp(self._normal.sample(rng, count))

    def moments(self) -> tuple[float, np.ndarray, np.ndarray]:
        """Returns mass, mean and covariance of the known lognormal density."""
        mean = np.exp(self.mean + np.diag(self.covariance) / 2)
        return 1.0, mean, np.outer(mean, mean) * np.expm1(self.covariance)


def _log_scaled_bessel(order: float, x: np.ndarray) -> np.ndarray:
    """Computes log(I(x) exp(−x)) of a modified Bessel function, for a known density.

    Source: NIST Digital Library of Mathematical Functions, 10.41.3, to the third term.
    """
    if order < _HIGH:
        with np.errstate(divide="ignore"):  # zero at zero
            return np.log(special.ive(order, x))
    z = x / order
    root = np.sqrt(1 + z**2)
    p = 1 / root
    terms = (
        (3 * p - 5 * p**3) / 24,
        (81 * p**2 - 462 * p**4 + 385 * p**6) / 1152,
        (30375 * p**3 - 369603 * p**5 + 765765 * p**7 - 425425 * p**9) / 414720,
    )
    rest = sum(t / order ** (k + 1) for k, t in enumerate(terms))
    eta = root - z + np.log(z / (1 + root))  # less the exponent of the scale
    return order * eta - np.log(2 * np.pi * order * root) / 2 + np.log1p(rest)
