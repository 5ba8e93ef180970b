"""Integration at fixed ranks: one compiled loop, under jit, vmap and grad."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, tt
from tensorjax._cores import cut_ranks
from tensorjax._train import TT
from tensorjax.pde._checks import check_inside
from tensorjax.pde._maps import AffineMap
from tensorjax.pde._path import Moment, Path, told
from tensorjax.pde._solution import Result, Solution, State
from tensorjax.pde._statuses import Options
from tensorjax.pde._times import step_count

# Of every stage but the last its time and its step; then weights of v and the stages in the result.
_TABLEAUX = {
    "rk2": (((0.0, 1.0),), (1 / 2, 1 / 2), (1.0, 1 / 2)),
    "rk4": (((0.0, 0.5), (0.5, 0.5), (0.5, 1.0)), (-1 / 3, 1 / 3, 2 / 3, 1 / 3), (1.0, 1 / 6)),
}
_SHARES = (0.0, 0.5, 1.0)


def integrate_static(
    options: Options,
    rank: int | Sequence[int],
    t0: float,
    t1: float,
    dt: float,
    start: State | None,
    map: AffineMap,
) -> Solution:
    """What `integrate` does with ``rank``: steps of one length, every sum rounded to fixed ranks.

    Coordinates move as prescribed: their motion is a constant of the program, and no derivative
    passes through it. None is lost, for u does not depend on it.
    """
    if options.name not in _TABLEAUX:
        raise ValueError(
            f"method: expected one of {tuple(_TABLEAUX)} with rank=, got {options.name!r}; the "
            "others choose their ranks by the data: give tol alone"
        )
    count = step_count(t0, t1, dt)
    dt = (t1 - t0) / count
    maps, motions, end = _coordinates(options, map, t0, dt, count)
    v = _initial(options, start, map, rank)
    ranks = v.ranks[1:-1] or 1
    # At rest the map is a constant of the program, which terms need that are not traced.
    rest = None if any(np.any(m) for m in motions) else map

    def step(v: TT, now: Any) -> tuple[TT, Any]:
        t, here, moving = now
        coordinates = _Coordinates(here, moving, rest)
        new = _step(options.problem, v, t, dt, coordinates, ranks, options.name)
        norm = tt.norm(new)
        entries = [jnp.all(jnp.isfinite(c)) for c in new.cores]
        return new, (norm, jnp.isfinite(norm) & jnp.all(jnp.stack(entries)))

    real = jnp.finfo(v.dtype).dtype
    times = t0 + dt * np.arange(count)
    xs = jax.tree.map(lambda x: jnp.asarray(x, real), (times, maps, motions))
    v, (norms, finite) = jax.lax.scan(step, v, xs)
    good = _check.is_traced(finite) or bool(finite.all())
    stats = {
        "t": times + dt,
        "dt": np.full(count, dt),
        "norm": norms,
        "finite": finite,
        "cond": np.linalg.cond(maps[0][:, 0]),
        "ranks": np.tile(np.asarray(v.ranks[1:-1], int), (count, 1)),
        "rank": np.full(count, max(v.ranks)),
    }
    result = Result.successful if good else Result.not_finite
    message = "" if good else "NaN or Inf: try a smaller dt, or higher ranks"
    return Solution(np.array([t1]), [State(v, end, t1)], stats, result, message)


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
    """Γ, s and Σ, β at the beginning, middle and end of every step: (count, 3, …); the last map."""
    d, generator = options.problem.dim, options.generator
    maps, motions = [], []
    past: list[Moment] = []
    for k in range(count):
        t = t0 + k * dt
        if generator is not None:
            said = generator(None, None, at, options.problem.box, math.nan, t)
            past = [*past, Moment(t, said.sigma, said.beta)][-(options.degree + 2) :]
        path = Path(at, t, dt, told(past, options.degree))  # as `Run` does
        maps.append([path.map(s) for s in _SHARES])
        motions.append([path.motion(s) for s in _SHARES])
        at = path.map(1.0)
    rest = np.zeros((count, 3, d, d)), np.zeros((count, 3, d))
    moved = rest if generator is None else _stacked(motions)
    return _stacked(maps), moved, at


def _stacked(rows: Sequence[Sequence[Any]]) -> tuple[Any, Any]:
    first, second = (np.array([[pair[i] for pair in row] for row in rows]) for i in range(2))
    return first, second


class _Coordinates(NamedTuple):
    """Those of one step: Γ, s and Σ, β at `_SHARES`, or one map at rest."""

    maps: Any
    motions: Any
    rest: AffineMap | None

    def right_side(self, problem: Any, t: Any, i: int) -> Any:
        """At a share, with the motion."""
        if self.rest is not None:
            return problem.right_side(self.rest, t)
        right = problem.right_side(AffineMap(*(m[i] for m in self.maps)), t)
        return right.moving(*(m[i] for m in self.motions))


def _step(
    problem: Any,
    v: TT,
    t: Any,
    dt: float,
    coordinates: _Coordinates,
    ranks: Any,
    method: str,
) -> TT:
    stages, weights, (share, factor) = _TABLEAUX[method]

    def terms(x: TT, share: float) -> list[Any]:
        right = coordinates.right_side(problem, t + share * dt, _SHARES.index(share))
        if right.reaction is not None:
            raise ValueError(
                "rank: expected a problem without a nonlinear reaction, whose ranks depend on the "
                "data; give tol alone"
            )
        return right.terms(x)

    # As in `tensorjax.pde._steppers`: rounded stages stand for the slopes.
    known = [v]
    for at, length in stages:
        rate = terms(known[-1], at)
        sizes = [1.0, *[length * dt] * len(rate)]
        known.append(tt.linear_combination([v, *rate], sizes, rank=ranks))
    rate = terms(known[-1], share)
    sizes = [*weights, *[factor * dt] * len(rate)]
    return tt.linear_combination([*known, *rate], sizes, rank=ranks)
