"""Conversion of Tucker tensors, whose core may be a train, to dense arrays and tensor trains."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.scaling import shared_out
from tensorjax._formats.trains import TT
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.contract import einsum
from tensorjax.tucker._core_and_factors import (
    finite_on_host,
    first_on_host,
    near_one_parts,
    on_host,
    scaled_back,
    times,
)
from tensorjax.tucker._rounding import orthogonalize
from tensorjax.tucker._types import Tucker, one


@placed
def to_dense(t: Tucker) -> jax.Array:
    """Contracts a Tucker tensor to a dense array of shape (n_1, …, n_d).

    Args:
      t: Tucker.

    Returns:
      Array in the dtype of ``t``. As in NumPy's products, entries that the dtype cannot hold are
      infinite, or zero.

    Raises:
      TypeError: ``t`` is no Tucker. ValueError: it is a batch of them.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> print(tucker.to_dense(tucker.Tucker(jnp.ones((1,)), [jnp.ones((2, 1))])))
      [1. 1.]

    Source: ours; the definition, in the order of products that `tensorjax.contract` plans.
    """
    one("t", t)
    if first_on_host("to_dense", lambda: math.prod(t.shape) * max(t.ranks), t):
        dense = finite_on_host(lambda: _dense_on_host(t))
        if dense is not None:
            return on_device([dense])[0]
    return _to_dense(t)


def _dense_on_host(t: Tucker) -> np.ndarray:
    host, exponent = near_one_parts(on_host(t))
    return linalg.scaled(times(host.core, host.factors), exponent).astype(t.dtype)


@jax.jit
def _to_dense(t: Tucker) -> jax.Array:
    t, exponent = near_one_parts(t)
    if isinstance(t.core, TT):
        cores = shared_out(times(t.core, t.factors).cores, exponent)
        return t.core._namespace.to_dense(TT._unchecked(tuple(cores)))
    letters = [chr(ord("a") + k) for k in range(t.order)]
    inputs = ["".join(letters), *(c.upper() + c for c in letters)]
    expression = f"{','.join(inputs)}->{''.join(letters).upper()}"
    dense = einsum(expression, t.core, *t.factors, precision=jax.lax.Precision.HIGHEST)
    return linalg.scaled(dense, exponent)


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
    found = None
    if first_on_host("to_tt", lambda: t.core.size * sum(t.shape), t):
        found = finite_on_host(lambda: _train(jax.tree.map(np.asarray, t), tol, rank))
    cores = _train(t, tol, rank).cores if found is None else on_device(list(found.cores))
    out = TT._unchecked(tuple(jnp.asarray(c) for c in cores))
    return out if rank is None or tol is not None else TT._namespace.round(out, rank=rank)


def _train(t: Tucker, tol: Any, rank: Any) -> TT:
    """Converts a Tucker tensor, whose factors are orthonormal where it is cut, to a train.

    Of NumPy arrays to one of NumPy arrays.
    """
    small, exponent = near_one_parts(t)
    core = small.core
    if not isinstance(core, TT):
        most = max(core.size, 1)
        train = TT._namespace.from_dense(core, tol=tol, rank=most if tol is None else rank)
        host = linalg.is_host(core)
        core = TT._unchecked(tuple(map(np.asarray, train.cores))) if host else train
    elif tol is not None:
        core = core._namespace.round(core, tol=tol, rank=rank)
    return scaled_back(times(core, small.factors), (), exponent).core
