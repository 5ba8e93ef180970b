"""Moments of a train's entries under a product distribution, and its probabilities, checked."""

from collections.abc import Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._formats.trains import TT, single
from tensorjax._placement import placed
from tensorjax.tt._arrays.elementwise import power as powered
from tensorjax.tt._arrays.mode_products import contract_modes
from tensorjax.tt._arrays.reductions import Axis, _kept, _modes
from tensorjax.tt._exact_arithmetic import add, scale
from tensorjax.tt._rounding.orthogonalize import orthogonalize


@overload
def moment(
    t: TT,
    power: int,
    axis: None = None,
    *,
    central: bool = False,
    weights: Sequence[Any] | None = None,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
) -> jax.Array: ...
@overload
def moment(
    t: TT,
    power: int,
    axis: Axis = None,
    *,
    central: bool = False,
    weights: Sequence[Any] | None = None,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
) -> Any: ...
@placed
def moment(
    t: TT,
    power: int,
    axis: Axis = None,
    *,
    central: bool = False,
    weights: Sequence[Any] | None = None,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
) -> Any:
    """Computes a moment E[x^p] of a train's entries over all modes, a scalar, or over some, a TT.

    Args:
      t: TT, the values of a function on a grid, one mode for each independent variable.
      power: p, at least 1. p = 1 gives (conditional) means.
      axis: modes to average over; the moments are conditional on the indices of the others. All
        if None.
      central: whether of x less its mean, conditional as the moment is: E[(x − E[x])^p].
      weights: (n_k,) probabilities for each mode, which need not be normalised; equal if None.
        Those of modes that are not averaged over are not used.
      tol: relative error of each product of trains in x^p; outside jit.
      rank: TT-ranks of the products. With neither, all is exact, at ranks of r^p, (2r)^p if
        ``central``.

    Returns:
      Scalar, or TT of the modes that remain. Complex x are not conjugated.

    Raises:
      ValueError: a power below 1, modes out of range or given twice, weights that are negative.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> x, y = tt.meshgrid(jnp.array([-1.0, 1.0]), jnp.array([0.0, 3.0]))
      >>> apart = tt.to_dense(tt.moment(x + y, 2, axis=0, central=True))
      >>> print(tt.moment(x + y, 2), apart.round(4))
      5.5 [1. 1.]

    Source: ours; the powers are those of `power`.
    """
    single("t", t, TT, entries=True)
    power = _check.integer("power", power, low=1)
    modes = _modes(axis, t.order)
    given = checked_weights(weights, t)
    vectors = {k: jnp.asarray(given[k], jnp.finfo(t.dtype).dtype) for k in modes}
    vectors = {k: v.astype(t.dtype) for k, v in vectors.items()}
    if _check.flag("central", central):
        # Orthogonal, for powers of the two terms of x − E[x] would cancel where they are alike.
        t = orthogonalize(add(t, scale(_kept(contract_modes(t, vectors), t, axis), -1)), 0)
    return contract_modes(powered(t, power, tol=tol, rank=rank) if power > 1 else t, vectors)


def checked_weights(weights: Sequence[Any] | None, t: TT) -> list[Any]:
    """Normalises weights of a train's modes to probabilities, for moments; ValueError if wrong.

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
    """Averages each core over its mode's probabilities, for moments; returns the deviations too."""
    out = []
    for core, w in zip(t.cores, weights, strict=True):
        xp = np if linalg.is_host(core) else jnp
        slices = xp.swapaxes(core, 0, 1)
        w = xp.asarray(w, xp.finfo(core.dtype).dtype)[:, None, None]
        mean = (w.astype(core.dtype) * slices).sum(0)
        out.append((mean, xp.sqrt(w).astype(core.dtype) * (slices - mean[None])))
    return out
