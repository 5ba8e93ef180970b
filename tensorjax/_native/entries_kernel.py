"""C++ kernel that evaluates entries of a tensor train at multi-indices."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax._native.accepted_arrays import GRAM_DTYPES
from tensorjax._native.host_calls import Address, address, call

_IN_ONE_PIECE: Any = ["C", "A"]


class Evaluator:
    """Evaluator of entries of one tensor train at multi-indices on the host, by a C++ kernel.

    It has the sizes of the cores and their addresses. The caller holds the cores during a call.
    """

    def __init__(self, cores: Sequence[np.ndarray]) -> None:
        """Checks the cores of a train, and finds where they are.

        Args:
          cores: (r_{k−1}, n_k, r_k) each, in one piece, of one real or complex type of single or
            double precision; computed in double precision.
        """
        dtype, shapes = cores[0].dtype, [c.shape for c in cores]
        bonds = [1, *(s[-1] for s in shapes)]
        fit = all(
            len(s) == 3 and s[0] == b and 0 not in s for s, b in zip(shapes, bonds, strict=False)
        )
        one = dtype in GRAM_DTYPES and all(c.dtype == dtype for c in cores)
        if not fit or bonds[-1] != 1 or not one:
            raise ValueError(f"cores: expected a train of one type, got {shapes} of {dtype}")
        if not in_one_piece(cores):
            raise ValueError("cores: expected contiguous arrays, got others")
        parts = 2 if dtype.kind == "c" else 1
        places = np.array([address(c) for c in cores], np.uintp)
        self._dtype = dtype
        self._sizes = np.array([s[1] for s in shapes]), np.array(bonds), places
        addresses = (Address(address(a)) for a in self._sizes)
        self._known = len(cores), *addresses, parts, int(dtype.itemsize // parts == 4)

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """Evaluates entries at integers (batch, d), each in [−n_k, n_k); ValueError of others."""
        if indices.ndim != 2 or indices.shape[1] != self._known[0] or not indices.size:
            raise ValueError(f"indices: expected (batch, {self._known[0]}), got {indices.shape}")
        ids = indices
        if ids.dtype != np.int64 or not in_one_piece((ids,)):
            ids = np.require(indices, np.int64, _IN_ONE_PIECE)
        out = np.empty(len(ids), self._dtype)
        call("tensorjax_entries", *self._known, len(ids), ids, out)
        return out


def entries(cores: Sequence[np.ndarray], indices: np.ndarray) -> np.ndarray:
    """Evaluates entries of a tensor train at multi-indices on the host, by a C++ kernel.

    Args:
      cores: as for `Evaluator`; those that are not in one piece are copied.
      indices: integers (batch, d), each in [−n_k, n_k).
    """
    held = [np.require(c, requirements=_IN_ONE_PIECE) for c in cores]
    return Evaluator(held)(indices)


def in_one_piece(cores: Sequence[np.ndarray]) -> bool:
    """Whether the kernel for entries of a tensor train can read NumPy cores where they are."""
    return all(c.flags.c_contiguous and c.flags.aligned for c in cores)
