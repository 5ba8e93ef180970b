"""Gauge of moving coordinates: shifts and stretches that keep the solution v inside its box.

With the density v²/‖v‖² on the box, w = Σ y + β and v_t = Q − w·∇v, the mean of any f moves by
E[w·∇f] + 2⟨(f − E f) v, Q⟩/‖v‖². The gauge chooses β and the diagonal of Σ so that means and
variances of all coordinates stand still.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.contractions import einsum
from tensorjax.pde._generators.canonical_form import Point
from tensorjax.pde._generators.normal_component import Modes
from tensorjax.pde._generators.tangent_normal_factors import Family

# The outermost share of every axis, on either side, that is its edge.
_EDGE = 0.05


class Spread(NamedTuple):
    """Mean and covariance of v²/‖v‖², and norm near the box's edge, that steer moving coordinates.

    Attributes:
      mean: (d,).
      covariance: (d, d).
      edge: norm of v near either end of an axis, relative to that of v, (d,).
      rough: norm of v in the highest third of the modes of an axis, relative to that of v, (d,).
    """

    mean: np.ndarray
    covariance: np.ndarray
    edge: np.ndarray
    rough: np.ndarray

    @property
    def near(self) -> np.ndarray:
        """Norm (d,) of v near the ends of each axis of the box, less that of unresolved waves.

        Such waves fill an axis. They have more of their norm in the highest modes than at the edge.
        """
        return np.sqrt(np.maximum(self.edge**2 - self.rough**2, 0))


def spread(point: Point, modes: Modes, singles: Family, box: Any) -> Spread:
    """Computes mean and covariance of v²/‖v‖² and the norm of v near the box's edge, for a TT v."""
    d, total = point.order, point.scale**2
    centers = point.centers
    mean, second, edge, rough = np.zeros(d), np.zeros((d, d)), np.zeros(d), np.zeros(d)
    for k, (c, y, axis) in enumerate(zip(centers, modes.points, box.axes, strict=True)):
        share = np.square(c).sum((0, 2)) / total
        mean[k], second[k, k] = share @ y, share @ y**2
        width = _EDGE * (axis.high - axis.low)
        outer = (y <= axis.low + width) | (y >= axis.high - width)
        edge[k] = np.sqrt(max(share[outer].sum(), 0.0))
        rough[k] = np.linalg.norm(axis.fine @ c) / point.scale
    for a, (inside, s, overlap) in enumerate(
        zip(singles.inside, point.bonds, singles.overlap, strict=True)
    ):
        here = inside[:, -1]  # U_pᵀ y_a U_p S_p
        found = einsum("kj,bjl,kl->b", here, overlap[1::2], s) / total
        second[a, a + 1 :] = second[a + 1 :, a] = found
    return Spread(mean, second - np.outer(mean, mean), edge, rough)


def drifts(
    point: Point, modes: Modes, parts: Sequence[Family], seen: Spread
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the rates (d,) at which a PDE's right side changes means and variances of v²."""
    first, second = np.zeros(point.order), np.zeros(point.order)
    for family in parts:
        for k, center in enumerate(point.centers):
            local = _local(point, family, k)
            share = 2 * (center * local).sum((0, 2)) / point.scale**2
            y = modes.points[k] - seen.mean[k]
            first[k] += share @ y
            second[k] += share @ (y**2 - seen.covariance[k, k])
    return first, second


def _local(point: Point, family: Family, k: int) -> np.ndarray:
    """Projects one part of a PDE's right side on the TT bases beside core k: (r, n, s)."""
    if k < point.order - 1:
        return einsum("insj,sjl->inl", family.seen[k], family.overlap[k])
    # (s, j, n, 1): what is orthogonal to V_d and what is not.
    seen = family.new[-1] + einsum("sjl,lnm->sjnm", family.overlap[-1], point.right[-1])
    return einsum("rsj,sjnm->rnm", family.inside[-1], seen)


def standing(
    sigma: np.ndarray,
    seen: Spread,
    first: np.ndarray,
    second: np.ndarray,
    strength: np.ndarray,
    *,
    inwards: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses shift β and stretch diag Σ of moving coordinates that hold mean and variance of v².

    Args:
      sigma: Σ, (d, d), of zero diagonal.
      seen: moments of v².
      first: rates of the means due to Q alone, (d,).
      second: rates of the variances due to Q alone, (d,).
      strength: of the gauge on every axis, (d,), from 0 for none to 1.
      inwards: whether coordinates may shrink but not stretch: variances may then fall.
    """
    variance = np.maximum(np.diag(seen.covariance), np.finfo(float).tiny)
    stretch = -(second / 2 + np.vecdot(sigma, seen.covariance)) / variance
    if inwards:
        stretch = np.minimum(stretch, 0)
    sigma = sigma + np.diag(strength * stretch)
    return sigma, -strength * (first + sigma @ seen.mean)


def strength(edge: np.ndarray, low: float, high: float) -> np.ndarray:
    """Computes a factor 0 to 1 for shift and stretch of coordinates, by the norm near the edge."""
    x = np.log(np.maximum(edge, np.finfo(float).tiny) / low) / np.log(high / low)
    x = np.clip(x, 0, 1)
    return x * x * (3 - 2 * x)
