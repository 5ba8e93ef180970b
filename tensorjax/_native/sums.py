"""C++ kernel of the sum of two tensor trains."""

from collections.abc import Sequence

import jax
import numpy as np


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
