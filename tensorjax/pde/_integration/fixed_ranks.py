"""Time integration at fixed TT-ranks: one compiled loop, under jit, vmap and grad.

Outside jit the loop is compiled once for a structure of the problem: coefficients, times, dt and
the number of steps are arguments of the program. Under jit, vmap and grad it is a scan, through
which derivatives pass.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, tt
from tensorjax._cores import interfaces
from tensorjax._cores.ranks import cut_ranks
from tensorjax._formats.trains import TT
from tensorjax.pde._arguments import hosted_cores
from tensorjax.pde._generators.inputs_and_motion import checked_motion
from tensorjax.pde._integration.error_estimates import bond_errors, grid_errors, looks
from tensorjax.pde._integration.failure_diagnosis import Options, unbounded_by
from tensorjax.pde._integration.initial_checks import check_inside
from tensorjax.pde._integration.solution import STATUSES, Result, Solution, State
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._maps.coordinate_path import Moment, Path, told
from tensorjax.pde._observables.edge_and_resolution import quadrature, shares_of
from tensorjax.pde._stepping.compiled_once import Program, separated
from tensorjax.pde._stepping.instability import rate, rounded_off
from tensorjax.pde._stepping.runge_kutta_adams_imex import (
    SAFE,
    SHARES,
    STABLE,
    TABLEAUX,
    Scheme,
    runge_kutta_step,
)
from tensorjax.pde._stepping.times import step_count

# Every 16th step is checked for instability, since a check costs a fifth of a step; and where v is
# kept, every step that multiplies the norm by more than 1.1. An unstable run stays unstable.
_LOOK, _GROWTH = 16, 1.1
# After an unstable run its fastest rate is estimated at 3 times, in 6 rounds of 3 steps each.
_PLACES, _ROUNDS, _PROBED = 3, 6, 3
# Largest number of steps in one call of the compiled loop, whose tables have this length.
_PART = 256


class _Inputs(NamedTuple):
    """Array arguments of a compiled fixed-rank TT time loop that are the same for all steps."""

    constants: Any
    dt: Any
    axes: Any
    looks: Any
    limits: Any


class _Carry(NamedTuple):
    """Loop state of a compiled fixed-rank TT integration: train v, norm, status, fastest rate.

    Attributes:
      v: the newest.
      norm: of it.
      status: the worst so far, an index of `STATUSES`.
      fastest: the largest dt times a rate that was found to be unstable, 0 without.
      good: v of the last step that was looked at before anything was wrong, or None where that is
        not kept.
      steps: number of steps that led to ``good``.
      errors: estimated so far: of every axis, of every bond, and of the steps so far.
    """

    v: TT
    norm: Any
    status: Any
    fastest: Any
    good: TT | None
    steps: Any
    errors: Any


def integrate_static(
    options: Options,
    rank: int | Sequence[int],
    t0: float,
    t1: float,
    dt: float,
    start: State | None,
    map: AffineMap,
) -> Solution:
    """Integrates a PDE at fixed TT-ranks with constant time steps (`integrate` with ``rank``).

    Coordinates move as prescribed: their motion is no variable of the program, and no derivative
    passes through it. None is lost, for u does not depend on it.
    """
    if options.name not in TABLEAUX:
        raise ValueError(
            f"method: expected one of {tuple(TABLEAUX)} with rank=, got {options.name!r}; the "
            "others choose their ranks by the data: give tol alone"
        )
    if t1 == t0:
        return _unmoved(_initial(options, start, map, rank), map, t0)
    count = step_count(t0, t1, dt)
    dt = (t1 - t0) / count
    maps, motions, end = _coordinates(options, map, t0, dt, count)
    v = _initial(options, start, map, rank)
    times = t0 + dt * np.arange(count)
    scheme, inputs, rows = _prepared(options, map, v, dt, (times, *maps, *motions))
    real = jnp.finfo(v.dtype).dtype
    nothing, errors = jnp.zeros((), jnp.int32), jnp.zeros(2 * v.order, real)
    carry = _Carry(v, tt.norm(v), nothing, jnp.zeros((), real), None, nothing, errors)
    if _check.is_traced(v, inputs.constants):
        carry, norms, finite = _whole(scheme, inputs, carry, rows)
        steps = count
    else:
        carry, norms, finite = _concrete(scheme, inputs, carry, rows)
        steps = int(carry.steps) if int(carry.status) else count
    ended, at = t1, end
    if steps < count:
        ended, at = times[steps], AffineMap(*(m[steps, 0] for m in maps))
    over = carry.errors[v.order + _alone(v)] > options.accuracy
    bounded = jnp.where(jnp.any(over), STATUSES.index(Result.inaccurate), 0)
    carry = carry._replace(status=jnp.maximum(carry.status, bounded.astype(carry.status.dtype)))
    stats = {
        "t": times + dt,
        "dt": np.full(count, dt),
        "norm": norms,
        "finite": finite,
        "cond": np.linalg.cond(maps[0][:, 0]),
        "ranks": np.tile(np.asarray(v.ranks[1:-1], int), (count, 1)),
        "rank": np.full(count, max(v.ranks)),
        **_statistics(carry, options.name, dt),
    }
    return Solution(np.array([ended]), [State(carry.v, at, float(ended))], stats, None)


def _prepared(
    options: Options, map: AffineMap, v: TT, dt: float, tables: Sequence[np.ndarray]
) -> tuple[Scheme, _Inputs, list[Any]]:
    """Traces the right side of a fixed-rank run; returns what its compiled loop takes.

    Args:
      options: of the run.
      map: coordinates at the start.
      v: state at the start.
      dt: time step.
      tables: times, and maps and motions of the coordinates, one row a step.
    """
    real, box = jnp.finfo(v.dtype).dtype, options.problem.box
    # At rest the map is a constant of the program, which terms need that are not traced.
    moving = any(np.any(m) for m in tables[3:])
    rows: list[Any] = [np.asarray(r, real) for r in tables[: None if moving else 1]]
    rates, constants, varies = _rates(options.problem, map, [r[0] for r in rows])
    due = np.arange(1, len(rows[0]) + 1) % _LOOK == 0
    due[-1] = True
    limits = options.edge_limit, options.resolution_limit, options.accuracy
    inputs = _Inputs(constants, *jax.tree.map(
        lambda x: jnp.asarray(x, real), (dt, quadrature(box), looks(box, varies), limits)
    ))  # fmt: skip
    return Scheme(rates, options.name, v.ranks[1:-1] or 1), inputs, [due, *rows]


def _statistics(carry: _Carry, method: str, dt: float) -> dict[str, Any]:
    """Returns status, stable step and estimated errors at the end of a fixed-rank run."""
    order = carry.v.order
    fastest = carry.fastest if _check.is_traced(carry.fastest) else np.asarray(carry.fastest)
    with np.errstate(divide="ignore"):  # infinite where no step was unstable
        # Close to the stability limit rounding errors look unstable: a margin is kept.
        stable_dt = 0.75 * SAFE * min(STABLE[method]) * dt / fastest
    return {
        "coarse": carry.errors[:order],
        "rank_error": carry.errors[order:-1],
        "time_error": carry.errors[-1],
        "status": carry.status,
        "stable_dt": stable_dt,
    }


def _unmoved(v: TT, map: AffineMap, t: float) -> Solution:
    """Returns the solution of a fixed-rank integration over a time span of zero."""
    names = ("t", "dt", "norm", "finite", "cond", "rank")
    stats: dict[str, Any] = {name: np.zeros(0) for name in names}
    stats |= {"ranks": np.zeros((0, v.order - 1), int), "stable_dt": np.inf}
    stats |= {"coarse": np.zeros(v.order), "rank_error": np.zeros(v.order - 1), "time_error": 0.0}
    stats["status"] = jnp.zeros((), jnp.int32)
    return Solution(np.array([t]), [State(v, map, t)], stats, None)


def _rates(problem: Any, map: AffineMap, row: Sequence[Any]) -> tuple[Program, Any, bool]:
    """Traces a PDE's right side for the fixed-rank loop, as a function of time, map and motion.

    Returns:
      The program, its constants, and whether drift or noise are other than affine.
    """
    varies = False

    def rates(t: Any, *place: Any) -> Any:
        nonlocal varies
        right = problem.right_side(AffineMap(*place[:2]) if place else map, t)
        if right.reaction is not None:
            raise ValueError(
                "rank: expected a problem without a nonlinear reaction, whose ranks depend on the "
                "data; give tol alone"
            )
        varies = bool(right.others)
        right = right.moving(*place[2:]) if place else right
        return right.operators, right.source

    program, constants = separated(rates, *(r if r.ndim == 0 else r[0] for r in row))
    return program, constants, varies


@jax.jit(static_argnums=0)
def _whole(scheme: Scheme, inputs: _Inputs, carry: _Carry, rows: Any) -> tuple[_Carry, Any, Any]:
    """Runs all time steps of a fixed-rank integration in one scan; returns NaN if unstable."""
    carry, (norms, finite) = jax.lax.scan(
        lambda c, row: _followed(scheme, inputs, c, 0, row), carry, rows
    )
    lost = carry.status >= STATUSES.index(Result.cfl)
    first, *others = carry.v.cores
    v = TT._unchecked((jnp.where(lost, jnp.nan, first), *others))
    return carry._replace(v=v), norms, finite


def _concrete(
    scheme: Scheme, inputs: _Inputs, carry: _Carry, rows: Sequence[Any]
) -> tuple[_Carry, Any, Any]:
    """Runs a fixed-rank integration outside jit; a failed one ends early."""
    inputs, carry = _placed(inputs, carry._replace(good=carry.v))
    carry, norms, finite = _in_parts(scheme, inputs, carry, rows)
    if int(carry.status) in (STATUSES.index(Result.cfl), STATUSES.index(Result.not_finite)):
        carry = _judged(scheme, inputs, carry, rows)
    if int(carry.status):
        assert carry.good is not None
        carry = carry._replace(v=carry.good)
    return carry, norms, finite


def _placed(inputs: _Inputs, carry: _Carry) -> tuple[_Inputs, _Carry]:
    """Moves the arguments of a compiled fixed-rank loop to the device of v."""
    assert carry.good is not None
    at = carry.good.cores[0].sharding
    one = isinstance(at, jax.sharding.SingleDeviceSharding)
    return jax.device_put((inputs, carry), at) if one else (inputs, carry)


def _in_parts(
    scheme: Scheme, inputs: _Inputs, carry: _Carry, rows: Sequence[Any]
) -> tuple[_Carry, Any, Any]:
    """Runs the time steps of a fixed-rank integration in blocks of 256; stops after NaN or Inf."""
    count = len(rows[0])
    norms, finite = np.full(count, np.nan, carry.norm.dtype), np.zeros(count, bool)
    for first in range(0, count, _PART):
        part = [r[first : first + _PART] for r in rows]
        long = len(part[0])
        part = [np.concatenate([p, np.repeat(p[-1:], _PART - long, 0)]) for p in part]
        carry, *found = _part(scheme, inputs, carry, part, first, long)
        here = slice(first, first + long)
        norms[here], finite[here] = (np.asarray(f)[:long] for f in found)
        if not finite[first + long - 1]:
            break
    return carry, norms, finite


@jax.jit(static_argnums=0)
def _part(
    scheme: Scheme, inputs: _Inputs, carry: _Carry, rows: Any, first: Any, count: Any
) -> tuple[_Carry, Any, Any]:
    """Runs up to 256 fixed-rank time steps in a compiled loop; returns state, norms, finiteness."""

    def goes_on(state: Any) -> Any:
        k, carry, _, _ = state
        return (k < count) & (carry.status < STATUSES.index(Result.not_finite))

    def step(state: Any) -> Any:
        k, carry, norms, finite = state
        new, (norm, good) = _followed(scheme, inputs, carry, first + k, [r[k] for r in rows])
        return k + 1, new, norms.at[k].set(norm), finite.at[k].set(good)

    norms = jnp.full(_PART, jnp.nan, carry.norm.dtype)
    start = jnp.zeros((), jnp.int32), carry, norms, jnp.zeros(_PART, bool)
    return jax.lax.while_loop(goes_on, step, start)[1:]


def _judged(scheme: Scheme, inputs: _Inputs, carry: _Carry, rows: Sequence[Any]) -> _Carry:
    """Revises the status of a fixed-rank run that looked unstable, by a better rate estimate.

    Where the method admits that rate, what looked unstable is what rounding to the ranks leaves of
    a state that the grid does not resolve.
    """
    fastest, zero = _fastest(scheme, inputs, carry, rows), np.zeros((), carry.fastest.dtype)
    if int(carry.status) == STATUSES.index(Result.cfl) and 0 < fastest < min(STABLE[scheme.method]):
        coarse = np.asarray(STATUSES.index(Result.unresolved), carry.status.dtype)
        return carry._replace(status=jax.device_put(coarse), fastest=jax.device_put(zero))
    known = np.asarray(fastest or float(carry.fastest), carry.fastest.dtype)
    return carry._replace(fastest=jax.device_put(known))


def _fastest(scheme: Scheme, inputs: _Inputs, carry: _Carry, rows: Sequence[Any]) -> float:
    """Estimates the fastest rate of an unstable fixed-rank run, times dt, by power iteration.

    The steps of a run show rates from below, for what is fastest grew in few of them. Steps of a
    larger dt, from the last state and with its norm taken out, are a power iteration: they are
    repeated, by the program of the run, at several times of it. 0 if they show none.
    """
    v = _of_norm_one(carry.v)[0]
    if v is None and carry.good is not None:
        v = _of_norm_one(carry.good)[0]
    fastest, border = 0.0, max(STABLE[scheme.method])
    tried, order = float(carry.fastest) or border, len(TABLEAUX[scheme.method][0]) + 1
    zero = np.zeros((), carry.fastest.dtype)
    carry = carry._replace(norm=zero + 1, status=np.zeros((), carry.status.dtype), fastest=zero)
    places = np.unique(np.linspace(0, len(rows[0]) - 1, _PLACES).astype(int))
    for at in np.repeat(places, _ROUNDS):
        if v is None:
            break
        # At twice the stability limit the fastest mode grows most, and nothing overflows.
        more = 2 * border / tried
        part = [np.repeat(r[at : at + 1], _PART, 0) for r in rows]
        part[0][:] = True
        dt = np.asarray(float(inputs.dt) * more, inputs.dt.dtype)
        placed = _placed(inputs._replace(dt=dt), carry._replace(v=v))
        now, *_ = _part(scheme, *placed, part, 0, _PROBED)
        found = float(now.fastest) / more
        fastest = max(fastest, found) if math.isfinite(found) else fastest
        next_v, size = _of_norm_one(now.v)
        if next_v is None:  # there is something faster by far
            tried = 8 * max(fastest, tried)
            continue
        # What grows so fast in a step has about this rate, though its stages may not show it: of a
        # large dt λ the method makes (dt λ)^order / order!, the last term of its polynomial.
        rate = (math.factorial(order) * size ** (1 / _PROBED)) ** (1 / order) / more
        v, tried = next_v, max(fastest, rate, tried / 2)
    return fastest


def _of_norm_one(v: TT) -> tuple[TT | None, float]:
    """Scales the train of a fixed-rank run to norm one; None for it if zero or not finite."""
    cores = hosted_cores(v)
    state = np.ones((1, 1))
    with np.errstate(over="ignore", invalid="ignore"):
        for c in cores:
            state = interfaces.left_overlap(state, c, c)
        size = math.sqrt(abs(float(state[0, 0])))
    if not 0 < size < math.inf:
        return None, size
    cores[0] = cores[0] / size
    return TT._unchecked(tuple(c.astype(v.dtype) for c in cores)), size


def _followed(
    scheme: Scheme, inputs: _Inputs, carry: _Carry, k: Any, row: Any
) -> tuple[_Carry, tuple[Any, Any]]:
    """Performs step k of a fixed-rank time loop; updates norm, status and last good state."""
    due, *row = row
    look = due
    trains, change, parts = runge_kutta_step(scheme, inputs.constants, inputs.dt, carry.v, row)
    new = trains[-1]
    norm = tt.norm(new)
    entries = [jnp.all(jnp.isfinite(c)) for c in new.cores]
    finite = jnp.isfinite(norm) & jnp.all(jnp.stack(entries))
    size = jax.lax.stop_gradient(norm)
    if carry.good is not None:  # not where it may be mapped: both sides would be worked out
        look = look | (size > _GROWTH * carry.norm)
    seen = jax.lax.stop_gradient((trains, change, norm, parts if len(_alone(new)) else None))
    # Steps that are looked at because the norm grows are counted by the one that is due.
    before, count = jax.lax.stop_gradient(carry.errors), jnp.where(due, _LOOK, 0)
    zeros = jnp.zeros((), jnp.int32), jnp.zeros_like(carry.fastest), before
    found, fast, errors = jax.lax.cond(
        look, lambda: _watched(scheme, inputs, *seen, before, count), lambda: zeros
    )
    worst = jnp.where(finite, found, STATUSES.index(Result.not_finite))
    status = jnp.maximum(carry.status, worst)
    good, steps = carry.good, carry.steps
    if good is not None:
        fine = look & (status == 0)
        good, steps = jax.tree.map(lambda a, b: jnp.where(fine, a, b), (new, k + 1), (good, steps))
    fastest = jnp.maximum(carry.fastest, fast)
    return _Carry(new, size, status, fastest, good, steps, errors), (norm, finite)


def _alone(v: TT) -> np.ndarray:
    """Returns the bonds of a fixed-rank train that have TT-rank one, counted from 0."""
    return np.flatnonzero(np.array(v.ranks[1:-1]) == 1)


def _watched(
    scheme: Scheme,
    inputs: _Inputs,
    trains: Sequence[TT],
    change: Any,
    norm: Any,
    parts: Any,
    errors: Any,
    count: Any,
) -> tuple[Any, Any, Any]:
    """Checks a fixed-rank time step: returns status, dt times fastest rate if unstable, errors.

    Of ``count`` steps up to this one the error of each is taken for that of this one.
    """
    found = rate(scheme.method, trains, change)
    cores = tt.scale(trains[-1], 1 / jnp.where(norm > 0, norm, 1)).cores
    *limits, allowed = inputs.limits
    outside, coarse = unbounded_by(*shares_of(jnp, cores, inputs.axes), *limits)
    grid, bonds = grid_errors(jnp, cores, inputs.looks).coarse, bond_errors(jnp, cores)
    # Of ranks of one, whose singular values tell nothing, what rounding takes adds up.
    alone, bonds = _alone(trains[-1]), bonds.astype(errors.dtype)
    if parts is not None:
        taken = count * jnp.nan_to_num(
            rounded_off(parts[0], parts[1], (alone + 1).tolist()), nan=1.0
        )
        sums = errors[len(grid) + alone] + taken.astype(errors.dtype)
        bonds = bonds.at[alone].set(jnp.minimum(sums, 1))
    late = errors[-1] + count * jnp.minimum(jnp.nan_to_num(found.error, nan=1.0), 1)
    here = jnp.concatenate([grid, bonds]).astype(errors.dtype)
    errors = jnp.append(jnp.maximum(errors[:-1], here), late.astype(errors.dtype))
    results = Result.cfl, Result.unresolved, Result.edge_mass, Result.inaccurate
    # Those sums are upper bounds, which the end of the run looks at.
    known = np.delete(np.arange(len(errors)), len(grid) + alone)
    cases = found.unstable, coarse, outside, jnp.max(errors[known]) > allowed
    status = jnp.select(cases, [STATUSES.index(r) for r in results], 0).astype(jnp.int32)
    fast = jnp.where(found.unstable, found.value, 0)
    return status, fast.astype(inputs.dt.dtype), errors


def _initial(
    options: Options, start: State | None, map: AffineMap, rank: int | Sequence[int]
) -> TT:
    problem = options.problem
    modes = problem.box.shape
    wanted = _check.bond_ranks(rank, [2**30] * (len(modes) - 1))
    ranks = cut_ranks((1, *wanted, 1), modes)[1:-1]
    if start is None:
        cores = problem.initial_cores(map, options.tol)
        check_inside(problem, cores, map, options.edge_limit, options.resolution_limit)
        v = TT._unchecked(tuple(jnp.asarray(c) for c in cores))
    else:
        v = start.v
    if any(r > w for r, w in zip(v.ranks[1:-1], ranks, strict=True)):
        v = tt.round(v, rank=ranks)
    return tt.pad(v, ranks) if ranks else v


def _coordinates(
    options: Options, at: AffineMap, t0: float, dt: float, count: int
) -> tuple[Any, Any, AffineMap]:
    """Computes coordinate maps and motions for a fixed-rank run, at three times of every step."""
    d, generator = options.problem.dim, options.generator
    maps, motions = [], []
    past: list[Moment] = []
    for k in range(count):
        t = t0 + k * dt
        if generator is not None:
            said = generator(None, None, at, options.problem.box, math.nan, t)
            moment = Moment(t, *checked_motion(said, options.problem.box))
            past = [*past, moment][-(options.degree + 2) :]
        path = Path(at, t, dt, told(past, options.degree))  # as `Run` does
        maps.append([path.map(s) for s in SHARES])
        motions.append([path.motion(s) for s in SHARES])
        at = path.map(1.0)
    rest = np.zeros((count, 3, d, d)), np.zeros((count, 3, d))
    moved = rest if generator is None else _stacked(motions)
    return _stacked(maps), moved, at


def _stacked(rows: Sequence[Sequence[Any]]) -> tuple[Any, Any]:
    first, second = (np.array([[pair[i] for pair in row] for row in rows]) for i in range(2))
    return first, second
