"""C++ kernel of a sketch: a large array contracted with two cores."""

import jax

from tensorjax._native.accepted_arrays import check_arrays


def sketch(x: jax.Array, a: jax.Array, c: jax.Array) -> jax.Array:
    """Sketches a large array: contracts it with two cores by the C++ kernel, called from XLA.

    y_bjk = Σ_nmr x_bnm a_njr c_rmk.

    Args:
      x: (batch, n, m), float32 or float64; large.
      a: (n, j, r).
      c: (r, m, k).
    """
    check_arrays(x.dtype, (a, c))
    ((batch, n, m), (_, j, r), (_, _, k)) = x.shape, a.shape, c.shape
    if a.shape[0] != n or c.shape[:2] != (r, m):
        raise ValueError(
            f"expected (b, n, m), (n, j, r), (r, m, k), got {x.shape, a.shape, c.shape}"
        )
    shape = jax.ShapeDtypeStruct((batch, j, k), x.dtype)
    call = jax.ffi.ffi_call("tensorjax_sketch", shape, vmap_method="broadcast_all")
    return call(x, a, c)
