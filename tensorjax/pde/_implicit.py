"""Steps that take constant diffusion implicitly, by AMEn."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorjax._cores import Cores
from tensorjax.pde._operators import affine_generator
from tensorjax.pde._rates import Rates, train
from tensorjax.pde._steppers import Step, Trim, adams_weights
from tensorjax.pde._sums import Train, relative_norm, rounded
from tensorjax.tt import _hosted as hosted
from tensorjax.tt import _solve as solver
from tensorjax.tt._system import System

# Of AMEn: passes over the train, and directions of the residual that a pass adds to each bond.
_SWEEPS, _ENRICHMENT = 20, 4
# Share of the tolerance of the step at which the system is solved.
_SOLVED = 0.3


def imex(
    at: Callable[[float], Rates],
    v: Cores,
    dt: float,
    trim: Trim,
    estimate: bool,
    past: Sequence[Any] = (),
) -> Step:
    """Crank–Nicolson for S:∇∇v, Adams–Bashforth of order 2 for all the rest.

    (1 − dt/2 D(t + dt)) v⁺ = v + dt/2 D(t) v + dt·(explicit part): the order is 2, steps may vary,
    and the first is of order 1 in the explicit part. The estimate is what the second slope of
    Adams–Bashforth adds.

    Source: U. Ascher, S. Ruuth, B. Wetton, "Implicit-explicit methods for time-dependent partial
    differential equations", SIAM J. Numer. Anal. 32 (1995), section 2, CNAB.
    """
    stiff, slow = at(0.0).split()
    t = at.path.t  # pyright: ignore[reportFunctionMemberAccess]
    terms = slow.terms(v, trim.tol)
    scale = float(np.linalg.norm(v[0])) / dt
    slope = trim("slope", terms, [1.0] * len(terms), scale=scale).cores if terms else None
    known = [*past, (t, slope)][-2:] if slope is not None else []
    weights = dt * adams_weights(t, dt, [s for s, _ in known]) if known else []
    half = stiff.terms(v, trim.tol)
    sums = [Train(v), *half, *(Train(c) for _, c in known)]
    load = trim("load", sums, [1.0, *[dt / 2] * len(half), *weights]).cores
    diffusion = at(1.0).split()[0].affine
    assert diffusion is not None
    implicit = affine_generator(
        stiff.box, None, None, -dt / 2 * np.asarray(diffusion.diffusion), 1.0
    )
    found, residual = _solved(implicit, load, v, _SOLVED * trim.tol)
    out = rounded([Train(found)], [1.0], trim.tol, cap=trim.cap)
    # Diffusion leaves mass as it is, and so the system has that of its right side.
    out = trim.corrected(out, trim.mass(Train(load)), trim.tol * out.norm)
    note = ""
    if not residual <= trim.tol:
        note = f"AMEn leaves a residual of {residual:.2g} in the implicit step: try a smaller dt"
    error = float("nan")
    if estimate and len(known) == 2 and np.isfinite(out.norm):
        change = [weights[0], weights[1] - dt]
        error = relative_norm([Train(c) for _, c in known], change, Train(out.cores))
    return Step(out, error, None if slope is None else (t, slope), note)


def _solved(operator: Any, load: Cores, guess: Cores, tol: float) -> tuple[Cores, float]:
    """The solution, in double precision whatever the mode of JAX, and its relative residual."""
    system = System(operator, train(load), train(guess), np.dtype(np.float64), _ENRICHMENT)
    search = solver._amen("auto", "auto", None, _SWEEPS, _ENRICHMENT, None)
    with np.errstate(over="ignore", invalid="ignore"):
        out = solver._at_once(system, tol, True, None)
        out = out or search(system, tol * system.size, lambda *_: None)
    residual = system.residual(out.x) / (system.size or 1.0)
    return hosted.scaled(out.x, system.exponent), residual
