"""Entries of tensor trains at batches of multi-indices: by C++, NumPy or a compiled program.

XLA takes seconds to compile the products of some dozens of cores, and does so anew for every size
of a batch. NumPy starts at once, and where ranks are high it is faster too: rows of one index share
a matrix product, while XLA gathers a matrix for each.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _blas_threads, _check, _native, linalg
from tensorjax._cores.contractions import merge, times_slices
from tensorjax._cores.scaling import NORM_NEAR, norms_near_one
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT, single
from tensorjax._ids import counted
from tensorjax._kernels.choice import choose_alike, choose_kernel
from tensorjax._kernels.table import CPP, HOST, NUMPY
from tensorjax._kernels.train_signatures import signature
from tensorjax._placement import placed
from tensorjax._symbolic import is_static, planned
from tensorjax._transfer import on_device
from tensorjax._typing import ArrayLike

# Elements gathered at a time by `evaluate`: 256 MiB of float64.
_GATHER_LIMIT = 2**25
# Most elements in a table of multiplied cores: at the ends of a train, and in between.
_END_TABLE, _TABLE = 2**22, 2**17
# Entries evaluated together: so that they fit into the caches.
_ROWS = 2**16


@placed
def evaluate(t: TT, indices: ArrayLike) -> jax.Array:
    """Evaluates tensor train entries x[i_1, …, i_d] at a batch of multi-indices.

    Args:
      t: TT of order d.
      indices: integers (…, d), each in [−n_k, n_k) as in NumPy.

    Returns:
      (…,) entries. As in NumPy's products, those that the dtype cannot hold are infinite, or zero.

    Raises:
      ValueError: the last axis is not d, or an index is out of range; of indices known only under
        a transformation, such entries are NaN.
      TypeError: the indices are not integers.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.evaluate(tt.ones((2, 3)), [[0, 0], [1, 2]]))
      [1. 1.]

    O(r²) operations an entry and core at most: for long batches, neighbouring cores are first
    multiplied out as far as a table of no more rows than the batch holds them. Memory stays
    bounded, for very long batches are done in pieces. Concrete arrays on a CPU are served by
    compiled code where few operations are needed, by NumPy else, and nothing is compiled until the
    same shapes and batch size have come ten times, and have taken as long as compiling would.

    Source: Oseledets (2011), eq. (1.3). Ours: the tables.
    """
    if (out := _at_once(t, indices)) is not None:
        return out
    single("t", t, TT)
    # Asked for once: to tell the sizes of all cores takes longer than a few entries do in C++.
    shapes = tuple([c.shape for c in t.cores])
    indices = _check.indices(indices, [s[1] for s in shapes])
    facts = {"shapes": shapes, "batch": math.prod(indices.shape[:-1])}
    dtype = t.dtype
    key = shapes, dtype, indices.dtype
    if choose_kernel("tt.evaluate", (t, indices), key=key, **facts) is NUMPY:
        host = np.asarray(indices).reshape(-1, len(shapes))
        modes, ranks = tuple([s[1] for s in shapes]), (*[s[0] for s in shapes], 1)
        out = entries(t, host, _grouped(modes, ranks, planned(len(host))))
        out = out.astype(dtype, copy=False).reshape(indices.shape[:-1])
        return on_device([out])[0]
    return _evaluate(t, jnp.asarray(indices).reshape(-1, t.order)).reshape(indices.shape[:-1])


def _at_once(t: Any, indices: Any) -> jax.Array | None:
    """Evaluates few entries of a concrete train by C++, which looks at the indices; or None.

    To look at them before takes longer than some entries do.
    """
    known = signature(t)
    if known is None or known.kind is not TT or type(indices) is not np.ndarray:
        return None
    shape = indices.shape
    if len(shape) != 2 or shape[1] != len(known.shapes) or indices.dtype != np.int64:
        return None
    if choose_alike("tt.evaluate, entries", HOST, known, shape[0]) is not CPP:
        return None
    try:
        return on_device([_by_cpp(t, indices)])[0]
    except ValueError:  # an index out of range, or another dtype: `evaluate` says which
        return None


@jax.jit
def _evaluate(t: TT, indices: jax.Array) -> jax.Array:
    tables: list[jax.Array] = []
    rows: list[jax.Array] = []
    exponent: Any = jnp.zeros((), jnp.int32)
    valid = jnp.ones(indices.shape[:1], bool)
    for a, b in _groups(t, indices.shape[0]):
        table, e = _product(t.cores[a:b])
        exponent = exponent + e
        # Rows first: what is gathered lies together.
        tables.append(table.transpose(1, 0, 2))
        row = jnp.zeros((), jnp.int32)
        for k in range(a, b):
            i, held = counted(indices[:, k], t.shape[k])
            row, valid = row * t.shape[k] + i, valid & held
        rows.append(row)

    def entry(rows: tuple[jax.Array, ...]) -> jax.Array:
        v, power = tables[0][rows[0], 0], exponent
        for table, row in zip(tables[1:], rows[1:], strict=True):
            v, e = linalg.normalized(v)
            power = power + e
            # Not as a product of matrices: so the gather is fused, and never stored.
            v = jnp.sum(v[:, None] * table[row], axis=0)
        return linalg.scaled(v[0], power)

    widest = max(table.shape[1] * table.shape[2] for table in tables)
    piece = max(1, _GATHER_LIMIT // widest)
    if not is_static(indices.shape[0]) or indices.shape[0] <= piece:  # symbolic sizes: in one piece
        out = jax.vmap(entry)(tuple(rows))
    else:
        out = jax.lax.map(entry, tuple(rows), batch_size=piece)
    return jnp.where(valid, out, jnp.asarray(jnp.nan, out.dtype))


def _groups(t: TT, batch: int) -> Sequence[tuple[int, int]]:
    """Chooses groups of neighbouring cores that `evaluate` multiplies into tables for a batch.

    Long ones at both ends, where products are vectors; small tables between, for the cache. A
    symbolic size (`jax.export.symbolic_shape`) is planned as 1024.
    """
    return _grouped(t.shape, t.ranks, planned(batch))


@functools.lru_cache(maxsize=1024)
def _grouped(
    shape: tuple[int, ...], ranks: tuple[int, ...], batch: int
) -> tuple[tuple[int, int], ...]:
    order = len(shape)

    def fits(a: int, b: int) -> bool:
        ends = a == 0 or b == order
        rows = math.prod(shape[a:b])
        return rows <= batch and rows * ranks[a] * ranks[b] <= (_END_TABLE if ends else _TABLE)

    first = 1
    while first < order and fits(0, first + 1):
        first += 1
    groups, last = [(0, first)], order
    while last - 1 > first and fits(last - 1, order):
        last -= 1
    tail = [(last, order)] if last < order else []
    while first < last:
        b = first + 1
        while b < last and fits(first, b + 1):
            b += 1
        groups.append((first, b))
        first = b
    return tuple(groups + tail)


def _product(cores: Sequence[jax.Array]) -> tuple[jax.Array, Any]:
    """Multiplies a group of cores into a table, to evaluate a batch; returns its exponent too."""
    out, exponent = cores[0], 0
    for core in cores[1:]:
        out, e = linalg.normalized(out)
        exponent = exponent + e
        out = merge([out, core])
    return out, exponent


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
        small, exponent = norms_near_one(cores)
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
        grown += max(1.0, math.log2(2 * max(table.shape[::2]))) + NORM_NEAR
        if grown > most:
            v, e = linalg.normalized(v, 1)
            powers, grown = powers + e[:, 0], 0.0
        v = times_slices(v, table, row)
    rescaled = powers.any() if isinstance(powers, np.ndarray) else powers
    return linalg.scaled(v[:, 0], powers) if rescaled else v[:, 0]


def _merged(columns: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Merges the indices of several modes of a train to one flat index, by NumPy."""
    row = columns[0]
    for i, n in zip(columns[1:], shape[1:], strict=True):
        row = row * n + i
    return row
