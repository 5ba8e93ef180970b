"""Random MERAs, and configurations (multi-indices) drawn from a MERA by the Born rule."""

import math
import numbers
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._formats.random_arrays import folded_key, on_host, one_on_host, split_keys
from tensorjax._placement import placed
from tensorjax._transfer import copied, on_device
from tensorjax._typing import DTypeLike
from tensorjax.linalg._arrays import namespace
from tensorjax.mera._to_dense_and_tt import to_tt
from tensorjax.mera._types import MERA, Layer
from tensorjax.mera._wiring import Boundary, Wiring, wirings


@placed
def random(
    key: jax.Array,
    shape: Sequence[int],
    rank: int | Sequence[int],
    *,
    arity: int | Sequence[int] = 2,
    boundary: Boundary = "open",
    layers: int | None = None,
    dtype: DTypeLike | None = None,
) -> MERA:
    """Constructs a random MERA of norm one from Haar-random tensors and a normal top tensor.

    Args:
      key: `jax.random.key`.
      shape: mode sizes (n_1, …, n_N).
      rank: size of the top legs, one int for all layers or one per layer; cut where a block has
        fewer dimensions below.
      arity: sites per block, one int for all layers or one per layer, from the bottom up.
      boundary: "open" or "periodic" (a disentangler between the last site and the first).
      layers: how many; by default until no more sites are left than ``arity``.
      dtype: floating or complex; JAX's default float if None.

    Returns:
      MERA. Blocks are of ``arity`` sites; where the length is not divisible the last one is
      shorter. One site left alone is passed through by a square isometry; on a ring the last block
      takes it in.

    Raises:
      ValueError: more sites in a block than in the layer, sizes or ranks below 1.

    Example:
      >>> import jax
      >>> from tensorjax import mera
      >>> mera.random(jax.random.key(0), (4,) * 12, 2, layers=2).size
      1536

    Source: F. Mezzadri, "How to generate random matrices from the classical compact groups",
    Notices AMS 54 (2007), for the isometries; the normal top tensor is ours.
    """
    sizes = _check.shape("shape", shape)
    dtype = _check.inexact_dtype(dtype)
    plan = wirings(len(sizes), arity, boundary=boundary, layers=layers)
    single = isinstance(rank, numbers.Integral)
    ranks: list[Any] = [rank] * len(plan) if single else _check.several("rank", rank, "ints")
    _check.key(key)
    if len(ranks) != len(plan):
        raise ValueError(f"rank: expected one int or {len(plan)}, one per layer, got {len(ranks)}")
    built = []
    for wiring, r, k in zip(plan, ranks, split_keys(key, len(plan)), strict=True):
        layer = _random_layer(k, wiring, sizes, _check.integer("rank", r, low=1), dtype)
        built.append(layer)
        sizes = layer.top
    # Not one of the keys above: those of n layers are not the first of n + 1.
    folded = folded_key(key, len(plan))
    drawn = one_on_host(jax.random.normal, folded, sizes, dtype)
    if drawn is None:
        top = jax.random.normal(folded, sizes, dtype)
        top = top / jnp.linalg.norm(top.reshape(-1)).astype(dtype)
    else:
        (top,) = on_device([drawn / np.linalg.norm(drawn.reshape(-1)).astype(dtype)])
    return MERA._unchecked(tuple(built), top)


def _random_layer(
    key: jax.Array, wiring: Wiring, sizes: Sequence[int], rank: int, dtype: Any
) -> Layer:
    pairs = [(sizes[i], sizes[j]) for i, j in wiring.pairs]
    blocks = [tuple(sizes[i] for i in block) for block in wiring.blocks]
    shapes = [(m * n, m * n) for m, n in pairs]
    shapes += [(math.prod(block), min(rank, math.prod(block))) for block in blocks]
    found = iter(_isometries(key, shapes, dtype))
    us = [next(found).reshape(m, n, m, n) for m, n in pairs]
    ws = [next(found).reshape(*block, -1) for block in blocks]
    tensors = copied([*us, *ws])
    return Layer._unchecked(tuple(tensors[: len(us)]), tuple(tensors[len(us) :]), wiring)


def _isometries(key: jax.Array, shapes: Sequence[tuple[int, int]], dtype: Any) -> list[Any]:
    """Draws the isometries of a random MERA, Haar-distributed, on the host where it can."""
    normal, wide = jax.random.normal, linalg.factor_dtype(dtype)
    drawn = on_host(normal, key, shapes, wide)
    if drawn is not None:
        return [_haar(x, dtype) for x in drawn]
    keys = jax.random.split(key, len(shapes))
    return [_haar(normal(k, s, wide), dtype) for k, s in zip(keys, shapes, strict=True)]


def _haar(x: Any, dtype: Any) -> Any:
    """Returns a Haar-random tensor of a random MERA: orthonormalises a matrix of normal entries."""
    xp = namespace(x)
    q, r = linalg.qr(x)
    diagonal = xp.diagonal(r)
    size = xp.abs(diagonal)
    # QR fixes the phases of r's diagonal; Haar measure needs them divided out (Mezzadri 2007).
    phase = xp.where(size > 0, diagonal / xp.where(size > 0, size, 1).astype(r.dtype), 1)
    return linalg.scale_columns(q, phase).astype(dtype)


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
