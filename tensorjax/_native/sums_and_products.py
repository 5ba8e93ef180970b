"""C++ kernels of sums, inner products and entry-wise products of tensor trains."""

from collections.abc import Sequence

import jax
import numpy as np

from tensorjax._native.accepted_arrays import check_arrays, check_train


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
    """Returns the shapes of cores and exponents that the C++ kernel `add` returns."""
    last = len(xs) - 1
    out = []
    for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
        *batch, r, n, s = x.shape
        rows, columns = r + (y.shape[-3] if k else 0), s + (y.shape[-1] if k < last else 0)
        out.append(jax.ShapeDtypeStruct((*batch, rows, n, columns), x.dtype))
    return [*out, jax.ShapeDtypeStruct((*xs[0].shape[:-3], 2 * len(xs)), np.int32)]


def inner(
    xs: Sequence[jax.Array], ys: Sequence[jax.Array] | None = None
) -> tuple[jax.Array, jax.Array]:
    """Computes the inner product of two tensor trains by a C++ kernel, as (m, e) for m·2^e.

    Args:
      xs: cores (r_{k-1}, n_k, r_k) of x, none empty.
      ys: of y, with the same n_k; None stands for x.
    """
    for train in (xs, ys or xs):
        check_train(train, 3)
        check_arrays(np.float64, train)
    if ys and [c.shape[1] for c in xs] != [c.shape[1] for c in ys]:
        raise ValueError("ys: expected cores with the modes of xs, got others")
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
    check_arrays(xs[0].dtype, (*xs, *ys))
    for x, y in zip(xs, ys, strict=True):
        if len(x.shape) != 3 or len(y.shape) != 3 or x.shape[1] != y.shape[1]:
            raise ValueError(f"expected cores (r, n, s) and (q, n, t), got {x.shape}, {y.shape}")
    shapes = product_shapes(xs, ys)
    call = jax.ffi.ffi_call("tensorjax_multiply", shapes, vmap_method="broadcast_all")
    return list(call(*xs, *ys))


def product_shapes(xs: Sequence[jax.Array], ys: Sequence[jax.Array]) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of the cores of a product that the C++ kernel `multiply` returns."""
    return [
        jax.ShapeDtypeStruct((r * q, n, s * t), xs[0].dtype)
        for (r, n, s), (q, _, t) in ((x.shape, y.shape) for x, y in zip(xs, ys, strict=True))
    ]


def exact_product(xs: Sequence[jax.Array], ys: Sequence[jax.Array], sums: bool) -> list[jax.Array]:
    """Computes the exact product of two trains by a C++ kernel, as its cores, in range.

    Args:
      xs: cores of x, real or complex, of single or double precision, none empty; with ``sums``
        those of a matrix, (p, m, n, q).
      ys: cores of y, of the same dtype; with ``sums`` (r, n, s) or (r, n, k, s).
      sums: over columns and rows, as for matrices; else the product is entry by entry.
    """
    shapes = [
        jax.ShapeDtypeStruct(_product_shape(x.shape, y.shape, sums), x.dtype)
        for x, y in zip(xs, ys, strict=True)
    ]
    call = jax.ffi.ffi_call("tensorjax_product", shapes, vmap_method="sequential")
    return list(call(*xs, *ys, sums=np.int64(sums)))


def _product_shape(x: Sequence[int], y: Sequence[int], sums: bool) -> tuple[int, ...]:
    modes = (x[1], *y[2:-1]) if sums else y[1:-1]
    return (x[0] * y[0], *modes, x[-1] * y[-1])


def overlap(xs: Sequence[jax.Array], ys: Sequence[jax.Array] = ()) -> jax.Array:
    """Computes the inner product of two tensor trains, or the norm of one, by a C++ kernel.

    Args:
      xs: cores (r, n, s) of x, conjugated, real or complex, of single or double precision, none
        empty; computed in double precision.
      ys: of y, of the same dtype and modes; none for the norm of x, which is real.
    """
    dtype = xs[0].dtype
    shape = jax.ShapeDtypeStruct((), dtype if ys else np.finfo(dtype).dtype)
    call = jax.ffi.ffi_call("tensorjax_overlap", shape, vmap_method="sequential")
    return call(*xs, *ys, order=np.int64(len(xs)), root=np.int64(not ys))
