"""Conversion of Tucker tensors to tensor trains: exact, to a relative error, or to ranks."""

from collections.abc import Sequence

import jax.numpy as jnp

from tensorjax import _check
from tensorjax._formats.trains import TT
from tensorjax._placement import placed
from tensorjax.tucker._core_and_factors import near_one_parts, scaled_back, times
from tensorjax.tucker._rounding import orthogonalize
from tensorjax.tucker._tucker_checks import one
from tensorjax.tucker._types import Tucker


@placed
def to_tt(t: Tucker, *, tol: float | None = None, rank: int | Sequence[int] | None = None) -> TT:
    """Converts a Tucker tensor to a tensor train of the same shape.

    Args:
      t: Tucker. A train core is multiplied by the factors, exactly; a dense core is decomposed.
      tol: relative error, guaranteed; alone it finds the TT-ranks, outside jit.
      rank: TT-ranks, static, as in `tensorjax.tt.round`. With neither, the result is exact up to
        roundoff: its TT-ranks are those of a train core, or all that a dense core allows.

    Returns:
      TT.

    Raises:
      TypeError: ``tol`` alone under a JAX transformation.
      ValueError: impossible ranks or tolerances, NaN or Inf in a dense core.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t = tucker.from_dense(jnp.ones((3, 4, 5)), tol=1e-5)
      >>> tucker.to_tt(t)
      TT(shape=(3, 4, 5), ranks=(1, 1, 1, 1), dtype=float32)

    Source: S. Dolgov, B. Khoromskij, "Two-level QTT-Tucker format for optimized tensor calculus",
    SIAM J. Matrix Anal. Appl. 34 (2013), of which this is the way back.
    """
    one("t", t)
    if tol is not None:
        _check.tol_or_rank(tol, rank, t)
        _check.tolerance(tol, t.dtype)
    # With orthonormal factors an error of the core is one of the whole.
    t = t if tol is None and rank is None else orthogonalize(t)
    small, exponent = near_one_parts(t)
    core = small.core
    if not isinstance(core, TT):
        most = max(core.size, 1)
        core = TT._namespace.from_dense(core, tol=tol, rank=most if tol is None else rank)
    elif tol is not None:
        core = core._namespace.round(core, tol=tol, rank=rank)
    product = times(core, small.factors)
    whole = scaled_back(product, (), exponent).core
    out = TT._unchecked(tuple(jnp.asarray(c) for c in whole.cores))
    return out if rank is None or tol is not None else TT._namespace.round(out, rank=rank)
