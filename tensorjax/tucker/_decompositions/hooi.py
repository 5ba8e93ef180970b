"""Tucker decomposition to given ranks by higher-order orthogonal iteration (HOOI), also masked."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.unfoldings import unfold
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike
from tensorjax.tucker._core_and_factors import times
from tensorjax.tucker._decompositions.fits import FitInfo, as_tucker, checked_data, relative_error
from tensorjax.tucker._decompositions.hosvd import feasible_ranks, st_hosvd
from tensorjax.tucker._types import Tucker


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


def _sweep(x: np.ndarray, factors: list[Any], ranks: Sequence[int]) -> tuple[Any, list[Any]]:
    """Updates each Tucker factor to leading left singular vectors of x projected on the others."""
    factors = list(factors)
    image = x
    for k in range(x.ndim):
        others = [None if j == k else linalg.adjoint(u) for j, u in enumerate(factors)]
        image = times(x, others)
        factors[k] = linalg.left_basis(unfold(image, k), rank=ranks[k], method="svd").u
    last = [None] * (x.ndim - 1) + [linalg.adjoint(factors[-1])]
    return times(image, last), factors
