"""Tucker decomposition to given ranks by alternating least squares (HOOI), of masked data too."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.scaling import balanced
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike
from tensorjax.tucker._hosvd import feasible_ranks, st_hosvd
from tensorjax.tucker._types import Tucker, times, unfold


@dataclasses.dataclass(frozen=True)
class FitInfo:
    """Report of an alternating fit of a Tucker tensor: status, error and sweeps.

    Attributes:
      status: "converged", a sweep changed the error by less than ``tol``; or "max_sweeps", the
        sweeps did not suffice: raise ``max_sweeps``.
      error: ‖x − result‖ / ‖x‖ over the entries that the mask keeps.
      sweeps: over all modes.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t, info = tucker.hooi(jnp.ones((3, 4)), rank=1)
      >>> info.status, info.error < 1e-6
      ('converged', True)

    Source: ours.
    """

    status: Literal["converged", "max_sweeps"]
    error: float
    sweeps: int


@placed
def hooi(
    x: ArrayLike,
    *,
    rank: int | Sequence[int],
    mask: ArrayLike | None = None,
    tol: float = 1e-6,
    max_sweeps: int = 100,
) -> tuple[Tucker, FitInfo]:
    """Fits a Tucker tensor of given ranks to a dense array by higher-order orthogonal iteration.

    Args:
      x: (n_1, …, n_d), concrete, floating or complex.
      rank: multilinear ranks, one int for all modes (cut where no mode can need as much) or one per
        mode.
      mask: Booleans of the shape of ``x``: only entries where it is true are fitted, and ``x`` may
        hold anything elsewhere, NaN too. All if None.
      tol: change of the relative error, from one sweep to the next, at which sweeps stop.
      max_sweeps: most sweeps over all modes.

    Returns:
      (Tucker with a dense core and orthonormal factors, `FitInfo`). Without a mask the error is no
      larger than that of `from_dense`, from which the sweeps start.

    Raises:
      TypeError: integer or traced data, a mask of numbers. ValueError: NaN or Inf where the mask
        keeps entries, a mask of another shape or without entries, impossible ranks.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> x = jnp.outer(jnp.arange(1.0, 5.0), jnp.arange(1.0, 4.0))
      >>> seen = jnp.ones((4, 3), bool).at[1, 1].set(False)
      >>> t, info = tucker.hooi(jnp.where(seen, x, jnp.nan), rank=1, mask=seen)
      >>> info.status, bool(abs(t[1, 1] - 4) < 1e-2)
      ('converged', True)

    Source: L. De Lathauwer, B. De Moor, J. Vandewalle, "On the best rank-1 and rank-(R1, …, RN)
    approximation of higher-order tensors", SIAM J. Matrix Anal. Appl. 21 (2000), algorithm 4.2;
    masked entries are imputed from the last fit after every sweep (expectation maximisation).
    """
    host, kept = checked_data(x, mask)
    _check.integer("max_sweeps", max_sweeps, low=1)
    _check.number("tol", tol, low=0)
    ranks = feasible_ranks(rank, host.shape)
    small, exponent = linalg.normalized(host)
    filled = small if kept is None else np.where(kept, small, small[kept].mean())
    core, factors = st_hosvd(filled, ranks, None, "svd", None)
    sweeps, last, status = 0, math.inf, "max_sweeps"
    while sweeps < max_sweeps and status != "converged":
        core, factors = _sweep(filled, factors, ranks)
        fitted = times(core, factors)
        error = relative_error(small, fitted, kept)
        sweeps, status = sweeps + 1, "converged" if abs(last - error) <= tol else status
        last = error
        if kept is not None and status != "converged":
            filled = np.where(kept, small, fitted)
    return as_tucker(core, factors, exponent, x), FitInfo(status, last, sweeps)


def checked_data(x: Any, mask: Any) -> tuple[np.ndarray, Any]:
    """Checks data and mask of a Tucker fit; returns them on the host, masked entries as zeros."""
    if _check.is_traced(x, mask):
        raise TypeError("x: expected a concrete array; fits iterate outside of jit, vmap and grad")
    x = _check.inexact("x", x)
    _check.shape("x.shape", x.shape)
    host = np.asarray(x).astype(np.result_type(linalg.factor_dtype(x.dtype), np.float64))
    if mask is None:
        _check.finite("x", host)
        return host, None
    kept = np.asarray(mask)
    if kept.dtype != bool:
        raise TypeError(f"mask: expected Booleans, got dtype {kept.dtype}")
    if kept.shape != host.shape or not kept.any():
        got = f"shape {kept.shape}" if kept.shape != host.shape else "none that is true"
        raise ValueError(f"mask: expected Booleans of shape {host.shape}, some true, got {got}")
    host = np.where(kept, host, 0)
    _check.finite("x", host)
    return host, None if kept.all() else kept


def relative_error(x: np.ndarray, fitted: np.ndarray, kept: Any) -> float:
    """Computes the relative error ‖x − fitted‖ / ‖x‖ of a Tucker fit over unmasked entries."""
    off = x - fitted if kept is None else np.where(kept, x - fitted, 0)
    size = float(np.linalg.norm(x if kept is None else np.where(kept, x, 0)))
    return float(np.linalg.norm(off)) / size if size else float(np.linalg.norm(off))


def as_tucker(core: Any, factors: Sequence[Any], exponent: int, x: Any) -> Tucker:
    """Builds a fitted Tucker tensor in the dtype of the data, multiplied by 2^exponent."""
    dtype = jax.dtypes.canonicalize_dtype(np.asarray(x).dtype)
    *factors, core = balanced([*factors, core], exponent, fit=linalg.exponents_held(dtype))
    core, *factors = jax.device_put([np.asarray(a).astype(dtype) for a in (core, *factors)])
    return Tucker._unchecked(core, tuple(factors))


def _sweep(x: np.ndarray, factors: list[Any], ranks: Sequence[int]) -> tuple[Any, list[Any]]:
    """Updates each Tucker factor to the leading left vectors of x projected on the others."""
    factors = list(factors)
    image = x
    for k in range(x.ndim):
        others = [None if j == k else linalg.adjoint(u) for j, u in enumerate(factors)]
        image = times(x, others)
        factors[k] = linalg.left_basis(unfold(image, k), rank=ranks[k], method="svd").u
    last = [None] * (x.ndim - 1) + [linalg.adjoint(factors[-1])]
    return times(image, last), factors
