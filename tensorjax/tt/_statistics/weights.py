"""Probabilities of the indices of a train's modes, and averages of its cores over them."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._formats.trains import TT


def checked_weights(weights: Sequence[Any] | None, t: TT) -> list[Any]:
    """Normalises weights of a train's mode indices to probabilities; ValueError for wrong ones.

    Raises:
      ValueError: wrong counts or shapes, negative weights or a sum of zero, where they are known.
    """
    real = jnp.finfo(linalg.factor_dtype(t.dtype)).dtype
    if weights is None:
        return [np.full(n, 1 / n, real) for n in t.shape]
    given = _check.several("weights", weights, "vectors, one a mode")
    if len(given) != t.order:
        raise ValueError(f"weights: expected {t.order} vectors, one a mode, got {len(given)}")
    return [_probabilities(k, w, t.shape[k], real) for k, w in enumerate(given)]


def _probabilities(k: int, w: Any, n: int, dtype: Any) -> Any:
    if w is None:
        return np.full(n, 1 / n, dtype)
    array = w if isinstance(w, jax.Array) else np.asarray(w, float)
    if array.shape != (n,) or jnp.iscomplexobj(array):
        raise ValueError(f"weights[{k}]: expected a real vector ({n},), got shape {array.shape}")
    if not _check.is_traced(array):
        array = np.asarray(array, float)
        total = array.sum()
        if not (np.isfinite(total) and total > 0 and (array >= 0).all()):
            raise ValueError(
                f"weights[{k}]: expected finite weights of at least 0, not all zero, got {array}"
            )
        return (array / total).astype(dtype)
    return (array / array.sum()).astype(dtype)


def averages(t: TT, weights: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Averages each core over its mode's probabilities; also returns the weighted deviations."""
    out = []
    for core, w in zip(t.cores, weights, strict=True):
        xp = np if linalg.is_host(core) else jnp
        slices = xp.swapaxes(core, 0, 1)
        w = xp.asarray(w, xp.finfo(core.dtype).dtype)[:, None, None]
        mean = (w.astype(core.dtype) * slices).sum(0)
        out.append((mean, xp.sqrt(w).astype(core.dtype) * (slices - mean[None])))
    return out
