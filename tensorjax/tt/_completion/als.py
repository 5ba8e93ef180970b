"""Alternating least squares (ALS) of trains from samples, and for tensor completion; by NumPy.

The sampled entries are linear in one core at a time: x[i] = L_i G[:, i_k, :] R_i, with row vectors
L_i and column vectors R_i of what lies left and right. Samples that share i_k see the same slice,
so every slice of a core is a least-squares problem of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tensorjax import linalg
from tensorjax._cores.contractions import absorb, times_right
from tensorjax._cores.orthogonalization import left_qr, right_lq, right_orthogonal
from tensorjax._cores.unfoldings import Cores


class Samples(NamedTuple):
    """Sampled entries of a tensor, grouped by index in each mode, for completion by ALS.

    Attributes:
      values: (N,).
      rows: for each mode and each index of it, which samples have that index.
      index: (d, N), the multi-indices.
      order: for each mode, all samples in the order of ``rows``.
    """

    values: np.ndarray
    rows: list[list[np.ndarray]]
    index: np.ndarray
    order: list[np.ndarray]


def samples(indices: np.ndarray, values: np.ndarray, shape: Sequence[int]) -> Samples:
    """Groups the samples of a tensor completion by their index in each mode, for ALS."""
    rows, orders = [], []
    for k, n in enumerate(shape):
        order = np.argsort(indices[:, k], kind="stable")
        ends = np.searchsorted(indices[order, k], np.arange(1, n))
        rows.append(np.split(order, ends))
        orders.append(order)
    return Samples(values, rows, np.ascontiguousarray(indices.T), orders)


def entries(cores: Cores, seen: Samples) -> np.ndarray:
    """Evaluates a train of NumPy cores at sampled entries, between sweeps of ALS."""
    left = np.ones((len(seen.values), 1), cores[0].dtype)
    for k, core in enumerate(cores):
        left = through(left, core, seen, k)
    return left[:, 0]


def sweeps(cores: Cores, seen: Samples, ridge: float) -> Iterator[Cores]:
    """Generates ALS sweeps of a tensor completion, which solve for every core by least squares.

    Args:
      cores: to start from.
      ridge: added to the diagonal of each problem, in units of what orthonormal rows give.

    Yields:
      The cores after every sweep there and back.
    """
    weight = ridge * len(seen.values)
    for core in cores:
        weight = weight / core.shape[1]
    return alternating_sweeps(
        cores,
        len(seen.values),
        lambda left, right, k: _solved(left, right, seen, k, weight),
        lambda vectors, core, k: through(vectors, core, seen, k),
    )


def alternating_sweeps(
    cores: Cores, count: int, solve: Callable[..., np.ndarray], extend: Callable[..., np.ndarray]
) -> Iterator[Cores]:
    """Generates ALS sweeps for a train that is fitted to samples, core by core, there and back.

    Args:
      cores: to start from.
      count: number of samples N.
      solve: computes core k from what lies left (N, r) and right of it (N, s) at the samples.
      extend: multiplies row vectors (N, r) by core k (r, n, s) at the samples.

    Yields:
      The cores after every sweep there and back.
    """
    order = len(cores)
    cores, _ = right_orthogonal(list(cores), scale=False)
    ones = np.ones((count, 1), cores[0].dtype)
    lefts, rights = [ones] * order, [ones] * order
    for k in range(order - 1, 0, -1):
        rights[k - 1] = extend(rights[k], cores[k].transpose(2, 1, 0), k)
    while True:
        for k in range(order):
            cores[k] = solve(lefts[k], rights[k], k)
            if k < order - 1:
                cores[k], r = left_qr(cores[k])
                cores[k + 1] = absorb(r, cores[k + 1])
                lefts[k + 1] = extend(lefts[k], cores[k], k)
        for k in range(order - 1, 0, -1):
            cores[k] = solve(lefts[k], rights[k], k)
            left, cores[k] = right_lq(cores[k])
            cores[k - 1] = times_right(cores[k - 1], left)
            rights[k - 1] = extend(rights[k], cores[k].transpose(2, 1, 0), k)
        yield list(cores)


def through(vectors: np.ndarray, core: np.ndarray, seen: Samples, k: int) -> np.ndarray:
    """Multiplies each sample's vector by the core slice at the sample's index, for an ALS sweep."""
    index, rows = seen.index[k], seen.rows[k]
    # At the ends of the train slices are vectors, which are gathered all at once.
    if core.shape[0] == 1:
        return vectors * core[0].take(index, axis=0)
    if core.shape[2] == 1:
        columns = np.ascontiguousarray(core[:, :, 0].T)
        return np.vecdot(vectors.conj(), columns.take(index, axis=0))[:, None]
    out = np.empty((len(vectors), core.shape[2]), vectors.dtype)
    for matrix, at in zip(core.transpose(1, 0, 2), rows, strict=True):
        out[at] = vectors[at] @ matrix
    return out


def _solved(
    left: np.ndarray, right: np.ndarray, seen: Samples, k: int, weight: float
) -> np.ndarray:
    """Solves for one core of a tensor completion by regularised least squares (ALS)."""
    a, b = left.shape[1], right.shape[1]
    slices = []
    for at in seen.rows[k]:
        design = (left[at][:, :, None] * right[at][:, None, :]).reshape(len(at), a * b)
        normal = linalg.matmul(linalg.adjoint(design), design)
        aim = linalg.matmul(linalg.adjoint(design), seen.values[at])
        slices.append(shifted_solve(normal, aim, weight).reshape(a, b))
    return np.stack(slices, 1)


def shifted_solve(matrix: np.ndarray, right_side: np.ndarray, shift: float) -> np.ndarray:
    """Solves normal equations of an ALS fit to samples, with a shift of the diagonal, in place."""
    # Roundoff must not make a direction that no sample sees look determined.
    floor = 4 * np.finfo(matrix.dtype).eps * float(np.real(np.trace(matrix)))
    matrix[np.diag_indices(len(matrix))] += max(shift, floor) or 1.0
    return np.linalg.solve(matrix, right_side[:, None])[:, 0]


def raised(cores: Cores, ranks: Sequence[int], size: float, rng: np.random.Generator) -> Cores:
    """Pads cores to higher TT-ranks with small random entries, to continue a fit to samples."""
    full = (1, *ranks, 1)
    out = []
    for k, c in enumerate(cores):
        shape = (full[k], c.shape[1], full[k + 1])
        wider = (size * np.abs(c).max() * rng.standard_normal(shape)).astype(c.dtype)
        wider[: c.shape[0], :, : c.shape[2]] = c
        out.append(wider)
    return out
