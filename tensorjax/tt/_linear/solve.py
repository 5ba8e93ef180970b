"""Linear solver `tt.solve`: AMEn or TT-GMRES for A x = b in TT format, checks and report."""

import dataclasses
import functools
import time
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores import scaling
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.tt._linear.amen import amen_search
from tensorjax.tt._linear.gmres import gmres_search
from tensorjax.tt._linear.system import NEAR, NULL, Outcome, Report, Search, System, capped


@dataclasses.dataclass(frozen=True)
class SolveInfo:
    """Report of a TT linear solve: status, measured residual, sweeps, ranks, advice.

    Attributes:
      status: "converged": ``residual`` ≤ tol. "stalled": sweeps no longer help. "singular": they do
        not, for A is singular, or too nearly so. "max_sweeps": out of sweeps.
      residual: ‖A x − b‖ / ‖b‖ of the train returned, measured without squaring.
      sweeps: passes over the train (AMEn), or cycles (GMRES).
      ranks: TT-ranks of the train returned.
      iterations: Krylov steps: in local systems (AMEn), or of trains (GMRES).
      seconds: wall-clock time.
      history: the relative residual that each sweep (AMEn) or step (GMRES) saw, an estimate.
      advice: what to try next; empty if converged.

    Example:
      >>> from tensorjax import tt
      >>> x, info = tt.solve(tt.identity((4, 5)) * 2.0, tt.ones((4, 5)), tol=1e-5)
      >>> info.status, info.ranks, info.residual <= 1e-5
      ('converged', (1, 1, 1), True)

    Source: ours.
    """

    status: Literal["converged", "stalled", "singular", "max_sweeps"]
    residual: float
    sweeps: int
    ranks: tuple[int, ...]
    iterations: int
    seconds: float
    history: tuple[float, ...]
    advice: str


@placed
def solve(
    A: TTMatrix,
    b: TT,
    *,
    tol: float,
    x0: TT | None = None,
    method: Literal["amen", "gmres"] = "amen",
    max_rank: int | None = None,
    max_sweeps: int | None = None,
    enrichment: int = 6,
    local: Literal["auto", "direct", "iterative"] = "auto",
    preconditioner: Any = "auto",
    restart: int = 30,
    key: jax.Array | None = None,
    callback: Report | None = None,
) -> tuple[TT, SolveInfo]:
    """Solves a linear system A x = b in TT format by AMEn or TT-GMRES; A may be unsymmetric.

    Runs on the host, in double precision with exact ranks: nothing is compiled.

    Args:
      A: TTMatrix with equal rows and columns, real or complex. The cost grows with its TT-ranks: a
        sum of many terms should be rounded first.
      b: TT of shape ``A.row_shape``.
      tol: asked ‖A x − b‖ / ‖b‖, at least 10 eps. It is measured on the train returned, so status
        "converged" guarantees it. Roundoff alone leaves about eps·‖A‖·‖x‖/‖b‖.
      x0: first guess, of the shape of ``b``.
      method: "amen": local systems, site after site. "gmres": Krylov vectors as rounded trains; it
        needs a good preconditioner, but no local system has to be solvable.
      max_rank: cap on the TT-ranks of x (and of the Krylov vectors).
      max_sweeps: passes over the train (default 50), or cycles of GMRES (default 10).
      enrichment: how many directions of the residual AMEn adds to each bond in a pass.
      local: how AMEn solves on one site: "direct" eliminates (up to 12000 unknowns), "iterative"
        runs GMRES; "auto" eliminates small systems, and larger ones where the iteration fails.
      preconditioner: of local systems (AMEn): "kronecker" (the nearest Kronecker sum, inverted by
        fast diagonalisation: exact for Laplacians), "block" (block Jacobi), "jacobi", "none", or
        "auto" (the first two in turn); or a function of the arrays (lefts (r, a, r), core
        (a, n, n, b), rights (s, b, s)) that returns a function of arrays (r, n, s), about the
        inverse of Σ lefts[:, a] ⊗ core[a, :, :, b] ⊗ rights[:, b]. For GMRES: a function TT → TT,
        applied from the right.
      restart: steps in a cycle of GMRES.
      key: of the random train that AMEn's residual starts from; a fixed draw if None.
      callback: called as callback(sweep, residual seen, ranks) after each sweep.

    Returns:
      (x, SolveInfo). If the status is not "converged", x is the best train found: its residual is
      in the info, and advice on what to try.

    Raises:
      TypeError: wrong kinds, or arguments traced by a JAX transformation.
      ValueError: A is not square, shapes do not match, NaN or Inf, an option out of range.

    Example:
      >>> from tensorjax import tt
      >>> A = tt.identity((4, 5, 6)) * 2.0
      >>> x, info = tt.solve(A, tt.ones((4, 5, 6)), tol=1e-5)
      >>> info.status, round(float(tt.evaluate(x, [0, 0, 0])), 4)
      ('converged', 0.5)

    Source: S. Dolgov, D. Savostyanov, "Alternating minimal energy methods for linear systems in
    higher dimensions", SIAM J. Sci. Comput. 36 (2014), the variant that follows the residual by
    alternating least squares; S. Dolgov, "TT-GMRES: solution to a linear system in the structured
    tensor format", Russ. J. Numer. Anal. Math. Modelling 28 (2013). Departures, ours: passes in
    both directions solve; the truncation takes the least rank whose effect on the local residual is
    allowed, for all ranks from one Gram matrix; the Kronecker-sum preconditioner; local systems by
    least squares, with singular values below the roundoff of the dtype as zero, where there are any
    and the solution does not fit into it; the global
    residual is measured before "converged" is said, and sweeps go on with tighter cuts if it fails.
    """
    began = time.perf_counter()
    _check_system(A, b, x0)
    dtype = functools.reduce(jnp.promote_types, [t.dtype for t in (A, b, x0) if t is not None])
    tol = _check.tolerance(tol, dtype)
    cap = None if max_rank is None else _check.integer("max_rank", max_rank, low=1)
    _check.choice("method", method, ("amen", "gmres"))
    if method == "amen":
        _check.integer("enrichment", enrichment, low=1)
        sweeps = _check.integer("max_sweeps", 50 if max_sweeps is None else max_sweeps, low=1)
        search = amen_search(local, preconditioner, cap, sweeps, enrichment, key)
    elif method == "gmres":
        _check.integer("restart", restart, low=1)
        sweeps = _check.integer("max_sweeps", 10 if max_sweeps is None else max_sweeps, low=1)
        search = gmres_search(preconditioner, cap, sweeps, restart)
    else:
        raise ValueError(f"method: expected 'amen' or 'gmres', got {method!r}")
    system = System(A, b, x0, dtype, enrichment)
    out = solution(system, search, tol, cap, x0 is not None, _relative(callback, system.size))
    cores = [c.astype(dtype) for c in out.x]
    residual = system.residual([c.astype(system.wide) for c in cores]) / (system.size or 1.0)
    status, advice = "converged", ""
    if not residual <= tol:
        status, advice = _diagnosis(system, out, residual, tol, cap, method)
    scaled = scaling.scaled_train([c.astype(system.wide) for c in cores], system.exponent)
    x = TT._unchecked(tuple(on_device([c.astype(dtype) for c in scaled])))
    history = tuple(h / (system.size or 1.0) for h in out.history)
    seconds = time.perf_counter() - began
    return x, SolveInfo(
        status, residual, out.sweeps, x.ranks, out.iterations, seconds, history, advice
    )


def _check_system(A: Any, b: Any, x0: Any) -> None:
    single("A", A, TTMatrix, entries=True)
    single("b", b, TT, entries=True)
    if A.row_shape != A.col_shape:
        raise ValueError(
            f"A: expected a square operator, got rows {A.row_shape} and columns {A.col_shape}; "
            "for least squares solve with Aᴴ A and Aᴴ b"
        )
    for name, t in (("b", b), ("x0", x0)):
        if t is None:
            continue
        single(name, t, TT)
        if t.shape != A.row_shape:
            raise ValueError(f"{name}: expected shape {A.row_shape} (the rows of A), got {t.shape}")
    if _check.is_traced(A, b, x0):
        raise TypeError(
            "tt.solve picks its ranks by the data, which jit, vmap and grad cannot trace; "
            "call it outside the transformation"
        )
    for name, t in (("A", A), ("b", b), ("x0", x0)):
        _check.finite(name, t)


def solution(
    system: System, search: Search, tol: float, cap: int | None, guessed: bool, report: Report
) -> Outcome:
    """Solves A x = b by AMEn or TT-GMRES, unless b = 0 or the first guess suffices.

    Args:
      system: with b and the guess.
      search: as of `amen_search`.
      tol: relative to ‖b‖.
      cap: largest rank of a guess that is returned as it is; None for no limit.
      guessed: whether the guess is one, not only a start.
      report: called after every sweep, with the residual, not relative.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # of local systems gone wrong
        out = _at_once(system, tol, guessed, cap)
        return out or search(system, tol * system.size, report)


def _at_once(system: System, tol: float, guessed: bool, cap: int | None) -> Outcome | None:
    """Solves A x = b without sweeps if b = 0 or the first guess suffices; else returns None."""
    if system.size == 0:
        return Outcome([0 * c[:1, :, :1] for c in system.b], 0.0, "converged", 0, 0, ())
    if guessed and (cap is None or max(map(len, system.x)) <= cap):
        residual = system.residual(system.x)
        if residual <= tol * system.size:
            return Outcome(system.x, residual, "converged", 0, 0, ())
    return None


def _relative(callback: Report | None, size: float) -> Report:
    if callback is None:
        return lambda *_: None
    _check.function("callback", callback)
    return lambda sweep, residual, ranks: callback(sweep, residual / size, ranks)


def _diagnosis(
    system: System, out: Outcome, residual: float, tol: float, cap: int | None, method: str
) -> tuple[Any, str]:
    """Returns status and advice for a `solve` of A x = b that misses its tolerance."""
    if out.residual <= tol * system.size:
        # ‖A x‖ / ‖x‖ bounds the least singular value of A.
        if system.roundoff(out.x) > system.size:
            cause = "x is large beside b, for A is singular, or nearly so"
        else:
            cause = f"the roundoff of {system.dtype} times the condition of A exceeds tol"
        return "stalled", (
            f"x in double precision leaves {out.residual / system.size:.1g}, rounded to "
            f"{system.dtype} {residual:.1g}: {cause}; cast A and b to a wider dtype, or ask for "
            "less"
        )
    if out.status == "max_sweeps":
        return out.status, "raise max_sweeps, or pass x as x0"
    if system.weakness(out.x) < NULL:
        return "singular", (
            "A is singular or nearly so and b is outside its range: remove the null space, "
            "or solve (A + shift) x = b with a small multiple of tt.identity for the shift"
        )
    if capped(out, cap):
        return "stalled", "the ranks have reached max_rank: raise it, or ask for less"
    floor = system.roundoff(out.x) / system.size
    if out.residual / system.size < NEAR * floor:
        return "stalled", f"roundoff alone leaves a residual of about {floor:.1g}: ask for less"
    if method == "gmres":
        return "stalled", "pass a better preconditioner, raise restart, or use method='amen'"
    return "stalled", (
        "raise enrichment, try another preconditioner or local='direct', use method='gmres', "
        "or solve with Aᴴ A and Aᴴ b if A is indefinite or far from symmetric"
    )
