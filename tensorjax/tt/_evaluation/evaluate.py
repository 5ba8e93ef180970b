"""Evaluation of tensor train entries at a batch of multi-indices."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import merge
from tensorjax._formats.trains import TT, single
from tensorjax._ids import counted
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.known_trains import signature
from tensorjax._kernels.table import CPP, HOST, NUMPY
from tensorjax._placement import placed
from tensorjax._symbolic import is_static, planned
from tensorjax._transfer import on_device
from tensorjax._typing import ArrayLike
from tensorjax.tt._evaluation import entries_on_host

# Elements gathered at a time by `evaluate`: 256 MiB of float64.
_GATHER_LIMIT = 2**25
# Most elements in a table of multiplied cores: at the ends of a train, and in between.
_END_TABLE, _TABLE = 2**22, 2**17


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
        out = entries_on_host.entries(t, host, _grouped(modes, ranks, planned(len(host))))
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
    (*batch, last), count = indices.shape or (0,), len(known.shapes)
    if len(batch) != 1 or last != count or indices.dtype != np.int64:
        return None
    facts = {"shapes": known.shapes, "batch": batch[0]}
    if choose_kernel("tt.evaluate, entries", t.cores, HOST, **facts) is not CPP:
        return None
    try:
        return on_device([entries_on_host.entries(t, indices, ())])[0]
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
