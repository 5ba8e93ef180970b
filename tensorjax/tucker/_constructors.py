"""Constructors of Tucker tensors, with a dense core or a train as the core: random, ones_like."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax import _check
from tensorjax._cores.ranks import rank_bounds
from tensorjax._formats.random_arrays import scaled_normals, split_keys
from tensorjax._formats.trains import TT
from tensorjax._placement import placed
from tensorjax._typing import DTypeLike
from tensorjax.tucker._types import Tucker, kind


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
      ValueError: empty shape, negative sizes, ranks below 1, wrong number of ranks.

    Example:
      >>> import jax
      >>> from tensorjax import tucker
      >>> tucker.random(jax.random.key(0), (4, 5, 6), 3)
      Tucker(shape=(4, 5, 6), ranks=(3, 3, 3), core=dense, dtype=float32)

    Source: ours.
    """
    shape = _check.shape("shape", shape, low=0)
    ranks = _check.bond_ranks(rank, [max(n, 1) for n in shape], place="mode")
    kind = _check.inexact_dtype(dtype)
    pairs = list(zip(shape, ranks, strict=True))
    # The core has the first key of the split; one that is a train is drawn with the keys of it.
    core, *factors = scaled_normals(
        key,
        [tuple(ranks) if core_rank is None else (), *pairs],
        [1.0, *(s**-0.5 for s in ranks)],
        kind,
    )
    if core_rank is not None:
        first = split_keys(key, len(pairs) + 1)[0]
        return Tucker._unchecked(_train(first, ranks, core_rank, kind), tuple(factors))
    return Tucker._unchecked(core, tuple(factors))


def _train(key: jax.Array, ranks: Sequence[int], core_rank: Any, dtype: Any) -> TT:
    bonds = (1, *_check.bond_ranks(core_rank, rank_bounds(ranks), name="core_rank"), 1)
    shapes = [(bonds[k], s, bonds[k + 1]) for k, s in enumerate(ranks)]
    return TT._unchecked(tuple(scaled_normals(key, shapes, [r**-0.5 for r in bonds[1:]], dtype)))


@placed
def ones_like(t: Tucker) -> Tucker:
    """Constructs the Tucker tensor of ones, of rank one, with another's shape and core type.

    Args:
      t: Tucker.

    Returns:
      Tucker of multilinear ranks one.

    Raises:
      TypeError: ``t`` is no Tucker.

    Example:
      >>> import jax
      >>> from tensorjax import tucker
      >>> tucker.ones_like(tucker.random(jax.random.key(0), (4, 5), 2))
      Tucker(shape=(4, 5), ranks=(1, 1), core=dense, dtype=float32)

    Source: ours.
    """
    kind("t", t)
    ones = t.core._namespace.ones if isinstance(t.core, TT) else jnp.ones
    core = ones((1,) * t.order, t.dtype)
    return Tucker._unchecked(core, tuple(jnp.ones((n, 1), t.dtype) for n in t.shape))
