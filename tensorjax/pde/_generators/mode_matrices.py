"""Grid values weighted for the L² norm, and TT-matrix cores factored into few mode matrices."""

import functools
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._arguments import hosted_cores
from tensorjax.pde._generators.tangent_normal_factors import Link

# Rows at which the blocks of an operator's core are compared.
_ROWS = 12


class Modes(NamedTuple):
    """Grid points and ∂ of every axis, weighted so that Euclidean norms are L² norms.

    Attributes:
      points: y of every axis.
      d1: ∂ of every axis.
      root: square roots of the quadrature weights, up to a factor; None where they are all equal.
    """

    points: list[np.ndarray]
    d1: list[np.ndarray]
    root: list[np.ndarray] | None

    def pair(self, k: int, core: np.ndarray) -> np.ndarray:
        """Applies ∂ and y to the mode of core k of a tensor train, (2, r, n, s)."""
        return np.stack([self.d1[k] @ core, self.points[k][:, None] * core])

    def weighted(self, cores: Cores) -> Cores:
        """Multiplies a tensor train's grid values by the square roots of the quadrature weights."""
        if self.root is None:
            return cores
        return [w[:, None] * c for w, c in zip(self.root, cores, strict=True)]

    def values(self, cores: Cores) -> Cores:
        """Divides a tensor train by the square roots of the quadrature weights."""
        if self.root is None:
            return cores
        return [c / w[:, None] for w, c in zip(self.root, cores, strict=True)]

    def matrices(self, k: int, o: np.ndarray) -> np.ndarray:
        """Converts operators on grid values along axis k to operators on L²-weighted values."""
        return o if self.root is None else self.root[k][:, None] * o / self.root[k]


@functools.lru_cache(maxsize=32)
def modes_of(box: Any) -> Modes:
    """Builds the `Modes` of a grid: points and derivative matrices of its axes, L²-weighted."""
    points = [np.asarray(a.points) for a in box.axes]
    d1 = [np.asarray(a.d1) for a in box.axes]
    root = [np.sqrt(a.weights / np.mean(a.weights)) for a in box.axes]
    if all(np.allclose(w, 1, rtol=1e-12, atol=0) for w in root):
        return Modes(points, d1, None)
    return Modes(points, [w[:, None] * d / w for w, d in zip(root, d1, strict=True)], root)


def links_of(operator: Any, modes: Modes) -> list[Link]:
    """Factors the cores of a TT-matrix as Σ_t K_t ⊗ O_t, bond matrices times few mode matrices."""
    pairs = [_factored(c) for c in hosted_cores(operator)]
    return [(k, modes.matrices(i, o)) for i, (k, o) in enumerate(pairs)]


def _factored(core: np.ndarray) -> Link:
    """Factors a TT-matrix core (r, n, n, s) as Σ_t K_t ⊗ O_t, with few mode matrices O_t (n, n).

    The blocks of a differential operator's core are combinations of a few matrices. Those are found
    among the blocks themselves, by comparing some of their rows; the norm of the whole core tells
    whether the rest follows. Where it does not, every block is a matrix of its own.
    """
    r, n, m, s = core.shape
    rows = np.unique(np.linspace(0, n - 1, min(_ROWS, n)).astype(int))
    sample = core[:, rows].transpose(0, 3, 1, 2).reshape(r * s, -1)
    chosen, weights = _spanning(sample)
    if chosen:
        o = core[np.array(chosen) // s, :, :, np.array(chosen) % s]
        flat = o.reshape(len(chosen), -1)
        found = float(np.vdot(weights.T @ weights, flat @ flat.T))
        if abs(found - float(np.vdot(core, core))) <= 1e-11 * found:
            return np.ascontiguousarray(weights.T).reshape(-1, r, s), np.ascontiguousarray(o)
    blocks = core.transpose(0, 3, 1, 2).reshape(r * s, -1)
    chosen = np.nonzero(np.any(blocks, axis=1))[0]
    k = np.zeros((len(chosen), r * s))
    k[np.arange(len(chosen)), chosen] = 1
    return k.reshape(-1, r, s), blocks[chosen].reshape(-1, n, m)


def _spanning(rows: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Selects rows of a matrix that span all its rows, and the coefficients of all rows in them."""
    norms = np.linalg.norm(rows, axis=1)
    live = norms > 0
    rest = np.where(live[:, None], rows / np.where(live, norms, 1)[:, None], 0)
    unit, chosen = rest, []
    while len(chosen) < min(rows.shape):
        sizes = np.vecdot(rest, rest)
        pivot = int(np.argmax(sizes))
        if sizes[pivot] < 1e-24:
            break
        chosen.append(pivot)
        q = rest[pivot] / np.sqrt(sizes[pivot])
        rest = rest - np.outer(rest @ q, q)
    if not chosen:
        return [], np.zeros((len(rows), 0))
    # Least squares on rows of norm one: what the elimination knows of them has lost digits by then.
    found = np.linalg.lstsq(unit[chosen].T, unit.T, rcond=None)[0].T
    found[np.abs(found) < 1e-13] = 0
    return chosen, found * norms[:, None] / norms[chosen]
