"""Time integration of PDEs on tensor trains, in moving coordinates."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from tensorjax import _check
from tensorjax._formats.trains import TT
from tensorjax._placement import placed
from tensorjax._typing import Path, Rank
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._integration import run as run
from tensorjax.pde._integration.checkpoint import Checkpoint, checkpointer
from tensorjax.pde._integration.error_estimates import ALLOWED, ALLOWED_STATIC, LEAST_ESTIMATE
from tensorjax.pde._integration.events import Events, checked_events
from tensorjax.pde._integration.failure_diagnosis import ENDANGERED, Options
from tensorjax.pde._integration.fixed_ranks import integrate_static
from tensorjax.pde._integration.initial_checks import (
    check_at_rest,
    check_conserving,
    check_walls,
    start_errors,
)
from tensorjax.pde._integration.loop import loop
from tensorjax.pde._integration.progress_and_statistics import progress_of
from tensorjax.pde._integration.solution import Result, SaveAt, Solution, State, Y
from tensorjax.pde._maps.affine_maps import AffineMap, affine
from tensorjax.pde._problems.problem import Problem, RightSide
from tensorjax.pde._stepping.exponential import EXPONENTIAL
from tensorjax.pde._stepping.right_side import Rates, right_side
from tensorjax.pde._stepping.runge_kutta_adams_imex import STEPPERS, Method
from tensorjax.pde._stepping.sketched_sums import Train, relative_norm
from tensorjax.pde._stepping.splitting_and_bug import bug, projector_splitting
from tensorjax.pde._stepping.step_sizes import ConstantStepSize, PIDController, checked
from tensorjax.pde._stepping.times import checked_end
from tensorjax.pde.coords import Fixed, Motion, MultiLevel, Prescribed, Replay

# Default of max_steps; with rank= any other value is refused.
_STEPS = 100_000

# What "auto" begins with.
_FIRST = "rk4"
# Times of a run at which noise and flow at walls are checked.
_LOOKS = 5
METHODS: dict[str, Method] = {
    **STEPPERS,
    "exponential": EXPONENTIAL,
    "bug": Method(bug, 2, 0, 2),
    "projector splitting": Method(projector_splitting, 2, 0, 2),
}

# A generator is called as (v, right side, map, box, tol, t).
Generator = Callable[[TT, RightSide, AffineMap, Box, float, float], Motion]
Coordinates = Literal["adaptive", "fixed"] | Generator | Solution
Name = Literal[
    "auto", "rk4", "rk2", "ab2", "ab3", "bug", "projector splitting", "imex", "exponential"
]


@placed
def integrate(
    problem: Problem,
    *,
    t1: float,
    t0: float = 0.0,
    dt: float | None = None,
    tol: float = 1e-6,
    rank: Rank | None = None,
    max_rank: int | None = None,
    coordinates: Coordinates = "adaptive",
    method: Name = "auto",
    stepsize_controller: ConstantStepSize | PIDController | None = None,
    saveat: SaveAt[Y] = SaveAt(t1=True),  # noqa: B008 (an immutable tuple)
    event: Events = None,
    conserve: Literal["rescale", "project"] | None = None,
    extrapolate: int = 2,
    edge_limit: float = 1e-3,
    resolution_limit: float = 0.05,
    accuracy: float | None = None,
    max_steps: int = _STEPS,
    progress: bool | Callable[[dict[str, Any]], object] = False,
    checkpoint: Checkpoint | Path | None = None,
    start: State | None = None,
    map: AffineMap | None = None,
) -> Solution[Y]:
    """Integrates a PDE u_t = G(u) in time as a tensor train v in moving coordinates.

    v follows v_t = Q_y(v) − (Σ y + β)·∇v, where Γ̇ = Σ Γ and ṡ = Σ s + β. Any Σ(t) and β(t) give
    the same u; good ones keep the ranks of v low. A generator chooses them at every step, a
    polynomial extrapolates them over it, Γ and s follow to roundoff, and v takes a step of the
    method, in which every sum is rounded. All this happens on the host, in double precision, with
    ranks as they turn out: nothing is compiled.

    Args:
      problem: a `Problem`.
      t1: time at the end; where it is t0, up to roundoff, the start is returned.
      t0: time at the start (that of ``start``, if there is one).
      dt: time step; the first one if a controller chooses. None lets `PIDController` choose that
        too.
      tol: error of v relative to ‖v‖ by which each step is truncated; the ranks follow. Stages get
        a quarter of it. Tails of that norm may be cut in every step. What truncation takes from
        the mass, the means and the covariances of a density is restored, in at most ten dimensions;
        they are as accurate as points and steps leave them, and weigh errors in the tails of v:
        take a smaller tol for them.
      rank: TT-ranks, one int or one per bond: static. Steps of ``dt`` by "rk4" or "rk2" in one
        compiled loop, for jit, vmap and grad with respect to the parameters of the problem, which
        has no nonlinear reaction. ``coordinates`` are "fixed", `Prescribed`, or a `Solution` whose
        motion is repeated: no derivative passes through them, and none has to. ``tol`` is that of
        the initial state; only the end is saved. Where v has lower ranks than given, directions
        that only its derivative needs are lost: gradients along a repeated motion need x64 and
        ranks above those of the run. One compiled program serves all calls with a problem of the
        same structure, method and ranks, whatever its coefficients, dt and the number of steps. A
        run goes on to its end, or to NaN; ``stats["status"]`` says what went wrong, also under jit,
        vmap and grad, where an unstable run ends as NaN.
      max_rank: largest TT-rank; the run stops where ``tol`` needs a higher one.
      coordinates: "adaptive" ("fixed" where the box has periodic axes, half-lines or axes with
        walls, `Axis`: a generator moves the others, if there are two or more, see "resting" in
        `stats`; else `MultiLevel`, where its motion leaves a tenth of the normal component or less
        at first; where it does not, it is asked after pauses only, see "asked" in `stats`; of
        other than affine drift or noise in two dimensions not below ranks of 9, unless v nears the
        edge; where the run stops in moving coordinates it is made again in fixed ones, if that goes
        further: ``message`` says so, and ``stats["fallback"]`` is true; not with a checkpoint),
        "fixed", a generator: a callable (v, right side, map, box, tol, t) ↦ `Motion`; or an earlier
        `Solution`, to move as its coordinates did.
      method: "auto": "rk4", and "exponential" from where a controller could take 4 times longer
        steps with it. That is tried after 2, 16, 32, 64, … steps, and at the start where a step
        in which v changes by 4 % is too long for "rk4"; "adaptive" coordinates of an equation with
        other than affine drift stay at rest if the run goes over there, and up to the trial after 2
        steps if some of the drift acts along single axes; ``stats["exponential"]`` tells.
        "rk4", "rk2", "ab2", "ab3": step-truncation. "bug": rank-adaptive basis update and
        Galerkin. "projector splitting": of rank-adaptive bases, too; both of order 2. "imex":
        diffusion implicitly (Crank–Nicolson, by AMEn), the rest by Adams–Bashforth, order 2.
        "exponential": what acts along one axis alone (its diffusion, decay and wells) exactly, the
        rest by the classical method, order 4: where fine grids limit the others. All
        of them estimate their errors. Where the motion of the coordinates jumps, multistep methods
        restart, "ab2" and "ab3" with "rk4".
      stepsize_controller: `ConstantStepSize` or `PIDController`. Where coordinates follow the
        solution, a controller also keeps steps short enough for Σ to be extrapolated over them.
      saveat: `SaveAt`.
      event: `Event`, `SteadyState` or several of them: the run stops where one happens, with the
        state at that time.
      conserve: ∫ u dx is kept to roundoff by "rescale" (v times a number) or by "project" (what of
        a constant can be added within the tangent space, faded out before the edge of the box), for
        problems that conserve it; others raise ValueError. Without it truncation changes the mass
        by 5 ``tol`` at most; more may leave the box, or be lost by "bug" and "projector splitting"
        in their bases.
      extrapolate: largest degree, 0 to 2, of the polynomial in time that extrapolates Σ and β. A
        lower one is taken where it does not predict the next motion; errors of Σ raise the ranks.
      edge_limit: the run stops where `edge_mass` is larger.
      resolution_limit: the run stops where `resolution` is larger. A density that is to be right to
        ε should stay below about ε^(4/9).
      accuracy: relative error that the grid may leave at the end, in the norm of u. What it leaves
        is estimated axis by axis: by the distance of the points, from how fast the modes of v decay
        (on Fourier axes with other than affine coefficients, which jump at the ends, from the norm
        of the highest modes; of finite differences, from how much slower they carry each mode), and
        by the ends of the box, from what lies there. The estimate may be wrong by a factor of some.
        A run with a larger one comes to its end as well, and its result is "less accurate than
        asked", with the axis and what to do; so is that of a run in which the mass of a
        Fokker–Planck equation has changed by more, over the ends of the box or by noise there, or
        in which a mean or covariance is off by more, in units of the standard deviations, which the
        equations of the moments tell: exactly under affine drift where a controller chooses the
        steps; of other drifts what the grid adds, by an estimate, from three times the accuracy on.
        So of constant noise, in at most ten dimensions, without walls or half-lines, and not below
        1e-7. Under other than affine drift 100 times the noise at the ends of Fourier axes, about
        what covariances then lack, tells it too, if it is above ``tol``, and a variance or
        covariance that truncation has changed by more and that was not restored. So does what the
        points of Chebyshev axes miss of the moments of a `Gaussian` or `Mixture` at the start.
        None: 10 ``tol``. With ``rank`` it is the error that points, ranks or steps may leave, 0.05
        if None, and the last state that was looked at, at every 16th step, and found within it is
        returned, the start if there is none; of bonds of rank one it is a sum over steps, an upper
        bound, and the run comes to its end. Inf: nothing is said.
      max_steps: accepted, at most.
      progress: True for a line on stderr, or a callback for the statistics of each step (a dict as
        `Solution.stats`, entry by entry), which stops the run if it returns True.
      checkpoint: a folder, or `Checkpoint`: states are saved there by orbax. One that holds states
        is refused unless the run starts from the newest of them.
      start: a `State` to start from, with its time and map. From one that a run saved after a
        step of full length, the new run continues bit for bit as that run does. A run that does not
        save there takes other times by roundoff, and agrees with both to roundoff.
      map: initial coordinates; the identity if None.

    Returns:
      `Solution`. A failed run is stopped, with the reason in ``result`` and ``message``, and ends
      with the last valid state.

    Raises:
      ValueError: an argument out of range, or that does not fit the problem; an initial state that
        the box does not hold. Errors after the first step stop the run instead.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.25]))
      >>> rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
      >>> problem = pde.Liouville(rotation, start, pde.Box.fourier(2, 48, 6.0))
      >>> fixed = pde.integrate(problem, t1=0.5, dt=0.05, tol=1e-4, coordinates="fixed")
      >>> moving = pde.integrate(problem, t1=0.5, dt=0.05, tol=1e-4)
      >>> fixed.result.value, moving.result.value
      ('successful', 'successful')
      >>> bool(moving.stats["rank"][-1] < fixed.stats["rank"][-1])
      True

    Source: A. Dektor, D. Venturi, "Coordinate-adaptive integration of PDEs on tensor manifolds"
    (arXiv 2307.05914), for the equations of v and Γ; abstract and introduction are all we know of
    it. Ours: the extrapolation of Σ, the integrators as they are here, the statuses.
    """
    if rank is not None and stepsize_controller is None and dt is None:
        raise ValueError("dt: expected a time step with rank=, got None")
    if stepsize_controller is None and dt is None:
        stepsize_controller = PIDController(rtol=tol)
    controller = checked(stepsize_controller, dt)
    _check_arguments(problem, method, tol, conserve, extrapolate)
    for name, limit in (("edge_limit", edge_limit), ("resolution_limit", resolution_limit)):
        _check.number(name, limit, low=0, open=True, finite=False)
    generator = _generator(coordinates)
    # Motion of the unbounded axes alone is asked for by a generator: beside axes that cannot move
    # with them it raises the ranks as often as it lowers them.
    named = not isinstance(coordinates, str) and problem.box.unbounded.sum() > 1
    if not problem.box.movable and not named:
        generator = _at_rest(generator, coordinates)
    name = _FIRST if method == "auto" else method
    options = Options(
        problem, generator, METHODS[name], name, controller, float(tol),
        None if max_rank is None else _check.integer("max_rank", max_rank, low=1), conserve,
        extrapolate, float(edge_limit), float(resolution_limit),
        _check.integer("max_steps", max_steps, low=1),
        isinstance(coordinates, str) and hasattr(generator, "_gain"), method == "auto",
        _accuracy(accuracy, tol, rank),
    )  # fmt: skip
    events = checked_events(event)
    at, t0, start = _checked_start(problem, start, map, t0)
    t1 = checked_end(t0, t1)
    check_walls(problem, np.linspace(t0, t1, _LOOKS).tolist())
    if rank is not None:
        _check_static(options, coordinates, saveat, max_rank, checkpoint)
        if progress or events or max_steps != _STEPS:
            raise ValueError(
                "rank: expected no progress, event or max_steps with it, got one of them; leave it "
                "out, or give tol alone"
            )
        static: Solution[Any] = integrate_static(options, rank, t0, t1, float(dt or 0), start, at)
        return static

    def attempt(options: Options) -> Solution[Y]:
        work = _begun(options, start, at, t0, t1, dt)
        line = progress_of(progress, t0, t1)
        return loop(work, t1, saveat, line, checkpointer(checkpoint, start), events)

    solution = attempt(options)
    moved = isinstance(coordinates, str) and np.any(solution.stats["sigma"])
    # A checkpoint holds states of the run as it was: two runs in one folder would be a riddle.
    if not moved or checkpoint is not None or solution.result not in ENDANGERED:
        return solution
    return _better(solution, attempt(options._replace(generator=None)))


def _begun(
    options: Options, start: State | None, at: AffineMap, t0: float, t1: float, dt: float | None
) -> run.Run:
    """Starts a time integration: creates its `Run`, finds the first step, checks conservation."""
    work = run.begin(options, start, at, t0, math.nan if dt is None else float(dt))
    if start is None:
        work.memory.start_errors = start_errors(options.problem, work.map, options.accuracy)
    if options.conserve is not None:
        right = right_side(options.problem, work.map, work.t)
        check_conserving(options.problem, right, work.memory.v, t1 - work.t)
    if not math.isfinite(work.memory.dt):
        work.memory.dt = _first_step(work, t1 - t0)
        work.begin_stiff(t1)
    elif dt is not None and not isinstance(options.controller, PIDController):
        work.memory.dt = float(dt)
    return work


def _better(moving: Solution[Y], fixed: Solution[Y]) -> Solution[Y]:
    """Selects the solution that `integrate` returns, in moving or in fixed coordinates.

    Where the motion itself brought the end, the choice of coordinates must not cost the result.
    """
    if fixed.result is not Result.successful and not fixed.final.t > moving.final.t:
        return moving
    stats = {**fixed.stats, "fallback": np.ones(len(fixed.stats["t"]), bool)}
    assert moving.result is not None
    note = f"in fixed coordinates, for in moving ones the run stopped ({moving.result.value}: "
    text = f"{note}{moving.message})"
    message = "; ".join(filter(None, (fixed.message, text)))
    return dataclasses.replace(fixed, stats=stats, _message=message)


def _generator(coordinates: Any) -> Any:
    if isinstance(coordinates, Solution):
        return Replay(coordinates.stats)
    if isinstance(coordinates, str) and coordinates in ("adaptive", "fixed"):
        return MultiLevel() if coordinates == "adaptive" else None
    if not callable(coordinates) or isinstance(coordinates, type):
        raise ValueError(
            'coordinates: expected "adaptive", "fixed" or a callable generator such as '
            f"pde.MultiLevel() (an object, not a class), got {coordinates!r}"
        )
    return coordinates


def _at_rest(generator: Any, coordinates: Any) -> Any:
    """Checks that `integrate` keeps coordinates fixed if too few axes are movable."""
    if isinstance(coordinates, str):
        return None
    if isinstance(generator, Fixed):
        return generator
    raise ValueError(
        'coordinates: expected "adaptive" or "fixed", for the box has axes ("periodic", "log", '
        '"laguerre", or with walls) where coordinates stay at rest, and no two others that could '
        f"move, got {coordinates!r}"
    )


def _accuracy(accuracy: float | None, tol: float, rank: Any) -> float:
    """Returns the largest estimated error with which `integrate` counts as successful."""
    if accuracy is None:
        return max(ALLOWED * tol, LEAST_ESTIMATE) if rank is None else ALLOWED_STATIC
    return _check.number("accuracy", accuracy, low=0, open=True, finite=False)


def _check_static(
    options: Options, coordinates: Any, saveat: Any, max_rank: Any, checkpoint: Any
) -> None:
    generator = options.generator
    if not (generator is None or isinstance(generator, Replay | Prescribed | Fixed)):
        raise ValueError(
            'coordinates: expected "fixed", pde.Prescribed or the Solution of an earlier run with '
            f"rank=, got {coordinates!r}; generators look at the data"
        )
    if isinstance(options.controller, PIDController) or saveat != SaveAt(t1=True):
        raise ValueError(
            "rank: expected steps of constant dt, and saveat=SaveAt(t1=True) without fn, got a "
            "controller or another saveat; save more by several runs"
        )
    if any(x is not None for x in (options.conserve, max_rank, checkpoint)):
        raise ValueError(
            "rank: expected no conserve, max_rank or checkpoint with it, got one of them; leave it "
            "out, or give tol alone"
        )


def _check_arguments(
    problem: Any, method: str, tol: float, conserve: Any, extrapolate: int
) -> None:
    if not hasattr(problem, "right_side"):
        raise ValueError(f"problem: expected a pde.problems.Problem, got {type(problem).__name__}")
    _check.choice("method", method, ("auto", *METHODS))
    if conserve not in (None, "rescale", "project"):
        raise ValueError(f'conserve: expected None, "rescale" or "project", got {conserve!r}')
    if conserve is not None and any("absorbing" in (a.walls or ()) for a in problem.box.axes):
        raise ValueError(
            f"conserve: expected None in a box with absorbing walls, where mass ends, got "
            f"{conserve!r}"
        )
    _check.tolerance(tol, np.float64)
    if not tol < 1:
        raise ValueError(f"tol: expected a relative error below 1, got {tol!r}")
    _check.integer("extrapolate", extrapolate, low=0, high=2)


def _checked_start(
    problem: Any, start: Any, map: AffineMap | None, t0: float
) -> tuple[AffineMap, float, State | None]:
    """Returns the map, time and state that `integrate` starts from; ValueError if not valid."""
    if not (map is None or isinstance(map, AffineMap)):
        raise ValueError(
            f"map: expected a pde.AffineMap, got {type(map).__name__}; make one by "
            "pde.affine(matrix, shift)"
        )
    if start is None:
        at = AffineMap.identity(problem.dim) if map is None else affine(map.matrix, map.shift)
        check_at_rest(problem.box, at)
        return at, float(t0), None
    if not isinstance(start, State):
        raise ValueError(f"start: expected a pde.State, got {type(start).__name__}")
    if start.v.shape != problem.box.shape:
        raise ValueError(f"start: expected v of shape {problem.box.shape}, got {start.v.shape}")
    at = affine(start.map.matrix, start.map.shift)
    check_at_rest(problem.box, at)
    return at, float(start.t), start._replace(map=at, t=float(start.t))


def _first_step(work: run.Run, span: float) -> float:
    """Estimates the first step of `integrate`: 1/100 of the time in which v changes."""
    options = work.options
    right = right_side(options.problem, work.map, work.t)
    terms = Rates(options.problem.box, right).terms(work.memory.v, 0.1)
    rate = relative_norm(terms, [1.0] * len(terms), Train(work.memory.v)) if terms else 0.0
    return min(0.01 / rate if 0 < rate < math.inf else span, span / 10)
