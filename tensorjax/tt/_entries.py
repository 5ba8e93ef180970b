"""Entries and contracted modes of concrete trains in the memory of a CPU: nothing is compiled.

XLA takes seconds to compile the products of some dozens of cores, and does so anew for every size
of a batch. NumPy starts at once, and where ranks are high it is faster too: rows of one index share
a matrix product, while XLA gathers a matrix for each.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _blas, linalg
from tensorjax._cores import Cores, balanced, tall, wide
from tensorjax._train import TT

# Entries that go through the train together, and numbers gathered at a time: for the caches.
_ROWS, _GATHER = 2**16, 2**18
# Up to so many indices all are multiplied and one is picked: a gather of matrices costs more.
_FEW = 4
# From so many rows an index, and numbers in its matrix, rows are sorted by their index.
_SHARED, _MATRIX = 64, 256
_NEAR = 4  # powers of two that norms of cores may be off one


def entries(t: TT, indices: np.ndarray, groups: Sequence[tuple[int, int]]) -> np.ndarray:
    """Entries at multi-indices (batch, d) in range, by tables of the cores a … b−1 of each group.

    In the dtype of the train, or float32 for half precision. Vectors are kept in range by exact
    powers of two, so only the entries themselves can overflow.
    """
    with np.errstate(over="ignore", under="ignore"), _blas.one_thread(True):
        small, exponents = _near_one(_on_host(t.cores, t.dtype))
        tables = [_product(small[a:b]) for a, b in groups]
        shape = t.shape
        out = [
            _piece(tables, groups, shape, indices[k : k + _ROWS], sum(exponents))
            for k in range(0, len(indices), _ROWS)
        ]
        return np.concatenate(out) if len(out) != 1 else out[0]


def _on_host(cores: Sequence[Any], dtype: Any) -> Cores:
    dtype = linalg.factor_dtype(dtype)
    return [np.asarray(c).astype(dtype, copy=False) for c in cores]


def _near_one(cores: Cores) -> tuple[Cores, list[int]]:
    """Cores, those far from one over a power of two; and the exponents."""
    low, high = 4.0**-_NEAR, 4.0**_NEAR
    exponents = [
        0 if low < np.vdot(c, c).real < high else int(linalg.exponent_of(c)) for c in cores
    ]
    pairs = zip(cores, exponents, strict=True)
    return [linalg.scaled(c, -e) if e else c for c, e in pairs], exponents


def _product(cores: Cores) -> Any:
    """Neighbouring cores as one, (r, ∏ n, s)."""
    out = cores[0]
    for core in cores[1:]:
        out = (tall(out) @ wide(core)).reshape(out.shape[0], -1, core.shape[-1])
    return out


def _piece(
    tables: Cores, groups: Any, shape: Sequence[int], indices: np.ndarray, exponent: int
) -> np.ndarray:
    columns = np.ascontiguousarray(indices.T, np.intp)
    rows = [_merged(columns[a:b], shape[a:b]) for a, b in groups]
    v = tables[0][0].take(rows[0], 0)
    powers: Any = exponent
    grown, most = 0.0, np.finfo(v.dtype).maxexp / 3
    for table, row in zip(tables[1:], rows[1:], strict=True):
        grown += max(1.0, math.log2(2 * max(table.shape[::2]))) + _NEAR
        if grown > most:
            v, e = linalg.normalized(v, 1)
            powers, grown = powers + e[:, 0], 0.0
        v = _times(v, table, row)
    return linalg.scaled(v[:, 0], powers) if np.any(powers) else v[:, 0]


def _merged(columns: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Indices of several modes as one, negative ones counted from the end."""
    row: Any = 0
    for i, n in zip(columns, shape, strict=True):
        row = row * n + (np.where(i < 0, i + n, i) if i.min() < 0 else i)
    return row


def _times(v: np.ndarray, table: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """v[b] @ table[:, rows[b]] for all b, (batch, r) to (batch, s)."""
    r, m, s = table.shape
    count = len(rows)
    if count == 1:
        return v @ table[:, rows[0]]
    if m <= _FEW:
        every = (v @ wide(table)).reshape(count, m, s)
        return every[np.arange(count), rows]
    if count >= _SHARED * m and r * s >= _MATRIX:
        return _sorted_times(v, table, rows)
    if count >= m:
        matrices = np.ascontiguousarray(table.transpose(1, 0, 2))  # what is gathered lies together
    else:
        matrices = table.transpose(1, 0, 2)
    step = max(1, _GATHER // (r * s))
    pieces = [slice(k, k + step) for k in range(0, count, step)]
    out = [(v[p, None] @ matrices[rows[p]])[:, 0] for p in pieces]
    return out[0] if len(out) == 1 else np.concatenate(out)


def _sorted_times(v: np.ndarray, table: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """As `_times`, a matrix product for each index."""
    order = np.argsort(rows, kind="stable")
    ends = np.cumsum(np.bincount(rows, minlength=table.shape[1]))
    v = v[order]
    out = np.empty((len(rows), table.shape[2]), v.dtype)
    start = 0
    for index, end in enumerate(ends):
        if end > start:
            out[order[start:end]] = v[start:end] @ table[:, index]
        start = end
    return out
