"""Coordinates that move by nonlinear maps: any diffeomorphism that vector fields of a basis make.

u(x, t) = w(Φ_t(x), t) det ∂Φ_t/∂x, where Φ̇_t = g(Φ_t, t) with g = Σ_m c_m(t) g_m and fields g_m of
TT-rank one (`Fields`). The factor makes w a density in y: it follows

    w_t = −∇·((F + g) w) + ∇·(K (∇w + w ∇λ)),   F = J f, K = J D Jᵀ, λ = ln det J, J = ∂y/∂x,

and ∫ w dy = ∫ u dx whatever the map. J and ∇λ come from `FlowMap`; F − K ∇λ and K are brought into
trains from values on a coarse grid, g is one already. `integrate` chooses ċ in every step by the
quadratic problem of `field_motion`, the one of `Convex` in these directions, and a parabola in time
extrapolates it.

Source: ours. The abstract of Dektor, Venturi, "Coordinate-adaptive integration of PDEs on tensor
manifolds" (arXiv 2307.05914) speaks of diffeomorphisms chosen by a convex functional of the normal
component; which nonlinear ones it tries is unknown to us. The predecessor (arXiv 2207.11955) has
linear maps, and names larger classes as an aim.
"""

import dataclasses
import itertools
import math
import types
from typing import Any, NamedTuple

import numpy as np

from tensorjax import _check
from tensorjax.pde import _integrate
from tensorjax.pde import _multipliers as multipliers
from tensorjax.pde._checkpoint import checkpointer
from tensorjax.pde._fields import FieldMotion, field_motion
from tensorjax.pde._flow_map import Fields, FlowMap
from tensorjax.pde._maps import AffineMap
from tensorjax.pde._path import Moment, told
from tensorjax.pde._problem import Problem, RightSide
from tensorjax.pde._smooth import smooth
from tensorjax.pde._solution import Result, SaveAt, Solution, State, save_times
from tensorjax.pde._statuses import Stopped, failed
from tensorjax.pde._times import check_span, step_count
from tensorjax.pde.physical import evaluate
from tensorjax.tt import _hosted as hosted

__all__ = ["Fields", "FlowMap", "Flowed", "Flown", "integrate"]

# Fields have to bring the normal component down to this share of what rest leaves.
_GAIN = 0.7
# Coefficients that were crossed, kept for the times of a step.
_KEPT = 4


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Flowed(Problem):
    """A Fokker–Planck or Liouville problem in the coordinates of a `FlowMap`.

    Attributes:
      problem: with a method ``velocity(x)`` (m, d) ↦ (m, d) and, if it diffuses, a constant matrix
        ``diffusion``: a `FokkerPlanck`.
      flow: the map.
      cross_tol: relative error of the cross approximation.

    Raises:
      ValueError: a problem of another kind, or another number of coordinates.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), np.diag([0.5, 0.5]))
      >>> drift = [pde.Power([0.0, 1.0], 0.0, 2), None]
      >>> problem = pde.FokkerPlanck(drift, None, start, pde.Box.fourier(2, n=32))
      >>> rest = pde.FlowMap(pde.Fields(2, 7.0), (0.0,), (np.zeros((1, 14)),))
      >>> x = np.array([[0.5, 0.5]])
      >>> bool(np.allclose(pde.Flowed(problem, rest).exact(0.7, x), problem.exact(0.7, x)))
      True
    """

    start: Any = dataclasses.field(init=False)  # both are those of the problem
    box: Any = dataclasses.field(init=False)
    problem: Any
    flow: FlowMap
    cross_tol: float

    def __init__(self, problem: Any, flow: FlowMap, *, cross_tol: float = 1e-8, known: Any = None):
        if not callable(getattr(problem, "velocity", None)):
            raise ValueError(
                "problem: expected one with a method velocity(x), such as pde.FokkerPlanck, got "
                f"{type(problem).__name__}"
            )
        if flow.fields.dim != problem.dim:
            raise ValueError(f"flow: expected {problem.dim} coordinates, got {flow.fields.dim}")
        self._set(problem=problem, flow=flow, cross_tol=cross_tol)
        self._set(_known={} if known is None else known)
        super().__init__(problem.start, problem.box)
        start = flow.starts[0]
        if np.any(flow.back(start, np.zeros((1, self.dim))).x):
            raise ValueError("flow: expected one that begins with the identity")

    _known: dict[Any, Any] = dataclasses.field(init=False)

    def right_side(self, map: AffineMap, t: Any) -> RightSide:
        """The operators of w, for a map at rest: linear motions are fields of degree one.

        Raises:
          ValueError: another map than the identity.
        """
        if np.any(map.matrix != np.eye(self.dim)) or np.any(map.shift):
            raise ValueError(
                'map: expected the identity, got another one; give coordinates="fixed", for '
                "linear motions are fields of degree one"
            )
        t, d = float(t), self.dim
        found = self._coefficients(t)
        moving = self.flow.fields.trains(self.flow.rates(t), self.box.points)
        others = []
        for i, (f, g) in enumerate(zip(found[:d], moving, strict=True)):
            both = hosted.combined([f, g], [1.0, 1.0])
            both = hosted.rounded(both, self.cross_tol) if np.any(both[0]) else both
            others.append(multipliers.flux(self.box, -np.eye(d)[i], both))
        for (i, j), k in zip(_pairs(d), found[d:], strict=False):
            unit = np.zeros((d, d))
            unit[i, j] = unit[j, i] = 1.0
            others.append(multipliers.conduction(self.box, unit, k))
        return RightSide(self.box, None, tuple(others))

    def exact(self, t: float, x: Any) -> np.ndarray | None:
        """w at points y (m, d), where u is known."""
        back = self.flow.back(t, x)
        u = self.problem.exact(t, back.x)
        return None if u is None else u * np.linalg.det(back.inverse)

    def sample(self, key: Any, t: float, count: int) -> np.ndarray:
        """Points drawn from w: those of u, moved."""
        return self.flow.forward(t, self.problem.sample(key, t, count))[0]

    def _coefficients(self, t: float) -> list[Any]:
        """Trains of F − K ∇λ and of the upper triangle of K, without g."""
        if t not in self._known:
            times = [k for k in self._known if k != "points"]
            for old in times[: len(times) + 1 - _KEPT]:
                self._known.pop(old)
            name = "the drift in coordinates that flow"
            begin = self._known.get("points", 16)
            cores, enough = smooth(
                name, lambda y: self._values(t, y), self.box, self.cross_tol, begin
            )
            self._known["points"] = enough
            self._known[t] = multipliers.components(cores)
        return self._known[t]

    def _values(self, t: float, y: np.ndarray) -> np.ndarray:
        diffusion = getattr(self.problem, "diffusion", None)
        back = self.flow.back(t, y, second=diffusion is not None)
        drift = back.push(self.problem.velocity(back.x))
        if diffusion is None:
            return drift
        half = np.linalg.solve(back.inverse, np.broadcast_to(diffusion, back.inverse.shape))
        k = np.linalg.solve(back.inverse, half.mT)  # J (J D)ᵀ, symmetric
        assert back.rise is not None
        drift = drift - (k @ back.rise[..., None])[..., 0]
        return np.concatenate([drift, np.stack([k[:, i, j] for i, j in _pairs(self.dim)], 1)], 1)


def _pairs(d: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(d) for j in range(i, d)]


class Flown(NamedTuple):
    """What `integrate` gives.

    Attributes:
      solution: as of `pde.integrate`, of the density w; "cost" and "cost_without" are those of
        `field_motion`, and "rates" the c_m of every step.
      flow: the map, at all times.
    """

    solution: Solution
    flow: FlowMap

    def values(self, box: Any, x: Any, state: State | None = None) -> np.ndarray:
        """u at physical points (m, d), at the end or at one of the states saved."""
        state = self.solution.final if state is None else state
        y, volume = self.flow.forward(state.t, x)
        return np.asarray(evaluate(state.v, state.map, box, y)) * volume


def integrate(
    problem: Any,
    fields: Fields,
    *,
    t1: float,
    dt: float,
    tol: float = 1e-6,
    t0: float = 0.0,
    levels: Any = (),
    regularization: float = 1e-4,
    extrapolate: int = 2,
    cross_tol: float | None = None,
    saveat: SaveAt = SaveAt(t1=True),  # noqa: B008 (an immutable tuple)
    checkpoint: Any = None,
    start: State | None = None,
    **options: Any,
) -> Flown:
    """Integrates a Fokker–Planck or Liouville equation in coordinates that flow with fields.

    In every step `field_motion` says how the rates c of the fields should change, unless that
    gains nothing; a polynomial extrapolates them over the step. The map of a step costs as many
    evaluations as steps were made before it, and two cross approximations: for few dimensions.

    Args:
      problem: a `FokkerPlanck`, with constant diffusion or none.
      fields: the basis.
      t1: the end.
      dt: time step.
      tol: as of `pde.integrate`.
      t0: the beginning, where the map is the identity (that of ``start``, if there is one).
      levels: of `field_motion`.
      regularization: of `field_motion`.
      extrapolate: degree of the polynomial of c in time, at most.
      cross_tol: relative error of the coefficients; a tenth of ``tol`` if None.
      saveat: `SaveAt`.
      checkpoint: as of `pde.integrate`.
      start: a state that a run with these fields saved, to go on from.
      **options: others of `pde.integrate`, but for ``coordinates``, ``rank``, ``map`` and
        ``stepsize_controller``.

    Returns:
      `Flown`. A run that fails is stopped, and says why; the last good state is there.

    Raises:
      ValueError: an argument out of range, or that does not fit.

    Example:
      A density that bends: no linear map makes its rank one.

      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), np.diag([0.3, 0.4]))
      >>> drift = [pde.Power([0.0, 1.0], 0.0, 2), None]
      >>> problem = pde.FokkerPlanck(drift, None, start, pde.Box.fourier(2, 32, 5.0))
      >>> bent = pde.flows.integrate(problem, pde.Fields(2, 5.0), t1=0.1, dt=0.02, tol=1e-3)
      >>> int(bent.solution.stats["rank"][-1])
      1
      >>> still = pde.integrate(problem, t1=0.1, dt=0.02, tol=1e-3)
      >>> int(still.stats["rank"][-1])
      2
    """
    t0 = t0 if start is None else float(start.t)
    _checked(fields, t0, t1, dt, options)
    _check.integer("extrapolate", extrapolate, low=0, high=2)
    times = save_times(saveat, t0, t1)
    walk = _Walk(
        problem, fields, t0, tol, tol / 10 if cross_tol is None else cross_tol,
        {"levels": levels, "regularization": regularization}, extrapolate, start,
    )  # fmt: skip
    save = checkpointer(checkpoint, start)
    every = int(saveat.steps)
    first = saveat.t0 or (bool(times) and times[0] <= t0)
    spans = list(itertools.pairwise(_ends(t0, t1, dt, times)))
    for k, (t, end) in enumerate(spans):
        walk.step(t, end, dt, first=k == 0 and first, options=options)
        asked = end in times or (every and (k + 1) % every == 0)
        if walk.stop is not None or asked or (k + 1 == len(spans) and saveat.t1):
            walk.ys += [walk.now] * max(1, times.count(end))
        if walk.stop is not None:
            break
        save.after(walk)
    save.close(walk)
    return Flown(walk.solution(), walk.flow)


def _ends(t0: float, t1: float, dt: float, times: list[float]) -> list[float]:
    """Where steps of dt begin and end, those to a time to save at shortened."""
    out = [float(t0)]
    for target in sorted({*times, float(t1)} - {out[0]}):
        begin = out[-1]
        count = step_count(begin, target, dt)
        out += [begin + k * dt for k in range(1, count)] + [target]
    return out


class _Walk:
    """A state, and its map, that steps move forward."""

    now: Any = None
    stop: Stopped | None = None

    def __init__(
        self,
        problem: Any,
        fields: Fields,
        t0: float,
        tol: float,
        cross_tol: float,
        choice: dict[str, Any],
        degree: int,
        start: State | None,
    ):
        self.problem, self.fields, self.tol, self.cross_tol = problem, fields, tol, cross_tol
        self.flow = FlowMap(fields, (t0,), (np.zeros((1, len(fields.axes))),))
        self.ys: list[State] = []
        self._choice, self._degree = choice, degree
        self._known: dict[Any, Any] = {}
        if start is not None:
            self._restore(start)
        self._moments = [
            Moment(t, c[0][:, None], 0 * c[0])
            for t, c in zip(self.flow.starts[1:], self.flow.pieces[1:], strict=True)
        ]
        self._parts: list[dict[str, Any]] = []

    def state(self) -> State:
        """The newest, as `checkpointer` asks."""
        return self.now

    @property
    def memory(self) -> Any:
        """How many steps were made."""
        return types.SimpleNamespace(steps=int(self.now.memory["steps"]))

    def remembering(self, state: State) -> State:
        """With the map in its memory, from which a run goes on."""
        flow = {f"flow, {k}": c for k, c in enumerate(self.flow.pieces)}
        flow |= {"flow starts": np.array(self.flow.starts)}
        flow |= {"flow points": np.asarray(self._known.get("points", 0))}
        return state._replace(memory={**(state.memory or {}), **flow})

    def _restore(self, start: State) -> None:
        """From a state that `remembering` gave."""
        memory = getattr(start, "memory", None) or {}
        count = sum(k.startswith("flow, ") for k in memory)
        pieces = tuple(np.asarray(memory[f"flow, {k}"]) for k in range(count))
        if not pieces or pieces[0].shape[1] != len(self.fields.axes):
            raise ValueError(
                "start: expected a state that pde.flows.integrate has saved with these fields, got "
                "one without their flow"
            )
        self.flow = FlowMap(self.fields, tuple(memory["flow starts"].tolist()), pieces)
        if memory["flow points"]:
            self._known["points"] = int(memory["flow points"])
        self.now = start

    def step(
        self, t: float, end: float, dt: float, *, first: bool, options: dict[str, Any]
    ) -> None:
        """One step; errors after the first one stop the run."""
        try:
            found, rates = self._look(t)
            solution = _integrate.integrate(
                self._problem(), t0=t, t1=end, dt=dt, tol=self.tol, coordinates="fixed",
                start=self.now, saveat=SaveAt(t0=first, t1=True), **options,
            )  # fmt: skip
        except (ValueError, ArithmeticError) as error:
            if not self._parts:
                raise
            self.stop = failed(error, AffineMap.identity(self.problem.dim), t)
            return
        if solution.result != Result.successful:
            self.stop = Stopped(solution.result, solution.message)
        self.ys += [self.remembering(y) for y in solution.ys[:-1]]
        self.now = self.remembering(solution.final)
        made = len(solution.stats["t"])
        if self._parts and not made:
            return
        self._parts.append({
            **solution.stats,
            "cost": np.full(made, found.cost),
            "cost_without": np.full(made, found.cost_without),
            "rates": np.tile(rates, (made, 1)),
        })  # fmt: skip

    def solution(self) -> Solution:
        """All steps in one."""
        names = [n for n in self._parts[0] if n != "rejected"]
        stats: dict[str, Any] = {n: np.concatenate([p[n] for p in self._parts]) for n in names}
        stats["rejected"] = sum(p["rejected"] for p in self._parts)
        ys = self.ys or [self.now]
        result, message = (Result.successful, "") if self.stop is None else self.stop
        return Solution(np.array([y.t for y in ys]), ys, stats, result, message)

    def _problem(self) -> Flowed:
        return Flowed(self.problem, self.flow, cross_tol=self.cross_tol, known=self._known)

    def _look(self, t: float) -> tuple[FieldMotion, np.ndarray]:
        """Asks how the rates should change, and lays a polynomial through them from t on."""
        still, before = AffineMap.identity(self.problem.dim), self._problem()
        v = before.initial(still, self.tol) if self.now is None else self.now.v
        right = before.right_side(still, t)
        found = field_motion(v, right, self.fields, self.problem.box, self.tol, **self._choice)
        gains = found.cost <= _GAIN * found.cost_without
        rates = self.flow.rates(t) + (found.rates if gains else 0.0)
        moment = Moment(t, rates[:, None], 0 * rates)
        self._moments = [*self._moments, moment][-(self._degree + 2) :]
        past = told(self._moments, self._degree)
        nodes = np.vander([m.t - t for m in past], increasing=True)
        values = np.stack([m.sigma[:, 0] for m in past])
        piece = np.linalg.solve(nodes, values)
        piece[0] = rates  # to the last bit, as a restart takes it
        self.flow = self.flow.extended(t, piece)
        return found, rates


def _checked(fields: Any, t0: float, t1: float, dt: float, options: dict[str, Any]) -> None:
    if not isinstance(fields, Fields):
        raise ValueError(f"fields: expected pde.Fields, got {type(fields).__name__}")
    check_span(t0, t1)
    if not (math.isfinite(dt) and dt > 0):
        raise ValueError(f"dt: expected a positive time step, got {dt!r}")
    refused = {"coordinates", "rank", "map", "stepsize_controller"}
    if refused & set(options):
        raise ValueError(
            f"options: expected none of {sorted(refused)}, got {sorted(refused & set(options))}"
        )
