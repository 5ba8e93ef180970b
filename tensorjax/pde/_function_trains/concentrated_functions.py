"""Cross approximation of concentrated functions, from points drawn from a density near them.

`tt.cross` looks for a function with random entries of the whole grid, which in ten dimensions never
meet the peak of a density. Here the points are drawn from a density close to the function.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tensorjax._cores import orthogonalization, rounding
from tensorjax._cores.contractions import absorb
from tensorjax._cores.unfoldings import Cores


class Points(NamedTuple):
    """Random sample points of a localised function f, of density ∝ |f|^(2p), with p and density.

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
# (left (m, k), right (l, d − k)) ↦ values (m, l) at all pairs.
Table = Callable[[np.ndarray, np.ndarray], np.ndarray]
# Points drawn at first and at most, points that measure the error, entries computed at once.
_FIRST, _MOST, _HELD_OUT, _CHUNK = 128, 2048, 2000, 1 << 17
# Of the tolerance, what one attempt leaves to the choice of rows; the next one takes a tenth.
_SHARE = 0.1


def skeleton(
    f: Callable[[np.ndarray], np.ndarray],
    shape: Sequence[int],
    draw: Draw,
    tol: float,
    rng: np.random.Generator,
    table: Table | None = None,
) -> tuple[Cores, float]:
    """Approximates a localised function by a tensor train, from points drawn where it is large.

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
    """Builds a tensor train by interpolation at sample points; also tells if they are too few."""
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
    """Scales sampled columns of an unfolding by their norm^(−p), p from their sampling density."""
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
    """Selects rows of a matrix ``a`` by pivoting, and X with a ≈ X a[rows], for a tensor train."""
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
    """Evaluates the entries of a tensor train at multi-indices (m, d)."""
    return _state(cores, index)[:, 0]


def table_of(cores: Cores) -> Table:
    """Returns a function that evaluates a tensor train at all pairs of left and right indices."""
    mirrored = [c.transpose(2, 1, 0) for c in reversed(cores)]

    def table(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        states = _state(mirrored[: right.shape[1]], right[:, ::-1])
        return _state(cores[: left.shape[1]], left) @ states.T

    return table


def _state(cores: Cores, index: np.ndarray) -> np.ndarray:
    """Multiplies the first cores of a tensor train at given multi-indices: (m, r)."""
    state = cores[0][0, index[:, 0]]
    for core, i in zip(cores[1:], index.T[1:], strict=True):
        state = np.matmul(state[:, None], np.ascontiguousarray(core.transpose(1, 0, 2))[i])[:, 0]
    return state


def powers(tol: float, dim: int) -> tuple[float, ...]:
    """Returns the exponents p of the sampling densities |f|^(2p) for a localised function f.

    Their densities reach to where a Gaussian is ``tol`` of its peak.
    """
    # Of a density exp(−p |z|²), |z|² is d/(2p) on average, where f = exp(−|z|²/2) is tol.
    reach = min(max(2 * math.log(1 / tol) / dim, 1.0), 6.0)
    return 1.0, 0.5, 0.5 / reach


def from_train(cores: Cores, tol: float) -> Draw:
    """Returns a function that draws random multi-indices where a tensor train v is large.

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
