"""Step-truncation methods: one step of Runge–Kutta, Adams–Bashforth or IMEX, with rounding.

A step does not keep the slopes k_i of Runge–Kutta. The stages s_{i+1} = v + a dt k_i are rounded
anyway, so that (s_{i+1} − v)/(a dt) stands for k_i in the sum at the end: one application of the
right side and one rounding for each stage.

Source: A. Rodgers, A. Dektor, D. Venturi, "Adaptive integration of nonlinear evolution equations on
tensor manifolds", J. Sci. Comput. 92 (2022), for step-truncation; the classical tableaux. Ours: the
slopes taken from rounded stages, and the estimates of the error.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax import tt
from tensorjax._cores import scaling
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax.pde._discretization.affine_operators import affine_generator
from tensorjax.pde._problems.problem import terms_of
from tensorjax.pde._stepping.compiled_once import Program
from tensorjax.pde._stepping.right_side import Clock, Rates, train
from tensorjax.pde._stepping.sketched_sums import Rounded, Train, nothing, relative_norm, rounded
from tensorjax.pde._stepping.step_rounding import STAGE, Trim
from tensorjax.tt._linear.amen import amen_search
from tensorjax.tt._linear.solve import solution
from tensorjax.tt._linear.system import System

# AMEn: passes over the train, and directions of the residual that a pass adds to each bond.
_SWEEPS, _ENRICHMENT = 20, 4
# Share of the tolerance of the step at which the system is solved.
_SOLVED = 0.3
# Recommended step over the one at the stability limit: rates are estimated from below.
SAFE = 0.75
# Methods whose steps may carry v beyond the next few points.
WHOLE = ("imex", "exponential")
# Stability limits of each method: largest |dt λ| for real negative λ, and for imaginary λ.
STABLE = {
    "rk4": (2.7, 2.8),
    "rk2": (2.0, 1.2),
    "ab2": (1.0, 0.6),
    "ab3": (0.54, 0.72),
    "imex": (1.0, 0.6),
    "exponential": (2.7, 2.8),
    "bug": (2.7, 2.8),
    "projector splitting": (2.7, 2.8),
}


class Step(NamedTuple):
    """Result of one step by Runge–Kutta or another method: new train v, error, stored slope.

    Attributes:
      v: rounded, right-orthogonal but for the first core.
      error: about the local error over ‖v‖; NaN if it was not asked for.
      slope: (t, rate) of this step where a multistep method keeps it.
      note: what went wrong inside the step, for the message; empty if nothing did.
    """

    v: Rounded
    error: float = float("nan")
    slope: Any = None
    note: str = ""


Stepper = Callable[[Clock, Cores, float, Trim, bool, Sequence[Any]], Step]


def _plus(
    trim: Trim, name: str, trains: Sequence[Cores], weights: Sequence[float], rate: Any, by: float
) -> Rounded:
    """Rounds a Runge–Kutta stage: weighted tensor trains plus ``by`` times the rate."""
    terms = [*map(Train, trains), *rate]
    return trim(name, terms, [*weights, *[by] * len(rate)])


def rk4(at: Clock, v: Cores, dt: float, trim: Trim, estimate: bool, past: Any) -> Step:
    """Advances a tensor train by one rounded step of the classical Runge–Kutta method (RK4).

    The estimate: with k_5, the slope at the new value, in place of k_4 the same weights give order
    3, so that dt/6 ‖k_4 − k_5‖ is of order dt⁴.
    """
    tol = STAGE * trim.tol
    begin, middle, end = at(0.0), at(0.5), at(1.0)
    s2 = _plus(trim, "s2", [v], [1.0], begin.terms(v, tol), dt / 2).cores
    s3 = _plus(trim, "s3", [v], [1.0], middle.terms(s2, tol), dt / 2).cores
    s4 = _plus(trim, "s4", [v], [1.0], middle.terms(s3, tol), dt).cores
    last = end.terms(s4, tol)
    # The first three slopes are in the stages, dt/2 k_1 = s2 − v and so on: of their terms, whose
    # ranks are larger, none is summed again.
    weights = [-1 / 3, 1 / 3, 2 / 3, 1 / 3]
    out = _plus(trim, "v", [v, s2, s3, s4], weights, last, dt / 6)
    return with_estimate(out, last, end, dt, tol) if estimate else Step(out)


def with_estimate(out: Rounded, last: Any, end: Rates, dt: float, tol: float) -> Step:
    """Estimates the error of a classical Runge–Kutta step, dt/6 ‖k_4 − k_5‖ of its last slopes."""
    if not np.isfinite(out.norm):
        return Step(out)
    if not last:
        return Step(out, 0.0)
    new = end.terms(out.cores, tol)
    signs = [dt / 6] * len(last) + [-dt / 6] * len(new)
    return Step(out, relative_norm([*last, *new], signs, Train(out.cores)))


def rk2(at: Clock, v: Cores, dt: float, trim: Trim, estimate: bool, past: Any) -> Step:
    """Advances a train by one rounded step of Heun's method, Runge–Kutta of order 2."""
    tol = STAGE * trim.tol
    first = at(0.0).terms(v, tol)
    s2 = _plus(trim, "s2", [v], [1.0], first, dt).cores
    second = at(1.0).terms(s2, tol)
    out = _plus(trim, "v", [v, s2], [0.5, 0.5], second, dt / 2)
    if not (estimate and np.isfinite(out.norm)):
        return Step(out)
    signs = [-dt / 2] * len(first) + [dt / 2] * len(second)
    return Step(out, relative_norm([*first, *second], signs, Train(out.cores)))


def adams_bashforth(order: int) -> Stepper:
    """Returns the rounded TT step function of the Adams–Bashforth method of order 2 or 3.

    The slopes are rounded and kept. The estimate is the distance from the method of one order less.
    """

    def step(at: Clock, v: Cores, dt: float, trim: Trim, estimate: bool, past: Any) -> Step:
        begin = at(0.0)
        t = at.path.t
        size = float(np.linalg.norm(v[0]))
        terms = begin.terms(v, STAGE * trim.tol) or [nothing(v)]
        slope = trim("slope", terms, [1.0] * len(terms), scale=size / dt).cores
        known = [*past, (t, slope)][-order:]
        if len(known) < order:
            out = rk4(at, v, dt, trim, estimate, ())
            return out._replace(slope=(t, slope))
        weights = dt * adams_weights(t, dt, [s for s, _ in known])
        trains = [Train(c) for _, c in known]
        out = trim("v", [Train(v), *trains], [1.0, *weights])
        error = float("nan")
        if estimate and np.isfinite(out.norm):
            lower = dt * adams_weights(t, dt, [s for s, _ in known[1:]])
            weights[1:] -= lower
            error = relative_norm(trains, list(weights), Train(out.cores))
        return Step(out, error, (t, slope))

    return step


def adams_weights(t: float, dt: float, times: Sequence[float]) -> np.ndarray:
    """Computes the weights of past slopes in an Adams–Bashforth step, over dt."""
    nodes = (np.asarray(times) - t) / dt
    powers = np.vander(nodes, increasing=True).T
    return np.linalg.solve(powers, 1 / np.arange(1, len(nodes) + 1))


def imex(at: Clock, v: Cores, dt: float, trim: Trim, estimate: bool, past: Any) -> Step:
    """Advances a train by an IMEX step: Crank–Nicolson for diffusion, Adams–Bashforth else.

    (1 − dt/2 D(t + dt)) v⁺ = v + dt/2 D(t) v + dt·(explicit part): the order is 2, steps may vary,
    and the first is of order 1 in the explicit part. The estimate is what the second slope of
    Adams–Bashforth adds.

    Source: U. Ascher, S. Ruuth, B. Wetton, "Implicit-explicit methods for time-dependent partial
    differential equations", SIAM J. Numer. Anal. 32 (1995), section 2, CNAB.
    """
    stiff, slow = at(0.0).split()
    t = at.path.t
    terms = slow.terms(v, trim.tol)
    scale = float(np.linalg.norm(v[0])) / dt
    slope = trim("slope", terms, [1.0] * len(terms), scale=scale).cores if terms else None
    known = [*past, (t, slope)][-2:] if slope is not None else []
    weights = dt * adams_weights(t, dt, [s for s, _ in known]) if known else []
    half = stiff.terms(v, trim.tol)
    sums = [Train(v), *half, *(Train(c) for _, c in known)]
    load = trim("load", sums, [1.0, *[dt / 2] * len(half), *weights]).cores
    diffusion = at(1.0).split()[0].affine
    assert diffusion is not None
    implicit = affine_generator(
        stiff.box, None, None, -dt / 2 * np.asarray(diffusion.diffusion), 1.0
    )
    found, residual = solved_by_amen(implicit, load, v, _SOLVED * trim.tol)
    out = rounded([Train(found)], [1.0], trim.tol, cap=trim.cap)
    # Diffusion leaves mass as it is, and so the system has that of its right side.
    held = trim.moments(Train(found)).copy()
    held[0] = trim.moments(Train(load))[0]
    out = trim.kept(out, held)
    note = ""
    if not residual <= trim.tol:
        note = f"AMEn leaves a residual of {residual:.2g} in the implicit step: try a smaller dt"
    error = float("nan")
    if estimate and len(known) == 2 and np.isfinite(out.norm):
        change = [weights[0], weights[1] - dt]
        error = relative_norm([Train(c) for _, c in known], change, Train(out.cores))
    return Step(out, error, None if slope is None else (t, slope), note)


def solved_by_amen(
    operator: Any,
    load: Cores,
    guess: Cores,
    tol: float,
    *,
    cap: int | None = None,
    enrichment: int = _ENRICHMENT,
    sweeps: int = _SWEEPS,
    report: Callable[..., None] = lambda *_: None,
) -> tuple[Cores, float]:
    """Solves the implicit system A x = b of an IMEX step by AMEn; returns x and residual.

    ``report`` gets number, residual and ranks after every sweep.
    """
    dtype = np.result_type(np.float64, operator.cores[0], load[0], guess[0])
    system = System(operator, train(load), train(guess), dtype, enrichment)
    search = amen_search("auto", "auto", cap, sweeps, enrichment, None)
    out = solution(system, search, tol, cap, True, report)
    residual = system.residual(out.x) / (system.size or 1.0)
    return scaling.scaled_train(out.x, system.exponent), residual


# Name, function, order of the method, slopes of past steps that it needs, order of the estimate.
class Method(NamedTuple):
    """Method of Runge–Kutta, Adams or another kind: step function, order, past slopes."""

    step: Stepper
    order: int
    past: int
    estimate: int


STEPPERS = {
    "rk4": Method(rk4, 4, 0, 3),
    "rk2": Method(rk2, 2, 0, 1),
    "ab2": Method(adams_bashforth(2), 2, 1, 1),
    "ab3": Method(adams_bashforth(3), 3, 2, 2),
    "imex": Method(imex, 2, 1, 1),
}


# For every stage but the last: its time and its step. Then the weights of v and of the stages in
# the result, and the time and the weight of the last slope.
TABLEAUX = {
    "rk2": (((0.0, 1.0),), (1 / 2, 1 / 2), (1.0, 1 / 2)),
    "rk4": (((0.0, 0.5), (0.5, 0.5), (0.5, 1.0)), (-1 / 3, 1 / 3, 2 / 3, 1 / 3), (1.0, 1 / 6)),
}


# Times within a step, as shares of dt, at which the stages evaluate the right side.
SHARES = (0.0, 0.5, 1.0)


class Scheme(NamedTuple):
    """Static arguments of a compiled fixed-rank TT time loop: right side, method and TT-ranks."""

    rates: Program
    method: str
    ranks: Any


def runge_kutta_step(
    scheme: Scheme, constants: Any, dt: Any, v: TT, row: Any
) -> tuple[list[TT], list[Any], tuple[list[TT], list[Any]]]:
    """Performs one Runge–Kutta step at fixed TT-ranks; returns stages and change of the source.

    And the trains and weights of the sum that was rounded to the last one.

    Args:
      scheme: right side, method and ranks.
      constants: arrays of the right side.
      dt: time step.
      v: state before the step.
      row: time, and maps and motions of the coordinates at `SHARES`, if they move.
    """
    stages, weights, (share, factor) = TABLEAUX[scheme.method]
    t, *place = row
    sources = []

    def terms(x: TT, share: float) -> list[Any]:
        i = SHARES.index(share)
        operators, source = scheme.rates(constants, t + share * dt, *(p[i] for p in place))
        found = terms_of(operators, source, x)
        if source is not None:
            sources.append(found[-1])
        return found

    # As above: rounded stages stand for the slopes.
    known = [v]
    for at, length in stages:
        slope = terms(known[-1], at)
        sizes = [1.0, *[length * dt] * len(slope)]
        known.append(tt.linear_combination([v, *slope], sizes, rank=scheme.ranks))
    slope = terms(known[-1], share)
    sizes = [*weights, *[factor * dt] * len(slope)]
    out = tt.linear_combination([*known, *slope], sizes, rank=scheme.ranks)
    # The slopes of the method of order 4 that are compared are of one time.
    seen = sources if scheme.method == "rk2" else []
    change = [(seen[-1], dt), (seen[0], -dt)] if seen else []
    return [*known, out], change, ([*known, *slope], sizes)
