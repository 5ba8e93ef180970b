"""Entropy of a density held as a train, and Kullback–Leibler divergence from another density."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tensorjax import _check
from tensorjax._formats.trains import TT
from tensorjax._typing import ArrayLike, KeyOrGenerator
from tensorjax.pde._arguments import generator_of
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._observables.sampling import Drawn, draw
from tensorjax.pde._observables.values_and_moments import moments


class Estimate(NamedTuple):
    """Monte Carlo estimate of an entropy or divergence: sample mean and its standard error.

    Attributes:
      value: the estimate.
      error: one standard deviation of it by chance; what truncation and the grid do is not in it.

    Example:
      >>> from tensorjax import pde
      >>> pde.Estimate(1.42, 0.01).value
      1.42
    """

    value: float
    error: float


def entropy(
    v: TT, map: AffineMap, box: Box, *, count: int = 10_000, key: KeyOrGenerator | None = None
) -> Estimate:
    """Estimates the entropy −∫ p log p dx of the density p = u/∫u, in physical coordinates.

    It is that of the Gaussian g of the same mean and covariance, less the mean of log(p/g) over
    points drawn from p (`pde.sample`): of a Gaussian it has no error by chance, and of a density
    near one it has little.

    Args:
      v: train of values on the grid of the box; a density, of any mass.
      map: `AffineMap` y = Γ x + s.
      box: of the coordinates y.
      count: number of points.
      key: `jax.random.key`, or a NumPy generator; None for a fixed one.

    Returns:
      `Estimate`, in nats.

    Raises:
      ValueError: a mass or variances that are not positive, shapes that do not match.
      TypeError: v or the map is traced.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> box, map = pde.Box.fourier(2), pde.AffineMap.identity(2)
      >>> v = pde.Gaussian(np.zeros(2), np.diag([0.5, 2.0])).train(box, map, 1e-6)
      >>> bool(abs(pde.entropy(v, map, box).value - np.log(2 * np.pi * np.e)) < 1e-4)
      True

    Source: T. Cover, J. Thomas, "Elements of Information Theory" (Wiley, 2006), section 8.
    """
    drawn, mass, mean, covariance = _sampled(v, map, box, count, key)
    root = np.linalg.cholesky(covariance)
    z = np.linalg.solve(root, (drawn.points - mean).T)
    half = np.log(np.diag(root)).sum() + box.dim / 2 * math.log(2 * math.pi)
    gaussian = -half - np.square(z).sum(0) / 2
    found = _mean(np.log(drawn.values / mass) - gaussian)
    return Estimate(float(half) + box.dim / 2 - found.value, found.error)


def kullback_leibler(
    v: TT,
    map: AffineMap,
    box: Box,
    density: Callable[[np.ndarray], ArrayLike],
    *,
    floor: float = 0.0,
    count: int = 10_000,
    key: KeyOrGenerator | None = None,
) -> Estimate:
    """Estimates the Kullback–Leibler divergence ∫ p log(p/q) dx of p = u/∫u from a density q.

    It is the mean of log(p/q) over points drawn from p (`pde.sample`).

    Args:
      v: train of values on the grid of the box; a density, of any mass.
      map: `AffineMap` y = Γ x + s.
      box: of the coordinates y.
      density: q, of mass one: maps points (m, d) to values (m,). ``problem.stationary_density``, or
        another state by `pde.evaluate`, divided by its mass.
      floor: q below so many times its largest value at the points counts as that. With 0 the
        divergence is infinite where q is zero or negative, as interpolants are far out; for a q
        that is a train take about its tolerance.
      count: number of points.
      key: `jax.random.key`, or a NumPy generator; None for a fixed one.

    Returns:
      `Estimate`, in nats; Inf where p has points at which q has nothing.

    Raises:
      ValueError: a mass or variances that are not positive, shapes that do not match, values of
        another shape than (m,), NaN.
      TypeError: v or the map is traced.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> box, map = pde.Box.fourier(1), pde.AffineMap.identity(1)
      >>> v = pde.Gaussian([0.0], [[1.0]]).train(box, map, 1e-6)
      >>> other = pde.Gaussian([1.0], [[1.0]])
      >>> found = pde.kullback_leibler(v, map, box, other.values)
      >>> bool(abs(found.value - 0.5) < 5 * found.error)
      True

    Source: T. Cover, J. Thomas, "Elements of Information Theory" (Wiley, 2006), section 8.5.
    """
    _check.number("floor", floor, low=0)
    drawn, mass, *_ = _sampled(v, map, box, count, key)
    q = np.asarray(density(drawn.points), np.float64)
    if q.shape != drawn.values.shape:
        raise ValueError(f"density: expected values {drawn.values.shape}, got {q.shape}")
    if np.isnan(q).any():
        raise ValueError("density: expected numbers, got NaN")
    q = np.maximum(q, floor * q.max())
    if not q.min() > 0:
        return Estimate(math.inf, math.nan)
    return _mean(np.log(drawn.values / mass) - np.log(q))


def _sampled(
    v: TT, map: AffineMap, box: Box, count: int, key: KeyOrGenerator | None
) -> tuple[Drawn, float, np.ndarray, np.ndarray]:
    """Draws points for an entropy estimate; also returns the density's mass and moments."""
    if _check.is_traced(v, map):
        raise TypeError("v, map: expected concrete ones; call this outside jit, vmap and grad")
    count = _check.integer("count", count, low=2)
    rng = np.random.default_rng(0) if key is None else generator_of(key)
    drawn = draw(rng, v, map, box, count)
    mass, mean, covariance = moments(v, map, box)
    if not np.linalg.eigvalsh(covariance)[0] > 0:
        raise ValueError(f"v: expected a density of positive variances, got {covariance}")
    return drawn, float(mass), mean, covariance


def _mean(values: np.ndarray) -> Estimate:
    return Estimate(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))
