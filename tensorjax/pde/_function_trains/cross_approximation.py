"""Approximation of functions on a box by tensor trains, from their values at selected points.

`crossed` takes `tt.cross`, which looks for a function with random entries of the whole grid. In ten
dimensions these never meet the peak of a density: for a function that is concentrated `drawn` and
`entrywise` take points drawn from a density close to it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tensorjax import _check, tt
from tensorjax._cores import orthogonalization, products, rounding
from tensorjax._cores.contractions import absorb, times_slices
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax.pde._arguments import hosted_cores

# (left (m, k), right (l, d − k)) ↦ values (m, l) at all pairs.
Table = Callable[[np.ndarray, np.ndarray], np.ndarray]
# Points drawn at first and at most, points that measure the error, entries computed at once.
_FIRST, _MOST, _HELD_OUT, _CHUNK = 128, 2048, 2000, 1 << 17
# Of the tolerance, what one attempt leaves to the choice of rows; the next one takes a tenth.
_SHARE = 0.1


class Points(NamedTuple):
    """Random sample points for the cross approximation of a localised function f, with density.

    Attributes:
      index: multi-indices (m, d).
      density: (m,), of the mixture, but for a factor.
      power: (m,), of the density that a point was drawn from.
    """

    index: np.ndarray
    density: np.ndarray
    power: np.ndarray


# (rng, count) ↦ at most ``count`` points.
Draw = Callable[[np.random.Generator, int], Points]


def skeleton(
    f: Callable[[np.ndarray], np.ndarray],
    shape: Sequence[int],
    draw: Draw,
    tol: float,
    rng: np.random.Generator,
    table: Table | None = None,
) -> tuple[Cores, float]:
    """Approximates a localised function by cross approximation, from points where it is large.

    Axis after axis, rows (α, i) of the unfolding, at the columns that points drawn beyond it make,
    are interpolated from a few of them, chosen by pivoted orthogonalisation: an interpolative
    decomposition with sampled columns. A column b is given the weight |b|^(−p), as an integral by
    points of density |b|^(2p) wants it: p = 1 is the best for most of ‖f‖, powers below one find
    the tails that a low tolerance needs. More points are drawn, and the tolerance is lowered, until
    the error at others is below ``tol``; the best train is returned, rounded.

    Args:
      f: maps multi-indices (m, d) to values (m,).
      shape: mode sizes.
      draw: points where f is large.
      tol: relative error.
      rng: for the points.
      table: f at all pairs of parts of multi-indices, where that is faster.
    """
    table = table or _table(f)
    index, density, _ = draw(rng, _HELD_OUT)
    exact = f(index)
    weight = 1 / np.maximum(density, 1e-300)
    whole = float(weight @ exact**2)
    best, least = [np.zeros((1, n, 1)) for n in shape], 0.0 if whole == 0 else math.inf
    count, share = _FIRST, _SHARE
    while least > tol and count <= _MOST:
        cores, short = _interpolated(table, shape, draw(rng, count), share * tol)
        cores = rounding.rounded(cores, tol / 2)
        found = math.sqrt(weight @ (entries(cores, index) - exact) ** 2 / whole)
        if found < least:
            best, least = cores, found
        count, share = 2 * count, share if short else share / 10
    return best, least


def _interpolated(
    table: Table, shape: Sequence[int], points: Points, tol: float
) -> tuple[Cores, bool]:
    """Builds a train by cross approximation from sample points; also tells if they are too few."""
    part = tol / max(len(shape) - 1, 1) ** 0.5
    left, cores, short = np.zeros((1, 0), int), [], False
    for k, n in enumerate(shape[:-1]):
        right, first = np.unique(points.index[:, k + 1 :], axis=0, return_index=True)
        rows = np.concatenate([np.repeat(left, n, 0), np.tile(np.arange(n), len(left))[:, None]], 1)
        values = table(rows, right)
        chosen, factors = _rows(_weighted(values, points.power[first]), part)
        short |= 2 * len(chosen) > len(right) and len(right) < math.prod(shape[k + 1 :])
        cores.append(factors.reshape(len(left), n, -1))
        left = rows[chosen]
    last = table(left, np.arange(shape[-1])[:, None])
    return [*cores, last[:, :, None]], short


def _weighted(columns: np.ndarray, power: np.ndarray) -> np.ndarray:
    """Scales sampled columns of an unfolding by their norm^(−p), for cross approximation."""
    size = np.linalg.norm(columns, axis=0)
    columns, power, size = columns[:, size > 0], power[size > 0], size[size > 0]
    for p in np.unique(power):
        here = power == p
        columns[:, here] *= size[here] ** -p / np.sqrt(np.mean(size[here] ** (2 - 2 * p)))
    return columns


def _table(f: Callable[[np.ndarray], np.ndarray]) -> Table:
    def table(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        out = np.empty((len(left), len(right)))
        step = max(1, _CHUNK // len(right))
        for i in range(0, len(left), step):
            part = left[i : i + step]
            pairs = np.repeat(part, len(right), 0), np.tile(right, (len(part), 1))
            out[i : i + step] = f(np.concatenate(pairs, 1)).reshape(len(part), -1)
        return out

    return table


def _rows(a: np.ndarray, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """Selects rows of a matrix ``a`` by pivoting, X with a ≈ X a[rows], for cross approximation."""
    rest = a.copy()
    most = min(a.shape)
    whole = float(np.sum(np.square(a)))
    basis, chosen = np.zeros((most, a.shape[1])), []
    for r in range(most):
        sizes = np.vecdot(rest, rest)
        if sizes.sum() <= tol**2 * whole:
            break
        j = int(sizes.argmax())
        # Orthogonalised a second time, for cancellation leaves the residual its roundoff over its
        # size; twice is enough (Kahan, in Parlett, "The Symmetric Eigenvalue Problem", 6.9).
        q = rest[j] - basis[:r].T @ (basis[:r] @ rest[j])
        basis[r] = q / np.linalg.norm(q)
        rest -= np.outer(rest @ basis[r], basis[r])
        chosen.append(j)
    if not chosen:  # no column is left: anything will do
        return np.zeros(1, int), np.zeros((len(a), 1))
    right = a @ basis[: len(chosen)].T  # a ≈ right basis
    picked = np.asarray(chosen)
    return picked, np.linalg.solve(right[picked].T, right.T).T


def entries(cores: Cores, index: np.ndarray) -> np.ndarray:
    """Evaluates the entries of a train at multi-indices (m, d), for cross approximation."""
    return _state(cores, index)[:, 0]


def table_of(cores: Cores) -> Table:
    """Returns a function that evaluates a train at pairs of indices, for cross approximation."""
    mirrored = [c.transpose(2, 1, 0) for c in reversed(cores)]

    def table(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        states = _state(mirrored[: right.shape[1]], right[:, ::-1])
        return _state(cores[: left.shape[1]], left) @ states.T

    return table


def _state(cores: Cores, index: np.ndarray) -> np.ndarray:
    """Multiplies cores at sampled multi-indices, for cross approximation: (m, r)."""
    state = cores[0][0, index[:, 0]]
    for core, i in zip(cores[1:], index.T[1:], strict=True):
        state = times_slices(state, core, i)
    return state


def powers(tol: float, dim: int) -> tuple[float, ...]:
    """Returns exponents p of sampling densities |f|^(2p), for the cross approximation of f.

    Their densities reach to where a Gaussian is ``tol`` of its peak.
    """
    # Of a density exp(−p |z|²), |z|² is d/(2p) on average, where f = exp(−|z|²/2) is tol.
    reach = min(max(2 * math.log(1 / tol) / dim, 1.0), 6.0)
    return 1.0, 0.5, 0.5 / reach


def from_train(cores: Cores, tol: float) -> Draw:
    """Returns a function that draws indices where a train is large, for cross approximation.

    It is exact for p = 1; else the density is taken axis by axis.
    """
    cores, _ = orthogonalization.right_orthogonal(cores)
    kinds = np.asarray(powers(tol, len(cores)))

    def draw(rng: np.random.Generator, count: int) -> Points:
        power = kinds[np.arange(count) % len(kinds)]
        state, index, logs = np.ones((count, 1)), [], np.zeros((len(kinds), count))
        for core in cores:
            new = absorb(state, core)  # (m, n, s)
            share = np.square(new).sum(2)
            share = np.maximum(share / share.sum(1, keepdims=True), 1e-300)
            chances = np.cumsum(share ** power[:, None], axis=1)
            at = rng.uniform(size=count) * chances[:, -1]
            i = np.minimum((chances < at[:, None]).sum(1), core.shape[1] - 1)
            here = share[np.arange(count), i]
            for log, p in zip(logs, kinds, strict=True):
                log += p * np.log(here) - np.log(np.sum(share**p, axis=1))
            state = new[np.arange(count), i] / np.sqrt(np.square(new).sum((1, 2)) * here)[:, None]
            index.append(i)
        return Points(np.stack(index, 1), np.exp(logs).sum(0), power)

    return draw


def crossed(
    name: str,
    f: Callable[[Any], Any],
    points: Sequence[np.ndarray],
    tol: float,
    seed: int = 0,
    max_rank: int | None = None,
) -> Cores:
    """Approximates a function by a train, by TT-cross from values at grid points of d axes."""
    if len(points) == 1:  # all values are asked for, and have no ranks
        values = _finite(name, f(points[0][:, None]))
        flat = values.reshape(len(values), -1)
        return [flat[None], *([np.eye(flat.shape[1])[:, :, None]] if values.ndim > 1 else [])]
    # Cross approximation takes half of it for its search, which has to be 10 eps or more.
    tol = max(tol, 20 * float(np.finfo(jax.dtypes.canonicalize_dtype(float)).eps))
    key = jax.random.key(seed)
    shape = tuple(map(len, points))
    train, info = tt.cross(f, shape, tol=tol, key=key, max_rank=max_rank, grid=points, jit=False)
    # A field that is zero wherever it was looked at may well be zero; a density may not.
    zero = info.status == "zero" and name != "start"
    if info.status != "converged" and not (zero or info.error <= 10 * tol):
        raise ValueError(
            f"{name}: expected a function of low TT-ranks, got a relative error of "
            f"{info.error:.1g} for tol = {tol:.1g} ({info.status}); {info.advice}; for a narrow "
            "function give near=, a density that is large where it is"
        )
    return hosted_cores(train)


def drawn(
    name: str,
    f: Callable[[Any], Any],
    points: Sequence[np.ndarray],
    tol: float,
    draw: Draw,
    seed: int = 0,
) -> Cores:
    """Approximates a function on a grid by a train, by cross approximation from random points."""

    def of_index(index: np.ndarray) -> np.ndarray:
        pairs = zip(points, index.T, strict=True)
        return _finite(name, f(np.stack([p[i] for p, i in pairs], 1)))

    return _by_draws(name, of_index, [len(p) for p in points], tol, draw, seed)


def entrywise(f: Callable[[Any], Any], v: TT, tol: float) -> Cores:
    """Approximates f(v), entry by entry of a train v, by cross approximation from entries."""
    cores, name = hosted_cores(v), "reaction"
    if len(cores) == 1:  # all entries are there, and have no ranks
        return [_finite(name, f(cores[0].ravel())).reshape(cores[0].shape)]
    rest = float(_finite(name, f(np.zeros(1)))[0])

    def of_values(values: np.ndarray) -> np.ndarray:
        return _finite(name, f(values.ravel())).reshape(values.shape) - rest

    pairs = table_of(cores)
    out = _by_draws(
        name,
        lambda index: of_values(entries(cores, index)),
        v.shape,
        tol,
        from_train(cores, tol),
        table=lambda left, right: of_values(pairs(left, right)),
    )
    ones = [np.ones((1, n, 1)) for n in v.shape]
    return products.combined([out, ones], [1.0, rest]) if rest else out


def _by_draws(
    name: str, f: Any, shape: Any, tol: float, draw: Draw, seed: int = 0, table: Any = None
) -> Cores:
    cores, error = skeleton(f, shape, draw, tol, np.random.default_rng(seed), table)
    if not error <= 10 * tol:
        raise ValueError(
            f"{name}: expected a function of low TT-ranks, got a relative error of {error:.1g} for "
            f"tol = {tol:.1g}; ask for less accuracy, or choose coordinates that suit it"
        )
    return cores


def _finite(name: str, values: Any) -> np.ndarray:
    values = np.asarray(values, np.float64)
    _check.finite(name, values)
    return values
