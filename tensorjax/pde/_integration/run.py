"""Time-stepping loop body: coordinates, step, checks, mass correction, statistics."""

import dataclasses
import math
import time
from typing import Any

import jax
import numpy as np

from tensorjax import _blas_threads, _check
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax.pde._arguments import hosted_cores
from tensorjax.pde._generators.inputs_and_motion import checked_motion
from tensorjax.pde._integration.failure_diagnosis import (
    CURABLE,
    Options,
    Stopped,
    failed,
    fault,
    too_fast,
    unbounded,
)
from tensorjax.pde._integration.initial_checks import check_inside, is_density
from tensorjax.pde._integration.memory import Memory
from tensorjax.pde._integration.moment_errors import MomentEquations
from tensorjax.pde._integration.progress_and_statistics import Compilations, row_of, stats_of
from tensorjax.pde._integration.solution import Result, State
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._maps.coordinate_path import Moment, Path, followed, jumps, told
from tensorjax.pde._observables.edge_and_resolution import shares
from tensorjax.pde._stepping.exponential import EXPONENTIAL, wells_along_axes
from tensorjax.pde._stepping.low_moments import low_moments
from tensorjax.pde._stepping.mass import corrected, mass_of, quadrature
from tensorjax.pde._stepping.outskirts import noisy_edge, window
from tensorjax.pde._stepping.right_side import Clock, right_side, train
from tensorjax.pde._stepping.runge_kutta_adams_imex import WHOLE, Step
from tensorjax.pde._stepping.sketched_sums import Runaway, Train, rounded
from tensorjax.pde._stepping.step_rounding import CLEARED, Trim
from tensorjax.pde._stepping.step_sizes import ConstantStepSize, PIDController
from tensorjax.pde._stepping.times import reaches

# Exponential steps are tried after so few steps and, from so many on, at every power of two, at so
# many times their length.
_FIRST_LOOK, _LOOK, _LONGER = 2, 16, 4
# An exponential step at whose end v has left the box, or the resolution of the points, is shortened
# down to this share of its length.
_LEAVES, _CLOSE = (Result.edge_mass, Result.unresolved), 0.02
# Noise at the edge of this size, in units of what clearing may take, has begun to grow.
_GROWN = 0.01
# Norm that clearing may take without noise, over the edge_limit of the run.
_HIDDEN = 0.01
# Largest share of the mass that one step of a conservative equation may change.
_CHANGED = 1e-3
# Maps of a higher condition number count as singular.
_COND = 1e10
# Entries of the largest core up to which one thread of BLAS is as fast as several, which on busy
# cores wait for each other most of the time (ten times slower steps were seen).
_ONE_THREAD = 2**15
# Where the motion of the coordinates leaves less than this share of the normal component, its own
# error is what raises ranks: that of a step stays below this share of what rounding may take at one
# bond.
_FOLLOWED, _STRAYS = 0.03, 0.1


def begin(options: Options, start: State | None, map: AffineMap, t0: float, dt: float) -> "Run":
    """Creates the `Run` of a time integration from an initial state or from a saved one."""
    weights = options.problem.box.weights
    if start is not None and _remembers(start):
        assert start.memory is not None
        return Run(options, start.map, start.t, Memory.restored(start.memory)).begun(fresh=False)
    if start is not None:
        _check.finite("start", start.v)
        cores, map, t0 = hosted_cores(start.v), start.map, start.t
    else:
        cores = options.problem.initial_cores(map, options.tol)
        check_inside(options.problem, cores, map, options.edge_limit, options.resolution_limit)
    cores = rounded(
        [Train(cores)], [1.0], options.tol, [max(len(c) for c in cores)] * (len(cores) - 1)
    ).cores
    mass = mass_of(cores, weights) / abs(float(map.det))
    work = Run(options, map, t0, Memory(cores, [], [], {}, dt, (), 0, mass))
    return work.begun(fresh=start is None)


def _remembers(start: State) -> bool:
    """Whether a run may take over the memory (dt, slopes, …) in a saved state."""
    if start.memory is None:
        return False
    kept = Memory.restored(start.memory).v
    given = [np.asarray(c) for c in start.v.cores]
    return len(kept) == len(given) and all(
        k.shape == g.shape and np.array_equal(k.astype(g.dtype), g)
        for k, g in zip(kept, given, strict=True)
    )


class Run:
    """Run of a PDE integration in progress: current state and memory, advanced step by step."""

    def __init__(self, options: Options, map: AffineMap, t: float, memory: Memory):
        self.options = options
        self.map = AffineMap(np.asarray(map.matrix, float), np.asarray(map.shift, float))
        self.t = float(t)
        self.memory = memory
        constant = isinstance(options.controller, ConstantStepSize)
        self.equations = MomentEquations(options.problem, constant)
        self.rows: list[dict[str, Any]] = []
        self.rejected = 0
        self.varies = False  # whether drift or noise of the last step are other than affine
        self._seen: dict[str, float] = {}
        self._overshot = 0.0
        self._unanswered = False
        if memory.stiff and options.auto:
            self._go_over()

    def begun(self, fresh: bool) -> "Run":
        """Returns the run, which knows the errors of the moments of its first state.

        Args:
          fresh: whether that is the initial state of the problem.
        """
        at, known = (self.memory.v, self.map, self.t), self.memory.moment_errors
        self.memory.moment_errors = self.equations.begin(*at, known, fresh)
        return self

    def moment_errors(self) -> Any:
        """Returns the moment errors up to the run's current state, see `MomentEquations.now`."""
        return self.equations.now(self.memory.v, self.map, self.t, self.memory.moment_errors)

    def state(self) -> State:
        """Returns the run's current tensor train, map, time and memory as a `State`."""
        v = TT._unchecked(tuple(jax.device_put(self.memory.v)))
        return State(v, self.map, self.t, self.memory.saved())

    def mass(self) -> float:
        """Returns the mass ∫ u dx of the run's current state in physical coordinates."""
        return mass_of(self.memory.v, self.options.problem.box.weights) / abs(float(self.map.det))

    def resume(self, other: "Run") -> None:
        """Takes over the state of another run, and its last step."""
        if other is not self:
            self.map, self.t, self.memory = other.map, other.t, other.memory
            self.rows[-1] = other.rows[-1]

    def advance(self, target: float) -> Stopped | None:
        """Advances the run by one accepted step towards ``target``; returns the reason if it fails.

        Errors of the first step are raised, for they are those of the arguments; later ones must
        not lose the state.
        """
        try:
            few = max(core.size for core in self.memory.v) <= _ONE_THREAD
            with Compilations() as compiled, _blas_threads.one_thread(few):
                return self._advance(target, compiled)
        except (ValueError, ArithmeticError) as error:
            if not self.rows:
                raise
            return failed(error, self.map, self.t)

    def _advance(self, target: float, compiled: Compilations) -> Stopped | None:
        began = time.perf_counter()
        right = right_side(self.options.problem, self.map, self.t)
        self.varies = bool(right.others)
        costs = self._look(right)
        if jumps(self.memory.moments, self.options.degree):
            self.memory.slopes = []
        self._follow(costs)
        clears, seen = self._cleared(right)
        if self._may_be_stiff(target) and self._is_stiff(right, clears):
            if self._awaits_look(right):
                self.options = self.options._replace(generator=None)
            self.memory.stiff, self.memory.dt = True, _LONGER * self.memory.dt
            self._go_over()
            seen = None
        step, dt, stop = self._accepted(target, right, clears, seen)
        if stop is None:
            assert step is not None
            row = {"t": self.t, "dt": dt, "error": step.error, "asked": self._asked, **self._seen}
            row |= {"sigma": self._motion[0], "beta": self._motion[1]}
            row |= {"cost_without": costs[0], "cost": costs[1]}
            row["exponential"] = self.options.name == "exponential"
            row |= {"seconds": time.perf_counter() - began, "compilations": compiled.count}
            self.rows.append(row_of(self.memory.v, row))
        return stop

    def _cleared(self, right: Any) -> tuple[bool, Any]:
        """Whether the run's next step clears noise at the edge of the box; and its window, or None.

        Drifts amplify what truncation and the grid leave in the tails; affine ones alike
        everywhere, so that tails stay as small as they are but for what noise grows there. Sources,
        reactions and potentials let small tails grow by right.
        """
        options, v, box = self.options, self.memory.v, self.options.problem.box
        feeds = right.source is not None or right.reaction is not None
        clears = not (feeds or bool(getattr(options.problem, "potential", ())))
        # One exponential step is long enough for noise to grow from nothing; it has its own window.
        # What that takes from a tail must be far below what stops a run at the edge.
        own, most = options.name == "exponential", CLEARED * options.tol
        hides = most > _HIDDEN * options.edge_limit
        if clears and not right.others and (hides or not own):
            noise = noisy_edge(v, box)
            clears = noise is not None and noise[1] > _GROWN * most
        if not clears or (options.name in WHOLE and (hides or not own)):
            return clears, None
        return clears, window(v, box, most)

    def _accepted(
        self, target: float, right: Any, clears: bool, seen: Any
    ) -> tuple[Step | None, float, Stopped | None]:
        """Tries steps of the run until one is accepted; returns it, its length, or why none was."""
        adaptive = isinstance(self.options.controller, PIDController)
        while True:
            dt, lands = self._length(target)
            path = Path(self.map, self.t, dt, told(self.memory.moments, self.options.degree))
            at, trim = Clock(self.options.problem, path, right, seen), self._trim(clears)
            step, stop = self._tried(at, dt, trim, adaptive)
            if stop is not None and not (adaptive and stop.result in CURABLE):
                return step, dt, stop
            errors = self.memory.errors
            accepted, stop = self._judged(step, dt, stop)
            if accepted:
                assert step is not None
                stop = self._keep(step, at, target if lands else self.t + dt, trim)
                if stop is None or not (adaptive and self._curable(stop, dt)):
                    return step, dt, stop
                # What the estimate lets pass may be unstable all the same.
                self.memory.errors = errors
                accepted, stop = self._judged(None, dt, stop)
            if stop is not None:
                return step, dt, stop
            self.rejected += 1

    def begin_stiff(self, target: float) -> None:
        """Switches the run, before it advances, to exponential steps if its equation is stiff.

        It is where a step of 4 times the first one, in which v changes by some percent, is unstable
        and an exponential one is not. What acts along the axes does so in coordinates at rest:
        if the drift is not affine, where moving ones would gain ranks alone, they stay there.
        """
        options, memory = self.options, self.memory
        if not options.auto or memory.steps or _LONGER * memory.dt > target - self.t:
            return
        right = right_side(options.problem, self.map, self.t)
        if not (options.generator is None or (options.gated and right.others)):
            return
        path = Path(self.map, self.t, _LONGER * memory.dt, [])
        at = Clock(options.problem, path, right)
        try:
            unstable = too_fast(options, memory.v, at, 10 * options.tol)
        except ValueError:  # the first step tells, if it is reached at all
            return
        if unstable is not None and self._is_stiff(right, clears=False):
            memory.stiff = True
            self.options = options._replace(generator=None)
            self._go_over()

    def _curable(self, stop: Stopped, dt: float) -> bool:
        """Whether the run repeats a failed step shorter, to avoid the failure or locate its time.

        Exponential steps are long: where one leaves the box, v may still have been inside for most
        of it.
        """
        if self.options.name == "exponential" and stop.result in _LEAVES:
            self._overshot = self._overshot or dt
            return dt > _CLOSE * self._overshot
        return stop.result in CURABLE

    def _go_over(self) -> None:
        """Switches a run of method "auto" to exponential steps."""
        self.options = self.options._replace(method=EXPONENTIAL, name="exponential")

    def _awaits_look(self, right: Any) -> bool:
        """Whether the run's coordinates rest until it is known whether its equation is stiff.

        Wells along the axes would be no longer along them in coordinates that have turned, and
        exponential steps, ten times longer, be out of reach.
        """
        options, memory = self.options, self.memory
        waits = options.gated and options.auto and not memory.stiff
        waits = waits and memory.steps <= _FIRST_LOOK
        return waits and isinstance(options.controller, PIDController) and wells_along_axes(right)

    def _may_be_stiff(self, target: float) -> bool:
        """Whether the run tests its equation for stiffness now: after 2, 16, 32, 64, … steps."""
        count, options = self.memory.steps, self.options
        due = count >= _LOOK and (self._unanswered or not count & (count - 1))
        due = due or count == _FIRST_LOOK
        due = due and options.auto and not self.memory.stiff
        long = _LONGER * self.memory.dt <= target - self.t
        return due and long and isinstance(options.controller, PIDController)

    def _is_stiff(self, right: Any, clears: bool) -> bool:
        """Whether the run's equation is stiff: an exponential step 4 times as long is accurate.

        A right side that raises within that time answers nothing: the run may get there, or not,
        and is asked again after the next step.
        """
        options, dt, controller = self.options, _LONGER * self.memory.dt, self.options.controller
        assert isinstance(controller, PIDController)
        path = Path(self.map, self.t, dt, told(self.memory.moments, options.degree))
        at = Clock(options.problem, path, right)
        options = options._replace(method=EXPONENTIAL, name="exponential")
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                step = EXPONENTIAL.step(at, self.memory.v, dt, self._trim(clears), True, ())
                good = fault(options, self.memory.v, step, at) is None
        except (np.linalg.LinAlgError, ArithmeticError, Runaway):
            return False
        except ValueError as error:
            self._unanswered = "NaN" not in str(error)
            return False
        self._unanswered = False
        return good and controller.scaled(step.error, step.v.norm) <= 1

    def _trim(self, clears: bool) -> Trim:
        """Creates the `Trim` that rounds sums of tensor trains in the run's next step."""
        memory, problem = self.memory, self.options.problem
        return Trim(
            self.options.tol,
            self.options.max_rank,
            dict(memory.guesses),
            problem.box,
            memory.lost,
            exact=self.options.conserve is not None,
            clears=clears,
            # None: the mass alone is conserved.
            moments=low_moments(memory.v, problem.box) if is_density(problem) else None,
            lost_moments=memory.lost_moments,
        )

    def _attempt(
        self, at: Clock, dt: float, trim: Trim, adaptive: bool
    ) -> tuple[Step | None, Stopped | None]:
        """Computes one time step of the run; returns it with the failure found in it, or None."""
        given = at, self.memory.v, dt, trim, adaptive, self.memory.slopes
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                found = self.options.method.step(*given)
            except Runaway as runaway:
                stop = too_fast(self.options, runaway.cores, at, 10 * self.options.tol)
                if stop is not None:
                    return None, stop
                trim.limit = None
                found = self.options.method.step(*given)
            return found, fault(self.options, self.memory.v, found, at)

    def _tried(
        self, at: Clock, dt: float, trim: Trim, adaptive: bool
    ) -> tuple[Step | None, Stopped | None]:
        """Computes one step of the run; returns errors that a smaller one may cure as failures."""
        if not (adaptive and self.rows):
            return self._attempt(at, dt, trim, adaptive)
        try:
            return self._attempt(at, dt, trim, adaptive)
        except (ValueError, ArithmeticError) as error:
            return None, failed(error, self.map, self.t)

    def _look(self, right: Any) -> tuple[float, float]:
        """Computes the run's new coordinate motion Σ, β; returns its cost at rest and moving."""
        options, d = self.options, self.options.problem.dim
        generator, gate = options.generator, self.memory.gate
        if self._awaits_look(right):
            generator = None
        costs, self._asked = (math.nan, math.nan), generator is not None
        sigma, beta = self._motion = np.zeros((d, d)), np.zeros(d)
        if generator is None:
            self.memory.moments = []
            return costs
        if options.gated:
            v = self.memory.v
            dear = len(v[1]) if right.others and len(v) == 2 else 0
            self._asked = gate.asks(self._shares(), options.tol, dear)
            generator = dataclasses.replace(generator, _gain=gate.gain)
        if self._asked:
            motion = generator(
                train(self.memory.v), right, self.map, options.problem.box, options.tol, self.t
            )
            sigma, beta = checked_motion(motion, options.problem.box)
            costs = float(motion.cost_without), float(motion.cost)
            if options.gated:
                self.memory.gate = gate.judged(motion.guarded)
        else:
            self.memory.gate = gate.waited()
        moment = Moment(self.t, sigma, beta)
        self._motion = moment.sigma, moment.beta
        # A step that failed has left its own moment, at this very time.
        past = [m for m in self.memory.moments if m.t < self.t]
        self.memory.moments = [*past, moment][-(options.degree + 2) :]
        return costs

    def _follow(self, costs: tuple[float, float]) -> None:
        """Shortens the run's next step if the extrapolated coordinate motion would raise TT-ranks.

        Estimates of a step's error do not tell: any motion is consistent, and ranks that an error
        of it has brought remain. The newest moment tells the error of the last extrapolation.
        """
        options = self.options
        if not (isinstance(options.controller, PIDController) and costs[1] < _FOLLOWED * costs[0]):
            return
        allowed = _STRAYS * options.tol / math.sqrt(max(options.problem.dim - 1, 1))
        self.memory.dt = followed(
            self.memory.moments, options.degree, self.memory.dt, costs[0], allowed,
            options.controller.factormin,
        )  # fmt: skip

    def _shares(self) -> tuple[float, float]:
        """Returns the shares of ‖v‖ at the box's edge and in the highest modes, for a run."""
        if self._seen:
            return self._seen["edge_mass"], self._seen["resolution"]
        return shares(train(self.memory.v), self.options.problem.box)

    def _length(self, target: float) -> tuple[float, bool]:
        """Returns the length of the run's next time step, and whether it ends at ``target``."""
        left, dt = target - self.t, self.memory.dt
        if reaches(dt, self.t, target):
            return left, True
        if isinstance(self.options.controller, PIDController) and 2 * dt > left:
            return left / 2, False
        return dt, False

    def _judged(
        self, step: Step | None, dt: float, stop: Stopped | None
    ) -> tuple[bool, Stopped | None]:
        """Accepts or rejects the run's step by the step-size controller, and sets the next size."""
        controller = self.options.controller
        if isinstance(controller, ConstantStepSize):
            return True, None
        norm, error = (1.0, math.inf) if step is None else (step.v.norm, step.error)
        error = error if stop is None else math.inf
        accepted, factor = True, 1.0
        if math.isfinite(error) or stop is not None:
            order = self.options.method.estimate + 1
            accepted, factor = controller.judge(error, norm, self.memory.errors, order)
        if accepted and math.isfinite(error):
            self.memory.errors = (controller.scaled(error, norm), *self.memory.errors)[:2]
        full, grown = self.memory.dt, factor * dt
        # A step that was cut short to meet a time says little about longer ones.
        self.memory.dt = max(full, grown) if accepted and dt < full and factor >= 1 else grown
        if controller.dtmax is not None:
            self.memory.dt = min(self.memory.dt, controller.dtmax)
        low = max(controller.dtmin or 0.0, 1e-12 * max(abs(self.t), dt))
        if not accepted and self.memory.dt < low:
            why = stop.message if stop is not None else f"estimated error {error:.2g} of ‖v‖"
            return False, Stopped(
                Result.dtmin,
                f"at t = {self.t:g} a step of {dt:.2g} was not accepted ({why}); allow a smaller "
                "dtmin or a larger rtol (no less than tol)",
            )
        return accepted, None

    def _keep(self, step: Step, at: Clock, t: float, trim: Trim) -> Stopped | None:
        """Stores an accepted step as the run's state, unless map, edge or mass checks fail."""
        options, map = self.options, at.path.map(1.0)
        cond = float(np.linalg.cond(map.matrix)) if np.isfinite(map.matrix).all() else math.inf
        if not cond < _COND:
            return Stopped(
                Result.singular_map,
                f"at t = {t:g} the condition number of the map reaches {cond:.2g}: use coordinates "
                "that are regularised more, or fixed ones",
            )
        cores = step.v.cores
        if options.conserve is not None:
            cores, stop = self._conserved(cores, map, t)
            if stop is not None:
                return stop
        edge, rough = shares(train(cores), options.problem.box)
        stop = unbounded(options, cores, at, edge, rough)
        if stop is not None:
            return stop
        steps = self.memory.steps + 1
        errors = self.equations.after(cores, map, at, t, steps, self.memory.moment_errors)
        self.map, self.t = map, t
        slopes = self.memory.slopes
        if step.slope is not None:
            slopes = [*slopes, step.slope][-options.method.past :]
        self.memory = dataclasses.replace(
            self.memory,
            v=cores,
            slopes=slopes,
            guesses=trim.guesses,
            steps=steps,
            lost=trim.lost,
            lost_moments=trim.lost_moments,
            moment_errors=errors,
        )
        self._seen = {"cond": cond, "mass": self.mass(), "edge_mass": edge, "resolution": rough}
        return None

    def _conserved(self, cores: Cores, map: AffineMap, t: float) -> tuple[Cores, Stopped | None]:
        """Corrects the run's train to its initial mass; returns a failure if it changes much."""
        options, at = self.options, quadrature(self.options.problem.box)
        target = self.memory.mass * abs(float(map.det))
        mass = mass_of(cores, at.weights)
        if not abs(mass - target) <= max(_CHANGED, 10 * options.tol) * abs(target):
            return cores, Stopped(
                Result.mass,
                f"at t = {t:g} mass goes from {target:.3g} to {mass:.3g} in one step: the equation "
                f"changes it, or it is too small beside |u| to be kept (conserve="
                f'"{options.conserve}"): take conserve=None',
            )
        if options.conserve == "rescale":
            return [cores[0] * (target / mass), *cores[1:]], None
        found = corrected(cores, at, target)
        return (cores if found is None else found.cores), None

    def stats(self) -> dict[str, Any]:
        """Returns the statistics of all accepted steps of the run as a dict of arrays."""
        found = stats_of(self.rows, len(self.memory.v) - 1)
        found["rejected"] = self.rejected
        found["resting"] = np.tile(~self.options.problem.box.unbounded, (len(self.rows), 1))
        return found
