"""Unfoldings of tensor-train cores (r, n, s), NumPy or JAX, and products of them with matrices."""

import math
from typing import Any

Cores = list[Any]


def tall(core: Any) -> Any:
    """Reshapes a core (r, n, s) to its left unfolding, the matrix (r n, s)."""
    return core.reshape(math.prod(core.shape[:-1]), core.shape[-1])


def wide(core: Any) -> Any:
    """Reshapes a core (r, n, s) to its right unfolding, the matrix (r, n s)."""
    return core.reshape(core.shape[0], math.prod(core.shape[1:]))
