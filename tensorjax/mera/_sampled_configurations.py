"""Sampling of configurations (multi-indices) of a MERA by the Born rule."""

import jax

from tensorjax._placement import placed
from tensorjax.mera._to_tt import to_tt
from tensorjax.mera._types import MERA


@placed
def sample(
    key: jax.Array,
    m: MERA,
    count: int = 1,
    *,
    rank: int | None = None,
) -> jax.Array:
    """Samples independent configurations i of a MERA with probability |m_i|² / ‖m‖².

    Perfect sampling from the left to the right of the tensor train of the MERA (`to_tt`): the chain
    of conditional probabilities, without a Markov chain's burn-in.

    Args:
      key: `jax.random.key`.
      m: MERA.
      count: how many; static.
      rank: TT-rank to round to; exact if None. Needed beyond some dozens of sites.

    Returns:
      (count, N) integers.

    Raises:
      TypeError: ``m`` is no MERA. ValueError: count below 1, or impossible ranks.

    Example:
      >>> import jax
      >>> from tensorjax import mera
      >>> mera.sample(jax.random.key(1), mera.random(jax.random.key(0), (2,) * 8, 2), 5).shape
      (5, 8)

    Source: A. Ferris, G. Vidal, "Perfect sampling with unitary tensor networks", Phys. Rev. B 85,
    165146 (2012); theirs works inside the cones, for few sites.
    """
    t = to_tt(m, rank=rank)
    return t._namespace.sample(key, t, count)
