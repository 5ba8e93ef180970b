"""Configurations drawn from tensor trains."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._batches import rounded_up
from tensorjax._placement import placed, returned
from tensorjax._train import TT, single
from tensorjax.tt._round import orthogonalize


@placed
def sample(key: jax.Array, t: TT, count: int = 1) -> jax.Array:
    """Draws multi-indices i with probability |t_i|² / ‖t‖², independently.

    Perfect sampling: one mode after the other from its exact conditional distribution, which a
    right-orthogonal train gives at O(n r²) operations.

    Args:
      key: `jax.random.key`.
      t: TT of order d.
      count: how many; static.

    Returns:
      (count, d) integers. All zero for a train that is zero.

    Raises:
      ValueError: count below 1, NaN or Inf.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import tt
      >>> t = tt.rank_one([jnp.array([0.0, 1.0]), jnp.array([1.0, 0.0])])
      >>> print(tt.sample(jax.random.key(0), t, 2))
      [[1 0]
       [1 0]]

    Source: A. Ferris, G. Vidal, "Perfect sampling with unitary tensor networks", Phys. Rev. B 85,
    165146 (2012), section III.
    """
    single("t", t, TT)
    _check.integer("count", count, low=1)
    _check.finite("t", t)
    t = orthogonalize(t, 0)
    if not _check.on_cpu(t.cores[0], key, t):
        return _sample(key, t, count)
    # As many keys as are split off, the first are the same: a few more draws change none of these.
    drawn = _sample(key, t, rounded_up(count))
    return returned(np.asarray(drawn)[:count], drawn)


@functools.partial(jax.jit, static_argnums=2)
def _sample(key: jax.Array, t: TT, count: int) -> jax.Array:
    # The norm sits in the first core, or in all, and its square might not be representable.
    cores = [linalg.normalized(c)[0] for c in t.cores]

    def one(key: jax.Array) -> jax.Array:
        left = jnp.ones((1,), t.dtype)
        drawn = []
        for k, core in zip(jax.random.split(key, t.order), cores, strict=True):
            rows = jnp.einsum("a,aib->ib", left, core, precision=jax.lax.Precision.HIGHEST)
            weights = jnp.sum(jnp.square(jnp.abs(rows)), axis=1)
            index = jax.random.categorical(k, jnp.log(weights))
            # The norm of what is left is the square root of a probability: kept at one.
            length = jnp.sqrt(weights[index])
            left = rows[index] / jnp.where(length > 0, length, 1).astype(rows.dtype)
            drawn.append(index)
        return jnp.stack(drawn)

    return jax.vmap(one)(jax.random.split(key, count))
