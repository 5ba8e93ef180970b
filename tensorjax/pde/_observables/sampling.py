"""Samples of a density held as a train, in physical coordinates."""

import functools
from typing import NamedTuple

import numpy as np

from tensorjax import _check
from tensorjax._cores.contractions import einsum, weighted_sum
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax._typing import KeyOrGenerator
from tensorjax.pde._arguments import check_concrete, generator_of, hosted_cores
from tensorjax.pde._discretization.axis import Axis
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._observables.values_and_moments import mass

# Points at which a conditional density is looked up, for every point of the grid.
_FINER = 8
# Entries held at once.
_CHUNK = 1 << 21


class Drawn(NamedTuple):
    """Random sample of a density: its points, and the density there.

    Attributes:
      points: (m, d).
      values: (m,), positive.
    """

    points: np.ndarray
    values: np.ndarray


def sample(key: KeyOrGenerator, v: TT, map: AffineMap, box: Box, count: int) -> np.ndarray:
    """Draws a sample of points from the density u(x) = v(Γ x + s), by its interpolant on the grid.

    One coordinate of y after the other, from its conditional density: the train is summed over the
    coordinates after it, interpolated to 8 points for each of the grid and taken as linear between
    them. What is negative there, as truncation may leave it, counts as zero. O(m d n r) operations
    after O(d n r²).

    Args:
      key: `jax.random.key`, or a NumPy generator.
      v: train of values on the grid of the box; a density, of any mass.
      map: `AffineMap` y = Γ x + s.
      box: of the coordinates y.
      count: number of points m.

    Returns:
      Points (m, d), float64.

    Raises:
      ValueError: a mass that is not positive, shapes that do not match, NaN or Inf.
      TypeError: v or the map is traced.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> box, start = pde.Box.fourier(2), pde.Gaussian([1.0, 0.0], np.diag([0.5, 2.0]))
      >>> map = pde.affine([[1.0, 0.3], [0.0, 1.0]])
      >>> x = pde.sample(np.random.default_rng(0), start.train(box, map, 1e-5), map, box, 20_000)
      >>> bool(np.allclose(x.mean(0), [1.0, 0.0], atol=0.04))
      True

    Source: S. Dolgov et al., "Approximation and sampling of multivariate probability distributions
    in the tensor train decomposition", Stat. Comput. 30 (2020), Algorithm 1.
    """
    count = _check.integer("count", count, low=1)
    check_concrete("v, map", v, map)
    return draw(generator_of(key), v, map, box, count).points


def draw(rng: np.random.Generator, v: TT, map: AffineMap, box: Box, count: int) -> Drawn:
    """Draws a sample of points from a density given as a train, and evaluates it there."""
    total = float(mass(v, map, box))
    if not total > 0:
        raise ValueError(f"v: expected a density of positive mass, got {total:.3g}")
    cores = hosted_cores(v)
    widest = max(c.shape[1] * max(_FINER, c.shape[0]) for c in cores)
    step = max(1, _CHUNK // widest)
    after = _sums(cores, box)
    sizes = [min(step, count - i) for i in range(0, count, step)]
    parts = [_some(rng, cores, after, box, m) for m in sizes]
    y, values = (np.concatenate(p) for p in zip(*parts, strict=True))
    return Drawn(np.asarray(map.inverse(y)), values)


def _sums(cores: Cores, box: Box) -> list[np.ndarray]:
    """Integrates a density's train over all axes after each one, for sampling: d vectors."""
    out = [np.ones(1)]
    for core, axis in zip(cores[:0:-1], box.axes[:0:-1], strict=True):
        out.append(weighted_sum(core, axis.weights) @ out[-1])
    return out[::-1]


def _some(
    rng: np.random.Generator, cores: Cores, after: list[np.ndarray], box: Box, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws samples y (m, d) of a density, TT-core by TT-core, with its values there (m,)."""
    state, y = np.ones((count, 1)), []
    value = np.ones(count)
    for core, axis, later in zip(cores, box.axes, after, strict=True):
        given = state @ (core @ later)  # (m, n): conditional densities, but for a factor
        at = _inverse(rng.uniform(size=count), _finer(axis), given @ _table(axis).T)
        row = axis.interpolate(at)
        value = einsum("mn,mn->m", row, given)
        state = einsum("mn,man->ma", row, einsum("mb,bna->man", state, core))
        y.append(at)
    return np.stack(y, 1), np.maximum(value, np.finfo(float).tiny)


def _inverse(chance: np.ndarray, points: np.ndarray, density: np.ndarray) -> np.ndarray:
    """Inverts distribution functions of piecewise linear densities (m, k), to draw samples."""
    density = np.maximum(density, 0.0)
    gaps = np.diff(points)
    sums = np.cumsum((density[:, 1:] + density[:, :-1]) / 2 * gaps, axis=1)
    goal = chance * sums[:, -1]
    i = np.minimum((sums <= goal[:, None]).sum(1), len(gaps) - 1)
    rows = np.arange(len(chance))
    rest = goal - np.where(i > 0, sums[rows, np.maximum(i - 1, 0)], 0.0)
    low, high, gap = density[rows, i], density[rows, i + 1], gaps[i]
    # The root of low t + (high − low) t²/2 = rest/gap in a form without cancellation.
    root = np.sqrt(np.maximum(low**2 + 2 * (high - low) * rest / gap, 0.0))
    share = 2 * rest / (gap * np.maximum(low + root, np.finfo(float).tiny))
    return points[i] + gap * np.clip(share, 0.0, 1.0)


@functools.lru_cache(maxsize=256)
def _finer(axis: Axis) -> np.ndarray:
    """Refines the grid points of an axis, ends included, for inverse-transform sampling."""
    known = np.unique(np.concatenate([[axis.low], axis.points, [axis.high]]))
    place = np.arange(_FINER * (len(known) - 1) + 1) / _FINER
    return np.interp(place, np.arange(len(known)), known)


@functools.lru_cache(maxsize=256)
def _table(axis: Axis) -> np.ndarray:
    """Returns the matrix (m, n) that interpolates a grid axis to refined points, for sampling."""
    return np.asarray(axis.interpolate(_finer(axis)))
