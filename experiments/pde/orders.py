"""Orders of convergence in time, and properties that hold up to roundoff."""

from typing import Any

import numpy as np

from experiments.pde.solve import relative
from tensorjax import pde

T1 = 0.5
# The run that errors are measured against has so many times the most steps, on the same grid: the
# classical method.
_FINER = 4
# Points of an axis where the grid should not be seen.
_FINE = 64


def problem(points: int = 40) -> pde.OrnsteinUhlenbeck:
    """Returns an Ornstein–Uhlenbeck process in two dimensions, for tests of convergence."""
    matrix = np.array([[-0.15, 0.45], [-0.35, -0.1]])
    diffusion = np.array([[0.1, 0.04], [0.04, 0.06]])
    start = pde.Gaussian(np.array([0.2, -0.1]), np.diag([0.8, 0.6]))
    box = pde.Box.fourier(2, points, 8.0)
    return pde.OrnsteinUhlenbeck(matrix, diffusion, start, box, offset=np.array([0.1, 0.1]))


def prescribed(t: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns a prescribed motion of coordinates, Σ and β, unrelated to the solution."""
    sigma = 0.3 * np.array([[0.3 * t, np.cos(3 * t)], [-np.sin(2 * t + 0.3), -0.2]])
    return sigma, 3 * np.array([np.cos(6 * t), -np.sin(6 * t)])


# Method, coordinates in words, generator, degree of the extrapolation, tolerance.
RUNS: tuple[tuple[Any, str, Any, int, float], ...] = (
    *(("rk4", f"prescribed, degree {k}", pde.Prescribed(prescribed), k, 1e-14) for k in range(3)),
    ("rk2", "prescribed, degree 2", pde.Prescribed(prescribed), 2, 1e-12),
    ("ab2", "prescribed, degree 2", pde.Prescribed(prescribed), 2, 1e-12),
    ("ab3", "prescribed, degree 2", pde.Prescribed(prescribed), 2, 1e-12),
    ("bug", "prescribed, degree 2", pde.Prescribed(prescribed), 2, 1e-11),
    ("projector splitting", "prescribed, degree 2", pde.Prescribed(prescribed), 2, 1e-11),
    ("imex", "prescribed, degree 2", pde.Prescribed(prescribed), 2, 1e-9),
)


def values(steps: int, x: np.ndarray, points: int = 40, **options: Any) -> np.ndarray:
    """Integrates the test problem in ``steps`` steps; returns the solution at points x."""
    p = problem(points)
    # Errors in time alone are compared, all on the same points.
    solution = pde.integrate(p, t1=T1, dt=T1 / steps, accuracy=np.inf, **options)
    if solution.result != pde.Result.successful:
        raise RuntimeError(f"orders: {solution.message}")
    state = solution.final
    return np.asarray(pde.evaluate(state.v, state.map, p.box, x))


def rows(runs: Any, steps: tuple[int, ...]) -> list[dict[str, Any]]:
    """Computes errors and orders of convergence for increasing numbers of steps."""
    x = problem().sample(np.random.default_rng(0), T1, 200)
    exact = values(_FINER * max(steps), x, tol=1e-14, coordinates=pde.Prescribed(prescribed))
    out = []
    for method, words, generator, degree, tol in runs:
        options = {"coordinates": generator, "extrapolate": degree}
        before = None
        for count in steps:
            found = values(count, x, method=method, tol=tol, **options)
            error = relative(found, exact)
            out.append({
                "method": method,
                "coordinates": words,
                "steps": count,
                "error": error,
                "order": None if before is None else float(np.log2(before / error)),
            })  # fmt: skip
            before = error
    return out


def differences(steps: int) -> list[dict[str, Any]]:
    """Computes differences that should be of roundoff, or of the error in time."""
    p = problem(_FINE)
    box = p.box
    x = p.sample(np.random.default_rng(0), T1, 500)
    options: dict[str, Any] = {"steps": steps, "x": x, "points": _FINE, "tol": 1e-14}
    fixed = values(coordinates="fixed", **options)
    found = {
        f"{name} against fixed, nothing truncated": relative(
            values(coordinates=generator, **options), fixed
        )
        for name, generator in (
            ("prescribed", pde.Prescribed(prescribed)),
            ("ours", pde.MultiLevel()),
        )
    }
    map = pde.affine([[1.0, 0.6], [-0.2, 1.1]], [0.1, -0.2])
    v = p.start.train(box, map, 1e-13)
    _, mean, covariance = pde.moments(v, map, box)
    assert isinstance(p.start, pde.Gaussian)
    found["mean and covariance of a state of mixed coordinates"] = max(
        float(np.abs(mean - p.start.mean).max()),
        float(np.abs(covariance - p.start.covariance).max()),
    )
    for axes in ((0,), (0, 1)):
        grid, density = pde.marginal(v, map, box, axes)
        mesh = np.stack([g.ravel() for g in np.meshgrid(*grid, indexing="ij")], 1)
        part = pde.Gaussian(p.start.mean[list(axes)], p.start.covariance[np.ix_(axes, axes)])
        error = np.abs(density.ravel() - part.values(mesh)).max() / density.max()
        found[f"its {len(axes)}D marginal, over the largest value"] = float(error)
    return [{"what": what, "difference": error} for what, error in found.items()]
