"""Random projection of sparse input (SciPy, BCOO), at a cost proportional to its nonzeros.

f(x) = Σ_j x_j A[:, j] over the nonzeros of x. Column A[:, j] is computed from the indices of j in
the modes of the map, a chunk of nonzeros at a time, and added to its row of the result.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse as jsparse

from tensorjax.contract import einsum
from tensorjax.sketch._map_cores import HIGHEST, scaled_cores
from tensorjax.sketch._map_types import CPRows, Dense, Kronecker, Projection, Sparse, TTRows

_CHUNK = 2**20  # elements in the columns of one chunk


def is_scipy_sparse(x: Any) -> bool:
    """Whether an input to be projected is a scipy.sparse matrix or array."""
    return hasattr(x, "tocoo") and hasattr(x, "nnz") and not isinstance(x, jsparse.JAXSparse)


def from_scipy(x: Any, in_shape: tuple[int, ...], folded: bool) -> tuple[np.ndarray, ...]:
    """Returns values, rows and mode indices of the nonzeros of a scipy.sparse COO matrix.

    They are padded by zeros to a rounded length: a stream of matrices then needs few compilations.
    On the host, so that column indices may have 64 bits.
    """
    *rows, last = x.coords
    if folded:
        rows, digits = rows[: x.ndim - len(in_shape)], x.coords[x.ndim - len(in_shape) :]
    else:
        digits = []
        for n in reversed(in_shape):
            last, digit = np.divmod(last, n)
            digits.insert(0, digit)
    values = np.asarray(x.data)
    row = rows[0] if rows else np.zeros(len(values), np.int32)
    extra = (0, _rounded(len(values)) - len(values))
    stacked = np.stack([np.pad(digit.astype(np.int32), extra) for digit in digits])
    return np.pad(values, extra), np.pad(row.astype(np.int32), extra), stacked


def _rounded(count: int) -> int:
    """Rounds the number of sparse input's nonzeros up, so that few programs are compiled."""
    unit = max(128, 2 ** max(0, count.bit_length() - 3))
    return max(256, -(-count // unit) * unit)


def from_bcoo(x: Any, in_shape: tuple[int, ...], folded: bool) -> tuple[jax.Array, ...]:
    """Returns values, rows and mode indices of the nonzeros of sparse input, a BCOO array."""
    if x.n_batch or x.n_dense:
        x = jsparse.bcoo_update_layout(x, n_batch=0, n_dense=0)
    # BCOO pads with places outside the array, which gathers would clip back in.
    most = np.iinfo(x.indices.dtype).max
    sizes = jnp.asarray([min(n, most) for n in x.shape], x.indices.dtype)
    all_inside = np.asarray([n > most for n in x.shape])  # whatever such an index may be
    inside = jnp.all((x.indices < sizes[None]) | all_inside[None], axis=1)
    values = jnp.where(inside, x.data, 0)
    places = jnp.where(inside[:, None], x.indices, 0)
    lead = x.ndim - (len(in_shape) if folded else 1)
    rows = jnp.zeros(len(values), jnp.int32)
    for axis in range(lead):
        rows = rows * x.shape[axis] + places[:, axis].astype(jnp.int32)
    if folded:
        digits = [places[:, axis] for axis in range(lead, x.ndim)]
    else:
        digits, rest = [], places[:, -1]
        for n in reversed(in_shape):
            wider = n > most  # such a mode holds every index already
            digits.append(rest if wider else rest % n)
            rest = jnp.zeros_like(rest) if wider else rest // n
        digits = digits[::-1]
    return values, rows, jnp.stack(digits).astype(jnp.int32)


def project(
    p: Projection, values: jax.Array, rows: jax.Array, digits: jax.Array, batch: int
) -> jax.Array:
    """Projects sparse rows, given by their nonzeros, to (batch, M) by a random map."""
    nnz = values.shape[0]
    chunk = max(1, min(nnz, _CHUNK // p.out_size))
    steps = -(-nnz // chunk)

    def pad(a: jax.Array) -> jax.Array:
        a = jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, steps * chunk - nnz)])
        return jnp.moveaxis(a.reshape(*a.shape[:-1], steps, chunk), -2, 0)

    def add(y: jax.Array, nonzeros: Any) -> tuple[jax.Array, None]:
        value, row, digit = nonzeros
        return y.at[row].add(value[:, None] * columns(p, digit)), None

    zero = jnp.zeros((batch, p.out_size), values.dtype)
    return jax.lax.scan(add, zero, (pad(values), pad(rows), pad(digits)))[0]


def columns(p: Projection, digits: jax.Array) -> jax.Array:
    """Computes the columns of a random map that sparse input selects, as rows of an array.

    Args:
      digits: (d, columns) indices j_1, …, j_d of each column in the modes of the input.
    """
    if isinstance(p, Kronecker):
        return _kronecker(p, digits)
    if isinstance(p, CPRows):
        terms = [jnp.moveaxis(a[:, :, j], -1, 0) for a, j in zip(p.factors, digits, strict=True)]
        scale = 1 / math.sqrt(p.terms * p.out_size)
        return functools.reduce(jnp.multiply, terms).sum(-1) * scale
    if isinstance(p, TTRows):
        out = jnp.ones((digits.shape[1], p.out_size, 1), p.dtype)
        for core, j in zip(scaled_cores(p), digits, strict=True):
            out = einsum("cmr,mrcs->cms", out, core[:, :, j], precision=HIGHEST)
        return out[..., 0]
    flat = digits[0]
    for n, digit in zip(p.in_shape[1:], digits[1:], strict=True):
        flat = flat * n + digit
    if isinstance(p, Sparse):
        return _sparse(p, flat)
    assert isinstance(p, Dense)
    return p.matrix[:, flat].T * (1 / math.sqrt(p.out_size))


def _kronecker(p: Kronecker, digits: jax.Array) -> jax.Array:
    out = None
    for core, j in zip(reversed(scaled_cores(p)), reversed(digits), strict=True):
        slices = jnp.moveaxis(core[:, :, j], 2, 0)  # (columns, r, m, r')
        if out is None:
            out = slices[..., 0]
            continue
        # A sum of products, which XLA fuses with what follows; a batched product it would not.
        step = jnp.sum(slices[..., None] * out[:, None, None], axis=3)
        out = step.reshape(*step.shape[:2], -1)
    assert out is not None
    return out[:, 0, : p.out_size]


def _sparse(p: Sparse, flat: jax.Array) -> jax.Array:
    """Looks up the columns of a sparse random map that sparse input selects, by bisection."""
    starts = jnp.arange(p.out_size, dtype=jnp.int32) * p.in_size
    wanted = starts[None] + flat[:, None]
    place = jnp.minimum(jnp.searchsorted(p.index, wanted), p.index.shape[0] - 1)
    found = p.index[place] == wanted
    return jnp.where(found, p.sign[place], 0) * math.sqrt(p.law.fourth_moment / p.out_size)
