"""AMEn (alternating minimal energy) for linear systems, and its fallbacks; on NumPy cores.

One pass goes over the train from left to right and solves on one site after the other; the next
one does the same on the mirrored train, so that there is only one direction to write down. The
fallbacks, for operators that are nearly singular, are normal equations and least norm.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tensorjax import _blas_threads, _check, linalg
from tensorjax._cores.contractions import absorb, einsum, times_right
from tensorjax._cores.interfaces import apply_one, edge, left, left_overlap, right, right_overlap
from tensorjax._cores.orthogonalization import left_qr, right_orthogonal
from tensorjax._cores.unfoldings import Cores, tall
from tensorjax.tt._linear.amen_local_systems import (
    PRECONDITIONERS,
    Apply,
    Local,
    gmres,
    solve_dense,
)
from tensorjax.tt._linear.system import NEAR, NULL, Measure, Outcome, Report, Search, System, capped

Array = Any
# Passes without progress after which the solve has stalled.
_PATIENCE = 6
# Trailing singular vectors that a truncation tests first: it rarely discards more.
_TAIL = 16
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


@dataclasses.dataclass
class State:
    """State of the AMEn solver for A x = b: tensor trains and interfaces, centred at one site.

    Attributes:
      a: cores of A, and those of its mirror image.
      b: cores.
      x: the solution.
      z: a train of low rank near the residual.
      xax, xb, zax, zb: interfaces at the bonds 0 … d.
    """

    a: tuple[Cores, Cores]
    b: Cores
    x: Cores
    z: Cores
    xax: Cores
    xb: Cores
    zax: Cores
    zb: Cores

    def mirrored(self) -> "State":
        """Mirrors all tensor trains and interfaces of AMEn's state, for the sweep back."""
        return State(
            (self.a[1], self.a[0]),
            *(_mirrored(t) for t in (self.b, self.x, self.z)),
            *(i[::-1] for i in (self.xax, self.xb, self.zax, self.zb)),
        )

    def copy(self) -> "State":
        """Copies the lists of cores and interfaces in AMEn's state, without copying arrays."""
        return State(self.a, self.b, *(list(getattr(self, n)) for n in _LISTS))


_LISTS = ("x", "z", "xax", "xb", "zax", "zb")


def _mirrored(cores: Cores) -> Cores:
    return [np.ascontiguousarray(c.swapaxes(0, -1)) for c in reversed(cores)]


Preconditioner = Callable[[Local], Apply]


class Options(NamedTuple):
    """Options of the AMEn sweeps on cores: local solvers, rank cap, number of sweeps.

    With each preconditioner goes the length of a cycle of GMRES, and how many there may be.
    """

    max_rank: float
    direct: float  # systems of up to so many unknowns are solved by elimination
    rescued: float  # and of up to so many, if the iteration fails
    preconditioners: tuple[tuple[Preconditioner, tuple[int, int]], ...]  # tried in turn
    max_sweeps: int
    floor: float | None = None  # share of the largest singular value below which others are zero


@dataclasses.dataclass
class Pass:
    """Report of one AMEn sweep: largest residual seen, number of Krylov iterations."""

    residual: float = 0.0  # the largest projection of the residual that was met
    iterations: int = 0


def start(a: Cores, b: Cores, x: Cores, z: Cores) -> State:
    """Builds AMEn's state at the first site from right-orthogonal tensor trains x and z."""
    d = len(a)
    one, pair = edge(b[0]), edge(b[0], operator=False)
    s = State(
        (a, _mirrored(a)), b, list(x), list(z), *([m] * (d + 1) for m in (one, pair, one, pair))
    )
    for k in range(d - 1, 0, -1):
        s.xax[k] = right(s.xax[k + 1], x[k], a[k], x[k])
        s.zax[k] = right(s.zax[k + 1], z[k], a[k], x[k])
        s.xb[k] = right_overlap(s.xb[k + 1], x[k], b[k])
        s.zb[k] = right_overlap(s.zb[k + 1], z[k], b[k])
    return s


def sweep(s: State, tol: float, options: Options, *, enrich: bool) -> Pass:
    """Runs one AMEn sweep from left to right, in place: solves, truncates, enriches each site.

    ``tol`` is per site.
    """
    with _blas_threads.one_thread(_blas_threads.slow_down(s.x)):
        return _swept(s, tol, options, enrich)


def _swept(s: State, tol: float, options: Options, enrich: bool) -> Pass:
    seen, d = Pass(), len(s.x)
    a = s.a[0]
    for k in range(d):
        local = Local(s.xax[k], a[k], s.xax[k + 1])
        solution = _solved(s, k, local, tol, options, seen)
        if k == d - 1:
            s.x[k] = solution
            break
        u, carry = _cut(local, solution, tol, options.max_rank)
        if enrich:
            u, carry = _enriched(s, k, u, carry, seen)
        s.x[k] = u
        s.x[k + 1] = absorb(carry, s.x[k + 1])
        s.xax[k + 1] = left(s.xax[k], u, a[k], u)
        s.xb[k + 1] = left_overlap(s.xb[k], u, s.b[k])
        if enrich:
            s.zax[k + 1] = left(s.zax[k], s.z[k], a[k], u)
            s.zb[k + 1] = left_overlap(s.zb[k], s.z[k], s.b[k])
    return seen


def _projected(lefts: Array, b: Array, rights: Array) -> Array:
    """Projects one core of the right-hand side in an AMEn sweep between two interfaces."""
    return times_right(absorb(lefts, b), rights.T)


def _solved(s: State, k: int, local: Local, tol: float, options: Options, seen: Pass) -> Array:
    """Updates one core in an AMEn sweep: solves its local system; keeps the old core on failure."""
    x = s.x[k]
    residual = _projected(s.xb[k], s.b[k], s.xb[k + 1]) - local(x)
    norm = float(np.linalg.norm(residual))
    seen.residual = max(seen.residual, norm)
    # More accuracy than this is lost on a space that is about to grow.
    allowed = max(tol / 2, 0.01 * norm)
    step = np.zeros_like(x)
    if norm > allowed and x.size > options.direct:
        for preconditioner, limits in options.preconditioners:
            more, norm, count = gmres(local, residual, preconditioner(local), allowed, *limits)
            seen.iterations += count
            step = step + more
            if norm <= allowed:
                break
            residual = residual - local(more)
    if norm > allowed and x.size <= max(options.direct, options.rescued):
        step = step + solve_dense(local, residual, options.floor)
    return x + step if np.isfinite(step).all() else x


def _cut(local: Local, x: Array, tol: float, max_rank: float) -> tuple[Array, Array]:
    """Truncates a core in an AMEn sweep to the least rank that keeps the local residual.

    The columns of u are orthonormal.
    """
    q, r = left_qr(x)
    u, sigma, vh = linalg.svd(r)
    u = times_right(q, u)
    carry = sigma[:, None] * vh
    # Mostly few directions are cut: images of the last ones are made first, then of four times as
    # many, as long as all of them could go.
    rank, tail = len(sigma), _TAIL
    while rank > 1:
        first = max(len(sigma) - tail, 1)
        small = np.flatnonzero(_changes(local, u[..., first:], carry[first:]) <= tol**2)
        rank = first + int(small[0]) if small.size else rank
        if rank > first or first == 1:
            break
        tail *= 4
    rank = int(min(rank, max_rank))
    return u[..., :rank], carry[:rank]


def _changes(local: Local, u: Array, carry: Array) -> Array:
    """Computes by how much truncation to each rank changes the squared residual of an AMEn sweep.

    The images of the u_i cost half a product with B; their Gram matrix, weighted by that of the
    carry_i, gives all sums at once.
    """
    lefts, core, rights = local
    t = einsum("yax,xni,amnb->ymib", lefts, u, core)
    t = t.reshape(-1, t.shape[2] * t.shape[3])
    w = einsum("it,sbt->ibs", carry, rights).reshape(t.shape[1], -1)
    gram = (linalg.adjoint(t) @ t) * (w.conj() @ w.T)  # (i b, i b)
    pairs = gram.reshape(len(carry), -1, len(carry), core.shape[3]).sum((1, 3)).real
    return np.cumsum(np.cumsum(pairs[::-1, ::-1], 0), 1).diagonal()[::-1]


def _enriched(s: State, k: int, u: Array, carry: Array, seen: Pass) -> tuple[Array, Array]:
    """Enriches a basis in an AMEn sweep by directions of the residual; updates z."""
    a, b = s.a[0][k], s.b[k]
    x = times_right(u, carry)
    z = _projected(s.zb[k], b, s.zb[k + 1]) - apply_one(s.zax[k], a, s.zax[k + 1], x)
    extra = _projected(s.xb[k], b, s.zb[k + 1]) - apply_one(s.xax[k], a, s.zax[k + 1], x)
    seen.residual = max(seen.residual, *(float(np.linalg.norm(e)) for e in (z, extra)))
    if not np.linalg.norm(z) > 0:  # z has lost the residual: it must find it again
        z = np.random.default_rng(k).uniform(-1, 1, z.shape).astype(z.dtype)
    s.z[k] = left_qr(z)[0]
    q, r = linalg.qr(np.concatenate([tall(u), tall(extra)], 1))
    carry = r[:, : u.shape[-1]] @ carry
    return q.reshape(*u.shape[:2], -1), carry


def run(
    system: System,
    z: Cores,
    goal: float,
    options: Options,
    report: Report,
    measure: Measure,
    tol: float,
) -> Outcome:
    """Runs AMEn sweeps until the measured residual of the solution is at most ``tol``.

    It is measured once a pass has seen no residual above ``goal``: that is less than all there is,
    so its word is not enough.
    """
    s = start(system.a, system.b, system.x, z)
    best, status = system.first_guess(measure, options.max_rank), "max_sweeps"
    history: list[float] = []
    iterations = 0
    for count in range(1, options.max_sweeps + 1):
        seen = sweep(s, goal / math.sqrt(len(s.x)), options, enrich=True)
        s = s.mirrored()
        history.append(seen.residual)
        iterations += seen.iterations
        report(count, seen.residual, (1, *(c.shape[2] for c in s.x)))
        stuck = _stuck(history)
        if not (stuck or seen.residual <= goal or count == options.max_sweeps):
            continue
        found = min(_candidates(s, goal, options, count % 2 == 1, measure, tol), key=_first)
        best = min(best, found, key=_first)
        if best[0] <= tol:
            status = "converged"
        elif stuck:
            status = "stalled"
        if status != "max_sweeps":
            break
        # The passes see less than the whole residual: they are asked for as much less of it as
        # the measure found too much, tenfold at most.
        goal *= max(0.5 * tol / found[0], 0.1)
    return Outcome(best[1], best[0], status, len(history), iterations, tuple(history))


def is_singular(system: System, x: Cores, z: Cores, most: float, floor: float) -> bool:
    """Whether an AMEn sweep at the solution x would meet a nearly singular local matrix.

    Those of more than ``most`` unknowns are not looked at.
    """
    if most < 1:
        return False
    s = start(system.a, system.b, right_orthogonal(x, scale=False)[0], z)
    for k, core in enumerate(system.a):
        local = Local(s.xax[k], core, s.xax[k + 1])
        if s.x[k].size <= most:
            matrix = local.dense()
            if not np.isfinite(matrix).all():
                return False
            values = np.linalg.svd(matrix, compute_uv=False)
            if values[-1] < floor * values[0]:
                return True
        if k + 1 < len(s.x):
            q, r = left_qr(s.x[k])
            s.x[k + 1] = absorb(r, s.x[k + 1])
            s.xax[k + 1] = left(s.xax[k], q, core, q)
    return False


def _first(pair: tuple[float, Cores]) -> float:
    return pair[0]


def _stuck(history: list[float]) -> bool:
    if not math.isfinite(history[-1]):
        return True
    recent, before = history[-_PATIENCE:], history[:-_PATIENCE]
    return bool(before) and min(recent) >= 0.8 * min(before)


def _candidates(
    s: State,
    goal: float,
    options: Options,
    mirrored: bool,
    measure: Measure,
    tol: float,
) -> Iterator[tuple[float, Cores]]:
    """Yields AMEn's solutions after and before a sweep without enrichment, with residuals."""
    before = s.x
    sweep(s := s.copy(), goal / math.sqrt(len(s.x)), options, enrich=False)
    for x in (s.x, before):
        if max(map(len, x)) <= options.max_rank:
            x = _mirrored(x) if mirrored else x
            residual = measure(x)
            yield residual, x
            if residual <= tol:
                return


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
    options = Options(
        cap or math.inf, *limits[local], _local_preconditioners(preconditioner), sweeps
    )

    def search(system: System, tol: float, report: Report) -> Outcome:
        z = system.random(key, rank)
        out = run(system, z, tol, options, report, system.residual, tol)
        rest = sweeps - out.sweeps
        if rest > 0 and out.residual <= tol and not system.fits(out.x, tol):
            most = min(max(options.direct, options.rescued), _RESCUED)
            if is_singular(system, out.x, z, most, float(jnp.finfo(system.dtype).eps)):
                return _of_least_norm(system, z, tol, options._replace(direct=most), report, out)
            return out
        if out.status in ("converged", "max_sweeps") or rest < 1 or _final(system, out, cap):
            return out
        # Galerkin projections of A may be singular where A is not; those of Aᴴ A are not.
        normal = system.normal(out.x)
        again = run(
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
    system: System, z: Any, tol: float, options: Options, report: Report, out: Outcome
) -> Outcome:
    """Solves A x = b again by least norm, a fallback if AMEn's x is too large for its dtype.

    Where A is singular, roundoff of b in that dtype is divided by singular values of roundoff of
    double precision. What is below the roundoff of the data counts as zero here. Where no local
    system at the solution has such a singular value, this would find the same once more.
    """
    again = run(
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
) -> tuple[tuple[Preconditioner, tuple[int, int]], ...]:
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
