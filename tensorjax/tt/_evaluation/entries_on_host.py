"""Entries of concrete tensor trains on the host, by C++ or NumPy: no program is compiled.

XLA takes seconds to compile the products of some dozens of cores, and does so anew for every size
of a batch. NumPy starts at once, and where ranks are high it is faster too: rows of one index share
a matrix product, while XLA gathers a matrix for each.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax import _blas_threads, _native, linalg
from tensorjax._cores.contractions import absorb, merge
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.known_trains import signature
from tensorjax._kernels.table import CPP, HOST

# Entries evaluated together, and elements gathered at a time: so that both fit into the caches.
_ROWS, _GATHER = 2**16, 2**18
# For mode sizes up to this, all slices are multiplied and one is picked: gathering costs more.
_FEW = 4
# With at least so many rows per index, and elements per matrix, rows are grouped by their index.
_SHARED, _MATRIX = 64, 256
# Rows per index from which on slices are laid out one after another before they are gathered.
_AGAIN = 8
_NEAR = 4  # powers of two that norms of cores may be off one


def entries(t: TT, indices: np.ndarray, groups: Sequence[tuple[int, int]]) -> np.ndarray:
    """Evaluates entries of a concrete train on the host, by C++ or by tables of merged cores.

    A table holds the product of one of the groups of neighbouring cores.

    In the dtype of the train, or float32 for half precision. Vectors are kept in range by exact
    powers of two, so only the entries themselves can overflow.
    """
    known = signature(t)
    shapes = [c.shape for c in t.cores] if known is None else known.shapes
    facts = {"shapes": shapes, "batch": len(indices)}
    if known and choose_kernel("tt.evaluate, entries", t.cores, HOST, **facts) is CPP:
        return _by_cpp(t, indices)
    cores = on_host(t.cores, linalg.factor_dtype(t.dtype))
    if len(indices) == 0:
        return np.zeros(0, cores[0].dtype)
    if choose_kernel("tt.evaluate, entries", cores, HOST, **facts) is CPP:
        return _native.entries(cores, indices)
    with (
        np.errstate(over="ignore", under="ignore", invalid="ignore"),
        _blas_threads.one_thread(True),
    ):
        shape = [c.shape[1] for c in cores]
        small, exponent = near_one(cores)
        tables = [merge(small[a:b]) for a, b in groups]
        out = [
            _piece(tables, groups, shape, indices[k : k + _ROWS], exponent)
            for k in range(0, len(indices), _ROWS)
        ]
        return np.concatenate(out) if len(out) > 1 else out[0]


def _by_cpp(t: TT, indices: np.ndarray) -> np.ndarray:
    """Evaluates entries of a concrete train by C++; where its cores lie is kept with the train.

    Views of them are held during the call only: JAX neither frees nor reuses memory with views.
    """
    views = [np.asarray(c) for c in t.cores]  # of a deleted array NumPy tells so, as elsewhere
    found = vars(t).get("_evaluator")
    if found is None:
        if not _in_place(t.cores, views):
            return _native.entries(views, indices)
        found = vars(t)["_evaluator"] = _native.Evaluator(views)
    return found(indices)


def _in_place(cores: Sequence[Any], views: Cores) -> bool:
    """Whether arrays of NumPy are JAX's own memory of a train's cores, in one piece, not copies."""
    return _native.in_one_piece(views) and all(
        c.unsafe_buffer_pointer() == v.__array_interface__["data"][0]
        for c, v in zip(cores, views, strict=True)
    )


def on_host(cores: Sequence[Any], dtype: Any) -> Cores:
    """Copies a train's cores to the host as NumPy arrays of one dtype, to evaluate entries."""
    hosted = [np.asarray(c) for c in cores]
    return [c if c.dtype == dtype else c.astype(dtype) for c in hosted]


def near_one(cores: Cores) -> tuple[Cores, int]:
    """Scales host cores by powers of two, to evaluate entries in range; returns the exponent."""
    low, high = 4.0**-_NEAR, 4.0**_NEAR
    out, total = [], 0
    squares = [np.vdot(core, core).real for core in cores]
    if low < min(squares) and max(squares) < high:
        return cores, 0
    for core, square in zip(cores, squares, strict=True):
        if not low < square < high:
            e = int(linalg.exponent_of(core))
            core, total = linalg.scaled(core, -e), total + e
        out.append(core)
    return out, total


def _piece(
    tables: Cores, groups: Any, shape: Sequence[int], indices: np.ndarray, exponent: int
) -> np.ndarray:
    columns = np.ascontiguousarray(indices.T, np.intp)
    if columns.min() < 0:  # counted from the end
        columns = np.where(columns < 0, columns + np.asarray(shape)[:, None], columns)
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
    rescaled = powers.any() if isinstance(powers, np.ndarray) else powers
    return linalg.scaled(v[:, 0], powers) if rescaled else v[:, 0]


def _merged(columns: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Merges the indices of several modes of a train to one flat index, by NumPy."""
    row = columns[0]
    for i, n in zip(columns[1:], shape[1:], strict=True):
        row = row * n + i
    return row


def _times(v: np.ndarray, table: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Multiplies row vectors by the core slices of their indices, for train entries by NumPy."""
    r, m, s = table.shape
    count = len(rows)
    if count == 1:
        return v @ table[:, rows[0]]
    if m <= _FEW:
        every = absorb(v, table)
        return every[np.arange(count), rows]
    if count >= _SHARED * m and r * s >= _MATRIX:
        return _sorted_times(v, table, rows)
    if count >= _AGAIN * m:
        matrices = np.ascontiguousarray(table.transpose(1, 0, 2))  # what is gathered lies together
    else:
        matrices = table.transpose(1, 0, 2)
    step = max(1, _GATHER // (r * s))
    if count <= step:
        return (v[:, None] @ matrices[rows])[:, 0]
    pieces = [slice(k, k + step) for k in range(0, count, step)]
    out = [(v[p, None] @ matrices[rows[p]])[:, 0] for p in pieces]
    return np.concatenate(out)


def _sorted_times(v: np.ndarray, table: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Multiplies row vectors by core slices by NumPy as `_times`, with one product per index."""
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
