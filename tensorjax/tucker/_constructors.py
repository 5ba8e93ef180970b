"""Constructors of Tucker tensors: random ones, with a dense core or a train as the core."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax import _check
from tensorjax._cores.ranks import rank_bounds
from tensorjax._formats.trains import TT
from tensorjax._placement import placed
from tensorjax._typing import DTypeLike
from tensorjax.tucker._types import Tucker


@placed
def random(
    key: jax.Array,
    shape: Sequence[int],
    rank: int | Sequence[int],
    dtype: DTypeLike | None = None,
    *,
    core_rank: int | Sequence[int] | None = None,
) -> Tucker:
    """Constructs a random Tucker tensor whose entries have mean 0 and variance 1.

    Args:
      key: `jax.random.key`.
      shape: mode sizes (n_1, …, n_d).
      rank: multilinear ranks, one int for all modes (cut at n_k) or one per mode.
      dtype: floating or complex; JAX's default float if None.
      core_rank: TT-ranks of the core, one int for all bonds (cut where a bond cannot need as much)
        or one per interior bond, which makes it a train; dense if None.

    Returns:
      Tucker with independent normal core and factors, those of mode k of variance 1/s_k.

    Raises:
      ValueError: empty shape, sizes or ranks below 1, wrong number of ranks.

    Example:
      >>> import jax
      >>> from tensorjax import tucker
      >>> tucker.random(jax.random.key(0), (4, 5, 6), 3)
      Tucker(shape=(4, 5, 6), ranks=(3, 3, 3), core=dense, dtype=float32)

    Source: ours.
    """
    shape = _check.shape("shape", shape)
    ranks = _check.bond_ranks(rank, shape, place="mode")
    kind = _check.inexact_dtype(dtype)
    first, *keys = jax.random.split(key, len(shape) + 1)
    factors = [
        jax.random.normal(k, (n, s), kind) * jnp.asarray(s**-0.5, kind)
        for k, n, s in zip(keys, shape, ranks, strict=True)
    ]
    return Tucker._unchecked(_core(first, ranks, core_rank, kind), tuple(factors))


def _core(key: jax.Array, ranks: Sequence[int], core_rank: Any, dtype: Any) -> Any:
    if core_rank is None:
        return jax.random.normal(key, tuple(ranks), dtype)
    bonds = (1, *_check.bond_ranks(core_rank, rank_bounds(ranks), name="core_rank"), 1)
    keys = jax.random.split(key, len(ranks))
    cores = [
        jax.random.normal(k, (bonds[i], s, bonds[i + 1]), dtype)
        * jnp.asarray(bonds[i + 1] ** -0.5, dtype)
        for i, (k, s) in enumerate(zip(keys, ranks, strict=True))
    ]
    return TT._unchecked(tuple(cores))
