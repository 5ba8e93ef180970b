"""C++ kernels of embedding lookups and of their gradients."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tensorjax._native.accepted_arrays import check_train


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
    """Computes gradients of an embedding lookup by a C++ kernel, from cotangents (n, features)."""
    _check_lookup(cores, gates, ids)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (*cores, *gates)]
    call = jax.ffi.ffi_call("tensorjax_lookup_gradient", shapes, vmap_method="sequential")
    out = list(call(ids, *cores, *gates, cotangent))
    return out[: len(cores)], out[len(cores) :]


def _check_lookup(cores: Sequence[Any], gates: Sequence[Any], ids: Any) -> None:
    check_train(cores, 4)
    if ids.dtype != np.int32 or len(ids.shape) != 1:
        raise ValueError(f"ids: expected (n,) of int32, got {ids.shape} of {ids.dtype}")
    wanted = [((c.shape[3],), c.dtype) for c in cores[:-1]]
    if wanted != [(g.shape, g.dtype) for g in gates]:
        raise ValueError(f"gates: expected shapes and types {wanted}, got {[*gates]}")
