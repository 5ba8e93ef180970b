"""Dense arrays of Tucker tensors, whose core may be a train."""

import math

import jax
import numpy as np

from tensorjax import linalg
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
    times,
)
from tensorjax.tucker._tucker_checks import one
from tensorjax.tucker._types import Tucker


def _with_dense_core(t: Tucker) -> Tucker:
    if not isinstance(t.core, TT):
        return t
    return Tucker._unchecked(t.core._namespace.to_dense(t.core), t.factors)


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
