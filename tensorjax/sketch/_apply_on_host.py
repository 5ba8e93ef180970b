"""Random projection of dense rows in CPU memory by NumPy, without compilation."""

import math
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
    n, m, ranks = p.in_shape, p.out_shape, (1, *p.ranks, 1)
    plan = _mode_groups.choose(batch, size, n, m, ranks)
    if plan.pads_input:
        x = np.pad(x, ((0, 0), (0, math.prod(n) - size)))
    cores = [np.asarray(c) for c in p.cores]
    y = x.reshape(batch, -1, 1, 1)  # (batch, modes not yet done, bond, modes done)
    for s, e in reversed(list(zip(plan.cuts, plan.cuts[1:], strict=False))):
        core = merge(cores[s:e], einsum)[:, :, : y.shape[1]]
        y = _group(y, core)
    y = y.reshape(batch, -1)[:, : p.out_size]
    return y * x.dtype.type(1 / math.sqrt(p.out_size * math.prod(ranks)))


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
