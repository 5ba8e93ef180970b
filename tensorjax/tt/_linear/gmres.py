"""TT-GMRES: flexible GMRES whose vectors are rounded trains, on lists of NumPy cores."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tensorjax import _check
from tensorjax._cores import overlaps, products, rounding
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT, single
from tensorjax._transfer import on_device
from tensorjax.tt._linear.system import Outcome, Report, Search, System

# Partial sums are rounded once their ranks exceed so many times those of the terms.
_PILE = 4


class Options(NamedTuple):
    """Options of TT-GMRES, flexible GMRES with rounded trains: rank cap, restart, cycles."""

    max_rank: int | None
    restart: int
    max_cycles: int


class _Cycle(NamedTuple):
    steps: list[Cores]  # preconditioned Krylov vectors
    weights: Any  # of the steps
    residuals: list[float]


def gmres_search(preconditioner: Any, cap: int | None, sweeps: int, restart: int) -> Search:
    """Returns the TT-GMRES solver of `solve` as a function of system, tolerance and report."""
    plain = not callable(preconditioner)
    if plain and preconditioner not in ("auto", "none", None):
        raise ValueError(
            "preconditioner: expected a function TT -> TT, 'auto' or 'none' with method='gmres', "
            f"got {preconditioner!r}"
        )
    options = Options(cap, restart, sweeps)

    def search(system: System, tol: float, report: Report) -> Outcome:
        function = (lambda x: x) if plain else _on_cores(preconditioner, system)
        return run(system, tol, function, options, report)

    return search


def run(
    system: System,
    tol: float,
    precondition: Callable[[Cores], Cores],
    options: Options,
    report: Report,
) -> Outcome:
    """Runs restarted TT-GMRES until the measured residual is at most ``tol`` (absolute)."""
    a, b = system.a, system.b
    norm, x = system.first_guess(system.residual, options.max_rank or math.inf)
    best, status, history, iterations = (norm, x), "max_sweeps", [], 0
    count = 0
    while status == "max_sweeps" and count < options.max_cycles:
        count += 1
        gap = products.combined([b, products.matvec(a, x)], [1.0, -1.0])
        residual = rounding.rounded(gap, min(0.1 * tol / norm, 0.1), options.max_rank)
        cycle = _krylov(a, residual, tol, precondition, options)
        iterations += len(cycle.steps)
        history += cycle.residuals
        x, after = _updated(system, x, cycle, tol, options.max_rank)
        report(count, after, (1, *(c.shape[2] for c in x)))
        best = min(best, (after, x), key=lambda pair: pair[0])
        if best[0] <= tol:
            status = "converged"
        elif not after < 0.98 * norm:
            status = "stalled"
        norm = after
    return Outcome(best[1], best[0], status, count, iterations, tuple(history))


def _krylov(
    a: Cores,
    residual: Cores,
    tol: float,
    precondition: Callable[[Cores], Cores],
    options: Options,
) -> _Cycle:
    """Runs one cycle of TT-GMRES, with rounding errors that may grow as the residual falls."""
    max_rank, restart = options.max_rank, options.restart
    norm = overlaps.norm(residual)
    basis = [_scaled(residual, 1 / norm)]
    steps: list[Cores] = []
    h = np.zeros((restart + 1, restart), residual[0].dtype)
    residuals, weights = [norm], np.zeros(0)
    for j in range(restart):
        # Errors of products may grow as the residual falls: V. Simoncini, D. Szyld, "Theory of
        # inexact Krylov subspace methods", SIAM J. Sci. Comput. 25 (2003).
        allowed = min(0.1 * tol / residuals[-1], 0.1)
        steps.append(rounding.rounded(precondition(basis[j]), allowed, max_rank))
        w = rounding.rounded(products.matvec(a, steps[j]), allowed, max_rank)
        size = overlaps.norm(w)
        c = [overlaps.overlap(v, w) for v in basis]
        w = _summed([w, *basis], [1.0, *(-p for p in c)], allowed, max_rank)
        length = overlaps.norm(w)
        h[: j + 1, j], h[j + 1, j] = c, length
        start = np.zeros(j + 2, h.dtype)
        start[0] = norm
        tall = h[: j + 2, : j + 1]
        weights = np.linalg.lstsq(tall, start, rcond=1e-14)[0]
        residuals.append(float(np.linalg.norm(tall @ weights - start)))
        # Below the rounding error, what is left of w is no new direction.
        if residuals[-1] <= 0.5 * tol or not length > allowed * size:
            break
        basis.append(_scaled(w, 1 / length))
    return _Cycle(steps, weights, residuals[1:])


def _updated(
    system: System, x: Cores, cycle: _Cycle, tol: float, max_rank: int | None
) -> tuple[Cores, float]:
    """Adds the correction of a TT-GMRES cycle to the solution; returns its residual too."""
    target = max(2 * cycle.residuals[-1], tol)
    terms, weights = [x, *cycle.steps], [1.0, *cycle.weights]
    found: tuple[Cores, float] = (x, math.inf)
    # The coarsest rounding that keeps the residual gives the lowest ranks; steps may be larger than
    # the solution, and their rounding errors too, which the system magnifies.
    for accuracy in (0.1 * tol, 1e-3 * tol, 1e-14):
        accuracy = max(accuracy, 1e-14)
        y = _summed(terms, weights, accuracy, max_rank)
        residual = system.residual(y)
        if residual < found[1]:
            found = y, residual
        if residual <= target:
            break
    return found


def _summed(terms: list[Cores], weights: Any, tol: float, max_rank: int | None) -> Cores:
    """Combines the vectors of TT-GMRES, rounded after several terms to keep their ranks low."""
    limit = _PILE * max(len(c) for t in terms for c in t)
    share = tol / len(terms)
    total = _scaled(terms[0], weights[0])
    for t, w in zip(terms[1:], weights[1:], strict=True):
        total = products.combined([total, t], [1.0, w])
        if max(len(c) for c in total) > limit:
            total = rounding.rounded(total, share)
    return rounding.rounded(total, tol / 2, max_rank)


def _scaled(x: Cores, factor: Any) -> Cores:
    return [factor * x[0], *x[1:]]


def _on_cores(function: Any, system: System) -> Callable[[Cores], Cores]:
    """Wraps the preconditioner that the user gives to `solve`, of trains, for solvers on cores."""

    def on_cores(x: Cores) -> Cores:
        train = TT._unchecked(tuple(on_device([c.astype(system.dtype) for c in x])))
        out = function(train)
        single("preconditioner(x)", out, TT)
        _check.finite("preconditioner(x)", out)
        if out.shape != train.shape:
            raise ValueError(
                f"preconditioner: expected a train of shape {train.shape}, got {out.shape}"
            )
        return system.cores(out)

    return on_cores
