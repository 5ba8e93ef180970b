"""Initial states: Gaussians and mixtures in closed form, other functions by sampling."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores import products, rounding
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax._typing import HostArray
from tensorjax.pde._discretization.grid import Box, ends
from tensorjax.pde._function_trains import gaussian_trains as _hermite
from tensorjax.pde._function_trains.cross_approximation import Draw, Points, crossed, drawn, powers
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._maps.characteristics import Flow

# Share of the tolerance for the closed form; the rest is for rounding.
_PART = 0.3
# Standard deviations of a density beyond which nothing is left of it.
_WIDTHS = 6.5


class _Start(abc.ABC):
    """Base class of initial states of a PDE, with values at points and as TT-cores on a grid."""

    @abc.abstractmethod
    def values(self, x: HostArray) -> np.ndarray:
        """Evaluates the initial state of a PDE at physical points (m, d).

        Args:
          x: (m, d).

        Returns:
          (m,).
        """

    @abc.abstractmethod
    def cores(self, box: Box, map: AffineMap, tol: float) -> Cores:
        """Computes TT-cores of an initial state on a grid in the coordinates y = map(x).

        Args:
          box: of the coordinates y.
          map: `AffineMap` y = Γ x + s.
          tol: relative error in the norm of the values on the grid.

        Returns:
          d arrays (r_{k−1}, n_k, r_k).
        """

    def train(self, box: Box, map: AffineMap, tol: float) -> TT:
        """Builds the tensor train of an initial state on a grid, to relative error ``tol``.

        Args:
          box: of the coordinates y.
          map: `AffineMap` y = Γ x + s.
          tol: relative error in the norm of the values on the grid.

        Returns:
          `TT` of the shape of the box, in JAX's default dtype.
        """
        return TT([jnp.asarray(c) for c in self.cores(box, map, tol)])  # JAX's default dtype


@dataclasses.dataclass(frozen=True, eq=False)
class Gaussian(_Start):
    """Gaussian initial state a exp(−½ (x − m)ᵀ C⁻¹ (x − m)) of a PDE.

    Attributes:
      mean: m, (d,).
      covariance: C, (d, d), symmetric and positive definite.
      amplitude: a; that of a probability density if None.

    Raises:
      ValueError: wrong shapes, NaN or Inf, or a covariance that is not positive definite.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), np.array([[1.0, 0.5], [0.5, 1.0]]))
      >>> start.ranks(1e-6)
      (1, 11, 1)
      >>> start.ranks(1e-6, start.whitening())
      (1, 1, 1)
    """

    mean: Any
    covariance: Any
    amplitude: float | None = None

    def __post_init__(self):
        if _check.is_traced(self.mean, self.covariance):
            raise TypeError(
                "mean, covariance: expected concrete numbers, got traced ones: TT-ranks of the "
                "initial state depend on them; make it outside jit, vmap and grad"
            )
        mean, c = (np.asarray(v, np.float64) for v in (self.mean, self.covariance))
        _check.finite("mean", mean)
        _check.finite("covariance", c)
        if mean.ndim != 1 or not mean.size or c.shape != (len(mean),) * 2:
            raise ValueError(
                f"covariance: expected mean (d,) and covariance (d, d), got {mean.shape}, {c.shape}"
            )
        low, high = np.linalg.eigvalsh((c + c.T) / 2)[[0, -1]]
        if not np.allclose(c, c.T, atol=1e-12 * high) or low <= 1e-14 * high:
            raise ValueError(
                "covariance: expected a symmetric positive definite matrix, got eigenvalues from "
                f"{low:.2g} to {high:.2g}"
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", (c + c.T) / 2)

    @property
    def dim(self) -> int:
        """Number of coordinates d of a Gaussian initial state."""
        return len(self.mean)

    @property
    def mass(self) -> float:
        """Integral of a Gaussian initial state over all space."""
        return 1.0 if self.amplitude is None else self.amplitude / self._density

    @property
    def _density(self) -> float:
        """Maximum of the probability density that a Gaussian initial state is a multiple of."""
        sign, log = np.linalg.slogdet(2 * np.pi * self.covariance)
        return float(sign * np.exp(-log / 2))

    def values(self, x: HostArray) -> np.ndarray:
        """Evaluates the Gaussian initial state at physical points (m, d)."""
        z = np.linalg.solve(
            np.linalg.cholesky(self.covariance), (np.asarray(x, np.float64) - self.mean).T
        )
        return self.mass * self._density * np.exp(-0.5 * np.square(z).sum(0))

    def cores(self, box: Box, map: AffineMap, tol: float) -> Cores:
        """Computes TT-cores of a Gaussian initial state on a grid in the coordinates y = map(x)."""
        return rounding.rounded(self._unrounded(box, map, _PART * tol), (1 - _PART) * tol)

    def _unrounded(self, box: Box, map: AffineMap, tol: float) -> Cores:
        """Computes TT-cores of a Gaussian initial state by its closed form, of higher ranks."""
        center = map.forward(self.mean[None])[0]
        points = [p - c for p, c in zip(box.points, center, strict=True)]
        cores = _hermite.gaussian(points, self._precision(map), tol)
        cores[0] = cores[0] * (self.mass * self._density)
        return cores

    def ranks(self, tol: float, map: AffineMap | None = None) -> tuple[int, ...]:
        """Computes the TT-ranks of an initial state (Gaussian) at relative error ``tol``.

        Args:
          tol: relative error in the norm of the values on a grid.
          map: `AffineMap` of the coordinates; the identity if None.

        Returns:
          (1, r_1, …, r_{d−1}, 1).
        """
        map = AffineMap.identity(self.dim) if map is None else map
        return _hermite.ranks(self._precision(map), tol)

    def whitening(self) -> AffineMap:
        """Returns the map y = C^(−1/2) (x − m) that gives an initial state (Gaussian) TT-ranks one.

        Returns:
          `AffineMap`.
        """
        values, vectors = np.linalg.eigh(self.covariance)
        matrix = vectors / np.sqrt(values) @ vectors.T
        return AffineMap(matrix, -matrix @ self.mean)

    def moved(self, flow: Flow) -> "Gaussian":
        """Returns a Gaussian initial state's image under the stochastic map x ↦ F x + g + noise.

        Args:
          flow: (F, g, Q) of x ↦ F x + g plus normal noise of covariance Q.

        Returns:
          `Gaussian`, of the same mass.
        """
        f, g, q = flow
        new = Gaussian(f @ self.mean + g, f @ self.covariance @ f.T + q)
        return dataclasses.replace(new, amplitude=self.mass * new._density)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draws random points (count, d) from a Gaussian initial state's probability density.

        Args:
          rng: NumPy generator.
          count: number of points.

        Returns:
          (count, d).
        """
        z = rng.standard_normal((count, self.dim))
        return self.mean + z @ np.linalg.cholesky(self.covariance).T

    def moments(self) -> tuple[float, np.ndarray, np.ndarray]:
        """Returns mass, mean and covariance of the Gaussian initial state.

        Returns:
          (mass, mean (d,), covariance (d, d)).
        """
        return self.mass, self.mean, self.covariance

    def _precision(self, map: AffineMap) -> np.ndarray:
        spread = np.asarray(map.matrix) @ np.linalg.cholesky(self.covariance)
        inverse = np.linalg.inv(spread)
        return inverse.T @ inverse


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture(_Start):
    """Initial state of a PDE that is a weighted sum Σ w_i g_i of Gaussians g_i.

    Attributes:
      weights: w, as many as Gaussians.
      gaussians: of one dimension.

    Raises:
      ValueError: no Gaussians, another number of weights, dimensions that differ, NaN or Inf.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> pair = [pde.Gaussian(np.full(2, m), 0.1 * np.eye(2)) for m in (-1.0, 1.0)]
      >>> mass, mean, covariance = pde.Mixture([0.5, 0.5], pair).moments()
      >>> print(covariance)
      [[1.1 1. ]
       [1.  1.1]]
    """

    weights: Sequence[float]
    gaussians: Sequence[Gaussian]

    def __post_init__(self):
        object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))
        object.__setattr__(self, "gaussians", tuple(self.gaussians))
        dims = {g.dim for g in self.gaussians}
        if len(dims) != 1 or len(self.weights) != len(self.gaussians):
            raise ValueError(
                "gaussians: expected one or more of one dimension with a weight each, got "
                f"{len(self.gaussians)} of dimensions {sorted(dims)}, {len(self.weights)} weights"
            )
        _check.finite("weights", np.asarray(self.weights))

    @property
    def dim(self) -> int:
        """Number of coordinates d of an initial state that is a Gaussian mixture."""
        return self.gaussians[0].dim

    @property
    def mass(self) -> float:
        """Integral over all space of an initial state that is a Gaussian mixture."""
        return float(self._masses.sum())

    @property
    def _masses(self) -> np.ndarray:
        pairs = zip(self.weights, self.gaussians, strict=True)
        return np.asarray([w * g.mass for w, g in pairs])

    def values(self, x: HostArray) -> np.ndarray:
        """Evaluates an initial state that is a Gaussian mixture at physical points (m, d)."""
        pairs = zip(self.weights, self.gaussians, strict=True)
        return np.sum([w * g.values(x) for w, g in pairs], axis=0)

    def cores(self, box: Box, map: AffineMap, tol: float) -> Cores:
        """Computes TT-cores of an initial Gaussian mixture on a grid in coordinates y = map(x)."""
        parts = [g.cores(box, map, _PART * tol) for g in self.gaussians]
        return rounding.rounded(products.combined(parts, self.weights), (1 - _PART) * tol)

    def _unrounded(self, box: Box, map: AffineMap, tol: float) -> Cores:
        """Computes TT-cores of an initial Gaussian mixture by closed forms, of higher ranks."""
        parts = [g._unrounded(box, map, tol) for g in self.gaussians]
        return products.combined(parts, self.weights)

    def moved(self, flow: Flow) -> "Mixture":
        """Returns an initial Gaussian mixture's image under the stochastic map x ↦ F x + g + noise.

        Args:
          flow: (F, g, Q) of x ↦ F x + g plus normal noise of covariance Q.

        Returns:
          `Mixture`, of the same mass.
        """
        return Mixture(self.weights, [g.moved(flow) for g in self.gaussians])

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draws random points (count, d) from an initial Gaussian mixture's probability density.

        Args:
          rng: NumPy generator.
          count: number of points.

        Returns:
          (count, d).

        Raises:
          ValueError: a part of negative weight.
        """
        masses = self._masses
        if (masses < 0).any() or masses.sum() <= 0:
            raise ValueError(
                f"weights: expected no negative part to sample from, got masses {masses.tolist()}"
            )
        counts = rng.multinomial(count, masses / masses.sum())
        parts = [g.sample(rng, int(c)) for g, c in zip(self.gaussians, counts, strict=True)]
        return rng.permutation(np.concatenate(parts))

    def moments(self) -> tuple[float, np.ndarray, np.ndarray]:
        """Returns mass, mean and covariance of an initial state that is a Gaussian mixture.

        Returns:
          (mass, mean (d,), covariance (d, d)).
        """
        share = self._masses / self.mass
        means = np.stack([g.mean for g in self.gaussians])
        mean = share @ means
        spread = sum(w * g.covariance for w, g in zip(share, self.gaussians, strict=True))
        return self.mass, mean, spread + (share[:, None] * (means - mean)).T @ (means - mean)


@dataclasses.dataclass(frozen=True, eq=False)
class Function(_Start):
    """Initial state of a PDE given by a function of points, approximated by a tensor train.

    Attributes:
      f: maps points (m, d) to values (m,).
      near: a `Gaussian` or `Mixture` that is large where f is: f is then looked at where points
        drawn from it lie, and the error is measured there. Without it `tt.cross` looks at points
        of the whole box, and misses a narrow f in more than a few dimensions.
      seed: of the points.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Function(lambda x: np.exp(-(x**4).sum(1)))
      >>> flow = pde.Liouville(np.zeros((3, 3)), start, pde.Box.fourier(3, 32, 3.0))
      >>> flow.initial(pde.AffineMap.identity(3), 1e-5).ranks
      (1, 1, 1, 1)
    """

    f: Callable[[Any], Any]
    near: Gaussian | Mixture | None = None
    seed: int = 0

    def values(self, x: HostArray) -> np.ndarray:
        """Evaluates an initial state that is given as a function of points."""
        return np.asarray(self.f(np.asarray(x, np.float64)))

    def cores(self, box: Box, map: AffineMap, tol: float) -> Cores:
        """Approximates an initial state, given as a function, by TT-cores on a grid y = map(x)."""

        def values(y: np.ndarray) -> np.ndarray:
            return self.values(map.inverse(y))

        if self.near is None:
            return crossed("start", values, box.points, tol, self.seed)
        return drawn("start", values, box.points, tol, _near(self.near, map, box, tol), self.seed)


def _near(start: Gaussian | Mixture, map: AffineMap, box: Box, tol: float) -> Draw:
    """Returns a sampler of grid points near a Gaussian or mixture, to fit an initial state."""
    given = start if isinstance(start, Mixture) else Mixture([1.0], [start])
    masses = np.abs(given._masses).tolist()
    kinds = powers(tol, box.dim)
    spread = [
        Mixture(masses, [Gaussian(g.mean, g.covariance / (2 * p)) for g in given.gaussians])
        for p in kinds
    ]
    low, high = ends(box)

    def draw(rng: np.random.Generator, count: int) -> Points:
        share = -(-count // len(kinds))
        y = map.forward(np.concatenate([m.sample(rng, share) for m in spread]))
        inside = ((y >= low) & (y <= high)).all(1)
        pairs = zip(box.points, y[inside].T, strict=True)
        index = np.stack([np.abs(p[None] - c[:, None]).argmin(1) for p, c in pairs], 1)
        at = np.stack([p[i] for p, i in zip(box.points, index.T, strict=True)], 1)
        density = np.sum([m.values(map.inverse(at)) for m in spread], axis=0)
        return Points(index, density, np.repeat(kinds, share)[inside])

    return draw


Start = Gaussian | Mixture | Function


def wrapped(
    start: Gaussian | Mixture, box: Box, map: AffineMap, tol: float, *, is_rounded: bool = True
) -> Cores:
    """Computes TT-cores of an initial state, summed over the periods of periodic axes.

    So many turns to either side of the box that no mass is left out.

    Args:
      start: in the coordinates of one turn.
      box: of the coordinates y, at rest along periodic axes.
      map: `AffineMap` y = Γ x + s.
      tol: relative error in the norm of the values on the grid.
      is_rounded: whether to round the cores; sums over a grid cost less than that.
    """
    wide, turns = _unwrapped(start, box)
    if not is_rounded:
        return _folded(start._unrounded(wide, map, tol), turns)
    if not any(turns):
        return start.cores(box, map, tol)
    cores = start.cores(wide, map, _PART * tol)
    return rounding.rounded(_folded(cores, turns), (1 - _PART) * tol)


def with_factors(cores: Cores, box: Box) -> Cores:
    """Multiplies an initial state's cores by the factors that v has along axes at rest."""
    pairs = zip(cores, box.axes, strict=True)
    return [c if a.movable else c * np.reshape(a.factor, (-1, 1)) for c, a in pairs]


def _unwrapped(start: Gaussian | Mixture, box: Box) -> tuple[Box, list[int]]:
    """Returns the box of all turns around periodic axes that a start reaches, and their numbers."""
    turns = [
        _turns(start, k, a.length) if a.kind == "periodic" else 0 for k, a in enumerate(box.axes)
    ]
    if not any(turns):
        return box, turns
    axes = [
        dataclasses.replace(
            a, n=(2 * m + 1) * a.n, low=a.low - m * a.length, high=a.high + m * a.length
        )
        for a, m in zip(box.axes, turns, strict=True)
    ]
    return Box(tuple(axes)), turns


def _folded(cores: Cores, turns: Sequence[int]) -> Cores:
    """Sums an initial state's cores over the turns around periodic axes."""
    return [
        c.reshape(len(c), 2 * m + 1, -1, c.shape[2]).sum(1)
        for c, m in zip(cores, turns, strict=True)
    ]


def _turns(start: Gaussian | Mixture, axis: int, length: float) -> int:
    """Returns how many periods of an axis an initial Gaussian reaches, at least one a side."""
    parts = start.gaussians if isinstance(start, Mixture) else (start,)
    variance = max(float(np.asarray(part.covariance)[axis, axis]) for part in parts)
    return max(1, math.ceil(_WIDTHS * math.sqrt(variance) / length))
