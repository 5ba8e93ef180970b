"""Two-site tensors for disentangler searches: unfold, apply a disentangler, draw at random."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorjax._cores.contractions import einsum, times_mode


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Draws normal entries for a search of disentanglers, real or complex, by a NumPy generator."""
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def unfolded(y: np.ndarray, n: int) -> np.ndarray:
    """Unfolds two-site tensors (…, r₁, n₁ n₂, r₂) across their middle to (r₁ n₁) × (n₂ r₂)."""
    *batch, r, m, s = y.shape
    return y.reshape(*batch, r * n, m // n * s)


def pairing(y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the adjoint of the linear map z ↦ z y for a two-site tensor y, as a function.

    With a batch of tensors y, (b, r₁, m, r₂), there is a map for each.
    """
    right = np.ascontiguousarray(y.conj().swapaxes(-1, -2))
    expression = "imj,ijp->mp" if y.ndim == 3 else "bimj,bijp->bmp"
    return lambda a: einsum(expression, a.reshape(y.shape), right)


def unfolded_pair(x: np.ndarray) -> np.ndarray:
    """Unfolds a two-site tensor across its middle bond to (r1 n1) × (n2 r2)."""
    return x.reshape(x.shape[0] * x.shape[1], -1)


def applied(u: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Applies a disentangler, a unitary on two sites, to the middle legs of a two-site tensor."""
    r, n, k, s = x.shape
    return times_mode(x.reshape(r, n * k, s), u).reshape(x.shape)
