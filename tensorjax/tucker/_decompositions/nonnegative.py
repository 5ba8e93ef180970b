"""Non-negative Tucker decomposition by multiplicative updates, of masked data too."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.unfoldings import unfold
from tensorjax._formats.random_arrays import one_on_host
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike
from tensorjax.tucker._core_and_factors import times
from tensorjax.tucker._decompositions.fits import FitInfo, as_tucker, checked_data, relative_error
from tensorjax.tucker._types import Tucker


@placed
def nonnegative(
    x: ArrayLike,
    *,
    rank: int | Sequence[int],
    key: jax.Array,
    mask: ArrayLike | None = None,
    tol: float = 1e-6,
    max_sweeps: int = 1000,
) -> tuple[Tucker, FitInfo]:
    """Fits a Tucker tensor with non-negative core and factors to a non-negative dense array.

    Args:
      x: (n_1, …, n_d), concrete and real, no entry negative.
      rank: multilinear ranks, one int for all modes (cut at n_k) or one per mode.
      key: `jax.random.key` of the random start; other keys may find other local minima.
      mask: Booleans of the shape of ``x``: only entries where it is true are fitted. All if None.
      tol: change of the relative error, from one sweep to the next, at which sweeps stop.
      max_sweeps: most sweeps over all factors and the core.

    Returns:
      (Tucker with a dense core, `FitInfo`). The error never grows from sweep to sweep; the minimum
      found is a local one.

    Raises:
      TypeError: complex, integer or traced data. ValueError: entries that are negative, NaN or Inf
        where the mask keeps them, a mask of another shape, impossible ranks.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> x = jnp.outer(jnp.arange(1.0, 5.0), jnp.arange(0.0, 3.0))
      >>> t, info = tucker.nonnegative(x, rank=1, key=jax.random.key(0))
      >>> info.error < 1e-4, bool((t.core >= 0).all())
      (True, True)

    Source: Y.-D. Kim, S. Choi, "Nonnegative Tucker decomposition", CVPR (2007), in the Euclidean
    distance; the mask weights both sides of every update, as in non-negative matrix factorisation.
    """
    host, kept = checked_data(x, mask)
    if np.iscomplexobj(host):
        raise TypeError(
            f"x: expected a real dtype, got {host.dtype}; take x.real or abs(x), whichever is meant"
        )
    if (host < 0).any():
        raise ValueError(f"x: expected entries of at least 0, got {host.min():.3g}")
    _check.integer("max_sweeps", max_sweeps, low=1)
    _check.number("tol", tol, low=0)
    ranks = _check.bond_ranks(rank, host.shape, place="mode")
    small, exponent = linalg.normalized(host)
    seeds = one_on_host(jax.random.bits, key, (4,), np.uint32)
    if seeds is None:
        seeds = np.asarray(jax.random.bits(key, (4,), np.uint32))
    rng = np.random.default_rng(seeds)
    factors = [rng.random((n, s)) + 0.1 for n, s in zip(host.shape, ranks, strict=True)]
    core = rng.random(ranks) + 0.1
    core = core * (small.sum() / max(float(_masked(times(core, factors), kept).sum()), 1e-300))
    sweeps, last, status = 0, math.inf, "max_sweeps"
    while sweeps < max_sweeps and status != "converged":
        core, factors = _sweep(small, core, factors, kept)
        error = relative_error(small, times(core, factors), kept)
        sweeps, status = sweeps + 1, "converged" if abs(last - error) <= tol else status
        last = error
    return as_tucker(core, factors, exponent, x), FitInfo(status, last, sweeps)


def _masked(x: np.ndarray, kept: Any) -> np.ndarray:
    return x if kept is None else np.where(kept, x, 0)


def _sweep(x: np.ndarray, core: Any, factors: list[Any], kept: Any) -> tuple[Any, list[Any]]:
    """Updates Tucker factors and core multiplicatively, which keeps them non-negative."""
    factors = list(factors)
    for k, u in enumerate(factors):
        rest = unfold(times(core, [None if j == k else v for j, v in enumerate(factors)]), k)
        fitted = _masked(times(core, factors), kept)
        factors[k] = u * _quotient(unfold(x, k) @ rest.T, unfold(fitted, k) @ rest.T)
    back = [u.T for u in factors]
    fitted = _masked(times(core, factors), kept)
    return core * _quotient(times(x, back), times(fitted, back)), factors


def _quotient(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Divides a gradient's parts, for a multiplicative Tucker update; 0 where both vanish."""
    tiny = np.finfo(below.dtype).tiny
    return above / np.maximum(below, tiny) * (below > tiny)
