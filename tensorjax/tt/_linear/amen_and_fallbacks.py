"""Solver of `solve` by AMEn, and its fallbacks: normal equations, least norm."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax.tt._linear import amen as amen
from tensorjax.tt._linear.amen_local_systems import PRECONDITIONERS, Apply
from tensorjax.tt._linear.system import NEAR, NULL, Outcome, Report, Search, System, capped

# Local systems of up to so many unknowns are solved by elimination, which is faster there.
_DIRECT = 200
# Up to so many unknowns, elimination is the fallback where the iteration fails.
_RESCUED = 1500
# Local GMRES: steps in a cycle, and cycles; few for "kronecker", which works at once or not at all.
_STEPS, _TRIAL = (40, 3), (20, 1)
# Most unknowns eliminated with local="direct": larger matrices would not fit into memory.
_LARGEST = 12000
# Operators of higher TT-ranks are not squared for the normal equations: too expensive.
_SQUARABLE = 12


def amen_search(
    local: str, preconditioner: Any, cap: int | None, sweeps: int, rank: int, key: Any
) -> Search:
    """Builds the AMEn solver that `tt.solve` runs, a function of system, tolerance and report.

    Args:
      local: how local systems are solved.
      preconditioner: of local systems.
      cap: largest rank; None for no limit.
      sweeps: at most.
      rank: of the train that follows the residual.
      key: for this train; None for a fixed one.
    """
    limits = {"auto": (_DIRECT, _RESCUED), "direct": (_LARGEST, 0), "iterative": (0, 0)}
    _check.choice("local", local, limits)
    options = amen.Options(
        cap or math.inf, *limits[local], _local_preconditioners(preconditioner), sweeps
    )

    def search(system: System, tol: float, report: Report) -> Outcome:
        z = system.random(key, rank)
        out = amen.run(system, z, tol, options, report, system.residual, tol)
        rest = sweeps - out.sweeps
        if rest > 0 and out.residual <= tol and not system.fits(out.x, tol):
            most = min(max(options.direct, options.rescued), _RESCUED)
            if amen.is_singular(system, out.x, z, most, float(jnp.finfo(system.dtype).eps)):
                return _of_least_norm(system, z, tol, options._replace(direct=most), report, out)
            return out
        if out.status in ("converged", "max_sweeps") or rest < 1 or _final(system, out, cap):
            return out
        # Galerkin projections of A may be singular where A is not; those of Aᴴ A are not.
        normal = system.normal(out.x)
        again = amen.run(
            normal,
            z,
            tol * normal.size / system.size,
            options._replace(max_sweeps=rest),
            lambda sweep, *seen: report(out.sweeps + sweep, *seen),
            system.residual,
            tol,
        )
        return again._replace(
            sweeps=out.sweeps + again.sweeps,
            iterations=out.iterations + again.iterations,
            history=out.history + again.history,
        )

    return search


def _of_least_norm(
    system: System, z: Any, tol: float, options: amen.Options, report: Report, out: Outcome
) -> Outcome:
    """Solves A x = b again by least norm, a fallback if AMEn's x is too large for its dtype.

    Where A is singular, roundoff of b in that dtype is divided by singular values of roundoff of
    double precision. What is below the roundoff of the data counts as zero here. Where no local
    system at the solution has such a singular value, this would find the same once more.
    """
    again = amen.run(
        system,
        z,
        tol,
        options._replace(
            rescued=0,
            max_sweeps=options.max_sweeps - out.sweeps,
            floor=float(jnp.finfo(system.dtype).eps),
        ),
        lambda sweep, *seen: report(out.sweeps + sweep, *seen),
        system.residual,
        tol,
    )
    better = again if system.cast_residual(again.x) < system.cast_residual(out.x) else out
    return better._replace(
        sweeps=out.sweeps + again.sweeps,
        iterations=out.iterations + again.iterations,
        history=out.history + again.history,
    )


def _local_preconditioners(
    choice: Any,
) -> tuple[tuple[amen.Preconditioner, tuple[int, int]], ...]:
    choice = "none" if choice is None else choice
    if callable(choice):
        return (((lambda local: _checked(choice(*local), local.shape)), _STEPS),)
    if not isinstance(choice, str):
        raise TypeError(
            f"preconditioner: expected a name or a function, got {_check.short(choice)}"
        )
    if choice == "auto":
        return (PRECONDITIONERS["kronecker"], _TRIAL), (PRECONDITIONERS["block"], _STEPS)
    if choice not in PRECONDITIONERS:
        names = ("auto", *PRECONDITIONERS)
        raise ValueError(f"preconditioner: expected one of {names} or a function, got {choice!r}")
    return ((PRECONDITIONERS[choice], _STEPS),)


def _checked(apply: Any, shape: tuple[int, int, int]) -> Apply:
    def checked(v: Any) -> Any:
        out = np.asarray(apply(v))
        if out.shape != shape:
            raise ValueError(
                f"preconditioner: expected it to return arrays of shape {shape}, got {out.shape}"
            )
        return out

    return checked


def _final(system: System, out: Outcome, cap: int | None) -> bool:
    """Whether `solve` skips the fallback after AMEn, normal equations, as useless or too costly."""
    return (
        capped(out, cap)
        or max(map(len, system.a)) > _SQUARABLE
        or out.residual < NEAR * system.roundoff(out.x)
        or system.weakness(out.x) < NULL
    )
