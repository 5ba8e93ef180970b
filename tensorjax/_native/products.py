"""C++ kernels of inner and entry-wise products of two trains."""

from collections.abc import Sequence

import jax
import numpy as np

from tensorjax._native.argument_checks import check_arrays, check_train


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
        check_train(train, 3)
        check_arrays(np.float64, train)
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
    check_arrays(xs[0].dtype, (*xs, *ys))
    for x, y in zip(xs, ys, strict=True):
        if len(x.shape) != 3 or len(y.shape) != 3 or x.shape[1] != y.shape[1]:
            raise ValueError(f"expected cores (r, n, s) and (q, n, t), got {x.shape}, {y.shape}")
    shapes = product_shapes(xs, ys)
    call = jax.ffi.ffi_call("tensorjax_multiply", shapes, vmap_method="broadcast_all")
    return list(call(*xs, *ys))


def product_shapes(xs: Sequence[jax.Array], ys: Sequence[jax.Array]) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of the cores that the C++ kernel `multiply` makes."""
    return [
        jax.ShapeDtypeStruct((r * q, n, s * t), xs[0].dtype)
        for (r, n, s), (q, _, t) in ((x.shape, y.shape) for x, y in zip(xs, ys, strict=True))
    ]
