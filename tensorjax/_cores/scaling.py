"""Scaling by powers of two of cores, and of matrices in sweeps, so that products are in range."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, _symbolic, linalg
from tensorjax._cores.unfoldings import Cores
from tensorjax.linalg._arrays import is_host
from tensorjax.linalg._powers_of_two import (
    exponent_of,
    exponent_of_nonzero,
    exponents_held,
    largest_part,
    normalized,
    power_of_two,
    scaled,
)

_NEAR = 8  # powers of two that the largest part of a host core may be off one
NORM_NEAR = 4  # powers of two that norms of cores may be off one, in `norms_near_one`
# Trains of so many cores at most: the remainder of their exponent, by one core, is in range.
_FEW_CORES = 64
_NARROW = 64  # powers of two: a dtype whose range ends below them is narrow
_MOST = 2000  # powers of two that take any number of double precision to any other


def balanced(cores: Cores, exponent: int = 0, fit: tuple[int, int] = (-100, 100)) -> Cores:
    """Scales host cores by 2^exponent, in the last core alone or evenly in all.

    The last one takes it all if its largest part is then between the powers of two ``fit``.
    """
    *first, last = cores
    if fit[0] < exponent + exponent_of(last) < fit[1]:
        return [*first, scaled(last, exponent)]
    return _evenly_scaled(cores, exponent)


def _evenly_scaled(cores: Cores, exponent: int) -> Cores:
    """Scales host cores by 2^exponent so that all have one size."""
    small = [normalized(c) for c in cores]
    shares = evenly(exponent + sum(e for _, e in small), len(cores))
    return [scaled(c, share) for (c, _), share in zip(small, shares, strict=True)]


def cast(cores: Cores, exponent: int, dtype: Any, refused: str) -> Cores:
    """Scales host cores by 2^exponent, shared where one cannot hold its size, and casts them.

    Raises:
      OverflowError: with the message ``refused``, where the dtype cannot hold the cores even then:
        one is infinite, or one that was not zero has vanished.
    """
    least, most = int(jnp.finfo(dtype).minexp), exponents_held(dtype)[1]
    out = balanced(cores, exponent, fit=exponents_held(dtype))
    if not all(least < exponent_of(c) <= most for c in out):
        out = _evenly_scaled(cores, exponent)
    with np.errstate(over="ignore", under="ignore"):
        narrow = [c.astype(dtype) for c in out]
    pairs = zip(cores, narrow, strict=True)
    if not all(np.isfinite(c).all() and (c.any() or not whole.any()) for whole, c in pairs):
        raise OverflowError(refused)
    return narrow


def evenly(exponent: int, count: int) -> list[int]:
    """Splits an exponent of two, to scale cores, into nearly equal integers, one for each."""
    # The remainder of one core alone might be out of range in trains of more cores than the dtype
    # has powers of two.
    share, rest = divmod(exponent, count)
    return [share + (k < rest) for k in range(count)]


def cast_in_range(cores: Sequence[Any], dtype: Any, **copy: bool) -> Cores:
    """Casts the cores of a train to its dtype, in which float16 may not hold the one of the norm.

    All cores share their size then. Of other dtypes sizes fit as they were computed: nothing is
    looked at. ``copy`` is that of NumPy's ``astype``.
    """
    least, most = int(jnp.finfo(dtype).minexp), exponents_held(dtype)[1]
    if most > _NARROW:
        return [c.astype(dtype, **copy) for c in cores]
    if is_host(cores[0]):
        own = [exponent_of(c) for c in cores]
        if all(least < e <= most for e in own):
            return [c.astype(dtype) for c in cores]
        shares = evenly(sum(own), len(cores))
        return [scaled(c, s - e).astype(dtype) for c, s, e in zip(cores, shares, own, strict=True)]
    sizes = jnp.stack([exponent_of(c) for c in cores])
    zero = 2 - exponents_held(cores[0].dtype)[1]  # or subnormal
    _, shares = _alone_or_shared(sizes.sum(dtype=jnp.int32), len(cores), 0)
    fits = ((least < sizes) & (sizes <= most)).all() | (sizes == zero).any()
    moves = settled(jnp.where(fits, 0, shares - sizes))
    return [scaled(c, moves[k]).astype(dtype) for k, c in enumerate(cores)]


def computed_once(exponent: Any) -> jax.Array:
    """Makes XLA compute the exponent that scales cores once, not again for each of them.

    An exponent is a chain of sums over all cores. XLA fuses it into the program of each core that
    needs it, in spite of barriers, and takes minutes to compile hundreds of them; the result of a
    reduction it does not repeat.
    """
    pair = jnp.stack([jnp.asarray(exponent, jnp.int32), jnp.zeros((), jnp.int32)])
    return settled(pair).sum(dtype=jnp.int32)


def shared_exponents(exponent: jax.Array, count: int, at: int, alone: Any) -> Sequence[Any]:
    """Splits a traced exponent over ``count`` cores; core ``at`` takes it all where ``alone``."""
    if count <= _FEW_CORES:  # few scalars are compiled faster, and one core can hold the remainder
        share = jnp.where(alone, 0, exponent // count)
        return [exponent - share * (count - 1) if k == at else share for k in range(count)]
    return settled(jnp.where(alone, *_alone_or_shared(exponent, count, at)))


def _alone_or_shared(exponent: jax.Array, count: int, at: int) -> tuple[jax.Array, jax.Array]:
    """Splits an exponent in two ways to scale cores: core ``at`` takes all, or each a share."""
    share, rest = jnp.divmod(exponent, count)
    place = jnp.arange(count, dtype=jnp.int32)
    return jnp.where(place == at, exponent, 0), share + (place < rest).astype(jnp.int32)


def near_one(arrays: Sequence[Any]) -> tuple[Cores, Any]:
    """Scales each core of a train by a power of two to size near one; returns the exponents' sum.

    On the host only those far from one: others are not copied.
    """
    small, exponents = [], []
    for x in arrays:
        e = exponent_of(x)
        if is_host(x) and abs(e) <= _NEAR:
            small.append(x)
        else:
            e = e if is_host(x) else exponent_of_nonzero(e, x.dtype)
            small.append(scaled(x, -e) if is_host(x) else x * power_of_two(-e, x.dtype))
            exponents.append(e)
    return small, settled(sum(exponents))


def norms_near_one(cores: Cores) -> tuple[Cores, int]:
    """Scales host cores whose norms are far from one by powers of two; returns the exponent.

    Faster than `near_one`, by the dot product of a core with itself.
    """
    low, high = 4.0**-NORM_NEAR, 4.0**NORM_NEAR
    out, total = [], 0
    squares = [np.vdot(core, core).real for core in cores]
    if low < min(squares) and max(squares) < high:
        return cores, 0
    for core, square in zip(cores, squares, strict=True):
        if not low < square < high:
            e = int(exponent_of(core))
            core, total = scaled(core, -e), total + e
        out.append(core)
    return out, total


def evened(cores: Cores) -> tuple[Cores, int]:
    """Scales every bond index of a train of host cores so that all entries of cores are in range.

    One power of two for each bond index, not for each core: the terms of a sum, whose cores lie in
    diagonal blocks, may differ in size by more than the dtype spans, in opposite ways.

    Returns:
      Cores whose slices [:, :, j] have their largest part in [1/2, 1), and the exponent of the
      power of two that the train is to be multiplied by.
    """
    out: Cores = []
    powers = np.zeros(1, np.int64)  # what was divided out of the bond's indices
    for core in cores:
        size = np.moveaxis(core, 2, 0)  # (s, r, n)
        own = exponent_of(size, axis=2)[..., 0] + powers  # (s, r)
        own = np.where(largest_part(size, axis=2)[..., 0] > 0, own, np.iinfo(np.int32).min)
        new = own.max(axis=1)
        new = np.where(new > np.iinfo(np.int32).min, new, powers.max())
        # Beyond the clipped powers only zeros are scaled up, and all that is scaled down vanishes.
        out.append(scaled(core, np.clip(powers[:, None, None] - new, -_MOST, _MOST)))
        powers = new
    return out, int(powers[0])


def evening(cores: Sequence[Any]) -> Any:
    """Returns powers of two (…, d) by which JAX cores (…, r, n, s) are scaled to one size.

    Their product is one. Of a train with a core of zeros all are 0.
    """
    own = jnp.stack([exponent_of(c, (-3, -2, -1))[..., 0, 0, 0] for c in cores], -1)
    share, rest = jnp.divmod(own.sum(-1, dtype=own.dtype, keepdims=True), len(cores))
    moves = share + (jnp.arange(len(cores), dtype=own.dtype) < rest).astype(own.dtype) - own
    zero = 2 - exponents_held(cores[0].dtype)[1]  # or subnormal
    return settled(jnp.where((own == zero).any(-1, keepdims=True), 0, moves))


def settled(exponent: Any) -> Any:
    """Wraps a traced scaling exponent of cores in a barrier, so that XLA does not recompute it."""
    return jax.lax.optimization_barrier(exponent) if _check.is_traced(exponent) else exponent


def shared_out(cores: Sequence[Any], exponent: Any, *, at: int = -1) -> Cores:
    """Scales JAX cores by the power of two 2^exponent: one core, or all if it would overflow."""
    at = at % len(cores)
    own = settled(jnp.stack([exponent_of(c) for c in cores]))
    low, high = exponents_held(cores[at].dtype)
    exponent = computed_once(exponent)
    fits = (low < own[at] + exponent) & (own[at] + exponent < high)
    alone, _ = _alone_or_shared(exponent, len(cores), at)
    _, shares = _alone_or_shared(exponent + own.sum(dtype=jnp.int32), len(cores), at)
    moves = settled(jnp.where(fits, alone, shares - own))
    return [scaled(c, moves[k]) for k, c in enumerate(cores)]


def in_range(x: Any) -> Any:
    """Scales a core by a power of two so that its largest entry is near one."""
    return normalized(x)[0]


def factors_in_range(xs: Cores, ys: Cores, terms: int = 1) -> Cores:
    """Scales a train's cores by powers of two that cancel, so that its products are in range.

    They stay as they are where all products are in range as they are.

    Args:
      xs: host cores of the one factor.
      ys: those of the other, in the same dtype.
      terms: products in the sums that are taken.
    """
    own = [exponent_of(x) + exponent_of(y) for x, y in zip(xs, ys, strict=True)]
    low, high = exponents_held(ys[0].dtype)
    if min(own) >= low and max(own) <= high - terms.bit_length():
        return ys
    # Each as near to its own size as the dtype holds it well: the cores of both factors are held.
    wanted = [min(max(e, -(high // 2)), high // 2) for e in own]
    # A product with a core of zeros is zero: the other cores only have to stay finite.
    nonzero = all(c.any() for c in (*xs, *ys))
    shares = evenly(sum(own) - sum(wanted) if nonzero else 0, len(ys))
    return [
        scaled(y, w + share - e) for y, w, share, e in zip(ys, wanted, shares, own, strict=True)
    ]


def factors_in_program(xs: Sequence[Any], ys: Sequence[Any], terms: int = 1) -> tuple[Cores, Cores]:
    """Scales two trains' JAX cores by powers of two that cancel, as `factors_in_range` on the host.

    Of each pair of cores the smaller one, which takes less time.

    Args:
      xs: JAX cores of the one factor.
      ys: those of the other, in the same dtype.
      terms: products in the sums that are taken.
    """
    low, high = exponents_held(ys[0].dtype)
    pairs = [(exponent_of(x), exponent_of(y)) for x, y in zip(xs, ys, strict=True)]
    zero = _any_zero([jnp.minimum(a, b) for a, b in pairs], high)
    own = [settled(sum(exponent_of_nonzero(e, ys[0].dtype) for e in pair)) for pair in pairs]
    fits = _all_between(own, low, high - terms.bit_length())
    static = all(_symbolic.is_static(n) for c in (*xs, *ys) for n in c.shape)
    is_left = [static and x.size < y.size for x, y in zip(xs, ys, strict=True)]
    smaller = [x if left else y for x, y, left in zip(xs, ys, is_left, strict=True)]
    moved = _moved(smaller, own, high // 2, fits, zero)
    left = [m if chosen else x for m, x, chosen in zip(moved, xs, is_left, strict=True)]
    right = [y if chosen else m for m, y, chosen in zip(moved, ys, is_left, strict=True)]
    return left, right


def _any_zero(exponents: Sequence[Any], high: int) -> Any:
    return (jnp.stack(exponents) == 2 - high).any()  # or subnormal


def _all_between(exponents: Sequence[Any], low: int, high: int) -> Any:
    together = jnp.stack(exponents)
    return ((together >= low) & (together <= high)).all()


def _moved(cores: Sequence[Any], own: Sequence[Any], most: int, stay: Any, zero: Any) -> Cores:
    """Scales JAX cores of sizes 2^own to at most 2^±most and a share of what that takes away.

    By powers of two whose product is one; all remain as they are where ``stay``. Of a tensor that
    is ``zero``, as a core is, the other cores only have to stay finite: they take no share.
    """
    together = jnp.stack(own)
    excess = (together - jnp.clip(together, -most, most)).sum(dtype=jnp.int32)
    share, rest = jnp.divmod(jnp.where(zero, 0, excess), len(own))
    # Scalars, the same for many cores, and no vector: XLA compiles loops that are alike once, but
    # those with the places 0, 1, … of a vector in them one by one.
    few = -(-len(own) // _FEW_CORES)  # the last cores take the remainder
    more, last = jnp.divmod(rest, few)
    stay, share, more, last = map(settled, (stay, share, more, last))
    out: Cores = []
    for k, (core, e) in enumerate(zip(cores, own, strict=True)):
        move = jnp.clip(e, -most, most) - e + share
        move = move + more if k >= len(own) - few else move
        move = move + last if k == len(own) - 1 else move
        out.append(scaled(core, jnp.where(stay, 0, move)))
    return out


def scaled_train(x: Cores, exponent: int) -> Cores:
    """Multiplies a train of host cores by 2^exponent, spread over the cores against overflow."""
    shares = evenly(exponent, len(x))
    return [c * 2.0**share for c, share in zip(balanced(x), shares, strict=True)]


def scaled_back(cores: Cores, exponent: Any) -> Cores:
    """Scales a rounded train's cores by 2^exponent: the last, or all if the exponent is large."""
    exponent = computed_once(exponent)
    moves = shared_exponents(exponent, len(cores), len(cores) - 1, jnp.abs(exponent) < 100)
    return [linalg.scaled(c, moves[k]) for k, c in enumerate(cores)]


def carried(matrix: jax.Array, exponent: Any, renew: bool) -> tuple[jax.Array, Any]:
    """Scales the matrix that a sweep of tangent vectors carries to the next core to near one."""
    if not renew:
        return matrix, exponent
    matrix, e = linalg.normalized(matrix)
    return matrix, settled(exponent + e)


def renewed_after(cores: Sequence[jax.Array]) -> list[bool]:
    """Returns after which cores a sweep must scale the matrix that it carries again.

    Bounds by how many powers of two each core may make the matrix grow, or shrink. Between two
    rescalings it stays in range, also squared and taken from both sides of a core.
    """
    most, grown, out = int(jnp.finfo(cores[0].dtype).maxexp) / 5, 0.0, []
    for c in cores:
        grown += 1 + math.log2(c.size) / 2
        out.append(grown > most)
        grown = 0.0 if out[-1] else grown
    return out
