"""Nonlinear coordinate motion: choice of the rates of given vector fields by least squares."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensorjax._formats.trains import TT
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._generators import normal_component as normal
from tensorjax.pde._generators import tangent_normal_factors as families
from tensorjax.pde._generators.canonical_form import Point, truncated, truncated_ranks
from tensorjax.pde._generators.generator_inputs import Setting
from tensorjax.pde._generators.normal_component import filtered, spectrum
from tensorjax.pde._maps.vector_fields import Basis
from tensorjax.pde._problems.problem import RightSide


class FieldMotion(NamedTuple):
    """Motion along vector fields: their coefficients, with the cost with and without them.

    Attributes:
      rates: ċ, (M,).
      cost: ‖N(Q − Σ_m ċ_m ∇·(g_m v))‖/‖v‖, per time; differences of squares make up to 1e-8 of
        ``cost_without``.
      cost_without: the same for ċ = 0.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> motion = pde.FieldMotion(np.array([0.0, -1.0]), cost=1e-9, cost_without=0.2)
      >>> motion.rates.shape, motion.cost < motion.cost_without
      ((2,), True)
    """

    rates: np.ndarray
    cost: float
    cost_without: float


def field_motion(
    v: TT,
    right: RightSide,
    fields: Basis,
    box: Box,
    tol: float,
    *,
    levels: Sequence[float] = (),
    regularization: float = 1e-10,
) -> FieldMotion:
    """Finds the motion along vector fields that minimises a right side's TT-normal component.

    Minimises Σ_i δ_i⁻² ‖N_i(Q(v_i) − Σ_m ċ_m ∇·(g_m v_i))‖² over ċ, v_i = v rounded at δ_i‖v‖
    and N_i the projection on what is normal to the tangent space there: with no levels but the
    tolerance, the problem of `Convex` in other directions. v is a density: where coordinates
    move with g, it changes by −∇·(g v).

    Args:
      v: TT of the shape of the box.
      right: the right side in the present coordinates, as `Sheared` and `Flowed` give it.
      fields: g_m: `Shears` or `Fields`.
      box: of the y-grid.
      tol: relative tolerance of the integration, the last level.
      levels: δ_i, relative; those above ``tol`` are taken.
      regularization: λ ≥ 0; eigenvalues w are divided by through w/(w² + (λ w_max)²).

    Returns:
      `FieldMotion`: the rates ċ (M,), and the normal component with and without them.

    Raises:
      ValueError: shapes that do not match, NaN or Inf.

    Example:
      What f = (x₂², 0) does to v is taken over by the coordinates.

      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), np.diag([0.5, 0.5]))
      >>> box = pde.Box.fourier(2, n=48)
      >>> drift = [pde.Power([0.0, 1.0], 0.0, 2), None]
      >>> problem = pde.FokkerPlanck(drift, None, start, box)
      >>> at = pde.AffineMap.identity(2)
      >>> v, right = problem.initial(at, 1e-8), problem.right_side(at, 0.0)
      >>> motion = pde.field_motion(v, right, pde.Shears(2, (0,)), box, 1e-8)
      >>> bool(np.allclose(motion.rates, [0, -1, 0]))
      True

    Source: ours. The abstract of the paper (arXiv 2307.05914) speaks of diffeomorphisms and of a
    convex functional; that it is convex for any finite set of fields is plain from its form.
    """
    setting = Setting(v, right, box, tol)
    if fields.dim != box.dim:
        raise ValueError(f"fields: expected {box.dim} coordinates as the box, got {fields.dim}")
    if setting.trivial:
        return FieldMotion(np.zeros(len(fields.axes)), 0.0, 0.0)
    weights: dict[tuple[int, ...], float] = {}
    for x in (*sorted((x for x in levels if x > tol), reverse=True), tol):
        ranks = setting.point.ranks if x == tol else truncated_ranks(setting.point, x)
        weights[ranks] = weights.get(ranks, 0.0) + (tol / x) ** 2
    gram, load, finest = 0.0, 0.0, None
    for ranks, weight in weights.items():
        parts = _form(setting, fields, truncated(setting.point, ranks), tol)
        gram, load = gram + weight * parts[0], load + weight * parts[1]
        finest = parts
    assert finest is not None  # the tolerance itself comes last
    found = spectrum(np.asarray(gram))
    rates = filtered(found, np.asarray(load), regularization * max(found.largest, 0.0))
    last, r, energy = finest
    left = energy - 2 * rates @ r + rates @ last @ rates
    costs = (float(np.sqrt(max(c, 0.0))) / setting.point.scale for c in (left, energy))
    return FieldMotion(rates, *costs)


def _form(
    setting: Setting, fields: Basis, point: Point, tol: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Computes the normal equations of a motion along vector fields: Gram matrix, load."""
    q = setting.right_side(point, tol)
    parts = [_part(setting, point, fields, m) for m in range(len(fields.axes))]
    gram = np.zeros((len(parts),) * 2)
    for i, a in enumerate(parts):
        for j, b in enumerate(parts[: i + 1]):
            gram[i, j] = gram[j, i] = normal.inner(point, a, b)
    load = np.array([sum(normal.inner(point, a, b) for b in q) for a in parts])
    return gram, load, normal.energy(point, q)


def _part(setting: Setting, point: Point, fields: Basis, m: int) -> families.Family:
    """Splits ∇·(g_m v), of a motion along g_m, at each TT bond into tangent and normal factors."""
    links = []
    for k, y in enumerate(setting.modes.points):
        o = np.diag(fields.factor(m, k, y))
        if k == fields.axes[m]:
            o = setting.modes.d1[k] @ o
        links.append((np.ones((1, 1, 1)), o[None]))
    return families.applied(point, links)
