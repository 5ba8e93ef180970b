"""Integration of one density in fixed coordinates by all libraries, with documented options.

The equation is what all of them can do: drift A x, diffusion a number times the identity.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.bench._solving import Answer, Problem, Way, found
from tensorjax import pde

# Half of the side of the box, the end of the time, and how many points errors are measured at.
_HALF, _END, _POINTS = 5.0, 1.0, 2000


@dataclasses.dataclass(frozen=True)
class Setting:
    """Resolution at which a library solves the equation: grid points, steps, tolerance.

    Attributes:
        size: Grid points along every axis.
        steps: Time steps of one length.
        tol: Relative error at which it truncates.
    """

    size: int
    steps: int
    tol: float

    def __str__(self) -> str:
        return f"n {self.size}, {self.steps} steps, tol {self.tol:g}"


@dataclasses.dataclass(frozen=True)
class Task:
    """Task of `bench/pde`: dimension, error to reach, and settings to try for it.

    Attributes:
        dim: Of the equation.
        target: Relative l2 error that counts as reached.
        explicit: Settings of steps by the classical Runge–Kutta method on Fourier points.
        split: Settings of fpcross, on Chebyshev points.
    """

    dim: int
    target: float
    explicit: tuple[Setting, ...]
    split: tuple[Setting, ...]


def _settings(size: int, steps: int, *tols: float) -> tuple[Setting, ...]:
    return tuple(Setting(size, steps, tol) for tol in tols)


# Found by trying: fewer points or steps, or a coarser truncation, miss the error or are unstable.
# Where fpcross takes longer than all the rest, one setting of it is tried.
TASKS = (
    Task(2, 1e-3, _settings(28, 8, 2e-3, 1e-3),
         (*_settings(34, 7, 1e-3), *_settings(36, 8, 1e-3))),
    Task(2, 1e-4, (*_settings(28, 8, 3e-4), *_settings(28, 10, 2e-4)),
         _settings(40, 20, 1e-4, 5e-5)),
    Task(2, 1e-5, _settings(32, 16, 3e-5, 1e-5), _settings(48, 60, 5e-6)),
    Task(3, 1e-3, _settings(28, 12, 1e-3, 5e-4),
         (*_settings(34, 7, 1e-3), *_settings(36, 8, 1e-3))),
    Task(3, 1e-4, _settings(28, 14, 2e-4, 1e-4), _settings(40, 20, 1e-4)),
    Task(4, 1e-3, _settings(28, 16, 1e-3, 7e-4, 5e-4), _settings(36, 10, 5e-4)),
    Task(4, 1e-4, _settings(28, 18, 1e-4, 7e-5, 5e-5), _settings(42, 28, 3e-5)),
)  # fmt: skip
SMALL = (Task(2, 1e-2, _settings(28, 8, 1e-3), _settings(28, 4, 3e-3)),)


def process(dim: int, size: int) -> pde.OrnsteinUhlenbeck:
    """Returns an Ornstein–Uhlenbeck process that rotates between neighbouring coordinates.

    P2 of the experiment `pde` with diffusion 0.1 I.
    """
    up = np.eye(dim, k=1)
    start = pde.Gaussian(np.zeros(dim), np.diag(np.resize([1.0, 0.25], dim)))
    box = pde.Box.fourier(dim, size, _HALF)
    return pde.OrnsteinUhlenbeck(
        -0.5 * np.eye(dim) + 0.8 * (up - up.T), 0.1 * np.eye(dim), start, box
    )


def problem(task: Task) -> Problem:
    """Returns the benchmark problem of a task, with the ways of all installed libraries."""
    ways = [
        *(_ours(task, setting, "fixed") for setting in task.explicit),
        _ours(task, task.explicit[-1], "adaptive"),
    ]
    if (fpcross := found("fpcross")) is not None:
        ways += [_fpcross(fpcross, task, setting) for setting in task.split]
    if found("seemps") is not None:
        ways += [_seemps(task, setting) for setting in task.explicit]
    return Problem(f"d = {task.dim}, error {task.target:g}", ways)


def measured(task: Task, values: Callable[[np.ndarray], Any], rank: int) -> Answer:
    """Computes the relative error of a solution at points drawn from the exact density."""
    exact = process(task.dim, 8)  # its box is not used
    x = exact.sample(np.random.default_rng(0), _END, _POINTS)
    density = exact.exact(_END, x)
    assert density is not None
    error = np.linalg.norm(np.asarray(values(x)) - density) / np.linalg.norm(density)
    return {"error": float(error), "rank": rank}


def _ours(task: Task, setting: Setting, coordinates: Any) -> Way:
    problem = process(task.dim, setting.size)
    # Rows are compared at equal errors of the density, whatever tol leaves in its covariances.
    options: Any = {"tol": setting.tol, "accuracy": 100 * task.target, "coordinates": coordinates}

    def answer(solution: pde.Solution) -> Answer:
        if solution.result != pde.Result.successful:
            raise RuntimeError(f"{setting}: {solution.result}: {solution.message}")
        end = solution.final
        values = functools.partial(pde.evaluate, end.v, end.map, problem.box)
        return measured(task, values, max(end.v.ranks))

    return Way(
        "tensorjax",
        f"{'fixed' if coordinates == 'fixed' else 'moving'}, {setting}",
        lambda: pde.integrate(problem, t1=_END, dt=_END / setting.steps, **options),
        answer,
    )


def _fpcross(fpcross: Any, task: Task, setting: Setting) -> Way:
    """Returns the way of fpcross: diffusion by matrix exponentials, drift by characteristics."""
    problem = process(task.dim, setting.size)
    matrix = np.asarray(problem.matrix)

    class Process(fpcross.Equation):
        """Fokker–Planck equation in fpcross's form."""

        def f(self, X: np.ndarray, t: float) -> np.ndarray:
            return X @ matrix.T

        def f1(self, X: np.ndarray, t: float) -> np.ndarray:
            return np.tile(np.diag(matrix), (len(X), 1))

        def r0(self, X: np.ndarray) -> np.ndarray:
            return problem.start.values(X)

    def call() -> Any:
        equation = Process(task.dim, setting.tol)
        equation.set_coef(float(np.asarray(problem.diffusion)[0, 0]))
        equation.set_grid(n=setting.size, a=-_HALF, b=_HALF)
        equation.set_grid_time(m=setting.steps, t=_END)
        equation.init()
        solver = fpcross.FPCross(equation, with_log=False)
        solver.solve()
        return solver

    def answer(solver: Any) -> Answer:
        return measured(task, solver.get, max(core.shape[0] for core in solver.Y))

    return Way("fpcross", str(setting), call, answer)


def _seemps(task: Task, setting: Setting) -> Way:
    """Returns the way of SeeMPS: Runge–Kutta steps with the same operator as ours.

    It solves i ∂ₜu = H u with H = i (operator).

    Its imaginary time, which would be real, normalises the stages and loses the order.
    """
    state, operators = found("seemps.state"), found("seemps.operators")
    runge_kutta = found("seemps.evolution.runge_kutta").runge_kutta
    problem = process(task.dim, setting.size)
    here = pde.affine(np.eye(task.dim))
    (generator,) = problem.right_side(here, 0.0).operators
    first, *others = (np.asarray(core) for core in generator.cores)
    square = setting.tol**2  # it bounds squares of norms
    strategy = state.Strategy(
        tolerance=square,
        simplification_tolerance=square,
        simplify=state.Simplification.CANONICAL_FORM,
    )
    exact = strategy.replace(simplify=state.Simplification.DO_NOT_SIMPLIFY)
    hamiltonian = operators.MPO([1j * first, *others], strategy=exact)
    initial = [np.asarray(core) for core in problem.initial(here, setting.tol).cores]

    def values(cores: list[np.ndarray], x: np.ndarray) -> np.ndarray:
        out = np.ones((len(x), 1))
        for axis, y, core in zip(problem.box.axes, x.T, cores, strict=True):
            out = np.einsum("pa,pn,anb->pb", out, axis.interpolate(y), core, optimize=True)
        return out[:, 0].real

    def answer(result: Any) -> Answer:
        cores = [np.asarray(core) for core in result]
        return measured(
            task, functools.partial(values, cores), max(core.shape[0] for core in cores)
        )

    return Way(
        "seemps",
        str(setting),
        lambda: runge_kutta(
            hamiltonian, _END, state.MPS(initial), steps=setting.steps, strategy=strategy
        ),
        answer,
    )
