"""C++ kernel that evaluates entries of a tensor train at multi-indices."""

from collections.abc import Sequence

import numpy as np

from tensorjax._native.accepted_arrays import GRAM_DTYPES
from tensorjax._native.host_calls import addresses, call


def entries(cores: Sequence[np.ndarray], indices: np.ndarray) -> np.ndarray:
    """Evaluates entries of a tensor train at multi-indices on the host, by a C++ kernel.

    Args:
      cores: (r_{k−1}, n_k, r_k) each, of one real or complex type of single or double precision;
        computed in double precision.
      indices: integers, each in [−n_k, n_k).
    """
    dtype, order = cores[0].dtype, len(cores)
    shapes = [c.shape for c in cores]
    bonds = [1, *(s[-1] for s in shapes)]
    fit = all(len(s) == 3 and s[0] == b and 0 not in s for s, b in zip(shapes, bonds, strict=False))
    if (
        not fit
        or bonds[-1] != 1
        or dtype not in GRAM_DTYPES
        or any(c.dtype != dtype for c in cores)
    ):
        raise ValueError(f"cores: expected a train of one type, got {shapes} of {dtype}")
    if indices.ndim != 2 or indices.shape[1] != order or not indices.size:
        raise ValueError(f"indices: expected (batch, {order}), got {indices.shape}")
    pointers, kept = addresses(cores)
    ids = np.require(indices, np.int64, ["C", "A"])
    sizes = np.array([s[1] for s in shapes], np.int64), np.array(bonds, np.int64)
    parts = 2 if dtype.kind == "c" else 1
    out = np.empty(len(ids), dtype)
    single = int(dtype.itemsize // parts == 4)
    call("tensorjax_entries", order, *sizes, pointers, parts, single, len(ids), ids, out)
    del kept  # until here: the pointers are to it
    return out
