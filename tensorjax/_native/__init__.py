"""Optional C++ kernels for tensor trains on CPUs: rounding, inner products, sketches, lookups.

XLA compiles a program for every shape, and its small products, factorisations and eigenproblems
reach a tenth of what a core can do. `round_to_ranks`, `inner`, `multiply`, `add` and `sketch` call
compiled code instead, under jit and vmap like any other operation, and so do lookups in
`tensorjax.nn`; `gram_round`, `tt_svd`, `entries` and the passes serve the host.
A wheel for Linux holds them for several levels of CPUs, and `kernels` says which one serves; from
source, hatch_build.py compiles them if there is a compiler. Without it, on other machines and for
other dtypes, XLA's programs serve. So they do on other platforms, in programs made for
`jax.export` and where XLA would have to split a call over devices. The table in
tensorjax/_kernels/table.py says which calls these kernels serve. TENSORJAX_NATIVE=0 in the
environment turns the sweeps off, and TENSORJAX_NATIVE=x86-64-v2, for one, asks for no better level
than that.
"""

import ctypes
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tensorjax._native.loading import kernels as kernels
from tensorjax._native.loading import loaded
from tensorjax._native.loading import status as status

_REAL = (np.float32, np.float64)


def basis_columns(
    shape: Sequence[int], ranks: Sequence[int], widths: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Returns upper bounds on the basis columns of every bond, to size C++ workspaces."""
    out, left = [], 1
    for k, r in enumerate(ranks[1:-1]):
        left = min(left * shape[k], r)
        if widths is not None:
            left = min(left, widths[k], math.prod(shape[k + 1 :]))
        out.append(left)
    return tuple(out)


def round_to_ranks(
    cores: Sequence[jax.Array],
    draw: jax.Array,
    mix: jax.Array,
    ranks: tuple[int, ...],
    matrices: Sequence[jax.Array] = (),
) -> list[jax.Array]:
    """Rounds a train, or a TT-matrix times a train, to given TT-ranks by a C++ kernel.

    Args:
      cores: (r_{k-1}, n_k, r_k) each, float32 or float64; computed in float64.
      draw: (Σ n, w) random numbers of the sketch's train; every bond gets as many columns above its
        rank as w has above the largest, and with none nothing is cut afterwards. w = 0 for bases
        by QR, without a sketch.
      mix: (w, w), orthogonal.
      ranks: d−1, none above what the modes or the present ranks allow.
      matrices: cores (a_{k-1}, m_k, n_k, a_k) of the matrix train; the product, with modes m_k, is
        not formed. Not with w = 0.
    """
    _check_train(cores, 3)
    if matrices:
        _check_train(matrices, 4)
        if [c.shape[1] for c in cores] != [a.shape[2] for a in matrices]:
            raise ValueError("matrices: expected as many columns as the cores have modes")
    modes, width = sum(c.shape[1] for c in matrices or cores), mix.shape[-1]
    _check_arrays(cores[0].dtype, (*matrices, draw, mix))
    if draw.shape != (modes, width) or mix.shape != (width, width):
        raise ValueError(
            f"draw, mix: expected ({modes}, w) and (w, w), got {draw.shape}, {mix.shape}"
        )
    if len(ranks) != len(cores) - 1:
        raise ValueError(f"ranks: expected {len(cores) - 1}, got {len(ranks)}")
    bonds = [c.shape[-1] * (matrices[k].shape[-1] if matrices else 1) for k, c in enumerate(cores)]
    old, results = (1, *bonds), rounded_shapes(matrices or cores, ranks)
    shape = [r.shape[1] for r in results]
    call = jax.ffi.ffi_call("tensorjax_round", results, vmap_method="broadcast_all")
    widths = [r + width - max(ranks) for r in ranks] if width else None
    out = call(
        draw, mix, *matrices, *cores,
        ranks=np.asarray(ranks, np.int64),
        columns=np.asarray(basis_columns(shape, old, widths), np.int64),
    )  # fmt: skip
    return list(out)


def rounded_shapes(
    cores: Sequence[jax.Array], ranks: tuple[int, ...]
) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of the cores that the C++ kernel `round_to_ranks` makes."""
    new = (1, *ranks, 1)
    return [
        jax.ShapeDtypeStruct((new[k], c.shape[1], new[k + 1]), c.dtype) for k, c in enumerate(cores)
    ]


def _check_train(cores: Sequence[Any], ndim: int) -> None:
    """Raises ValueError unless cores form a train that the C++ kernels accept."""
    _check_arrays(cores[0].dtype, cores)
    bond = 1
    for core in cores:
        if len(core.shape) != ndim or 0 in core.shape or core.shape[0] != bond:
            shapes = [c.shape for c in cores]
            raise ValueError(
                f"cores: expected {ndim} axes each, none empty, that fit together, got {shapes}"
            )
        bond = core.shape[-1]
    if bond != 1:
        raise ValueError(f"cores: expected a last one with s = 1, got {cores[-1].shape}")


def _check_arrays(dtype: Any, arrays: Sequence[Any]) -> None:
    dtypes = {np.dtype(dtype), *(x.dtype for x in arrays)}
    if len(dtypes) > 1 or np.dtype(dtype) not in _REAL:
        found = sorted(map(str, dtypes))
        raise ValueError(f"expected arrays of one type, float32 or float64, got {found}")


def inner(
    xs: Sequence[jax.Array], ys: Sequence[jax.Array] | None = None
) -> tuple[jax.Array, jax.Array]:
    """Computes the inner product of two trains by a C++ kernel, as mantissa and exponent (m, e).

    Its value is Σ x_i y_i = m·2^e.

    Args:
      xs: cores (r_{k-1}, n_k, r_k) of x, none empty.
      ys: of y, with the same n_k; None stands for x.
    """
    for train in (xs, ys or xs):
        _check_train(train, 3)
        _check_arrays(np.float64, train)
    if ys and [c.shape[1] for c in xs] != [c.shape[1] for c in ys]:
        raise ValueError("ys: expected the modes of xs")
    shapes = [jax.ShapeDtypeStruct((), np.float64), jax.ShapeDtypeStruct((), np.int32)]
    call = jax.ffi.ffi_call("tensorjax_inner", shapes, vmap_method="broadcast_all")
    m, e = call(*xs, *(ys or ()), order=np.int64(len(xs)))
    return m, 2 * e


def multiply(xs: Sequence[jax.Array], ys: Sequence[jax.Array]) -> list[jax.Array]:
    """Computes the entry-wise (Hadamard) product of two trains by a C++ kernel, as its cores.

    Args:
      xs: cores (r, n, s) of x, float32 or float64, none empty.
      ys: cores (q, n, t) of y, of the same dtype.
    """
    _check_arrays(xs[0].dtype, (*xs, *ys))
    for x, y in zip(xs, ys, strict=True):
        if len(x.shape) != 3 or len(y.shape) != 3 or x.shape[1] != y.shape[1]:
            raise ValueError(f"expected cores (r, n, s) and (q, n, t), got {x.shape}, {y.shape}")
    shapes = product_shapes(xs, ys)
    call = jax.ffi.ffi_call("tensorjax_multiply", shapes, vmap_method="broadcast_all")
    return list(call(*xs, *ys))


def add(xs: Sequence[jax.Array], ys: Sequence[jax.Array]) -> list[jax.Array]:
    """Adds two trains by a C++ kernel; returns block-diagonal cores, and exponents of both.

    Args:
      xs: cores (…, r, n, s) of x, two or more, single or double precision, none empty.
      ys: cores (…, q, n, t) of y, of the same dtype.

    Returns:
      The cores, and the powers of two (…, 2 d) by which those of x, then of y, were multiplied.
    """
    call = jax.ffi.ffi_call("tensorjax_add", sum_shapes(xs, ys), vmap_method="broadcast_all")
    return list(call(*xs, *ys))


def sum_shapes(xs: Sequence[jax.Array], ys: Sequence[jax.Array]) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of what the C++ kernel `add` makes."""
    last = len(xs) - 1
    out = []
    for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
        *batch, r, n, s = x.shape
        rows, columns = r + (y.shape[-3] if k else 0), s + (y.shape[-1] if k < last else 0)
        out.append(jax.ShapeDtypeStruct((*batch, rows, n, columns), x.dtype))
    return [*out, jax.ShapeDtypeStruct((*xs[0].shape[:-3], 2 * len(xs)), np.int32)]


def product_shapes(xs: Sequence[jax.Array], ys: Sequence[jax.Array]) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of the cores that the C++ kernel `multiply` makes."""
    return [
        jax.ShapeDtypeStruct((r * q, n, s * t), xs[0].dtype)
        for (r, n, s), (q, _, t) in ((x.shape, y.shape) for x, y in zip(xs, ys, strict=True))
    ]


def sketch(x: jax.Array, a: jax.Array, c: jax.Array) -> jax.Array:
    """Contracts a large array with two cores of a sketch by a C++ kernel, in one pass.

    y_bjk = Σ_nmr x_bnm a_njr c_rmk.

    Args:
      x: (batch, n, m), float32 or float64; large.
      a: (n, j, r).
      c: (r, m, k).
    """
    _check_arrays(x.dtype, (a, c))
    ((batch, n, m), (_, j, r), (_, _, k)) = x.shape, a.shape, c.shape
    if a.shape[0] != n or c.shape[:2] != (r, m):
        raise ValueError(
            f"expected (b, n, m), (n, j, r), (r, m, k), got {x.shape, a.shape, c.shape}"
        )
    shape = jax.ShapeDtypeStruct((batch, j, k), x.dtype)
    call = jax.ffi.ffi_call("tensorjax_sketch", shape, vmap_method="broadcast_all")
    return call(x, a, c)


def look_up(
    cores: Sequence[jax.Array], gates: Sequence[jax.Array], ids: jax.Array, features: int
) -> jax.Array:
    """Looks up rows of an embedding stored as a TT-matrix, by a C++ kernel.

    Row i has the columns of ∏ G_k[i_k] D_k.

    Args:
      cores: d ≥ 2 cores (r_{k-1}, m_k, n_k, r_k), float32 or float64, none empty.
      gates: (r_k,) the diagonal of every D_k, of the same dtype.
      ids: (n,), int32, not negative. Of size = Π m_k the row is zero, of size + 1 it is NaN.
      features: at most Π n_k.
    """
    _check_lookup(cores, gates, ids)
    shape = jax.ShapeDtypeStruct((len(ids), features), cores[0].dtype)
    return jax.ffi.ffi_call("tensorjax_lookup", shape, vmap_method="sequential")(
        ids, *cores, *gates
    )


def look_up_gradient(
    cores: Sequence[jax.Array], gates: Sequence[jax.Array], ids: jax.Array, cotangent: jax.Array
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Computes the gradients of an embedding lookup by a C++ kernel, from rows' cotangents.

    The cotangents have shape (n, features).
    """
    _check_lookup(cores, gates, ids)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (*cores, *gates)]
    call = jax.ffi.ffi_call("tensorjax_lookup_gradient", shapes, vmap_method="sequential")
    out = list(call(ids, *cores, *gates, cotangent))
    return out[: len(cores)], out[len(cores) :]


def _check_lookup(cores: Sequence[Any], gates: Sequence[Any], ids: Any) -> None:
    _check_train(cores, 4)
    if ids.dtype != np.int32 or len(ids.shape) != 1:
        raise ValueError(f"ids: expected (n,) of int32, got {ids.shape} of {ids.dtype}")
    wanted = [((c.shape[3],), c.dtype) for c in cores[:-1]]
    if wanted != [(g.shape, g.dtype) for g in gates]:
        raise ValueError(f"gates: expected shapes and types {wanted}, got {[*gates]}")


_JOINED = 2**13  # elements of arrays that are copied together, to pass their addresses
_INVALID, _NO_MEMORY = -1, -2  # what calls return, as in buffers.h
_GRAMS = {np.dtype(t): np.result_type(t, np.float64) for t in "fdFD"}  # types of Gram matrices


def gram(a: np.ndarray, right: bool = False) -> np.ndarray:
    """Computes the Gram matrix of a wide or tall matrix in one pass of a C++ kernel.

    A Aᴴ; with ``right``, Aᴴ A of a tall matrix.

    In double precision, whatever the precision of A.
    """
    if a.ndim != 2 or not a.size or a.dtype not in _GRAMS or not a.flags.aligned:
        raise ValueError(f"a: expected a real or complex matrix, got {a.shape} {a.dtype}")
    parts = 2 if a.dtype.kind == "c" else 1
    size = a.dtype.itemsize // parts
    if min(a.strides) < 0 or any(s % size for s in a.strides):
        a = np.ascontiguousarray(a)
    (rows, columns), (down, along) = a.shape, (s // size for s in a.strides)
    if right:
        rows, columns, down, along = columns, rows, along, down
    out = np.empty((rows, rows), _GRAMS[a.dtype])
    _called("tensorjax_wide_gram", rows, columns, parts, int(size == 4), down, along, a, out)
    return out.conj() if right and parts == 2 else out


def project(u: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Computes the product Uᵀ A for a wide matrix A in one pass of a C++ kernel."""
    u, a = _host("u", u, 2), _host("a", a, 2)
    if len(u) != len(a):
        raise ValueError(f"u, a: expected as many rows, got {u.shape} and {a.shape}")
    out = np.empty((u.shape[1], a.shape[1]))
    _called("tensorjax_project", *a.shape, u.shape[1], u, a, out)
    return out


def pivoted_cholesky(g: np.ndarray, roundoff: float) -> np.ndarray:
    """Computes a pivoted Cholesky factor of a Gram matrix by a C++ kernel, up to roundoff.

    L (n, m) with L Lᵀ = G but for entries of ``roundoff``.
    """
    g = _host("g", g, 2)
    if g.shape[0] != g.shape[1]:
        raise ValueError(f"g: expected a square matrix, got {g.shape}")
    lower = np.empty(g.shape)
    rank = _called("tensorjax_factor", len(g), g, float(roundoff), lower)
    return lower[:rank].T


def gram_round(cores: Sequence[np.ndarray], share: float) -> list[np.ndarray] | None:
    """Rounds a train by a C++ kernel, discarding a share of its energy at most.

    None where Gram matrices are too inaccurate for that.
    """
    cores = [_host(f"cores[{k}]", c, 3) for k, c in enumerate(cores)]
    _check_train(cores, 3)
    modes = np.array([c.shape[1] for c in cores], np.int64)
    ranks = np.array([1, *(c.shape[2] for c in cores)], np.int64)
    pointers = np.array([c.ctypes.data for c in cores], np.uintp)
    out = np.empty(sum(c.size for c in cores))
    arguments = len(cores), modes, ranks, pointers, float(share), out
    if not _called("tensorjax_gram_round", *arguments):
        return None
    shapes = list(zip(ranks[:-1], modes, ranks[1:], strict=True))
    ends = np.cumsum([math.prod(s) for s in shapes])
    return [a.reshape(s) for a, s in zip(np.split(out[: ends[-1]], ends[:-1]), shapes, strict=True)]


def tt_svd(x: np.ndarray, share: float, noise: float) -> list[np.ndarray] | None:
    """Computes the TT-SVD of a small dense array by a C++ kernel; None if it cannot.

    Args:
      x: (n_1, …, n_d), d ≥ 2, real or complex, of single or double precision; so are the cores.
        Computed in double precision.
      share: of the energy that every bond may discard.
      noise: of a Gram matrix, as a share of the energy.
    """
    if x.ndim < 2 or not x.size or x.dtype not in _GRAMS:
        raise ValueError(
            f"x: expected two modes or more of real or complex numbers, got {x.shape}, {x.dtype}"
        )
    x = np.require(x, requirements=["C", "A"])
    modes, ranks = np.array(x.shape, np.int64), np.empty(x.ndim + 1, np.int64)
    out = np.empty(_most_entries(x.shape), x.dtype)
    parts = 2 if x.dtype.kind == "c" else 1
    single = int(x.dtype.itemsize // parts == 4)
    arguments = x.ndim, modes, parts, single, x, float(share), float(noise), ranks, out
    if not _called("tensorjax_tt_svd", *arguments):
        return None
    cores, at, found = [], 0, ranks.tolist()
    for left, n, right in zip(found[:-1], x.shape, found[1:], strict=True):
        size = left * n * right
        cores.append(out[at : at + size].reshape(left, n, right))
        at += size
    return cores


def entries(cores: Sequence[np.ndarray], indices: np.ndarray) -> np.ndarray:
    """Evaluates entries of a train at multi-indices on the host, by a C++ kernel.

    Args:
      cores: (r_{k−1}, n_k, r_k) each, of one real or complex type of single or double precision;
        computed in double precision.
      indices: integers, each in [−n_k, n_k).
    """
    dtype, order = cores[0].dtype, len(cores)
    shapes = [c.shape for c in cores]
    bonds = [1, *(s[-1] for s in shapes)]
    fit = all(len(s) == 3 and s[0] == b and 0 not in s for s, b in zip(shapes, bonds, strict=False))
    if not fit or bonds[-1] != 1 or dtype not in _GRAMS or any(c.dtype != dtype for c in cores):
        raise ValueError(f"cores: expected a train of one type, got {shapes} of {dtype}")
    if indices.ndim != 2 or indices.shape[1] != order or not indices.size:
        raise ValueError(f"indices: expected (batch, {order}), got {indices.shape}")
    pointers, kept = _addresses(cores)
    ids = np.require(indices, np.int64, ["C", "A"])
    sizes = np.array([s[1] for s in shapes], np.int64), np.array(bonds, np.int64)
    parts = 2 if dtype.kind == "c" else 1
    out = np.empty(len(ids), dtype)
    single = int(dtype.itemsize // parts == 4)
    _called("tensorjax_entries", order, *sizes, pointers, parts, single, len(ids), ids, out)
    del kept  # until here: the pointers are to it
    return out


def _addresses(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, Any]:
    """Returns the addresses of arrays of one type, and an object that keeps their memory alive.

    NumPy takes longer to tell an address than to copy a small array: small ones are joined.
    """
    sizes = [a.size for a in arrays]
    if sum(sizes) <= _JOINED:
        joined = np.concatenate(arrays, axis=None)
        starts = itertools.accumulate(sizes[:-1], initial=0)
        first, step = joined.ctypes.data, joined.itemsize
        return np.array([first + step * start for start in starts], np.uintp), joined
    held = [np.require(a, requirements=["C", "A"]) for a in arrays]
    return np.array([a.ctypes.data for a in held], np.uintp), held


@functools.lru_cache(maxsize=4096)
def _most_entries(shape: tuple[int, ...]) -> int:
    """Returns the largest number of entries that the cores of a TT-SVD can have."""
    size, left, most, total = math.prod(shape), 1, 1, 0
    for n in shape:
        left *= n
        before, most = most, min(left, size // left)
        total += before * n * most
    return total


def _called(name: str, *arguments: int | float | np.ndarray) -> int:
    call = _call(name, tuple(map(type, arguments)))
    found = call(*(x.ctypes.data if isinstance(x, np.ndarray) else x for x in arguments))
    if found == _NO_MEMORY:
        raise MemoryError(name)
    if found == _INVALID:
        raise ValueError(f"{name}: expected sizes that fit, of arrays that are not empty")
    return found


@functools.cache
def _call(name: str, kinds: tuple[type, ...]) -> Any:
    """Returns a C++ function by name, for arguments of the given types.

    Arrays are passed by their addresses.
    """
    one = {int: ctypes.c_long, float: ctypes.c_double, np.ndarray: ctypes.c_void_p}
    function: Any = ctypes.CFUNCTYPE(ctypes.c_long, *(one[kind] for kind in kinds))
    return function((name, loaded()[0]))


def _host(name: str, a: Any, ndim: int) -> np.ndarray:
    """Converts an array to contiguous, aligned float64, as the C++ functions require."""
    a = np.asarray(a)
    if a.ndim != ndim or not a.size or not np.can_cast(a.dtype, np.float64):
        raise ValueError(f"{name}: expected {ndim} axes of real numbers, got {a.shape}, {a.dtype}")
    return np.require(a, np.float64, ["C", "A"])
