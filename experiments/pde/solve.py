"""Run of one case: integration, error against the exact solution, table row."""

import time
from typing import Any, NamedTuple

import numpy as np

from experiments.pde.cases import Case
from tensorjax import pde

# Points drawn from the exact density at which errors are measured.
POINTS = 2000
# Results of runs that came to their end.
ENDED = (pde.Result.successful, pde.Result.inaccurate)


class Found(NamedTuple):
    """Run of a case: its solution, error and seconds.

    Attributes:
      case: what was solved.
      coordinates: how they moved, in words.
      solution: its states are those at 0, ¼, ½, ¾ and all of the time.
      error: relative l2 at points drawn from the exact density at its last time, or None.
      seconds: of `pde.integrate`.
    """

    case: Case
    coordinates: str
    solution: pde.Solution
    error: float | None
    seconds: float

    def values(self, x: np.ndarray) -> np.ndarray:
        """Evaluates the density at physical points, at the end."""
        state = self.solution.final
        return np.asarray(pde.evaluate(state.v, state.map, self.case.problem.box, x))


def movements(case: Case) -> dict[str, Any]:
    """Returns the coordinates to compare for a case, by name."""
    feedback = {f"ours, κ = {k:g}": pde.MultiLevel(kappa=k) for k in case.kappa}
    return {
        "fixed": "fixed",
        "convex": pde.Convex(),
        "flow": pde.Flow(smoothing=0.3),
        "ours": pde.MultiLevel(),
        **feedback,
    }


def integrated(case: Case, coordinates: Any, seconds: float, max_rank: int) -> pde.Solution:
    """Integrates a case in given coordinates, within limits of time and rank."""
    end = time.thread_time() + seconds
    return pde.integrate(
        case.problem,
        t1=case.t1,
        dt=case.t1 / case.steps,
        tol=case.tol,
        coordinates=coordinates,
        max_rank=max_rank,
        saveat=pde.SaveAt(t0=True, steps=max(case.steps // 4, 1), t1=True),
        progress=lambda _: time.thread_time() > end,
    )


def solved(case: Case, words: str, coordinates: Any, seconds: float, max_rank: int) -> Found:
    """Integrates a case in given coordinates; returns the run with its error."""
    start = time.process_time()
    solution = integrated(case, coordinates, seconds, max_rank)
    found = Found(case, words, solution, None, time.process_time() - start)
    if case.reference is not None:
        return found
    t = solution.final.t
    x = case.points(t, POINTS)
    return found._replace(error=relative(found.values(x), case.problem.exact(t, x)))


def relative(found: Any, exact: Any) -> float:
    """Computes the relative l2 error ‖found − exact‖/‖exact‖."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def exact_error(case: Case, state: pde.State) -> float:
    """Computes the relative l2 error of a state at points drawn from the exact density."""
    x = case.points(state.t, POINTS)
    exact = case.problem.exact(state.t, x)
    return relative(pde.evaluate(state.v, state.map, case.problem.box, x), exact)


def compared(runs: list[Found], seconds: float, max_rank: int) -> list[Found]:
    """Adds errors to runs without exact solution, against a run at a finer tolerance.

    Where that does not come to its end, no error is known.
    """
    case = runs[0].case
    assert case.reference is not None
    finer = Case(case.name, case.problem, case.t1, case.steps, case.reference)
    truth = integrated(finer, "fixed", seconds, max_rank)
    if truth.result not in ENDED:
        return runs
    x = case.points(case.t1, POINTS)
    exact = pde.evaluate(truth.final.v, truth.final.map, case.problem.box, x)
    out = []
    for run in runs:
        if run.solution.result in ENDED:
            out.append(run._replace(error=relative(run.values(x), exact)))
        else:
            out.append(run)
    return out


def row(run: Found) -> dict[str, Any]:
    """Returns the table row of a run."""
    stats, case = run.solution.stats, run.case
    result = run.solution.result
    some = len(stats["t"]) > 0
    return {
        "problem": case.name,
        "tol": case.tol,
        "coordinates": run.coordinates,
        "rank": int(stats["rank"][-1]) if some else None,
        "largest": int(stats["rank"].max()) if some else None,
        "error": run.error,
        "seconds": run.seconds,
        "cond Γ": float(stats["cond"][-1]) if some else None,
        "mass drift": float(np.ptp(stats["mass"]) / abs(stats["mass"][0])) if some else None,
        "edge": float(stats["edge_mass"].max()) if some else None,
        "programs": int(stats["compilations"].sum()),
        "until": {
            pde.Result.successful: "end",
            pde.Result.inaccurate: f"end, {pde.Result.inaccurate}",
        }.get(result, f"t = {run.solution.final.t:.3g}: {result}"),
    }
