"""Two-site tensors of a disentangler's search: unfolding across the cut, rotation, random draws."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorjax._cores.contractions import einsum


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Draws an array of normal entries, real or complex as the dtype, from a NumPy generator."""
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def unfolded(y: np.ndarray, n: int) -> np.ndarray:
    """Unfolds a two-site tensor (r₁, n₁ n₂, r₂) across its middle to (r₁ n₁) × (n₂ r₂)."""
    r, m, s = y.shape
    return y.reshape(r * n, m // n * s)


def pairing(y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the adjoint of the linear map z ↦ z y, for Procrustes and Gauss–Newton steps."""
    right = np.ascontiguousarray(y.conj().transpose(0, 2, 1))
    return lambda a: einsum("imj,ijp->mp", a.reshape(y.shape), right)


def unfolded_pair(x: np.ndarray) -> np.ndarray:
    """Unfolds a two-site tensor across its middle bond to (r1 n1) × (n2 r2)."""
    return x.reshape(x.shape[0] * x.shape[1], -1)
