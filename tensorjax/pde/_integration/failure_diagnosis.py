"""Diagnosis of failed integrations: instability, box, resolution, rank cap, with advice."""

import math
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._integration.error_estimates import ROUGH, grid_errors, looks
from tensorjax.pde._integration.solution import Result
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._stepping.exponential import along_axes, coupled
from tensorjax.pde._stepping.instability import fastest
from tensorjax.pde._stepping.outskirts import noisy_edge
from tensorjax.pde._stepping.right_side import Clock
from tensorjax.pde._stepping.runge_kutta_adams_imex import SAFE, STABLE, Method, Step
from tensorjax.pde._stepping.step_sizes import ConstantStepSize, PIDController

# A step that multiplies the norm by more than this is checked for instability.
_GROWTH = 1.1
# So is a step after which the rank exceeds 1.25 times the rank before plus 4.
_JUMP, _LEAP = 1.25, 4
# Where a run ends in any case, rates of v down to this share of the stability limit are examined:
# the growing mode need not be the largest of the small parts yet.
_NEAR = 0.25
# Of a Gaussian resolved to a relative error ε the highest third of the modes holds about ε^(4/9).
_HELD = 4 / 9
# A larger share at the edge is no noise.
_NOISE = 0.02
# Failures that a smaller step may cure.
CURABLE = (Result.cfl, Result.not_finite, Result.solver, Result.failed)
# Failures that the motion of coordinates may have brought about.
ENDANGERED = (
    *CURABLE,
    Result.dtmin,
    Result.edge_mass,
    Result.unresolved,
    Result.singular_map,
    Result.max_rank,
    Result.mass,
)


class Options(NamedTuple):
    """Options of a PDE integration, as the diagnosis of failures takes them; see `integrate`."""

    problem: Any
    generator: Any
    method: Method
    name: str
    controller: ConstantStepSize | PIDController
    tol: float
    max_rank: int | None
    conserve: Any
    degree: int
    edge_limit: float
    resolution_limit: float
    max_steps: int
    gated: bool
    auto: bool = False
    accuracy: float = math.inf


class Stopped(NamedTuple):
    """Diagnosis of a failure, why a PDE integration ends early: its result and a message."""

    result: Result
    message: str


def failed(error: Exception, map: AffineMap, t: float) -> Stopped:
    """Diagnoses an error raised by a PDE's right side or coordinate motion: the reason to stop."""
    text = f"at t = {t:g} the right side or the generator failed ({error})"
    if isinstance(error, ArithmeticError | np.linalg.LinAlgError) or "NaN" in str(error):
        return Stopped(Result.not_finite, f"{text}: try a smaller dt")
    cond = float(np.linalg.cond(map.matrix))
    return Stopped(
        Result.failed,
        f"{text}; the condition number of the map is {cond:.2g}: if that is high, use "
        "coordinates that are regularised more, or fixed ones",
    )


def fault(options: Options, before: Cores, step: Step, at: Clock) -> Stopped | None:
    """Diagnoses a time step before it is accepted: returns the reason to stop the run, or None."""
    t = at.path.t
    if step.note:
        return Stopped(Result.solver, f"at t = {t:g}: {step.note}")
    if not math.isfinite(step.v.norm):
        return too_fast(options, before, at, 10 * options.tol, _NEAR) or Stopped(
            Result.not_finite,
            f"NaN or Inf in the step of {at.path.dt:.3g} at t = {t:g}: try a smaller dt; a "
            "reaction may have run into a singularity",
        )
    grown = step.v.norm > _GROWTH * float(np.linalg.norm(before[0])) > 0
    rank = max((len(c) for c in before), default=1)
    if grown or max(step.v.ranks, default=1) > _JUMP * rank + _LEAP:
        stop = too_fast(options, step.v.cores, at, 0.3 if grown else 10 * options.tol)
        if stop is not None:
            return stop
    if step.v.capped:
        return Stopped(
            Result.max_rank,
            f"at t = {t:g} the tolerance {options.tol:g} asks for ranks above max_rank = "
            f"{options.max_rank}: raise max_rank or tol, or let coordinates move",
        )
    return None


def unbounded(
    options: Options, cores: Cores, at: Clock, edge: float, rough: float
) -> Stopped | None:
    """Diagnoses a solution that reaches the box's edge or is unresolved: stop status or None."""
    outside, coarse = unbounded_by(edge, rough, options.edge_limit, options.resolution_limit)
    if not outside:
        return None
    unstable = too_fast(options, cores, at, min(3 * max(edge, rough), 0.3), _NEAR)
    if unstable is not None:
        return unstable
    t, found = at.path.time(1.0), grid_errors(np, cores, looks(options.problem.box))
    if coarse:
        return Stopped(
            Result.unresolved,
            f"at t = {t:g} a share {rough:.2g} of the norm of v lies in the highest third of "
            f"the modes of axis {int(np.argmax(found.coarse))} "
            f"(resolution_limit = {options.resolution_limit:g}), and "
            f"{edge:.2g} at the edge of the box: take more points, a smaller box, or "
            "coordinates in which the solution is wider",
        )
    noise = noisy_edge(cores, options.problem.box) if edge < _NOISE else None
    if noise is not None and rough ** (1 / _HELD) > options.tol:
        return Stopped(
            Result.unresolved,
            f"at t = {t:g} a share {edge:.2g} of the norm of v lies at the edge of axis {noise[0]} "
            f"(edge_limit = {options.edge_limit:g}), but as noise and no tail: the points resolve "
            f"v to about {rough ** (1 / _HELD):.1g} only, for tol = {options.tol:g}, and the drift "
            "amplifies the rest: take more points, or a larger tol",
        )
    return Stopped(
        Result.edge_mass,
        f"at t = {t:g} a share {edge:.2g} of the norm of v lies at the edge of the box, at the "
        f"ends of axis {int(np.argmax(found.cut))} (edge_limit = {options.edge_limit:g}): "
        f"{_wider(options.problem, int(np.argmax(found.cut)))}",
    )


def _wider(problem: Any, axis: int) -> str:
    """Advises, in the diagnosis of a solution that an axis does not hold, how to hold it."""
    if not problem.box.axes[axis].movable:
        more = "take a larger box with as many more points"
        if hasattr(problem, "horizon"):
            return (
                f"give the problem a horizon= of all the time that it is integrated for, or {more}"
            )
        return more
    return "take a larger box with as many more points, or coordinates that follow the solution"


def unbounded_by(edge: Any, rough: Any, edge_limit: Any, resolution_limit: Any) -> tuple[Any, Any]:
    """Diagnoses if edge mass or roughness of a solution is over its limit, and if unresolved."""
    outside = (edge > edge_limit) | (rough > resolution_limit)
    # What is not resolved also fills the box; what is cut off at its edge is a little rough.
    coarse = (rough > resolution_limit) | (rough > ROUGH * edge)
    return outside, outside & coarse


def too_fast(
    options: Options, cores: Cores, at: Clock, share: float, near: float = 1.0
) -> Stopped | None:
    """Diagnoses a time step too long for the fastest rate of a PDE (CFL); None if it is not.

    Args:
      options: of the run.
      cores: of v.
      at: the rates over the step.
      share: of ‖v‖, see `fastest`.
      near: see `fastest`.
    """
    name, dt = options.name, at.path.dt
    rates = at(1.0)
    if name == "imex":
        rates = rates.split()[1]
    elif name == "exponential":
        rates = coupled(rates, along_axes(at(0.5)), rates.box)
    rate = fastest(rates.without_sources(), cores, dt, share, STABLE[name], near)
    if rate is None:
        return None
    return Stopped(
        Result.cfl,
        f"dt = {dt:.3g} at t = {at.path.t:g} is unstable: the right side has rates up to about "
        f"{rate:.3g}, for which {name} admits dt of about {SAFE * min(STABLE[name]) / rate:.2g}",
    )
