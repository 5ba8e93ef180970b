"""Inputs of the coordinate generators: state, right side, gauge; and the motion that they return.

The gauge are shifts and stretches that keep the solution v inside its box. With the density
v²/‖v‖² on the box, w = Σ y + β and v_t = Q − w·∇v, the mean of any f moves by
E[w·∇f] + 2⟨(f − E f) v, Q⟩/‖v‖². The gauge chooses β and the diagonal of Σ so that means and
variances of all coordinates stand still.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from tensorjax import _check
from tensorjax._cores.contractions import einsum
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax.pde._arguments import real_cores
from tensorjax.pde._discretization.affine_operators import affine_states
from tensorjax.pde._generators import normal_component
from tensorjax.pde._generators import tangent_normal_factors as families
from tensorjax.pde._generators.canonical_form import Point, canonical
from tensorjax.pde._generators.tangent_normal_factors import Family, Modes

# The outermost share of every axis, on either side, that is its edge.
_EDGE = 0.05
Gauge = Literal["none", "edge", "moments"]
# Shares of the tolerance that the edge of the box holds, relative to v, where the gauge sets in and
# where it acts in full.
_ONSET, _FULL = 1e-4, 1e-2
# Matrices per mode from which on an operator is multiplied by v as a whole.
_WIDE = 16


class Motion(NamedTuple):
    """Coordinate motion ẏ = Σ y + β chosen for a PDE in moving coordinates, with its cost.

    Attributes:
      sigma: Σ, (d, d).
      beta: β, (d,).
      cost: ‖N(Q − Σ_jk Σ_jk y_k ∂_j v)‖/‖v‖, what remains of the right side outside the tangent
        space at v, per time; NaN where it was not computed.
      cost_without: the same for Σ = 0.
      levels: relative errors of the truncations of v that were looked at.
      ranks: the largest TT-rank of each.
      edge: the largest norm of v near an end of an axis, relative to ‖v‖; NaN if not computed.
      guarded: whether the guard has set Σ to zero.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.16]))
      >>> box = pde.Box.fourier(2, n=64)
      >>> problem = pde.Liouville(np.array([[0.0, 1.0], [-1.0, 0.0]]), start, box)
      >>> at = pde.AffineMap.identity(2)
      >>> v, right = problem.initial(at, 1e-8), problem.right_side(at, 0.0)
      >>> motion = pde.Convex()(v, right, at, box, 1e-8, 0.0)
      >>> motion.sigma.shape, motion.beta.shape, motion.guarded
      ((2, 2), (2,), False)
    """

    sigma: np.ndarray
    beta: np.ndarray
    cost: float = float("nan")
    cost_without: float = float("nan")
    levels: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()
    edge: float = float("nan")
    guarded: bool = False


def checked_motion(motion: Any, box: Any) -> tuple[Any, Any]:
    """Returns Σ and β of a coordinate motion ẏ = Σ y + β; raises ValueError if invalid."""
    d = box.dim
    if not isinstance(motion, Motion):
        raise ValueError(
            "coordinates: expected a generator that returns pde.Motion(sigma (d, d), beta (d,)), "
            f"got {type(motion).__name__}"
        )
    found = rates_of_motion("coordinates: expected a motion with", motion.sigma, motion.beta, d)
    if not moves_unbounded(box, *found):
        raise ValueError(
            "coordinates: expected a motion that is zero, in rows and columns, on axes that are "
            'periodic, half-lines or have walls, got one that moves them; take "adaptive", or a '
            "generator of pde.coords"
        )
    return found


def moves_unbounded(box: Any, sigma: Any, beta: Any) -> bool:
    """Whether a coordinate motion Σ y + β is zero on periodic, half-line and walled axes."""
    rests = ~box.unbounded
    return not (np.any(sigma[rests]) or np.any(sigma[:, rests]) or np.any(beta[rests]))


def rates_of_motion(expected: str, sigma: Any, beta: Any, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Converts Σ and β of a coordinate motion to arrays; ValueError for shapes, NaN or Inf."""
    sigma, beta = np.asarray(sigma, np.float64), np.asarray(beta, np.float64)
    for part, value, shape in (("sigma", sigma, (d, d)), ("beta", beta, (d,))):
        if value.shape != shape:
            raise ValueError(f"{expected} {part} of shape {shape}, got {value.shape}")
        _check.finite(f"{expected.partition(':')[0]}: {part}", value)
    return sigma, beta


class Spread(NamedTuple):
    """Input of the coordinate generators: mean, covariance of v²/‖v‖², norm near the box's edge.

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
        """Norm (d,) of v near the ends of each axis, an input of generators, less unresolved waves.

        Such waves fill an axis. They have more of their norm in the highest modes than at the edge.
        """
        return np.sqrt(np.maximum(self.edge**2 - self.rough**2, 0))


def spread(point: Point, modes: Modes, singles: Family, box: Any) -> Spread:
    """Computes inputs of generators: mean and covariance of v²/‖v‖², norm near the box's edge."""
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


def moment_rates(
    point: Point, modes: Modes, parts: Sequence[Family], seen: Spread
) -> tuple[np.ndarray, np.ndarray]:
    """Computes inputs of generators: rates (d,) at which Q changes means and variances of v²."""
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
    """Projects a part of a generator's right side on the TT bases beside core k: (r, n, s)."""
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
    """Chooses the gauge of a generator: shift β and stretch diag Σ that hold moments of v².

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


def gauge_strength(edge: np.ndarray, low: float, high: float) -> np.ndarray:
    """Computes the strength of a generator's gauge, from 0 to 1, by the norm near the edge."""
    x = np.log(np.maximum(edge, np.finfo(float).tiny) / low) / np.log(high / low)
    x = np.clip(x, 0, 1)
    return x * x * (3 - 2 * x)


class Setting:
    """Inputs of a coordinate generator: v in canonical form, a PDE's right side, the grid."""

    def __init__(self, v: TT, right: Any, box: Any, tol: float):
        if tuple(v.shape) != tuple(box.shape):
            raise ValueError(f"v: expected the shape {box.shape} of the box, got {v.shape}")
        self.box, self.tol = box, tol
        self.modes = families.modes_of(box)
        self.point = canonical(self.modes.weighted(real_cores("v", v)))
        self.trivial = box.unbounded.sum() < 2 or self.point.scale == 0
        reaction = None if right.reaction is None else self._reaction(right.reaction)
        source = None if right.source is None else real_cores("source", right.source)
        self.terms = normal_component.Terms(
            right.affine,
            *self._operators([] if self.trivial else right.others),
            None if source is None else self.modes.weighted(source),
            reaction,
        )

    def _operators(self, others: Any) -> tuple[list[list[families.Link]], list[Cores]]:
        """Factors a generator's operators into bond and mode matrices; keeps wide ones whole.

        Sums over pairs of matrices would take far longer than the product with v.
        """
        few, wide = [], []
        for o in others:
            links = families.links_of(o, self.modes)
            if max(len(k) for k, _ in links) <= _WIDE:
                few.append(links)
            else:
                wide.append([einsum("tsq,tnm->snmq", k, matrices) for k, matrices in links])
        return few, wide

    def _reaction(self, function: Any) -> Any:
        def reaction(cores: Cores, tol: float) -> Cores:
            v = TT._unchecked(tuple(self.modes.values(cores)))
            return self.modes.weighted(real_cores("reaction", function(v, tol)))

        return reaction

    def form(
        self,
        point: Point,
        tol: float,
        *,
        state: Point | None = None,
        kappa: float = 0.0,
        measure: bool = False,
    ) -> normal_component.Form:
        """Computes a generator's input, the quadratic cost of motions Σ y: the TT-normal part."""
        state = self.point if state is None else state
        feedback = None
        if kappa > 0:
            *first, last = self.point.cores
            feedback = [*first, kappa * last]
        return normal_component.form(
            point, state, self.modes, self.terms, tol=tol, feedback=feedback, measure=measure
        )

    def affine_part(self, point: Point) -> list[families.Family]:
        """Input of a generator: the right side's affine part, as tangent and normal factors."""
        if self.terms.affine is None:
            return []
        states = affine_states(self.box, self.terms.affine)
        links = [
            (k.transpose(1, 0, 2), self.modes.matrices(i, a.basis))
            for i, (k, a) in enumerate(zip(states, self.box.axes, strict=True))
        ]
        return [families.applied(point, links)]

    def right_side(self, point: Point, tol: float) -> list[families.Family]:
        """Input of a generator: all terms of the right side, as tangent and normal factors."""
        return [*normal_component.other_families(point, self.terms, tol), *self.affine_part(point)]

    @property
    def kept(self) -> np.ndarray:
        """Indices of the off-diagonal entries of Σ that a generator may choose."""
        free = self.box.unbounded
        return np.flatnonzero(normal_component.off_diagonal(np.outer(free, free)))

    def mean_square(self) -> float:
        """Estimates a generator's scale: the mean of ‖y_k ∂_j v‖², as if v had TT-rank one."""
        pairs = [self.modes.pair(k, c) for k, c in enumerate(self.point.centers)]
        first, y = (
            np.array([np.vdot(p[i], p[i]) / self.point.scale for p in pairs]) for i in (0, 1)
        )
        d = len(pairs)
        return float((first.sum() * y.sum() - first @ y) / (d * d - d))

    def motion(self, form: normal_component.Form, sigma: np.ndarray, gauge: Gauge) -> Motion:
        """Completes a generator's motion Σ y + β from off-diagonal Σ: adds gauge and cost."""
        seen = spread(self.point, self.modes, form.family, self.box)
        scale = self.point.scale
        costs = form.cost(sigma) / scale, form.cost(0 * sigma) / scale
        beta = np.zeros(len(sigma))
        strength = np.ones(len(sigma))
        if gauge == "edge":
            strength = gauge_strength(seen.near, _ONSET * self.tol, _FULL * self.tol)
        strength = strength * self.box.unbounded
        if gauge != "none" and np.any(strength):
            parts = [*form.others, *self.affine_part(self.point)]
            drifts = moment_rates(self.point, self.modes, parts, seen)
            sigma, beta = standing(sigma, seen, *drifts, strength, inwards=gauge == "edge")
        return Motion(sigma, beta, *costs, edge=float(seen.edge.max()))
