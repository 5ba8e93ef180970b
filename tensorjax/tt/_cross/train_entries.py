"""Entries of tensor trains at many multi-indices, and draws by the Born rule, for `cross`."""

import math
from typing import Any

import numpy as np

from tensorjax import linalg
from tensorjax._cores import orthogonalization
from tensorjax._cores.contractions import absorb, merge, times_slices
from tensorjax._cores.scaling import norms_near_one
from tensorjax._cores.unfoldings import Cores

# Least number of held-out entries for their mean to be preferred to zero; and of entries that carry
# the norm of f, for them to measure it.
TELLING = 10


# Drawing from a train makes arrays (entries, n, r); the most elements of one.
_DRAWING = 1 << 23
# Modes up to this size are made by merging cores: rows are grouped by their index, one at a time.
_MERGED = 16
# Modes up to this size are taken whole: to pick the slices in use takes longer than their norms.
_WHOLE = 64
# So many factors near one are multiplied before the rows are brought near one again.
_TOGETHER = 32


def squares(x: Any) -> Any:
    return (np.square(x.real) + np.square(x.imag)).sum(axis=1)


def entries(cores: Cores, index: np.ndarray) -> np.ndarray:
    """Evaluates the tensor train of a running `cross` at multi-indices: (m, 1) or (m, components).

    Cores far from one are scaled by powers of two, so that products of them are in range.
    """
    modes = index.shape[1]
    cores, index = _used(cores, index)
    cores, exponent = norms_near_one(cores)
    (first, *rest), (leading, *others) = _merged(cores[:modes], index)
    v, powers = first[0, leading], exponent
    for k, (core, i) in enumerate(zip(rest, others, strict=True), start=1):
        v = times_slices(v, core, i)
        if k % _TOGETHER == 0:
            v, e = linalg.normalized(v, 1)
            powers = powers + e
    v = v @ cores[-1][:, :, 0] if len(cores) > modes else v
    return linalg.scaled(v, powers) if np.any(powers) else v


def _used(cores: Cores, index: np.ndarray) -> tuple[Cores, np.ndarray]:
    """Picks the slices of `cross`'s train that entries use, where modes are longer than batches.

    Norms of cores with a million slices would cost more than all else.
    """
    long = [k for k, i in enumerate(index.T) if cores[k].shape[1] > max(len(i), _WHOLE)]
    if not long:
        return cores, index
    cores, index = list(cores), index.copy()
    for k in long:
        slices, index[:, k] = np.unique(index[:, k], return_inverse=True)
        cores[k] = cores[k][:, slices]
    return cores, index


def magnitudes(cores: Cores, index: np.ndarray) -> np.ndarray:
    """Sums the absolute values of all terms of tensor train entries, to bound roundoff in `cross`.

    Roundoff in an entry is about eps times this; the entry itself may be far smaller than others.

    Example:
      >>> import numpy as np
      >>> cores = [np.array([[[1.0, -1.0]]]), np.array([[[3.0]], [[2.0]]])]
      >>> print(entries(cores, np.array([[0, 0]])), magnitudes(cores, np.array([[0, 0]])))
      [[1.]] [5.]
    """
    return entries([np.abs(core) for core in cores], index).max(axis=1)


def _merged(cores: Cores, index: np.ndarray) -> tuple[Cores, list[np.ndarray]]:
    """Merges small neighbouring cores, and indices, to evaluate many entries of `cross`'s train."""
    out, at = [cores[0]], [index[:, 0]]
    for core, i in zip(cores[1:], index.T[1:], strict=True):
        if _shared(out[-1], core, len(index)):
            out[-1], at[-1] = merge([out[-1], core]), at[-1] * core.shape[1] + i
        else:
            out.append(core)
            at.append(i)
    while len(out) > 1 and out[-1].shape[2] == 1 and _shared(out[-2], out[-1], len(index)):
        core, i = out.pop(), at.pop()
        out[-1], at[-1] = merge([out[-1], core]), at[-1] * core.shape[1] + i
    return out, at


def _shared(a: np.ndarray, b: np.ndarray, entries: int) -> bool:
    """Whether `cross` should merge two cores into a table before it evaluates train entries."""
    (left, n, bond), (_, m, right) = a.shape, b.shape
    saved = entries * (left * bond + bond * right - left * right)
    # The first and the last core are tables, of which rows are picked.
    small = n * m <= _MERGED or left == 1 or right == 1
    return small and 2 * n * m * left * bond * right < saved


class Sampler:
    """Sampler of tensor train entries for `cross`, of multi-indices with density |t|² / ‖t‖².

    Attributes:
      log_norm: log ‖t‖, −inf if the train is zero.
      most: entries to draw at once, at most.
    """

    def __init__(self, cores: Cores):
        self._cores, exponent = orthogonalization.right_orthogonal(cores)
        norm = float(np.linalg.norm(self._cores[0]))
        self.log_norm = math.log(norm) + exponent * math.log(2) if norm > 0 else -math.inf
        if norm > 0:
            self._cores[0] = self._cores[0] / norm
        self.most = max(TELLING, _DRAWING // max(c[0].size for c in cores))

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draws train entries by the Born rule for `cross`, at most ``count``, mode by mode.

        Source: A. Ferris, G. Vidal, "Perfect sampling with unitary tensor networks", Phys. Rev. B
        85, 165146 (2012), section III; as `tt.sample`, which compiles a program for all ranks.
        """
        count = min(count, self.most)
        v = np.ones((count, 1))
        drawn = []
        for core in self._cores:
            rows = absorb(v, core)  # (count, n, r)
            weights = np.cumsum((np.abs(rows) ** 2).sum(axis=2), axis=1)
            u = rng.random((count, 1)) * weights[:, -1:]
            i = np.minimum((weights <= u).sum(axis=1), core.shape[1] - 1)
            v = rows[np.arange(count), i]
            size = np.linalg.norm(v, axis=1, keepdims=True)
            v = v / np.where(size > 0, size, 1)
            drawn.append(i)
        return np.stack(drawn, axis=1)

    def log_density(self, index: np.ndarray) -> np.ndarray:
        """Computes log-probabilities by the Born rule of a tensor train's entries."""
        with np.errstate(divide="ignore"):
            return np.log(squares(entries(self._cores, index)))
