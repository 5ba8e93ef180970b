"""Argument checks of the C++ kernels: dtypes, and cores that form a train."""

from collections.abc import Sequence
from typing import Any

import numpy as np

_REAL = (np.float32, np.float64)
GRAM_DTYPES = {np.dtype(t): np.result_type(t, np.float64) for t in "fdFD"}  # types of Gram matrices


def check_train(cores: Sequence[Any], ndim: int) -> None:
    """Raises ValueError unless cores form a train that the C++ kernels accept."""
    check_arrays(cores[0].dtype, cores)
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


def check_arrays(dtype: Any, arrays: Sequence[Any]) -> None:
    """Raises ValueError unless all arrays have one dtype that the C++ kernels are compiled for."""
    dtypes = {np.dtype(dtype), *(x.dtype for x in arrays)}
    if len(dtypes) > 1 or np.dtype(dtype) not in _REAL:
        found = sorted(map(str, dtypes))
        raise ValueError(f"expected arrays of one type, float32 or float64, got {found}")
