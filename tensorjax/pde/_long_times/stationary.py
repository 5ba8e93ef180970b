"""Stationary densities of Fokker–Planck equations by AMEn, without steps in time."""

import dataclasses
import math
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from tensorjax import _check
from tensorjax._cores import overlaps, products
from tensorjax._cores.contractions import einsum
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT, TTMatrix
from tensorjax.pde._arguments import hosted_cores, or_zero
from tensorjax.pde._discretization import variable_coefficients
from tensorjax.pde._discretization.affine_operators import Coefficients, affine_generator
from tensorjax.pde._discretization.grid import Box, ends, random_points
from tensorjax.pde._integration.error_estimates import ALLOWED, LEAST_ESTIMATE, inaccurate
from tensorjax.pde._integration.failure_diagnosis import unbounded_by
from tensorjax.pde._integration.initial_checks import check_at_rest, check_walls
from tensorjax.pde._integration.solution import Result, State
from tensorjax.pde._long_times import closed_forms, linear_systems
from tensorjax.pde._long_times.sawtooth_damping import damped
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._observables.edge_and_resolution import shares
from tensorjax.pde._observables.values_and_moments import moments
from tensorjax.pde._problems.fokker_planck import FokkerPlanck
from tensorjax.pde._problems.ornstein_uhlenbeck import OrnsteinUhlenbeck
from tensorjax.pde._problems.problem import Problem
from tensorjax.pde._stepping.mass import mass_of

# Solves are asked for this relative residual at least.
_EXACT = 1e-13
# Residuals that roundoff leaves.
_ROUNDOFF = 1e-9
# Residual of the last solve, at most: modes slower than this over tol, in units of the rates of p,
# may not have relaxed.
_SURE = 1e-8
# Share of the time for values of closed forms; seconds that are left for solves, at least.
_LOOKED, _LEAST = 0.5, 1e-9
# What L leaves of an exact density, over its shares at the edge and in the highest modes.
GRID = 30.0
# Error of the density over the norm of its highest modes on Fourier axes along which the drift is
# not affine: what products spread from the jump at the ends is damped slowly. Chosen on wells in
# one dimension and limit cycles in two, on 40 to 80 points.
_AMPLIFIED = 5.0
# Points at which a drift is looked at, and what its second differences count as roundoff, relative.
_LOOKS, _STRAIGHT = 100, 1e-9
# Solves, at most, and by how much each is more accurate than the one before: what it changes is the
# error of that.
_SOLVES, _SHARE = 4, 0.1


@dataclasses.dataclass(frozen=True)
class Stationary:
    """Stationary density of a linear PDE, with its residual and a status.

    Attributes:
      final: `State` of the density, of mass one, at t = ∞; ``final.v`` and ``final.map`` as those
        of a `Solution`.
      result: `Result.successful`; `Result.edge_mass` where there is no density in the box that
        vanishes at its edge (none that can be normalised, or the box is too small);
        `Result.unresolved` where its points are too coarse, and `Result.inaccurate` where they
        leave an error above the accuracy asked for; `Result.max_rank`; `Result.solver`
        where the linear systems are not solved to ``tol``; `Result.max_steps` where that would take
        more than ``max_seconds``, and ``final`` is what there was before the solve that was left.
      message: explanation of a failure, with advice; else empty.
      residual: ‖L p‖/‖p‖, a rate: 1/residual is a time over which p hardly changes.
      change: what the last solve has changed of p, relative to its norm; zero of a closed form.
      edge_mass: see `tensorjax.pde.edge_mass`.
      resolution: see `tensorjax.pde.resolution`.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), 0.5 * np.eye(2))
      >>> box = pde.Box.fourier(2, 32, 5.0)
      >>> problem = pde.OrnsteinUhlenbeck(-0.5 * np.eye(2), 0.25 * np.eye(2), start, box)
      >>> found = pde.stationary(problem)
      >>> found.result.value, found.message, bool(found.residual < 1e-6)
      ('successful', '', True)
      >>> mass, mean, covariance = pde.moments(found.final.v, found.final.map, box)
      >>> print(np.round(covariance, 4).tolist())
      [[0.5, 0.0], [0.0, 0.5]]
    """

    final: State
    result: Result
    message: str
    residual: float
    change: float
    edge_mass: float
    resolution: float


def stationary(
    problem: Problem,
    *,
    tol: float = 1e-6,
    map: AffineMap | None = None,
    max_rank: int | None = None,
    edge_limit: float = 1e-3,
    resolution_limit: float = 1e-3,
    max_seconds: float = 60.0,
    accuracy: float | None = None,
) -> Stationary:
    """Computes the stationary density of a linear PDE: L p = 0 with ∫ p dx = 1.

    Solves (L − c w ∫) p = −c w, w the start of the problem as a density and c a rate at which
    densities like it change, by AMEn. The integral makes the system regular, and where L conserves
    mass p is the stationary density whatever w is. It is then solved anew, more accurately, with p
    in place of w, until p stays: on grids that conserve mass nearly, that is inverse iteration.

    In three dimensions and more closed forms are looked for first, and their residuals looked at on
    the grid. For affine drift p is a Gaussian, of rank one in coordinates that are chosen if none
    are given: those of its correlations, with the means and deviations of the given ones. In
    detailed balance log p is a line integral of the drift: gradients with noise in all
    coordinates, and particles with positions, momenta and one temperature; whether that holds is
    tested at points. A density of other equations that has high ranks in coordinates at rest takes
    minutes and more.

    Args:
      problem: linear, not a function of time, without source: a `FokkerPlanck`,
        `OrnsteinUhlenbeck` or one of your own.
      tol: error of p relative to its norm, by what the last solve has changed; that of the grid
        and the box comes on top, see ``accuracy``. Between wells that paths leave rarely masses are
        sensitive: errors of the grid, as rates, count over the rate of the slowest mode.
      map: coordinates of p, at rest. If None, the identity or those of an affine drift, see above.
      max_rank: of p.
      edge_limit: largest `edge_mass` of a success.
      resolution_limit: largest `resolution` of a success.
      max_seconds: processor time that sweeps of AMEn may take, of all threads together; Inf for no
        limit. It is looked at between sweeps. Values of a closed form may take half of it, which
        counts. Where AMEn stalls in one or two dimensions, on at most 6400 points, the system is
        factored as a dense matrix, which takes up to about ten seconds and is not cut short.
      accuracy: error, relative to the norm of p, that the points and the box may leave: estimated
        axis by axis as by `integrate`, from the norm of the highest modes on Fourier axes, and five
        times that where the drift along the axis is not affine in it. The estimate may be wrong by
        a factor of some; a larger one makes the result "less accurate than asked", with the axis
        and the points to take. Values of a closed form have no such error. None: 10 ``tol``; Inf:
        nothing is said.

    Returns:
      `Stationary`.

    Raises:
      ValueError: an argument out of range, an equation that is not linear or depends on time, a
        start without mass.

    Example:
      The Boltzmann density exp(−V/T) of a double well, V = (x² − 1)²/4 and T = 0.1.

      >>> import numpy as np
      >>> from tensorjax import pde
      >>> box = pde.Box.fourier(1, 128, 3.0)
      >>> start = pde.Gaussian(np.zeros(1), np.eye(1))
      >>> force = [pde.Power([1.0], exponent=3, amplitude=-1.0)]
      >>> well = pde.FokkerPlanck([force], 0.1, start, box, matrix=np.eye(1))
      >>> found = pde.stationary(well)
      >>> found.result.value
      'successful'
      >>> x = np.array([[0.0], [1.0]])
      >>> low, high = pde.evaluate(found.final.v, found.final.map, box, x)
      >>> bool(abs(low / high - np.exp(-2.5)) < 1e-4)
      True

    Source: S. Dolgov, B. Khoromskij, I. Oseledets, "Fast solution of parabolic problems in the
    tensor train/quantized tensor train format with initial application to the Fokker–Planck
    equation", SIAM J. Sci. Comput. 34 (2012), for trains of such densities. H. Risken,
    "The Fokker–Planck Equation" (Springer, 1989), section 6.4, for detailed balance. Ours: the
    bordered system.
    """
    limits = edge_limit, resolution_limit
    tol, _ = linear_systems.checked_options(tol, max_rank)
    allowed = max(ALLOWED * tol, LEAST_ESTIMATE) if accuracy is None else accuracy
    _check.number("accuracy", allowed, low=0, open=True, finite=False)
    return with_cores(problem, tol, map, max_rank, limits, max_seconds, allowed)[0]


def with_cores(
    problem: Problem,
    tol: float,
    map: AffineMap | None,
    max_rank: int | None,
    limits: tuple[float, float],
    max_seconds: float,
    accuracy: float = math.inf,
) -> tuple[Stationary, Cores]:
    """Computes a `Stationary`, and its cores of mass one on its grid, in double precision."""
    if not isinstance(problem, Problem):
        raise ValueError(f"problem: expected a pde.Problem, got {type(problem).__name__}")
    tol, cap = linear_systems.checked_options(tol, max_rank)
    linear_systems.checked_seconds(max_seconds)
    begun = time.process_time()
    at = AffineMap.identity(problem.dim) if map is None else map
    at = AffineMap(np.asarray(at.matrix, np.float64), np.asarray(at.shift, np.float64))
    check_at_rest(problem.box, at)
    check_walls(problem)
    if any(a.walls is not None and "absorbing" in a.walls for a in problem.box.axes):
        raise ValueError(
            "problem: expected no absorbing walls, which leave no stationary density; take "
            "reflecting ones, or pde.survival for what is left at a time"
        )
    form = closed_forms.known(problem, tol, map, cap, _LOOKED * max_seconds)
    at = form.map if form.map is not None else at
    # A solve that begins with a density meets one as near as it; in a box, what comes in at the
    # ends goes into the highest mode, and the rest is nearer to the density on the line.
    operator, box = operator_of(problem, at, boxes=False), problem.box
    p = problem.initial_cores(at, tol) if form.cores is None else form.cores
    mass = mass_of(p, box.weights)
    if not (math.isfinite(mass) and mass > 0):
        raise ValueError(f"start: expected a density, of positive mass, got {mass:.3g}")
    p = [p[0] / mass, *p[1:]]
    found = None
    if form.cores is not None:
        found = _checked(operator, p, box, tol, limits)
    if found is None:
        left = max(max_seconds - (time.process_time() - begun), _LEAST)
        found = _iterated(operator, p, box, tol, cap, linear_systems.Timer(left))
    p, change = found.p, found.change
    v = TT._unchecked(tuple(jax.device_put([p[0] * abs(float(at.det)), *p[1:]])))
    edge, rough = shares(v, box)
    capped = cap is not None and max(len(c) for c in p) >= cap and change > tol
    outside = unbounded_by(edge, rough, *limits)
    if found.exact:  # exact values have no noise at the edge
        outside = outside[0], edge <= limits[0] and outside[0]
    if found.spent:
        result, message = Result.max_steps, out_of_time("density", found.spent, max_seconds)
    else:
        result, message = _judged(found.steady, found.residual, capped, outside, (edge, rough))
    if result == Result.successful and not found.exact:
        # Transport in split form jumps at the ends under affine drift, too.
        told = inaccurate(
            p, box, math.inf, tol, accuracy, True, amplified=_amplification(problem, at)
        )
        result, message = (Result.inaccurate, told) if told else (result, message)
    state = State(v, at, math.inf)
    return Stationary(state, result, message, speed(operator, p), change, edge, rough), p


def _amplification(problem: Any, map: AffineMap) -> np.ndarray:
    """Returns by how much errors of a stationary density exceed its highest modes, per axis.

    They do along Fourier axes whose drift or noise is no affine function of their own coordinate.
    """
    box = problem.box
    fourier = np.array([a.kind == "fourier" for a in box.axes])
    known = isinstance(problem, OrnsteinUhlenbeck | FokkerPlanck)
    if not known or (isinstance(problem, FokkerPlanck) and problem.noise.variable):
        return np.where(fourier, _AMPLIFIED, 1.0)
    y, middle = random_points(box, _LOOKS), np.mean(ends(box), axis=0)
    bent = np.zeros(box.dim, bool)
    for k in range(box.dim):
        drifts = []
        for share in (1.0, 0.0, -1.0):  # a line along the axis, about its middle
            z = y.copy()
            z[:, k] = middle[k] + share * (y[:, k] - middle[k])
            x = np.asarray(map.inverse(z))
            drifts.append(np.asarray(problem.velocity(x)) @ np.asarray(map.matrix)[k])
        size = np.abs(drifts).max()
        bent[k] = np.abs(drifts[0] - 2 * drifts[1] + drifts[2]).max() > _STRAIGHT * size
    return np.where(fourier & bent, _AMPLIFIED, 1.0)


class _Found(NamedTuple):
    """Stationary density of a PDE, with residual and last change of the iteration."""

    p: Cores
    residual: float
    change: float
    steady: bool
    exact: bool = False
    spent: tuple[int, ...] = ()  # ranks at which time was over


def _checked(operator: Cores, p: Cores, box: Box, tol: float, limits: Any) -> _Found | None:
    """Returns a closed-form stationary density if it solves the discretised PDE; else None.

    Its values are exact: what L leaves of it is the error of the grid, of the size of the shares at
    the edge and in the highest modes. One that the grid does not hold no solve can mend.
    """
    edge, rough = shares(TT._unchecked(tuple(jax.device_put(p))), box)
    residual = speed(operator, p) / rate_of(operator, p, box)
    outside = unbounded_by(edge, rough, *limits)[0]
    if residual <= max(tol, GRID * (edge + rough)) or outside:
        return _Found(p, residual, 0.0, True, True)
    return None


def out_of_time(name: str, ranks: tuple[int, ...], seconds: float) -> str:
    """Returns the message for a stationary density, or slow modes, that would take too long."""
    return (
        f"the linear systems of the {name} would take more than max_seconds = {seconds:g} of "
        f"processor time; a solution had TT-ranks {ranks} by then: take coordinates in which they "
        "are lower (map=), a larger tol, fewer points, or raise max_seconds"
    )


def _iterated(
    operator: Cores, p: Cores, box: Box, tol: float, cap: int | None, timer: Any
) -> _Found:
    """Computes a stationary density by repeated solves with the bordered operator L − c p ∫."""
    rate = rate_of(operator, p, box)
    change, residual, asked = math.inf, math.inf, 0.0
    elimination = linear_systems.Elimination()
    for k in range(_SOLVES):
        before, accuracy = p, max(_SHARE**k * tol, _EXACT)
        # A guess that would do is returned as it is, and may be the density of one of several
        # wells: its residual, that of the slowest mode, has to fall, and to be small at the end.
        sure = _SURE if k else math.inf
        asked = max(min(accuracy, sure, _SHARE * speed(operator, p) / rate), _EXACT)
        try:
            system = bordered(operator, p, box.weights, rate)
            load = [-rate * p[0], *p[1:]]
            p, residual = linear_systems.solved(
                system, load, p, asked, cap, timer=timer, elimination=elimination
            )
        except linear_systems.OutOfTimeError as error:
            return _Found(p, residual, change, False, spent=error.ranks)
        mass = mass_of(p, box.weights)
        if not (math.isfinite(mass) and mass > 0):
            p = before
            break
        p = [p[0] / mass, *p[1:]]
        change = overlaps.distance(p, before) / overlaps.norm(p)
        solved = asked <= _SURE and residual <= max(asked, _ROUNDOFF)
        if (change <= tol and solved) or residual > accuracy:
            break
    # A solve that stalls returns its guess: that nothing has changed then says nothing.
    steady = change <= tol and asked <= _SURE and residual <= max(asked, _ROUNDOFF)
    return _Found(p, residual, change, steady)


def _judged(
    steady: bool, residual: float, capped: bool, outside: Any, seen: tuple[float, float]
) -> tuple[Result, str]:
    """Returns the status of a computed stationary density, and a message with advice."""
    edge, rough = seen
    if capped:
        return Result.max_rank, "the density asks for ranks above max_rank: raise it, or tol"
    if outside[1]:
        return Result.unresolved, (
            f"a share {rough:.2g} of the norm of the density lies in the highest third of the "
            f"modes of an axis, and {edge:.2g} at the edge of the box: take more points or a "
            "smaller box, if there is a density that is smooth"
        )
    if outside[0]:
        return Result.edge_mass, (
            f"a share {edge:.2g} of the norm of the density lies at the edge of the box: take a "
            "larger box, if there is a density that vanishes far out (a drift that does not "
            "confine has none)"
        )
    if not steady:
        return Result.solver, (
            f"the linear systems are solved to {residual:.2g} only, or their solution does not "
            "stay: take a larger tol, a smaller box or one of fewer points, or another start"
        )
    return Result.successful, ""


def operator_of(problem: Problem, map: AffineMap, boxes: bool = True) -> Cores:
    """Builds the generator L whose stationary density is sought, as TT-matrix cores.

    Args:
      problem: a linear equation whose coefficients do not depend on time.
      map: coordinates.
      boxes: as of `damped`.
    """
    right = problem.right_side(map, 0.0)
    if right.source is not None or right.reaction is not None or getattr(problem, "timed", False):
        raise ValueError(
            "problem: expected a linear equation without source, of coefficients that do not "
            "depend on time, got another one; integrate it until its state stays"
        )
    operators = [*_split(problem.box, right.affine), *right.others]
    if not operators:
        raise ValueError("problem: expected an equation with a drift or a diffusion, got neither")
    operator = linear_systems.merged([hosted_cores(o) for o in operators])
    return damped(operator, problem, problem.box, map, boxes)


def _split(box: Box, affine: Coefficients | None) -> list[TTMatrix]:
    """Builds the affine part of a stationary equation's generator with transport in split form.

    On Fourier axes M y jumps from one end to the other. In time that matters little; AMEn projects
    on few directions, and those that grow at the jump would be among them.
    """
    if affine is None:
        return []
    d = box.dim
    matrix, shift = map(np.asarray, (or_zero(affine.matrix, d, d), or_zero(affine.shift, d)))
    constant = float(affine.constant) - float(np.trace(matrix))
    out = [affine_generator(box, None, None, affine.diffusion, constant)]
    for i in range(d):
        if np.any(matrix[i]) or shift[i]:
            cores = variable_coefficients.power(box, matrix[i], shift[i], 1)
            out.append(variable_coefficients.transport(box, np.eye(d)[i], cores))
    return out


def bordered(operator: Cores, p: Cores, weights: Any, rate: float) -> Cores:
    """Builds the stationary equation's L − c p ∫, which moves the eigenvalue zero to −c."""
    border = [
        einsum("anb,m->anmb", c, w).reshape(len(c), -1, c.shape[-1])
        for c, w in zip(p, weights, strict=True)
    ]
    return linear_systems.square(
        products.combined([linear_systems.flat(operator), border], [1.0, -rate])
    )


def standard_coordinates(p: Cores, box: Box) -> list[np.ndarray]:
    """Computes grid points standardised by a `Stationary` density: (y − mean)/σ, (n_k,)."""
    _, mean, covariance = moments(TT._unchecked(tuple(p)), AffineMap.identity(box.dim), box)
    width = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    return [(a.points - m) / w for a, m, w in zip(box.axes, mean, width, strict=True)]


def times_coordinates(p: Cores, lines: list[np.ndarray], axes: Iterable[int]) -> Cores:
    """Multiplies the density of `stationary` by the standardised coordinates of some axes."""
    out = list(p)
    for k in axes:
        out[k] = out[k] * lines[k][None, :, None]
    return out


def rate_of(operator: Cores, p: Cores, box: Box) -> float:
    """Computes how fast a generator changes a nearly stationary density and its first moments.

    For borders of the operator. The rate of the density alone is zero where it is stationary.
    """
    lines = standard_coordinates(p, box)
    some = [(), *((k,) for k in range(box.dim))]
    return max(speed(operator, times_coordinates(p, lines, axes)) for axes in some)


def speed(operator: Cores, v: Cores) -> float:
    """Computes ‖L v‖/‖v‖ for a generator L, which is zero for a stationary density v."""
    return overlaps.norm(products.matvec(operator, v)) / overlaps.norm(v)
