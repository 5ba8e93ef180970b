"""Random projection of dense rows in CPU memory by NumPy, without compilation."""

import functools
import math
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from tensorjax import _blas_threads
from tensorjax._cores.contractions import einsum
from tensorjax._transfer import aligned, on_device
from tensorjax.sketch import _mode_groups
from tensorjax.sketch._map_cores import merge
from tensorjax.sketch._map_types import Dense, Kronecker

# Below this many elements, BLAS threads cost more than they gain.
_THREADS = 2**18
# Rows times the square of the largest TT-rank up to which the first modes are mapped first:
# products of so few matrices, each with long rows, cost a BLAS less than one with few columns.
_LONG_ROWS = 512
# Elements of the modes that are then mapped by one product: it takes as long to read the rows.
_JOINED = 32
# Numbers of rows for which a map keeps its matrices.
_MOST_KEPT = 16


def project(p: Any, x: Any, lead: tuple[int, ...]) -> tuple[jax.Array, bool]:
    """Applies a map to rows x on the host by NumPy, to (…, M), and tells if all is finite."""
    rows = np.asarray(x).reshape(math.prod(lead), -1)
    with np.errstate(all="ignore"), _blas_threads.one_thread(rows.size < _THREADS):
        if isinstance(p, Dense):
            matrix = np.asarray(p.matrix)
            # Of few rows a BLAS takes less time with the map as the first factor.
            few = len(rows) < len(matrix) and rows.dtype.itemsize == 4
            y = aligned((len(rows), len(matrix)), rows.dtype)
            if few:
                y[...] = (matrix @ rows.T).T
            else:
                np.matmul(rows, matrix.T, out=y)
            y *= 1 / math.sqrt(p.out_size)
        else:
            y = _kronecker(p, rows)
        flat = y.reshape(-1)
        # A finite sum of squares means finite entries, in a fifth of the time.
        finite = math.isfinite(np.vdot(flat, flat).real) or bool(np.isfinite(y).all())
    return on_device([y.reshape(*lead, p.out_size)])[0], finite


def _kronecker(p: Kronecker, x: np.ndarray) -> np.ndarray:
    """Applies a Kronecker map to rows by NumPy on the host, group by group of its modes."""
    batch, size = x.shape
    known = _matrices_from_left(p, batch, size)
    if known:
        return _from_left(x, known)[:, : p.out_size]
    n, m, ranks = p.in_shape, p.out_shape, (1, *p.ranks, 1)
    plan = _mode_groups.choose(batch, size, n, m, ranks)
    if plan.pads_input:
        x = np.pad(x, ((0, 0), (0, math.prod(n) - size)))
    cores = [np.asarray(c) for c in p.cores]
    y = x.reshape(batch, -1, 1, 1)  # (batch, modes not yet done, bond, modes done)
    for s, e in reversed(list(pairwise(plan.cuts))):
        y = _group(y, merge(cores[s:e], einsum)[:, :, : y.shape[1]])
    y = y.reshape(batch, -1)[:, : p.out_size]
    return y * x.dtype.type(1 / math.sqrt(p.out_size * math.prod(ranks)))


def _matrices_from_left(p: Kronecker, batch: int, size: int) -> list[tuple[Any, int, int]]:
    """Returns a map's matrices on the host, to be applied from the left; none of many rows.

    Each with its rows and columns over one mode of the image: (matrix, m, columns). They are kept
    with the map: to make them takes as long as to map few rows.
    """
    kept = vars(p).setdefault("_from_left", {})
    key = batch, size
    if key not in kept:
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        cuts = _cuts_from_left(batch, size, p.in_shape, p.out_shape, (1, *p.ranks, 1))
        matrices = []
        cores = [np.asarray(c) for c in p.cores] if cuts else []
        for s, e in pairwise(cuts):
            core = merge(cores[s:e], einsum)
            left, m, n, right = core.shape
            matrices.append((core.transpose(1, 3, 0, 2).reshape(m * right, left * n), m, left * n))
        if cuts:
            scale = 1 / math.sqrt(p.out_size * math.prod(p.ranks))
            last, *sizes = matrices[-1]
            matrices[-1] = (last * last.dtype.type(scale), *sizes)
        kept[key] = matrices
    return kept[key]


@functools.lru_cache(maxsize=4096)
def _cuts_from_left(
    batch: int, size: int, n: tuple[int, ...], m: tuple[int, ...], ranks: tuple[int, ...]
) -> tuple[int, ...]:
    """Returns the cuts of a Kronecker map's modes to be mapped from the left; none of many rows."""
    if size != math.prod(n) or batch * max(ranks) ** 2 > _LONG_ROWS:
        return ()
    cuts, inner = [0], n[0]
    for k in range(1, len(n)):
        inner *= n[k]
        if inner > _JOINED:
            cuts, inner = [*cuts, k], n[k]
    return (*cuts, len(n)) if len(cuts) > 1 else ()


def _from_left(x: np.ndarray, matrices: list[tuple[Any, int, int]]) -> np.ndarray:
    """Applies the matrices of a Kronecker map on the host to rows, the first modes first."""
    batch = count = len(x)  # matrices (modes and bond, rest)
    for matrix, m, columns in matrices[:-1]:
        x = matrix @ x.reshape(count, columns, -1)
        count *= m
    matrix, _, columns = matrices[-1]
    return (x.reshape(-1, columns) @ matrix.T).reshape(batch, -1)


def _group(y: np.ndarray, core: np.ndarray) -> np.ndarray:
    """Applies one merged core of a Kronecker map on the host to an array (batch, n, bond, done)."""
    batch, size, bond, done = y.shape
    left, m, n, _ = core.shape
    rest = size // n
    matrix = core.transpose(2, 3, 0, 1).reshape(n * bond, left * m)
    if done == 1:
        return einsum("bra,alm->brlm", y.reshape(batch, rest, -1), matrix.reshape(-1, left, m))
    rows = y.reshape(batch * rest, n * bond, done)
    images = matrix.T @ rows
    return images.reshape(batch, rest, left, m * done)
