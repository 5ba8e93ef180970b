"""Input and output types of time integration: save options, states, results, solutions.

Solutions are made datasets of xarray: statistics of steps, moments and marginals of saved states.
"""

import dataclasses
import enum
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import jax
import numpy as np

from tensorjax import _check, _extras
from tensorjax._formats.pytree_base import shown
from tensorjax._formats.trains import TT
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._integration.error_estimates import static_errors
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._observables.marginals import marginal
from tensorjax.pde._observables.values_and_moments import moments
from tensorjax.pde._stepping.times import snapped

# Half width of the interval of a marginal in a dataset, in standard deviations.
_REACH = 6.0

# Type of the entries of `Solution.ys`: `State` where `SaveAt` has no function.
if TYPE_CHECKING:  # defaults of type variables are part of `typing` from Python 3.13 on
    from typing_extensions import TypeVar

    Y = TypeVar("Y", default="State")
else:
    from typing import TypeVar

    Y = TypeVar("Y")


class SaveAt(NamedTuple, Generic[Y]):
    """Options that choose the times and the form of the states that a `Solution` saves.

    Attributes:
      t0: at the beginning.
      t1: at the end.
      ts: at these times, ascending; steps are shortened to meet them. Up to roundoff they may lie
        outside the run: 3 * 0.1 is a time of one that ends at 0.3.
      steps: after every so many accepted steps; 0 for none.
      dense: whether `Solution.evaluate` gives the state at any time: the states after all steps are
        kept for it.
      fn: function of a `State` whose value is saved in ``ys`` in place of the state (moments, a
        marginal); None for the state. ``final`` of the solution is a `State` in any case.

    Example:
      >>> from tensorjax import pde
      >>> pde.SaveAt(ts=(0.5, 1.0)).ts
      (0.5, 1.0)

    The names are diffrax's; there ``steps`` is a flag, which works here too.
    """

    t0: bool = False
    t1: bool = False
    ts: Sequence[float] = ()
    steps: int = 0
    fn: Callable[["State"], Y] | None = None
    dense: bool = False


class State(NamedTuple):
    """State in a PDE's solution in moving coordinates: train v and map, u(x, t) = v(Γ x + s).

    Attributes:
      v: TT on the y-grid, of JAX's default dtype: float32 unless x64 is enabled, whatever the
        integrator computes in.
      map: y = Γ x + s.
      t: the time.
      memory: what the integrator needs to go on as if it had not been interrupted (arrays by name,
        the cores in double precision among them); None for a fresh start.

    Example:
      >>> from tensorjax import pde, tt
      >>> pde.State(tt.ones((8, 8)), pde.AffineMap.identity(2), 0.5).memory is None
      True
    """

    v: TT
    map: AffineMap
    t: float
    memory: dict[str, Any] | None = None


class Result(enum.StrEnum):
    """Outcome in a PDE's `Solution`: successful, or the reason why the integration stopped.

    Example:
      >>> from tensorjax import pde
      >>> pde.Result.successful.value
      'successful'
    """

    successful = "successful"
    cfl = "time step too large"
    edge_mass = "mass at the edge of the box"
    unresolved = "finer than the points"
    inaccurate = "less accurate than asked"
    singular_map = "coordinates not invertible"
    max_rank = "rank cap reached"
    not_finite = "NaN or Inf"
    failed = "right side or generator failed"
    dtmin = "time step below dtmin"
    max_steps = "out of steps"
    mass = "mass not conserved"
    solver = "implicit step not solved"
    stopped = "stopped by the callback"
    event = "stopped by an event"
    unknown = "not known while traced"


# Results of runs at fixed ranks, which arrays tell by their place here: the worst is the last.
STATUSES = (
    Result.successful,
    Result.inaccurate,
    Result.edge_mass,
    Result.unresolved,
    Result.cfl,
    Result.not_finite,
)
_ADVICE = {
    Result.edge_mass: "v reaches the edge of the box: take a larger box, or coordinates that "
    "follow the solution",
    Result.unresolved: "v has more in the highest third of the modes of an axis than the points "
    "resolve: take more points, a smaller box, or coordinates in which the solution is wider; or, "
    "if the norm grows without reason, a smaller dt",
    Result.cfl: "the right side has rates too fast for steps of this length",
    Result.not_finite: "NaN or Inf: try a smaller dt, or higher ranks",
    Result.unknown: "ask stats['status'], or the solution outside jit, vmap and grad",
}


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("ts", "ys", "stats", "_final"),
    meta_fields=("_result", "_message", "_dense"),
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Solution(Generic[Y]):
    """Result of a PDE integration: saved states and statistics of its time steps; a pytree.

    Attributes:
      ts: the times of ``ys``, (m,).
      ys: `State` at these times, or what the function ``fn`` of `SaveAt` makes of it. If the run
        was stopped, the last one is that of the last valid state.
      stats: arrays of one entry for each accepted step, but for "rejected", a count. "t" (at the
        end of the step), "dt", "rank" (largest), "ranks" (steps, d − 1), "cost_without" and "cost"
        (norm of the component of the right side normal to the tangent space, with coordinates at
        rest and as they moved; NaN where no generator was asked), "asked" (whether one was), "cond"
        (of Γ), "mass", "edge_mass", "resolution", "norm" (of v), "error" (estimated local error
        over ‖v‖; NaN without), "sigma" and "beta" (Σ and β at the beginning of the step),
        "seconds", "compilations", "exponential" (whether the step was), "fallback" (whether
        coordinates are fixed because moving ones stopped the run), "resting" (steps, d: the axes
        on which coordinates stay at rest, for they are bounded). With ``rank``:
        "t", "dt", "rank", "ranks", "cond", "norm" and "finite" (whether v has neither NaN nor Inf),
        estimated errors over ‖v‖, the largest at any time: "coarse" (d, by the points of each
        axis), "rank_error" (d − 1, by each bond; where its rank is one, what rounding took from all
        steps together) and "time_error" (of all steps together); and two numbers: "status" (the
        place of the result among successful, inaccurate, edge_mass, unresolved, cfl, not_finite)
        and "stable_dt" (the step that the rates admit where this one was unstable, else Inf).

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
      >>> start = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.25]))
      >>> problem = pde.Liouville(rotation, start, pde.Box.fourier(2, 48, 6.0))
      >>> solution = pde.integrate(problem, t1=0.1, dt=0.05, coordinates="fixed")
      >>> solution.result.value, solution.ts.tolist(), len(solution.stats["rank"])
      ('successful', [0.1], 2)
    """

    ts: np.ndarray
    ys: list[Y]
    stats: dict[str, Any]
    _result: Result | None = None
    _message: str = ""
    _final: State | None = None
    _dense: Callable[[float], State] | None = None

    @property
    def result(self) -> Result:
        """Outcome of the PDE's solution; for a batch of runs, the worst one.

        With ``rank`` it is read from ``stats["status"]``: also from what jit and vmap return. While
        that is traced it is `Result.unknown`.
        """
        if self._result is not None:
            return self._result
        status = self.stats["status"]
        return Result.unknown if _check.is_traced(status) else STATUSES[int(np.max(status))]

    @property
    def message(self) -> str:
        """Message of the solution, which explains a failure, with advice; empty if successful.

        But for a fall back on fixed coordinates, which it tells.
        """
        if self._result is not None:
            return self._message
        result = self.result
        if result == Result.unknown or result == Result.successful:
            return _ADVICE.get(result, "")
        status = np.asarray(self.stats["status"])
        dt = float(np.min(self.stats["stable_dt"]))
        text = _ADVICE[result] if result != Result.inaccurate else static_errors(self.stats)
        if result in (Result.cfl, Result.not_finite) and dt < math.inf:
            text += f"; the method admits dt of about {dt:.2g}"
        of = f" ({np.count_nonzero(status)} of {status.size} runs failed)" if status.ndim else ""
        return text + of

    @property
    def final(self) -> State:
        """Last valid state of the PDE's solution, saved or not."""
        ys: list[Any] = self.ys  # states, where the last one is not kept beside them
        return ys[-1] if self._final is None else self._final

    def evaluate(self, t: float) -> State:
        """Returns the state of the solution at any time, by ``SaveAt(dense=True)``.

        The integrator takes a step that ends at t from the state before it, with the motion of the
        coordinates that it had: the error is that of a step.

        Args:
          t: time.

        Returns:
          `State`.

        Raises:
          ValueError: a time outside the run, or a run without ``dense=True``.
        """
        if self._dense is None:
            raise ValueError(
                "evaluate: expected a run with saveat=pde.SaveAt(dense=True), got one that kept no "
                "states between; run it again with that"
            )
        return self._dense(float(t))

    def to_xarray(self, box: Box | None = None, *, points: int = 64) -> Any:
        """Converts the solution to an `xarray.Dataset`: statistics, maps, moments, marginals.

        Along "step", with the coordinate "step_t": the arrays of ``stats``. Along "t", if the
        entries of ``ys`` are states: "matrix" and "shift" of the map, and with a box "total"
        (∫ u dx), "mean", "covariance" and the densities "marginal_0", … of every coordinate, on
        equidistant points "x_0", … within 6 standard deviations of the means of all times. Else
        "y", where ``SaveAt(fn=)`` makes numbers or arrays of one shape.

        Args:
          box: of the problem; None without moments and marginals.
          points: number of points of a marginal.

        Returns:
          `xarray.Dataset`, with "result" and "message" as attributes.

        Raises:
          ModuleNotFoundError: xarray is not installed.
          ValueError: results of ``fn`` that are no arrays of one shape.
        """
        attributes = {"result": self.result.value, "message": self.message}
        return _dataset(self.stats, self.ts, self.ys, box, points, attributes)

    @shown
    def __repr__(self) -> str:
        steps = len(self.stats["t"])
        rank = int(self.stats["rank"][-1]) if steps else max(self.final.v.ranks)
        text = f"Solution({self.result.value}, t={self.final.t:g}, {steps} steps, rank {rank}"
        return text + (f": {self.message})" if self.message else ")")


def save_times(saveat: Any, t0: float, t1: float) -> list[float]:
    """Returns the save times of a solution in ascending order; ValueError if not valid.

    Raises:
      ValueError: times that are not ascending or lie outside [t0, t1], negative steps.
    """
    if not isinstance(saveat, SaveAt):
        raise ValueError(f"saveat: expected a pde.SaveAt, got {saveat!r}")
    if saveat.fn is not None and not callable(saveat.fn):
        raise ValueError(f"saveat: expected fn to be a function of a pde.State, got {saveat.fn!r}")
    if not int(saveat.steps) == saveat.steps >= 0:
        raise ValueError(f"saveat: expected steps >= 0, 0 for none, got {saveat.steps!r}")
    ts = [float(t) for t in np.asarray(saveat.ts, float).ravel()]
    if any(b <= a for a, b in itertools.pairwise(ts)) or not all(map(math.isfinite, ts)):
        raise ValueError(f"saveat: expected ascending times, got {ts}")
    ts = snapped(ts, t0, t1)
    if ts and not t0 <= ts[0] <= ts[-1] <= t1:
        raise ValueError(f"saveat: expected times in [{t0}, {t1}], got {ts[0]} to {ts[-1]}")
    return ts


def _dataset(
    stats: dict[str, Any],
    ts: np.ndarray,
    ys: Sequence[Any],
    box: Box | None,
    points: int,
    attributes: dict[str, str],
) -> Any:
    """Builds the `xarray.Dataset` of `Solution.to_xarray` from the parts of a solution."""
    with _extras.needed_by("to_xarray"):
        import xarray  # pyright: ignore[reportMissingImports]
    arrays = _steps(stats) | _saved(ts, ys, box, points)
    coordinates = {k: arrays.pop(k) for k in list(arrays) if k in ("t", "step_t") or k[:2] == "x_"}
    return xarray.Dataset(arrays, coordinates, attributes)


def _steps(stats: dict[str, Any]) -> dict[str, Any]:
    """Names the xarray dimensions of the step statistics in a solution."""
    more = {"ranks": ("bond",), "sigma": ("axis", "axis_2"), "beta": ("axis",)}
    more["resting"] = ("axis",)
    out: dict[str, Any] = {}
    for name, values in stats.items():
        array = np.asarray(values)
        at = "step_t" if name == "t" else name
        out[at] = (("step", *more.get(name, ()))[: array.ndim], array)
    return out


def _saved(ts: np.ndarray, ys: Sequence[Any], box: Box | None, points: int) -> dict[str, Any]:
    """Builds the xarray variables of a solution's saved states: matrices, moments and marginals."""
    out: dict[str, Any] = {"t": (("t",), np.asarray(ts))}
    if not all(hasattr(y, "map") and hasattr(y, "v") for y in ys):  # no states
        values = np.array(ys)
        if values.dtype == object:
            raise ValueError(
                "ys: expected results of fn of one shape, numbers or arrays, got others; return "
                "one array from SaveAt(fn=)"
            )
        dims = tuple(f"y_{k}" for k in range(1, values.ndim))
        return out | {"y": (("t", *dims), values)}
    out["matrix"] = ("t", "axis", "axis_2"), np.array([np.asarray(y.map.matrix) for y in ys])
    out["shift"] = ("t", "axis"), np.array([np.asarray(y.map.shift) for y in ys])
    if box is None:
        return out
    total, mean, covariance = (
        np.array(m) for m in zip(*(moments(y.v, y.map, box) for y in ys), strict=True)
    )
    out["total"] = ("t",), total
    out["mean"] = ("t", "axis"), mean
    out["covariance"] = ("t", "axis", "axis_2"), covariance
    width = _REACH * np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    for k in range(box.dim):
        x = np.linspace((mean - width)[:, k].min(), (mean + width)[:, k].max(), points)
        rows = [marginal(y.v, y.map, box, (k,), points=[x])[1] for y in ys]
        out[f"x_{k}"] = (f"x_{k}",), x
        out[f"marginal_{k}"] = ("t", f"x_{k}"), np.array(rows)
    return out
