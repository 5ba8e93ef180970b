"""Factorisation of feature counts into mode sizes, and bounds of the ranks for these modes."""

import functools
import math
import numbers
from collections.abc import Sequence
from typing import Any

from tensorjax import _check

# Factors are called near-equal up to this ratio of the largest to the smallest.
_SPREAD = 3
# Target size of automatically chosen factors: n gets ceil(log_16 n) of them.
_MODE = 16
# A side of a TT-matrix of at most so many features stays whole: those of a table have no order, and
# a map of few of their sums is no sum of few Kronecker products. Chosen on two drawn regressions.
_WHOLE = 32


def factor(n: int, order: int | None = None) -> tuple[int, ...]:
    """Factorises n, or the next larger integer that allows it, into near-equal mode sizes.

    Of all products of ``order`` factors whose largest is at most 3 times their smallest, the
    smallest that is at least n; of the ways to write it, the one of the least sum. So 768 stays as
    it is, and a prime is padded, to the next number that factors well.

    Args:
      n: the number of features, at least 1.
      order: the number of factors; None takes as few as keep them at about 16 each.

    Returns:
      Factors, the largest first, whose product is at least n.

    Raises:
      ValueError: n or order is not a positive integer.

    Example:
      >>> from tensorjax import nn
      >>> nn.factor(768), nn.factor(3072), nn.factor(30522, 4)
      ((12, 8, 8), (16, 16, 12), (14, 14, 13, 12))
      >>> nn.factor(97), nn.factor(1), nn.factor(12)
      ((14, 7), (1,), (12,))

    Source: ours.
    """
    n = _check.integer("n", n, low=1)
    if order is None:
        order = max(1, math.ceil(math.log(n, _MODE) - 1e-9))
    return _factor(n, _check.integer("order", order, low=1))


@functools.lru_cache(maxsize=1024)
def _factor(n: int, order: int) -> tuple[int, ...]:
    side = math.ceil(n ** (1 / order) - 1e-9)
    best = (side + (side**order < n),) * order
    least = (math.prod(best), sum(best))

    def search(chosen: tuple[int, ...], product: int) -> None:
        nonlocal best, least
        low, rest = chosen[-1], order - len(chosen)
        high = _SPREAD * chosen[0]
        if product * low**rest > least[0] or product * high**rest < n:
            return
        if rest == 1:
            last = max(low, -(-n // product))
            size = (product * last, sum(chosen) + last)
            if last <= high and size < least:
                best, least = (*chosen, last), size
            return
        for m in range(low, high + 1):
            search((*chosen, m), product * m)

    if order == 1:
        return (n,)
    for smallest in range(best[0], 0, -1):
        search((smallest,), smallest)
    return best[::-1]


def modes(
    features: int, shape: Sequence[int] | None, order: int | None, name: str
) -> tuple[int, ...]:
    """Returns a feature count's mode sizes: the given factors, checked, or chosen ones.

    Args:
      shape: factors given by the user, or None; their product may exceed ``features``.
      order: number of factors, or None.

    Raises:
      ValueError: the product of ``shape`` is less than ``features``, or ``order`` contradicts it.
    """
    if shape is None:
        return factor(features, order)
    given = _check.shape(name, shape)
    if order is not None and len(given) != order:
        raise ValueError(
            f"order: expected the length of {name} = {given}, got {order}; give only one of them"
        )
    if math.prod(given) < features:
        raise ValueError(
            f"{name}: expected factors whose product is at least {features}, got {given} with "
            f"product {math.prod(given)}; a larger product is padded with zeros, and None chooses "
            f"{factor(features, order)}"
        )
    return given


def paired_modes(
    features: tuple[int, int], shapes: tuple[Any, Any], order: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns input and output mode sizes of a TT-matrix, as many of one as of the other.

    Where neither an order nor its own factors are given, the smaller side (of equal ones the
    inputs) stays whole if it has few features, beside modes of one: the first mode of the inputs,
    or the last one of the outputs. Both sides whole would make it low rank.

    Args:
      features: of inputs and outputs.
      shapes: factors of both, or None.
      order: number of factors, or None.

    Raises:
      ValueError: not as many factors of both sides, or fewer than two; a product that is too small.
    """
    names = ("in_shape", "out_shape")
    shapes = (
        None if shapes[0] is None else _check.shape(names[0], shapes[0]),
        None if shapes[1] is None else _check.shape(names[1], shapes[1]),
    )
    given = [len(shape) for shape in shapes if shape is not None]
    small = features.index(min(features)) if order is None and min(features) <= _WHOLE else None
    if order is None:
        order = given[0] if given else max(2, *(len(factor(n)) for n in features))
    if order < 2 or any(count != order for count in given):
        raise ValueError(
            f"in_shape, out_shape: expected as many factors of both, two or more, got "
            f"in_shape={shapes[0]}, out_shape={shapes[1]} and order={order}"
        )
    out = []
    for side, (n, shape, name) in enumerate(zip(features, shapes, names, strict=True)):
        if shape is None and side == small:
            out.append((n, *(1,) * (order - 1)))
        else:
            out.append(modes(n, shape, order, name))
    return out[0], out[1] if shapes[1] is not None else out[1][::-1]


def train_ranks(rank: int | Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns a layer's interior TT-ranks; a single int is cut to the bounds of the mode sizes."""
    bounds = [
        min(math.prod(sizes[:k]), math.prod(sizes[k:])) for k in range(1, len(sizes))
    ]  # fmt: skip
    return bounded(rank, bounds, "interior bond")


def bounded(rank: Any, bounds: Sequence[int], place: str) -> tuple[int, ...]:
    """Returns a layer's ranks within the bounds of its modes: an int is cut, others checked.

    Raises:
      ValueError: no positive integers, not one per place, or an explicit rank above its bound.
    """
    ranks = _check.bond_ranks(rank, bounds, place=place)
    if not isinstance(rank, numbers.Integral):
        above = [k for k, (given, r) in enumerate(zip(rank, ranks, strict=True)) if given > r]
        if above:
            raise ValueError(
                f"rank: expected at most {tuple(bounds)} (one per {place}), got {tuple(rank)}, too "
                f"large at {above}; one int for all is cut to what each {place} can use"
            )
    return ranks
