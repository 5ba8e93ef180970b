"""Application of random projections to dense, sparse and tensor-train input."""

import functools
import math
from itertools import pairwise
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental import sparse as jsparse

from tensorjax import _blas_threads, _check, _placement, tt
from tensorjax._cores.contractions import einsum
from tensorjax._eager import evaluated_eagerly
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.conditions import fast_by_blas
from tensorjax._kernels.table import NUMPY, PROGRAM, ROUNDED, Kernel
from tensorjax._placement import placed
from tensorjax._symbolic import is_static
from tensorjax._transfer import aligned, on_device
from tensorjax.sketch import _mode_groups, _sparse_input
from tensorjax.sketch._dense_input import project
from tensorjax.sketch._map_cores import as_dtype, merge
from tensorjax.sketch._map_types import Dense, Kronecker, Projection, Sparse, accumulator, promoted
from tensorjax.sketch._train_input import project_train

_HOST_CHUNK = 2**20  # elements of a NumPy array copied to the device at a time
_LEAST_ROWS = 16  # rows in the smallest block of them that a program is compiled for
_LEAST_SPARSE = 256  # the same, of sparse ones
_MOST_SHAPES = 64  # of rows for which a map keeps that NumPy serves them


@overload
def apply(p: Kronecker, x: tt.TT) -> tt.TT: ...
@overload
def apply(p: Kronecker, x: tt.TTMatrix) -> tt.TTMatrix: ...
@overload
def apply(p: Projection, x: Any) -> jax.Array: ...
@placed
def apply(p: Projection, x: Any) -> Any:
    """Applies a random map to x: computes f(x), with E‖f(x)‖² = ‖x‖².

    Compiled once per combination of shapes; works under jit, vmap and grad (also in ``p``). Large
    dense x of a `ttrp` map goes through C++ in programs for one CPU device, where that was built.
    Concrete rows on a CPU, of the dtype of ``p``, are NumPy's work
    with nothing compiled where they are few, in the first ten calls of a shape (of at most 2^25
    elements), and in float64 under `gaussian` maps always.

    Args:
      p: a map from `ttrp`, `gaussian`, `sparse`, `khatri_rao`, `tt_rows` or `cp_rows`.
      x: floating-point or complex, one of

        - an array whose last axis is N = ``p.in_size`` (or ∏ n_k, where N was padded), or whose
          last d axes are ``p.in_shape``; where both hold, as with modes of size one, the last axis
          is taken. Axes before it are a batch. A NumPy array is first copied to the device.
        - a `TT` of shape ``p.in_shape``, of any size ∏ n_k;
        - a `TTMatrix` with ``row_shape`` equal to ``p.in_shape``: f acts on its columns;
        - a scipy.sparse array (rows, N), or a BCOO array with axes as for a dense one: only
          nonzeros are touched.

    Returns:
      For an array, dense or sparse: an array (batch …, M). For a TT or TTMatrix and a map from
      `ttrp`: a TT of shape ``p.out_shape``, or a TTMatrix with these rows; ranks multiply (and
      double if M < ∏ m_k: entries M, M + 1, … are zero). For the other maps, whose rows have no
      product structure: an array (M,), or (M, columns). The dtype is what JAX promotes those of
      p and x to; half-precision products are summed in float32.

    Raises:
      TypeError: x is of integer or extended precision, or p is not a map.
      ValueError: the shape of x does not fit p, or a concrete x has NaN or Inf.

    Example:
      >>> import jax
      >>> from tensorjax import sketch, tt
      >>> p = sketch.ttrp(jax.random.key(0), (10,) * 12, (2,) * 12)
      >>> x = tt.random(jax.random.key(1), (10,) * 12, rank=3)
      >>> sketch.apply(p, x).shape == (2,) * 12
      True
      >>> sketch.apply(sketch.ttrp(jax.random.key(0), 784, 24), jax.numpy.ones((5, 784))).shape
      (5, 24)

    Source: Feng, Tang, He, Zhou, Liao, "Tensor Train Random Projection", arXiv 2010.10797, for
    `ttrp` maps: one product per mode, or per core of a train. For the others see their
    constructors.
    """
    lead = _known_lead(p, x)
    if lead is not None:
        return _finite(x, *_project_by_numpy(p, x, lead))
    if not isinstance(p, Projection):
        raise TypeError(
            f"p: expected a random map, as from sketch.ttrp(key, N, M), got {type(p).__name__}"
        )
    if any(a.ndim != p._array_ndim for a in jax.tree.leaves(p)):
        raise ValueError("p: expected one map, got a batch of them; use jax.vmap(sketch.apply)")
    _check.held("p", p)
    if isinstance(x, tt.TT | tt.TTMatrix):
        _check.held("x", x)
        return _apply_train(p, x)
    if isinstance(x, jsparse.BCOO):
        return _apply_bcoo(p, x)
    if _sparse_input.is_scipy_sparse(x):
        return _apply_scipy(p, x)
    return _apply_dense(p, x)


def is_folded(p: Projection, shape: tuple[int, ...]) -> bool:
    """Whether x to which a map is applied has ``in_shape`` as last axes, not N; or ValueError."""
    size, d = math.prod(p.in_shape), len(p.in_shape)
    if shape and shape[-1] in (p.in_size, size):
        return False
    if shape[-d:] == p.in_shape:
        return True
    padded = f" or {size}" if size != p.in_size else ""
    raise ValueError(
        f"x: expected a last axis of {p.in_size}{padded}, or last axes {p.in_shape}, "
        f"got shape {shape}; reshape x, or draw a map with in_shape={shape[-1:] or 'N'}"
    )


def _apply_dense(p: Projection, x: Any) -> jax.Array:
    x = _check.inexact("x", x)
    lead = x.shape[: -len(p.in_shape)] if is_folded(p, x.shape) else x.shape[:-1]
    chosen = _kernel(p, x)
    if chosen is NUMPY:
        _remember(p, x, lead)
        y, finite = _project_by_numpy(p, x, lead)
    elif chosen is ROUNDED:
        y, finite = _project_host(p, np.asarray(x), lead)
    else:
        y, finite = _project(p, jnp.asarray(x), lead)
    return _finite(x, y, finite)


def _finite(x: Any, y: jax.Array, finite: Any) -> jax.Array:
    """Returns the applied map's image of rows; ValueError if not finite as the rows are not."""
    if not _known_true(finite):
        _check.finite("x", x)
    return y


def _kernel(p: Projection, x: Any) -> Kernel:
    """Chooses the kernel by which `apply` maps dense rows: NumPy or a compiled program."""
    blas = isinstance(p, Dense | Kronecker) and x.dtype == p.dtype
    facts = {"dtype": x.dtype, "map": p, "blas_map": blas, "dense": isinstance(p, Dense)}
    return choose_kernel("sketch.apply", (x,), **facts)


def _remember(p: Projection, x: Any, lead: tuple[int, ...]) -> None:
    """Records in a random map that `apply` uses NumPy for JAX arrays of a shape and dtype.

    Kept where that does not depend on how many calls have come before.
    """
    if _placement._is_alone() and fast_by_blas.holds((x,), {"dense": isinstance(p, Dense)}):
        kept = vars(p).setdefault("_leads", {})
        if len(kept) < _MOST_SHAPES:
            kept[x.shape, x.dtype] = lead


def _known_lead(p: Any, x: Any) -> tuple[int, ...] | None:
    """Returns the batch axes of an input for which `apply` has recorded NumPy; None for others."""
    if not isinstance(x, jax.Array) or isinstance(x, Tracer) or x.committed:
        return None
    kept = getattr(p, "_leads", None)
    if not kept or not _placement._is_alone() or not _check.is_enabled(x.dtype):
        return None
    return kept.get((x.shape, x.dtype))


@evaluated_eagerly
def _project_host(p: Any, x: np.ndarray, lead: tuple[int, ...]) -> tuple[jax.Array, bool]:
    """Applies a random map to NumPy rows by a compiled program, chunk by chunk, uncopied.

    A large copy is slow because the system clears fresh memory page by page; small buffers are
    reused.
    """
    x = x.reshape(math.prod(lead), -1)
    ys, finite, start = [], [], 0
    for rows in _blocks(len(x), max(1, _HOST_CHUNK // x.shape[1])):
        chunk = x[start : start + rows]
        missing = rows - len(chunk)
        if missing:
            padded = np.zeros((rows, x.shape[1]), x.dtype)
            padded[: len(chunk)] = chunk
            chunk = padded
        y, flag = _project(p, chunk, (rows,))
        y = np.asarray(y)  # waits, so that the next chunk finds this one's buffer free
        ys.append(y[: rows - missing])
        finite.append(np.asarray(flag))
        start += rows
    y = np.concatenate(ys) if len(ys) > 1 else ys[0]
    # `jnp.asarray` would compile a program for the new shape.
    return jax.device_put(y.reshape(*lead, p.out_size)), bool(np.all(finite))


def _blocks(count: int, most: int) -> list[int]:
    """Splits NumPy rows into blocks of few sizes to apply a map, so that few programs compile.

    Powers of two, or ``most``. The last block may be padded, to a third more rows in all.
    """
    blocks = [most] * (count // most)
    rest = count % most
    while rest:
        whole = 1 << max(_LEAST_ROWS.bit_length() - 1, rest.bit_length() - 1)
        if whole < rest <= whole + whole // 2:
            blocks.append(whole)
            rest -= whole
        else:
            blocks.append(min(most, max(_LEAST_ROWS, 1 << (rest - 1).bit_length())))
            rest = 0
    return blocks


def _known_true(flag: jax.Array | bool) -> bool:
    if isinstance(flag, bool):
        return flag
    if _check.is_traced(flag) or not flag.is_fully_addressable:
        return True
    return bool(flag)


@functools.partial(jax.jit, static_argnums=2)
def _project(p: Any, x: jax.Array, lead: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    dtype = promoted(p.dtype, x.dtype)
    wide = accumulator(dtype)
    batch = math.prod(lead)
    if is_static(batch) and batch == 0:
        return jnp.zeros((*lead, p.out_size), dtype), jnp.asarray(True)
    x = x.reshape(batch, -1).astype(wide)
    y = project(as_dtype(p, wide), x)
    # Where every entry of x meets the map, NaN or Inf in x shows in y, which is far smaller.
    seen = x if isinstance(p, Sparse) else y
    return y.astype(dtype).reshape(*lead, p.out_size), jnp.all(jnp.isfinite(seen))


def _apply_train(p: Projection, x: tt.TT | tt.TTMatrix) -> Any:
    if x.cores[0].ndim != x._core_ndim:
        raise ValueError("x: expected one train, got a batch; use jax.vmap over it")
    name, modes = ("shape", x.shape) if isinstance(x, tt.TT) else ("row_shape", x.row_shape)
    if modes != p.in_shape:
        raise ValueError(
            f"x: expected {name} {p.in_shape} (p.in_shape), got {modes}; "
            f"draw the map with in_shape={modes}"
        )
    _check.finite("x", x)
    return _project_train(p, x)


@jax.jit
def _project_train(p: Any, x: Any) -> Any:
    dtype = promoted(p.dtype, x.dtype)
    wide = accumulator(dtype)
    y = project_train(as_dtype(p, wide), x.astype(wide))
    return jax.tree.map(lambda a: a.astype(dtype), y)


def _apply_bcoo(p: Projection, x: jsparse.BCOO) -> jax.Array:
    _check.inexact("x", x.data)
    _check.finite("x", x.data)
    return _project_bcoo(p, x, is_folded(p, x.shape))


@functools.partial(jax.jit, static_argnums=2)
def _project_bcoo(p: Any, x: jsparse.BCOO, folded: bool) -> jax.Array:
    lead = x.shape[: -len(p.in_shape)] if folded else x.shape[:-1]
    return _project_sparse(p, _sparse_input.from_bcoo(x, p.in_shape, folded), lead)


def _apply_scipy(p: Projection, x: Any) -> jax.Array:
    x = x.tocoo()
    _check.inexact("x", x.data)
    _check.finite("x", x.data)
    folded = is_folded(p, x.shape)
    lead = x.shape[: -len(p.in_shape)] if folded else x.shape[:-1]
    nonzeros = _sparse_input.from_scipy(x, p.in_shape, folded)
    count = math.prod(lead)
    if choose_kernel("sketch.apply(sparse)", (p,), count=count) is PROGRAM:
        return _project_sparse(p, nonzeros, lead)
    # Rows are rounded up as nonzeros are, and cut on the host: each number would be a program.
    rounded = max(_LEAST_SPARSE, 1 << (count - 1).bit_length())
    y = np.asarray(_project_sparse(p, nonzeros, (rounded,)))[:count]
    return jax.device_put(y.reshape(*lead, p.out_size))


@functools.partial(jax.jit, static_argnums=2)
def _project_sparse(p: Any, nonzeros: Any, lead: tuple[int, ...]) -> jax.Array:
    values, rows, digits = nonzeros
    dtype = promoted(p.dtype, values.dtype)
    wide = accumulator(dtype)
    y = _sparse_input.project(as_dtype(p, wide), values.astype(wide), rows, digits, math.prod(lead))
    return y.astype(dtype).reshape(*lead, p.out_size)


# Below this many elements, BLAS threads cost more than they gain.
_THREADS = 2**18
# Columns of a strip; and bytes of a column of rows, or rows of the map, up to which a product is
# made strip by strip.
_STRIP, _FEW = 1024, 128
# Rows times the square of the largest TT-rank up to which the first modes are mapped first:
# products of so few matrices, each with long rows, cost a BLAS less than one with few columns.
_LONG_ROWS = 512
# Elements of the modes that are then mapped by one product: it takes as long to read the rows.
_JOINED = 32


def _project_by_numpy(p: Any, x: Any, lead: tuple[int, ...]) -> tuple[jax.Array, bool]:
    """Applies a map to rows x on the host by NumPy, to (…, M), and tells if all is finite."""
    rows = np.asarray(x).reshape(math.prod(lead), -1)
    with np.errstate(all="ignore"), _blas_threads.one_thread(rows.size < _THREADS):
        if isinstance(p, Dense):
            matrix = np.asarray(p.matrix)
            y = aligned((len(rows), len(matrix)), rows.dtype)
            _times_transpose(rows, matrix, y)
            y *= 1 / math.sqrt(p.out_size)
        else:
            y = _kronecker(p, rows)
        flat = y.reshape(-1)
        # A finite sum of squares means finite entries, in a fifth of the time.
        finite = math.isfinite(np.vdot(flat, flat).real) or bool(np.isfinite(y).all())
    return on_device([y.reshape(*lead, p.out_size)])[0], finite


def _times_transpose(rows: np.ndarray, matrix: np.ndarray, out: np.ndarray) -> None:
    """Multiplies rows by the transpose of a dense map on the host; few long ones strip by strip.

    A BLAS spends most of the time of a product with so few results on packing what it reads once.
    """
    few = 1 < len(rows) <= _FEW // rows.dtype.itemsize and len(matrix) <= _FEW
    count = rows.shape[1] // _STRIP if few else 0
    if count < 2 and rows.dtype == np.float64:
        # Four fifths of the time: a BLAS packs the smaller factor, here that of the map.
        out[...] = (matrix @ rows.T).T
        return
    if count < 2:
        np.matmul(rows, matrix.T, out=out)
        return
    whole = count * _STRIP
    strips = rows[:, :whole].reshape(len(rows), count, _STRIP).transpose(1, 0, 2)
    of_map = matrix[:, :whole].reshape(len(matrix), count, _STRIP).transpose(1, 2, 0)
    np.matmul(rows[:, whole:], matrix[:, whole:].T, out=out)
    out += (strips @ of_map).sum(0)


def _kronecker(p: Kronecker, x: np.ndarray) -> np.ndarray:
    """Applies a Kronecker map to rows by NumPy on the host, group by group of its modes."""
    batch, size = x.shape
    cores = [np.asarray(c) for c in p.cores]  # of deleted arrays NumPy tells so
    if matrices := _matrices_from_left(p, cores, batch, size):
        return _from_left(x, matrices)[:, : p.out_size]
    n, m, ranks = p.in_shape, p.out_shape, (1, *p.ranks, 1)
    plan = _mode_groups.choose(batch, size, n, m, ranks)
    if plan.pads_input:
        x = np.pad(x, ((0, 0), (0, math.prod(n) - size)))
    y = x.reshape(batch, -1, 1, 1)  # (batch, modes not yet done, bond, modes done)
    for s, e in reversed(list(pairwise(plan.cuts))):
        y = _group(y, merge(cores[s:e], einsum)[:, :, : y.shape[1]])
    y = y.reshape(batch, -1)[:, : p.out_size]
    return y * x.dtype.type(1 / math.sqrt(p.out_size * math.prod(ranks)))


def _matrices_from_left(
    p: Kronecker, cores: list[np.ndarray], batch: int, size: int
) -> list[tuple[Any, int, int]]:
    """Returns a map's matrices on the host, to be applied from the left; none for many rows.

    Each with its rows and columns over one mode of the image: (matrix, m, columns). They are kept
    with the map: to make them takes as long as to map few rows.
    """
    ranks = (1, *p.ranks, 1)
    if size != math.prod(p.in_shape) or batch * max(ranks) ** 2 > _LONG_ROWS:
        return []
    matrices = vars(p).get("_from_left")
    if matrices is None:
        cuts = _cuts_from_left(p.in_shape)
        matrices = []
        for s, e in pairwise(cuts):
            core = merge(cores[s:e], einsum)
            left, m, n, right = core.shape
            matrices.append((core.transpose(1, 3, 0, 2).reshape(m * right, left * n), m, left * n))
        if cuts:
            scale = 1 / math.sqrt(p.out_size * math.prod(ranks))
            last, *sizes = matrices[-1]
            matrices[-1] = (last * last.dtype.type(scale), *sizes)
        vars(p)["_from_left"] = matrices
    return matrices


def _cuts_from_left(n: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the cuts of a Kronecker map's modes to be mapped from the left; none of one group."""
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
        blocks = x.reshape(count, columns, -1)
        x = matrix @ blocks
        count *= m
    matrix, _, columns = matrices[-1]
    rows = x.reshape(-1, columns)
    images = rows @ matrix.T
    return images.reshape(batch, -1)


def _group(y: np.ndarray, core: np.ndarray) -> np.ndarray:
    """Applies a Kronecker map's merged core to an array (batch, n, bond, done), on the host."""
    batch, size, bond, done = y.shape
    left, m, n, _ = core.shape
    rest = size // n
    matrix = core.transpose(2, 3, 0, 1).reshape(n * bond, left * m)
    if done == 1:
        return einsum("bra,alm->brlm", y.reshape(batch, rest, -1), matrix.reshape(-1, left, m))
    rows = y.reshape(batch * rest, n * bond, done)
    images = matrix.T @ rows
    return images.reshape(batch, rest, left, m * done)
