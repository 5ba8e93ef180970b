"""Textbook problems on the library's defaults: none of them was tuned to.

Moments are held beside closed forms or beside paths (Monte Carlo), in units of standard deviations.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tensorjax import pde

# Paths of a Monte Carlo reference, and its steps in one unit of time.
_STEPS = 400
# Points of the exact density at which errors are measured.
_POINTS = 1000
_TURN = np.pi


class Problem(NamedTuple):
    """A problem, and how long it is integrated.

    Attributes:
      problem: with its box.
      t1: end.
      tol: tolerance; None for the default.
      turns: periodic axes, whose paths are wrapped.
    """

    problem: Any
    t1: float
    tol: float | None = None
    turns: tuple[int, ...] = ()


def _stable(d: int, seed: int, turn: float) -> np.ndarray:
    """Draws a stable matrix: rotations and rates."""
    a = np.random.default_rng(seed).standard_normal((d, d)) / np.sqrt(d)
    a = turn * (a - a.T) / 2 + 0.15 * (a + a.T)
    return a - (np.linalg.eigvals(a).real.max() + 0.3) * np.eye(d)


def _process(d: int, seed: int, turn: float, box: pde.Box) -> pde.OrnsteinUhlenbeck:
    variances = np.random.default_rng(seed + 1).uniform(0.3, 1.0, d)
    start = pde.Gaussian(np.zeros(d), np.diag(variances))
    return pde.OrnsteinUhlenbeck(_stable(d, seed, turn), 0.2 * np.eye(d), start, box)


def _ou1() -> Problem:
    start = pde.Gaussian([0.8], [[0.2]])
    return Problem(
        pde.OrnsteinUhlenbeck([[-1.7]], [[0.35]], start, pde.Box.fourier(1, 64, 5.0)), 1.3
    )


def _defective() -> Problem:
    matrix = np.array([[-1.0, 3.0], [0.0, -1.0001]])
    start = pde.Gaussian([0.5, -0.5], [[0.3, 0.1], [0.1, 0.3]])
    box = pde.Box.fourier(2, 64, 7.0)
    return Problem(pde.OrnsteinUhlenbeck(matrix, np.diag([0.1, 0.4]), start, box), 1.0)


def _stiff() -> Problem:
    matrix = np.array([[-0.3, 1.0, 0.0], [0.0, -4.0, 2.0], [0.0, 0.0, -25.0]])
    start = pde.Gaussian(np.zeros(3), np.diag([0.4, 0.2, 0.2]))
    box = pde.Box.fourier(3, 64, 6.0)
    return Problem(pde.OrnsteinUhlenbeck(matrix, np.diag([0.2, 0.3, 5.0]), start, box), 0.5)


def _shifted() -> Problem:
    start, box = pde.Gaussian([2.0, 0.0], 0.1 * np.eye(2)), (2, 80, 5.0)
    box = pde.Box.finite_differences(*box, order=6)
    return Problem(pde.OrnsteinUhlenbeck([[-0.5, 2], [-2, -0.5]], 0.1, start, box), 2.0)


def _kramers_chain() -> Problem:
    """Two particles on a line, each in a well of its own, tied by a spring."""
    e, spring, friction, heat = np.eye(4), 0.2, 0.7, 0.4
    forces = [
        [pde.Power(e[0], exponent=3, amplitude=-1.0)],
        [pde.Power(e[1], exponent=3, amplitude=-0.5)],
    ]
    matrix = np.zeros((4, 4))
    matrix[0, 2] = matrix[1, 3] = 1
    matrix[2] = [0.8 - spring, spring, -friction, 0]
    matrix[3] = [spring, -0.2 - spring, 0, -friction]
    noise = np.diag([0, 0, friction * heat, friction * heat])
    start = pde.Gaussian([0.3, 0, 0, 0], 0.25 * e)
    box = pde.Box.fourier(4, 36, 4.5)
    return Problem(
        pde.FokkerPlanck([None, None, *forces], noise, start, box, matrix=matrix), 0.7, 1e-3
    )


def _brusselator() -> Problem:
    e = np.eye(2)

    def product(sign: float) -> list[Any]:
        factors = [pde.Power(e[0], exponent=2), pde.Power(e[1])]
        return [pde.Product(factors, amplitude=sign)]

    box = pde.Box((pde.Axis("fourier", 81, -2.0, 5.0), pde.Axis("fourier", 81, -2.0, 6.0)))
    start, matrix = pde.Gaussian([1.0, 1.5], 0.06 * e), [[-2.7, 0.0], [1.7, 0.0]]
    drift = [product(1.0), product(-1.0)]
    return Problem(pde.FokkerPlanck(drift, 0.05, start, box, matrix=matrix, offset=[1.0, 0.0]), 1.0)


def _fitzhugh_nagumo() -> Problem:
    cubic = [pde.Power([1.0, 0.0], exponent=3, amplitude=-1 / 3)]
    box = pde.Box((pde.Axis("fourier", 65, -3.5, 3.5), pde.Axis("fourier", 65, -2.5, 2.5)))
    start = pde.Gaussian([-1.0, -0.5], np.diag([0.08, 0.05]))
    matrix, offset = [[1.0, -1.0], [0.16, -0.128]], [0.5, 0.112]
    noise = np.diag([0.1, 0.03])
    return Problem(
        pde.FokkerPlanck([cubic, None], noise, start, box, matrix=matrix, offset=offset), 2.0
    )


def _lorenz() -> Problem:
    e = np.eye(3)
    drift = [
        None,
        pde.Product([pde.Power(e[0]), pde.Power(e[2])], amplitude=-1.0),
        pde.Product([pde.Power(e[0]), pde.Power(e[1])]),
    ]
    matrix = [[-2.0, 2.0, 0.0], [1.5, -1.0, 0.0], [0.0, 0.0, -0.7]]
    start, box = pde.Gaussian([1.0, 1.0, 0.5], 0.1 * e), pde.Box.fourier(3, 48, 4.5)
    return Problem(pde.FokkerPlanck(drift, 0.1, start, box, matrix=matrix), 0.5, 1e-4)


def _multiplicative() -> Problem:
    one, x = np.zeros(1), np.ones(1)
    noise = [
        (pde.Power(one, offset=1.0), 0.1 * np.eye(1)),
        (pde.Power(x, exponent=2), 0.2 * np.eye(1)),
    ]
    start, box = pde.Gaussian([0.7], [[0.1]]), pde.Box.fourier(1, 128, 10.0)
    return Problem(pde.FokkerPlanck(None, noise, start, box, matrix=[[-1.0]]), 0.7)


def _stratonovich() -> Problem:
    def noise(x: Any) -> Any:
        return jnp.stack([0.1 + 0.1 * jnp.cos(x[:, 1]) ** 2, 0.1 + 0.05 * jnp.sin(x[:, 0])], 1)

    start, box = pde.Gaussian([0.2, -0.3], 0.2 * np.eye(2)), pde.Box.fourier(2, 64, 5.0)
    matrix, sense = [[-1.0, 1.0], [-1.0, -0.5]], "stratonovich"
    return Problem(
        pde.FokkerPlanck(None, noise, start, box, matrix=matrix, interpretation=sense), 0.7
    )


def _rotor() -> Problem:
    box = pde.Box((pde.Axis("periodic", 48, -_TURN, _TURN), pde.Axis("fourier", 64, -6.0, 6.0)))
    gravity = [None, pde.Sin([1.0, 0.0], amplitude=-1.0)]
    start, matrix = pde.Gaussian([0.5, 0.0], np.diag([0.05, 0.2])), [[0.0, 1.0], [0.0, -0.5]]
    problem = pde.FokkerPlanck(gravity, np.diag([0.0, 0.4]), start, box, matrix=matrix)
    return Problem(problem, 1.5, turns=(0,))


def _kuramoto() -> Problem:
    e, box = np.eye(3), pde.Box((pde.Axis("periodic", 40, -_TURN, _TURN),) * 3)
    drift = [
        [pde.Sin(e[j] - e[i], amplitude=0.8 / 3) for j in range(3) if j != i] for i in range(3)
    ]
    start = pde.Gaussian([0.5, -0.5, 0.0], 0.15 * e)
    problem = pde.FokkerPlanck(drift, 0.3, start, box, offset=[0.3, -0.2, 0.0])
    return Problem(problem, 1.0, 1e-4, (0, 1, 2))


def _black_box() -> Problem:
    def drift(x: Any) -> Any:
        a, b, c = x.T
        return jnp.stack(
            [-a + jnp.tanh(b), -b + jnp.tanh(c * a), -c - 0.5 * jnp.sin(a)], 1
        )  # fmt: skip

    start, box = pde.Gaussian([0.5, 0.0, -0.5], 0.2 * np.eye(3)), pde.Box.fourier(3, 40, 4.5)
    return Problem(pde.FokkerPlanck(drift, 0.15, start, box), 0.6, 1e-4)


def _polynomial() -> Problem:
    e = np.eye(2)
    drift = [
        [pde.Power(e[1], exponent=2, amplitude=0.4)],
        [pde.Power(e[0], exponent=2, amplitude=-0.4)],
    ]
    start, box = pde.Gaussian([0.0, 0.0], np.diag([0.15, 0.1])), pde.Box.fourier(2, 128, 4.0)
    return Problem(pde.FokkerPlanck(drift, None, start, box, matrix=[[0.0, 0.5], [-0.5, 0.0]]), 1.0)


def _timed() -> Problem:
    def drift(t: Any, x: Any) -> Any:
        first = jnp.sin(3 * t) * jnp.ones(x.shape[0]) - x[:, 0] ** 3 / 4
        return jnp.stack([first, -x[:, 1] * (1 + t) + x[:, 0]], 1)

    start, box = pde.Gaussian([0.3, 0.0], 0.2 * np.eye(2)), pde.Box.fourier(2, 56, 4.5)
    return Problem(pde.FokkerPlanck(drift, 0.2, start, box), 0.8, 1e-5)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "Ornstein–Uhlenbeck": _ou1,
    "near-defective": _defective,
    "off-centre": _shifted,
    "stiff": _stiff,
    "rotating, d = 5": lambda: Problem(_process(5, 1, 3.0, pde.Box.fourier(5, 48, 7.0)), 0.6),
    "drawn, d = 12": lambda: Problem(_process(12, 4, 1.0, pde.Box.fourier(12, 48, 7.0)), 0.5, 1e-4),
    "drawn, d = 20": lambda: Problem(_process(20, 6, 0.5, pde.Box.fourier(20, 40, 7.0)), 0.3, 1e-4),
    "Kramers, tilted": lambda: Problem(
        pde.Kramers((0.0, 0.2, -0.6, 0.0, 0.3), friction=0.4, temperature=0.35), 1.5
    ),
    "Kramers, sextic": lambda: Problem(
        pde.Kramers((0, 0, 0.5, 0, -0.2, 0, 0.05), friction=2.0, temperature=0.6), 1.0
    ),
    "two Kramers particles": _kramers_chain,
    "Duffing": lambda: Problem(
        pde.Duffing(damping=0.25, stiffness=0.7, cubic=0.4, intensity=0.2), 2.0
    ),
    "van der Pol": lambda: Problem(pde.VanDerPol(damping=2.0, intensity=0.3), 1.0),
    "double well": lambda: Problem(pde.DoubleWell(barrier=2.0, minimum=1.0, temperature=0.5), 1.0),
    "three double wells": lambda: Problem(
        pde.DoubleWell(barrier=1.5, minimum=1.2, temperature=0.6, dim=3, coupling=0.6), 0.5, 1e-4
    ),
    "Brusselator": _brusselator,
    "FitzHugh–Nagumo": _fitzhugh_nagumo,
    "Lotka–Volterra": lambda: Problem(
        pde.LotkaVolterra(1.2, 0.8, 0.7, 0.9, (0.15, 0.25), x0=(1.2, 0.9)), 1.5
    ),
    "Lorenz with noise": _lorenz,
    "geometric Brownian": lambda: Problem(
        pde.GeometricBrownianMotion(
            [0.03, 0.08], [0.3, 0.15], [1.0, 2.0], correlation=[[1, 0.5], [0.5, 1]]
        ),
        0.8,
    ),
    "square root (CIR)": lambda: Problem(pde.CIR(1.5, 0.6, 0.7), 0.8),
    "Heston": lambda: Problem(pde.Heston(3.0, 0.06, 0.35, -0.5), 0.5),
    "noise a + b x², Itô": _multiplicative,
    "noise D(x), Stratonovich": _stratonovich,
    "pendulum in a bath": _rotor,
    "three Kuramoto rotors": _kuramoto,
    "black-box drift": _black_box,
    "Liouville, quadratic": _polynomial,
    "drift f(t, x)": _timed,
}


def rows(names: tuple[str, ...], seconds: float, paths: int) -> Iterator[dict[str, Any]]:
    """Integrates problems in fixed and in adaptive coordinates; a row of the table for each.

    Args:
      names: of `PROBLEMS`.
      seconds: of processor time, after which a run is stopped.
      paths: of Monte Carlo references.
    """
    for name in names:
        case = PROBLEMS[name]()
        known, kind = _moments(case, paths)
        for coordinates in ("fixed", "adaptive"):
            yield {"problem": name, "d": case.problem.dim} | _row(
                case, coordinates, seconds, known, kind
            )


def _row(case: Problem, coordinates: Any, seconds: float, known: Any, kind: str) -> dict[str, Any]:
    began = time.process_time()
    options: dict[str, Any] = {} if case.tol is None else {"tol": case.tol}
    solution = pde.integrate(
        case.problem, t1=case.t1, coordinates=coordinates,
        progress=lambda _: time.process_time() - began > seconds, **options,
    )  # fmt: skip
    used = time.process_time() - began
    ended = solution.result in (pde.Result.successful, pde.Result.inaccurate)
    mean, spread, density = _errors(case, solution, known) if ended else (None, None, None)
    return {
        "coordinates": coordinates,
        "status": solution.result.value,
        "until": solution.final.t,
        "steps": len(solution.stats["t"]),
        "rank": max(solution.final.v.ranks),
        "mean": mean,
        "covariance": spread,
        "beside": kind,
        "density": density,
        "seconds": round(used, 2),
    }


def _moments(case: Problem, paths: int) -> tuple[Any, str]:
    """Returns mean and covariance at the end, and where they come from."""
    found = case.problem.moments(case.t1)
    if found is not None:
        return (np.asarray(found[1]), np.asarray(found[2])), "closed form"
    steps = int(_STEPS * case.t1) + 100
    x = case.problem.simulate(np.random.default_rng(0), case.t1, paths, steps=steps)
    for k in case.turns:
        x[:, k] = (x[:, k] + _TURN) % (2 * _TURN) - _TURN
    return (x.mean(0), np.cov(x.T).reshape(x.shape[1], x.shape[1])), "paths"


def _errors(case: Problem, solution: pde.Solution, known: Any) -> tuple[float, float, float | None]:
    """Returns the largest errors of mean and covariance, and that of the density where known."""
    problem, end = case.problem, solution.final
    _, mean, covariance = pde.moments(end.v, end.map, problem.box)
    width = np.sqrt(np.diag(known[1]))
    error = float(np.abs((mean - known[0]) / width).max())
    spread = float((np.abs(covariance - known[1]) / np.outer(width, width)).max())
    try:
        x = problem.sample(np.random.default_rng(1), case.t1, _POINTS)
    except ValueError:  # no exact density is known
        return error, spread, None
    exact = problem.exact(case.t1, x)
    if exact is None:
        return error, spread, None
    values = np.asarray(pde.evaluate(end.v, end.map, problem.box, x))
    return error, spread, float(np.linalg.norm(values - exact) / np.linalg.norm(exact))
