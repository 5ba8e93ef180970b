"""Unfoldings to matrices: of cores (r, n, s) from left, right or mode, and of dense arrays."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax import linalg

Cores = list[Any]


def tall(core: Any) -> Any:
    """Reshapes a core (r, n, s) to its left unfolding, the matrix (r n, s)."""
    return core.reshape(math.prod(core.shape[:-1]), core.shape[-1])


def wide(core: Any) -> Any:
    """Reshapes a core (r, n, s) to its right unfolding, the matrix (r, n s)."""
    return core.reshape(core.shape[0], math.prod(core.shape[1:]))


def mode_unfolding(core: Any) -> Any:
    """Unfolds a train's core (r, n, s) along its mode: returns the matrix (n, r s)."""
    return core.transpose(1, 0, 2).reshape(core.shape[1], -1)


def unfold(x: Any, k: int) -> Any:
    """Returns the unfolding of a dense array along mode k, a matrix (n_k, ∏ of the other sizes)."""
    xp = np if linalg.is_host(x) else jnp
    return xp.moveaxis(x, k, 0).reshape(x.shape[k], math.prod(x.shape[:k] + x.shape[k + 1 :]))
