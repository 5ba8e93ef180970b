"""Mode sizes of a Kronecker-structured map: balanced factors of its sizes N and M.

How N is cut does not change the variance of the map; how M is cut does. With m_k rows in mode k,
max_x Var ‖f(x)‖² / ‖x‖⁴ = ∏ (1 + 2/m_k) − 1, which is least for equal m_k and grows with the number
of modes d: about 4/√M for d = 2, 6/M^(1/3) for d = 3, against 2/M for a dense Gaussian map. Hence
the defaults: d = 2 as long as N^(1/d) stays small, and M cut into factors as equal as possible.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tensorjax import _check
from tensorjax.sketch import _fourth_moments

_WIDEST_MODE = 4096  # a default factorisation takes more modes rather than a wider one
_LARGEST_TRIAL_DIVISOR = 10**6  # keeps trial division near 0.1 s
_UNBALANCED = 2.5  # a mode this many times the geometric mean: pad instead
_FEW_MODES = 12  # up to here every cut into near-equal factors is tried, 1820 at most
_TRIED = 8  # cuts into more modes that are
_PADDING_GAIN = 1.25  # rows are padded if an exact cut of M has this many times the variance


class Shapes(NamedTuple):
    """Balanced factors of both sizes of a Kronecker random map, and the sizes before padding."""

    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    in_size: int
    out_size: int


def shapes(
    in_shape: int | Sequence[int],
    out_shape: int | Sequence[int],
    *,
    order: int | None = None,
    rank: int = 1,
) -> Shapes:
    """Returns input and output mode sizes of a random map: an int gives balanced factors.

    Ints are cut into as many factors as the other argument has, else ``order``, else as few as
    keep N^(1/d) ≤ 4096, at least two. Large n_k are matched with small m_k, which makes
    the map small, and fast on dense input.

    Raises:
      ValueError: the lengths of the two shapes or ``order`` contradict each other.
    """
    fixed_in, fixed_out = _fixed("in_shape", in_shape), _fixed("out_shape", out_shape)
    lengths = {len(s) for s in (fixed_in, fixed_out) if s}
    if order is not None:
        lengths.add(_check.integer("order", order, low=1))
    if len(lengths) > 1:
        raise ValueError(
            "in_shape, out_shape, order: expected one number of modes, "
            f"got {in_shape!r}, {out_shape!r} and order={order!r}; pass equally long shapes, "
            "or an int where the toolkit may choose the factors"
        )
    in_size = math.prod(fixed_in) if fixed_in else _check.integer("in_shape", in_shape, low=1)
    out_size = math.prod(fixed_out) if fixed_out else _check.integer("out_shape", out_shape, low=1)
    d = lengths.pop() if lengths else _default_order(in_size)
    n = fixed_in or columns(in_size, d)
    m = fixed_out or rows(out_size, d, rank)
    if not fixed_out:
        m = _matched(m, n)
    elif not fixed_in:
        n = tuple(_matched(n, m))
    return Shapes(tuple(n), tuple(m), in_size, out_size)


def _fixed(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    is_int = hasattr(value, "__index__")
    return () if is_int else _check.shape(name, value)


def _default_order(size: int) -> int:
    d = 2
    while size > _WIDEST_MODE**d:
        d += 1
    return d


def _matched(free: Iterable[int], fixed: Sequence[int]) -> tuple[int, ...]:
    """Orders a map's mode factors so that the largest meets the smallest of ``fixed``."""
    order = sorted(range(len(fixed)), key=lambda k: fixed[k])
    out = [0] * len(fixed)
    for k, value in zip(order, sorted(free, reverse=True), strict=True):
        out[k] = value
    return tuple(out)


@functools.lru_cache(maxsize=1024)
def columns(size: int, order: int) -> tuple[int, ...]:
    """Factors the input size N of a Kronecker map into balanced mode sizes, padded if need be.

    Example:
      >>> columns(784, 2), columns(10**4, 3), columns(10007, 2)
      ((28, 28), (20, 20, 25), (91, 110))
    """
    exact = _exact(size, order)
    if max(exact) <= _UNBALANCED * size ** (1 / order):
        return tuple(sorted(exact))
    return tuple(sorted(_padded(size, order)))


def _exact(size: int, order: int) -> tuple[int, ...]:
    """Factors N or M of a random map exactly into ``order`` balanced mode sizes."""
    if order == 1:
        return (size,)
    target = math.log(size) / order
    # Ties go to the larger divisor; the rounding makes a tie of what is one in exact arithmetic.
    best = min(divisors(size), key=lambda a: (round(abs(math.log(a) - target), 9), -a))
    return (best, *_exact(size // best, order - 1))


@functools.lru_cache(maxsize=1024)
def divisors(size: int) -> tuple[int, ...]:
    """Lists divisors of N or M as mode sizes of a random map, by trial division up to 10⁶.

    A cofactor of primes above 10⁶ counts as a prime.
    """
    out, rest = [1], size
    for p in itertools.chain((2,), range(3, _LARGEST_TRIAL_DIVISOR, 2)):
        if p * p > rest:
            break
        power, fresh = 1, list(out)
        while rest % p == 0:
            rest //= p
            power *= p
            out += [a * power for a in fresh]
    return tuple(out if rest == 1 else out + [a * rest for a in out])


def _padded(size: int, order: int) -> tuple[int, ...]:
    """Returns near-equal mode sizes of product N or little more, for a random map of padded x."""
    if order == 1:
        return (size,)
    root = math.ceil(size ** (1 / order))
    if order > 2:
        return (root, *_padded(-(-size // root), order - 1))
    candidates = range(max(1, root - root // 8), root + 1)
    best = min(candidates, key=lambda a: (a * -(-size // a), -a))
    return (best, -(-size // best))


def _near_equal(size: int, order: int) -> list[tuple[int, ...]]:
    """Lists near-equal descending mode sizes of a random map, of product N or little more."""
    root = max(1, int(size ** (1 / order)))
    if order <= _FEW_MODES:
        near = range(max(1, root - 1), root + 4)
        every = itertools.combinations_with_replacement(reversed(near), order)
        return [m for m in every if size <= math.prod(m) <= 1.5 * size + 2]
    # Among too many to look at: with every count of the next size but one, the smallest product.
    out = []
    for third in range(order + 1):
        done, rest = (root + 2) ** third, order - third
        second = next((k for k in range(rest + 1) if _product(done, root, k, rest) >= size), None)
        if second is not None and _product(done, root, second, rest) <= 1.5 * size + 2:
            out.append((root + 2,) * third + (root + 1,) * second + (root,) * (rest - second))
    return sorted(out, key=lambda m: math.prod(1 + 2 / a for a in m))[:_TRIED]


def _product(done: int, root: int, second: int, rest: int) -> int:
    return done * (root + 1) ** second * root ** (rest - second)


@functools.lru_cache(maxsize=1024)
def rows(size: int, order: int, rank: int = 1) -> tuple[int, ...]:
    """Factors M into ``order`` descending mode sizes of a map of small worst-case variance.

    An exact cut is kept unless some padded one (of which the first M rows are used) has a
    variance 1.25 times smaller: a map without surplus rows stays a plain Kronecker product.

    Example:
      >>> rows(24, 2), rows(24, 3), rows(23, 2)
      ((6, 4), (4, 3, 2), (5, 5))
    """
    if order == 1:
        return (size,)

    def worst(m: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        return _fourth_moments.total(m, size, (rank,) * (order - 1), 3.0), m

    padded = _near_equal(size, order)
    exact = worst(tuple(sorted(_exact(size, order), reverse=True)))
    best = min((worst(m) for m in padded), default=exact)
    return exact[1] if exact[0] <= _PADDING_GAIN * best[0] else best[1]
